//! A counting allocator for tests: the system allocator, with counters per thread or for all threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Whether allocations of all threads are counted. Otherwise no shared counter is written, so that counting does not slow threads down.
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

// SAFETY: all calls are forwarded to the system allocator. Counting does not allocate: the counters are atomics, and thread-local cells
// without destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's guarantee about `layout` is forwarded.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's guarantee about `layout` is forwarded.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size);
        // SAFETY: `ptr` was allocated by the system allocator with this layout. The caller guarantees `new_size`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` was allocated by the system allocator with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of allocations of this thread in `act`, and the largest one in bytes.
#[allow(dead_code, reason = "each program that includes this file counts in its own way")]
pub fn of_this_thread(act: impl FnOnce()) -> (usize, usize) {
    LARGEST.set(0);
    COUNT.set(0);
    act();
    (COUNT.get(), LARGEST.get())
}

/// Returns the number of allocations of all threads in `act`.
#[allow(dead_code, reason = "each program that includes this file counts in its own way")]
pub fn of_all_threads(act: impl FnOnce()) -> usize {
    COUNT_OF_ALL.store(0, Ordering::Relaxed);
    COUNTS_ALL.store(true, Ordering::SeqCst);
    act();
    COUNTS_ALL.store(false, Ordering::SeqCst);
    COUNT_OF_ALL.load(Ordering::Relaxed)
}
