//! Reference pages of the elements and the command, generated from the code.
//!
//! `ROIFLOW_UPDATE=1 cargo test --test stream reference_pages` updates them.

use std::fmt::Write as _;
use std::path::Path;

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use crate::cli::{command, roiflow};

/// Compares a page with the code, or updates it.
fn check_page(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference").join(name);
    if std::env::var_os("ROIFLOW_UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        return std::fs::write(path, text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "docs/reference/{name} is out of date: run `ROIFLOW_UPDATE=1 cargo test --test stream reference_pages`");
}

/// Type and range of a property.
fn kind(spec: &glib::ParamSpec) -> String {
    macro_rules! numbers {
        ($($spec:ty => $name:literal),+ $(,)?) => {
            $(if let Some(spec) = spec.downcast_ref::<$spec>() {
                return format!("{}, {} to {}", $name, spec.minimum(), spec.maximum());
            })+
        };
    }
    numbers! {
        glib::ParamSpecInt => "integer", glib::ParamSpecUInt => "integer", glib::ParamSpecInt64 => "integer", glib::ParamSpecUInt64 => "integer",
        glib::ParamSpecFloat => "number", glib::ParamSpecDouble => "number",
    }
    if let Some(class) = glib::EnumClass::with_type(spec.value_type()) {
        return class.values().iter().map(|value| format!("`{}`", value.nick())).collect::<Vec<_>>().join(", ");
    }
    match spec.value_type() {
        glib::Type::BOOL => "true, false".to_owned(),
        glib::Type::STRING => "text".to_owned(),
        other => format!("`{}`", other.name()),
    }
}

/// Returns the default value in the syntax of `gst-launch-1.0`.
fn default(spec: &glib::ParamSpec) -> String {
    if let Some(spec) = spec.downcast_ref::<glib::ParamSpecFloat>() {
        return format!("`{}`", spec.default_value());
    }
    if spec.value_type().is_a(glib::Type::BOXED) {
        return "none".to_owned();
    }
    match spec.default_value().serialize() {
        Ok(text) if !text.is_empty() && text != "NULL" && text != "\"\"" => format!("`{}`", text.trim_matches('"')),
        _ => "none".to_owned(),
    }
}

/// States in which a property may be set.
fn when(spec: &glib::ParamSpec) -> &'static str {
    if !spec.flags().contains(glib::ParamFlags::WRITABLE) {
        return "read only";
    }
    // Flags that GStreamer defines for properties.
    let has = |flag: u32| spec.flags().bits() & flag != 0;
    match () {
        () if has(gst::ffi::GST_PARAM_MUTABLE_PLAYING as u32) => "any time",
        () if has(gst::ffi::GST_PARAM_MUTABLE_PAUSED as u32) => "PAUSED or below",
        () if has(gst::ffi::GST_PARAM_MUTABLE_READY as u32) => "READY or NULL",
        () => "NULL",
    }
}

