//! Alignment by keypoints, compared with stored results: scikit-image computed the similarity transforms, and OpenCV warped the images.
//! `tests/golden/align/make.py` created the results.

use std::path::Path;

use roiflow::frame::{Frame, PixelFormat, Point, Size};
use roiflow::stages::Crop;
use roiflow::tensor::{ElementType, Tensor};
use roiflow::vision::{InputLayout, Preprocess, Rounding, Scratch};
use serde_json::Value;

fn numbers<const N: usize>(value: &Value) -> [usize; N] {
    std::array::from_fn(|idx| value[idx].as_u64().unwrap() as usize)
}

fn points(value: &Value) -> Vec<Point> {
    let number = |value: &Value| value.as_f64().unwrap() as f32;
    value.as_array().unwrap().iter().map(|point| Point { x: number(&point[0]), y: number(&point[1]) }).collect()
}

#[test]
fn alignment_matches_opencv() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/align");
    let data = std::fs::read(folder.join("data.bin")).expect("data.bin lies beside cases.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(folder.join("cases.json")).unwrap()).unwrap();
    let crop = Crop { align: points(&golden["targets"]), ..Crop::default() };
    let mut scratch = Scratch::default();
    for case in golden["cases"].as_array().unwrap() {
        let stored = |name: &str| {
            let [start, n_bytes] = numbers(&case[name]);
            &data[start..][..n_bytes]
        };
        let [[width, height], [input_width, input_height]] = [numbers(&case["size"]), numbers(&case["input"])];
        let frame = Frame::from_packed(PixelFormat::Rgb, Size::new(width as u32, height as u32), stored("frame")).unwrap();
        let input_size = Size::new(input_width as u32, input_height as u32);
        let frame_from_input = crop.alignment(&points(&case["keypoints"]), input_size).unwrap();
        let mut fill = |element, rounding| {
            let pad = case["pad"].as_f64().unwrap() as f32;
            let preprocess = Preprocess { layout: InputLayout::Nhwc, pad, rounding, ..Preprocess::default() };
            let tensor = Tensor::new(element, [1, input_height, input_width, 3]).unwrap();
            preprocess.fill_along(&frame, &frame_from_input, &mut tensor.bytes_mut().unwrap(), 0, &mut scratch).unwrap();
            tensor
        };
        let exact = fill(ElementType::F32, Rounding::Exact).view::<f32>().unwrap().to_vec();
        let expected = stored("exact").as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        let worst = expected.zip(&exact).map(|(expected, got)| (expected - got).abs()).fold(0.0, f32::max);
        // Both programs compute the keypoints and the transform in single precision, so positions differ by up to 1e-5 pixels, and values
        // by a little.
        assert!(worst < 5e-3, "{worst}: {case}");
        let whole = fill(ElementType::U8, Rounding::U8).view::<u8>().unwrap().to_vec();
        let differences: Vec<u8> = whole.iter().zip(stored("opencv")).map(|(got, expected)| got.abs_diff(*expected)).collect();
        let n_off = differences.iter().filter(|difference| **difference > 0).count();
        assert!(differences.iter().all(|difference| *difference <= 1) && n_off * 100 <= differences.len(), "{n_off}: {case}");
    }
}
