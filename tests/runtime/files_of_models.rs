//! The files of a model: weights in separate files, files that are no regular files, and files that other programs change.

use std::path::{Path, PathBuf};
use std::process::Command;

use roiflow::devices;
use roiflow::runtime::{CompiledModel, Config, ErrorKind, Result};
use roiflow::tensor::Tensor;

use crate::onnx::Onnx;
use crate::support::{Scratch, alone, in_time, is_here, row, values};

const DEVICES: [&str; 4] = ["CPU", "ORT.CPU", "OPENVINO.CPU", "AUTO"];

fn devices_here() -> impl Iterator<Item = &'static str> {
    DEVICES.into_iter().filter(|device| *device == "AUTO" || is_here(device))
}

/// `x` [1, 4] -> `y` [1, 4] = x * w, with `n_bytes` more bytes of weights that `z` uses.
fn scaling(n_bytes: usize) -> Onnx {
    let n_floats = n_bytes / 16 * 4;
    let model = Onnx::new().input("x", &[1, 4]).floats("w", &[1, 4], &[1.0, 2.0, 3.0, 4.0]).node("Mul", "x w", "y").output("y", &[1, 4]);
    let model = model.floats("large", &[4, n_floats as i64 / 4], &vec![0.5; n_floats]);
    model.node("MatMul", "x large", "z").output("z", &[1, n_floats as i64 / 4])
}

fn compile(path: &Path, device: &str, config: &Config) -> Result<CompiledModel> {
    let core = devices::core();
    core.compile_model(&core.read_model(path)?, device, config)
}

/// An IR that computes `y = x * w`, with its weights.
fn write_ir(path: &Path) {
    let port = |id: &usize| format!("<port id='{id}' precision='FP32'><dim>1</dim><dim>4</dim></port>");
    let layer = |id: usize, kind: &str, data: &str, inputs: &[usize], outputs: &[usize]| {
        let side = |name: &str, ids: &[usize]| format!("<{name}>{}</{name}>", ids.iter().map(port).collect::<String>());
        let sides = [side("input", inputs), side("output", outputs)].concat();
        format!("<layer id='{id}' name='{kind}' type='{kind}' version='opset1'><data {data}/>{sides}</layer>")
    };
    let layers = [
        layer(0, "Parameter", "shape='1,4' element_type='f32'", &[], &[0]),
        layer(1, "Const", "element_type='f32' shape='1, 4' offset='0' size='16'", &[], &[0]),
        layer(2, "Multiply", "auto_broadcast='numpy'", &[0, 1], &[2]),
        layer(3, "Result", "", &[0], &[]),
    ];
    let edges = [(0, 0, 2, 0), (1, 0, 2, 1), (2, 2, 3, 0)]
        .map(|(from, port, to, to_port)| format!("<edge from-layer='{from}' from-port='{port}' to-layer='{to}' to-port='{to_port}'/>"));
    let text = format!(
        "<?xml version='1.0'?><net name='m' version='11'><layers>{}</layers><edges>{}</edges></net>",
        layers.concat(),
        edges.concat()
    );
    std::fs::write(path, text).unwrap();
    let weights: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    std::fs::write(path.with_extension("bin"), weights).unwrap();
}

fn computes(model: &CompiledModel, what: &str) {
    assert_eq!(values(&model.infer(row([1.0; 4])).unwrap()[0]), [1.0, 2.0, 3.0, 4.0], "{what}");
}

/// If an engine maps a file, and another program truncates that file, the next access kills the process.
#[test]
#[cfg(target_os = "linux")]
fn engines_map_no_file_of_a_model() {
    let scratch = Scratch::new("mapped");
    let (whole, apart, ir) = (scratch.path().join("whole.onnx"), scratch.path().join("apart.onnx"), scratch.path().join("ir.xml"));
    std::fs::write(&whole, scaling(1 << 20).bytes()).unwrap();
    scaling(1 << 20).write_apart(&apart, "apart.bin");
    write_ir(&ir);
    let cache_folder = Some(scratch.path().join("cache"));
    for device in devices_here() {
        for path in [&whole, &apart, &ir].into_iter().filter(|path| !path.ends_with("ir.xml") || device == "OPENVINO.CPU") {
            // The second compilation with a cache loads the compiled model.
            for cache_folder in [None, cache_folder.clone(), cache_folder.clone()] {
                let model = compile(path, device, &Config { cache_folder, ..Config::default() }).unwrap();
                let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
                let mapped: Vec<_> = maps.lines().filter(|line| line.contains(scratch.path().to_str().unwrap())).collect();
                assert!(mapped.is_empty(), "{device}, {}: {mapped:?}", path.display());
                computes(&model, device);
            }
        }
    }
}

