//! Where the description of a model comes from, in the order in which it is looked for: what the user names, what lies beside the
//! model, what is known of the file, what the file says of itself.
//!
//! A description is text in the format of `model.toml`, also where another format or the model itself was read: so there is one
//! reader, and `roiflow describe` writes down what would be used. Knows no keys of that format.

use std::fmt;
use std::path::{Path, PathBuf};

use super::{ModelSpec, StageOptions, config, deduce, draft, known, model_proc, output, outside};
use crate::Engine;
use crate::labels::Labels;
use crate::runtime::{Error, ErrorKind, ModelInfo, Result, files};

/// Where a description comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file that the user names.
    Named(PathBuf),
    /// The file beside the model that has its name.
    Beside(PathBuf),
    /// One of those that are built in.
    Known {
        /// Its name in `assets/models`, without ending.
        name: &'static str,
        /// Whether the checksum of the model says so; else its name, and ports that fit.
        by_checksum: bool,
    },
    /// What the model says of itself, or its ports.
    Model(&'static str),
}

impl Source {
    /// The [`Source::Model`] of a model of which nothing is known but its ports.
    pub const PORTS: &'static str = "its ports";

    /// The file, where it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Named(path) | Self::Beside(path) => Some(path),
            Self::Known { .. } | Self::Model(_) => None,
        }
    }

    /// A file of labels that the description names.
    pub(super) fn labels(&self, file: &Path, engine: &Engine) -> Result<Labels> {
        match self {
            Self::Named(path) | Self::Beside(path) => {
                Labels::read(&outside::file_of(path, "labels-file", file, engine.allows_outside_files())?)
            }
            Self::Known { .. } => known::labels(file),
            Self::Model(_) => Labels::read(file),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(path) | Self::Beside(path) => write!(f, "`{}`", path.display()),
            Self::Known { name, .. } => write!(f, "`{name}`, built in"),
            Self::Model(what) => write!(f, "of {what}"),
        }
    }
}

/// A description as text, not yet compared with the model.
#[derive(Debug, Clone)]
pub struct Description {
    /// Where it comes from.
    pub source: Source,
    /// The text, in the format of `model.toml`.
    pub text: String,
    /// What was taken that nobody said, one sentence each.
    pub assumed: Vec<String>,
}

impl Description {
    /// The description of a model with these ports.
    ///
    /// # Errors
    /// `Io` if a file can't be read; `Config` if there is none, or what the model says of itself is not enough or is of a kind that
    /// can't be read: the message names the file to write.
    pub fn find(options: &StageOptions, info: &ModelInfo) -> Result<Self> {
        let named = match (&options.description, &options.model_proc) {
            (Some(_), Some(_)) => return Err(config("both `description` and `model-proc` are given: expected one of them".to_owned())),
            (description, model_proc) => description.as_ref().or(model_proc.as_ref()),
        };
        if let Some(path) = named {
            return Self::read(path, Source::Named(path.clone()), info);
        }
        let beside = options.model.with_extension("toml");
        if beside.is_file() {
            return Self::read(&beside.clone(), Source::Beside(beside), info);
        }
        let (found, open) = Self::begin(options, info)?;
        if open.is_empty() {
            return Ok(found);
        }
        let (model, beside) = (options.model.display(), beside.display());
        let message = format!(
            "model `{model}` has no description, and its pre- and post-processing are not guessed: {}. If you know its decoder, run `roiflow describe {model} --decoder NAME --out {beside}`; without `--decoder` this starts a description to complete by hand (docs/model-descriptions.md). A description elsewhere is set with `description` or `model-proc`",
            open.join("; ")
        );
        Err(Error::new(ErrorKind::Config, message))
    }

    /// A description to begin with, of all that can be known without one, and what is open in it, one sentence each. If nothing is
    /// open it is what [`Description::find`] finds where no file describes the model.
    ///
    /// # Errors
    /// As [`Description::find`], but for what is not enough.
    pub fn begin(options: &StageOptions, info: &ModelInfo) -> Result<(Self, Vec<String>)> {
        if let Some(path) = &options.model_proc {
            return Self::read(path, Source::Named(path.clone()), info).map(|found| (found, Vec::new()));
        }
        let beside = options.model.with_extension("json");
        // Other tools leave files of this ending beside models, too.
        if files::read_text(&beside, files::MAX_DESCRIPTION_BYTES, "model-proc file").is_ok_and(|text| model_proc::is_one(&text)) {
            return Self::read(&beside.clone(), Source::Beside(beside), info).map(|found| (found, Vec::new()));
        }
        if let Some(known) = known::of_checksum(&options.model) {
            return Ok((Self::known(known, true), Vec::new()));
        }
        let mut of_name: Vec<Self> = Vec::new();
        for known in known::of_name(&options.model) {
            let candidate = Self::known(known, false);
            match ModelSpec::of_description(&candidate, &options.of_model_alone(), info) {
                Ok(_) => of_name.push(candidate),
                Err(error) => tracing::info!("`{}` has the name of `{}`, but is another: {error}", options.model.display(), known.name),
            }
        }
        if of_name.len() > 1 {
            let sources: Vec<String> = of_name.iter().map(|found| found.source.to_string()).collect();
            let model = options.model.display();
            return Err(config(format!(
                "model `{model}` has the name and the ports of several known ones, {}: name the right one of assets/models with `description`, or write `{}`",
                sources.join(" and "),
                options.model.with_extension("toml").display()
            )));
        }
        if let Some(found) = of_name.pop() {
            return Ok((found, Vec::new()));
        }
        let found = deduce::of(&options.model, info).map_err(|error| {
            let model = options.model.display();
            error.context(format!("model `{model}` has no description, and what it says of itself can't be used"))
        })?;
        let source = Source::Model(found.from);
        Ok((Self { source, text: found.draft.text(), assumed: found.draft.assumed() }, found.open))
    }

