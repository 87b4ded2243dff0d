//! Engines that are loaded at run time. Tests a library that is found, missing or damaged, several libraries in one process, and repeated
//! loading. Each damaged library is loaded in a separate process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use roiflow::devices::auto::AutoDevice;
use roiflow::devices::cpu::CpuDevice;
use roiflow::devices::onnxruntime::OnnxRuntime;
use roiflow::devices::openvino::OpenVino;
use roiflow::devices::{self};
use roiflow::runtime::device::DeviceFamily;
use roiflow::runtime::{CompiledModel, Config, Core, Dim, Error, ErrorKind, ModelInfo, PartialShape, Performance, Precision, Result};
use roiflow::tensor::{Element, ElementType, Tensor};

use crate::support::{Scratch, alone, compile_on, is_here, real, resident_bytes, row, tiny, values};

const ENGINES: [&str; 2] = ["ORT.CPU", "OPENVINO.CPU"];

fn resident_kib() -> usize {
    resident_bytes().unwrap_or(0) / 1024
}

/// Returns a device family that has only the library at this path.
fn family_at(device: &str, path: &Path) -> Arc<dyn DeviceFamily> {
    match device {
        // SAFETY: the libraries are these engines, files that are not libraries, and libm. The initializers of these libraries have no
        // harmful effects.
        "ORT.CPU" => Arc::new(unsafe { OnnxRuntime::at(path) }),
        // SAFETY: as above.
        _ => Arc::new(unsafe { OpenVino::at(path) }),
    }
}

/// Returns the path of the device's library in the current process.
fn library_of(device: &str) -> Option<PathBuf> {
    let devices = is_here(device).then(|| devices::core().devices())?;
    let (_, info) = devices.into_iter().find(|(name, _)| name == device)?;
    info.properties.into_iter().find(|(key, _)| *key == "library").map(|(_, path)| PathBuf::from(path))
}

/// Returns a core with the built-in engine and these families.
fn core_of(families: impl IntoIterator<Item = Arc<dyn DeviceFamily>>) -> Core {
    let mut core = Core::new();
    core.register(Arc::new(CpuDevice));
    families.into_iter().for_each(|family| core.register_family(family));
    core
}

fn compile_in(core: &Core, device: &str) -> Result<CompiledModel> {
    core.compile_model(&core.read_model(tiny("double.onnx"))?, device, &Config::default())
}

#[test]
fn unusable_library_is_listed_with_reason_and_command() {
    let scratch = Scratch::new("broken-libraries");
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let mut foreign = own.clone();
    foreign[18] = 183; // ELF machine number of 64-bit ARM.
    let cases = [
        ("missing", scratch.path().join("missing.so"), "No such file"),
        ("a folder", scratch.path().to_owned(), "not a file"),
        ("empty", scratch.file("empty.so", ""), "cut off"),
        ("text", scratch.file("text.so", "a library, they said; but it was a text as long as a header"), "not a shared library"),
        ("long text", scratch.file("long.so", "no library ".repeat(100)), "not a shared library"),
        ("cut", scratch.file("cut.so", &own[..own.len() / 3]), "cut off"),
        ("another processor", scratch.file("foreign.so", foreign), "another processor"),
    ];
    for device in ENGINES {
        for (case, path, reason) in &cases {
            let core = core_of([family_at(device, path)]);
            let devices = core.devices();
            let missing = devices.iter().find(|(name, _)| name == device).and_then(|(_, info)| info.missing.clone()).unwrap();
            assert!(missing.reason.contains(reason) && missing.reason.contains(&path.display().to_string()), "{case}: {missing:?}");
            assert!(missing.install.unwrap().starts_with("pip install "), "{case}: {missing:?}");
            let error = compile_in(&core, device).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{case}: {error}");
            assert!(error.to_string().contains(reason) && error.to_string().contains("pip install"), "{case}: {error}");
            assert_eq!(compile_in(&core, "CPU").unwrap().device(), "CPU", "the other devices still work");
        }
    }
}

/// A library that can be loaded but is not an engine.
#[test]
fn library_of_another_kind_is_an_error() {
    alone("engines::library_of_another_kind_is_an_error", || {
        let Some(other) = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6"]
            .map(PathBuf::from)
            .into_iter()
            .find(|path| path.exists())
        else {
            return eprintln!("skipped: no libm where Debian has it");
        };
        for device in ENGINES {
            let error = compile_in(&core_of([family_at(device, &other)]), device).unwrap_err().to_string();
            assert!(error.contains("it has no function `"), "{error}");
        }
        if let (Some(ort), Some(openvino)) = (library_of("ORT.CPU"), library_of("OPENVINO.CPU")) {
            for (device, library) in [("OPENVINO.CPU", ort), ("ORT.CPU", openvino)] {
                let error = compile_in(&core_of([family_at(device, &library)]), device).unwrap_err().to_string();
                assert!(error.contains("it has no function `"), "{error}");
            }
        }
    });
}

