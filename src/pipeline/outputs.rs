//! Checks the files that a run writes: no output is an input file, and each file has one writer. Also chooses the elements that write
//! video, and reports outputs that were lost.
//!
//! The checks compare files, not paths. Existing files are compared by device and inode after links are followed, and new files by
//! folder and name. All checks happen before any output is opened; see [`check`].

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::plan::{PUBLISH, SINK};
use super::stats::Stats;
use super::{Error, Input, Outputs, Plan, Result, build, images_out};
use crate::elements::video;
use crate::publish::{self, Deadline, IfExists, OutputFile};
use crate::stages::files;

/// Maximum size of a description file.
const MAX_DESCRIPTION_BYTES: u64 = 16 << 20;

/// A file that a run reads or writes.
#[derive(Debug, Clone)]
struct File {
    /// Purpose of the file in messages, such as `--json`.
    role: String,
    path: PathBuf,
    is_json: bool,
}

/// Identity of the file that a path refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Identity {
    /// An existing file: device and inode.
    Existing(u64, u64),
    /// A new file: device and inode of the folder, and the name.
    New(u64, u64, OsString),
}

/// Refuses outputs that are also inputs, and outputs that share a file. Opens no output and changes no file. `also_written` and `also_read`
/// are further files with their purposes, such as `--trace`.
///
/// # Errors
/// Returns `Usage`, with both files, if an output is also an input or another output.
pub fn check<'a>(plans: impl IntoIterator<Item = &'a Plan>, also_written: &[(&str, &Path)], also_read: &[(&str, &Path)]) -> Result<()> {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    also_read.iter().for_each(|(role, path)| add_read(&mut reads, role, path));
    for (role, path) in also_written {
        writes.push(File { role: (*role).to_owned(), path: (*path).to_owned(), is_json: *role == "--events" });
    }
    let plans: Vec<&Plan> = plans.into_iter().collect();
    for plan in &plans {
        // Ignore a plan whose pipeline cannot be built: it writes nothing, and the error is reported when the plan is played.
        if let Ok(pipeline) = build::build(plan) {
            collect(&pipeline, plan, &mut reads, &mut writes);
        }
    }
    compare(&reads, &writes)?;
    let files: Vec<(&File, Identity)> = reads.iter().chain(&writes).filter_map(|file| Some((file, identity(&file.path)?))).collect();
    for target in plans.iter().flat_map(|plan| images_out::targets(plan)) {
        let id = identity(&target);
        if let Some((file, _)) = files.iter().find(|(_, of_file)| id.as_ref() == Some(of_file)) {
            return Err(Error::usage(format!(
                "image `{}`: expected a separate file, got the {} `{}`; write to another folder",
                target.display(),
                file.role,
                file.path.display()
            )));
        }
    }
    Ok(())
}

/// Like [`check`], for a pipeline that is already built.
pub(super) fn check_built(pipeline: &gst::Pipeline, plan: &Plan) -> Result<()> {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    collect(pipeline, plan, &mut reads, &mut writes);
    compare(&reads, &writes)
}

/// Refuses a file of a new description that is also an input. `option` and `out` are the option and its file, such as `--out`. `reads` are
/// the input files with their purposes. For a model, the files that belong to it are added, except a description that was only found next to
/// the model: `roiflow describe --out` is used to write it again.
///
/// # Errors
/// Returns `Usage`, with both files, if the output is also an input.
pub fn check_description(option: &str, out: &Path, reads: &[(&str, &Path)]) -> Result<()> {
    let mut files = Vec::new();
    reads.iter().for_each(|(role, path)| add_read(&mut files, role, path));
    files.retain(|file| file.role != "description" || reads.iter().any(|(_, path)| *path == file.path));
    compare(&files, &[File { role: option.to_owned(), path: out.to_owned(), is_json: false }])
}

