//! Reads and changes the bytes of an ONNX file before an engine reads them. roiflow changes the input shapes in this way for engines that
//! cannot change them.
//!
//! This module knows the wire format of protocol buffers and the numbers of some fields. Weights make up nearly all of a file; they are
//! skipped or copied unchanged. All functions accept any bytes. If the bytes are not a valid message, the functions return an error.

use std::collections::HashMap;
use std::io::{self, BufReader, Read, Seek};
use std::path::{Component, Path, PathBuf};

use crate::engine::EngineResult;
use crate::runtime::files::{self, MAX_MODEL_BYTES};
use crate::runtime::{Dim, Error, ErrorKind, Port, Result};

// Field numbers of `ModelProto`, `GraphProto`, `NodeProto`, `ValueInfoProto`, `TypeProto`, `TensorShapeProto`.
pub(crate) const MODEL_GRAPH: u64 = 7;
const GRAPH_NODE: u64 = 1;
const GRAPH_INITIALIZER: u64 = 5;
const GRAPH_INPUT: u64 = 11;
const GRAPH_OUTPUT: u64 = 12;
const GRAPH_VALUE_INFO: u64 = 13;
const NODE_NAME: u64 = 3;
const NODE_OPERATOR: u64 = 4;
const VALUE_NAME: u64 = 1;
const VALUE_TYPE: u64 = 2;
const TYPE_TENSOR: u64 = 1;
const TENSOR_SHAPE: u64 = 2;
const SHAPE_DIM: u64 = 1;
const DIM_EXTENT: u64 = 1;
const DIM_NAME: u64 = 2;
const NODE_ATTRIBUTE: u64 = 5;
// Field numbers of `AttributeProto` for a tensor and for a list of tensors, and below for a graph and for a list of graphs.
const ATTRIBUTE_TENSORS: [u64; 2] = [5, 10];
const ATTRIBUTE_GRAPHS: [u64; 2] = [6, 11];
const TENSOR_OTHER_FILE: u64 = 13;
const TENSOR_LOCATION: u64 = 14;
const TENSOR_BYTES: u64 = 9;
const MODEL_FUNCTION: u64 = 25;
const FUNCTION_NODE: u64 = 7;
/// Maximum depth of graphs inside graphs.
const MAX_DEPTH: usize = 16;
// Field numbers of `TensorProto` for the values of the tensor, as numbers of one type or as bytes.
const TENSOR_VALUES: [u64; 7] = [4, 5, 6, 7, 9, 10, 11];

/// Returns the model with these input shapes, or `None` if it already has them. The file also has the shapes of outputs and inner values,
/// which are valid only for the old input shapes. These shapes become dynamic or are removed, and the engine infers them again.
///
/// # Errors
/// Returns an error if the bytes are not a valid message.
pub fn with_input_shapes(model: &[u8], inputs: &[Port]) -> EngineResult<Option<Vec<u8>>> {
    let mut differs = false;
    for graph in messages(model, MODEL_GRAPH)? {
        for input in messages(graph, GRAPH_INPUT)? {
            differs |= with_wanted_shape(input, inputs)?.is_some();
        }
    }
    if !differs {
        return Ok(None);
    }
    let changed = rewrite(model, &mut |number, graph| match number {
        MODEL_GRAPH => Ok(Change::To(rewrite(graph, &mut |number, value| match number {
            GRAPH_INPUT => Ok(with_wanted_shape(value, inputs)?.map_or(Change::Keep, Change::To)),
            GRAPH_OUTPUT => Ok(Change::To(with_shape(value, &mut |_| Some(Dim::Dynamic))?)),
            GRAPH_VALUE_INFO => Ok(Change::Drop),
            _ => Ok(Change::Keep),
        })?)),
        _ => Ok(Change::Keep),
    })?;
    Ok(Some(changed))
}

/// Returns whether this is the domain of ONNX's own operators.
pub(crate) fn is_of_onnx(domain: &[u8]) -> bool {
    matches!(domain, b"" | b"ai.onnx")
}