/// A truncated library in the same folder as the named library is an error, not a crash.
#[test]
fn truncated_dependency_is_an_error() {
    alone("engines::truncated_dependency_is_an_error", || {
        let Some(library) = library_of("OPENVINO.CPU") else { return };
        let scratch = Scratch::new("cut-neighbor");
        let copy = scratch.path().join(library.file_name().unwrap());
        std::fs::copy(&library, &copy).unwrap();
        let whole = std::fs::read(library.with_file_name(library.file_name().unwrap().to_str().unwrap().replace("openvino_c", "openvino")))
            .unwrap();
        scratch.file("libopenvino.so.1", &whole[..whole.len() / 2]);
        let error = compile_in(&core_of([family_at("OPENVINO.CPU", &copy)]), "OPENVINO.CPU").unwrap_err().to_string();
        assert!(error.contains("libopenvino.so.1") && error.contains("cut off"), "{error}");
    });
}

/// Environment variables name a library or its folder. No other place is searched.
#[test]
fn environment_variables_select_the_library() {
    for (device, variable) in [("ORT.CPU", "ORT_DYLIB_PATH"), ("OPENVINO.CPU", "ROIFLOW_OPENVINO_LIB")] {
        let Some(library) = library_of(device) else { continue };
        let said = |value: &Path| {
            let program = std::env::current_exe().unwrap();
            let arguments = ["engines::tells_what_is_found", "--exact", "--nocapture", "--ignored"];
            let output = std::process::Command::new(program).args(arguments).env(variable, value).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let folder = library.parent().unwrap();
        for value in [&library, folder] {
            assert!(said(value).contains(&format!("{device} found {}", library.display())), "{variable}={}", value.display());
        }
        let wrong = said(Path::new("/nowhere/lib.so"));
        assert!(wrong.contains(&format!("{device} missing {variable} names a library that cannot be used")), "{wrong}");
    }
}

#[test]
#[ignore = "run by the test above, in another environment"]
fn tells_what_is_found() {
    for (name, info) in devices::core().devices() {
        match (&info.missing, info.properties.iter().find(|(key, _)| *key == "library")) {
            (Some(missing), _) => println!("{name} missing {}", missing.reason),
            (None, Some((_, path))) => println!("{name} found {path}"),
            _ => println!("{name}"),
        }
    }
}

#[test]
fn unknown_engine_device_error_lists_existing_devices() {
    for (device, lacking) in [("ORT.CPU", "ORT.FANCY"), ("OPENVINO.CPU", "OPENVINO.FANCY")] {
        if is_here(device) {
            let error = compile_in(devices::core(), lacking).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("CPU") && error.to_string().contains("not"), "{error}");
        }
    }
    assert_eq!(compile_in(devices::core(), "FANCY.CPU").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(compile_in(devices::core(), "ORT.").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn model_rejected_by_the_engine_is_an_error_with_the_file() {
    let scratch = Scratch::new("rejected");
    let core = devices::core();
    let unsupported = core.read_model(tiny("unsupported.onnx")).unwrap();
    for device in ENGINES.into_iter().filter(|device| is_here(device)) {
        let error = core.compile_model(&unsupported, device, &Config::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Model, "{error}");
        assert!(error.to_string().contains("unsupported.onnx") && error.to_string().contains("FancyOp"), "{error}");
        // The file is removed after reading and before compiling.
        let path = scratch.file("gone.onnx", std::fs::read(tiny("double.onnx")).unwrap());
        let gone = core.read_model(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let error = core.compile_model(&gone, device, &Config::default()).unwrap_err().to_string();
        assert!(error.contains("gone.onnx"), "{error}");
    }
    let ir = scratch.file("broken.xml", "<net name=\"broken\" version=\"11\"><layers></net>");
    let error = core.read_model(&ir).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Model, "{error}");
    // If the engine is installed, the error is the engine's message. If the engine is missing, the error says how to install the engine.
    assert!(error.to_string().to_lowercase().contains("openvino"), "{error}");
}

#[test]
fn engines_run_side_by_side() {
    let models: Vec<_> = ["CPU", "ORT.CPU", "OPENVINO.CPU"]
        .into_iter()
        .filter(|device| is_here(device))
        .map(|device| compile_on(device, &tiny("double.onnx")))
        .collect();
    std::thread::scope(|scope| {
        for model in &models {
            for thread_idx in 0..2 {
                scope.spawn(move || {
                    for round in 0..50 {
                        let value = (100 * thread_idx + round) as f32;
                        assert_eq!(values(&model.infer(row([value; 4])).unwrap()[0]), [2.0 * value; 4], "{}", model.device());
                    }
                });
            }
        }
    });
}

#[test]
fn eight_threads_compile_at_once() {
    for device in ENGINES.into_iter().filter(|device| is_here(device)) {
        std::thread::scope(|scope| {
            for thread_idx in 0..8 {
                scope.spawn(move || {
                    for file in ["double.onnx", "identity.onnx"] {
                        let model = compile_on(device, &tiny(file));
                        let value = thread_idx as f32 + 1.0;
                        let expected = if file == "double.onnx" { 2.0 * value } else { value };
                        assert_eq!(values(&model.infer(row([value; 4])).unwrap()[0]), [expected; 4], "{device}");
                    }
                });
            }
        });
    }
}

#[test]
fn repeated_compiling_does_not_leak_memory() {
    alone("engines::repeated_compiling_does_not_leak_memory", || {
        for device in ENGINES.into_iter().filter(|device| is_here(device)) {
            let cycle = || {
                let model = compile_on(device, &tiny("double.onnx"));
                let request = model.create_infer_request().unwrap();
                request.infer(row([1.0; 4])).unwrap();
                request.start_async(()).unwrap();
                request.wait().unwrap();
            };
            (0..50).for_each(|_| cycle());
            let before = resident_kib();
            (0..950).for_each(|_| cycle());
            let grown = resident_kib().saturating_sub(before);
            eprintln!("{device}: 950 cycles of compiling and dropping grew memory by {grown} KiB of {before}");
            assert!(grown < 4 * 1024, "{device}: 950 cycles grew memory by {grown} KiB");
        }
    });
}

/// A further request needs memory for its tensors only. The weights are in memory once.
#[test]
fn requests_of_one_model_share_its_weights() {
    alone("engines::requests_of_one_model_share_its_weights", || {
        let Some(path) = real("models/yolox_nano_416x416.onnx") else { return };
        let model_kib = std::fs::metadata(&path).unwrap().len() as usize / 1024;
        for device in ENGINES.into_iter().filter(|device| is_here(device)) {
            let model = compile_on(device, &path);
            let before = resident_kib();
            let requests: Vec<_> = (0..16).map(|_| model.create_infer_request().unwrap()).collect();
            let each = resident_kib().saturating_sub(before) / requests.len();
            let ports = model.inputs().iter().chain(model.outputs());
            let tensors: usize = ports.map(|port| port.shape.to_static().unwrap().n_elements().unwrap() * port.element.size() / 1024).sum();
            eprintln!("{device}: {each} KiB per request, {tensors} of them its tensors, of a model of {model_kib} KiB");
            assert!(
                each < tensors + model_kib / 8,
                "{device}: {each} KiB per request, {tensors} of them tensors; the model has {model_kib}"
            );
        }
    });
}

/// The process may exit during runs and compilations. The exit handlers of the engines must tolerate running work.
#[test]
fn process_exits_cleanly_while_engines_work() {
    let program = std::env::current_exe().unwrap();
    for (amid, n_rounds) in [("runs", 5), ("compiling", 20)] {
        for device in ENGINES.into_iter().filter(|device| is_here(device)) {
            for round in 0..n_rounds {
                let arguments = [&*format!("engines::ends_the_process_amid_{amid}"), "--exact", "--nocapture", "--ignored"];
                let output = std::process::Command::new(&program).args(arguments).env("ROIFLOW_TEST_DEVICE", device).output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(7), "{device}, {amid}, round {round}: {}: {said}", output.status);
            }
        }
    }
}

#[test]
#[ignore = "run by the test above, in a process that it ends"]
fn ends_the_process_amid_runs() {
    let Ok(device) = std::env::var("ROIFLOW_TEST_DEVICE") else { return };
    let model = compile_on(&device, &real("models/yolox_nano_416x416.onnx").unwrap_or_else(|| tiny("double.onnx")));
    let requests: Vec<_> = (0..4).map(|_| model.create_infer_request().unwrap()).collect();
    let (sender, receiver) = std::sync::mpsc::channel();
    for request in &requests {
        if model.inputs()[0].shape.to_static().is_none() {
            request.set_input_tensor((), &row([1.0; 4])).unwrap();
        }
        let sender = sender.clone();
        request
            .set_callback(move |request, _| {
                sender.send(()).unwrap();
                request.start_async(()).unwrap();
            })
            .unwrap();
        request.start_async(()).unwrap();
    }
    receiver.recv().unwrap();
    std::process::exit(7);
}

#[test]
#[ignore = "run by the test above, in a process that it ends"]
fn ends_the_process_amid_compiling() {
    let Ok(device) = std::env::var("ROIFLOW_TEST_DEVICE") else { return };
    let (sender, receiver) = std::sync::mpsc::channel();
    let core = devices::core();
    let file = core.read_model(tiny("double.onnx")).unwrap();
    for _ in 0..3 {
        let (device, file, sender) = (device.clone(), file.clone(), sender.clone());
        // The threads still run when the process exits below. Their models may fail then, and such errors are ignored.
        std::thread::spawn(move || {
            while let Ok(model) = core.compile_model(&file, &device, &Config::default()) {
                let _ran = model.infer(row([1.0; 4]));
                drop(model);
                let _first = sender.send(());
            }
        });
    }
    (0..3).for_each(|_| receiver.recv().unwrap());
    std::process::exit(7);
}

#[test]
fn runs_use_tensor_memory_without_copies() {
    for device in ENGINES.into_iter().filter(|device| is_here(device)) {
        let model = compile_on(device, &tiny("identity.onnx"));
        let request = model.create_infer_request().unwrap();
        let (input, output) = (row([1.0, 2.0, 3.0, 4.0]), Tensor::new(ElementType::F32, [1, 4]).unwrap());
        request.set_input_tensor((), &input).unwrap();
        request.set_output_tensor((), &output).unwrap();
        for value in [5.0, 6.0] {
            input.view_mut::<f32>().unwrap().fill(value);
            request.infer(()).unwrap();
            assert_eq!(values(&output), [value; 4], "{device}");
        }
    }
}

#[test]
fn options_change_compilation_but_not_results() {
    let scratch = Scratch::new("options");
    let core = devices::core();
    let model = core.read_model(tiny("double.onnx")).unwrap();
    let n_cores = std::thread::available_parallelism().unwrap().get();
    let cases = [
        (Config::default(), n_cores),
        (Config { performance: Performance::Latency, ..Config::default() }, 1),
        (Config { n_threads: Some(1), ..Config::default() }, n_cores),
        (Config { n_requests: Some(3), ..Config::default() }, 3),
        (Config { precision: Precision::Bf16, ..Config::default() }, n_cores),
        (Config { cache_folder: Some(scratch.path().to_owned()), ..Config::default() }, n_cores),
        (Config { cache_folder: Some(scratch.path().to_owned()), ..Config::default() }, n_cores),
    ];
    for device in ENGINES.into_iter().filter(|device| is_here(device)) {
        for (config, n_requests) in &cases {
            let compiled = core.compile_model(&model, device, config).unwrap();
            assert_eq!(compiled.optimal_number_of_requests(), *n_requests, "{device} {config:?}");
            assert_eq!(values(&compiled.infer(row([3.0; 4])).unwrap()[0]), [6.0; 4], "{device} {config:?}");
        }
    }
    if is_here("OPENVINO.CPU") {
        assert!(std::fs::read_dir(scratch.path()).unwrap().count() > 0, "a compiled model was kept");
    }
}

#[test]
fn engine_options_are_passed_to_their_engine_only() {
    let core = devices::core();
    let model = core.read_model(tiny("double.onnx")).unwrap();
    let compile = |device: &str, options: &str| {
        let mut config = Config::default();
        config.set_all(options).unwrap();
        core.compile_model(&model, device, &config)
    };
    // OpenVINO does not know the property. ONNX Runtime does not load the file, because the file does not have the format that the option
    // sets.
    let refused =
        [("OPENVINO.CPU", "OPENVINO.NO_SUCH_PROPERTY=1", "NO_SUCH_PROPERTY"), ("ORT.CPU", "ORT.session.load_model_format=ORT", "ORT.CPU")];
    for (device, options, says) in refused.into_iter().filter(|(device, ..)| is_here(device)) {
        let error = compile(device, options).unwrap_err();
        assert!(error.to_string().contains(says), "{device}: {error}");
        for other in ["CPU", "OPENVINO.CPU", "ORT.CPU"].into_iter().filter(|other| *other != device && is_here(other)) {
            let model = compile(other, options).unwrap();
            assert_eq!(model.infer(row([1.0; 4])).unwrap().array::<f32>(()).unwrap().as_slice(), Some(&[2.0; 4][..]), "{other}");
        }
    }
    if is_here("OPENVINO.CPU") {
        compile("OPENVINO.CPU", "OPENVINO.NUM_STREAMS=1,OPENVINO.ENABLE_HYPER_THREADING=NO,OPENVINO.ENABLE_CPU_PINNING=NO").unwrap();
    }
    let error = compile("CPU", "TPU.x=1").unwrap_err();
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("one of OPENVINO, ORT"), "{error}");
}

#[test]
fn reshaped_model_accepts_only_the_new_shapes() {
    let core = devices::core();
    let double = core.read_model(tiny("double.onnx")).unwrap();
    let bounded = double.reshape([("x", PartialShape::from([Dim::from(2..=3), 4.into()]))]).unwrap();
    let fixed = double.reshape([("x", PartialShape::from([2, 4]))]).unwrap();
    let two = Tensor::from_slice([2, 4], &[1.0_f32; 8]).unwrap();
    for device in ENGINES.into_iter().filter(|device| is_here(device)) {
        for model in [&bounded, &fixed] {
            let compiled = core.compile_model(model, device, &Config::default()).unwrap();
            assert_eq!(compiled.inputs()[0].shape, model.info().inputs[0].shape, "{device}");
            let request = compiled.create_infer_request().unwrap();
            request.infer(&two).unwrap();
            assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0; 8], "{device}");
            assert_eq!(request.infer(row([1.0; 4])).unwrap_err().kind(), ErrorKind::Tensor, "{device}");
        }
    }
    // The file of this model has fixed extents, so `reshape` must change them.
    let identity = core.read_model(tiny("identity.onnx")).unwrap().reshape([("x", PartialShape::from([2, 4]))]).unwrap();
    for device in ENGINES.into_iter().filter(|device| is_here(device)) {
        let compiled = core.compile_model(&identity, device, &Config::default()).unwrap();
        assert_eq!(compiled.outputs()[0].shape.to_string(), "[2, 4]", "{device}: the output shape is static again");
        let request = compiled.create_infer_request().unwrap();
        request.infer(&two).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [1.0; 8]);
    }
}

