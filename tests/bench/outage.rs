//! Latency of a live stream whose broker has stalled, compared with a stream without a destination: `cargo bench --bench outage`.
//!
//! A pair is two runs of the same live stream with a detector, one after the other: without a destination, and with one. The order changes
//! from pair to pair, and the variants take turns. The latency of a frame is the time from its capture to the end of the pipeline. The ratio
//! is that of the 99th percentiles, each of all frames of its side. Its interval is from the bootstrap over pairs: the ratio is computed again
//! for random samples of the pairs, drawn with replacement, and 95 % of these ratios are inside the interval.
//!
//! `--quick` checks that everything works. `--pairs N` sets the number of pairs.

#[allow(dead_code, reason = "what the other benchmark measures with it")]
mod harness;
#[path = "../support/random.rs"]
mod random;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

use gst::prelude::*;
use gstreamer as gst;
use harness::Estimate;
use random::Random;

/// Frames of a run that are measured, and frames before them.
const N_FRAMES: usize = 600;
const N_WARM_UP: usize = 60;
const FRAMES_PER_SECOND: usize = 200;
/// A run that takes longer hangs.
const MAX_RUN: Duration = Duration::from_secs(60);
/// Number of samples of the bootstrap.
const N_SAMPLES: usize = 2000;
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
        "{n_pairs} pairs of {n_frames} frames at {FRAMES_PER_SECOND} a second: p99 latency without a destination, with one, the ratio and its 95 % interval"
    );
    let mut pairs_of: Vec<Vec<Pair>> = variants.iter().map(|_| Vec::new()).collect();
    for pair_idx in 0..n_pairs {
        for ((_, destination), pairs) in variants.iter().zip(&mut pairs_of) {
            let measure = |destination: &str| measure(destination, n_frames, &folder);
            let pair = if pair_idx % 2 == 0 {
                let bare = measure("identity")?;
                Pair { bare, ours: measure(destination)? }
            } else {
                let ours = measure(destination)?;
                Pair { bare: measure("identity")?, ours }
            };
            pairs.push(pair);
        }
    }
    for ((name, _), pairs) in variants.iter().zip(&pairs_of) {
        let all: Vec<&Pair> = pairs.iter().collect();
        let (bare, ours) = percentiles(&all);
        let Estimate { median: ratio, low, high } = ratio_of_percentiles(pairs);
        println!("{name:<36} {bare:>6.2} ms {ours:>6.2} ms  {ratio:.2} x ({low:.2} .. {high:.2})");
    }
    Ok(())
}

/// The latencies of the frames of two runs, in milliseconds.
struct Pair {
    bare: Vec<f64>,
    ours: Vec<f64>,
}

/// Returns the 99th percentiles of all frames of both sides.
fn percentiles(pairs: &[&Pair]) -> (f64, f64) {
    let of_side = |side: fn(&Pair) -> &[f64]| {
        let mut latencies: Vec<f64> = pairs.iter().flat_map(|pair| side(pair)).copied().collect();
        let at = (latencies.len() * 99 / 100).min(latencies.len() - 1);
        *latencies.select_nth_unstable_by(at, f64::total_cmp).1
    };
    (of_side(|pair| &pair.bare), of_side(|pair| &pair.ours))
}

/// Returns the ratio of the 99th percentiles, with its interval from the bootstrap.
fn ratio_of_percentiles(pairs: &[Pair]) -> Estimate {
    let ratio = |pairs: &[&Pair]| {
        let (bare, ours) = percentiles(pairs);
        ours / bare
    };
    let mut random = Random::new(1);
    let mut sample = || -> Vec<&Pair> { pairs.iter().map(|_| &pairs[random.below(pairs.len() as u64) as usize]).collect() };
    let mut ratios: Vec<f64> = (0..N_SAMPLES).map(|_| ratio(&sample())).collect();
    ratios.sort_by(f64::total_cmp);
    let outside = N_SAMPLES * 25 / 1000;
    Estimate { median: ratio(&pairs.iter().collect::<Vec<_>>()), low: ratios[outside], high: ratios[N_SAMPLES - 1 - outside] }
}

/// Plays a live stream. Returns the latencies of its frames in milliseconds.
fn measure(destination: &str, n_frames: usize, spool: &Path) -> Result<Vec<f64>, String> {
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
    Ok(all?.split_off(N_WARM_UP))
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
