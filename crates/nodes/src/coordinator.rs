//! What a coordinator offers: a small store of keyed items that all nodes share.
//!
//! A coordinator keeps items. An item has a key, a value of bytes and a revision. Three things make it useful for nodes:
//!
//! - **Compare-and-swap:** a write states which revision of the item it expects. If another node was faster, the write fails with
//!   [`Error::Conflict`] and changes nothing.
//! - **Time-to-live:** the coordinator removes an item when the item was not written again in time.
//! - **Watch:** each node sees all changes, in the order in which the coordinator made them.
//!
//! # Form of the interface
//!
//! [`Coordinator::submit`] only queues a request and returns at once. [`Coordinator::poll`] returns replies and changes. The caller chooses
//! the [`Ticket`] that connects a reply with its request. So a state machine without threads can use a coordinator: it returns requests and
//! handles events. A client of a real server runs in a thread of its own, with two queues between. A simulation delivers the events in the
//! order of its virtual time.
//!
//! # Rules for implementations
//!
//! The proof that two nodes never run the same stream unnoticed depends on these rules:
//!
//! 1. Revisions grow over all keys: each successful write gets a revision that is higher than that of every earlier write, also after items
//!    were removed, and after a restart of the coordinator.
//! 2. A request is executed at most once. A request that was submitted before a connection was lost is not sent over the next connection: it
//!    fails with [`Error::Unreachable`] or [`Error::Down`].
//! 3. [`Error::Down`] means that **no** node can reach the coordinator at this time, because it does not run. A server that refuses TCP
//!    connections at each of its known addresses is down. A server that does not answer is not: other nodes may reach it, so this is
//!    [`Error::Unreachable`]. If in doubt, report `Unreachable`.
//! 4. When the connection of a watch is lost, [`Change::Interrupted`] is delivered before any event of the next connection. The next
//!    connection begins with [`Change::Begin`] and all items.
//! 5. An item with a time-to-live is not removed earlier than this time after its last successful write.
//! 6. Each request gets exactly one reply. A request whose reply does not arrive within [`REQUEST_TIMEOUT`] fails with
//!    [`Error::Unreachable`].

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A request without a reply after this time fails with [`Error::Unreachable`].
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Number of a write. It identifies one version of an item; see rule 1 of the module documentation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

/// Number that the caller gives to a request, to recognize its reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// One version of a keyed item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Key of the item: parts of letters, digits, `-`, `_`, `/` and `=`, separated by dots.
    pub key: String,
    /// Revision of this version.
    pub revision: Revision,
    /// Value: JSON in all items of this crate.
    pub value: Vec<u8>,
}

/// A request to a coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Reads an item. Reply: [`Reply::Read`].
    Read {
        /// Key of the item.
        key: String,
    },
    /// Creates an item. Fails with [`Error::Conflict`] if the item exists. Reply: [`Reply::Written`].
    Create {
        /// Key of the item.
        key: String,
        /// Its value.
        value: Vec<u8>,
        /// The item is removed when it was not written again for this time. `None`: never.
        ttl: Option<Duration>,
    },
    /// Replaces an item. Fails with [`Error::Conflict`] unless the item exists with this revision. Reply: [`Reply::Written`].
    Update {
        /// Key of the item.
        key: String,
        /// The revision that is replaced.
        revision: Revision,
        /// The new value.
        value: Vec<u8>,
        /// As in [`Request::Create`]. It begins with this write, and replaces the time-to-live of the earlier version.
        ttl: Option<Duration>,
    },
    /// Deletes an item. Fails with [`Error::Conflict`] unless the item exists with this revision. Reply: [`Reply::Written`].
    Delete {
        /// Key of the item.
        key: String,
        /// The revision that is deleted.
        revision: Revision,
    },
    /// Watches all items whose key begins with this text, from now on and over all later connections. Has no reply, but [`Event::Watch`]
    /// with the ticket of this request.
    Watch {
        /// Beginning of the keys; empty for all items.
        prefix: String,
    },
}

