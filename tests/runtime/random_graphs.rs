//! Outputs that an engine keeps in the memory of an input or of another output, and random small graphs on all devices against a plain
//! evaluator. `ROIFLOW_LONG_RUNS` runs ten times as many graphs, and `ROIFLOW_SEED` selects them.

use std::collections::HashMap;

use roiflow::devices;
use roiflow::runtime::{CompiledModel, Config, ModelBytes};
use roiflow::tensor::Tensor;

use crate::onnx::Onnx;
use crate::support::{Random, Scratch, is_here, values};

const DEVICES: [&str; 5] = ["CPU", "ORT.CPU", "OPENVINO.CPU", "OPENVINO.HETERO:CPU", "AUTO"];

fn devices_here() -> impl Iterator<Item = &'static str> {
    DEVICES.into_iter().filter(|device| *device == "AUTO" || is_here(device))
}

fn compile(model: &Onnx, device: &str) -> roiflow::runtime::Result<CompiledModel> {
    let core = devices::core();
    core.compile_model(&core.read_model(ModelBytes::new(model.bytes()))?, device, &Config::default())
}

/// Runs a model in every way, and checks its outputs and that its inputs stay as they are.
fn check(model: &CompiledModel, inputs: &[Tensor], expected: &[Vec<f32>], what: &str) {
    let before: Vec<_> = inputs.iter().map(values).collect();
    let given: Vec<(usize, &Tensor)> = inputs.iter().enumerate().collect();
    let same = |got: &[Tensor], how: &str| {
        let got: Vec<_> = got.iter().map(values).collect();
        assert_eq!(got, expected, "{what}, {how}");
        assert_eq!(inputs.iter().map(values).collect::<Vec<_>>(), before, "{what}, {how}: the inputs changed");
    };
    for round in ["first", "second"] {
        same(&model.infer(given.clone()).unwrap().into_tensors(), &format!("{round} direct inference"));
    }
    let request = model.create_infer_request().unwrap();
    let outputs = || (0..expected.len()).map(|idx| request.output_tensor(idx).unwrap()).collect::<Vec<_>>();
    request.infer(given.clone()).unwrap();
    same(&outputs(), "synchronous run");
    request.start_async(given.clone()).unwrap();
    request.wait().unwrap();
    same(&outputs(), "asynchronous run");
    let own: Vec<Tensor> =
        expected.iter().map(|values| Tensor::from_slice(inputs[0].shape(), &vec![-7.0_f32; values.len()]).unwrap()).collect();
    for (idx, tensor) in own.iter().enumerate() {
        request.set_output_tensor(idx, tensor).unwrap();
    }
    request.infer(given).unwrap();
    same(&own, "outputs of the caller");
}

/// No operator reads one of the inputs, or only operators whose result is not an output read it.
#[test]
fn inputs_that_no_output_needs_are_inputs_of_the_compiled_model() {
    let first = Onnx::new().input("unused", &[1, 2]).input("x", &[1, 4]);
    let last = Onnx::new().input("x", &[1, 4]).input("unused", &[1, 2]);
    let dead = Onnx::new().input("x", &[1, 4]).input("unused", &[1, 2]).node("Relu", "unused", "dead");
    let open = Onnx::new().input("x", &[-1, 4]).input("unused", &[-1, 2]);
    let scratch = Scratch::new("unused-inputs");
    for (name, model) in [("first", first), ("last", last), ("dead", dead), ("open", open)] {
        let model = model.node("Neg", "x", "y").output("y", &[-1, 4]);
        let path = scratch.file(&format!("{name}.onnx"), model.bytes());
        let core = devices::core();
        for device in devices_here() {
            for (source, read) in [("file", core.read_model(&path)), ("bytes", core.read_model(ModelBytes::new(model.bytes())))] {
                let compiled = match core.compile_model(&read.unwrap(), device, &Config::default()) {
                    Ok(compiled) => compiled,
                    // OpenVINO's HETERO gives the compiled model another output.
                    Err(error) if device.contains("HETERO") && error.to_string().contains("expected 1 outputs") => continue,
                    Err(error) => panic!("{name}, {source}, {device}: {error}"),
                };
                let names: Vec<_> = compiled.inputs().iter().map(|port| port.name().to_owned()).collect();
                assert!(names.iter().any(|name| name == "x") && names.iter().any(|name| name == "unused"), "{device}: {names:?}");
                let request = compiled.create_infer_request().unwrap();
                request.set_tensor("x", &Tensor::from_slice([1, 4], &[1.0, 2.0, -3.0, 4.0_f32]).unwrap()).unwrap();
                request.set_tensor("unused", &Tensor::from_slice([1, 2], &[8.0, 9.0_f32]).unwrap()).unwrap();
                for _ in 0..2 {
                    request.infer(()).unwrap();
                    assert_eq!(values(&request.output_tensor(0).unwrap()), [-1.0, -2.0, 3.0, -4.0], "{name}, {source}, {device}");
                }
            }
        }
    }
}

