//! Runs pipelines to their end without sleeping, with access to their buffers.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_app as gst_app;
use gstreamer_video as gst_video;
use roiflow::devices::null::{Gate, NullDevice, Script};
use roiflow::frame::{Classification, Detection, FrameResults, InferenceStatus, ObjectId, Outcome, PixelRect, Rect, Size};
use roiflow::runtime::executor::Pool;
use roiflow::runtime::io::DeviceIo;

pub use folder::{Folder, eventually};

#[path = "../support/folder.rs"]
mod folder;

/// Time limit of a wait, far above the duration of any test on a busy machine. A longer wait is a hang.
pub const TIMEOUT: gst::ClockTime = gst::ClockTime::from_seconds(120);

/// Result of a pipeline: error and warnings.
#[derive(Debug, Default)]
pub struct Ending {
    pub warnings: Vec<String>,
    /// The error; `None` if the pipeline ended with EOS.
    pub error: Option<String>,
}

/// Initializes GStreamer. Needed by tests that use GStreamer before they create a pipeline with this module.
pub fn init() {
    roiflow::elements::register_static().unwrap();
}

/// Returns the path of the plugin that was built with this test.
pub fn built_plugin() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libroiflow.so")
}

/// Reads a file with one JSON value per line.
pub fn lines(path: &str) -> Vec<serde_json::Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Creates a pipeline from a gst-launch line.
pub fn pipeline(line: &str) -> gst::Pipeline {
    init();
    gst::parse::launch(line).unwrap_or_else(|error| panic!("{line}: {error}")).downcast().unwrap()
}

/// Plays to EOS or an error.
pub fn run(pipeline: &gst::Pipeline) -> Ending {
    let bus = pipeline.bus().unwrap();
    // A failed state change also posts an error.
    let _ = pipeline.set_state(gst::State::Playing);
    let mut outcome = Ending::default();
    let types = [gst::MessageType::Eos, gst::MessageType::Error, gst::MessageType::Warning];
    loop {
        let message = bus.timed_pop_filtered(TIMEOUT, &types).expect("the pipeline ends in time");
        match message.view() {
            gst::MessageView::Warning(warning) => outcome.warnings.push(warning.error().to_string()),
            gst::MessageView::Error(error) => outcome.error = Some(error.error().to_string()),
            _ => {}
        }
        if !matches!(message.view(), gst::MessageView::Warning(_)) {
            break;
        }
    }
    pipeline.set_state(gst::State::Null).unwrap();
    outcome
}

/// Calls `act` with the number and buffer of each buffer that passes a pad.
pub fn on_buffers(pipeline: &gst::Pipeline, element: &str, pad: &str, mut act: impl FnMut(u64, &mut gst::Buffer) + Send + 'static) {
    let n_seen = Mutex::new(0);
    let act = Mutex::new(move |n, buffer: &mut gst::Buffer| act(n, buffer));
    let pad = pipeline.by_name(element).unwrap().static_pad(pad).unwrap();
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        let mut n_seen = n_seen.lock().unwrap();
        if let Some(buffer) = info.buffer_mut() {
            (act.lock().unwrap())(*n_seen, buffer);
            *n_seen += 1;
        }
        gst::PadProbeReturn::Ok
    });
}

/// Attaches `results(number)` to each buffer that leaves the element `attach`.
pub fn attach(pipeline: &gst::Pipeline, results: impl Fn(u64) -> FrameResults + Send + 'static) {
    on_buffers(pipeline, "attach", "src", move |n, buffer| roiflow::elements::meta::attach(buffer.make_mut(), results(n)));
}

/// A buffer with its caps at an element.
pub struct Arrived {
    pub buffer: gst::Buffer,
    pub caps: gst::Caps,
}

impl Arrived {
    pub fn size(&self) -> Size {
        roiflow::elements::caps::size_in_caps(&self.caps).unwrap()
    }

    pub fn results(&self) -> Option<FrameResults> {
        roiflow::elements::meta::read(&self.buffer, self.size())
    }

    /// Returns the rows of every plane, without padding.
    pub fn rows(&self) -> Vec<Vec<Vec<u8>>> {
        use gst_video::VideoFrameExt;
        let info = gst_video::VideoInfo::from_caps(&self.caps).unwrap();
        let format = roiflow::elements::caps::pixel_format(&info).unwrap();
        let frame = gst_video::VideoFrameRef::from_buffer_ref_readable(&self.buffer, &info).unwrap();
        let plane = |plane_idx: usize| {
            let n_samples: usize = format.plane_shape(plane_idx, self.size()).iter().skip(1).product();
            let row_bytes = n_samples * format.element().size();
            let stride = frame.plane_stride()[plane_idx] as usize;
            let rows = frame.plane_data(plane_idx as u32).unwrap().chunks(stride);
            rows.map(|row| row[..row_bytes].to_vec()).collect()
        };
        (0..format.n_planes()).map(plane).collect()
    }
}

