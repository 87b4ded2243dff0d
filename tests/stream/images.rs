//! Images as inputs and outputs of the real binary: patterns, broken images, names of annotated images.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::Value;

use crate::cli::{Folder, check_fails, command, lines, roiflow};

/// Runs the description on an input. Returns exit code, output and JSON lines.
fn run(folder: &Folder, input: &str, more: &[&str]) -> (i32, String, Vec<Value>) {
    let json = folder.file("o.jsonl");
    let _removed = std::fs::remove_file(&json);
    let colors = folder.file("colors.toml");
    let output = roiflow(&[&["run", &colors, "--input", input, "--json", &json], more].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines = if Path::new(&json).exists() { lines(&json) } else { Vec::new() };
    (output.status.code().unwrap_or(-1), said, lines)
}

fn sources(lines: &[Value]) -> Vec<String> {
    lines.iter().map(|line| line["source"].as_str().unwrap().to_owned()).collect()
}

fn colors(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["objects"][0]["color"]["label"].as_str().unwrap_or("none")).collect()
}

#[test]
fn each_line_has_its_own_image_path() {
    let folder = Folder::new("own-source");
    std::fs::create_dir(folder.file("in")).unwrap();
    folder.picture("in/a.png", 64, 64, [255, 0, 0]);
    folder.picture("in/b.JPG", 128, 96, [0, 255, 0]);
    folder.picture("in/c.bmp", 65, 47, [0, 0, 255]);
    // The content of the file decides its format, not the file name.
    folder.picture("d.png", 64, 48, [0, 255, 0]);
    std::fs::rename(folder.file("d.png"), folder.file("in/d.jpg")).unwrap();
    std::fs::write(folder.file("in/notes.txt"), "no picture").unwrap();
    std::fs::write(folder.file("in/.hidden.png"), "hidden").unwrap();
    std::fs::create_dir(folder.file("in/folder.png")).unwrap();
    let expected = ["a.png", "b.JPG", "c.bmp", "d.jpg"].map(|name| folder.file(&format!("in/{name}")));
    for input in ["in", "in/", "in/*", "in/?.*"] {
        let (code, said, lines) = run(&folder, &folder.file(input), &[]);
        assert_eq!(code, 0, "{input}: {said}");
        assert_eq!(sources(&lines), expected, "{input}");
        assert_eq!(colors(&lines), ["red", "green", "blue", "green"], "{input}");
    }
    // Converters, scalers, queues and loops keep the paths of images.
    let path = folder.file("colors.toml");
    let text = std::fs::read_to_string(&path).unwrap().replace(
        "{source} ! ",
        "{source} ! videoconvert ! video/x-raw,format=I420 ! videoscale ! video/x-raw,width=64,height=48 ! queue ! videoconvert ! ",
    );
    std::fs::write(&path, text).unwrap();
    let (code, said, lines) = run(&folder, &folder.file("in"), &[]);
    assert_eq!((code, sources(&lines)), (0, expected.to_vec()), "{said}");
}

#[test]
fn broken_image_is_skipped_reported_and_counted() {
    let folder = Folder::new("broken-pictures");
    std::fs::create_dir(folder.file("in")).unwrap();
    for (name, color) in [("a.png", [255, 0, 0]), ("c.jpg", [0, 255, 0]), ("e.png", [0, 0, 255])] {
        folder.picture(&format!("in/{name}"), 64, 64, color);
    }
    let cut = |from: &str, to: &str| {
        let bytes = std::fs::read(folder.file(from)).unwrap();
        std::fs::write(folder.file(to), &bytes[..bytes.len() * 2 / 3]).unwrap();
    };
    cut("in/c.jpg", "in/b.jpg");
    cut("in/a.png", "in/d.png");
    std::fs::write(folder.file("in/f.jpg"), "").unwrap();
    std::os::unix::fs::symlink("nowhere", folder.file("in/g.png")).unwrap();
    let (code, said, lines) = run(&folder, &folder.file("in"), &[]);
    assert_eq!(code, 3, "{said}");
    assert_eq!(colors(&lines), ["red", "green", "blue"]);
    assert_eq!(sources(&lines), ["a.png", "c.jpg", "e.png"].map(|name| folder.file(&format!("in/{name}"))));
    for name in ["b.jpg", "d.png", "f.jpg", "g.png"] {
        let warning = said.lines().find(|line| line.starts_with("warning:") && line.contains(name));
        assert!(warning.is_some_and(|line| line.contains("skipped")), "{name}: {said}");
    }
    assert!(said.contains("skipped  4 unreadable images") && said.contains("4 images"), "{said}");
    // Unreadable images are also skipped if the output is a video and the first image is unreadable.
    let (code, said, lines) = run(&folder, &folder.file("in/[b-e]*"), &["--video", &folder.file("o.mp4")]);
    assert_eq!((code, lines.len()), (3, 2), "{said}");
    // Unreadable images are also reported if the images are one of several inputs.
    let json = folder.file("{stream}.jsonl");
    let (path, clean) = (folder.file("in"), folder.file("in/a.png"));
    let output = roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", &path, "--input", &clean, "--json", &json]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("stream in: image"), "{output:?}");
}

