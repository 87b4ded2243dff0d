//! `roiflow inspect`: shows a model or a pipeline description.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::bail;

use super::terminal::{self, OneLine};
use crate::devices;
use crate::pipeline::{self, Spec};
use crate::runtime::{Error, Model, ModelInfo};
use crate::stages::spec::{DEFAULT_DEVICE, load_model};
use crate::stages::{Crop, Head, KnownBy, Source, StageOptions};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A model (.onnx, .xml, or an address such as grpc://host:8001/model), a pipeline description (.toml), or the name of a pipeline that `roiflow pipelines` lists
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The model's description, if it is not next to the model
    #[arg(long, value_name = "FILE")]
    description: Option<PathBuf>,
    /// A model-proc file of DL Streamer, instead of a description
    #[arg(long, value_name = "FILE", conflicts_with = "description")]
    model_proc: Option<PathBuf>,
    /// For a pipeline description: set a parameter, as in `roiflow run`
    #[arg(long, value_name = "NAME=VALUE", value_parser = super::run::parse_assignment)]
    set: Vec<(String, String)>,
}

pub(super) fn inspect(args: &Args) -> anyhow::Result<()> {
    let mut out = terminal::stdout();
    if is_pipeline(&args.file) {
        let given = [("--description", args.description.is_some()), ("--model-proc", args.model_proc.is_some())];
        if let Some((option, _)) = given.iter().find(|(_, is_given)| *is_given) {
            bail!(pipeline::Error::usage(format!("{option}: expected a model, got a pipeline description")));
        }
        return pipeline(&mut out, args);
    }
    if !args.set.is_empty() {
        bail!(pipeline::Error::usage("--set: expected a pipeline description (.toml), got a model"));
    }
    model(&mut out, args)
}

/// Whether `file` is a pipeline description or the name of a pipeline, and not a model.
fn is_pipeline(file: &Path) -> bool {
    let is_known = || pipeline::spec::named().iter().any(|known| *known.name == *file);
    file.extension().is_some_and(|ending| ending == "toml") || (!file.exists() && is_known())
}

fn model(out: &mut impl Write, args: &Args) -> anyhow::Result<()> {
    let model = devices::core().read_model(&args.file)?;
    writeln!(out, "{}", OneLine(&args.file.display().to_string()))?;
    for port in &model.info().inputs {
        writeln!(out, "  input  {}", OneLine(&port.to_string()))?;
    }
    for port in &model.info().outputs {
        writeln!(out, "  output {}", OneLine(&port.to_string()))?;
    }
    for (key, value) in &model.info().metadata {
        let first_line = value.lines().next().unwrap_or_default();
        let start: String = first_line.chars().take(100).collect();
        writeln!(out, "  metadata {}: {}", OneLine(key), OneLine(&start))?;
    }
    let options = StageOptions {
        model: args.file.clone(),
        description: args.description.clone(),
        model_proc: args.model_proc.clone(),
        ..StageOptions::default()
    };
    let (compiled, spec) = load_model(&options)?;
    let info = compiled.info();
    writeln!(out, "  device {}", compiled.device())?;
    writeln!(out, "  description {}{}", OneLine(&spec.source.to_string()), how_found(&spec.source))?;
    let origin = [&spec.origin.about, &spec.origin.author, &spec.origin.license, &spec.origin.origin];
    let origin: Vec<&str> = origin.into_iter().flatten().map(String::as_str).collect();
    if !origin.is_empty() {
        writeln!(out, "  model {}", OneLine(&origin.join("; ")))?;
    }
    writeln!(out, "  task {} `{}`", spec.task, OneLine(&spec.name))?;
    writeln!(out, "  image {}: {}", spec.input_size, spec.preprocess)?;
    if spec.crop != Crop::default() {
        writeln!(out, "  of a detection: {}", spec.crop)?;
    }
    for Head { name, decoder_name, decoder, output_idx, labels, .. } in &spec.heads {
        match output_idx {
            None => write!(out, "  decoder {}", OneLine(decoder_name))?,
            Some(_) => write!(out, "  `{}`: decoder {}", OneLine(name), OneLine(decoder_name))?,
        }
        let summary = decoder.summary();
        if !summary.is_empty() {
            write!(out, ", {}", OneLine(&summary))?;
        }
        if let Some(output_idx) = output_idx {
            write!(out, "; output `{}`", OneLine(info.outputs[*output_idx].name()))?;
        }
        if let Some(threshold) = decoder.threshold() {
            write!(out, ", threshold {threshold}, {} labels", labels.len())?;
        }
        writeln!(out)?;
    }
    for assumed in &spec.assumed {
        writeln!(out, "  assumed: {}", OneLine(assumed))?;
    }
    Ok(())
}

/// Returns the ports of the compiled model, which may be more specific than the ports in the file.
///
/// # Errors
/// Returns an error if no device can compile the model.
pub(super) fn compiled_info(model: &Model) -> Result<ModelInfo, Error> {
    devices::core().compile_model(model, DEFAULT_DEVICE, &Default::default()).map(|compiled| compiled.info().clone())
}

/// Returns a text that says how the description was found.
fn how_found(source: &Source) -> &'static str {
    match source {
        Source::Named(_) | Source::Text => ", from --description",
        Source::NextToModel(_) => ", next to the model",
        Source::Known { found: KnownBy::Checksum, .. } => ", by the checksum of the model",
        Source::Known { found: KnownBy::FileName, .. } => ", by the name of the model",
        Source::Known { found: KnownBy::User, .. } => ", from --description",
        Source::Model(_) => "; `roiflow describe` writes this description to a file",
    }
}

fn pipeline(out: &mut impl Write, args: &Args) -> anyhow::Result<()> {
    let spec = Spec::find(&args.file)?;
    writeln!(out, "{} - {}", OneLine(&spec.file.name), OneLine(&spec.file.description))?;
    if !spec.comment.is_empty() {
        writeln!(out, "\n{}", spec.comment)?;
    }
    writeln!(out, "\nparameters (--set name=value):")?;
    for (name, parameter) in &spec.file.parameters {
        let set = args.set.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value);
        let default = match (set, &parameter.default) {
            (Some(value), _) => format!("set to {value}"),
            (None, Some(default)) => format!("default {default}"),
            (None, None) => "required".to_owned(),
        };
        writeln!(out, "  {} ({}, {})", OneLine(name), parameter.r#type.name(), OneLine(&default))?;
        if !parameter.help.is_empty() {
            writeln!(out, "      {}", OneLine(&parameter.help))?;
        }
    }
    writeln!(out, "\ngraph:\n{}", spec.file.pipeline.graph.trim())?;
    out.flush()?;
    let missing = pipeline::check(&spec, &args.set)?;
    if !missing.is_empty() {
        writeln!(
            out,
            "\nnot checked: elements that depend on {}, which {} no value yet",
            OneLine(&missing.join(", ")),
            if missing.len() == 1 { "has" } else { "have" }
        )?;
    }
    Ok(())
}
