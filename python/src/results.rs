//! The results of one image. The Python classes of `roiflow._vision` use this class.

use std::sync::Arc;
use std::time::SystemTime;

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use roiflow_results::{
    Classification, Detection, FrameResults, Geometry, Grid, Keypoints, ObjectId, Outcome, PixelRect, Point, Rect, RotatedRect,
    ScoredLabel, Size, json,
};

use crate::errors::Error;

/// An attribute of a detection or image: its name, its model, the kind of its value, and its value.
type Attribute = (String, String, &'static str, Py<PyAny>);

/// The detections and attributes of one image.
#[pyclass(frozen, name = "_Results", module = "roiflow._roiflow")]
pub struct PyResults {
    pub results: Arc<FrameResults>,
}

impl PyResults {
    pub fn new(results: FrameResults) -> Self {
        Self { results: Arc::new(results) }
    }

    /// Checks the size of an image. Raises ValueError if the image from which the results come had a different size.
    pub fn check_size(&self, size: Size) -> PyResult<()> {
        if self.results.size == size {
            return Ok(());
        }
        Err(PyValueError::new_err(format!("expected the image of these results, of {}, got an image of {size}", self.results.size)))
    }

    fn detection(&self, idx: usize) -> PyResult<&Detection> {
        self.results.detections.get(idx).ok_or_else(|| {
            pyo3::exceptions::PyIndexError::new_err(format!("no detection {idx}: there are {}", self.results.detections.len()))
        })
    }
}

#[pymethods]
impl PyResults {
    /// Creates results from boxes [N, 4] of x_min, y_min, x_max, y_max: regions for a classifier. The detections have no confidence, class
    /// or label.
    #[staticmethod]
    fn of_boxes(width: u32, height: u32, boxes: PyReadonlyArray2<'_, f32>) -> PyResult<Self> {
        let size = Size::new(width, height);
        let rows = boxes.as_array();
        if rows.ncols() != 4 {
            return Err(PyValueError::new_err(format!("rois: expected boxes of shape [N, 4], got [{}, {}]", rows.nrows(), rows.ncols())));
        }
        let detection = |(row_idx, row): (usize, numpy::ndarray::ArrayView1<'_, f32>)| {
            let rect = Rect::from_corners(row[0], row[1], row[2], row[3]);
            if rect.to_pixels(size).is_none() {
                return Err(PyValueError::new_err(format!(
                    "rois: expected x_min, y_min, x_max, y_max of a box that is at least partly inside the image of {size}, got {row} in row {row_idx}"
                )));
            }
            Ok(Detection {
                id: ObjectId::next(),
                track: None,
                track_state: None,
                parent: None,
                rect,
                keypoints: Vec::new(),
                confidence: 1.0,
                label_id: 0,
                label: None,
                classifications: Vec::new(),
            })
        };
        let detections = rows.rows().into_iter().enumerate().map(detection).collect::<PyResult<_>>()?;
        Ok(Self::new(FrameResults { size, detections, ..FrameResults::default() }))
    }

    fn __len__(&self) -> usize {
        self.results.detections.len()
    }

    /// Width and height of the image.
    #[getter]
    fn size(&self) -> (u32, u32) {
        (self.results.size.width, self.results.size.height)
    }

    /// Boxes [N, 4] of x_min, y_min, x_max, y_max in pixels, confidences [N], class numbers [N].
    #[allow(clippy::type_complexity, reason = "three arrays")]
    fn boxes<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyArray2<f32>>, Bound<'py, PyArray1<f32>>, Bound<'py, PyArray1<i64>>)> {
        let detections = &self.results.detections;
        let corners = |Rect { x, y, width, height }: Rect| [x, y, x + width, y + height];
        let xyxy: Vec<f32> = detections.iter().flat_map(|of| corners(of.rect)).collect();
        let xyxy = PyArray1::from_vec(py, xyxy).reshape([detections.len(), 4])?;
        let confidence = PyArray1::from_iter(py, detections.iter().map(|of| of.confidence));
        Ok((xyxy, confidence, PyArray1::from_iter(py, detections.iter().map(|of| i64::from(of.label_id)))))
    }

    /// The label of each detection.
    fn labels(&self) -> Vec<Option<&str>> {
        self.results.detections.iter().map(|of| of.label.as_deref()).collect()
    }

    /// The index of the detection in whose region each detection was found.
    fn parents(&self) -> Vec<Option<usize>> {
        let index = |id: ObjectId| self.results.detections.iter().position(|of| of.id == id);
        self.results.detections.iter().map(|of| of.parent.and_then(index)).collect()
    }

    /// The keypoints [K, 2] of a detection, in pixels.
    fn keypoints<'py>(&self, py: Python<'py>, idx: usize) -> PyResult<Bound<'py, PyArray2<f32>>> {
        points(py, &self.detection(idx)?.keypoints)
    }

    /// The attributes of a detection, or of the whole image.
    #[pyo3(signature = (idx=None))]
    fn attributes(&self, py: Python<'_>, idx: Option<usize>) -> PyResult<Vec<Attribute>> {
        let classifications = match idx {
            Some(idx) => &self.detection(idx)?.classifications,
            None => &self.results.classifications,
        };
        let attribute = |Classification { name, model, outcome }: &Classification| {
            let (kind, value) = value_of(py, outcome)?;
            Ok((name.to_string(), model.to_string(), kind, value))
        };
        classifications.iter().map(attribute).collect()
    }

    /// Left, top, right and bottom edge of a detection in whole pixels inside the image; None if it is outside.
    fn pixels(&self, idx: usize) -> PyResult<Option<(u32, u32, u32, u32)>> {
        let pixels = self.detection(idx)?.rect.to_pixels(self.results.size);
        Ok(pixels.map(|PixelRect { x, y, width, height }| (x, y, x + width, y + height)))
    }

    /// Returns results that contain only the detections with these indexes, in this order.
    fn select(&self, indices: Vec<usize>) -> PyResult<Self> {
        let detections = indices.into_iter().map(|idx| self.detection(idx).cloned()).collect::<PyResult<_>>()?;
        let FrameResults { size, frame_number, status, classifications, .. } = &*self.results;
        let (size, frame_number, status, classifications) = (*size, *frame_number, status.clone(), classifications.clone());
        Ok(Self::new(FrameResults { size, frame_number, status, detections, classifications, ..FrameResults::default() }))
    }

    /// Returns the same results with coordinates for another size of the image.
    fn resized(&self, width: u32, height: u32) -> Self {
        let (was, size) = (self.results.size, Size::new(width, height));
        let mut results = (*self.results).clone();
        for detection in &mut results.detections {
            detection.move_to(detection.rect.rescaled(was, size));
        }
        results.set_size(size);
        Self::new(results)
    }

    /// Formats the results as one line of JSON, in the format of `roiflow run --json`.
    fn json(&self, py: Python<'_>, frame: u64, stream: Option<&str>, source: Option<&str>) -> PyResult<String> {
        let results = &*self.results;
        let line = crate::interpreter::detached(py, || {
            let context = json::Context {
                frame_number: frame,
                stream_id: stream,
                source,
                tags: None,
                timestamp_ns: None,
                pts_ns: None,
                time: SystemTime::now(),
                message_id: None,
                image: None,
                masks: json::MaskFormat::default(),
                maps: json::MapFormat::default(),
            };
            let mut line = Vec::new();
            json::write_line(&mut line, results, &context).map(|()| line)
        });
        let line = line.map_err(|error| Error::new_err(format!("the results cannot be written as JSON: {error}")))?;
        Ok(String::from_utf8_lossy(line.trim_ascii_end()).into_owned())
    }
}

