//! The life of a stream: `crates/inference/src/flow.rs` behind a second driver, whose pads, queue and threads are simulated. All orders of the threads'
//! steps are tried, breadth first, until no new state is found.
//!
//! The simulated pads follow GStreamer: which flag a flush and an activation set and clear, when an event is stored, what a peer is told of
//! stored events, which lock is held. A step is what the real driver does in one go: a transition with what is done under its lock, one action
//! without the lock, or one look at a pad.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use roiflow_check::flow::{Action, Epoch, Flow, Input, Return, State, Transition, Trigger, Turn};

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

/// What upstream sends. The numbers tell one from another.
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

/// What may happen, each so many times.
#[derive(Clone, Copy)]
struct Scenario {
    /// What upstream sends first. Behind a flush, and behind a start, it sends a short stream.
    script: &'static [Item],
    n_flushes: u8,
    relinks: bool,
    stops: bool,
    restarts: bool,
    /// The sink blocks a frame until it is flushed, stopped or unlinked.
    blocks: u8,
    /// The sink returns an error, EOS, or Flushing because it was unlinked and stopped.
    errors: u8,
    ends: u8,
    parts: u8,
    /// The sink flushes upstream, on the thread of the task.
    seeks: u8,
    /// Inference fails once too often.
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
/// Frames that may be in flight.
const CAPACITY: usize = 1;

/// A thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Who {
    Upstream,
    Flusher,
    Changer,
    Linker,
    /// One of the tasks that the source pad has or had.
    Task(usize),
}

/// What a thread does next, in one go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    // Upstream.
    Send(Item),
    Verdict(Item),
    Admit(Item),
    PushIn(Item),
    Refused(Item),
    EosCame,
    Returns(Result<(), Return<u8>>),
    // Any thread: the driver.
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
    // The flusher.
    FlushStartCame,
    ForwardFlushStart,
    FlushStopCame,
    ForwardFlushStop,
    FlushOver,
    // The changer of states.
    SourceOff,
    SourceCleared,
    SinkOff,
    SinkCleared,
    Starts,
    SourceOn,
    SinkOn,
    SinkIsOn,
    Begins,
    // The linker.
    Unlink,
    Link,
    // The task.
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
    /// How often the queue had been closed, and the pad been flushed, when it came.
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

/// Everything that the threads share, and where they are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    flow: Flow<u8>,
    is_open: bool,
    is_woken: bool,
    queue: VecDeque<Entry>,
    next_ticket: u8,
    kept: Vec<Item>,
    /// Runs that have not ended: the frame's ticket, the epoch that they carry, and how often the queue had been closed.
    runs: Vec<(u8, Epoch, u8)>,

    sink_is_active: bool,
    sink_is_flushing: bool,
    /// The stream lock of the sink pad.
    sink_lock: Option<Who>,
    source_is_active: bool,
    source_is_flushing: bool,
    is_linked: bool,
    n_links: u8,
    /// Sticky events of the source pad: caps, segment, EOS.
    sticky: [Stored; 3],
    /// What the peer has: the caps, the segment, whether EOS came.
    peer: [Option<Item>; 3],
    tasks: [Option<Task>; 3],
    of_pad: Option<usize>,
    /// The stream lock of the source pad: the task that has its turn.
    source_lock: Option<usize>,
    control: Option<Who>,

    upstream: Vec<Step>,
    flusher: Vec<Step>,
    changer: Vec<Step>,
    linker: Vec<Step>,
    flushes_left: u8,
    /// Blocks, errors, ends, parts, seeks, breaks that are left.
    left: [u8; 6],

    // What the checks look at, and no driver knows.
    closings: u8,
    flushes: u8,
    next_to_push: u8,
    /// The caps, the segment and EOS that upstream sent last and that were accepted.
    accepted: [Option<Item>; 3],
    has_heard_error: bool,
    bus_has_error: bool,
    /// Downstream returned EOS, and no segment came since.
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

