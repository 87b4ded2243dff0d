//! Results other than boxes and labels, as entries of a relation meta. Each entry belongs to a detection or to the whole frame.
//!
//! | result | entries | relation to the detection |
//! |---|---|---|
//! | mask | segmentation of one region | both relate to each other, as in GStreamer's `yolosegtensordecoder` |
//! | class map | segmentation, and a classification with the labels of its regions | likewise |
//! | tensor | tensor of 32-bit floats | the detection contains it |
//! | keypoints | group of keypoint entries | the detection contains the group |
//!
//! A segmentation entry holds a grid of region IDs for an upright rectangle. A rotated grid is sampled inside the box of its object.
//! The meta cannot represent maps of numbers, texts and polygons.
//!
//! Entries of other elements are checked before use: their sizes, strides and counts may be wrong.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_float, c_int, c_uint};
use std::sync::Arc;

use gst::glib::ffi::GQuark;
use gst::glib::translate::{IntoGlibPtr as _, from_glib_full, from_glib_none};
use gst::{ffi, glib};
use gstreamer as gst;
use gstreamer_video::{VideoFormat, VideoFrameFlags, VideoMeta};

use super::library::{Api, Mtd};
use super::{CONTAINS, FOREIGN_MODEL, IS_PART_OF, N_TO_N, RELATES_TO, Relations, RelationsMut, quark, quark_of, text_of};
use crate::frame::{Classification, Geometry, Grid, Keypoint, Keypoints, Outcome, PixelRect, Point, Rect, Skeleton};

/// Attribute names of results of other elements.
const FOREIGN_MASK: &str = "mask";
const FOREIGN_MAP: &str = "segmentation";
const FOREIGN_TENSOR: &str = "tensor";
const FOREIGN_KEYPOINTS: &str = "keypoints";

/// Maximum number of cells of a mask and of values of a tensor that are read from another element.
const MAX_CELLS: usize = 1 << 24;
/// Maximum number of axes of a tensor that is read from another element.
const MAX_AXES: usize = 16;
/// Maximum number of keypoints of a group that is read from another element.
const MAX_KEYPOINTS: usize = 1024;

/// `GstSegmentationType`.
const SEMANTIC: c_int = 0;
const INSTANCE: c_int = 1;
/// `GST_TENSOR_LAYOUT_CONTIGUOUS` and `GST_TENSOR_DIM_ORDER_ROW_MAJOR`.
const CONTIGUOUS: c_int = 0;
const ROW_MAJOR: c_int = 0;
/// `GST_TENSOR_DATA_TYPE_FLOAT32`.
const FLOAT32: c_int = 11;
/// `GST_ANALYTICS_KEYPOINT_DIMENSIONS_2D`.
const TWO_DIMENSIONS: c_int = 2;

/// A grid of region IDs for an upright rectangle of pixels.
struct Raster {
    columns: u32,
    rows: u32,
    values: Vec<u8>,
}

impl Raster {
    /// Samples a grid inside a rectangle. The cells are about as large as those of the grid. `None` if the grid is empty.
    fn of<T>(grid: &Grid<T>, place: PixelRect, value: impl Fn(&T) -> u8) -> Option<Self> {
        let [origin, right, down] = grid.corners;
        let cell = |corner: Point, n_cells: usize| (corner.x - origin.x).hypot(corner.y - origin.y) / n_cells as f32;
        let side = cell(right, grid.columns).min(cell(down, grid.rows()));
        if grid.rows() == 0 || !side.is_finite() || side <= 0.0 {
            return None;
        }
        let n_cells = |extent: u32| ((extent as f32 / side).ceil() as u32).clamp(1, extent.max(1));
        let (columns, rows) = (n_cells(place.width), n_cells(place.height));
        let center = |begin: u32, extent: u32, idx: u32, n: u32| begin as f32 + (idx as f32 + 0.5) * extent as f32 / n as f32;
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let values = cells.map(|(row, column)| {
            let point = Point { x: center(place.x, place.width, column, columns), y: center(place.y, place.height, row, rows) };
            grid.at(point).map_or(0, &value)
        });
        Some(Self { columns, rows, values: values.collect() })
    }
}

