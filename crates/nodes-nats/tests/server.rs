//! The rules for coordinators, checked with a real NATS server: `scripts/fetch-tools nats-server` fetches it.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use roiflow_nodes::Coordinator;
use roiflow_nodes::coordinator::{Change, Error, Request, Ticket, call};
use roiflow_nodes::suite::{self, create, until, written};
use roiflow_nodes_nats::{Last, Nats, ResultLog, Results, Servers, Storage};
use roiflow_publish::Position;

/// Time limit of each wait. A longer wait counts as a hang.
const LIMIT: Duration = Duration::from_secs(60);

struct Server {
    program: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
    process: Option<Child>,
}

impl Server {
    /// Starts the server. If it is missing, prints a message and returns `None`.
    fn start() -> Option<Self> {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let program = target.join("tools/nats-server");
        if !program.exists() {
            eprintln!("skipped: nats-server is not there (run scripts/fetch-tools nats-server)");
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = Self { program, folder: tempfile::tempdir().unwrap(), port, process: None };
        server.start_again();
        Some(server)
    }

    fn start_again(&mut self) {
        let mut command = Command::new(&self.program);
        command.args(["--addr", "127.0.0.1", "--port", &self.port.to_string(), "--jetstream", "--store_dir"]).arg(self.folder.path());
        self.process = Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begin.elapsed() < LIMIT, "NATS does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    fn client(&self) -> Nats {
        let servers = Servers::parse(&format!("nats://127.0.0.1:{}", self.port)).unwrap();
        let storage = Storage { bucket: "test".to_owned(), replicas: 1, results: None };
        let (client, waits) = Nats::connect(servers, storage, "a").unwrap();
        assert_eq!(waits, None);
        client
    }
}

/// The JetStream stream of the results.
fn results() -> Results {
    let (stream, subjects) = ("test-results".to_owned(), "roiflow.test.*".to_owned());
    Results { stream, subjects, max_age: Duration::from_secs(3600), max_bytes: 1 << 20 }
}

impl Server {
    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Creates the stream of the results.
    fn create_results(&self) {
        let servers = Servers::parse(&format!("nats://{}", self.address())).unwrap();
        Nats::connect(servers, Storage { bucket: "test".to_owned(), replicas: 1, results: Some(results()) }, "a").unwrap();
    }

