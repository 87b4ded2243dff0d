//! Lists that begin at a multiple of the widest register, so that no load or store of theirs touches two cache lines. They are kept
//! from use to use. Knows nothing of what is in them.

use std::ops::{Deref, DerefMut};

/// The widest register, and a cache line.
const ALIGN_BYTES: usize = 64;

/// A list of numbers.
#[derive(Debug, Default)]
pub(super) struct Aligned<T> {
    memory: Vec<T>,
    begin: usize,
    len: usize,
}

impl<T: Copy + Default> Aligned<T> {
    /// Makes it so long. What is in it then is left over, or zeros.
    pub(super) fn resize(&mut self, len: usize) {
        let n_spare = ALIGN_BYTES / size_of::<T>();
        if self.memory.len() < len + n_spare {
            self.memory.resize(len + n_spare, T::default());
            // At most the spare ones; a platform that can't tell has to do without.
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
    fn lists_begin_at_cache_lines_whatever_their_length_becomes() {
        let mut list = Aligned::<f32>::default();
        for len in [1, 100, 7, 5000] {
            list.resize(len);
            list.fill(len as f32);
            assert_eq!((list.len(), list.as_ptr() as usize % ALIGN_BYTES), (len, 0));
            assert!(list.iter().all(|value| *value == len as f32));
        }
    }
}
