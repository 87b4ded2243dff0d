//! Decides whether and when a stream is restarted. The decision depends on the policy, on the back-off between attempts, and on
//! the time after which roiflow gives up.
//!
//! Used by `pipeline`, which restarts the pipeline of a stream, and by the element `roisource`, which replaces a source inside a pipeline.
//! [`Restart`] and `Backoff` read no clock and no random numbers: the current time and the random number are arguments.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use serde::Deserialize;

/// Which ends of a source restart its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// The stream restarts after failures of the source, and after a regular end.
    Always,
    /// The stream restarts after failures of the source, also before the first frame.
    OnError,
    /// The stream never restarts.
    Never,
}

impl RestartPolicy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Always, Self::OnError, Self::Never];

    /// Returns the name of the policy in pipeline descriptions and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::OnError => "on-error",
            Self::Never => "never",
        }
    }
}

/// How a stream is restarted. Applies to inputs with an address, such as `rtsp://` and `v4l2://`. Files, images, test patterns and frames of
/// an application are never restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// The policy. `None`: live sources are restarted as with `OnError`, but a refused first connection ends the stream with an error.
    /// Recordings are never restarted.
    pub policy: Option<RestartPolicy>,
    /// The stream ends with an error if the source delivers no frame for this long. `None`: roiflow never gives up.
    pub give_up_after: Option<Duration>,
    /// Shortest delay before an attempt. The delay doubles with each failed attempt.
    pub min_delay: Duration,
    /// Longest delay before an attempt.
    pub max_delay: Duration,
    /// If frames arrived for at least this long before the source was lost, the delays start again from the shortest.
    pub healthy_after: Duration,
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            policy: None,
            give_up_after: None,
            min_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(60),
            healthy_after: Duration::from_secs(30),
        }
    }
}

/// How a pipeline ended, with the information that decides about a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The source reached its regular end.
    Eos,
    /// The source failed or ended unexpectedly.
    Source(Fault),
    /// A limit or a request has ended the stream, or an element other than the source has failed. A restart would not help.
    Final,
}

/// A failure of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fault {
    /// The server or the system refuses to deliver the stream: a wrong password, an unknown stream, a missing device.
    pub(crate) is_refused: bool,
    /// The source has a known duration. After a restart, it would play from its beginning.
    pub(crate) is_recording: bool,
}

impl Restart {
    /// Whether a stream with this end is restarted. `is_live` is true if the address is that of a camera or another live source.
    /// `has_played` is true if the source has delivered a frame before.
    pub(crate) fn follows(&self, end: End, is_live: bool, has_played: bool) -> bool {
        match (self.policy, end) {
            (Some(RestartPolicy::Never), _) | (_, End::Final) => false,
            (policy, End::Eos) => policy == Some(RestartPolicy::Always),
            (Some(_), End::Source(_)) => true,
            (None, End::Source(fault)) => !fault.is_recording && (has_played || is_live && !fault.is_refused),
        }
    }
}

/// The delays between the attempts of one stream.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    n_failures: u32,
    /// Time of the last frame before the source was lost. If there was no frame, the start of the stream. `None` while the source
    /// delivers frames.
    lost_since: Option<Instant>,
}

impl Backoff {
    /// Returns the time of the next attempt. `frames` are the times of the first and the last frame of the failed attempt. `random` is a
    /// random number from 0 to 1.
    ///
    /// The delay is random, between half of a maximum and the maximum. So cameras that failed together are not opened at the same time. The
    /// maximum begins at twice the shortest delay and doubles with each failure.
    pub(crate) fn failed(
        &mut self,
        restart: &Restart,
        begin: Instant,
        frames: Option<(Instant, Instant)>,
        now: Instant,
        random: f64,
    ) -> Instant {
        match frames {
            Some((first, last)) => {
                self.lost_since = Some(last);
                if last.saturating_duration_since(first) >= restart.healthy_after {
                    self.n_failures = 0;
                }
            }
            None => _ = self.lost_since.get_or_insert(begin),
        }
        self.n_failures = self.n_failures.saturating_add(1);
        let bound = restart.min_delay.saturating_mul(1 << self.n_failures.min(20)).min(restart.max_delay);
        let least = (bound / 2).max(restart.min_delay.min(bound));
        now + least + (bound - least).mul_f64(random.clamp(0.0, 1.0))
    }

    /// Records that the source has delivered a frame again.
    pub(crate) fn is_back(&mut self) {
        self.lost_since = None;
    }

    /// Returns the time of the last frame of a lost source; `None` while the source delivers frames.
    pub(crate) fn lost_since(&self) -> Option<Instant> {
        self.lost_since
    }

