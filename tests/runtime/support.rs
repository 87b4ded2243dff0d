//! Helpers of the runtime tests.

use std::path::{Path, PathBuf};

use roiflow::devices;
use roiflow::runtime::{CompiledModel, Config};

/// A model of our own making.
pub fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny").join(name)
}

/// The real models and clips that development is measured with. They lie beside the project, or where `ROIFLOW_MODELS` says;
/// without them, tests that need them say so and pass.
pub fn real(path: &str) -> Option<PathBuf> {
    let root =
        std::env::var_os("ROIFLOW_MODELS").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/models"), PathBuf::from);
    let path = root.join(path);
    if !path.exists() {
        eprintln!("skipped: `{}` is not there (set ROIFLOW_MODELS)", path.display());
        return None;
    }
    Some(path)
}

/// Compiles a file for the embedded engine.
pub fn compile(path: &Path) -> CompiledModel {
    let core = devices::core();
    let model = core.read_model(path).unwrap();
    core.compile_model(&model, "CPU", &Config::default()).unwrap()
}
