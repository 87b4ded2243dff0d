//! Runs a stream as a series of sessions, with pauses while its source is lost. A session is one pipeline of the stream.
//!
//! A restart is a new pipeline for the same stream. The module `restart` decides whether and when the new pipeline is started. The
//! module `carry` hands over numbers and outputs to it. A stream that waits for its source needs no thread and no pipeline.

use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::carry::Carried;
use super::handle::{Board, Event, StreamId};
use super::run::MAX_WARNINGS;
use super::session::{Finished, NewSession, Parts, Session};
use super::supervisor::{self, Inbox, Request, Way};
use super::{Ending, Error, Input, Plan, Result, Uri, live, prepare};
use crate::restart::{Backoff, End, random};
use crate::stages::Snapshot;

/// Maximum number of abandoned pipelines of a stream, which hang while they stop. While there are more, the stream does not start
/// its next attempt.
const MAX_ABANDONED: usize = 2;
/// Time after which the number of abandoned pipelines is checked again.
const ABANDONED_DELAY: Duration = Duration::from_secs(1);
/// Maximum time to wait while too many pipelines are abandoned. After that, the stream ends with an error.
const MAX_ABANDONED_WAIT: Duration = Duration::from_secs(10);
/// A time that is never reached.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// A supervised stream.
pub(super) struct Life {
    stream: StreamId,
    board: Arc<Board>,
    inbox: Arc<Inbox>,
    /// The current plan, with which the next session is built. It is the plan of the first session, unless the plan was reloaded.
    plan: Plan,
    /// A plan that replaces `plan` when the current session has ended.
    next_plan: Option<NextPlan>,
    state: State,
    /// Number of the current session, from 0. Requests of earlier sessions are ignored.
    attempt: u32,
    begin: Instant,
    backoff: Backoff,
    outage: Option<Outage>,
    /// The time at which the stream reaches its duration limit.
    limit_at: Option<Instant>,
    has_played: bool,
    /// Whether the application has requested the end. This field stores the request, because a session that is already stopping
    /// ignores it.
    is_requested: bool,
    /// Why a session was stopped during an outage.
    leaving: Option<Leaving>,
    carried: Carried,
    /// The address that the next session opens instead of that of the plan, because its server has redirected the last session.
    redirected_to: Option<Uri>,
    /// The combined ending of all sessions that have ended.
    past: Ending,
    abandoned: Vec<Weak<Parts>>,
    /// Since when the next attempt waits for abandoned pipelines.
    blocked_since: Option<Instant>,
}

/// A plan that was prepared, with its models and files.
struct NextPlan {
    plan: Plan,
    snapshot: Snapshot,
}

enum State {
    Running(Box<Session>),
    /// The stream waits until this time for the next attempt.
    Waiting(Instant),
    /// A thread builds the next pipeline.
    Building,
}

/// Why a stream ends while its source is lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// The source did not deliver frames again within the time limit.
    GivesUp,
    /// The application requested the end. No frame is in flight, so the stream ends at once.
    Interrupted,
}

/// A source that is lost.
struct Outage {
    error: Error,
    n_attempts: u64,
}

impl Life {
    pub(super) fn new(stream: StreamId, session: Session, plan: Plan, board: Arc<Board>, inbox: Arc<Inbox>) -> Self {
        Self {
            stream,
            board,
            inbox,
            plan,
            next_plan: None,
            state: State::Running(Box::new(session)),
            attempt: 0,
            begin: Instant::now(),
            backoff: Backoff::default(),
            outage: None,
            limit_at: None,
            has_played: false,
            is_requested: false,
            leaving: None,
            carried: Carried::default(),
            redirected_to: None,
            past: Ending::default(),
            abandoned: Vec::new(),
            blocked_since: None,
        }
    }

    pub(super) fn stream(&self) -> StreamId {
        self.stream
    }

    /// Starts the first session.
    pub(super) fn start(&mut self) {
        if let State::Running(session) = &mut self.state {
            session.start();
        }
    }

    /// Drops the pipeline and the models, and then reports the ending of the stream.
    pub(super) fn end(self, ended: Result<Ending>) {
        let Self { stream, board, state, carried, next_plan, .. } = self;
        drop((state, carried, next_plan));
        board.set_snapshot(stream, Snapshot::default());
        board.end(stream, ended);
    }