/// An output is an input, or becomes one when the engine folds the graph. Two outputs have one value.
#[test]
fn outputs_that_engines_alias_have_the_right_values() {
    let with = |operator: &str| Onnx::new().input("x", &[1, 4]).node("Relu", "x", "r").node(operator, "x", "y");
    let models = [
        ("literal", Onnx::new().input("x", &[1, 4]).node("Relu", "x", "r").output("r", &[1, 4]).output("x", &[1, 4]), vec!["r", "x"]),
        ("only", Onnx::new().input("x", &[1, 4]).node("Identity", "x", "y").output("y", &[1, 4]), vec!["x"]),
        ("Identity", with("Identity").output("y", &[1, 4]).output("r", &[1, 4]), vec!["x", "r"]),
        ("Dropout", with("Dropout").output("r", &[1, 4]).output("y", &[1, 4]), vec!["r", "x"]),
        ("Sum", with("Sum").output("y", &[1, 4]).output("r", &[1, 4]), vec!["x", "r"]),
        ("Max", with("Max").output("y", &[1, 4]).output("r", &[1, 4]), vec!["x", "r"]),
        ("Min", with("Min").output("y", &[1, 4]).output("r", &[1, 4]), vec!["x", "r"]),
        ("twice", with("Identity").node("Identity", "r", "s").output("r", &[1, 4]).output("s", &[1, 4]), vec!["r", "r"]),
        ("two names", with("Identity").node("Identity", "x", "z").output("y", &[1, 4]).output("z", &[1, 4]), vec!["x", "x"]),
        ("cast", with("Identity").node_with("Cast", "x", "c", &[("to", &[1])]).output("c", &[1, 4]).output("r", &[1, 4]), vec!["x", "r"]),
        (
            "reshape",
            with("Identity").integers("s", &[1, 4]).node("Reshape", "x s", "z").output("z", &[1, 4]).output("r", &[1, 4]),
            vec!["x", "r"],
        ),
    ];
    for device in devices_here() {
        for (name, model, outputs) in &models {
            let compiled = match compile(model, device) {
                Ok(compiled) => compiled,
                Err(error) => panic!("{name} on {device}: {error}"),
            };
            for numbers in [[3.0, -1.0, 0.5, -2.0], [-4.0, 5.0, -6.0, 7.0_f32]] {
                let of = |name: &&str| if *name == "x" { numbers.to_vec() } else { numbers.iter().map(|number| number.max(0.0)).collect() };
                let input = Tensor::from_slice([1, 4], &numbers).unwrap();
                check(&compiled, &[input], &outputs.iter().map(of).collect::<Vec<_>>(), &format!("{name} on {device}"));
            }
        }
    }
}

/// A graph over values of one shape, with the functions that compute them.
struct Case {
    model: Onnx,
    n_inputs: usize,
    /// For each value: its name, and its numbers for the inputs of the case.
    known: Vec<(String, Vec<f32>)>,
    outputs: Vec<usize>,
}

const SHAPE: [usize; 2] = [2, 3];

