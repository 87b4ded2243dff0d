//! A resolved pipeline description: all parameters have values, input and outputs are known.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::graph::{Graph, Literal, NamedElement, Structure};
use super::limits::Limits;
use super::spec::{Parameter, ParameterType};
use super::{Error, ImageFiles, ImageRate, Input, Result, Spec, Tap, file_uri, images_out, outputs, properties, tap};
use crate::elements::{self, publish::FrameMemory};
use crate::publish::{self, IfExists, Target, Url};
use crate::redaction::Secrets;
use crate::restart::Restart;
use crate::stages::{Engine, ModelSpec, did_you_mean};

/// Destinations of the results.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outputs {
    /// File of the JSON lines; `-` is standard output.
    pub json: Option<PathBuf>,
    /// Properties of `roipublish` for constant fields and the filter, which replace those of the description: see
    /// [`PublishSection`](super::spec::PublishSection).
    pub lines: BTreeMap<String, String>,
    /// URLs of servers and files that also get the JSON lines, and whether they may name files of this machine.
    pub publish: Vec<Url>,
    /// Folder and limits of the results that are stored until the servers of `publish` acknowledge them.
    pub spool: Option<SpoolFolder>,
    /// Where the images of objects are written.
    pub crops: Option<Crops>,
    /// File of the video with boxes; `-` is standard output, in the format Matroska.
    pub video: Option<PathBuf>,
    /// Image files with boxes, one file per frame.
    pub images: Option<ImageFiles>,
    /// Whether the video is shown in a window.
    pub show: bool,
    /// Shared memory that gets the pixels of each frame with a JSON line.
    pub frame_memory: Option<FrameMemory>,
    /// Whether frames are passed to the application.
    pub application: bool,
    /// Whether the input is played again when it ends.
    pub repeat: bool,
    /// Name of the stream, for the field `stream` of the JSON lines.
    pub stream: Option<String>,
    /// Name of the stream in results for servers. It is set even if a run has only one stream, because a server may receive
    /// streams of many runs.
    pub stream_of_servers: Option<String>,
    /// Number of the assignment of the stream to this machine, for the epoch in message IDs; 0 = none.
    pub assignment: u64,
    /// Handling of existing files.
    pub if_exists: IfExists,
    /// Receives each frame with its results. Requires `{json}` in the graph.
    pub tap: Option<Tap>,
    /// Whether a file or test pattern is played at its own frame rate, like a camera, instead of as fast as possible.
    pub real_time: bool,
    /// Frame rate of input images.
    pub image_rate: ImageRate,
}

/// The folder of a spool with its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolFolder {
    /// The folder, which is created if it is missing.
    pub path: PathBuf,
    /// Maximum size in bytes for each server; `None` is the default of `roipublish`.
    pub max_bytes: Option<u64>,
    /// Maximum age of the stored results; `None` is no limit.
    pub max_age: Option<Duration>,
}

/// Options of the images of objects, which `roicrop` writes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Crops {
    /// Folder of the files.
    pub folder: Option<PathBuf>,
    /// Whether the JSON lines contain the images.
    pub in_messages: bool,
    /// Labels of the objects, with commas between; `None` is all objects.
    pub classes: Option<String>,
    /// Maximum size of all files in bytes; `None` is the default of `roicrop`.
    pub max_bytes: Option<u64>,
}

impl Outputs {
    /// Whether any output needs the pixels of the frames.
    fn need_pixels(&self) -> bool {
        self.video.is_some() || self.images.is_some() || self.show || self.application
    }
}

/// A resolved pipeline description. See the module.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The name of the description.
    pub name: String,
    /// The file of the description.
    pub path: PathBuf,
    /// The pipeline as a gst-launch line. Properties that depend on a parameter are missing in the line; `assignments` sets them.
    pub line: String,
    /// Parameter values to set on elements.
    pub assignments: Vec<Assignment>,
    /// The elements of the description, in order.
    pub elements: Vec<NamedElement>,
    /// Property values in the description, to be checked before the line is parsed.
    pub literals: Vec<Literal>,
    /// Source of the frames.
    pub input: Input,
    /// Destinations of the results.
    pub outputs: Outputs,
    /// Limits after which the stream ends, and timeouts of the source.
    pub limits: Limits,
    /// When the stream is restarted after its source was lost.
    pub restart: Restart,
    /// Engine with the devices, decoders and compiled models of the elements. Default: the engine of the process.
    pub engine: Engine,
}

/// A property value to set before the pipeline starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    pub element: String,
    pub property: String,
    pub value: String,
}

