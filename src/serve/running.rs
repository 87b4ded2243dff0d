//! A stream that was started: its state, its counters, and the delivery of its results to the server.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roiflow_server::backend::Status;
use roiflow_server::events::EventKind;
use roiflow_server::stream::{Counters, Destination, Histogram, Percentiles, Skipped, Stage, State};
use roiflow_server::telemetry::TARGET;
use roiflow_server::{Cut, Failure, Feed, FrameResult, Pixels, Prepared, Running, Start};
use tracing::field;

use super::backend::{Shared, failure};
use super::video::Encoders;
use crate::frame::{Detection, PixelRect, Rect};
use crate::pipeline::stats::{DestinationCounts, LATENCY_BOUNDS, Stats};
use crate::pipeline::tap::Picture;
use crate::pipeline::{CompressedFrame, Error, Event, FrameTap, Phase, Plan, StreamId, Tap, TappedFrame};

/// Maximum time until a stream continues with another description: models may be compiled, and frames in flight complete.
const MAX_RELOAD: Duration = Duration::from_secs(25);

/// Returns a tap that delivers results to a feed.
pub(super) fn tap(feed: Feed) -> Tap {
    Tap::new(ToFeed { feed, encoders: Encoders::default() })
}

struct ToFeed {
    feed: Feed,
    encoders: Encoders,
}

impl FrameTap for ToFeed {
    fn frame(&self, frame: &TappedFrame<'_>) {
        let number = self.feed.publish(FrameResult {
            results: frame.results.clone(),
            timestamp_ns: frame.timestamp_ns,
            pts_ns: frame.pts_ns,
            time: frame.time,
        });
        if self.feed.wants_picture() {
            self.feed.give_picture(Arc::new(Shot(frame.picture())), number, frame.time);
        }
        self.encoders.frame(frame, number, self.feed.video());
    }

    fn wants_compressed(&self) -> bool {
        self.feed.video().is_wanted()
    }

    fn compressed(&self, frame: &CompressedFrame<'_>) -> bool {
        super::video::pass(frame, self.feed.video())
    }
}

/// The pixels of a frame, or the error text if they cannot be read.
struct Shot(Result<Picture, String>);

impl Pixels for Shot {
    fn jpeg(&self, max_width: u32, boxes: bool) -> Result<Vec<u8>, String> {
        self.0.as_ref().map_err(Clone::clone)?.jpeg(max_width, boxes)
    }

    fn crops(&self, max_objects: usize, max_side: u32) -> Result<Vec<Cut>, String> {
        let picture = self.0.as_ref().map_err(Clone::clone)?;
        let whole = PixelRect::whole(picture.size()).to_rect();
        let unit = Rect { x: 0.0, y: 0.0, width: 1.0, height: 1.0 };
        let cut = |(found, jpeg): (&Detection, Vec<u8>)| {
            let rect = found.rect.moved_with(whole, unit);
            Cut {
                label: found.label.as_deref().map_or_else(|| format!("class {}", found.label_id), str::to_owned),
                confidence: found.known_confidence(),
                track: found.track.map(|track| track.0.into()),
                rect: [rect.x, rect.y, rect.x_max(), rect.y_max()].map(|edge| edge.clamp(0.0, 1.0)),
                jpeg,
            }
        };
        Ok(picture.objects(max_objects, max_side)?.into_iter().map(cut).collect())
    }
}

/// State of a stream, as its events report it.
pub(super) struct Observed {
    feed: Feed,
    /// A span from the start until all elements have started; `None` afterwards.
    opening: Mutex<Option<tracing::Span>>,
    state: Mutex<Seen>,
    /// Notified when a reload is over.
    reloaded: Condvar,
}

#[derive(Default)]
struct Seen {
    /// Why the source is lost, or the stream has failed.
    error: Option<String>,
    has_failed: bool,
    /// The counters that were read last.
    counters: Counters,
    /// Result of the last reload; `None`: not known yet.
    reloaded: Option<Reload>,
}

/// Result of a reload.
enum Reload {
    Done,
    Refused(Error),
    /// The stream ended instead.
    Ended,
}

