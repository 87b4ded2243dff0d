//! Roles and logins, and protection against other web pages in the user's browser.
//!
//! Without tokens the server listens on loopback only, and every local client is an operator. A web page of another site could still make
//! the user's browser send requests to it. So requests must name this server in `Host` (a name of another site that resolves to 127.0.0.1
//! does not), and requests of web pages must come from this server's own page.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::clients::Client;
use super::{Access, App, peers};
use crate::error::{Error, Result};
use crate::token::Role;

/// Name of the cookie with the token of a browser.
pub(super) const COOKIE: &str = "roiflow_token";

/// Checks a request before its handler runs.
pub(super) async fn check(State((app, access)): State<(App, Access)>, request: Request, next: Next) -> Response {
    match allows(&app, access, request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            if error.status == 401 && names_token(request.headers()) {
                request.extensions().get::<Client>().into_iter().for_each(|client| app.failed_logins.note(client.address, Instant::now()));
            }
            error.into_response()
        }
    }
}

/// Whether a request names any token.
fn names_token(headers: &HeaderMap) -> bool {
    let has_cookie = |value: &header::HeaderValue| value.to_str().is_ok_and(|text| text.contains(COOKIE));
    headers.contains_key(header::AUTHORIZATION) || headers.get_all(header::COOKIE).iter().any(has_cookie)
}

/// Failed logins, for the log.
#[derive(Debug, Default)]
pub(super) struct FailedLogins(Mutex<HashMap<IpAddr, (Instant, u64)>>);

impl FailedLogins {
    /// Pause between two lines about an address.
    const PAUSE: Duration = Duration::from_secs(60);
    /// Number of addresses that have lines of their own. All others share one.
    const MAX_ADDRESSES: usize = 64;

    /// Writes a line to the log, unless one about this address was written shortly before.
    pub(super) fn note(&self, address: IpAddr, now: Instant) {
        if let Some((address, number)) = self.count(address, now) {
            let of = if address.is_unspecified() { "clients at further addresses".to_owned() } else { address.to_string() };
            tracing::warn!("login failed: expected a token of this server, got another one from {of} ({number} since the last such line)");
        }
    }

    /// Returns the address and the number of failures for a line.
    fn count(&self, address: IpAddr, now: Instant) -> Option<(IpAddr, u64)> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |(line, number): &(Instant, u64)| *number == 0 && now.saturating_duration_since(*line) >= Self::PAUSE;
        if all.len() >= Self::MAX_ADDRESSES {
            all.retain(|_, entry| !is_old(entry));
        }
        let is_further = all.len() >= Self::MAX_ADDRESSES && !all.contains_key(&address);
        let address = if is_further { IpAddr::from([0, 0, 0, 0]) } else { address };
        let (line, number) = all.entry(address).or_insert((now.checked_sub(Self::PAUSE).unwrap_or(now), 0));
        *number += 1;
        if now.saturating_duration_since(*line) < Self::PAUSE {
            return None;
        }
        *line = now;
        Some((address, std::mem::take(number)))
    }
}

fn allows(app: &App, access: Access, method: &Method, headers: &HeaderMap) -> Result<()> {
    // No web page can send the token of nodes.
    if peers::is_node(app, headers) {
        return Ok(());
    }
    let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST).unwrap_or_default();
    if !is_own_host(host, &app.registry().policy().config().hosts) {
        let shown: String = host.chars().take(100).collect();
        let advice = "Add the name to the setting `hosts` of the server";
        return Err(Error::value("unknown_host", "Host", "an IP address or localhost", format!("`{shown}`"), advice).with_status(421));
    }
    let is_own_origin = |origin: &str| origin.split_once("://").is_some_and(|(_, own)| own == host);
    let is_other_site = headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site" || site == "same-site");
    let is_navigation = method == Method::GET && headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate");
    if text(header::ORIGIN).is_some_and(|origin| !is_own_origin(origin)) || is_other_site && !is_navigation {
        return Err(Error::new(403, "other_site", "the request comes from a web page of another site, and was refused"));
    }
    let Access::Role(needed) = access else { return Ok(()) };
    let Some(role) = role(app, headers) else {
        let advice = "Add the header `Authorization: Bearer TOKEN`, or log in on the page";
        return Err(Error::value("unauthorized", "token", "a token of this server", "none that is valid", advice).with_status(401));
    };
    if role < needed {
        let advice = format!("Use a token with the role {}", needed.name());
        return Err(Error::value("forbidden", "role", needed.name(), role.name(), advice).with_status(403));
    }
    Ok(())
}

