//! Detects a fork of the process without a system call.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Identifies the process in which it was created. A forked process has none of the threads of its parent.
///
/// A fork through the C library (as Python's `os.fork`) is detected by a handler that the first token registers; comparing tokens reads one
/// atomic. If the handler cannot be registered, the process id is compared instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessToken(u64);

const UNKNOWN: u32 = 0;
const COUNTS_FORKS: u32 = 1;
const COMPARES_IDS: u32 = 2;

static METHOD: AtomicU32 = AtomicU32::new(UNKNOWN);
static N_FORKS: AtomicU64 = AtomicU64::new(0);

impl ProcessToken {
    /// The token of this process.
    pub fn current() -> Self {
        match METHOD.load(Ordering::Acquire) {
            COUNTS_FORKS => Self(N_FORKS.load(Ordering::Relaxed)),
            COMPARES_IDS => Self(std::process::id().into()),
            _ => {
                METHOD.store(if count_forks() { COUNTS_FORKS } else { COMPARES_IDS }, Ordering::Release);
                Self::current()
            }
        }
    }

    /// Whether the token was created in this process, not in one of which it is a fork.
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// Registers the handler. Threads that do so at the same time register it twice, which has no effect: tokens are compared for equality.
#[cfg(unix)]
fn count_forks() -> bool {
    type Handler = Option<unsafe extern "C" fn()>;
    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> i32;
    }
    unsafe extern "C" fn in_child() {
        N_FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler only adds to an atomic, as a child of a process with threads may do; the C library removes it if this library is
    // unloaded.
    unsafe { pthread_atfork(None, None, Some(in_child)) == 0 }
}

#[cfg(not(unix))]
fn count_forks() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_current_in_its_process() {
        let token = ProcessToken::current();
        assert!(token.is_current());
        assert_eq!(token, ProcessToken::current());
    }
}
