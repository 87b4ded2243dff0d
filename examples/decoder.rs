//! Custom decoders of an application: one for boxes with a keypoint, one for the output of a classifier. Descriptions use them by name,
//! like built-in decoders. Both tiny models are part of the project.
//!
//! ```text
//! cargo run --no-default-features --example decoder
//! ```

use std::path::Path;

use roiflow::frame::{Frame, Outcome, PixelFormat, Point, Rect, Size};
use roiflow::stages::{Engine, Stage, StageOptions};
use roiflow::tensor::{Error, ErrorKind, Result};
use roiflow::vision::decode::{BoxDecoder, BoxScheme, Decoder, DecoderRegistry, Output, RawDetection, Reads, Results, Subject};

/// Decoder for rows of background score, object score and two corners in 0..=1. The keypoint is the center of the box.
#[derive(Debug)]
struct Corners;

impl BoxScheme for Corners {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        match outputs {
            [(_, [_, _, 6])] => Ok(1),
            other => Err(Error::new(ErrorKind::Shape, format!("expected one output [1, N, 6], got {other:?}"))),
        }
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let (width, height) = (input.width as f32, input.height as f32);
        for (row, values) in (0..).zip(outputs[0].data.as_chunks::<6>().0) {
            let &[_, score, x_min, y_min, x_max, y_max] = values;
            if score > score_min {
                let rect = Rect::from_corners(x_min * width, y_min * height, x_max * width, y_max * height);
                results.boxes.push(RawDetection { rect, score, class_id: 0, row });
                results.add_keypoints(row, [Point { x: rect.x + rect.width / 2.0, y: rect.y + rect.height / 2.0 }]);
            }
        }
        Ok(())
    }
}

/// Decoder for the difference of red and blue, from the probabilities of red, green, blue and other colors. Its key in a description is
/// `gain`.
#[derive(Debug, serde::Deserialize)]
struct Warmth {
    gain: f32,
}

impl Decoder for Warmth {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        match outputs {
            [(_, [_, 4])] => Ok(0),
            other => Err(Error::new(ErrorKind::Shape, format!("expected an output [1, 4], got {other:?}"))),
        }
    }

    fn decode(&self, outputs: &[Output<'_>], _input: Size, results: &mut Results) -> Result<()> {
        let colors = outputs[0].data;
        results.say(Outcome::Value((colors[0] - colors[2]) * self.gain));
        Ok(())
    }

    fn reads(&self) -> Reads {
        Reads::One
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut decoders = DecoderRegistry::default();
    decoders.register("corners", Subject::Objects, |section| BoxDecoder::new(Corners, section));
    decoders.register("warmth", Subject::Attributes, |section| section.read::<Warmth>());
    let engine = Engine::new(roiflow::devices::core().clone());
    engine.set_decoders(decoders);
    let folder = std::env::temp_dir().join(format!("roiflow-decoder-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let options = |model: &str, description: &str| -> std::io::Result<StageOptions> {
        let path = folder.join(format!("{model}.toml"));
        std::fs::write(&path, description)?;
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny").join(format!("{model}.onnx"));
        Ok(StageOptions { model, description: Some(path), engine: engine.clone(), ..StageOptions::default() })
    };
    let detection = "version = 1\ntask = \"detection\"\n[input]\nlayout = \"nhwc\"\n[output]\ndecoder = \"corners\"\n";
    let detector = Stage::detector(&options("rectangle", detection)?)?;
    let classification = "version = 1\ntask = \"classification\"\nname = \"warmth\"\n[output]\ndecoder = \"warmth\"\ngain = 100\n";
    let classifier = Stage::classifier(&options("color", classification)?)?;

    // A red square of 16 x 16 pixels in a black image.
    let pixels: Vec<u8> = (0..64 * 64).flat_map(|n| if n / 64 / 16 == 1 && n % 64 / 16 == 2 { [255, 0, 0] } else { [0; 3] }).collect();
    let frame = Frame::from_packed(PixelFormat::Rgb, Size::new(64, 64), &pixels)?;
    for found in detector.detect(&frame)? {
        let region = frame.region(found.rect.to_pixels(frame.size()).ok_or("the box is outside the image")?)?;
        println!("{:?}, center {:?}: {:?}", found.rect, found.keypoints, classifier.classify(&region)?);
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
