//! The steps of each simulated thread.

use super::*;

impl World {
    /// Returns the states after the next step of this thread: several if the sink has a choice, none if the thread is blocked.
    pub(super) fn run(&self, who: Who) -> Vec<Self> {
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
                if transition.requires(Action::RefuseEvent) {
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
                if transition.requires(Action::RetryEvent) {
                    world.next(who, [Step::PushIn(item)]);
                } else if transition.requires(Action::KeepEvent) {
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
                        // The flushing thread sends the items after the flush.
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
                if transition.requires(Action::AwaitPause) {
                    world.next(who, [Step::DropControl]);
                } else if !is_task {
                    world.control = None;
                }
                world.perform(who, transition);
            }
            // First sets the state of the task, then waits for the lock of the current turn.
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
                if transition.requires(Action::StoreEvents) {
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
                    // If upstream has not sent caps before the flush, it sends them after the flush.
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
                if transition.requires(Action::KeepEventFirst) {
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
                        // The peer is unlinked during the push, and is then stopped.
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

    pub(super) fn end_turn(&mut self, who: Who) {
        self.source_lock = None;
        // The remaining steps of this turn run first, then the next turn begins.
        self.steps(who).insert(0, Step::Turn);
    }

    /// Completes a run, whose epoch may have ended.
    pub(super) fn end_run(&self, run: usize) -> Self {
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

    /// Returns all successor states, each with the thread of its step; `None` for the end of a run.
    pub(super) fn successors(&self) -> Vec<(Option<Who>, Self)> {
        let tasks = (0..self.tasks.len()).filter(|task| self.tasks[*task].is_some()).map(Who::Task);
        let threads = [Who::Upstream, Who::Flusher, Who::Changer, Who::Linker].into_iter().chain(tasks);
        let steps = threads.flat_map(|who| self.run(who).into_iter().map(move |world| (Some(who), world)));
        steps.chain((0..self.runs.len()).map(|run| (None, self.end_run(run)))).collect()
    }
}

/// Steps of a procedure, in reverse order.
pub(super) const FLUSH: [Step; 3] = [Step::FlushOver, Step::FlushStopCame, Step::FlushStartCame];
pub(super) const FLUSH_START: [Step; 4] =
    [Step::Handle(Trigger::FlushStart), Step::ForwardFlushStart, Step::TakeControl, Step::FlushForwarded];
pub(super) const STOP: [Step; 9] = [
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
pub(super) const START: [Step; 6] =
    [Step::SinkIsOn, Step::SinkOn, Step::Opens, Step::Handle(Trigger::Activate), Step::SourceOn, Step::Starts];
