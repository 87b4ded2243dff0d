//! Damaged or malicious model files: each file leads to a one-line error in bounded time with every engine.

use std::time::{Duration, Instant};

use crate::cli::{Folder, command, roiflow};

/// Returns a protocol buffer field with a message or a string.
fn field(number: u8, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    let mut bytes = varint(u64::from(number) << 3 | 2);
    bytes.extend(varint(content.len() as u64));
    bytes.extend_from_slice(content);
    bytes
}

/// Returns a protocol buffer field with a number.
fn number(field: u8, value: i64) -> Vec<u8> {
    [varint(u64::from(field) << 3), varint(value as u64)].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

const FLOAT: i64 = 1;
const INT64: i64 = 7;
const STRING: i64 = 8;

/// Returns a `ValueInfoProto`: an input or output of a graph.
fn port(name: &str, element: i64, dims: &[i64]) -> Vec<u8> {
    let shape: Vec<u8> = dims.iter().flat_map(|&dim| field(1, number(1, dim))).collect();
    let tensor = [number(1, element), field(2, shape)].concat();
    [field(1, name), field(2, field(1, tensor))].concat()
}

/// Returns a `NodeProto`.
fn node(operator: &str, inputs: &[&str], outputs: &[&str], attributes: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes: Vec<u8> = inputs.iter().flat_map(|name| field(1, name)).collect();
    bytes.extend(outputs.iter().flat_map(|name| field(2, name)));
    bytes.extend(field(3, format!("n_{}", outputs.first().unwrap_or(&""))));
    bytes.extend(field(4, operator));
    bytes.extend(attributes.iter().flat_map(|attribute| field(5, attribute)));
    bytes
}

/// Returns a `TensorProto`: a weight of a graph.
fn weight(name: &str, element: i64, dims: &[i64], raw: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = dims.iter().flat_map(|&dim| number(1, dim)).collect();
    bytes.extend(number(2, element));
    bytes.extend(field(8, name));
    bytes.extend(field(9, raw));
    bytes
}

struct Parts {
    nodes: Vec<Vec<u8>>,
    weights: Vec<Vec<u8>>,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Returns a `GraphProto`.
fn graph(parts: &Parts) -> Vec<u8> {
    let mut bytes: Vec<u8> = parts.nodes.iter().flat_map(|node| field(1, node)).collect();
    bytes.extend(field(2, "g"));
    bytes.extend(parts.weights.iter().flat_map(|weight| field(5, weight)));
    bytes.extend(field(11, &parts.input));
    bytes.extend(field(12, &parts.output));
    bytes
}

/// Returns a `ModelProto`: the content of an ONNX file.
fn model(parts: &Parts) -> Vec<u8> {
    [number(1, 8), field(7, graph(parts)), field(8, number(2, 13))].concat()
}

/// Returns a model with input x [1, 3, 8, 8], these nodes, and output y.
fn of_nodes(nodes: Vec<Vec<u8>>, weights: Vec<Vec<u8>>) -> Vec<u8> {
    let (input, output) = (port("x", FLOAT, &[1, 3, 8, 8]), port("y", FLOAT, &[1, 3, 8, 8]));
    model(&Parts { nodes, weights, input, output })
}

fn of_input(element: i64, dims: &[i64]) -> Vec<u8> {
    let (input, output) = (port("x", element, dims), port("y", element, dims));
    model(&Parts { nodes: vec![node("Relu", &["x"], &["y"], &[])], weights: Vec::new(), input, output })
}

fn int64s(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Returns a model with `If` nodes that are nested to this depth.
fn nested(depth: usize) -> Vec<u8> {
    let mut inner = node("Identity", &["x"], &["y"], &[]);
    for _ in 0..depth {
        let branch = [field(1, &inner), field(2, "b"), field(12, port("y", FLOAT, &[1, 3, 8, 8]))].concat();
        let attribute = |name: &str| [field(1, name), field(6, &branch), number(20, 5)].concat();
        inner = node("If", &["c"], &["y"], &[attribute("then_branch")]);
    }
    of_nodes(vec![inner], vec![weight("c", 9, &[], &[1])])
}

fn cases() -> Vec<(&'static str, Vec<u8>)> {
    let relu = |from: &str, to: &str| node("Relu", &[from], &[to], &[]);
    let add = |a: &str, b: &str, to: &str| node("Add", &[a, b], &[to], &[]);
    let whole = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tiny/stripes.onnx")).unwrap();
    let expand = |shape: &[i64]| {
        let shape_of = weight("s", INT64, &[shape.len() as i64], &int64s(shape));
        of_nodes(
            vec![node("ConstantOfShape", &["s"], &["big"], &[]), node("ReduceMax", &["big"], &["m"], &[]), add("x", "m", "y")],
            vec![shape_of],
        )
    };
    vec![
        ("empty", Vec::new()),
        ("zeros", vec![0; 1000]),
        ("ones", vec![0xff; 1000]),
        ("text", b"once upon a time".repeat(100)),
        ("cut off early", whole[..10].to_vec()),
        ("cut off in the middle", whole[..whole.len() / 2].to_vec()),
        ("cut off at the end", whole[..whole.len() - 1].to_vec()),
        ("no graph", number(1, 8)),
        ("an empty graph", [number(1, 8), field(7, "")].concat()),
        ("huge extents", of_input(FLOAT, &[1, 3, 1 << 40, 1 << 40])),
        ("extents that overflow", of_input(FLOAT, &[i64::MAX, i64::MAX, i64::MAX])),
        ("large extents", of_input(FLOAT, &[1, 3, 100_000, 100_000])),
        ("negative extents", of_input(FLOAT, &[-7, -3, i64::MIN, 8])),
        ("no extents", of_input(FLOAT, &[])),
        ("many axes", of_input(FLOAT, &[1; 100])),
        ("an input of texts", of_input(STRING, &[1, 3])),
        ("an unknown element type", of_input(1000, &[1, 3])),
        ("a cycle", of_nodes(vec![add("x", "b", "a"), add("x", "a", "b"), relu("b", "y")], Vec::new())),
        ("a node that reads itself", of_nodes(vec![add("x", "y", "y")], Vec::new())),
        ("a missing weight", of_nodes(vec![add("x", "nowhere", "y")], Vec::new())),
        ("two producers", of_nodes(vec![relu("x", "y"), relu("x", "y")], Vec::new())),
        ("no producer", of_nodes(vec![relu("x", "z")], Vec::new())),
        ("no inputs", of_nodes(vec![node("Conv", &[], &["y"], &[])], Vec::new())),
        ("no operator", of_nodes(vec![node("", &["x"], &["y"], &[])], Vec::new())),
        (
            "a weight of another type",
            of_nodes(vec![node("Conv", &["x", "w"], &["y"], &[])], vec![weight("w", INT64, &[3, 3, 1, 1], &int64s(&[1; 9]))]),
        ),
        ("a weight of another rank", of_nodes(vec![node("Conv", &["x", "w"], &["y"], &[])], vec![weight("w", FLOAT, &[9], &[0; 36])])),
        ("a weight that claims more", of_nodes(vec![add("x", "w", "y")], vec![weight("w", FLOAT, &[1 << 20, 1 << 20], &[0; 4])])),
        ("a weight that claims all", of_nodes(vec![add("x", "w", "y")], vec![weight("w", FLOAT, &[i64::MAX, i64::MAX], &[0; 4])])),
        ("a weight below nothing", of_nodes(vec![add("x", "w", "y")], vec![weight("w", FLOAT, &[-1, -4], &[0; 16])])),
        ("a weight that is cut off", of_nodes(vec![add("x", "w", "y")], vec![weight("w", FLOAT, &[1, 3, 8, 8], &[0; 7])])),
        ("a constant of 400 GB", expand(&[100_000, 1_000_000])),
        ("a constant that overflows", expand(&[1 << 31, 1 << 31, 1 << 31])),
        (
            "a reshape to nothing like it",
            of_nodes(vec![node("Reshape", &["x", "s"], &["y"], &[])], vec![weight("s", INT64, &[2], &int64s(&[7, 11]))]),
        ),
        (
            "an axis that there is not",
            of_nodes(vec![node("Softmax", &["x"], &["y"], &[[field(1, "axis"), number(3, 99), number(20, 2)].concat()])], Vec::new()),
        ),
        ("a deep nest", nested(20)),
        ("a deeper nest", nested(5000)),
        ("a long chain", {
            let names: Vec<String> = (0..3000).map(|n| format!("v{n}")).collect();
            let mut nodes = vec![relu("x", "v0")];
            nodes.extend(names.windows(2).map(|pair| relu(&pair[0], &pair[1])));
            nodes.push(relu("v2999", "y"));
            of_nodes(nodes, Vec::new())
        }),
    ]
}

fn xml_cases() -> Vec<(&'static str, String)> {
    let golden = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/descriptions/ssd.xml")).unwrap();
    let laughs = (1..10).map(|n| format!("<!ENTITY l{n} \"{}\">", format!("&l{};", n - 1).repeat(10))).collect::<String>();
    vec![
        ("empty", String::new()),
        ("cut off", golden[..golden.len() / 2].to_owned()),
        ("no net", "<html/>".to_owned()),
        ("deep", format!("{}<model_info/>{}", "<net>".repeat(100_000), "</net>".repeat(100_000))),
        ("laughs", format!("<?xml version=\"1.0\"?><!DOCTYPE n [<!ENTITY l0 \"lol\">{laughs}]><net><model_info>&l9;</model_info></net>")),
        ("without weights", golden.clone()),
        ("huge extents", golden.replace("<dim>64</dim>", "<dim>9223372036854775807</dim>")),
        ("negative extents", golden.replace("<dim>64</dim>", "<dim>-64</dim>")),
    ]
}

/// Asserts that the command fails with a one-line error.
fn check(name: &str, arguments: &[&str]) -> Result<(), String> {
    let begin = Instant::now();
    let output = command().args(arguments).env("ROIFLOW_INSPECT_SECONDS", "20").stdin(std::process::Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_one_line = said.lines().count() == 1 && said.starts_with("error: ");
    if output.status.code() == Some(1) && is_one_line && !said.contains("panicked") && begin.elapsed() < Duration::from_secs(40) {
        eprintln!("{name}: {:?}: {said}", begin.elapsed());
        return Ok(());
    }
    Err(format!("{name}: {} after {:?}: {said}", output.status, begin.elapsed()))
}

#[test]
fn hostile_model_gives_one_error_line() {
    let folder = Folder::new("hostile");
    let mut failures = Vec::new();
    for (name, bytes) in cases() {
        let path = folder.file(&format!("{}.onnx", name.replace(' ', "-")));
        std::fs::write(&path, bytes).unwrap();
        failures.extend(check(name, &["inspect", &path]).err());
    }
    for (name, text) in xml_cases() {
        let path = folder.file(&format!("{}.xml", name.replace(' ', "-")));
        std::fs::write(&path, text).unwrap();
        failures.extend(check(name, &["inspect", &path]).err());
    }
    for name in ["a-deeper-nest", "a-constant-of-400-GB", "negative-extents", "cut-off-in-the-middle", "a-missing-weight", "no-producer"] {
        let path = folder.file(&format!("{name}.onnx"));
        failures.extend(check(name, &["bench", &path, "--device", "CPU", "--seconds", "0.01"]).err());
    }
    for name in ["a-deeper-nest", "cut-off-in-the-middle", "a-missing-weight", "no-producer"] {
        let path = folder.file(&format!("{name}.onnx"));
        failures.extend(check(name, &["describe", &path, "--decoder", "ssd"]).err());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn corrupted_model_is_described_or_gives_one_error_line() {
    let folder = Folder::new("mutated");
    let seed = std::env::var("ROIFLOW_SEED").ok().map_or(0x5eed, |seed| seed.parse().expect("ROIFLOW_SEED"));
    eprintln!("ROIFLOW_SEED={seed}");
    let mut state: u64 = seed | 1;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % below
    };
    let models = ["rectangle", "stripes", "color", "brightness", "suppressed", "open_all"];
    let mut failures = Vec::new();
    for case in 0..30 {
        let name = models[random(models.len())];
        let mut bytes = std::fs::read(format!("{}/assets/tiny/{name}.onnx", env!("CARGO_MANIFEST_DIR"))).unwrap();
        for _ in 0..=random(4) {
            let at = random(bytes.len());
            match random(4) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes[at] ^= 1 << random(8),
                2 => drop(bytes.drain(at..(at + random(20)).min(bytes.len()))),
                _ => {
                    let from = random(bytes.len());
                    let copied = bytes[from..(from + random(20)).min(bytes.len())].to_vec();
                    bytes.splice(at..at, copied);
                }
            }
        }
        let path = folder.file("mutated.onnx");
        std::fs::write(&path, &bytes).unwrap();
        let output = roiflow(&["inspect", &path]);
        let said = String::from_utf8_lossy(&output.stderr);
        let is_good = match output.status.code() {
            Some(0) => true,
            Some(1) => said.lines().count() == 1 && said.starts_with("error: ") && !said.contains("panicked"),
            _ => false,
        };
        if !is_good {
            failures.push(format!("case {case} of {name} with ROIFLOW_SEED={seed}: {}: {said}", output.status));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The special files include a FIFO without a writer.
#[test]
fn special_files_do_not_block() {
    let folder = Folder::new("no-file");
    let pipe = folder.file("pipe.onnx");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [&*pipe, "/dev/zero", "/", "/dev/null"] {
        check(path, &["inspect", path]).unwrap();
    }
}
