//! Reusable buffers aligned to cache lines, so that no vector load or store touches two cache lines.

use std::ops::{Deref, DerefMut};

/// Size of the widest SIMD register and of a cache line.
const ALIGN_BYTES: usize = 64;

/// A buffer of numbers, aligned to [`ALIGN_BYTES`].
#[derive(Debug, Default)]
pub(super) struct Aligned<T> {
    memory: Vec<T>,
    begin: usize,
    len: usize,
}

impl<T: Copy + Default> Aligned<T> {
    /// Changes the length of the buffer. Afterwards, each element is an old value or zero; which of them is unspecified.
    pub(super) fn resize(&mut self, len: usize) {
        let n_spare = ALIGN_BYTES / size_of::<T>();
        if self.memory.len() < len + n_spare {
            self.memory.resize(len + n_spare, T::default());
            // `align_offset` may return `usize::MAX` where it cannot compute the offset. Then the buffer stays unaligned.
            self.begin = self.memory.as_ptr().align_offset(ALIGN_BYTES).min(n_spare);
        }
        self.len = len;
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.memory[self.begin..][..self.len]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.begin..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_after_each_resize() {
        let mut list = Aligned::<f32>::default();
        for len in [1, 100, 7, 5000] {
            list.resize(len);
            list.fill(len as f32);
            assert_eq!((list.len(), list.as_ptr() as usize % ALIGN_BYTES), (len, 0));
            assert!(list.iter().all(|value| *value == len as f32));
        }
    }
}
