//! Whether results of assigned streams may be published.
//!
//! A machine that has lost its right to run streams may take time to stop them, because a thread gets no processor time or a device hangs.
//! Meanwhile another machine runs them. So each result of a stream with an assignment is checked when it is made.

use std::sync::OnceLock;

static PERMIT: OnceLock<Box<dyn Fn() -> bool + Send + Sync>> = OnceLock::new();

/// Sets the function that tells whether results of streams with an `assignment` may be published. It is called for each result, so it must
/// be fast. Only the first call of a process has an effect. Until then, all results are published.
pub fn permit_results(permit: impl Fn() -> bool + Send + Sync + 'static) {
    let _first = PERMIT.set(Box::new(permit));
}

/// Whether a result of a stream with this assignment may be published now. `assignment` 0 means none: then it always may.
pub(super) fn may_publish(assignment: u64) -> bool {
    assignment == 0 || PERMIT.get().is_none_or(|permit| permit())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn results_are_published_while_they_are_permitted() {
        assert!(may_publish(7));
        let flag = Arc::new(AtomicBool::new(true));
        let of_permit = flag.clone();
        permit_results(move || of_permit.load(Ordering::Relaxed));
        assert!(may_publish(7));
        flag.store(false, Ordering::Relaxed);
        assert!(!may_publish(7) && may_publish(0));
    }
}
