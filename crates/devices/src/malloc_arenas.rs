//! Limits the number of malloc arenas of a process that runs engines. On 64-bit systems, glibc creates one arena for nearly every thread,
//! up to eight for each core, and each arena retains the memory that its threads have freed.
//!
//! Decoders, engines and streams have dozens of threads, most of which allocate little memory. With two arenas for each core, the cascade
//! of `pipelines/faces.toml` takes 235 instead of 241 MB, and is as fast as before. Only glibc has arenas; with other C libraries, this
//! module has no effect.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use std::ffi::{OsStr, c_int};

/// Makes threads share arenas, unless the environment sets the number of arenas (`MALLOC_ARENA_MAX` or `GLIBC_TUNABLES`). A program must
/// call this function before it starts threads, because existing arenas stay. The library never calls it, because the application decides
/// the number of arenas.
pub fn share() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if !is_decided(|name| std::env::var_os(name)) {
        limit(n_arenas(std::thread::available_parallelism().map_or(1, |n_cores| n_cores.get())));
    }
}

/// Returns the number of arenas: two for each core. With more than four cores, the number is eight, or the number of cores if there are
/// more than eight cores.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn n_arenas(n_cores: usize) -> usize {
    (2 * n_cores).min(n_cores.max(8))
}

/// Returns whether the environment sets the number of arenas.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn is_decided<T: AsRef<OsStr>>(variable: impl Fn(&str) -> Option<T>) -> bool {
    let sets_it = |tunables: T| tunables.as_ref().to_string_lossy().contains("glibc.malloc.arena_max");
    variable("MALLOC_ARENA_MAX").is_some() || variable("GLIBC_TUNABLES").is_some_and(sets_it)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn limit(n_arenas: usize) {
    /// The parameter number in glibc's `malloc.h`.
    const M_ARENA_MAX: c_int = -8;
    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
    // SAFETY: every glibc has this function with this signature. It sets a number under its own lock, so it may be called on any thread.
    // Every number above 0 is valid. A thread that creates its arena at the same time reads the old or the new number.
    let _taken = unsafe { mallopt(M_ARENA_MAX, c_int::try_from(n_arenas).unwrap_or(c_int::MAX)) };
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

    /// Returns the addresses of the main arena. Only the other arenas are aligned to 64 MiB, so the main arena must be recognized by its
    /// address.
    fn first_arena() -> Range<usize> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let arena = maps.lines().find(|line| line.ends_with("[heap]")).unwrap();
        let (begin, end) = arena.split(' ').next().unwrap().split_once('-').unwrap();
        usize::from_str_radix(begin, 16).unwrap()..usize::from_str_radix(end, 16).unwrap()
    }

    /// Returns the number of arenas that are in use while more threads than the maximum number of arenas allocate memory at the same time.
    fn n_arenas_in_use() -> usize {
        const ARENA_BYTES: usize = 64 << 20;
        let (n_threads, first_arena) = (3 * n_arenas(n_cores()), first_arena());
        let arena_of = |block: &[u8]| {
            let address = block.as_ptr() as usize;
            if first_arena.contains(&address) { 0 } else { address / ARENA_BYTES }
        };
        let barrier = Barrier::new(n_threads);
        std::thread::scope(|scope| {
            let allocate = || {
                barrier.wait();
                let block = std::hint::black_box(vec![1_u8; 1000]);
                let arena = arena_of(&block);
                barrier.wait();
                arena
            };
            let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(allocate)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<BTreeSet<_>>().len()
        })
    }

    #[test]
    fn threads_share_arenas_unless_the_user_decides() {
        let n_in_use = |environment: &[(&str, &str)]| -> usize {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "malloc_arenas::tests::arenas_are_counted", "--ignored", "--nocapture", "--test-threads=1"]);
            command.env_remove("MALLOC_ARENA_MAX").env_remove("GLIBC_TUNABLES").envs(environment.iter().copied());
            let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
            let said = output.split("arenas in use: ").nth(1).unwrap_or_else(|| panic!("{output}"));
            said.lines().next().unwrap().parse().unwrap()
        };
        assert!(n_in_use(&[]) <= n_arenas(n_cores()));
        assert_eq!(n_in_use(&[("MALLOC_ARENA_MAX", "1")]), 1);
        assert!(n_in_use(&[("GLIBC_TUNABLES", "glibc.malloc.arena_max=10000")]) > n_arenas(n_cores()));
        assert_eq!([1, 2, 4, 8, 64].map(n_arenas), [2, 4, 8, 8, 64]);
    }

    #[test]
    #[ignore = "run by the test above, in another environment"]
    fn arenas_are_counted() {
        share();
        println!("arenas in use: {}", n_arenas_in_use());
    }

    #[test]
    fn the_environment_decides_the_number_of_arenas() {
        let is_decided_by = |pair: (&str, &'static str)| is_decided(|name| (name == pair.0).then_some(pair.1));
        assert!(is_decided_by(("MALLOC_ARENA_MAX", "8")));
        assert!(is_decided_by(("GLIBC_TUNABLES", "glibc.malloc.check=0:glibc.malloc.arena_max=3")));
        assert!(!is_decided_by(("GLIBC_TUNABLES", "glibc.malloc.check=3")));
        assert!(!is_decided_by(("HOME", "/")));
    }
}