    /// Returns the time at which [`Life::tick`] is due.
    pub(super) fn timer(&self) -> Instant {
        match &self.state {
            State::Running(session) => session.timer(),
            State::Waiting(until) => {
                [self.backoff.deadline(&self.plan.restart), self.limit_at].into_iter().flatten().fold(*until, Instant::min)
            }
            State::Building => Instant::now() + NEVER,
        }
    }

    /// Handles a request of the application. Returns `Break` with the ending if the stream has ended.
    pub(super) fn handle(&mut self, request: Request) -> ControlFlow<Result<Ending>> {
        self.is_requested |= matches!(request, Request::Drain | Request::Stop);
        let request = match request {
            Request::Reload(plan, way) => {
                self.check(*plan, way);
                return ControlFlow::Continue(());
            }
            Request::Checked(plan, way, checked) => {
                match checked {
                    Ok(snapshot) => self.reload(NextPlan { plan: *plan, snapshot }, way),
                    Err(error) => self.board.report(self.stream, Event::Reloaded(Err(error))),
                }
                return ControlFlow::Continue(());
            }
            request => request,
        };
        match (&mut self.state, &request) {
            (State::Running(session), Request::Drain) if self.outage.is_some() && session.frames().is_none() => {
                self.leaving.get_or_insert(Leaving::Interrupted);
                session.abort();
                ControlFlow::Continue(())
            }
            (State::Running(_), _) => self.handle_of(self.attempt, request),
            (State::Waiting(_) | State::Building, Request::Drain | Request::Stop) => {
                self.past.interrupted = true;
                self.break_off(None)
            }
            _ => ControlFlow::Continue(()),
        }
    }

    /// Handles a request of a session.
    pub(super) fn handle_of(&mut self, attempt: u32, request: Request) -> ControlFlow<Result<Ending>> {
        if attempt != self.attempt {
            return ControlFlow::Continue(());
        }
        match (&mut self.state, request) {
            (State::Building, Request::Built(built)) => self.built(*built),
            (State::Running(session), request) => match session.handle(request) {
                ControlFlow::Break(finished) => self.finished(*finished),
                ControlFlow::Continue(()) => ControlFlow::Continue(()),
            },
            _ => ControlFlow::Continue(()),
        }
    }

    /// Handles timeouts that are due. Returns `Break` with the ending if the stream has ended.
    pub(super) fn tick(&mut self, now: Instant) -> ControlFlow<Result<Ending>> {
        let is_late = self.backoff.deadline(&self.plan.restart).is_some_and(|deadline| deadline <= now);
        let ticked = match &mut self.state {
            State::Running(session) => {
                let ticked = session.tick(now);
                if let ControlFlow::Break(finished) = ticked {
                    // The session has ended because its pipeline did not stop in time.
                    self.abandoned.push(session.abandoned());
                    return self.finished(*finished);
                }
                self.check_back();
                if let State::Running(session) = &mut self.state
                    && is_late
                    && self.outage.is_some()
                    && self.leaving.is_none()
                {
                    self.leaving = Some(Leaving::GivesUp);
                    session.abort();
                }
                ControlFlow::Continue(())
            }
            State::Waiting(_) if is_late => return self.break_off(Some(self.gave_up())),
            State::Waiting(_) if self.limit_at.is_some_and(|limit| limit <= now) => return self.break_off(None),
            State::Waiting(until) if *until <= now => {
                if let Some(error) = self.too_many_abandoned(now) {
                    return self.break_off(Some(error));
                }
                self.build(now);
                ControlFlow::Continue(())
            }
            State::Waiting(_) | State::Building => ControlFlow::Continue(()),
        };
        self.report_outage(now);
        ticked
    }