/// Checks that the destination of an option can be written.
///
/// # Errors
/// Returns `Usage` if the destination exists and must not be overwritten; `Failed` if it cannot be written.
pub fn check_destination(option: &str, path: &Path, if_exists: IfExists) -> Result<()> {
    use std::io::ErrorKind::{AlreadyExists, InvalidInput, IsADirectory, NotADirectory, NotFound};
    let Err(error) = OutputFile::new(path, if_exists, Deadline::default()).check() else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let path = path.display();
    Err(match error.kind() {
        AlreadyExists => Error::usage(format!(
            "{option} `{path}`: expected a new file, because of --no-overwrite, but the file exists. Remove the file, or name another file"
        )),
        InvalidInput => Error::usage(format!("{option}: expected the name of a file, got `{path}`")),
        IsADirectory => Error::failed(format!("cannot write `{path}`: the path is a folder; name a file in this folder")),
        NotFound | NotADirectory => {
            Error::failed(format!("cannot write `{path}`: the folder `{}` does not exist; create the folder first", folder.display()))
        }
        _ => Error::failed(format!("cannot write `{path}`: {error}; name a file that this user may write")),
    })
}

fn collect(pipeline: &gst::Pipeline, plan: &Plan, reads: &mut Vec<File>, writes: &mut Vec<File>) {
    add_read(reads, "pipeline description", &plan.path);
    match &plan.input {
        Input::File(path) => add_read(reads, "input", path),
        Input::Images(paths) => paths.iter().for_each(|path| add_read(reads, "input image", path)),
        Input::Uri(_) | Input::Test(_) | Input::Application => {}
    }
    for element in pipeline.iterate_recurse().into_iter().flatten() {
        collect_of_element(&element, reads, writes);
    }
}

/// Collects the files that the properties of an element name.
fn collect_of_element(element: &gst::Element, reads: &mut Vec<File>, writes: &mut Vec<File>) {
    let text = |name: &str| {
        let is_text = element.find_property(name).is_some_and(|property| property.value_type() == glib::Type::STRING);
        is_text.then(|| element.property::<Option<String>>(name)).flatten().filter(|text| !text.is_empty())
    };
    let (name, factory) = (element.name(), element.factory().map(|factory| factory.name()).unwrap_or_default());
    let role = |property: &str| match &*name {
        PUBLISH => "--json".to_owned(),
        name if name.starts_with(PUBLISH) => "--publish".to_owned(),
        SINK => "--video".to_owned(),
        name => format!("`{property}` of `{name}`"),
    };
    if factory == "roipublish" {
        let writes_file = element.property::<crate::elements::publish::Method>("method") == crate::elements::publish::Method::File;
        let path = text("address").filter(|_| writes_file).unwrap_or_else(|| "-".to_owned());
        match text("url") {
            None => writes.push(File { role: role("address"), path: path.into(), is_json: true }),
            // The element reports an error in the URL when the element starts.
            Some(url) => writes.extend(publish::Target::file_of(&url).map(|path| File { role: role("url"), path, is_json: true })),
        }
        return;
    }
    for property in ["model", "description", "model-proc", "labels-file", "gallery"] {
        if let Some(path) = text(property) {
            add_read(reads, property, Path::new(&path));
        }
    }
    if let Some(path) = text("location") {
        if element.element_flags().contains(gst::ElementFlags::SINK) {
            writes.push(File { role: role("location"), path: path.into(), is_json: false });
        } else {
            add_read(reads, &role("location"), Path::new(&path));
        }
    }
}

/// Adds a file, and the files that are read together with it: the weights of a model, its description, and the files that the
/// description names.
fn add_read(reads: &mut Vec<File>, role: &str, path: &Path) {
    let mut add = |role: String, path: PathBuf| reads.push(File { role, path, is_json: false });
    add(role.to_owned(), path.to_owned());
    if role == "model" {
        add("weights of the model".to_owned(), path.with_extension("bin"));
        for ending in ["toml", "json"] {
            let description = path.with_extension(ending);
            if description.is_file() {
                add_read(reads, if ending == "json" { "model-proc" } else { "description" }, &description);
            }
        }
    } else if ["description", "model-proc"].contains(&role) {
        let folder = path.parent().unwrap_or(Path::new(""));
        for name in texts(path) {
            let named = folder.join(name);
            if named.is_file() {
                add("file of the description".to_owned(), named);
            }
        }
    }
}

