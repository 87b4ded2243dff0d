//! `roiflow describe`: prints the description of a model, as far as it can be derived from the model, or writes it to a file.

use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::inspect::compiled_info;
use super::terminal::{self, OneLine, Terminal};
use crate::devices;
use crate::pipeline::{self, outputs};
use crate::runtime::{Dim, Model, PartialShape};
use crate::stages::{Description, ModelSpec, StageOptions};

/// JSON schema of model descriptions.
const SCHEMA: &str = include_str!("../../assets/model-description.schema.json");
/// File name of the schema.
const SCHEMA_FILE: &str = "model-description.schema.json";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The model (.onnx, or .xml of OpenVINO)
    #[arg(value_name = "MODEL", required_unless_present = "schema")]
    model: Option<PathBuf>,
    /// Write the description to this file instead of standard output; roiflow finds a .toml file next to the model with the model's name
    /// automatically
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Convert this model-proc file of DL Streamer
    #[arg(long, value_name = "FILE")]
    model_proc: Option<PathBuf>,
    /// Decoder of the outputs, for models without metadata; preprocessing is then as published for models of this kind
    #[arg(long, value_name = "NAME", conflicts_with = "model_proc")]
    decoder: Option<String>,
    /// Input width and height, for models with dynamic input size
    #[arg(long, value_name = "WIDTHxHEIGHT", value_parser = parse_size)]
    size: Option<[usize; 2]>,
    /// Text file with class labels, one per line
    #[arg(long, value_name = "FILE")]
    labels_file: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "out")]
    force: bool,
    /// Print the JSON schema of model descriptions instead
    #[arg(long, conflicts_with_all = ["model", "out", "model_proc", "decoder", "size", "labels_file", "force"])]
    schema: bool,
}

fn parse_size(text: &str) -> Result<[usize; 2], String> {
    let parse = |extent: &str| extent.trim().parse::<usize>().ok().filter(|extent| (1..=16_384).contains(extent));
    let size = text.split_once(['x', 'X', ',']).and_then(|(width, height)| Some([parse(width)?, parse(height)?]));
    size.ok_or_else(|| format!("expected a width and a height from 1 to 16384, such as 640x480, got `{text}`"))
}

impl Args {
    /// Whether the command reads a model or another untrusted file.
    pub(super) fn reads_a_model(&self) -> bool {
        !self.schema
    }
}

pub(super) fn describe(args: &Args, terminal: &Terminal) -> anyhow::Result<()> {
    let Some(model) = args.model.as_ref().filter(|_| !args.schema) else {
        std::io::stdout().write_all(SCHEMA.as_bytes())?;
        return Ok(());
    };
    let out = args.out.as_deref().filter(|out| out.as_os_str() != "-");
    let is_there = |out: &Path| format!("`{}` already exists: add --force to overwrite it, or change --out", out.display());
    if let Some(out) = out.filter(|out| !args.force && out.symlink_metadata().is_ok()) {
        bail!(is_there(out));
    }
    let given = [("model", Some(model)), ("model-proc", args.model_proc.as_ref()), ("labels-file", args.labels_file.as_ref())];
    let given: Vec<(&str, &Path)> = given.into_iter().filter_map(|(role, path)| Some((role, path?.as_path()))).collect();
    if let Some(out) = out {
        outputs::check_description("--out", out, &given)?;
    }
    let options = StageOptions { model: model.clone(), model_proc: args.model_proc.clone(), ..StageOptions::default() };
    let read = devices::core().read_model(model)?;
    let sized = match args.size {
        Some(size) => with_size(&read, size)?,
        None => read,
    };
    let info = compiled_info(&sized)?;
    let (mut description, open) = match &args.decoder {
        Some(decoder) => Description::draft_with_decoder(decoder, &info)?,
        None => Description::draft(&options, &info)?,
    };
    if let Some(size) = args.size {
        description = description.with_size(size);
    }
    description = match &args.labels_file {
        Some(file) => description.with_labels(file)?,
        None => description.with_own_labels(&options.engine)?,
    };
    if open.is_empty() {
        ModelSpec::of_description(&description, &options, &info)?;
    }
    let text = with_schema(&description.text, out);
    match out {
        None if std::io::stdout().is_terminal() => terminal::stdout().write_all(text.as_bytes())?,
        None => std::io::stdout().write_all(text.as_bytes())?,
        Some(out) => {
            write(out, &text, args.force).map_err(|error| match error.kind() {
                ErrorKind::AlreadyExists => anyhow::anyhow!(is_there(out)),
                _ => anyhow::Error::from(error).context(format!("cannot write `{}`", out.display())),
            })?;
            terminal.print(format_args!("wrote `{}`, {}", OneLine(&out.display().to_string()), OneLine(&description.source.to_string())));
        }
    }
    for assumed in &description.assumed {
        terminal.print(format_args!("  assumed: {}", OneLine(assumed)));
    }
    for open in &open {
        terminal.print(format_args!("  missing: {}", OneLine(open)));
    }
    if !open.is_empty() && args.decoder.is_none() {
        terminal.print("  add `--decoder NAME` if you know the format of the model's outputs");
    }
    Ok(())
}