/// Returns the names and operators of the graph's nodes, except constants and nodes without a name.
///
/// # Errors
/// Returns an error if the bytes are not a valid message.
pub fn nodes(model: &[u8]) -> EngineResult<Vec<(String, String)>> {
    let mut nodes = Vec::new();
    for graph in messages(model, MODEL_GRAPH)? {
        for node in messages(graph, GRAPH_NODE)? {
            let (name, operator) = (text(node, NODE_NAME)?, text(node, NODE_OPERATOR)?);
            if operator != b"Constant" && !name.is_empty() {
                nodes.push((String::from_utf8_lossy(name).into_owned(), String::from_utf8_lossy(operator).into_owned()));
            }
        }
    }
    Ok(nodes)
}

/// Checks that the bytes contain the whole model.
///
/// # Errors
/// Returns an error if tensors of the model are in external files.
pub fn check_whole(model: &[u8]) -> EngineResult<()> {
    // If the bytes are not a valid message, this check passes, and the engine reports the error.
    let has_other_files = may_have_other_files(model).unwrap_or(true)
        && messages(model, MODEL_GRAPH).is_ok_and(|graphs| graphs.into_iter().any(|graph| has_other_files(graph, 0)));
    match has_other_files {
        true => Err("expected bytes that hold the whole model, got a model with weights in separate files (external data); \
                     pass the path of the model, or save the model with its weights inside"
            .to_owned()),
        false => Ok(()),
    }
}

/// Reads an ONNX file completely. Weights in separate files become a part of the result. So no engine maps a file, which another program
/// could then truncate or overwrite, and no engine opens a FIFO or a device.
///
/// # Errors
/// Returns `Io` if a file cannot be read, is not a regular file, or is too large. Returns `Model` if weights are not inside the file that
/// the model names, or if this file is not in the folder of the model.
pub fn read_whole(path: &Path) -> Result<Vec<u8>> {
    let model = files::read_limited(path, MAX_MODEL_BYTES, "model")?;
    if !may_have_other_files(&model[..]).unwrap_or(true) {
        return Ok(model);
    }
    let mut weights: HashMap<PathBuf, Vec<u8>> = HashMap::new();
    let mut n_bytes = model.len() as u64;
    let mut failed = None;
    let mut load = |place: &Place| {
        let file = path.with_file_name("").join(&place.location);
        let mut read = || -> Result<Vec<u8>> {
            if !weights.contains_key(&file) {
                weights.insert(file.clone(), files::read_limited(&file, MAX_MODEL_BYTES, "weights file")?);
            }
            let bytes = place.of(&weights[&file]).ok_or_else(|| {
                let message =
                    format!("`{}` has no bytes {}; the file is not the one that belongs to the model", file.display(), place.range());
                Error::new(ErrorKind::Model, format!("cannot read model `{}`: {message}", path.display()))
            })?;
            n_bytes += bytes.len() as u64;
            match n_bytes > MAX_MODEL_BYTES {
                true => Err(Error::new(
                    ErrorKind::Io,
                    format!("cannot read model `{}`: expected at most {MAX_MODEL_BYTES} bytes", path.display()),
                )),
                false => Ok(bytes.to_vec()),
            }
        };
        // The first error ends the reading.
        if failed.is_some() { None } else { read().map_err(|error| failed = Some(error)).ok() }
    };
    let whole = with_weights(&model, &mut load);
    match (failed, whole) {
        (Some(error), _) => Err(error),
        (None, Ok(whole)) => Ok(whole),
        // If the bytes are not a valid message, the engine reports the error.
        (None, Err(why)) if why.is_of_place => {
            Err(Error::new(ErrorKind::Model, format!("cannot read model `{}`: {}", path.display(), why.text)))
        }
        (None, Err(_)) => Ok(model),
    }
}

