//! Implements the operations of the driver and of the simulated pads that hold locks.

use super::*;

impl World {
    pub(super) fn new(scenario: &Scenario) -> Self {
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
        // Initially the pads are active, and the task has started.
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

    pub(super) fn begin_flush(&mut self) {
        self.flushes_left -= 1;
        self.flusher = FLUSH.to_vec();
    }

    pub(super) fn steps(&mut self, who: Who) -> &mut Vec<Step> {
        match who {
            Who::Upstream => &mut self.upstream,
            Who::Flusher => &mut self.flusher,
            Who::Changer => &mut self.changer,
            Who::Linker => &mut self.linker,
            Who::Task(task) => &mut self.tasks[task].as_mut().expect("it runs").steps,
        }
    }

    pub(super) fn next(&mut self, who: Who, steps: impl IntoIterator<Item = Step>) {
        let mut steps: Vec<Step> = steps.into_iter().collect();
        steps.reverse();
        self.steps(who).append(&mut steps);
    }

    pub(super) fn fail(&mut self, violation: &'static str) {
        self.violation.get_or_insert(violation);
    }

    /// Like `handle` of the real driver: makes a transition, and executes the actions that the driver executes under its lock.
    pub(super) fn handle(&mut self, trigger: Trigger<u8>) -> Transition<u8> {
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
                Action::DiscardEvents => self.kept.clear(),
                Action::DiscardSegment => self.kept.retain(|item| !matches!(item, Segment(_))),
                Action::ReportError => self.bus_has_error = true,
                _ => {}
            }
        }
        if self.is_open != self.flow.is_open() {
            self.fail("the queue is open exactly while the stream runs");
        }
        transition
    }

    pub(super) fn keep(&mut self, item: Item) {
        match self.kept.iter_mut().find(|kept| place(**kept) == place(item)) {
            Some(kept) => *kept = item,
            None => self.kept.push(item),
        }
    }

    /// Adds the steps of the actions that are executed without the lock.
    pub(super) fn perform(&mut self, who: Who, transition: Transition<u8>) {
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

    pub(super) fn pause(&mut self, transition: Transition<u8>) {
        if transition.requires(Action::PauseTask) {
            self.set_task(TaskState::Paused);
        }
    }

    /// Sets the state of the pad's task, if there is one.
    pub(super) fn set_task(&mut self, state: TaskState) {
        if let Some(task) = self.of_pad.and_then(|task| self.tasks[task].as_mut()) {
            task.state = state;
        }
    }

    /// Accepts an event of upstream, which enters the queue.
    pub(super) fn accept(&mut self, item: Item) {
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

    /// Stores a sticky event on the source pad. Returns whether it was stored.
    pub(super) fn store(&mut self, item: Item) -> bool {
        if !self.source_is_active || (self.source_is_flushing && !matches!(item, Caps(_))) {
            return false;
        }
        self.sticky[place(item)] = Stored { item: Some(item), is_received: false };
        if item != Eos {
            self.sticky[2] = Stored::default();
        }
        true
    }

    /// Changes the source pad when FLUSH_STOP passes it.
    pub(super) fn source_flush_ends(&mut self) {
        self.source_is_flushing = false;
        (self.sticky[1], self.sticky[2]) = (Stored::default(), Stored::default());
        (self.peer[1], self.peer[2]) = (None, None);
    }

    /// Sends the stored events to the peer, in order.
    pub(super) fn tell_peer(&mut self) {
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
}
