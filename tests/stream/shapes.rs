//! Masks, poses and rotated boxes from the model to the JSON and the overlay, with the real binary and models whose outputs are known.

use base64::Engine;
use serde_json::Value;

use crate::cli::{Folder, lines, roiflow};
use crate::harness::tiny;

/// Writes an image of 192x128, twice the size of the models' input. `color_of` returns the color of a pixel.
fn picture(folder: &Folder, name: &str, color_of: impl Fn(u32, u32) -> [u8; 3]) -> String {
    let path = folder.file(name);
    image::RgbImage::from_fn(192, 128, |x, y| image::Rgb(color_of(x, y))).save(&path).unwrap();
    path
}

/// Runs a model on an image. Returns the object in the JSON. `publish` has properties of `roipublish`.
fn run(folder: &Folder, model: &str, image: &str, publish: &str) -> Value {
    let (json, annotated) = (folder.file("o.jsonl"), folder.file("annotated"));
    let _removed = std::fs::remove_file(&json);
    let description = format!(
        "# Shapes.\nversion = 1\nname = \"shapes\"\ndescription = \"Shapes of objects.\"\n[pipeline]\ngraph = \"{{source}} ! roidetect \
         model={} device=CPU ! roipublish method=file address={json} {publish} ! roioverlay ! {{video}}\"\n",
        tiny(model)
    );
    std::fs::write(folder.file("shapes.toml"), description).unwrap();
    let output = roiflow(&["run", &folder.file("shapes.toml"), "-q", "--input", image, "--images", &annotated]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = lines(&json);
    let [object] = &**lines[0]["objects"].as_array().unwrap() else { panic!("{lines:?}") };
    object.clone()
}

fn near(value: &Value, expected: f64, tolerance: f64) -> bool {
    value.as_f64().is_some_and(|value| (value - expected).abs() <= tolerance)
}

#[test]
fn mask_is_in_the_json_in_the_chosen_form_and_on_the_image() {
    let folder = Folder::new("mask");
    let is_in = |x: u32, y: u32| (16..96).contains(&x) && (40..80).contains(&y) && !((40..56).contains(&x) && (48..64).contains(&y));
    let image = picture(&folder, "in.png", |x, y| if is_in(x, y) { [255, 0, 0] } else { [40; 3] });
    let area = f64::from(80 * 40 - 16 * 16);
    let object = run(&folder, "mask.onnx", &image, "");
    assert_eq!((&object["x"], &object["y"], &object["w"], &object["h"]), (&16.into(), &40.into(), &80.into(), &40.into()));
    let mask = &object["mask"];
    assert!(near(&mask["area"], area, 0.05 * area) && mask["columns"] == 40 && mask["rows"] == 20 && mask["runs"].is_array(), "{mask}");
    let annotated = image::open(folder.file("annotated/in.png")).unwrap().into_rgb8();
    let (inside, hole) = (annotated.get_pixel(80, 70).0, annotated.get_pixel(48, 56).0);
    assert!(inside != [255, 0, 0] && hole == [40; 3], "the mask is blended into its pixels only: {inside:?} {hole:?}");

    let polygons = &run(&folder, "mask.onnx", &image, "masks=polygons")["mask"];
    assert_eq!(polygons["polygons"].as_array().map(Vec::len), Some(2), "the outline and the hole: {polygons}");
    let coco = &run(&folder, "mask.onnx", &image, "masks=coco")["mask"];
    assert!(coco["size"] == serde_json::json!([128, 192]) && coco["counts"].is_string() && coco.get("runs").is_none(), "{coco}");

    let png = &run(&folder, "mask.onnx", &image, "masks=png maps=png")["mask"];
    let file = base64::engine::general_purpose::STANDARD.decode(png["png"].as_str().unwrap()).unwrap();
    let cells = image::load_from_memory_with_format(&file, image::ImageFormat::Png).unwrap().into_luma8();
    assert_eq!(cells.dimensions(), (40, 20));
    let mut expanded = Vec::new();
    for (run, is_inside) in mask["runs"].as_array().unwrap().iter().zip([false, true].into_iter().cycle()) {
        expanded.extend(std::iter::repeat_n(is_inside, run.as_u64().unwrap() as usize));
    }
    assert!(cells.iter().map(|value| *value >= 128).eq(expanded), "the image has the cells of the runs");
    assert!(png["area"] == mask["area"] && png["corners"] == mask["corners"] && png.get("runs").is_none(), "{png}");
}

#[test]
fn pose_has_named_keypoints_and_a_skeleton() {
    let folder = Folder::new("pose");
    let squares = [((20, 20), [255, 0, 0]), ((150, 30), [0, 255, 0]), ((90, 100), [0, 0, 255])];
    let color = |x: u32, y: u32| {
        let found = squares.iter().find(|((left, top), _)| (*left..*left + 12).contains(&x) && (*top..*top + 12).contains(&y));
        found.map_or([0; 3], |(_, color)| *color)
    };
    let object = run(&folder, "pose.onnx", &picture(&folder, "in.png", color), "");
    let keypoints = object["pose"]["keypoints"].as_array().unwrap();
    for (point, (((left, top), _), name)) in keypoints.iter().zip(squares.iter().zip(["red", "green", "blue"])) {
        let (x, y) = (f64::from(left + 6) / 192.0, f64::from(top + 6) / 128.0);
        assert!(point["name"] == name && near(&point["x"], x, 0.01) && near(&point["y"], y, 0.01), "{point}");
        assert_eq!(point["confidence"], 1.0);
    }
    assert_eq!((keypoints.len(), &object["pose"]["skeleton"]), (3, &serde_json::json!([[0, 1], [0, 2]])));
    let annotated = image::open(folder.file("annotated/in.png")).unwrap().into_rgb8();
    assert_ne!(annotated.get_pixel(91, 31).0, [0; 3], "the line from red to green");
}

#[test]
fn rotated_box_has_its_angle_and_corners() {
    let folder = Folder::new("rotated");
    let (center, cos, sin) = ((96.0, 64.0), 0.8_f64, 0.6_f64);
    let is_in = |x: u32, y: u32| {
        let (x, y) = (f64::from(x) + 0.5 - center.0, f64::from(y) + 0.5 - center.1);
        (x * cos + y * sin).abs() < 40.0 && (y * cos - x * sin).abs() < 12.0
    };
    let image = picture(&folder, "in.png", |x, y| if is_in(x, y) { [0, 0, 255] } else { [0; 3] });
    let object = run(&folder, "rotated.onnx", &image, "");
    let rotated = &object["rotated_box"];
    assert!(near(&rotated["angle"], sin.atan2(cos).to_degrees(), 1.0), "{rotated}");
    let top_left = &rotated["corners"][0];
    let (x, y) = (center.0 - 40.0 * cos + 12.0 * sin, center.1 - 40.0 * sin - 12.0 * cos);
    assert!(near(&top_left["x"], x / 192.0, 0.01) && near(&top_left["y"], y / 128.0, 0.015), "{rotated}");
    // The upright box contains the rotated one.
    let (width, height) = (80.0 * cos + 24.0 * sin, 80.0 * sin + 24.0 * cos);
    assert!(near(&object["w"], width, 2.0) && near(&object["h"], height, 2.0), "{object}");
    let annotated = image::open(folder.file("annotated/in.png")).unwrap().into_rgb8();
    let corner =
        (object["x"].as_u64().unwrap() as u32 + 1, object["y"].as_u64().unwrap() as u32 + object["h"].as_u64().unwrap() as u32 - 2);
    assert_eq!(annotated.get_pixel(corner.0, corner.1).0, [0; 3], "no upright box is drawn");
}

#[test]
fn model_with_an_input_for_the_image_size_runs() {
    let folder = Folder::new("transformer");
    let is_in = |x: u32, y: u32| (16..96).contains(&x) && (40..80).contains(&y);
    let image = picture(&folder, "in.png", |x, y| if is_in(x, y) { [255, 0, 0] } else { [0; 3] });
    let object = run(&folder, "transformer.onnx", &image, "");
    assert_eq!((&object["x"], &object["y"], &object["w"], &object["h"]), (&16.into(), &40.into(), &80.into(), &40.into()), "{object}");
    assert_eq!(object["roi_type"], "shape");
}