/// Name of the source element. This and the following constants are the names of the elements that the program inserts.
pub(super) const SOURCE: &str = "roiflow-source";
/// Name of the element after a decoding source.
pub(super) const ENTRY: &str = "roiflow-entry";
pub(super) const PUBLISH: &str = "roiflow-publish";
pub(super) const CROP: &str = "roiflow-crop";
pub(super) const SINK: &str = "roiflow-sink";
pub(super) const WINDOW: &str = "roiflow-window";

impl Plan {
    /// Resolves a description. `set` are the user's `name=value` pairs. Paths in defaults are relative to the description's folder, paths
    /// set by the user to the working folder.
    ///
    /// # Errors
    /// Returns an error if a parameter is unknown (the nearest name is suggested), missing or of the wrong type, a placeholder has no
    /// parameter, or an output folder does not exist.
    pub fn resolve(spec: &Spec, set: &[(String, String)], input: Input, outputs: Outputs) -> Result<Self> {
        let mut assignments = Vec::new();
        let lines = lines(spec, set, &outputs).map_err(|error| error.context(spec.title()))?;
        let outputs = Outputs { lines, ..outputs };
        let structure = Structure {
            source: source(&input, outputs.real_time, &mut assignments)?,
            json: json(&outputs, &input, &mut assignments)?,
            video: images_out::with_branch(video(&outputs, &input, &mut assignments)?, &outputs, &input)?,
        };
        Self::of_description(spec, set, input, outputs, (structure, assignments)).map_err(|error| error.context(spec.title()))
    }

    /// The credentials that must be removed from texts about this pipeline.
    pub(super) fn secrets(&self) -> Secrets {
        let mut secrets = self.input.secrets();
        self.outputs.publish.iter().for_each(|url| secrets.extend(publish::secrets(&url.text)));
        secrets
    }

    /// Checks the values of parameters that a client of a server has chosen: a relative path would be one in the working folder of the server. The
    /// server replaces the names of files that clients may use by absolute paths.
    ///
    /// # Errors
    /// Returns an error if a value is a relative path, and not the name of a built-in description.
    pub fn check_files_of_client(&self, set: &[(String, String)]) -> Result<()> {
        for Assignment { property, value, .. } in &self.assignments {
            let names_file = elements::FILE_PROPERTIES.contains(&&**property) && !Path::new(value).is_absolute();
            let chosen = set.iter().find(|(_, chosen)| names_file && chosen == value);
            if let Some((parameter, _)) = chosen.filter(|_| property != "description" || !ModelSpec::is_built_in(value)) {
                let built_in = if property == "description" { ", or the name of a built-in description" } else { "" };
                let expected = format!("a file in the model folder of the server{built_in}");
                return Err(Error::usage(format!("parameter `{parameter}`: expected {expected}, got `{value}`. There is no such file")));
            }
        }
        Ok(())
    }

    /// Whether another pipeline can continue the stream. A video that is written to a pipe cannot be continued, an application receives the
    /// frames of one pipeline only, and standard input cannot be opened again.
    pub fn can_restart(&self) -> bool {
        let is_descriptor = matches!(&self.input, Input::Uri(uri) if uri.is_descriptor());
        !is_descriptor && !self.outputs.application && !self.outputs.video.as_deref().is_some_and(Outputs::is_for_all)
    }

    /// Returns the devices that run the models; `None` is the element's default device.
    pub fn devices(&self) -> BTreeSet<Option<String>> {
        let infers = |element: &&NamedElement| ["roidetect", "roiclassify"].contains(&&*element.factory);
        let device = |element: &NamedElement| {
            let is_it = |name: &str, property: &str| name == element.name && property == "device";
            let assigned = self.assignments.iter().find(|assignment| is_it(&assignment.element, &assignment.property));
            let written = || self.literals.iter().find(|literal| is_it(&literal.element, &literal.property));
            assigned.map(|assignment| assignment.value.clone()).or_else(|| Some(properties::unescaped(&written()?.text)))
        };
        self.elements.iter().filter(infers).map(device).collect()
    }

