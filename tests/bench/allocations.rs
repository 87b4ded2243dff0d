//! Heap allocations per run in steady state, of all threads.

use std::hint::black_box;

use futures::executor::block_on;
use roiflow::runtime::Result;

use crate::allocator::of_all_threads;
use crate::budgets::{ROI_ALLOCATIONS, RUN_ALLOCATIONS};
use crate::engines::Engines;
use crate::harness::Effort;
use crate::report::Report;
use crate::requests::{Queue, Restarting};
use crate::tensors;

/// Number of runs, high enough to include rare allocations.
const N_RUNS: usize = 500;

pub fn allocations(engines: &Engines, effort: &Effort, report: &mut Report) -> Result<()> {
    let mut count = |what: &str, budget: Option<f64>, act: &mut dyn FnMut()| {
        let values = effort.count(N_RUNS, |n_runs| of_all_threads(|| (0..n_runs).for_each(|_| act())));
        report.counted(&format!("allocations, {what}"), "each", &values, budget);
    };
    let (picture, frame) = (tensors::picture()?, tensors::frame()?);
    count("an ROI tensor", Some(ROI_ALLOCATIONS), &mut || drop(black_box(tensors::region(&picture))));
    count("a region of an NV12 frame", Some(ROI_ALLOCATIONS), &mut || drop(black_box(tensors::frame_region(&frame))));

    let budget = Some(RUN_ALLOCATIONS);
    let request = engines.noop.request()?;
    let input = engines.noop.request()?.input_tensor(())?;
    count("a run, sync", budget, &mut || request.infer(()).expect("it runs"));
    count("a run, sync with a tensor set", budget, &mut || request.infer(&input).expect("it runs"));
    count("a run, start and wait", budget, &mut || {
        request.start_async(()).expect("it is idle");
        request.wait().expect("it runs");
    });
    count("a run, .await", budget, &mut || block_on(request.run(()).without_results()).expect("it runs"));
    count("a run, .await, with its results", None, &mut || drop(block_on(request.run(())).expect("it runs")));
    count("a run through the model, results owned", None, &mut || drop(engines.noop.model.infer(&input).expect("it runs")));
    let (batched, slices) = tensors::batched(&picture)?;
    count("a run on 8 ROI slices, set_tensors each time", budget, &mut || {
        batched.set_tensors((), &slices).expect("they fit");
        batched.infer(()).expect("it runs");
    });

    // Measure several concurrent runs, which start and end on several threads.
    let n_requests = 2 * engines.n_threads()?;
    let (restarting, queue) = (Restarting::new(&engines.noop, n_requests)?, Queue::new(&engines.noop, n_requests)?);
    let values = effort.count(N_RUNS, |n_runs| of_all_threads(|| restarting.run(n_runs)));
    report.counted("allocations, a run, callback", "each", &values, budget);
    let values = effort.count(N_RUNS, |n_runs| of_all_threads(|| queue.run(n_runs)));
    report.counted("allocations, a run, queue", "each", &values, budget);

    // Subtract the allocations of the bare engine call.
    for subject in &engines.models {
        let (mut bare, request) = (subject.bare(), subject.request()?);
        let of_engine = effort.count(4, |n_runs| of_all_threads(|| (0..n_runs).for_each(|_| bare())));
        let of_both = effort.count(4, |n_runs| of_all_threads(|| (0..n_runs).for_each(|_| request.infer(()).expect("it runs"))));
        let values: Vec<f64> = of_engine.iter().zip(&of_both).map(|(engine, both)| both - engine).collect();
        report.counted(&format!("allocations, a run, sync, {}, engine's apart", subject.name), "each", &values, budget);
    }
    Ok(())
}