#[test]
fn run_without_readable_image_fails() {
    let folder = Folder::new("all-broken");
    std::fs::create_dir(folder.file("in")).unwrap();
    for name in ["a.jpg", "b.png"] {
        std::fs::write(folder.file(&format!("in/{name}")), "this is no picture").unwrap();
    }
    let colors = folder.file("colors.toml");
    for more in [&[][..], &["--loop"], &["--video", &folder.file("o.mp4")], &["--images", &folder.file("out")]] {
        check_fails(
            &[&["run", &colors, "--input", &folder.file("in/a.jpg")], more].concat(),
            1,
            &["cannot read image", "a.jpg", "expected PNG"],
        );
        check_fails(&[&["run", &colors, "--input", &folder.file("in")], more].concat(), 1, &["a.jpg"]);
    }
    assert!(!Path::new(&folder.file("out")).exists(), "no folder without images");
}

#[test]
fn file_names_with_any_characters_are_inputs() {
    let folder = Folder::new("names");
    let inner = "in [1] {b} *?#%41 'ü\"\n";
    std::fs::create_dir(folder.file(inner)).unwrap();
    for name in ["a[1].png", "b*.png", "c?.png", "d{stream}.png", "e #%20.png", "f\n.png", "{source}.png"] {
        folder.picture("x.png", 64, 64, [255, 0, 0]);
        std::fs::rename(folder.file("x.png"), folder.file(&format!("{inner}/{name}"))).unwrap();
        let path = folder.file(&format!("{inner}/{name}"));
        let encoded: String = path.bytes().map(|byte| if byte == b'/' { "/".to_owned() } else { format!("%{byte:02x}") }).collect();
        for input in [path.clone(), format!("file://{path}"), format!("file://{encoded}"), format!("FILE://localhost{encoded}")] {
            let (code, said, lines) = run(&folder, &input, &[]);
            assert_eq!(code, 0, "{input}: {said}");
            assert_eq!((sources(&lines), colors(&lines)), (vec![path.clone()], vec!["red"]), "{input}");
        }
    }
    for input in [inner.to_owned(), format!("{inner}/*.png"), format!("{inner}/*[!z].png")] {
        let (code, said, lines) = run(&folder, &folder.file(&input), &[]);
        assert_eq!((code, lines.len()), (0, 7), "{input}: {said}");
    }
    // GStreamer opens a clip with special characters in its path.
    let clip = folder.file(&format!("{inner}/a %20[1].mkv"));
    assert!(roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", "test:3", "--video", &clip]).status.success());
    for input in [clip.clone(), format!("file://{}", clip.replace('%', "%25").replace(' ', "%20"))] {
        let (code, said, lines) = run(&folder, &input, &[]);
        assert_eq!((code, lines.len()), (0, 3), "{input}: {said}");
    }
    // The file name is not UTF-8.
    let odd = Path::new(&folder.file("")).join(OsStr::from_bytes(b"odd\xff.png"));
    folder.picture("x.png", 64, 64, [0, 255, 0]);
    std::fs::rename(folder.file("x.png"), &odd).unwrap();
    let json = folder.file("o.jsonl");
    let output = command().args(["run", &folder.file("colors.toml"), "-q", "--json", &json, "--input"]).arg(&odd).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(colors(&lines(&json)), ["green"]);
    let (code, said, lines) = run(&folder, &folder.file("odd*"), &[]);
    assert_eq!((code, lines.len()), (0, 1), "{said}");
    // A missing file is an error, not a panic.
    check_fails(&["run", &folder.file("colors.toml"), "--input", &folder.file("no[1].png")], 1, &["cannot read input"]);
    check_fails(&["run", &folder.file("colors.toml"), "--input", "file://other-host/x.png"], 2, &["other-host", "file:///PATH"]);
}

#[test]
fn annotated_images_keep_their_names() {
    let folder = Folder::new("images-out");
    std::fs::create_dir(folder.file("in")).unwrap();
    folder.picture("in/a.png", 200, 160, [255, 0, 0]);
    folder.picture("in/b.jpg", 128, 96, [0, 255, 0]);
    folder.picture("in/c.bmp", 165, 147, [0, 0, 255]);
    std::fs::write(folder.file("in/d.png"), "broken").unwrap();
    let names = |out: &str| {
        let mut names: Vec<_> = std::fs::read_dir(folder.file(out)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let is_drawn = |path: &str, size: (u32, u32)| {
        let drawn = image::ImageReader::open(folder.file(path)).unwrap().with_guessed_format().unwrap().decode().unwrap().into_rgb8();
        assert_eq!(drawn.dimensions(), size, "{path}");
        // Images are black outside the rectangle, except for text and boxes.
        let bright = drawn.enumerate_pixels().filter(|(x, y, pixel)| {
            let is_in = (size.0 / 4..size.0 / 2).contains(x) && (size.1 / 4..size.1 * 3 / 4).contains(y);
            !is_in && pixel.0.iter().any(|value| *value > 100)
        });
        assert!(bright.count() > 20, "{path}: expected drawn pixels");
    };
    let (code, said, lines) = run(&folder, &folder.file("in"), &["--images", &folder.file("out/deep")]);
    assert_eq!((code, lines.len()), (3, 3), "{said}");
    assert_eq!(names("out/deep"), ["a.png", "b.jpg", "c.png"]);
    is_drawn("out/deep/a.png", (200, 160));
    is_drawn("out/deep/b.jpg", (128, 96));
    is_drawn("out/deep/c.png", (165, 147));
    let format = |path: &str| image::guess_format(&std::fs::read(folder.file(path)).unwrap()).unwrap();
    assert_eq!((format("out/deep/c.png"), format("out/deep/b.jpg")), (image::ImageFormat::Png, image::ImageFormat::Jpeg));
    // Image files can be written by a path template, in addition to a video, for a single image, and for the frames of a video.
    let (code, said, _) = run(&folder, &folder.file("in"), &["--video", &folder.file("drawn/{source} x.jpg")]);
    assert_eq!(code, 3, "{said}");
    assert_eq!(names("drawn"), ["a x.jpg", "b x.jpg", "c x.jpg"]);
    is_drawn("drawn/c x.jpg", (165, 147));
    let video = folder.file("all.mp4");
    let (code, said, lines) = run(&folder, &folder.file("in/[abc].*"), &["--video", &video, "--images", &folder.file("both")]);
    assert_eq!((code, lines.len(), names("both").len()), (0, 3, 3), "{said}");
    is_drawn("both/b.jpg", (128, 96));
    let (code, said, _) = run(&folder, &folder.file("in/a.png"), &["--video", &folder.file("one.jpg")]);
    assert_eq!((code, format("one.jpg")), (0, image::ImageFormat::Jpeg), "{said}");
    let (code, said, lines) = run(&folder, &video, &["--images", &folder.file("frames")]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(names("frames").len(), lines.len());
    assert_eq!(names("frames")[0], "all-000000.jpg");
    check_fails(&["run", &folder.file("colors.toml"), "--input", &video, "--video", "x.jpg"], 2, &["{source}"]);
    check_fails(&["run", &folder.file("colors.toml"), "--input", &video, "--video", "{source}.mp4"], 2, &[".jpg or .png"]);
}

#[test]
fn image_streams_have_separate_folders() {
    let folder = Folder::new("images-streams");
    for name in ["one", "two"] {
        std::fs::create_dir(folder.file(name)).unwrap();
        folder.picture(&format!("{name}/a.png"), 64, 64, [255, 0, 0]);
    }
    let colors = folder.file("colors.toml");
    let inputs = [folder.file("one"), folder.file("two")];
    let arguments = ["run", &colors, "-q", "--input", &inputs[0], "--input", &inputs[1], "--images"];
    check_fails(&[&arguments[..], &[&folder.file("out")]].concat(), 2, &["{stream}"]);
    let output = roiflow(&[&arguments[..], &[&folder.file("out/{stream}")]].concat());
    assert!(output.status.success(), "{output:?}");
    assert!(["out/one/a.png", "out/two/a.png"].iter().all(|path| Path::new(&folder.file(path)).exists()));
}

#[test]
fn input_images_are_never_overwritten() {
    let folder = Folder::new("images-over-inputs");
    for name in ["in", "other", "links"] {
        std::fs::create_dir(folder.file(name)).unwrap();
    }
    folder.picture("in/a.png", 64, 64, [255, 0, 0]);
    folder.picture("in/b.jpg", 64, 64, [0, 255, 0]);
    folder.picture("other/in.png", 64, 64, [0, 255, 0]);
    std::os::unix::fs::symlink(folder.file("in"), folder.file("link")).unwrap();
    std::fs::hard_link(folder.file("in/a.png"), folder.file("links/a.png")).unwrap();
    let before = |name: &str| std::fs::read(folder.file(name)).unwrap();
    let names = ["in/a.png", "in/b.jpg", "other/in.png"];
    let all = names.map(before);
    let colors = folder.file("colors.toml");
    let (input, one) = (folder.file("in"), folder.file("in/a.png"));
    for output in [
        ["--images", &folder.file("in")],
        ["--images", &folder.file("in/")],
        ["--images", &folder.file("other/../in")],
        ["--images", &folder.file("link")],
        ["--images", &folder.file("links")],
        ["--images", &folder.file("in/a.png")],
        ["--video", &folder.file("in/{source}.png")],
        ["--video", &folder.file("link/{source}.jpg")],
    ] {
        check_fails(&[&["run", &colors, "--input", &input], &output[..]].concat(), 2, &[]);
    }
    check_fails(&["run", &colors, "--input", &one, "--video", &one], 2, &["a.png"]);
    // The output of one stream is the input of another.
    let both = ["run", &colors, "--input", &input, "--input", &folder.file("other/in.png"), "--video"];
    check_fails(&[&both[..], &[&folder.file("other/{stream}.png")]].concat(), 2, &[]);
    check_fails(&[&both[..], &[&folder.file("{stream}/{source}.png")]].concat(), 2, &[]);
    assert!(names.map(before) == all, "an input was changed");
}

#[test]
fn no_overwrite_keeps_existing_images() {
    let folder = Folder::new("pictures-kept");
    std::fs::create_dir(folder.file("in")).unwrap();
    folder.picture("in/a.png", 64, 64, [255, 0, 0]);
    std::fs::create_dir(folder.file("out")).unwrap();
    std::fs::write(folder.file("out/a.png"), "kept").unwrap();
    let clip = folder.file("clip.mkv");
    assert!(roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", "test:3", "--video", &clip]).status.success());
    std::fs::write(folder.file("out/clip-000000.jpg"), "kept").unwrap();
    for (input, name, code) in [(folder.file("in"), "a.png", 2), (clip, "clip-000000.jpg", 1)] {
        let arguments = ["run", &folder.file("colors.toml"), "-q", "--no-overwrite", "--input", &input, "--images", &folder.file("out")];
        let output = roiflow(&arguments);
        assert_eq!(output.status.code(), Some(code), "{input}: {output:?}");
        assert_eq!(std::fs::read_to_string(folder.file(&format!("out/{name}"))).unwrap(), "kept");
    }
    assert!(std::fs::read_dir(folder.file("out")).unwrap().flatten().all(|file| !file.file_name().to_string_lossy().ends_with(".part")));
}

#[test]
fn images_do_not_overwrite_other_files_of_run() {
    let folder = Folder::new("pictures-other");
    std::fs::create_dir(folder.file("in")).unwrap();
    folder.picture("in/a.png", 64, 64, [255, 0, 0]);
    let before = std::fs::read(folder.file("in/a.png")).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/rectangle.onnx");
    std::fs::create_dir(folder.file("model")).unwrap();
    std::fs::copy(&model, folder.file("model/a.png")).unwrap();
    std::fs::copy(model.with_extension("toml"), folder.file("model/a.toml")).unwrap();
    std::fs::create_dir(folder.file("out")).unwrap();
    let detector = format!("detector={}", folder.file("model/a.png"));
    for options in [
        // The file that such a path names is unknown until the folder `new` exists.
        vec!["--images", &folder.file("in/new/..")],
        vec!["--video", &folder.file("in/new/../{source}.png")],
        vec!["--images", &folder.file("model"), "--set", &detector],
        vec!["--images", &folder.file("out"), "--json", &folder.file("out/a.png")],
    ] {
        let (colors, input) = (folder.file("colors.toml"), folder.file("in"));
        let arguments = [vec!["run", &colors, "-q", "--input", &input], options].concat();
        let output = roiflow(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert_eq!(std::fs::read(folder.file("in/a.png")).unwrap(), before);
        assert_eq!(std::fs::read(folder.file("model/a.png")).unwrap(), std::fs::read(&model).unwrap());
        assert!(!Path::new(&folder.file("in/new")).exists() && !Path::new(&folder.file("out/a.png")).exists());
    }
}

#[test]
fn animated_gifs_are_refused_and_do_not_hang() {
    let folder = Folder::new("gif");
    // This GIF is an animation of two frames with one pixel each.
    let frame = b"\x21\xf9\x04\x00\x0a\x00\x00\x00\x2c\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02\x44\x01\x00";
    let head = b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff";
    std::fs::write(folder.file("a.gif"), [&head[..], frame, frame, b"\x3b"].concat()).unwrap();
    check_fails(
        &["run", &folder.file("colors.toml"), "-q", "--input", &folder.file("a.gif")],
        1,
        &["a.gif", "expected a file or stream with video"],
    );
}
