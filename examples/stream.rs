//! Runs a pipeline description in an application: pushes images, iterates over the frames with their results.
//!
//! ```text
//! make demo    # once: downloads the models
//! cargo run --release --example stream -- pipelines/faces.toml image.jpg other.jpg
//! ```

use std::path::Path;
use std::time::Duration;

use roiflow::frame::{Frame, PixelFormat, Size};
use roiflow::pipeline::{Spec, Stream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let description = arguments.next().ok_or("usage: stream PIPELINE IMAGE...")?;
    let images: Vec<String> = arguments.collect();
    let stream = Stream::open(&Spec::read(Path::new(&description))?, &[])?;

    // The sender blocks while the pipeline is full, so it runs on a separate thread.
    let sender = stream.sender();
    let feeder = std::thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for (image_idx, path) in images.iter().enumerate() {
            let image = image::open(path).map_err(|error| format!("cannot read image `{path}`: {error}"))?.into_rgb8();
            let frame = Frame::from_packed(PixelFormat::Rgb, Size::new(image.width(), image.height()), image.as_raw())?;
            sender.push(&frame, Some(Duration::from_secs(image_idx as u64)))?;
        }
        Ok(sender.end()?)
    });

    let mut ended = Ok(());
    for frame in stream {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => {
                ended = Err(error);
                break;
            }
        };
        println!("at {:?}:", frame.pts.unwrap_or_default());
        for detection in &frame.results.detections {
            let label = detection.label.as_deref().unwrap_or("object");
            println!("  {label} {:.2} at {:?}", detection.confidence, detection.rect);
            for classification in &detection.classifications {
                println!("    {}: {:?}", classification.name, classification.outcome);
            }
        }
    }
    // An error of the feeder explains an early end of the stream.
    feeder.join().map_err(|_| "the feeder panicked")?.map_err(|error| error.to_string())?;
    Ok(ended?)
}
