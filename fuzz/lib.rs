//! The part of the product that is fuzzed: its very files, without engines and GStreamer.

/// No engines.
mod devices {
    use std::sync::OnceLock;

    use crate::runtime::Core;

    pub fn core() -> &'static Core {
        static CORE: OnceLock<Core> = OnceLock::new();
        CORE.get_or_init(Core::new)
    }
}

#[path = "../src/frame/mod.rs"]
pub mod frame;
#[path = "../src/runtime/mod.rs"]
#[allow(dead_code, reason = "some of it is for engines")]
pub mod runtime;
#[path = "../src/stages/mod.rs"]
#[allow(dead_code, reason = "some of it is for elements")]
pub mod stages;
#[path = "../src/sync.rs"]
#[allow(dead_code, unused_imports, reason = "most of it is for requests")]
mod sync;
#[path = "../src/tensor/mod.rs"]
pub mod tensor;
#[path = "../src/vision/mod.rs"]
pub mod vision;