    /// Publishes messages as nodes do: with an ID and the subject of the stream `door`.
    fn publish(&self, messages: &[(&str, &str)]) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = async_nats::connect(self.address()).await.unwrap();
            let jetstream = async_nats::jetstream::new(client);
            for (id, payload) in messages {
                let mut headers = async_nats::HeaderMap::new();
                headers.insert("Nats-Msg-Id", *id);
                let sent = jetstream.publish_with_headers("roiflow.test.door", headers, (*payload).to_owned().into()).await;
                sent.unwrap().await.unwrap();
            }
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a test of the suite for coordinators on a server of its own.
fn on_nats(test: fn(suite::Client<'_>)) {
    let Some(server) = Server::start() else { return };
    test(&|| Box::new(server.client()) as Box<dyn Coordinator>);
}

#[test]
fn writes_need_the_expected_revision_and_deleted_keys_can_be_created() {
    on_nats(suite::writes_need_the_expected_revision_and_deleted_keys_can_be_created);
}

#[test]
fn watch_reports_items_changes_and_the_end_of_a_time_to_live() {
    on_nats(suite::watch_reports_items_changes_and_the_end_of_a_time_to_live);
}

#[test]
fn watch_reports_only_its_keys() {
    on_nats(suite::watch_reports_only_its_keys);
}

#[test]
fn only_one_of_several_writers_replaces_a_revision() {
    on_nats(suite::only_one_of_several_writers_replaces_a_revision);
}

#[test]
fn each_request_gets_one_reply() {
    on_nats(suite::each_request_gets_one_reply);
}

#[test]
fn waker_ends_a_wait() {
    on_nats(suite::waker_ends_a_wait);
}

#[test]
fn restart_of_the_server_interrupts_the_watch_and_keeps_the_items() {
    let Some(mut server) = Server::start() else { return };
    let mut client = server.client();
    client.submit(Ticket(0), Request::Watch { prefix: "streams.".to_owned() });
    until(&mut client, |change| *change == Change::Current);
    let before = written(call(&mut client, create("streams.door", None)));
    server.kill();
    until(&mut client, |change| *change == Change::Interrupted);
    let error = call(&mut client, Request::Read { key: "streams.door".to_owned() }).unwrap_err();
    assert!(matches!(error, Error::Down(_)), "{error:?}");
    server.start_again();
    let seen = until(&mut client, |change| *change == Change::Current);
    assert!(matches!(&seen[..], [Change::Begin, Change::Put(item), Change::Current] if item.key == "streams.door"), "{seen:?}");
    assert!(written(call(&mut client, create("streams.gate", None))) > before, "revisions grow over restarts");
}

#[test]
fn server_that_does_not_answer_is_unreachable_not_down() {
    let Some(server) = Server::start() else { return };
    let mut client = server.client();
    let signal = |name: &str| {
        let id = server.process.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    };
    signal("STOP");
    // The threads of the process stop one after the other.
    let id = server.process.as_ref().unwrap().id();
    let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
    };
    while !std::fs::read_dir(format!("/proc/{id}/task")).unwrap().all(is_stopped) {
        std::thread::yield_now();
    }
    let error = call(&mut client, Request::Read { key: "streams.door".to_owned() });
    signal("CONT");
    assert!(matches!(error, Err(Error::Unreachable(_))), "{error:?}");
}

#[test]
fn forwarder_that_closes_connections_is_down_only_if_all_nodes_share_it() {
    let forwarder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = forwarder.local_addr().unwrap();
    std::thread::spawn(move || forwarder.incoming().for_each(drop));
    let error = |is_shared| {
        let servers = Servers::parse(&format!("nats://{address}")).unwrap().with_shared_forwarder(is_shared);
        let storage = Storage { bucket: "test".to_owned(), replicas: 1, results: None };
        let (mut client, waits) = Nats::connect(servers, storage, "a").unwrap();
        assert!(waits.is_some_and(|reason| reason.contains("connect to nats://127.0.0.1")));
        call(&mut client, Request::Read { key: "streams.door".to_owned() }).unwrap_err()
    };
    let alone = error(false);
    assert!(matches!(&alone, Error::Unreachable(reason) if reason.contains("closes them at once")), "{alone:?}");
    assert!(matches!(error(true), Error::Down(_)));
}

#[test]
fn server_that_stays_silent_does_not_hide_the_next_one_from_readers_of_results() {
    let Some(server) = Server::start() else { return };
    server.create_results();
    server.publish(&[("door/7000000/41", r#"{"time":"2026-11-26T12:00:00.000Z"}"#)]);
    // It accepts connections, and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let servers = Servers::parse(&format!("nats://{},{}", silent.local_addr().unwrap(), server.address())).unwrap();
    let log = ResultLog::start(servers, results(), "a").unwrap();
    let begin = Instant::now();
    let last = loop {
        match log.last("door") {
            Ok(last) => break last,
            Err(error) => assert!(begin.elapsed() < LIMIT, "{error}"),
        }
    };
    let position = Position { epoch: 7_000_000, frame: 41, part: 0 };
    assert_eq!(last, Some(Last { position, time: Some("2026-11-26T12:00:00.000Z".to_owned()) }));
    assert_eq!(log.last("gate"), Ok(None));
}

#[test]
fn live_results_continue_after_a_lost_connection() {
    let Some(mut server) = Server::start() else { return };
    server.create_results();
    let servers = Servers::parse(&format!("nats://{}", server.address())).unwrap();
    let log = ResultLog::start(servers, results(), "a").unwrap();
    let mut lines = log.subscribe();
    let mut next = |say: &str| {
        let begin = Instant::now();
        loop {
            match lines.try_recv() {
                Ok(line) => return String::from_utf8(line.to_vec()).unwrap(),
                Err(error) => assert!(begin.elapsed() < LIMIT, "{say}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    // The reader begins to follow at an unknown time, so lines are published until one arrives.
    let (begin, follower, mut frame) = (Instant::now(), log.subscribe(), 0);
    while follower.is_empty() {
        assert!(begin.elapsed() < LIMIT, "no line arrives");
        frame += 1;
        server.publish(&[(&format!("door/7000000/{frame}"), &format!("{{\"frame\":{frame}}}"))]);
        std::thread::sleep(Duration::from_millis(50));
    }
    while next("the newest line") != format!("{{\"frame\":{frame}}}") {}
    // The reader does not know this port, so it is not there when the server gets these messages.
    let other = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let port = std::mem::replace(&mut server.port, other);
    server.kill();
    server.start_again();
    server.publish(&[
        ("door/6000000/99", r#"{"of":"an earlier owner"}"#),
        ("door/7000000/9998", "{}\r{}"),
        ("door/7000000/9999", r#"{"frame":9999}"#),
    ]);
    server.kill();
    server.port = port;
    server.start_again();
    assert_eq!(next("the line of the outage"), r#"{"frame":9999}"#);
}
