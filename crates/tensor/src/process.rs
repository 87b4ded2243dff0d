//! Detects a fork of the process without a system call.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Identifies the process that created the token. A forked process has none of the threads of its parent.
///
/// Forks through the C library, such as Python's `os.fork`, are detected. The first token registers a handler for such forks, which counts
/// them. Comparing tokens then reads one atomic. If the handler cannot be registered, the process ID is compared instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessToken(u64);

const UNKNOWN: u32 = 0;
const COUNTS_FORKS: u32 = 1;
const COMPARES_IDS: u32 = 2;

static METHOD: AtomicU32 = AtomicU32::new(UNKNOWN);
static N_FORKS: AtomicU64 = AtomicU64::new(0);

impl ProcessToken {
    /// The token of the current process.
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

    /// Whether the current process created the token. False in a fork of that process.
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// Registers the handler. If several threads register it at the same time, it counts a fork twice. Counting twice is harmless, because
/// tokens are only compared for equality.
#[cfg(unix)]
fn count_forks() -> bool {
    type Handler = Option<unsafe extern "C" fn()>;
    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> i32;
    }
    unsafe extern "C" fn in_child() {
        N_FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler only adds to an atomic, which is allowed in the child of a process with threads. The C library removes the
    // handler if this library is unloaded.
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
