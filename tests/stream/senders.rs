//! A stream of an application ends in every case when its senders are dropped.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use roiflow::frame::{Frame, PixelFormat, Size};
use roiflow::pipeline::{Spec, Stream};

use crate::harness::{Folder, tiny};

/// Time limit of each wait. A longer wait counts as a hang.
const LIMIT: Duration = Duration::from_secs(60);

fn description() -> String {
    format!(
        "version = 1\nname = \"rectangles\"\ndescription = \"Rectangles.\"\n[pipeline]\ngraph = \"{{source}} ! roidetect model={} device=CPU ! {{video}}\"\n",
        tiny("rectangle.onnx")
    )
}

fn stream() -> Stream {
    Stream::open(&Spec::parse(&description(), Path::new("rectangles.toml")).unwrap(), &[]).unwrap()
}

fn frame() -> Frame {
    Frame::from_packed(PixelFormat::Rgb, Size::new(64, 48), &[0; 64 * 48 * 3]).unwrap()
}

#[test]
fn dropping_all_senders_ends_stream_with_error() {
    let mut stream = stream();
    let (one, other) = (stream.sender(), stream.sender());
    let feeder = std::thread::spawn(move || {
        one.push(&frame(), Some(Duration::ZERO)).unwrap();
        drop(one);
        other.push(&frame(), Some(Duration::from_millis(40))).unwrap();
    });
    let results: Vec<_> = stream.by_ref().collect();
    feeder.join().unwrap();
    let [first, second, error] = &*results else { panic!("{results:?}") };
    assert!(first.is_ok() && second.is_ok(), "expected the pushed frames: {results:?}");
    assert!(error.as_ref().unwrap_err().to_string().contains("Sender::end"), "{error:?}");
    assert!(stream.next().is_none());
}

#[test]
fn stream_without_sender_ends_with_error() {
    let results: Vec<_> = stream().collect();
    assert!(matches!(&*results, [Err(_)]), "{results:?}");
}

#[test]
fn ended_stream_returns_no_error() {
    let stream = stream();
    // A new sender for each call works like a single sender, as long as the stream is not polled between the calls.
    stream.sender().push(&frame(), None).unwrap();
    stream.sender().end().unwrap();
    let results: Vec<_> = stream.collect();
    assert!(matches!(&*results, [Ok(_)]), "{results:?}");
}

#[test]
fn panicking_feeder_ends_the_stream() {
    let stream = stream();
    let sender = stream.sender();
    let feeder = std::thread::spawn(move || {
        sender.push(&frame(), None).unwrap();
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    let results: Vec<_> = stream.collect();
    assert!(feeder.join().is_err());
    assert!(matches!(&*results, [Ok(_), Err(_)]), "{results:?}");
}

/// Returns the path of the example program, and builds it if necessary.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let example = test.parent().unwrap().with_file_name("examples").join("stream");
    if !example.exists() {
        let built = Command::new(env!("CARGO")).args(["build", "--locked", "--example", "stream"]).status().unwrap();
        assert!(built.success(), "cargo build --example stream");
    }
    example
}

#[test]
fn example_reports_unreadable_image_and_ends() {
    let folder = Folder::new("example");
    let path = folder.write("rectangles.toml", description());
    let good = folder.file("good.png");
    image::RgbImage::new(64, 48).save(&good).unwrap();
    let broken = folder.write("broken.jpg", "this is no picture");
    let example = example();
    for (pictures, code) in [(vec![&good, &broken, &good], 1), (vec![&broken], 1), (vec![], 0), (vec![&good], 0)] {
        let mut child = Command::new(&example)
            .arg(&path)
            .args(&pictures)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if begin.elapsed() > LIMIT {
                child.kill().unwrap();
                panic!("the example hangs: {pictures:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{pictures:?}: {said}");
        assert_eq!(said.contains("broken.jpg"), code == 1, "{pictures:?}: {said}");
    }
}
