//! The items that nodes share, sealed with the key of the nodes: a coordinator around another one. Every read, write and watch of a node
//! passes through it, so no code outside this module sees an item that was not sealed with the key.
//!
//! # Sealed data
//!
//! The value of an item is encrypted and authenticated, together with the group, the key of the item, and the revision that the write
//! replaces. This revision is stored next to the value. A write that creates an item states the newest revision of all items that the writer knows.
//!
//! # Refused items
//!
//! | item | refused because |
//! |---|---|
//! | is not sealed | it may be of anyone who can write to the coordinator |
//! | was sealed with another key, for another group, or for another key of an item | it was not written as this item |
//! | replaces a revision below the newest one that was accepted for its key | it is an earlier version that was written again |
//! | replaces a revision that is not below its own | the coordinator has counted anew |
//!
//! A refused item has no effect. If it has replaced an accepted item without a time-to-live, the accepted one stays in effect, and this
//! node writes it again, and if it stands in the place of an item that was removed, this node removes it. If it has replaced an item with a time-to-live, that one counts as removed: nobody would end it in time.
//!
//! Two things cannot be sealed: that an item was deleted, and that its time-to-live is over.
//!
//! # Which nodes take part
//!
//! A node takes part if its key fits: it can open an item of the group, or there is none. The first node of an empty group writes an item
//! for this, so two nodes with different keys cannot both begin. A node without a key takes part if no item is sealed. A node whose key
//! does not fit sees no items, and all its requests are rejected.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use roiflow_nodes::coordinator::{Change, Coordinator, Error, Event, Item, REQUEST_TIMEOUT, Reply, Request, Revision, Ticket, Waker};
use roiflow_nodes::keys;
use serde::{Deserialize, Serialize};

use super::key::Key;

/// Tickets of requests of this module. Callers count theirs from 0.
const WATCH: Ticket = Ticket(u64::MAX);
const CHECK: Ticket = Ticket(u64::MAX - 1);
const RESTORE: Ticket = Ticket(u64::MAX - 2);
/// Key of the item that the first node of a group writes, to show its key.
pub(super) const CHECK_KEY: &str = "seal.check";
/// Version of the format.
const VERSION: u32 = 2;
/// Smallest time between two messages about refused items.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// A sealed item as the coordinator stores it.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    /// Version of the format.
    sealed: u32,
    /// Revision that the write replaces.
    replaces: u64,
    /// Nonce, encrypted value and tag, in base64.
    data: String,
}

/// Whether a value was sealed, with any key.
pub(super) fn is_sealed(value: &[u8]) -> bool {
    serde_json::from_slice::<Stored>(value).is_ok()
}

/// Seals the items of a group.
#[derive(Debug, Clone)]
pub(super) struct Seal {
    key: Arc<Key>,
    group: String,
}

impl Seal {
    pub(super) fn new(key: Arc<Key>, group: &str) -> Self {
        Self { key, group: group.to_owned() }
    }

    /// What the key authenticates together with a value. The parts contain no line feeds.
    fn context(&self, key: &str, replaces: u64) -> String {
        format!("roiflow item {VERSION}\n{}\n{key}\n{replaces}", self.group)
    }

    /// Seals a value that replaces a revision.
    ///
    /// # Errors
    /// Returns an error if the system has no random numbers.
    pub(super) fn seal(&self, key: &str, replaces: Revision, value: &[u8]) -> Result<Vec<u8>, String> {
        let replaces = replaces.0;
        let data = self.key.seal_item(&self.context(key, replaces), value)?;
        serde_json::to_vec(&Stored { sealed: VERSION, replaces, data: STANDARD.encode(data) }).map_err(|error| error.to_string())
    }

    /// Opens an item. Returns the revision that it replaces and its value; `None`: it was not sealed for this key and group.
    pub(super) fn open(&self, key: &str, value: &[u8]) -> Option<(Revision, Vec<u8>)> {
        let Stored { sealed: VERSION, replaces, data } = serde_json::from_slice(value).ok()? else { return None };
        let value = self.key.open_item(&self.context(key, replaces), STANDARD.decode(data).ok()?)?;
        Some((Revision(replaces), value))
    }
}

/// What other threads see of a [`Sealed`].
#[derive(Debug, Default)]
pub(super) struct Health {
    unfit: Mutex<Option<String>>,
    n_refused: AtomicU64,
}

