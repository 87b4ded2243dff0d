//! Decoders and NMS, compared with stored results of published packages. `make.py` and `make_shapes.py` in `tests/golden/decoders` created
//! the results, so they are independent of this implementation.

use std::path::{Path, PathBuf};

use roiflow::frame::{Geometry, Grid, Outcome, Point, Rect, Size};
use roiflow::vision::decode::{DecoderRegistry, Output, RawDetection, Results};
use roiflow::vision::nms::{self, NmsMethod, NmsOptions};
use serde_json::Value;

/// Tolerance of edges and keypoints in pixels. Stored values are rounded to four digits, and sums are computed in 32 bits.
const PIXELS_OFF_MAX: f32 = 2e-3;
const SCORE_OFF_MAX: f32 = 2e-5;

#[test]
fn decoders_match_the_reference_packages() {
    let mut n_boxes = 0;
    let mut failures = Vec::new();
    let is_of_boxes = |path: &&PathBuf| !path.ends_with("nms.json") && !path.ends_with("classification.json");
    for path in stored_files().iter().filter(is_of_boxes) {
        for (case_idx, case) in cases(path).iter().enumerate() {
            match check_decoder(case) {
                Ok(n_found) => n_boxes += n_found,
                Err(difference) => {
                    failures.push(format!("{}, case {case_idx}, {}: {difference}", path.display(), text(&case["made_by"])));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(n_boxes > 100, "{n_boxes} boxes were compared");
    eprintln!("{n_boxes} boxes");
}

#[test]
fn suppression_matches_opencv() {
    for (case_idx, case) in cases(&folder().join("nms.json")).iter().enumerate() {
        let boxes: Vec<RawDetection> = (0..).zip(array(&case["boxes"])).map(|(row, stored)| row_of_list(row, stored)).collect();
        let (iou, score_min) = (number(&case["iou"]), number(&case["score_min"]));
        let hard = NmsOptions { iou, score_min, ..NmsOptions::default() };
        let soft = |method| NmsOptions { method, class_aware: false, ..hard };
        for (name, options) in [
            ("per-class", hard),
            ("agnostic", NmsOptions { class_aware: false, ..hard }),
            ("linear", soft(NmsMethod::Linear)),
            ("gaussian", soft(NmsMethod::Gaussian { sigma: number(&case["sigma"]) })),
        ] {
            let mut expected: Vec<(u32, f32)> =
                array(&case["kept"][name]).iter().map(|kept| (number(&kept[0]) as u32, number(&kept[1]))).collect();
            expected.sort_by(|one, other| other.1.total_cmp(&one.1));
            // The package applies the score threshold before NMS, so the test does the same.
            let mut found: Vec<RawDetection> = boxes.iter().copied().filter(|found| found.score > score_min).collect();
            let n_kept = nms::suppress(&mut found, &options);
            let found: Vec<(u32, f32)> = found[..n_kept].iter().map(|kept| (kept.row, kept.score)).collect();
            let is_near = |(one, other): (&(u32, f32), &(u32, f32))| one.0 == other.0 && (one.1 - other.1).abs() < 1e-4;
            let is_same = found.len() == expected.len() && found.iter().zip(&expected).all(is_near);
            assert!(is_same, "case {case_idx}, {name}: expected {expected:?}, got {found:?}");
        }
    }
}

#[test]
fn probabilities_and_vectors_match_scipy_and_numpy() {
    for (case_idx, case) in cases(&folder().join("classification.json")).iter().enumerate() {
        let values = |name: &str| array(&case[name]).iter().map(number).collect::<Vec<f32>>();
        let data = values("values");
        let output = Output { name: "output", shape: &[1, data.len()], data: &data };
        let said = |decoder: &str, keys: &str| {
            let (decoder, mut results) = (DecoderRegistry::built_in().make_from_text(decoder, keys).unwrap(), Results::default());
            decoder.decode(&[output], Size::default(), &mut results).unwrap();
            results.attributes.remove(0).outcome
        };
        let of_classes = |activation| match said("multi-label", &format!("threshold = 0.0\nactivation = \"{activation}\"")) {
            Outcome::Labels(mut labels) => {
                assert!(labels.is_sorted_by(|one, other| one.confidence >= other.confidence), "{labels:?}");
                labels.sort_unstable_by_key(|label| label.label_id);
                labels.into_iter().map(|label| label.confidence).collect()
            }
            other => panic!("{other:?}"),
        };
        let embedding = match said("embedding", "") {
            Outcome::Tensor { data, .. } => data.to_vec(),
            other => panic!("{other:?}"),
        };
        for (name, found) in [("softmax", of_classes("softmax")), ("sigmoid", of_classes("sigmoid")), ("embedding", embedding)] {
            let expected = values(name);
            let is_same = found.len() == expected.len() && found.iter().zip(&expected).all(|(one, other)| (one - other).abs() < 1e-6);
            assert!(is_same, "case {case_idx}, {name}: expected {expected:?}, got {found:?}");
        }
    }
}

/// Returns the number of compared boxes, or describes the first difference.
fn check_decoder(case: &Value) -> Result<usize, String> {
    let input = Size::new(number(&case["input"][0]) as u32, number(&case["input"][1]) as u32);
    let outputs: Vec<(&str, Vec<usize>, Vec<f32>)> = array(&case["outputs"]).iter().map(tensor).collect();
    let outputs: Vec<Output<'_>> = outputs.iter().map(|(name, shape, data)| Output { name, shape, data }).collect();
    let (registry, name) = (DecoderRegistry::built_in(), text(&case["decoder"]));
    let mut keys = format!("threshold = {}", case["score"]);
    if registry.keys(name).contains(&"iou-threshold") {
        keys += &format!("\niou-threshold = {}\nclass-agnostic = {}", case["iou"], case["agnostic"].as_bool().unwrap_or(false));
    }
    if let Some(background) = case["background"].as_u64() {
        keys += &format!("\nbackground = {background}");
    }
    if let Some(more) = case["keys"].as_str() {
        keys += &format!("\n{more}");
    }
    let off_max = case["off"].as_f64().map_or(PIXELS_OFF_MAX, |off| off as f32);
    let decoder = registry.make_from_text(name, &keys).map_err(|error| error.to_string())?;
    let ports: Vec<(&str, &[usize])> = outputs.iter().map(|output| (output.name, output.shape)).collect();
    decoder.check(&ports, input).map_err(|error| error.to_string())?;
    let mut results = Results::default();
    decoder.decode(&outputs, input, &mut results).map_err(|error| error.to_string())?;
    let found = &results.boxes;
    let expected = array(&case["boxes"]);
    if found.len() != expected.len() {
        return Err(format!("expected {} boxes, got {}: {expected:?}, {found:?}", expected.len(), found.len()));
    }
    if !found.is_sorted_by(|one, other| one.score >= other.score) {
        return Err(format!("not in the order of scores: {found:?}"));
    }
    for (stored_idx, stored) in expected.iter().enumerate() {
        let rect = rect(stored);
        let is_it = |found: &RawDetection| {
            let edges = |rect: &Rect| [rect.x, rect.y, rect.x_max(), rect.y_max()];
            let is_there = edges(&found.rect).iter().zip(edges(&rect)).all(|(edge, stored)| (edge - stored).abs() < off_max);
            let score_off = stored[4].as_f64().map_or(0.0, |score| (found.score - score as f32).abs());
            is_there && found.class_id == number(&stored[5]) as u32 && score_off < SCORE_OFF_MAX
        };
        let found_idx = found.iter().position(is_it).ok_or_else(|| format!("expected {stored}, got {found:?}"))?;
        let shape = results.attributes.iter().find(|attribute| attribute.of == Some(found_idx)).map(|attribute| &attribute.outcome);
        for (kind, check) in
            [("masks", check_mask as fn(&Value, &Geometry, f32) -> Result<(), String>), ("poses", check_pose), ("rotated", check_rotated)]
        {
            match (case[kind].get(stored_idx), shape) {
                (Some(stored), Some(Outcome::Geometry(shape))) => check(stored, shape, off_max)?,
                (Some(stored), other) => return Err(format!("expected {stored}, got {other:?}")),
                (None, _) => {}
            }
        }
        let found = &found[found_idx];
        let points = results.keypoints(found);
        let stored_points: Vec<f32> = array(&stored[6]).iter().map(number).collect();
        let is_near = |(point, stored): (&Point, &[f32; 2])| {
            (point.x - stored[0]).abs() < PIXELS_OFF_MAX && (point.y - stored[1]).abs() < PIXELS_OFF_MAX
        };
        let stored_points = stored_points.as_chunks().0;
        if points.len() != stored_points.len() || !points.iter().zip(stored_points).all(is_near) {
            return Err(format!("expected keypoints {stored_points:?}, got {points:?}"));
        }
    }
    Ok(found.len())
}

/// Compares a mask. The package interpolates probabilities instead of logits, or rounds in another way, so pixels at the edge may differ.
fn check_mask(stored: &Value, shape: &Geometry, _off_max: f32) -> Result<(), String> {
    /// Minimum fraction of equal pixels.
    const SAME: f32 = 0.98;
    let Geometry::Mask(Grid { columns, values, corners }) = shape else { return Err(format!("expected a mask, got {shape:?}")) };
    let place: Vec<f32> = array(stored)[..4].iter().map(number).collect();
    let (origin, end) = (corners[0], Point { x: corners[1].x, y: corners[2].y });
    if (origin, end) != (Point { x: place[0], y: place[1] }, Point { x: place[0] + place[2], y: place[1] + place[3] })
        || *columns != place[2] as usize
    {
        return Err(format!("expected a mask at {place:?}, got {corners:?} with {columns} columns"));
    }
    let runs = array(&stored[4]).iter().enumerate();
    let expected: Vec<bool> = runs.flat_map(|(run_idx, run)| std::iter::repeat_n(run_idx % 2 == 1, number(run) as usize)).collect();
    let n_same = values.iter().zip(&expected).filter(|(value, is_inside)| (**value >= 128) == **is_inside).count();
    if values.len() != expected.len() || (n_same as f32) < SAME * expected.len() as f32 {
        return Err(format!("{n_same} of {} pixels of a mask are the same", expected.len()));
    }
    Ok(())
}

fn check_pose(stored: &Value, shape: &Geometry, off_max: f32) -> Result<(), String> {
    let Geometry::Keypoints(found) = shape else { return Err(format!("expected keypoints, got {shape:?}")) };
    let is_near = |(found, stored): (&roiflow::frame::Keypoint, &Value)| {
        let off = [found.point.x - number(&stored[0]), found.point.y - number(&stored[1])];
        off.iter().all(|off| off.abs() < off_max) && (found.confidence.unwrap() - number(&stored[2])).abs() < 2e-4
    };
    let stored = array(stored);
    let is_same = found.points.len() == stored.len() && found.points.iter().zip(stored).all(is_near);
    let has_skeleton = (stored.len() == 17) == (found.skeleton.names.len() == 17);
    if is_same && has_skeleton { Ok(()) } else { Err(format!("expected {stored:?}, got {found:?}")) }
}

fn check_rotated(stored: &Value, shape: &Geometry, off_max: f32) -> Result<(), String> {
    let Geometry::RotatedRect(found) = shape else { return Err(format!("expected a rotated box, got {shape:?}")) };
    let is_near = |(found, stored): (&Point, &Value)| {
        (found.x - number(&stored[0])).abs() < off_max && (found.y - number(&stored[1])).abs() < off_max
    };
    let corners = found.corners();
    if corners.iter().zip(array(stored)).all(is_near) { Ok(()) } else { Err(format!("expected {stored}, got {corners:?}")) }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/decoders")
}

fn stored_files() -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|ending| ending == "json")).collect()
}

fn cases(path: &Path) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Returns the name, the shape and the values of a stored tensor.
fn tensor(stored: &Value) -> (&str, Vec<usize>, Vec<f32>) {
    let shape: Vec<usize> = array(&stored["shape"]).iter().map(|extent| number(extent) as usize).collect();
    let mut data = vec![number(&stored["fill"]); shape.iter().product()];
    for run in array(&stored["runs"]) {
        let begin = run[0].as_u64().unwrap() as usize;
        data[begin..].iter_mut().zip(array(&run[1])).for_each(|(value, stored)| *value = number(stored));
    }
    (text(&stored["name"]), shape, data)
}

fn row_of_list(row: u32, stored: &Value) -> RawDetection {
    RawDetection { rect: rect(stored), score: number(&stored[4]), class_id: number(&stored[5]) as u32, row }
}

fn rect(stored: &Value) -> Rect {
    let [x, y, width, height] = [0, 1, 2, 3].map(|idx| number(&stored[idx]));
    Rect { x, y, width, height }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn number(value: &Value) -> f32 {
    value.as_f64().expect("a number") as f32
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}
