//! The Kafka destination against the mock cluster of librdkafka, which the tests stop and start.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use libloading::Symbol;

use super::api::{Api, RawMessage};
use super::*;
use crate::{FileAccess, Limits, Retry, Spool, Target};

/// A cluster of one broker inside this process.
struct Cluster {
    api: Api,
    client: *mut c_void,
    cluster: *mut c_void,
}

impl Cluster {
    fn new() -> Self {
        let api = Api::load().unwrap();
        // SAFETY: the types of this module are those of `rdkafka.h` and `rdkafka_mock.h`. All handles are used in one thread, before they
        // are destroyed.
        unsafe {
            let conf = api.library.get::<unsafe extern "C" fn() -> *mut c_void>(b"rd_kafka_conf_new").unwrap()();
            let new =
                api.library.get::<unsafe extern "C" fn(c_int, *mut c_void, *mut c_char, usize) -> *mut c_void>(b"rd_kafka_new").unwrap();
            let client = new(0, conf, std::ptr::null_mut(), 0);
            let start = api.library.get::<unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void>(b"rd_kafka_mock_cluster_new").unwrap();
            let cluster = start(client, 1);
            let cluster = Self { api: api.clone(), client, cluster };
            type Create = unsafe extern "C" fn(*mut c_void, *const c_char, c_int, c_int) -> c_int;
            {
                let create = cluster.api.library.get::<Create>(b"rd_kafka_mock_topic_create").unwrap();
                assert_eq!(create(cluster.cluster, c"results".as_ptr(), 1, 1), 0);
            }
            cluster
        }
    }

    fn hosts(&self) -> String {
        // SAFETY: as above.
        unsafe {
            let hosts: Symbol<unsafe extern "C" fn(*const c_void) -> *const c_char> =
                self.api.library.get(b"rd_kafka_mock_cluster_bootstraps").unwrap();
            CStr::from_ptr(hosts(self.cluster)).to_str().unwrap().to_owned()
        }
    }

    fn set(&self, function: &str) {
        // SAFETY: as above.
        unsafe {
            let set: Symbol<unsafe extern "C" fn(*mut c_void, i32) -> c_int> = self.api.library.get(function.as_bytes()).unwrap();
            assert_eq!(set(self.cluster, 1), 0);
        }
    }

    fn down(&self) {
        self.set("rd_kafka_mock_broker_set_down");
    }

    fn up(&self) {
        self.set("rd_kafka_mock_broker_set_up");
    }

    /// Reads this many messages of the topic: key and payload.
    fn read(&self, n: usize) -> Vec<(String, String)> {
        let library = &self.api.library;
        let bytes = |at: *const c_void, n: usize| {
            // SAFETY: the message is valid until it is destroyed below.
            let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), n) };
            String::from_utf8(bytes.to_vec()).unwrap()
        };
        // SAFETY: as above.
        unsafe {
            let conf = library.get::<unsafe extern "C" fn() -> *mut c_void>(b"rd_kafka_conf_new").unwrap()();
            let set: Symbol<unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char, *mut c_char, usize) -> c_int> =
                library.get(b"rd_kafka_conf_set").unwrap();
            let hosts = CString::new(self.hosts()).unwrap();
            assert_eq!(set(conf, c"bootstrap.servers".as_ptr(), hosts.as_ptr(), std::ptr::null_mut(), 0), 0);
            let new: Symbol<unsafe extern "C" fn(c_int, *mut c_void, *mut c_char, usize) -> *mut c_void> =
                library.get(b"rd_kafka_new").unwrap();
            let client = new(1, conf, std::ptr::null_mut(), 0);
            let topic: Symbol<unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_void) -> *mut c_void> =
                library.get(b"rd_kafka_topic_new").unwrap();
            let topic = topic(client, c"results".as_ptr(), std::ptr::null_mut());
            let start: Symbol<unsafe extern "C" fn(*mut c_void, i32, i64) -> c_int> = library.get(b"rd_kafka_consume_start").unwrap();
            assert_eq!(start(topic, 0, -2), 0);
            let consume: Symbol<unsafe extern "C" fn(*mut c_void, i32, c_int) -> *mut RawMessage> =
                library.get(b"rd_kafka_consume").unwrap();
            let destroy: Symbol<unsafe extern "C" fn(*mut RawMessage)> = library.get(b"rd_kafka_message_destroy").unwrap();
            let mut messages = Vec::new();
            while messages.len() < n {
                let message = consume(topic, 0, 30_000);
                assert!(!message.is_null(), "expected {n} messages, got {}", messages.len());
                if (*message).error == 0 {
                    messages.push((bytes((*message).key, (*message).n_key_bytes), bytes((*message).payload, (*message).n_bytes)));
                }
                destroy(message);
            }
            // The topic must contain no further message.
            let more = consume(topic, 0, 300);
            assert!(more.is_null() || (*more).error != 0, "expected {n} messages, got more");
            library.get::<unsafe extern "C" fn(*mut c_void, i32) -> c_int>(b"rd_kafka_consume_stop").unwrap()(topic, 0);
            library.get::<unsafe extern "C" fn(*mut c_void)>(b"rd_kafka_topic_destroy").unwrap()(topic);
            library.get::<unsafe extern "C" fn(*mut c_void)>(b"rd_kafka_destroy").unwrap()(client);
            messages
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: as above, and the cluster is destroyed before its client.
        unsafe {
            self.api.library.get::<unsafe extern "C" fn(*mut c_void)>(b"rd_kafka_mock_cluster_destroy").unwrap()(self.cluster);
            self.api.library.get::<unsafe extern "C" fn(*mut c_void)>(b"rd_kafka_destroy").unwrap()(self.client);
        }
    }
}

