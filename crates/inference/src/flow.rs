//! State machine of a stream in an inference element. It handles start, stop, flush, EOS, linking of pads and errors.
//!
//! The state machine uses no pads, threads, locks or clocks. The driver, which is the element's code in `elements/infer.rs`, calls
//! [`Flow::handle`] with a [`Trigger`] while it holds the lock of the stream. The driver then executes the [`Action`]s of the returned
//! [`Transition`] in order. `tests/check/checks/flow.rs` contains a second driver. It simulates pads and threads, and tests the state
//! machine with all orders of their steps.
//!
//! # States
//!
//! | state | in-flight queue | next buffer of upstream returns | left by |
//! |---|---|---|---|
//! | `Stopped` | closed | `Flushing` | activation of the source pad |
//! | `Flushing` | closed | `Flushing` | FLUSH_STOP, or the start of the source pad's task |
//! | `Streaming`, input `Running` | open | `Ok` | |
//! | `Streaming`, input `Refused` | open | `Eos` | SEGMENT or STREAM_START |
//! | `Streaming`, input `Ended` | open | no further buffer | SEGMENT or STREAM_START |
//! | `Unlinked` | closed | `NotLinked` | a new link of the source pad, a flush, a stop |
//! | `PeerFlushing` | closed | `Flushing` | a new link of the source pad, a flush, a stop |
//! | `Failed` | closed | the error of downstream | a flush, a stop |
//! | `Broken` | closed | `Error` | a flush, a stop |
//!
//! The output of `Streaming` is `Running`, `Ended` (EOS was the last item pushed) or `Breaking` (the error after too many failed frames is
//! being reported).
//!
//! # Epochs
//!
//! An [`Epoch`] ends, and the next begins, when a flush, a stop or an error closes the queue. Asynchronous work carries the epoch in which
//! it began. Examples are a turn of the source pad's task, the runs of a frame, the start of the task, and a warm-up. Work that ends in a
//! later epoch has no effect. A warm-up is different: it concerns the model and not the frames, so its result is valid until the element is
//! started again ([`Epoch::is_same_start`]).
//!
//! # Transitions
//!
//! `*` stands for any state, `closed` for any state except `Streaming`. A trigger that is not listed for the current state is ignored.
//!
//! | trigger | in state | next state | actions |
//! |---|---|---|---|
//! | `Start` | * | same | |
//! | `Activate` | `Stopped` | `Flushing` | `DiscardEvents` |
//! | `Deactivate` | * | `Stopped` | `CloseQueue`, `DiscardResults` |
//! | `FlushStart` | * | `Flushing`; `Stopped` stays | `CloseQueue`, `DiscardResults` |
//! | `FlushForwarded`, sink pad flushing | * | `Flushing`; `Stopped` stays | `CloseQueue`, `DiscardResults`, `AwaitPause` |
//! | `FlushForwarded`, `SinkActivated`, sink pad not flushing | * | same | `EndFlushDownstream`, `Reopen` |
//! | `FlushStop` | * | `Flushing`; `Stopped` stays | `CloseQueue`, `DiscardSegment`, `DiscardResults`, `AwaitPause` |
//! | `Open` | `Flushing`, `PeerFlushing` | same | `StopTask`, `DiscardResults` |
//! | `Open` | `Unlinked`, `Failed`, `Broken` | same | `StopTask`, `ResetMotion` |
//! | `TaskStopped`, same epoch, sticky events kept | closed | same | `StoreEvents` |
//! | `TaskStopped`, same epoch, none kept | closed | `Streaming` | `OpenQueue`, `StartTask` |
//! | `TaskStopped` | `Streaming` | same | `StartTask` |
//! | `Relink` | `Unlinked`, `PeerFlushing` | same | `Reopen` |
//! | `Relink` | `Streaming`, output `Ended` | same | `WakeQueue` |
//! | `BeginStream` | `Streaming` | input `Running` | |
//! | `Eos` | `Streaming` | input `Ended` | |
//! | `Eos` | `Unlinked`, `Failed` | same | `ReportError`, `RefuseEvent` |
//! | `Eos` | `Broken` | same | `RefuseEvent` |
//! | `EventRefused` | `Streaming` | same | `RetryEvent` |
//! | `EventRefused` | closed | same | `KeepEvent` for sticky events, otherwise `RefuseEvent` |
//! | `BeginTurn` | `Streaming`, output `Ended` under an older link | output `Ended` under this one | `RepeatEos` |
//! | `QueueClosed` | closed | same | `PauseTask` |
//! | `EventPushed`, same epoch | `Streaming` | output `Ended` for EOS, otherwise `Running` | |
//! | `EventPushed`, older epoch, refused, sticky | * | same | `KeepEventFirst` |
//! | `FramePushed`, `Eos` | `Streaming` | same | `SkipToSegment` |
//! | `SegmentSkipped`, none queued | `Streaming`, input `Running` | input `Refused` | |
//! | `FramePushed`, `NotLinked`, or `Flushing` while not linked | `Streaming` | `Unlinked` | `CloseQueue`, `PauseTask`, `ReportError` if the input has ended |
//! | `FramePushed`, `Flushing` while linked | `Streaming` | `PeerFlushing` | `CloseQueue`, `PauseTask` |
//! | `FramePushed`, an error | `Streaming` | `Failed` | `CloseQueue`, `PauseTask`, `ReportError` if the input has ended |
//! | `FramePushed`, an error | output `Breaking` | `Broken` | `CloseQueue`, `PauseTask` |
//! | `Break` | `Streaming` | output `Breaking` | `ReportError` |
//!
//! `FramePushed` and `Break` of an older epoch are ignored. `FramePushed` with `NotLinked` or `Flushing` is also ignored if the pad was
//! relinked after the turn began: the RECONFIGURE event of the new link was already handled, so if the queue were closed now, no later
//! event would open it again.

