//! A test case for decoders, generated from bytes: any decoder, outputs of valid and invalid shapes, and valid, invalid and huge values.
//! Asserts that all results are valid. Random tests and fuzz targets include this file, so it uses no other test helpers.

use roiflow::frame::{Geometry, Outcome, Point, Rect, Size};
use roiflow::vision::decode::{DecoderRegistry, Output, RawAttribute, RawDetection, Results, Subject};

use super::source::Source;

/// Runs the case. Returns true if the decoder accepted the outputs.
pub fn try_decoder(bytes: &[u8]) -> bool {
    let mut source = Source::new(bytes);
    if source.below(5) == 0 { try_class_decoder(&mut source) } else { try_box_decoder(&mut source) }
}

fn try_box_decoder(source: &mut Source<'_>) -> bool {
    let registry = DecoderRegistry::built_in();
    let names: Vec<&str> = registry.names().filter(|name| registry.subject(name) == Some(Subject::Objects)).collect();
    let name = names[source.below(names.len())];
    let input =
        [Size::new(64, 32), Size::new(96, 64), Size::new(128, 128), Size::new(70, 33), Size::new(1, 1), Size::new(0, 0)][source.below(6)];
    let n_classes = 1 + source.below(5);
    let mut ports = right_ports(name, input, n_classes);
    match source.below(4) {
        0 => mutate(&mut ports, source),
        1 => ports = (0..source.below(5)).map(|n| (format!("output{n}"), any_shape(source))).collect(),
        _ => {}
    }
    let tensors: Vec<Vec<f32>> = ports.iter().map(|(_, shape)| values(shape, source)).collect();
    let outputs: Vec<Output<'_>> = ports.iter().zip(&tensors).map(|((name, shape), data)| Output { name, shape, data }).collect();
    let max_boxes = [1, 2, 10, 300][source.below(4)];
    let mut keys = format!("threshold = {}\nmax-boxes = {max_boxes}\n", [0.0, 0.25, 0.5, 1.0][source.below(4)]);
    let known = registry.keys(name);
    if known.contains(&"background") {
        keys += ["", "background = 0\n"][source.below(2)];
    }
    if known.contains(&"nms") {
        let nms = ["\"hard\"", "\"linear\"", "\"gaussian\"\nnms-sigma = 0.5", "\"gaussian\"\nnms-sigma = 1e-9"][source.below(4)];
        let (iou, is_agnostic) = ([0.0, 0.45, 1.0][source.below(3)], source.below(2) == 0);
        keys += &format!("nms = {nms}\niou-threshold = {iou}\nclass-agnostic = {is_agnostic}\n");
    }
    if known.contains(&"coordinates") {
        keys += ["", "coordinates = \"pixels\"\n", "coordinates = \"normalized\"\n"][source.below(3)];
    }
    if known.contains(&"anchors") {
        let formula = ["", "formula = \"square\"\n", "softmax = true\n"][source.below(3)];
        keys += &format!("anchors = [[[10, 13], [16, 30]], [[30, 61], [62, 45]]]\n{formula}");
    }
    if known.contains(&"keypoint-values") {
        keys += ["", "keypoint-values = 2\n", "edges = [[0, 1]]\n"][source.below(3)];
    }
    if known.contains(&"decoded") {
        keys += ["", "decoded = true\n"][source.below(2)];
    }
    if known.contains(&"classes-axis") {
        keys += ["", "classes-axis = \"first\"\n"][source.below(2)];
    }
    if known.contains(&"box-format") {
        keys += ["", "box-format = \"center\"\n"][source.below(2)];
    }
    if known.contains(&"anchor-scale") {
        keys += ["", "anchor-scale = 3\n", "aspect-ratios = [1]\n"][source.below(3)];
    }
    if known.contains(&"mask-area") {
        keys += ["", "mask-area = \"box\"\n", "mask-values = \"logits\"\n"][source.below(3)];
    }
    if known.contains(&"activation") {
        keys += ["", "", "activation = \"sigmoid\"\n", "activation = \"softmax\"\n"][source.below(4)];
    }
    let mut decoder = registry.make_from_text(name, &keys).unwrap_or_else(|error| panic!("{name}: {error}"));
    decoder.set_class_thresholds([&[][..], &[0.1, 0.9], &[0.0; 6]][source.below(3)].to_vec());
    let mut results = Results::default();
    let decoded = decoder.decode(&outputs, input, &mut results);
    let names_and_shapes: Vec<(&str, &[usize])> = outputs.iter().map(|output| (output.name, output.shape)).collect();
    let is_one_row = outputs.iter().all(|output| output.shape.first() == Some(&1) && is_complete(output));
    if is_one_row {
        assert_eq!(decoder.check(&names_and_shapes, input).is_ok(), decoded.is_ok(), "{name}, {names_and_shapes:?}: {decoded:?}");
    }
    if decoded.is_err() {
        return false;
    }
    let boxes = &results.boxes;
    assert!(boxes.len() <= max_boxes, "{name}: {} boxes", boxes.len());
    assert!(boxes.is_sorted_by(|one, other| one.score >= other.score), "{name}: {boxes:?}");
    for found in boxes {
        assert!(is_good(found, input), "{name}, {input}: {found:?}");
        let points = results.keypoints(found);
        assert!(points.iter().all(|point| point.x.is_finite() && point.y.is_finite()), "{name}: {points:?}");
    }
    let is_inside = |attribute: &RawAttribute| match &attribute.outcome {
        Outcome::Geometry(geometry) => is_good_geometry(geometry, input),
        _ => true,
    };
    assert!(results.attributes.iter().all(|attribute| attribute.of.is_none_or(|of| of < boxes.len()) && is_inside(attribute)), "{name}");
    true
}

