//! The heaps of a process in which engines compute: with 64 bits, glibc makes one for nearly every thread, until there are eight for each core,
//! and each of them keeps what its threads have freed.
//!
//! Decoders, engines and streams have dozens of threads, most of which allocate little. With two heaps for each core, the cascade of
//! `pipelines/faces.toml` takes 6 of 241 MB less in the same time. Only with glibc: elsewhere this does nothing.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use std::ffi::{OsStr, c_int};

/// Lets threads share heaps, unless the environment says how many there may be (`MALLOC_ARENA_MAX`, or `GLIBC_TUNABLES`). For a program, before
/// it has other threads: heaps that are there stay. An application in which this library works decides for itself.
pub fn share() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if !is_decided(|name| std::env::var_os(name)) {
        limit(n_heaps(std::thread::available_parallelism().map_or(1, |n_cores| n_cores.get())));
    }
}

/// Two for each core, but on many cores not more than eight, or one for each.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn n_heaps(n_cores: usize) -> usize {
    (2 * n_cores).min(n_cores.max(8))
}

/// Whether the user said it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn is_decided<T: AsRef<OsStr>>(variable: impl Fn(&str) -> Option<T>) -> bool {
    let says_so = |tunables: T| tunables.as_ref().to_string_lossy().contains("glibc.malloc.arena_max");
    variable("MALLOC_ARENA_MAX").is_some() || variable("GLIBC_TUNABLES").is_some_and(says_so)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn limit(n_heaps: usize) {
    /// Of `malloc.h`.
    const M_ARENA_MAX: c_int = -8;
    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
    // SAFETY: a function of every glibc, which sets a number under its own lock. A thread that makes its heap meanwhile finds the number from
    // before or this one. It takes every number above 0.
    let _taken = unsafe { mallopt(M_ARENA_MAX, c_int::try_from(n_heaps).unwrap_or(c_int::MAX)) };
}

#[cfg(all(test, target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Range;
    use std::process::Command;
    use std::sync::Barrier;

    use super::*;

    fn n_cores() -> usize {
        std::thread::available_parallelism().unwrap().get()
    }

    /// Where the first heap lies, which is not aligned as the others are.
    fn first_heap() -> Range<usize> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let heap = maps.lines().find(|line| line.ends_with("[heap]")).unwrap();
        let (begin, end) = heap.split(' ').next().unwrap().split_once('-').unwrap();
        usize::from_str_radix(begin, 16).unwrap()..usize::from_str_radix(end, 16).unwrap()
    }

    /// In how many heaps threads, more of them than heaps are wanted, allocate at the same time.
    fn n_heaps_in_use() -> usize {
        const HEAP_BYTES: usize = 64 << 20;
        let (n_threads, first_heap) = (3 * n_heaps(n_cores()), first_heap());
        let heap_of = |block: &[u8]| {
            let address = block.as_ptr() as usize;
            if first_heap.contains(&address) { 0 } else { address / HEAP_BYTES }
        };
        let barrier = Barrier::new(n_threads);
        std::thread::scope(|scope| {
            let allocate = || {
                barrier.wait();
                let block = std::hint::black_box(vec![1_u8; 1000]);
                let heap = heap_of(&block);
                barrier.wait();
                heap
            };
            let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(allocate)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<BTreeSet<_>>().len()
        })
    }

    #[test]
    fn threads_share_heaps_unless_the_user_decides() {
        let n_in_use = |environment: &[(&str, &str)]| -> usize {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "heaps::tests::heaps_are_counted", "--ignored", "--nocapture", "--test-threads=1"]);
            command.env_remove("MALLOC_ARENA_MAX").env_remove("GLIBC_TUNABLES").envs(environment.iter().copied());
            let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
            let said = output.split("heaps in use: ").nth(1).unwrap_or_else(|| panic!("{output}"));
            said.lines().next().unwrap().parse().unwrap()
        };
        assert!(n_in_use(&[]) <= n_heaps(n_cores()));
        assert_eq!(n_in_use(&[("MALLOC_ARENA_MAX", "1")]), 1);
        assert!(n_in_use(&[("GLIBC_TUNABLES", "glibc.malloc.arena_max=10000")]) > n_heaps(n_cores()));
        assert_eq!([1, 2, 4, 8, 64].map(n_heaps), [2, 4, 8, 8, 64]);
    }

    #[test]
    #[ignore = "run by the test above, in another environment"]
    fn heaps_are_counted() {
        share();
        println!("heaps in use: {}", n_heaps_in_use());
    }

    #[test]
    fn what_the_environment_says_of_heaps_counts() {
        let is_decided_by = |pair: (&str, &'static str)| is_decided(|name| (name == pair.0).then_some(pair.1));
        assert!(is_decided_by(("MALLOC_ARENA_MAX", "8")));
        assert!(is_decided_by(("GLIBC_TUNABLES", "glibc.malloc.check=0:glibc.malloc.arena_max=3")));
        assert!(!is_decided_by(("GLIBC_TUNABLES", "glibc.malloc.check=3")));
        assert!(!is_decided_by(("HOME", "/")));
    }
}
