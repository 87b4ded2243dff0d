//! WS-Discovery: a probe by UDP, and the answers of devices.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use ring::rand::{SecureRandom, SystemRandom};

use crate::xml;

/// Time until the probe is sent again. The probe is sent several times, because a datagram can be lost.
const REPEAT_AFTER: Duration = Duration::from_millis(500);
/// Number of times that the probe is sent.
const N_PROBES: u32 = 3;
/// Maximum size of a datagram in bytes.
const MAX_DATAGRAM: usize = 64 * 1024;
/// Maximum number of devices.
const MAX_DEVICES: usize = 10_000;

/// A device that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The permanent address of the device, usually `urn:uuid:` with a number.
    pub id: String,
    /// The sender of the answer.
    pub sender: SocketAddr,
    /// Addresses of the device's service, such as `http://192.168.1.20/onvif/device_service`.
    pub services: Vec<String>,
    /// The name that the device reports.
    pub name: Option<String>,
    /// The model of the device.
    pub hardware: Option<String>,
}

/// Sends a probe for cameras to each target, and collects the answers until `timeout` has passed. Returns each device once, in the order of
/// the first answers.
///
/// # Errors
/// Returns an error if there is no socket, or the probe cannot be sent to any target.
pub fn discover(targets: &[SocketAddr], timeout: Duration) -> io::Result<Vec<Device>> {
    let id = message_id()?;
    let probe = probe(&id);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let (begin, mut n_sent) = (Instant::now(), 0);
    let mut datagram = vec![0; MAX_DATAGRAM];
    let mut devices: Vec<Device> = Vec::new();
    while devices.len() < MAX_DEVICES {
        let elapsed = begin.elapsed();
        if n_sent < N_PROBES && elapsed >= REPEAT_AFTER * n_sent {
            n_sent += 1;
            let sent: Vec<io::Result<usize>> = targets.iter().map(|target| socket.send_to(probe.as_bytes(), target)).collect();
            if n_sent == 1 && sent.iter().all(Result::is_err) {
                sent.into_iter().collect::<io::Result<Vec<_>>>()?;
            }
        }
        let next = if n_sent < N_PROBES { (REPEAT_AFTER * n_sent).min(timeout) } else { timeout };
        let wait = next.saturating_sub(begin.elapsed());
        if begin.elapsed() >= timeout {
            break;
        }
        socket.set_read_timeout(Some(wait.max(Duration::from_millis(1))))?;
        // If a target is not reachable, this call fails. Continue, because other targets may answer.
        let Ok((n_bytes, sender)) = socket.recv_from(&mut datagram) else { continue };
        let text = String::from_utf8_lossy(&datagram[..n_bytes]);
        for device in matches(&text, &id, sender) {
            if !devices.iter().any(|known| known.id == device.id) {
                devices.push(device);
            }
        }
    }
    Ok(devices)
}

/// Returns a random ID for a message.
fn message_id() -> io::Result<String> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("cannot read random numbers from the system"))?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("urn:uuid:{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

fn probe(id: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
         <e:Envelope xmlns:e=\"http://www.w3.org/2003/05/soap-envelope\" xmlns:w=\"http://schemas.xmlsoap.org/ws/2004/08/addressing\" \
         xmlns:d=\"http://schemas.xmlsoap.org/ws/2005/04/discovery\" xmlns:dn=\"http://www.onvif.org/ver10/network/wsdl\">\
         <e:Header><w:MessageID>{id}</w:MessageID><w:To e:mustUnderstand=\"true\">urn:schemas-xmlsoap-org:ws:2005:04:discovery</w:To>\
         <w:Action e:mustUnderstand=\"true\">http://schemas.xmlsoap.org/ws/2005/04/discovery/Probe</w:Action></e:Header>\
         <e:Body><d:Probe><d:Types>dn:NetworkVideoTransmitter</d:Types></d:Probe></e:Body></e:Envelope>"
    )
}

