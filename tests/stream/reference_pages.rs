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

/// The default as `gst-launch-1.0` takes it.
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

/// When a property may be set.
fn when(spec: &glib::ParamSpec) -> &'static str {
    if !spec.flags().contains(glib::ParamFlags::WRITABLE) {
        return "read only";
    }
    // The flags of GStreamer's own for properties.
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
    for name in ["roidetect", "roitrack", "roiclassify", "roioverlay", "roipublish"] {
        let factory = gst::ElementFactory::find(name).unwrap();
        let element = factory.create().build().unwrap();
        let about = factory.metadata("description").unwrap().trim_end_matches('.').to_owned();
        let mut page = format!("# {name}\n\n{about}. [Elements](../elements.md) explains how the elements work together.\n\n## Pads\n\n");
        page += "| pad | direction | availability |\n|---|---|---|\n";
        for pad in factory.static_pad_templates() {
            writeln!(page, "| `{}` | {:?} | {:?} |", pad.name_template(), pad.direction(), pad.presence()).unwrap();
        }
        page += "\n## Properties\n\n| property | values | default | set in |\n|---|---|---|---|\n";
        let specs: Vec<_> =
            element.list_properties().iter().filter(|spec| spec.owner_type() != gst::Object::static_type()).cloned().collect();
        let specs: Vec<_> =
            specs.into_iter().filter(|spec| !["GstBaseTransform", "GstElement"].contains(&spec.owner_type().name())).collect();
        for spec in &specs {
            writeln!(page, "| `{}` | {} | {} | {} |", spec.name(), kind(spec), default(spec), when(spec)).unwrap();
        }
        page += "\n";
        for spec in &specs {
            writeln!(page, "- **`{}`**: {}.", spec.name(), spec.blurb().unwrap_or_default().trim_end_matches('.').replace('|', "\\|"))
                .unwrap();
        }
        check_page(&format!("{name}.md"), &page);
    }
}

#[test]
fn command_reference_page_is_current() {
    let help = |arguments: &[&str]| String::from_utf8(command().args(arguments).output().unwrap().stdout).unwrap();
    let mut page = "# roiflow\n\nThe help of the command. [Command line](../command-line.md) explains it.\n".to_owned();
    assert!(roiflow(&["--version"]).status.success());
    for name in ["", "run", "inspect", "describe", "devices", "bench", "completions"] {
        let (title, arguments) =
            if name.is_empty() { ("roiflow".to_owned(), vec!["--help"]) } else { (format!("roiflow {name}"), vec![name, "--help"]) };
        let text: String = help(&arguments).lines().map(|line| format!("{}\n", line.trim_end())).collect();
        write!(page, "\n## `{title}`\n\n```text\n{}```\n", text).unwrap();
    }
    check_page("roiflow.md", &page);
}
