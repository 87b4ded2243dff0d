//! Descriptions of streams, as they are in the items that nodes share.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::policy;
use crate::stream::{StreamSpec, Value};

/// Frames per second that a stream needs if its description does not say it.
const DEFAULT_COST: f64 = 25.0;

/// Turns items into descriptions of streams, and back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Descriptions(pub(super) Protection);

/// How the items that nodes share are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protection {
    /// They are encrypted.
    Sealed,
    /// They are not encrypted, so credentials are refused.
    None,
    /// Other machines do not see the items, so credentials are allowed.
    Alone,
}

impl Descriptions {
    /// Returns the description of a stream.
    pub(super) fn read(self, name: &str, item: &roiflow_nodes::StreamSpec) -> Result<StreamSpec, String> {
        // The error of the parser may show a value, which may be a password.
        serde_json::from_value(item.description.clone()).map_err(|_| {
            format!(
                "read the description of the stream `{name}` failed: expected one of this version of roiflow, got another. Update all nodes"
            )
        })
    }

    /// The item of a stream. Unless items are encrypted, a description with credentials is refused.
    pub(super) fn write(self, spec: &StreamSpec) -> Result<roiflow_nodes::StreamSpec> {
        if self.0 == Protection::None && policy::shown(spec) != *spec {
            let advice = "Start all nodes with --key FILE, or give the login on each node with --input-credentials";
            let expected = "addresses without credentials, because the nodes share no key to encrypt them";
            return Err(Error::value("needs_key", "stream", expected, "one with credentials", advice));
        }
        let description = serde_json::to_value(spec).map_err(|error| Error::internal(error.to_string()))?;
        let cost = spec.cost.unwrap_or(DEFAULT_COST);
        let (constraints, memory) = match self.0 {
            // The stream can run nowhere else.
            Protection::Alone => (BTreeMap::new(), 0),
            _ => (spec.needs.clone(), spec.memory.unwrap_or(0)),
        };
        Ok(roiflow_nodes::StreamSpec { description, model: model(spec), cost, memory, constraints })
    }
}

/// Returns a text that is the same for streams that share their models.
pub(in crate::nodes) fn model(spec: &StreamSpec) -> String {
    let is_model = |text: &str| [".onnx", ".xml", ".toml"].iter().any(|ending| text.ends_with(ending));
    let models = spec.parameters.values().filter_map(|value| match value {
        Value::Text(text) if is_model(text) => Some(text.as_str()),
        _ => None,
    });
    std::iter::once(spec.pipeline.as_str()).chain(models).collect::<Vec<_>>().join("+")
}
