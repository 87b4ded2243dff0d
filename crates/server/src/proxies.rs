//! Reverse proxies whose word is taken for the address of a client.
//!
//! All clients behind a proxy have the address of the proxy. A proxy that the settings trust names the address of the client in a header.
//! Requests from any other address cannot use this header, because every client could write it.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName};
use serde::Deserialize;

/// Header that most proxies write.
const DEFAULT_HEADER: &str = "x-forwarded-for";

/// The setting `[trusted-proxies]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Text")]
pub struct TrustedProxies {
    networks: Vec<Network>,
    header: HeaderName,
}

/// The setting as it is written.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Text {
    /// Addresses such as `10.0.0.5`, or networks such as `10.0.0.0/8`.
    addresses: Vec<String>,
    /// Name of the header with the address of the client.
    header: Option<String>,
}

/// An address, or all addresses that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    n_bits: u32,
}

impl TryFrom<Text> for TrustedProxies {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        let header = text.header.as_deref().unwrap_or(DEFAULT_HEADER);
        let header = HeaderName::try_from(header)
            .map_err(|_| format!("header: expected the name of a header, such as X-Forwarded-For, got `{}`", header.escape_debug()))?;
        let networks = text.addresses.iter().map(|address| Network::parse(address)).collect::<Result<_, _>>()?;
        Ok(Self { networks, header })
    }
}

impl Network {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            let shown = text.escape_debug();
            format!("addresses: expected addresses or networks of proxies, such as `10.0.0.5` or `10.0.0.0/8`, got `{shown}`")
        };
        let (address, n_bits) = text.split_once('/').map_or((text, None), |(address, n_bits)| (address, Some(n_bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let n_bits = n_bits.map_or(Ok(max), str::parse).map_err(|_| wrong())?;
        if n_bits > max { Err(wrong()) } else { Ok(Self { address, n_bits }) }
    }

    fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (u32::from(own) ^ u32::from(other)).leading_zeros() >= self.n_bits,
            (IpAddr::V6(own), IpAddr::V6(other)) => (u128::from(own) ^ u128::from(other)).leading_zeros() >= self.n_bits,
            _ => false,
        }
    }
}

impl TrustedProxies {
    /// Whether this address is that of a proxy.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address.to_canonical()))
    }

    /// Returns the address of the client of a request that a proxy at `peer` has sent. Each proxy adds the address of its own client at the end,
    /// so the last address that is not one of a proxy is the client. Everything before it may be invented.
    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let values: Vec<&str> = headers.get_all(&self.header).iter().filter_map(|value| value.to_str().ok()).collect();
        let mut client = peer;
        for text in values.iter().rev().flat_map(|value| value.rsplit(',')) {
            let Some(address) = address(text) else { break };
            client = address;
            if !self.contains(client) {
                break;
            }
        }
        client
    }
}

/// Parses an element of `X-Forwarded-For` or `Forwarded`: an address, with or without port, brackets, quotes and `for=`.
fn address(text: &str) -> Option<IpAddr> {
    let for_client =
        text.split(';').find_map(|part| part.trim().get(..4).filter(|name| name.eq_ignore_ascii_case("for=")).map(|_| &part.trim()[4..]));
    let text = for_client.unwrap_or(text).trim().trim_matches('"');
    let in_brackets = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    in_brackets.parse().ok().or_else(|| text.parse().ok().map(|address: SocketAddr| address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(text: &str) -> Result<TrustedProxies, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn client_is_the_last_address_that_is_no_proxy() {
        let trusted = proxies("addresses = [\"10.0.0.0/8\", \"::1\"]\n").unwrap();
        let peer: IpAddr = "10.0.0.5".parse().unwrap();
        for (values, client) in [
            (&["203.0.113.7"][..], "203.0.113.7"),
            (&["1.2.3.4, 203.0.113.7"], "203.0.113.7"),
            (&["1.2.3.4, 203.0.113.7, 10.1.1.1"], "203.0.113.7"),
            (&["1.2.3.4", "203.0.113.7:4711 , 10.1.1.1"], "203.0.113.7"),
            (&["[2001:db8::1]:80"], "2001:db8::1"),
            (&["2001:db8::1"], "2001:db8::1"),
            (&["for=203.0.113.7;proto=https;by=10.0.0.5"], "203.0.113.7"),
            (&["by=10.0.0.5; For=\"[2001:db8::1]:4711\""], "2001:db8::1"),
            (&["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
            (&["203.0.113.7, unknown"], "10.0.0.5"),
            (&[""], "10.0.0.5"),
            (&[], "10.0.0.5"),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("x-forwarded-for", value.parse().unwrap());
            }
            assert_eq!(trusted.client(peer, &headers).to_string(), client, "{values:?}");
        }
    }

    #[test]
    fn proxies_are_addresses_and_networks() {
        let trusted = proxies("addresses = [\"10.0.0.0/8\", \"192.0.2.1\", \"2001:db8::/32\"]\nheader = \"CF-Connecting-IP\"\n").unwrap();
        for (address, is_proxy) in [
            ("10.255.1.1", true),
            ("11.0.0.1", false),
            ("192.0.2.1", true),
            ("192.0.2.2", false),
            ("::ffff:192.0.2.1", true),
            ("2001:db8:ffff::1", true),
            ("2001:db9::1", false),
        ] {
            assert_eq!(trusted.contains(address.parse().unwrap()), is_proxy, "{address}");
        }
        assert_eq!(trusted.header, "cf-connecting-ip");
        for (wrong, says) in [
            ("addresses = [\"proxy.example\"]", "10.0.0.0/8"),
            ("addresses = [\"10.0.0.0/33\"]", "10.0.0.0/8"),
            ("addresses = [\"10.0.0.0/x\"]", "10.0.0.0/8"),
            ("addresses = []\nheader = \"a b\"", "expected the name of a header"),
            ("header = \"X-Real-IP\"", "addresses"),
        ] {
            let error = proxies(wrong).unwrap_err();
            assert!(error.contains(says), "{wrong}: {error}");
        }
    }
}
