//! Finds the description of a model. The sources are tried in this order:
//!
//! 1. a file that the user names,
//! 2. a file next to the model,
//! 3. a built-in description,
//! 4. the model's metadata and ports.
//!
//! A description is always text in the format of `model.toml`, even if it was converted or deduced. So a single parser reads all
//! descriptions, and `roiflow describe` can print the description in use. This module does not interpret keys of the format.

use std::fmt;
use std::path::{Path, PathBuf};

use super::{ModelSpec, StageOptions, config, deduce, draft, known, model_proc, output, outside};
use crate::Engine;
use crate::labels::Labels;
use crate::runtime::text::Quoted;
use crate::runtime::{Error, ErrorKind, ModelInfo, ModelSource, Result, files};

/// Source of a description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file that the user names.
    Named(PathBuf),
    /// Text that the program passes in [`StageOptions::description_text`].
    Text,
    /// The file with the model's name, next to the model.
    NextToModel(PathBuf),
    /// A built-in description.
    Known {
        /// File name in `assets/models`, without extension.
        name: &'static str,
        /// How the description was found.
        found: KnownBy,
    },
    /// The model's metadata or ports.
    Model(&'static str),
}

/// How a built-in description was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownBy {
    /// The checksum of the model's file is in the description.
    Checksum,
    /// The description lists the name of the model's file, and the model's ports match the description.
    FileName,
    /// The user gave the name of the description instead of a path.
    User,
}

impl Source {
    /// The value of [`Source::Model`] for a description that was deduced only from ports.
    pub const PORTS: &'static str = "its ports";

    /// Returns the path of the description, if the source is a file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Named(path) | Self::NextToModel(path) => Some(path),
            Self::Text | Self::Known { .. } | Self::Model(_) => None,
        }
    }

    /// Returns the path of a file that a description from this source names with `key`.
    fn file(&self, key: &str, file: &Path, engine: &Engine) -> Result<PathBuf> {
        match self {
            Self::Named(path) | Self::NextToModel(path) => outside::file_of(path, key, file, engine.allows_outside_files()),
            Self::Text | Self::Known { .. } | Self::Model(_) => Ok(file.to_owned()),
        }
    }

    /// Reads a file that a description from this source names, unless the snapshot has it. `read` gets the path of the file.
    pub(super) fn once<T: Clone + Send + Sync + 'static>(
        &self,
        key: &str,
        file: &Path,
        options: &StageOptions,
        read: impl FnOnce(&Path) -> Result<T>,
    ) -> Result<T> {
        let folder = self.path().and_then(Path::parent).unwrap_or(Path::new(""));
        let read = || read(&self.file(key, file, &options.engine)?);
        match &options.snapshot {
            Some(snapshot) => snapshot.once(&folder.join(file), read),
            None => read(),
        }
    }

    /// Reads the labels file that a description from this source names.
    pub(super) fn labels(&self, file: &Path, options: &StageOptions) -> Result<Labels> {
        match self {
            Self::Known { .. } => known::labels(file),
            _ => self.once("labels-file", file, options, Labels::read),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(path) | Self::NextToModel(path) => write!(f, "`{}`", path.display()),
            Self::Text => f.write_str("of the program"),
            Self::Known { name, .. } => write!(f, "`{name}`, built in"),
            Self::Model(what) => write!(f, "of {what}"),
        }
    }
}

/// A description as text. It is not checked against the model yet.
#[derive(Debug, Clone)]
pub struct Description {
    /// Source of the text.
    pub source: Source,
    /// The text, in the format of `model.toml`.
    pub text: String,
    /// The assumed values of the description, one sentence per value.
    pub assumed: Vec<String>,
}

