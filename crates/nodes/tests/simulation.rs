//! The simulation with fixed seeds. `cargo run -p roiflow-nodes --example simulate` runs more seeds, and larger sizes.

#[path = "simulation/mod.rs"]
mod simulation;

use simulation::figures::quantile;
use simulation::{Figures, Size};

/// Runs these seeds, and panics at the first violation of an invariant.
fn run(size: &Size, seeds: std::ops::Range<u64>) -> Figures {
    let mut sum = Figures::default();
    for seed in seeds {
        sum.add(simulation::run(size, seed).unwrap_or_else(|violation| panic!("seed {seed}: {violation}")));
    }
    println!("{sum}");
    sum
}

#[test]
fn streams_survive_faults_and_no_result_is_accepted_twice() {
    let figures = run(&Size { n_streams: 40, n_nodes: 5, n_rounds: 4, keep_running: false }, 1..13);
    assert!(figures.faults.len() >= 5, "the seeds have few kinds of faults: {:?}", figures.faults);
    assert_eq!(figures.interrupted, 0, "a planner or coordinator that restarts stops no stream");
    assert!(!figures.recoveries.is_empty() && quantile(&figures.recoveries, 0.99) < 17.0, "{figures}");
}

#[test]
fn many_streams_are_spread_evenly_after_a_recovery() {
    let figures = run(&Size { n_streams: 300, n_nodes: 6, n_rounds: 1, keep_running: false }, 3..4);
    assert!(figures.imbalances.iter().all(|imbalance| *imbalance <= 0.05), "{figures}");
}

#[test]
fn nodes_that_keep_running_cause_no_result_that_is_accepted_twice() {
    run(&Size { n_streams: 40, n_nodes: 5, n_rounds: 2, keep_running: true }, 1..3);
}