impl RelationsMut<'_> {
    /// Adds a result that is neither a box nor a label. Returns the IDs of the new entries with the labels of their first classes, 0 =
    /// none; the first entry is the result. Returns no IDs if the meta cannot represent the result, or has too few free entries.
    ///
    /// `place` has the pixels of the object or of the frame. `region` is the region ID of a mask.
    pub(super) fn add_part(&self, new: &Classification, place: PixelRect, region: u8, n_free: &mut usize) -> Vec<(c_uint, GQuark)> {
        let (n_entries, added) = match &new.outcome {
            Outcome::Geometry(Geometry::Mask(mask)) if *n_free >= 1 => {
                let raster = Raster::of(mask, place, |cell| if *cell >= 128 { region } else { 0 });
                let id = raster.and_then(|raster| self.add_segmentation(raster, place, INSTANCE, &mut [0, region.into()]));
                (1, id.map(|id| vec![(id, 0)]))
            }
            Outcome::Geometry(Geometry::ClassMap { classes, labels }) if *n_free >= 2 => (2, self.add_class_map(classes, labels, place)),
            Outcome::Tensor { shape, data } if *n_free >= 1 => (1, self.add_tensor(&new.name, shape, data).map(|id| vec![(id, 0)])),
            Outcome::Geometry(Geometry::Keypoints(keypoints)) if *n_free > keypoints.points.len() => {
                (1 + keypoints.points.len(), self.add_keypoints(&new.name, keypoints))
            }
            _ => return Vec::new(),
        };
        let ids = added.unwrap_or_default();
        *n_free -= n_entries.min(ids.len());
        ids
    }

    /// Relates a result and its detection.
    pub(super) fn relate_part(&self, detection: c_uint, part: c_uint, outcome: &Outcome) {
        let is_segmentation = matches!(outcome, Outcome::Geometry(Geometry::Mask(_) | Geometry::ClassMap { .. }));
        let (forth, back) = if is_segmentation { (RELATES_TO, RELATES_TO) } else { (CONTAINS, IS_PART_OF) };
        self.relate(detection, forth, part);
        self.relate(part, back, detection);
    }

    /// Sets the semantic tag of a result's entry to the name of its model. Keypoints keep the tag of their group, which tells the meaning of
    /// each point. No effect before GStreamer 1.30.
    pub(super) fn tag(&self, id: c_uint, result: &Classification) {
        if matches!(result.outcome, Outcome::Geometry(Geometry::Keypoints(_))) {
            return;
        }
        let (Some(api), Ok(tag)) = (&self.api.tags, CString::new(&*result.model)) else { return };
        let mut entry = Mtd { id, meta: self.meta };
        // SAFETY: the meta is valid, its buffer is writable, and `id` is one of its entries. The function copies the text.
        unsafe { (api.gst_analytics_mtd_set_semantic_tag)(&raw mut entry, tag.as_ptr()) };
    }

    fn add_segmentation(&self, raster: Raster, place: PixelRect, kind: c_int, regions: &mut [c_uint]) -> Option<c_uint> {
        let api = self.api.segmentation.as_ref()?;
        let Raster { columns, rows, values } = raster;
        let mut mask = gst::Buffer::from_mut_slice(values);
        let stride = c_int::try_from(columns).ok()?;
        VideoMeta::add_full(mask.get_mut()?, VideoFrameFlags::empty(), VideoFormat::Gray8, columns, rows, &[0], &[stride]).ok()?;
        let [x, y] = [place.x, place.y].map(|edge| c_int::try_from(edge).unwrap_or(c_int::MAX));
        let (mut entry, add) = (Mtd::NONE, api.gst_analytics_relation_meta_add_segmentation_mtd);
        let (n_regions, regions) = (regions.len(), regions.as_mut_ptr());
        // SAFETY: the meta is valid and its buffer is writable. The function takes the mask, which has a video meta, and copies the
        // region IDs. The entry's handle is a local value.
        let added =
            unsafe { add(self.meta, mask.into_glib_ptr(), kind, n_regions, regions, x, y, place.width, place.height, &raw mut entry) };
        (added != 0).then_some(entry.id)
    }

    fn add_class_map(&self, classes: &Grid<u8>, labels: &[Arc<str>], place: PixelRect) -> Option<Vec<(c_uint, GQuark)>> {
        let raster = Raster::of(classes, place, |class| *class)?;
        let n_regions = raster.values.iter().max().map_or(0, |max| c_uint::from(*max) + 1).max(c_uint::try_from(labels.len()).ok()?);
        let id = self.add_segmentation(raster, place, SEMANTIC, &mut Vec::from_iter(0..n_regions))?;
        let mut names: Vec<_> = (0..n_regions).map(|idx| quark_of(labels.get(idx as usize).map(|label| &**label), idx)).collect();
        // -1 = unknown.
        let (mut entry, mut levels) = (Mtd::NONE, vec![-1.0; names.len()]);
        let add = self.api.gst_analytics_relation_meta_add_cls_mtd;
        // SAFETY: the meta is valid and its buffer is writable. Both arrays have this length, and the function copies them. The entry's
        // handle is a local value.
        let added = unsafe { add(self.meta, names.len(), levels.as_mut_ptr(), names.as_mut_ptr(), &raw mut entry) };
        if added == 0 {
            return Some(vec![(id, 0)]);
        }
        self.relate(id, N_TO_N, entry.id);
        Some(vec![(id, 0), (entry.id, names.first().copied().unwrap_or(0))])
    }

    fn add_tensor(&self, name: &str, shape: &[usize], data: &Arc<[f32]>) -> Option<c_uint> {
        let api = self.api.tensors.as_ref()?;
        // The library treats an extent of 0 as an unknown one, and refuses a wrong number of values.
        let n_values = shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent))?;
        if shape.is_empty() || n_values == 0 || n_values != data.len() {
            return None;
        }
        let bytes: Vec<u8> = data.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let (mut entry, mut shape) = (Mtd::NONE, shape.to_vec());
        let (add, buffer) = (api.gst_analytics_relation_meta_add_tensor_mtd_simple, gst::Buffer::from_mut_slice(bytes).into_glib_ptr());
        // SAFETY: the meta is valid and its buffer is writable. The function takes the buffer, which has the bytes of all values, and copies
        // the shape. The entry's handle is a local value.
        let added = unsafe { add(self.meta, quark(name), FLOAT32, buffer, ROW_MAJOR, shape.len(), shape.as_mut_ptr(), &raw mut entry) };
        (added != 0).then_some(entry.id)
    }

    fn add_keypoints(&self, name: &str, keypoints: &Keypoints) -> Option<Vec<(c_uint, GQuark)>> {
        let api = self.api.keypoints.as_ref()?;
        let Keypoints { points, skeleton } = keypoints;
        let n_points = c_int::try_from(points.len()).ok().filter(|n| *n > 0)?;
        let tag = CString::new(format!("{name}-{n_points}-kp")).ok()?;
        // The casts saturate.
        let positions: Vec<c_int> = points.iter().flat_map(|of| [of.point.x.round() as c_int, of.point.y.round() as c_int]).collect();
        // -1 = unknown.
        let confidences: Vec<c_float> = points.iter().map(|of| of.confidence.unwrap_or(-1.0)).collect();
        let edges = skeleton.edges.iter().filter_map(|(from, to)| Some([c_int::try_from(*from).ok()?, c_int::try_from(*to).ok()?]));
        let edges: Vec<c_int> = edges.filter(|edge| edge.iter().all(|point| *point < n_points)).flatten().collect();
        let (mut group, add) = (Mtd::NONE, api.gst_analytics_relation_meta_add_keypoints_group);
        // SAFETY: the meta is valid and its buffer is writable. All arrays have the given lengths: two positions and one confidence for each
        // point. The function copies them and the text. The group's handle is a local value.
        let added = unsafe {
            add(
                self.meta,
                tag.as_ptr(),
                TWO_DIMENSIONS,
                positions.len(),
                positions.as_ptr(),
                points.len(),
                confidences.as_ptr(),
                std::ptr::null(),
                edges.len(),
                edges.as_ptr(),
                &raw mut group,
            )
        };
        // The keypoints follow the group.
        (added != 0).then(|| (0..=n_points.unsigned_abs()).map(|idx| (group.id + idx, 0)).collect())
    }
}

