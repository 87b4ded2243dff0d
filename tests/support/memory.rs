//! Resources of the process: resident memory, heap bytes in use, threads, descriptors.
//!
//! Resident memory is meaningful only if the allocator returns freed memory. So all threads share one malloc arena, large blocks are mapped
//! separately, and free memory at the heap's end is returned before each measurement. The allocator reads these settings from the
//! environment when a process starts, so the process sets the environment and restarts itself.

use std::os::unix::process::CommandExt;

/// Settings of the allocators of glibc and GLib. They turn off caches of freed memory per thread: such memory would count as in use, and
/// the number of threads varies.
const ENVIRONMENT: [(&str, &str); 5] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_MMAP_THRESHOLD_", "131072"),
    ("MALLOC_TRIM_THRESHOLD_", "131072"),
    ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0"),
    ("G_SLICE", "always-malloc"),
];

/// Restarts the process unless it has the environment.
pub fn settle_allocators() {
    if ENVIRONMENT.iter().all(|(name, value)| std::env::var(name).is_ok_and(|set| set == *value)) {
        return;
    }
    let program = std::env::current_exe().expect("the program's path is known");
    let error = std::process::Command::new(program).args(std::env::args_os().skip(1)).envs(ENVIRONMENT).exec();
    panic!("the process could not be restarted: {error}");
}

/// A measurement.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    pub resident_bytes: u64,
    /// 0 if the C library does not report it.
    pub heap_bytes: u64,
    pub n_threads: usize,
    pub n_descriptors: usize,
}

impl Held {
    /// Returns free memory to the system, then measures. `None` without `/proc`.
    pub fn now() -> Option<Self> {
        let heap_bytes = heap();
        let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
        let n_pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
        let count = |folder: &str| std::fs::read_dir(folder).map_or(0, Iterator::count);
        Some(Self {
            resident_bytes: n_pages * 4096,
            heap_bytes,
            n_threads: count("/proc/self/task"),
            n_descriptors: count("/proc/self/fd"),
        })
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn heap() -> u64 {
    /// `struct mallinfo2` of glibc 2.33 and newer.
    #[repr(C)]
    #[allow(dead_code, reason = "as the library has it")]
    struct Info {
        arena: usize,
        n_free: usize,
        n_fast: usize,
        n_mapped: usize,
        mapped_bytes: usize,
        _unused: usize,
        fast_bytes: usize,
        used_bytes: usize,
        free_bytes: usize,
        keep_bytes: usize,
    }

    unsafe extern "C" {
        fn malloc_trim(keep: usize) -> std::ffi::c_int;
        fn mallinfo2() -> Info;
    }

    // SAFETY: both may be called at any time from any thread; the struct has the layout of the library.
    let info = unsafe {
        malloc_trim(0);
        mallinfo2()
    };
    (info.used_bytes + info.mapped_bytes) as u64
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn heap() -> u64 {
    0
}