impl Request {
    /// Returns the key, or the prefix of a watch.
    pub fn key(&self) -> &str {
        match self {
            Self::Read { key } | Self::Create { key, .. } | Self::Update { key, .. } | Self::Delete { key, .. } => key,
            Self::Watch { prefix } => prefix,
        }
    }
}

/// Result of a successful request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The item, or `None` if it does not exist.
    Read(Option<Item>),
    /// The write has this revision.
    Written(Revision),
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The item has another revision, exists although it should not, or does not exist although it should. Nothing was changed.
    Conflict,
    /// No node can reach the coordinator, because it does not run; see rule 3 of the module documentation. Nothing was changed.
    Down(String),
    /// The coordinator did not answer this node in time. Whether the request was executed is not known.
    Unreachable(String),
    /// The coordinator rejected the request: wrong login, missing right, invalid key, too old a version. Trying again does not help.
    Rejected(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict => f.write_str("the item was changed by another node"),
            Self::Down(text) => write!(f, "the coordinator is down: {text}"),
            Self::Unreachable(text) => write!(f, "the coordinator does not answer: {text}"),
            Self::Rejected(text) => write!(f, "the coordinator rejected the request: {text}"),
        }
    }
}

impl std::error::Error for Error {}

/// What a coordinator reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The reply to a request.
    Reply {
        /// Ticket of the request.
        ticket: Ticket,
        /// Its result.
        result: Result<Reply, Error>,
    },
    /// A change in a watch.
    Watch {
        /// Ticket of [`Request::Watch`].
        ticket: Ticket,
        /// The change.
        change: Change,
    },
}

/// A change in a watch.
///
/// A watch delivers `Begin`, then a `Put` for each existing item, then `Current`, and then all changes. After `Interrupted`, it begins
/// again with `Begin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// All existing items follow. Earlier items that do not follow no longer exist.
    Begin,
    /// An item was written.
    Put(Item),
    /// An item was deleted, or its time-to-live is over.
    Removed {
        /// Key of the item.
        key: String,
    },
    /// All items that existed at `Begin` were delivered.
    Current,
    /// Changes may be missing until the next `Begin`.
    Interrupted,
}

/// A client of a coordinator; see the module documentation.
pub trait Coordinator: Send {
    /// Queues a request and returns at once. The caller chooses tickets that are not in use.
    fn submit(&mut self, ticket: Ticket, request: Request);

    /// Returns the next event. Waits for an event for at most `wait`, and may return earlier, for example because a [`Waker`] was
    /// called.
    ///
    /// An implementation on virtual time does not wait.
    fn poll(&mut self, wait: Duration) -> Option<Event>;

    /// Returns a handle that ends a waiting [`Coordinator::poll`] from another thread.
    fn waker(&self) -> Waker;
}

/// Ends a waiting [`Coordinator::poll`] early. May be called at any time and on any thread.
#[derive(Clone)]
pub struct Waker(std::sync::Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// Makes a waker of a function that does not block.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(std::sync::Arc::new(wake))
    }

    /// Ends a waiting `poll`, or the next `poll` if none is waiting.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

/// Sends one request and waits for its reply, for programs that have no other requests and no watches on this client.
pub fn call(coordinator: &mut dyn Coordinator, request: Request) -> Result<Reply, Error> {
    // Replies to earlier calls that failed may still arrive, so each call has a ticket of its own.
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let ticket = Ticket(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    coordinator.submit(ticket, request);
    let begin = std::time::Instant::now();
    loop {
        let left = (REQUEST_TIMEOUT * 2).saturating_sub(begin.elapsed());
        match coordinator.poll(left) {
            Some(Event::Reply { ticket: of, result }) if of == ticket => return result,
            _ if left.is_zero() => return Err(Error::Unreachable("no reply in time".to_owned())),
            _ => {}
        }
    }
}