/// Real models with static shapes are compiled for other input sizes. If that is impossible, the error names the file.
#[test]
fn real_model_is_compiled_for_another_input_size() {
    let Some(path) = real("models/yolox_nano_416x416.onnx") else { return };
    let core = devices::core();
    let model = core.read_model(&path).unwrap();
    let outputs: Vec<_> = ["CPU", "ORT.CPU", "OPENVINO.CPU"]
        .into_iter()
        .filter(|device| is_here(device))
        .map(|device| {
            let wide = model.reshape([((), PartialShape::from([1, 3, 224, 320]))]).unwrap();
            let compiled = core.compile_model(&wide, device, &Config::default()).unwrap();
            let picture: Vec<f32> = (0..3 * 224 * 320).map(|n| (n * 7919 % 255) as f32).collect();
            let output = compiled.infer(Tensor::from_slice([1, 3, 224, 320], &picture).unwrap()).unwrap().into_tensors().remove(0);
            (device, output)
        })
        .collect();
    let (_, reference) = &outputs[0];
    for (device, output) in &outputs {
        assert_eq!(output.shape(), reference.shape(), "{device}");
        let off = values(output).iter().zip(values(reference)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-2, "{device}: {off} off");
    }
    // The convolutions need another number of channels, so compilation or the run fails.
    let five_channels = model.reshape([((), PartialShape::from([1, 5, 224, 320]))]).unwrap();
    let picture = Tensor::new(ElementType::F32, [1, 5, 224, 320]).unwrap();
    for device in ENGINES.into_iter().filter(|device| is_here(device)) {
        let ran = core.compile_model(&five_channels, device, &Config::default()).and_then(|model| model.infer(&picture));
        let error = ran.map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Model | ErrorKind::Device) && error.to_string().contains(device), "{error}");
    }
}

