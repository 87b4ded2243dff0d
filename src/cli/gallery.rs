//! `roiflow gallery`: writes the file that names objects by their vectors.

use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::terminal::{OneLine, Terminal};
use crate::pipeline::gallery::Vectors;
use crate::pipeline::{self, outputs};
use crate::stages::{GalleryEntry, StageOptions, UNKNOWN, read_gallery};

/// Arguments of `roiflow gallery`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Add an object to a gallery: one vector for each image of the object
    Add(AddArgs),
}

#[derive(Debug, clap::Args)]
struct AddArgs {
    /// The gallery, a file with one JSON object per line; it is created if it does not exist
    #[arg(value_name = "GALLERY")]
    gallery: PathBuf,
    /// Images of the object; without --detector, the object should fill the image
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<PathBuf>,
    /// Name of the object
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: String,
    /// The model that computes vectors
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,
    /// Description of the model
    #[arg(long, value_name = "FILE")]
    description: Option<PathBuf>,
    /// A detector that finds the object in each image, as in the pipeline that uses the gallery; each image must show one object
    #[arg(long, value_name = "MODEL")]
    detector: Option<PathBuf>,
    /// Device that runs the models
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
}

fn parse_name(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("expected a name, got an empty text".to_owned()),
        UNKNOWN => Err(format!("expected another name, because `{UNKNOWN}` is the label of objects that are not in the gallery")),
        name => Ok(name.to_owned()),
    }
}

pub(super) fn gallery(args: &Args, terminal: &Terminal) -> anyhow::Result<()> {
    let Command::Add(args) = &args.command;
    add(args, terminal)
}

fn add(args: &AddArgs, terminal: &Terminal) -> anyhow::Result<()> {
    let given = [("model", Some(&args.model)), ("description", args.description.as_ref()), ("detector", args.detector.as_ref())];
    let mut given: Vec<(&str, &Path)> = given.into_iter().filter_map(|(role, path)| Some((role, path?.as_path()))).collect();
    given.extend(args.images.iter().map(|image| ("image", image.as_path())));
    outputs::check_description("GALLERY", &args.gallery, &given)?;
    let is_there = args.gallery.exists() && args.gallery.metadata()?.len() > 0;
    let known = is_there.then(|| read_gallery(&args.gallery)).transpose()?;
    let options = |model: &Path, description: Option<PathBuf>| StageOptions {
        model: model.to_owned(),
        description,
        device: args.device.clone(),
        ..StageOptions::default()
    };
    let detector = args.detector.as_deref().map(|detector| options(detector, None));
    let models = Vectors::load(&options(&args.model, args.description.clone()), detector.as_ref())?;
    let mut lines = Vec::new();
    for image in &args.images {
        let vector = models.of_image(image).map_err(|why| anyhow::anyhow!("image `{}`: {why}", image.display()))?;
        if let Some(known) = known.as_ref().filter(|known| known.n_values() != vector.len()) {
            bail!(pipeline::Error::usage(format!(
                "gallery `{}`: expected vectors of {} values, got a model with {}. Use the same model for all objects",
                args.gallery.display(),
                known.n_values(),
                vector.len()
            )));
        }
        serde_json::to_writer(&mut lines, &GalleryEntry { name: args.name.clone(), vector })?;
        lines.push(b'\n');
    }
    append(&args.gallery, &lines).with_context(|| format!("cannot write `{}`", args.gallery.display()))?;
    terminal.print(format_args!(
        "added {} to `{}`, number of vectors: {}",
        OneLine(&args.name),
        OneLine(&args.gallery.display().to_string()),
        args.images.len()
    ));
    Ok(())
}

/// Appends lines to a file, and creates the file if it does not exist. If the last line of the file is incomplete, ends it first.
fn append(path: &Path, lines: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    let begin: &[u8] = if last == [b'\n'] { b"" } else { b"\n" };
    file.write_all(&[begin, lines].concat())
}
