//! The life of a stream in an inference element, as a state machine: start, stop, flush, EOS, links and errors.
//!
//! Pure: knows no pads, threads, locks or clocks. The driver of an element (`elements/infer.rs`) calls [`Flow::handle`] with a
//! [`Trigger`] under the lock of the stream, and executes the [`Action`]s of the [`Transition`] in their order.
//! `tests/check/checks/flow.rs` is a second driver, of pads and threads that are simulated: it tries all orders of their steps.
//!
//! # States
//!
//! | state | in-flight queue | the next buffer of upstream returns | ends with |
//! |---|---|---|---|
//! | `Stopped` | closed | `Flushing` | activation of the source pad |
//! | `Flushing` | closed | `Flushing` | FLUSH_STOP, or the start of the source pad's task |
//! | `Streaming`, input `Running` | open | `Ok` | |
//! | `Streaming`, input `Refused` | open | `Eos` | SEGMENT or STREAM_START |
//! | `Streaming`, input `Ended` | open | none comes | SEGMENT or STREAM_START |
//! | `Unlinked` | closed | `NotLinked` | a new link of the source pad, a flush, a stop |
//! | `PeerFlushing` | closed | `Flushing` | a new link of the source pad, a flush, a stop |
//! | `Failed` | closed | the error of downstream | a flush, a stop |
//! | `Broken` | closed | `Error` | a flush, a stop |
//!
//! The output of `Streaming` is `Running`, `Ended` (EOS was the last item pushed) or `Breaking` (too many failures of inference are being
//! reported).
//!
//! # Epochs
//!
//! An [`Epoch`] begins when the queue is closed, by a flush, a stop or an error. Work that ends later carries the epoch in which it began: a
//! turn of the source pad's task, the runs of a frame, the start of the task, a warm-up. What ends in a later epoch changes nothing.
//! A warm-up is about the model, and not about the frames: it holds while the element is not started again ([`Epoch::is_same_start`]).
//!
//! # Transitions
//!
//! `*` is any state, `closed` any but `Streaming`. Triggers that are not listed for a state are skipped.
//!
//! | trigger | in state | next state | actions |
//! |---|---|---|---|
//! | `Start` | * | same | |
//! | `Activate` | `Stopped` | `Flushing` | `ForgetEvents` |
//! | `Deactivate` | * | `Stopped` | `CloseQueue`, `ForgetResults` |
//! | `FlushStart` | * | `Flushing`; `Stopped` stays | `CloseQueue`, `ForgetResults` |
//! | `FlushForwarded`, sink pad flushing | * | `Flushing`; `Stopped` stays | `CloseQueue`, `ForgetResults`, `AwaitPause` |
//! | `FlushForwarded`, `SinkActivated`, sink pad not flushing | * | same | `EndFlushDownstream`, `Reopen` |
//! | `FlushStop` | * | `Flushing`; `Stopped` stays | `CloseQueue`, `ForgetSegment`, `ForgetResults`, `AwaitPause` |
//! | `Open` | `Flushing`, `PeerFlushing` | same | `StopTask`, `ForgetResults` |
//! | `Open` | `Unlinked`, `Failed`, `Broken` | same | `StopTask`, `ForgetMotion` |
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
//! | `EventRefused` | closed | same | `KeepEvent` if it is to be kept, else `RefuseEvent` |
//! | `BeginTurn` | `Streaming`, output `Ended` under an older link | output `Ended` under this one | `RepeatEos` |
//! | `QueueClosed` | closed | same | `PauseTask` |
//! | `EventPushed`, same epoch | `Streaming` | output `Ended` for EOS, else `Running` | |
//! | `EventPushed`, older epoch, refused, to be kept | * | same | `KeepEventFirst` |
//! | `FramePushed`, `Eos` | `Streaming` | same | `SkipToSegment` |
//! | `SegmentSkipped`, none queued | `Streaming`, input `Running` | input `Refused` | |
//! | `FramePushed`, `NotLinked`, or `Flushing` while not linked | `Streaming` | `Unlinked` | `CloseQueue`, `PauseTask`, `ReportError` if the input has ended |
//! | `FramePushed`, `Flushing` while linked | `Streaming` | `PeerFlushing` | `CloseQueue`, `PauseTask` |
//! | `FramePushed`, an error | `Streaming` | `Failed` | `CloseQueue`, `PauseTask`, `ReportError` if the input has ended |
//! | `FramePushed`, an error | output `Breaking` | `Broken` | `CloseQueue`, `PauseTask` |
//! | `Break` | `Streaming` | output `Breaking` | `ReportError` |
//!
//! `FramePushed` and `Break` of an older epoch are skipped, and so is `FramePushed` with `NotLinked` or `Flushing` if the pad was linked after
//! the turn began: no further RECONFIGURE will come.