/// Checks the separate files with weights that an ONNX file names: each must be a regular file in the folder of the model.
///
/// # Errors
/// Returns the errors of [`read_whole`].
pub fn check_other_files(path: &Path) -> Result<()> {
    let open = || files::open_regular(path, "model");
    if !may_have_other_files(open()?).unwrap_or(true) {
        return Ok(());
    }
    let Ok(outlined) = outline(open()?) else { return Ok(()) };
    let mut checked = Ok(());
    let walked = with_weights(&outlined, &mut |place| {
        let file = path.with_file_name("").join(&place.location);
        if checked.is_ok() {
            checked = files::open_regular(&file, "weights file").map(drop);
        }
        None
    });
    match walked {
        Err(why) if why.is_of_place => Err(Error::new(ErrorKind::Model, format!("cannot read model `{}`: {}", path.display(), why.text))),
        _ => checked,
    }
}

/// The bytes of a tensor in a separate file.
struct Place {
    location: PathBuf,
    offset: usize,
    /// `None` if the tensor has all bytes up to the end of the file.
    len: Option<usize>,
}

impl Place {
    fn of<'a>(&self, file: &'a [u8]) -> Option<&'a [u8]> {
        let rest = file.get(self.offset..)?;
        self.len.map_or(Some(rest), |len| rest.get(..len))
    }

    fn range(&self) -> String {
        let end = self.len.map(|len| self.offset.saturating_add(len).to_string()).unwrap_or_default();
        format!("{}..{end}", self.offset)
    }
}

/// The reason why separate weights cannot be read.
struct BadWeights {
    /// Whether the model names a file that it must not name.
    is_of_place: bool,
    text: String,
}

impl From<String> for BadWeights {
    fn from(text: String) -> Self {
        Self { is_of_place: false, text }
    }
}

/// Copies the model with the bytes that `load` returns for each tensor in a separate file. If it returns `None`, the tensor stays.
fn with_weights(model: &[u8], load: &mut dyn FnMut(&Place) -> Option<Vec<u8>>) -> std::result::Result<Vec<u8>, BadWeights> {
    let mut refused = None;
    let mut tensor = |tensor: &[u8]| -> EngineResult<Change> {
        let entries = messages(tensor, TENSOR_OTHER_FILE)?;
        if entries.is_empty() || refused.is_some() {
            return Ok(Change::Keep);
        }
        match place_of(&entries)? {
            Ok(place) => Ok(match load(&place) {
                Some(bytes) => Change::To(with_bytes(tensor, &bytes)?),
                None => Change::Keep,
            }),
            Err(why) => {
                refused = Some(why);
                Ok(Change::Keep)
            }
        }
    };
    let changed = rewrite(model, &mut |number, content| match number {
        MODEL_GRAPH => each_tensor(content, &[GRAPH_NODE], 0, &mut tensor).map(Change::To),
        MODEL_FUNCTION => each_tensor(content, &[FUNCTION_NODE], 0, &mut tensor).map(Change::To),
        _ => Ok(Change::Keep),
    })?;
    refused.map_or(Ok(changed), |text| Err(BadWeights { is_of_place: true, text }))
}

/// Copies a graph with changed tensors. `nodes` is the number of the field with the nodes.
fn each_tensor(graph: &[u8], nodes: &[u64], depth: usize, change: &mut dyn FnMut(&[u8]) -> EngineResult<Change>) -> EngineResult<Vec<u8>> {
    if depth == MAX_DEPTH {
        return Err(format!("expected at most {MAX_DEPTH} graphs inside each other"));
    }
    rewrite(graph, &mut |number, content| match number {
        GRAPH_INITIALIZER if nodes == [GRAPH_NODE] => change(content),
        _ if nodes.contains(&number) => Ok(Change::To(rewrite(content, &mut |number, attribute| match number {
            NODE_ATTRIBUTE => Ok(Change::To(rewrite(attribute, &mut |number, content| match number {
                _ if ATTRIBUTE_TENSORS.contains(&number) => change(content),
                _ if ATTRIBUTE_GRAPHS.contains(&number) => each_tensor(content, &[GRAPH_NODE], depth + 1, change).map(Change::To),
                _ => Ok(Change::Keep),
            })?)),
            _ => Ok(Change::Keep),
        })?)),
        _ => Ok(Change::Keep),
    })
}

