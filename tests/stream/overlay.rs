//! The overlay changes only the pixels of boxes and captions.

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_video as gst_video;
use roiflow::elements::meta;
use roiflow::frame::{Classification, Detection, FrameResults, InferenceStatus, Outcome, PixelFormat, Point, Rect, Size};

use crate::harness::{Arrived, Ending, attach, caps, collect, detect, face, feed, on_buffers, pipeline, results, run};

/// Passes one frame with faces at these rectangles through the overlay. Returns the frame before and after the overlay.
fn overlaid(format: PixelFormat, size: Size, properties: &str, boxes: Vec<Rect>) -> [Arrived; 2] {
    let faces = boxes.iter().zip(1..).map(|(rect, id)| face(id, *rect)).collect();
    overlaid_with(format, size, properties, faces)
}

fn overlaid_with(format: PixelFormat, size: Size, properties: &str, detections: Vec<Detection>) -> [Arrived; 2] {
    let pipeline = pipeline(&format!(
        "videotestsrc num-buffers=1 pattern=gradient ! video/x-raw,format={format},width={},height={} ! identity name=attach ! \
         roioverlay {properties} ! fakesink name=sink",
        size.width, size.height
    ));
    let before = collect(&pipeline, "attach", "sink");
    attach(&pipeline, move |n| results(size, n, detections.clone()));
    let after = collect(&pipeline, "sink", "sink");
    let Ending { warnings, error } = run(&pipeline);
    assert_eq!((error, warnings), (None, vec![]), "{format} {size}");
    [before, after].map(|arrived| arrived.lock().unwrap().pop().unwrap())
}

/// Returns the pixels that differ, as `(x, y)` in the frame. A chroma sample counts as its top-left pixel.
fn differences(format: PixelFormat, frames: &[Arrived; 2]) -> Vec<(usize, usize)> {
    let [before, after] = [frames[0].rows(), frames[1].rows()];
    let mut differing = Vec::new();
    for (plane_idx, (before, after)) in before.iter().zip(&after).enumerate() {
        for (y, (before, after)) in before.iter().zip(after).enumerate() {
            for x in (0..before.len()).filter(|x| before[*x] != after[*x]) {
                let n = format.element().size();
                // Only padding belongs to no component.
                let place = format.components().into_iter().find(|place| {
                    let byte = x.checked_sub(place.offset_bytes).map(|x| x % place.stride_bytes);
                    place.plane_idx == plane_idx && byte.is_some_and(|byte| byte < n)
                });
                let (stride_bytes, (width, height)) =
                    place.map_or((format.pixel_bytes(), (1, 1)), |place| (place.stride_bytes, place.n_pixels));
                differing.push((x / stride_bytes * width, y * height));
            }
        }
    }
    differing
}

#[test]
fn frame_classification_is_drawn_in_corner() {
    let size = Size::new(160, 120);
    let line = |properties: &str| {
        format!(
            "videotestsrc num-buffers=1 pattern=gradient ! video/x-raw,format=RGB,width=160,height=120 ! identity name=attach ! \
             roioverlay {properties} ! fakesink name=sink"
        )
    };
    for (properties, outcome, is_drawn) in [
        ("", Outcome::Label { label_id: 0, label: Some("rain".into()), confidence: 0.9 }, true),
        ("labels=false", Outcome::Value(3.0), false),
        ("", Outcome::Tensor { shape: vec![1], data: [1.0].into() }, false),
    ] {
        let pipeline = pipeline(&line(properties));
        let said = Classification { name: "weather".into(), model: "weather".into(), outcome };
        let before = collect(&pipeline, "attach", "sink");
        attach(&pipeline, move |n| FrameResults { classifications: vec![said.clone()], ..results(size, n, vec![]) });
        let after = collect(&pipeline, "sink", "sink");
        assert_eq!(run(&pipeline).error, None);
        let frames = [before, after].map(|arrived| arrived.lock().unwrap().pop().unwrap());
        let differing = differences(PixelFormat::Rgb, &frames);
        assert_eq!(!differing.is_empty(), is_drawn, "{properties}");
        assert!(differing.iter().all(|(x, y)| *x < 80 && *y < 32), "in the corner");
    }
}

