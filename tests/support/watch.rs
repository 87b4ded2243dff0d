//! Current operation of each thread, and a watchdog that ends the process if an operation takes too long.
//!
//! This module does not depend on the rest of the stress test: it uses only names and times.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time limit of an operation, far above the duration of any operation on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Number of notes of each slot that are kept.
const N_NOTES: usize = 30;

/// Outermost operation of a stream; its duration is set by the run.
pub const ROUND: &str = "a round";

/// Number of slots: one per stream, and one for the main thread.
pub struct Watch {
    /// Nested operations of each slot with their limits, outermost first.
    slots: Vec<Mutex<Vec<(String, Instant)>>>,
    slowest: Mutex<(Duration, String)>,
    /// The last notes of each slot, with their times.
    notes: Vec<Mutex<VecDeque<(Instant, String)>>>,
}

impl Watch {
    pub fn new(n_slots: usize) -> Self {
        let notes = (0..n_slots).map(|_| Mutex::default()).collect();
        Self { slots: (0..n_slots).map(|_| Mutex::default()).collect(), slowest: Mutex::default(), notes }
    }

    /// Keeps a text that explains a hang of this slot.
    #[allow(dead_code, reason = "the soak test has no notes")]
    pub fn note(&self, slot_idx: usize, text: String) {
        let mut notes = self.notes[slot_idx].lock().unwrap();
        notes.push_back((Instant::now(), text));
        if notes.len() > N_NOTES {
            notes.pop_front();
        }
    }

    /// Runs an operation with a time limit.
    pub fn watched<T>(&self, slot_idx: usize, what: impl Into<String>, act: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        self.slots[slot_idx].lock().unwrap().push((what.into(), begin));
        let result = act();
        let what = self.slots[slot_idx].lock().unwrap().pop().map(|(what, _)| what).unwrap_or_default();
        let mut slowest = self.slowest.lock().unwrap();
        if begin.elapsed() > slowest.0 && what != ROUND {
            *slowest = (begin.elapsed(), format!("stream {slot_idx}: {what}"));
        }
        result
    }

    /// Operations that exceeded their limit.
    pub fn hangs(&self) -> Option<String> {
        self.slots.iter().enumerate().find_map(|(slot_idx, slot)| {
            let slot = slot.lock().unwrap();
            let (_, since) = slot.iter().find(|(_, since)| since.elapsed() > PATIENCE)?;
            let path: Vec<&str> = slot.iter().map(|(what, _)| what.as_str()).collect();
            for (at, note) in &*self.notes[slot_idx].lock().unwrap() {
                println!("{:5.1} s before: {note}", at.elapsed().as_secs_f64());
            }
            Some(format!("stream {slot_idx}: `{}` has not ended in {} s", path.join(": "), since.elapsed().as_secs()))
        })
    }

    /// Returns the longest operation.
    pub fn slowest(&self) -> String {
        let (took, what) = &*self.slowest.lock().unwrap();
        format!("{what}, {:.1} s", took.as_secs_f64())
    }
}

/// Kernel wait states of the threads of this process, to diagnose a hang.
pub fn threads() -> String {
    let mut lines = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default().trim().to_owned();
        lines.push(format!("  {} {} {}", task.file_name().to_string_lossy(), read("comm"), read("wchan")));
    }
    lines.join("\n")
}
