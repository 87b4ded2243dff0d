//! The one device of the checks.

#[path = "../../src/devices/null/mod.rs"]
pub mod null;
