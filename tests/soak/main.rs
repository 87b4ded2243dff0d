//! Stress test: sixteen streams of a real clip in a loop, with flushes, seeks, relinked pads, state changes, property changes and failing
//! runs. Run it with `make soak DURATION=seconds SEED=number`. The last line is the verdict; the exit code is 0 without findings.
//!
//! Invariants, regardless of the operations:
//!
//! - Memory does not grow: the trend of resident memory and heap, per frame ([`trend`]), is at most [`verdict::MAX_GROWTH`].
//! - No frame is reordered or duplicated.
//! - In each inference element, arrived = left + dropped, and each dropped frame has a reason.
//! - Nothing hangs: each operation ends, frames arrive, and threads and descriptors do not accumulate ([`watch`]).
//! - All errors and warnings on the bus are provoked by the test.
//!
//! GStreamer decodes the clip. The models are the tiny ones, on the built-in engine or on NULL devices with scripted failures ([`faulty`]).
//! [`stream`] chooses the operations of a stream. Between rounds most streams are in READY while memory is measured ([`memory`]): the
//! streams then hold constant memory, so that growth is visible within seconds. In runs of at least [`LONG`], two streams only pause, to
//! detect memory that accumulates in endless streams.
//!
//! `SOAK_LEAK=1024` leaks this many bytes per frame, which the soak test must detect. `SOAK_CLIP` sets the clip; the default is that of
//! the demo (`make demo` fetches it), or a generated one.

#[path = "../support/faulty.rs"]
mod faulty;
#[path = "../support/memory.rs"]
mod memory;
#[path = "../support/random.rs"]
mod random;
mod stream;
#[path = "../support/trend.rs"]
mod trend;
#[path = "../support/verdict.rs"]
mod verdict;
#[path = "../support/watch.rs"]
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;

use faulty::{Faulty, Habits};
use memory::Held;
use stream::{Kind, N_OPERATIONS, OPERATIONS, Stream};
use trend::trend;
use verdict::{Sample, Violations, judge, number, resident};
use watch::{ROUND, Watch};

const N_STREAMS: usize = 16;
/// Number of samples at the beginning that are ignored, while pools, caches and the allocator reach their size.
const N_WARM_UP: usize = 4;

/// Runs of at least this duration have streams that are never stopped.
const LONG: Duration = Duration::from_secs(120);

fn main() {
    memory::settle_allocators();
    let duration = Duration::from_secs(number("DURATION").unwrap_or(60));
    let seed = number("SEED").unwrap_or_else(random::any_seed);
    let leak = number("SOAK_LEAK").unwrap_or(0) as usize;
    faulty::keep_scripted_panics_quiet();
    roiflow::elements::register_static().expect("the elements can be registered");
    let clip = clip();
    println!("soak: {} s, SEED={seed}, {N_STREAMS} streams of {}, {leak} bytes leaked a frame", duration.as_secs(), clip.display());

    let (watch, violations) = (Arc::new(Watch::new(N_STREAMS + 1)), Arc::new(Violations::default()));
    verdict::end_what_hangs("soak", &watch);
    let kinds = kinds(seed);
    // The memory of a stream in PAUSED varies by megabytes: only a long run shows its trend.
    let stops = duration < LONG;
    let mut streams: Vec<Stream> = (0..N_STREAMS)
        .map(|idx| Stream::new(idx, &kinds[idx % kinds.len()], idx >= kinds.len(), stops, &clip, leak, seed, &watch, &violations))
        .collect();
    let (begin, mut samples) = (Instant::now(), Vec::new());
    // A round must be long enough for several operations per stream, and short enough for a trend in the shortest run.
    let round = (duration / 300).clamp(Duration::from_millis(1500), Duration::from_secs(10));
    let mut told = begin;
    while begin.elapsed() < duration {
        let until = Instant::now() + round;
        std::thread::scope(|scope| {
            for (idx, stream) in streams.iter_mut().enumerate() {
                let watch = &watch;
                scope.spawn(move || watch.watched(idx, ROUND, || stream.round(until)));
            }
        });
        let n_frames: u64 = streams.iter().map(Stream::n_frames).sum();
        let Some(held) = watch.watched(N_STREAMS, "a look at the memory", Held::now) else {
            println!("soak: skipped: there is no /proc here");
            return;
        };
        samples.push(Sample { at: begin.elapsed(), n_frames, held });
        if told.elapsed() > (duration / 20).clamp(Duration::from_secs(4), Duration::from_secs(30)) {
            told = Instant::now();
            println!("{}", progress(begin.elapsed(), duration, &samples, &streams));
        }
    }
    for (idx, stream) in streams.iter_mut().enumerate() {
        watch.watched(idx, "the end", || stream.end());
    }
    let report: Vec<String> = streams.iter().map(Stream::report).collect();
    let operations = operations(&streams);
    watch.watched(N_STREAMS, "letting go of all streams", || drop(streams));
    report.iter().for_each(|line| println!("{line}"));
    println!("did {operations}; slowest: {}", watch.slowest());
    judge("soak", &samples, N_WARM_UP, 0.0, &violations);
}

