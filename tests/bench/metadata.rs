//! Cost of results on frames that pass through three inference elements to a reader: `cargo bench --bench metadata`.
//!
//! The baseline is work that other elements need in any case: region metas of all objects with their structures, written with GStreamer
//! functions by one program. `harness` describes the pairs.
//!
//! `--quick` checks within a second that everything works. `--pairs N` sets the number of pairs.

#[path = "../support/allocator.rs"]
mod allocator;
#[allow(dead_code, reason = "what the other benchmark measures with it")]
mod harness;

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use gstreamer as gst;
use gstreamer_video::VideoRegionOfInterestMeta as RoiMeta;
use harness::{Clock, Effort, Estimate, Pairs};
use roiflow::elements::meta;
use roiflow::frame::{Classification, Detection, FrameResults, ObjectId, Outcome, Rect, Size};

const N_OBJECTS: usize = 64;
const SIZE: Size = Size::new(1920, 1080);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let (quick, n_pairs) = match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => (false, 21),
        ["--quick"] => (true, 2),
        ["--pairs", n] if n.parse().is_ok_and(|n: usize| n >= 7) => (false, n.parse().unwrap_or(7)),
        _ => {
            eprintln!("expected --quick, or --pairs N with at least 7, got {}", args.join(" "));
            return ExitCode::from(2);
        }
    };
    if let Err(error) = roiflow::elements::register_static() {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    harness::check();
    let effort = Effort { n_pairs, block: Duration::from_millis(50), n_runs_min: 1, quick };
    let found = found();
    println!("{N_OBJECTS} objects a frame, processor time a frame: the regions alone, all metas, the ratio and its 95 % interval");
    let three_regions = || regions(&[add_detections, add_genders, add_ages]);
    let three_elements = || {
        let mut buffer = detected(&found);
        classify(&mut buffer, &gender);
        classify(&mut buffer, &age);
        black_box(meta::read_shared(&buffer, SIZE));
    };
    print("three elements and a reader", &effort.compare(runs(&three_regions), runs(&three_elements)));
    let one_region = || regions(&[add_detections]);
    print("of these: the detector", &effort.compare(runs(&one_region), runs(&|| drop(detected(&found)))));
    let classified = {
        let mut buffer = detected(&found);
        classify(&mut buffer, &gender);
        buffer
    };
    let read = || drop(black_box(meta::read_shared(&classified, SIZE)));
    print("a reader, against the regions of one element", &effort.compare(runs(&one_region), runs(&read)));
    let passes = || {
        let mut buffer = detected(&found);
        classify(&mut buffer, &|_| None);
    };
    print("the detector, and an element that adds nothing", &effort.compare(runs(&one_region), runs(&passes)));
    let (n_allocations, ..) = allocator::of_this_thread(three_elements);
    let (n_needed, ..) = allocator::of_this_thread(three_regions);
    println!("{:<56} {n_needed:>8} {n_allocations:>10}", "Rust's allocations, three elements and a reader");
    ExitCode::SUCCESS
}

fn print(name: &str, pairs: &Pairs) {
    let median = |side: fn(&(harness::Reading, harness::Reading)) -> f64| Estimate::of(pairs.0.iter().map(side)).median / 1e3;
    let (bare, ours) = (median(|pair| pair.0.get(Clock::Cpu)), median(|pair| pair.1.get(Clock::Cpu)));
    let Estimate { median, low, high } = Estimate::of(pairs.0.iter().map(|(bare, ours)| ours.get(Clock::Cpu) / bare.get(Clock::Cpu)));
    println!("{name:<56} {bare:>5.1} us {ours:>7.1} us  {median:.2} x ({low:.2} .. {high:.2})");
}

/// Converts a closure for one run to a closure for a number of runs.
fn runs(act: &dyn Fn()) -> impl FnMut(usize) {
    move |n_runs| (0..n_runs).for_each(|_| act())
}

fn found() -> FrameResults {
    let detection = |n: usize| Detection {
        id: ObjectId(n as i32 + 1),
        track: None,
        track_state: None,
        parent: None,
        rect: Rect { x: (n % 8) as f32 * 200.25, y: (n / 8) as f32 * 120.5, width: 150.5, height: 100.75 },
        keypoints: vec![],
        confidence: 0.9,
        label_id: 0,
        label: Some("face".into()),
        classifications: Vec::new(),
    };
    FrameResults { size: SIZE, detections: (0..N_OBJECTS).map(detection).collect(), ..FrameResults::default() }
}

/// Creates a frame with detections, as a detector attaches them.
fn detected(found: &FrameResults) -> gst::Buffer {
    let mut buffer = gst::Buffer::new();
    meta::attach(buffer.get_mut().expect("a new buffer"), found.clone());
    buffer
}

/// Executes the meta operations of a classifier on a frame.
fn classify(buffer: &mut gst::Buffer, answer: &dyn Fn(&Detection) -> Option<Classification>) {
    let mut results = meta::take(buffer, SIZE).expect("they were attached");
    for detection in &mut results.detections {
        detection.classifications.extend(answer(detection));
    }
    meta::attach(buffer.make_mut(), results);
}

fn gender(_: &Detection) -> Option<Classification> {
    let outcome = Outcome::Label { label_id: 1, label: Some("female".into()), confidence: 0.75 };
    Some(Classification { name: "gender".into(), model: "age-gender".into(), outcome })
}

fn age(_: &Detection) -> Option<Classification> {
    Some(Classification { name: "age".into(), model: "age-gender".into(), outcome: Outcome::Value(31.4) })
}

/// Executes these steps, which add the region metas of a frame, on a new buffer.
fn regions(steps: &[fn(&mut gst::BufferRef)]) {
    let mut buffer = gst::Buffer::new();
    let writable = buffer.get_mut().expect("a new buffer");
    steps.iter().for_each(|step| step(writable));
    drop(black_box(buffer));
}

fn add_detections(buffer: &mut gst::BufferRef) {
    for n in 0..N_OBJECTS as u32 {
        let mut roi = RoiMeta::add(buffer, "face", (n % 8 * 200, n / 8 * 120, 151, 101));
        roi.set_id(n as i32 + 1);
        let structure = gst::Structure::builder("detection")
            .field("x_min", 0.1)
            .field("x_max", 0.2)
            .field("y_min", 0.1)
            .field("y_max", 0.2)
            .field("confidence", 0.9)
            .field("label_id", 0)
            .field("label", "face");
        roi.add_param(structure.build());
    }
}

fn add_genders(buffer: &mut gst::BufferRef) {
    for mut roi in buffer.iter_meta_mut::<RoiMeta>() {
        let structure = gst::Structure::builder("gender")
            .field("attribute_name", "gender")
            .field("model_name", "age-gender")
            .field("type", "classification_result")
            .field("label_id", 1)
            .field("label", "female")
            .field("confidence", 0.75);
        roi.add_param(structure.build());
    }
}

fn add_ages(buffer: &mut gst::BufferRef) {
    for mut roi in buffer.iter_meta_mut::<RoiMeta>() {
        let structure = gst::Structure::builder("age").field("attribute_name", "age").field("model_name", "age-gender");
        roi.add_param(structure.field("label", "31.4").field("value", 31.4).build());
    }
}
