//! `roiflow bench`: measures the speed of a model on a device. As in the engines' own benchmark tools, inputs are set once, then all
//! requests run continuously.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde_json::json;

use super::terminal::OneLine;
use crate::devices;
use crate::runtime::{CompiledModel, Config, Dim, InferRequest, MAX_BATCH_SIZE, Model, PartialShape, Performance, Port, Precision};
use crate::stages;

/// Arguments of `roiflow bench`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The model file
    model: PathBuf,
    /// The device; `roiflow devices` lists them
    #[arg(long, default_value = stages::spec::DEFAULT_DEVICE, value_name = "NAME")]
    device: String,
    /// Optimize the device for throughput or latency
    #[arg(long, value_enum, default_value_t = Mode::Throughput)]
    mode: Mode,
    /// Number of parallel requests; default: the device's optimal number of requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    requests: Option<u16>,
    /// Number of threads per run; default: the number of cores divided by the number of requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Maximum batch size; 1: no batching
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_BATCH_SIZE as i64))]
    batch_size: u16,
    /// Maximum time in milliseconds that a run waits for a full batch
    #[arg(long, default_value_t = 5.0, value_name = "MS")]
    batch_timeout: f64,
    /// Precision of the computation
    #[arg(long, value_enum, default_value_t = PrecisionArg::F32)]
    precision: PrecisionArg,
    /// Shape of an input, such as 1x3x416x416, or `image=1x3x416x416` for a model with several inputs. The model is compiled for this
    /// shape, and for a batch size of 1 if its batch dimension is dynamic
    #[arg(long, value_name = "[NAME=]SHAPE")]
    shape: Vec<String>,
    /// Duration of the measurement in seconds
    #[arg(long, default_value_t = 5.0, value_name = "S")]
    seconds: f64,
    /// Folder in which engines cache compiled models, if they can
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
    /// Further options, such as `callback-thread=true,OPENVINO.NUM_STREAMS=2`: see docs/devices.md
    #[arg(long, value_name = "NAME=VALUE,...")]
    config: Vec<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    Latency,
    Throughput,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PrecisionArg {
    F32,
    Bf16,
    F16,
}

/// Warm-up time before the measurement, until caches and clock frequencies are stable.
const WARM_UP: Duration = Duration::from_millis(500);

