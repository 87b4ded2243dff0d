//! File descriptors: whether the process may open enough of them for its streams. GLib ends the process if it cannot open one more.

use std::ffi::c_int;
use std::fs;
use std::sync::{Mutex, PoisonError};

use super::{Error, Input, Result};

/// Descriptors for everything that is not part of a stream: results, models, threads, connections of clients.
const RESERVE: u64 = 24;

/// Descriptors that pipelines may need: how many were open before the first pipeline, and how many all pipelines need.
static NEEDS: Mutex<Option<(u64, u64)>> = Mutex::new(None);

/// The descriptors of one pipeline, until the value is dropped.
#[derive(Debug)]
pub(super) struct Reservation(u64);

impl Reservation {
    /// Reserves the descriptors of a pipeline. If the soft limit of the process is too low, it is raised.
    ///
    /// # Errors
    /// Returns `Failed` if the process may not open so many.
    pub(super) fn of(input: &Input) -> Result<Self> {
        let (own, n_open) = (need(input), n_open());
        let mut needs = NEEDS.lock().unwrap_or_else(PoisonError::into_inner);
        let (base, reserved) = needs.get_or_insert((n_open, 0));
        allow((*base + *reserved).max(n_open) + own + RESERVE, "one more stream")?;
        *reserved += own;
        Ok(Self(own))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut needs = NEEDS.lock().unwrap_or_else(PoisonError::into_inner);
        needs.iter_mut().for_each(|(_, reserved)| *reserved = reserved.saturating_sub(self.0));
    }
}

/// Checks before the start whether the process may open enough descriptors for these inputs.
///
/// # Errors
/// Returns `Failed` if the process may not open so many.
pub fn check<'a>(inputs: impl Iterator<Item = &'a Input>) -> Result<()> {
    let needs: Vec<u64> = inputs.map(need).collect();
    let what = if needs.len() == 1 { "one stream".to_owned() } else { format!("{} streams", needs.len()) };
    allow(n_open() + needs.iter().sum::<u64>() + RESERVE, &what)
}

/// Returns the largest number of descriptors that a pipeline has needed in trials, with a margin.
fn need(input: &Input) -> u64 {
    match input {
        Input::Uri(_) => 24,
        Input::File(_) => 10,
        Input::Images(_) | Input::Test(_) | Input::Application => 8,
    }
}

/// Number of open descriptors. If none is left to count them, a large number, so that the check fails.
fn n_open() -> u64 {
    fs::read_dir("/proc/self/fd").map_or(1 << 16, |entries| entries.count() as u64)
}

/// The limits of the system, as `getrlimit` returns them.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Limit {
    soft: u64,
    hard: u64,
}

/// Raises the soft limit if it is lower than `n`.
fn allow(n: u64, what: &str) -> Result<()> {
    // Linux on processors with 64 bits: the number of the limit, and the type of its values. Other systems are not checked.
    const DESCRIPTORS: c_int = 7;
    unsafe extern "C" {
        fn getrlimit(resource: c_int, limit: *mut Limit) -> c_int;
        fn setrlimit(resource: c_int, limit: *const Limit) -> c_int;
    }
    if !cfg!(all(target_os = "linux", target_pointer_width = "64")) || !fs::exists("/proc/self/fd").unwrap_or(true) {
        return Ok(());
    }
    let mut limit = Limit { soft: u64::MAX, hard: u64::MAX };
    // SAFETY: the function writes one `Limit`, which has the layout of `struct rlimit` on this system.
    let known = unsafe { getrlimit(DESCRIPTORS, &raw mut limit) } == 0;
    if !known || limit.soft >= n {
        return Ok(());
    }
    let raised = Limit { soft: limit.hard, ..limit };
    // SAFETY: the function reads one `Limit`, as above. A process may raise its soft limit up to its hard limit.
    if limit.hard >= n && unsafe { setrlimit(DESCRIPTORS, &raw const raised) } == 0 {
        tracing::debug!("the process may now open {} files instead of {}", limit.hard, limit.soft);
        return Ok(());
    }
    Err(Error::failed(format!(
        "cannot start {what}: expected a limit of at least {n} open files, got {}. Raise it with `ulimit -n {n}` before the command, or with \
         LimitNOFILE={n} in the unit of a service",
        limit.hard
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservation_ends_with_its_pipeline() {
        let reserved = || NEEDS.lock().unwrap().map_or(0, |(_, reserved)| reserved);
        let before = reserved();
        let first = Reservation::of(&Input::Test(1)).unwrap();
        let second = Reservation::of(&Input::Test(1)).unwrap();
        assert_eq!(reserved(), before + 2 * need(&Input::Test(1)));
        drop((first, second));
        assert_eq!(reserved(), before);
    }

    #[test]
    fn too_many_streams_are_refused_before_the_start() {
        let input = Input::Test(1);
        check(std::iter::once(&input)).unwrap();
        let error = allow(u64::MAX, "8 streams").unwrap_err().to_string();
        assert!(error.contains("8 streams") && error.contains("ulimit -n") && error.contains("LimitNOFILE"), "{error}");
    }
}