#[test]
fn element_reference_pages_are_current() {
    crate::harness::init();
    for name in [
        "roisource",
        "roidetect",
        "roitrack",
        "roianalytics",
        "roiclassify",
        "roicrop",
        "roirecord",
        "roioverlay",
        "roiattach",
        "roipublish",
    ] {
        let factory = gst::ElementFactory::find(name).unwrap();
        let element = factory.create().build().unwrap();
        let about = factory.metadata("description").unwrap().trim_end_matches('.').to_owned();
        let mut page = format!("# {name}\n\n{about}. [Elements](../elements.md) explains how the elements work together.\n\n## Pads\n\n");
        page += "| pad | direction | availability |\n|---|---|---|\n";
        for pad in factory.static_pad_templates() {
            let (direction, presence) = (format!("{:?}", pad.direction()).to_lowercase(), format!("{:?}", pad.presence()).to_lowercase());
            writeln!(page, "| `{}` | {direction} | {presence} |", pad.name_template()).unwrap();
        }
        let all: Vec<_> = factory.static_pad_templates().iter().map(|pad| (pad.name_template().to_owned(), pad.caps())).collect();
        if all.iter().all(|(_, caps)| *caps == all[0].1) {
            let of_pads = if all.len() == 1 { "the pad" } else { "both pads" };
            write!(page, "\nCaps of {of_pads}: {}\n", caps_in_words(&all[0].1)).unwrap();
        } else {
            all.iter().for_each(|(pad, caps)| write!(page, "\nCaps of `{pad}`: {}\n", caps_in_words(caps)).unwrap());
        }
        page += "\n## Properties\n\n| property | values | default | set in |\n|---|---|---|---|\n";
        let specs: Vec<_> =
            element.list_properties().iter().filter(|spec| spec.owner_type() != gst::Object::static_type()).cloned().collect();
        let specs: Vec<_> =
            specs.into_iter().filter(|spec| !["GstBaseTransform", "GstElement", "GstBin"].contains(&spec.owner_type().name())).collect();
        for spec in &specs {
            writeln!(page, "| `{}` | {} | {} | {} |", spec.name(), kind(spec), default(spec), when(spec)).unwrap();
        }
        page += "\n";
        for spec in &specs {
            writeln!(page, "- **`{}`**: {}.", spec.name(), spec.blurb().unwrap_or_default().trim_end_matches('.').replace('|', "\\|"))
                .unwrap();
        }
        page += &stats_page(name, &element);
        page += &messages_page(name);
        check_page(&format!("{name}.md"), &page);
    }
}

/// Formats and ranges of caps of raw video.
fn caps_in_words(caps: &gst::Caps) -> String {
    if caps.is_any() {
        return "any. Results are read from buffers of any kind of data.".to_owned();
    }
    let structure = caps.structure(0).unwrap();
    let formats: Vec<String> = match structure.get::<gst::List>("format") {
        Ok(list) => list.iter().filter_map(|value| value.get::<String>().ok()).collect(),
        Err(_) => Vec::new(),
    };
    let formats: Vec<String> = formats.into_iter().map(|format| format!("`{format}`")).collect();
    match formats.is_empty() {
        true => format!("`{}`.", structure.name()),
        false => format!("`{}` in system memory, in the formats {}.", structure.name(), formats.join(", ")),
    }
}

/// Fields of `stats`, with their meaning. A name that ends in `*` stands for several fields.
const STATS: [(&str, &str); 36] = [
    ("device", "the device that runs the model"),
    ("frames-in", "frames that arrived; `frames-out` + `dropped` + `frames-here`"),
    ("frames-out", "frames that left; `inferred` + `skipped` + `failed`"),
    ("frames-here", "frames inside the element"),
    ("inferred", "frames that left with results"),
    ("skipped", "frames that left without inference; the sum of `skipped-*`"),
    ("failed", "frames whose inference failed"),
    ("dropped", "frames that did not leave; the sum of `dropped-*`"),
    ("copied", "frames that were copied to free the buffer of the source"),
    ("objects", "detected objects, or objects with results"),
    ("fps", "frames per second of the last 64 frames"),
    ("latency-p50-ns", "median time from arrival to push, in nanoseconds, to within 3 %"),
    ("latency-p95-ns", "95th percentile"),
    ("latency-p99-ns", "99th percentile"),
    ("latency-total-ns", "sum of all frames"),
    ("window", "slots of the in-flight queue"),
    ("runs", "runs of the model, of all elements that share it"),
    ("rows", "batch items of this element in these runs"),
    ("runs-failed", "runs that failed"),
    ("skipped-inference-interval", "skipped by `inference-interval`"),
    ("skipped-motion-threshold", "skipped by `motion-threshold`"),
    ("skipped-queue-policy", "skipped because the in-flight queue was full"),
    ("skipped-max-latency", "skipped because they were older than `max-latency`"),
    ("skipped-qos", "skipped because the sink reported them as too late"),
    ("dropped-queue-policy", "with `drop-frames`: dropped because the in-flight queue was full"),
    ("dropped-max-latency", "with `drop-frames`: dropped by `max-latency`"),
    ("dropped-qos", "with `drop-frames`: dropped by `qos`"),
    ("dropped-flush", "dropped by a flush"),
    ("dropped-downstream", "dropped because downstream refused them"),
    ("dropped-max-failures", "dropped after more than `max-failures` failures"),
    ("objects-classified", "objects given to the model"),
    ("objects-recalled", "objects that left with earlier results only"),
    ("objects-nameless", "objects classified because they have no track ID"),
    ("objects-passed-over", "objects that found no slot in asynchronous mode"),
    ("objects-unaligned", "objects without the keypoints for `align`"),
    ("step-*-ns", "sum of the time of a step of all runs, by the name of the step"),
];