pub(super) fn bench(args: &Args) -> anyhow::Result<()> {
    if !(args.seconds.is_finite() && args.seconds > 0.0 && args.seconds <= 86_400.0) {
        bail!("--seconds: expected more than 0 and at most 86400, got {}", args.seconds);
    }
    let batch_timeout = Duration::try_from_secs_f64(args.batch_timeout / 1e3)
        .with_context(|| format!("--batch-timeout: expected milliseconds, 0 or more, got {}", args.batch_timeout))?;
    let mut config = Config {
        batch_size: usize::from(args.batch_size),
        batch_timeout,
        n_requests: args.requests.map(usize::from),
        performance: match args.mode {
            Mode::Latency => Performance::Latency,
            Mode::Throughput => Performance::Throughput,
        },
        n_threads: args.threads.map(usize::from),
        precision: match args.precision {
            PrecisionArg::F32 => Precision::F32,
            PrecisionArg::Bf16 => Precision::Bf16,
            PrecisionArg::F16 => Precision::F16,
        },
        cache_folder: args.cache.clone(),
        ..Config::default()
    };
    args.config.iter().try_for_each(|list| config.set_all(list)).context("--config")?;
    let begin = Instant::now();
    let core = devices::core();
    let mut model = core.read_model(&args.model)?;
    if args.shape.is_empty() {
        let options = stages::StageOptions { model: args.model.clone(), ..stages::StageOptions::default() };
        model = stages::spec::with_described_size(&model, &options)?;
    }
    let compile = |model: &Model| core.compile_model(model, &args.device, &config);
    // Compile the model for the exact shapes of the inputs, as the elements do, because models with static shapes run faster.
    let compiled = match pinned(&model, &args.shape).map(|pinned| compile(&pinned)) {
        Some(Ok(compiled)) => compiled,
        Some(Err(_)) | None => compile(&model)?,
    };
    let load = begin.elapsed();
    let n_requests = compiled.optimal_number_of_requests();
    let shapes = shapes(compiled.inputs(), &args.shape)?;
    let requests: Vec<InferRequest> = (0..n_requests).map(|_| request(&compiled, &shapes)).collect::<anyhow::Result<_>>()?;
    let first = Instant::now();
    requests[0].infer(())?;
    let first = first.elapsed();

    run(&requests, args.mode, WARM_UP, &|_, _| {})?;
    let shows = !args.json && std::io::stderr().is_terminal();
    let progress = |elapsed: Duration, n_runs: usize| {
        if shows {
            eprint!("\r{:5.1} s  {n_runs} runs, {:.1} per second ", elapsed.as_secs_f64(), n_runs as f64 / elapsed.as_secs_f64());
        }
    };
    let (mut latencies, elapsed) = run(&requests, args.mode, Duration::from_secs_f64(args.seconds), &progress)?;
    if shows {
        eprint!("\r{:60}\r", "");
    }
    latencies.sort_unstable();
    let percentile = |percent: usize| latencies[(latencies.len() * percent).div_ceil(100).max(1) - 1];
    let milliseconds = |duration: Duration| duration.as_secs_f64() * 1e3;
    let throughput = latencies.len() as f64 / elapsed.as_secs_f64();
    if args.json {
        let result = json!({
            "model": args.model, "device": compiled.device(), "asked_device": args.device,
            "mode": format!("{:?}", args.mode).to_lowercase(), "precision": format!("{:?}", args.precision).to_lowercase(),
            "batch_size": config.batch_size, "batch_timeout_ms": milliseconds(config.batch_timeout), "requests": n_requests, "threads": config.requests_and_threads(n_cores()).1, "cores": n_cores(),
            "inputs": shapes.iter().map(|(port, shape)| (port.name().to_owned(), shape.clone())).collect::<BTreeMap<_, _>>(),
            "load_ms": milliseconds(load), "first_ms": milliseconds(first),
            "runs": latencies.len(), "seconds": elapsed.as_secs_f64(), "throughput": throughput,
            "latency_ms": { "p50": milliseconds(percentile(50)), "p95": milliseconds(percentile(95)), "p99": milliseconds(percentile(99)) },
            "peak_memory_bytes": peak_memory_bytes(),
        });
        // The JSON writer escapes control characters itself.
        let mut out = std::io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, &result)?;
        writeln!(out)?;
        return Ok(());
    }
    let mut out = super::terminal::stdout();
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _written = writeln!(text, "{name:>10}  {value}");
    };
    line("device", format!("{}, {n_requests} requests, {} threads each", compiled.device(), config.requests_and_threads(n_cores()).1));
    if args.batch_size > 1 {
        line("batch", format!("up to {} runs, which wait at most {} ms", args.batch_size, args.batch_timeout));
    }
    for (port, shape) in &shapes {
        line("input", format!("`{}` {shape:?} {}", OneLine(port.name()), port.element));
    }
    line("load", format!("{:.1} ms, the first run {:.2} ms", milliseconds(load), milliseconds(first)));
    line("runs", format!("{} in {:.2} s", latencies.len(), elapsed.as_secs_f64()));
    line("throughput", format!("{throughput:.2} per second"));
    let (p50, p95, p99) = (percentile(50), percentile(95), percentile(99));
    line("latency", format!("p50 {:.3} ms, p95 {:.3} ms, p99 {:.3} ms", milliseconds(p50), milliseconds(p95), milliseconds(p99)));
    if let Some(bytes) = peak_memory_bytes() {
        line("memory", format!("peak {:.1} MiB", bytes as f64 / f64::from(1 << 20)));
    }
    write!(out, "{text}")?;
    Ok(())
}

/// Returns the model with static input shapes. Returns `None` if all input shapes are already static, or if a shape is unknown before the
/// model is compiled.
fn pinned(model: &Model, given: &[String]) -> Option<Model> {
    let inputs = &model.info().inputs;
    let shapes = shapes(inputs, given).ok().filter(|_| inputs.iter().any(|port| port.shape.to_static().is_none()))?;
    let of_input = |(port, shape): &(Port, Vec<usize>)| {
        let shape = PartialShape::new(shape.iter().map(|&extent| Dim::Fixed(extent)).collect()).ok()?;
        Some((port.name().to_owned(), shape))
    };
    let shapes: Vec<(String, PartialShape)> = shapes.iter().map(of_input).collect::<Option<_>>()?;
    model.reshape(shapes.iter().map(|(name, shape)| (name.as_str(), shape.clone()))).ok()
}