/// A time between two closings of the in-flight queue. See the module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Epoch {
    n_starts: u64,
    n_closings: u64,
}

impl Epoch {
    /// Whether the element was not started between these epochs.
    pub fn is_same_start(self, other: Self) -> bool {
        self.n_starts == other.n_starts
    }
}

/// A time between two links of the source pad.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Link(u64);

/// When a turn of the source pad's task began. The results of its pushes carry it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Turn {
    epoch: Epoch,
    link: Link,
}

impl Turn {
    /// The epoch in which the turn began.
    pub fn epoch(self) -> Epoch {
        self.epoch
    }
}

/// See the module. `E` is an error of downstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State<E> {
    /// The source pad is not active.
    Stopped,
    /// From FLUSH_START to FLUSH_STOP, and from the activation of the source pad to the start of its task.
    Flushing,
    /// Frames and events pass.
    Streaming {
        /// What upstream does, and hears.
        input: Input,
        /// What the source pad's task does.
        output: Output,
    },
    /// Downstream is not linked.
    Unlinked,
    /// The peer returned Flushing, and no flush is in progress here: it was stopped.
    PeerFlushing,
    /// Downstream returned an error.
    Failed(E),
    /// Too many frames in a row failed. The bus has been told.
    Broken(E),
}

/// The side of upstream while the stream runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input {
    /// Upstream sends frames.
    Running,
    /// Downstream returned EOS, so upstream hears EOS.
    Refused,
    /// Upstream has sent EOS. It sends no further buffer that could return an error.
    Ended,
}

/// The side of downstream while the stream runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Output {
    /// The task pushes frames and events.
    Running,
    /// EOS was the last item pushed, under this link.
    Ended(Link),
    /// Too many frames in a row failed, and the bus is being told.
    Breaking,
}

/// What a push returned, and what upstream's next buffer returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Return<E> {
    /// The buffer was taken.
    Ok,
    /// Downstream wants no more of this segment.
    Eos,
    /// A flush or a stop is in progress.
    Flushing,
    /// The pad is not linked.
    NotLinked,
    /// Another error.
    Error(E),
}

