//! Deduces a description from a model. The sources are metadata that an exporter has written into the model file or next to it, and
//! ports that only one model family has.
//!
//! Nothing is guessed. A missing value is assumed only if all models of the family use the same value, and it is reported as an assumption.
//! Otherwise, the value is marked as missing, and the model cannot be used until the user writes a description.

mod configuration;
pub(super) mod evidence;
mod family;
mod model_info;
mod tf_ssd;
mod ultralytics;

use std::path::Path;

use super::draft::{Draft, Value};
use super::output;
use crate::frame::Size;
use crate::model_inputs::ModelInputs;
use crate::runtime::{Dim, ModelInfo, Port, Result};
use crate::vision::decode::{DecoderRegistry, Subject};

/// A deduced description.
#[derive(Debug)]
pub(super) struct Found {
    /// Source of the information, as named in messages.
    pub(super) from: &'static str,
    /// The known parts of the description.
    pub(super) draft: Draft,
    /// The missing parts of the description, one sentence for each part.
    pub(super) open: Vec<String>,
}

/// Deduces the description of a model with these ports and metadata, and with these files next to it.
///
/// # Errors
/// Returns `Config` if the metadata name an unsupported kind of model, or contradict the ports or each other.
pub(super) fn of(model: &Path, info: &ModelInfo) -> Result<Found> {
    if let Some(exported) = ultralytics::Exported::read(model, info)? {
        let draft = exported.draft(info)?;
        return Ok(Found { from: "the metadata of an Ultralytics export", draft, open: Vec::new() });
    }
    if let Some(found) = model_info::read(info)? {
        return Ok(found);
    }
    if let Some(found) = configuration::read(model, info)? {
        return Ok(found);
    }
    if let Some(found) = tf_ssd::read(info, false) {
        return Ok(found);
    }
    Ok(with_characters(family::of_ports(info, None), info))
}

/// Adds the labels that Paddle's model converters write into the metadata `character`: class names, one per line.
fn with_characters(mut found: Found, info: &ModelInfo) -> Found {
    if let Some(names) =
        info.metadata.get("character").map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).filter(|names| !names.is_empty())
    {
        found.draft.output.set("labels", Value::Texts(names));
    }
    found
}

/// Like [`of`], but with a decoder that the user names. Adds the preprocessing of that decoder's model family.
pub(super) fn of_decoder(decoder: &str, info: &ModelInfo) -> Found {
    let own = if decoder == "tf-ssd" { tf_ssd::read(info, true) } else { None };
    let mut found = own.unwrap_or_else(|| family::of_ports(info, Some(decoder)));
    match DecoderRegistry::built_in().subject(decoder) {
        Some(Subject::Attributes) => found.draft.top.set("task", "classification"),
        Some(Subject::Objects) => found.draft.top.set("task", "detection"),
        Some(Subject::Anything) | None => {}
    }
    with_characters(found, info)
}

/// Returns the layout of an image port. The axis with one or three elements is the channel axis. `None` if both or neither of the two
/// possible axes have one or three elements.
pub(super) fn layout_of(port: &Port) -> Option<&'static str> {
    let is_channels = |dim: &Dim| matches!(dim, Dim::Fixed(1 | 3));
    match port.shape.dims() {
        [_, first, _, last] => match (is_channels(first), is_channels(last)) {
            (true, false) => Some("nchw"),
            (false, true) => Some("nhwc"),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the number of channels of a port with this layout; `None` if it is dynamic.
fn n_channels(port: &Port, layout: &str) -> Option<usize> {
    let axis = if layout == "nchw" { 1 } else { 3 };
    match port.shape.dims().get(axis) {
        Some(Dim::Fixed(extent)) => Some(*extent),
        _ => None,
    }
}

/// Whether the width or height of a port with this layout is dynamic.
fn leaves_size_open(port: &Port, layout: &str) -> bool {
    let axes = if layout == "nchw" { [2, 3] } else { [1, 2] };
    axes.iter().any(|&axis| port.shape.dims().get(axis).is_none_or(Dim::is_open))
}

/// Returns the extents of a port; `None` for dynamic extents.
fn extents(port: &Port) -> Vec<Option<usize>> {
    let extent = |dim: &Dim| match dim {
        Dim::Fixed(extent) => Some(*extent),
        Dim::Range { .. } | Dim::Dynamic => None,
    };
    port.shape.dims().iter().map(extent).collect()
}

/// Returns the width and height of a port with this layout; `None` if one of them is dynamic.
fn size_of(port: &Port, layout: &str) -> Option<Size> {
    let (height, width) = if layout == "nchw" { (2, 3) } else { (1, 2) };
    let extents = extents(port);
    let extent = |axis: usize| extents.get(axis).copied().flatten().and_then(|extent| u32::try_from(extent).ok());
    Some(Size::new(extent(width)?, extent(height)?))
}

/// Returns all decoders of detectors that accept the outputs of a model and use all of them, the most likely first.
pub(super) fn readers(info: &ModelInfo, size: Size) -> Vec<&'static str> {
    family::readers(info, size)
}

/// Whether the decoder accepts the model's outputs for an input of this size.
fn fits(decoder: &str, info: &ModelInfo, size: Size) -> bool {
    let shapes = output::shapes(info);
    DecoderRegistry::built_in()
        .make_from_text(decoder, "")
        .is_ok_and(|decoder| decoder.check(&output::outputs(info, &shapes, &[]), size).is_ok())
}

/// Returns the first of these decoders that accepts the model's outputs.
pub(super) fn fitting(info: &ModelInfo, decoders: &[&'static str]) -> Option<&'static str> {
    let port = &info.inputs[ModelInputs::of(&info.inputs)?.image];
    let size = layout_of(port).and_then(|layout| size_of(port, layout)).unwrap_or(Size::new(640, 640));
    decoders.iter().copied().find(|decoder| fits(decoder, info, size))
}