/// Returns the place that the entries of a tensor name, or the reason why the model must not name it.
fn place_of(entries: &[&[u8]]) -> EngineResult<std::result::Result<Place, String>> {
    let mut place = Place { location: PathBuf::new(), offset: 0, len: None };
    for entry in entries {
        let value = String::from_utf8_lossy(text(entry, 2)?).into_owned();
        let number = || value.trim().parse::<usize>();
        match text(entry, 1)? {
            b"location" => place.location = value.into(),
            b"offset" => match number() {
                Ok(offset) => place.offset = offset,
                Err(_) => return Ok(Err(format!("the offset of its weights: expected a number, got `{value}`"))),
            },
            b"length" => match number() {
                Ok(len) => place.len = Some(len),
                Err(_) => return Ok(Err(format!("the length of its weights: expected a number, got `{value}`"))),
            },
            _ => {}
        }
    }
    let is_inside = place.location.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    Ok(match is_inside && place.location.file_name().is_some() {
        true => Ok(place),
        false => Err(format!("its weights: expected a file in the folder of the model, got `{}`", place.location.display())),
    })
}

/// Returns the tensor with its bytes, and without the reference to another file.
fn with_bytes(tensor: &[u8], bytes: &[u8]) -> EngineResult<Vec<u8>> {
    let (mut whole, mut rest) = (Vec::with_capacity(tensor.len() + bytes.len() + 16), tensor);
    while let Some(field) = Field::next(&mut rest)? {
        if ![TENSOR_OTHER_FILE, TENSOR_LOCATION, TENSOR_BYTES].contains(&field.number) {
            whole.extend_from_slice(field.whole);
        }
    }
    write_varint(TENSOR_BYTES << 3 | MESSAGE, &mut whole);
    write_varint(bytes.len() as u64, &mut whole);
    whole.extend_from_slice(bytes);
    Ok(whole)
}

fn has_other_files(graph: &[u8], depth: usize) -> bool {
    fn each<'a>(message: &'a [u8], numbers: &[u64]) -> Vec<&'a [u8]> {
        numbers.iter().flat_map(|&number| messages(message, number).unwrap_or_default()).collect()
    }
    let is_elsewhere = |tensor: &&[u8]| !each(tensor, &[TENSOR_OTHER_FILE]).is_empty();
    let mut attributes = each(graph, &[GRAPH_NODE]).into_iter().flat_map(|node| each(node, &[NODE_ATTRIBUTE]));
    let of_attribute = |attribute: &[u8]| {
        each(attribute, &ATTRIBUTE_TENSORS).iter().any(is_elsewhere)
            || each(attribute, &ATTRIBUTE_GRAPHS).into_iter().any(|graph| has_other_files(graph, depth + 1))
    };
    depth == MAX_DEPTH || each(graph, &[GRAPH_INITIALIZER]).iter().any(is_elsewhere) || attributes.any(of_attribute)
}

/// Returns whether weights may be in external files. Searches the whole model for the key of a tensor's file name. The same bytes may also
/// occur by chance. This does no harm: the callers search again more precisely, or treat the model as one with external weights.
pub fn may_have_other_files(mut model: impl Read) -> io::Result<bool> {
    const KEY: &[u8] = b"\x0a\x08location";
    let mut window = vec![0; 64 << 10];
    let mut n_kept = 0;
    loop {
        let n_read = model.read(&mut window[n_kept..])?;
        let seen = &window[..n_kept + n_read];
        if n_read == 0 || memchr::memmem::find(seen, KEY).is_some() {
            return Ok(n_read > 0);
        }
        // The key may be split between two reads.
        let from = seen.len().saturating_sub(KEY.len() - 1);
        let n_seen = seen.len();
        window.copy_within(from..n_seen, 0);
        n_kept = n_seen - from;
    }
}