    /// Prepares a new plan on a separate thread.
    fn check(&self, plan: Plan, way: Way) {
        let is_possible = match way {
            Way::NewPipeline => self.can_reload(&plan),
            Way::InPlace => self.plan.can_continue_with(&plan),
        };
        if !is_possible {
            let error = Error::usage(
                "cannot continue with another description: expected an input with an address, such as rtsp://, and no video to a pipe; any other \
                 input would begin again",
            );
            return self.board.report(self.stream, Event::Reloaded(Err(error)));
        }
        // A running pipeline that takes the changes reads no model and no description again.
        let is_live = way == Way::InPlace && self.plan.takes(&plan);
        let snapshot = if is_live { self.board.snapshot(self.stream) } else { Snapshot::default() };
        let size = match &self.state {
            State::Running(session) => session.frame_size(),
            State::Waiting(_) | State::Building => None,
        };
        let size = size.or(self.carried.size);
        let limit = if way == Way::InPlace { prepare::MAX_REQUEST } else { prepare::MAX_RELOAD };
        let (inbox, stream) = (self.inbox.clone(), self.stream);
        let send = move |plan, checked| inbox.send(supervisor::Input::Request(stream, Request::Checked(Box::new(plan), way, checked)));
        let spawned = std::thread::Builder::new().name("roiflow-check".to_owned()).spawn(move || {
            let prepared = prepare::prepare_in(&plan, snapshot, size, limit);
            send(plan, prepared);
        });
        if let Err(error) = spawned {
            let error = Error::failed(format!("cannot start the thread that prepares a description: {error}"));
            self.board.report(self.stream, Event::Reloaded(Err(error)));
        }
    }

    /// Whether a new pipeline can continue the stream with a plan.
    fn can_reload(&self, plan: &Plan) -> bool {
        matches!((&self.plan.input, &plan.input), (Input::Uri(_), Input::Uri(_))) && plan.can_restart()
    }

    /// Continues with another plan: at once if the running pipeline takes the changes, else as soon as the current session has drained.
    fn reload(&mut self, next_plan: NextPlan, way: Way) {
        if let State::Running(session) = &self.state
            && way == Way::InPlace
            && self.next_plan.is_none()
            && let Some(changes) = live::changes(&self.plan, &next_plan.plan)
            && session.change(changes)
        {
            self.plan = next_plan.plan;
            return self.board.report(self.stream, Event::Reloaded(Ok(())));
        }
        // The plan may have changed while this one was checked.
        if !self.can_reload(&next_plan.plan) {
            let error = Error::failed("the stream is about to end, and takes no changes. Try again");
            return self.board.report(self.stream, Event::Reloaded(Err(error)));
        }
        self.next_plan = Some(next_plan);
        match &mut self.state {
            State::Running(session) if self.outage.is_some() && session.frames().is_none() => session.abort(),
            // Drop the return value: a drain does not end the session at once, so it is never `Break` here.
            State::Running(session) => drop(session.handle(Request::Drain)),
            State::Waiting(_) => self.replace_plan(),
            State::Building => {}
        }
    }

    /// If there is a next plan, makes it the current plan, and reports the reload.
    fn replace_plan(&mut self) {
        if let Some(NextPlan { plan, snapshot }) = self.next_plan.take() {
            self.plan = plan;
            self.board.set_snapshot(self.stream, snapshot);
            self.board.report(self.stream, Event::Reloaded(Ok(())));
        }
    }

    /// Returns an error if too many pipelines have been abandoned for too long.
    fn too_many_abandoned(&mut self, now: Instant) -> Option<Error> {
        self.abandoned.retain(|parts| parts.strong_count() > 0);
        let n_abandoned = self.abandoned.len();
        if n_abandoned <= MAX_ABANDONED {
            self.blocked_since = None;
            return None;
        }
        let since = *self.blocked_since.get_or_insert(now);
        (now.saturating_duration_since(since) >= MAX_ABANDONED_WAIT).then(|| {
            let reason = self.outage.as_ref().map_or_else(String::new, |outage| format!(": {}", outage.error));
            Error::failed(format!(
                "cannot open the source again: {n_abandoned} of its earlier pipelines did not stop, because an element or a driver hangs; restart the \
                 process{reason}"
            ))
        })
    }

