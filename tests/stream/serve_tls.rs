//! `roiflow serve` with a certificate, and clients that check it.

use std::io::{BufRead, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::brokers::certificates;
use crate::cli::{Folder, roiflow};
use crate::serve::{Served, send};

/// A server with a certificate of its own authority, and the address for `--server`.
fn served(folder: &Folder, arguments: &[&str]) -> (Served, String) {
    let (certificate, key) = (folder.file("cert.pem"), folder.file("key.pem"));
    let server = Served::start(folder, &[&["--tls-cert", &certificate, "--tls-key", &key], arguments].concat());
    let url = format!("https://127.0.0.1:{}", server.address.rsplit(':').next().unwrap());
    (server, url)
}

/// Sends a request by the client of OpenSSL, which checks the certificate. Returns the answer, or the messages of the client.
fn by_openssl(folder: &Folder, address: &str, request: &str, options: &[&str]) -> Result<String, String> {
    let mut client = Command::new("openssl")
        .args(["s_client", "-quiet", "-verify_return_error", "-verify_ip", "127.0.0.1", "-CAfile", &folder.file("ca.pem")])
        .args(["-connect", address])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A client that refuses the certificate does not read the request.
    let _sent = client.stdin.as_mut().unwrap().write_all(request.as_bytes());
    let output = client.wait_with_output().unwrap();
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    if answer.starts_with("HTTP/1.1 ") { Ok(answer) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// The certificate that the server shows, in PEM form.
fn shown_certificate(address: &str) -> String {
    let output = Command::new("openssl").args(["s_client", "-connect", address]).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let begin = text.find("-----BEGIN CERTIFICATE-----").unwrap_or_else(|| panic!("{text}"));
    let end = text.find("-----END CERTIFICATE-----").unwrap();
    text[begin..end].to_owned()
}

#[test]
fn clients_that_check_the_certificate_use_the_api() {
    let folder = Folder::new("serve-tls");
    certificates(folder.file("").as_ref());
    let (server, url) = served(&folder, &[]);
    let ca = folder.file("ca.pem");
    let ctl = |arguments: &[&str]| {
        let output = roiflow(&[&["ctl", "--server", &url], arguments].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, out, said) = ctl(&["--ca", &ca, "add", "door", "--pipeline", "colors", "--input", "test:", "--loop"]);
    assert!(code == Some(0) && out.contains("door"), "{out}{said}");
    let (code, out, said) = ctl(&["--ca", &ca, "list"]);
    assert!(code == Some(0) && out.contains("door"), "{out}{said}");

    // The authority of the test is not one of the system.
    let (code, _, said) = ctl(&["list"]);
    assert!(code == Some(1) && said.contains("certificate") && said.contains("--ca"), "{said}");
    let (code, _, said) = ctl(&["--ca", &folder.file("key.pem"), "list"]);
    assert!(code == Some(2) && said.contains("expected a certificate in PEM form, got none"), "{said}");

    let host = url.trim_start_matches("https://");
    let request = format!("GET /api/streams HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let answer = by_openssl(&folder, host, &request, &[]).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("\"door\""), "{answer}");
    let answer = by_openssl(&folder, host, &request, &["-tls1_2"]).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    by_openssl(&folder, host, &request, &["-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"]).unwrap_err();
    let said = by_openssl(&folder, host, &request, &["-verify_ip", "127.0.0.2"]).unwrap_err();
    assert!(said.contains("mismatch"), "{said}");

    // The live results use the same connections.
    let request = format!("GET /api/streams/door/results/live HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let mut client = Command::new("openssl")
        .args(["s_client", "-quiet", "-CAfile", &ca, "-connect", host])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    client.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
    let lines = std::io::BufReader::new(client.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.starts_with("data: {") && line.contains("\"objects\"")), "no result");
    client.kill().unwrap();
    client.wait().unwrap();

    // A client that does not encrypt gets an answer that says https. A client that sends nothing does not delay other clients.
    let _silent = TcpStream::connect(host).unwrap();
    let (status, body) = send(host, "GET", "/api/streams", None);
    assert!(status == 400 && String::from_utf8_lossy(&body).contains("https://"), "{status}");
    let output = roiflow(&["ctl", "--server", &format!("http://{host}"), "list"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("expected --server with https://"), "{said}");
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn hangup_replaces_the_certificate() {
    let folder = Folder::new("serve-tls-reload");
    certificates(folder.file("").as_ref());
    let (mut server, url) = served(&folder, &[]);
    let host = url.trim_start_matches("https://").to_owned();
    let before = shown_certificate(&host);
    assert_eq!(shown_certificate(&host), before);

    // A key that does not belong to the certificate keeps the earlier pair.
    let key = std::fs::read(folder.file("key.pem")).unwrap();
    std::fs::copy(folder.file("ca.key"), folder.file("key.pem")).unwrap();
    server.signal("HUP");
    server.wait_for("the earlier certificate stays in use");
    assert_eq!(shown_certificate(&host), before);
    std::fs::write(folder.file("key.pem"), key).unwrap();

    certificates(folder.file("").as_ref());
    server.signal("HUP");
    server.wait_for("the certificate was read again");
    assert_ne!(shown_certificate(&host), before);
    let output = roiflow(&["ctl", "--server", &url, "--ca", &folder.file("ca.pem"), "list"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn wrong_certificates_are_refused_at_the_start() {
    let folder = Folder::new("serve-tls-wrong");
    certificates(folder.file("").as_ref());
    let (certificate, key, state) = (folder.file("cert.pem"), folder.file("key.pem"), folder.file("state"));
    let other_key = folder.file("ca.key");
    for (options, says) in [
        (vec!["--tls-cert", &certificate], "--tls-key"),
        (vec!["--tls-key", &key], "--tls-cert"),
        (vec!["--tls-cert", &key, "--tls-key", &key], "expected a certificate in PEM form, got none"),
        (vec!["--tls-cert", &certificate, "--tls-key", &certificate], "Give a file with the key in PEM form"),
        (vec!["--tls-cert", &certificate, "--tls-key", &other_key], "Give the key of this certificate"),
        (vec!["--tls-cert", "/nowhere/cert.pem", "--tls-key", &key], "/nowhere/cert.pem"),
    ] {
        let output = roiflow(&[&["serve", "--listen", "127.0.0.1:0", "--state", &state], &*options].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(says), "{options:?}: {said}");
    }
}

#[test]
fn server_beyond_loopback_warns_without_certificate() {
    let folder = Folder::new("serve-tls-warns");
    certificates(folder.file("").as_ref());
    let created = roiflow(&["serve", "--create-token", "viewer", "--state", &folder.file("state")]);
    let token = String::from_utf8(created.stdout).unwrap().trim().to_owned();
    let server = Served::start(&folder, &["--listen", "0.0.0.0:0"]);
    assert!(server.said.contains("not encrypted") && server.said.contains("--tls-cert"), "{}", server.said);
    drop(server);
    let (server, url) = served(&folder, &["--listen", "0.0.0.0:0"]);
    assert!(!server.said.contains("not encrypted"), "{}", server.said);

    // The cookie of a browser is never sent without encryption.
    let (host, body) = (url.trim_start_matches("https://"), json!({"token": token}).to_string());
    let head = format!("POST /api/login HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n");
    let answer = by_openssl(&folder, host, &format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()), &[]).unwrap();
    assert!(answer.contains("; HttpOnly; SameSite=Strict; Secure\r\n"), "{answer}");
}