impl Description {
    /// Finds the description of a model with these ports. If the options have a snapshot with the description, nothing is read.
    ///
    /// # Errors
    /// Returns `Io` if a file cannot be read. Returns `Config` if there is no description and the model's metadata are insufficient or
    /// unsupported; the message names the file to write.
    pub fn find(options: &StageOptions, info: &ModelInfo) -> Result<Self> {
        let named = match (&options.description, &options.model_proc) {
            (Some(_), Some(_)) => return Err(config("both `description` and `model-proc` are set: expected one of them".to_owned())),
            (description, model_proc) => description.as_ref().or(model_proc.as_ref()),
        };
        if let Some(text) = &options.description_text {
            if named.is_some() {
                return Err(config(
                    "the description was given twice, as text and as a file (`description` or `model-proc`): set only one".to_owned(),
                ));
            }
            return Ok(Self { source: Source::Text, text: text.clone(), assumed: Vec::new() });
        }
        if let Some(description) = options.snapshot.as_ref().and_then(|snapshot| snapshot.description(options)) {
            return Ok(description);
        }
        if let Some(known) = options.description.as_deref().filter(|path| !path.exists()).and_then(known::of_own_name) {
            return Ok(Self::known(known, KnownBy::User));
        }
        if let Some(path) = named {
            return Self::read(path, Source::Named(path.clone()), info);
        }
        let path = match options.model.to_str().filter(|text| ModelSource::is_address(text)) {
            Some(_) => PathBuf::from(format!("{}.toml", super::stem_of(&options.model).unwrap_or_default())),
            None => options.model.with_extension("toml"),
        };
        let is_next_to_model = path.parent() == options.model.parent();
        if is_next_to_model && path.is_file() {
            return Self::read(&path.clone(), Source::NextToModel(path), info);
        }
        let (found, open) = Self::draft(options, info)?;
        if open.is_empty() {
            return Ok(found);
        }
        let (shown, out) = (options.model.to_string_lossy(), path.to_string_lossy());
        let (model, out) = (Quoted(&shown), Quoted(&out));
        let message = format!(
            "model `{shown}` has no description, and its preprocessing and decoding are not guessed: {}. If you know its decoder, run `roiflow describe {model} --decoder NAME --out {out}`; without `--decoder`, the command writes a draft to complete by hand (docs/model-descriptions.md). If a description exists in another folder, set `description` or `model-proc` to its path",
            open.join("; ")
        );
        Err(Error::new(ErrorKind::Config, message))
    }

    /// Creates the best description without reading a description file. Also returns the missing parts, one sentence each. If no part
    /// is missing, the result equals what [`Description::find`] returns for a model without description files.
    ///
    /// # Errors
    /// Returns the errors of [`Description::find`], except for missing parts.
    pub fn draft(options: &StageOptions, info: &ModelInfo) -> Result<(Self, Vec<String>)> {
        if let Some(path) = &options.model_proc {
            return Self::read(path, Source::Named(path.clone()), info).map(|found| (found, Vec::new()));
        }
        let path = options.model.with_extension("json");
        // Other programs also put .json files next to models, so check that it is a model-proc file.
        if files::read_text(&path, files::MAX_DESCRIPTION_BYTES, "model-proc file").is_ok_and(|text| model_proc::is_one(&text)) {
            return Self::read(&path.clone(), Source::NextToModel(path), info).map(|found| (found, Vec::new()));
        }
        if let Some(known) = known::of_checksum(&options.model) {
            return Ok((Self::known(known, KnownBy::Checksum), Vec::new()));
        }
        let mut of_name: Vec<Self> = Vec::new();
        for known in known::of_name(&options.model) {
            let candidate = Self::known(known, KnownBy::FileName);
            match ModelSpec::of_description(&candidate, &options.of_model_alone(), info) {
                Ok(_) => of_name.push(candidate),
                Err(error) => {
                    tracing::info!("`{}` has the name of `{}`, but is another model: {error}", options.model.display(), known.name)
                }
            }
        }
        if of_name.len() > 1 {
            let sources: Vec<String> = of_name.iter().map(|found| found.source.to_string()).collect();
            let model = options.model.display();
            return Err(config(format!(
                "model `{model}` has the name and ports of several known models, {}: set `description` to one of them in assets/models, or write `{}`",
                sources.join(" and "),
                options.model.with_extension("toml").display()
            )));
        }
        if let Some(found) = of_name.pop() {
            return Ok((found, Vec::new()));
        }
        let found = deduce::of(&options.model, info).map_err(|error| {
            let model = options.model.display();
            error.context(format!("model `{model}` has no description, and its metadata are not supported"))
        })?;
        let source = Source::Model(found.from);
        Ok((Self { source, text: found.draft.text(), assumed: found.draft.assumed() }, found.open))
    }

