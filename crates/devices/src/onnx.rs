//! Reads and changes the bytes of an ONNX file before an engine reads them. roiflow changes the input shapes in this way for engines that
//! cannot change them.
//!
//! This module knows the wire format of protocol buffers and the numbers of some fields. Weights make up nearly all of a file; they are
//! skipped or copied unchanged. All functions accept any bytes. If the bytes are not a valid message, the functions return an error.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, BufReader, Read, Seek};
use std::path::{Component, Path, PathBuf};

use crate::engine::EngineResult;
use crate::runtime::files::{self, MAX_MODEL_BYTES, Parts};
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
const TENSOR_TYPE: u64 = 2;
const TENSOR_OTHER_FILE: u64 = 13;
const TENSOR_LOCATION: u64 = 14;
const TENSOR_BYTES: u64 = 9;
/// Maximum depth of messages inside messages: each graph inside another graph takes three.
pub(crate) const MAX_DEPTH: usize = 50;
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
    let mut changed = Vec::with_capacity(model.len());
    rewrite(model, &mut changed, &mut |number, graph, bytes| match number {
        MODEL_GRAPH => rewrite(graph, bytes, &mut |number, value, bytes| match number {
            GRAPH_INPUT => Ok(with_wanted_shape(value, inputs)?.map_or(Change::Keep, |value| write(&value, bytes))),
            GRAPH_OUTPUT => Ok(write(&with_shape(value, &mut |_| Some(Dim::Dynamic))?, bytes)),
            GRAPH_VALUE_INFO => Ok(Change::Drop),
            _ => Ok(Change::Keep),
        })
        .map(|()| Change::Written),
        _ => Ok(Change::Keep),
    })?;
    Ok(Some(changed))
}

/// Returns the model with an operator for each input that no operator reads, or `None` if there is no such input.
///
/// # Errors
/// Returns an error if the bytes are not a valid message.
#[cfg(feature = "openvino")]
pub fn with_all_inputs_read(model: &[u8]) -> EngineResult<Option<Vec<u8>>> {
    let graph = crate::graph::onnx::read(model, &[])?;
    let mut unread = Vec::new();
    for message in messages(model, MODEL_GRAPH)? {
        for input in messages(message, GRAPH_INPUT)? {
            let name = String::from_utf8_lossy(text(input, VALUE_NAME)?).into_owned();
            if !graph.reads(&name) && !graph.constants.contains_key(&name) {
                unread.push(name);
            }
        }
    }
    if unread.is_empty() {
        return Ok(None);
    }
    // A message that occurs twice has the fields of both.
    let mut changed = model.to_vec();
    let in_graph = begin_message(MODEL_GRAPH, &mut changed);
    for name in unread {
        let in_node = begin_message(GRAPH_NODE, &mut changed);
        for (number, text) in [(1, &*name), (2, &*format!("{name}, read by no operator")), (4, "Identity")] {
            let at = begin_message(number, &mut changed);
            changed.extend_from_slice(text.as_bytes());
            end_message(at, &mut changed);
        }
        end_message(in_node, &mut changed);
    }
    end_message(in_graph, &mut changed);
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
    if !may_have_other_files(model).unwrap_or(true) {
        return Ok(());
    }
    let mut has_other_files = false;
    with_weights(model, &mut |_, _, _| {
        has_other_files = true;
        false
    })?;
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
/// the model names, if this file is not in the folder of the model, or if the model names files but is not a valid message.
pub fn read_whole(path: &Path) -> Result<Vec<u8>> {
    match read_up_to(path, MAX_MODEL_BYTES)? {
        (model, true) => Ok(model),
        (_, false) => {
            Err(Error::new(ErrorKind::Io, format!("cannot read model `{}`: expected at most {MAX_MODEL_BYTES} bytes", path.display())))
        }
    }
}

/// Same as [`read_whole`], but if the model has more than `max_bytes` with its separate weights, these stay separate, and their files are
/// only checked. Returns also whether the weights became a part of the model.
///
/// # Errors
/// Returns the errors of [`read_whole`].
pub fn read_up_to(path: &Path, max_bytes: u64) -> Result<(Vec<u8>, bool)> {
    let model = files::read_limited(path, MAX_MODEL_BYTES, "model")?;
    if !may_have_other_files(&model[..]).unwrap_or(true) {
        return Ok((model, true));
    }
    let mut left = max_bytes.saturating_sub(model.len() as u64);
    let mut is_whole = true;
    let whole = with_files(path, &model, |_, n_bytes| {
        is_whole &= n_bytes <= left;
        left = left.saturating_sub(n_bytes);
        is_whole
    })?;
    Ok(if is_whole { (whole, true) } else { (model, false) })
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
    let outlined = outline(open()?).map_err(|error| bad_model(path, &error))?;
    with_files(path, &outlined, |_, _| false).map(drop)
}

/// Returns the model without the values of its weights, but with all whole numbers that may not fit into 32 bits, also from separate files,
/// and with small tensors, such as the axes of an operator.
///
/// # Errors
/// Returns the errors of [`read_whole`] and [`outline`].
pub fn outline_with_integers(path: &Path) -> Result<Vec<u8>> {
    const SMALL_BYTES: u64 = 4096;
    let outlined = outline_up_to(files::open_regular(path, "model")?, SMALL_BYTES).map_err(|error| bad_model(path, &error))?;
    with_files(path, &outlined, |tensor, _| has_wide_integers(tensor))
}

/// Copies a model with the weights of its separate files, as far as `is_wanted` returns true for a tensor and its number of bytes.
fn with_files(path: &Path, model: &[u8], mut is_wanted: impl FnMut(&[u8], u64) -> bool) -> Result<Vec<u8>> {
    let mut opened: HashMap<PathBuf, Parts> = HashMap::new();
    let mut load = |tensor: &[u8], place: &Place, bytes: &mut Vec<u8>| -> Result<bool> {
        let file = path.with_file_name("").join(&place.location);
        let parts = match opened.entry(file) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let parts = Parts::open(entry.key(), "weights file")?;
                entry.insert(parts)
            }
        };
        let len = place.len.unwrap_or_else(|| parts.n_bytes().saturating_sub(place.offset));
        if !is_wanted(tensor, len) {
            return Ok(false);
        }
        if parts.read(place.offset, len, bytes)? {
            return Ok(true);
        }
        let why =
            format!("`{}` has no bytes {}; the file is not the one that belongs to the model", place.location.display(), place.range());
        Err(bad_model(path, &why))
    };
    // The first error ends the reading.
    let mut failed = None;
    let whole = with_weights(model, &mut |tensor, place, bytes| {
        let is_loaded = if failed.is_none() { load(tensor, place, bytes) } else { Ok(false) };
        is_loaded.unwrap_or_else(|error| {
            failed = Some(error);
            false
        })
    });
    failed.map_or(Ok(()), Err)?;
    opened.values().try_for_each(Parts::check)?;
    whole.map_err(|why| bad_model(path, &why))
}

