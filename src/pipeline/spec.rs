//! A parsed pipeline description. This module checks only the syntax; [`Plan`](super::Plan) checks the content.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::graph::STRUCTURE;
use super::{Error, Limits, Result};
use crate::restart::{Restart, RestartPolicy};
use crate::stages::{did_you_mean, files, hint_of_unknown};
use crate::{folders, publish};

/// A parsed pipeline description.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// The file of the description, or the path at which a built-in description would be installed. Paths in the description are relative
    /// to the folder of this file.
    pub path: PathBuf,
    /// Whether the description is built into the program.
    pub is_built_in: bool,
    /// The comment at the top of the file: purpose, requirements, expected output.
    pub comment: String,
    /// The content of the file.
    pub file: SpecFile,
}

/// The content of a description file, format version 1.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SpecFile {
    /// Version of the format: 1.
    pub version: u32,
    /// A short name.
    pub name: String,
    /// Description in one line.
    pub description: String,
    /// Parameters that can be set with `--set name=value`.
    #[serde(default)]
    pub parameters: BTreeMap<String, Parameter>,
    /// The source.
    #[serde(default)]
    pub source: SourceSection,
    /// Constant fields of each line, and a filter of frames and objects.
    #[serde(default)]
    pub publish: PublishSection,
    /// The graph.
    pub pipeline: PipelineSection,
}

/// The section `[publish]`: constant fields and the filter of `{json}`. Options on the command line take precedence. A text `{NAME}` stands
/// for the value of a parameter.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PublishSection {
    /// Constant fields of each line.
    #[serde(default)]
    pub tags: toml::Table,
    /// Labels of the only objects that are published, with commas between.
    pub labels: Option<String>,
    /// Zones of the only objects that are published, with commas between.
    pub zones: Option<String>,
    /// Whether only frames with events are published.
    pub events_only: Option<bool>,
    /// Maximum number of frames per second that are published.
    pub max_rate: Option<f64>,
    /// Whether a frame is published only if something has changed.
    pub only_changes: Option<bool>,
}

impl PublishSection {
    /// Returns the values of the properties of `roipublish`. `values` are the values of the parameters.
    ///
    /// # Errors
    /// Returns `Usage` if a text names an unknown parameter.
    pub fn resolve(&self, values: &BTreeMap<&str, String>) -> Result<BTreeMap<String, String>> {
        let filled = |text: &str| match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            None => Ok(text.to_owned()),
            Some(name) => values.get(name).cloned().ok_or_else(|| {
                let hint = did_you_mean(name, values.keys().copied());
                Error::usage(format!("[publish] uses `{text}`, expected the name of a parameter: add a section [parameters.{name}]{hint}"))
            }),
        };
        let mut properties = BTreeMap::new();
        if !self.tags.is_empty() {
            let mut tags = serde_json::Map::new();
            for (name, value) in &self.tags {
                let value = match value {
                    toml::Value::String(text) => filled(text)?.into(),
                    other => serde_json::to_value(other).map_err(|error| Error::usage(format!("[publish] tags.{name}: {error}")))?,
                };
                tags.insert(name.clone(), value);
            }
            properties.insert("tags".to_owned(), serde_json::Value::Object(tags).to_string());
        }
        for (name, text) in [("labels", &self.labels), ("zones", &self.zones)] {
            if let Some(text) = text {
                properties.insert(name.to_owned(), filled(text)?);
            }
        }
        let others = [
            ("events-only", self.events_only.map(|flag| flag.to_string())),
            ("max-rate", self.max_rate.map(|rate| rate.to_string())),
            ("only-changes", self.only_changes.map(|flag| flag.to_string())),
        ];
        properties.extend(others.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        Ok(properties)
    }
}

/// The section `[source]`: when a source counts as lost, and what happens then. Options on the command line take precedence.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SourceSection {
    /// The policy: which ends of the source restart the stream.
    pub restart: Option<RestartPolicy>,
    /// Time without a frame after which the stream ends: seconds, or a text such as `"12h"`.
    pub give_up_after: Option<toml::Value>,
    /// Time without a decoded frame after which a live source is lost; 0 = no limit.
    pub no_frame_timeout: Option<toml::Value>,
}

impl SourceSection {
    /// Returns the default limits and restart options, with the values of this section applied.
    ///
    /// # Errors
    /// Returns `Usage` if a value is not a duration.
    pub fn resolve(&self) -> Result<(Limits, Restart)> {
        let time = |key: &str, value: &Option<toml::Value>| {
            let parsed = value.as_ref().map(|value| match value {
                toml::Value::String(text) => publish::parse_duration(text),
                other => publish::parse_duration(&other.to_string()),
            });
            parsed.transpose().map_err(|error| Error::usage(format!("[source] {key}: {error}")))
        };
        let (mut limits, mut restart) = (Limits::default(), Restart { policy: self.restart, ..Restart::default() });
        restart.give_up_after = time("give-up-after", &self.give_up_after)?;
        if let Some(timeout) = time("no-frame-timeout", &self.no_frame_timeout)? {
            limits.frame_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
        }
        Ok((limits, restart))
    }
}

/// The section `[pipeline]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PipelineSection {
    /// A gst-launch line with placeholders.
    pub graph: String,
}

/// A section `[parameters.name]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Parameter {
    /// Type of the value.
    pub r#type: ParameterType,
    /// Default value; `None` = a value is required.
    pub default: Option<toml::Value>,
    /// Explanation for the user.
    #[serde(default)]
    pub help: String,
}

/// Type of a parameter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParameterType {
    Path,
    String,
    Integer,
    Number,
    Boolean,
}

