//! A coordinator inside one process, for a single machine and for tests. Its items are lost when the process ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::coordinator::{Change, Coordinator, Event, Request, Ticket, Waker};
use crate::mailbox::Mailbox;
use crate::store::Store;

/// A coordinator inside one process. [`Memory::client`] returns a client for each user.
#[derive(Debug, Clone, Default)]
pub struct Memory(Arc<Mutex<Shared>>);

#[derive(Debug)]
struct Shared {
    store: Store,
    watches: Vec<Watch>,
    begin: Instant,
}

#[derive(Debug)]
struct Watch {
    prefix: String,
    ticket: Ticket,
    mailbox: Mailbox,
    /// Number of the client. Its watches end when the client is dropped.
    client: u64,
}

impl Default for Shared {
    fn default() -> Self {
        Self { store: Store::default(), watches: Vec::new(), begin: Instant::now() }
    }
}

impl Memory {
    /// Returns a new client.
    pub fn client(&self) -> Client {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Client { shared: self.0.clone(), mailbox: Mailbox::default(), number }
    }
}

/// A client of [`Memory`].
#[derive(Debug)]
pub struct Client {
    shared: Arc<Mutex<Shared>>,
    mailbox: Mailbox,
    number: u64,
}

impl Coordinator for Client {
    fn submit(&mut self, ticket: Ticket, request: Request) {
        let mut shared = lock(&self.shared);
        if let Request::Watch { prefix } = request {
            shared.deliver();
            let report = |change| self.mailbox.push(Event::Watch { ticket, change });
            report(Change::Begin);
            shared.store.items(&prefix).map(Change::Put).for_each(report);
            report(Change::Current);
            shared.watches.push(Watch { prefix, ticket, mailbox: self.mailbox.clone(), client: self.number });
            return;
        }
        let now = shared.begin.elapsed();
        let result = shared.store.execute(now, request);
        shared.deliver();
        self.mailbox.push(Event::Reply { ticket, result });
    }

    fn poll(&mut self, wait: Duration) -> Option<Event> {
        let until_expiry = {
            let mut shared = lock(&self.shared);
            shared.deliver();
            shared.store.next_expiry().map_or(wait, |expiry| expiry.saturating_sub(shared.begin.elapsed()))
        };
        self.mailbox.poll(wait.min(until_expiry))
    }

    fn waker(&self) -> Waker {
        self.mailbox.waker()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        lock(&self.shared).watches.retain(|watch| watch.client != self.number);
    }
}

impl Shared {
    /// Removes expired items, and reports all new changes to the watches.
    fn deliver(&mut self) {
        self.store.expire(self.begin.elapsed());
        for change in self.store.take_changes() {
            let (Change::Put(crate::coordinator::Item { key, .. }) | Change::Removed { key }) = &change else { continue };
            for watch in self.watches.iter().filter(|watch| key.starts_with(&watch.prefix)) {
                watch.mailbox.push(Event::Watch { ticket: watch.ticket, change: change.clone() });
            }
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::{Error, Reply, call};

    fn create(key: &str, ttl: Option<Duration>) -> Request {
        Request::Create { key: key.to_owned(), value: b"{}".to_vec(), ttl }
    }

    #[test]
    fn clients_share_items_and_a_watch_reports_them() {
        let memory = Memory::default();
        let (mut writer, mut watcher) = (memory.client(), memory.client());
        call(&mut writer, create("a.1", None)).unwrap();
        watcher.submit(Ticket(9), Request::Watch { prefix: "a.".to_owned() });
        let Reply::Written(revision) = call(&mut writer, create("a.2", None)).unwrap() else { panic!() };
        call(&mut writer, create("b.1", None)).unwrap();
        assert_eq!(call(&mut writer, create("a.2", None)), Err(Error::Conflict));
        call(&mut writer, Request::Delete { key: "a.2".to_owned(), revision }).unwrap();
        let mut seen = Vec::new();
        while let Some(Event::Watch { ticket: Ticket(9), change }) = watcher.poll(Duration::ZERO) {
            seen.push(match change {
                Change::Put(item) => item.key,
                Change::Removed { key } => format!("-{key}"),
                other => format!("{other:?}"),
            });
        }
        assert_eq!(seen, ["Begin", "a.1", "Current", "a.2", "-a.2"]);
    }

    #[test]
    fn a_poll_reports_an_item_that_expires() {
        let memory = Memory::default();
        let mut client = memory.client();
        call(&mut client, create("a", Some(Duration::from_millis(20)))).unwrap();
        client.submit(Ticket(0), Request::Watch { prefix: String::new() });
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < Duration::from_secs(60), "the item did not expire");
            let event = client.poll(Duration::from_secs(60));
            if let Some(Event::Watch { change: Change::Removed { key }, .. }) = event {
                assert_eq!(key, "a");
                break;
            }
        }
    }

    #[test]
    fn a_waker_ends_a_poll() {
        let memory = Memory::default();
        let mut client = memory.client();
        let waker = client.waker();
        let thread = std::thread::spawn(move || waker.wake());
        // Without the waker, this poll would take an hour, and the test would end at its time limit.
        assert_eq!(client.poll(Duration::from_secs(3600)), None);
        thread.join().unwrap();
    }
}
