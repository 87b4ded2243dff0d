//! Leases on memory. At any time, a byte is leased by many readers or by one writer. Taking a lease never blocks; a conflict is an error.
//!
//! A [`Span`] is the set of bytes that a lease covers: the elements of a tensor, without the gaps between its rows. [`Leases`] stores the
//! leases on one block of memory. Taking a lease on the whole block is one atomic operation. A lease on a part of the block is an entry in
//! a list, which a lock protects.

use super::{Layout, MAX_RANK};
use crate::sync::{AtomicUsize, Mutex, Ordering};

/// A set of bytes: rows of equal length, repeated along up to [`MAX_RANK`] axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte in the memory.
    begin: usize,
    /// Length of each row.
    row_bytes: usize,
    /// The axes, outermost first. Only the first `n_axes` entries are used.
    axes: [Axis; MAX_RANK],
    n_axes: usize,
}

/// Along this axis, rows (or groups of rows) repeat `n` times at a distance of `stride` bytes. `n` is at least 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    stride: usize,
    n: usize,
}

impl Span {
    /// Returns the span of `len` bytes from `begin` on; `None` if `len` is 0.
    pub fn range(begin: usize, len: usize) -> Option<Self> {
        (len > 0).then_some(Self { begin, row_bytes: len, axes: [Axis { stride: 0, n: 1 }; MAX_RANK], n_axes: 0 })
    }

    /// Returns the span of a tensor's elements; `None` if the tensor has no elements. `offset_bytes` is the position of the first element.
    /// The elements must be inside one block of memory, so that the end of the span does not overflow.
    pub fn of_elements(layout: &Layout, offset_bytes: usize) -> Option<Self> {
        let mut row_bytes = layout.element().size();
        // The list has the innermost axis first.
        let mut axes = [Axis { stride: 0, n: 1 }; MAX_RANK];
        let mut n_axes = 0;
        for (&n, &stride) in layout.shape().iter().zip(layout.stride_bytes()).rev() {
            match n {
                0 => return None,
                1 => {}
                _ if n_axes == 0 && stride == row_bytes => row_bytes *= n,
                _ if n_axes > 0 && stride == axes[n_axes - 1].stride * axes[n_axes - 1].n => axes[n_axes - 1].n *= n,
                _ => {
                    axes[n_axes] = Axis { stride, n };
                    n_axes += 1;
                }
            }
        }
        axes[..n_axes].reverse();
        Some(Self { begin: offset_bytes, row_bytes, axes, n_axes })
    }

    /// Returns whether the span has no gaps and covers all `len` bytes of the memory.
    #[inline]
    fn covers(&self, len: usize) -> bool {
        self.n_axes == 0 && self.begin == 0 && self.row_bytes >= len
    }

    fn axes(&self) -> &[Axis] {
        &self.axes[..self.n_axes]
    }

    /// Returns the offset after the last byte.
    fn end(&self) -> usize {
        self.begin + self.row_bytes + self.axes().iter().map(|axis| (axis.n - 1) * axis.stride).sum::<usize>()
    }

    /// Returns whether the spans have a byte in common. The answer is exact for regions of one tensor. If the strides of two spans are
    /// unrelated, the answer may be true although the spans have no common byte, because an exact test could take long.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (end, other_end) = (self.end(), other.end());
        if self.begin >= other_end || other.begin >= end {
            return false;
        }
        // If neither span has axes, both are ranges, and the check above has shown that they overlap. The second condition excludes offsets
        // for which the differences below would overflow.
        if (self.n_axes, other.n_axes) == (0, 0) || end.max(other_end) > isize::MAX as usize / 4 {
            return true;
        }
        // Collect the axes of both spans, the largest stride first. If only one of the two spans has an axis with this stride, the number
        // of repetitions of the other span along this axis is 1.
        let mut axes = [Common { stride: 1, n: 1, n_other: 1 }; 2 * MAX_RANK];
        let mut n_axes = 0;
        let (mut own, mut others) = (self.axes().iter().peekable(), other.axes().iter().peekable());
        loop {
            let stride = match (own.peek(), others.peek()) {
                (None, None) => break,
                (Some(axis), None) | (None, Some(axis)) => axis.stride,
                (Some(axis), Some(other)) => axis.stride.max(other.stride),
            };
            let n_of = |axis: Option<&Axis>| axis.map_or(1, |axis| axis.n as isize);
            axes[n_axes] = Common {
                stride: stride as isize,
                n: n_of(own.next_if(|axis| axis.stride == stride)),
                n_other: n_of(others.next_if(|axis| axis.stride == stride)),
            };
            n_axes += 1;
        }
        let mut rows = Rows { len: self.row_bytes as isize, other_len: other.row_bytes as isize, n_left: 1 << MAX_RANK };
        rows.meet(self.begin as isize - other.begin as isize, &axes[..n_axes])
    }
}

