//! A server without other nodes. Its coordinator is in its own process, and keeps the streams in the store of the server.

use std::time::{Duration, Instant};

use roiflow_nodes::coordinator::Request;
use roiflow_nodes::keys::{self, Key};
use roiflow_nodes::local::Disk;
use roiflow_nodes::placement::Policy as PlacementPolicy;
use roiflow_nodes::timing::Timing;
use roiflow_nodes::types::Facts;
use roiflow_nodes::{Local, agent};

use super::descriptions::{Descriptions, Protection};
use super::load::Meter;
use super::{Nodes, random_session};
use crate::policy;
use crate::registry::Registry;
use crate::store::Store;

/// Name of the only node, which no client sees.
const NAME: &str = "this";
/// Longest time until a new stream gets its node.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long the server waits at its start until the streams of the store have their node.
const MAX_PLAN: Duration = Duration::from_secs(2);

impl Nodes {
    /// Makes the only node of a server, and starts the streams of the store.
    ///
    /// # Errors
    /// Returns an error if a thread cannot be started.
    pub fn alone(registry: Registry, store: Store) -> Result<Self, String> {
        let descriptions = Descriptions(Protection::Alone);
        let (specs, damaged) = store.all();
        damaged.iter().for_each(|reason| tracing::warn!("an entry of the store is skipped: {reason}"));
        let mut items = Vec::new();
        for spec in &specs {
            match policy::check_name(&spec.name).and_then(|()| descriptions.write(spec)).and_then(|item| super::json(&item)) {
                Ok(item) => items.push((keys::stream(&spec.name), item)),
                Err(error) => tracing::warn!("an entry of the store is skipped: {error}"),
            }
        }
        let coordinator = Local::on_disk(Box::new(store.clone()), items);
        let meter = Meter::new(None);
        let options = agent::Options {
            node: NAME.to_owned(),
            session: random_session()?,
            facts: Facts { capacity: meter.first(), ..Facts::default() },
            keep_running: true,
            timing: Timing::alone(),
            policy: PlacementPolicy { settle: Duration::ZERO, interval: INTERVAL, ..PlacementPolicy::default() },
        };
        let (member, directory) = (Box::new(coordinator.client()), Box::new(coordinator.client()));
        let nodes = Self { store: Some(store), ..Self::start(member, directory, registry, (options, meter, descriptions, None))? };
        // A client has seen all items when it gets a reply.
        nodes.directory.call(Request::Read { key: keys::node(NAME) }).map_err(|error| error.to_string())?;
        // Each stream is known from the first request on. Its start may take longer.
        let begin = Instant::now();
        while begin.elapsed() < MAX_PLAN && !nodes.stream_names().iter().all(|name| nodes.registry.feed(name).is_ok()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(nodes)
    }
}

/// Keeps the streams. All other items are made again when the server starts.
impl Disk for Store {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
        let Some(Key::Stream(name)) = Key::parse(key) else { return Ok(()) };
        let item: roiflow_nodes::StreamSpec = serde_json::from_slice(value).map_err(|error| error.to_string())?;
        Self::put(self, name, item.description.to_string().as_bytes())
    }

    fn remove(&mut self, key: &str) -> Result<(), String> {
        match Key::parse(key) {
            Some(Key::Stream(name)) => Self::remove(self, name),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::{Config, Limits};
    use crate::events::EventKind;
    use crate::registry::tests::{Fake, registry, spec, wait_until};
    use crate::stream::{Change, State, StreamSpec};

    /// The only node of a server, whose backend is `fake`, with the streams of the store in a folder.
    pub(crate) fn alone_with(folder: &std::path::Path, fake: &Fake, limits: Limits) -> Nodes {
        alone_with_config(folder, fake, |config| config.limits = limits)
    }

    pub(crate) fn alone_with_config(folder: &std::path::Path, fake: &Fake, set: impl FnOnce(&mut Config)) -> Nodes {
        let nodes = Nodes::alone(registry(folder, fake, set), Store::open(folder).unwrap()).unwrap();
        wait_until(|| nodes.is_ready());
        nodes
    }

    fn alone(folder: &std::path::Path, fake: &Fake) -> Nodes {
        alone_with(folder, fake, Limits { streams: 3, ..Limits::default() })
    }

    #[test]
    fn streams_come_back_after_a_restart_of_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        {
            let nodes = alone(folder.path(), &fake);
            nodes.add(&spec("a", "test:1")).unwrap();
            nodes.add(&spec("b", "test:1")).unwrap();
            nodes.remove("b").unwrap();
            assert_eq!(nodes.registry().view("a").unwrap().frames, 5);
            assert!(nodes.registry().end(Instant::now() + Duration::from_secs(5)));
            assert_eq!(nodes.add(&spec("c", "test:1")).unwrap_err().code, "ending");
        }
        let fake = Fake::default();
        // The store is free when the thread of the first registry has ended.
        wait_until(|| Store::open(folder.path()).is_ok());
        let nodes = alone(folder.path(), &fake);
        assert_eq!(nodes.registry().views().iter().map(|view| &*view.spec.name).collect::<Vec<_>>(), ["a"]);
        assert_eq!(fake.state().started, ["a"]);
    }

    #[test]
    fn refused_stream_leaves_no_trace() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = alone(folder.path(), &Fake::default());
        let error = nodes.add(&spec("a", "test:3")).unwrap_err();
        assert_eq!((error.status, &*error.message), (400, "no such model"));
        assert!(nodes.registry().views().is_empty());
        nodes.add(&spec("a", "test:1")).unwrap();
        assert_eq!(nodes.add(&spec("a", "test:1")).unwrap_err().code, "stream_exists");
        ["b", "c"].iter().for_each(|name| drop(nodes.add(&spec(name, "test:1")).unwrap()));
        assert_eq!(nodes.add(&spec("d", "test:1")).unwrap_err().code, "too_many_streams");
        let error = nodes.remove("bb").unwrap_err();
        assert!(error.status == 404 && error.message.contains("Did you mean `b`?"), "{error}");
    }