#[test]
fn keypoints_are_drawn_outside_box_and_clipped() {
    let (size, thickness) = (Size::new(160, 120), 3);
    let keypoints = [(50.0, 60.4), (100.0, 20.0), (0.0, 0.0), (-40.0, 60.0)].map(|(x, y)| Point { x, y });
    let found = Detection { keypoints: keypoints.to_vec(), ..face(1, Rect { x: 31.0, y: 41.0, width: 60.0, height: 50.0 }) };
    let frames = overlaid_with(PixelFormat::Rgb, size, "labels=false thickness=3", vec![found]);
    let in_box = |(x, y): (usize, usize)| {
        (31..91).contains(&x)
            && (41..91).contains(&y)
            && !((31 + thickness..91 - thickness).contains(&x) && (41 + thickness..91 - thickness).contains(&y))
    };
    // Dots are twice as wide as the lines, and centered on the keypoint.
    let dots = [((47..53), (57..63)), ((97..103), (17..23)), ((0..3), (0..3))];
    let in_dots = |(x, y): (usize, usize)| dots.iter().any(|(columns, rows)| columns.contains(&x) && rows.contains(&y));
    let differing = differences(PixelFormat::Rgb, &frames);
    assert!(differing.iter().all(|&at| in_box(at) || in_dots(at)), "{differing:?}");
    for (columns, rows) in dots {
        for at in rows.flat_map(|y| columns.clone().map(move |x| (x, y))) {
            assert!(differing.contains(&at), "{at:?}");
        }
    }
}

#[test]
fn draw_false_draws_nothing() {
    let frames = overlaid(PixelFormat::I420, Size::new(160, 120), "draw=false", vec![Rect { x: 31.0, y: 41.0, width: 60.0, height: 50.0 }]);
    assert_eq!(differences(PixelFormat::I420, &frames), []);
}

#[test]
fn outline_changes_only_its_pixels_in_every_format() {
    let size = Size::new(161, 121);
    for format in PixelFormat::ALL {
        let frames = overlaid(format, size, "labels=false thickness=3", vec![Rect { x: 31.0, y: 41.0, width: 60.0, height: 50.0 }]);
        let differing = differences(format, &frames);
        // With subsampled chroma, the drawn area may extend by one pixel to the left and the top.
        let slack = format.chroma_pixels().0 - 1;
        let within = |(x, y): &(usize, usize)| {
            let outer = (31 - slack..91).contains(x) && (41 - slack..91).contains(y);
            let inner = (34..88 - slack).contains(x) && (44..88 - slack).contains(y);
            outer && !inner
        };
        assert!(differing.iter().all(within), "{format}: {:?}", differing.iter().find(|place| !within(place)));
        let n_on_outline = 60 * 50 - 54 * 44;
        assert!(differing.len() > n_on_outline / 2, "{format}: {} of {n_on_outline} pixels changed", differing.len());
    }
}

#[test]
fn caption_is_above_its_box_in_every_format() {
    let size = Size::new(640, 240);
    for format in PixelFormat::ALL {
        let rect = Rect { x: 100.0, y: 100.0, width: 60.0, height: 50.0 };
        let [with, without] = ["confidence=true", "confidence=false"].map(|properties| {
            let differing = differences(format, &overlaid(format, size, properties, vec![rect]));
            assert!(differing.iter().all(|(x, y)| (100..640).contains(x) && (84..150).contains(y)), "{format}");
            differing.iter().filter(|(_, y)| *y < 100).map(|(x, _)| *x).max().unwrap()
        });
        assert!(with > without + 20, "{format}: the caption ends at {with} with the confidence, at {without} without");
    }
}

#[test]
fn odd_frames_and_extreme_boxes_are_clipped() {
    let boxes = || {
        let values = [f32::NAN, f32::NEG_INFINITY, -1e30, -7.5, 0.0, 0.4, 3.0, 1e30, f32::INFINITY];
        let rects = values.iter().flat_map(|x| values.map(|width| Rect { x: *x, y: width, width, height: width }));
        rects.collect::<Vec<Rect>>()
    };
    for format in PixelFormat::ALL {
        for size in [Size::new(1, 1), Size::new(3, 1), Size::new(1, 5), Size::new(33, 17)] {
            let frames = overlaid(format, size, "", boxes());
            assert_eq!(frames[1].size(), size);
        }
    }
}

