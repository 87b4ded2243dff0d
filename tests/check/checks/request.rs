//! Checks one request that several threads start, run, cancel, await and drop, with callbacks that restart the request.

use std::sync::Arc;
use std::time::Duration;

use roiflow_check::runtime::executor::{Executor, Inline};
use roiflow_check::runtime::{ErrorKind, InferRequest};
use roiflow_check::sync::{forget_spawned, join_spawned, pass_time};
use shuttle::thread;

use crate::Check;
use crate::explore::{Search, explore, point};
use crate::world::{Crank, End, Engine, Journal, append_step, model, model_on};

pub fn checks() -> Vec<Check> {
    vec![
        Check {
            name: "two_threads_and_a_run",
            bounds: "a run is on; 2 threads with one call each, all 21 pairs, restart or not; at most 2 preemptions",
            run: two_threads_and_a_run,
        },
        Check {
            name: "two_calls_in_each_of_two_threads",
            bounds: "two calls each, all 465 pairs; failing runs; at most 1 preemption",
            run: two_calls_in_each_of_two_threads,
        },
        Check {
            name: "runs_that_end_in_their_start",
            bounds: "all steps on the caller's thread, two calls each, all 465 pairs; at most 1 preemption",
            run: runs_that_end_in_their_start,
        },
        Check {
            name: "runs_that_an_engine_computes",
            bounds: "an engine beside the processor completes a run; 2 threads with one call each, all 21 pairs; at most 1 preemption; restart or not, priorities with 3 changes",
            run: runs_that_an_engine_computes,
        },
        Check {
            name: "waiters_get_their_own_run",
            bounds: "a waiter, a callback that starts the next run, which fails; at most 3 preemptions",
            run: waiters_get_their_own_run,
        },
        Check {
            name: "a_dropped_request_is_silent",
            bounds: "the only handle dropped beside a run, its step on or queued; at most 3 preemptions",
            run: a_dropped_request_is_silent,
        },
        Check {
            name: "a_wait_gives_up_only_in_time",
            bounds: "wait_for beside a run and the clock; at most 2 preemptions",
            run: time_limits,
        },
        Check {
            name: "three_threads_of_three_calls",
            bounds: "3 threads of three calls drawn by chance, 2 workers; priorities with 3 changes",
            run: || by_chance(Search::Pct { depth: 3, n: 400 }),
        },
        Check {
            name: "three_threads_drawn_evenly",
            bounds: "as before; each step drawn by chance",
            run: || by_chance(Search::Random(400)),
        },
    ]
}

/// Operation of a thread on its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Start,
    Infer,
    Cancel,
    Wait,
    WaitFor,
    Drop,
}

const CALLS: [Call; 6] = [Call::Start, Call::Infer, Call::Cancel, Call::Wait, Call::WaitFor, Call::Drop];

#[derive(Debug, Clone)]
struct Scene {
    /// Whether a run is started before the threads.
    is_on: bool,
    /// Whether the first callback starts the next run.
    restarts: bool,
    /// Whether every second run fails.
    fails: bool,
    /// Number of threads that run steps; 0 for the caller's thread.
    n_workers: usize,
    /// Whether an asynchronous engine computes on its own thread.
    has_engine: bool,
    programs: Vec<Vec<Call>>,
}

