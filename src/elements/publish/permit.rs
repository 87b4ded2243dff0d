//! Whether results of assigned streams may be published.
//!
//! A machine that has lost its right to run streams may take time to stop them, because a thread gets no processor time or a device hangs.
//! Meanwhile another machine runs them. So each result of a stream with an assignment is checked when it is made.

use std::sync::OnceLock;

type Permit = Box<dyn Fn(u64) -> bool + Send + Sync>;
type Generation = Box<dyn Fn() -> u64 + Send + Sync>;

static PERMIT: OnceLock<(Permit, Generation)> = OnceLock::new();

/// Sets the functions that tell whether results of streams with an `assignment` may be published. `permit` is called for each result, so it must
/// be fast. It gets what `generation` has returned when the stream has started. Only the first call of a process has an effect. Until then, all
/// results are published.
pub fn permit_results(permit: impl Fn(u64) -> bool + Send + Sync + 'static, generation: impl Fn() -> u64 + Send + Sync + 'static) {
    let _first = PERMIT.set((Box::new(permit), Box::new(generation)));
}

/// The generation of a stream that starts now.
pub(super) fn generation() -> u64 {
    PERMIT.get().map_or(0, |(_, generation)| generation())
}

/// Whether a result of a stream with this assignment and generation may be published now. `assignment` 0 means none: then it always may.
pub(super) fn may_publish(assignment: u64, generation: u64) -> bool {
    assignment == 0 || PERMIT.get().is_none_or(|(permit, _)| permit(generation))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn results_are_published_while_they_are_permitted() {
        assert!(may_publish(7, 0));
        let flag = Arc::new(AtomicBool::new(true));
        let of_permit = flag.clone();
        permit_results(move |generation| generation == 0 && of_permit.load(Ordering::Relaxed), || 0);
        assert!(may_publish(7, 0));
        flag.store(false, Ordering::Relaxed);
        assert!(!may_publish(7, 0) && may_publish(0, 0));
    }
}
