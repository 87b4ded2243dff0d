//! Descriptions of streams and addresses of nodes, as they are in the items that nodes share.

use std::collections::BTreeMap;

use roiflow_nodes::types::Facts;

use super::key::{self, Key};
use crate::error::{Error, Result};
use crate::policy;
use crate::stream::{StreamSpec, Value};

/// Frames per second that a stream needs if its description does not say it.
const DEFAULT_COST: f64 = 25.0;

/// Turns items into descriptions of streams, and back.
#[derive(Debug)]
pub(super) struct Descriptions(pub(super) Protection);

/// How descriptions and addresses are protected in the items that nodes share.
#[derive(Debug)]
pub(super) enum Protection {
    /// They are encrypted.
    Key(Box<Key>),
    /// They are not encrypted, so credentials are refused.
    None,
    /// Other machines do not see the items, so credentials are allowed.
    Alone,
}

impl Protection {
    pub(super) fn key(&self) -> Option<&Key> {
        match self {
            Self::Key(key) => Some(key),
            Self::None | Self::Alone => None,
        }
    }
}

impl Descriptions {
    /// Returns the description of a stream.
    pub(super) fn read(&self, name: &str, item: &roiflow_nodes::StreamSpec) -> Result<StreamSpec, String> {
        let failed = |error: &dyn std::fmt::Display| format!("read the description of the stream `{name}` failed: {error}");
        // The error of the parser may show a value, which may be a password.
        let other_version = |_: serde_json::Error| failed(&"expected one of this version of roiflow, got another. Update all nodes");
        match (&item.description, self.0.key()) {
            (serde_json::Value::String(sealed), Some(key)) if key::is_sealed(sealed) => {
                serde_json::from_str(&key.open(name, sealed)?).map_err(other_version)
            }
            (serde_json::Value::String(sealed), None) if key::is_sealed(sealed) => {
                Err(failed(&"it is encrypted. Start this node with the file --key of the other nodes"))
            }
            (description, _) => serde_json::from_value(description.clone()).map_err(other_version),
        }
    }

    /// Returns the address of a node as it is stored: with a key, it is encrypted. So requests with the token of nodes go only to nodes that
    /// have the key, and not to an address that somebody else has stored.
    pub(super) fn write_address(&self, node: &str, address: String) -> Result<String, String> {
        match self.0.key() {
            Some(key) => key.seal(&of_node(node), &address),
            None => Ok(address),
        }
    }

    /// Returns the address of a node; `None` if it has none, or if it was stored with another key.
    pub(super) fn read_address(&self, node: &str, facts: &Facts) -> Option<String> {
        let stored = facts.address.as_ref()?;
        match self.0.key() {
            Some(key) => key.open(&of_node(node), stored).ok(),
            None => Some(stored.clone()).filter(|stored| !key::is_sealed(stored)),
        }
    }

    /// The item of a stream. Without a key, a description with credentials is refused.
    pub(super) fn write(&self, spec: &StreamSpec) -> Result<roiflow_nodes::StreamSpec> {
        let json = serde_json::to_value(spec).map_err(|error| Error::internal(error.to_string()))?;
        let description = match &self.0 {
            Protection::Key(key) => key.seal(&spec.name, &json.to_string()).map_err(Error::internal)?.into(),
            Protection::None if policy::shown(spec) != *spec => {
                let advice = "Start all nodes with --key FILE, or give the login on each node with --input-credentials";
                let expected = "addresses without credentials, because the nodes share no key to encrypt them";
                return Err(Error::value("needs_key", "stream", expected, "one with credentials", advice));
            }
            Protection::None | Protection::Alone => json,
        };
        let cost = spec.cost.unwrap_or(DEFAULT_COST);
        let (constraints, memory) = match &self.0 {
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

/// What a key authenticates together with the address of a node. No stream has this name, because names have no spaces.
fn of_node(node: &str) -> String {
    format!("node {node}")
}