impl World {
    fn new(scenario: &Scenario) -> Self {
        let mut world = Self {
            flow: Flow::default(),
            is_open: false,
            is_woken: false,
            queue: VecDeque::new(),
            next_ticket: 0,
            kept: Vec::new(),
            runs: Vec::new(),
            sink_is_active: true,
            sink_is_flushing: false,
            sink_lock: None,
            source_is_active: true,
            source_is_flushing: false,
            is_linked: true,
            n_links: 0,
            sticky: Default::default(),
            peer: [None; 3],
            tasks: [const { None }; 3],
            of_pad: None,
            source_lock: None,
            control: None,
            upstream: script(scenario.script),
            flusher: Vec::new(),
            changer: Vec::new(),
            linker: if scenario.relinks { vec![Step::Link, Step::Unlink] } else { Vec::new() },
            flushes_left: scenario.n_flushes,
            left: [scenario.blocks, scenario.errors, scenario.ends, scenario.parts, scenario.seeks, scenario.breaks],
            closings: 0,
            flushes: 0,
            next_to_push: 0,
            accepted: [None; 3],
            has_heard_error: false,
            bus_has_error: false,
            has_ended: false,
            violation: None,
        };
        // Active, with a task that has begun.
        let who = Who::Changer;
        world.changer = vec![Step::Opens, Step::Handle(Trigger::Activate), Step::Handle(Trigger::Start)];
        while !world.changer.is_empty() {
            world = world.run(who).pop().expect("one thread alone is never blocked");
        }
        if scenario.restarts || scenario.stops {
            world.changer = if scenario.restarts { START.to_vec() } else { Vec::new() };
            world.changer.extend_from_slice(&STOP);
        }
        if scenario.n_flushes > 0 {
            world.begin_flush();
        }
        world
    }

    fn begin_flush(&mut self) {
        self.flushes_left -= 1;
        self.flusher = FLUSH.to_vec();
    }

    fn steps(&mut self, who: Who) -> &mut Vec<Step> {
        match who {
            Who::Upstream => &mut self.upstream,
            Who::Flusher => &mut self.flusher,
            Who::Changer => &mut self.changer,
            Who::Linker => &mut self.linker,
            Who::Task(task) => &mut self.tasks[task].as_mut().expect("it runs").steps,
        }
    }

    fn next(&mut self, who: Who, steps: impl IntoIterator<Item = Step>) {
        let mut steps: Vec<Step> = steps.into_iter().collect();
        steps.reverse();
        self.steps(who).append(&mut steps);
    }

    fn fail(&mut self, violation: &'static str) {
        self.violation.get_or_insert(violation);
    }

    /// As the real driver's `handle`: the transition, and what is done under its lock.
    fn handle(&mut self, trigger: Trigger<u8>) -> Transition<u8> {
        let transition = self.flow.handle(trigger);
        for action in transition.actions() {
            match action {
                Action::CloseQueue => {
                    self.closings += 1;
                    self.is_open = false;
                    for entry in std::mem::take(&mut self.queue) {
                        if entry.item.is_kept() {
                            self.keep(entry.item);
                        }
                    }
                }
                Action::OpenQueue => self.is_open = true,
                Action::WakeQueue => self.is_woken = true,
                Action::SkipToSegment => {
                    let mut skipped = Vec::new();
                    while let Some(entry) = self.queue.front() {
                        if matches!(entry.item, Segment(_) | Eos) {
                            break;
                        }
                        skipped.extend(self.queue.pop_front());
                    }
                    let found = !self.queue.is_empty();
                    let _input = self.flow.handle(Trigger::SegmentSkipped { found });
                    self.has_ended |= !found;
                    for entry in skipped.iter().filter(|entry| entry.item.is_kept()) {
                        self.store(entry.item);
                    }
                }
                Action::ForgetEvents => self.kept.clear(),
                Action::ForgetSegment => self.kept.retain(|item| !matches!(item, Segment(_))),
                Action::ReportError => self.bus_has_error = true,
                _ => {}
            }
        }
        if self.is_open != self.flow.is_open() {
            self.fail("the queue is open exactly while the stream runs");
        }
        transition
    }