    /// Resolves the description with the elements and assignments that input and outputs require.
    fn of_description(
        spec: &Spec,
        set: &[(String, String)],
        input: Input,
        outputs: Outputs,
        (structure, mut assignments): (Structure, Vec<Assignment>),
    ) -> Result<Self> {
        // A model is optional if its parameter has the empty text as its default.
        let is_without = |name: &str| {
            let is_optional = |parameter: &Parameter| {
                parameter.r#type == ParameterType::Path && parameter.default.as_ref().and_then(toml::Value::as_str) == Some("")
            };
            let value = set.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value);
            spec.file.parameters.get(name).is_some_and(is_optional) && value.is_none_or(String::is_empty)
        };
        let graph = Graph::parse(&spec.file.pipeline.graph, &structure, &is_without)?;
        outputs.check_places(&graph.places)?;
        let values = values(spec, set)?;
        for slot in graph.slots {
            let Some(value) = values.get(&*slot.parameter) else {
                return Err(Error::usage(format!(
                    "the graph uses `{{{}}}`, expected the name of a parameter: add a section [parameters.{}]{}",
                    slot.parameter,
                    slot.parameter,
                    did_you_mean(&slot.parameter, values.keys().copied())
                )));
            };
            // If the value is empty, the property keeps the default of the element.
            if !value.is_empty() {
                assignments.push(Assignment { element: slot.element, property: slot.property, value: value.clone() });
            }
        }
        // Overlays need not draw if no output needs pixels, and no element could show or write the frames. Of roiflow's elements, only
        // these write frames.
        let writes = |factory: &str| !factory.starts_with("roi") || ["roirecord", "roicrop"].contains(&factory);
        let is_unseen = !graph.elements.iter().any(|element| writes(&element.factory));
        if is_unseen && !outputs.need_pixels() {
            // Turn off drawing, because no output shows it, and because it copies frames that the decoder still references.
            for overlay in graph.elements.iter().filter(|element| element.factory == "roioverlay") {
                assign(&mut assignments, &overlay.name, "draw", "false");
            }
        }
        let (name, path) = (spec.file.name.clone(), spec.path.clone());
        let (limits, restart) = spec.file.source.resolve()?;
        Ok(Self {
            name,
            path,
            line: graph.line,
            assignments,
            elements: graph.elements,
            literals: graph.literals,
            input,
            outputs,
            limits,
            restart,
            engine: Engine::default(),
        })
    }
}

fn assign(assignments: &mut Vec<Assignment>, element: &str, property: &str, value: impl Into<String>) {
    assignments.push(Assignment { element: element.to_owned(), property: property.to_owned(), value: value.into() });
}

/// Returns the elements for `{source}`. Their output is raw video in a supported format; `videoconvert` passes such frames unchanged.
fn source(input: &Input, real_time: bool, assignments: &mut Vec<Assignment>) -> Result<String> {
    let elements = match input {
        Input::File(path) => {
            assign(assignments, SOURCE, "uri", file_uri(path)?);
            decode()
        }
        // The address is not part of the plan's assignments, because it may contain a password. It is set when the pipeline is
        // built.
        Input::Uri(_) => decode(),
        Input::Test(n_frames) => {
            format!("videotestsrc name={SOURCE} num-buffers={n_frames} ! video/x-raw,format=NV12,width=640,height=480,framerate=30/1")
        }
        Input::Images(_) | Input::Application => format!("appsrc name={SOURCE} format=time block=true max-buffers=4 max-bytes=0"),
    };
    // Frames wait for their time here and not at the sink. So the in-flight queues stay short, and the measured latencies contain no
    // waiting time.
    let waits = real_time && matches!(input, Input::File(_) | Input::Test(_));
    Ok(if waits { format!("{elements} ! identity sync=true silent=true") } else { elements })
}

fn decode() -> String {
    // The source decodes to system memory. Its pads for streams other than video stay unlinked. If the input has no video, all pads are
    // unlinked, and the resulting "not linked" error ends the run.
    format!("uridecodebin name={SOURCE} caps=video/x-raw ! videoconvert name={ENTRY}")
}

/// Returns a path as the value of a property, which must be UTF-8.
fn text_of<'a>(option: &str, path: &'a Path) -> Result<&'a str> {
    path.to_str().ok_or_else(|| Error::usage(format!("{option} `{}`: expected a path in UTF-8; rename the file", path.display())))
}