fn bad_model(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Model, format!("cannot read model `{}`: {why}", path.display()))
}

/// Returns whether a tensor has whole numbers that may not fit into 32 bits with a sign.
fn has_wide_integers(tensor: &[u8]) -> bool {
    const WIDE: [i64; 3] = [7, 12, 13]; // INT64, UINT32, UINT64
    crate::graph::onnx::numbers(tensor, TENSOR_TYPE).is_ok_and(|types| types.last().is_some_and(|last| WIDE.contains(last)))
}

/// The bytes of a tensor in a separate file.
struct Place {
    location: PathBuf,
    offset: u64,
    /// `None` if the tensor has all bytes up to the end of the file.
    len: Option<u64>,
}

impl Place {
    fn range(&self) -> String {
        let end = self.len.map(|len| self.offset.saturating_add(len).to_string()).unwrap_or_default();
        format!("{}..{end}", self.offset)
    }
}

/// Appends the bytes of a tensor in a separate file to the last argument, and returns true. If it returns false, the tensor stays.
type Load<'a> = &'a mut dyn FnMut(&[u8], &Place, &mut Vec<u8>) -> bool;

/// Copies the model with the bytes that `load` appends for each tensor in a separate file.
fn with_weights(model: &[u8], load: Load<'_>) -> EngineResult<Vec<u8>> {
    let mut bytes = Vec::with_capacity(model.len());
    with_tensors(model, Kind::Model, 0, &mut bytes, load)?;
    Ok(bytes)
}

/// The messages of a model on the way to its tensors.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Model,
    Training,
    Function,
    Graph,
    Node,
    Attribute,
    SparseTensor,
    Tensor,
}

