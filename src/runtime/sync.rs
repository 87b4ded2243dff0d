//! The primitives that state, requests and pools are built on, in one place, so that a model checker can take their place.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
