//! The items of a coordinator as a plain data structure. The caller supplies the time, so the same code serves programs and simulations.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::coordinator::{Change, Error, Item, Reply, Request, Revision};

/// Keyed items with revisions and times to live.
#[derive(Debug, Clone, Default)]
pub struct Store {
    revision: u64,
    items: BTreeMap<String, Stored>,
    /// Changes that were not taken yet.
    changes: Vec<Change>,
}

#[derive(Debug, Clone)]
struct Stored {
    revision: Revision,
    value: Vec<u8>,
    expires: Option<Duration>,
}

impl Store {
    /// Executes a request at a time. Items whose time-to-live is over are removed first.
    ///
    /// [`Request::Watch`] is rejected: the owner of the store serves watches from [`Store::items`] and [`Store::take_changes`].
    pub fn execute(&mut self, now: Duration, request: Request) -> Result<Reply, Error> {
        self.check(now, &request)?;
        match request {
            Request::Read { key } => Ok(Reply::Read(self.items.get(&key).map(|stored| item(&key, stored)))),
            Request::Create { key, value, ttl } | Request::Update { key, value, ttl, .. } => {
                Ok(Reply::Written(self.put(now, key, value, ttl)))
            }
            Request::Delete { key, .. } => {
                self.items.remove(&key);
                self.revision += 1;
                self.changes.push(Change::Removed { key });
                Ok(Reply::Written(Revision(self.revision)))
            }
            Request::Watch { .. } => Err(Error::Rejected("a store does not serve watches".to_owned())),
        }
    }

    /// Returns the error that a request would get at a time, without executing it. Items whose time-to-live is over are removed first.
    ///
    /// # Errors
    /// Returns [`Error::Conflict`] if the item has another revision than the request expects.
    pub fn check(&mut self, now: Duration, request: &Request) -> Result<(), Error> {
        self.expire(now);
        match request {
            Request::Create { key, .. } if self.items.contains_key(key) => Err(Error::Conflict),
            Request::Update { key, revision, .. } | Request::Delete { key, revision } => self.expect(key, *revision),
            _ => Ok(()),
        }
    }

    /// Removes the items whose time-to-live is over.
    pub fn expire(&mut self, now: Duration) {
        let is_over = |stored: &Stored| stored.expires.is_some_and(|expires| expires <= now);
        let keys: Vec<String> = self.items.iter().filter(|(_, stored)| is_over(stored)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.items.remove(&key);
            self.revision += 1;
            self.changes.push(Change::Removed { key });
        }
    }

    /// Returns when the next item expires.
    pub fn next_expiry(&self) -> Option<Duration> {
        self.items.values().filter_map(|stored| stored.expires).min()
    }

    /// Returns the items whose key begins with this text.
    pub fn items(&self, prefix: &str) -> impl Iterator<Item = Item> {
        let from = self.items.range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
        from.take_while(move |(key, _)| key.starts_with(prefix)).map(|(key, stored)| item(key, stored))
    }

    /// Returns the changes since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    fn expect(&self, key: &str, revision: Revision) -> Result<(), Error> {
        self.items.get(key).filter(|stored| stored.revision == revision).map(|_| ()).ok_or(Error::Conflict)
    }

    fn put(&mut self, now: Duration, key: String, value: Vec<u8>, ttl: Option<Duration>) -> Revision {
        self.revision += 1;
        let stored = Stored { revision: Revision(self.revision), value, expires: ttl.map(|ttl| now + ttl) };
        self.changes.push(Change::Put(item(&key, &stored)));
        self.items.insert(key, stored);
        Revision(self.revision)
    }
}

fn item(key: &str, stored: &Stored) -> Item {
    Item { key: key.to_owned(), revision: stored.revision, value: stored.value.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Option<Duration> = Some(Duration::from_secs(15));

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn create(ttl: Option<Duration>) -> Request {
        Request::Create { key: "a".to_owned(), value: b"1".to_vec(), ttl }
    }

    fn update(revision: Revision) -> Request {
        Request::Update { key: "a".to_owned(), revision, value: b"2".to_vec(), ttl: TTL }
    }

    fn written(reply: Result<Reply, Error>) -> Revision {
        let Ok(Reply::Written(revision)) = reply else { panic!("expected a write, got {reply:?}") };
        revision
    }

    #[test]
    fn writes_need_the_expected_revision() {
        let mut store = Store::default();
        let first = written(store.execute(at(0), create(None)));
        assert_eq!(store.execute(at(0), create(None)), Err(Error::Conflict), "it exists");
        let second = written(store.execute(at(0), update(first)));
        assert!(second > first);
        assert_eq!(store.execute(at(0), update(first)), Err(Error::Conflict), "another write was faster");
        assert_eq!(store.execute(at(0), Request::Delete { key: "a".to_owned(), revision: first }), Err(Error::Conflict));
        let deleted = written(store.execute(at(0), Request::Delete { key: "a".to_owned(), revision: second }));
        assert!(written(store.execute(at(0), create(None))) > deleted, "revisions grow over deletions");
    }

    #[test]
    fn items_expire_after_their_last_write() {
        let mut store = Store::default();
        let first = written(store.execute(at(0), create(TTL)));
        let second = written(store.execute(at(10), update(first)));
        store.expire(at(24));
        assert_eq!(store.items("").count(), 1);
        assert_eq!(store.next_expiry(), Some(at(25)));
        assert_eq!(store.execute(at(25), update(second)), Err(Error::Conflict), "the item has expired");
        let changes = store.take_changes();
        assert!(matches!(&changes[..], [Change::Put(_), Change::Put(_), Change::Removed { key }] if key == "a"), "{changes:?}");
    }

    #[test]
    fn a_prefix_selects_items() {
        let mut store = Store::default();
        for key in ["a.1", "b.1", "b.2", "c.1"] {
            written(store.execute(at(0), Request::Create { key: key.to_owned(), value: Vec::new(), ttl: None }));
        }
        assert_eq!(store.items("b.").map(|item| item.key).collect::<Vec<_>>(), ["b.1", "b.2"]);
    }
}