impl Scene {
    fn play(&self) {
        forget_spawned();
        let journal = Arc::new(Journal::default());
        let (crank, workers) = Crank::start(self.n_workers);
        let executor: Arc<dyn Executor> = if self.n_workers == 0 { Arc::new(Inline) } else { crank.clone() };
        let (of_engine, its_threads) = Crank::start(usize::from(self.has_engine));
        let engine = self.has_engine.then(|| Engine::new(&of_engine, &journal) as Arc<dyn Executor>);
        let request = model_on(engine).create_infer_request().unwrap();
        append_step(&request, executor, &journal, self.fails);
        let token = Arc::new(());
        set_callback(&request, &journal, self.clone(), token.clone());
        if self.is_on {
            start(&request, &journal).unwrap();
        }
        let mut threads: Vec<_> = self
            .programs
            .iter()
            .map(|program| {
                let (request, journal, program, scene) = (request.clone(), journal.clone(), program.clone(), self.clone());
                move || scene.call_all(&program, request, &journal)
            })
            .collect();
        drop(request);
        // The last program runs on this thread, which reduces the number of threads.
        let last = threads.pop();
        let threads: Vec<_> = threads.into_iter().map(thread::spawn).collect();
        let mut handles: Vec<Option<InferRequest>> = last.into_iter().map(|last| last()).collect();
        handles.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
        if let Some(request) = handles.iter().flatten().next() {
            // The second wait is for the run that the first callback started.
            drop((request.wait(), request.wait()));
            self.check_end(&journal);
        }
        let weak = handles.iter().flatten().next().map(InferRequest::downgrade);
        drop(handles);
        if weak.is_some_and(|weak| weak.upgrade().is_none()) {
            is_gone(&journal);
        }
        of_engine.close();
        its_threads.into_iter().for_each(|thread| thread.join().unwrap());
        crank.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        join_spawned();
        journal.expect(Arc::strong_count(&token) == 1, || "the callback outlives its request".to_owned());
        journal.close();
    }

    fn is_asynchronous(&self) -> bool {
        self.programs.iter().flatten().all(|call| *call != Call::Infer)
    }

    fn call_all(&self, program: &[Call], request: InferRequest, journal: &Arc<Journal>) -> Option<InferRequest> {
        for call in program {
            match call {
                Call::Start => drop(start(&request, journal)),
                Call::Infer => {
                    journal.with(|entries| entries.n_synchronous += 1);
                    let _result = request.infer(());
                }
                Call::Cancel => request.cancel(),
                Call::Wait => self.wait(&request, journal, None),
                Call::WaitFor => self.wait(&request, journal, Some(Duration::from_secs(1))),
                Call::Drop => {
                    let weak = request.downgrade();
                    drop(request);
                    if weak.upgrade().is_none() {
                        is_gone(journal);
                    }
                    return None;
                }
            }
        }
        Some(request)
    }

    /// Waits for the request. Checks that the wait ends after the callback of its run, with the result of that run.
    fn wait(&self, request: &InferRequest, journal: &Journal, timeout: Option<Duration>) {
        let (n_before, n_passed) = journal.with(|entries| (entries.n_started, entries.n_passed_time));
        let waited = match timeout {
            None => request.wait().map(|()| true),
            Some(timeout) => request.wait_for(timeout),
        };
        journal.with(|entries| {
            if let Ok(false) = waited {
                if n_before > 0 && entries.n_passed_time == n_passed {
                    entries.findings.push("a wait gave up before its time was over".to_owned());
                }
                return;
            }
            if entries.n_called < n_before {
                let n_called = entries.n_called;
                entries.findings.push(format!("a waiter of run {n_before} or later returned after {n_called} callbacks"));
            }
            let end = End::from(&waited.map(drop));
            // With synchronous runs in between, callbacks cannot be assigned to runs by number.
            if self.is_asynchronous() && n_before > 0 {
                let of_its_run = (n_before..=entries.n_called).any(|run| entries.ends.get(run as usize - 1) == Some(&end));
                if !of_its_run {
                    let (ends, n_called) = (entries.ends.clone(), entries.n_called);
                    entries
                        .findings
                        .push(format!("a waiter of run {n_before} or later got {end:?}; {n_called} of the runs that ended: {ends:?}"));
                }
            }
        });
    }

    /// Checks the end of a schedule: all threads are done, and a handle still exists.
    fn check_end(&self, journal: &Journal) {
        journal.with(|entries| {
            if entries.n_called != entries.n_started {
                let (n_called, n_started) = (entries.n_called, entries.n_started);
                entries.findings.push(format!("{n_called} callbacks for {n_started} runs"));
            }
            let n_runs = entries.n_started + entries.n_synchronous;
            if entries.stepped.len() as u64 > n_runs {
                let stepped = entries.stepped.clone();
                entries.findings.push(format!("{n_runs} runs, stepped: {stepped:?}"));
            }
        });
    }
}