    /// Builds the pipeline of the next session on a separate thread. Waits if too many pipelines are abandoned.
    fn build(&mut self, now: Instant) {
        self.abandoned.retain(|parts| parts.strong_count() > 0);
        if self.abandoned.len() > MAX_ABANDONED {
            self.state = State::Waiting(now + ABANDONED_DELAY);
            return;
        }
        self.attempt += 1;
        self.state = State::Building;
        if let Some(outage) = &mut self.outage {
            outage.n_attempts += 1;
        }
        let mut plan = self.carried.plan(&self.plan);
        if let Some(uri) = self.redirected_to.take() {
            plan.input = Input::Uri(uri);
        }
        if let Some(limit) = self.limit_at {
            plan.limits.duration = Some(limit.saturating_duration_since(now).max(Duration::from_millis(1)));
        }
        let (inbox, stream, attempt, first_frame) = (self.inbox.clone(), self.stream, self.attempt, self.carried.n_frames);
        let snapshot = self.board.snapshot(self.stream);
        let send = move |built| inbox.send(supervisor::Input::OfSession(stream, attempt, Request::Built(Box::new(built))));
        let body = {
            let send = send.clone();
            move || {
                // The camera may have got another password meanwhile.
                plan.input = plan.input.with_newest_login();
                send(NewSession::build(&plan, first_frame, &snapshot))
            }
        };
        if let Err(error) = std::thread::Builder::new().name("roiflow-build".to_owned()).spawn(body) {
            send(Err(Error::failed(format!("cannot start the thread that builds a pipeline: {error}"))));
        }
    }

    /// Starts the next session with a pipeline that was built.
    fn built(&mut self, built: Result<NewSession>) -> ControlFlow<Result<Ending>> {
        let session = match built {
            Ok(session) => session,
            Err(error) => return self.break_off(Some(error)),
        };
        if self.next_plan.is_some() {
            // The plan was reloaded while this pipeline of the earlier plan was built.
            self.replace_plan();
            self.build(Instant::now());
            return ControlFlow::Continue(());
        }
        self.carried.continue_in(session.pipeline(), self.begin.elapsed());
        self.board.restart(self.stream, session.meter(), &self.past.stats);
        let warnings = self.past.warnings.clone();
        let mut session = session.supervised(self.stream, self.attempt, self.board.clone(), self.inbox.clone(), warnings);
        session.start();
        self.state = State::Running(Box::new(session));
        ControlFlow::Continue(())
    }

    /// Checks whether the source has delivered a frame in this session. If so, and if the source was lost, reports that the
    /// source is back.
    fn check_back(&mut self) {
        let State::Running(session) = &self.state else { return };
        let Some((first, _)) = session.frames() else { return };
        if !std::mem::replace(&mut self.has_played, true) {
            self.limit_at = self.plan.limits.duration.and_then(|duration| first.checked_add(duration));
        }
        let Some(Outage { n_attempts, .. }) = self.outage.take() else { return };
        let gap = self.backoff.lost_since().map_or(Duration::ZERO, |since| first.saturating_duration_since(since));
        self.past.stats.time_down += gap;
        self.backoff.is_back();
        self.board.set_down(self.stream, self.past.stats.n_restarts, self.past.stats.time_down);
        self.board.report(self.stream, Event::SourceBack { gap, attempts: n_attempts });
    }

