//! A coordinator inside the process, for a program whose streams all run in this process.
//!
//! All clients of a [`Local`] share one [`Store`] under one lock. A request is executed by the thread that submits it. No thread waits for items
//! to expire: each client that polls removes those whose time is over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::coordinator::{Change, Coordinator, Error, Event, Request, Ticket, Waker};
use crate::mailbox::Mailbox;
use crate::store::Store;

/// Keeps items over restarts of the process. It is called before an item without a time-to-live changes, so that each change is durable when
/// its reply arrives.
pub trait Disk: Send {
    /// Keeps the value of an item.
    ///
    /// # Errors
    /// Returns why the value cannot be kept. The write then fails with [`Error::Rejected`], and changes nothing.
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), String>;

    /// Removes an item.
    ///
    /// # Errors
    /// As for [`Disk::put`].
    fn remove(&mut self, key: &str) -> Result<(), String>;
}

/// A coordinator inside the process; see the module documentation. Clones are the same coordinator.
#[derive(Clone)]
pub struct Local(Arc<Shared>);

struct Shared {
    begin: Instant,
    state: Mutex<State>,
}

struct State {
    store: Store,
    disk: Option<Box<dyn Disk>>,
    watches: Vec<Watch>,
    n_clients: usize,
}

struct Watch {
    client: usize,
    ticket: Ticket,
    prefix: String,
    events: Mailbox,
}

impl Local {
    /// Makes a coordinator whose items are lost when the process ends.
    pub fn new() -> Self {
        Self::with_state(Store::default(), None)
    }

    /// Makes a coordinator whose items without a time-to-live are kept on a disk. `items` are the keys and values that the disk has.
    pub fn on_disk(disk: Box<dyn Disk>, items: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        let mut store = Store::default();
        for (key, value) in items {
            // A key that is there twice keeps its first value.
            let _created = store.execute(Duration::ZERO, Request::Create { key, value, ttl: None });
        }
        store.take_changes();
        Self::with_state(store, Some(disk))
    }

    fn with_state(store: Store, disk: Option<Box<dyn Disk>>) -> Self {
        let state = State { store, disk, watches: Vec::new(), n_clients: 0 };
        Self(Arc::new(Shared { begin: Instant::now(), state: Mutex::new(state) }))
    }

    /// Makes a client.
    pub fn client(&self) -> LocalClient {
        let mut state = self.0.lock();
        state.n_clients += 1;
        LocalClient { shared: self.0.clone(), id: state.n_clients, events: Mailbox::default() }
    }
}

impl Default for Local {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").field("watches", &self.0.lock().watches.len()).finish_non_exhaustive()
    }
}

/// A client of a [`Local`].
pub struct LocalClient {
    shared: Arc<Shared>,
    id: usize,
    events: Mailbox,
}

impl Coordinator for LocalClient {
    fn submit(&mut self, ticket: Ticket, request: Request) {
        let mut state = self.shared.lock();
        let now = self.shared.now();
        if let Request::Watch { prefix } = request {
            // Earlier changes are part of the items.
            state.deliver(now);
            let changes = state.store.items(&prefix).map(Change::Put);
            for change in std::iter::once(Change::Begin).chain(changes).chain([Change::Current]) {
                self.events.push(Event::Watch { ticket, change });
            }
            state.watches.push(Watch { client: self.id, ticket, prefix, events: self.events.clone() });
        } else {
            let result = state.keep(&request, now).and_then(|()| state.store.execute(now, request));
            // A client sees what it has written before the reply.
            state.deliver(now);
            self.events.push(Event::Reply { ticket, result });
        }
    }

    fn poll(&mut self, wait: Duration) -> Option<Event> {
        let now = self.shared.now();
        let expires = {
            let mut state = self.shared.lock();
            state.deliver(now);
            state.store.next_expiry()
        };
        self.events.poll(expires.map_or(wait, |expires| wait.min(expires.saturating_sub(now))))
    }

    fn waker(&self) -> Waker {
        self.events.waker()
    }
}

