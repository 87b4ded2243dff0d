//! Measures what tiles gain and cost: finds the objects of an image again after the image was pasted many times into a large frame.
//!
//! ```text
//! cargo run --release --no-default-features --example tiles -- MODEL IMAGE [DEVICE]
//! ```
//!
//! The objects that the model finds in IMAGE are the ground truth. The frame has 3840x2160 pixels and contains as many copies of IMAGE as
//! fit, in several sizes. The example prints for each size and each number of tiles: the share of the objects that are found (recall: IoU of
//! at least 0.5 and the same class), the number of other objects per true object, the number of runs of the model, and the time of a frame.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use image::RgbImage;
use image::imageops::{self, FilterType};
use roiflow::frame::{Detection, Frame, PixelFormat, Rect, Size};
use roiflow::stages::{RunGuard, SearchArea, Stage, StageOptions, StageResults, TileCount, Tiles};

const FRAME: Size = Size::new(3840, 2160);
/// Each time is the median of this number of frames.
const N_FRAMES: usize = 5;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let (model, image) = arguments.next().zip(arguments.next()).ok_or("usage: tiles MODEL IMAGE [DEVICE]")?;
    let options = StageOptions { model: model.into(), device: arguments.next(), ..StageOptions::default() };
    let image = image::open(image)?.into_rgb8();
    let truth = Stage::detector(&options)?.detect(&frame(&image)?)?;
    if truth.is_empty() {
        return Err(
            "finding objects in IMAGE failed: expected at least one object, got none. Use an image with objects of the model's classes"
                .into(),
        );
    }
    let heights = truth.iter().map(|object| object.rect.height);
    println!("{} objects in the image, {:.0} to {:.0} pixels high", truth.len(), min(heights.clone()), -min(heights.map(|height| -height)));
    println!("size  tiles    recall  others  runs  ms");
    for scale in [1.0, 0.5, 0.25] {
        let (large, objects) = pasted(&image, &truth, scale);
        let large = frame(&large)?;
        for tiles in [None, Some("2x2"), Some("4x2"), Some("auto")] {
            let count = tiles.map(str::parse::<TileCount>).transpose()?;
            let tiles = count.map(|count| Tiles { count, overlap: 0.2 });
            let (found, n_runs, took) = detected(&options, &large, tiles)?;
            let is_found = |object: &&(Rect, u32)| found.iter().any(|found| found.label_id == object.1 && found.rect.iou(&object.0) >= 0.5);
            let n_found = objects.iter().filter(is_found).count();
            let share = |n: usize| n as f64 / objects.len() as f64;
            println!(
                "{scale:4}  {:7}  {:5.3}   {:5.3}   {n_runs:4}  {:.0}",
                count.map_or("none".to_owned(), |count| count.to_string()),
                share(n_found),
                share(found.len().saturating_sub(n_found)),
                took.as_secs_f64() * 1e3
            );
        }
    }
    Ok(())
}

fn frame(image: &RgbImage) -> Result<Frame, Failure> {
    Ok(Frame::from_packed(PixelFormat::Rgb, Size::new(image.width(), image.height()), image.as_raw())?)
}

fn min(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(f32::INFINITY, f32::min)
}

/// Returns a gray frame with copies of the image, and the boxes and classes of their objects. The distances of the copies vary, so that the
/// borders of tiles cut the objects at different places.
fn pasted(image: &RgbImage, truth: &[Detection], scale: f32) -> (RgbImage, Vec<(Rect, u32)>) {
    let (width, height) = ((image.width() as f32 * scale) as u32, (image.height() as f32 * scale) as u32);
    let small = imageops::resize(image, width, height, FilterType::Triangle);
    let mut large = RgbImage::from_pixel(FRAME.width, FRAME.height, image::Rgb([114; 3]));
    let mut objects = Vec::new();
    let mut random = 7_u32;
    let mut distance = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        4 + (random >> 16) % 40
    };
    let mut y = distance();
    while y + height <= FRAME.height {
        let mut x = distance();
        while x + width <= FRAME.width {
            imageops::replace(&mut large, &small, i64::from(x), i64::from(y));
            objects.extend(truth.iter().map(|object| {
                let Rect { x: left, y: top, width, height } = object.rect;
                let rect = Rect { x: x as f32 + left * scale, y: y as f32 + top * scale, width: width * scale, height: height * scale };
                (rect, object.label_id)
            }));
            x += width + distance();
        }
        y += height + distance();
    }
    (large, objects)
}

/// Returns the detections of a frame, the number of runs or batch items, and the median time.
fn detected(options: &StageOptions, frame: &Frame, tiles: Option<Tiles>) -> Result<(Vec<Detection>, u64, Duration), Failure> {
    let stage = match tiles {
        None => Stage::detector(options)?,
        Some(tiles) => Stage::detector_of_tiles(options, tiles.n_areas())?,
    };
    stage.warm_up()?;
    let n_before = stage.stats().n_items;
    let mut times = Vec::new();
    let mut found = Vec::new();
    for _ in 0..N_FRAMES {
        let (sender, receiver) = mpsc::channel();
        let done = move |results: StageResults| drop(sender.send(results));
        let (begin, guard): (_, Arc<RunGuard>) = (Instant::now(), RunGuard::now());
        match &tiles {
            None => stage.submit(frame.clone(), 0, guard, done),
            Some(tiles) => stage.submit_tiles(frame.clone(), 0, (tiles, &SearchArea::default()), guard, done),
        }
        found = receiver.recv()?.into_result()?.detections;
        times.push(begin.elapsed());
    }
    times.sort();
    Ok((found, (stage.stats().n_items - n_before) / N_FRAMES as u64, times[N_FRAMES / 2]))
}