/// Fields of the elements that are not inference elements: element, field, meaning.
const OTHER_STATS: [(&str, &str, &str); 38] = [
    ("roisource", "restarts", "how often the source was lost and delivered frames again"),
    ("roisource", "time-down-ns", "time without frames of these outages, in nanoseconds"),
    ("roitrack", "frames", "frames"),
    ("roitrack", "objects", "objects that got a track ID"),
    ("roitrack", "tracks", "tracks at the moment"),
    ("roitrack", "tracks-lost", "current tracks whose object is not detected"),
    ("roitrack", "tracks-recovered", "objects that were found again"),
    ("roitrack", "tracks-begun", "tracks that began"),
    ("roitrack", "tracks-ended", "tracks that ended"),
    ("roitrack", "objects-refused", "objects without a track because of `max-tracks`"),
    ("roianalytics", "frames", "frames"),
    ("roianalytics", "events", "events at lines and in zones"),
    ("roianalytics", "takeovers", "new track IDs that continued a known object"),
    ("roianalytics", "crossings", "an array: crossings by `line`, `direction` and `label`"),
    ("roianalytics", "zones", "an array: `occupancy`, `entries`, `exits` and `dwell` in nanoseconds by `zone`"),
    ("roiattach", "frames", "frames"),
    ("roiattach", "matched", "frames for which a line was found"),
    ("roiattach", "lines", "lines with the results of a frame that were read"),
    ("roiattach", "unmatched", "lines that were passed without a frame"),
    ("roiattach", "errors", "lines that could not be read"),
    ("roicrop", "images", "images that were written"),
    ("roicrop", "bytes", "their bytes"),
    ("roicrop", "errors", "images that could not be written"),
    ("roirecord", "clips", "clips that were written"),
    ("roirecord", "frames", "their frames"),
    ("roirecord", "bytes", "their bytes"),
    ("roirecord", "errors", "clips that could not be written"),
    ("roipublish", "frames", "frames"),
    ("roipublish", "lines", "lines that the destination took; with a spool, lines that are stored"),
    ("roipublish", "bytes", "their bytes"),
    ("roipublish", "errors", "lines that could not be written"),
    ("roipublish", "dropped", "lines that `when-full` dropped"),
    ("roipublish", "waiting", "lines in the queue and lines that the destination has not acknowledged"),
    ("roipublish", "spool-waiting", "results in the spool that are not acknowledged, of all streams"),
    ("roipublish", "spool-delivered", "messages that the server has acknowledged since the spool was opened"),
    (
        "roipublish",
        "spool-dropped",
        "results that the spool dropped or the server refused since the process started; a gap record replaces them",
    ),
    (
        "roipublish",
        "spool-refused",
        "after the stop: results of the spool that the server did not accept, or that are only in memory; one of the streams reports each",
    ),
    ("roipublish", "spool-bytes", "size of the spool"),
];

/// Returns the fields of the element's statistics. Panics if a field has no meaning in the tables above.
fn stats_page(name: &str, element: &gst::Element) -> String {
    if element.find_property("stats").is_none() {
        return String::new();
    }
    let stats: gst::Structure = element.property("stats");
    let mut page = format!("\n## Fields of `stats`\n\nA structure `{}`.\n\n| field | is |\n|---|---|\n", stats.name());
    for (field, _) in stats.iter() {
        let other = OTHER_STATS.iter().find(|(of, known, _)| *of == name && known == field).map(|(_, _, meaning)| *meaning);
        let meaning = other.or_else(|| STATS.iter().find(|(known, _)| known == field).map(|(_, meaning)| *meaning));
        let meaning = meaning.unwrap_or_else(|| panic!("{name}: say what `{field}` is, in STATS"));
        writeln!(page, "| `{field}` | {meaning} |").unwrap();
    }
    if ["roidetect", "roiclassify"].contains(&name) {
        let (field, meaning) = STATS[STATS.len() - 1];
        writeln!(page, "| `{field}` | {meaning}; after the first run |").unwrap();
    }
    page
}