fn kept_in(folder: &Path) -> Vec<PathBuf> {
    let in_folder = |folder: PathBuf| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = in_folder(folder.to_owned()).flat_map(in_folder).filter(|file| !file.ends_with("sums")).collect();
    files.sort();
    files
}

/// The file name of a cached model depends on the source of the model: other bytes or shapes give another file.
#[test]
fn cached_model_is_used_until_something_changes() {
    let device = "ORT.CPU";
    if !is_here(device) {
        return;
    }
    let (scratch, core) = (Scratch::new("kept"), devices::core());
    let folder = scratch.path().join("new/folder");
    let config = Config { cache_folder: Some(folder.clone()), ..Config::default() };
    let path = scratch.file("model.onnx", std::fs::read(tiny("double.onnx")).unwrap());
    let infer = |shape: Option<[usize; 2]>| {
        let mut model = core.read_model(&path).unwrap();
        if let Some(shape) = shape {
            model = model.reshape([("x", PartialShape::from(shape))]).unwrap();
        }
        let compiled = core.compile_model(&model, device, &config).unwrap();
        assert_eq!(compiled.properties().ignored, []);
        values(&compiled.infer(row([1.0, 2.0, 3.0, 4.0])).unwrap()[0])
    };
    let doubled = [2.0, 4.0, 6.0, 8.0];
    assert_eq!(infer(None), doubled);
    let [first] = &kept_in(&folder)[..] else { panic!("{:?}", kept_in(&folder)) };
    let (bytes, written) = (std::fs::read(first).unwrap(), std::fs::metadata(first).unwrap().modified().unwrap());
    assert_eq!(infer(None), doubled);
    assert_eq!((kept_in(&folder).len(), std::fs::metadata(first).unwrap().modified().unwrap()), (1, written), "written again");
    // A truncated or damaged cache file is replaced. A cache file of another model is replaced as well.
    let other = std::fs::read(tiny("center.onnx")).unwrap();
    for damaged in [&bytes[..bytes.len() / 2], b"", b"no model at all", &other] {
        std::fs::write(first, damaged).unwrap();
        assert_eq!(infer(None), doubled);
        assert_eq!(std::fs::read(first).unwrap(), bytes);
    }
    assert_eq!(infer(Some([1, 4])), doubled);
    assert_eq!(kept_in(&folder).len(), 2, "another shape");
    std::fs::copy(tiny("identity.onnx"), &path).unwrap();
    assert_eq!(infer(None), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(kept_in(&folder).len(), 3, "another model of the same name");
    // If the cache folder cannot be used, compilation only takes longer.
    let config = Config { cache_folder: Some(path.join("no")), ..Config::default() };
    core.compile_model(&core.read_model(&path).unwrap(), device, &config).unwrap();
}

/// OpenVINO's cache uses the file as its key, so a model that is reshaped after reading must get its own cache file.
#[test]
fn reshaped_model_is_cached_with_its_shapes() {
    let device = "OPENVINO.CPU";
    if !is_here(device) {
        return;
    }
    let (scratch, core) = (Scratch::new("reshaped"), devices::core());
    let folder = scratch.path().join("kept");
    let config = Config { cache_folder: Some(folder.clone()), ..Config::default() };
    let path = scratch.file("model.onnx", std::fs::read(tiny("double.onnx")).unwrap());
    let infer = |n_rows: usize| {
        let model = core.read_model(&path).unwrap().reshape([("x", PartialShape::from([n_rows, 4]))]).unwrap();
        let compiled = core.compile_model(&model, device, &config).unwrap();
        assert_eq!(compiled.inputs()[0].shape, PartialShape::from([n_rows, 4]));
        let input = ndarray::Array2::from_shape_fn((n_rows, 4), |(row, column)| (row * 4 + column) as f32);
        values(&compiled.infer(&input).unwrap()[0])
    };
    let reshaped = || -> Vec<_> { kept_in(&folder).into_iter().filter(|file| file.to_string_lossy().contains("reshaped-")).collect() };
    let twice = |n_rows: usize| (0..n_rows * 4).map(|n| 2.0 * n as f32).collect::<Vec<_>>();
    assert_eq!(infer(3), twice(3));
    let [first] = &reshaped()[..] else { panic!("{:?}", kept_in(&folder)) };
    let written = std::fs::metadata(first).unwrap().modified().unwrap();
    let n_files = kept_in(&folder).len();
    assert_eq!(infer(3), twice(3));
    assert_eq!((kept_in(&folder).len(), std::fs::metadata(first).unwrap().modified().unwrap()), (n_files, written), "made again");
    assert_eq!(infer(2), twice(2));
    assert_eq!(reshaped().len(), 2, "another shape");
    // An invalid cache file is replaced.
    std::fs::write(first, b"no model at all").unwrap();
    assert_eq!(infer(3), twice(3));
    assert_eq!(reshaped().len(), 2, "{:?}", kept_in(&folder));
    assert_eq!(infer(3), twice(3));
    std::fs::copy(tiny("identity.onnx"), &path).unwrap();
    assert_eq!(infer(3), (0..12).map(|n| n as f32).collect::<Vec<_>>());
    assert_eq!(reshaped().len(), 3, "another model of the same name");
}

#[test]
fn concurrent_caching_leaves_one_file() {
    if !is_here("ORT.CPU") {
        return;
    }
    let (scratch, core) = (Scratch::new("kept-at-once"), devices::core());
    let config = Config { cache_folder: Some(scratch.path().to_owned()), ..Config::default() };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let model = core.compile_model(&core.read_model(tiny("double.onnx")).unwrap(), "ORT.CPU", &config).unwrap();
                    assert_eq!(values(&model.infer(row([1.0; 4])).unwrap()[0]), [2.0; 4]);
                }
            });
        }
    });
    assert_eq!(kept_in(scratch.path()).len(), 1, "{:?}", kept_in(scratch.path()));
}

