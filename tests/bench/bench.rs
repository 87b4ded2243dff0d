//! Overhead of roiflow over the bare engine call: `make bench`.
//!
//! Every result is compared with a baseline that is measured in the same run, in interleaved pairs; see `harness`. All budgets are in
//! `budgets`. Prints a table, writes `summary.json` and `raw.csv`, and exits with 1 if a budget is missed.
//!
//! `--quick` checks within seconds that everything works, without results. `--only WORDS` runs the sections whose names contain these
//! words. `--pairs N` sets the number of pairs, `--out FOLDER` the folder of the files.

mod allocations;
#[path = "../support/allocator.rs"]
mod allocator;
mod batching;
mod budgets;
mod decoders;
mod engines;
mod harness;
#[allow(dead_code, reason = "the runtime tests use the rest")]
#[path = "../support/kserve.rs"]
mod kserve;
mod remote;
mod report;
mod requests;
mod reuse;
mod stages;
mod tensors;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use engines::Engines;
use harness::Effort;
use report::Report;
use roiflow::runtime::Result;

type Section = fn(&Engines, &Effort, &mut Report) -> Result<()>;

const SECTIONS: &[(&str, Section)] = &[
    ("sync", requests::sync),
    ("callback", requests::callback),
    ("queue", requests::queue),
    ("await", requests::awaited),
    ("throughput", requests::throughput),
    ("wake-up", requests::wake_up),
    ("regions", |_engines, effort, report| tensors::regions(effort, report)),
    ("gather", |_engines, effort, report| tensors::gather(effort, report)),
    ("batching", batching::batching),
    ("stages", stages::stages),
    ("decoders", |_engines, effort, report| decoders::decoders(effort, report)),
    ("reuse", |_engines, effort, report| reuse::reuse(effort, report)),
    ("remote", |_engines, effort, report| remote::remote(effort, report)),
    ("allocations", allocations::allocations),
];

struct Options {
    effort: Effort,
    only: String,
    out: PathBuf,
}

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}; expected --quick, --only WORDS, --pairs N, --out FOLDER");
            return ExitCode::from(2);
        }
    };
    harness::check();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether all budgets are met.
fn run(options: &Options) -> Result<bool, Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The models are in the folder that the tests use, or in the folder into which `make demo` downloads them.
    let beside = std::env::var_os("ROIFLOW_MODELS").map_or_else(|| root.join("../shared/models"), PathBuf::from).join("models");
    let engines = Engines::new(&[beside, root.join("assets/demo")], options.effort.quick)?;
    println!("{}", machine(engines.n_threads()?));
    let mut report = Report::new(options.effort.quick);
    for (_, section) in SECTIONS.iter().filter(|(name, _)| name.contains(&options.only)) {
        section(&engines, &options.effort, &mut report)?;
    }
    report.write(&options.out)?;
    println!("{} and raw.csv hold all figures; load at the end {}", options.out.join("summary.json").display(), load());
    let missed = report.missed();
    missed.iter().for_each(|name| println!("budget missed: {name}"));
    Ok(missed.is_empty())
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let (mut quick, mut n_pairs, mut only, mut out) = (false, None, String::new(), None);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("`{arg}` lacks its value"));
        match arg.as_str() {
            "--quick" => quick = true,
            "--only" => only = value()?,
            "--out" => out = Some(PathBuf::from(value()?)),
            "--pairs" => {
                let n: usize = value()?.parse().map_err(|_| "--pairs: expected a number".to_owned())?;
                if n < 7 {
                    return Err(format!("--pairs: an interval needs at least 7, got {n}"));
                }
                n_pairs = Some(n);
            }
            // Cargo passes `--bench` to every benchmark.
            "--bench" => {}
            _ => return Err(format!("`{arg}` is unknown")),
        }
    }
    if let Some(unknown) = Some(&only).filter(|only| !SECTIONS.iter().any(|(name, _)| name.contains(&**only))) {
        let names: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
        return Err(format!("--only: no section is called `{unknown}`: {}", names.join(", ")));
    }
    let n_pairs = if quick { 2 } else { n_pairs.unwrap_or(11) };
    let effort = Effort { n_pairs, block: Duration::from_millis(50), n_runs_min: 1, quick };
    Ok(Options { effort, only, out: out.unwrap_or_else(|| target.join(if quick { "bench/quick" } else { "bench" })) })
}

/// Describes the machine with the information that the system reports.
fn machine(n_threads: usize) -> String {
    let facts = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = facts.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("a processor of unknown name");
    format!("{}, {n_threads} threads for models, load at the start {}", name.trim_start_matches([' ', '\t', ':']), load())
}

fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown").to_owned()
}