impl Health {
    /// Why the node takes part in nothing.
    pub(super) fn unfit(&self) -> Option<String> {
        self.unfit.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Number of items that were refused.
    pub(super) fn n_refused(&self) -> u64 {
        self.n_refused.load(Ordering::Relaxed)
    }
}

/// Whether this node takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fit {
    /// The items were not read yet.
    Unknown,
    /// It does.
    Fits,
    /// It does not, for this reason.
    Unfit(String),
}

/// What is known of a key.
#[derive(Debug, Default)]
struct Known {
    /// Newest revision that was accepted.
    newest: Revision,
    /// The item that is in effect.
    accepted: Option<Accepted>,
    /// Revision of the item at the coordinator, if it was refused.
    refused: Option<Revision>,
}

#[derive(Debug, PartialEq, Eq)]
struct Accepted {
    revision: Revision,
    replaces: Revision,
    value: Vec<u8>,
}

/// A coordinator whose items are sealed; see the module documentation. Without a key, it only refuses sealed items.
pub(super) struct Sealed {
    inner: Box<dyn Coordinator>,
    /// Whether the items are watched: from the first request on.
    has_begun: bool,
    seal: Option<Seal>,
    group: String,
    fit: Fit,
    known: BTreeMap<String, Known>,
    /// Highest revision that this client has seen.
    newest: Revision,
    /// Keys of the snapshot that is being delivered.
    snapshot: Option<BTreeSet<String>>,
    is_current: bool,
    watches: Vec<(Ticket, String)>,
    events: VecDeque<Event>,
    /// Requests that wait until it is known whether the node takes part, with the time at which they fail.
    held: Vec<(Instant, Ticket, Request)>,
    /// Tells other threads and people; `None`: another client of the same node does.
    health: Option<Arc<Health>>,
    warned_at: Option<Instant>,
    /// Whether an item that was refused was sealed.
    has_sealed: bool,
}

impl Sealed {
    /// Seals the items of `inner` with the key of a group. Without a key, items are not sealed.
    pub(super) fn new(inner: Box<dyn Coordinator>, key: Option<Arc<Key>>, group: &str, health: Option<Arc<Health>>) -> Self {
        Self {
            inner,
            has_begun: false,
            seal: key.map(|key| Seal::new(key, group)),
            group: group.to_owned(),
            fit: Fit::Unknown,
            known: BTreeMap::new(),
            newest: Revision::default(),
            snapshot: None,
            is_current: false,
            watches: Vec::new(),
            events: VecDeque::new(),
            held: Vec::new(),
            health,
            warned_at: None,
            has_sealed: false,
        }
    }

    fn fail(&mut self, ticket: Ticket, error: Error) {
        self.events.push_back(Event::Reply { ticket, result: Err(error) });
    }

    /// Sends a request to the coordinator.
    fn send(&mut self, ticket: Ticket, request: Request) {
        match self.sealed(request) {
            Ok(request) => self.inner.submit(ticket, request),
            Err(error) => self.fail(ticket, error),
        }
    }