impl Drop for LocalClient {
    fn drop(&mut self) {
        self.shared.lock().watches.retain(|watch| watch.client != self.id);
    }
}

impl Shared {
    /// Time since the coordinator was made.
    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Keeps what a request changes on the disk, if it will change something.
    fn keep(&mut self, request: &Request, now: Duration) -> Result<(), Error> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        // The disk must not have what the store refuses.
        self.store.check(now, request)?;
        let kept = match request {
            Request::Create { key, value, ttl: None } | Request::Update { key, value, ttl: None, .. } => disk.put(key, value),
            // The disk ignores keys that it does not have.
            Request::Delete { key, .. } => disk.remove(key),
            _ => Ok(()),
        };
        kept.map_err(Error::Rejected)
    }

    /// Removes the items whose time-to-live is over, and reports all changes.
    fn deliver(&mut self, now: Duration) {
        self.store.expire(now);
        for change in self.store.take_changes() {
            let key = match &change {
                Change::Put(item) => &item.key,
                Change::Removed { key } => key,
                Change::Begin | Change::Current | Change::Interrupted => continue,
            };
            for watch in self.watches.iter().filter(|watch| key.starts_with(&watch.prefix)) {
                watch.events.push(Event::Watch { ticket: watch.ticket, change: change.clone() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::{Reply, call};

    /// A disk whose changes a test sees. It fails while `is_full`.
    #[derive(Clone, Default)]
    struct TestDisk(Arc<Mutex<(Vec<String>, bool)>>);

    impl TestDisk {
        fn change(&self, text: String) -> Result<(), String> {
            let mut disk = self.0.lock().unwrap();
            if disk.1 {
                return Err("no space left".to_owned());
            }
            disk.0.push(text);
            Ok(())
        }
    }

    impl Disk for TestDisk {
        fn put(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
            self.change(format!("{key}={}", String::from_utf8_lossy(value)))
        }

        fn remove(&mut self, key: &str) -> Result<(), String> {
            self.change(format!("-{key}"))
        }
    }

    fn create(key: &str, ttl: Option<Duration>) -> Request {
        Request::Create { key: key.to_owned(), value: b"1".to_vec(), ttl }
    }

    fn read(key: &str) -> Request {
        Request::Read { key: key.to_owned() }
    }

    #[test]
    fn disk_has_each_change_of_an_item_without_a_time_to_live() {
        let disk = TestDisk::default();
        let local = Local::on_disk(Box::new(disk.clone()), [("streams.hall".to_owned(), b"0".to_vec())]);
        let mut client = local.client();
        let Ok(Reply::Read(Some(hall))) = call(&mut client, read("streams.hall")) else { panic!() };
        assert_eq!(hall.value, b"0");
        let Ok(Reply::Written(revision)) = call(&mut client, create("streams.door", None)) else { panic!() };
        assert_eq!(call(&mut client, create("streams.door", None)), Err(Error::Conflict));
        call(&mut client, create("nodes.a", Some(Duration::from_secs(60)))).unwrap();
        call(&mut client, Request::Delete { key: "streams.door".to_owned(), revision }).unwrap();
        assert_eq!(disk.0.lock().unwrap().0, ["streams.door=1", "-streams.door"], "a write that conflicts is not kept");
    }

    #[test]
    fn write_that_cannot_be_kept_changes_nothing() {
        let disk = TestDisk::default();
        let mut client = Local::on_disk(Box::new(disk.clone()), []).client();
        disk.0.lock().unwrap().1 = true;
        assert_eq!(call(&mut client, create("streams.door", None)), Err(Error::Rejected("no space left".to_owned())));
        assert_eq!(call(&mut client, read("streams.door")), Ok(Reply::Read(None)));
    }

    #[test]
    fn dropped_client_keeps_no_events() {
        let local = Local::new();
        let mut client = local.client();
        client.submit(Ticket(0), Request::Watch { prefix: String::new() });
        assert_eq!(local.0.lock().watches.len(), 1);
        drop(client);
        assert_eq!(local.0.lock().watches.len(), 0);
    }
}