    /// Like [`Description::draft`], but with a given decoder. If all models of the decoder's family have the same preprocessing, the draft
    /// contains it.
    ///
    /// # Errors
    /// Returns `Config` if there is no decoder of this name.
    pub fn draft_with_decoder(decoder: &str, info: &ModelInfo) -> Result<(Self, Vec<String>)> {
        output::check_decoder_name(decoder)?;
        let found = deduce::of_decoder(decoder, info);
        Ok((Self { source: Source::Model(found.from), text: found.draft.text(), assumed: found.draft.assumed() }, found.open))
    }

    /// Returns the description with a width and height of the input added. Call this for a model with dynamic input size.
    pub fn with_size(&self, [width, height]: [usize; 2]) -> Self {
        Self { text: self.text.replacen("[input]\n", &format!("[input]\nsize = [{width}, {height}]\n"), 1), ..self.clone() }
    }

    /// Returns the description with the key `labels-file` replaced by the labels in that file. The description then no longer
    /// depends on its folder.
    ///
    /// # Errors
    /// Returns an error if the labels file cannot be read.
    pub fn with_own_labels(&self, engine: &Engine) -> Result<Self> {
        let options = StageOptions { engine: engine.clone(), ..StageOptions::default() };
        let mut text = String::with_capacity(self.text.len());
        for line in self.text.lines() {
            let file = line.split_once('=').filter(|(key, _)| key.trim() == "labels-file");
            match file.and_then(|_| line.parse::<toml::Table>().ok()).as_ref().and_then(|table| table["labels-file"].as_str()) {
                Some(file) => text.push_str(&draft::labels_line(&self.source.labels(Path::new(file), &options)?)),
                None => text.push_str(line),
            }
            text.push('\n');
        }
        Ok(Self { text, ..self.clone() })
    }

    /// Returns the description with its labels replaced by those in `file`, which has one label per line.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or the model has several heads.
    pub fn with_labels(&self, file: &Path) -> Result<Self> {
        if self.text.contains("[[output.heads]]") {
            return Err(config(
                "`labels` cannot be set for a model with several heads: write the labels of each head into the description".to_owned(),
            ));
        }
        let line = draft::labels_line(&Labels::read(file)?);
        let table: toml::Table = self.text.parse().map_err(|error: toml::de::Error| config(error.to_string()))?;
        let given = table.get("output").and_then(|output| output.get("labels")).is_some();
        let is_labels = |text: &str| ["labels", "labels-file"].contains(&text.split('=').next().unwrap_or_default().trim());
        // If the list of labels takes several lines, remove all lines up to the closing bracket.
        let (mut text, mut is_in_list) = (String::new(), false);
        for own in self.text.lines() {
            if is_in_list {
                is_in_list = !own.trim_end().ends_with(']');
            } else if is_labels(own) {
                is_in_list = given && own.contains('[') && !own.trim_end().ends_with(']');
            } else {
                text.push_str(own);
                text.push('\n');
            }
        }
        // The labels are appended at the end, because `[output]` is the last table.
        Ok(Self { text: format!("{text}{line}\n"), ..self.clone() })
    }

    /// Reads a description from a file. A file with the extension `.json` is read as a model-proc file.
    fn read(path: &Path, source: Source, info: &ModelInfo) -> Result<Self> {
        let text = files::read_text(path, files::MAX_DESCRIPTION_BYTES, "model description")?;
        if path.extension().is_none_or(|ending| !ending.eq_ignore_ascii_case("json")) {
            return Ok(Self { source, text, assumed: Vec::new() });
        }
        Self::of_model_proc(&text, source, info)
    }

    /// Converts the text of a DL Streamer model-proc file to a description of a model with these ports.
    ///
    /// # Errors
    /// Returns `Config` if the file is not a model-proc file, or uses unsupported options.
    pub fn of_model_proc(text: &str, source: Source, info: &ModelInfo) -> Result<Self> {
        let draft = model_proc::read(text, info).map_err(|error| error.context(format!("model-proc file {source}")))?;
        Ok(Self { source, text: draft.text(), assumed: draft.assumed() })
    }

    fn known(known: &known::Known, found: KnownBy) -> Self {
        let assumed = match found {
            KnownBy::Checksum | KnownBy::User => Vec::new(),
            KnownBy::FileName => vec![format!("the model is `{}` by its name and ports; its checksum is not known", known.name)],
        };
        Self { source: Source::Known { name: known.name, found }, text: known.text.to_owned(), assumed }
    }
}