#[test]
fn buffer_without_results_passes_uncopied() {
    let pipeline = pipeline("videotestsrc num-buffers=3 ! video/x-raw,format=NV12 ! identity name=in ! roioverlay ! fakesink name=sink");
    // The test holds this reference, so making the buffer writable would copy the buffer.
    let before = collect(&pipeline, "in", "src");
    let after = collect(&pipeline, "sink", "sink");
    assert_eq!(run(&pipeline).error, None);
    let addresses = |arrived: &Vec<Arrived>| arrived.iter().map(|arrived| arrived.buffer.as_ptr() as usize).collect::<Vec<_>>();
    assert_eq!(addresses(&before.lock().unwrap()), addresses(&after.lock().unwrap()));
    assert_eq!(after.lock().unwrap().len(), 3);
}

#[test]
fn shared_buffer_is_not_drawn_on() {
    let line = "videotestsrc num-buffers=2 pattern=black ! video/x-raw,format=GRAY8,width=64,height=64 ! identity name=attach ! tee name=t \
                t. ! queue ! fakesink name=plain t. ! queue ! roioverlay ! fakesink name=drawn";
    let pipeline = pipeline(line);
    attach(&pipeline, |n| results(Size::new(64, 64), n, vec![face(1, Rect { x: 8.0, y: 8.0, width: 40.0, height: 40.0 })]));
    let [plain, drawn] = ["plain", "drawn"].map(|name| collect(&pipeline, name, "sink"));
    assert_eq!(run(&pipeline).error, None);
    for (plain, drawn) in plain.lock().unwrap().iter().zip(&*drawn.lock().unwrap()) {
        let [plain, drawn] = [plain, drawn].map(|arrived| arrived.rows().concat().concat());
        assert!(plain.iter().all(|value| *value == plain[0]), "the other branch has the unchanged image");
        assert!(drawn.iter().any(|value| *value != plain[0]));
    }
}

#[test]
fn crop_after_detector_is_warned_about_once() {
    for (crop, n_warnings) in [("videocrop left=40", 1), ("videoscale ! video/x-raw,width=200,height=100", 0)] {
        let pipeline = pipeline(&format!(
            "videotestsrc num-buffers=5 ! video/x-raw,format=I420,width=320,height=240 ! identity name=attach ! {crop} ! roioverlay ! fakesink"
        ));
        attach(&pipeline, |n| results(Size::new(320, 240), n, vec![face(1, Rect { x: 60.0, y: 60.0, width: 50.0, height: 50.0 })]));
        let Ending { warnings, error } = run(&pipeline);
        assert_eq!((error, warnings.len()), (None, n_warnings), "{crop}: {warnings:?}");
        assert!(warnings.iter().all(|warning| warning.contains("320x240") && warning.contains("280x240")), "{warnings:?}");
    }
}

#[test]
fn short_frame_passes_unless_drawn_on() {
    let size = Size::new(64, 64);
    for has_meta in [false, true] {
        for (boxes, words) in [(vec![], None), (vec![face(1, Rect { x: 8.0, y: 8.0, width: 40.0, height: 50.0 })], Some("64x64"))] {
            let line = format!("appsrc name=source ! {} ! identity name=attach ! roioverlay ! fakesink", detect("rectangle", ""));
            let pipeline = pipeline(&line);
            on_buffers(&pipeline, "attach", "src", move |n, buffer| {
                meta::attach(buffer.make_mut(), results(size, n, boxes.clone()));
            });
            let mut buffer = gst::Buffer::with_size(64 * 64 * 3).unwrap();
            let writable = buffer.get_mut().unwrap();
            if has_meta {
                gst_video::VideoMeta::add(writable, gst_video::VideoFrameFlags::empty(), gst_video::VideoFormat::Rgb, 64, 64).unwrap();
            }
            writable.set_size(2000);
            feed(&pipeline, &caps("RGB", size), [buffer]);
            let ending = run(&pipeline);
            assert_eq!(ending.warnings.len(), 1, "the detector's: {ending:?}");
            assert_eq!(ending.error.is_some(), words.is_some(), "{ending:?}");
            assert!(ending.error.unwrap_or_default().contains(words.unwrap_or_default()));
        }
    }
}