/// Returns all strings in a description file, under any key, because any of them may be a file name.
fn texts(path: &Path) -> Vec<String> {
    fn add(value: &toml::Value, texts: &mut Vec<String>) {
        match value {
            toml::Value::String(text) => texts.push(text.clone()),
            toml::Value::Array(values) => values.iter().for_each(|value| add(value, texts)),
            toml::Value::Table(table) => table.values().for_each(|value| add(value, texts)),
            _ => {}
        }
    }
    let is_short = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= MAX_DESCRIPTION_BYTES);
    let Some(text) = is_short.then(|| std::fs::read_to_string(path).ok()).flatten() else { return Vec::new() };
    // TOML and JSON files are both parsed to `toml::Value`.
    let value = toml::from_str::<toml::Value>(&text).ok().or_else(|| serde_json::from_str(&text).ok());
    let mut texts = Vec::new();
    value.iter().for_each(|value| add(value, &mut texts));
    texts
}

fn compare(reads: &[File], writes: &[File]) -> Result<()> {
    let read: Vec<_> = reads.iter().filter_map(|file| Some((file, identity(&file.path)?))).collect();
    let written: Vec<_> = writes.iter().filter_map(|file| Some((file, identity(&file.path)?))).collect();
    for (idx, (write, id)) in written.iter().enumerate() {
        if is_shared(&write.path) {
            // Several streams may write lines to standard output. Lines and video must not be mixed, because no reader could separate them.
            let other = written[..idx].iter().find(|(other, other_id)| other_id == id && other.is_json != write.is_json);
            if let Some((other, _)) = other.filter(|(other, _)| is_stdout(other) && is_stdout(write) && !is_null(&write.path)) {
                return Err(Error::usage(format!("{} and {}: only one of them can be standard output", other.role, write.role)));
            }
            continue;
        }
        let path = write.path.display();
        if let Some((read, _)) = read.iter().find(|(_, read_id)| read_id == id) {
            return Err(Error::usage(format!(
                "{} `{path}`: expected a file that is not an input, got the {} `{}`; write to another file",
                write.role,
                read.role,
                read.path.display()
            )));
        }
        if let Some(model) = reads.iter().find(|read| read.role == "model" && has_weights_in(&read.path, &write.path)) {
            let model = model.path.display();
            return Err(Error::usage(format!(
                "{} `{path}`: expected a file that is not an input, got weights of the model `{model}`; write to another file",
                write.role
            )));
        }
        if let Some(other) = written[..idx].iter().find(|(other, other_id)| other_id == id && !(other.is_json && both_stdout(other, write)))
        {
            return Err(Error::usage(format!(
                "{} `{path}` and {} `{}` are the same file; expected two different files",
                write.role,
                other.0.role,
                other.0.path.display()
            )));
        }
        if let Some(image) = read.iter().find(|(read, _)| read.role == "input image" && is_in_same_folder(&read.path, &write.path)) {
            return Err(Error::usage(format!(
                "{} `{path}`: the next run would read it as an input image like `{}`; write to another folder, or with another extension",
                write.role,
                image.0.path.display()
            )));
        }
    }
    Ok(())
}

fn is_stdout(file: &File) -> bool {
    publish::is_stdout(&file.path) || identity(&file.path) == identity(Path::new("-"))
}

fn both_stdout(first: &File, second: &File) -> bool {
    second.is_json && publish::is_stdout(&first.path) && publish::is_stdout(&second.path)
}

fn is_null(path: &Path) -> bool {
    identity(path) == identity(Path::new("/dev/null"))
}

/// Whether `file` has the extension of an image, and is or would be in the same folder as the input image `image`.
fn is_in_same_folder(image: &Path, file: &Path) -> bool {
    let folder = |path: &Path| match identity(path)? {
        Identity::New(device, number, _) => Some((device, number)),
        Identity::Existing(..) => {
            let folder = path.canonicalize().ok()?.parent()?.metadata().ok()?;
            Some((folder.dev(), folder.ino()))
        }
    };
    roiflow_images::file::has_image_extension(file) && folder(image).is_some_and(|of_image| folder(file) == Some(of_image))
}

