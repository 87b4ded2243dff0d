//! Colors of odd video: the full range (0 to 255) wherever it is declared, and formats with more chroma than 4:2:0.

use gstreamer as gst;
use roiflow::elements::{buffer, caps};
use roiflow::frame::{PixelFormat, PixelRect};
use roiflow::tensor::{ElementType, Tensor};
use roiflow::vision::{Preprocess, Scratch};

use crate::cli::roiflow;
use crate::endings::read;
use crate::harness::{Folder, collect, detect, pipeline, run};

/// The color of the first patch of the clips, in RGB.
const RED: [u8; 3] = [200, 30, 30];
/// A source of one color with the full range. `videotestsrc` writes the samples of the limited range, so the color differs from that of the
/// property: [`full_red`].
const FULL: &str = "videotestsrc num-buffers=3 pattern=solid-color foreground-color=0xffc81e1e ! video/x-raw,format=I420,width=64,height=64,\
                    framerate=25/1,colorimetry=(string)1:4:0:0";

fn clip(name: &str) -> String {
    format!("{}/tests/clips/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Runs a pipeline, and returns the color near the top-left corner as a model gets it, and the caps.
fn color_in(line: &str) -> ([u8; 3], gst::Caps) {
    let pipeline = pipeline(&format!("{line} ! {} ! fakesink name=sink", detect("rectangle", "")));
    let arrived = collect(&pipeline, "sink", "sink");
    assert_eq!(run(&pipeline).error, None, "{line}");
    let arrived = arrived.lock().unwrap();
    let last = arrived.last().expect("a frame");
    let frame = buffer::frame(&last.buffer, &caps::video_info(&last.caps).unwrap()).unwrap();
    let patch = frame.region(PixelRect { x: 8, y: 8, width: 8, height: 8 }).unwrap();
    let input = Tensor::new(ElementType::F32, [1, 3, 1, 1]).unwrap();
    Preprocess::default().fill(&patch, &mut input.bytes_mut().unwrap(), 0, &mut Scratch::default()).unwrap();
    let color: Vec<u8> = input.view::<f32>().unwrap().iter().map(|value| value.round() as u8).collect();
    (color.try_into().unwrap(), last.caps.clone())
}

/// The color of [`FULL`]. With the limited range, it would be [`RED`].
fn full_red() -> [u8; 3] {
    let (color, _) = color_in(FULL);
    assert!(color[0] < RED[0] - 6, "{color:?}");
    color
}

fn check(what: &str, (color, caps): ([u8; 3], gst::Caps), expected: [u8; 3]) {
    assert!(color.iter().zip(expected).all(|(is, expected)| is.abs_diff(expected) <= 3), "{what}: {color:?} for {expected:?}, {caps}");
}

fn decoded(file: &str) -> String {
    format!("filesrc location=\"{file}\" ! decodebin ! videoconvert")
}

/// Writes a clip with the full range.
fn encode(folder: &Folder, name: &str, encoder: &str) -> String {
    let file = folder.file(name);
    let pipeline = pipeline(&format!("{FULL} ! {encoder} ! filesink location=\"{file}\""));
    assert_eq!(run(&pipeline).error, None, "{name}");
    file
}

#[test]
fn full_range_of_files_is_kept() {
    let folder = Folder::new("colors");
    let made = [
        encode(&folder, "h264.mp4", "x264enc ! h264parse ! mp4mux"),
        encode(&folder, "h264.mov", "x264enc ! h264parse ! qtmux"),
        encode(&folder, "fragments.mp4", "x264enc ! h264parse ! mp4mux fragment-duration=100 streamable=true"),
        encode(&folder, "h264.mkv", "x264enc ! h264parse ! matroskamux"),
        encode(&folder, "h264.ts", "x264enc ! h264parse ! mpegtsmux"),
        encode(&folder, "jpeg.avi", "jpegenc quality=100 ! avimux"),
        encode(&folder, "jpeg.mov", "jpegenc quality=100 ! qtmux"),
    ];
    let of_made = full_red();
    let clips = [clip("full_range_untagged.ts"), clip("full_range_hevc.mp4")].map(|file| (file, RED));
    for (file, expected) in made.into_iter().map(|file| (file, of_made)).chain(clips) {
        check(&file, color_in(&decoded(&file)), expected);
        check(&file, color_in(&format!("roisource uri=\"file://{file}\" ! videoconvert")), expected);
    }
}

#[test]
fn full_range_of_a_container_alone_is_kept() {
    // The encoded video of this file does not declare its range, so only the box of the container does.
    let folder = Folder::new("colors-container");
    let file = encode(&folder, "box.mp4", "capssetter caps=video/x-raw,colorimetry=(string)2:4:0:0 ! x264enc ! h264parse ! mp4mux");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(8).position(|window| window == b"colrnclx").expect("a box with the range");
    bytes[at + 14] = 0x80;
    std::fs::write(&file, &bytes).unwrap();
    check("from a file", color_in(&decoded(&file)), full_red());
    check("pushed", color_in(&format!("filesrc location=\"{file}\" ! queue ! decodebin ! videoconvert")), full_red());
}

#[test]
fn range_without_a_matrix_is_kept() {
    check("untagged", color_in(&format!("{FULL} ! capssetter caps=video/x-raw,colorimetry=(string)1:0:0:0")), full_red());
}

#[test]
fn recorded_video_of_full_range_input_has_its_colors() {
    let folder = Folder::new("colors-video");
    let avi = encode(&folder, "jpeg.avi", "jpegenc quality=100 ! avimux");
    let inputs = [(avi, full_red()), (clip("full_range_untagged.ts"), RED), (clip("full_range_hevc.mp4"), RED)];
    let description = folder.file("plain.toml");
    let graph = format!("{{source}} ! {} ! {{json}} ! {{video}}", detect("rectangle", ""));
    std::fs::write(
        &description,
        format!("version = 1\nname = \"plain\"\ndescription = \"no drawing\"\n[pipeline]\ngraph = '''{graph}'''\n"),
    )
    .unwrap();
    for (idx, (input, expected)) in inputs.iter().enumerate() {
        let video = folder.file(&format!("{idx}.mp4"));
        let (code, said) = read(&roiflow(&["run", "-q", &description, "--input", input, "--video", &video]));
        assert_eq!(code, Some(0), "{input}: {said}");
        // Players without support for the full range must show the colors as well.
        let (color, caps) = color_in(&decoded(&video));
        assert!(!caps.to_string().contains("colorimetry=(string)1:"), "{input}: {caps}");
        check(input, (color, caps), *expected);
    }
}

#[test]
fn formats_with_more_chroma_are_read_without_conversion() {
    for format in PixelFormat::ALL.map(PixelFormat::name) {
        let source = format!(
            "videotestsrc num-buffers=2 pattern=solid-color foreground-color=0xffc81e1e ! video/x-raw,format={format},width=65,height=33 ! videoconvert"
        );
        let (color, caps) = color_in(&source);
        assert_eq!(caps.structure(0).unwrap().get::<String>("format").unwrap(), format);
        if format != "GRAY8" {
            check(format, (color, caps), RED);
        }
    }
}