    /// Returns the request for the coordinator. It replaces a refused item as if that were not there.
    fn sealed(&self, request: Request) -> Result<Request, Error> {
        let known = self.known.get(request.key());
        let refused = known.and_then(|known| known.refused);
        let in_effect = known.and_then(|known| known.accepted.as_ref()).map(|accepted| accepted.revision);
        let at_coordinator = |revision: Revision| refused.filter(|_| in_effect == Some(revision)).unwrap_or(revision);
        let seal = |key: &str, replaces: Revision, value: Vec<u8>| match &self.seal {
            Some(seal) => seal.seal(key, replaces, &value).map_err(Error::Rejected),
            None => Ok(value),
        };
        Ok(match request {
            Request::Create { key, value, ttl } => match refused.filter(|_| in_effect.is_none()) {
                Some(revision) => Request::Update { value: seal(&key, self.newest.max(revision), value)?, key, revision, ttl },
                None => Request::Create { value: seal(&key, self.newest, value)?, key, ttl },
            },
            Request::Update { key, revision, value, ttl } => {
                let revision = at_coordinator(revision);
                Request::Update { value: seal(&key, revision, value)?, key, revision, ttl }
            }
            Request::Delete { key, revision } => Request::Delete { revision: at_coordinator(revision), key },
            other => other,
        })
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Watch { ticket: WATCH, change } => self.see(change),
            Event::Watch { .. } | Event::Reply { ticket: RESTORE, .. } => {}
            Event::Reply { ticket: CHECK, result } => match result {
                Ok(_) if self.fit == Fit::Unknown => self.set_fit(Fit::Fits),
                // The watch shows the item of the other node.
                Ok(_) | Err(Error::Conflict) => {}
                Err(Error::Rejected(reason)) => self.set_fit(Fit::Unfit(format!("write the first item of the group failed: {reason}"))),
                Err(_) if self.is_current => self.check_fit(),
                Err(_) => {}
            },
            Event::Reply { ticket, result } => {
                let result = result.map(|reply| match reply {
                    Reply::Read(item) => Reply::Read(item.and_then(|item| self.read(item))),
                    Reply::Written(revision) => {
                        self.newest = self.newest.max(revision);
                        Reply::Written(revision)
                    }
                });
                self.events.push_back(Event::Reply { ticket, result });
            }
        }
    }

    /// Opens an item that was read. If it is refused, returns the one that stays in effect.
    fn read(&self, item: Item) -> Option<Item> {
        let Item { key, revision, .. } = &item;
        match self.open(&item) {
            Ok((_, value)) => Some(Item { value, ..item }),
            Err(_) => {
                let accepted = self.known.get(key)?.accepted.as_ref().filter(|accepted| accepted.revision < *revision)?;
                Some(Item { key: key.clone(), revision: accepted.revision, value: accepted.value.clone() })
            }
        }
    }

    /// Returns the revision that an item replaces, and its value.
    ///
    /// # Errors
    /// Returns why the item is refused.
    fn open(&self, item: &Item) -> Result<(Revision, Vec<u8>), &'static str> {
        let Some(seal) = &self.seal else {
            return if is_sealed(&item.value) {
                Err("it is sealed, and this node has no key")
            } else {
                Ok((Revision(0), item.value.clone()))
            };
        };
        let Some((replaces, value)) = seal.open(&item.key, &item.value) else {
            return Err(if is_sealed(&item.value) { "it was sealed with another key, or as another item" } else { "it is not sealed" });
        };
        if replaces >= item.revision {
            return Err("it replaces a later revision. If the NATS servers have lost their data, start all nodes again");
        }
        let known = self.known.get(&item.key);
        let is_same = |accepted: &Accepted| accepted.revision == item.revision && accepted.replaces == replaces && accepted.value == value;
        let is_known = known.and_then(|known| known.accepted.as_ref()).is_some_and(is_same);
        if !is_known && known.is_some_and(|known| replaces < known.newest) {
            return Err("it is an earlier version that was written again");
        }
        Ok((replaces, value))
    }

    /// Handles a change of the items at the coordinator.
    fn see(&mut self, change: Change) {
        match change {
            Change::Begin => (self.snapshot, self.is_current) = (Some(BTreeSet::new()), false),
            Change::Put(item) => self.put(item),
            Change::Removed { key } => {
                if let Some(known) = self.known.get_mut(&key) {
                    (known.accepted, known.refused) = (None, None);
                }
                if let Some(keys) = &mut self.snapshot {
                    keys.remove(&key);
                }
                self.report(&key, || Change::Removed { key: key.clone() });
            }
            Change::Current => {
                if let Some(keys) = self.snapshot.take() {
                    let gone = self.known.iter_mut().filter(|(key, _)| !keys.contains(*key));
                    gone.for_each(|(_, known)| (known.accepted, known.refused) = (None, None));
                }
                self.is_current = true;
                if self.fit == Fit::Fits && self.still_fits() { self.deliver_all() } else { self.check_fit() }
            }
            Change::Interrupted => {
                (self.snapshot, self.is_current) = (None, false);
                self.interrupt();
            }
        }
    }

    fn put(&mut self, item: Item) {
        self.newest = self.newest.max(item.revision);
        if let Some(keys) = &mut self.snapshot {
            keys.insert(item.key.clone());
        }
        let opened = self.open(&item);
        let known = self.known.entry(item.key.clone()).or_default();
        match opened {
            Ok((replaces, value)) => {
                (known.newest, known.refused) = (known.newest.max(item.revision), None);
                known.accepted = Some(Accepted { revision: item.revision, replaces, value: value.clone() });
                self.report(&item.key.clone(), || Change::Put(Item { value, ..item }));
            }
            Err(reason) => {
                let is_new = known.refused.replace(item.revision) != Some(item.revision);
                self.has_sealed |= is_sealed(&item.value);
                if has_ttl(&item.key) {
                    if known.accepted.take().is_some() {
                        self.report(&item.key, || Change::Removed { key: item.key.clone() });
                    }
                } else if is_new && self.fit == Fit::Fits && item.revision > known.newest {
                    let key = item.key.clone();
                    let restore = match &known.accepted {
                        Some(Accepted { revision, value, .. }) => {
                            Some(Request::Update { key, revision: *revision, value: value.clone(), ttl: None })
                        }
                        // A node that starts later cannot know that the item was removed.
                        None => (known.newest > Revision(0)).then_some(Request::Delete { key, revision: item.revision }),
                    };
                    restore.into_iter().for_each(|request| self.send(RESTORE, request));
                }
                if is_new {
                    self.count(&item.key, reason);
                }
            }
        }
        if self.is_current && (self.fit != Fit::Fits || !self.still_fits()) {
            self.check_fit();
        }
    }

    /// Counts a refused item.
    fn count(&mut self, key: &str, reason: &str) {
        let Some(health) = self.health.as_ref().filter(|_| self.seal.is_some()) else { return };
        let n_refused = health.n_refused.fetch_add(1, Ordering::Relaxed) + 1;
        if self.fit == Fit::Fits && self.warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
            self.warned_at = Some(Instant::now());
            let key = key.escape_debug();
            tracing::warn!("the item `{key}` of the group `{}` is refused: {reason}. {n_refused} items were refused so far", self.group);
        }
    }

    /// Whether a node that takes part still does. Items that it cannot open do not end this: anyone who can write to the coordinator makes them.
    fn still_fits(&self) -> bool {
        self.seal.is_some() || self.known.values().all(|known| known.refused.is_none())
    }

    /// Finds out whether the node takes part. All items were seen.
    fn check_fit(&mut self) {
        let has_accepted = self.known.values().any(|known| known.accepted.is_some());
        let n_refused = self.known.values().filter(|known| known.refused.is_some()).count();
        let group = &self.group;
        let fit = match &self.seal {
            None if n_refused > 0 => Fit::Unfit(format!(
                "expected items of the group `{group}` that are not sealed, because this node has no key, got sealed ones. Start this node \
                 with the file --key of the other nodes"
            )),
            None => Fit::Fits,
            Some(_) if has_accepted => Fit::Fits,
            Some(_) if n_refused == 0 => {
                // The reply decides.
                self.fit = Fit::Unknown;
                return self.send(CHECK, Request::Create { key: CHECK_KEY.to_owned(), value: b"{}".to_vec(), ttl: None });
            }
            Some(_) if self.has_sealed => Fit::Unfit(format!(
                "expected items of the group `{group}` that were sealed with the key of this node, got ones that were sealed with another key. \
                 Start this node with the same file --key as the other nodes"
            )),
            Some(_) => Fit::Unfit(format!(
                "expected sealed items of the group `{group}`, because this node has a key, got {n_refused} that are not sealed. End all \
                 nodes, and run this command once with --seal-group"
            )),
        };
        self.set_fit(fit);
    }

    fn set_fit(&mut self, fit: Fit) {
        if fit == self.fit {
            return;
        }
        let before = std::mem::replace(&mut self.fit, fit.clone());
        let unfit = match fit {
            Fit::Unfit(reason) => Some(format!("this node takes part in nothing: {reason}")),
            Fit::Unknown | Fit::Fits => None,
        };
        if let Some(health) = &self.health {
            match &unfit {
                Some(reason) => tracing::error!("{reason}"),
                None if before != Fit::Unknown => tracing::warn!("the key of this node fits now"),
                None => {}
            }
            health.unfit.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&unfit);
        }
        if unfit.is_some() {
            if before == Fit::Fits {
                self.interrupt();
            }
        } else if self.is_current {
            self.deliver_all();
        }
        for (_, ticket, request) in std::mem::take(&mut self.held) {
            self.submit(ticket, request);
        }
    }

    /// Reports a change of an item to the watches of its key.
    fn report(&mut self, key: &str, change: impl FnOnce() -> Change) {
        if self.fit != Fit::Fits || !self.is_current || key == CHECK_KEY {
            return;
        }
        let change = change();
        let watches = self.watches.iter().filter(|(_, prefix)| key.starts_with(prefix.as_str()));
        self.events.extend(watches.map(|(ticket, _)| Event::Watch { ticket: *ticket, change: change.clone() }));
    }

    fn interrupt(&mut self) {
        let interrupted = |(ticket, _): &(Ticket, String)| Event::Watch { ticket: *ticket, change: Change::Interrupted };
        self.events.extend(self.watches.iter().map(interrupted));
    }

    fn deliver_all(&mut self) {
        (0..self.watches.len()).for_each(|idx| self.deliver(idx));
    }

    /// Reports all items to a watch.
    fn deliver(&mut self, watch_idx: usize) {
        let (ticket, prefix) = &self.watches[watch_idx];
        let item = |(key, known): (&String, &Known)| {
            let Accepted { revision, value, .. } = known.accepted.as_ref()?;
            (key != CHECK_KEY).then(|| Change::Put(Item { key: key.clone(), revision: *revision, value: value.clone() }))
        };
        let items = self.known.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(prefix.as_str())).filter_map(item);
        let changes = std::iter::once(Change::Begin).chain(items).chain([Change::Current]);
        self.events.extend(changes.map(|change| Event::Watch { ticket: *ticket, change }));
    }
}