impl Relations<'_> {
    /// Returns the masks, class maps, tensors and keypoints of a detection, except the entries in `known`.
    pub(super) fn parts_of(&self, id: c_uint, known: &[c_uint]) -> Vec<Classification> {
        self.parts(|of_type| self.entries_of(id, of_type), known)
    }

    /// Returns the masks, class maps, tensors and keypoints that belong to no detection, except the entries in `known`. `objects` are all
    /// detections.
    pub(super) fn parts_of_frame(&self, objects: &[c_uint], known: &[c_uint]) -> Vec<Classification> {
        self.parts(|of_type| self.entries_of_frame(objects, of_type), known)
    }

    /// Whether the meta has masks, class maps, tensors or keypoints.
    pub(super) fn has_parts(&self) -> bool {
        self.part_types().into_iter().flatten().any(|of_type| !self.ids(of_type).is_empty())
    }

    /// Returns the types of segmentations, tensors and groups; `None` if the library has no such type.
    fn part_types(&self) -> [Option<usize>; 3] {
        let Api { segmentation, tensors, keypoints, .. } = self.api;
        // SAFETY: the functions have no preconditions.
        unsafe {
            [
                segmentation.as_ref().map(|api| (api.gst_analytics_segmentation_mtd_get_mtd_type)()),
                tensors.as_ref().map(|api| (api.gst_analytics_tensor_mtd_get_mtd_type)()),
                keypoints.as_ref().map(|api| (api.gst_analytics_group_mtd_get_mtd_type)()),
            ]
        }
    }

    fn parts(&self, entries: impl Fn(usize) -> Vec<c_uint>, known: &[c_uint]) -> Vec<Classification> {
        let [segmentations, tensors, groups] =
            self.part_types().map(|of_type| of_type.map(&entries).unwrap_or_default().into_iter().filter(|id| !known.contains(id)));
        let segmentations = segmentations.filter_map(|id| self.segmentation(id)).map(|geometry| {
            let name = if matches!(geometry, Geometry::Mask(_)) { FOREIGN_MASK } else { FOREIGN_MAP };
            (name.into(), Outcome::Geometry(geometry))
        });
        let tensors = tensors.filter_map(|id| self.tensor(id));
        let keypoints = groups.filter_map(|id| self.keypoints(id));
        let keypoints = keypoints.map(|(name, keypoints)| (name, Outcome::Geometry(Geometry::Keypoints(keypoints))));
        let parts = segmentations.chain(tensors).chain(keypoints);
        parts.map(|(name, outcome)| Classification { name, model: FOREIGN_MODEL.into(), outcome }).collect()
    }

    /// Returns the semantic tag of an entry; `None` if it has none.
    pub(super) fn tag(&self, id: c_uint) -> Option<Arc<str>> {
        let (api, mut entry) = (self.api.tags.as_ref()?, self.mtd(id));
        // SAFETY: the meta is valid, and `id` is one of its entries. The function returns null or a new text.
        let text = unsafe { (api.gst_analytics_mtd_get_semantic_tag)(&raw mut entry) };
        if text.is_null() {
            return None;
        }
        // SAFETY: the text ends with a zero byte, and nothing changes it.
        let tag = unsafe { CStr::from_ptr(text) }.to_str().ok().filter(|tag| !tag.is_empty()).map(Into::into);
        // SAFETY: the caller owns the text, and it is used no more.
        unsafe { glib::ffi::g_free(text.cast()) };
        tag
    }

    /// Returns a segmentation: the mask of a detection, or the class map of the frame. `None` if it belongs to several detections, because
    /// the meta does not tell which region belongs to which detection.
    fn segmentation(&self, id: c_uint) -> Option<Geometry> {
        let grid = self.region_ids(id)?;
        let n_objects = self.ids(self.object_type()).into_iter().filter(|object| self.are_related(*object, id)).count();
        let of = |grid: &Grid<u16>, value: &dyn Fn(u16) -> u8| Grid {
            columns: grid.columns,
            values: grid.values.iter().map(|cell| value(*cell)).collect(),
            corners: grid.corners,
        };
        if n_objects > 0 {
            return (n_objects == 1).then(|| Geometry::Mask(of(&grid, &|cell| if cell == 0 { 0 } else { u8::MAX })));
        }
        let (api, mut entry) = (self.api.segmentation.as_ref()?, self.mtd(id));
        // SAFETY: the meta is valid, and `id` is one of its segmentations.
        let n_regions = unsafe { (api.gst_analytics_segmentation_mtd_get_region_count)(&raw mut entry) };
        let mut class_of: HashMap<u16, u8> = HashMap::new();
        for region_idx in 0..n_regions.min(usize::from(u8::MAX) + 1) {
            // SAFETY: the meta is valid, `id` is one of its segmentations, and the index is below the number of regions.
            let region = unsafe { (api.gst_analytics_segmentation_mtd_get_region_id)(&raw mut entry, region_idx) };
            class_of.extend(u16::try_from(region).ok().zip(u8::try_from(region_idx).ok()));
        }
        let labels = self.related(id, N_TO_N | RELATES_TO, self.class_type()).first().map(|labels| self.labels(*labels));
        let labels = labels.filter(|labels| labels.len() == n_regions).unwrap_or_default();
        Some(Geometry::ClassMap { classes: of(&grid, &|cell| class_of.get(&cell).copied().unwrap_or(0)), labels: labels.into() })
    }

    fn are_related(&self, one: c_uint, other: c_uint) -> bool {
        let get = self.api.gst_analytics_relation_meta_get_relation;
        // SAFETY: the meta is valid, and both are its entries.
        unsafe { get(self.meta, one, other) != 0 || get(self.meta, other, one) != 0 }
    }

    /// Returns the labels of a classification entry.
    fn labels(&self, id: c_uint) -> Vec<Arc<str>> {
        let mut class = self.mtd(id);
        // SAFETY: the meta is valid, and `id` is one of its classifications.
        let n_classes = unsafe { (self.api.gst_analytics_cls_mtd_get_length)(&raw mut class) };
        let label = |class_idx| {
            // SAFETY: the meta is valid, `id` is one of its classifications, and the index is below the length of that entry.
            text_of(unsafe { (self.api.gst_analytics_cls_mtd_get_quark)(&raw mut class, class_idx) }).unwrap_or_default()
        };
        (0..n_classes).map(label).collect()
    }

    /// Returns the region IDs of a segmentation. `None` if its mask has an unexpected format or too few bytes.
    fn region_ids(&self, id: c_uint) -> Option<Grid<u16>> {
        let (api, mut entry) = (self.api.segmentation.as_ref()?, self.mtd(id));
        let (mut x, mut y, mut width, mut height) = (0, 0, 0, 0);
        let get = api.gst_analytics_segmentation_mtd_get_mask;
        // SAFETY: the meta is valid, `id` is one of its segmentations, and all pointers are to local values.
        let mask: *mut ffi::GstBuffer = unsafe { get(&raw mut entry, &raw mut x, &raw mut y, &raw mut width, &raw mut height) };
        // SAFETY: the function returns null or a new reference to a buffer.
        let mask: Option<gst::Buffer> = unsafe { from_glib_full(mask) };
        let (columns, values) = region_ids_of(mask?.as_ref())?;
        let rect = Rect { x: x as f32, y: y as f32, width: width as f32, height: height as f32 };
        let corners = [(rect.x, rect.y), (rect.x_max(), rect.y), (rect.x, rect.y_max())].map(|(x, y)| Point { x, y });
        rect.is_proper().then(|| Grid { columns, values: values.into(), corners })
    }

    /// Returns the name and values of a tensor. `None` if its values are not contiguous 32-bit floats in row-major order.
    fn tensor(&self, id: c_uint) -> Option<(Arc<str>, Outcome)> {
        let (api, mut entry) = (self.api.tensors.as_ref()?, self.mtd(id));
        // SAFETY: the meta is valid, and `id` is one of its tensors.
        let tensor = unsafe { (api.gst_analytics_tensor_mtd_get_tensor)(&raw mut entry) };
        if tensor.is_null() {
            return None;
        }
        // SAFETY: the tensor is in the meta, which does not change while the buffer is borrowed.
        let (id, layout, data_type, data, order, n_dims) =
            unsafe { ((*tensor).id, (*tensor).layout, (*tensor).data_type, (*tensor).data, (*tensor).dims_order, (*tensor).n_dims) };
        if (layout, data_type, order) != (CONTIGUOUS, FLOAT32, ROW_MAJOR) || !(1..=MAX_AXES).contains(&n_dims) {
            return None;
        }
        // SAFETY: the entry has space for the extents of its axes, behind the struct.
        let shape = unsafe { std::slice::from_raw_parts((&raw const (*tensor).dims).cast::<usize>(), n_dims) }.to_vec();
        let n_values = shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent)).filter(|n| *n <= MAX_CELLS)?;
        // SAFETY: the tensor has null or a reference to a buffer.
        let data: Option<gst::Buffer> = unsafe { from_glib_none(data) };
        let data = data?;
        let bytes = data.map_readable().ok()?;
        let (values, rest) = bytes.as_chunks::<4>();
        if values.len() != n_values || !rest.is_empty() {
            return None;
        }
        let data = values.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
        Some((text_of(id).unwrap_or_else(|| FOREIGN_TENSOR.into()), Outcome::Tensor { shape, data }))
    }

    /// Returns the name and points of a group; `None` if the group has no keypoints.
    fn keypoints(&self, id: c_uint) -> Option<(Arc<str>, Keypoints)> {
        let (api, mut group) = (self.api.keypoints.as_ref()?, self.mtd(id));
        // SAFETY: the function has no preconditions.
        let of_type = unsafe { (api.gst_analytics_keypoint_mtd_get_mtd_type)() };
        let (mut members, mut points, mut state, mut member) = (Vec::new(), Vec::new(), std::ptr::null_mut(), Mtd::NONE);
        let next = api.gst_analytics_group_mtd_iterate;
        // SAFETY: the meta is valid, `id` is one of its groups; the state is initialized with null and owned by the function.
        while members.len() < MAX_KEYPOINTS && unsafe { next(&raw mut group, &raw mut state, of_type, &raw mut member) } != 0 {
            let ([mut x, mut y, mut z, mut dimensions], mut confidence) = ([0; 4], -1.0);
            let position = api.gst_analytics_keypoint_mtd_get_position;
            // SAFETY: the meta is valid, the entry is a keypoint, and all pointers are to local values.
            let got = unsafe {
                (api.gst_analytics_keypoint_mtd_get_confidence)(&raw mut member, &raw mut confidence);
                position(&raw mut member, &raw mut x, &raw mut y, &raw mut z, &raw mut dimensions)
            };
            if got != 0 {
                members.push(member.id);
                let confidence = Some(confidence).filter(|confidence| (0.0..=1.0).contains(confidence));
                points.push(Keypoint { point: Point { x: x as f32, y: y as f32 }, confidence });
            }
        }
        let index_of: HashMap<c_uint, u32> = members.iter().copied().zip(0..).collect();
        let edges = members.iter().zip(0..).flat_map(|(from, from_idx)| {
            let to = self.related(*from, RELATES_TO, of_type).into_iter().filter_map(|to| index_of.get(&to).copied());
            to.map(move |to_idx| (from_idx, to_idx)).collect::<Vec<_>>()
        });
        let skeleton = Arc::new(Skeleton { names: Vec::new(), edges: edges.collect() });
        let name = self.tag(id).map_or_else(|| FOREIGN_KEYPOINTS.into(), |tag| name_of_tag(&tag).into());
        (!points.is_empty()).then_some((name, Keypoints { points, skeleton }))
    }
}