    fn keep(&mut self, item: Item) {
        match self.kept.iter_mut().find(|kept| place(**kept) == place(item)) {
            Some(kept) => *kept = item,
            None => self.kept.push(item),
        }
    }

    /// The steps of the actions that are done without the lock.
    fn perform(&mut self, who: Who, transition: Transition<u8>) {
        let steps: Vec<Step> = transition
            .actions()
            .iter()
            .flat_map(|action| match action {
                Action::AwaitPause => vec![Step::AwaitPause],
                Action::StopTask => vec![Step::StopTask],
                Action::StartTask => vec![Step::StartTask],
                Action::RepeatEos => vec![Step::RepeatEos],
                Action::EndFlushDownstream => vec![Step::EndFlushDownstream],
                Action::Reopen => vec![Step::Opens],
                _ => Vec::new(),
            })
            .collect();
        self.next(who, steps);
    }

    fn pause(&mut self, transition: Transition<u8>) {
        if transition.asks_for(Action::PauseTask) {
            self.set_task(TaskState::Paused);
        }
    }

    /// Of the pad's task, if it has one.
    fn set_task(&mut self, state: TaskState) {
        if let Some(task) = self.of_pad.and_then(|task| self.tasks[task].as_mut()) {
            task.state = state;
        }
    }

    /// Upstream's event has a place.
    fn accept(&mut self, item: Item) {
        self.accepted[place(item)] = Some(item);
        let done = Step::Returns(Ok(()));
        if matches!(item, Segment(_)) {
            self.accepted[2] = None;
            self.has_ended = false;
            self.next(Who::Upstream, [Step::Handle(Trigger::BeginStream), done]);
        } else {
            self.next(Who::Upstream, [done]);
        }
    }

    /// Stores a sticky event on the source pad; whether it did.
    fn store(&mut self, item: Item) -> bool {
        if !self.source_is_active || (self.source_is_flushing && !matches!(item, Caps(_))) {
            return false;
        }
        self.sticky[place(item)] = Stored { item: Some(item), is_received: false };
        if item != Eos {
            self.sticky[2] = Stored::default();
        }
        true
    }

    /// FLUSH_STOP passes the source pad.
    fn source_flush_ends(&mut self) {
        self.source_is_flushing = false;
        (self.sticky[1], self.sticky[2]) = (Stored::default(), Stored::default());
        (self.peer[1], self.peer[2]) = (None, None);
    }

    /// Tells the peer of what is stored, in order.
    fn tell_peer(&mut self) {
        for kind in 0..3 {
            if let Stored { item: Some(item), is_received: false } = self.sticky[kind] {
                self.sticky[kind].is_received = true;
                self.peer[kind] = Some(item);
                if item != Eos {
                    self.peer[2] = None;
                }
            }
        }
    }

