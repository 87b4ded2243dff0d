//! Tests of the rules for coordinators, for the tests of each implementation. A test panics if the implementation breaks a rule.
//!
//! `client` makes a further client of the coordinator under test. Each test needs a coordinator without items.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::coordinator::{Change, Coordinator, Error, Event, Reply, Request, Revision, Ticket, call};

/// Time limit of each wait. A longer wait counts as a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// A function that makes a client.
pub type Client<'a> = &'a dyn Fn() -> Box<dyn Coordinator>;

/// Returns a request that creates an item.
pub fn create(key: &str, ttl: Option<Duration>) -> Request {
    Request::Create { key: key.to_owned(), value: b"{}".to_vec(), ttl }
}

/// Returns a request that reads an item.
pub fn read(key: &str) -> Request {
    Request::Read { key: key.to_owned() }
}

/// Returns the revision of a successful write.
///
/// # Panics
/// Panics if the reply is another one.
pub fn written(reply: Result<Reply, Error>) -> Revision {
    let Ok(Reply::Written(revision)) = reply else { panic!("expected a write, got {reply:?}") };
    revision
}

/// Returns the changes of the watch with ticket 0 up to the one that is expected.
///
/// # Panics
/// Panics if this change does not come in time.
pub fn until(client: &mut dyn Coordinator, is_last: impl Fn(&Change) -> bool) -> Vec<Change> {
    let (begin, mut seen) = (Instant::now(), Vec::new());
    loop {
        assert!(begin.elapsed() < LIMIT, "{seen:?}");
        if let Some(Event::Watch { ticket: Ticket(0), change }) = client.poll(Duration::from_millis(200)) {
            let is_done = is_last(&change);
            seen.push(change);
            if is_done {
                return seen;
            }
        }
    }
}

/// Writes need the expected revision, and deleted keys can be created.
pub fn writes_need_the_expected_revision_and_deleted_keys_can_be_created(client: Client<'_>) {
    let mut client = client();
    let client = &mut *client;
    let first = written(call(client, create("streams.door", None)));
    assert_eq!(call(client, create("streams.door", None)), Err(Error::Conflict));
    let update = |revision| Request::Update { key: "streams.door".to_owned(), revision, value: b"2".to_vec(), ttl: None };
    let second = written(call(client, update(first)));
    assert_eq!(call(client, update(first)), Err(Error::Conflict), "another write was faster");
    let Ok(Reply::Read(Some(item))) = call(client, read("streams.door")) else { panic!("the item is missing") };
    assert_eq!((item.revision, &*item.value), (second, &b"2"[..]));
    let delete = |revision| Request::Delete { key: "streams.door".to_owned(), revision };
    assert_eq!(call(client, delete(first)), Err(Error::Conflict), "it has another revision");
    let deleted = written(call(client, delete(second)));
    assert_eq!(call(client, read("streams.door")), Ok(Reply::Read(None)));
    assert_eq!(call(client, update(second)), Err(Error::Conflict), "it does not exist");
    assert!(written(call(client, create("streams.door", None))) > deleted, "revisions grow over deletions");
}

/// A watch reports items, changes and the end of a time-to-live.
pub fn watch_reports_items_changes_and_the_end_of_a_time_to_live(client: Client<'_>) {
    let (mut watcher, mut writer) = (client(), client());
    watcher.submit(Ticket(0), Request::Watch { prefix: String::new() });
    let seen = until(&mut *watcher, |change| *change == Change::Current);
    assert_eq!(seen, [Change::Begin, Change::Current], "there is no item");
    let begin = Instant::now();
    let first = written(call(&mut *writer, create("nodes.a", Some(Duration::from_secs(2)))));
    let update = Request::Update { key: "nodes.a".to_owned(), revision: first, value: b"3".to_vec(), ttl: Some(Duration::from_secs(3)) };
    written(call(&mut *writer, update));
    let seen = until(&mut *watcher, |change| matches!(change, Change::Removed { .. }));
    assert!(matches!(&seen[..], [Change::Put(_), Change::Put(_), Change::Removed { key }] if key == "nodes.a"), "{seen:?}");
    assert!(begin.elapsed() >= Duration::from_secs(3), "the second time-to-live replaces the first: {:?}", begin.elapsed());
    written(call(&mut *writer, create("nodes.a", Some(Duration::from_secs(60)))));
}