/// Returns the elements for `{json}`.
fn json(outputs: &Outputs, input: &Input, assignments: &mut Vec<Assignment>) -> Result<String> {
    let mut elements = Vec::new();
    if let Some(crops) = &outputs.crops {
        if let Some(folder) = &crops.folder {
            assign(assignments, CROP, "folder", text_of("--crops", folder)?);
        }
        assign(assignments, CROP, "in-message", crops.in_messages.to_string());
        crops.classes.iter().for_each(|classes| assign(assignments, CROP, "object-class", classes));
        crops.max_bytes.iter().for_each(|n| assign(assignments, CROP, "max-bytes", n.to_string()));
        outputs.stream_of_servers.iter().for_each(|stream| assign(assignments, CROP, "stream-id", stream));
        elements.push(format!("roicrop name={CROP}"));
    }
    let mut add = |name: &str, stream: &Option<String>, values: &[(&str, &str)]| {
        values.iter().for_each(|(property, value)| assign(assignments, name, property, *value));
        outputs.lines.iter().for_each(|(property, value)| assign(assignments, name, property, value));
        assign(assignments, name, "source", input.name());
        if let Some(stream) = stream {
            assign(assignments, name, "stream-id", stream);
        }
        elements.push(format!("roipublish name={name}"));
    };
    if let Some(path) = &outputs.json {
        outputs::check_destination("--json", path, outputs.if_exists)?;
        let values = [("address", text_of("--json", path)?), ("if-exists", if_exists(outputs)), ("format", "json-lines")];
        add(PUBLISH, &outputs.stream, &values);
    }
    for (idx, url) in outputs.publish.iter().enumerate() {
        let wrong = |error| Error::usage(format!("--publish `{}`: {error}", publish::redact(&url.text)));
        let target = Target::parse(&url.text, &url.access).map_err(wrong)?;
        // The URL is set when the pipeline is built, together with its right to open files.
        let mut values = vec![("if-exists", if_exists(outputs).to_owned())];
        if outputs.assignment > 0 {
            values.push(("assignment", outputs.assignment.to_string()));
        }
        match (target.file(), &outputs.spool) {
            (Some(path), _) => outputs::check_destination("--publish", path, outputs.if_exists)?,
            (None, Some(spool)) => {
                values.push(("spool", text_of("--spool", &spool.path)?.to_owned()));
                values.extend(spool.max_bytes.map(|n| ("spool-max-bytes", n.to_string())));
                values.extend(spool.max_age.map(|age| ("spool-max-age", age.as_secs().to_string())));
            }
            (None, None) => {}
        }
        let stream = if target.file().is_some() { &outputs.stream } else { &outputs.stream_of_servers };
        let values: Vec<(&str, &str)> = values.iter().map(|(property, value)| (*property, &**value)).collect();
        add(&format!("{PUBLISH}-{}", idx + 1), stream, &values);
    }
    if outputs.tap.is_some() {
        elements.push(format!("identity name={} silent=true", tap::NAME));
    }
    Ok(if elements.is_empty() { "identity silent=true".to_owned() } else { elements.join(" ! ") })
}

/// Returns the properties of `roipublish` of the description, and of `outputs`, which replace them. Single tags replace single tags.
fn lines(spec: &Spec, set: &[(String, String)], outputs: &Outputs) -> Result<BTreeMap<String, String>> {
    let mut lines = spec.file.publish.resolve(&values(spec, set)?)?;
    for (property, value) in &outputs.lines {
        let earlier = lines.get(property).filter(|_| property == "tags").and_then(|text| serde_json::from_str(text).ok());
        let value = match (earlier, serde_json::from_str(value)) {
            (Some(serde_json::Value::Object(mut tags)), Ok(serde_json::Value::Object(more))) => {
                tags.extend(more);
                serde_json::Value::Object(tags).to_string()
            }
            _ => value.clone(),
        };
        lines.insert(property.clone(), value);
    }
    Ok(lines)
}

fn video(outputs: &Outputs, input: &Input, assignments: &mut Vec<Assignment>) -> Result<String> {
    if outputs.application {
        return Ok(format!("appsink name={SINK} sync=false max-buffers=4"));
    }
    let file = match &outputs.video {
        None => None,
        Some(path) => {
            let (elements, location) = outputs::video_elements(path, outputs, input)?;
            assign(assignments, SINK, "location", text_of("--video", &location)?);
            assign(assignments, SINK, "if-exists", if_exists(outputs));
            Some(elements)
        }
    };
    let window = format!("videoconvert ! autovideosink name={WINDOW}");
    Ok(match (outputs.show, file) {
        (false, None) => format!("fakesink name={SINK} sync=false"),
        (false, Some(file)) => file,
        (true, None) => window,
        (true, Some(file)) => format!("tee name=roiflow-tee roiflow-tee. ! queue ! {window} roiflow-tee. ! queue ! {file}"),
    })
}

fn if_exists(outputs: &Outputs) -> &'static str {
    match outputs.if_exists {
        IfExists::Replace => "replace",
        IfExists::Append => "append",
        IfExists::Fail => "fail",
    }
}