#[test]
fn privacy_changes_only_the_pixels_of_its_objects() {
    let size = Size::new(161, 121);
    let rect = Rect { x: 31.0, y: 41.0, width: 60.0, height: 50.0 };
    for format in PixelFormat::ALL {
        for (properties, is_changed) in [
            ("draw=false blur=face", true),
            ("draw=false pixelate=dog,face", true),
            ("draw=false pixelate=*", true),
            ("draw=false blur=dog", false),
        ] {
            let differing = differences(format, &overlaid(format, size, properties, vec![rect]));
            let slack = format.chroma_pixels().0 - 1;
            let within = |(x, y): &(usize, usize)| (31 - slack..91 + slack).contains(x) && (41 - slack..91 + slack).contains(y);
            assert!(differing.iter().all(within), "{format} {properties}");
            assert_eq!(differing.len() > 500, is_changed, "{format} {properties}: {} samples", differing.len());
        }
    }
}

/// Passes six frames through the overlay, of which only the second has results. Returns which of the frames were changed.
fn changed_frames(properties: &str, status: InferenceStatus) -> Vec<bool> {
    let pipeline = pipeline(&format!(
        "videotestsrc num-buffers=6 pattern=gradient ! video/x-raw,format=NV12,width=160,height=120 ! identity name=attach ! \
         roioverlay {properties} ! fakesink name=sink"
    ));
    let before = collect(&pipeline, "attach", "sink");
    attach(&pipeline, move |n| {
        let (status, faces) = match n {
            1 => (InferenceStatus::Inferred, vec![face(1, Rect { x: 31.0, y: 41.0, width: 60.0, height: 50.0 })]),
            _ => (status.clone(), vec![]),
        };
        FrameResults { status, ..results(Size::new(160, 120), n, faces) }
    });
    let after = collect(&pipeline, "sink", "sink");
    assert_eq!(run(&pipeline).error, None);
    let (before, after) = (before.lock().unwrap(), after.lock().unwrap());
    before.iter().zip(after.iter()).map(|(before, after)| before.rows() != after.rows()).collect()
}

#[test]
fn privacy_holds_boxes_and_covers_unknown_frames() {
    let failed = || InferenceStatus::Failed("engine".into());
    let (no, yes) = (false, true);
    assert_eq!(changed_frames("draw=false blur=face", failed()), [no, yes, no, no, no, no]);
    assert_eq!(changed_frames("draw=false blur=face privacy-hold=2", failed()), [no, yes, yes, yes, no, no]);
    assert_eq!(changed_frames("draw=false blur=face privacy-strict=true", failed()), [yes; 6]);
    assert_eq!(changed_frames("draw=false blur=face privacy-strict=true privacy-hold=1", failed()), [no, yes, yes, yes, yes, yes]);
    assert_eq!(changed_frames("draw=false blur=face privacy-strict=true", InferenceStatus::Inferred), [no, yes, no, no, no, no]);
}

#[test]
fn titles_are_drawn_on_frames_without_objects() {
    let (no, yes) = (false, true);
    assert_eq!(changed_frames("title=gate", InferenceStatus::Inferred), [yes; 6]);
    assert_eq!(changed_frames("clock=utc", InferenceStatus::Inferred), [yes; 6]);
    assert_eq!(changed_frames("title=gate draw=false", InferenceStatus::Inferred), [no; 6]);
    assert_eq!(changed_frames("", InferenceStatus::Inferred), [no, yes, no, no, no, no]);
}