    /// The state when this thread has done its next step: several if the sink can do one or another, none if the thread is blocked.
    fn run(&self, who: Who) -> Vec<Self> {
        let mut world = self.clone();
        let Some(step) = world.steps(who).pop() else { return Vec::new() };
        let is_task = matches!(who, Who::Task(_));
        match step {
            Step::Send(item) => {
                if world.sink_lock.is_some() {
                    return Vec::new();
                }
                world.sink_lock = Some(who);
                if !world.sink_is_active || world.sink_is_flushing {
                    world.next(who, [Step::Returns(Err(Return::Flushing))]);
                } else {
                    world.next(
                        who,
                        [match item {
                            Frame(_) => Step::Verdict(item),
                            Eos => Step::EosCame,
                            item => Step::PushIn(item),
                        }],
                    );
                }
            }
            Step::Verdict(item) => match world.flow.upstream() {
                Return::Ok => world.next(who, [Step::Admit(item)]),
                refusal => {
                    if refusal == Return::Eos && !world.has_ended {
                        world.fail("a segment ends the EOS of downstream");
                    }
                    world.next(who, [Step::Returns(Err(refusal))]);
                }
            },
            Step::Admit(item) => {
                let n_frames = world.queue.iter().filter(|entry| matches!(entry.item, Frame(_))).count();
                if !world.is_open {
                    let refusal = Some(world.flow.upstream()).filter(|refusal| *refusal != Return::Ok).unwrap_or(Return::Flushing);
                    world.next(who, [Step::Returns(Err(refusal))]);
                } else if n_frames >= CAPACITY {
                    return Vec::new();
                } else {
                    let ticket = world.next_ticket;
                    world.next_ticket += 1;
                    let (closings, flushes) = (world.closings, world.flushes);
                    world.queue.push_back(Entry { item, is_done: false, ticket, closings, flushes });
                    world.runs.push((ticket, world.flow.epoch(), closings));
                    let result = match world.flow.upstream() {
                        Return::Ok => Ok(()),
                        refusal => Err(refusal),
                    };
                    world.next(who, [Step::Returns(result)]);
                }
            }
            Step::EosCame => {
                let transition = world.handle(Trigger::Eos);
                if transition.asks_for(Action::RefuseEvent) {
                    world.next(who, [Step::Returns(Ok(()))]);
                } else {
                    world.next(who, [Step::PushIn(Eos)]);
                }
            }
            Step::PushIn(item) => {
                if !world.is_open {
                    world.next(who, [Step::Refused(item)]);
                } else {
                    let (closings, flushes) = (world.closings, world.flushes);
                    world.queue.push_back(Entry { item, is_done: true, ticket: u8::MAX, closings, flushes });
                    world.accept(item);
                }
            }
            Step::Refused(item) => {
                let transition = world.handle(Trigger::EventRefused { is_kept: item.is_kept() });
                if transition.asks_for(Action::RetryEvent) {
                    world.next(who, [Step::PushIn(item)]);
                } else if transition.asks_for(Action::KeepEvent) {
                    world.keep(item);
                    world.accept(item);
                } else {
                    if world.is_open {
                        world.fail("an event is refused only while the queue is closed");
                    }
                    world.next(who, [Step::Returns(Ok(()))]);
                }
            }
            Step::Returns(result) => {
                world.sink_lock = None;
                if let Err(refusal) = result {
                    world.has_heard_error |= matches!(refusal, Return::NotLinked | Return::Error(_));
                    match refusal {
                        // What comes behind the flush comes from the thread that flushes.
                        Return::Flushing => world.upstream.clear(),
                        Return::Eos => {
                            while world.upstream.last().is_some_and(|step| matches!(step, Step::Send(Frame(_) | Caps(_)))) {
                                world.upstream.pop();
                            }
                        }
                        Return::NotLinked => {}
                        _ => world.upstream = vec![Step::Send(Eos)],
                    }
                }
            }

            Step::Handle(trigger) => {
                let transition = world.handle(trigger);
                world.perform(who, transition);
            }
            Step::TakeControl => {
                if !is_task {
                    if world.control.is_some() {
                        return Vec::new();
                    }
                    world.control = Some(who);
                }
            }
            Step::DropControl => {
                if !is_task {
                    world.control = None;
                }
            }
            Step::FlushForwarded => {
                let sink_is_flushing = world.sink_is_flushing;
                let transition = world.handle(Trigger::FlushForwarded { sink_is_flushing });
                if transition.asks_for(Action::AwaitPause) {
                    world.next(who, [Step::DropControl]);
                } else if !is_task {
                    world.control = None;
                }
                world.perform(who, transition);
            }
            // The state first, then the lock of the turn.
            Step::AwaitPause => {
                world.set_task(TaskState::Paused);
                if !is_task && self.source_lock.is_some() {
                    world.next(who, [Step::AwaitPause]);
                    return if *self == world { Vec::new() } else { vec![world] };
                }
            }
            Step::Opens => {
                let transition = {
                    if !is_task {
                        if world.control.is_some() {
                            return Vec::new();
                        }
                        world.control = Some(who);
                    }
                    world.handle(Trigger::Open)
                };
                if transition.is_skipped() {
                    world.next(who, [Step::DropControl]);
                } else {
                    let epoch = world.flow.epoch();
                    world.next(who, [Step::TaskStopped(epoch), Step::DropControl]);
                    world.perform(who, transition);
                }
            }
            Step::StopTask => {
                if !is_task && let Some(task) = world.of_pad.take() {
                    world.tasks[task].as_mut().expect("the pad's").state = TaskState::Stopped;
                    world.next(who, [Step::AwaitTask(task)]);
                }
            }
            Step::AwaitTask(task) => {
                if world.tasks[task].is_some() {
                    return Vec::new();
                }
            }
            Step::TaskStopped(epoch) => {
                let has_events = !world.kept.is_empty();
                let transition = world.handle(Trigger::TaskStopped { epoch, has_events });
                if transition.asks_for(Action::StoreEvents) {
                    let events = std::mem::take(&mut world.kept);
                    world.next(who, [Step::Store(events), Step::TaskStopped(epoch)]);
                }
                world.perform(who, transition);
            }
            Step::Store(events) => events.into_iter().for_each(|event| {
                world.store(event);
            }),
            Step::StartTask => match world.of_pad {
                Some(_) => world.set_task(TaskState::Started),
                None => {
                    let Some(free) = world.tasks.iter().position(Option::is_none) else { return Vec::new() };
                    world.tasks[free] = Some(Task { state: TaskState::Started, steps: vec![Step::Turn] });
                    world.of_pad = Some(free);
                }
            },
            Step::EndFlushDownstream => {
                if world.source_is_flushing && world.source_is_active {
                    world.source_flush_ends();
                }
            }

            Step::FlushStartCame => {
                if world.sink_is_active {
                    world.sink_is_flushing = true;
                    world.next(who, FLUSH_START);
                }
            }
            Step::ForwardFlushStart => world.source_is_flushing = true,
            Step::FlushStopCame => {
                if world.sink_lock.is_some() {
                    return Vec::new();
                }
                if world.sink_is_active {
                    world.sink_lock = Some(who);
                    world.sink_is_flushing = false;
                    world.next(
                        who,
                        [Step::TakeControl, Step::Handle(Trigger::FlushStop), Step::DropControl, Step::ForwardFlushStop, Step::Opens],
                    );
                }
            }
            Step::ForwardFlushStop => {
                if world.source_is_active {
                    world.flushes += 1;
                    world.source_flush_ends();
                }
                (world.accepted[1], world.accepted[2]) = (None, None);
            }
            Step::FlushOver => {
                if world.sink_lock == Some(who) {
                    world.sink_lock = None;
                    // Caps that have not been sent come with what is behind the flush.
                    let caps = world.upstream.iter().find(|step| matches!(step, Step::Send(Caps(_)))).cloned();
                    world.upstream = script(AFTER_FLUSH);
                    world.upstream.extend(caps);
                }
                if world.flushes_left > 0 && who == Who::Flusher {
                    world.begin_flush();
                }
            }

            Step::SourceOff => (world.source_is_active, world.source_is_flushing) = (false, true),
            Step::SourceCleared => {
                if world.source_lock.is_some() {
                    return Vec::new();
                }
                (world.sticky, world.peer, world.accepted) = (Default::default(), [None; 3], [None; 3]);
                world.flushes += 1;
            }
            Step::SinkOff => (world.sink_is_active, world.sink_is_flushing) = (false, true),
            Step::SinkCleared => {
                if world.sink_lock.is_some() {
                    return Vec::new();
                }
                world.upstream.clear();
            }
            Step::Starts => {
                let _epoch = world.handle(Trigger::Start);
                world.kept.clear();
                world.accepted = [None; 3];
            }
            Step::SourceOn => (world.source_is_active, world.source_is_flushing) = (true, false),
            Step::SinkOn => (world.sink_is_active, world.sink_is_flushing) = (true, false),
            Step::SinkIsOn => {
                let sink_is_flushing = world.sink_is_flushing;
                let transition = world.handle(Trigger::SinkActivated { sink_is_flushing });
                world.next(who, [Step::Begins]);
                world.perform(who, transition);
            }

            Step::Begins => {
                if world.upstream.is_empty() {
                    world.upstream = script(AFTER_START);
                }
            }

            Step::Unlink => world.is_linked = false,
            Step::Link => {
                (world.is_linked, world.peer) = (true, [None; 3]);
                world.n_links += 1;
                world.sticky.iter_mut().for_each(|stored| stored.is_received = false);
                world.next(who, [Step::Handle(Trigger::Relink)]);
            }

            Step::Turn => {
                let Who::Task(here) = who else { unreachable!("only a task has turns") };
                match world.tasks[here].as_ref().expect("it runs").state {
                    TaskState::Stopped => world.tasks[here] = None,
                    TaskState::Started if world.source_lock.is_none() => {
                        world.source_lock = Some(here);
                        let transition = world.handle(Trigger::BeginTurn);
                        let turn = world.flow.turn();
                        world.next(who, [Step::Take(turn)]);
                        world.perform(who, transition);
                    }
                    _ => return Vec::new(),
                }
            }
            Step::RepeatEos => {
                if world.source_is_active && !world.source_is_flushing && world.is_linked {
                    world.tell_peer();
                }
            }
            Step::Take(turn) => {
                if !world.is_open {
                    world.next(who, [Step::Closed]);
                } else if std::mem::take(&mut world.is_woken) {
                    world.end_turn(who);
                } else {
                    if !world.queue.front().is_some_and(|entry| entry.is_done) {
                        return Vec::new();
                    }
                    let entry = world.queue.pop_front().expect("there is a front");
                    world.next(
                        who,
                        [match entry.item {
                            Frame(_) => Step::PushFrame(turn, entry.ticket, entry.flushes),
                            item => Step::PushEvent(turn, item),
                        }],
                    );
                }
            }
            Step::Closed => {
                let transition = world.handle(Trigger::QueueClosed);
                world.pause(transition);
                world.end_turn(who);
            }
            Step::PushEvent(turn, item) => {
                let is_stored = world.store(item);
                let is_taken = is_stored && !world.source_is_flushing;
                if is_taken && world.is_linked {
                    world.tell_peer();
                }
                world.next(who, [Step::EventPushed(turn, item, is_taken)]);
            }
            Step::EventPushed(turn, item, is_taken) => {
                let trigger = Trigger::EventPushed { turn, is_eos: item == Eos, is_refused_and_kept: !is_taken && item.is_kept() };
                let transition = world.handle(trigger);
                if transition.asks_for(Action::KeepEventFirst) {
                    world.kept.insert(0, item);
                }
                world.end_turn(who);
            }
            Step::PushFrame(turn, ticket, flushes) => {
                let (n_links, closings) = (world.n_links, world.closings);
                if !world.source_is_active || world.source_is_flushing {
                    world.next(who, [Step::FramePushed(turn, Return::Flushing, closings)]);
                } else if !world.is_linked {
                    world.next(who, [Step::FramePushed(turn, Return::NotLinked, closings)]);
                } else {
                    world.tell_peer();
                    if flushes != world.flushes {
                        world.fail("no frame of before a flush leaves behind it");
                    }
                    if ticket < world.next_to_push {
                        world.fail("frames leave in order, and once");
                    }
                    world.next_to_push = ticket + 1;
                    let answers = [
                        (BLOCKS, vec![Step::Blocked(turn, n_links, closings)]),
                        (ERRORS, vec![Step::FramePushed(turn, Return::Error(1), closings)]),
                        (ENDS, vec![Step::FramePushed(turn, Return::Eos, closings)]),
                        // The peer is unlinked in mid-push, and then stopped.
                        (PARTS, vec![Step::Blocked(turn, n_links, closings)]),
                        (SEEKS, [&[Step::FramePushed(turn, Return::Flushing, closings)], FLUSH.as_slice()].concat()),
                        (BREAKS, vec![Step::Breaks(turn, closings)]),
                    ];
                    let mut worlds: Vec<World> = answers
                        .into_iter()
                        .filter(|(kind, _)| world.left[*kind] > 0)
                        .map(|(kind, steps)| {
                            let mut world = world.clone();
                            world.left[kind] -= 1;
                            world.steps(who).extend(steps);
                            world
                        })
                        .collect();
                    world.next(who, [Step::FramePushed(turn, Return::Ok, closings)]);
                    worlds.push(world);
                    return worlds;
                }
            }
            Step::Blocked(turn, n_links, closings) => {
                if world.source_is_flushing || !world.is_linked || world.n_links != n_links {
                    world.next(who, [Step::FramePushed(turn, Return::Flushing, closings)]);
                } else {
                    return Vec::new();
                }
            }
            Step::Breaks(turn, closings) => {
                let result = if world.handle(Trigger::Break { turn }).is_skipped() { Return::Ok } else { Return::Error(2) };
                world.next(who, [Step::FramePushed(turn, result, closings)]);
            }
            Step::FramePushed(turn, result, closings) => {
                if result != Return::Ok {
                    let is_linked = world.is_linked;
                    let is_late = closings != world.closings;
                    let transition = world.handle(Trigger::FramePushed { turn, result, is_linked });
                    if is_late && !transition.is_skipped() {
                        world.fail("what ends in a later epoch changes nothing");
                    }
                    world.pause(transition);
                    world.perform(who, transition);
                }
                world.end_turn(who);
            }
        }
        vec![world]
    }