/// Collects all buffers that pass a pad.
pub fn collect(pipeline: &gst::Pipeline, element: &str, pad: &str) -> Arc<Mutex<Vec<Arrived>>> {
    let arrived = Arc::new(Mutex::new(Vec::new()));
    let collected = arrived.clone();
    let caps_of = pipeline.by_name(element).unwrap().static_pad(pad).unwrap();
    on_buffers(pipeline, element, pad, move |_, buffer| {
        let caps = caps_of.current_caps().unwrap();
        collected.lock().unwrap().push(Arrived { buffer: buffer.clone(), caps });
    });
    arrived
}

/// Returns a face with the results of two classifiers.
pub fn face(id: i32, rect: Rect) -> Detection {
    let said = |name: &str, outcome| Classification { name: name.into(), model: "age-gender".into(), outcome };
    Detection {
        id: ObjectId(id),
        track: None,
        track_state: None,
        parent: None,
        rect,
        keypoints: vec![],
        confidence: 0.75,
        label_id: 1,
        label: Some("face".into()),
        classifications: vec![
            said("gender", Outcome::Label { label_id: 0, label: Some("female".into()), confidence: 0.5 }),
            said("age", Outcome::Value(31.4)),
        ],
    }
}

pub fn results(size: Size, frame_number: u64, detections: Vec<Detection>) -> FrameResults {
    FrameResults { size, frame_number, status: InferenceStatus::Inferred, detections, ..FrameResults::default() }
}

/// Returns the path of a model of `assets/tiny`.
pub fn tiny(model: &str) -> String {
    format!("{}/assets/tiny/{model}", env!("CARGO_MANIFEST_DIR"))
}

/// Launch text of `roidetect` with a tiny model.
pub fn detect(model: &str, properties: &str) -> String {
    format!("roidetect model={} {properties}", tiny(&format!("{model}.onnx")))
}

/// Launch text of `roiclassify` with a tiny model.
pub fn classify(model: &str, properties: &str) -> String {
    format!("roiclassify model={} {properties}", tiny(&format!("{model}.onnx")))
}

/// A test device whose runs wait until they are released. Runs before [`Slow::hold`] do not wait. A detector on this device finds one box
/// per run.
pub struct Slow {
    name: String,
    state: Mutex<SlowState>,
    changed: std::sync::Condvar,
}

#[derive(Default)]
struct SlowState {
    /// Number of runs that have begun since `hold`.
    n_begun: usize,
    n_let_go: usize,
    is_open: bool,
}

impl Slow {
    /// Creates a device whose runs do not wait until `hold`.
    pub fn open(name: &str, n_threads: usize) -> Arc<Self> {
        Self::computing(name, n_threads, |io| {
            let output = io.output(0, &[1, 1, 6])?;
            output.dense_mut::<f32>()?.copy_from_slice(&[0.0, 1.0, 0.25, 0.25, 0.75, 0.75]);
            Ok(())
        })
    }

    /// Like [`Slow::open`]. Each run calls `compute`.
    pub fn computing(
        name: &str,
        n_threads: usize,
        compute: impl Fn(&mut DeviceIo<'_>) -> roiflow::runtime::Result<()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        init();
        let name = format!("NULL.{name}");
        let state = Mutex::new(SlowState { is_open: true, ..SlowState::default() });
        let slow = Arc::new(Self { name: name.clone(), state, changed: Default::default() });
        let of_runs = slow.clone();
        let script = Script {
            executor: Some(Arc::new(Pool::new("slow", n_threads).unwrap())),
            ..Script::computing(move |io, _| {
                of_runs.pass();
                compute(io)
            })
        };
        roiflow::stages::Engine::of_process().register_device(Arc::new(NullDevice::instance(&name, Arc::new(script))));
        slow
    }

    /// Launch text of `roidetect` on this device.
    pub fn detect(&self, properties: &str) -> String {
        detect("rectangle", &format!("device={} {properties}", self.name))
    }

    /// Launch text of `roiclassify` with the tiny color model on this device.
    pub fn classify(&self, properties: &str) -> String {
        classify("color", &format!("device={} {properties}", self.name))
    }

    /// Makes runs wait from now on.
    pub fn hold(&self) {
        *self.state.lock().unwrap() = SlowState::default();
    }

    /// Releases `n` more runs.
    pub fn let_go(&self, n: usize) {
        self.state.lock().unwrap().n_let_go += n;
        self.changed.notify_all();
    }

    /// Releases all runs.
    pub fn release(&self) {
        self.state.lock().unwrap().is_open = true;
        self.changed.notify_all();
    }

    /// Waits until `n` runs have begun since `hold`.
    pub fn wait_for(&self, n: usize) {
        let state = self.state.lock().unwrap();
        let (state, waited) = self.changed.wait_timeout_while(state, TIMEOUT.into(), |state| state.n_begun < n).unwrap();
        assert!(!waited.timed_out(), "{} of {n} runs began", state.n_begun);
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.n_begun += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| !state.is_open && state.n_let_go == 0).unwrap();
        state.n_let_go = state.n_let_go.saturating_sub(1);
    }
}