/// Asserts finite coordinates, masks inside the input, and confidences from 0 to 1.
fn is_good_geometry(geometry: &Geometry, input: Size) -> bool {
    let is_finite = |point: &Point| point.x.is_finite() && point.y.is_finite();
    match geometry {
        Geometry::Keypoints(keypoints) => keypoints
            .points
            .iter()
            .all(|of| is_finite(&of.point) && of.confidence.is_none_or(|confidence| (0.0..=1.0).contains(&confidence))),
        Geometry::RotatedRect(rect) => rect.corners().iter().all(is_finite) && rect.width > 0.0 && rect.height > 0.0,
        Geometry::Mask(mask) => {
            let [origin, right, down] = mask.corners;
            let is_whole = mask.columns * mask.rows() == mask.values.len() && !mask.values.is_empty();
            is_whole && origin.x >= 0.0 && origin.y >= 0.0 && right.x <= input.width as f32 && down.y <= input.height as f32
        }
        _ => true,
    }
}

/// Whether a detection has finite numbers, a positive size, a part inside the input, and a score from 0 to 1.
fn is_good(found: &RawDetection, input: Size) -> bool {
    let Rect { x, y, .. } = found.rect;
    let touches = x < input.width as f32 && y < input.height as f32 && found.rect.x_max() > 0.0 && found.rect.y_max() > 0.0;
    found.rect.is_proper() && touches && (0.0..=1.0).contains(&found.score)
}