    fn end_turn(&mut self, who: Who) {
        self.source_lock = None;
        // What is left of the turn comes first.
        self.steps(who).insert(0, Step::Turn);
    }

    /// A run ends, in time or late.
    fn end_run(&self, run: usize) -> Self {
        let mut world = self.clone();
        let (ticket, epoch, closings) = world.runs.remove(run);
        if world.flow.epoch() == epoch && closings != world.closings {
            world.fail("what ends in a later epoch changes nothing");
        }
        if let Some(entry) = world.queue.iter_mut().find(|entry| entry.ticket == ticket) {
            entry.is_done = true;
        }
        world
    }

    /// All states that come next, each with the thread whose step leads to it; none for a run that ends.
    fn successors(&self) -> Vec<(Option<Who>, Self)> {
        let tasks = (0..self.tasks.len()).filter(|task| self.tasks[*task].is_some()).map(Who::Task);
        let threads = [Who::Upstream, Who::Flusher, Who::Changer, Who::Linker].into_iter().chain(tasks);
        let steps = threads.flat_map(|who| self.run(who).into_iter().map(move |world| (Some(who), world)));
        steps.chain((0..self.runs.len()).map(|run| (None, self.end_run(run)))).collect()
    }

    /// What must hold where no thread can go on.
    fn check_end(&self) -> Option<&'static str> {
        if !self.flusher.is_empty() || !self.changer.is_empty() || !self.linker.is_empty() {
            return Some("a flush, a change of state and a link end");
        }
        let is_blocked = self.tasks.iter().flatten().any(|task| matches!(task.steps.last(), Some(Step::Blocked(..))));
        if !self.upstream.is_empty() && !is_blocked {
            return Some("upstream is woken");
        }
        if !self.source_is_active {
            let is_idle = self.tasks.iter().all(Option::is_none) && !self.is_open;
            return (!is_idle).then_some("a stopped element has no task, and takes nothing");
        }
        if !self.sink_is_active || self.sink_is_flushing || is_blocked {
            return None;
        }
        match self.flow.state() {
            State::Stopped | State::Flushing | State::PeerFlushing => return Some("behind a flush or a start the stream takes frames"),
            State::Unlinked if self.is_linked => return Some("a stream whose pad is linked takes frames"),
            State::Unlinked | State::Failed(_) | State::Broken(_) => {
                return (!self.has_heard_error && !self.bus_has_error).then_some("an error is heard upstream or on the bus");
            }
            State::Streaming { .. } => {}
        }
        let is_waiting =
            self.of_pad.and_then(|task| self.tasks[task].as_ref()).is_some_and(|task| matches!(task.steps.last(), Some(Step::Take(_))));
        if !is_waiting || !self.queue.is_empty() {
            return Some("the task takes what is in the queue");
        }
        if !self.kept.is_empty() {
            return Some("events that are kept reach the pad");
        }
        for kind in [0, 1] {
            if self.sticky[kind].item != self.accepted[kind] {
                return Some("the pad has the events that upstream sent last");
            }
        }
        if self.accepted[2].is_some() && self.is_linked && self.peer[2].is_none() && !self.bus_has_error {
            return Some("EOS reaches the peer, or an error the bus");
        }
        let State::Streaming { input, .. } = self.flow.state() else { unreachable!("returned above") };
        (input == Input::Refused && self.accepted[2].is_some()).then_some("EOS is accepted behind an end downstream")
    }
}

