//! Checks the state machine of `crates/inference/src/flow.rs` with a second driver, whose pads, queue and threads are simulated. A
//! breadth-first search tries all orders of the threads' steps until it finds no new state.
//!
//! The simulated pads behave like those of GStreamer: flags of flushes and activations, stored events, events sent to a peer, and locks. A
//! step is an atomic operation of the real driver: a transition with the actions under its lock, one action without the lock, or one query
//! of a pad.

mod driver;
mod explore;
mod threads;

use std::collections::VecDeque;
use std::hash::Hash;

use roiflow_check::flow::{Action, Epoch, Flow, Input, Return, State, Transition, Trigger, Turn};

use self::explore::explore;
use self::threads::{FLUSH, START, STOP};
use crate::Check;

pub fn checks() -> Vec<Check> {
    vec![
        Check {
            name: "a_flush_wakes_all_threads_and_the_stream_goes_on",
            bounds: "two flushes, a sink that blocks, a seek from the task; all states",
            run: || {
                explore(Scenario { n_flushes: 2, blocks: 1, ..Scenario::default() })
                    + explore(Scenario { seeks: 2, script: &[Caps(1), Segment(1), Frame(1), Frame(2)], ..Scenario::default() })
            },
        },
        Check {
            name: "a_flush_and_a_restart_leave_a_stream_that_takes_frames",
            bounds: "one flush, a stop, a start; all states",
            run: || {
                let script = &[Caps(1), Segment(1), Frame(1)];
                explore(Scenario { script, n_flushes: 1, restarts: true, ..Scenario::default() })
                    + explore(Scenario { script, seeks: 1, restarts: true, ..Scenario::default() })
            },
        },
        Check {
            name: "a_flush_behind_a_stop_starts_nothing",
            bounds: "two flushes, a link, a stop; all states",
            run: || {
                let script = &[Segment(1), Frame(1)];
                explore(Scenario { script, n_flushes: 2, stops: true, ..Scenario::default() })
                    + explore(Scenario { script, n_flushes: 1, relinks: true, stops: true, ..Scenario::default() })
            },
        },
        Check {
            name: "a_peer_that_is_linked_anew_gets_what_is_true_and_eos",
            bounds: "an unlink, a link, one flush; all states",
            run: || {
                explore(Scenario { relinks: true, ..Scenario::default() })
                    + explore(Scenario {
                        script: &[Caps(1), Segment(1), Frame(1), Eos],
                        relinks: true,
                        n_flushes: 1,
                        ..Scenario::default()
                    })
                    + explore(Scenario {
                        script: &[Caps(1), Segment(1), Frame(1), Caps(2), Frame(2)],
                        relinks: true,
                        parts: 1,
                        ..Scenario::default()
                    })
            },
        },
        Check {
            name: "an_error_is_heard_upstream_or_on_the_bus",
            bounds: "two errors or ends downstream, one flush; all states",
            run: || {
                explore(Scenario { errors: 1, ..Scenario::default() })
                    + explore(Scenario { errors: 1, n_flushes: 1, script: &[Caps(1), Segment(1), Frame(1), Eos], ..Scenario::default() })
                    + explore(Scenario {
                        ends: 2,
                        script: &[Segment(1), Frame(1), Frame(2), Segment(2), Frame(3), Eos],
                        ..Scenario::default()
                    })
                    + explore(Scenario { breaks: 1, errors: 1, n_flushes: 1, ..Scenario::default() })
            },
        },
        Check {
            name: "a_stream_survives_all_at_once",
            bounds: "a flush, a relink, a restart, an error; all states",
            run: || {
                let script = &[Segment(1), Frame(1)];
                explore(Scenario { script, n_flushes: 1, relinks: true, restarts: true, errors: 1, ..Scenario::default() })
            },
        },
    ]
}

use Item::{Caps, Eos, Frame, Segment};

/// Items that upstream sends. Numbers identify them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Item {
    Caps(u8),
    Segment(u8),
    Frame(u8),
    Eos,
}

impl Item {
    fn is_kept(self) -> bool {
        matches!(self, Caps(_) | Segment(_))
    }
}

/// The events that may occur, and how often each may occur.
#[derive(Clone, Copy)]
struct Scenario {
    /// Items that upstream sends first. After a flush and after a start, it sends a short stream.
    script: &'static [Item],
    n_flushes: u8,
    relinks: bool,
    stops: bool,
    restarts: bool,
    /// How often the sink blocks on a frame, until it is flushed, stopped or unlinked.
    blocks: u8,
    /// How often the sink returns an error (`errors`), EOS (`ends`), or Flushing because it was unlinked and stopped (`parts`).
    errors: u8,
    ends: u8,
    parts: u8,
    /// How often the sink seeks: it flushes upstream on the thread of the task.
    seeks: u8,
    /// How often the task reports an error because too many frames have failed.
    breaks: u8,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            script: &[Caps(1), Segment(1), Frame(1), Frame(2), Eos],
            n_flushes: 0,
            relinks: false,
            stops: false,
            restarts: false,
            blocks: 0,
            errors: 0,
            ends: 0,
            parts: 0,
            seeks: 0,
            breaks: 0,
        }
    }
}