/// Returns the model without the values of its weights. The values make up nearly all of a file and are not read.
///
/// # Errors
/// Returns an error if the file cannot be read, or is not a valid message.
pub fn outline(file: impl Read + Seek) -> io::Result<Vec<u8>> {
    outline_up_to(file, 0)
}

/// Same as [`outline`], but with the values of small tensors, such as the axes of an operator.
///
/// # Errors
/// Returns the errors of [`outline`].
pub fn outline_with_constants(file: impl Read + Seek) -> io::Result<Vec<u8>> {
    outline_up_to(file, 4096)
}

fn outline_up_to(file: impl Read + Seek, max_kept: u64) -> io::Result<Vec<u8>> {
    let mut file = BufReader::new(file);
    let len = file.seek(io::SeekFrom::End(0))?;
    file.rewind()?;
    outline_of(&mut file, len, &[MODEL_GRAPH, GRAPH_INITIALIZER], max_kept)
}

/// Reads the next `len` bytes of the file as a message. Leaves out the values of the tensors at the end of `path`, except fields of at most
/// `max_kept` bytes.
fn outline_of(file: &mut BufReader<impl Read + Seek>, len: u64, path: &[u64], max_kept: u64) -> io::Result<Vec<u8>> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, cut_off());
    let (mut bytes, mut left) = (Vec::new(), len);
    while left > 0 {
        let key = next_varint(file, &mut left)?;
        let number = key >> 3;
        let len = match key & 7 {
            0 => {
                let value = next_varint(file, &mut left)?;
                // Values that are not packed are separate fields, each with one number. Leave them out as well.
                if !(path.is_empty() && TENSOR_VALUES.contains(&number) && max_kept == 0) {
                    write_varint(key, &mut bytes);
                    write_varint(value, &mut bytes);
                }
                continue;
            }
            MESSAGE => next_varint(file, &mut left)?,
            1 => 8,
            5 => 4,
            _ => return Err(bad()),
        };
        left = left.checked_sub(len).ok_or_else(bad)?;
        if path.is_empty() && TENSOR_VALUES.contains(&number) && (max_kept == 0 || len > max_kept) {
            file.seek_relative(i64::try_from(len).map_err(|_| bad())?)?;
            continue;
        }
        write_varint(key, &mut bytes);
        match path.split_first() {
            Some((next, path)) if *next == number && key & 7 == MESSAGE => {
                let inner = outline_of(file, len, path, max_kept)?;
                write_varint(inner.len() as u64, &mut bytes);
                bytes.extend_from_slice(&inner);
            }
            _ => {
                if key & 7 == MESSAGE {
                    write_varint(len, &mut bytes);
                }
                if file.by_ref().take(len).read_to_end(&mut bytes)? as u64 != len {
                    return Err(bad());
                }
            }
        }
    }
    Ok(bytes)
}

fn next_varint(file: &mut impl Read, left: &mut u64) -> io::Result<u64> {
    let mut bytes = [0; 10];
    for n_read in 0..bytes.len() {
        *left = left.checked_sub(1).ok_or(io::ErrorKind::UnexpectedEof)?;
        file.read_exact(&mut bytes[n_read..=n_read])?;
        if bytes[n_read] & 0x80 == 0 {
            break;
        }
    }
    read_varint(&mut &bytes[..]).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
}