impl Kind {
    /// Returns the kind of the messages in a field; `None` if the field has no tensors.
    fn of_field(self, number: u64) -> Option<Self> {
        Some(match (self, number) {
            (Self::Model, MODEL_GRAPH) | (Self::Training, 1 | 2) | (Self::Attribute, 6 | 11) => Self::Graph,
            (Self::Model, 20) => Self::Training,
            (Self::Model, 25) => Self::Function,
            (Self::Graph, GRAPH_NODE) | (Self::Function, 7) => Self::Node,
            (Self::Node, 5) | (Self::Function, 11) => Self::Attribute,
            (Self::Graph, 15) | (Self::Attribute, 22 | 23) => Self::SparseTensor,
            (Self::Graph, GRAPH_INITIALIZER) | (Self::Attribute, 5 | 10) | (Self::SparseTensor, 1 | 2) => Self::Tensor,
            _ => return None,
        })
    }
}

fn with_tensors(message: &[u8], kind: Kind, depth: usize, bytes: &mut Vec<u8>, load: Load<'_>) -> EngineResult<()> {
    rewrite(message, bytes, &mut |number, content, bytes| match kind.of_field(number) {
        None => Ok(Change::Keep),
        Some(Kind::Tensor) => with_bytes(content, bytes, load),
        Some(_) if depth == MAX_DEPTH => Err(format!("expected at most {MAX_DEPTH} messages inside each other")),
        Some(inner) => with_tensors(content, inner, depth + 1, bytes, load).map(|()| Change::Written),
    })
}

/// Returns the place that the entries of a tensor name, or the reason why the model must not name it.
fn place_of(entries: &[&[u8]]) -> EngineResult<Place> {
    let mut place = Place { location: PathBuf::new(), offset: 0, len: None };
    for entry in entries {
        let value = String::from_utf8_lossy(text(entry, 2)?).into_owned();
        let number = || value.trim().parse::<u64>();
        match text(entry, 1)? {
            b"location" => place.location = value.into(),
            b"offset" => match number() {
                Ok(offset) => place.offset = offset,
                Err(_) => return Err(format!("the offset of its weights: expected a number, got `{value}`")),
            },
            b"length" => match number() {
                Ok(len) => place.len = Some(len),
                Err(_) => return Err(format!("the length of its weights: expected a number, got `{value}`")),
            },
            _ => {}
        }
    }
    let is_inside = place.location.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    match is_inside && place.location.file_name().is_some() {
        true => Ok(place),
        false => Err(format!("its weights: expected a file in the folder of the model, got `{}`", place.location.display())),
    }
}

/// If a tensor is in a separate file, appends the tensor with its bytes, and without the reference to the file.
fn with_bytes(tensor: &[u8], bytes: &mut Vec<u8>, load: Load<'_>) -> EngineResult<Change> {
    let entries = messages(tensor, TENSOR_OTHER_FILE)?;
    if entries.is_empty() {
        return Ok(Change::Keep);
    }
    let place = place_of(&entries)?;
    let mut rest = tensor;
    while let Some(field) = Field::next(&mut rest)? {
        if ![TENSOR_OTHER_FILE, TENSOR_LOCATION, TENSOR_BYTES].contains(&field.number) {
            bytes.extend_from_slice(field.whole);
        }
    }
    let at = begin_message(TENSOR_BYTES, bytes);
    let is_loaded = load(tensor, &place, bytes);
    end_message(at, bytes);
    Ok(if is_loaded { Change::Written } else { Change::Keep })
}

/// Returns whether weights may be in external files. Searches the whole model for the key of a tensor's file name. The same bytes may also
/// occur by chance. This does no harm: the callers search again more precisely, or treat the model as one with external weights.
pub fn may_have_other_files(mut model: impl Read) -> io::Result<bool> {
    const KEY: &[u8] = b"location";
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

fn outline_up_to(file: impl Read + Seek, max_kept: u64) -> io::Result<Vec<u8>> {
    let mut file = BufReader::new(file);
    let len = file.seek(io::SeekFrom::End(0))?;
    file.rewind()?;
    outline_of(&mut file, len, &[MODEL_GRAPH, GRAPH_INITIALIZER], max_kept)
}

/// Reads the next `len` bytes of the file as a message. Leaves out the values of the tensors at the end of `path`. If `max_kept` is not 0,
/// keeps fields of at most `max_kept` bytes, and whole numbers that may not fit into 32 bits.
fn outline_of(file: &mut BufReader<impl Read + Seek>, len: u64, path: &[u64], max_kept: u64) -> io::Result<Vec<u8>> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, not_whole());
    let (mut bytes, mut left) = (Vec::new(), len);
    let mut left_out = Vec::new();
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
            left_out.push((key, file.stream_position()?, len));
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
    // The type of a tensor may follow its values.
    if max_kept > 0 && !left_out.is_empty() && has_wide_integers(&bytes) {
        let end = file.stream_position()?;
        for (key, begin, len) in left_out {
            file.seek(io::SeekFrom::Start(begin))?;
            write_varint(key, &mut bytes);
            write_varint(len, &mut bytes);
            if file.by_ref().take(len).read_to_end(&mut bytes)? as u64 != len {
                return Err(bad());
            }
        }
        file.seek(io::SeekFrom::Start(end))?;
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
    let mut changed = Vec::with_capacity(value.len());
    within(value, &[VALUE_TYPE, TYPE_TENSOR, TENSOR_SHAPE, SHAPE_DIM], &mut changed, &mut |dim, bytes| {
        let Some(dim) = change(extent_of(dim)?) else { return Ok(Change::Keep) };
        if let Dim::Fixed(extent) = dim {
            write_varint(DIM_EXTENT << 3, bytes);
            write_varint(extent as u64, bytes);
        }
        Ok(Change::Written)
    })?;
    Ok(changed)
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
    /// The new content was appended to the copy.
    Written,
}