/// Returns the values of all parameters, as text.
fn values<'a>(spec: &'a Spec, set: &[(String, String)]) -> Result<BTreeMap<&'a str, String>> {
    let parameters = &spec.file.parameters;
    for (name, _) in set {
        if !parameters.contains_key(name) {
            let names: Vec<&str> = parameters.keys().map(String::as_str).collect();
            return Err(Error::usage(format!(
                "no parameter `{name}`: expected one of {}{}",
                names.join(", "),
                did_you_mean(name, names.iter().copied())
            )));
        }
    }
    let (mut values, mut missing) = (BTreeMap::new(), Vec::new());
    for (name, parameter) in parameters {
        let user = set.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value);
        let value = match (user, &parameter.default) {
            (Some(value), _) => {
                check_type(name, parameter, value)?;
                value.clone()
            }
            (None, Some(default)) => {
                let value = default_value(name, parameter, default, spec)?;
                check_default_file(name, parameter, &value, spec)?;
                value
            }
            (None, None) => {
                missing.push((name, parameter));
                continue;
            }
        };
        values.insert(name.as_str(), value);
    }
    if missing.is_empty() { Ok(values) } else { Err(missing_values(&missing)) }
}

/// Returns one error that lists all parameters without a value.
fn missing_values(missing: &[(&String, &Parameter)]) -> Error {
    let described = missing.iter().map(|(name, parameter)| match &*parameter.help {
        "" => format!("`{name}`"),
        help => format!("`{name}` ({help})"),
    });
    let options = missing.iter().map(|(name, parameter)| format!("--set {name}={}", parameter.r#type.placeholder()));
    let (described, options) = (described.collect::<Vec<_>>().join(", "), options.collect::<Vec<_>>().join(" "));
    let (noun, verb) = if missing.len() == 1 { ("parameter", "has") } else { ("parameters", "have") };
    Error::usage(format!("{noun} {described} {verb} no default: add {options}"))
}

fn check_type(name: &str, parameter: &Parameter, value: &str) -> Result<()> {
    let fits = match parameter.r#type {
        ParameterType::Path | ParameterType::String => true,
        ParameterType::Integer => value.parse::<i64>().is_ok(),
        ParameterType::Number => value.parse::<f64>().is_ok_and(f64::is_finite),
        ParameterType::Boolean => value.parse::<bool>().is_ok(),
    };
    if fits {
        Ok(())
    } else {
        Err(Error::usage(format!("parameter `{name}`: expected a value of type {}, got `{value}`", parameter.r#type.name())))
    }
}

fn default_value(name: &str, parameter: &Parameter, default: &toml::Value, spec: &Spec) -> Result<String> {
    let text = match (parameter.r#type, default) {
        (ParameterType::Path, toml::Value::String(path)) if path.is_empty() => String::new(),
        (ParameterType::Path, toml::Value::String(path)) => {
            let folder = spec.path.parent().unwrap_or(Path::new(""));
            tidy(&folder.join(path)).to_string_lossy().into_owned()
        }
        (ParameterType::String, toml::Value::String(text)) => text.clone(),
        (ParameterType::Integer, toml::Value::Integer(number)) => number.to_string(),
        (ParameterType::Number, toml::Value::Float(number)) => number.to_string(),
        (ParameterType::Number, toml::Value::Integer(number)) => number.to_string(),
        (ParameterType::Boolean, toml::Value::Boolean(flag)) => flag.to_string(),
        (expected, got) => {
            let message = format!("[parameters.{name}] default: expected a value of type {}, got {}", expected.name(), got.type_str());
            return Err(Error::usage(message));
        }
    };
    Ok(text)
}

/// Checks that the default file of a parameter in a built-in description exists. The check is needed because such files are not part of the
/// program.
fn check_default_file(name: &str, parameter: &Parameter, value: &str, spec: &Spec) -> Result<()> {
    if !spec.is_built_in || parameter.r#type != ParameterType::Path || value.is_empty() || Path::new(value).exists() {
        return Ok(());
    }
    let help = if parameter.help.is_empty() { String::new() } else { format!(" ({})", parameter.help) };
    Err(Error::usage(format!(
        "parameter `{name}`{help}: expected a file `{value}`, which is its default, got none. Add --set {name}=FILE, or run `make demo` and \
         `make install` in the sources of roiflow, which fetch and install the default models"
    )))
}

/// Removes `..` from paths in messages: `pipelines/../assets` becomes `assets`. Removes `..` only after a plain folder name.
fn tidy(path: &Path) -> PathBuf {
    use std::path::Component;
    let mut tidied = PathBuf::new();
    for component in path.components() {
        match (component, tidied.components().next_back()) {
            (Component::ParentDir, Some(Component::Normal(name))) if !tidied.is_symlink() && name != ".." => {
                tidied.pop();
            }
            _ => tidied.push(component),
        }
    }
    tidied
}
