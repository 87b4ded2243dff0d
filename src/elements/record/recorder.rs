//! Decides which encoded frames belong to a clip, as a pure state machine without GStreamer.
//!
//! Encoded frames and results arrive independently, and either can be ahead. Each message about results has the time up to which results
//! are known, and whether there is an event at this time. Encoded frames wait in a ring buffer until the results show whether a clip needs
//! them.
//!
//! - A clip begins at the last key frame before `event - pre-roll`. This key frame is known when the frames around that time have arrived.
//! - Frames up to the end of the clip, `last event + post-roll`, are written at once.
//! - The clip is complete when the results are known up to `end + pre-roll`, because the clip of a later event cannot overlap it.
//!
//! All times are running times in nanoseconds.

use std::collections::VecDeque;

/// An encoded frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unit<T> {
    pub(super) data: T,
    /// Decoding timestamp, or the presentation timestamp if the frame has no decoding timestamp.
    pub(super) time: u64,
    pub(super) is_key: bool,
    pub(super) n_bytes: usize,
}

/// The next step of the writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action<T> {
    /// A clip begins with the next written frame.
    Begin,
    Write(Unit<T>),
    /// The clip is complete.
    End,
}

/// Durations of a clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Durations {
    pub(super) pre: u64,
    pub(super) post: u64,
    /// A longer clip is split at a key frame.
    pub(super) max: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Recorder<T> {
    durations: Durations,
    max_bytes: usize,
    ring: VecDeque<Unit<T>>,
    n_bytes: usize,
    /// Time up to which results are known.
    known: Option<u64>,
    clip: Option<Clip>,
}

#[derive(Debug)]
struct Clip {
    first_event: u64,
    end: u64,
    /// Time of the first written frame.
    begin: Option<u64>,
}

impl<T> Recorder<T> {
    /// Creates a recorder. `max_bytes` limits the total size of the frames that wait for results. Above the limit, the oldest frames are
    /// dropped, up to the next key frame.
    pub(super) fn new(durations: Durations, max_bytes: usize) -> Self {
        Self { durations, max_bytes, ring: VecDeque::new(), n_bytes: 0, known: None, clip: None }
    }

    /// Adds a frame.
    pub(super) fn add(&mut self, unit: Unit<T>) -> Vec<Action<T>> {
        self.n_bytes += unit.n_bytes;
        self.ring.push_back(unit);
        self.advance(false)
    }

    /// Records that the results up to this time are known, and whether there is an event at this time.
    pub(super) fn know(&mut self, time: u64, is_event: bool) -> Vec<Action<T>> {
        self.known = Some(self.known.map_or(time, |known| known.max(time)));
        let mut actions = Vec::new();
        if is_event {
            // If this event is too late for the current clip, complete that clip first. If the last frames of that clip have not arrived
            // yet, the event extends the clip.
            actions = self.advance(false);
            let end = time.saturating_add(self.durations.post);
            let clip = self.clip.get_or_insert(Clip { first_event: time, end, begin: None });
            clip.end = clip.end.max(end);
        }
        actions.extend(self.advance(false));
        actions
    }

    /// Ends the stream: no further frames and results follow.
    pub(super) fn finish(&mut self) -> Vec<Action<T>> {
        self.known = Some(u64::MAX);
        let actions = self.advance(true);
        self.reset();
        actions
    }

    /// Discards all frames and times. The caller must have ended the current clip.
    pub(super) fn reset(&mut self) {
        (self.n_bytes, self.known, self.clip) = (0, None, None);
        self.ring.clear();
    }

    /// Whether there is a clip, or a clip begins when its frames have arrived.
    pub(super) fn has_clip(&self) -> bool {
        self.clip.is_some()
    }

    /// Whether the results are known so far ahead that no later event can extend this clip.
    fn is_over(&self, clip: &Clip) -> bool {
        self.known.is_some_and(|known| known > clip.end.saturating_add(self.durations.pre))
    }

    fn advance(&mut self, is_last: bool) -> Vec<Action<T>> {
        let mut actions = Vec::new();
        if let Some(mut clip) = self.clip.take() {
            if clip.begin.is_none() {
                self.begin(&mut clip, is_last, &mut actions);
            }
            if let Some(begin) = &mut clip.begin {
                while self.ring.front().is_some_and(|unit| unit.time <= clip.end)
                    && let Some(unit) = self.ring.pop_front()
                {
                    self.n_bytes -= unit.n_bytes;
                    if unit.is_key && self.durations.max.is_some_and(|max| unit.time.saturating_sub(*begin) >= max) {
                        *begin = unit.time;
                        actions.extend([Action::End, Action::Begin]);
                    }
                    actions.push(Action::Write(unit));
                }
            }
            let has_passed = self.ring.back().is_some_and(|unit| unit.time > clip.end);
            if !(self.is_over(&clip) && (has_passed || is_last)) {
                self.clip = Some(clip);
            } else if clip.begin.is_some() {
                actions.push(Action::End);
            }
        }
        self.trim();
        actions
    }

