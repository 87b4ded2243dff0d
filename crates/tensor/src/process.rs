//! Detects, without a system call, whether the process was forked.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Identifies the process that created the token. A forked process does not have the threads of its parent, so code that needs them must
/// check.
///
/// A token detects forks through the C library, such as Python's `os.fork`. The first token registers a handler that counts these forks.
/// After that, a comparison of tokens only reads an atomic counter. If the handler cannot be registered, the process ID is compared
/// instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessToken(u64);

const UNKNOWN: u32 = 0;
const COUNTS_FORKS: u32 = 1;
const COMPARES_IDS: u32 = 2;

static METHOD: AtomicU32 = AtomicU32::new(UNKNOWN);
static N_FORKS: AtomicU64 = AtomicU64::new(0);

impl ProcessToken {
    /// Returns the token of the current process.
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

    /// Returns whether the current process created the token. Returns false in a process that was forked after the token was created.
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// Registers the handler. If several threads call this function at the same time, the handler is registered several times and counts each
/// fork several times. This is harmless, because tokens are only compared for equality.
#[cfg(unix)]
fn count_forks() -> bool {
    type Handler = Option<unsafe extern "C" fn()>;
    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> i32;
    }
    unsafe extern "C" fn in_child() {
        N_FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler only adds to an atomic, which is allowed in the forked child of a process with threads. The C library removes the
    // handler if this library is unloaded, so the handler is never called after that.
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
