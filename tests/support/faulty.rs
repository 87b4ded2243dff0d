//! NULL devices whose runs take time, fail or panic, at random and on command.
//!
//! The outputs have the format of the tiny models `rectangle` and `color`. This module does not use pipelines.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use roiflow::devices::null::{NullDevice, Script};
use roiflow::runtime::executor::Pool;
use roiflow::runtime::io::DeviceIo;
use roiflow::runtime::{Error, ErrorKind, Result};

use crate::random::Random;

/// Text that every error and panic of these devices contains.
pub const SCRIPTED: &str = "scripted";

/// How the runs of a device end.
#[derive(Debug, Clone, Copy)]
pub struct Habits {
    pub fails_permille: u64,
    pub panics_permille: u64,
    pub takes_us_max: u64,
}

/// A device that the elements find by its name.
pub struct Faulty {
    habits: Habits,
    seed: u64,
    n_runs: AtomicU64,
    /// All runs fail.
    is_broken: AtomicBool,
}

impl Faulty {
    /// Registers the device `NULL.{name}`, and returns it.
    pub fn register(name: &str, seed: u64, habits: Habits) -> Arc<Self> {
        let faulty = Arc::new(Self { habits, seed, n_runs: AtomicU64::new(0), is_broken: AtomicBool::new(false) });
        let of_runs = faulty.clone();
        let script = Script {
            executor: Some(Arc::new(Pool::new("soak", 2).expect("two threads"))),
            ..Script::computing(move |io, _| of_runs.run(io))
        };
        roiflow::stages::Engine::of_process().register_device(Arc::new(NullDevice::instance(&format!("NULL.{name}"), Arc::new(script))));
        faulty
    }

    /// If `is_broken` is true, all runs fail until the next call with false.
    pub fn breaks(&self, is_broken: bool) {
        self.is_broken.store(is_broken, Ordering::Release);
    }

    fn run(&self, io: &mut DeviceIo<'_>) -> Result<()> {
        let n = self.n_runs.fetch_add(1, Ordering::Relaxed);
        // The outcome depends on the number of the run only, not on the order of threads.
        let mut random = Random::new(self.seed ^ n);
        let Habits { fails_permille, panics_permille, takes_us_max } = self.habits;
        if takes_us_max > 0 {
            std::thread::sleep(Duration::from_micros(random.below(takes_us_max)));
        }
        if self.is_broken.load(Ordering::Acquire) || random.below(1000) < fails_permille {
            return Err(Error::new(ErrorKind::Device, format!("{SCRIPTED} failure")));
        }
        assert!(random.below(1000) >= panics_permille, "{SCRIPTED} panic");
        let input = io.input_tensor(0).shape();
        let n_rows = input[0];
        // In three of four images, the device detects a box.
        let found = if random.below(4) > 0 { [0.0, 1.0, 0.25, 0.25, 0.75, 0.75] } else { [1.0, 0.0, 0.0, 0.0, 0.0, 0.0] };
        let (shape, row): (&[usize], &[f32]) =
            if input[1..] == [64, 64, 3] { (&[n_rows, 1, 6], &found) } else { (&[n_rows, 4], &[1.0, 0.0, 0.0, 0.0]) };
        for values in io.output(0, shape)?.dense_mut::<f32>()?.chunks_exact_mut(row.len()) {
            values.copy_from_slice(row);
        }
        Ok(())
    }
}

/// Prints all panics except the provoked panics.
pub fn keep_scripted_panics_quiet() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.payload_as_str().is_some_and(|text| text.contains(SCRIPTED)) {
            usual(panic);
        }
    }));
}