/// Period between two closings of the in-flight queue; see the module documentation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Epoch {
    n_starts: u64,
    n_closings: u64,
}

impl Epoch {
    /// Whether both epochs belong to the same start of the element.
    pub fn is_same_start(self, other: Self) -> bool {
        self.n_starts == other.n_starts
    }
}

/// Number of the source pad's current link. Each new link of the pad gets a new number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Link(u64);

/// Epoch and link at the start of a turn of the source pad's task. Each push result carries the turn in which the push was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Turn {
    epoch: Epoch,
    link: Link,
}

impl Turn {
    /// Returns the epoch at the start of the turn.
    pub fn epoch(self) -> Epoch {
        self.epoch
    }
}

/// State of a stream; see the module documentation. `E` is the type of the errors that downstream returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State<E> {
    /// The source pad is not active.
    Stopped,
    /// A flush is in progress, or the source pad was activated and its task has not started.
    Flushing,
    /// Frames and events are processed.
    Streaming {
        /// State of the upstream side.
        input: Input,
        /// State of the downstream side.
        output: Output,
    },
    /// Downstream is not linked.
    Unlinked,
    /// The peer returned `Flushing` although no flush is in progress: the peer was stopped.
    PeerFlushing,
    /// Downstream returned an error.
    Failed(E),
    /// Too many consecutive frames failed, and the error was posted on the bus.
    Broken(E),
}

/// State of the upstream side of a running stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input {
    /// Upstream sends frames.
    Running,
    /// Downstream returned EOS. The next buffer of upstream returns EOS.
    Refused,
    /// Upstream has sent EOS, so it sends no further buffer through which an error could be returned.
    Ended,
}

/// State of the downstream side of a running stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Output {
    /// The task pushes frames and events.
    Running,
    /// EOS was the last item pushed. Holds the link at that time.
    Ended(Link),
    /// Too many consecutive frames failed, and the error is being posted on the bus.
    Breaking,
}

