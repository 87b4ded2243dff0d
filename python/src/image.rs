//! Images: numpy arrays as frames over the same memory, image files as arrays, and results drawn on arrays.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use numpy::{PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyFileNotFoundError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use roiflow_images::draw::{Canvas, Plane};
use roiflow_images::file;
use roiflow_images::font::{LastTypeface, Typeface};
use roiflow_images::overlay::{Painter, Style, Surroundings};
use roiflow_images::privacy::{Privacy, PrivacyRules};
use roiflow_vision::frame::{ColorMatrix, ColorRange, Colorimetry, Frame, PixelFormat, Size};

use crate::array;
use crate::errors::{OrRaise, Panicked, ReadError};
use crate::interpreter::detached;
use crate::results::PyResults;
use crate::tensor::{ElementType, Layout};

/// The colorimetry of gray arrays, whose values are from 0 to 255.
const COLORIMETRY: Colorimetry = Colorimetry { matrix: ColorMatrix::Bt601, range: ColorRange::Full };
/// The font of the last call of [`_plot`] with a font.
static FONT: Mutex<LastTypeface> = Mutex::new(LastTypeface::new());

/// Returns the pixel format of an array with this number of channels.
fn format_of(n_channels: usize, color: &str) -> PyResult<PixelFormat> {
    let is_bgr = match color {
        "bgr" => true,
        "rgb" => false,
        other => return Err(PyValueError::new_err(format!("color: expected \"bgr\" or \"rgb\", got {other:?}"))),
    };
    Ok(match (n_channels, is_bgr) {
        (1, _) => PixelFormat::Gray8,
        (3, true) => PixelFormat::Bgr,
        (3, false) => PixelFormat::Rgb,
        (4, true) => PixelFormat::Bgra,
        (4, false) => PixelFormat::Rgba,
        (other, _) => return Err(PyValueError::new_err(format!("image: expected 1, 3 or 4 channels, got {other}"))),
    })
}

/// Returns the pixel format and size of an image.
///
/// Raises TypeError if the element type is not uint8, and ValueError if the shape is not [H, W], [H, W, 1], [H, W, 3] or [H, W, 4].
fn checked(image: &Bound<'_, PyUntypedArray>, color: &str) -> PyResult<(PixelFormat, Size)> {
    let dtype = image.dtype();
    if array::element_of(image).ok() != Some(ElementType::U8) {
        return Err(PyTypeError::new_err(format!(
            "image: expected an array of uint8 with values from 0 to 255, got {dtype}. Convert it first: numbers from 0 to 1 by (image * 255).astype(\"uint8\")"
        )));
    }
    let shape = image.shape();
    let (height, width, n_channels) = match *shape {
        [height, width] => (height, width, 1),
        [height, width, n_channels] if matches!(n_channels, 1 | 3 | 4) => (height, width, n_channels),
        [n_channels @ (1 | 3), height, width] => {
            return Err(PyValueError::new_err(format!(
                "image: expected channels last, [height, width, channels], got [{n_channels}, {height}, {width}]. Use np.moveaxis(image, 0, -1)"
            )));
        }
        [_, _, _, _] => {
            return Err(PyValueError::new_err(format!(
                "image: expected one image, got shape {shape:?}. Pass a batch as a list: list(images)"
            )));
        }
        _ => return Err(PyValueError::new_err(format!("image: expected shape [H, W], [H, W, 3] or [H, W, 4], got {shape:?}"))),
    };
    let format = format_of(n_channels, color)?;
    match (u32::try_from(width), u32::try_from(height)) {
        (Ok(width @ 1..), Ok(height @ 1..)) => Ok((format, Size::new(width, height))),
        _ => Err(PyValueError::new_err(format!("image: expected at least 1x1 pixels, got {width}x{height}"))),
    }
}

