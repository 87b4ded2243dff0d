//! Antialiased downscaling, compared with stored results of Pillow and torchvision. `tests/golden/antialias/make.py` created the results.

use std::path::Path;

use roiflow::frame::{Frame, PixelFormat, PixelRect, Size};
use roiflow::tensor::{ElementType, Tensor};
use roiflow::vision::{ChannelOrder, InputLayout, Preprocess, Rounding, Scratch};
use serde_json::Value;

fn numbers<const N: usize>(value: &Value) -> [usize; N] {
    std::array::from_fn(|idx| value[idx].as_u64().unwrap() as usize)
}

/// Returns the input tensor that preprocessing writes for a region of the case's image.
fn filled(case: &Value, data: &[u8], element: ElementType, rounding: Rounding, scratch: &mut Scratch) -> Tensor {
    let format = PixelFormat::from_name(case["format"].as_str().unwrap()).unwrap();
    let [[width, height], [input_width, input_height]] = [numbers(&case["size"]), numbers(&case["input"])];
    let [start, n_bytes] = numbers(&case["frame"]);
    let frame = Frame::from_packed(format, Size::new(width as u32, height as u32), &data[start..][..n_bytes]).unwrap();
    let [x, y, width, height] = numbers(&case["region"]).map(|number| number as u32);
    let region = frame.region(PixelRect { x, y, width, height }).unwrap();
    let color = if format == PixelFormat::Gray8 { ChannelOrder::Gray } else { ChannelOrder::Rgb };
    let preprocess = Preprocess { color, layout: InputLayout::Nhwc, rounding, antialias: true, ..Preprocess::default() };
    let tensor = Tensor::new(element, [1, input_height, input_width, color.n_channels()]).unwrap();
    preprocess.fill(&region, &mut tensor.bytes_mut().unwrap(), 0, scratch).unwrap();
    tensor
}

#[test]
fn downscaling_matches_pillow_and_torchvision() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/antialias");
    let data = std::fs::read(folder.join("data.bin")).expect("data.bin lies beside cases.json");
    let cases: Value = serde_json::from_slice(&std::fs::read(folder.join("cases.json")).unwrap()).unwrap();
    let cases = cases["cases"].as_array().unwrap();
    assert!(cases.len() > 20);
    let mut scratch = Scratch::default();
    let (mut worst, mut failures) = (0.0_f32, Vec::new());
    for (case_idx, case) in cases.iter().enumerate() {
        let expected = |name: &str| {
            let [start, n_bytes] = numbers(&case[name]);
            &data[start..][..n_bytes]
        };
        // For 8-bit images, the results must equal those of Pillow.
        let whole = filled(case, &data, ElementType::U8, Rounding::U8, &mut scratch).view::<u8>().unwrap().to_vec();
        if whole != expected("pillow_u8") {
            let n_differ = whole.iter().zip(expected("pillow_u8")).filter(|(got, expected)| got != expected).count();
            failures.push(format!("case {case_idx}: {n_differ} of {} pixels are not those of Pillow: {case}", whole.len()));
        }
        let exact = filled(case, &data, ElementType::F32, Rounding::Exact, &mut scratch).view::<f32>().unwrap().to_vec();
        for name in ["pillow_f32", "torch_f32"] {
            let expected = expected(name).as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
            assert_eq!(expected.len(), exact.len());
            worst = expected.zip(&exact).map(|(expected, got)| (expected - got).abs()).fold(worst, f32::max);
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // The tolerance is in units of 1/255. The remaining difference is the rounding of single precision.
    assert!(worst < 1e-3, "{worst}");
    eprintln!("{} cases, at most {worst} off", cases.len());
}