    /// Begins a clip if its first frame is known.
    fn begin(&mut self, clip: &mut Clip, is_last: bool, actions: &mut Vec<Action<T>>) {
        let wanted = clip.first_event.saturating_sub(self.durations.pre);
        // Wait for frames up to this time, because a key frame that arrives later may be nearer to it.
        if !is_last && self.ring.back().is_none_or(|unit| unit.time < wanted) {
            return;
        }
        let before = self.ring.iter().rposition(|unit| unit.is_key && unit.time <= wanted);
        let Some(at) = before.or_else(|| self.ring.iter().position(|unit| unit.is_key && unit.time <= clip.end)) else { return };
        self.drop_first(at);
        clip.begin = self.ring.front().map(|unit| unit.time);
        actions.push(Action::Begin);
    }

    /// Drops frames that no clip needs.
    fn trim(&mut self) {
        if self.clip.is_none()
            && let Some(known) = self.known
        {
            let wanted = known.saturating_sub(self.durations.pre);
            let at = self.ring.iter().rposition(|unit| unit.is_key && unit.time <= wanted);
            self.drop_first(at.unwrap_or(0));
        }
        while self.n_bytes > self.max_bytes && self.ring.len() > 1 {
            let next = self.ring.iter().skip(1).position(|unit| unit.is_key).map_or(self.ring.len(), |idx| idx + 1);
            self.drop_first(next);
        }
    }

    fn drop_first(&mut self, n: usize) {
        self.n_bytes -= self.ring.drain(..n).map(|unit| unit.n_bytes).sum::<usize>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: Durations = Durations { pre: 20, post: 30, max: None };

    /// Simulates `n` frames of which every tenth is a key frame. The results arrive `lag` frames after their frame, or before it if `lag`
    /// is negative. Returns the first and the last frame of each clip.
    fn clips(durations: Durations, lag: i64, n: u64, events: &[u64]) -> Vec<(u64, u64)> {
        let mut recorder = Recorder::new(durations, 1 << 20);
        let mut clips: Vec<Vec<u64>> = Vec::new();
        let mut is_open = false;
        let mut take = |actions: Vec<Action<u64>>| {
            for action in actions {
                match action {
                    Action::Begin => {
                        assert!(!std::mem::replace(&mut is_open, true));
                        clips.push(Vec::new());
                    }
                    Action::Write(unit) => clips.last_mut().unwrap().push(unit.data),
                    Action::End => assert!(std::mem::replace(&mut is_open, false)),
                }
            }
        };
        let range = |n: u64| 0..(n as i64 + lag.abs());
        for step in range(n) {
            let (frame, result) = if lag >= 0 { (step, step - lag) } else { (step + lag, step) };
            if (0..n as i64).contains(&frame) {
                let time = frame as u64;
                take(recorder.add(Unit { data: time, time, is_key: time.is_multiple_of(10), n_bytes: 1 }));
            }
            if (0..n as i64).contains(&result) {
                take(recorder.know(result as u64, events.contains(&(result as u64))));
            }
        }
        take(recorder.finish());
        assert!(!is_open);
        for clip in &clips {
            assert!(clip[0].is_multiple_of(10) && clip.windows(2).all(|pair| pair[1] == pair[0] + 1), "{clip:?}");
        }
        clips.iter().map(|clip| (clip[0], *clip.last().unwrap())).collect()
    }

    #[test]
    fn clip_has_the_frames_around_its_event() {
        for lag in [0, 1, 15, 200, -1, -15, -200] {
            assert_eq!(clips(SECONDS, lag, 300, &[105]), [(80, 135)], "{lag}");
        }
    }

    #[test]
    fn overlapping_events_share_a_clip() {
        for lag in [0, 25, -25] {
            // The clip of the event at 155 begins at 155 - 20 = 135, before the clip of the first two events ends at 120 + 30 = 150.
            assert_eq!(clips(SECONDS, lag, 300, &[105, 120, 155]), [(80, 185)], "{lag}");
            assert_eq!(clips(SECONDS, lag, 400, &[105, 220]), [(80, 135), (200, 250)], "{lag}");
        }
    }

    #[test]
    fn clips_at_both_ends_of_the_stream_are_shorter() {
        assert_eq!(clips(SECONDS, 0, 100, &[5, 95]), [(0, 35), (70, 99)]);
    }

    #[test]
    fn long_clips_are_split_at_key_frames() {
        let durations = Durations { max: Some(45), ..SECONDS };
        let events: Vec<u64> = (100..200).collect();
        assert_eq!(clips(durations, 0, 300, &events), [(80, 129), (130, 179), (180, 229)]);
    }

    #[test]
    fn frames_without_results_are_bounded() {
        let mut recorder = Recorder::new(SECONDS, 25);
        for time in 0..1000 {
            assert!(recorder.add(Unit { data: time, time, is_key: time.is_multiple_of(10), n_bytes: 1 }).is_empty());
            assert!(recorder.ring.len() <= 25);
        }
        // Without events, only the frames of the pre-roll stay in the ring.
        let mut recorder = Recorder::new(SECONDS, 1 << 20);
        for time in 0..1000 {
            recorder.add(Unit { data: time, time, is_key: time.is_multiple_of(10), n_bytes: 1 });
            recorder.know(time, false);
            assert!(recorder.ring.len() <= 31);
        }
    }

    #[test]
    fn video_without_key_frames_gives_no_clip() {
        let mut recorder = Recorder::new(SECONDS, 1 << 20);
        for time in 0..200 {
            assert!(recorder.add(Unit { data: time, time, is_key: false, n_bytes: 1 }).is_empty());
            assert!(recorder.know(time, time == 50).is_empty());
        }
        assert!(recorder.finish().is_empty());
    }
}
