//! Time to draw ten objects on a frame of 1920x1080 in NV12, as `roioverlay` does: boxes, captions, and what else can be turned on.
//!
//! Goal: at most 0.3 ms for boxes with captions. Prints the median and the 95th percentile of a frame in microseconds.

use std::time::Instant;

use roiflow_images::draw::{Canvas, Plane};
use roiflow_images::overlay::{Painter, Style, Surroundings};
use roiflow_images::privacy::{Privacy, PrivacyRules};
use roiflow_vision::frame::{Classification, Colorimetry, Detection, FrameResults, ObjectId, Outcome, PixelFormat, Rect, Size};

const SIZE: Size = Size::new(1920, 1080);
const N_FRAMES: usize = 600;

/// Ten tracked objects that move, with a confidence that changes.
fn results(frame: usize) -> FrameResults {
    let detections = (0..10).map(|n| {
        let (x, y) = (60.0 + 180.0 * n as f32 + (frame % 50) as f32, 120.0 + 70.0 * n as f32);
        let attribute = Outcome::Label { label_id: 0, label: Some("walking".into()), confidence: 0.9 };
        Detection {
            id: ObjectId(n + 1),
            track: Some(ObjectId(n + 1)),
            track_state: None,
            parent: None,
            rect: Rect { x, y, width: 140.0, height: 280.0 },
            keypoints: vec![],
            confidence: 0.5 + 0.04 * ((frame as i32 + n) % 10) as f32,
            label_id: n as u32 % 4,
            label: Some("person".into()),
            classifications: vec![Classification { name: "pose".into(), model: "m".into(), outcome: attribute }],
        }
    });
    FrameResults { size: SIZE, frame_number: frame as u64, detections: detections.collect(), ..FrameResults::default() }
}

/// Median and 95th percentile of the calls, in microseconds.
fn measure(name: &str, mut draw: impl FnMut(&mut Canvas, &FrameResults)) {
    let (width, height) = (SIZE.width as usize, SIZE.height as usize);
    let (mut luma, mut chroma) = (vec![100_u8; width * height], vec![128_u8; width * height / 2]);
    let mut times = Vec::with_capacity(N_FRAMES);
    for frame in 0..N_FRAMES {
        let results = results(frame);
        let planes =
            [Plane { bytes: &mut luma, row_stride_bytes: width }, Plane { bytes: &mut chroma, row_stride_bytes: width }, Plane::default()];
        let mut canvas =
            Canvas::new(PixelFormat::Nv12, SIZE, Colorimetry::default(), planes).expect("the planes have the size of the frame");
        let begin = Instant::now();
        draw(&mut canvas, &results);
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    // The first frames fill the caches.
    times.drain(..N_FRAMES / 10);
    times.sort_by(f64::total_cmp);
    println!("{name:<32} median {:7.1} us, 95 % {:7.1} us", times[times.len() / 2], times[times.len() * 95 / 100]);
}

fn main() {
    let painted = |name: &str, style: Style| {
        let mut painter = Painter::default();
        measure(name, |canvas, results| {
            painter.follow(results, &style);
            painter.draw(canvas, SIZE, results, &style, &Surroundings::default());
        });
    };
    painted("boxes and captions", Style::default());
    painted("boxes", Style { labels: false, ..Style::default() });
    painted("boxes, captions, trails of 30", Style { trail_length: 30, ..Style::default() });
    for (name, blur, pixelate) in [("blurred", vec!["person".into()], vec![]), ("pixelated", vec![], vec!["person".into()])] {
        let rules = PrivacyRules { blur, pixelate, ..PrivacyRules::default() };
        let mut privacy = Privacy::default();
        measure(name, |canvas, results| privacy.follow(&rules, SIZE, Some(results)).iter().for_each(|area| area.apply(canvas)));
    }
}