/// A watch reports only the keys that begin with its prefix, and existing items first.
pub fn watch_reports_only_its_keys(client: Client<'_>) {
    let (mut watcher, mut writer) = (client(), client());
    let mut add = |key: &str| {
        written(call(&mut *writer, create(key, None)));
    };
    ["assign.a", "streams.a", "streams.b"].into_iter().for_each(&mut add);
    watcher.submit(Ticket(0), Request::Watch { prefix: "streams.".to_owned() });
    let keys = |changes: &[Change]| -> Vec<String> {
        let key = |change: &Change| match change {
            Change::Put(item) => Some(item.key.clone()),
            _ => None,
        };
        changes.iter().filter_map(key).collect()
    };
    let seen = until(&mut *watcher, |change| *change == Change::Current);
    assert_eq!(keys(&seen).into_iter().collect::<BTreeSet<_>>(), BTreeSet::from(["streams.a".to_owned(), "streams.b".to_owned()]));
    ["status.a", "streams.c"].into_iter().for_each(&mut add);
    let seen = until(&mut *watcher, |change| matches!(change, Change::Put(item) if item.key == "streams.c"));
    assert_eq!(keys(&seen), ["streams.c"]);
}

/// Of several clients that write the same revision at the same time, one succeeds.
pub fn only_one_of_several_writers_replaces_a_revision(client: Client<'_>) {
    const WRITERS: usize = 4;
    const ROUNDS: usize = 20;
    let mut clients: Vec<_> = (0..WRITERS).map(|_| client()).collect();
    let mut revision = written(call(&mut *clients[0], create("lock.planner", None)));
    for round in 0..ROUNDS {
        let results: Vec<_> = std::thread::scope(|scope| {
            let write = |n: usize, client: &mut Box<dyn Coordinator>| {
                let value = format!("{round}/{n}").into_bytes();
                call(&mut **client, Request::Update { key: "lock.planner".to_owned(), revision, value, ttl: None })
            };
            let running: Vec<_> = clients.iter_mut().enumerate().map(|(n, client)| scope.spawn(move || write(n, client))).collect();
            running.into_iter().map(|thread| thread.join().expect("the writer has not panicked")).collect()
        });
        let won: Vec<usize> = (0..WRITERS).filter(|n| results[*n].is_ok()).collect();
        assert_eq!(won.len(), 1, "{results:?}");
        assert!(results.iter().all(|result| matches!(result, Ok(_) | Err(Error::Conflict))), "{results:?}");
        let earlier = std::mem::replace(&mut revision, written(results[won[0]].clone()));
        assert!(revision > earlier);
        let Ok(Reply::Read(Some(item))) = call(&mut *clients[0], read("lock.planner")) else { panic!("the item is missing") };
        assert_eq!((item.revision, item.value), (revision, format!("{round}/{}", won[0]).into_bytes()));
    }
}

/// Each request gets one reply, with its ticket.
pub fn each_request_gets_one_reply(client: Client<'_>) {
    let mut client = client();
    for ticket in 0..50 {
        client.submit(Ticket(ticket), create(&format!("streams.s{}", ticket % 25), None));
    }
    let (begin, mut replies) = (Instant::now(), Vec::new());
    while replies.len() < 50 {
        assert!(begin.elapsed() < LIMIT, "{replies:?}");
        if let Some(Event::Reply { ticket, result }) = client.poll(Duration::from_millis(200)) {
            replies.push((ticket.0, result.is_ok()));
        }
    }
    replies.sort_unstable();
    let expected: Vec<_> = (0..50).map(|ticket| (ticket, ticket < 25)).collect();
    assert_eq!(replies, expected, "the second half conflicts with the first");
    assert_eq!(client.poll(Duration::from_millis(100)), None);
}

/// A waker ends a `poll` that waits, and the next one if none waits.
pub fn waker_ends_a_wait(client: Client<'_>) {
    let mut client = client();
    let waker = client.waker();
    waker.wake();
    let begin = Instant::now();
    while begin.elapsed() < LIMIT && client.poll(LIMIT).is_some() {}
    assert!(begin.elapsed() < LIMIT, "the wake before the wait was lost");
    std::thread::scope(|scope| {
        let polling = scope.spawn(|| client.poll(LIMIT));
        // Whether the thread waits already makes no difference.
        waker.wake();
        assert_eq!(polling.join().expect("the thread has not panicked"), None);
    });
    assert!(begin.elapsed() < LIMIT, "the wait did not end");
}
