//! Videos whose metadata declares a rotation, as phones record them, are analyzed and written upright.

use roiflow::frame::PixelRect;

use crate::cli::{Folder, roiflow};
use crate::harness::make_clip;

/// An orientation: its name, the matrix in the track header in fixed-point numbers of ISO/IEC 14496-12, the size of the upright video, and
/// the position of a rectangle in it.
type Orientation = (&'static str, [i32; 4], (u64, u64), fn(PixelRect) -> [u32; 4]);

const WIDTH: u32 = 256;
const HEIGHT: u32 = 192;

const ORIENTATIONS: [Orientation; 4] = [
    ("as recorded", [1, 0, 0, 1], (256, 192), |r| [r.x, r.y, r.width, r.height]),
    ("a quarter clockwise", [0, 1, -1, 0], (192, 256), |r| [HEIGHT - r.y - r.height, r.x, r.height, r.width]),
    ("half", [-1, 0, 0, -1], (256, 192), |r| [WIDTH - r.x - r.width, HEIGHT - r.y - r.height, r.width, r.height]),
    ("a quarter counterclockwise", [0, -1, 1, 0], (192, 256), |r| [r.y, WIDTH - r.x - r.width, r.height, r.width]),
];

/// Writes a matrix into the track header (version 0).
fn turn(bytes: &mut [u8], [a, b, c, d]: [i32; 4]) {
    let header = bytes.windows(4).position(|window| window == b"tkhd").unwrap() + 4;
    assert_eq!(bytes[header], 0, "version");
    let one = |value: i32| value << 16;
    let matrix = [one(a), one(b), 0, one(c), one(d), 0, 0, 0, 1 << 30];
    for (n, value) in matrix.iter().enumerate() {
        let at = header + 40 + 4 * n;
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }
}

fn lines(path: &str) -> Vec<serde_json::Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn near(object: &serde_json::Value, expected: [u32; 4]) -> bool {
    let found = ["x", "y", "w", "h"].map(|key| object[key].as_i64().unwrap());
    found.iter().zip(expected).all(|(found, expected)| (found - i64::from(expected)).abs() <= 8)
}

#[test]
fn rotated_recordings_are_analyzed_and_written_upright() {
    let folder = Folder::new("upright");
    let find = folder.file("find.toml");
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tiny/rectangle.onnx");
    let graph = format!("{{source}} ! roidetect model={model} device=CPU ! {{json}} ! {{video}}");
    std::fs::write(&find, format!("version = 1\nname = \"find\"\ndescription = \"Finds.\"\n[pipeline]\ngraph = '''{graph}'''\n")).unwrap();
    for muxer in ["mp4mux", "qtmux"] {
        let clip = folder.file("clip.mp4");
        let rects = make_clip(&clip, 12, muxer);
        let bytes = std::fs::read(&clip).unwrap();
        for (name, matrix, size, place) in ORIENTATIONS {
            let mut turned = bytes.clone();
            turn(&mut turned, matrix);
            let (input, json, video) = (folder.file("turned.mp4"), folder.file("o.jsonl"), folder.file("o.mp4"));
            std::fs::write(&input, turned).unwrap();
            let again = folder.file("again.jsonl");
            for (input, json, video) in [(&input, &json, &video), (&video, &again, &folder.file("again.mkv"))] {
                let output = roiflow(&["run", &find, "-q", "--input", input, "--json", json, "--video", video]);
                assert!(output.status.success(), "{muxer}, {name}: {}", String::from_utf8_lossy(&output.stderr));
                let lines = lines(json);
                assert_eq!(lines.len(), rects.len(), "{muxer}, {name}");
                for (line, rect) in lines.iter().zip(&rects) {
                    assert_eq!((&line["resolution"]["width"], &line["resolution"]["height"]), (&size.0.into(), &size.1.into()), "{name}");
                    let objects = line["objects"].as_array().unwrap();
                    let expected = place(*rect);
                    assert!(objects.iter().any(|object| near(object, expected)), "{muxer}, {name}: {expected:?} in {objects:?}");
                }
            }
        }
    }
}

#[test]
fn rotated_clip_plays_in_loop_and_with_limit() {
    let folder = Folder::new("upright-loop");
    let clip = folder.file("clip.mp4");
    make_clip(&clip, 10, "mp4mux");
    let mut bytes = std::fs::read(&clip).unwrap();
    turn(&mut bytes, ORIENTATIONS[1].1);
    std::fs::write(&clip, bytes).unwrap();
    let json = folder.file("o.jsonl");
    let video = folder.file("o.mp4");
    let arguments =
        ["run", &folder.file("colors.toml"), "-q", "--loop", "--frames", "35", "--input", &clip, "--json", &json, "--video", &video];
    let output = roiflow(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = lines(&json);
    assert_eq!(lines.len(), 35);
    assert!(lines.iter().all(|line| line["resolution"]["width"] == 192));
}
