//! Limits by client, so that no client keeps the others out.
//!
//! - A client that has named a valid token is this token at its address. Every other client is its address. Behind a proxy that the settings
//!   trust, the address is the one that the proxy names.
//! - Connections on which no valid token was named yet belong to [`Strangers`]. They are few per address and in total. The oldest makes room for
//!   a new one, so silent connections cannot keep a health probe out.
//! - All others take a [`Share`] of the connections, and each live client takes a share of the live clients. No client gets all of them.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::{HeaderMap, HeaderName};
use tokio::sync::Notify;

use super::{App, guard, peers};
use crate::token::Role;

/// Connections of all addresses on which no valid token was named yet.
const MAX_STRANGERS: usize = 256;
/// Header with which a node passes on which client has sent a request.
pub(super) const OF_CLIENT: HeaderName = HeaderName::from_static("x-roiflow-client");

/// Who has sent a request.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    /// The address, or the network of an IPv6 address.
    pub(super) address: IpAddr,
    /// What the client may do; `None`: it has named no valid token.
    pub(super) role: Option<Role>,
    /// Distinguishes this client from others.
    pub(super) name: Arc<str>,
    /// Whether the limits of one client apply. They do not apply to another node, which has many clients.
    is_one: bool,
}

impl Client {
    pub(super) fn of(app: &App, peer: IpAddr, headers: &HeaderMap) -> Self {
        let proxies = app.registry().policy().config().trusted_proxies.as_ref().filter(|proxies| proxies.contains(peer));
        let address = network(proxies.map_or(peer, |proxies| proxies.client(peer, headers)));
        if peers::is_from_node(app, headers) {
            let passed_on = headers.get(&OF_CLIENT).and_then(|name| name.to_str().ok());
            let name = passed_on.map_or_else(|| address.to_string(), |name| format!("node {name}"));
            return Self { address, role: Some(Role::Operator), name: name.into(), is_one: passed_on.is_some() };
        }
        let holder = guard::holder(app, headers);
        let name = match holder.as_ref().and_then(|(_, token)| token.as_deref()) {
            Some(token) => format!("{address} {token}"),
            None => address.to_string(),
        };
        Self { address, role: holder.map(|(role, _)| role), name: name.into(), is_one: true }
    }

    /// A proxy or another node, whose connections carry the requests of many clients.
    pub(super) fn of_proxy(peer: IpAddr) -> Self {
        Self { address: network(peer), role: None, name: "proxy".into(), is_one: false }
    }
}

/// The address of a client. An IPv6 client has a whole network of 64 bits.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) & !u128::from(u64::MAX)).into()),
        address => address,
    }
}

/// A number of things of which each client may have a part.
#[derive(Debug)]
pub(super) struct Shares {
    max: usize,
    max_of_client: usize,
    /// The total, and the number of each client.
    taken: Mutex<(usize, HashMap<Arc<str>, usize>)>,
}

/// One of them. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Share(Arc<Shares>, Arc<str>);

/// Why a client gets no share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// All are taken; the number of them.
    All(usize),
    /// The client has its part; the number of it.
    OfClient(usize),
}

impl Shares {
    pub(super) fn new(max: usize, max_of_client: usize) -> Arc<Self> {
        Arc::new(Self { max, max_of_client, taken: Mutex::default() })
    }

    /// # Errors
    /// Returns which limit the client has reached.
    pub(super) fn take(self: &Arc<Self>, client: &Client) -> Result<Share, Full> {
        let mut taken = lock(&self.taken);
        let (n_taken, of_clients) = &mut *taken;
        if *n_taken >= self.max {
            return Err(Full::All(self.max));
        }
        let n_of_client = of_clients.entry(client.name.clone()).or_default();
        // A client without an entry has none, so no entry of zero is left.
        if client.is_one && *n_of_client >= self.max_of_client.max(1) {
            return Err(Full::OfClient(self.max_of_client.max(1)));
        }
        (*n_taken, *n_of_client) = (*n_taken + 1, *n_of_client + 1);
        drop(taken);
        Ok(Share(self.clone(), client.name.clone()))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = lock(&self.0.taken);
        let (n_taken, of_clients) = &mut *taken;
        *n_taken -= 1;
        if let Some(n_of_client) = of_clients.get_mut(&self.1) {
            *n_of_client -= 1;
            if *n_of_client == 0 {
                of_clients.remove(&self.1);
            }
        }
    }
}

/// The connections on which no valid token was named yet, oldest first.
#[derive(Debug)]
pub(super) struct Strangers {
    max_of_address: usize,
    waiting: Mutex<(u64, VecDeque<Waiting>)>,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    address: IpAddr,
    end: Arc<Notify>,
}

/// The place of a connection among the strangers. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct Stranger {
    strangers: Arc<Strangers>,
    id: u64,
    /// Notified when the connection must make room for another one.
    pub(super) end: Arc<Notify>,
}

impl Strangers {
    pub(super) fn new(max_of_address: usize) -> Arc<Self> {
        Arc::new(Self { max_of_address: max_of_address.max(1), waiting: Mutex::default() })
    }