/// Creates a frame over the memory of an array, and keeps the array alive. If the pixels of a row are not contiguous, the frame has a copy.
///
/// Raises the exceptions of [`checked`], and ValueError for negative strides.
pub fn frame_of(image: &Bound<'_, PyUntypedArray>, color: &str) -> PyResult<Frame> {
    let (format, size) = checked(image, color)?;
    let (shape, strides) = (image.shape(), image.strides());
    if let Some(axis) = (0..shape.len()).find(|&axis| strides[axis] < 0 && shape[axis] > 1) {
        let advice = match axis {
            2 => "Pass the array as it was before the channels were reversed, with color=\"bgr\" or color=\"rgb\"",
            _ => "Use np.ascontiguousarray(image)",
        };
        return Err(PyValueError::new_err(format!(
            "image: expected strides of 0 or more, got {} for axis {axis}. {advice}",
            strides[axis]
        )));
    }
    let plane_shape = format.plane_shape(0, size);
    let dense = Layout::dense(format.element(), plane_shape).or_raise()?;
    // The stride of an axis of length 1 may be any number, because no second element uses it.
    let used: Vec<usize> = (0..plane_shape.len())
        .map(|axis| if shape[axis] > 1 { strides[axis].unsigned_abs() } else { dense.stride_bytes()[axis] })
        .collect();
    let is_in_place = used[1..] == dense.stride_bytes()[1..] && used[0] >= dense.stride_bytes()[0];
    let tensor = if is_in_place {
        let layout = Layout::strided(format.element(), plane_shape, &used).or_raise()?;
        array::strided(image, layout)?
    } else {
        let copy = array::cast(image, ElementType::U8)?;
        array::shared(&copy, ElementType::U8, &plane_shape)?
    };
    Frame::from_planes(format, size, &[tensor], COLORIMETRY).or_raise()
}

/// Reads an image file as an array [H, W, 3] of RGB: upright, complete, at most 128 million pixels.
///
/// Raises FileNotFoundError if the file does not exist, and ReadError with the reason if it cannot be read.
#[pyfunction]
pub fn _read_image<'py>(py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyAny>> {
    if !path.exists() {
        return Err(PyFileNotFoundError::new_err(format!("no image `{}`", file::shown(&path))));
    }
    let decoded = detached(py, || catch_unwind(AssertUnwindSafe(|| file::read(&path))));
    let image = match decoded {
        Ok(Ok(image)) => image.pixels,
        Ok(Err(reason)) => return Err(ReadError::new_err(format!("cannot read image `{}`: {reason}", file::shown(&path)))),
        Err(_) => return Err(Panicked::new_err(format!("the decoder of image `{}` panicked", file::shown(&path)))),
    };
    let shape = [image.height() as usize, image.width() as usize, 3];
    Ok(numpy::PyArray1::from_vec(py, image.into_raw()).reshape(shape)?.into_any())
}

/// Reads a gray PNG image of 8 or 16 bits as an array [rows, columns].
///
/// Raises ValueError with the reason if it is no such image, or has another shape.
#[pyfunction]
pub fn _read_gray<'py>(py: Python<'py>, image: &[u8], shape: (u32, u32)) -> PyResult<Bound<'py, PyAny>> {
    let (rows, columns) = shape;
    let decoded = catch_unwind(|| file::gray_png(image, columns, rows)).unwrap_or_else(|_| Err("the decoder panicked".to_owned()));
    let pixels =
        decoded.map_err(|reason| PyValueError::new_err(format!("expected a gray PNG image of {columns}x{rows} pixels: {reason}")))?;
    Ok(numpy::PyArray1::from_vec(py, pixels).reshape([rows as usize, columns as usize])?.into_any())
}

/// Returns a copy of the image on which the results are drawn, like the element `roioverlay` draws them.
///
/// Raises the exceptions of [`frame_of`], ValueError if the image of the results had another size, and ReadError if the font cannot be read.
#[pyfunction]
pub fn _plot<'py>(
    image: &Bound<'py, PyUntypedArray>,
    color: &str,
    results: &PyResults,
    style: (bool, bool, u32, u32, u32),
    title: &str,
    font: Option<PathBuf>,
    privacy: (Vec<String>, Vec<String>),
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let (format, size) = checked(image, color)?;
    results.check_size(size)?;
    let copy = array::cast(image, ElementType::U8)?;
    let (labels, confidence, thickness, font_size, mask_opacity) = style;
    let style = Style { labels, confidence, thickness, font_size, mask_opacity, ..Style::default() };
    let results = results.results.clone();
    let typeface = match font {
        None => Typeface::default(),
        Some(path) => FONT.lock().unwrap_or_else(PoisonError::into_inner).of_file(&path).map_err(ReadError::new_err)?,
    };
    let (blur, pixelate) = privacy;
    let obscured = Privacy::default().follow(&PrivacyRules { blur, pixelate, ..PrivacyRules::default() }, size, Some(&results));
    array::with_bytes_mut(&copy, |bytes| {
        let row_stride_bytes = size.width as usize * format.pixel_bytes();
        let planes = [Plane { bytes, row_stride_bytes }, Plane::default(), Plane::default()];
        let mut canvas = Canvas::new(format, size, COLORIMETRY, planes).expect("the array has the bytes of its shape");
        obscured.iter().for_each(|area| area.apply(&mut canvas));
        Painter::new(typeface).draw(&mut canvas, size, &results, &style, &Surroundings { title, ..Surroundings::default() });
    });
    Ok(copy)
}