    #[test]
    fn wrong_change_keeps_the_stream_running() {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let nodes = alone(folder.path(), &fake);
        nodes.add(&spec("a", "test:1")).unwrap();
        let change = |input: &str| Change { input: Some(input.into()), ..Change::default() };
        assert_eq!(nodes.change("a", &change("test:3")).unwrap_err().code, "invalid_stream");
        assert!(fake.state().stopped.is_empty());
        let view = nodes.change("a", &change("test:4")).unwrap();
        assert_eq!((&*view.spec.input, view.frames), ("test:4", 10), "counters go on");
        nodes.change("a", &change("test:4")).unwrap();
        let state = fake.state();
        assert_eq!((state.started.len(), state.stopped.len()), (2, 1), "a change without an effect restarts nothing");
    }

    #[test]
    fn stream_that_cannot_be_prepared_in_time_starts_but_does_not_replace_a_running_one() {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let nodes = alone(folder.path(), &fake);
        nodes.add(&spec("slow", "test:99")).unwrap();
        assert_eq!(nodes.registry().view("slow").unwrap().state, State::Running);
        nodes.add(&spec("a", "test:1")).unwrap();
        let change = Change { input: Some("test:99".into()), ..Change::default() };
        let error = nodes.change("a", &change).unwrap_err();
        assert_eq!((error.status, &*error.message), (503, "the engine hangs"));
        assert_eq!(nodes.known("a").unwrap().spec, spec("a", "test:1"), "the store is as before");
        // A restart is also for streams whose engine hangs.
        nodes.registry().restart("slow").unwrap();
        let state = fake.state();
        assert_eq!(
            (&state.started[..], &state.stopped[..]),
            (&["slow".to_owned(), "a".into(), "slow".into()][..], &["slow".to_owned()][..])
        );
    }

    #[test]
    fn change_restarts_a_stream_only_if_it_must() {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let nodes = alone(folder.path(), &fake);
        nodes.add(&spec("a", "test:1")).unwrap();
        let counts = || {
            let state = fake.state();
            (state.changed.len(), state.started.len(), state.stopped.len())
        };
        let publish = |url: &str| Change { publish: Some(vec![url.into()]), ..Change::default() };
        assert_eq!(nodes.change("a", &publish("mqtt://broker/a")).unwrap().spec.publish, ["mqtt://broker/a"]);
        assert_eq!(counts(), (1, 1, 0));
        // The backend cannot continue with this pipeline.
        nodes.change("a", &Change { pipeline: Some("faces".into()), ..Change::default() }).unwrap();
        assert_eq!(counts(), (1, 2, 1));
        // Another input is another source.
        let back = Change { pipeline: Some("detect".into()), input: Some("test:4".into()), ..Change::default() };
        nodes.change("a", &back).unwrap();
        assert_eq!(counts(), (1, 3, 2));
        let messages: Vec<String> = nodes.registry().events().newest(None, 100).iter().map(|event| event.message.clone()).collect();
        assert!(messages.contains(&"without a restart".to_owned()) && messages.contains(&"restarted".to_owned()), "{messages:?}");
    }

