//! What arrived at a destination: which frames of each stream, in constant memory.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::verdict::Violations;

/// Results that arrived at a server, by stream.
#[derive(Default)]
pub struct Received {
    /// Results by stream and epoch.
    streams: BTreeMap<String, BTreeMap<u64, Frames>>,
    pub n_messages: u64,
    /// Messages whose ID had arrived before.
    pub n_repeated: u64,
    /// Frames that gap records report as dropped.
    pub n_in_gaps: u64,
}

impl Received {
    /// Adds a message of a server, and checks the order.
    pub fn add(&mut self, server: &str, payload: &[u8], violations: &Violations) {
        let Ok(line) = serde_json::from_slice::<Value>(payload) else {
            return violations.add(format!("{server}: not JSON: {}", String::from_utf8_lossy(payload)));
        };
        self.n_messages += 1;
        let id = line["message_id"].as_str().unwrap_or_default();
        let Some((stream, epoch, number)) = parts(id) else {
            return violations.add(format!("{server}: expected the message ID stream/epoch/frame, got {line}"));
        };
        let frames = self.streams.entry(stream.to_owned()).or_default().entry(epoch).or_default();
        if line["event"] == "gap" {
            let field = |name: &str| line[name].as_u64().unwrap_or_default();
            let (from, to) = (field("from"), field("to"));
            if field("dropped") != to + 1 - from {
                violations.add(format!("{server}: a gap with another number of frames than its range: {line}"));
            }
            self.n_in_gaps += field("dropped");
            return frames.add(from, to);
        }
        let Ok(frame) = number.parse::<u64>() else {
            return violations.add(format!("{server}: expected a frame number at the end of the message ID, got {id}"));
        };
        if frames.contains(frame) {
            self.n_repeated += 1;
        } else if frames.last().is_some_and(|last| frame < last) {
            violations.add(format!("{server}: frame {frame} of {stream} after frame {}", frames.last().unwrap_or_default()));
        }
        frames.add(frame, frame);
    }

    /// Checks that each frame of a stream arrived or is in a gap record, in one epoch each.
    pub fn check(&self, server: &str, stream: &str, n_frames: u64, violations: &Violations) {
        let mut ranges: Vec<(u64, u64)> =
            self.streams.get(stream).into_iter().flat_map(BTreeMap::values).flat_map(|frames| frames.0.clone()).collect();
        ranges.sort_unstable();
        let mut next = 0;
        for (from, to) in ranges {
            if from > next {
                violations.add(format!("{server}: frames {next} to {} of {stream} are missing", from - 1));
            } else if from < next {
                violations.add(format!("{server}: frames {from} to {} of {stream} have two message IDs", to.min(next - 1)));
            }
            next = next.max(to + 1);
        }
        if next != n_frames {
            violations.add(format!("{server}: {stream} has {n_frames} frames, and {next} have arrived"));
        }
    }
}

/// Stream, epoch and frame of a message ID.
fn parts(id: &str) -> Option<(&str, u64, &str)> {
    let (rest, number) = id.rsplit_once('/')?;
    let (stream, epoch) = rest.rsplit_once('/')?;
    Some((stream, epoch.parse().ok()?, number))
}

/// A set of frame numbers, as ranges in ascending order.
#[derive(Default)]
struct Frames(Vec<(u64, u64)>);

impl Frames {
    fn last(&self) -> Option<u64> {
        self.0.last().map(|(_, to)| *to)
    }

    fn contains(&self, frame: u64) -> bool {
        self.0.iter().any(|(from, to)| (*from..=*to).contains(&frame))
    }

    fn add(&mut self, mut from: u64, mut to: u64) {
        self.0.retain(|&(other_from, other_to)| {
            let touches = other_from <= to + 1 && from <= other_to + 1;
            if touches {
                (from, to) = (from.min(other_from), to.max(other_to));
            }
            !touches
        });
        self.0.push((from, to));
        self.0.sort_unstable();
    }
}