/// Returns an input with the shape of the port of the same name. Returns `None` if the input already has that shape, or if no port has the
/// name of the input.
fn with_wanted_shape(input: &[u8], inputs: &[Port]) -> EngineResult<Option<Vec<u8>>> {
    let name = text(input, VALUE_NAME)?;
    let Some(port) = inputs.iter().find(|port| port.name().as_bytes() == name) else { return Ok(None) };
    let mut wanted = port.shape.dims().iter();
    let mut differs = false;
    let changed = with_shape(input, &mut |own| {
        let wanted = wanted.next()?;
        let is_as_wanted = match (own, wanted) {
            (Dim::Fixed(own), Dim::Fixed(wanted)) => own == *wanted,
            (own, wanted) => own.is_open() && wanted.is_open(),
        };
        differs |= !is_as_wanted;
        (!is_as_wanted).then_some(*wanted)
    })?;
    Ok(differs.then_some(changed))
}

/// Returns a `ValueInfoProto` with changed extents. `change` returns the new extent of an axis, or `None` to keep the old one.
fn with_shape(value: &[u8], change: &mut dyn FnMut(Dim) -> Option<Dim>) -> EngineResult<Vec<u8>> {
    let path = [VALUE_TYPE, TYPE_TENSOR, TENSOR_SHAPE];
    within(value, &path, &mut |shape| {
        rewrite(shape, &mut |number, dim| {
            if number != SHAPE_DIM {
                return Ok(Change::Keep);
            }
            Ok(match change(extent_of(dim)?) {
                None => Change::Keep,
                Some(Dim::Fixed(extent)) => {
                    let mut bytes = Vec::new();
                    write_varint(DIM_EXTENT << 3, &mut bytes);
                    write_varint(extent as u64, &mut bytes);
                    Change::To(bytes)
                }
                Some(_) => Change::To(Vec::new()),
            })
        })
    })
}

fn extent_of(dim: &[u8]) -> EngineResult<Dim> {
    let (mut extent, mut rest) = (Dim::Dynamic, dim);
    while let Some(field) = Field::next(&mut rest)? {
        match (field.number, field.content) {
            // Some exporters write a dynamic extent as 0 or -1. ONNX Runtime treats 0 and -1 as fixed extents, so this code does the same.
            (DIM_EXTENT, Content::Number(number)) => extent = Dim::Fixed(usize::try_from(number as i64).unwrap_or(0)),
            // If a message has several fields with an extent or a name, only the last one of them counts.
            (DIM_NAME, Content::Message(_)) => extent = Dim::Dynamic,
            _ => {}
        }
    }
    Ok(extent)
}

enum Change {
    Keep,
    Drop,
    To(Vec<u8>),
}

/// Copies a message with some inner messages changed. `change` is called for each inner message, with its field number.
fn rewrite(message: &[u8], change: &mut dyn FnMut(u64, &[u8]) -> EngineResult<Change>) -> EngineResult<Vec<u8>> {
    let mut bytes = Vec::with_capacity(message.len() + 16);
    let mut rest = message;
    while let Some(field) = Field::next(&mut rest)? {
        let changed = match field.content {
            Content::Message(content) => change(field.number, content)?,
            _ => Change::Keep,
        };
        match changed {
            Change::Keep => bytes.extend_from_slice(field.whole),
            Change::Drop => {}
            Change::To(content) => {
                write_varint(field.number << 3 | MESSAGE, &mut bytes);
                write_varint(content.len() as u64, &mut bytes);
                bytes.extend_from_slice(&content);
            }
        }
    }
    Ok(bytes)
}

/// Copies a message with the inner message at the end of `path` changed.
fn within(message: &[u8], path: &[u64], change: &mut dyn FnMut(&[u8]) -> EngineResult<Vec<u8>>) -> EngineResult<Vec<u8>> {
    let Some((first, path)) = path.split_first() else { return change(message) };
    rewrite(message, &mut |number, content| {
        if number == *first { Ok(Change::To(within(content, path, change)?)) } else { Ok(Change::Keep) }
    })
}

/// Returns the inner messages and texts with this field number.
pub(crate) fn messages(message: &[u8], number: u64) -> EngineResult<Vec<&[u8]>> {
    let (mut found, mut rest) = (Vec::new(), message);
    while let Some(field) = Field::next(&mut rest)? {
        if let (true, Content::Message(content)) = (field.number == number, field.content) {
            found.push(content);
        }
    }
    Ok(found)
}

