//! A build without telemetry: refuses settings that ask for it.

use tracing_subscriber::layer::Identity;

/// Has no values in this build.
pub(in crate::cli) enum Telemetry {}

impl Telemetry {
    /// Returns `None`, or an error if the settings name a collector.
    #[cfg(feature = "serve")]
    pub(in crate::cli) fn new(
        settings: &roiflow_server::config::Telemetry,
        _: &crate::cli::terminal::Terminal,
    ) -> anyhow::Result<Option<Self>> {
        if settings.endpoint.is_some() {
            anyhow::bail!(crate::pipeline::Error::usage(
                "telemetry: expected a build with the feature `telemetry`, got one without it. Remove `[telemetry]`, or build with this feature"
            ));
        }
        Ok(None)
    }

    #[cfg(feature = "serve")]
    pub(in crate::cli) fn counts(&self) -> std::sync::Arc<roiflow_server::telemetry::Counts> {
        match *self {}
    }

    pub(in crate::cli) fn end(&self) {
        match *self {}
    }
}

/// Returns a layer that does nothing.
pub(in crate::cli) fn traces(_: Option<&Telemetry>) -> Identity {
    Identity::new()
}

/// Returns a layer that does nothing.
pub(in crate::cli) fn logs(_: Option<&Telemetry>) -> Identity {
    Identity::new()
}