/// Prints the durations of compilation and of loading from the cache.
#[test]
fn cached_model_gives_the_same_results() {
    let Some(path) = real("models/yolox_nano_416x416.onnx") else { return };
    let (scratch, core) = (Scratch::new("kept-real"), devices::core());
    for device in ENGINES.into_iter().filter(|device| is_here(device)) {
        let model = core.read_model(&path).unwrap();
        let config = Config { cache_folder: Some(scratch.path().join(device)), ..Config::default() };
        let answer = |config: &Config| {
            let begin = std::time::Instant::now();
            let compiled = core.compile_model(&model, device, config).unwrap();
            let elapsed = begin.elapsed();
            let request = compiled.create_infer_request().unwrap();
            request.input_tensor(()).unwrap().view_mut::<f32>().unwrap().fill(64.0);
            request.infer(()).unwrap();
            (compiled.info().clone(), values(&request.output_tensor(()).unwrap()), elapsed)
        };
        let [plain, _, kept] = [&Config::default(), &config, &config].map(answer);
        assert_eq!((&plain.0, &plain.1), (&kept.0, &kept.1), "{device}");
        eprintln!("{device}: compiled in {:?}, loaded in {:?}", plain.2, kept.2);
    }
}

/// The state is inside the OpenVINO model, so the runtime could not read it, or reset it between streams.
#[test]
fn model_with_internal_variables_is_an_error() {
    let device = "OPENVINO.CPU";
    if !is_here(device) {
        return;
    }
    let port = |id| format!("<port id='{id}' precision='FP32'><dim>1</dim><dim>4</dim></port>");
    let layer = |id: usize, kind: &str, data: &str, n_inputs: usize, n_outputs: usize| {
        let inputs: String = (0..n_inputs).map(port).collect();
        let outputs: String = (n_inputs..n_inputs + n_outputs).map(port).collect();
        let version = if kind == "ReadValue" || kind == "Assign" { "opset6" } else { "opset1" };
        format!(
            "<layer id='{id}' name='{kind}' type='{kind}' version='{version}'><data {data}/><input>{inputs}</input><output>{outputs}</output></layer>"
        )
    };
    let layers = [
        layer(0, "Parameter", "shape='1,4' element_type='f32'", 0, 1),
        layer(1, "Const", "element_type='f32' shape='1, 4' offset='0' size='16'", 0, 1),
        layer(2, "ReadValue", "variable_id='sum' variable_type='f32' variable_shape='1,4'", 1, 1),
        layer(3, "Add", "auto_broadcast='numpy'", 2, 1),
        layer(4, "Assign", "variable_id='sum'", 1, 1),
        layer(5, "Result", "", 1, 0),
    ];
    let edges = [(0, 0, 3, 0), (1, 0, 2, 0), (2, 1, 3, 1), (3, 2, 4, 0), (3, 2, 5, 0)]
        .map(|(from, port, to, to_port)| format!("<edge from-layer='{from}' from-port='{port}' to-layer='{to}' to-port='{to_port}'/>"));
    let text = format!(
        "<?xml version='1.0'?><net name='sum' version='11'><layers>{}</layers><edges>{}</edges></net>",
        layers.concat(),
        edges.concat()
    );
    let (scratch, core) = (Scratch::new("own-variables"), devices::core());
    scratch.file("sum.bin", [0; 16]);
    for text in [text.clone(), text.replace('\'', "\"")] {
        let path = scratch.file("sum.xml", text);
        let model = core.read_model(&path).unwrap();
        let error = core.compile_model(&model, device, &Config::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("sum.xml") && error.to_string().contains("make_stateful"), "{error}");
    }
}