    #[test]
    fn change_that_the_running_stream_refuses_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        {
            let nodes = alone(folder.path(), &fake);
            nodes.add(&spec("a", "test:1")).unwrap();
            let publish = |url: &str| Change { publish: Some(vec![url.into()]), ..Change::default() };
            let error = nodes.change("a", &publish("mqtt://refused/a")).unwrap_err();
            assert_eq!((error.status, &*error.message), (422, "the model cannot be loaded"));
            assert_eq!(nodes.known("a").unwrap().spec, spec("a", "test:1"));
            // The stream has run on, and its next change begins with the description that it has.
            assert_eq!(nodes.change("a", &publish("mqtt://broker/a")).unwrap().spec.publish, ["mqtt://broker/a"]);
            let state = fake.state();
            assert_eq!((state.started.len(), state.stopped.len()), (1, 0));
        }
        wait_until(|| Store::open(folder.path()).is_ok());
        let (specs, _) = Store::open(folder.path()).unwrap().all();
        assert_eq!(specs[0].publish, ["mqtt://broker/a"]);
    }

    #[test]
    fn server_stays_ready_while_streams_are_added() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = alone(folder.path(), &Fake::default());
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Acquire) {
                    assert!(nodes.is_ready());
                }
            });
            ["a", "b", "c"].iter().for_each(|name| drop(nodes.add(&spec(name, "test:1")).unwrap()));
            is_over.store(true, std::sync::atomic::Ordering::Release);
        });
    }

    #[test]
    fn stored_streams_are_not_reported_as_added() {
        let folder = tempfile::tempdir().unwrap();
        let kinds =
            |nodes: &Nodes| -> Vec<EventKind> { nodes.registry().events().newest(None, 100).iter().map(|event| event.kind).collect() };
        {
            let nodes = alone(folder.path(), &Fake::default());
            nodes.add(&spec("a", "test:1")).unwrap();
            assert_eq!(kinds(&nodes), [EventKind::Started, EventKind::Added]);
        }
        wait_until(|| Store::open(folder.path()).is_ok());
        assert_eq!(kinds(&alone(folder.path(), &Fake::default())), [EventKind::Started]);
    }

    #[test]
    fn only_one_of_two_removals_finds_the_stream() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = alone(folder.path(), &Fake::default());
        nodes.add(&spec("a", "test:1")).unwrap();
        let removed: Vec<_> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..2).map(|_| scope.spawn(|| nodes.remove("a").map(drop).map_err(|error| error.code))).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(removed.iter().filter(|removed| removed.is_ok()).count(), 1, "{removed:?}");
        assert!(removed.contains(&Err("unknown_stream")), "{removed:?}");
    }

    #[test]
    fn numbers_with_many_digits_do_not_delay_a_request() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = alone(folder.path(), &Fake::default());
        // Some of these numbers change in the last digit when they are read without the feature `float_roundtrip`.
        for n in 1..50 {
            let cost = 0.1 + f64::from(n) * 1e-17 + f64::from(n) / 3.0;
            nodes.add(&StreamSpec { cost: Some(cost), ..spec("a", "test:1") }).unwrap();
            assert!(nodes.member.is_settled("a", None, Duration::ZERO) || nodes.member.has_placed("a"));
            nodes.remove("a").unwrap();
        }
    }

    #[test]
    fn removed_stream_returns_its_last_counters() {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let nodes = alone(folder.path(), &fake);
        nodes.add(&spec("a", "test:1")).unwrap();
        let view = nodes.remove("a").unwrap();
        assert_eq!((view.state, view.frames, view.node), (State::Ended, 5, None));
        assert_eq!(fake.state().stopped, ["a"], "the stream has stopped when the call returns");
        assert_eq!(nodes.registry().events().newest(None, 100).last().unwrap().kind, EventKind::Removed);
        assert!(nodes.stream_names().is_empty() && nodes.registry().views().is_empty());
    }

    #[test]
    fn clients_that_add_streams_at_the_same_time_do_not_exceed_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = alone(folder.path(), &Fake::default());
        let codes: Vec<Option<&str>> = std::thread::scope(|scope| {
            let add = |n: usize| nodes.add(&spec(&format!("s{n}"), "test:1")).err().map(|error| error.code);
            let running: Vec<_> = (0..8).map(|n| scope.spawn(move || add(n))).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(codes.iter().filter(|code| code.is_none()).count(), 3, "{codes:?}");
        assert!(codes.iter().flatten().all(|code| *code == "too_many_streams"), "{codes:?}");
    }

    #[test]
    fn clients_that_change_a_stream_at_the_same_time_all_get_an_answer() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = alone(folder.path(), &Fake::default());
        nodes.add(&spec("a", "test:1")).unwrap();
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for n in 4..8 {
                let nodes = &nodes;
                scope.spawn(move || {
                    let change = Change { input: Some(format!("test:{n}")), ..Change::default() };
                    let changed = nodes.change("a", &change);
                    assert!(changed.as_ref().map_or_else(|error| error.code == "stream_changed", |_| true), "{changed:?}");
                });
            }
        });
        assert!(begin.elapsed() < super::super::MAX_OUTCOME, "a client has waited for a description that another client has replaced");
        let stored = nodes.known("a").unwrap().spec.input;
        wait_until(|| nodes.registry().view("a").unwrap().spec.input == stored);
    }

    #[test]
    fn stored_stream_whose_name_is_not_allowed_is_skipped_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        {
            let mut store = Store::open(folder.path()).unwrap();
            let text = serde_json::to_vec(&spec("a..b", "test:1")).unwrap();
            Store::put(&store, "a..b", &text).unwrap();
            Disk::put(&mut store, "assign.a", b"{}").unwrap();
        }
        {
            let nodes = alone(folder.path(), &Fake::default());
            assert!(nodes.registry().views().is_empty());
        }
        wait_until(|| Store::open(folder.path()).is_ok());
        let (specs, _) = Store::open(folder.path()).unwrap().all();
        assert_eq!(specs, [spec("a..b", "test:1")]);
    }
}
