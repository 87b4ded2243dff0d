//! Profiling data of the nodes of a model. The data is available if profiling is enabled, and uses the engine's node names. Doc comments
//! name the equivalent OpenVINO behavior test.

use std::path::Path;
use std::time::{Duration, Instant};

use roiflow::devices;
use roiflow::devices::null::Script;
use roiflow::runtime::{CompiledModel, Config, ErrorKind, NodeStatus, NodeTime};
use roiflow::tensor::Tensor;

use crate::request;
use crate::support::{compile, is_here, real, row, tiny};

fn profiled(path: &Path) -> CompiledModel {
    let core = devices::core();
    let config = Config { profiling: true, ..Config::default() };
    core.compile_model(&core.read_model(path).unwrap(), "CPU", &config).unwrap()
}

fn named<'a>(nodes: &'a [NodeTime], name: &str) -> Vec<&'a NodeTime> {
    nodes.iter().filter(|node| node.name == name || node.name.starts_with(&format!("{name}."))).collect()
}

/// Equivalent OpenVINO tests: NotEmptyAfterSyncInfer, NotEmptyAfterAsyncInfer.
#[test]
fn every_node_is_told_after_synchronous_and_asynchronous_runs() {
    let request = profiled(&tiny("add.onnx")).create_infer_request().unwrap();
    for asynchronous in [false, true] {
        let begin = Instant::now();
        if asynchronous {
            request.start_async(()).unwrap();
            request.wait().unwrap();
        } else {
            request.infer(()).unwrap();
        }
        let elapsed = begin.elapsed();
        let nodes = request.profiling_info().unwrap();
        assert_eq!(nodes.len(), 2, "{nodes:?}");
        assert!(nodes.iter().all(|node| node.status == NodeStatus::Executed && node.real > Duration::ZERO), "{nodes:?}");
        assert!(nodes.iter().map(|node| node.real).sum::<Duration>() <= elapsed, "{nodes:?} in {elapsed:?}");
    }
}

/// Equivalent OpenVINO test: perfCountWereNotEnabledExceptionTest.
#[test]
fn without_profiling_the_error_says_how_to_enable_it() {
    let request = compile(&tiny("add.onnx")).create_infer_request().unwrap();
    request.infer(()).unwrap();
    let error = request.profiling_info().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("Config { profiling: true"), "{error}");
    let off = request::compile(Script::default()).create_infer_request().unwrap();
    assert_eq!(off.profiling_info().unwrap_err().kind(), ErrorKind::Config);
}

/// Equivalent OpenVINO test: returnRequestBusyOnGetPerformanceCounts.
#[test]
fn a_running_request_is_busy() {
    let (request, gate) = request::gated();
    request.start_async(()).unwrap();
    gate.wait_for_arrivals(1);
    assert_eq!(request.profiling_info().unwrap_err().kind(), ErrorKind::Busy);
    gate.open();
    request.wait().unwrap();
}

#[test]
fn before_the_first_run_no_node_has_run() {
    let nodes = profiled(&tiny("add.onnx")).create_infer_request().unwrap().profiling_info().unwrap();
    assert_eq!(nodes.len(), 2);
    assert!(nodes.iter().all(|node| (node.status, node.real, node.cpu) == (NodeStatus::NotRun, Duration::ZERO, Some(Duration::ZERO))));
}

/// The engine computes the batch items one by one. The times of the items add up within a run, and the next run starts from zero.
#[test]
fn the_times_are_those_of_the_latest_run() {
    let request = profiled(&tiny("double.onnx")).create_infer_request().unwrap();
    let real = || request.profiling_info().unwrap().iter().map(|node| node.real).sum::<Duration>();
    let rows = Tensor::from_slice([2000, 4], &(0..8000).map(|n| n as f32).collect::<Vec<_>>()).unwrap();
    // In its first run, the engine also computes the batch in a single call, to test whether its items are independent.
    (0..2).for_each(|_| request.infer(&rows).unwrap());
    let of_many = real();
    // Take the minimum of several runs, because the system may interrupt some of them.
    let of_one = (0..20).map(|_| request.infer(row([1.0; 4])).map(|()| real()).unwrap()).min().unwrap();
    assert!(of_one > Duration::ZERO && of_one * 20 < of_many, "{of_one:?} for a row, {of_many:?} for 2000");
}