/// The C API reports only one name of each tensor. The documentation of a model may use any other name of the tensor.
#[test]
fn port_is_found_by_each_name_of_its_tensor() {
    let device = "OPENVINO.CPU";
    if !is_here(device) {
        return;
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/descriptions");
    let text = std::fs::read_to_string(golden.join("ssd.xml")).unwrap();
    let (scratch, core) = (Scratch::new("two-names"), devices::core());
    let path = scratch
        .file("two.xml", text.replace("\"output0\"", "\"z_boxes,output0,boxes\"").replace("names=\"images\"", "names=\"images,data\""));
    scratch.file("two.bin", std::fs::read(golden.join("ssd.bin")).unwrap());
    let read = core.read_model(&path).unwrap();
    let cache_folder = Some(scratch.path().join("kept"));
    // The model is compiled first, then loaded from the cache.
    for _ in 0..2 {
        let model = core.compile_model(&read, device, &Config { cache_folder: cache_folder.clone(), ..Config::default() }).unwrap();
        let request = model.create_infer_request().unwrap();
        request.infer([("data", Tensor::new(ElementType::F32, [1, 3, 64, 96]).unwrap())]).unwrap();
        for name in ["boxes", "output0", "z_boxes"] {
            assert_eq!(*request.tensor(name).unwrap().shape(), [1, 1, 4, 7], "{name}");
        }
        let error = request.tensor("output1").unwrap_err().to_string();
        assert!(error.contains("`boxes`"), "{error}");
    }
}

/// With an asynchronous engine, no thread of the runtime is blocked while a run computes.
#[test]
fn no_thread_waits_for_an_asynchronous_engine() {
    if !is_here("OPENVINO.HETERO:CPU") {
        return;
    }
    let core = core_of([Arc::new(OpenVino::default()) as Arc<dyn DeviceFamily>]);
    let model = compile_in(&core, "OPENVINO.HETERO:CPU").unwrap();
    let request = model.create_infer_request().unwrap();
    request.start_async(row([1.0; 4])).unwrap();
    request.wait().unwrap();
    let steps: Vec<_> = request.step_times().unwrap().into_iter().map(|step| step.name.to_string()).collect();
    assert_eq!((steps, core.executors().n_named()), (vec!["fill".to_owned(), "submit".to_owned(), "wait".to_owned()], 0));
    // Runs with this option must be sequential, so they use one worker.
    let exclusive = Config { exclusive_requests: true, ..Config::default() };
    let model = core.compile_model(&core.read_model(tiny("double.onnx")).unwrap(), "OPENVINO.HETERO:CPU", &exclusive).unwrap();
    let requests: Vec<_> = (0..4).map(|_| model.create_infer_request().unwrap()).collect();
    requests.iter().for_each(|request| request.start_async(row([2.0; 4])).unwrap());
    requests.iter().for_each(|request| request.wait().unwrap());
    assert_eq!((requests[0].step_times().unwrap().len(), core.executors().n_named()), (2, 1));
}

/// A long run ends soon after a cancel, because the cancel interrupts the engine.
#[test]
fn canceled_run_ends_inside_the_engine() {
    let Some(path) = real("models/yolox_nano_416x416.onnx") else { return };
    for device in ENGINES.into_iter().chain(["OPENVINO.HETERO:CPU"]).filter(|device| is_here(device)) {
        let request = compile_on(device, &path).create_infer_request().unwrap();
        let mut n_canceled = 0;
        for _ in 0..20 {
            request.start_async(()).unwrap();
            std::thread::yield_now();
            request.cancel();
            if let Err(error) = request.wait() {
                assert_eq!(error.kind(), ErrorKind::Canceled, "{device}: {error}");
                n_canceled += 1;
            }
        }
        assert!(n_canceled > 0, "{device}: no run was canceled");
        request.infer(()).unwrap();
        assert!(request.output_tensor(()).unwrap().view::<f32>().unwrap().iter().all(|value| value.is_finite()));
    }
}

#[test]
fn auto_takes_the_first_device_that_runs_the_model() {
    let broken = PathBuf::from("/nowhere/libonnxruntime.so");
    let auto = |core: &Core, order: &str| {
        let mut with_auto = core.clone();
        with_auto.register(Arc::new(AutoDevice::with_order(core.clone(), order)));
        with_auto
    };
    let core = core_of([family_at("ORT.CPU", &broken), family_at("OPENVINO.CPU", &broken)]);
    let usual = "OPENVINO.CPU,ORT.CPU,CPU";
    assert_eq!(compile_in(&auto(&core, usual), "AUTO").unwrap().device(), "CPU", "a device with a broken library was not skipped");
    let nothing = compile_in(&auto(&core, "OPENVINO.CPU,ORT.CPU"), "AUTO").unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::Unsupported);
    assert!(nothing.to_string().contains("OPENVINO.CPU is not available") && nothing.to_string().contains("ORT.CPU is not"), "{nothing}");
    assert!(auto(&core, usual).prepare("AUTO") && !auto(&core, "OPENVINO.CPU,ORT.CPU").prepare("AUTO"));
    let misspelt = compile_in(&auto(&core, "CPPU"), "AUTO").unwrap_err();
    assert_eq!(misspelt.kind(), ErrorKind::NotFound, "{misspelt}");
    for device in ENGINES.into_iter().filter(|device| is_here(device)) {
        let core = auto(devices::core(), &format!("{device},CPU"));
        assert!(core.prepare("AUTO"));
        assert_eq!(compile_in(&core, "AUTO").unwrap().device(), device);
    }
    // If one device cannot run a model, the next device is tried.
    if let (Some(path), true) = (real("models/efficientnet_lite0_uint8.onnx"), is_here("ORT.CPU")) {
        let core = auto(devices::core(), "CPU,ORT.CPU");
        let compiled = core.compile_model(&core.read_model(path).unwrap(), "AUTO", &Config::default()).unwrap();
        assert_eq!((compiled.device(), compiled.inputs()[0].element), ("ORT.CPU", u8::TYPE));
    }
}

