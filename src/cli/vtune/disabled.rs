//! Without the feature `ittapi`: no layer.

use tracing_subscriber::layer::Identity;

/// No layer.
pub(in crate::cli) fn layer() -> Option<Identity> {
    None
}