/// Changes an inner message. Gets its field number, the message, and the copy to which the new content is appended.
type ChangeField<'a> = &'a mut dyn FnMut(u64, &[u8], &mut Vec<u8>) -> EngineResult<Change>;
/// Same as [`ChangeField`], but for messages of one kind.
type ChangeMessage<'a> = &'a mut dyn FnMut(&[u8], &mut Vec<u8>) -> EngineResult<Change>;

/// Appends a copy of a message with some inner messages changed. `change` is called for each inner message.
fn rewrite(message: &[u8], bytes: &mut Vec<u8>, change: ChangeField<'_>) -> EngineResult<()> {
    let mut rest = message;
    while let Some(field) = Field::next(&mut rest)? {
        let before = bytes.len();
        let at = begin_message(field.number, bytes);
        let changed = match field.content {
            Content::Message(content) => change(field.number, content, bytes)?,
            _ => Change::Keep,
        };
        match changed {
            Change::Written => end_message(at, bytes),
            Change::Drop => bytes.truncate(before),
            Change::Keep => {
                bytes.truncate(before);
                bytes.extend_from_slice(field.whole);
            }
        }
    }
    Ok(())
}

/// Number of bytes of the length of a message that is written before its length is known. Enough for the 2 GiB that a message may have.
const LEN_BYTES: usize = 5;

/// Appends the key of a message and space for its length. Returns the position after them.
fn begin_message(number: u64, bytes: &mut Vec<u8>) -> usize {
    write_varint(number << 3 | MESSAGE, bytes);
    bytes.extend_from_slice(&[0; LEN_BYTES]);
    bytes.len()
}

/// Writes the length of the message that begins at `at`.
fn end_message(at: usize, bytes: &mut [u8]) {
    let mut len = bytes.len() - at;
    for (idx, byte) in bytes[at - LEN_BYTES..at].iter_mut().enumerate() {
        *byte = (len & 0x7f) as u8 | if idx + 1 < LEN_BYTES { 0x80 } else { 0 };
        len >>= 7;
    }
}

/// Appends a copy of a message with the inner messages at the end of `path` changed.
fn within(message: &[u8], path: &[u64], bytes: &mut Vec<u8>, change: ChangeMessage<'_>) -> EngineResult<()> {
    rewrite(message, bytes, &mut |number, content, bytes| match path {
        [last] if number == *last => change(content, bytes),
        [first, path @ ..] if number == *first => within(content, path, bytes, change).map(|()| Change::Written),
        _ => Ok(Change::Keep),
    })
}

/// Appends the new content of a message.
fn write(content: &[u8], bytes: &mut Vec<u8>) -> Change {
    bytes.extend_from_slice(content);
    Change::Written
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
                let len = usize::try_from(read_varint(rest)?).map_err(|_| not_whole())?;
                Content::Message(take(rest, len)?)
            }
            1 => take(rest, 8).map(Content::Fixed)?,
            5 => take(rest, 4).map(Content::Fixed)?,
            _ => return Err(not_whole()),
        };
        Ok(Some(Self { number: key >> 3, content, whole: &whole[..whole.len() - rest.len()] }))
    }
}

