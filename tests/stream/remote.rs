//! Models on inference servers in real pipelines: a server that dies costs results of frames, and the stream goes on.

use std::path::Path;

use gstreamer as gst;

use crate::harness::{init, tiny};
use crate::kserve::{Behavior, Served, Server, State};
use crate::rig::Rig;

fn server() -> Server {
    init();
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny").join(name);
    Server::start(vec![Served::of_file("rectangle", &file("rectangle.onnx")), Served::of_file("color", &file("color.onnx"))])
}

fn description(model: &str) -> String {
    tiny(&format!("{model}.toml"))
}

/// Pushes frames until one leaves with a status that `is_wanted` accepts. Returns the number of pushed frames.
fn push_until(rig: &Rig, next: &mut u64, is_wanted: impl Fn(&str) -> bool) -> u64 {
    let first = *next;
    loop {
        rig.frame(*next).unwrap();
        *next += 1;
        rig.next();
        if rig.left().iter().any(|left| is_wanted(&left.status)) {
            return *next - first;
        }
        assert!(*next - first < 100_000, "no frame has the expected status");
    }
}

#[test]
fn a_dead_server_costs_results_and_not_the_stream() {
    for element in ["roidetect", "roiclassify inference-region=full-frame"] {
        let model = if element.starts_with("roidetect") { "rectangle" } else { "color" };
        let mut server = server();
        let line = format!(
            "{element} device=REMOTE config=\"remote.url={},remote.timeout=2000\" description={} queue-policy=wait max-failures=3",
            server.grpc(model),
            description(model)
        );
        let rig = Rig::begun(&line);
        let mut next = 0;
        push_until(&rig, &mut next, |status| status == "inferred");
        server.kill();
        push_until(&rig, &mut next, |status| status.contains("no server is up"));
        // More frames fail in a row than `max-failures` allows for a model that fails.
        for _ in 0..50 {
            push_until(&rig, &mut next, |status| status.contains("no server is up") || status == "inferred");
        }
        assert!(rig.count("failed") > 50, "{}", rig.count("failed"));
        server.revive();
        push_until(&rig, &mut next, |status| status == "inferred");
        rig.event(gst::event::Eos::new());
        rig.until_eos();
        assert!(!rig.has_error(), "the stream went on");
        rig.check_counts();
        assert_eq!(rig.count("inferred") + rig.count("failed"), next);
    }
}

#[test]
fn a_slow_server_costs_results_and_not_the_stream() {
    let server = server();
    let line = format!(
        "roidetect model={} config=\"remote.timeout=100\" description={} queue-policy=wait max-failures=0",
        server.grpc("rectangle"),
        description("rectangle")
    );
    let rig = Rig::begun(&line);
    let mut next = 0;
    push_until(&rig, &mut next, |status| status == "inferred");
    server.behave(Behavior::Holds);
    push_until(&rig, &mut next, |status| status.contains("within 100 ms") || status.contains("DEADLINE"));
    server.behave(Behavior::Well);
    push_until(&rig, &mut next, |status| status == "inferred");
    assert!(!rig.has_error());
}

/// A model that fails on the server is no outage, so `max-failures` ends the stream.
#[test]
fn a_model_that_fails_on_the_server_ends_the_stream() {
    let server = server();
    let line =
        format!("roidetect model={} description={} queue-policy=wait max-failures=3", server.grpc("rectangle"), description("rectangle"));
    let rig = Rig::begun(&line);
    let mut next = 0;
    push_until(&rig, &mut next, |status| status == "inferred");
    server.behave(Behavior::Internal);
    assert_eq!(rig.refusal(), gst::FlowError::Error);
    assert!(rig.error().contains("INTERNAL: the engine of the server failed"));
}

#[test]
fn results_are_those_of_a_local_model() {
    let server = server();
    let found = |detector: &str, classifier: &str| {
        let line = format!(
            "videotestsrc num-buffers=3 pattern=smpte ! video/x-raw,width=64,height=48 ! videoconvert ! video/x-raw,format=RGB \
             ! roidetect {detector} ! roiclassify {classifier} ! fakesink name=sink sync=false"
        );
        let pipeline = crate::harness::pipeline(&line);
        let arrived = crate::harness::collect(&pipeline, "sink", "sink");
        crate::harness::run(&pipeline);
        let arrived = arrived.lock().unwrap();
        let results: Vec<_> = arrived.iter().map(|frame| frame.results().unwrap()).collect();
        results
            .iter()
            .flat_map(|results| &results.detections)
            .map(|detection| (detection.rect, detection.classifications.iter().map(crate::harness::answer).collect::<Vec<_>>()))
            .collect::<Vec<_>>()
    };
    let local = found(&format!("model={} device=CPU", tiny("rectangle.onnx")), &format!("model={} device=CPU", tiny("color.onnx")));
    assert!(!local.is_empty());
    for scheme in ["grpc", "http"] {
        let of = |model: &str| format!("model={scheme}://{}/{model} description={}", server.address(), description(model));
        assert_eq!(found(&of("rectangle"), &of("color")), local, "{scheme}");
    }
    assert!(State::count(&server.state.n_computed) >= 4);
}

#[cfg(feature = "cli")]
#[test]
fn the_command_inspects_and_measures_a_model_on_a_server() {
    let server = server();
    let said = |arguments: &[&str]| {
        let output = crate::cli::roiflow(arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    let address = server.grpc("color");
    let text = said(&["inspect", &address, "--description", &description("color")]);
    for part in ["input  ", "device REMOTE", "metadata platform: roiflow_tests", "task classification"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(said(&["bench", &address, "--seconds", "0.1"]).contains("throughput"));
    assert!(said(&["devices"]).contains("REMOTE"));
    crate::cli::check_fails(&["inspect", "grpc://127.0.0.1:1/color"], 1, &["no server is up", "cannot connect"]);
}