/// Messages that elements post on the bus: kind, domain and code as in GStreamer, and the condition.
const MESSAGES: [(&str, &str, &str); 39] = [
    ("roisource", "element, `source-lost`", "the source is lost: once for each outage; fields `uri` and `reason`"),
    ("roisource", "element, `source-back`", "the source delivers frames again; fields `uri`, `gap` in nanoseconds and `attempts`"),
    ("roisource", "error, `RESOURCE_ERROR_READ`", "the source is lost, and `restart` or `give-up-after` permits no further attempt"),
    ("roisource", "error, `RESOURCE_ERROR_SETTINGS`", "`uri` is not an address"),
    ("infer", "error, `RESOURCE_ERROR_NOT_FOUND`", "a file of the model cannot be read"),
    ("infer", "error, `RESOURCE_ERROR_SETTINGS`", "the model or its description is wrong, or has no device"),
    ("infer", "error, `LIBRARY_ERROR_INIT`", "an engine cannot load the model"),
    ("infer", "error, `STREAM_ERROR_FORMAT`", "the data has no usable caps"),
    (
        "infer",
        "error, `STREAM_ERROR_FAILED`",
        "the model never runs, more than `max-failures` frames in a row failed, or downstream refused the frames",
    ),
    (
        "infer",
        "warning, `STREAM_ERROR_FAILED`",
        "a frame failed (the first, second, fourth, eighth, ...), or regions were dropped upstream",
    ),
    ("infer", "warning, `STREAM_ERROR_DECODE`", "outputs are not what the description says; once"),
    (
        "infer",
        "warning, `RESOURCE_ERROR_SETTINGS`",
        "`max-latency` is shorter than a run, a property has no effect, or no model upstream has a label of `object-class`",
    ),
    ("infer", "info, `RESOURCE_ERROR_SETTINGS`", "frames are copied because the source has few buffers; once"),
    ("infer", "element, `application/x-roiflow-stats`", "every `stats-interval` milliseconds"),
    (
        "roiclassify",
        "warning, `RESOURCE_ERROR_SETTINGS`",
        "objects have no track ID but a property needs one, or not the keypoints for `align`; once",
    ),
    ("roitrack", "error, `STREAM_ERROR_FORMAT`", "the caps have no width and height"),
    ("roitrack", "warning, `RESOURCE_ERROR_SETTINGS`", "no model upstream has a label of `object-class`; once"),
    ("roianalytics", "error, `STREAM_ERROR_FORMAT`", "the caps have no width and height"),
    ("roianalytics", "error, `RESOURCE_ERROR_SETTINGS`", "the layout cannot be read, or is not valid"),
    ("roianalytics", "element, `roianalytics-event`", "an object crossed a line, or entered, left or loitered in a zone"),
    ("roioverlay", "error, `STREAM_ERROR_FORMAT`, `RESOURCE_ERROR_WRITE`", "a frame is too short, or cannot be written"),
    ("roioverlay", "error, `RESOURCE_ERROR_SETTINGS`", "the font file cannot be read"),
    ("roioverlay", "warning, `STREAM_ERROR_FORMAT`", "the frame was cropped after detection; once"),
    ("roiattach", "error, `STREAM_ERROR_FORMAT`", "the caps have no width and height"),
    ("roiattach", "error, `RESOURCE_ERROR_SETTINGS`", "neither `rois` nor `location` is set, or one of them cannot be read"),
    ("roiattach", "warning, `STREAM_ERROR_DECODE`", "a line of the file cannot be read; once"),
    ("roicrop", "error, `RESOURCE_ERROR_SETTINGS`", "neither `folder` nor `in-message` is set"),
    ("roicrop", "error, `RESOURCE_ERROR_OPEN_WRITE`", "the folder cannot be created"),
    ("roicrop", "warning, `RESOURCE_ERROR_WRITE`", "an image cannot be written; once"),
    ("roirecord", "error, `RESOURCE_ERROR_SETTINGS`", "`folder` is not set"),
    ("roirecord", "error, `RESOURCE_ERROR_OPEN_WRITE`", "the folder cannot be created"),
    ("roirecord", "warning, `RESOURCE_ERROR_WRITE`", "a clip cannot be written; once"),
    ("roirecord", "warning, `STREAM_ERROR_ENCODE`", "the video cannot be recorded: unsupported caps, or no encoder"),
    ("roirecord", "element, `roirecord-clip`", "a clip is complete"),
    ("roipublish", "error, `RESOURCE_ERROR_OPEN_WRITE`", "the destination cannot be opened"),
    (
        "roipublish",
        "warning, `RESOURCE_ERROR_WRITE`",
        "results cannot be written: once, with details `roipublish-write-failed`; and at the end, how many were lost or dropped",
    ),
    (
        "roipublish",
        "warning, `RESOURCE_ERROR_WRITE`",
        "a server does not answer or accepts nothing: once for each outage; results are dropped or stay in the spool; details `roipublish-outage`",
    ),
    ("roipublish", "information, `RESOURCE_ERROR_WRITE`", "the server accepts results again; details `roipublish-outage`"),
    ("roipublish", "warning, `STREAM_ERROR_FORMAT`", "the frame was cropped after detection; once"),
];

