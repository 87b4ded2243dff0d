//! Latency of a live stream whose broker has stalled, compared with a stream without a destination: `cargo bench --bench outage`.
//!
//! A pair is two runs of the same live stream with a detector, one after the other: without a destination, and with one. The order changes
//! from pair to pair. The latency of a frame is the time from its capture to the end of the pipeline. The ratio of a pair is that of the
//! 99th percentiles.
//!
//! `--quick` checks that everything works. `--pairs N` sets the number of pairs.

#[allow(dead_code, reason = "what the other benchmark measures with it")]
mod harness;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

use gst::prelude::*;
use gstreamer as gst;
use harness::Estimate;

/// Frames of a run that are measured, and frames before them.
const N_FRAMES: usize = 600;
const N_WARM_UP: usize = 60;
const FRAMES_PER_SECOND: usize = 200;
/// A run that takes longer hangs.
const MAX_RUN: Duration = Duration::from_secs(60);
/// The answer of an MQTT 5 broker that accepts a connection.
const CONNACK: [u8; 5] = [0x20, 0x03, 0x00, 0x00, 0x00];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let (n_pairs, n_frames) = match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => (15, N_FRAMES),
        ["--quick"] => (2, 40),
        ["--pairs", n] if n.parse().is_ok_and(|n: usize| n >= 7) => (n.parse().unwrap_or(7), N_FRAMES),
        _ => {
            eprintln!("expected --quick, or --pairs N with at least 7, got {}", args.join(" "));
            return ExitCode::from(2);
        }
    };
    match compare(n_pairs, n_frames) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(n_pairs: usize, n_frames: usize) -> Result<(), String> {
    roiflow::elements::register_static().map_err(|error| error.to_string())?;
    let port = stalled_broker().map_err(|error| error.to_string())?;
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).map_err(|error| error.to_string())?.port();
    let folder = std::env::temp_dir().join(format!("roiflow-bench-outage-{}", std::process::id()));
    let spool = format!("spool={}", folder.display());
    let url = |port: u16| format!("roipublish stream-id=door url=mqtt://127.0.0.1:{port}/roiflow");
    let variants = [
        ("a file", "roipublish address=/dev/null".to_owned()),
        ("a stalled broker, with a spool", format!("{} {spool}", url(port))),
        ("a stalled broker, without a spool", url(port)),
        ("an absent broker, with a spool", format!("{} {spool}", url(closed))),
    ];
    println!(
        "{n_frames} frames at {FRAMES_PER_SECOND} a second: p99 latency without a destination, with one, the ratio and its 95 % interval"
    );
    for (name, destination) in variants {
        let mut pairs = Vec::new();
        for pair_idx in 0..n_pairs {
            let measure = |destination: &str| measure(destination, n_frames, &folder);
            let pair = if pair_idx % 2 == 0 {
                let bare = measure("identity")?;
                (bare, measure(&destination)?)
            } else {
                let ours = measure(&destination)?;
                (measure("identity")?, ours)
            };
            pairs.push(pair);
        }
        let median = |side: fn(&(f64, f64)) -> f64| Estimate::of(pairs.iter().map(side)).median;
        let (bare, ours) = (median(|pair| pair.0), median(|pair| pair.1));
        let Estimate { median, low, high } = Estimate::of(pairs.iter().map(|(bare, ours)| ours / bare));
        println!("{name:<36} {bare:>6.2} ms {ours:>6.2} ms  {median:.2} x ({low:.2} .. {high:.2})");
    }
    Ok(())
}

/// Plays a live stream. Returns the 99th percentile of the latency in milliseconds.
fn measure(destination: &str, n_frames: usize, spool: &Path) -> Result<f64, String> {
    let model = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/rectangle.onnx");
    let line = format!(
        "videotestsrc is-live=true ! video/x-raw,format=NV12,width=320,height=240,framerate={FRAMES_PER_SECOND}/1 \
         ! roidetect model={} device=CPU ! {destination} ! fakesink name=sink sync=false",
        model.display()
    );
    let pipeline = gst::parse::launch(&line).map_err(|error| error.to_string())?;
    let pipeline = pipeline.downcast::<gst::Pipeline>().map_err(|_| "expected a pipeline")?;
    let pad = pipeline.by_name("sink").and_then(|sink| sink.static_pad("sink")).ok_or("the line has a sink")?;
    let (sent, latencies) = channel();
    let weak = pipeline.downgrade();
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        // The timestamps of a live source are running times.
        if let (Some(pipeline), Some(pts)) = (weak.upgrade(), info.buffer().and_then(|buffer| buffer.pts()))
            && let Some(now) = pipeline.current_running_time()
        {
            // The receiver is gone after the last measured frame.
            let _sent = sent.send(now.saturating_sub(pts).nseconds() as f64 / 1e6);
        }
        gst::PadProbeReturn::Ok
    });
    pipeline.set_state(gst::State::Playing).map_err(|error| error.to_string())?;
    let next = || latencies.recv_timeout(MAX_RUN).map_err(|_| format!("{destination}: no frame for {} s", MAX_RUN.as_secs()));
    let all: Result<Vec<f64>, String> = (0..N_WARM_UP + n_frames).map(|_| next()).collect();
    pipeline.set_state(gst::State::Null).map_err(|error| error.to_string())?;
    // The next run begins with an empty spool.
    let _removed = std::fs::remove_dir_all(spool);
    let mut measured = all?.split_off(N_WARM_UP);
    measured.sort_by(f64::total_cmp);
    Ok(measured[(measured.len() * 99 / 100).min(measured.len() - 1)])
}

/// Starts a broker that accepts connections, and then neither reads nor writes. Returns its port.
fn stalled_broker() -> std::io::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        let mut connections = Vec::new();
        for mut connection in listener.incoming().flatten() {
            // A client that has gone already is no error.
            let _greeted = connection.read(&mut [0; 512]).and_then(|_| connection.write_all(&CONNACK));
            connections.push(connection);
        }
    });
    Ok(port)
}