/// Returns the text with this field number, or an empty text if there is none. If the message has several fields with this number, the last
/// field counts, as in all protocol buffers.
pub(crate) fn text(message: &[u8], number: u64) -> EngineResult<&[u8]> {
    Ok(messages(message, number)?.last().copied().unwrap_or_default())
}

const MESSAGE: u64 = 2;

pub(crate) struct Field<'a> {
    pub(crate) number: u64,
    pub(crate) content: Content<'a>,
    /// The bytes of the field, including its key.
    whole: &'a [u8],
}

pub(crate) enum Content<'a> {
    Number(u64),
    /// A message, a text, or packed numbers.
    Message(&'a [u8]),
    /// A number of 4 or 8 bytes.
    Fixed(&'a [u8]),
}

impl<'a> Field<'a> {
    /// Reads the next field. Returns `None` at the end of the message.
    pub(crate) fn next(rest: &mut &'a [u8]) -> EngineResult<Option<Self>> {
        let whole = *rest;
        if whole.is_empty() {
            return Ok(None);
        }
        let key = read_varint(rest)?;
        let content = match key & 7 {
            0 => Content::Number(read_varint(rest)?),
            MESSAGE => {
                let len = usize::try_from(read_varint(rest)?).map_err(|_| cut_off())?;
                Content::Message(take(rest, len)?)
            }
            1 => take(rest, 8).map(Content::Fixed)?,
            5 => take(rest, 4).map(Content::Fixed)?,
            other => return Err(format!("the bytes are not a valid protocol buffer (wire type {other})")),
        };
        Ok(Some(Self { number: key >> 3, content, whole: &whole[..whole.len() - rest.len()] }))
    }
}

fn cut_off() -> String {
    "the bytes are not a valid protocol buffer, or are cut off".to_owned()
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> EngineResult<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(len).ok_or_else(cut_off)?;
    *rest = after;
    Ok(taken)
}

pub(crate) fn read_varint(rest: &mut &[u8]) -> EngineResult<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(cut_off())
}