/// What happens to a stream. See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trigger<E> {
    /// The element goes to PAUSED.
    Start,
    /// The source pad was activated.
    Activate,
    /// The source pad was deactivated, or is about to be.
    Deactivate,
    /// FLUSH_START came, or another flush begins.
    FlushStart,
    /// FLUSH_START was forwarded downstream. The task is not started meanwhile.
    FlushForwarded {
        /// False if a stop and a start have ended the flush.
        sink_is_flushing: bool,
    },
    /// The sink pad was activated.
    SinkActivated {
        /// True if another flush has begun.
        sink_is_flushing: bool,
    },
    /// FLUSH_STOP came. The task is not started meanwhile.
    FlushStop,
    /// The queue is to be opened and the task started.
    Open,
    /// The task was stopped, in order to be started.
    TaskStopped {
        /// The epoch of [`Trigger::Open`].
        epoch: Epoch,
        /// Whether sticky events are to be put on the source pad first.
        has_events: bool,
    },
    /// The source pad was linked (RECONFIGURE).
    Relink,
    /// SEGMENT or STREAM_START was accepted.
    BeginStream,
    /// EOS came from upstream.
    Eos,
    /// The queue was closed when an event was to enter it.
    EventRefused {
        /// Whether the event stays true when the frames around it are lost.
        is_kept: bool,
    },
    /// A turn of the task begins.
    BeginTurn,
    /// The task found the queue closed.
    QueueClosed,
    /// The task pushed an event.
    EventPushed {
        /// The turn that pushed it.
        turn: Turn,
        /// Whether it is EOS.
        is_eos: bool,
        /// Whether the event is lost, but stays true without the frames around it.
        is_refused_and_kept: bool,
    },
    /// The task pushed a frame.
    FramePushed {
        /// The turn that pushed it.
        turn: Turn,
        /// What the push returned.
        result: Return<E>,
        /// Whether the source pad is linked now.
        is_linked: bool,
    },
    /// The queue was emptied up to the next SEGMENT, STREAM_START or EOS.
    SegmentSkipped {
        /// Whether there was one.
        found: bool,
    },
    /// Too many frames in a row failed.
    Break {
        /// The turn in which the last one left.
        turn: Turn,
    },
}

/// What the driver has to do.
///
/// Those up to [`Action::PauseTask`] are done under the lock under which the machine changed its state, the others without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Close the queue, discard its frames, and keep its sticky events. Wake up all threads that wait.
    CloseQueue,
    /// Open the queue.
    OpenQueue,
    /// Let the task begin another turn.
    WakeQueue,
    /// Discard what lies before the next SEGMENT, STREAM_START or EOS, and handle [`Trigger::SegmentSkipped`].
    SkipToSegment,
    /// Discard all events that are kept.
    ForgetEvents,
    /// Discard the SEGMENT among the events that are kept.
    ForgetSegment,
    /// Keep the event.
    KeepEvent,
    /// Keep the event, before those that are kept.
    KeepEventFirst,
    /// Pause the task, on its own thread. Under the lock, so that it does not pause after another thread has started it.
    PauseTask,
    /// Let the event enter the queue again.
    RetryEvent,
    /// Return false to upstream.
    RefuseEvent,
    /// Pause the task, and wait until its turn is over; not on its own thread.
    AwaitPause,
    /// Stop the task, and wait until its thread has ended; not on its own thread. Then handle [`Trigger::TaskStopped`].
    StopTask,
    /// Start the task.
    StartTask,
    /// Put the events that are kept on the source pad, and handle [`Trigger::TaskStopped`] again.
    StoreEvents,
    /// Let the source pad send its sticky EOS to the new peer.
    RepeatEos,
    /// Send FLUSH_STOP downstream if the source pad has seen FLUSH_START.
    EndFlushDownstream,
    /// Handle [`Trigger::Open`].
    Reopen,
    /// Forget the results and the picture of earlier frames.
    ForgetResults,
    /// Forget the picture of earlier frames.
    ForgetMotion,
    /// Post the error on the bus.
    ReportError,
}

/// The result of a trigger.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition<E> {
    /// The trigger counts.
    Complete {
        /// The state before.
        origin: State<E>,
        /// The state now.
        target: State<E>,
        /// What is to be done, in this order.
        actions: &'static [Action],
    },
    /// The trigger is of an older epoch, or means nothing in this state.
    Skipped {
        /// The state, which stays.
        state: State<E>,
    },
}

impl<E> Transition<E> {
    /// What is to be done, in this order.
    pub fn actions(&self) -> &'static [Action] {
        match self {
            Self::Complete { actions, .. } => actions,
            Self::Skipped { .. } => &[],
        }
    }

    /// The state now.
    pub fn state(&self) -> State<E>
    where
        E: Copy,
    {
        match *self {
            Self::Complete { target, .. } => target,
            Self::Skipped { state } => state,
        }
    }

    /// Whether this is to be done.
    pub fn asks_for(&self, action: Action) -> bool {
        self.actions().contains(&action)
    }

    /// Whether the trigger had no effect.
    pub fn is_skipped(&self) -> bool {
        matches!(self, Self::Skipped { .. })
    }
}