/// Returns the devices of an answer to the probe with this ID.
fn matches(text: &str, id: &str, sender: SocketAddr) -> Vec<Device> {
    let Some(document) = xml::parse(text) else { return Vec::new() };
    let root = document.root();
    if xml::text(root, &["Header", "RelatesTo"]).as_deref() != Some(id) {
        return Vec::new();
    }
    let device = |node| {
        let services = xml::text(node, &["XAddrs"])?;
        let scopes = xml::text(node, &["Scopes"]).unwrap_or_default();
        Some(Device {
            id: xml::text(node, &["EndpointReference", "Address"])?,
            sender,
            services: services.split_whitespace().map(str::to_owned).collect(),
            name: scope(&scopes, "name"),
            hardware: scope(&scopes, "hardware"),
        })
    };
    xml::all(root, "ProbeMatch").filter_map(device).collect()
}

/// Returns the value of a scope such as `onvif://www.onvif.org/name/Door%20camera`.
fn scope(scopes: &str, name: &str) -> Option<String> {
    let value =
        scopes.split_whitespace().find_map(|scope| scope.strip_prefix("onvif://www.onvif.org/")?.strip_prefix(name)?.strip_prefix('/'))?;
    let bytes = value.as_bytes();
    let (mut decoded, mut idx) = (Vec::with_capacity(bytes.len()), 0);
    while idx < bytes.len() {
        let hex = value.get(idx + 1..idx + 3).filter(|_| bytes[idx] == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok());
        decoded.push(hex.unwrap_or(bytes[idx]));
        idx += if hex.is_some() { 3 } else { 1 };
    }
    let text: String = String::from_utf8_lossy(&decoded).chars().filter(|c| !c.is_control()).collect();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: &str, more: &str) -> String {
        format!(
            "<s:Envelope xmlns:s='http://www.w3.org/2003/05/soap-envelope' xmlns:a='http://schemas.xmlsoap.org/ws/2004/08/addressing' \
             xmlns:d='http://schemas.xmlsoap.org/ws/2005/04/discovery'><s:Header><a:RelatesTo>{id}</a:RelatesTo></s:Header><s:Body>\
             <d:ProbeMatches><d:ProbeMatch><a:EndpointReference><a:Address>urn:uuid:1</a:Address></a:EndpointReference>\
             <d:Scopes>onvif://www.onvif.org/type/video onvif://www.onvif.org/name/Door%20camera onvif://www.onvif.org/hardware/X%2</d:Scopes>\
             <d:XAddrs>http://127.0.0.1/a http://[::1]/a</d:XAddrs></d:ProbeMatch>{more}</d:ProbeMatches></s:Body></s:Envelope>"
        )
    }

    #[test]
    fn answers_give_name_model_and_services() {
        let sender = "127.0.0.1:3702".parse().unwrap();
        let devices = matches(&answer("urn:uuid:x", "<d:ProbeMatch/>"), "urn:uuid:x", sender);
        let device = Device {
            id: "urn:uuid:1".to_owned(),
            sender,
            services: vec!["http://127.0.0.1/a".to_owned(), "http://[::1]/a".to_owned()],
            name: Some("Door camera".to_owned()),
            hardware: Some("X%2".to_owned()),
        };
        assert_eq!(devices, [device]);
        assert_eq!(matches(&answer("urn:uuid:other", ""), "urn:uuid:x", sender), [], "the answer to another probe");
        assert_eq!(matches("not XML", "urn:uuid:x", sender), []);
    }

    #[test]
    fn repeated_answers_of_a_device_count_once() {
        let device = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let target = device.local_addr().unwrap();
        let answering = std::thread::spawn(move || {
            let mut datagram = [0; 4096];
            for _ in 0..2 {
                let (n_bytes, sender) = device.recv_from(&mut datagram).unwrap();
                let text = String::from_utf8_lossy(&datagram[..n_bytes]).into_owned();
                let id = xml::text(xml::parse(&text).unwrap().root(), &["MessageID"]).unwrap();
                assert!(text.contains("NetworkVideoTransmitter"));
                device.send_to(b"noise", sender).unwrap();
                device.send_to(answer(&id, "").as_bytes(), sender).unwrap();
            }
        });
        let devices = discover(&[target], Duration::from_millis(1200)).unwrap();
        answering.join().unwrap();
        assert_eq!(devices.iter().map(|device| device.sender).collect::<Vec<_>>(), [target]);
    }

    #[test]
    fn message_ids_are_random_uuids() {
        let ids = [message_id().unwrap(), message_id().unwrap()];
        assert!(ids[0] != ids[1] && ids.iter().all(|id| id.len() == 45 && id.starts_with("urn:uuid:")), "{ids:?}");
    }
}
