//! Users, passwords and tokens of inputs. The real binary sends them only to their host, and never writes them to its outputs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use crate::cli::{Folder, check_fails, command, lines, roiflow};
use crate::serve::Served;

/// A local server. For each request, a function gets the lines of the request and returns the response.
pub struct Server {
    pub port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub fn new(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
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

    pub fn requests(&self) -> String {
        self.requests.lock().unwrap().join("\n")
    }

    pub fn n_requests(&self) -> usize {
        self.requests.lock().unwrap().len()
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
const HOSTS: &str = "ROIFLOW_INPUT_HOSTS";

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

/// The header of a request that has the login of the tests.
pub fn login() -> String {
    format!("Authorization: Basic {}", base64("camera:hunter22"))
}

/// Returns an RTSP server. `describe` returns status and headers of the answer to DESCRIBE, from the request.
pub fn rtsp_server(describe: impl Fn(&str) -> String + Send + Sync + 'static) -> Server {
    Server::new(move |request| {
        let sequence = request.lines().find(|line| line.starts_with("CSeq")).unwrap_or("CSeq: 0").to_owned();
        let answer =
            if request.starts_with("OPTIONS") { "200 OK\r\nPublic: OPTIONS, DESCRIBE, SETUP, PLAY".to_owned() } else { describe(request) };
        format!("RTSP/1.0 {answer}\r\n{sequence}\r\n\r\n").into_bytes()
    })
}

pub const CHALLENGE: &str = "401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"";

/// Returns an RTSP server that refuses all logins.
fn closed_camera() -> Server {
    rtsp_server(|_| CHALLENGE.to_owned())
}

/// Returns an RTSP server that redirects clients with the login. `HOME` in the new address becomes the host of the server itself.
fn moved_camera(to: String) -> Server {
    rtsp_server(move |request| {
        let home = request.split('/').nth(2).unwrap_or_default();
        match request.contains(&login()) {
            true => format!("302 Found\r\nLocation: {}", to.replace("HOME", home)),
            false => CHALLENGE.to_owned(),
        }
    })
}

/// Runs on an input with environment variables and options.
fn run(folder: &Folder, input: &str, variables: &[(&str, &str)], options: &[&str]) -> (Output, String) {
    let mut running = command();
    let json = folder.file("o.jsonl");
    let _was_there = std::fs::remove_file(&json);
    running.args(["run", &folder.file("colors.toml"), "-q", "--restart", "never", "--input", input, "--json", &json]);
    let output = running.args(options).envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap();
    let said = everything(folder, &output, &["netrc", "clip.mkv"]);
    assert!(!said.contains("hunter22"), "{said}");
    (output, said)
}

#[test]
fn login_of_an_rtsp_camera_stays_with_its_host() {
    let folder = Folder::new("credentials-moved");
    let other = closed_camera();
    let elsewhere = format!("rtsp://127.0.0.1:{}/other", other.port);
    let camera = moved_camera(elsewhere.clone());
    // A client that takes the text before `#` for the host would send the login to the other server.
    let disguised = moved_camera(format!("rtsp://HOME#@127.0.0.1:{}/other", other.port));
    let home = format!("127.0.0.1:{}", camera.port);
    let environment = [(USER, "camera"), (PASSWORD, "hunter22")];
    let netrc = folder.file("netrc");
    std::fs::write(&netrc, format!("machine {home} login camera password hunter22\n")).unwrap();
    let with_file = ["--input-credentials", &*netrc];
    for (way, input, variables, options) in [
        ("address", format!("rtsp://camera:hunter22@{home}/live"), &[][..], &[][..]),
        ("environment", format!("rtsp://{home}/live"), &environment[..], &[]),
        ("listed", format!("rtsp://{home}/live"), &[environment[0], environment[1], (HOSTS, &*home)], &[]),
        ("netrc", format!("rtsp://{home}/live"), &[], &with_file[..]),
        ("disguised", format!("rtsp://camera:hunter22@127.0.0.1:{}/live", disguised.port), &[], &[]),
    ] {
        other.requests.lock().unwrap().clear();
        let (output, said) = run(&folder, &input, variables, options);
        assert_eq!(output.status.code(), Some(1), "{way}: {said}");
        let requests = other.requests();
        assert!(requests.contains("DESCRIBE") && !requests.contains(&login()), "{way}: {requests}{said}");
        let first = if way == "disguised" { &disguised } else { &camera };
        assert!(first.requests().contains(&login()), "{way}: {}", first.requests());
        assert!(said.contains("redirects to") && (way == "disguised" || said.contains(&elsewhere)), "{way}: {said}");
    }
    // The user may set the same login for the other host.
    let place = format!("127.0.0.1:{}", other.port);
    std::fs::write(&netrc, format!("machine {home} login camera password hunter22\nmachine {place} login camera password hunter22\n"))
        .unwrap();
    let hosts = format!("{home}, {place}");
    for (variables, options) in [(&[][..], &with_file[..]), (&[environment[0], environment[1], (HOSTS, &*hosts)], &[])] {
        other.requests.lock().unwrap().clear();
        let (_, said) = run(&folder, &format!("rtsp://{home}/live"), variables, options);
        assert!(other.requests().contains(&login()), "{options:?}: {said}");
    }
}

#[test]
fn rtsp_redirects_are_limited() {
    let folder = Folder::new("credentials-circle");
    let camera = rtsp_server(|request| {
        let address = request.split_whitespace().nth(1).unwrap_or_default();
        format!("302 Found\r\nLocation: {address}")
    });
    let (output, said) = run(&folder, &format!("rtsp://127.0.0.1:{}/live", camera.port), &[], &["--source-timeout", "60"]);
    assert!(output.status.code() == Some(1) && said.contains("redirects in a circle"), "{said}");
    let n_requests = camera.n_requests();
    assert!((3..=64).contains(&n_requests), "{n_requests} requests");
}

/// Returns an HTTP server that sends a clip to clients with the login, and redirects other paths.
fn http_camera(clip: Vec<u8>, to: String) -> Server {
    Server::new(move |request| {
        let path = request.split_whitespace().nth(1).unwrap_or_default();
        let redirect = |to: &str| format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n").into_bytes();
        // This redirect comes before the login.
        if path == "/early" {
            return redirect("/clip.mkv");
        }
        if !request.contains(&login()) {
            return format!("HTTP/1.1 {CHALLENGE}\r\nContent-Length: 0\r\n\r\n").into_bytes();
        }
        match path {
            "/relative" => redirect("clip.mkv"),
            "/twice" => redirect("/relative"),
            "/circle" => redirect("/circle"),
            "/elsewhere" => redirect(&to),
            _ => {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Type: video/x-matroska\r\nContent-Length: {}\r\n\r\n", clip.len());
                [head.as_bytes(), &clip].concat()
            }
        }
    })
}

#[test]
fn login_of_an_http_server_stays_with_its_host() {
    let folder = Folder::new("credentials-http-moved");
    let clip = folder.file("clip.mkv");
    assert!(roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", "test:5", "--video", &clip]).status.success());
    let clip = std::fs::read(&clip).unwrap();
    let open = {
        let clip = clip.clone();
        Server::new(move |_| [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", clip.len()).as_bytes(), &clip].concat())
    };
    let closed = http_camera(clip.clone(), String::new());
    let to_open = http_camera(clip.clone(), format!("http://127.0.0.1:{}/clip.mkv", open.port));
    let to_closed = http_camera(clip, format!("http://127.0.0.1:{}/clip.mkv", closed.port));
    let n_frames = || std::fs::read_to_string(folder.file("o.jsonl")).map_or(0, |text| text.lines().count());
    let input = |server: &Server, path: &str| format!("http://camera:hunter22@127.0.0.1:{}{path}", server.port);
    for path in ["/clip.mkv", "/early", "/relative", "/twice"] {
        let (output, said) = run(&folder, &input(&to_open, path), &[], &[]);
        assert_eq!((output.status.code(), n_frames()), (Some(0), 5), "{path}: {said}");
    }
    // The other server needs no login.
    let (output, said) = run(&folder, &input(&to_open, "/elsewhere"), &[], &[]);
    assert_eq!((output.status.code(), n_frames()), (Some(0), 5), "{said}");
    assert!(!open.requests().contains("Authorization") && !open.requests().is_empty(), "{}", open.requests());
    // The other server needs a login, and gets none.
    let (output, said) = run(&folder, &input(&to_closed, "/elsewhere"), &[], &[]);
    assert!(output.status.code() == Some(1) && said.contains("redirects to") && said.contains(&closed.port.to_string()), "{said}");
    assert!(!closed.requests().contains("Authorization") && !closed.requests().is_empty(), "{}", closed.requests());
    // The user may set the same login for the other server.
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", to_closed.port, closed.port);
    let plain = format!("http://127.0.0.1:{}/elsewhere", to_closed.port);
    let (output, said) = run(&folder, &plain, &[(USER, "camera"), (PASSWORD, "hunter22"), (HOSTS, &hosts)], &[]);
    assert_eq!((output.status.code(), n_frames()), (Some(0), 5), "{said}");
    // A circle ends.
    let n_before = to_open.n_requests();
    let (output, said) = run(&folder, &input(&to_open, "/circle"), &[], &[]);
    let n_requests = to_open.n_requests() - n_before;
    assert!(output.status.code() == Some(1) && said.contains("302") && n_requests < 30, "{n_requests}: {said}");
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

#[test]
fn server_sends_a_login_to_listed_hosts_only() {
    let folder = Folder::new("credentials-serve");
    let (camera, other) = (closed_camera(), closed_camera());
    let variables = [(USER, "camera"), (PASSWORD, "hunter22")];
    let netrc = folder.file("netrc");
    std::fs::write(&netrc, "machine door login a password b\ndefault login camera password hunter22\n").unwrap();
    let with_file = ["--input-credentials", &*netrc];
    let nats = ["--nats", "nats://127.0.0.1:1"];
    for (arguments, variables, says) in [
        (&["serve"][..], &variables[..], HOSTS),
        (&["serve"], &[(PASSWORD_FILE, &*netrc)], HOSTS),
        (&["serve"], &[variables[0], variables[1], (HOSTS, " , ")], HOSTS),
        (&[&["serve"], &with_file[..]].concat(), &[], "got `default`"),
        (&[&["node"], &nats[..]].concat(), &variables, HOSTS),
        (&[&["node"], &nats[..], &with_file[..]].concat(), &[], "got `default`"),
    ] {
        let state = folder.file("state");
        let mut running = command();
        running.args(arguments).args(["--listen", "127.0.0.1:0", "--state", &state]).envs(variables.iter().copied());
        let output = running.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && said.contains(says) && !said.contains("hunter22"),
            "{arguments:?} {variables:?}: {said}"
        );
    }
    let home = format!("127.0.0.1:{}", camera.port);
    let server = Served::start_with(&folder, &[], &[variables[0], variables[1], (HOSTS, &home)]);
    let (of_camera, of_other) = (format!("rtsp://{home}/live"), format!("rtsp://127.0.0.1:{}/live", other.port));
    // Programs do not agree on the host of this address.
    let disguised = format!("rtsp://{home}#@127.0.0.1:{}/live", other.port);
    let beside_port = format!("rtsp://camera@127.0.0.1:{}x/@{home}/", other.port);
    for (name, input) in [("camera", &of_camera), ("other", &of_other), ("disguised", &disguised), ("beside", &beside_port)] {
        let spec = serde_json::json!({"name": name, "pipeline": "colors", "input": input});
        let is_clear = ["camera", "other"].contains(&name);
        assert_eq!(server.send("POST", "/api/streams", Some(spec)).0, if is_clear { 201 } else { 400 });
        if is_clear {
            server.wait_until(name, |view| !view["error"].is_null());
        }
        let _refused = server.send("POST", "/api/probe", Some(serde_json::json!({"input": input})));
    }
    assert!(camera.requests().contains(&login()), "{}", camera.requests());
    let requests = other.requests();
    assert!(requests.contains("DESCRIBE") && !requests.contains(&login()), "{requests}");
}