/// Steps of a procedure, the last one first.
const FLUSH: [Step; 3] = [Step::FlushOver, Step::FlushStopCame, Step::FlushStartCame];
const FLUSH_START: [Step; 4] = [Step::Handle(Trigger::FlushStart), Step::ForwardFlushStart, Step::TakeControl, Step::FlushForwarded];
const STOP: [Step; 9] = [
    Step::SinkCleared,
    Step::SinkOff,
    Step::SourceCleared,
    Step::DropControl,
    Step::StopTask,
    Step::TakeControl,
    Step::Handle(Trigger::Deactivate),
    Step::SourceOff,
    Step::Handle(Trigger::Deactivate),
];
const START: [Step; 6] = [Step::SinkIsOn, Step::SinkOn, Step::Opens, Step::Handle(Trigger::Activate), Step::SourceOn, Step::Starts];

fn hash(world: &impl Hash) -> u128 {
    let half = |seed: u64| {
        let mut hasher = DefaultHasher::new();
        (seed, world).hash(&mut hasher);
        hasher.finish()
    };
    (u128::from(half(1)) << 64) | u128::from(half(2))
}

/// Visits all states, and gives their number. Panics with the steps that lead to a violation.
fn explore(scenario: Scenario) -> usize {
    let first = World::new(&scenario);
    let mut seen = HashSet::from([hash(&first)]);
    // Which state each comes from, and by which of its successors.
    let mut origins: Vec<(usize, usize)> = vec![(0, 0)];
    let mut waiting = VecDeque::from([(0, first)]);
    while let Some((idx, world)) = waiting.pop_front() {
        let successors = world.successors();
        let violation = world.violation.or_else(|| if successors.is_empty() { world.check_end() } else { None });
        if let Some(violation) = violation {
            report(&scenario, &origins, idx, violation, &world);
        }
        for (successor_idx, (_, successor)) in successors.into_iter().enumerate() {
            if seen.insert(hash(&successor)) {
                origins.push((idx, successor_idx));
                waiting.push_back((origins.len() - 1, successor));
            }
        }
    }
    seen.len()
}

fn report(scenario: &Scenario, origins: &[(usize, usize)], mut idx: usize, violation: &str, last: &impl Debug) -> ! {
    let mut path = Vec::new();
    while idx != 0 {
        path.push(origins[idx].1);
        idx = origins[idx].0;
    }
    let mut world = World::new(scenario);
    let mut steps = Vec::new();
    for successor_idx in path.into_iter().rev() {
        let (who, next) = world.successors().swap_remove(successor_idx);
        steps.push(who.map_or("a run ends".to_owned(), |who| format!("{who:?} {:?}", world.steps(who).last())));
        world = next;
    }
    panic!("{violation}, but not after:\n  {}\nin {last:#?}", steps.join("\n  "));
}