fn messages_page(name: &str) -> String {
    let mut page = "\n## Messages on the bus\n\n| message | posted if |\n|---|---|\n".to_owned();
    let is_infer = ["roidetect", "roiclassify"].contains(&name);
    for (of, message, when) in MESSAGES {
        if !message.is_empty() && (of == name || (is_infer && of == "infer")) {
            writeln!(page, "| {message} | {when} |").unwrap();
        }
    }
    page
}

#[test]
fn the_c_api_has_a_page_of_its_header() {
    let header = include_str!("../../include/roiflow.h");
    let mut page =
        "# C API\n\nThe header [`include/roiflow.h`](../../include/roiflow.h), which `make install` installs with a pkg-config file.\n\
                    [Read the results in your program](../tutorials/read-results.md#c) shows it in use.\n\n"
            .to_owned();
    // First the comment at the beginning of the header, then each declaration with its preceding comment.
    let opening = header.split("*/").next().unwrap();
    let paragraphs = opening.lines().map(|line| line.trim_start_matches("/*").trim_start_matches(" *").trim_end());
    let mut is_rules = false;
    for line in paragraphs {
        is_rules |= ["ABI:", "Threads:", "Ownership:", "Errors:"].iter().any(|word| line.trim_start().starts_with(word));
        if is_rules {
            match line.trim().split_once(": ").filter(|(word, _)| ["ABI", "Threads", "Ownership", "Errors"].contains(word)) {
                Some((word, rest)) => write!(page, "- **{word}**: {rest}").unwrap(),
                None if line.trim().is_empty() => page += "\n",
                None => write!(page, "\n  {}", line.trim()).unwrap(),
            }
        }
    }
    let declarations = header.split("#define ROIFLOW_ABI_VERSION").nth(1).unwrap().split("#ifdef __cplusplus").next().unwrap();
    write!(page, "\n## Declarations\n\n```c\n#define ROIFLOW_ABI_VERSION{}\n```\n", declarations.trim_end()).unwrap();
    check_page("c-api.md", &page.replace("\n\n\n", "\n\n"));
}

/// The properties of a JSON schema of an object: name, type, description.
fn schema_rows(page: &mut String, schema: &serde_json::Value, root: &serde_json::Value) {
    page.push_str("| key | values | is |\n|---|---|---|\n");
    for (name, key) in schema["properties"].as_object().into_iter().flatten() {
        let text = key["description"].as_str().unwrap_or_default().split("\n\n").next().unwrap().replace('\n', " ");
        writeln!(page, "| `{name}` | {} | {} |", schema_values(key, root), text.replace('|', "\\|")).unwrap();
    }
}

