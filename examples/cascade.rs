//! A cascade on one image with inference requests, without GStreamer: a detector finds faces, each face is a zero-copy region of the
//! image, and a classifier runs on it.
//!
//! ```text
//! make demo    # once: downloads the models
//! cargo run --release --no-default-features --example cascade -- image.jpg
//! ```

use std::path::Path;

use roiflow::devices;
use roiflow::frame::{Frame, PixelFormat, Rect, Size};
use roiflow::runtime::{Config, InferRequest};
use roiflow::stages::{ModelSpec, StageOptions, image_input};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: cascade IMAGE")?;
    let image = image::open(path)?.into_rgb8();
    let size = Size::new(image.width(), image.height());
    let frame = Frame::from_packed(PixelFormat::Rgb, size, image.as_raw())?;

    let (detector, faces) = request("ultraface_rfb_320_nhwc.onnx", "ultraface-rfb-320.toml")?;
    let (classifier, gender) = request("gender-v1.onnx", "gender.toml")?;

    // The detector's input is the whole image. A row of its output is: background, face, x1, y1, x2, y2.
    detector.set_input((), image_input(frame.clone()).preprocess(faces.preprocess.clone()))?;
    detector.infer(())?;
    let found = detector.output_tensor(())?;
    let best = found.view::<f32>()?.rows().into_iter().max_by(|a, b| a[1].total_cmp(&b[1])).map(|row| row.to_vec()).ok_or("no boxes")?;
    let (width, height) = (size.width as f32, size.height as f32);
    let face = Rect::from_corners(best[2] * width, best[3] * height, best[4] * width, best[5] * height);

    // The classifier's input is the face: a view of the same memory, not a copy.
    let region = frame.region(face.to_pixels(size).ok_or("the box is outside the image")?)?;
    classifier.set_callback(|request, result| println!("request {}: {result:?}", request.id()))?;
    classifier.set_input("images", image_input(region).preprocess(gender.preprocess.clone()))?;
    classifier.start_async(())?;
    classifier.wait()?;
    let scores = classifier.output_tensor("probabilities")?.view::<f32>()?.to_vec();
    println!("face at {face:?} with score {:.3}: female {:.3}, male {:.3}", best[1], scores[0], scores[1]);
    Ok(())
}

/// Reads and compiles one of the demo's models.
fn request(model: &str, description: &str) -> Result<(InferRequest, ModelSpec), Box<dyn std::error::Error>> {
    let core = devices::core();
    let path = Path::new("assets/demo").join(model);
    let compiled = core.compile_model(&core.read_model(&path)?, "AUTO", &Config::default())?;
    let options = StageOptions { model: path, description: Some(Path::new("assets/models").join(description)), ..StageOptions::default() };
    let spec = ModelSpec::load(&options, compiled.info())?;
    Ok((compiled.create_infer_request()?, spec))
}
