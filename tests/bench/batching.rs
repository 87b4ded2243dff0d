//! Compares batched runs of several requests with the same runs without batching, on the same threads.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use roiflow::devices;
use roiflow::devices::null::{NullDevice, Script};
use roiflow::runtime::{CompiledModel, Config, Core, Model, ModelInfo, Port, Result};
use roiflow::tensor::ElementType;

use crate::engines::{BareCall, Engines, Subject, compute};
use crate::harness::{Clock, Effort};
use crate::report::Report;
use crate::requests::Restarting;

const N_REQUESTS: usize = 16;
const BATCH_SIZE: usize = 8;

/// Reports the ratio of the duration with batching to the duration without batching. The ratio is below 1 if each engine call has a fixed
/// cost.
pub fn batching(engines: &Engines, effort: &Effort, report: &mut Report) -> Result<()> {
    let effort = effort.of_threads(N_REQUESTS);
    let plain = Config { n_requests: Some(N_REQUESTS), ..Config::default() };
    let batched = Config { batch_size: BATCH_SIZE, batch_timeout: Duration::from_millis(1), ..plain.clone() };
    let mut compare = |name: &str, compile: &dyn Fn(&Config) -> Result<CompiledModel>| -> Result<()> {
        let [plain, batched] =
            [&plain, &batched].map(|config| compile(config).and_then(|model| Restarting::new(&subject(model), N_REQUESTS)));
        let (plain, batched) = (plain?, batched?);
        let pairs = effort.compare(|n_runs| plain.run(n_runs), |n_runs| batched.run(n_runs));
        let name = format!("{N_REQUESTS} requests, gathered by {BATCH_SIZE} against one by one, {name}");
        report.ratio(&name, &pairs, Clock::Wall, None);
        report.ratio(&name, &pairs, Clock::Cpu, None);
        Ok(())
    };
    for (name, us_per_call, us_per_row) in
        [("a call of 100 us", 100, 0), ("a call of 50 us and 10 us a row", 50, 10), ("nothing but 10 us a row", 0, 10)]
    {
        let rounds_per_us = engines.rounds_per_ms / 1000;
        compare(name, &|config| costing(us_per_call * rounds_per_us, us_per_row * rounds_per_us, config))?;
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/color.onnx");
    let core = devices::core();
    for device in ["CPU", "ORT.CPU", "OPENVINO.CPU"] {
        if device != "CPU" && core.compile_model(&core.read_model(&file)?, device, &Config::default()).is_err() {
            println!("batches on {device}: skipped, it is not there");
            continue;
        }
        compare(&format!("color on {device}"), &|config| core.compile_model(&core.read_model(&file)?, device, config))?;
    }
    Ok(())
}

fn subject(model: CompiledModel) -> Subject {
    let bare = || -> BareCall { Box::new(|| ()) };
    let mut dims: Vec<usize> = model.inputs()[0].shape.with_dynamic(|_| Some(1)).map(|shape| shape.to_vec()).unwrap_or_default();
    dims[0] = 1;
    let input = roiflow::tensor::Tensor::new(ElementType::F32, &*dims).ok();
    Subject::new("batches", model, Box::new(bare), input)
}

/// Returns a model whose calls need `rounds_per_call` rounds of arithmetic, and `rounds_per_row` more for each batch item.
fn costing(rounds_per_call: u64, rounds_per_row: u64, config: &Config) -> Result<CompiledModel> {
    let script = Script::computing(move |io, _cancel| {
        let n_rows = io.input(0).layout().shape()[0];
        compute(rounds_per_call + n_rows as u64 * rounds_per_row);
        io.output(0, &[n_rows, 4])?;
        Ok(())
    });
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::new(Arc::new(script))));
    let port = |name: &str, extent: usize| Port::new(name, ElementType::F32, [1, extent]);
    let info = ModelInfo { inputs: vec![port("in", 16)], outputs: vec![port("out", 4)], ..ModelInfo::default() };
    core.compile_model(&Model::from_ports(info), "NULL", config)
}
