//! Results of small generated models (`assets/tiny`) whose outputs can be computed by hand.

use roiflow::frame::{Frame, Outcome, PixelFormat, Size};
use roiflow::stages::{Stage, StageOptions};

use crate::support::tiny;

/// Returns the results of a classifier on the device CPU.
fn classified(name: &str, description: &str, frame: &Frame) -> Vec<Outcome> {
    try_classified(name, description, frame).unwrap()
}

fn try_classified(name: &str, description: &str, frame: &Frame) -> Result<Vec<Outcome>, roiflow::stages::Error> {
    let text = format!("version = 1\ntask = \"classification\"\n{description}");
    let options =
        StageOptions { model: tiny(name), device: Some("CPU".to_owned()), description_text: Some(text), ..StageOptions::default() };
    let found = Stage::classifier(&options)?.classify(frame)?;
    Ok(found.into_iter().map(|classification| classification.outcome).collect())
}

/// The model's input is the pixel - 128 as i8, and its output is 20 + 200 times the mean of a channel as u8.
#[test]
fn integers_of_a_quantized_model_are_the_numbers_of_its_description() {
    let frame = Frame::from_packed(PixelFormat::Rgb, Size::new(8, 8), &[200, 100, 50].repeat(64)).unwrap();
    let description = r#"
        [input]
        scale = 255
        quantization = { scale = 0.00392156862745098, zero-point = -128 }
        [output]
        decoder = "multi-label"
        activation = "none"
        threshold = 0.3
        labels = ["red", "green", "blue"]
        quantization = { scores = { scale = 0.005, zero-point = 20 } }
    "#;
    let [Outcome::Labels(labels)] = &classified("quantized.onnx", description, &frame)[..] else { panic!("expected labels") };
    let scores: Vec<(&str, f32)> = labels.iter().map(|label| (label.label.as_deref().unwrap(), label.confidence)).collect();
    // 200 / 255 * 200 is 156.9, so the output is 177, and the number is (177 - 20) * 0.005.
    let expected = [("red", 0.785_f32), ("green", 0.39)];
    assert_eq!(scores.len(), 2, "blue has 0.195: {scores:?}");
    for (score, expected) in scores.iter().zip(expected) {
        assert!(score.0 == expected.0 && (score.1 - expected.1).abs() < 1e-6, "{scores:?}");
    }
    // Without `quantization`, the decoder would get the integers.
    let plain = description.lines().filter(|line| !line.contains("scores =")).collect::<Vec<_>>().join("\n");
    let [Outcome::Labels(labels)] = &classified("quantized.onnx", &plain, &frame)[..] else { panic!("expected labels") };
    assert_eq!(labels[0].confidence, 177.0);
}

/// Each row of the image has the index of a character. A row above 100 becomes -1, and ends the text.
#[test]
fn indexes_of_characters_end_at_minus_one() {
    let image = |rows: [u8; 8]| {
        let pixels: Vec<u8> = rows.iter().flat_map(|&row| [row; 24]).collect();
        Frame::from_packed(PixelFormat::Rgb, Size::new(8, 8), &pixels).unwrap()
    };
    let description =
        |more: &str| format!("[output]\ndecoder = \"text-indexes\"\nlabels = [\"0\", \"1\", \"2\", \"<Beijing>\", \"a\"]\n{more}");
    let text = |description: &str, rows: [u8; 8]| match &classified("plate.onnx", description, &image(rows))[..] {
        [Outcome::Text { text, confidence }] => {
            assert_eq!(*confidence, 1.0);
            Some(text.to_string())
        }
        [] => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(text(&description(""), [3, 4, 1, 1, 0, 200, 2, 2]).as_deref(), Some("<Beijing>a110"));
    assert_eq!(text(&description(""), [1, 1, 1, 1, 1, 1, 1, 2]).as_deref(), Some("11111112"), "a text without end");
    assert_eq!(text(&description(""), [200; 8]), None);
    let formats = "uppercase = true\nformats = [{ pattern = \"<(.+)>([A-Z])([0-9]+)\", text = \"$1 $2-$3\" }]";
    assert_eq!(text(&description(formats), [3, 4, 1, 1, 0, 200, 2, 2]).as_deref(), Some("BEIJING A-110"));
    assert_eq!(text(&description(formats), [4, 4, 200, 0, 0, 0, 0, 0]), None, "no format matches");
    assert_eq!(text("[output]\ndecoder = \"text-indexes\"", [7, 12, 200, 0, 0, 0, 0, 0]).as_deref(), Some("7 12"), "no labels");
    let error = try_classified("plate.onnx", &description(""), &image([1, 5, 200, 0, 0, 0, 0, 0])).unwrap_err().to_string();
    assert!(error.contains("expected an index of one of the 5 labels, or -1 as the end, got 5"), "{error}");
    let error = try_classified("clip.onnx", &description("[clip]"), &image([1; 8])).unwrap_err().to_string();
    assert!(error.contains("roiclassify"), "{error}");
}