/// `cp new old` truncates the file and writes it again. Reading may fail, but the process must live.
#[test]
fn models_may_be_overwritten_while_they_are_compiled() {
    alone("files_of_models::models_may_be_overwritten_while_they_are_compiled", || {
        let scratch = Scratch::new("overwritten");
        let (whole, apart) = (scratch.path().join("whole.onnx"), scratch.path().join("apart.onnx"));
        let bytes = scaling(1 << 20).bytes();
        std::fs::write(&whole, &bytes).unwrap();
        scaling(1 << 20).write_apart(&apart, "apart.bin");
        let weights = std::fs::read(scratch.path().join("apart.bin")).unwrap();
        for device in devices_here() {
            let is_over = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    while !is_over.load(std::sync::atomic::Ordering::Acquire) {
                        std::fs::write(&whole, &bytes).unwrap();
                        std::fs::write(scratch.path().join("apart.bin"), &weights).unwrap();
                    }
                });
                let mut n_compiled = 0;
                for path in [&whole, &apart].into_iter().cycle().take(60) {
                    if let Ok(model) = compile(path, device, &Config::default()) {
                        computes(&model, device);
                        n_compiled += 1;
                    }
                }
                is_over.store(true, std::sync::atomic::Ordering::Release);
                eprintln!("{device}: {n_compiled} of 60 compiled");
            });
            compile(&whole, device, &Config::default()).unwrap();
        }
    });
}

#[test]
fn a_cached_model_that_was_truncated_is_compiled_again() {
    let scratch = Scratch::new("truncated-cache");
    let path = scratch.file("model.onnx", scaling(1 << 16).bytes());
    let folder = scratch.path().join("cache");
    let config = Config { cache_folder: Some(folder.clone()), ..Config::default() };
    for device in devices_here() {
        computes(&compile(&path, device, &config).unwrap(), device);
        for file in files_below(&folder) {
            std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(100).unwrap();
        }
        computes(&compile(&path, device, &config).unwrap(), device);
    }
}

/// Returns the files in a folder and in its folders.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) { &mut folders } else { &mut files }.push(entry.path());
        }
    }
    files
}

/// Another program changes the weights in the cache and restores them, over and over. A model with changed weights never computes.
#[test]
#[cfg(target_os = "linux")]
fn a_cached_model_may_be_damaged_while_it_is_loaded() {
    use std::os::unix::fs::FileExt;
    let scratch = Scratch::new("damaged-cache");
    let path = scratch.file("model.onnx", scaling(1 << 10).bytes());
    let weights = [1.0_f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat();
    for device in devices_here() {
        let folder = scratch.path().join(device);
        let config = Config { cache_folder: Some(folder.clone()), ..Config::default() };
        let (is_over, n_damaged) = (std::sync::atomic::AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Acquire) {
                    // Drafts are private until they are complete.
                    for file in files_below(&folder).into_iter().filter(|file| !file.to_string_lossy().contains(".tmp/")) {
                        let Ok(bytes) = std::fs::read(&file) else { continue };
                        let Some(place) = bytes.windows(weights.len()).position(|window| window == weights) else { continue };
                        let Ok(file) = std::fs::OpenOptions::new().write(true).open(&file) else { continue };
                        n_damaged.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        for bytes in [&[0; 16], &weights[..]] {
                            file.write_all_at(bytes, place as u64).unwrap();
                            std::thread::sleep(std::time::Duration::from_micros(200));
                        }
                    }
                }
            });
            let compute = || compile(&path, device, &config)?.infer(row([1.0; 4]));
            let computed: Vec<_> = (0..20).map(|_| compute().map(|outputs| values(&outputs[0]))).collect();
            is_over.store(true, std::sync::atomic::Ordering::Release);
            assert!(
                computed.iter().all(|values| values.as_ref().is_ok_and(|values| *values == [1.0, 2.0, 3.0, 4.0])),
                "{device}: {computed:?}"
            );
        });
        // The built-in engine caches nothing.
        assert!(device == "CPU" || n_damaged.into_inner() > 0, "{device}: nothing was damaged");
    }
}