/// See the module.
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
    /// The state.
    pub fn state(&self) -> State<E> {
        self.state
    }

    /// The epoch and the link of work that begins now.
    pub fn turn(&self) -> Turn {
        Turn { epoch: self.epoch, link: self.link }
    }

    /// The epoch of work that begins now.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether the queue is open.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Streaming { .. })
    }

    /// Whether a flush or a stop is in progress: threads that wait for the model must return.
    pub fn is_flushing(&self) -> bool {
        matches!(self.state, State::Stopped | State::Flushing | State::PeerFlushing)
    }

    /// What upstream's next buffer returns.
    pub fn upstream(&self) -> Return<E> {
        match self.state {
            State::Stopped | State::Flushing | State::PeerFlushing => Return::Flushing,
            State::Streaming { input: Input::Refused, .. } => Return::Eos,
            State::Streaming { .. } => Return::Ok,
            State::Unlinked => Return::NotLinked,
            State::Failed(error) | State::Broken(error) => Return::Error(error),
        }
    }

    /// Takes a trigger, and says what is to be done.
    pub fn handle(&mut self, trigger: Trigger<E>) -> Transition<E> {
        let origin = self.state;
        match self.transition(trigger) {
            Some(actions) => Transition::Complete { origin, target: self.state, actions },
            None => Transition::Skipped { state: origin },
        }
    }

    /// The table of the module. `None` if the trigger has no effect.
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
                &[ForgetEvents]
            }
            (Trigger::Deactivate, _) => {
                self.close(Stopped);
                &[CloseQueue, ForgetResults]
            }
            (Trigger::FlushStart, _) => {
                self.flush();
                &[CloseQueue, ForgetResults]
            }
            // A start may have opened the queue since FLUSH_START: its task waits for frames, and this flush for the task.
            (Trigger::FlushForwarded { sink_is_flushing: true }, _) => {
                self.flush();
                &[CloseQueue, ForgetResults, AwaitPause]
            }
            // The sink pad may not get the FLUSH_STOP of a flush that a stop and a start have overtaken.
            (Trigger::FlushForwarded { .. } | Trigger::SinkActivated { sink_is_flushing: false }, _) => &[EndFlushDownstream, Reopen],
            // Some elements send it without FLUSH_START, and a start may have overtaken that. What comes next belongs to a new segment, so no
            // frame of before may leave behind FLUSH_STOP.
            (Trigger::FlushStop, _) => {
                self.flush();
                &[CloseQueue, ForgetSegment, ForgetResults, AwaitPause]
            }
            // A frame of before may have left since the flush began, and its results been kept.
            (Trigger::Open, Flushing | PeerFlushing) => &[StopTask, ForgetResults],
            // The frames that were in the queue when it was closed were not inferred.
            (Trigger::Open, Unlinked | Failed(_) | Broken(_)) => &[StopTask, ForgetMotion],
            // By the task that was stopped, because it has sought.
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
            // Upstream pushes no further buffer that could return the error.
            (Trigger::Eos, Unlinked | Failed(_)) => &[ReportError, RefuseEvent],
            (Trigger::Eos, Broken(_)) => &[RefuseEvent],
            (Trigger::EventRefused { .. }, Streaming { .. }) => &[RetryEvent],
            // Upstream sends a sticky event once.
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
            // The pad was flushing and did not store it. It is older than the events that were in the queue.
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

    /// Downstream did not take a frame of this epoch.
    fn refuse(&mut self, turn: Turn, result: Return<E>, is_linked: bool, input: Input, output: Output) -> Option<&'static [Action]> {
        use Action::*;
        // A peer that was unlinked during the push, and then stopped, returns Flushing.
        let is_parted = result == Return::Flushing && !is_linked;
        let target = match result {
            Return::Ok => return None,
            Return::Eos => return Some(&[SkipToSegment]),
            // No further RECONFIGURE will come.
            Return::NotLinked | Return::Flushing if turn.link != self.link => return None,
            Return::Flushing if !is_parted => State::PeerFlushing,
            Return::NotLinked | Return::Flushing => State::Unlinked,
            Return::Error(error) if output == Output::Breaking => State::Broken(error),
            Return::Error(error) => State::Failed(error),
        };
        self.close(target);
        // After EOS upstream does not hear of an error.
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

    /// Handles triggers in turn, and gives all actions.
    fn after(flow: &mut Flow<u8>, triggers: &[Trigger<u8>]) -> Vec<Action> {
        triggers.iter().flat_map(|trigger| flow.handle(*trigger).actions()).copied().collect()
    }

    fn stopped_task(flow: &Flow<u8>) -> Trigger<u8> {
        Trigger::TaskStopped { epoch: flow.epoch(), has_events: false }
    }

    /// A stream whose task runs.
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
    fn a_flush_closes_and_its_end_opens() {
        let mut flow = streaming();
        assert!(flow.handle(Trigger::FlushStart).asks_for(Action::CloseQueue));
        assert_eq!((flow.upstream(), flow.is_flushing()), (Return::Flushing, true));
        assert!(flow.handle(Trigger::FlushStop).asks_for(Action::ForgetSegment));
        assert!(flow.handle(Trigger::Open).asks_for(Action::StopTask));
        let of_flush = stopped_task(&flow);
        let _closed = flow.handle(Trigger::FlushStart);
        assert!(flow.handle(of_flush).is_skipped(), "another flush has begun");
        assert_eq!(flow.state(), State::Flushing);
    }

    #[test]
    fn what_a_push_of_an_older_epoch_returned_is_skipped() {
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
    fn an_error_is_reported_once_and_only_behind_eos() {
        let mut flow = streaming();
        let failed = flow.turn();
        assert!(!flow.handle(pushed(failed, Return::Error(1))).asks_for(Action::ReportError), "upstream hears it");
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
    fn a_link_repeats_eos_and_opens_an_unlinked_stream() {
        let mut flow = streaming();
        let turn = flow.turn();
        let eos = Trigger::EventPushed { turn, is_eos: true, is_refused_and_kept: false };
        let _pushed = after(&mut flow, &[Trigger::Eos, eos]);
        assert!(flow.handle(Trigger::BeginTurn).is_skipped());
        assert_eq!(after(&mut flow, &[Trigger::Relink, Trigger::BeginTurn, Trigger::BeginTurn]), [Action::WakeQueue, Action::RepeatEos]);

        for result in [Return::NotLinked, Return::Flushing] {
            let mut flow = streaming();
            let turn = flow.turn();
            assert!(flow.handle(pushed(turn, result)).asks_for(Action::CloseQueue));
            assert_eq!(after(&mut flow, &[Trigger::Relink]), [Action::Reopen]);

            let mut flow = streaming();
            let turn = flow.turn();
            assert_eq!(after(&mut flow, &[Trigger::Relink, pushed(turn, result)]), [], "linked while {result:?} was on its way");
        }
    }

    #[test]
    fn a_stopped_element_is_opened_by_its_activation_alone() {
        let mut flow = streaming();
        let _actions = after(&mut flow, &[Trigger::Deactivate, Trigger::FlushStart, Trigger::FlushStop, Trigger::Relink]);
        assert!(flow.handle(Trigger::Open).is_skipped());
        assert_eq!(flow.state(), State::Stopped);
        let _actions = after(&mut flow, &[Trigger::Activate, Trigger::Open]);
        let opened = stopped_task(&flow);
        assert!(flow.handle(opened).asks_for(Action::StartTask));
    }
}
