//! A pipeline description as written. Checks nothing beyond form; [`Plan`](super::Plan) does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Error, Result};
use crate::folders;

/// The file as written.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Where it was read from; paths in it are relative to its folder.
    pub path: PathBuf,
    /// The comment that opens the file: what it shows, needs, and what to expect.
    pub comment: String,
    /// What the file says.
    pub file: SpecFile,
}

/// The format, version 1.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SpecFile {
    /// 1.
    pub version: u32,
    /// A short name.
    pub name: String,
    /// One line.
    pub description: String,
    /// What can be set with `--set name=value`.
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
    /// What kind of value it takes.
    pub r#type: ParameterType,
    /// The value if none is set; without a default one must be set.
    pub default: Option<toml::Value>,
    /// What it means.
    #[serde(default)]
    pub help: String,
}

/// What kind of value a parameter takes.
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
    /// As in the file.
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
    /// Reads the description at `path`, or the installed one of that name: `faces` is `pipelines/faces.toml` in roiflow's data folder.
    ///
    /// # Errors
    /// As [`Spec::read`]; if there is neither file, the error lists the installed descriptions.
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
    /// If the file can't be read, or is not of this form; the message has the line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::failed(format!("cannot read pipeline description `{}`: {error}; check the path", path.display())))?;
        Self::parse(&text, path)
    }

    /// Reads a description from text; `path` is for messages and relative paths.
    ///
    /// # Errors
    /// As [`Spec::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let wrong = |what: &str| Error::usage(format!("pipeline description `{}`: {what}", path.display()));
        let file: SpecFile = toml::from_str(text).map_err(|error| wrong(error.to_string().trim_end()))?;
        if file.version != 1 {
            return Err(wrong(&format!("expected `version = 1`, got {}", file.version)));
        }
        let comment = text.lines().take_while(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim_start());
        Ok(Self { path: path.to_owned(), comment: comment.collect::<Vec<_>>().join("\n"), file })
    }
}

/// The descriptions in a folder, by name.
fn names_in(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let descriptions = files.filter(|file| file.extension().is_some_and(|ending| ending == "toml"));
    descriptions.filter_map(|file| Some(file.file_stem()?.to_string_lossy().into_owned())).collect()
}