fn metadata(path: &Path) -> Option<Metadata> {
    if publish::is_stdout(path) { std::fs::metadata("/dev/stdout").ok() } else { std::fs::metadata(path).ok() }
}

fn identity(path: &Path) -> Option<Identity> {
    if let Some(metadata) = metadata(path) {
        return Some(Identity::Existing(metadata.dev(), metadata.ino()));
    }
    let (folder, name) = publish::new_file(path).ok()?;
    let folder = std::fs::metadata(folder).ok()?;
    Some(Identity::New(folder.dev(), folder.ino(), name?))
}

/// Whether several writers may share the file, because it is a device, a FIFO or a socket.
fn is_shared(path: &Path) -> bool {
    metadata(path).is_some_and(|metadata| {
        let kind = metadata.file_type();
        kind.is_char_device() || kind.is_fifo() || kind.is_socket()
    })
}

/// Whether an ONNX model refers to this file as external data.
fn has_weights_in(model: &Path, file: &Path) -> bool {
    if model.extension().is_none_or(|ending| !ending.eq_ignore_ascii_case("onnx")) || !model.is_file() {
        return false;
    }
    let lies_below = || {
        let (model, file) = (model.canonicalize().ok()?, file.canonicalize().ok()?);
        Some(file.strip_prefix(model.parent()?).ok()?.to_str()?.to_owned())
    };
    let Some(name) = lies_below().filter(|name| name.len() < 128) else { return false };
    // ONNX stores the file name as a key-value pair of protocol buffers with the key `location`.
    let pair = [b"\x0a\x08location\x12".as_slice(), &[name.len() as u8], name.as_bytes()].concat();
    files::read_limited(model, files::MAX_MODEL_BYTES, "model").is_ok_and(|bytes| bytes.windows(pair.len()).any(|window| window == pair))
}

impl Outputs {
    /// Whether several streams may share this output: it is standard output, a device or a FIFO.
    pub(super) fn is_for_all(path: &Path) -> bool {
        publish::is_stdout(path) || is_shared(path)
    }
}

/// Returns the elements that write video, and the path that the last element writes.
pub(super) fn video_elements(path: &Path, outputs: &Outputs, input: &Input) -> Result<(String, PathBuf)> {
    // An encoder with lookahead delays frames. A window would wait for these frames, and a loop would assign wrong timestamps to them. When
    // a live source or the process stops, these frames would be lost. So lookahead is turned off for windows, loops and live sources.
    let low_latency = outputs.show || outputs.repeat || matches!(input, Input::Uri(_));
    // Scale input images to one size, because their sizes may differ, and a video has only one size.
    let scale = if matches!(input, Input::Images(_)) { "videoscale add-borders=true ! capsfilter name=roiflow-size ! " } else { "" };
    video::check(path, outputs.if_exists).map_err(Error::usage)?;
    let path = if publish::is_stdout(path) { Path::new("-") } else { path };
    check_destination("--video", path, outputs.if_exists)?;
    Ok((format!("{scale}{} name={SINK} low-latency={low_latency}", video::NAME), path.to_owned()))
}

/// Returns an error if results or recordings could not be written.
pub(super) fn lost(plan: &Plan, stats: &Stats) -> Option<Error> {
    let (n_lost, n_failed) = (stats.n_lines_lost, stats.n_recordings_failed);
    if n_lost == 0 && n_failed > 0 {
        let recording = match &plan.outputs {
            Outputs { video: Some(path), .. } => format!("video `{}`", path.display()),
            Outputs { images: Some(images), .. } => format!("images `{images}`"),
            _ => "recording".to_owned(),
        };
        let times = if n_failed == 1 { "once".to_owned() } else { format!("{n_failed} times") };
        return Some(Error::failed(format!("{recording}: frames are missing, because writing failed {times}; the warnings say why")));
    }
    let destination = match &plan.outputs.json {
        Some(path) if plan.outputs.publish.is_empty() => format!("`{}`", path.display()),
        Some(_) => "the destinations of --json and --publish".to_owned(),
        None => "the destinations of --publish".to_owned(),
    };
    (n_lost > 0).then(|| Error::failed(format!("{n_lost} lines of results could not be written to {destination}")))
}
