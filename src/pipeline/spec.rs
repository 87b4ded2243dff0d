//! A parsed pipeline description. Checks only the syntax; [`Plan`](super::Plan) checks the content.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::graph::STRUCTURE;
use super::{Error, Result};
use crate::folders;
use crate::stages::{files, hint_of_unknown};

/// A parsed pipeline description.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Path of the file; paths in it are relative to its folder.
    pub path: PathBuf,
    /// The comment at the top of the file: purpose, requirements, expected output.
    pub comment: String,
    /// The content of the file.
    pub file: SpecFile,
}

/// The file format, version 1.
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
    /// The graph.
    pub pipeline: PipelineSection,
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
    /// The name in the file.
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

impl Spec {
    /// Reads the description at `path`, or the installed description with that name: `faces` is `pipelines/faces.toml` in roiflow's data
    /// folder.
    ///
    /// # Errors
    /// As for [`Spec::read`]. If neither file exists, the error lists the installed descriptions.
    pub fn find(path: &Path) -> Result<Self> {
        let is_name = path.components().count() == 1 && !path.exists();
        if !is_name {
            return Self::read(path);
        }
        let folders: Vec<PathBuf> = folders::data().iter().map(|folder| folder.join("pipelines")).collect();
        let installed = folders.iter().map(|folder| folder.join(path).with_extension("toml")).find(|file| file.is_file());
        if let Some(file) = installed {
            return Self::read(&file);
        }
        let mut names: Vec<String> = folders.iter().flat_map(|folder| names_in(folder)).collect();
        names.sort();
        names.dedup();
        let known = match names.is_empty() {
            true => format!("none is installed in {}", folders.first().map(|folder| folder.display().to_string()).unwrap_or_default()),
            false => format!("installed are {}", names.join(", ")),
        };
        Err(Error::failed(format!(
            "cannot read pipeline description `{}`: expected a file, or the name of an installed description; {known}",
            path.display()
        )))
    }

    /// Reads a description.
    ///
    /// # Errors
    /// If the file cannot be read, or has a syntax error; the message contains the line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = files::read_text(path, files::MAX_DESCRIPTION_BYTES, "pipeline description")
            .map_err(|error| Error::failed(error.to_string()))?;
        Self::parse(&text, path)
    }

    /// Parses a description from text; `path` is used in messages and to resolve relative paths.
    ///
    /// # Errors
    /// As for [`Spec::read`].
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
        Ok(Self { path: path.to_owned(), comment: comment.collect::<Vec<_>>().join("\n"), file })
    }
}

/// Names of the descriptions in a folder.
fn names_in(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let descriptions = files.filter(|file| file.extension().is_some_and(|ending| ending == "toml"));
    descriptions.filter_map(|file| Some(file.file_stem()?.to_string_lossy().into_owned())).collect()
}