fn progress(elapsed: Duration, duration: Duration, samples: &[Sample], streams: &[Stream]) -> String {
    let Some(Sample { n_frames, held, .. }) = samples.last() else { return String::new() };
    let points: Vec<(f64, f64)> = samples.iter().skip(N_WARM_UP).map(|sample| (sample.n_frames as f64, resident(sample))).collect();
    let trend = trend(&points).map_or("warming up".to_owned(), |trend| format!("{:+.0} bytes a frame", trend.slope));
    format!(
        "{:4} of {} s: {n_frames} frames, {:.0} a second; resident {:.1} MiB ({trend}), heap {:.1} MiB, {} threads, {} descriptors; {}",
        elapsed.as_secs(),
        duration.as_secs(),
        *n_frames as f64 / elapsed.as_secs_f64(),
        held.resident_bytes as f64 / 1024.0 / 1024.0,
        held.heap_bytes as f64 / 1024.0 / 1024.0,
        held.n_threads,
        held.n_descriptors,
        operations(streams)
    )
}

fn operations(streams: &[Stream]) -> String {
    let count = |idx: usize| streams.iter().map(|stream| stream.n_operations[idx]).sum::<u64>();
    let counts: Vec<String> = (0..N_OPERATIONS).map(|idx| format!("{} {}", count(idx), OPERATIONS[idx])).collect();
    counts.join(", ")
}

/// Configurations of the streams. All but the first of each kind run in real time, like a camera.
fn kinds(seed: u64) -> Vec<Kind> {
    let tiny = |model: &str| format!("{}/assets/tiny/{model}.onnx", env!("CARGO_MANIFEST_DIR"));
    let [rectangle, color, stripes, brightness] = ["rectangle", "color", "stripes", "brightness"].map(tiny);
    let faults = Habits { fails_permille: 20, panics_permille: 5, takes_us_max: 3000 };
    let _registered = Faulty::register("faults", seed, faults);
    let _registered = Faulty::register("slow", seed ^ 1, Habits { takes_us_max: 60_000, ..faults });
    let breaks = Faulty::register("breaks", seed ^ 2, Habits { fails_permille: 0, panics_permille: 0, takes_us_max: 1000 });
    let kind = |name, line: String| Kind { name, line, is_long: false, faulty: None };
    vec![
        kind(
            "CPU, motion, tracked, consensus",
            format!(
                "roidetect model={rectangle} device=CPU motion-threshold=0.01 ! roitrack \
                 ! roiclassify model={color} device=CPU reclassify-interval=4 consensus=3"
            ),
        ),
        kind(
            "CPU, interval, overlay, publish",
            format!(
                "roidetect model={rectangle} device=CPU inference-interval=3 carry-results=true ! roiclassify model={brightness} device=CPU \
                 ! roioverlay ! roipublish address=/dev/null"
            ),
        ),
        kind(
            "NULL, faults, tracked, async",
            format!(
                "roidetect model={rectangle} device=NULL.faults ! roitrack max-tracks=50 \
                 ! roiclassify model={color} device=NULL.faults classifier-async-mode=true reclassify-interval=2"
            ),
        ),
        kind(
            "NULL, slow, drop-oldest",
            format!(
                "roidetect model={rectangle} device=NULL.slow queue-policy=drop-oldest max-latency=50 ! roiclassify model={color} device=NULL.faults"
            ),
        ),
        kind(
            "NULL, slow, drop-newest, frames too",
            format!(
                "roidetect model={rectangle} device=NULL.slow queue-policy=drop-newest drop-frames=true scheduling-policy=latency nireq=3 \
                 ! roiclassify model={color} device=CPU max-latency=100"
            ),
        ),
        Kind {
            faulty: Some(breaks),
            ..kind(
                "NULL, breaks",
                format!("roidetect model={rectangle} device=NULL.breaks max-failures=10 ! roiclassify model={color} device=CPU"),
            )
        },
        kind(
            "NULL, batches",
            format!(
                "roidetect model={rectangle} device=NULL.faults batch-size=4 batch-timeout=5 ! roiclassify model={color} device=NULL.faults \
                 batch-size=8 batch-timeout=2"
            ),
        ),
        Kind {
            is_long: true,
            ..kind(
                "CPU, cascade, never stopped",
                format!(
                    "videoscale ! video/x-raw,width=160,height=120 ! roidetect model={rectangle} device=CPU \
                     ! roidetect model={stripes} device=CPU inference-region=roi-list threshold=0.9"
                ),
            )
        },
    ]
}

/// Returns the path of the clip: `SOAK_CLIP`, the clip of the demo, or a generated clip.
fn clip() -> PathBuf {
    if let Some(clip) = std::env::var_os("SOAK_CLIP").filter(|clip| !clip.is_empty()) {
        return clip.into();
    }
    let of_demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/demo/WolfgangLanger_Pexels.mp4");
    if of_demo.exists() {
        return of_demo;
    }
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soak.mp4");
    let line = format!(
        "videotestsrc num-buffers=250 pattern=smpte ! video/x-raw,format=I420,width=640,height=360,framerate=25/1 \
         ! x264enc speed-preset=veryfast key-int-max=25 ! mp4mux ! filesink location=\"{}\"",
        made.display()
    );
    let pipeline = gst::parse::launch(&line).expect("the clip's pipeline is valid");
    let bus = pipeline.bus().expect("a pipeline has a bus");
    pipeline.set_state(gst::State::Playing).expect("the clip can be encoded");
    let ended = bus.timed_pop_filtered(gst::ClockTime::from_seconds(120), &[gst::MessageType::Eos, gst::MessageType::Error]);
    assert!(ended.is_some_and(|message| message.type_() == gst::MessageType::Eos), "the clip can be encoded");
    pipeline.set_state(gst::State::Null).expect("a pipeline can be stopped");
    made
}