/// Returns the name in the tag of a group of keypoints: "hand" of "posture/hand-21-kp".
fn name_of_tag(tag: &str) -> &str {
    let last = tag.rsplit('/').next().unwrap_or(tag);
    let name = last.strip_suffix("-kp").and_then(|name| name.rsplit_once('-')).map_or(last, |(name, _)| name);
    if name.is_empty() { FOREIGN_KEYPOINTS } else { name }
}

/// Returns the number of columns and the values of a mask.
fn region_ids_of(mask: &gst::BufferRef) -> Option<(usize, Vec<u16>)> {
    let meta = mask.meta::<VideoMeta>().filter(|meta| meta.n_planes() == 1)?;
    let value: fn(&[u8]) -> u16 = match meta.format() {
        VideoFormat::Gray8 => |cell| u16::from(cell[0]),
        VideoFormat::Gray16Le => |cell| u16::from_le_bytes([cell[0], cell[1]]),
        VideoFormat::Gray16Be => |cell| u16::from_be_bytes([cell[0], cell[1]]),
        _ => return None,
    };
    let cell_bytes = if meta.format() == VideoFormat::Gray8 { 1 } else { 2 };
    let (columns, rows) = (meta.width() as usize, meta.height() as usize);
    let (offset, stride) = (meta.offset()[0], usize::try_from(meta.stride()[0]).ok()?);
    if columns == 0 || rows == 0 || columns.checked_mul(rows)? > MAX_CELLS {
        return None;
    }
    let bytes = mask.map_readable().ok()?;
    let mut values = Vec::new();
    for row in 0..rows {
        let begin = offset.checked_add(row.checked_mul(stride)?)?;
        let row = bytes.get(begin..begin.checked_add(columns * cell_bytes)?)?;
        values.extend(row.chunks_exact(cell_bytes).map(value));
    }
    Some((columns, values))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(bytes: Vec<u8>, format: VideoFormat, (width, height): (u32, u32), stride: i32) -> gst::Buffer {
        gst::init().unwrap();
        let mut buffer = gst::Buffer::from_mut_slice(bytes);
        VideoMeta::add_full(buffer.get_mut().unwrap(), VideoFrameFlags::empty(), format, width, height, &[0], &[stride]).unwrap();
        buffer
    }

    #[test]
    fn masks_are_read_by_their_stride_and_checked() {
        let bytes = || vec![1, 2, 9, 3, 4, 9, 0, 0];
        assert_eq!(region_ids_of(&mask(bytes(), VideoFormat::Gray8, (2, 2), 3)), Some((2, vec![1, 2, 3, 4])));
        assert_eq!(region_ids_of(&mask(bytes(), VideoFormat::Gray16Be, (1, 2), 4)), Some((1, vec![0x0102, 0x0409])));
        assert_eq!(region_ids_of(&mask(bytes(), VideoFormat::Gray8, (2, 2), -3)), None, "a negative stride");
        assert_eq!(region_ids_of(&gst::Buffer::from_mut_slice(bytes())), None, "no video meta");
        // Remove bytes that the video meta counts on.
        let mut short = mask(bytes(), VideoFormat::Gray8, (2, 3), 3);
        short.get_mut().unwrap().set_size(6);
        assert_eq!(region_ids_of(&short), None, "too few bytes");
    }

    #[test]
    fn mask_is_sampled_inside_the_box() {
        let at = |x, y| Point { x, y };
        // Cells of 4x4 pixels; the right half of the grid belongs to the object.
        let values: Arc<[u8]> = [0, 0, 255, 255].repeat(4).into();
        let upright = Grid { columns: 4, values: values.clone(), corners: [at(0.0, 0.0), at(16.0, 0.0), at(0.0, 16.0)] };
        let place = PixelRect { x: 4, y: 4, width: 12, height: 8 };
        let raster = |grid: &Grid<u8>| Raster::of(grid, place, |cell| u8::from(*cell >= 128)).map(|of| (of.columns, of.rows, of.values));
        assert_eq!(raster(&upright), Some((3, 2, vec![0, 1, 1, 0, 1, 1])));
        // Rotated clockwise, the lower half belongs to the object.
        let turned = Grid { columns: 4, values, corners: [at(16.0, 0.0), at(16.0, 16.0), at(0.0, 0.0)] };
        assert_eq!(raster(&turned), Some((3, 2, vec![0, 0, 0, 1, 1, 1])));
        let empty = Grid { columns: 0, values: [].into(), corners: upright.corners };
        assert_eq!(raster(&empty), None);
    }

    #[test]
    fn groups_of_keypoints_are_named_by_their_tags() {
        assert_eq!(
            ["posture/hand-21-kp", "pose-17-kp", "face", "-5-kp", ""].map(name_of_tag),
            ["hand", "pose", "face", "keypoints", "keypoints"]
        );
    }
}
