//! Measures the time of each node of a plan. Used only with `Config::profiling`; without it, runs do not execute this code.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::model::Plan;
use crate::runtime::{NodeStatus, NodeTime};

/// The times of the nodes in the latest run, summed over its batch items.
#[derive(Default)]
pub(super) struct Profile {
    plan: Option<Plan>,
    times: Vec<Option<Times>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Times {
    real: Duration,
    cpu: Duration,
}

impl Profile {
    /// Must be called before a run. Discards the times of the previous run.
    pub(super) fn begin_run(&mut self) {
        self.times.fill(None);
    }

    /// Must be called before each execution of a plan, for one batch item or for the whole batch. If a run executes several plans, only the
    /// last plan is reported.
    pub(super) fn begin_turn(&mut self, plan: &Plan) {
        if self.plan.as_ref().is_none_or(|known| !Arc::ptr_eq(known, plan)) {
            self.times.clear();
            self.times.resize(plan.model().nodes().len(), None);
            self.plan = Some(plan.clone());
        }
    }

    /// Evaluates a node and records its time.
    pub(super) fn time<R>(&mut self, node_idx: usize, evaluate: impl FnOnce() -> R) -> R {
        let (cpu_before, begin) = (cpu_time(), Instant::now());
        let result = evaluate();
        let (real, cpu) = (begin.elapsed(), cpu_time().saturating_sub(cpu_before));
        let times = self.times[node_idx].get_or_insert_default();
        times.real += real;
        times.cpu += cpu;
        result
    }

    /// Returns the nodes of the plan in graph order, and after them the nodes of the file that are not in the plan. Weights and inputs are
    /// left out.
    pub(super) fn nodes(&self, of_file: &[(String, String)]) -> Vec<NodeTime> {
        let mut nodes: Vec<NodeTime> = Vec::new();
        for node in self.plan.iter().flat_map(|plan| plan.model().nodes()) {
            let kind = node.op.name();
            if matches!(&*kind, "Source" | "Const") {
                continue;
            }
            let times = self.times[node.id];
            let Times { real, cpu } = times.unwrap_or_default();
            let status = if times.is_some() { NodeStatus::Executed } else { NodeStatus::NotRun };
            nodes.push(NodeTime { name: node.name.clone(), kind: kind.into_owned(), status, real, cpu: Some(cpu) });
        }
        let n_of_plan = nodes.len();
        for (name, kind) in of_file {
            if nodes[..n_of_plan].iter().any(|node| is_part_of(&node.name, name)) {
                continue;
            }
            let status = if self.plan.is_some() { NodeStatus::OptimizedOut } else { NodeStatus::NotRun };
            let (real, cpu) = (Duration::ZERO, Some(Duration::ZERO));
            nodes.push(NodeTime { name: name.clone(), kind: kind.clone(), status, real, cpu });
        }
        nodes
    }
}

/// Returns whether a node of the plan is a part of a node of the file. The engine names the parts after the node: `conv1`, `conv1.im2col`.
fn is_part_of(name: &str, of_file: &str) -> bool {
    name.strip_prefix(of_file).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '_', '-', '/']))
}

/// Returns the CPU time of this thread. The engine computes on this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