#[test]
fn lines_of_analytics_are_drawn_with_their_counts() {
    let drawn = |properties: &str, n_frames: u64| {
        let pipeline = pipeline(&format!(
            "videotestsrc num-buffers={n_frames} pattern=black ! video/x-raw,format=GRAY8,width=320,height=240 ! identity name=attach ! \
             roianalytics lines=door:0.5,0,0.5,1 ! roioverlay labels=false {properties} ! fakesink name=sink"
        ));
        attach(&pipeline, |n| {
            let rect = Rect { x: 20.0 + 60.0 * n as f32, y: 90.0, width: 20.0, height: 40.0 };
            let found = Detection { track: Some(roiflow::frame::ObjectId(1)), classifications: vec![], ..face(1, rect) };
            results(Size::new(320, 240), n, vec![found])
        });
        let arrived = collect(&pipeline, "sink", "sink");
        assert_eq!(run(&pipeline).error, None);
        arrived.lock().unwrap().last().unwrap().rows()[0].clone()
    };
    let (without, with) = (drawn("zones=false", 5), drawn("", 5));
    assert!((0..240).filter(|y| without[*y][160] != with[*y][160]).count() > 200, "a line in the middle");
    let label = |rows: &[Vec<u8>]| rows[90..150].iter().map(|row| row[100..220].to_vec()).collect::<Vec<_>>();
    let (before, after) = (drawn("", 2), drawn("", 5));
    assert_ne!(label(&before), label(&after), "the count has changed");
}

#[test]
fn lines_of_each_analytics_element_are_drawn() {
    let pipeline = pipeline(
        "videotestsrc num-buffers=1 pattern=black ! video/x-raw,format=GRAY8,width=320,height=240 ! \
         roianalytics lines=left:0.25,0,0.25,1 ! roianalytics lines=right:0.75,0,0.75,1 ! roioverlay ! fakesink name=sink",
    );
    let arrived = collect(&pipeline, "sink", "sink");
    assert_eq!(run(&pipeline).error, None);
    let rows = arrived.lock().unwrap()[0].rows()[0].clone();
    assert_eq!([80, 160, 240].map(|x| rows[10][x] != rows[10][120]), [true, false, true], "lines at a quarter and at three quarters");
}

#[test]
fn font_file_that_cannot_be_read_is_an_error() {
    let ending = run(&pipeline("videotestsrc num-buffers=1 ! video/x-raw,format=RGB ! roioverlay font=/gone/font.ttf ! fakesink"));
    assert!(ending.error.as_deref().is_some_and(|error| error.contains("/gone/font.ttf")), "{ending:?}");
}

/// Makes the sink combine attached images with frames.
fn accept_compositions(pipeline: &gst::Pipeline) {
    let pad = pipeline.by_name("sink").unwrap().static_pad("sink").unwrap();
    pad.add_probe(gst::PadProbeType::QUERY_DOWNSTREAM, |_, info| {
        if let Some(gst::QueryViewMut::Allocation(allocation)) = info.query_mut().map(gst::QueryRef::view_mut) {
            allocation.add_allocation_meta::<gst_video::VideoOverlayCompositionMeta>(None);
            return gst::PadProbeReturn::Handled;
        }
        gst::PadProbeReturn::Ok
    });
}

/// Answers allocation queries as an element that gets its caps first, such as `glupload`. `combines` is the answer after the caps.
fn answer_after_caps(pipeline: &gst::Pipeline, combines: bool) {
    let pad = pipeline.by_name("sink").unwrap().static_pad("sink").unwrap();
    pad.add_probe(gst::PadProbeType::QUERY_DOWNSTREAM, move |pad, info| {
        let has_caps = pad.current_caps().is_some();
        let Some(gst::QueryViewMut::Allocation(allocation)) = info.query_mut().map(gst::QueryRef::view_mut) else {
            return gst::PadProbeReturn::Ok;
        };
        if !has_caps {
            return gst::PadProbeReturn::Drop;
        }
        if combines {
            allocation.add_allocation_meta::<gst_video::VideoOverlayCompositionMeta>(None);
        }
        gst::PadProbeReturn::Handled
    });
}

/// The caps of a sink such as `glimagesink`: video memory or system memory, with and without attached images.
const CAPS_OF_GL: &str = "video/x-raw(memory:GLMemory,meta:GstVideoOverlayComposition);video/x-raw(memory:SystemMemory,meta:GstVideoOverlayComposition);video/x-raw(memory:GLMemory);video/x-raw";