/// Devices report different output shapes. `AUTO` uses the first device whose ports the caller accepts.
#[test]
fn auto_skips_devices_with_unsuitable_ports() {
    use std::sync::atomic::{AtomicUsize, Ordering};

    let mut core = core_of([Arc::new(OnnxRuntime::default()) as Arc<dyn DeviceFamily>]);
    if !is_here("ORT.CPU") {
        return;
    }
    core.register(Arc::new(AutoDevice::with_order(core.clone(), "ORT.CPU,CPU")));
    let model = core.read_model(tiny("double.onnx")).unwrap(); // y [?, 4]
    let refusing = |n_refused: usize| {
        let n_asked = AtomicUsize::new(0);
        let accept = |_: &ModelInfo| match n_asked.fetch_add(1, Ordering::Relaxed) {
            n if n < n_refused => Err(Error::new(ErrorKind::Config, format!("refusal {n}"))),
            _ => Ok(()),
        };
        let compiled = core.compile_accepted(&model, "AUTO", &Config::default(), &accept).map(|compiled| compiled.device().to_owned());
        (compiled.map_err(|error| error.to_string()), n_asked.into_inner())
    };
    assert_eq!(refusing(0), (Ok("ORT.CPU".to_owned()), 1));
    assert_eq!(refusing(1), (Ok("CPU".to_owned()), 2));
    assert_eq!(refusing(2), (Err("refusal 0".to_owned()), 2), "the error of the first device is returned");
    // With static shapes, all devices report the same ports.
    let model = model.reshape([("x", PartialShape::from([1, 4]))]).unwrap();
    let refuse = |_: &ModelInfo| Err(Error::new(ErrorKind::Config, "never"));
    let n_asked = AtomicUsize::new(0);
    let counting = |info: &ModelInfo| {
        n_asked.fetch_add(1, Ordering::Relaxed);
        refuse(info)
    };
    assert_eq!(core.compile_accepted(&model, "AUTO", &Config::default(), &counting).unwrap_err().to_string(), "never");
    assert_eq!(n_asked.into_inner(), 1);
}
