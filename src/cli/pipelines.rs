//! `roiflow pipelines`: lists the pipeline descriptions that have names.

use std::io::Write;

use super::terminal::{self, OneLine, Quoted};
use crate::pipeline::spec;

pub(super) fn list() -> anyhow::Result<()> {
    let mut out = terminal::stdout();
    for known in spec::named() {
        let place = known.path.as_ref().map_or("built in".to_owned(), |path| path.display().to_string());
        match known.read() {
            Ok(description) => {
                writeln!(out, "{}: {} ({})", OneLine(&known.name), OneLine(&description.file.description), OneLine(&place))?;
                let required = description.file.parameters.iter().filter(|(_, parameter)| parameter.default.is_none());
                let options: Vec<String> =
                    required.map(|(name, parameter)| format!(" --set {name}={}", parameter.r#type.placeholder())).collect();
                writeln!(out, "    roiflow run {} --input video.mp4 --json results.jsonl{}", Quoted(&known.name), options.concat())?;
            }
            Err(error) => writeln!(out, "{}: cannot be read: {}", OneLine(&known.name), OneLine(&error.to_string()))?,
        }
    }
    writeln!(out, "`roiflow inspect NAME` lists the parameters of a pipeline.")?;
    Ok(())
}