fn case(random: &mut Random) -> Case {
    let n_inputs = random.range(1, 3) as usize;
    let dims = if random.range(0, 3) == 0 { [-1, 3] } else { [2, 3] };
    let mut model =
        Onnx::new().integers("shape", &[0, 3]).integers("axis", &[0]).floats("zero", &[1], &[0.0]).floats("one", &[1, 3], &[1.0; 3]);
    let mut known: Vec<(String, Vec<f32>)> = Vec::new();
    for input_idx in 0..n_inputs {
        let name = format!("x{input_idx}");
        model = model.input(&name, &dims);
        known.push((name, (0..6).map(|_| random.range(0, 16) as f32 - 8.0).collect()));
    }
    for node_idx in 0..random.range(1, 6) {
        let name = format!("v{node_idx}");
        let a = random.range(0, known.len() as u32 - 1) as usize;
        let b = random.range(0, known.len() as u32 - 1) as usize;
        let (a, b) = (known[a].clone(), known[b].clone());
        let operators = [
            "Relu",
            "Identity",
            "Dropout",
            "Neg",
            "Abs",
            "Cast",
            "Reshape",
            "Transpose",
            "Zero",
            "One",
            "Add",
            "Sub",
            "Mul",
            "Max",
            "Min",
            "Sum",
            "Max1",
            "Min1",
            "Sum1",
            "Concat1",
            "Squeeze",
            "Split1",
        ];
        let largest = |values: &[f32]| values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        // Larger numbers would be rounded, and engines may round in another order.
        let operator = match random.pick(&operators) {
            "Mul" if largest(&a.1) * largest(&b.1) > 65536.0 => "Max",
            operator => operator,
        };
        let each = |compute: fn(f32) -> f32| a.1.iter().map(|value| compute(*value)).collect::<Vec<f32>>();
        let both = |compute: fn(f32, f32) -> f32| a.1.iter().zip(&b.1).map(|(a, b)| compute(*a, *b)).collect::<Vec<f32>>();
        let two = format!("{} {}", a.0, b.0);
        let (with, numbers) = match operator {
            "Relu" => (model.node("Relu", &a.0, &name), each(|value| value.max(0.0))),
            "Neg" => (model.node("Neg", &a.0, &name), each(|value| -value)),
            "Abs" => (model.node("Abs", &a.0, &name), each(f32::abs)),
            "Cast" => (model.node_with("Cast", &a.0, &name, &[("to", &[1])]), a.1.clone()),
            "Reshape" => (model.node("Reshape", &format!("{} shape", a.0), &name), a.1.clone()),
            "Transpose" => (model.node_with("Transpose", &a.0, &name, &[("perm", &[0, 1])]), a.1.clone()),
            "Zero" => (model.node("Add", &format!("{} zero", a.0), &name), a.1.clone()),
            "One" => (model.node("Mul", &format!("one {}", a.0), &name), a.1.clone()),
            "Concat1" => (model.node_with("Concat", &a.0, &name, &[("axis", &[1])]), a.1.clone()),
            "Split1" => (model.node_with("Split", &a.0, &name, &[("axis", &[1])]), a.1.clone()),
            "Squeeze" => {
                let between = format!("{name}_");
                let with = model.node("Unsqueeze", &format!("{} axis", a.0), &between);
                (with.node("Squeeze", &format!("{between} axis"), &name), a.1.clone())
            }
            "Add" => (model.node("Add", &two, &name), both(|a, b| a + b)),
            "Sub" => (model.node("Sub", &two, &name), both(|a, b| a - b)),
            "Mul" => (model.node("Mul", &two, &name), both(|a, b| a * b)),
            "Max" => (model.node("Max", &two, &name), both(f32::max)),
            "Min" => (model.node("Min", &two, &name), both(f32::min)),
            "Sum" => (model.node("Sum", &two, &name), both(|a, b| a + b)),
            one => (model.node(one.trim_end_matches('1'), &a.0, &name), a.1.clone()),
        };
        model = with;
        known.push((name, numbers));
    }
    // OpenVINO drops inputs without effect, so one output depends on all inputs.
    let names: Vec<&str> = known[..n_inputs].iter().map(|(name, _)| &**name).collect();
    model = model.node("Sum", &names.join(" "), "total");
    let total = (0..6).map(|idx| known[..n_inputs].iter().map(|(_, values)| values[idx]).sum()).collect();
    known.push(("total".to_owned(), total));
    let mut outputs: Vec<usize> = (0..known.len()).filter(|_| random.range(0, 1) == 0).collect();
    if !outputs.contains(&(known.len() - 1)) {
        outputs.push(known.len() - 1);
    }
    for &output in &outputs {
        model = model.output(&known[output].0, &dims);
    }
    Case { model, n_inputs, known, outputs }
}

#[test]
fn random_graphs_compute_what_a_plain_evaluator_does() {
    let n_cases = if std::env::var_os("ROIFLOW_LONG_RUNS").is_some() { 400 } else { 40 };
    let (mut random, seed) = Random::seeded();
    eprintln!("seed {seed}");
    let mut n_refused: HashMap<&str, usize> = HashMap::new();
    for case_idx in 0..n_cases {
        let case = case(&mut random);
        let inputs: Vec<Tensor> =
            case.known[..case.n_inputs].iter().map(|(_, values)| Tensor::from_slice(SHAPE, values).unwrap()).collect();
        let expected: Vec<Vec<f32>> = case.outputs.iter().map(|&output| case.known[output].1.clone()).collect();
        // OpenVINO's HETERO divides some graphs into parts with other outputs.
        for device in devices_here().filter(|device| !device.contains("HETERO")) {
            match compile(&case.model, device) {
                Ok(compiled) => check(&compiled, &inputs, &expected, &format!("seed {seed}, case {case_idx} on {device}")),
                Err(error) => {
                    eprintln!("case {case_idx} on {device}: {error}");
                    *n_refused.entry(device).or_default() += 1;
                }
            }
        }
    }
    assert!(n_refused.values().all(|n_refused| *n_refused * 10 < n_cases), "{n_refused:?} of {n_cases} graphs were refused");
}