/// An axis along which two spans are compared, with the number of repetitions of each span.
#[derive(Clone, Copy)]
struct Common {
    stride: isize,
    n: isize,
    n_other: isize,
}

/// The search for a row of one span that overlaps a row of another span.
struct Rows {
    len: isize,
    other_len: isize,
    /// Number of candidates that the search may still try. When none is left, the spans count as overlapping.
    n_left: usize,
}

impl Rows {
    /// Returns whether a row of the first span overlaps a row of the second span. `distance` is the begin of the first span minus the begin
    /// of the second span.
    ///
    /// The distance of two rows is `distance` plus, for each axis, `k` strides, where `k` is the difference of the positions of the two
    /// rows on that axis. The search tries only those `k` for which the blocks along the remaining axes overlap. For regions of one tensor,
    /// at most two values of `k` remain per axis.
    fn meet(&mut self, distance: isize, axes: &[Common]) -> bool {
        let Some((axis, inner)) = axes.split_first() else { return -self.len < distance && distance < self.other_len };
        let block = self.len + inner.iter().map(|axis| (axis.n - 1) * axis.stride).sum::<isize>();
        let other_block = self.other_len + inner.iter().map(|axis| (axis.n_other - 1) * axis.stride).sum::<isize>();
        // `k` must satisfy: -block < distance + k * stride < other_block
        let first = ((-block - distance).div_euclid(axis.stride) + 1).max(1 - axis.n_other);
        let last = (other_block - distance - 1).div_euclid(axis.stride).min(axis.n - 1);
        for k in first..=last {
            if self.n_left == 0 {
                return true;
            }
            self.n_left -= 1;
            if self.meet(distance + k * axis.stride, inner) {
                return true;
            }
        }
        false
    }
}

/// The leases on one block of memory.
#[derive(Debug)]
pub struct Leases {
    /// Size of the memory in bytes.
    len: usize,
    /// `WRITER` if a lease for writing covers the whole memory. Otherwise, the number of leases for reading on the whole memory, plus
    /// `PARTS` while the list `parts` has entries.
    state: AtomicUsize,
    /// Leases on parts. When a lease ends, its entry becomes `None`, so that the indices of other leases stay valid. No entry has an empty
    /// span.
    parts: Mutex<Vec<Option<Part>>>,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    span: Span,
    writes: bool,
}

/// A flag in `state`: the list `parts` has entries. While it is set, a lease on the whole memory is taken under the lock of the list.
const PARTS: usize = 1 << (usize::BITS - 2);
const WRITER: usize = 1 << (usize::BITS - 1);

/// The bytes that a lease holds. [`Leases::end`] releases them.
#[derive(Debug)]
pub enum Held {
    /// No bytes, because the tensor has no elements.
    Nothing,
    /// The whole memory, for reading.
    Reads,
    /// The whole memory, for writing.
    Writes,
    /// A part of the memory. The number is the index of the lease in the list `parts`.
    Part(usize),
}

/// The kind of an existing lease that excludes a new lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conflict {
    /// A lease for reading covers at least one of the bytes.
    Read,
    /// A lease for writing covers at least one of the bytes.
    Written,
}

impl Leases {
    /// Creates the record of leases for a block of `len` bytes. At first, it contains no lease.
    pub fn new(len: usize) -> Self {
        Self { len, state: AtomicUsize::new(0), parts: Mutex::new(Vec::new()) }
    }

    /// Leases all bytes of `span`.
    ///
    /// # Errors
    /// Returns the kind of an existing lease that excludes the new lease.
    #[inline]
    pub fn take(&self, span: Option<Span>, writes: bool) -> Result<Held, Conflict> {
        match span {
            None => Ok(Held::Nothing),
            Some(span) if !span.covers(self.len) => self.take_part(span, writes),
            Some(_) if writes => self.take_whole_to_write(),
            Some(_) => self.take_whole_to_read(),
        }
    }