impl Coordinator for Sealed {
    fn submit(&mut self, ticket: Ticket, request: Request) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.inner.submit(WATCH, Request::Watch { prefix: String::new() });
        }
        match (request, &self.fit) {
            (Request::Watch { prefix }, fit) => {
                let is_delivered = self.is_current && *fit == Fit::Fits;
                self.watches.push((ticket, prefix));
                if is_delivered {
                    self.deliver(self.watches.len() - 1);
                }
            }
            (request, Fit::Fits) => self.send(ticket, request),
            (_, Fit::Unfit(reason)) => {
                let reason = reason.clone();
                self.fail(ticket, Error::Rejected(reason));
            }
            (request, Fit::Unknown) => self.held.push((Instant::now() + REQUEST_TIMEOUT, ticket, request)),
        }
    }

    fn poll(&mut self, wait: Duration) -> Option<Event> {
        let end = Instant::now() + wait;
        loop {
            let now = Instant::now();
            let (late, held) = std::mem::take(&mut self.held).into_iter().partition(|(until, _, _)| *until <= now);
            self.held = held;
            for (_, ticket, _) in late {
                self.fail(ticket, Error::Unreachable("the items of the group could not be read yet".to_owned()));
            }
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let until = self.held.iter().map(|(until, _, _)| *until).fold(end, Instant::min);
            match self.inner.poll(until.saturating_duration_since(now)) {
                Some(event) => self.handle(event),
                // A waker was called, or the time is over.
                None if Instant::now() >= end || Instant::now() < until => return None,
                None => {}
            }
        }
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}

