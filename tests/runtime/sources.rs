//! Sources of models: valid files, models in memory, and errors for unusable sources.

use std::path::Path;
use std::sync::Arc;

use roiflow::devices;
use roiflow::devices::null::NullDevice;
use roiflow::runtime::device::{Device, DeviceInfo, DeviceModel};
use roiflow::runtime::executor::Executors;
use roiflow::runtime::{Config, Core, ErrorKind, Model, ModelBytes, ModelInfo, ModelSource, Result};

use crate::support::{Scratch, is_here, row, tiny, values};

const ENGINES: [&str; 3] = ["CPU", "ORT.CPU", "OPENVINO.CPU"];

fn read(path: impl AsRef<Path>) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

/// Encodes a field of a protocol buffer message. Its content is a nested message or text.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let key = u8::try_from(content.len()).unwrap();
    [&[number << 3 | 2, key], content].concat()
}

/// Returns the model `double.onnx` with an additional tensor whose values are in an external file.
fn with_external_data() -> Vec<u8> {
    let location = [field(1, b"location"), field(2, b"w.bin")].concat();
    // The tensor has type f32 and its data location is an external file.
    let tensor = [vec![1 << 3, 1, 2 << 3, 1], field(8, b"w"), field(13, &location), vec![14 << 3, 1]].concat();
    [read(tiny("double.onnx")), field(7, &field(5, &tensor))].concat()
}

/// Returns the model `y = x * weights` for `x` [1, 4] as an OpenVINO IR.
fn ir() -> String {
    let port = |id| format!("<port id='{id}' precision='FP32'><dim>1</dim><dim>4</dim></port>");
    let layer = |id: usize, kind: &str, data: &str, n_inputs: usize, n_outputs: usize| {
        let inputs: String = (0..n_inputs).map(port).collect();
        let outputs: String = (n_inputs..n_inputs + n_outputs).map(port).collect();
        format!(
            "<layer id='{id}' name='{kind}' type='{kind}' version='opset1'><data {data}/><input>{inputs}</input><output>{outputs}</output></layer>"
        )
    };
    let layers = [
        layer(0, "Parameter", "shape='1,4' element_type='f32'", 0, 1),
        layer(1, "Const", "element_type='f32' shape='1, 4' offset='0' size='16'", 0, 1),
        layer(2, "Multiply", "auto_broadcast='numpy'", 2, 1),
        layer(3, "Result", "", 1, 0),
    ];
    let edges = [(0, 0, 2, 0), (1, 0, 2, 1), (2, 2, 3, 0)]
        .map(|(from, port, to, to_port)| format!("<edge from-layer='{from}' from-port='{port}' to-layer='{to}' to-port='{to_port}'/>"));
    let (layers, edges) = (layers.concat(), edges.concat());
    format!("<?xml version='1.0'?><net name='scale' version='11'><layers>{layers}</layers><edges>{edges}</edges></net>")
}