    /// Takes a place for a connection. If the address has too many, its oldest one ends. If there are too many of all addresses, the oldest one of
    /// the address with the most ends.
    pub(super) fn enter(self: &Arc<Self>, peer: SocketAddr) -> Stranger {
        let (address, end) = (network(peer.ip()), Arc::new(Notify::new()));
        let mut waiting = lock(&self.waiting);
        let n_of_address = waiting.1.iter().filter(|other| other.address == address).count();
        if n_of_address >= self.max_of_address {
            end_oldest(&mut waiting.1, Some(address));
        } else if waiting.1.len() >= MAX_STRANGERS.max(self.max_of_address) {
            end_oldest(&mut waiting.1, None);
        }
        waiting.0 += 1;
        let id = waiting.0;
        waiting.1.push_back(Waiting { id, address, end: end.clone() });
        drop(waiting);
        Stranger { strangers: self.clone(), id, end }
    }

    /// Ends a connection, so that the process can open another file.
    pub(super) fn make_room(&self) {
        end_oldest(&mut lock(&self.waiting).1, None);
    }
}

/// Ends the oldest connection of an address; `None`: of the address with the most connections.
fn end_oldest(waiting: &mut VecDeque<Waiting>, of: Option<IpAddr>) {
    let of_most = || {
        let mut numbers: HashMap<IpAddr, usize> = HashMap::new();
        waiting.iter().for_each(|other| *numbers.entry(other.address).or_default() += 1);
        numbers.into_iter().max_by_key(|(_, number)| *number).map(|(address, _)| address)
    };
    let Some(address) = of.or_else(of_most) else { return };
    if let Some(at) = waiting.iter().position(|other| other.address == address)
        && let Some(ended) = waiting.remove(at)
    {
        ended.end.notify_one();
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        lock(&self.strangers.waiting).1.retain(|other| other.id != self.id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn client(name: &str) -> Client {
        Client { address: "10.0.0.1".parse().unwrap(), role: None, name: name.into(), is_one: true }
    }

    fn peer(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 1)
    }

    fn has_ended(stranger: &Stranger) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(Duration::from_millis(1), stranger.end.notified()).await.is_ok() })
    }

    #[test]
    fn no_client_gets_all_shares() {
        let shares = Shares::new(4, 2);
        let first: Vec<Share> = (0..2).map(|_| shares.take(&client("a")).unwrap()).collect();
        assert_eq!(shares.take(&client("a")).unwrap_err(), Full::OfClient(2));
        let second: Vec<Share> = (0..2).map(|_| shares.take(&client("b")).unwrap()).collect();
        assert_eq!(shares.take(&client("c")).unwrap_err(), Full::All(4));
        drop(first);
        let proxy = Client::of_proxy("10.0.0.1".parse().unwrap());
        let third: Vec<Share> = (0..2).map(|_| shares.take(&proxy).unwrap()).collect();
        assert_eq!(shares.take(&proxy).unwrap_err(), Full::All(4), "a proxy has many clients");
        drop((second, third));
        assert_eq!(*lock(&shares.taken), (0, HashMap::new()), "a client that has gone is forgotten");
    }

    #[test]
    fn oldest_stranger_of_the_same_address_makes_room() {
        let strangers = Strangers::new(3);
        let other = strangers.enter(peer("10.0.0.2"));
        let mut all: Vec<Stranger> = (0..3).map(|_| strangers.enter(peer("10.0.0.1"))).collect();
        assert!(all.iter().all(|stranger| !has_ended(stranger)));
        all.push(strangers.enter(peer("10.0.0.1")));
        assert_eq!(all.iter().map(has_ended).collect::<Vec<_>>(), [true, false, false, false]);
        assert!(!has_ended(&other), "other addresses are not concerned");
        // A connection that has named a token is none of them any more.
        drop(all.pop());
        all.push(strangers.enter(peer("10.0.0.1")));
        assert!(!has_ended(&all[1]));
    }

    #[test]
    fn address_with_the_most_strangers_makes_room() {
        let strangers = Strangers::new(64);
        let mut probe = strangers.enter(peer("192.0.2.1"));
        let mut attackers = Vec::new();
        for n in 0..600_u32 {
            // Ten addresses.
            attackers.push(strangers.enter(SocketAddr::new(std::net::Ipv4Addr::from(0x0a00_0000 + n % 10).into(), 1)));
            if n % 100 == 0 {
                assert!(!has_ended(&probe), "{n}");
                probe = strangers.enter(peer("192.0.2.1"));
            }
        }
        assert_eq!(lock(&strangers.waiting).1.len(), MAX_STRANGERS);
        assert!(!has_ended(&probe));
        strangers.make_room();
        assert_eq!(lock(&strangers.waiting).1.len(), MAX_STRANGERS - 1);
    }

    #[test]
    fn clients_of_a_network_are_one() {
        assert_eq!(network("2001:db8::1".parse().unwrap()), network("2001:db8::ffff:1".parse().unwrap()));
        assert_ne!(network("2001:db8:0:1::1".parse().unwrap()), network("2001:db8::1".parse().unwrap()));
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), network("10.0.0.1".parse().unwrap()));
    }
}