    /// As [`Description::begin`], for a model of which is known how its outputs are read: by the decoder of this name. What pictures
    /// must look like is taken from the code of the authors of such models, where there is one way.
    ///
    /// # Errors
    /// `Config` if there is no decoder of this name.
    pub fn begin_with(decoder: &str, info: &ModelInfo) -> Result<(Self, Vec<String>)> {
        output::check_decoder_name(decoder)?;
        let found = deduce::of_decoder(decoder, info);
        Ok((Self { source: Source::Model(found.from), text: found.draft.text(), assumed: found.draft.assumed() }, found.open))
    }

    /// The same with the width and height of the picture in it, for a model that leaves them open.
    pub fn with_size(&self, [width, height]: [usize; 2]) -> Self {
        Self { text: self.text.replacen("[input]\n", &format!("[input]\nsize = [{width}, {height}]\n"), 1), ..self.clone() }
    }

    /// The same with the labels in it that it names a file of, so that it can lie anywhere.
    ///
    /// # Errors
    /// If such a file can't be read.
    pub fn with_own_labels(&self, engine: &Engine) -> Result<Self> {
        let mut text = String::with_capacity(self.text.len());
        for line in self.text.lines() {
            let file = line.split_once('=').filter(|(key, _)| key.trim() == "labels-file");
            match file.and_then(|_| line.parse::<toml::Table>().ok()).as_ref().and_then(|table| table["labels-file"].as_str()) {
                Some(file) => text.push_str(&draft::labels_line(&self.source.labels(Path::new(file), engine)?)),
                None => text.push_str(line),
            }
            text.push('\n');
        }
        Ok(Self { text, ..self.clone() })
    }

    /// The same with the labels of a file, one per line, instead of its own.
    ///
    /// # Errors
    /// If the file can't be read, or the description is of a model with several heads.
    pub fn with_labels(&self, file: &Path) -> Result<Self> {
        if self.text.contains("[[output.heads]]") {
            return Err(config("labels were given for a model with several heads: expected them in its description".to_owned()));
        }
        let line = draft::labels_line(&Labels::read(file)?);
        let table: toml::Table = self.text.parse().map_err(|error: toml::de::Error| config(error.to_string()))?;
        let given = table.get("output").and_then(|output| output.get("labels")).is_some();
        let is_labels = |text: &str| ["labels", "labels-file"].contains(&text.split('=').next().unwrap_or_default().trim());
        // Lists that are written on several lines end where the bracket closes.
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
        // `[output]` is the last table.
        Ok(Self { text: format!("{text}{line}\n"), ..self.clone() })
    }

    /// A file, in either format: `model.toml`, or a model-proc file if it ends in `.json`.
    fn read(path: &Path, source: Source, info: &ModelInfo) -> Result<Self> {
        let text = files::read_text(path, files::MAX_DESCRIPTION_BYTES, "model description")?;
        if path.extension().is_none_or(|ending| !ending.eq_ignore_ascii_case("json")) {
            return Ok(Self { source, text, assumed: Vec::new() });
        }
        Self::of_model_proc(&text, source, info)
    }

    /// What the text of a model-proc file of DL Streamer says, for a model with these ports.
    ///
    /// # Errors
    /// `Config` if it is no such file, or asks for what can't be done here.
    pub fn of_model_proc(text: &str, source: Source, info: &ModelInfo) -> Result<Self> {
        let draft = model_proc::read(text, info).map_err(|error| error.context(format!("model-proc file {source}")))?;
        Ok(Self { source, text: draft.text(), assumed: draft.assumed() })
    }

    fn known(known: &known::Known, by_checksum: bool) -> Self {
        let assumed = match by_checksum {
            true => Vec::new(),
            false => vec![format!("it is `{}`, as its name and its ports say; its checksum is not known", known.name)],
        };
        Self { source: Source::Known { name: known.name, by_checksum }, text: known.text.to_owned(), assumed }
    }
}