fn weights() -> Vec<u8> {
    [1.0_f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn a_path_is_a_source_in_whatever_type_it_comes() {
    let (core, path) = (devices::core(), tiny("double.onnx"));
    let text = path.to_str().unwrap();
    let sources: [ModelSource; 6] =
        [text.into(), (&text.to_owned()).into(), text.to_owned().into(), (&path).into(), path.as_path().into(), path.clone().into()];
    for source in sources {
        assert_eq!(source, ModelSource::File(path.clone()));
        assert_eq!(core.read_model(source).unwrap().name(), text);
    }
}

#[test]
fn bytes_have_a_name_in_messages_and_are_not_printed() {
    let bytes = ModelBytes::new(vec![7_u8; 1000]);
    assert_eq!((&*bytes.to_string(), &*format!("{bytes:?}")), ("model of 1000 bytes", "ModelBytes(model of 1000 bytes)"));
    let error = devices::core().read_model(bytes.named("mine")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`mine` is not an ONNX model (the bytes are not a valid protocol buffer of a model); device CPU reads ONNX files"
    );
}

#[test]
fn file_that_is_no_model_gets_advice() {
    let scratch = Scratch::new("no-model");
    for (name, bytes) in [("README.md", &b"# A page\n"[..]), ("cut.onnx", &[8, 8, 58, 200, 1, 10])] {
        let error = devices::core().read_model(scratch.file(name, bytes)).unwrap_err().to_string();
        // The built-in engine says which files it reads, and the other engines which files they expect.
        let says = ["device CPU reads ONNX files", "expected a complete .onnx file"];
        assert!(error.contains(name) && says.iter().any(|part| error.contains(part)), "{error}");
    }
}

/// A model in memory has no folder, so a device cannot find its external files.
#[test]
fn bytes_that_refer_to_other_files_are_refused_by_each_engine() {
    let bytes = ModelBytes::new(with_external_data()).named("split");
    let error = devices::core().read_model(bytes.clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Model);
    for part in ["`split`", "expected bytes that hold the whole model", "external data", "pass the path of the model"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    for engine in ["ORT", "OPENVINO"].into_iter().filter(|engine| is_here(&format!("{engine}.CPU"))) {
        let error = family(engine).read_model(bytes.clone()).unwrap_err();
        assert!(error.to_string().contains("expected bytes that hold the whole model"), "{engine}: {error}");
    }
}

/// Returns a core that has only this engine.
fn family(engine: &str) -> Core {
    let mut core = Core::new();
    match engine {
        "ORT" => core.register_family(Arc::new(devices::onnxruntime::OnnxRuntime::default())),
        _ => core.register_family(Arc::new(devices::openvino::OpenVino::default())),
    }
    core
}

/// In the metadata of a model, the key `location` is an ordinary entry. The key names an external file only inside a tensor.
#[test]
fn a_location_in_the_metadata_is_no_other_file() {
    let entry = [field(1, b"location"), field(2, b"Bergen")].concat();
    let bytes = ModelBytes::new([read(tiny("double.onnx")), field(14, &entry)].concat());
    let core = devices::core();
    let model = core.read_model(bytes).unwrap();
    assert_eq!(model.info().metadata["location"], "Bergen");
    for device in ENGINES.into_iter().filter(|device| is_here(device)) {
        let results = core.compile_model(&model, device, &Config::default()).unwrap().infer(row([1.5; 4])).unwrap();
        assert_eq!(values(&results[0]), [3.0; 4], "{device}");
    }
}

/// Each engine reads bytes itself, in the same way as it reads a file.
#[test]
fn each_engine_reads_the_ports_of_bytes() {
    for engine in ["ORT", "OPENVINO"].into_iter().filter(|engine| is_here(&format!("{engine}.CPU"))) {
        let core = family(engine);
        let of_file = core.read_model(tiny("add.onnx")).unwrap();
        let of_bytes = core.read_model(ModelBytes::new(read(tiny("add.onnx")))).unwrap();
        assert_eq!(of_file.info(), of_bytes.info(), "{engine}");
    }
}

#[test]
fn an_openvino_ir_of_bytes_takes_its_weights_from_bytes() {
    let device = "OPENVINO.CPU";
    if !is_here(device) {
        return;
    }
    let (core, scratch) = (devices::core(), Scratch::new("ir-of-bytes"));
    let path = scratch.file("scale.xml", ir());
    scratch.file("scale.bin", weights());
    let of_file = core.read_model(&path).unwrap();
    let of_bytes = core.read_model(ModelBytes::new(ir().into_bytes()).with_weights(weights()).named("scale")).unwrap();
    assert_eq!(of_file.info(), of_bytes.info());
    // The engine's library copies the bytes, so the model can be dropped after compilation.
    for model in [of_file, of_bytes] {
        let compiled = core.compile_model(&model, device, &Config::default()).unwrap();
        drop(model);
        assert_eq!(values(&compiled.infer(row([2.0; 4])).unwrap()[0]), [2.0, 4.0, 6.0, 8.0]);
    }
    let error = core.read_model(ModelBytes::new(ir().into_bytes()).named("scale")).unwrap_err();
    assert!(error.to_string().contains("`scale`") && error.to_string().contains("ModelBytes::with_weights"), "{error}");
    let text = core.read_model(ModelBytes::new("<html>no model</html>".as_bytes())).unwrap_err();
    assert!(text.to_string().contains("it is not OpenVINO IR"), "{text}");
    let refused = core.compile_model(&core.read_model(&path).unwrap(), "CPU", &Config::default()).unwrap_err();
    assert!(refused.to_string().contains("has another format"), "{refused}");
}

#[test]
fn tensorflow_lite_files_run_on_openvino_and_are_refused_by_other_devices() {
    let (core, path) = (devices::core(), tiny("double.tflite"));
    if !is_here("OPENVINO.CPU") {
        return;
    }
    let model = core.read_model(&path).unwrap();
    let compiled = core.compile_model(&model, "OPENVINO.CPU", &Config::default()).unwrap();
    assert_eq!(values(&compiled.infer(row([1.5, -2.0, 0.0, 4.0])).unwrap()[0]), [3.0, -4.0, 0.0, 8.0]);
    // OpenVINO reads this format only from a file.
    let error = core.read_model(ModelBytes::new(read(&path)).named("double")).unwrap_err();
    assert!(error.to_string().contains("OpenVINO cannot read `double`"), "{error}");
    for device in ["CPU", "ORT.CPU"].into_iter().filter(|device| is_here(device)) {
        let error = core.compile_model(&model, device, &Config::default()).unwrap_err();
        for part in [&format!("device {device} reads ONNX files"), "double.tflite", "use OPENVINO.CPU or AUTO"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}

#[test]
fn compiled_bytes_are_cached_by_what_they_hold_or_it_is_said_that_they_are_not() {
    let (core, scratch) = (devices::core(), Scratch::new("cached-bytes"));
    for device in ["ORT.CPU", "OPENVINO.CPU"].into_iter().filter(|device| is_here(device)) {
        let folder = scratch.path().join(device);
        let config = Config { cache_folder: Some(folder.clone()), ..Config::default() };
        let n_cached = || std::fs::read_dir(&folder).map_or(0, |entries| entries.count());
        // Compiles the same bytes twice, then other bytes with the same name.
        for (file, value, n_expected) in [("double.onnx", 3.0, 1), ("double.onnx", 3.0, 1), ("identity.onnx", 1.5, 2)] {
            let model = core.read_model(ModelBytes::new(read(tiny(file))).named("one")).unwrap();
            let compiled = core.compile_model(&model, device, &config).unwrap();
            assert_eq!(values(&compiled.infer(row([1.5; 4])).unwrap()[0]), [value; 4], "{device}");
            let ignored: Vec<_> = compiled.properties().ignored.iter().map(|ignored| (ignored.option, ignored.why.clone())).collect();
            match device {
                "ORT.CPU" => assert_eq!((n_cached(), ignored), (n_expected, vec![])),
                _ => assert_eq!(
                    (n_cached(), ignored),
                    (0, vec![("cache_folder", "only models of files are cached; pass a path".to_owned())])
                ),
            }
        }
    }
}

/// A device that computes remotely and identifies models by name.
struct Knows;

impl Device for Knows {
    fn name(&self) -> &str {
        "FAR"
    }

    fn info(&self) -> DeviceInfo {
        NullDevice::default().info()
    }

    fn read_model(&self, source: &ModelSource) -> Result<ModelInfo> {
        match source {
            ModelSource::Remote(name) if name.starts_with("far:") => Ok(ModelInfo::default()),
            _ => NullDevice::default().read_model(source),
        }
    }

    fn compile(&self, model: &Model, config: &Config, executors: &Executors) -> Result<Arc<dyn DeviceModel>> {
        assert_eq!(*model.source(), ModelSource::Remote("far:double".into()));
        NullDevice::default().compile(model, config, executors)
    }
}

#[test]
fn a_remote_source_is_read_and_run_by_the_device_that_knows_it() {
    let mut core = devices::core().clone();
    let error = core.read_model(ModelSource::Remote("far:double".into())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let said = error.to_string();
    assert!(
        said.starts_with("cannot read model `far:double`: expected a source that a device knows, got a source that is unknown to "),
        "{said}"
    );
    assert!(said.ends_with("; pass a file, its bytes, or the address of a model on a server"), "{said}");
    core.register(Arc::new(Knows));
    let model = core.read_model(ModelSource::Remote("far:double".into())).unwrap();
    assert_eq!(model.name(), "far:double");
    core.compile_model(&model, "FAR", &Config::default()).unwrap();
    for device in ENGINES.into_iter().filter(|device| is_here(device)) {
        let error = core.compile_model(&model, device, &Config::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("needs a model file, or the bytes of a model file") && error.to_string().contains("far:double"),
            "{error}"
        );
    }
}

#[test]
fn ports_alone_are_nothing_to_read() {
    let error = devices::core().read_model(ModelSource::Ports).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("use `Model::from_ports`"), "{error}");
}

#[test]
fn a_model_is_read_and_compiled_in_one_call() {
    let model = devices::core().compile(tiny("double.onnx"), "CPU").unwrap();
    assert_eq!(model.device(), "CPU");
    assert_eq!(devices::core().compile("/no/such.onnx", "CPU").unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(devices::core().compile(tiny("double.onnx"), "CPPU").unwrap_err().kind(), ErrorKind::NotFound);
}