#[test]
fn sink_that_answers_only_after_caps_gets_attached_images() {
    for (downstream, combines, expected) in [
        (format!("capsfilter caps=\"{CAPS_OF_GL}\" !"), true, [true; 3]),
        (format!("capsfilter caps=\"{CAPS_OF_GL}\" !"), false, [false; 3]),
        (String::new(), true, [false; 3]),
    ] {
        let pipeline = pipeline(&format!(
            "videotestsrc num-buffers=3 pattern=gradient ! video/x-raw,format=BGRA,width=320,height=240 ! roioverlay title=gate ! \
             {downstream} fakesink name=sink"
        ));
        answer_after_caps(&pipeline, combines);
        let arrived = collect(&pipeline, "sink", "sink");
        let ending = run(&pipeline);
        assert_eq!((ending.error, ending.warnings), (None, vec![]));
        let arrived = arrived.lock().unwrap();
        let has_images = |frame: &Arrived| frame.buffer.meta::<gst_video::VideoOverlayCompositionMeta>().is_some();
        assert_eq!(arrived.iter().map(has_images).collect::<Vec<_>>(), expected, "{downstream} {combines}");
        // The drawing of a sink that refuses is in the pixels of all frames, and the last caps do not have the feature.
        let title = |frame: &Arrived| frame.rows()[0].concat();
        assert_eq!(title(&arrived[0]), title(&arrived[2]));
        assert_eq!(arrived[2].caps.to_string().contains("Composition"), expected[0], "{}", arrived[2].caps);
    }
}

#[test]
fn attached_drawing_looks_like_the_painted_drawing() {
    let size = Size::new(320, 240);
    let line = |properties: &str| {
        format!(
            "videotestsrc num-buffers=1 pattern=gradient ! video/x-raw,format=BGRA,width=320,height=240 ! identity name=attach ! \
             roioverlay title=gate {properties} ! fakesink name=sink"
        )
    };
    let boxes = [(1, 20.0, 60.0), (2, 180.0, 90.0)].map(|(id, x, y)| face(id, Rect { x, y, width: 70.0, height: 80.0 }));
    let arrived = |properties: &str, accepts: bool| {
        let pipeline = pipeline(&line(properties));
        if accepts {
            accept_compositions(&pipeline);
        }
        let boxes = boxes.clone();
        attach(&pipeline, move |n| results(size, n, boxes.to_vec()));
        let before = collect(&pipeline, "attach", "sink");
        let after = collect(&pipeline, "sink", "sink");
        let ending = run(&pipeline);
        assert_eq!((ending.error, ending.warnings), (None, vec![]));
        let [before, after] = [before, after].map(|arrived| arrived.lock().unwrap().pop().unwrap());
        (before, after)
    };
    let composition = |arrived: &Arrived| arrived.buffer.meta::<gst_video::VideoOverlayCompositionMeta>().map(|meta| meta.overlay_owned());
    let (_, painted) = arrived("", false);
    let (_, forced) = arrived("attach-drawing=false", true);
    assert!(composition(&painted).is_none() && composition(&forced).is_none() && painted.rows() == forced.rows());
    assert!(!painted.caps.to_string().contains("Composition"), "{}", painted.caps);
    let (before, attached) = arrived("", true);
    assert!(attached.caps.to_string().contains("meta:GstVideoOverlayComposition"), "{}", attached.caps);
    assert_eq!(before.rows(), attached.rows(), "the frame is unchanged");
    let images = composition(&attached).unwrap();
    assert!((2..=8).contains(&images.n_rectangles()), "{} images", images.n_rectangles());
    // GStreamer's own function combines the images with the frame.
    let info = gst_video::VideoInfo::from_caps(&before.caps).unwrap();
    let mut buffer = before.buffer.copy_deep().unwrap();
    images.blend(&mut gst_video::VideoFrameRef::from_buffer_ref_writable(buffer.get_mut().unwrap(), &info).unwrap()).unwrap();
    let combined = Arrived { buffer, caps: before.caps.clone() };
    let off = painted.rows()[0].concat().iter().zip(combined.rows()[0].concat()).filter(|(a, b)| a.abs_diff(*b) > 2).count();
    assert_eq!(off, 0, "bytes that differ");
    let (before, private) = arrived("blur=face", true);
    assert!(composition(&private).is_some() && before.rows() != private.rows(), "privacy always changes the frame");
}
