//! The allocator of test programs that count: the system's own, with a count of what is asked of it, by this thread or by all.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Whether all threads are counted: else nothing is written that threads share, so that counting does not slow them down.
static COUNTS_ALL: AtomicBool = AtomicBool::new(false);
static COUNT_OF_ALL: AtomicUsize = AtomicUsize::new(0);

struct Counting;

fn note(size: usize) {
    LARGEST.set(LARGEST.get().max(size));
    COUNT.set(COUNT.get() + 1);
    if COUNTS_ALL.load(Ordering::Relaxed) {
        COUNT_OF_ALL.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: passes everything on to the system's allocator; the counters are plain cells without destructors, and atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise about `layout`, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise about `layout`, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size);
        // SAFETY: `ptr` came from the system's allocator with this layout; the caller's promise about `new_size`, passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from the system's allocator with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of allocations of this thread in `act`, and the largest one, in bytes.
#[allow(dead_code, reason = "each program that includes this file counts in its own way")]
pub fn of_this_thread(act: impl FnOnce()) -> (usize, usize) {
    LARGEST.set(0);
    COUNT.set(0);
    act();
    (COUNT.get(), LARGEST.get())
}

/// The number of allocations of all threads in `act`.
#[allow(dead_code, reason = "each program that includes this file counts in its own way")]
pub fn of_all_threads(act: impl FnOnce()) -> usize {
    COUNT_OF_ALL.store(0, Ordering::Relaxed);
    COUNTS_ALL.store(true, Ordering::SeqCst);
    act();
    COUNTS_ALL.store(false, Ordering::SeqCst);
    COUNT_OF_ALL.load(Ordering::Relaxed)
}
