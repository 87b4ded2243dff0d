//! `roiflow discover` against a simulated ONVIF camera.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};

use crate::cli::{Folder, command};

/// A camera that answers to probes, and to requests with a login. Its clock is years behind.
struct Camera {
    probe: String,
    /// The bodies of all requests.
    requests: Arc<Mutex<Vec<String>>>,
}

fn envelope(header: &str, body: &str) -> String {
    format!(
        "<s:Envelope xmlns:s=\"http://www.w3.org/2003/05/soap-envelope\"><s:Header>{header}</s:Header><s:Body>{body}</s:Body></s:Envelope>"
    )
}

/// Returns the text between two tags.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    text.split_once(begin).and_then(|(_, rest)| rest.split_once(end)).map_or("", |(value, _)| value)
}

impl Camera {
    fn start(needs_login: bool) -> Self {
        Self::start_with(needs_login, "127.0.0.1")
    }

    /// Starts a camera whose media service is at another host.
    fn start_with(needs_login: bool, media: &'static str) -> Self {
        let service = TcpListener::bind("0.0.0.0:0").unwrap();
        let address = format!("http://127.0.0.1:{}/onvif/device_service", service.local_addr().unwrap().port());
        let discovery = UdpSocket::bind("127.0.0.1:0").unwrap();
        let probe = discovery.local_addr().unwrap().to_string();
        let services = address.clone();
        std::thread::spawn(move || {
            let mut datagram = [0; 4096];
            while let Ok((n_bytes, sender)) = discovery.recv_from(&mut datagram) {
                let text = String::from_utf8_lossy(&datagram[..n_bytes]).into_owned();
                let relates = format!("<RelatesTo>{}</RelatesTo>", between(&text, "<w:MessageID>", "</w:MessageID>"));
                let body = format!(
                    "<ProbeMatches><ProbeMatch><EndpointReference><Address>urn:uuid:door</Address></EndpointReference>\
                     <Scopes>onvif://www.onvif.org/name/Door%1B%5B31m onvif://www.onvif.org/hardware/X1</Scopes>\
                     <XAddrs>http://192.0.2.1/onvif {services}</XAddrs></ProbeMatch></ProbeMatches>"
                );
                discovery.send_to(envelope(&relates, &body).as_bytes(), sender).unwrap();
            }
        });
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let (seen, services) = (requests.clone(), address.replace("127.0.0.1", media));
        std::thread::spawn(move || {
            for client in service.incoming().flatten() {
                // A client may hold several connections at a time.
                let (seen, services) = (seen.clone(), services.clone());
                std::thread::spawn(move || Self::serve(client, &seen, &services, needs_login));
            }
        });
        Self { probe, requests }
    }

    /// Answers the requests of a connection, and notes them in `seen`. `services` is the address that the answers name.
    fn serve(client: TcpStream, seen: &Mutex<Vec<String>>, services: &str, needs_login: bool) {
        let mut client = BufReader::new(client);
        loop {
            let (mut head, mut n_bytes) = (String::new(), 0);
            while !head.ends_with("\r\n\r\n") {
                if client.read_line(&mut head).unwrap_or(0) == 0 {
                    return;
                }
            }
            for line in head.to_lowercase().lines() {
                n_bytes = line.strip_prefix("content-length: ").map_or(n_bytes, |value| value.parse().unwrap());
            }
            let mut body = vec![0; n_bytes];
            if client.read_exact(&mut body).is_err() {
                return;
            }
            let body = String::from_utf8(body).unwrap();
            let (status, answer) = Self::answer(&body, services, needs_login);
            seen.lock().unwrap().push(body);
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n", answer.len());
            if client.get_mut().write_all(format!("{head}{answer}").as_bytes()).is_err() {
                return;
            }
        }
    }

    fn answer(request: &str, address: &str, needs_login: bool) -> (u16, String) {
        let body = match () {
            () if request.contains("<GetSystemDateAndTime") => {
                "<UTCDateTime><Time><Hour>1</Hour><Minute>2</Minute><Second>3</Second></Time><Date><Year>2001</Year><Month>1</Month><Day>1</Day></Date>\
                 </UTCDateTime>"
                    .to_owned()
            }
            () if needs_login && !request.contains("<s:Username>viewer</s:Username>") => {
                return (400, envelope("", "<Fault><Code><Value>s:Sender</Value><Subcode><Value>ter:NotAuthorized</Value></Subcode></Code></Fault>"));
            }
            () if request.contains("<GetCapabilities") => format!("<Capabilities><Media><XAddr>{address}</XAddr></Media></Capabilities>"),
            () if request.contains("<GetProfiles") => "<Profiles token=\"main\"><Name>Main</Name><VideoEncoderConfiguration><Encoding>H264</Encoding>\
                 <Resolution><Width>1920</Width><Height>1080</Height></Resolution></VideoEncoderConfiguration></Profiles>\
                 <Profiles token=\"sub\"/>"
                .to_owned(),
            () if request.contains("<ProfileToken>main</ProfileToken>") => {
                "<MediaUri><Uri>rtsp://admin:hunter22@127.0.0.1/stream1?channel=1&amp;sub=0</Uri></MediaUri>".to_owned()
            }
            () => "<MediaUri><Uri>rtsp://127.0.0.1/stream2</Uri></MediaUri>".to_owned(),
        };
        (200, envelope("", &body))
    }