impl ParameterType {
    /// Returns the name of the type in a description file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

impl ParameterType {
    /// Returns the placeholder for a value in the example of a command, such as `PATH`.
    pub fn placeholder(self) -> String {
        self.name().to_uppercase()
    }
}

impl Spec {
    /// Reads the description at `path`, or the installed or built-in description with the name `path`. For example, `faces` is the
    /// installed file `pipelines/faces.toml` in roiflow's data folder.
    ///
    /// # Errors
    /// Returns the errors of [`Spec::read`]. If no description is found, the error lists the descriptions that have names.
    pub fn find(path: &Path) -> Result<Self> {
        let is_model = |ending: &std::ffi::OsStr| ["onnx", "xml", "tflite", "ort"].iter().any(|known| ending.eq_ignore_ascii_case(known));
        if path.extension().is_some_and(is_model) {
            let path = path.display();
            return Err(Error::usage(format!("expected a pipeline description, got the model `{path}`: write `--model {path}`")));
        }
        if path.components().count() != 1 || path.exists() {
            return Self::read(path);
        }
        let name = path.with_extension("");
        match named().into_iter().find(|known| *known.name == *name) {
            Some(known) => known.read(),
            None => {
                let names = named().into_iter().map(|known| known.name).collect::<Vec<_>>().join(", ");
                Err(Error::failed(format!(
                    "cannot read pipeline description `{}`: expected a file, or one of the names {names}; `roiflow pipelines` lists them",
                    path.display()
                )))
            }
        }
    }

    /// Whether the description has a parameter with this name.
    pub fn has_parameter(&self, name: &str) -> bool {
        self.file.parameters.contains_key(name)
    }

    /// Returns the title of the description in messages.
    pub fn title(&self) -> String {
        if self.is_built_in { format!("pipeline `{}`, built in", self.file.name) } else { format!("`{}`", self.path.display()) }
    }

    /// Reads a description.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or has a syntax error; the message contains the line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = files::read_text(path, files::MAX_DESCRIPTION_BYTES, "pipeline description")
            .map_err(|error| Error::failed(error.to_string()))?;
        Self::parse(&text, path)
    }

    /// Parses a description from text; `path` is used in messages and to resolve relative paths.
    ///
    /// # Errors
    /// Returns the errors of [`Spec::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let wrong = |what: &str| Error::usage(format!("pipeline description `{}`: {what}", path.display()));
        let with_hint = |error: &toml::de::Error| format!("{}{}", error.to_string().trim_end(), hint_of_unknown(error.message()));
        let file: SpecFile = toml::from_str(text).map_err(|error| wrong(&with_hint(&error)))?;
        if file.version != 1 {
            return Err(wrong(&format!("expected `version = 1`, got {}", file.version)));
        }
        if file.name.trim().is_empty() {
            return Err(wrong("`name`: expected at least one letter, got none"));
        }
        for name in file.parameters.keys() {
            let is_plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
            if !is_plain {
                return Err(wrong(&format!("[parameters]: expected names of letters, digits, `-` and `_`, got `{name}`")));
            }
            if STRUCTURE.contains(&name.as_str()) {
                return Err(wrong(&format!(
                    "[parameters.{name}]: expected another name, got a placeholder for elements ({})",
                    STRUCTURE.join(", ")
                )));
            }
        }
        let comment = text.lines().take_while(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim_start());
        Ok(Self { path: path.to_owned(), is_built_in: false, comment: comment.collect::<Vec<_>>().join("\n"), file })
    }
}

/// The descriptions that are part of the program.
const BUILT_IN: [(&str, &str); 7] = [
    ("count", include_str!("../../pipelines/count.toml")),
    ("detect", include_str!("../../pipelines/detect.toml")),
    ("faces", include_str!("../../pipelines/faces.toml")),
    ("plates", include_str!("../../pipelines/plates.toml")),
    ("replay", include_str!("../../pipelines/replay.toml")),
    ("text", include_str!("../../pipelines/text.toml")),
    ("vehicles", include_str!("../../pipelines/vehicles.toml")),
];

/// A description that has a name instead of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The name.
    pub name: String,
    /// The installed file; `None` if the description is built in.
    pub path: Option<PathBuf>,
}

impl Named {
    /// Reads the description.
    ///
    /// # Errors
    /// Returns the errors of [`Spec::read`].
    pub fn read(&self) -> Result<Spec> {
        if let Some(path) = &self.path {
            return Spec::read(path);
        }
        let text = BUILT_IN.iter().find(|(name, _)| *name == self.name).map(|(_, text)| *text).unwrap_or_default();
        let folder = folders::data().into_iter().next().unwrap_or_default();
        let path = folder.join("pipelines").join(&self.name).with_extension("toml");
        Ok(Spec { is_built_in: true, ..Spec::parse(text, &path)? })
    }
}

/// Returns all descriptions that have names, sorted. An installed description replaces the built-in description of the same name. A
/// description in an earlier data folder replaces one in a later folder.
pub fn named() -> Vec<Named> {
    let mut found: BTreeMap<String, Option<PathBuf>> = BUILT_IN.iter().map(|(name, _)| ((*name).to_owned(), None)).collect();
    for folder in folders::data().iter().rev().map(|folder| folder.join("pipelines")) {
        found.extend(names_in(&folder).into_iter().map(|name| (name.clone(), Some(folder.join(name).with_extension("toml")))));
    }
    found.into_iter().map(|(name, path)| Named { name, path }).collect()
}

/// Returns the names of the descriptions in a folder.
fn names_in(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let descriptions = files.filter(|file| file.extension().is_some_and(|ending| ending == "toml"));
    descriptions.filter_map(|file| Some(file.file_stem()?.to_string_lossy().into_owned())).collect()
}