fn not_whole() -> String {
    "its bytes are no ONNX model, or a part is missing; expected a complete .onnx file, or the .xml file of an OpenVINO model".to_owned()
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> EngineResult<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(len).ok_or_else(not_whole)?;
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
    Err(not_whole())
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

    /// Returns a message with one field.
    fn field(number: u64, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_varint(number << 3 | MESSAGE, &mut bytes);
        write_varint(content.len() as u64, &mut bytes);
        [&bytes, content].concat()
    }

    /// Returns a tensor of one `i64` in the file `w`.
    fn tensor_apart(offset: &str) -> Vec<u8> {
        let entry = |key: &str, value: &str| field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat());
        [b"\x08\x01\x10\x07", &entry("location", "w")[..], &entry("offset", offset), &entry("length", "8")].concat()
    }

    #[test]
    fn all_tensors_in_other_files_are_found() {
        let within = |path: &[u64]| path.iter().rev().fold(tensor_apart("0"), |content, number| field(*number, &content));
        // The numbers of the fields on the way to the tensor: initializers, attributes, functions, training.
        for path in [
            &[7, 5][..],
            &[7, 15, 1],
            &[7, 15, 2],
            &[7, 1, 5, 5],
            &[7, 1, 5, 10],
            &[7, 1, 5, 22, 1],
            &[7, 1, 5, 23, 2],
            &[7, 1, 5, 6, 5],
            &[7, 1, 5, 11, 1, 5, 5],
            &[25, 7, 5, 5],
            &[25, 11, 5],
            &[20, 1, 5],
            &[20, 2, 1, 5, 5],
        ] {
            let model = within(path);
            assert!(check_whole(&model).unwrap_err().contains("external data"), "{path:?}");
            let mut changed = with_weights(&model, &mut |_, place, bytes| {
                bytes.extend_from_slice(place.location.to_str().unwrap().as_bytes());
                true
            })
            .unwrap();
            check_whole(&changed).unwrap();
            for number in path {
                changed = messages(&changed, *number).unwrap()[0].to_vec();
            }
            assert_eq!(changed, b"\x08\x01\x10\x07\x4a\x81\x80\x80\x80\x00w", "{path:?}");
        }
        let deep = [&[7][..], &[1, 5, 6].repeat(30), &[5]].concat();
        assert!(check_whole(&within(&deep)).unwrap_err().contains("inside each other"));
        // A group is an old form of a message. Engines skip groups, but this reader does not know them.
        check_whole(&[&within(&[7, 5])[..], b"\x0b\x0c"].concat()).unwrap_err();
    }

    #[test]
    fn weights_in_other_files_become_a_part_of_the_model() {
        let folder = std::env::temp_dir().join(format!("roiflow-onnx-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("model.onnx");
        let graph: Vec<u8> = ["0", "8"].iter().flat_map(|offset| field(5, &tensor_apart(offset))).collect();
        let model = field(7, &graph);
        std::fs::write(&path, &model).unwrap();
        std::fs::write(folder.join("w"), [1_i64.to_le_bytes(), (1_i64 << 40).to_le_bytes()].concat()).unwrap();
        for whole in [read_whole(&path).unwrap(), outline_with_integers(&path).unwrap()] {
            let tensors = messages(messages(&whole, 7).unwrap()[0], 5).unwrap();
            assert_eq!(
                tensors.iter().map(|tensor| text(tensor, 9).unwrap()).collect::<Vec<_>>().concat(),
                std::fs::read(folder.join("w")).unwrap()
            );
            check_whole(&whole).unwrap();
        }
        assert_eq!(read_up_to(&path, model.len() as u64 + 15).unwrap(), (model.clone(), false));
        assert!(read_up_to(&path, model.len() as u64 + 16).unwrap().1);
        check_other_files(&path).unwrap();
        std::fs::write(folder.join("w"), [0; 15]).unwrap();
        assert!(read_whole(&path).unwrap_err().to_string().contains("has no bytes 8..16"));
        std::fs::remove_file(folder.join("w")).unwrap();
        for result in [read_up_to(&path, 0).map(drop), check_other_files(&path)] {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Io);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// The type of a tensor may follow its values.
    #[test]
    fn an_outline_may_have_whole_numbers() {
        let (large, small) = (field(9, &[7; 5000]), field(9, &[8; 8]));
        let tensor = |parts: &[&[u8]]| field(7, &field(5, &parts.concat()));
        for (integers, kept) in [
            (tensor(&[b"\x10\x07", &large]), 5000),
            (tensor(&[&large, b"\x10\x07"]), 5000),
            (tensor(&[b"\x10\x01", &large]), 0),
            (tensor(&[b"\x10\x01", &small]), 8),
        ] {
            let outlined = outline_up_to(Cursor::new(&[&integers[..], b"\x08\x08"].concat()), 4096).unwrap();
            assert_eq!(text(messages(messages(&outlined, 7).unwrap()[0], 5).unwrap()[0], 9).unwrap().len(), kept);
            assert_eq!(outlined[outlined.len() - 2..], *b"\x08\x08");
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