#[test]
fn separate_weights_are_regular_files_in_the_folder_of_the_model() {
    let scratch = Scratch::new("weights");
    let inner = scratch.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let path = inner.join("model.onnx");
    let fifo = |name: &str| assert!(Command::new("mkfifo").arg(inner.join(name)).status().unwrap().success());
    std::fs::write(scratch.path().join("outside.bin"), vec![0; 1 << 16]).unwrap();
    fifo("fifo.bin");
    std::os::unix::fs::symlink("/dev/zero", inner.join("zero.bin")).unwrap();
    std::fs::write(inner.join("short.bin"), [0; 20]).unwrap();
    scaling(1 << 12).write_apart(&path, "real.bin");
    let named = |name: &str| drop(scaling(1 << 12).write_named(&path, name));
    for device in devices_here() {
        named("real.bin");
        computes(&compile(&path, device, &Config::default()).unwrap(), device);
        let outside = scratch.path().join("outside.bin");
        for (name, kind, expected) in [
            ("fifo.bin", ErrorKind::Io, "got a FIFO"),
            ("zero.bin", ErrorKind::Io, "got a device"),
            ("none.bin", ErrorKind::Io, "No such file"),
            ("short.bin", ErrorKind::Model, "bytes"),
            ("../outside.bin", ErrorKind::Model, "folder of the model"),
            (outside.to_str().unwrap(), ErrorKind::Model, "folder of the model"),
        ] {
            named(name);
            let from = path.clone();
            let error = in_time(move || compile(&from, device, &Config::default()).map(drop).unwrap_err());
            let is_checked_by_engine = name == "short.bin" && ["OPENVINO.CPU", "AUTO"].contains(&device);
            assert!(error.to_string().contains(expected) || is_checked_by_engine, "{name} on {device}: {error}");
            assert!(error.kind() == kind || device != "CPU", "{name} on {device}: {error:?}");
        }
    }
}

/// ONNX Runtime reads at most 2 GiB from memory, so it maps the weights of larger models. The other input shapes still take effect.
#[test]
#[cfg(target_os = "linux")]
fn a_model_above_two_gib_keeps_its_weights_in_their_file() {
    use std::os::unix::fs::FileExt;
    if !is_here("ORT.CPU") {
        return;
    }
    let scratch = Scratch::new("above-two-gib");
    let n_floats = (1_usize << 29) + 1;
    // The file has a hole and takes no space.
    let weights = std::fs::File::create(scratch.path().join("large.bin")).unwrap();
    weights.write_all_at(&7.0_f32.to_le_bytes(), 4 * (n_floats as u64 - 1)).unwrap();
    let model = Onnx::new().input_of("i", tract_onnx::pb::tensor_proto::DataType::Int64, &[3]);
    let model = model.floats_of_file("large", &[n_floats as i64], "large.bin").node("Gather", "large i", "y").output("y", &[3]);
    let path = scratch.file("model.onnx", model.bytes());
    let core = devices::core();
    let reshaped = core.read_model(&path).unwrap().reshape([("i", [2].into())]).unwrap();
    let cache_folder = Some(scratch.path().join("cache"));
    let compiled = core.compile_model(&reshaped, "ORT.CPU", &Config { cache_folder, ..Config::default() }).unwrap();
    let indices = Tensor::from_slice([2], &[0, n_floats as i64 - 1]).unwrap();
    assert_eq!(values(&compiled.infer(&indices).unwrap()[0]), [0.0, 7.0]);
}

#[test]
fn weights_of_an_ir_are_a_regular_file() {
    if !is_here("OPENVINO.CPU") {
        return;
    }
    let scratch = Scratch::new("ir");
    let path = scratch.path().join("model.xml");
    write_ir(&path);
    computes(&compile(&path, "OPENVINO.CPU", &Config::default()).unwrap(), "IR");
    std::fs::remove_file(path.with_extension("bin")).unwrap();
    assert!(Command::new("mkfifo").arg(path.with_extension("bin")).status().unwrap().success());
    let error = in_time(move || compile(&path, "OPENVINO.CPU", &Config::default()).map(drop).unwrap_err());
    assert!(error.kind() == ErrorKind::Io && error.to_string().contains("got a FIFO"), "{error}");
}