    /// Exit code, standard output and standard error of the command.
    fn discover(&self, options: &[&str]) -> (Option<i32>, String, String) {
        self.discover_with(options, &[])
    }

    /// The same with environment variables.
    fn discover_with(&self, options: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String, String) {
        let mut command = command();
        command.envs(variables.iter().copied());
        command.args(["discover", "--probe", &self.probe, "--timeout", "300ms"]).args(options);
        command.env("ROIFLOW_INPUT_USER", "viewer").env("ROIFLOW_INPUT_PASSWORD", "hunter23");
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }
}

#[test]
fn discover_prints_streams_without_passwords() {
    let camera = Camera::start(true);
    let (code, printed, said) = camera.discover(&[]);
    assert_eq!((code, &*said), (Some(0), ""), "{printed}");
    assert!(printed.starts_with("127.0.0.1  Door[31m, X1\n"), "{printed:?}");
    assert!(printed.contains("@127.0.0.1/stream1") && printed.contains("  H264, 1920x1080, Main\n"), "{printed}");
    assert!(printed.contains("    rtsp://127.0.0.1/stream2  sub\n") && !printed.contains("hunter"), "{printed}");
    let requests = camera.requests.lock().unwrap();
    let names = ["GetSystemDateAndTime", "GetCapabilities", "GetProfiles", "GetStreamUri", "GetStreamUri"];
    assert!(requests.len() == names.len() && requests.iter().zip(names).all(|(request, name)| request.contains(name)), "{requests:?}");
    assert!(requests.iter().all(|request| !request.contains("hunter")), "{requests:?}");
    assert!(requests[1].contains("<u:Created>2001-01-01T01:0"), "the time is that of the camera: {}", requests[1]);
}

#[test]
fn login_is_sent_to_named_hosts_only() {
    // The list of hosts replaces the host of --probe.
    let camera = Camera::start(true);
    let (code, printed, said) = camera.discover_with(&[], &[("ROIFLOW_INPUT_HOSTS", "192.0.2.1")]);
    assert!(code == Some(1) && printed.contains("needs a login") && printed.contains("ROIFLOW_INPUT_HOSTS"), "{printed}{said}");
    assert!(!camera.requests.lock().unwrap().iter().any(|request| request.contains("UsernameToken")));
    let (code, printed, _) = camera.discover_with(&[], &[("ROIFLOW_INPUT_HOSTS", "192.0.2.1 127.0.0.1")]);
    assert_eq!(code, Some(0), "{printed}");
    // The camera names a service of another host.
    let camera = Camera::start_with(true, "127.0.0.2");
    let (code, printed, said) = camera.discover(&[]);
    assert!(code == Some(1) && printed.contains("127.0.0.2"), "{printed}{said}");
    let requests = camera.requests.lock().unwrap();
    let of_media: Vec<&String> = requests.iter().filter(|request| request.contains("GetProfiles")).collect();
    assert!(!of_media.is_empty() && of_media.iter().all(|request| !request.contains("UsernameToken")), "{requests:?}");
}

#[test]
fn discover_prints_json() {
    let camera = Camera::start(false);
    let (code, printed, said) = camera.discover(&["--json"]);
    assert_eq!(code, Some(0), "{said}");
    let line: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((&line["address"], &line["id"], &line["error"]), (&"127.0.0.1".into(), &"urn:uuid:door".into(), &serde_json::Value::Null));
    assert_eq!((&line["streams"][0]["width"], &line["streams"][1]["uri"]), (&1920.into(), &"rtsp://127.0.0.1/stream2".into()));
    assert!(!printed.contains("hunter"), "{printed}");
}

#[test]
fn camera_that_refuses_the_login_is_an_error_with_a_remedy() {
    let folder = Folder::new("discover-login");
    let camera = Camera::start(true);
    let netrc = folder.file("netrc");
    std::fs::write(&netrc, "machine 127.0.0.1 login other password hunter24\n").unwrap();
    let (code, printed, said) = camera.discover(&["--input-credentials", &netrc]);
    assert_eq!(code, Some(1), "{said}");
    assert!(printed.contains("refuses the login. Set ROIFLOW_INPUT_USER") && said.contains("1 of 1 cameras"), "{printed}{said}");
    assert!(!format!("{printed}{said}").contains("hunter"), "{printed}{said}");
}

#[test]
fn network_without_cameras_is_an_error() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let output = command().args(["discover", "--timeout", "50ms", "--probe", &silent.local_addr().unwrap().to_string()]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("no camera answered within 0.05 s"), "{said}");
    for (options, says) in [(["--probe", "camera"], "expected an IP address"), (["--timeout", "0"], "expected a duration from 1ms")] {
        let output = command().arg("discover").args(options).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(says), "{said}");
    }
}
