//! Preprocessing, compared with stored results. `tests/golden/fill/make_fill.py` computed them from the definition, independently of this
//! implementation.

use std::path::Path;

use roiflow::frame::{ColorMatrix, ColorRange, Colorimetry, Frame, PixelFormat, PixelRect, PlanePlace, Size};
use roiflow::tensor::{ElementType, Memory, Tensor};
use roiflow::vision::{Anchor, ChannelOrder, InputLayout, Preprocess, Resize, Rounding, Scratch};
use serde_json::Value;

#[test]
fn preprocessing_matches_the_stored_results() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/fill");
    let data = std::fs::read(folder.join("data.bin")).expect("data.bin lies beside cases.json");
    let cases: Value = serde_json::from_slice(&std::fs::read(folder.join("cases.json")).unwrap()).unwrap();
    let cases = cases["cases"].as_array().unwrap();
    let mut scratch = Scratch::default();
    let (mut failures, mut n_halves, mut n_values) = (Vec::new(), 0, 0);
    for (case_idx, case) in cases.iter().enumerate() {
        match check(case, &data, &mut scratch) {
            Ok(counts) => (n_halves, n_values) = (n_halves + counts.0, n_values + counts.1),
            Err(difference) => failures.push(format!("case {case_idx}: {difference}\n    {case}")),
        }
    }
    assert!(failures.is_empty(), "{} of {} cases differ:\n{}", failures.len(), cases.len(), failures.join("\n"));
    assert!(cases.len() > 100);
    // A value that is almost exactly between two integers may be rounded in the other direction than in the reference, because its last bit
    // may differ. Such values must be rare.
    assert!(n_halves * 100 < n_values, "{n_halves} of {n_values} values are rounded the other way");
    eprintln!("{} cases, {n_values} values, {n_halves} rounded the other way", cases.len());
}

/// Preprocesses into the second of three batch items. Returns the number of values that differ by one rounding step, and the number of all
/// values.
fn check(case: &Value, data: &[u8], scratch: &mut Scratch) -> Result<(usize, usize), String> {
    let preprocess = preprocess(case);
    let [width, height] = numbers(&case["input"]);
    let n_channels = preprocess.color.n_channels();
    let shape = match preprocess.layout {
        InputLayout::Nchw => [3, n_channels, height, width],
        InputLayout::Nhwc => [3, height, width, n_channels],
    };
    let element: ElementType = text(&case["element"]).parse().unwrap();
    let tensor = Tensor::new(element, shape).unwrap();
    let region = frame(case, data).region(rect(&case["region"])).unwrap();
    let mut bytes = tensor.bytes_mut().unwrap();
    let transform = preprocess.fill(&region, &mut bytes, 1, scratch).map_err(|error| error.to_string())?;
    drop(bytes);

    let expected_transform: Vec<f64> = case["frame_from_input"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    let got_transform = [transform.scale.0, transform.scale.1, transform.offset.0, transform.offset.1].map(f64::from);
    if expected_transform.iter().zip(got_transform).any(|(expected, got)| (expected - got).abs() > 1e-5 * expected.abs().max(1.0)) {
        return Err(format!("frame_from_input: expected {expected_transform:?}, got {got_transform:?}"));
    }

    let row = tensor.roi(&[1, 0, 0, 0], &[2, shape[1], shape[2], shape[3]]).unwrap();
    let [start, n_bytes] = numbers(&case["expected"]);
    let expected = &data[start..][..n_bytes];
    let (got, expected): (Vec<f32>, Vec<f32>) = match element {
        ElementType::U8 => (row.view::<u8>().unwrap().iter().map(|&v| v.into()).collect(), expected.iter().map(|&v| v.into()).collect()),
        ElementType::I8 => {
            (row.view::<i8>().unwrap().iter().map(|&v| v.into()).collect(), expected.iter().map(|&v| (v as i8).into()).collect())
        }
        _ => (row.view::<f32>().unwrap().to_vec(), expected.as_chunks::<4>().0.iter().map(|&v| f32::from_le_bytes(v)).collect()),
    };
    if got.len() != expected.len() {
        return Err(format!("expected {} values, got {}", expected.len(), got.len()));
    }
    let scale = preprocess.scale.into_iter().fold(f32::INFINITY, f32::min);
    let fine = if element == ElementType::F32 { 1e-4 * 255.0 / scale } else { 0.0 };
    let step = if element == ElementType::F32 && preprocess.rounding == Rounding::Exact { 0.0 } else { 1.0 / scale };
    let mut n_off = 0;
    for (value_idx, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let difference = (got - expected).abs();
        if difference > fine + step || difference.is_nan() {
            return Err(format!("value {value_idx} of {}: expected {expected}, got {got}", row.shape()));
        }
        n_off += usize::from(difference > fine);
    }
    Ok((n_off, got.len()))
}

fn frame(case: &Value, data: &[u8]) -> Frame {
    let [start, n_bytes] = numbers(&case["frame"]);
    let memory = Memory::zeroed(n_bytes);
    memory.lease_write().unwrap().bytes_mut().copy_from_slice(&data[start..][..n_bytes]);
    let places: Vec<PlanePlace> = case["places"]
        .as_array()
        .unwrap()
        .iter()
        .map(|place| {
            let [offset_bytes, row_stride_bytes] = numbers(place);
            PlanePlace { offset_bytes, row_stride_bytes }
        })
        .collect();
    let matrix = match text(&case["matrix"]) {
        "bt601" => ColorMatrix::Bt601,
        "bt709" => ColorMatrix::Bt709,
        _ => ColorMatrix::Bt2020,
    };
    let range = if text(&case["range"]) == "full" { ColorRange::Full } else { ColorRange::Limited };
    let format = PixelFormat::from_name(text(&case["format"])).unwrap();
    let [width, height] = numbers(&case["size"]);
    Frame::over(&memory, format, Size::new(width as u32, height as u32), &places, Colorimetry { matrix, range }).unwrap()
}

fn preprocess(case: &Value) -> Preprocess {
    let three = |value: &Value| numbers_f32(value).try_into().expect("three numbers");
    Preprocess {
        color: match text(&case["color"]) {
            "rgb" => ChannelOrder::Rgb,
            "bgr" => ChannelOrder::Bgr,
            _ => ChannelOrder::Gray,
        },
        layout: if text(&case["layout"]) == "nchw" { InputLayout::Nchw } else { InputLayout::Nhwc },
        resize: match text(&case["resize"]) {
            "stretch" => Resize::Stretch,
            "letterbox-top-left" => Resize::Letterbox { anchor: Anchor::TopLeft },
            _ => Resize::Letterbox { anchor: Anchor::Center },
        },
        pad: case["pad"].as_f64().unwrap() as f32,
        mean: three(&case["mean"]),
        scale: three(&case["scale"]),
        rounding: if text(&case["rounding"]) == "u8" { Rounding::U8 } else { Rounding::Exact },
        ..Preprocess::default()
    }
}

fn rect(value: &Value) -> PixelRect {
    let [x, y, width, height] = numbers(value).map(|number| number as u32);
    PixelRect { x, y, width, height }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn numbers<const N: usize>(value: &Value) -> [usize; N] {
    let numbers: Vec<usize> = value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect();
    numbers.try_into().expect("as many numbers as asked for")
}

fn numbers_f32(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}