fn try_class_decoder(source: &mut Source<'_>) -> bool {
    let activation = ["none", "softmax", "sigmoid"][source.below(3)];
    let n_classes = 1 + source.below(9);
    let threshold = [0.0, 0.5, 1.0][source.below(3)];
    let number = |value: f32| if value.is_finite() { value.clamp(-1e9, 1e9) } else { 1.0 };
    let of_classes = format!("activation = \"{activation}\"\nthreshold = {threshold}");
    let (name, keys) = match source.below(14) {
        0 => ("classes", of_classes),
        1 => ("multi-label", of_classes),
        2 => ("expectation", format!("weights = {:?}", (0..n_classes).map(|_| number(source.value())).collect::<Vec<_>>())),
        3 => ("regression", format!("scale = {:?}\noffset = {:?}", number(source.value()).max(1e-3), number(source.value()))),
        4 => ("embedding", format!("normalize = {}", source.below(2) == 0)),
        5 => {
            let formats = "formats = [{ pattern = \"([0-9]+) ([0-9]+).*\", text = \"$2-$1\" }]";
            ("ctc", ["", "blank = \"last\"\nactivation = \"softmax\"", "classes-axis = \"first\"", formats][source.below(4)].to_owned())
        }
        6 => ("simcc", String::new()),
        7 => ("movenet", String::new()),
        8 => ("class-map", ["", "threshold = 0.5", "classes-axis = \"last\""][source.below(3)].to_owned()),
        9 => ("anomaly", format!("threshold = {threshold}")),
        11 => ("landmarks", ["", "point-values = 3", "coordinates = \"pixels\""][source.below(3)].to_owned()),
        10 => ("text-indexes", ["", "uppercase = true"][source.below(2)].to_owned()),
        _ => ("custom", String::new()),
    };
    let decoder = DecoderRegistry::built_in().make_from_text(name, &keys).unwrap_or_else(|error| panic!("{name}, {keys}: {error}"));
    let right = match name {
        "ctc" => vec![1, 4, n_classes + 1],
        "simcc" => vec![1, n_classes, 64],
        "movenet" => vec![1, 1, n_classes, 3],
        "class-map" => vec![1, n_classes, 4, 5],
        "anomaly" => vec![1, 1, 4, 5],
        _ => vec![1, n_classes],
    };
    let shape = if source.below(3) == 0 { any_shape(source) } else { right };
    let data = values(&shape, source);
    let is_probability = |score: f32| activation == "none" || (0.0..=1.0).contains(&score);
    let mut results = Results::default();
    let output = Output { name: "output", shape: &shape, data: &data };
    let outputs = [output, Output { name: "second", ..output }];
    let input = if name == "simcc" { Size::new(32, 64) } else { Size::default() };
    if decoder.decode(if name == "simcc" { &outputs } else { &outputs[..1] }, input, &mut results).is_err() {
        return false;
    }
    for said in &results.attributes {
        match &said.outcome {
            Outcome::Label { confidence, label_id, .. } => {
                assert!(is_probability(*confidence) && (*label_id as usize) < data.len() && *confidence >= threshold, "{confidence}");
            }
            Outcome::Labels(labels) => {
                assert!(labels.iter().all(|label| is_probability(label.confidence) && label.confidence >= threshold), "{labels:?}");
            }
            Outcome::Value(value) => assert!(value.is_finite(), "{decoder:?}: {value}"),
            Outcome::Text { confidence, .. } => assert!((0.0..=1.0).contains(confidence), "{decoder:?}: {confidence}"),
            Outcome::Geometry(geometry) => assert!(is_good_geometry(geometry, input), "{decoder:?}: {geometry:?}"),
            _ => {}
        }
    }
    assert!(results.boxes.is_empty() && (results.attributes.len() <= 2), "{results:?}");
    true
}