/// Returns a shape for each input: the shape that the user gives, or else the shape in the model. A dynamic batch dimension of the model
/// becomes 1.
fn shapes(inputs: &[Port], given: &[String]) -> anyhow::Result<Vec<(Port, Vec<usize>)>> {
    let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for text in given {
        let (name, shape) = match text.rsplit_once('=') {
            Some((name, shape)) => (name, shape),
            None if inputs.len() == 1 => (inputs[0].name(), text.as_str()),
            None => bail!("--shape {text}: expected NAME={text}, because the model has {} inputs", inputs.len()),
        };
        if inputs.iter().all(|port| port.name() != name) {
            let names: Vec<_> = inputs.iter().map(|port| format!("`{}`", port.name())).collect();
            bail!("--shape {text}: expected one of the inputs {}, got `{name}`", names.join(", "));
        }
        let dims = shape.trim_matches(['[', ']']).split(['x', ',']).map(|extent| extent.trim().parse::<usize>());
        let dims = dims.collect::<Result<_, _>>().with_context(|| format!("--shape {text}: expected dimensions such as 1x3x224x224"))?;
        by_name.insert(name, dims);
    }
    let shape_of = |port: &Port| match by_name.get(port.name()) {
        Some(dims) if port.shape.admits(dims) => Ok((port.clone(), dims.clone())),
        Some(dims) => bail!("input {port} does not accept the shape {dims:?}"),
        None => match port.shape.with_dynamic(|axis| (axis == 0).then_some(1)) {
            Some(shape) => Ok((port.clone(), shape.to_vec())),
            None => bail!("input {port} has a dynamic shape: set the shape with --shape"),
        },
    };
    inputs.iter().map(shape_of).collect()
}

/// Creates a request with noise as inputs. Noise takes as long as real data: zeros could run faster, and denormal numbers slower.
fn request(model: &CompiledModel, shapes: &[(Port, Vec<usize>)]) -> anyhow::Result<InferRequest> {
    let request = model.create_infer_request()?;
    let mut state = 0x9e37_79b9_u32;
    let mut noise = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    for (input_idx, (_, shape)) in shapes.iter().enumerate() {
        let mut input = request.input_tensor(input_idx)?;
        if *input.shape() != **shape {
            input.set_shape(&**shape)?;
        }
        // Leave inputs of types other than `f32` and `u8` at zero, because noise could be out of range, for example for token IDs.
        if let Ok(mut values) = input.view_mut::<f32>() {
            values.iter_mut().for_each(|value| *value = f32::from(noise()) / 255.0);
        } else if let Ok(mut values) = input.view_mut::<u8>() {
            values.iter_mut().for_each(|value| *value = noise());
        }
    }
    Ok(request)
}

/// Runs all requests for this duration. Returns the latency of each run, and the time from the start of the first run to the end
/// of the last.
fn run(
    requests: &[InferRequest],
    mode: Mode,
    duration: Duration,
    progress: &dyn Fn(Duration, usize),
) -> anyhow::Result<(Vec<Duration>, Duration)> {
    const PROGRESS_EVERY: Duration = Duration::from_millis(500);
    let begin = Instant::now();
    if mode == Mode::Latency && requests.len() == 1 {
        let (mut latencies, mut shown) = (Vec::new(), begin);
        while begin.elapsed() < duration || latencies.is_empty() {
            let start = Instant::now();
            requests[0].infer(())?;
            latencies.push(start.elapsed());
            if shown.elapsed() > PROGRESS_EVERY {
                shown = Instant::now();
                progress(begin.elapsed(), latencies.len());
            }
        }
        return Ok((latencies, begin.elapsed()));
    }
    let (ended, ends) = mpsc::channel();
    let (stop, n_runs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let latencies = Arc::new(Mutex::new(Vec::new()));
    for request in requests {
        let (ended, stop, n_runs, latencies) = (ended.clone(), stop.clone(), n_runs.clone(), latencies.clone());
        let own = Mutex::new(Vec::new());
        request.set_callback(move |request, result| {
            let mut own = own.lock().unwrap();
            let again = result.and_then(|()| request.latency()).and_then(|latency| {
                own.push(latency);
                n_runs.fetch_add(1, Ordering::Relaxed);
                if stop.load(Ordering::Relaxed) { Ok(false) } else { request.start_async(()).map(|()| true) }
            });
            if !matches!(again, Ok(true)) {
                latencies.lock().unwrap().append(&mut own);
                // Sending cannot fail, because the receiver waits for the results of all requests.
                let _heard = ended.send(again.map(drop));
            }
        })?;
        request.start_async(())?;
    }
    while begin.elapsed() < duration {
        std::thread::sleep(PROGRESS_EVERY.min(duration.saturating_sub(begin.elapsed())));
        progress(begin.elapsed(), n_runs.load(Ordering::Relaxed));
    }
    stop.store(true, Ordering::Relaxed);
    for _ in requests {
        ends.recv().context("a request ended without a result")??;
    }
    let elapsed = begin.elapsed();
    for request in requests {
        request.wait()?;
        request.clear_callback()?;
    }
    let latencies = std::mem::take(&mut *latencies.lock().unwrap());
    Ok((latencies, elapsed))
}

fn n_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}
