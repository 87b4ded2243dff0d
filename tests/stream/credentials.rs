//! Users, passwords and tokens of inputs. The real binary sends them only to their host, and never writes them to its outputs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use crate::cli::{Folder, check_fails, command, lines, roiflow};

/// A local server. For each request, a function gets the lines of the request and returns the response.
struct Server {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn new(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answer, seen) = (Arc::new(answer), requests.clone());
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (answer, seen) = (answer.clone(), seen.clone());
                std::thread::spawn(move || serve(connection, &*answer, &seen));
            }
        });
        Self { port, requests }
    }

    fn requests(&self) -> String {
        self.requests.lock().unwrap().join("\n")
    }
}

fn serve(mut connection: TcpStream, answer: &(impl Fn(&str) -> Vec<u8> + ?Sized), seen: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(connection.try_clone().unwrap());
    loop {
        let mut request = String::new();
        while !request.ends_with("\r\n\r\n") {
            match reader.read_line(&mut request) {
                Ok(n_bytes) if n_bytes > 0 => {}
                _ => return,
            }
        }
        seen.lock().unwrap().push(request.clone());
        if connection.write_all(&answer(&request)).is_err() {
            return;
        }
    }
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let groups = text.as_bytes().chunks(3).map(|group| {
        let bits = (0..3).fold(0, |bits, idx| bits << 8 | u32::from(group.get(idx).copied().unwrap_or(0)));
        let digit = |idx: usize| if idx <= group.len() { char::from(DIGITS[(bits >> (18 - 6 * idx)) as usize & 63]) } else { '=' };
        (0..4).map(digit).collect::<String>()
    });
    groups.collect()
}

/// Returns a server that sends `body` only for the right user and password.
fn http_server(login: &str, body: Vec<u8>) -> Server {
    let expected = format!("Authorization: Basic {}", base64(login));
    Server::new(move |request| {
        if request.lines().any(|line| line.eq_ignore_ascii_case(&expected)) {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: video/x-matroska\r\nContent-Length: {}\r\n\r\n", body.len());
            let is_head = request.starts_with("HEAD");
            return [head.as_bytes(), if is_head { &[] } else { &body }].concat();
        }
        b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"clips\"\r\nContent-Length: 0\r\n\r\n".to_vec()
    })
}

/// Returns the complete output of a run: standard error, standard output, and the names and contents of all files in the folder, except the
/// files in `but`.
fn everything(folder: &Folder, output: &Output, but: &[&str]) -> String {
    let mut all = format!("{}\n{}\n", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    for entry in std::fs::read_dir(folder.file("")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        if !but.contains(&&*name) && entry.path().is_file() {
            all.push_str(&format!("{name}\n{}\n", String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap())));
        }
    }
    all
}

const USER: &str = "ROIFLOW_INPUT_USER";
const PASSWORD: &str = "ROIFLOW_INPUT_PASSWORD";
const PASSWORD_FILE: &str = "ROIFLOW_INPUT_PASSWORD_FILE";