/// Writes a new file, or replaces an existing file atomically if `force` is set.
fn write(out: &Path, text: &str, force: bool) -> std::io::Result<()> {
    if !force {
        return std::fs::File::create_new(out)?.write_all(text.as_bytes());
    }
    if out.metadata().is_ok_and(|there| !there.is_file()) {
        // A device or a FIFO has no content to lose, so write to it directly.
        return std::fs::OpenOptions::new().write(true).open(out)?.write_all(text.as_bytes());
    }
    // Replace the target of a link, not the link itself.
    let out = std::fs::canonicalize(out).unwrap_or_else(|_| out.to_owned());
    let draft = out.with_extension(format!("{}.tmp", std::process::id()));
    let written = std::fs::File::create_new(&draft).and_then(|mut file| file.write_all(text.as_bytes()));
    written.and_then(|()| std::fs::rename(&draft, &out)).inspect_err(|_| {
        let _removed = std::fs::remove_file(&draft);
    })
}

/// If the JSON schema is in the folder of `out` or in the parent of this folder, adds a line with the path of the schema for editors.
fn with_schema(text: &str, out: Option<&Path>) -> String {
    // Remove the schema line of a built-in description, because its path is valid only in roiflow's source folder.
    let text = if text.starts_with("#:schema ") { text.split_once('\n').map_or("", |(_, rest)| rest) } else { text };
    let folder = out.map(|out| out.parent().unwrap_or(Path::new("")));
    let places = [SCHEMA_FILE.to_owned(), format!("../{SCHEMA_FILE}")];
    match folder.and_then(|folder| places.iter().find(|place| folder.join(place).is_file())) {
        Some(place) => format!("#:schema {place}\n{text}"),
        None => text.to_owned(),
    }
}

/// Returns the model with its dynamic input width and height set to this size.
fn with_size(model: &Model, [width, height]: [usize; 2]) -> anyhow::Result<Model> {
    let [port] = &*model.info().inputs else {
        bail!(pipeline::Error::usage(format!("--size: expected a model with one image input, got {} inputs", model.info().inputs.len())));
    };
    let dims = port.shape.dims();
    let is_channels = |dim: &Dim| matches!(dim, Dim::Fixed(1 | 3));
    let shape = match dims {
        [batch, first, _, last] if is_channels(last) && !is_channels(first) => Some([*batch, height.into(), width.into(), *last]),
        [batch, first, _, _] if is_channels(first) => Some([*batch, *first, height.into(), width.into()]),
        _ => None,
    };
    let shape = shape.filter(|shape| shape.iter().zip(dims).all(|(new, old)| new == old || old.is_open()));
    let Some(shape) = shape else {
        bail!(pipeline::Error::usage(format!("--size {width}x{height}: expected a model with dynamic input width and height, got {port}")));
    };
    model.reshape([(0, PartialShape::from(shape))]).context("--size")
}