    /// Decides what follows the end of a session: a restart, or the end of the stream.
    fn finished(&mut self, finished: Finished) -> ControlFlow<Result<Ending>> {
        self.check_back();
        let State::Running(session) = &self.state else { return ControlFlow::Continue(()) };
        let frames = session.frames();
        let redirected_to = session.redirected_to().filter(|_| frames.is_none() && !self.plan.outputs.application).cloned();
        let Finished { ending, error, end, carried } = finished;
        let is_requested = self.is_requested || ending.interrupted && self.next_plan.is_none();
        self.past = self.past.and(ending);
        match self.leaving {
            Some(Leaving::GivesUp) => return self.break_off(Some(self.gave_up())),
            Some(Leaving::Interrupted) => {
                (self.past.interrupted, self.past.forced) = (true, false);
                return self.break_off(None);
            }
            None => {}
        }
        if self.next_plan.is_some() && !is_requested {
            self.past.interrupted = false;
            self.replace_plan();
            let is_at_limit = |n_frames| self.plan.limits.n_frames.is_some_and(|limit| n_frames >= limit);
            if end == End::Final && error.is_none() {
                self.carried = std::mem::take(&mut self.carried).and(carried.unwrap_or_default());
                if is_at_limit(self.carried.n_frames) || self.limit_at.is_some_and(|limit| limit <= Instant::now()) {
                    return self.break_off(None);
                }
                self.build(Instant::now());
                return ControlFlow::Continue(());
            }
        }
        if redirected_to.is_some() && error.is_some() && !is_requested {
            self.redirected_to = redirected_to;
            self.carried = std::mem::take(&mut self.carried).and(carried.unwrap_or_default());
            self.build(Instant::now());
            return ControlFlow::Continue(());
        }
        let is_live = matches!(&self.plan.input, Input::Uri(uri) if uri.is_live());
        let can_restart = matches!(self.plan.input, Input::Uri(_)) && self.plan.can_restart();
        if !can_restart || !self.plan.restart.follows(end, is_live, self.has_played) {
            return self.break_off(error);
        }
        if is_requested {
            // The application has requested the end, so the loss of the source is not a failure.
            self.past.interrupted = true;
            return self.break_off(None);
        }
        if let Some(carried) = carried {
            self.carried = std::mem::take(&mut self.carried).and(carried);
        }
        let now = Instant::now();
        let error = error.unwrap_or_else(|| Error::failed("the source has ended"));
        let until = self.backoff.failed(&self.plan.restart, self.begin, frames, now, random());
        self.past.stats.n_restarts += 1;
        self.past.stats.n_outages += u64::from(self.outage.is_none());
        self.board.wait_for_source(self.stream, &self.past.stats);
        match &mut self.outage {
            None => {
                self.board.report(self.stream, Event::SourceLost { reason: error.clone() });
                self.outage = Some(Outage { error, n_attempts: 0 });
            }
            Some(outage) if outage.error != error => {
                self.board.report(self.stream, Event::Warning(error.to_string()));
                outage.error = error;
            }
            Some(_) => {}
        }
        self.report_outage(now);
        self.state = State::Waiting(until);
        // If the limit of frames was reached exactly when the source was lost, there is nothing left to do.
        if self.plan.limits.n_frames.is_some_and(|limit| self.carried.n_frames >= limit) {
            return self.break_off(None);
        }
        ControlFlow::Continue(())
    }

    /// Updates the time without frames in the status.
    fn report_outage(&self, now: Instant) {
        if let Some(since) = self.backoff.lost_since().filter(|_| self.outage.is_some()) {
            let down = self.past.stats.time_down + now.saturating_duration_since(since);
            self.board.set_down(self.stream, self.past.stats.n_restarts, down);
        }
    }

    fn gave_up(&self) -> Error {
        let seconds = self.plan.restart.give_up_after.unwrap_or_default().as_secs_f64();
        let (n_attempts, reason) = match &self.outage {
            Some(Outage { error, n_attempts }) => (*n_attempts, error.to_string()),
            None => (0, "no frame has arrived".to_owned()),
        };
        let attempts = if n_attempts == 1 { "attempt" } else { "attempts" };
        Error::failed(format!("gave up after {seconds} s without a frame and {n_attempts} {attempts} (--give-up-after): {reason}"))
    }

    /// Ends the stream while no session runs. `error` is the reason, if the stream failed.
    fn break_off(&mut self, error: Option<Error>) -> ControlFlow<Result<Ending>> {
        if let Some(since) = self.backoff.lost_since().filter(|_| self.outage.is_some()) {
            self.past.stats.time_down += since.elapsed();
        }
        let ending = std::mem::take(&mut self.past);
        let lost = super::outputs::lost(&self.plan, &ending.stats);
        ControlFlow::Break(error.or(lost).map_or(Ok(ending), Err))
    }
}

impl Ending {
    /// Adds the ending of a later session of the same stream.
    fn and(&mut self, later: Self) -> Self {
        let Self { mut stats, mut warnings, n_skipped_images, .. } = std::mem::take(self);
        stats.continue_with(&later.stats);
        for warning in later.warnings {
            if warnings.len() < MAX_WARNINGS && !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        let n_skipped_images = n_skipped_images + later.n_skipped_images;
        Self { stats, interrupted: later.interrupted, forced: later.forced, warnings, n_skipped_images }
    }
}
