//! Runs a pipeline to its end without sleeping, and reaches into it where buffers pass.

use std::sync::{Arc, Mutex};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_video as gst_video;
use roiflow::frame::{Classification, Detection, FrameResults, InferenceStatus, ObjectId, Outcome, Rect, Size};

/// Nothing here takes a second; a pipeline that takes this long hangs.
const TIMEOUT: gst::ClockTime = gst::ClockTime::from_seconds(30);

/// How a pipeline ended and what it said on the way.
#[derive(Debug, Default)]
pub struct Ending {
    pub warnings: Vec<String>,
    /// `None` is end of stream.
    pub error: Option<String>,
}

/// A pipeline from a line of text.
pub fn pipeline(line: &str) -> gst::Pipeline {
    roiflow::elements::register_static().unwrap();
    gst::parse::launch(line).unwrap_or_else(|error| panic!("{line}: {error}")).downcast().unwrap()
}

/// Plays until the end of the stream or an error.
pub fn run(pipeline: &gst::Pipeline) -> Ending {
    let bus = pipeline.bus().unwrap();
    // A failure is on the bus as well.
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

/// Calls `act` with every buffer that passes a pad, and its number.
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

/// Gives every buffer that leaves the element `attach` what `results` makes for its number.
pub fn attach(pipeline: &gst::Pipeline, results: impl Fn(u64) -> FrameResults + Send + 'static) {
    on_buffers(pipeline, "attach", "src", move |n, buffer| roiflow::elements::meta::attach(buffer.make_mut(), results(n)));
}

/// A buffer as it came to an element, with the caps that it has there.
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

    /// The rows of every plane, without the gaps between them.
    pub fn rows(&self) -> Vec<Vec<Vec<u8>>> {
        use gst_video::VideoFrameExt;
        let info = gst_video::VideoInfo::from_caps(&self.caps).unwrap();
        let format = roiflow::elements::caps::pixel_format(&info).unwrap();
        let frame = gst_video::VideoFrameRef::from_buffer_ref_readable(&self.buffer, &info).unwrap();
        let plane = |plane_idx: usize| {
            let row_bytes: usize = format.plane_shape(plane_idx, self.size()).iter().skip(1).product();
            let stride = frame.plane_stride()[plane_idx] as usize;
            let rows = frame.plane_data(plane_idx as u32).unwrap().chunks(stride);
            rows.map(|row| row[..row_bytes].to_vec()).collect()
        };
        (0..format.n_planes()).map(plane).collect()
    }
}

/// All buffers that pass a pad, to be looked at when the stream has ended.
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

/// A face with what two classifiers say of it.
pub fn face(id: i32, rect: Rect) -> Detection {
    let said = |name: &str, outcome| Classification { name: name.into(), model: "age-gender".into(), outcome };
    Detection {
        id: ObjectId(id),
        parent: None,
        rect,
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
    FrameResults { size, frame_number, status: InferenceStatus::Inferred, detections }
}
