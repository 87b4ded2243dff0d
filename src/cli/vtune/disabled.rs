//! Without the feature: no layer.

use tracing_subscriber::layer::Identity;

/// None.
pub(in crate::cli) fn layer() -> Option<Identity> {
    None
}
