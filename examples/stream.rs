//! Runs a pipeline description inside an application: pushes pictures in, iterates over the frames with their results.
//!
//! ```text
//! make demo    # once: brings the models
//! cargo run --release --example stream -- pipelines/faces.toml picture.jpg other.jpg
//! ```

use std::path::Path;
use std::time::Duration;

use roiflow::frame::{Frame, PixelFormat, Size};
use roiflow::pipeline::{Spec, Stream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let description = arguments.next().ok_or("usage: stream PIPELINE PICTURE...")?;
    let pictures: Vec<String> = arguments.collect();
    let stream = Stream::open(&Spec::read(Path::new(&description))?, &[])?;

    // The sender may block while the pipeline is full, so it has a thread of its own.
    let sender = stream.sender();
    let feeder = std::thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for (picture_idx, path) in pictures.iter().enumerate() {
            let picture = image::open(path).map_err(|error| format!("cannot read picture `{path}`: {error}"))?.into_rgb8();
            let frame = Frame::from_packed(PixelFormat::Rgb, Size::new(picture.width(), picture.height()), picture.as_raw())?;
            sender.push(&frame, Some(Duration::from_secs(picture_idx as u64)))?;
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
            for said in &detection.classifications {
                println!("    {}: {:?}", said.name, said.outcome);
            }
        }
    }
    // A feeder that failed is the reason why the stream ended early.
    feeder.join().map_err(|_| "the feeder panicked")?.map_err(|error| error.to_string())?;
    Ok(ended?)
}
