//! The verdict of a stress test: violated invariants, and the trends of memory, threads and descriptors.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::memory::Held;
use crate::trend::{Trend, trend};
use crate::watch::{self, Watch};

/// Maximum growth in bytes per frame. Memory counts as growing if the lower bound of the trend's interval exceeds this value.
pub const MAX_GROWTH: f64 = 256.0;
/// Maximum rise of the number of threads or descriptors, from the maximum in the first half to the minimum in the second half. Pools keep a
/// varying number of idle threads for a while.
const MAX_MORE: usize = 16;

/// Violated invariants.
#[derive(Default)]
pub struct Violations {
    first: Mutex<Vec<String>>,
    n: AtomicUsize,
}

impl Violations {
    pub fn add(&self, what: String) {
        // The first 20 violations are enough to identify the fault.
        if self.n.fetch_add(1, Ordering::AcqRel) < 20 {
            println!("VIOLATION: {what}");
            self.first.lock().unwrap().push(what);
        }
    }
}

/// A measurement during the test.
pub struct Sample {
    pub at: Duration,
    pub n_frames: u64,
    pub held: Held,
}

/// Evaluates the memory after `n_warm_up` samples, prints the last line, and ends the process. A growth of less than `least_growth` bytes
/// over all samples is no growth: it is the work that happens to be in progress.
pub fn judge(name: &str, samples: &[Sample], n_warm_up: usize, least_growth: f64, violations: &Violations) -> ! {
    let measured = &samples[n_warm_up.min(samples.len())..];
    for (what, bytes) in [("resident memory", resident as fn(&Sample) -> f64), ("the heap in use", heap)] {
        let by_frame: Vec<(f64, f64)> = measured.iter().map(|sample| (sample.n_frames as f64, bytes(sample))).collect();
        let by_minute: Vec<(f64, f64)> = measured.iter().map(|sample| (sample.at.as_secs_f64() / 60.0, bytes(sample))).collect();
        let (Some(trend), Some(by_minute)) = (trend(&by_frame), trend(&by_minute)) else {
            violations.add(format!("{what}: only {} samples after the warm-up, expected 5; give it more time", measured.len()));
            continue;
        };
        let Trend { slope, low, high } = trend;
        let (first, last) = (bytes(&measured[0]), bytes(&measured[measured.len() - 1]));
        println!(
            "{what}: {slope:+.1} bytes a frame (95 %: {low:+.1} to {high:+.1}), {:+.0} KiB a minute; Theil-Sen over {} samples after {n_warm_up} of \
             warm-up; {:.1} MiB then, {:.1} MiB at the end",
            by_minute.slope / 1024.0,
            measured.len(),
            first / 1024.0 / 1024.0,
            last / 1024.0 / 1024.0
        );
        let n_frames = measured[measured.len() - 1].n_frames - measured[0].n_frames;
        if low > MAX_GROWTH && low * n_frames as f64 > least_growth {
            violations
                .add(format!("{what} grows by {slope:.0} bytes a frame (95 %: {low:.0} to {high:.0}), expected at most {MAX_GROWTH}"));
        }
    }
    let (early, late) = measured.split_at(measured.len() / 2);
    for (what, count) in [("threads", (|held| held.n_threads) as fn(Held) -> usize), ("descriptors", |held| held.n_descriptors)] {
        let most = early.iter().map(|sample| count(sample.held)).max().unwrap_or_default();
        let least = late.iter().map(|sample| count(sample.held)).min().unwrap_or_default();
        println!("{what}: at most {most} in the first half after the warm-up, at least {least} in the second");
        if least > most + MAX_MORE {
            violations.add(format!("{what}: always {least} or more, expected at most {most} as at first"));
        }
    }
    let (n, first) = (violations.n.load(Ordering::Acquire), violations.first.lock().unwrap());
    let frames = samples.last().map_or(0, |sample| sample.n_frames);
    match first.first() {
        None => println!("{name}: PASS: {frames} frames"),
        Some(first) => println!("{name}: FAIL: {n} violations in {frames} frames, the first: {first}"),
    }
    std::process::exit(i32::from(n > 0));
}

pub fn resident(sample: &Sample) -> f64 {
    sample.held.resident_bytes as f64
}

fn heap(sample: &Sample) -> f64 {
    sample.held.heap_bytes as f64
}

/// Ends the process if an operation hangs.
pub fn end_what_hangs(name: &'static str, watch: &Arc<Watch>) {
    let watch = watch.clone();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(500));
            if let Some(hangs) = watch.hangs() {
                println!("threads and what they wait for:\n{}", watch::threads());
                println!("{name}: FAIL: {hangs}");
                // Allows attaching a debugger.
                if std::env::var_os("SOAK_STAYS").is_some() {
                    std::thread::sleep(Duration::from_secs(3600));
                }
                std::process::exit(1);
            }
        }
    });
}

/// Returns the number in an environment variable.
pub fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(_) => {
            eprintln!("{variable}: expected a number, got `{text}`");
            std::process::exit(2);
        }
    }
}
