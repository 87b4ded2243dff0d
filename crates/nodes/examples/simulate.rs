//! Simulates many nodes with faults, by seed, and prints how fast streams recover and how even the load is.
//!
//! ```text
//! cargo run --release -p roiflow-nodes --example simulate -- --seed 1 --seeds 20
//! ```
//!
//! Options: `--seed N` (first seed, default 1), `--seeds N` (number of seeds, default 1), `--streams N` (1000), `--nodes N` (20),
//! `--rounds N` (10; a round takes two simulated minutes), `--keep-running`. Exits with 1 if an invariant is violated.

#[path = "../tests/simulation/mod.rs"]
mod simulation;

use std::process::ExitCode;

use simulation::{Figures, Size};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut seed, mut n_seeds) = (1_u64, 1_u64);
    let mut size = Size { n_streams: 1000, n_nodes: 20, n_rounds: 10, keep_running: false };
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse::<usize>().ok());
        let value = match argument.as_str() {
            "--keep-running" => {
                size.keep_running = true;
                continue;
            }
            "--seed" | "--seeds" | "--streams" | "--nodes" | "--rounds" => number(),
            _ => None,
        };
        let Some(value) = value else {
            eprintln!(
                "reading arguments failed: expected an option with a number, got `{argument}`. The first lines of this file list them."
            );
            return ExitCode::FAILURE;
        };
        match argument.as_str() {
            "--seed" => seed = value as u64,
            "--seeds" => n_seeds = value as u64,
            "--streams" => size.n_streams = value,
            "--nodes" => size.n_nodes = value,
            _ => size.n_rounds = value,
        }
    }
    let mut sum = Figures::default();
    for seed in seed..seed + n_seeds {
        match simulation::run(&size, seed) {
            Ok(figures) => {
                println!("seed {seed}: ok, {} streams of dead nodes, {} moves", figures.recoveries_all.len(), figures.moves);
                sum.add(figures);
            }
            Err(violation) => {
                println!("seed {seed}: {violation}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{} streams on {} nodes, {n_seeds} seeds", size.n_streams, size.n_nodes);
    println!("{sum}");
    ExitCode::SUCCESS
}