/// Return value of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Return<E> {
    /// The buffer was accepted.
    Ok,
    /// Downstream needs no more buffers of this segment.
    Eos,
    /// A flush or a stop is in progress.
    Flushing,
    /// The pad is not linked.
    NotLinked,
    /// Downstream returned any other error.
    Error(E),
}

/// An event to which the state machine reacts; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trigger<E> {
    /// The element changes to PAUSED.
    Start,
    /// The source pad was activated.
    Activate,
    /// The source pad was or will be deactivated.
    Deactivate,
    /// FLUSH_START arrived, or another flush begins.
    FlushStart,
    /// FLUSH_START was forwarded downstream. While the driver handles this trigger, it prevents other threads from starting the
    /// task.
    FlushForwarded {
        /// Whether the sink pad is still flushing. False if the element was stopped and started during the flush, which ended the
        /// flush.
        sink_is_flushing: bool,
    },
    /// The sink pad was activated.
    SinkActivated {
        /// Whether the sink pad is flushing. True if another flush has begun since the activation.
        sink_is_flushing: bool,
    },
    /// FLUSH_STOP arrived. While the driver handles this trigger, it prevents other threads from starting the task.
    FlushStop,
    /// Request to open the queue and start the task.
    Open,
    /// The task was stopped and can be started.
    TaskStopped {
        /// The epoch in which the driver handled [`Trigger::Open`].
        epoch: Epoch,
        /// Whether stored sticky events must be put on the source pad first.
        has_events: bool,
    },
    /// The source pad was linked (RECONFIGURE).
    Relink,
    /// SEGMENT or STREAM_START was accepted.
    BeginStream,
    /// EOS arrived from upstream.
    Eos,
    /// An event could not be added, because the queue is closed.
    EventRefused {
        /// Whether the event must be stored. True for sticky events except EOS, because they remain valid if frames are lost.
        is_kept: bool,
    },
    /// A turn of the task begins.
    BeginTurn,
    /// The task could not take an item, because the queue is closed.
    QueueClosed,
    /// The task pushed an event.
    EventPushed {
        /// The turn of the push.
        turn: Turn,
        /// Whether the event is EOS.
        is_eos: bool,
        /// Whether the event was refused and is sticky.
        is_refused_and_kept: bool,
    },
    /// The task pushed a frame.
    FramePushed {
        /// The turn of the push.
        turn: Turn,
        /// Return value of the push.
        result: Return<E>,
        /// Whether the source pad is linked now.
        is_linked: bool,
    },
    /// The items before the next SEGMENT, STREAM_START or EOS were removed from the queue.
    SegmentSkipped {
        /// Whether the queue contained a SEGMENT, STREAM_START or EOS event.
        found: bool,
    },
    /// Too many consecutive frames failed.
    Break {
        /// The turn of the last failed frame.
        turn: Turn,
    },
}

/// An operation that the driver executes.
///
/// The actions up to [`Action::PauseTask`] in this enumeration are executed under the lock under which the state has changed. The
/// actions after it are executed without the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Close the queue, discard its frames, and keep its sticky events. Wake up all waiting threads.
    CloseQueue,
    /// Open the queue.
    OpenQueue,
    /// Wake up the task for another turn.
    WakeQueue,
    /// Discard the items before the next SEGMENT, STREAM_START or EOS, and handle [`Trigger::SegmentSkipped`].
    SkipToSegment,
    /// Discard all stored events.
    DiscardEvents,
    /// Discard a stored SEGMENT event.
    DiscardSegment,
    /// Store the event.
    KeepEvent,
    /// Store the event before the stored events.
    KeepEventFirst,
    /// Pause the task, on its own thread. The lock stays held during the pause. Otherwise, another thread could start the task first, and
    /// the late pause would stop it again.
    PauseTask,
    /// Try again to add the event to the queue.
    RetryEvent,
    /// Return false to upstream for the event.
    RefuseEvent,
    /// Pause the task, and wait for the end of its turn. The driver does not execute this action on the task's own thread.
    AwaitPause,
    /// Stop the task, and wait for the end of its thread. Then handle [`Trigger::TaskStopped`]. The driver does not execute this action on
    /// the task's own thread.
    StopTask,
    /// Start the task.
    StartTask,
    /// Put the stored events on the source pad, and handle [`Trigger::TaskStopped`] again.
    StoreEvents,
    /// Send the sticky EOS of the source pad to the new peer.
    RepeatEos,
    /// Send FLUSH_STOP downstream if the source pad has forwarded FLUSH_START.
    EndFlushDownstream,
    /// Handle [`Trigger::Open`].
    Reopen,
    /// Discard cached results and the reference frame of the motion gate.
    DiscardResults,
    /// Discard the reference frame of the motion gate.
    ResetMotion,
    /// Post the error on the bus.
    ReportError,
}