fn is_gone(journal: &Journal) {
    journal.with(|entries| {
        entries.is_gone = true;
        if entries.is_calling {
            entries.findings.push("the last handle's drop returned during the callback".to_owned());
        }
    });
}

fn start(request: &InferRequest, journal: &Journal) -> Result<(), ()> {
    journal.with(|entries| entries.n_begun += 1);
    let started = request.start_async(());
    journal.with(|entries| match &started {
        Ok(()) => entries.n_started += 1,
        Err(error) if error.kind() == ErrorKind::Busy => {}
        Err(error) => entries.findings.push(format!("a start failed: {error}")),
    });
    started.map_err(drop)
}

fn set_callback(request: &InferRequest, journal: &Arc<Journal>, scene: Scene, token: Arc<()>) {
    let journal = journal.clone();
    let called = move |request: &InferRequest, result: roiflow_check::runtime::Result<()>| {
        let _lives = &token;
        let end = End::from(&result);
        let (nth, output) = journal.with(|entries| {
            if entries.is_gone {
                entries.findings.push("a callback after the last handle's drop returned".to_owned());
            }
            if entries.is_calling {
                entries.findings.push("two callbacks at a time".to_owned());
            }
            if entries.n_computing > 0 {
                entries.findings.push("a run ended while its engine computes".to_owned());
            }
            entries.is_calling = true;
            entries.ends.push(end);
            (entries.ends.len() as u64, entries.output)
        });
        journal.expect(request.latency().is_ok(), || format!("callback {nth}: the request is not idle"));
        if scene.is_asynchronous() {
            let sees_its_own = match end {
                End::Good => output == nth,
                End::Failed(run) => output == nth && run == nth,
                End::Canceled => output <= nth,
                End::Other(_) => false,
            };
            journal.expect(sees_its_own, || format!("callback {nth} of a run that ended {end:?} sees the output of run {output}"));
        }
        if scene.restarts && nth == 1 {
            let _started = start(request, &journal);
        }
        point();
        let is_open = request.latency().is_ok();
        journal.with(|entries| {
            if is_open && entries.output != output {
                let now = entries.output;
                entries.findings.push(format!("callback {nth} sees the output of run {now} in place of {output}"));
            }
            entries.is_calling = false;
            entries.n_called += 1;
        });
    };
    request.set_callback(called).unwrap();
}

/// Returns all unordered pairs of programs.
fn pairs(programs: &[Vec<Call>]) -> Vec<Vec<Vec<Call>>> {
    let with_later = |(idx, a): (usize, &Vec<Call>)| programs[idx..].iter().map(|b| vec![a.clone(), b.clone()]).collect::<Vec<_>>();
    programs.iter().enumerate().flat_map(with_later).collect()
}

fn programs_of_two() -> Vec<Vec<Call>> {
    CALLS.into_iter().filter(|first| *first != Call::Drop).flat_map(|first| CALLS.map(|second| vec![first, second])).collect()
}

fn two_threads_and_a_run() -> usize {
    let programs: Vec<Vec<Call>> = CALLS.map(|call| vec![call]).to_vec();
    let mut n = 0;
    for programs in pairs(&programs) {
        for restarts in [false, true] {
            let scene = Scene { is_on: true, restarts, fails: true, n_workers: 1, has_engine: false, programs: programs.clone() };
            n += explore(Search::Preemptions(2), move || scene.play());
        }
    }
    n
}

fn two_calls_in_each_of_two_threads() -> usize {
    let scene = |programs| Scene { is_on: true, restarts: true, fails: true, n_workers: 1, has_engine: false, programs };
    pairs(&programs_of_two()).into_iter().map(scene).map(|scene| explore(Search::Preemptions(1), move || scene.play())).sum()
}

fn runs_that_end_in_their_start() -> usize {
    let scene = |programs| Scene { is_on: false, restarts: true, fails: true, n_workers: 0, has_engine: false, programs };
    pairs(&programs_of_two()).into_iter().map(scene).map(|scene| explore(Search::Preemptions(1), move || scene.play())).sum()
}