impl Observed {
    pub(super) fn new(feed: Feed) -> Self {
        // It belongs to the request or to the restart that has started the stream.
        let opening = tracing::info_span!(
            target: TARGET,
            "stream.open",
            stream = feed.name(),
            otel.status_code = field::Empty,
            otel.status_description = field::Empty,
        );
        Self { feed, opening: Mutex::new(Some(opening)), state: Mutex::default(), reloaded: Condvar::new() }
    }

    /// Ends the span of the start of the stream.
    fn end_opening(&self, error: Option<&str>) {
        let opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(opening), Some(error)) = (opening, error) {
            opening.record("otel.status_code", "ERROR");
            opening.record("otel.status_description", error);
        }
    }

    /// Records an event. Texts of events have no credentials.
    pub(super) fn record(&self, event: &Event) {
        match event {
            Event::Started => {
                self.end_opening(None);
                self.feed.event(EventKind::Started, "");
            }
            Event::Progress(_) => {}
            Event::Reloaded(reloaded) => {
                self.lock().reloaded = Some(match reloaded {
                    Ok(()) => Reload::Done,
                    Err(error) => Reload::Refused(error.clone()),
                });
                self.reloaded.notify_all();
            }
            Event::Warning(warning) => self.feed.event(EventKind::Warning, warning.as_str()),
            Event::RecordingLost { reason } => self.feed.event(EventKind::Warning, reason.as_str()),
            Event::RecordingContinued { reason, path } => {
                self.feed.event(EventKind::Warning, format!("{reason}; the recording continues in `{}`", path.display()));
            }
            Event::DestinationLost { reason, .. } => self.feed.event(EventKind::Warning, reason.as_str()),
            Event::DestinationBack { destination } => {
                self.feed.event(EventKind::Warning, format!("{destination} accepts results again"));
            }
            Event::SourceLost { reason } => {
                let reason = reason.to_string();
                self.lock().error = Some(reason.clone());
                self.feed.event(EventKind::SourceLost, reason);
            }
            Event::SourceBack { gap, attempts } => {
                self.lock().error = None;
                self.feed.event(EventKind::SourceBack, format!("after {:.1} s, attempts: {attempts}", gap.as_secs_f64()));
            }
            Event::Ended(Ok(_)) => {
                self.end_opening(None);
                self.feed.event(EventKind::Ended, "");
                self.lock().reloaded = Some(Reload::Ended);
                self.reloaded.notify_all();
            }
            Event::Ended(Err(error)) => {
                self.end_opening(Some(&error.to_string()));
                let mut seen = self.lock();
                (seen.error, seen.has_failed, seen.reloaded) = (Some(error.to_string()), true, Some(Reload::Ended));
                self.reloaded.notify_all();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream of a pipeline handle.
pub(super) struct RunningStream<D> {
    shared: Arc<Shared>,
    stream: StreamId,
    observed: Arc<Observed>,
    /// The plan with which the stream runs: its resolved description.
    plan: Mutex<Plan>,
    /// Keeps the devices open.
    _devices: Vec<D>,
}

impl<D> RunningStream<D> {
    pub(super) fn new(shared: Arc<Shared>, stream: StreamId, observed: Arc<Observed>, plan: Plan, devices: Vec<D>) -> Self {
        Self { shared, stream, observed, plan: Mutex::new(plan), _devices: devices }
    }

    /// Returns the counters. If the stream was removed, returns the counters that were read last.
    fn counters(&self) -> Counters {
        let counters = self.shared.handle.counters(self.stream).map(|stats| converted(&stats));
        let mut seen = self.observed.lock();
        if let Some(counters) = counters {
            seen.counters = counters;
        }
        seen.counters.clone()
    }
}

impl<D: Send + Sync> Running for RunningStream<D> {
    fn status(&self) -> Status {
        let counters = self.counters();
        let phase = self.shared.handle.status(self.stream).map(|status| status.phase);
        let ended = match phase {
            // Get the result from the handle, because the thread that receives events may not have recorded it yet.
            None | Some(Phase::Ended) => Some(self.shared.handle.wait(self.stream)),
            Some(_) => None,
        };
        let seen = self.observed.lock();
        let state = match phase {
            None | Some(Phase::Ended) if seen.has_failed || matches!(ended, Some(Err(_))) => State::Failed,
            None | Some(Phase::Ended) => State::Ended,
            Some(Phase::Starting) => State::Starting,
            Some(Phase::Running) => State::Running,
            Some(Phase::Reconnecting) => State::Reconnecting,
            Some(Phase::Draining | Phase::Stopping) => State::Stopping,
        };
        let error = ended.and_then(Result::err).map(|error| error.to_string()).or_else(|| seen.error.clone());
        Status { state, error, counters }
    }

    fn percentiles(&self) -> Option<Percentiles> {
        let stats = self.shared.handle.stats(self.stream)?;
        let of = |percent| stats.latency_percentile(percent).map(|latency| latency.as_secs_f64() * 1e3);
        Some(Percentiles { p50: of(50)?, p95: of(95)?, p99: of(99)? })
    }

    fn prepare(&self, start: &Start) -> Result<Prepared, Failure> {
        let current = self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let plan = self.shared.plan(start, current.outputs.tap.clone()).map_err(failure)?;
        let size = self.observed.feed.recent(1).first().map(|last| last.size()).filter(|size| size.width > 0 && size.height > 0);
        if current.takes(&plan) {
            return self.shared.handle.check_change(self.stream, &plan, size).map(|()| Prepared::nothing()).map_err(failure);
        }
        self.shared.prepare(&start.name, &plan, size)
    }

    fn change(&self, start: &Start) -> Result<bool, Failure> {
        let mut current = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = self.shared.plan(start, current.outputs.tap.clone()).map_err(failure)?;
        if !current.can_continue_with(&plan) {
            return Ok(false);
        }
        self.observed.lock().reloaded = None;
        let handle = &self.shared.handle;
        if handle.status(self.stream).is_none_or(|status| status.phase == Phase::Ended) {
            return Ok(false);
        }
        handle.change(self.stream, &plan);
        let seen = self.observed.lock();
        let waits = |seen: &mut Seen| seen.reloaded.is_none();
        let (mut seen, _) = self.observed.reloaded.wait_timeout_while(seen, MAX_RELOAD, waits).unwrap_or_else(PoisonError::into_inner);
        match seen.reloaded.take() {
            Some(Reload::Done) => {
                *current = plan;
                Ok(true)
            }
            Some(Reload::Refused(error)) => Err(failure(error)),
            Some(Reload::Ended) | None => Ok(false),
        }
    }

    fn stop(&self) -> Counters {
        let before = self.counters();
        let counters = match self.shared.handle.remove(self.stream) {
            Ok(ending) => converted(&ending.stats),
            Err(_) => before,
        };
        self.shared.observed.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.stream);
        Counters { in_flight: 0, ..counters }
    }
}

fn destination(counts: &DestinationCounts) -> Destination {
    Destination {
        address: counts.name.clone(),
        written: counts.n_written,
        lost: counts.n_lost,
        dropped: counts.n_dropped + counts.n_spool_dropped,
        spool_dropped: counts.n_spool_dropped,
        waiting: counts.n_waiting + counts.n_spool_waiting,
        spool_bytes: counts.spool_bytes,
    }
}

fn converted(stats: &Stats) -> Counters {
    let of = |dropped: bool| {
        let frames = stats.not_inferred.iter().filter(move |frames| frames.dropped == dropped);
        frames.map(|frames| Skipped { element: frames.element.clone(), reason: frames.reason.clone(), frames: frames.n_frames }).collect()
    };
    let bounds = LATENCY_BOUNDS.into_iter().chain([f64::INFINITY]);
    let stage = |stage: &crate::pipeline::stats::StageTimes| Stage {
        element: stage.name.clone(),
        device: stage.device.clone(),
        runs: stage.n_runs,
        // `steps` has the mean time per run, so multiply it by the number of runs.
        steps: stage.steps.iter().map(|(step, mean)| (step.clone(), mean.mul_f64(stage.n_runs as f64))).collect(),
    };
    Counters {
        frames: stats.n_frames,
        objects: stats.n_objects,
        failed: stats.n_failed,
        dropped: of(true),
        skipped: of(false),
        results_lost: stats.n_lines_lost,
        destinations: stats.destinations.0.iter().map(destination).collect(),
        restarts: stats.n_outages,
        time_down: stats.time_down,
        in_flight: stats.n_in_flight,
        latency: Histogram { buckets: bounds.zip(*stats.latency_buckets).collect(), sum: stats.latency_sum },
        stages: stats.stages.iter().map(stage).collect(),
    }
}