/// Returns the role of a request; `None` without a valid token.
pub(super) fn role(app: &App, headers: &HeaderMap) -> Option<Role> {
    holder(app, headers).map(|(role, _)| role)
}

/// Returns the role of a request, and a part of the hash of its token, if the server has tokens; `None` without a valid token.
pub(super) fn holder(app: &App, headers: &HeaderMap) -> Option<(Role, Option<String>)> {
    if app.tokens.is_empty() {
        return Some((Role::Operator, None));
    }
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let of_cookies =
        cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| cookie.trim().strip_prefix(COOKIE)?.strip_prefix('='));
    // A request with both uses the header.
    match bearer(headers) {
        Some(token) => app.tokens.holder(token),
        None => of_cookies.filter_map(|token| app.tokens.holder(token)).max(),
    }
}

/// Returns the token in `Authorization: Bearer TOKEN`. The word `Bearer` may be in any case, as in all schemes of HTTP.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim().split_once([' ', '\t'])?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim())
}

/// Whether `Host` names this server: an IP address, localhost, or a name of the settings.
fn is_own_host(host: &str, names: &[String]) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.chars().all(|c| c.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    let is_address = name.parse::<std::net::Ipv4Addr>().is_ok()
        || name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).is_some_and(|name| name.parse::<std::net::Ipv6Addr>().is_ok());
    is_address || name.eq_ignore_ascii_case("localhost") || names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_logins_write_few_lines() {
        let (failed, begin) = (FailedLogins::default(), Instant::now());
        let address = |n: u32| IpAddr::from(std::net::Ipv4Addr::from(0x0a00_0000 + n));
        assert_eq!(failed.count(address(1), begin), Some((address(1), 1)));
        assert!((0..9).all(|_| failed.count(address(1), begin).is_none()));
        assert_eq!(failed.count(address(2), begin), Some((address(2), 1)));
        let later = begin + FailedLogins::PAUSE;
        assert_eq!(failed.count(address(1), later), Some((address(1), 10)), "the line has the number since the last one");
        let n_lines = (0..5000).filter_map(|n| failed.count(address(n), later)).count();
        assert!(n_lines <= FailedLogins::MAX_ADDRESSES + 1, "{n_lines}");
        assert!(failed.0.lock().unwrap().len() <= FailedLogins::MAX_ADDRESSES + 1);
    }

    #[test]
    fn scheme_of_a_token_is_in_any_case() {
        let token = |value: &str| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
            bearer(&headers).map(str::to_owned)
        };
        for value in ["Bearer abc", "bearer abc", "BEARER abc", "bEaReR   abc", " Bearer\tabc "] {
            assert_eq!(token(value).as_deref(), Some("abc"), "{value}");
        }
        for value in ["Basic abc", "Bearerabc", "Bearer", "abc", ""] {
            assert_eq!(token(value), None, "{value}");
        }
    }

    #[test]
    fn hosts_are_addresses_or_known_names() {
        let names = ["cam.example".to_owned()];
        for host in ["127.0.0.1", "127.0.0.1:8080", "localhost:80", "LOCALHOST", "[::1]:8080", "[::1]", "10.1.2.3:1", "cam.example:443"] {
            assert!(is_own_host(host, &names), "{host}");
        }
        for host in
            ["", "evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "::1", "[::1", "[x]", "a:b"]
        {
            assert!(!is_own_host(host, &names), "{host}");
        }
    }
}