/// Returns the shapes of the outputs that a decoder reads.
fn right_ports(decoder: &str, input: Size, n_classes: usize) -> Vec<(String, Vec<usize>)> {
    let cells = |stride: u32| input.width.div_ceil(stride) as usize * input.height.div_ceil(stride) as usize;
    let all_cells: usize = [8, 16, 32].map(cells).iter().sum();
    let one = |shape: &[usize]| vec![("output".to_owned(), shape.to_vec())];
    let by_stride = |columns: &[usize], n_anchors: usize| {
        let shapes =
            [8, 16, 32].into_iter().flat_map(|stride| columns.iter().map(move |&n_columns| vec![1, n_anchors * cells(stride), n_columns]));
        shapes.enumerate().map(|(n, shape)| (format!("output{n}"), shape)).collect()
    };
    let map =
        |name: &str, n_channels: usize| (name.to_owned(), vec![1, n_channels, (input.height / 4) as usize, (input.width / 4) as usize]);
    let with_map = |name: &str, shape: &[usize], n_channels: usize| vec![(name.to_owned(), shape.to_vec()), map("maps", n_channels)];
    match decoder {
        "yolov5" => one(&[1, 3 * all_cells, 5 + n_classes]),
        "yolov8" => one(&[1, 4 + n_classes, all_cells]),
        "yolov10" => one(&[1, 20, 6]),
        "yolov5-seg" => with_map("output", &[1, 3 * all_cells, 5 + n_classes + 3], 3),
        "yolov8-seg" => with_map("output", &[1, 4 + n_classes + 3, all_cells], 3),
        "yolov10-seg" => with_map("output", &[1, 20, 6 + 3], 3),
        "yolov8-pose" => one(&[1, 4 + 1 + 3 * n_classes, all_cells]),
        "yolov10-pose" => one(&[1, 20, 6 + 3 * n_classes]),
        "yolov8-obb" => one(&[1, 4 + n_classes + 1, all_cells]),
        "yolov10-obb" => one(&[1, 20, 7]),
        "boxes-masks" => {
            let mut ports = with_map("boxes", &[1, 20, 5], 20);
            ports.push(("labels".to_owned(), vec![1, 20]));
            ports
        }
        "detr" => {
            let mut ports = with_map("boxes", &[1, 20, 4], 20);
            ports.push(("logits".to_owned(), vec![1, 20, n_classes]));
            ports
        }
        "detr-final" | "final-boxes" => {
            vec![("boxes".to_owned(), vec![1, 20, 4]), ("labels".to_owned(), vec![1, 20]), ("scores".to_owned(), vec![1, 20])]
        }
        "yolo-anchors" => [8, 16]
            .map(|stride| {
                let (rows, columns) = (input.height.div_ceil(stride) as usize, input.width.div_ceil(stride) as usize);
                (format!("output{stride}"), vec![1, 2 * (5 + n_classes), rows, columns])
            })
            .to_vec(),
        "db-text" => vec![map("maps", 1)],
        "multiclass-nms" => vec![("list".to_owned(), vec![20, 6]), ("count".to_owned(), vec![1])],
        "rtdetr" => one(&[1, 20, 4 + n_classes]),
        "yolox" => one(&[1, all_cells, 5 + n_classes]),
        "ssd" => one(&[1, 1, 20, 7]),
        "boxes-labels" => vec![("boxes".to_owned(), vec![1, 20, 5]), ("labels".to_owned(), vec![1, 20])],
        "boxes-scores" => vec![("boxes".to_owned(), vec![1, 30, 4]), ("scores".to_owned(), vec![1, 30, n_classes])],
        "tf-ssd" => vec![
            ("boxes".to_owned(), vec![1, 10, 4]),
            ("classes".to_owned(), vec![1, 10]),
            ("scores".to_owned(), vec![1, 10]),
            ("count".to_owned(), vec![1]),
        ],
        "efficientdet" => {
            let n_rows = 9 * [8, 16, 32, 64, 128].map(cells).iter().sum::<usize>();
            vec![("boxes".to_owned(), vec![1, n_rows, 4]), ("scores".to_owned(), vec![1, n_rows, n_classes])]
        }
        "fastestdet" => one(&[1, 5 + n_classes, (input.height / 16) as usize, (input.width / 16) as usize]),
        "nanodet" | "picodet" => by_stride(&[n_classes, 32], 1),
        "nanodet-plus" => one(&[1, all_cells + cells(64), n_classes + 32]),
        "ultraface" => one(&[1, 40, 6]),
        "yunet" => by_stride(&[1, 1, 4, 10], 1),
        "scrfd" => by_stride(&[1, 4, 10], 2),
        "retinaface" => {
            let rows = |name: &str, n_columns| (name.to_owned(), vec![1, 2 * all_cells, n_columns]);
            vec![rows("loc", 4), rows("conf", 2), rows("landms", 10)]
        }
        "blazeface" => {
            let n_rows = 2 * cells(8) + 6 * cells(16);
            vec![("boxes".to_owned(), vec![1, n_rows, 4 + 2 * n_classes]), ("scores".to_owned(), vec![1, n_rows, 1])]
        }
        "movenet-multi" => one(&[1, 6, 3 * n_classes + 5]),
        "centerface" => vec![map("537", 1), map("538", 2), map("539", 2), map("540", 10)],
        other => panic!("a decoder that this does not know: {other}"),
    }
}

fn mutate(ports: &mut Vec<(String, Vec<usize>)>, source: &mut Source<'_>) {
    let port_idx = source.below(ports.len());
    let shape = &mut ports[port_idx].1;
    let axis = source.below(shape.len());
    match source.below(5) {
        0 => shape[axis] = source.below(12),
        1 => shape[axis] += 1,
        2 => drop(shape.remove(axis)),
        3 => shape.insert(axis, 1 + source.below(3)),
        _ => drop(ports.remove(port_idx)),
    }
}

fn any_shape(source: &mut Source<'_>) -> Vec<usize> {
    (0..source.below(5)).map(|axis| if axis == 0 { 1 } else { source.below(12) }).collect()
}

/// Returns values for a shape. Sometimes one value is missing.
fn values(shape: &[usize], source: &mut Source<'_>) -> Vec<f32> {
    let n_values: usize = shape.iter().product();
    let n_values = if source.below(64) == 0 { n_values.saturating_sub(1) } else { n_values };
    let kind = source.below(4);
    (0..n_values).map(|_| if kind == 0 { source.value() } else { source.fraction() * [1.0, 1.0, 3.0, 60.0][kind] }).collect()
}

fn is_complete(output: &Output<'_>) -> bool {
    output.shape.iter().product::<usize>() == output.data.len()
}