/// Converts the outcome of an attribute. Returns its kind, and its value as a number, text, tuple, list or array.
fn value_of(py: Python<'_>, outcome: &Outcome) -> PyResult<(&'static str, Py<PyAny>)> {
    Ok(match outcome {
        Outcome::Label { label_id, label, confidence } => ("label", (*label_id, label.as_deref(), *confidence).into_py_any(py)?),
        Outcome::Labels(labels) => {
            let label =
                |ScoredLabel { label_id, label, confidence }: &ScoredLabel| (*label_id, label.as_deref().map(str::to_owned), *confidence);
            ("labels", labels.iter().map(label).collect::<Vec<_>>().into_py_any(py)?)
        }
        Outcome::Value(value) => ("value", value.into_py_any(py)?),
        Outcome::Text { text, confidence } => ("text", (&**text, *confidence).into_py_any(py)?),
        Outcome::Tensor { shape, data } => {
            ("tensor", PyArray1::from_slice(py, data).reshape(numpy::ndarray::IxDyn(shape))?.into_py_any(py)?)
        }
        Outcome::Geometry(geometry) => geometry_of(py, geometry)?,
        #[allow(unreachable_patterns, reason = "kinds that are added later have no form here yet")]
        _ => ("other", py.None()),
    })
}

fn geometry_of(py: Python<'_>, geometry: &Geometry) -> PyResult<(&'static str, Py<PyAny>)> {
    Ok(match geometry {
        Geometry::Keypoints(Keypoints { points: keypoints, skeleton }) => {
            let places = points(py, &keypoints.iter().map(|of| of.point).collect::<Vec<_>>())?;
            let confidence = PyArray1::from_iter(py, keypoints.iter().map(|of| of.confidence.unwrap_or(f32::NAN)));
            let names: Vec<&str> = skeleton.names.iter().map(|name| &**name).collect();
            ("keypoints", (places, confidence, names, skeleton.edges.clone()).into_py_any(py)?)
        }
        Geometry::RotatedRect(rect @ RotatedRect { center, width, height, angle }) => {
            ("rotated-box", ((center.x, center.y, *width, *height, *angle), points(py, &rect.corners())?).into_py_any(py)?)
        }
        Geometry::Polygons(polygons) => {
            let polygons = polygons.iter().map(|polygon| points(py, polygon)).collect::<PyResult<Vec<_>>>()?;
            ("polygons", PyList::new(py, polygons)?.into_py_any(py)?)
        }
        Geometry::Mask(grid) => ("mask", (cells(py, grid)?, points(py, &grid.corners)?).into_py_any(py)?),
        Geometry::ClassMap { classes, labels } => {
            let labels: Vec<&str> = labels.iter().map(|label| &**label).collect();
            ("class-map", (cells(py, classes)?, points(py, &classes.corners)?, labels).into_py_any(py)?)
        }
        Geometry::ValueMap(grid) => ("value-map", (cells(py, grid)?, points(py, &grid.corners)?).into_py_any(py)?),
        #[allow(unreachable_patterns, reason = "kinds that are added later have no form here yet")]
        _ => ("other", py.None()),
    })
}

/// Converts points to an array [K, 2].
fn points<'py>(py: Python<'py>, points: &[Point]) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let values: Vec<f32> = points.iter().flat_map(|point| [point.x, point.y]).collect();
    PyArray1::from_vec(py, values).reshape([points.len(), 2])
}

/// Converts the values of a grid to an array [rows, columns].
fn cells<'py, T: numpy::Element + Copy>(py: Python<'py>, grid: &Grid<T>) -> PyResult<Bound<'py, PyArray2<T>>> {
    PyArray1::from_slice(py, &grid.values).reshape([grid.rows(), grid.columns])
}
