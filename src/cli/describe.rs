//! `roiflow describe`: writes the description of a model, of all that can be known without one.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::inspect::true_info;
use super::terminal::Terminal;
use crate::devices;
use crate::pipeline::outputs;
use crate::stages::{Description, ModelSpec, StageOptions};

/// The schema of descriptions.
const SCHEMA: &str = include_str!("../../assets/model-description.schema.json");

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The model (.onnx, or .xml of OpenVINO)
    #[arg(value_name = "MODEL", required_unless_present = "schema")]
    model: Option<PathBuf>,
    /// Where to write it; `-` is standard output; default: beside the model, with its name and the ending .toml
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Made from a model-proc file of DL Streamer
    #[arg(long, value_name = "FILE")]
    model_proc: Option<PathBuf>,
    /// How its outputs are read, for models that do not say: then what pictures must look like is as the authors of such models have it
    #[arg(long, value_name = "NAME", conflicts_with = "model_proc")]
    decoder: Option<String>,
    /// With the names of classes from a text file, one per line
    #[arg(long, value_name = "FILE")]
    labels_file: Option<PathBuf>,
    /// Writes over a file that is there
    #[arg(long)]
    force: bool,
    /// Prints the JSON schema of descriptions instead
    #[arg(long, conflicts_with_all = ["model", "out", "model_proc", "decoder", "labels_file", "force"])]
    schema: bool,
}

pub(super) fn describe(args: &Args, terminal: &Terminal) -> anyhow::Result<()> {
    let Some(model) = args.model.as_ref().filter(|_| !args.schema) else {
        std::io::stdout().write_all(SCHEMA.as_bytes())?;
        return Ok(());
    };
    let out = args.out.clone().unwrap_or_else(|| model.with_extension("toml"));
    let to_stdout = out.as_os_str() == "-";
    let is_there = || format!("`{}` is there already: give --force to write over it, or --out to write elsewhere", out.display());
    if !to_stdout && !args.force && out.exists() {
        bail!(is_there());
    }
    let given = [("model", Some(model)), ("model-proc", args.model_proc.as_ref()), ("labels-file", args.labels_file.as_ref())];
    let given: Vec<(&str, &Path)> = given.into_iter().filter_map(|(role, path)| Some((role, path?.as_path()))).collect();
    outputs::check_file("--out", &out, &given)?;
    let options = StageOptions { model: model.clone(), model_proc: args.model_proc.clone(), ..StageOptions::default() };
    let (info, _) = true_info(&devices::core().read_model(model)?);
    let (mut description, open) = match &args.decoder {
        Some(decoder) => Description::begin_with(decoder, &info),
        None => Description::begin(&options, &info)?,
    };
    description = match &args.labels_file {
        Some(file) => description.with_labels(file)?,
        None => description.with_own_labels()?,
    };
    if open.is_empty() {
        ModelSpec::of_description(&description, &options, &info)?;
    }
    if to_stdout {
        std::io::stdout().write_all(description.text.as_bytes())?;
    } else {
        let mut file = std::fs::File::options();
        let file = if args.force { file.create(true).truncate(true) } else { file.create_new(true) };
        let file = file.write(true).open(&out).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => anyhow::anyhow!(is_there()),
            _ => error.into(),
        });
        let write = |mut file: std::fs::File| Ok(file.write_all(description.text.as_bytes())?);
        file.and_then(write).with_context(|| format!("cannot write `{}`", out.display()))?;
        terminal.print(format_args!("wrote `{}`, {}", out.display(), description.source));
    }
    for assumed in &description.assumed {
        terminal.print(format_args!("  assumed: {assumed}"));
    }
    for open in &open {
        terminal.print(format_args!("  left to say: {open}"));
    }
    Ok(())
}
