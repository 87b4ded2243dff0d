//! `roiflow inspect`: what a model or a pipeline description is.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::terminal::{self, OneLine};
use crate::devices;
use crate::pipeline::Spec;
use crate::runtime::{Error, Model, ModelInfo};
use crate::stages::spec::DEFAULT_DEVICE;
use crate::stages::{Cut, Head, ModelSpec, Source, StageOptions, Task};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A model (.onnx) or a pipeline description (.toml)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The model's description, if it does not lie beside it
    #[arg(long, value_name = "FILE")]
    description: Option<PathBuf>,
    /// A model-proc file of DL Streamer, instead of a description
    #[arg(long, value_name = "FILE", conflicts_with = "description")]
    model_proc: Option<PathBuf>,
}

pub(super) fn inspect(args: &Args) -> anyhow::Result<()> {
    let mut out = terminal::stdout();
    if args.file.extension().is_some_and(|ending| ending == "toml") { pipeline(&mut out, &args.file) } else { model(&mut out, args) }
}

fn model(out: &mut impl Write, args: &Args) -> anyhow::Result<()> {
    let model = devices::core().read_model(&args.file)?;
    writeln!(out, "{}", args.file.display())?;
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
    let (info, refused) = true_info(&model);
    if let Some(error) = refused {
        writeln!(out, "  device {DEFAULT_DEVICE}: {error}")?;
    }
    let info = &info;
    let options = StageOptions {
        model: args.file.clone(),
        description: args.description.clone(),
        model_proc: args.model_proc.clone(),
        ..StageOptions::default()
    };
    let spec = ModelSpec::load(&options, info)?;
    writeln!(out, "  description {}{}", spec.source, how_found(&spec.source))?;
    let origin = [&spec.origin.about, &spec.origin.author, &spec.origin.license, &spec.origin.origin];
    let origin: Vec<&str> = origin.into_iter().flatten().map(String::as_str).collect();
    if !origin.is_empty() {
        writeln!(out, "  model {}", origin.join("; "))?;
    }
    writeln!(out, "  task {} `{}`", spec.task_name(), spec.name)?;
    writeln!(out, "  picture {}: {}", spec.input_size, spec.preprocess)?;
    if spec.cut != Cut::default() {
        writeln!(out, "  of a detection: {}", spec.cut)?;
    }
    match &spec.task {
        Task::Detection { decoder, thresholds, .. } => {
            write!(out, "  decoder {}, threshold {}", decoder.name(), thresholds.score)?;
            if decoder.suppresses() {
                write!(out, ", iou-threshold {}", thresholds.iou)?;
            }
            writeln!(out, ", {} labels", spec.labels.len())?;
        }
        Task::Classification { heads } | Task::Raw { heads } => {
            for Head { name, decoder, output_idx, threshold, labels } in heads {
                let output = info.outputs[*output_idx].name();
                write!(out, "  `{name}`: decoder {decoder}; output `{output}`")?;
                if decoder.tells_classes() {
                    write!(out, ", threshold {threshold}, {} labels", labels.len())?;
                }
                writeln!(out)?;
            }
        }
    }
    for assumed in &spec.assumed {
        writeln!(out, "  assumed: {assumed}")?;
    }
    Ok(())
}

/// Ports as they are when the model is compiled, which is truer than what the file says; a model that can't be compiled here still
/// has a description, and the reason is told.
pub(super) fn true_info(model: &Model) -> (ModelInfo, Option<Error>) {
    match devices::core().compile_model(model, DEFAULT_DEVICE, &Default::default()) {
        Ok(compiled) => (compiled.info().clone(), None),
        Err(error) => (model.info().clone(), Some(error)),
    }
}

/// In which of the places where descriptions are looked for it was.
fn how_found(source: &Source) -> &'static str {
    match source {
        Source::Named(_) => ", as it was named",
        Source::Beside(_) => ", beside the model",
        Source::Known { by_checksum: true, .. } => ", by the checksum of the model",
        Source::Known { by_checksum: false, .. } => ", by the name of the model",
        Source::Model(_) => "; `roiflow describe` writes it down",
    }
}

fn pipeline(out: &mut impl Write, path: &Path) -> anyhow::Result<()> {
    let spec = Spec::read(path)?;
    writeln!(out, "{} - {}", spec.file.name, spec.file.description)?;
    if !spec.comment.is_empty() {
        writeln!(out, "\n{}", spec.comment)?;
    }
    writeln!(out, "\nparameters (--set name=value):")?;
    for (name, parameter) in &spec.file.parameters {
        let default = match &parameter.default {
            Some(default) => format!("default {default}"),
            None => "required".to_owned(),
        };
        writeln!(out, "  {name} ({}, {default})", parameter.r#type.name())?;
        if !parameter.help.is_empty() {
            writeln!(out, "      {}", parameter.help)?;
        }
    }
    writeln!(out, "\ngraph:\n{}", spec.file.pipeline.graph.trim())?;
    Ok(())
}