    /// Returns the time at which to give up; `None` while frames arrive, and without a limit.
    pub(crate) fn deadline(&self, restart: &Restart) -> Option<Instant> {
        self.lost_since?.checked_add(restart.give_up_after?)
    }
}

/// Returns a random number from 0 to 1. The delays before attempts use it, so that cameras that were lost together are not opened at the same
/// time.
pub(crate) fn random() -> f64 {
    (RandomState::new().hash_one(Instant::now()) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Whether addresses with this scheme are those of live sources. HTTP addresses do not count as live, because they may name a file. `fd` is
/// standard input, which may also be a file.
pub(crate) fn is_live_scheme(scheme: &str) -> bool {
    !["http", "https", "file", "fd", "ftp", "sftp", "smb"].iter().any(|of_files| scheme.eq_ignore_ascii_case(of_files))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: End = End::Source(Fault { is_refused: false, is_recording: false });
    const REFUSED: End = End::Source(Fault { is_refused: true, is_recording: false });
    const CUT: End = End::Source(Fault { is_refused: false, is_recording: true });

    #[test]
    fn policy_decides_which_endings_restart() {
        let restarts = |policy, end, is_live, has_played| Restart { policy, ..Restart::default() }.follows(end, is_live, has_played);
        for (policy, end, is_live, has_played, expected) in [
            (Some(RestartPolicy::Never), LOST, true, true, false),
            (Some(RestartPolicy::OnError), LOST, true, false, true),
            (Some(RestartPolicy::OnError), REFUSED, true, false, true),
            (Some(RestartPolicy::OnError), CUT, false, true, true),
            (Some(RestartPolicy::OnError), End::Eos, true, true, false),
            (Some(RestartPolicy::Always), End::Eos, true, true, true),
            (Some(RestartPolicy::Always), End::Final, true, true, false),
            (None, LOST, true, false, true),
            (None, LOST, true, true, true),
            (None, REFUSED, true, false, false),
            (None, REFUSED, true, true, true),
            (None, LOST, false, false, false),
            (None, LOST, false, true, true),
            (None, CUT, false, true, false),
            (None, End::Eos, true, true, false),
        ] {
            assert_eq!(restarts(policy, end, is_live, has_played), expected, "{policy:?} {end:?} {is_live} {has_played}");
        }
    }

    #[test]
    fn delays_double_up_to_the_longest() {
        let restart = Restart::default();
        let now = Instant::now();
        for (random, expected) in [(0.0, [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]), (1.0, [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0])] {
            let mut backoff = Backoff::default();
            let delays = expected.map(|_| (backoff.failed(&restart, now, None, now, random) - now).as_secs_f64());
            assert_eq!(delays, expected);
            (0..100).for_each(|_| _ = backoff.failed(&restart, now, None, now, random));
        }
    }

    #[test]
    fn delays_start_again_after_healthy_frames() {
        let (restart, now) = (Restart::default(), Instant::now());
        let mut backoff = Backoff::default();
        let mut delay = |seconds: Option<u64>| {
            let frames = seconds.map(|seconds| (now, now + Duration::from_secs(seconds)));
            let end = now + Duration::from_secs(100);
            (backoff.failed(&restart, now, frames, end, 0.0) - end).as_secs()
        };
        assert_eq!([None, None, Some(29), Some(30), None].map(&mut delay), [1, 2, 4, 1, 2]);
    }

    #[test]
    fn time_to_give_up_counts_from_last_frame() {
        let restart = Restart { give_up_after: Some(Duration::from_secs(5)), ..Restart::default() };
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut backoff = Backoff::default();
        assert_eq!(backoff.deadline(&restart), None);
        backoff.failed(&restart, now, None, after(2), 0.5);
        backoff.failed(&restart, after(3), None, after(4), 0.5);
        assert_eq!(backoff.deadline(&restart), Some(after(5)), "from the start of a stream without frames");
        backoff.is_back();
        assert_eq!(backoff.deadline(&restart), None);
        backoff.failed(&restart, after(4), Some((after(5), after(7))), after(9), 0.5);
        assert_eq!(backoff.deadline(&restart), Some(after(12)));
        assert_eq!(backoff.deadline(&Restart::default()), None);
    }

    #[test]
    fn random_numbers_differ_and_are_in_range() {
        let numbers: Vec<f64> = (0..64).map(|_| random()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)), "{numbers:?}");
        assert!(numbers.windows(2).any(|pair| pair[0] != pair[1]));
    }
}