#[test]
fn protected_clip_opens_with_password_from_any_source() {
    let folder = Folder::new("credentials-http");
    let clip = folder.file("clip.mkv");
    assert!(roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", "test:5", "--video", &clip]).status.success());
    let (user, password) = ("camera", "p@ss/w?rd#1%");
    let server = http_server(&format!("{user}:{password}"), std::fs::read(&clip).unwrap());
    let place = format!("127.0.0.1:{}", server.port);
    let write = |name: &str, text: &str, mode: u32| {
        std::fs::write(folder.file(name), text).unwrap();
        std::fs::set_permissions(folder.file(name), std::fs::Permissions::from_mode(mode)).unwrap();
        folder.file(name)
    };
    let file = write("password", &format!("{password}\n"), 0o600);
    let netrc = write("netrc", &format!("machine other login a password b\nmachine {place}\n login {user}\n password {password}\n"), 0o600);
    let open = write("open", &format!("default login {user} password \"{password}\""), 0o644);
    let encoded = "p%40ss%2Fw%3Frd%231%25";
    let plain = format!("http://{place}/clip.mkv");
    let of_user = format!("http://{user}@{place}/clip.mkv");
    let whole = format!("http://{user}:{encoded}@{place}/clip.mkv");
    let none: [(&str, &str); 0] = [];
    let ways = [
        ("encoded", &whole, &[][..], &none[..]),
        ("environment", &plain, &[], &[(USER, user), (PASSWORD, password)]),
        ("user in the address", &of_user, &[], &[(PASSWORD, password)]),
        ("password file", &plain, &[], &[(USER, user), (PASSWORD_FILE, &file)]),
        ("netrc", &plain, &["--input-credentials", &netrc], &[]),
        ("netrc before environment", &plain, &["--input-credentials", &netrc], &[(USER, "x"), (PASSWORD, "y")]),
        ("open netrc", &plain, &["--input-credentials", &open], &[]),
    ];
    for (way, input, arguments, environment) in ways {
        let json = folder.file("o.jsonl");
        let _removed = std::fs::remove_file(&json);
        let mut running = command();
        running.args(["run", &folder.file("colors.toml"), "--log", "debug", "--json", &json, "--trace", &folder.file("trace.json")]);
        running.args(["--input", input]).args(arguments).envs(environment.iter().copied());
        let output = running.stdin(Stdio::null()).output().unwrap();
        let said = everything(&folder, &output, &["clip.mkv", "password", "netrc", "open"]);
        assert!(output.status.success(), "{way}: {said}\n{}", server.requests());
        assert_eq!(lines(&json).len(), 5, "{way}");
        assert_eq!(lines(&json)[0]["source"], plain.replace("//", if input.contains('@') { "//***@" } else { "//" }), "{way}");
        for secret in [password, encoded] {
            assert!(!said.contains(secret), "{way}: {said}");
        }
        assert_eq!(said.contains("chmod 600"), way == "open netrc", "{way}: {said}");
    }
    // A wrong password leads to an error, and the message does not contain the password.
    let output =
        roiflow(&["run", &folder.file("colors.toml"), "--log", "debug", "--input", &format!("http://{user}:wr0ng-one@{place}/clip.mkv")]);
    let said = everything(&folder, &output, &["clip.mkv", "password", "netrc", "open"]);
    assert!(output.status.code() == Some(1) && !said.contains("wr0ng-one"), "{said}");
}

#[test]
fn only_the_camera_receives_credentials() {
    let folder = Folder::new("credentials-rtsp");
    let expected = format!("Authorization: Basic {}", base64("camera:pa/ss#w@rd"));
    let server = Server::new(move |request| {
        let sequence = request.lines().find(|line| line.starts_with("CSeq")).unwrap_or("CSeq: 0").to_owned();
        let is_known = request.lines().any(|line| line == expected);
        match (request.starts_with("OPTIONS"), is_known) {
            (true, _) => format!("RTSP/1.0 200 OK\r\n{sequence}\r\nPublic: OPTIONS, DESCRIBE, SETUP, PLAY\r\n\r\n"),
            (false, true) => format!("RTSP/1.0 404 Not Found\r\n{sequence}\r\n\r\n"),
            (false, false) => format!("RTSP/1.0 401 Unauthorized\r\n{sequence}\r\nWWW-Authenticate: Basic realm=\"camera\"\r\n\r\n"),
        }
        .into_bytes()
    });
    let place = format!("127.0.0.1:{}", server.port);
    for (way, input, environment) in [
        ("address", format!("rtsp://camera:pa/ss#w@rd@{place}/live"), vec![]),
        ("environment", format!("rtsp://{place}/live"), vec![(USER, "camera"), (PASSWORD, "pa/ss#w@rd")]),
    ] {
        server.requests.lock().unwrap().clear();
        let mut running = command();
        running.args(["run", &folder.file("colors.toml"), "--log", "debug", "--input", &input]).envs(environment);
        let output = running.stdin(Stdio::null()).output().unwrap();
        let said = everything(&folder, &output, &[]);
        assert_eq!(output.status.code(), Some(1), "{way}: {said}");
        let requests = server.requests();
        let authorized = requests.lines().filter(|line| line.starts_with("Authorization")).collect::<Vec<_>>();
        assert!(authorized.iter().any(|line| line.ends_with(&base64("camera:pa/ss#w@rd"))), "{way}: {requests}\n{said}");
        assert!(!said.contains("pa/ss#w") && !requests.contains("pa/ss"), "{way}: {said}\n{requests}");
    }
}

#[test]
fn password_on_command_line_is_never_printed() {
    let folder = Folder::new("credentials-shown");
    let colors = folder.file("colors.toml");
    // No server listens at this port.
    let closed = "127.0.0.1:9";
    for input in [
        format!("rtsp://u:hunt3r/2pw@{closed}/live"),
        format!("rtsp://u:hunt3r#2pw@{closed}/live"),
        format!("rtsp://u:hunt3r?2pw@{closed}/live"),
        format!("rtsp://u:hunt3r@2pw@{closed}/live"),
        format!("rtsp://u:hunt3r:2pw@{closed}/live"),
        format!("rtsp://u:hunt3r%2pw@{closed}/live"),
        format!("RTSP://u:hunt3r2pw@{closed}/live"),
        format!("rtsp://hunt3r2pw@{closed}/live"),
        format!("rtsp:/u:hunt3r2pw@{closed}/live"),
        format!("rtsp//u:hunt3r2pw@{closed}/live"),
        format!("u:hunt3r2pw@{closed}/live"),
        format!("rtsp://{closed}/live?password=hunt3r/2pw"),
        format!("rtsp://{closed}/live?a=1&pwd=hunt3r#2pw"),
        format!("rtsp://{closed}/live?token=hunt3r2pw&channel=1"),
        format!("rtsp://{closed}/live?t=hunt3r2pw"),
        format!("rtsp://{closed}/user=admin_password=hunt3r2pw_channel=1_stream=0.sdp?real_stream"),
        format!("http://u:hunt3r2pw@{closed}/clip.mp4;sig=hunt3r2pw"),
        format!("http://{closed}/clip.mp4?access_token=hunt3r2pw&apikey=hunt3r2pw&signature=hunt3r2pw&auth=hunt3r2pw"),
        format!("srt://{closed}?passphrase=hunt3r2pw&mode=caller"),
        format!("rtmp://u:hunt3r2pw@{closed}/live/x"),
        format!("nosuch://u:hunt3r2pw@{closed}/live"),
        "test:rtsp://u:hunt3r2pw@h".to_owned(),
        "file://u:hunt3r2pw@nas/clip.mp4".to_owned(),
    ] {
        let (json, trace) = (folder.file("{stream}.jsonl"), folder.file("trace.json"));
        for more in
            [&[][..], &["--input", "test:2", "--json", &json, "--trace", &trace], &["--loop"], &["--no-such-option"], &[&input, &input]]
        {
            let output = roiflow(&[&["run", &colors, "--log", "debug", "--input", &input, "--restart", "never"], more].concat());
            let said = everything(&folder, &output, &[]);
            assert!(!output.status.success() && output.status.code().is_some(), "{input} {more:?}: {said}");
            for part in ["hunt3r", "2pw"] {
                assert!(!said.contains(part), "{input} {more:?}: {said}");
            }
        }
        std::fs::remove_file(folder.file("test.jsonl")).ok();
    }
}

#[test]
fn unusable_credentials_are_errors() {
    let folder = Folder::new("credentials-wrong");
    let colors = folder.file("colors.toml");
    let fails = |environment: &[(&str, &str)], arguments: &[&str], code: i32, says: &str| {
        let mut running = command();
        running.args(["run", &colors]).args(arguments).envs(environment.iter().copied());
        let output = running.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains(says), "{environment:?} {arguments:?}: {said}");
        assert!(!said.contains("s3cret"), "{said}");
    };
    let camera = ["--input", "rtsp://127.0.0.1:9/live"];
    fails(&[(PASSWORD, "s3cret")], &camera, 2, USER);
    fails(&[(PASSWORD, "s3cret"), (PASSWORD_FILE, "x")], &camera, 2, "got both");
    fails(&[(PASSWORD_FILE, "/no/such-file")], &camera, 1, "/no/such-file");
    fails(&[(PASSWORD_FILE, "/dev/zero")], &camera, 1, "/dev/zero");
    let netrc = folder.file("netrc");
    std::fs::write(&netrc, "machine camera\nlogin u passwrd s3cret\n").unwrap();
    fails(&[], &[&camera[..], &["--input-credentials", &netrc]].concat(), 2, "line 2");
    check_fails(&["run", &colors, "--input", "test:1", "--input-credentials", "/no/netrc"], 1, &["/no/netrc"]);
    // A password for an input that needs no password is not an error.
    let output = command().args(["run", &colors, "-q", "--input", "test:1"]).env(PASSWORD, "s3cret").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn password_from_environment_is_not_in_process_list() {
    let folder = Folder::new("credentials-ps");
    // A server that accepts connections and sends nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let input = format!("rtsp://{}/live", listener.local_addr().unwrap());
    let mut running: Command = command();
    running.args(["run", &folder.file("colors.toml"), "--input", &input]).env(USER, "u").env(PASSWORD, "hunt3r2pw");
    let mut child = running.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let (mut connection, _) = listener.accept().unwrap();
    let process = Path::new("/proc").join(child.id().to_string());
    let mut first = [0; 7];
    connection.read_exact(&mut first).unwrap();
    let arguments = std::fs::read(process.join("cmdline")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let arguments = String::from_utf8_lossy(&arguments);
    assert!(arguments.contains("rtsp://") && !arguments.contains("hunt3r2pw"), "{arguments}");
}