/// Launch text of `roidetect` on a test device that finds nothing. A gate controls when its model is compiled.
pub fn detect_compiled_through(gate: &Arc<Gate>, name: &str) -> String {
    init();
    let name = format!("NULL.{name}");
    let script = Script { compile_gate: Some(gate.clone()), ..Script::default() };
    roiflow::stages::Engine::of_process().register_device(Arc::new(NullDevice::instance(&name, Arc::new(script))));
    detect("rectangle", &format!("device={name}"))
}

/// Time between frames.
pub const FRAME_TIME: gst::ClockTime = gst::ClockTime::from_mseconds(40);

/// Sets the timestamp of frame `n`.
pub fn stamp(mut buffer: gst::Buffer, n: u64) -> gst::Buffer {
    let writable = buffer.make_mut();
    writable.set_pts(FRAME_TIME * n);
    writable.set_duration(FRAME_TIME);
    buffer
}

pub fn caps(format: &str, size: Size) -> gst::Caps {
    init();
    gst::Caps::builder("video/x-raw")
        .field("format", format)
        .field("width", size.width as i32)
        .field("height", size.height as i32)
        .field("framerate", gst::Fraction::new(25, 1))
        .build()
}

/// Creates a black RGB image with a colored rectangle.
pub fn picture(size: Size, rect: PixelRect, color: [u8; 3]) -> gst::Buffer {
    init();
    let stride = (size.width as usize * 3).next_multiple_of(4);
    let mut bytes = vec![0; stride * size.height as usize];
    for row in bytes.chunks_mut(stride).skip(rect.y as usize).take(rect.height as usize) {
        for pixel in row[..size.width as usize * 3].chunks_exact_mut(3).skip(rect.x as usize).take(rect.width as usize) {
            pixel.copy_from_slice(&color);
        }
    }
    gst::Buffer::from_mut_slice(bytes)
}

/// Pushes frames and EOS into `appsrc name=source`.
pub fn feed(pipeline: &gst::Pipeline, caps: &gst::Caps, buffers: impl IntoIterator<Item = gst::Buffer>) {
    let source: gst_app::AppSrc = pipeline.by_name("source").unwrap().downcast().unwrap();
    source.set_format(gst::Format::Time);
    source.set_caps(Some(caps));
    for (buffer, n) in buffers.into_iter().zip(0..) {
        source.push_buffer(stamp(buffer, n)).unwrap();
    }
    source.end_of_stream().unwrap();
}

/// Returns the labels of the classifications of a frame's detections.
pub fn labels(results: &FrameResults) -> Vec<String> {
    results.detections.iter().flat_map(|detection| detection.classifications.iter().map(answer)).collect()
}

/// Returns the label, or the number with three digits, because results of engines differ in the seventh digit.
pub fn answer(classification: &Classification) -> String {
    match &classification.outcome {
        Outcome::Label { label, .. } => label.as_deref().unwrap_or("?").to_owned(),
        Outcome::Value(value) => ((value * 1e3).round() / 1e3).to_string(),
        _ => unreachable!("no other outcome is known to these tests"),
    }
}

pub fn assert_near(actual: Rect, expected: Rect, tolerance: f32, what: &str) {
    let sides = |rect: Rect| [rect.x, rect.y, rect.x_max(), rect.y_max()];
    let off = sides(actual).iter().zip(sides(expected)).any(|(actual, expected)| (actual - expected).abs() > tolerance);
    assert!(!off, "{what}: expected {expected:?}, got {actual:?}");
}

/// Writes a clip of `n_frames` frames with a moving rectangle. Returns the rectangle of each frame.
pub fn make_clip(path: &str, n_frames: u64, muxer: &str) -> Vec<PixelRect> {
    const SIZE: Size = Size::new(256, 192);
    let encoder = "x264enc bitrate=4000 key-int-max=10 speed-preset=ultrafast";
    let line = format!("appsrc name=source ! videoconvert ! video/x-raw,format=I420 ! {encoder} ! {muxer} ! filesink name=file");
    let pipeline = pipeline(&line);
    pipeline.by_name("file").unwrap().set_property("location", path);
    let rects: Vec<PixelRect> = (0..n_frames as u32).map(|n| PixelRect { x: n * 4 % 160, y: n * 6 % 96, width: 80, height: 72 }).collect();
    feed(&pipeline, &caps("RGB", SIZE), rects.iter().map(|rect| picture(SIZE, *rect, [255, 0, 0])));
    assert_eq!(run(&pipeline).error, None);
    rects
}

/// Runs the calling test again in a separate process, without other users of memory and threads. Returns true in that process.
pub fn is_alone() -> bool {
    const ALONE: &str = "ROIFLOW_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let name = std::thread::current().name().expect("the test runner names its threads").to_owned();
    let test = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(test);
    // All threads share one malloc arena. Otherwise each arena grows to the maximum need of any thread, over thousands of rounds.
    command.args(["--exact", &name, "--nocapture"]).env(ALONE, "1").env("MALLOC_ARENA_MAX", "1");
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("1 passed"), "{name} was not found");
    eprintln!("{}", text(&output.stderr));
    false
}