const AFTER_FLUSH: &[Item] = &[Segment(8), Frame(8), Eos];
const AFTER_START: &[Item] = &[Caps(9), Segment(9), Frame(9), Eos];
/// Maximum number of frames in flight.
const CAPACITY: usize = 1;

/// A thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Who {
    Upstream,
    Flusher,
    Changer,
    Linker,
    /// One of the present or former tasks of the source pad.
    Task(usize),
}

/// The next step of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    // Steps of upstream.
    Send(Item),
    Verdict(Item),
    Admit(Item),
    PushIn(Item),
    Refused(Item),
    EosCame,
    Returns(Result<(), Return<u8>>),
    // Steps of the driver, on any thread.
    Handle(Trigger<u8>),
    TakeControl,
    DropControl,
    FlushForwarded,
    AwaitPause,
    Opens,
    StopTask,
    AwaitTask(usize),
    TaskStopped(Epoch),
    Store(Vec<Item>),
    StartTask,
    EndFlushDownstream,
    // Steps of the flushing thread.
    FlushStartCame,
    ForwardFlushStart,
    FlushStopCame,
    ForwardFlushStop,
    FlushOver,
    // Steps of the thread that changes states.
    SourceOff,
    SourceCleared,
    SinkOff,
    SinkCleared,
    Starts,
    SourceOn,
    SinkOn,
    SinkIsOn,
    Begins,
    // Steps of the linking thread.
    Unlink,
    Link,
    // Steps of the task.
    Turn,
    Take(Turn),
    Closed,
    RepeatEos,
    PushEvent(Turn, Item),
    EventPushed(Turn, Item, bool),
    PushFrame(Turn, u8, u8),
    Blocked(Turn, u8, u8),
    Breaks(Turn, u8),
    FramePushed(Turn, Return<u8>, u8),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Entry {
    item: Item,
    is_done: bool,
    ticket: u8,
    /// How often the queue had been closed and the pad had been flushed when the item arrived.
    closings: u8,
    flushes: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Stored {
    item: Option<Item>,
    is_received: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum TaskState {
    Started,
    Paused,
    Stopped,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Task {
    state: TaskState,
    steps: Vec<Step>,
}

/// The state of all threads and everything that they share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    flow: Flow<u8>,
    is_open: bool,
    is_woken: bool,
    queue: VecDeque<Entry>,
    next_ticket: u8,
    kept: Vec<Item>,
    /// Runs in progress. Each has the ticket of the frame, the epoch, and how often the queue had been closed.
    runs: Vec<(u8, Epoch, u8)>,

    sink_is_active: bool,
    sink_is_flushing: bool,
    /// Stream lock of the sink pad.
    sink_lock: Option<Who>,
    source_is_active: bool,
    source_is_flushing: bool,
    is_linked: bool,
    n_links: u8,
    /// Sticky events of the source pad: caps, segment, EOS.
    sticky: [Stored; 3],
    /// The last caps, segment and EOS that the peer has received.
    peer: [Option<Item>; 3],
    tasks: [Option<Task>; 3],
    of_pad: Option<usize>,
    /// Stream lock of the source pad: the task that is in a turn.
    source_lock: Option<usize>,
    control: Option<Who>,

    upstream: Vec<Step>,
    flusher: Vec<Step>,
    changer: Vec<Step>,
    linker: Vec<Step>,
    flushes_left: u8,
    /// How often each kind of event may still occur.
    left: [u8; 6],

    // The following fields are only for assertions; the driver does not use them.
    closings: u8,
    flushes: u8,
    next_to_push: u8,
    /// Last caps, segment and EOS that upstream sent and that were accepted.
    accepted: [Option<Item>; 3],
    has_heard_error: bool,
    bus_has_error: bool,
    /// Downstream returned EOS, and no segment followed.
    has_ended: bool,
    violation: Option<&'static str>,
}

const BLOCKS: usize = 0;
const ERRORS: usize = 1;
const ENDS: usize = 2;
const PARTS: usize = 3;
const SEEKS: usize = 4;
const BREAKS: usize = 5;

fn place(item: Item) -> usize {
    match item {
        Caps(_) => 0,
        Segment(_) => 1,
        Eos => 2,
        Frame(_) => unreachable!("no event"),
    }
}

fn script(items: &[Item]) -> Vec<Step> {
    items.iter().rev().map(|item| Step::Send(*item)).collect()
}