fn runs_that_an_engine_computes() -> usize {
    let programs: Vec<Vec<Call>> = CALLS.map(|call| vec![call]).to_vec();
    let mut n = 0;
    for programs in pairs(&programs) {
        for restarts in [false, true] {
            let scene = Scene { is_on: true, restarts, fails: true, n_workers: 1, has_engine: true, programs: programs.clone() };
            let drawn = scene.clone();
            n += explore(Search::Pct { depth: 4, n: 1000 }, move || drawn.play());
            if !restarts {
                n += explore(Search::Preemptions(1), move || scene.play());
            }
        }
    }
    n
}

fn waiters_get_their_own_run() -> usize {
    let scene = Scene { is_on: true, restarts: true, fails: true, n_workers: 1, has_engine: false, programs: vec![vec![Call::Wait]] };
    explore(Search::Preemptions(3), move || scene.play())
}

/// After the drop returns, no step and no callback of the run is active.
fn a_dropped_request_is_silent() -> usize {
    explore(Search::Preemptions(3), || {
        let journal = Arc::new(Journal::default());
        let (crank, workers) = Crank::start(1);
        let request = model().create_infer_request().unwrap();
        let is_gone = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (gone, note) = (is_gone.clone(), journal.clone());
        let check = move || note.expect(!gone.load(std::sync::atomic::Ordering::SeqCst), || "a step after the drop returned".to_owned());
        let step = move |_: &roiflow_check::runtime::RunContext<'_>| {
            check();
            point();
            check();
            Ok(())
        };
        request.append_step_on(crank.clone(), "long", step).unwrap();
        let scene = Scene { is_on: true, restarts: false, fails: false, n_workers: 1, has_engine: false, programs: vec![vec![Call::Start]] };
        set_callback(&request, &journal, Scene { programs: vec![vec![Call::Infer]], ..scene }, Arc::default());
        start(&request, &journal).unwrap();
        let weak = request.downgrade();
        drop(request);
        if weak.upgrade().is_none() && !journal.with(|entries| entries.is_calling) {
            is_gone.store(true, std::sync::atomic::Ordering::SeqCst);
        }
        crank.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        journal.close();
    })
}

fn time_limits() -> usize {
    let mut n = 0;
    for program in [vec![Call::WaitFor], vec![Call::WaitFor, Call::WaitFor], vec![Call::Cancel, Call::WaitFor]] {
        n += explore(Search::Preemptions(2), move || {
            let journal = Arc::new(Journal::default());
            let (crank, workers) = Crank::start(1);
            let request = model().create_infer_request().unwrap();
            let scene = Scene { is_on: true, restarts: false, fails: false, n_workers: 1, has_engine: false, programs: vec![program.clone()] };
            append_step(&request, crank.clone(), &journal, false);
            set_callback(&request, &journal, scene.clone(), Arc::default());
            start(&request, &journal).unwrap();
            let clock = {
                let journal = journal.clone();
                thread::spawn(move || {
                    point();
                    journal.with(|entries| entries.n_passed_time += 1);
                    pass_time(Duration::from_secs(1));
                })
            };
            let request = scene.call_all(&program, request, &journal).unwrap();
            clock.join().unwrap();
            let _result = request.wait();
            scene.check_end(&journal);
            drop(request);
            crank.close();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            journal.close();
        });
    }
    n
}

/// Random scenes from the seed, each with several hundred schedules.
fn by_chance(search: Search) -> usize {
    let mut state = crate::explore::seed();
    let mut draw = move |n: u64| {
        // Knuth's linear congruential generator; the upper bits are the most random.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let mut n = 0;
    for _ in 0..40 {
        let mut program = || (0..3).map(|_| CALLS[draw(CALLS.len() as u64) as usize]).collect::<Vec<_>>();
        let programs = vec![program(), program(), program()];
        let scene = Scene { is_on: draw(2) == 0, restarts: draw(2) == 0, fails: draw(2) == 0, n_workers: 2, has_engine: false, programs };
        n += explore(search, move || scene.play());
    }
    n
}