/// Result of handling a trigger.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition<E> {
    /// The trigger had an effect.
    Complete {
        /// Previous state.
        origin: State<E>,
        /// New state.
        target: State<E>,
        /// Actions that the driver must execute, in this order.
        actions: &'static [Action],
    },
    /// The trigger was ignored: it belongs to an older epoch, or has no effect in this state.
    Skipped {
        /// The unchanged state.
        state: State<E>,
    },
}

impl<E> Transition<E> {
    /// Returns the actions that the driver must execute, in order.
    pub fn actions(&self) -> &'static [Action] {
        match self {
            Self::Complete { actions, .. } => actions,
            Self::Skipped { .. } => &[],
        }
    }

    /// Returns the state after the trigger.
    pub fn state(&self) -> State<E>
    where
        E: Copy,
    {
        match *self {
            Self::Complete { target, .. } => target,
            Self::Skipped { state } => state,
        }
    }

    /// Whether the driver must execute this action.
    pub fn requires(&self, action: Action) -> bool {
        self.actions().contains(&action)
    }

    /// Whether the trigger was ignored.
    pub fn is_skipped(&self) -> bool {
        matches!(self, Self::Skipped { .. })
    }
}

/// The state machine; see the module documentation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Flow<E> {
    state: State<E>,
    epoch: Epoch,
    link: Link,
}

impl<E> Default for Flow<E> {
    fn default() -> Self {
        Self { state: State::Stopped, epoch: Epoch::default(), link: Link::default() }
    }
}

impl<E: Copy + PartialEq> Flow<E> {
    /// Returns the current state.
    pub fn state(&self) -> State<E> {
        self.state
    }

    /// Returns the current epoch and link, for work that begins now.
    pub fn turn(&self) -> Turn {
        Turn { epoch: self.epoch, link: self.link }
    }