    /// Leases the whole memory for reading.
    ///
    /// # Errors
    /// Returns the kind of an existing lease that excludes the new lease.
    #[inline]
    pub fn take_whole_to_read(&self) -> Result<Held, Conflict> {
        let count = |state: usize| if state & (WRITER | PARTS) == 0 { Some(state + 1) } else { None };
        match self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, count) {
            Ok(_) => Ok(Held::Reads),
            Err(WRITER) => Err(Conflict::Written),
            Err(_) => self.take_whole_among_parts(),
        }
    }

    fn take_whole_among_parts(&self) -> Result<Held, Conflict> {
        // The lock is held until the end of the function, so no lease on a part is added between the check and the update of `state`.
        let parts = self.parts.lock().unwrap();
        if parts.iter().flatten().any(|part| part.writes) {
            return Err(Conflict::Written);
        }
        let count = |state: usize| if state == WRITER { None } else { Some(state + 1) };
        match self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, count) {
            Ok(_) => Ok(Held::Reads),
            Err(_) => Err(Conflict::Written),
        }
    }

    fn take_whole_to_write(&self) -> Result<Held, Conflict> {
        match self.state.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Held::Writes),
            Err(_) if self.is_written() => Err(Conflict::Written),
            Err(_) => Err(Conflict::Read),
        }
    }

    fn take_part(&self, span: Span, writes: bool) -> Result<Held, Conflict> {
        let mut parts = self.parts.lock().unwrap();
        for part in parts.iter().flatten() {
            if (writes || part.writes) && part.span.overlaps(&span) {
                return Err(if part.writes { Conflict::Written } else { Conflict::Read });
            }
        }
        let mark = |state: usize| if state == WRITER || writes && state & !PARTS > 0 { None } else { Some(state | PARTS) };
        match self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, mark) {
            Ok(_) => {}
            Err(WRITER) => return Err(Conflict::Written),
            Err(_) => return Err(Conflict::Read),
        }
        let part = Some(Part { span, writes });
        Ok(Held::Part(match parts.iter().position(Option::is_none) {
            Some(free_idx) => {
                parts[free_idx] = part;
                free_idx
            }
            None => {
                parts.push(part);
                parts.len() - 1
            }
        }))
    }

    /// Turns a lease for writing into a lease for reading. No other thread can write between the two leases.
    pub fn downgrade(&self, held: &mut Held) {
        match held {
            Held::Writes => {
                self.state.store(1, Ordering::Release);
                *held = Held::Reads;
            }
            Held::Part(idx) => {
                if let Some(part) = &mut self.parts.lock().unwrap()[*idx] {
                    part.writes = false;
                }
            }
            Held::Nothing | Held::Reads => {}
        }
    }

    /// Ends a lease.
    #[inline]
    pub fn end(&self, held: &Held) {
        match held {
            Held::Nothing => {}
            Held::Reads => {
                self.state.fetch_sub(1, Ordering::Release);
            }
            Held::Writes => self.state.store(0, Ordering::Release),
            Held::Part(idx) => self.end_part(*idx),
        }
    }

    fn end_part(&self, idx: usize) {
        let mut parts = self.parts.lock().unwrap();
        parts[idx] = None;
        if parts.iter().all(Option::is_none) {
            self.state.fetch_and(!PARTS, Ordering::Release);
        }
    }

    /// Returns whether a lease for writing currently exists, on the whole memory or on a part.
    pub fn is_written(&self) -> bool {
        match self.state.load(Ordering::Relaxed) {
            WRITER => true,
            state if state & PARTS == 0 => false,
            _ => self.parts.lock().unwrap().iter().flatten().any(|part| part.writes),
        }
    }

    /// Returns whether the lease `held` covers any byte of `span`.
    pub fn covers_any(&self, held: &Held, span: Option<Span>) -> bool {
        let Some(span) = span else { return false };
        match held {
            Held::Nothing => false,
            Held::Reads | Held::Writes => true,
            Held::Part(idx) => self.parts.lock().unwrap()[*idx].is_some_and(|part| part.span.overlaps(&span)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ElementType, Shape};

    /// Returns a deterministic pseudorandom number below `end`.
    fn random(state: &mut u64, end: usize) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((*state >> 33) as usize) % end
    }

    /// Returns the offsets of all bytes of a layout's elements.
    fn bytes_of(layout: &Layout, offset_bytes: usize) -> Vec<usize> {
        let mut offsets = vec![offset_bytes];
        for (&n, &stride) in layout.shape().iter().zip(layout.stride_bytes()) {
            offsets = offsets.iter().flat_map(|offset| (0..n).map(move |idx| offset + idx * stride)).collect();
        }
        offsets.iter().flat_map(|offset| (0..layout.element().size()).map(move |byte| offset + byte)).collect()
    }

    fn share_a_byte(a: &(Layout, usize), b: &(Layout, usize)) -> bool {
        let taken = bytes_of(&a.0, a.1);
        bytes_of(&b.0, b.1).iter().any(|byte| taken.contains(byte))
    }

    fn random_window(seed: &mut u64, layout: &Layout) -> (Layout, usize) {
        let end: Vec<usize> = layout.shape().iter().map(|&extent| random(seed, extent + 1)).collect();
        let begin: Vec<usize> = end.iter().map(|&end| random(seed, end + 1)).collect();
        layout.window(&begin, &end).unwrap()
    }

    #[test]
    fn spans_of_regions_of_one_tensor_overlap_exactly_where_the_regions_do() {
        let mut seed = 1;
        for shape in [&[7][..], &[5, 6], &[3, 4, 5], &[2, 3, 4, 5], &[2, 3, 2, 3, 4], &[2, 2, 3, 2, 2, 3], &[2; 8]] {
            let dense = Layout::dense(ElementType::U16, shape).unwrap();
            let mut padded = dense.stride_bytes().to_vec();
            for axis in (0..shape.len() - 1).rev() {
                padded[axis] = padded[axis + 1] * shape[axis + 1] + 2 * axis + 2;
            }
            for whole in [dense, Layout::strided(ElementType::U16, shape, &padded).unwrap()] {
                for _ in 0..2000 {
                    let offset_bytes = random(&mut seed, 50);
                    let mut window = || {
                        let (layout, window_offset_bytes) = random_window(&mut seed, &whole);
                        (layout, offset_bytes + window_offset_bytes)
                    };
                    let (a, b) = (window(), window());
                    let spans = (Span::of_elements(&a.0, a.1), Span::of_elements(&b.0, b.1));
                    let overlap = matches!(spans, (Some(a), Some(b)) if a.overlaps(&b));
                    assert_eq!(overlap, share_a_byte(&a, &b), "{a:?} {b:?}");
                }
            }
        }
    }

    #[test]
    fn spans_of_unrelated_tensors_never_miss_a_shared_byte() {
        let mut seed = 2;
        let mut n_exact = 0;
        for _ in 0..5000 {
            let mut any = || {
                let shape: Vec<usize> = (0..1 + random(&mut seed, 5)).map(|_| 1 + random(&mut seed, 3)).collect();
                let mut strides = vec![0; shape.len()];
                let mut stride = 1;
                for axis in (0..shape.len()).rev() {
                    stride += random(&mut seed, 4);
                    strides[axis] = stride;
                    stride *= shape[axis];
                }
                (Layout::strided(ElementType::U8, &shape[..], &strides).unwrap(), random(&mut seed, 60))
            };
            let (a, b) = (any(), any());
            let spans = [&a, &b].map(|(layout, offset_bytes)| Span::of_elements(layout, *offset_bytes).unwrap());
            let (overlap, truth) = (spans[0].overlaps(&spans[1]), share_a_byte(&a, &b));
            assert!(overlap || !truth, "{a:?} {b:?}");
            assert_eq!(overlap, spans[1].overlaps(&spans[0]), "{a:?} {b:?}");
            n_exact += usize::from(overlap == truth);
        }
        assert!(n_exact > 4900, "{n_exact} of 5000");
    }

    #[test]
    fn an_empty_tensor_has_no_span() {
        assert_eq!(Span::of_elements(&Layout::dense(ElementType::F32, [0, 3]).unwrap(), 8), None);
        assert_eq!(Span::of_elements(&Layout::dense(ElementType::F32, [3, 0]).unwrap(), 8), None);
        assert_eq!(Span::range(5, 0), None);
        let scalar = Layout::dense(ElementType::F32, Shape::new(&[])).unwrap();
        assert_eq!(Span::of_elements(&scalar, 8), Span::range(8, 4));
    }

    #[test]
    fn whole_leases_and_parts_exclude_each_other_by_byte() {
        let leases = Leases::new(16);
        let part = |begin, len| Span::range(begin, len);
        let (left, right) = (leases.take(part(0, 8), true).unwrap(), leases.take(part(8, 8), true).unwrap());
        assert_eq!(leases.take(part(7, 2), false).unwrap_err(), Conflict::Written);
        assert_eq!(leases.take(part(0, 16), false).unwrap_err(), Conflict::Written);
        leases.end(&right);
        let right = leases.take(part(8, 8), false).unwrap();
        assert_eq!(leases.take(part(8, 1), true).unwrap_err(), Conflict::Read);
        leases.end(&left);
        let whole = leases.take(part(0, 16), false).unwrap();
        assert_eq!(leases.take(part(0, 1), true).unwrap_err(), Conflict::Read);
        assert_eq!(leases.take(part(0, 16), true).unwrap_err(), Conflict::Read);
        leases.end(&right);
        leases.end(&whole);
        let mut whole = leases.take(part(0, 16), true).unwrap();
        assert_eq!(leases.take(part(3, 1), false).unwrap_err(), Conflict::Written);
        leases.downgrade(&mut whole);
        let reader = leases.take(part(3, 1), false).unwrap();
        leases.end(&whole);
        leases.end(&reader);
        assert!(leases.take(part(0, 16), true).is_ok());
    }

    #[test]
    fn a_part_that_ends_leaves_no_entry_behind() {
        let leases = Leases::new(16);
        for _ in 0..100 {
            let held = [0, 4, 8].map(|begin| leases.take(Span::range(begin, 4), true).unwrap());
            held.iter().for_each(|held| leases.end(held));
        }
        assert_eq!(leases.parts.lock().unwrap().len(), 3);
        assert_eq!(leases.state.load(Ordering::Relaxed), 0);
    }
}