fn write_varint(mut value: u64, bytes: &mut Vec<u8>) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::runtime::PartialShape;
    use crate::tensor::ElementType;

    fn tiny(name: &str) -> Vec<u8> {
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny").join(name)).unwrap()
    }

    fn input(dims: impl Into<PartialShape>) -> Port {
        Port::new("x", ElementType::F32, dims.into())
    }

    #[test]
    fn only_differing_shapes_are_changed() {
        let model = tiny("double.onnx"); // x [?, 4]
        assert_eq!(with_input_shapes(&model, &[input([Dim::Dynamic, 4.into()])]), Ok(None));
        assert_eq!(with_input_shapes(&model, &[input([Dim::from(1..=3), 4.into()])]), Ok(None));
        let changed = with_input_shapes(&model, &[input([3, 4])]).unwrap().unwrap();
        assert_eq!(with_input_shapes(&changed, &[input([3, 4])]), Ok(None));
        let opened = with_input_shapes(&changed, &[input([Dim::Dynamic; 2])]).unwrap().unwrap();
        assert!(with_input_shapes(&opened, &[input([Dim::Dynamic, 4.into()])]).unwrap().is_some());
        assert_eq!(nodes(&opened).unwrap(), nodes(&model).unwrap());
    }

    #[test]
    fn an_outline_lacks_only_the_values_of_weights() {
        // ModelProto { graph (7): { name (2): "g", initializer (5): { dims (1): 3, raw_data (9): "abc", name (8): "w" }, node (1): { } },
        // ir_version (1): 300 }
        let tensor = b"\x08\x03\x4a\x03abc\x42\x01w";
        let graph = [b"\x12\x01g\x2a\x0a", &tensor[..], b"\x0a\x00"].concat();
        let model = [b"\x3a", &[graph.len() as u8][..], &graph, b"\x08\xac\x02"].concat();
        let outlined = b"\x3a\x0c\x12\x01g\x2a\x05\x08\x03\x42\x01w\x0a\x00\x08\xac\x02";
        assert_eq!(outline(Cursor::new(&model)).unwrap(), outlined);
        assert_eq!(outline(Cursor::new(outlined)).unwrap(), outlined, "the outline of an outline is the outline itself");
        // The same tensor with values that are not packed: { graph (7): { initializer (5): { dims (1): 1, int64_data (7): 3, dims (1): 2 }
        // } }
        let one_by_one = b"\x3a\x08\x2a\x06\x08\x01\x38\x03\x08\x02";
        assert_eq!(outline(Cursor::new(one_by_one)).unwrap(), b"\x3a\x06\x2a\x04\x08\x01\x08\x02");
        let too_long = [b"\x3a\xff\x7f", &graph[..]].concat();
        assert_eq!(outline(Cursor::new(&too_long)).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn the_last_of_repeated_fields_counts() {
        // ModelProto { graph (7): { node (1): { name (3), op_type (4) }, input (11): { name (1), type (2): { tensor_type (1): { shape (2):
        // { dim (1)
        let named = |number: u8, names: [u8; 2]| [number << 3 | 2, 1, names[0], number << 3 | 2, 1, names[1]];
        let node = [named(3, *b"an"), named(4, *b"PA")].concat();
        // Two extents, each with two fields. The fields of the first extent are 7 and 4, the fields of the second extent are 7 and the name
        // `N`.
        let shape = b"\x0a\x04\x08\x07\x08\x04\x0a\x05\x08\x07\x12\x01N";
        let tensor = [&b"\x12\x0d"[..], shape].concat();
        let of_type = [&b"\x12\x11\x0a\x0f"[..], &tensor].concat();
        let value = [&named(1, *b"yx")[..], &of_type].concat();
        let graph = [&b"\x0a\x0c"[..], &node, &b"\x5a\x19"[..], &value].concat();
        let model = [&[0x3a, graph.len() as u8][..], &graph].concat();
        assert_eq!(nodes(&model).unwrap(), [("n".to_owned(), "A".to_owned())]);
        assert_eq!(with_input_shapes(&model, &[input([4.into(), Dim::Dynamic])]), Ok(None));
        assert!(with_input_shapes(&model, &[input([7, 7])]).unwrap().is_some());
    }

    #[test]
    fn reading_any_bytes_ends() {
        let model = tiny("double.onnx");
        let inputs = [input([3, 4])];
        for len in 0..model.len() {
            let _read = (with_input_shapes(&model[..len], &inputs), outline(Cursor::new(&model[..len])));
        }
        for at in 0..model.len() {
            for flip in [0x01, 0x7f, 0x80, 0xff] {
                let mut bad = model.clone();
                bad[at] ^= flip;
                let _read = (with_input_shapes(&bad, &inputs), nodes(&bad), outline(Cursor::new(&bad)), check_whole(&bad));
                let _graph = crate::graph::onnx::read(&bad, &inputs).map(|graph| graph.has_independent_rows());
            }
        }
    }

    #[test]
    fn external_weights_are_found() {
        let says = |model: &[u8]| may_have_other_files(model).unwrap();
        assert!(!says(&tiny("double.onnx")));
        // TensorProto { external_data (13): [{ key: "location", value: "w" }] }
        let tensor = b"\x6a\x0d\x0a\x08location\x12\x01w";
        assert!(says(&[&tiny("double.onnx")[..], tensor].concat()));
        // The key must be found at every position in the file, also if it is split between two reads.
        for before in (64 << 10) - 40..(64 << 10) + 10 {
            let zeros = vec![0; before];
            let in_pieces = zeros.chain(&tensor[..5]).chain(&tensor[5..]);
            assert!(may_have_other_files(in_pieces).unwrap(), "{before}");
        }
        assert!(!says(&vec![0x0a; 200_000]));
    }
}