    /// Returns the current epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether the queue is open.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Streaming { .. })
    }

    /// Whether a flush or a stop is in progress. Threads that wait for the model must return.
    pub fn is_flushing(&self) -> bool {
        matches!(self.state, State::Stopped | State::Flushing | State::PeerFlushing)
    }

    /// Returns the flow return that upstream gets for its next buffer.
    pub fn upstream(&self) -> Return<E> {
        match self.state {
            State::Stopped | State::Flushing | State::PeerFlushing => Return::Flushing,
            State::Streaming { input: Input::Refused, .. } => Return::Eos,
            State::Streaming { .. } => Return::Ok,
            State::Unlinked => Return::NotLinked,
            State::Failed(error) | State::Broken(error) => Return::Error(error),
        }
    }

    /// Handles a trigger and returns the actions that the driver must execute.
    pub fn handle(&mut self, trigger: Trigger<E>) -> Transition<E> {
        let origin = self.state;
        match self.transition(trigger) {
            Some(actions) => Transition::Complete { origin, target: self.state, actions },
            None => Transition::Skipped { state: origin },
        }
    }

    /// Applies the transition table of the module. Returns `None` if the trigger is ignored.
    fn transition(&mut self, trigger: Trigger<E>) -> Option<&'static [Action]> {
        use Action::*;
        use State::{Broken, Failed, Flushing, PeerFlushing, Stopped, Streaming, Unlinked};
        Some(match (trigger, self.state) {
            (Trigger::Start, _) => {
                self.epoch.n_starts += 1;
                &[]
            }
            (Trigger::Activate, Stopped) => {
                self.close(Flushing);
                &[DiscardEvents]
            }
            (Trigger::Deactivate, _) => {
                self.close(Stopped);
                &[CloseQueue, DiscardResults]
            }
            (Trigger::FlushStart, _) => {
                self.flush();
                &[CloseQueue, DiscardResults]
            }
            // A concurrent start may have reopened the queue since FLUSH_START. Close the queue again. Otherwise, the flush would wait
            // forever for the end of the task's turn.
            (Trigger::FlushForwarded { sink_is_flushing: true }, _) => {
                self.flush();
                &[CloseQueue, DiscardResults, AwaitPause]
            }
            // If the element stops and starts during a flush, the sink pad may not receive FLUSH_STOP. So the flush also ends if
            // the sink pad is no longer flushing.
            (Trigger::FlushForwarded { .. } | Trigger::SinkActivated { sink_is_flushing: false }, _) => &[EndFlushDownstream, Reopen],
            // Some elements send FLUSH_STOP without FLUSH_START, possibly during a start. The following frames belong to a new segment, so
            // no earlier frame may leave after FLUSH_STOP.
            (Trigger::FlushStop, _) => {
                self.flush();
                &[CloseQueue, DiscardSegment, DiscardResults, AwaitPause]
            }
            // A frame may have left between FLUSH_START and now, and its results may have been cached. So discard the cached
            // results again.
            (Trigger::Open, Flushing | PeerFlushing) => &[StopTask, DiscardResults],
            // The frames that were discarded when the queue closed were not inferred, so the motion gate must not compare with them.
            (Trigger::Open, Unlinked | Failed(_) | Broken(_)) => &[StopTask, ResetMotion],
            // The queue is already open, because a seek has handled `Open` on the task's own thread. So only start the task.
            (Trigger::TaskStopped { .. }, Streaming { .. }) => &[StartTask],
            (Trigger::TaskStopped { epoch, has_events }, _) if epoch == self.epoch => {
                if has_events {
                    return Some(&[StoreEvents]);
                }
                self.state = Streaming { input: Input::Running, output: Output::Running };
                &[OpenQueue, StartTask]
            }
            (Trigger::Relink, state) => {
                self.link.0 += 1;
                match state {
                    Unlinked | PeerFlushing => &[Reopen],
                    Streaming { output: Output::Ended(_), .. } => &[WakeQueue],
                    _ => &[],
                }
            }
            (Trigger::BeginStream, Streaming { output, .. }) => {
                self.state = Streaming { input: Input::Running, output };
                &[]
            }
            (Trigger::Eos, Streaming { output, .. }) => {
                self.state = Streaming { input: Input::Ended, output };
                &[]
            }
            // After EOS, upstream sends no further buffer that could return the error. So the error is posted on the bus.
            (Trigger::Eos, Unlinked | Failed(_)) => &[ReportError, RefuseEvent],
            (Trigger::Eos, Broken(_)) => &[RefuseEvent],
            (Trigger::EventRefused { .. }, Streaming { .. }) => &[RetryEvent],
            // Upstream sends a sticky event only once, so the event is stored.
            (Trigger::EventRefused { is_kept: true }, _) => &[KeepEvent],
            (Trigger::EventRefused { .. }, _) => &[RefuseEvent],
            (Trigger::BeginTurn, Streaming { input, output: Output::Ended(link) }) if link != self.link => {
                self.state = Streaming { input, output: Output::Ended(self.link) };
                &[RepeatEos]
            }
            (Trigger::QueueClosed, state) if !matches!(state, Streaming { .. }) => &[PauseTask],
            (Trigger::EventPushed { turn, is_eos, .. }, Streaming { input, .. }) if turn.epoch == self.epoch => {
                self.state = Streaming { input, output: if is_eos { Output::Ended(turn.link) } else { Output::Running } };
                &[]
            }
            // The source pad refused the event because it was flushing, and did not store it. The event is older than the stored
            // events, which were in the queue. So store it before them.
            (Trigger::EventPushed { turn, is_refused_and_kept: true, .. }, _) if turn.epoch != self.epoch => &[KeepEventFirst],
            (Trigger::FramePushed { turn, result, is_linked }, Streaming { input, output }) if turn.epoch == self.epoch => {
                self.refuse(turn, result, is_linked, input, output)?
            }
            (Trigger::SegmentSkipped { found: false }, Streaming { input: Input::Running, output }) => {
                self.state = Streaming { input: Input::Refused, output };
                &[]
            }
            (Trigger::Break { turn }, Streaming { input, .. }) if turn.epoch == self.epoch => {
                self.state = Streaming { input, output: Output::Breaking };
                &[ReportError]
            }
            _ => return None,
        })
    }

    /// Handles a frame of the current epoch that downstream did not accept.
    fn refuse(&mut self, turn: Turn, result: Return<E>, is_linked: bool, input: Input, output: Output) -> Option<&'static [Action]> {
        use Action::*;
        // If the peer is unlinked and then stopped during the push, the push returns Flushing although the pad is not linked.
        let is_parted = result == Return::Flushing && !is_linked;
        let target = match result {
            Return::Ok => return None,
            Return::Eos => return Some(&[SkipToSegment]),
            // The pad was relinked during the push, and RECONFIGURE was already handled. Ignore the result: no further
            // RECONFIGURE would open the queue if it were closed now.
            Return::NotLinked | Return::Flushing if turn.link != self.link => return None,
            Return::Flushing if !is_parted => State::PeerFlushing,
            Return::NotLinked | Return::Flushing => State::Unlinked,
            Return::Error(error) if output == Output::Breaking => State::Broken(error),
            Return::Error(error) => State::Failed(error),
        };
        self.close(target);
        // After EOS, upstream sends no buffer that could return the error. So the error is posted on the bus.
        let is_unheard = input == Input::Ended && matches!(target, State::Unlinked | State::Failed(_));
        Some(if is_unheard { &[CloseQueue, PauseTask, ReportError] } else { &[CloseQueue, PauseTask] })
    }

    fn flush(&mut self) {
        self.close(if self.state == State::Stopped { State::Stopped } else { State::Flushing });
    }

    fn close(&mut self, state: State<E>) {
        self.state = state;
        self.epoch.n_closings += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handles the triggers one after the other and returns all their actions.
    fn after(flow: &mut Flow<u8>, triggers: &[Trigger<u8>]) -> Vec<Action> {
        triggers.iter().flat_map(|trigger| flow.handle(*trigger).actions()).copied().collect()
    }

    fn stopped_task(flow: &Flow<u8>) -> Trigger<u8> {
        Trigger::TaskStopped { epoch: flow.epoch(), has_events: false }
    }

    /// Returns a stream whose task runs.
    fn streaming() -> Flow<u8> {
        let mut flow = Flow::default();
        let _actions = after(&mut flow, &[Trigger::Start, Trigger::Activate, Trigger::Open]);
        let opened = stopped_task(&flow);
        assert_eq!(after(&mut flow, &[opened]), [Action::OpenQueue, Action::StartTask]);
        flow
    }

    fn pushed(turn: Turn, result: Return<u8>) -> Trigger<u8> {
        Trigger::FramePushed { turn, result, is_linked: result != Return::NotLinked }
    }

    #[test]
    fn flush_start_closes_and_flush_stop_reopens() {
        let mut flow = streaming();
        assert!(flow.handle(Trigger::FlushStart).requires(Action::CloseQueue));
        assert_eq!((flow.upstream(), flow.is_flushing()), (Return::Flushing, true));
        assert!(flow.handle(Trigger::FlushStop).requires(Action::DiscardSegment));
        assert!(flow.handle(Trigger::Open).requires(Action::StopTask));
        let of_flush = stopped_task(&flow);
        let _closed = flow.handle(Trigger::FlushStart);
        assert!(flow.handle(of_flush).is_skipped(), "another flush has begun");
        assert_eq!(flow.state(), State::Flushing);
    }

    #[test]
    fn push_result_of_an_older_epoch_is_ignored() {
        let mut flow = streaming();
        let turn = flow.turn();
        let _actions = after(&mut flow, &[Trigger::FlushStart, Trigger::FlushStop, Trigger::Open]);
        let opened = stopped_task(&flow);
        let _opened = flow.handle(opened);
        for result in [Return::Eos, Return::Flushing, Return::NotLinked, Return::Error(1)] {
            assert!(flow.handle(pushed(turn, result)).is_skipped(), "{result:?}");
        }
        assert!(flow.handle(Trigger::Break { turn }).is_skipped());
        assert_eq!(flow.upstream(), Return::Ok);
    }

    #[test]
    fn error_is_reported_once_and_only_after_eos() {
        let mut flow = streaming();
        let failed = flow.turn();
        assert!(!flow.handle(pushed(failed, Return::Error(1))).requires(Action::ReportError), "upstream gets the error");
        assert_eq!(flow.upstream(), Return::Error(1));
        assert_eq!(after(&mut flow, &[Trigger::Eos]), [Action::ReportError, Action::RefuseEvent]);

        let mut flow = streaming();
        let turn = flow.turn();
        assert_eq!(after(&mut flow, &[Trigger::Eos, pushed(turn, Return::Error(1))]).last(), Some(&Action::ReportError));

        let mut flow = streaming();
        let turn = flow.turn();
        let actions = after(&mut flow, &[Trigger::Break { turn }, pushed(turn, Return::Error(1)), Trigger::Eos]);
        assert_eq!(actions, [Action::ReportError, Action::CloseQueue, Action::PauseTask, Action::RefuseEvent]);
    }

    #[test]
    fn relink_repeats_eos_and_opens_an_unlinked_stream() {
        let mut flow = streaming();
        let turn = flow.turn();
        let eos = Trigger::EventPushed { turn, is_eos: true, is_refused_and_kept: false };
        let _pushed = after(&mut flow, &[Trigger::Eos, eos]);
        assert!(flow.handle(Trigger::BeginTurn).is_skipped());
        assert_eq!(after(&mut flow, &[Trigger::Relink, Trigger::BeginTurn, Trigger::BeginTurn]), [Action::WakeQueue, Action::RepeatEos]);

        for result in [Return::NotLinked, Return::Flushing] {
            let mut flow = streaming();
            let turn = flow.turn();
            assert!(flow.handle(pushed(turn, result)).requires(Action::CloseQueue));
            assert_eq!(after(&mut flow, &[Trigger::Relink]), [Action::Reopen]);

            let mut flow = streaming();
            let turn = flow.turn();
            assert_eq!(after(&mut flow, &[Trigger::Relink, pushed(turn, result)]), [], "relinked during the push that returned {result:?}");
        }
    }

    #[test]
    fn stopped_element_opens_only_after_activation() {
        let mut flow = streaming();
        let _actions = after(&mut flow, &[Trigger::Deactivate, Trigger::FlushStart, Trigger::FlushStop, Trigger::Relink]);
        assert!(flow.handle(Trigger::Open).is_skipped());
        assert_eq!(flow.state(), State::Stopped);
        let _actions = after(&mut flow, &[Trigger::Activate, Trigger::Open]);
        let opened = stopped_task(&flow);
        assert!(flow.handle(opened).requires(Action::StartTask));
    }
}