fn message(frame: u64) -> Message {
    Message { payload: format!("frame {frame}").into_bytes(), stream: Some("door".into()), epoch: 7, frame, part: 0 }
}

fn target(hosts: &str, options: &str) -> Box<dyn Destination> {
    Target::parse(&format!("kafka://{hosts}/results{options}"), &FileAccess::Allowed)
        .unwrap()
        .into_destination(crate::IfExists::Append, crate::Framing::LINES)
}

fn expected(frames: std::ops::Range<u64>) -> Vec<(String, String)> {
    frames.map(|frame| ("door".to_owned(), format!("frame {frame}"))).collect()
}

#[test]
fn messages_arrive_in_order_with_key_and_are_acknowledged() {
    let cluster = Cluster::new();
    let mut destination = target(&cluster.hosts(), "");
    destination.connect(&Deadline::default()).unwrap();
    (0..600).for_each(|frame| destination.publish(&message(frame)).unwrap());
    destination.flush().unwrap();
    assert_eq!(destination.acknowledged(), 600);
    destination.close().unwrap();
    assert_eq!(cluster.read(600), expected(0..600));
}

/// A folder for one test, removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn broker_that_goes_away_moves_the_cursor_only_by_acknowledgments() {
    let cluster = Cluster::new();
    let folder = Folder(std::env::temp_dir().join(format!("roiflow kafka {}", std::process::id())));
    let hosts = cluster.hosts();
    let (spool, mut writer) = Spool::open(&folder.0, Limits::default(), Retry::unlimited(), || target(&hosts, ""), |_| {}).unwrap();
    (0..100).for_each(|frame| writer.publish(&message(frame)).unwrap());
    assert!(spool.drain(Duration::from_secs(60), || false));
    cluster.down();
    (100..300).for_each(|frame| writer.publish(&message(frame)).unwrap());
    assert!(!spool.drain(Duration::from_secs(1), || false));
    assert_eq!((spool.status().delivered, spool.status().waiting), (100, 200));
    cluster.up();
    assert!(spool.drain(Duration::from_secs(60), || false));
    assert_eq!(spool.status().waiting, 0);
    drop((writer, spool));
    assert_eq!(cluster.read(300), expected(0..300));
}

#[test]
fn absent_broker_is_a_temporary_failure_that_ends_at_the_deadline() {
    let cluster = Cluster::new();
    let hosts = cluster.hosts();
    drop(cluster);
    let mut destination = target(&hosts, "");
    let deadline = Deadline::default();
    let (started, begun): (_, Receiver<()>) = channel();
    let closing = deadline.clone();
    let closer = std::thread::spawn(move || {
        begun.recv().unwrap();
        closing.set(Instant::now());
    });
    started.send(()).unwrap();
    let failure = destination.connect(&deadline).unwrap_err();
    assert!(!failure.is_fatal(), "{failure:?}");
    closer.join().unwrap();
}

#[test]
fn message_that_is_too_large_is_given_up_and_later_messages_arrive() {
    let cluster = Cluster::new();
    let mut destination = target(&cluster.hosts(), "?rdkafka.message.max.bytes=2000");
    destination.connect(&Deadline::default()).unwrap();
    destination.publish(&message(0)).unwrap();
    destination.publish(&Message { payload: vec![b'x'; 5000], ..message(1) }).unwrap();
    destination.publish(&message(2)).unwrap();
    destination.flush().unwrap();
    let refused: Vec<u64> = destination.take_refused().into_iter().map(|(position, _)| position).collect();
    assert_eq!((destination.acknowledged(), refused), (3, vec![1]));
    assert_eq!(cluster.read(2), [expected(0..1), expected(2..3)].concat());
}

#[test]
fn malformed_addresses_are_errors_before_the_start() {
    for (url, part) in [
        ("kafka://host/a/b", "expected a topic of letters"),
        ("kafka://host/{foo}", "unknown placeholder `{foo}`: expected {stream}"),
        ("kafka://host/results?rdkafka.no.such=1", "no.such"),
        ("kafka://host/results?acks=1", "unknown option `acks`"),
        ("kafka://host/results?compression=rar", "compression.codec"),
    ] {
        let error = Target::parse(url, &FileAccess::Allowed).unwrap_err().to_string();
        assert!(error.contains(part), "{url}: {error}");
    }
    assert_eq!(Target::parse("kafka://one:9092,two/results", &FileAccess::Allowed).unwrap().shown(), "kafka://one:9092,two/results");
}