/// Short description of the values that a schema allows.
fn schema_values(schema: &serde_json::Value, root: &serde_json::Value) -> String {
    use serde_json::Value;
    let list = |values: &Vec<Value>| values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
    if let Some(target) = schema["$ref"].as_str() {
        return schema_values(root.pointer(target.trim_start_matches('#')).unwrap_or(&Value::Null), root);
    }
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    if let Some(values) = schema["enum"].as_array() {
        return list(values);
    }
    for any in ["anyOf", "oneOf"] {
        if let Some(options) = schema[any].as_array() {
            let mut options: Vec<String> = options.iter().map(|option| schema_values(option, root)).collect();
            options.dedup();
            return options.join(", ").replace(", null", " or null");
        }
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        kind => kind.as_str().unwrap_or("any").to_owned(),
    };
    match (&schema["minimum"], &schema["maximum"]) {
        (Value::Null, Value::Null) => kind,
        (least, Value::Null) => format!("{kind}, at least {least}"),
        (Value::Null, most) => format!("{kind}, at most {most}"),
        (least, most) => format!("{kind}, {least} to {most}"),
    }
}

#[test]
fn the_schemas_have_pages() {
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let description = read(include_str!("../../assets/model-description.schema.json"));
    let mut page = "# The schema of model descriptions\n\nGenerated from [`assets/model-description.schema.json`](../../assets/model-description.schema.json), \
                    which `roiflow describe --schema` prints.\n[Model descriptions](../model-descriptions.md) explains the keys.\n\n## Top level\n\n"
        .to_owned();
    schema_rows(&mut page, &description, &description);
    for table in ["model", "input", "clip", "output"] {
        let property = &description["properties"][table];
        // The schema of an optional section has `null` as its second alternative.
        let mut schema = property.get("anyOf").map_or(property, |alternatives| &alternatives[0]);
        while let Some(target) = schema["$ref"].as_str() {
            schema = description.pointer(target.trim_start_matches('#')).unwrap();
        }
        write!(page, "\n## `[{table}]`\n\n").unwrap();
        schema_rows(&mut page, schema, &description);
    }
    page += "\nWhich keys of `[output]` go together depends on `decoder`: the schema has a rule for each decoder.\n";
    check_page("model-description.md", &page);

    let results = read(include_str!("../../assets/results.schema.json"));
    let mut page = "# The schema of results\n\nGenerated from [`assets/results.schema.json`](../../assets/results.schema.json). [Results](../results.md) has an \
                    example.\n\n## A line\n\n"
        .to_owned();
    schema_rows(&mut page, &results, &results);
    for (title, place) in [
        ("Each of `objects`", "/$defs/object"),
        ("`detection`", "/$defs/object/properties/detection"),
        ("Each of `lost_tracks`", "/$defs/lost_track"),
        ("The key of a classifier, and each of `classifications`", "/$defs/attribute"),
    ] {
        write!(page, "\n## {title}\n\n").unwrap();
        schema_rows(&mut page, results.pointer(place).unwrap(), &results);
    }
    check_page("results.md", &page);
}

#[test]
fn command_reference_page_is_current() {
    let help = |arguments: &[&str]| String::from_utf8(command().args(arguments).output().unwrap().stdout).unwrap();
    let mut page = "# roiflow\n\nThe help of the command. [Command line](../command-line.md) explains it.\n".to_owned();
    assert!(roiflow(&["--version"]).status.success());
    for name in ["", "run", "discover", "pipelines", "inspect", "describe", "devices", "bench", "serve", "ctl", "completions"] {
        let (title, arguments) =
            if name.is_empty() { ("roiflow".to_owned(), vec!["--help"]) } else { (format!("roiflow {name}"), vec![name, "--help"]) };
        let text: String = help(&arguments).lines().map(|line| format!("{}\n", line.trim_end())).collect();
        write!(page, "\n## `{title}`\n\n```text\n{}```\n", text).unwrap();
    }
    check_page("roiflow.md", &page);
}
