//! The heaps of a process in which engines compute: glibc makes one for nearly every thread, until there are eight for each core, and each of
//! them keeps what its threads have freed.
//!
//! Decoders, engines and streams have dozens of threads, most of which allocate little. With two heaps for each core, the cascade of
//! `pipelines/faces.toml` takes 6 of 239 MB less in the same time. Only with glibc: elsewhere this does nothing.

#[cfg(target_env = "gnu")]
use std::ffi::{OsStr, c_int};

/// Heaps for each core.
const PER_CORE: usize = 2;

/// Lets threads share heaps from now on, unless the environment says how many there may be (`MALLOC_ARENA_MAX`, or `GLIBC_TUNABLES`). For a
/// program, at its begin: an application in which this library works decides for itself.
pub fn share() {
    #[cfg(target_env = "gnu")]
    if !is_decided(|name| std::env::var_os(name)) {
        let n_cores = std::thread::available_parallelism().map_or(1, |n_cores| n_cores.get());
        limit(PER_CORE * n_cores);
    }
}

/// Whether the user said it.
#[cfg(target_env = "gnu")]
fn is_decided<T: AsRef<OsStr>>(variable: impl Fn(&str) -> Option<T>) -> bool {
    let says_so = |tunables: T| tunables.as_ref().to_string_lossy().contains("glibc.malloc.arena_max");
    variable("MALLOC_ARENA_MAX").is_some() || variable("GLIBC_TUNABLES").is_some_and(says_so)
}

/// At most so many heaps; those that are there stay.
#[cfg(target_env = "gnu")]
fn limit(n_heaps: usize) {
    /// Of `malloc.h`.
    const M_ARENA_MAX: c_int = -8;
    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
    let n_heaps = c_int::try_from(n_heaps).unwrap_or(c_int::MAX);
    // SAFETY: a function of every glibc, which sets a number under its own lock. A thread that makes its heap meanwhile finds the number from
    // before or this one.
    if unsafe { mallopt(M_ARENA_MAX, n_heaps) } == 0 {
        tracing::debug!("the heaps of threads stay as many as they were");
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Command;
    use std::sync::Barrier;

    use super::*;

    fn n_cores() -> usize {
        std::thread::available_parallelism().unwrap().get()
    }

    /// In how many heaps threads, more of them than heaps are wanted, allocate at the same time. Those of threads are aligned to their size.
    fn n_heaps_in_use() -> usize {
        const HEAP_BYTES: usize = 64 << 20;
        let n_threads = 3 * PER_CORE * n_cores();
        let (barrier, heap_of) = (Barrier::new(n_threads), |block: &[u8]| block.as_ptr() as usize / HEAP_BYTES);
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
    fn threads_share_two_heaps_a_core_unless_the_user_decides() {
        let n_heaps = |environment: &[(&str, &str)]| -> usize {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "devices::heaps::tests::heaps_are_counted", "--ignored", "--nocapture", "--test-threads=1"]);
            command.env_remove("MALLOC_ARENA_MAX").env_remove("GLIBC_TUNABLES").envs(environment.iter().copied());
            let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
            let said = output.split("heaps in use: ").nth(1).unwrap_or_else(|| panic!("{output}"));
            said.lines().next().unwrap().parse().unwrap()
        };
        assert!(n_heaps(&[]) <= PER_CORE * n_cores());
        assert_eq!(n_heaps(&[("MALLOC_ARENA_MAX", "1")]), 1);
        assert!(n_heaps(&[("GLIBC_TUNABLES", "glibc.malloc.arena_max=10000")]) > PER_CORE * n_cores());
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
