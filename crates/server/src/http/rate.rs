//! Limits the rate of requests by client: a token bucket per address.
//!
//! A client may send requests for [`BURST`] at once, and then at the rate of the settings. Clients behind a reverse proxy that the settings do not trust
//! share its address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time whose requests a client may send at once.
const BURST: Duration = Duration::from_secs(2);
/// Number of clients after which clients that have been quiet are forgotten.
const MAX_CLIENTS: usize = 4096;

/// The buckets of all clients.
#[derive(Debug)]
pub(super) struct Rates {
    /// Requests per second; `None`: not limited.
    per_second: Option<f64>,
    clients: Mutex<HashMap<IpAddr, Arc<Bucket>>>,
}

/// The requests that a client may still send.
#[derive(Debug)]
pub(super) struct Bucket {
    per_second: f64,
    state: Mutex<(f64, Instant)>,
}

impl Rates {
    pub(super) fn new(per_second: u32) -> Self {
        Self { per_second: (per_second > 0).then(|| per_second.into()), clients: Mutex::default() }
    }

    /// Returns the bucket of a client; `None`: its requests are not limited.
    pub(super) fn of(&self, client: IpAddr, now: Instant) -> Option<Arc<Bucket>> {
        let per_second = self.per_second?;
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= MAX_CLIENTS {
            // A full bucket is that of a new client.
            clients.retain(|_, bucket| Arc::strong_count(bucket) > 1 || !bucket.is_full(now));
        }
        let new = || Arc::new(Bucket { per_second, state: Mutex::new((per_second * BURST.as_secs_f64(), now)) });
        Some(clients.entry(client).or_insert_with(new).clone())
    }
}

impl Bucket {
    /// Takes a request.
    ///
    /// # Errors
    /// Returns the time until the next request is accepted.
    pub(super) fn take(&self, now: Instant) -> Result<(), Duration> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let tokens = self.tokens(*state, now);
        if tokens < 1.0 {
            *state = (tokens, now);
            return Err(Duration::from_secs_f64((1.0 - tokens) / self.per_second));
        }
        *state = (tokens - 1.0, now);
        Ok(())
    }

    fn is_full(&self, now: Instant) -> bool {
        let state = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.tokens(state, now) >= self.per_second * BURST.as_secs_f64()
    }

    fn tokens(&self, (tokens, at): (f64, Instant), now: Instant) -> f64 {
        (tokens + now.saturating_duration_since(at).as_secs_f64() * self.per_second).min(self.per_second * BURST.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> IpAddr {
        address.parse().unwrap()
    }

    #[test]
    fn burst_is_limited_and_refills_with_time() {
        let rates = Rates::new(10);
        let begin = Instant::now();
        let bucket = rates.of(peer("10.0.0.1"), begin).unwrap();
        assert_eq!((0..30).filter(|_| bucket.take(begin).is_ok()).count(), 20);
        let wait = bucket.take(begin).unwrap_err();
        assert!((0.09..0.11).contains(&wait.as_secs_f64()), "{wait:?}");
        let later = begin + Duration::from_millis(500);
        let again = rates.of(peer("10.0.0.1"), later).unwrap();
        assert_eq!((0..30).filter(|_| again.take(later).is_ok()).count(), 5, "a new connection has the same bucket");
        let other = rates.of(peer("10.0.0.2"), later).unwrap();
        assert_eq!(other.take(later), Ok(()), "other clients are not limited by it");
        assert!(Rates::new(0).of(peer("10.0.0.1"), begin).is_none());
    }

    #[test]
    fn quiet_clients_are_forgotten() {
        let (rates, begin) = (Rates::new(10), Instant::now());
        let busy = rates.of(peer("10.1.0.0"), begin).unwrap();
        assert!((0..20).all(|_| busy.take(begin).is_ok()));
        for n in 0..MAX_CLIENTS as u32 {
            rates.of(std::net::Ipv4Addr::from(0x0a02_0000 + n).into(), begin);
        }
        let n_known = rates.clients.lock().unwrap().len();
        assert!(n_known < 10, "{n_known}");
        assert!(rates.of(peer("10.1.0.0"), begin).unwrap().take(begin).is_err(), "a busy client is not forgotten");
    }
}