/// Whether the nodes write this item with a time-to-live.
fn has_ttl(key: &str) -> bool {
    key.starts_with(keys::NODES) || key == keys::PLANNER
}

#[cfg(test)]
pub(super) mod tests {
    use roiflow_nodes::coordinator::call;
    use roiflow_nodes::suite::{self, create, read, until, written};
    use roiflow_nodes::{Local, local::LocalClient};

    use super::*;

    pub(in crate::nodes) fn key() -> Arc<Key> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        Key::create(&path).unwrap();
        Arc::new(Key::read(&path).unwrap())
    }

    /// Items of a group, the key of its nodes, and a stranger who can write to the coordinator.
    struct Group {
        local: Local,
        key: Arc<Key>,
        stranger: LocalClient,
    }

    impl Group {
        fn new() -> Self {
            let local = Local::new();
            Self { stranger: local.client(), local, key: key() }
        }

        fn client(&self) -> Sealed {
            self.client_with(Some(self.key.clone())).0
        }

        fn client_with(&self, key: Option<Arc<Key>>) -> (Sealed, Arc<Health>) {
            let health = Arc::new(Health::default());
            (Sealed::new(Box::new(self.local.client()), key, "g", Some(health.clone())), health)
        }

        /// A client that has seen all items.
        fn watcher(&self) -> (Sealed, Arc<Health>, Vec<Change>) {
            let (mut client, health) = self.client_with(Some(self.key.clone()));
            client.submit(Ticket(0), Request::Watch { prefix: String::new() });
            let seen = until(&mut client, |change| *change == Change::Current);
            (client, health, seen)
        }

        /// What the coordinator stores.
        fn stored(&mut self, key: &str) -> Item {
            match call(&mut self.stranger, read(key)) {
                Ok(Reply::Read(Some(item))) => item,
                other => panic!("{key}: {other:?}"),
            }
        }

        /// The stranger writes a value, whatever is there.
        fn overwrite(&mut self, key: &str, value: &[u8]) -> Revision {
            let (key, value, ttl) = (key.to_owned(), value.to_vec(), None);
            written(match call(&mut self.stranger, read(&key)) {
                Ok(Reply::Read(Some(Item { revision, .. }))) => call(&mut self.stranger, Request::Update { key, revision, value, ttl }),
                _ => call(&mut self.stranger, Request::Create { key, value, ttl }),
            })
        }
    }

    fn value(client: &mut Sealed, key: &str) -> Option<(Revision, Vec<u8>)> {
        match call(client, read(key)) {
            Ok(Reply::Read(item)) => item.map(|item| (item.revision, item.value)),
            other => panic!("{key}: {other:?}"),
        }
    }

    fn update(key: &str, revision: Revision, value: &str) -> Request {
        Request::Update { key: key.to_owned(), revision, value: value.as_bytes().to_vec(), ttl: None }
    }

    fn puts(changes: &[Change]) -> Vec<String> {
        let put = |change: &Change| match change {
            Change::Put(item) => Some(format!("{}={}", item.key, String::from_utf8_lossy(&item.value))),
            _ => None,
        };
        changes.iter().filter_map(put).collect()
    }

    /// Runs a test of the suite for coordinators on sealed items, and on items of nodes without a key.
    fn on_sealed(test: fn(suite::Client<'_>)) {
        for has_key in [true, false] {
            let group = Group::new();
            let key = Some(group.key.clone()).filter(|_| has_key);
            test(&|| Box::new(group.client_with(key.clone()).0) as Box<dyn Coordinator>);
        }
    }

    #[test]
    fn writes_need_the_expected_revision_and_deleted_keys_can_be_created() {
        on_sealed(suite::writes_need_the_expected_revision_and_deleted_keys_can_be_created);
    }

    #[test]
    fn watch_reports_items_changes_and_the_end_of_a_time_to_live() {
        on_sealed(suite::watch_reports_items_changes_and_the_end_of_a_time_to_live);
    }

    #[test]
    fn watch_reports_only_its_keys() {
        on_sealed(suite::watch_reports_only_its_keys);
    }

    #[test]
    fn only_one_of_several_writers_replaces_a_revision() {
        on_sealed(suite::only_one_of_several_writers_replaces_a_revision);
    }

    #[test]
    fn each_request_gets_one_reply() {
        on_sealed(suite::each_request_gets_one_reply);
    }

    #[test]
    fn waker_ends_a_wait() {
        on_sealed(suite::waker_ends_a_wait);
    }

    #[test]
    fn item_opens_only_with_its_key_group_name_and_predecessor() {
        let (key, other) = (key(), key());
        let seal = Seal::new(key.clone(), "g");
        let sealed = seal.seal("streams.door", Revision(7), b"{}").unwrap();
        assert_eq!(seal.open("streams.door", &sealed), Some((Revision(7), b"{}".to_vec())));
        let stored: Stored = serde_json::from_slice(&sealed).unwrap();
        let with_other_predecessor = serde_json::to_vec(&Stored { replaces: 8, ..stored }).unwrap();
        for (case, opened) in [
            ("another key", Seal::new(other, "g").open("streams.door", &sealed)),
            ("another group", Seal::new(key, "h").open("streams.door", &sealed)),
            ("another item", seal.open("streams.gate", &sealed)),
            ("another predecessor", seal.open("streams.door", &with_other_predecessor)),
            ("a plain value", seal.open("streams.door", b"{}")),
        ] {
            assert_eq!(opened, None, "{case}");
        }
    }

    #[test]
    fn plain_item_is_refused_and_counted_and_has_no_effect() {
        let mut group = Group::new();
        let mut writer = group.client();
        let first = written(call(&mut writer, create("streams.door", None)));
        let (mut reader, health, seen) = group.watcher();
        assert_eq!(puts(&seen), ["streams.door={}"]);
        group.overwrite("streams.evil", b"evil");
        let overwritten = group.overwrite("streams.door", b"evil");
        // A reader writes the accepted item again.
        let seen = until(&mut reader, |change| matches!(change, Change::Put(_)));
        let [Change::Put(item)] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((&*item.key, &*item.value), ("streams.door", &b"{}"[..]));
        assert!(item.revision > overwritten && is_sealed(&group.stored("streams.door").value));
        assert_eq!((value(&mut reader, "streams.evil"), health.n_refused()), (None, 2));
        let (revision, found) = value(&mut writer, "streams.door").unwrap();
        assert!(revision > first && found == b"{}");
        // Its name is free.
        let created = call(&mut reader, Request::Create { key: "streams.evil".to_owned(), value: b"good".to_vec(), ttl: None });
        assert_eq!(value(&mut writer, "streams.evil"), Some((written(created), b"good".to_vec())));
        assert_eq!(puts(&group.watcher().2), ["streams.door={}", "streams.evil=good"]);
    }

    #[test]
    fn earlier_version_that_is_written_again_is_refused() {
        let mut group = Group::new();
        let (mut reader, health, _) = group.watcher();
        let mut writer = group.client();
        let first = written(call(&mut writer, create("streams.door", None)));
        let earlier = group.stored("streams.door").value;
        let second = written(call(&mut writer, update("streams.door", first, "second")));
        until(&mut reader, |change| matches!(change, Change::Put(item) if item.revision == second));
        group.overwrite("streams.door", &earlier);
        let seen = until(&mut reader, |change| matches!(change, Change::Put(_)));
        assert_eq!((puts(&seen), health.n_refused()), (vec!["streams.door=second".to_owned()], 1));
        // Also after a deletion, which cannot be sealed.
        let revision = group.stored("streams.door").revision;
        written(call(&mut group.stranger, Request::Delete { key: "streams.door".to_owned(), revision }));
        group.overwrite("streams.door", &earlier);
        // The deletion, and that of the refused item, so that a reader which starts later does not see it.
        (0..2).for_each(|_| drop(until(&mut reader, |change| matches!(change, Change::Removed { .. }))));
        assert_eq!((value(&mut reader, "streams.door"), health.n_refused()), (None, 2));
        assert_eq!(puts(&group.watcher().2), Vec::<String>::new());
        // A reader that has just started cannot notice it if no other one runs.
        drop((reader, writer));
        group.overwrite("streams.door", &earlier);
        assert_eq!(puts(&group.watcher().2), ["streams.door={}"]);
    }

    #[test]
    fn item_that_is_created_again_is_accepted_by_readers_of_the_earlier_one() {
        let group = Group::new();
        let (mut reader, health, _) = group.watcher();
        let mut writer = group.client();
        for _ in 0..3 {
            let revision = written(call(&mut writer, create("assign.door", None)));
            until(&mut reader, |change| matches!(change, Change::Put(_)));
            written(call(&mut writer, Request::Delete { key: "assign.door".to_owned(), revision }));
            until(&mut reader, |change| matches!(change, Change::Removed { .. }));
        }
        assert_eq!(health.n_refused(), 0);
    }

    #[test]
    fn overwritten_lease_counts_as_removed_and_its_node_writes_it_again() {
        let mut group = Group::new();
        let (mut reader, _, _) = group.watcher();
        let mut node = group.client();
        let ttl = Some(Duration::from_secs(60));
        let revision = written(call(&mut node, create("nodes.a", ttl)));
        until(&mut reader, |change| matches!(change, Change::Put(_)));
        group.overwrite("nodes.a", b"{}");
        until(&mut reader, |change| matches!(change, Change::Removed { .. }));
        let renewal = Request::Update { key: "nodes.a".to_owned(), revision, value: b"{}".to_vec(), ttl };
        assert_eq!(call(&mut node, renewal), Err(Error::Conflict));
        assert_eq!(value(&mut node, "nodes.a"), None);
        written(call(&mut node, create("nodes.a", ttl)));
        until(&mut reader, |change| matches!(change, Change::Put(_)));
    }

    #[test]
    fn node_whose_key_does_not_fit_sees_and_changes_nothing() {
        let mut group = Group::new();
        let mut writer = group.client();
        let revision = written(call(&mut writer, create("streams.door", None)));
        for (key, says) in [(Some(key()), "sealed with another key"), (None, "this node has no key")] {
            let (mut other, health) = group.client_with(key);
            other.submit(Ticket(0), Request::Watch { prefix: String::new() });
            for request in [
                create("nodes.x", None),
                read("streams.door"),
                update("streams.door", revision, "x"),
                Request::Delete { key: "streams.door".to_owned(), revision },
            ] {
                let result = call(&mut other, request);
                assert!(matches!(&result, Err(Error::Rejected(reason)) if reason.contains(says)), "{result:?}");
            }
            assert!(health.unfit().unwrap().contains(says), "{:?}", health.unfit());
            assert_eq!(other.poll(Duration::from_millis(50)), None, "the watch reports nothing");
        }
        assert_eq!(group.stored("streams.door").revision, revision);
    }

    #[test]
    fn first_node_of_an_empty_group_decides_its_key() {
        let group = Group::new();
        let (mut first, of_first) = group.client_with(Some(group.key.clone()));
        let (mut other, of_other) = group.client_with(Some(key()));
        assert_eq!(value(&mut first, "streams.door"), None);
        assert!(matches!(call(&mut other, read("streams.door")), Err(Error::Rejected(_))));
        assert!(of_first.unfit().is_none() && of_other.unfit().is_some());
    }

    #[test]
    fn group_with_plain_items_needs_a_migration_which_running_nodes_notice() {
        let mut group = Group::new();
        group.overwrite("status.door", b"{}");
        let spec = br#"{"description":{"name":"door","pipeline":"detect","input":"test:"},"cost":5.0}"#;
        group.overwrite("streams.door", spec);
        let (mut waiting, health) = group.client_with(Some(group.key.clone()));
        waiting.submit(Ticket(0), Request::Watch { prefix: String::new() });
        assert!(matches!(call(&mut waiting, read("streams.door")), Err(Error::Rejected(_))));
        assert!(health.unfit().unwrap().contains("--seal-group"));

        let sealed = group.key.seal_description("gate", r#"{"name":"gate","pipeline":"detect","input":"rtsp://me:secret77@cam/"}"#);
        group.overwrite("streams.gate", &serde_json::to_vec(&serde_json::json!({"description": sealed, "cost": 99.0})).unwrap());
        let node = br#"{"session":1,"presence":"present"}"#;
        group.overwrite("nodes.a", node);
        let client = || Box::new(group.local.client());
        let error = super::super::migration::seal_items(client(), &group.key, "g").unwrap_err();
        assert!(error.contains("expected no node that runs, got a"), "{error}");
        let revision = group.overwrite("nodes.a", node);
        written(call(&mut group.stranger, Request::Delete { key: "nodes.a".to_owned(), revision }));
        let error = super::super::migration::seal_items(Box::new(group.local.client()), &key(), "g").unwrap_err();
        assert!(error.contains("expected one that was encrypted with this key"), "{error}");
        let lines = super::super::migration::seal_items(Box::new(group.local.client()), &group.key, "g").unwrap();
        assert_eq!(lines, ["stream door: it was NOT encrypted, check it", "stream gate: its description was encrypted with this key"]);
        // The node that waited takes part.
        let seen = until(&mut waiting, |change| matches!(change, Change::Put(item) if item.key == "streams.gate"));
        assert!(puts(&seen).iter().any(|put| put.contains("secret77") && !put.contains("99")), "{seen:?}");
        assert!(health.unfit().is_none() && !String::from_utf8_lossy(&group.stored("streams.gate").value).contains("secret77"));
        assert_eq!(call(&mut group.stranger, read("status.door")), Ok(Reply::Read(None)), "nodes make it again");
        assert!(super::super::migration::seal_items(Box::new(group.local.client()), &group.key, "g").unwrap().is_empty(), "once is enough");
    }
}
