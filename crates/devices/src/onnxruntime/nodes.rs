//! The times of nodes. ONNX Runtime writes a JSON file for each run, which this module reads. In this file, the times are in the events of
//! category `Node` whose name ends in `_kernel_time`.
//!
//! ONNX Runtime 1.25 and newer write one file per run. Earlier releases write one file per session. That file does not separate runs, and
//! is complete only after profiling ends. So with earlier releases, a query of node times fails with `Unsupported`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::engine::EngineResult;
use crate::runtime::{NodeStatus, NodeTime};

const SUFFIX: &str = "_kernel_time";

/// The node times of a request's latest run.
pub(super) struct NodeTimes {
    /// A folder for the files that ONNX Runtime writes for this request. It is removed when this object is dropped.
    folder: PathBuf,
    /// The names and operators of the nodes in the model file.
    of_file: Arc<[(String, String)]>,
    /// The JSON text that ONNX Runtime wrote for the latest run. It is parsed only when a caller queries the times.
    events: Option<String>,
}

impl NodeTimes {
    pub(super) fn new(of_file: Arc<[(String, String)]>) -> EngineResult<Self> {
        static N_FOLDERS: AtomicU64 = AtomicU64::new(0);
        let number = N_FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("roiflow-nodes-{}-{number}", std::process::id()));
        // An earlier process with the same ID may have left a folder of this name.
        let _removed = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)
            .map_err(|error| format!("cannot create the folder `{}` for node times: {error}", folder.display()))?;
        Ok(Self { folder, of_file, events: None })
    }

    /// Returns the path prefix of the files that ONNX Runtime writes.
    pub(super) fn prefix(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// Must be called before a run. Discards the times of the previous run.
    pub(super) fn begin_run(&mut self) {
        self.events = None;
    }

    /// Must be called after a run, when ONNX Runtime has written its file. Reads that file and removes it.
    pub(super) fn end_run(&mut self) {
        for file in files_in(&self.folder) {
            match std::fs::read_to_string(&file) {
                Ok(events) => self.events = Some(events),
                Err(error) => tracing::warn!("cannot read the node times in `{}`: {error}", file.display()),
            }
            // If the file cannot be removed, it stays until the folder is removed.
            let _removed = std::fs::remove_file(&file);
        }
    }

    /// Returns the executed nodes in order of execution, and after them the nodes of the file that were optimized out.
    pub(super) fn nodes(&self) -> EngineResult<Vec<NodeTime>> {
        let mut nodes = self.events.as_deref().map(executed).transpose()?.unwrap_or_default();
        let n_executed = nodes.len();
        let status = if self.events.is_some() { NodeStatus::OptimizedOut } else { NodeStatus::NotRun };
        for (name, kind) in &*self.of_file {
            if !nodes[..n_executed].iter().any(|node| is_part_of(&node.name, name)) {
                nodes.push(NodeTime { name: name.clone(), kind: kind.clone(), status, real: Duration::ZERO, cpu: None });
            }
        }
        Ok(nodes)
    }
}

impl Drop for NodeTimes {
    fn drop(&mut self) {
        // If the folder cannot be removed, it stays in the system's folder for temporary files.
        let _removed = std::fs::remove_dir_all(&self.folder);
    }
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Returns whether an executed node is a part of a node of the file. ONNX Runtime names the parts after the node: `conv1`, `conv1_nchwc`.
fn is_part_of(name: &str, of_file: &str) -> bool {
    name.strip_prefix(of_file).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '_', '-', '/']))
}

/// Parses the executed nodes from the JSON text.
fn executed(events: &str) -> EngineResult<Vec<NodeTime>> {
    let events: Vec<Value> = serde_json::from_str(events).map_err(|error| format!("cannot parse the node times: {error}"))?;
    let node = |event: &Value| {
        let name = event["name"].as_str()?.strip_suffix(SUFFIX)?;
        let real = Duration::from_micros(event["dur"].as_u64()?);
        let kind = event["args"]["op_name"].as_str().unwrap_or_default().to_owned();
        let is_node = event["cat"] == "Node";
        is_node.then(|| NodeTime { name: name.to_owned(), kind, status: NodeStatus::Executed, real, cpu: None })
    };
    Ok(events.iter().filter_map(node).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_events_those_of_kernels_are_nodes() {
        let events = r#"[
            {"cat": "Session", "dur": 90, "ts": 1, "name": "model_run", "args": {}},
            {"cat": "Node", "dur": 7, "ts": 2, "name": "conv1_nchwc_kernel_time", "args": {"op_name": "Conv", "provider": "CPU"}},
            {"cat": "Node", "dur": 1, "ts": 2, "name": "conv1_fence_before", "args": {"op_name": "Conv"}}
        ]"#;
        let of_file = [("conv1", "Conv"), ("relu1", "Relu")].map(|(name, kind)| (name.to_owned(), kind.to_owned()));
        let mut times = NodeTimes::new(of_file.to_vec().into()).unwrap();
        let told = |times: &NodeTimes| {
            times.nodes().unwrap().into_iter().map(|node| (node.name, node.status, node.real.as_micros())).collect::<Vec<_>>()
        };
        let named = |name: &str, status, real| (name.to_owned(), status, real);
        assert_eq!(told(&times), [named("conv1", NodeStatus::NotRun, 0), named("relu1", NodeStatus::NotRun, 0)]);
        std::fs::write(times.prefix().with_extension("json"), events).unwrap();
        times.end_run();
        assert_eq!(told(&times), [named("conv1_nchwc", NodeStatus::Executed, 7), named("relu1", NodeStatus::OptimizedOut, 0)]);
        times.begin_run();
        assert_eq!(told(&times).len(), 2);
        let folder = times.folder.clone();
        drop(times);
        assert!(!folder.exists());
        assert!(executed("[{").is_err());
    }
}