/// Equivalent OpenVINO test: CheckOperationInProfilingInfo. Each operation must appear under its name, either exactly or as a prefix.
#[test]
fn each_operation_of_a_real_model_appears_under_its_name() {
    let Some(path) = real("models/version-RFB-320.onnx") else { return };
    let request = profiled(&path).create_infer_request().unwrap();
    let port = request.compiled_model().inputs()[0].clone();
    let input = Tensor::new(port.element, port.shape.with_dynamic(|_| Some(1)).unwrap()).unwrap();
    let begin = Instant::now();
    request.infer(&input).unwrap();
    let elapsed = begin.elapsed();
    let nodes = request.profiling_info().unwrap();
    let proto = std::fs::read(&path).unwrap();
    let n_products = nodes.iter().filter(|node| ["Conv", "MatMul"].iter().any(|kind| node.kind.contains(kind))).count();
    assert!(n_products >= 40, "{n_products} of {} nodes are convolutions and products", nodes.len());
    for node in &nodes {
        let executed = node.status == NodeStatus::Executed;
        assert_eq!(executed, node.real > Duration::ZERO, "{node:?}");
        // The elapsed time and the CPU time come from different clocks that are not read at the same moment.
        assert!(node.cpu.unwrap() <= node.real + Duration::from_millis(1), "{node:?}");
    }
    let (real, cpu): (Duration, Duration) = (nodes.iter().map(|node| node.real).sum(), nodes.iter().filter_map(|node| node.cpu).sum());
    assert!(real <= elapsed, "nodes {real:?} of {elapsed:?}");
    // The system may run other threads between two nodes, but it does not do so in every run.
    let are_most = || {
        request.infer(&input).unwrap();
        let real: Duration = request.profiling_info().unwrap().iter().map(|node| node.real).sum();
        real * 2 > request.latency().unwrap()
    };
    assert!((0..50).any(|_| are_most()), "nodes are less than half of each run");
    assert!(cpu > Duration::ZERO, "the processor worked {cpu:?} of {real:?}");
    let (executed, optimized_out) = (
        nodes.iter().filter(|node| node.status == NodeStatus::Executed).count(),
        nodes.iter().filter(|node| node.status == NodeStatus::OptimizedOut).count(),
    );
    assert!(executed > 50 && optimized_out > 0 && executed + optimized_out == nodes.len(), "{executed} ran, {optimized_out} were folded");
    let names = node_names(&proto);
    assert!(names.len() > 100, "{}", names.len());
    for name in names {
        assert!(!named(&nodes, &name).is_empty(), "`{name}` is not among the {} nodes", nodes.len());
    }
}

/// External engines replace and fuse nodes. The reported node times must still make up most of the duration of the run.
#[test]
fn engines_tell_what_the_nodes_of_a_real_model_did() {
    let Some(path) = real("models/version-RFB-320.onnx") else { return };
    let core = devices::core();
    for device in ["ORT.CPU", "OPENVINO.CPU"].into_iter().filter(|device| is_here(device)) {
        let config = Config { profiling: true, n_threads: Some(1), ..Config::default() };
        let request = core.compile_model(&core.read_model(&path).unwrap(), device, &config).unwrap().create_infer_request().unwrap();
        let latencies: Vec<_> = (0..3).map(|_| request.infer(()).and_then(|()| request.latency()).unwrap()).collect();
        let (shortest, latency) = (*latencies.iter().min().unwrap(), *latencies.iter().max().unwrap());
        let nodes = match request.profiling_info() {
            Err(error) if error.kind() == ErrorKind::Unsupported && device == "ORT.CPU" => {
                eprintln!("skipped on {device}: {error}");
                continue;
            }
            nodes => nodes.unwrap(),
        };
        let with = |status| nodes.iter().filter(|node| node.status == status).count();
        let (executed, folded) = (with(NodeStatus::Executed), with(NodeStatus::OptimizedOut));
        // The nodes of this file have no names, so ONNX Runtime does not report nodes that it removed.
        assert!(executed > 50 && (folded > 0 || device == "ORT.CPU"), "{device}: {executed} ran, {folded} were folded");
        let n_products = nodes.iter().filter(|node| ["Conv", "MatMul"].iter().any(|kind| node.kind.contains(kind))).count();
        assert!(n_products >= 40, "{device}: {n_products} of {} nodes are convolutions and products", nodes.len());
        let real: Duration = nodes.iter().map(|node| node.real).sum();
        eprintln!("{device}: {executed} nodes ran, {folded} were folded, {real:?} of {latency:?}");
        // On a busy machine a run may take any time, so this check uses the shortest run.
        assert!(real <= latency && real * 3 > shortest, "{device}: nodes {real:?} of {shortest:?} to {latency:?}");
        let has_cpu = nodes.iter().all(|node| node.cpu.is_some());
        assert_eq!(has_cpu, device == "OPENVINO.CPU", "{device}");
        let cpu: Duration = nodes.iter().filter_map(|node| node.cpu).sum();
        assert!(!has_cpu || cpu > Duration::ZERO, "{device}");
    }
}

/// Returns the names of all nodes of an ONNX file except constants. The function parses the bytes of the file: in `ModelProto`, field 7 is
/// the graph; in the graph, field 1 is a node; in a node, field 3 is its name and field 4 its operator. A node without a name gets a name
/// from its operator and number.
fn node_names(proto: &[u8]) -> Vec<String> {
    let text = |node: &[u8], wanted| {
        fields(node).into_iter().find(|(field, _)| *field == wanted).map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned())
    };
    let graphs = fields(proto).into_iter().filter(|(field, _)| *field == 7);
    let nodes = graphs.flat_map(|(_, graph)| fields(graph)).filter(|(field, _)| *field == 1).map(|(_, node)| node);
    let named = nodes.enumerate().map(|(node_idx, node)| {
        let operator = text(node, 4).unwrap();
        let name = text(node, 3).filter(|name| !name.is_empty());
        (name.unwrap_or_else(|| format!("{operator}_{node_idx}")), operator)
    });
    named.filter(|(_, operator)| operator != "Constant").map(|(name, _)| name).collect()
}

/// Returns the number and the content of each length-delimited field of a protocol buffer message.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (&byte, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let len = match key & 7 {
            0 => {
                varint(&mut bytes);
                0
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (content, rest) = bytes.split_at(len);
        bytes = rest;
        if key & 7 == 2 {
            found.push((key >> 3, content));
        }
    }
    found
}
