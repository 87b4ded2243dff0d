//! Limits and names of a run: `--frames`, `--seconds`, `--name`; property values; graphs with a mistake; the log on a terminal.

use std::process::{Command, Stdio};

use crate::cli::{Folder, check_fails, command, roiflow};
use crate::harness::make_clip;

fn lines(path: &str) -> Vec<serde_json::Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn runs(arguments: &[&str]) -> String {
    let output = roiflow(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
    said
}

/// Returns a description with this graph; `{threshold}`, `{text}`, `{count}` and `{flag}` are parameters of all types.
fn description(folder: &Folder, name: &str, graph: &str) -> String {
    let path = folder.file(name);
    let parameters = "[parameters.threshold]\ntype = \"number\"\ndefault = 0.5\n[parameters.text]\ntype = \"string\"\ndefault = \"\"\n\
                      [parameters.count]\ntype = \"integer\"\ndefault = 1\n[parameters.flag]\ntype = \"boolean\"\ndefault = false\n";
    let text = format!("version = 1\nname = \"it\"\ndescription = \"Is tested.\"\n{parameters}[pipeline]\ngraph = '''{graph}'''\n");
    std::fs::write(&path, text).unwrap();
    path
}

fn detect() -> String {
    format!("roidetect model={}/assets/tiny/rectangle.onnx device=CPU", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn limits_apply_to_every_kind_of_input() {
    let folder = Folder::new("limits");
    let colors = folder.file("colors.toml");
    let clip = folder.file("clip.mp4");
    make_clip(&clip, 50, "mp4mux");
    for n in 0..4 {
        image::RgbImage::new(64, 48).save(folder.file(&format!("p{n}.png"))).unwrap();
    }
    let pictures = folder.file("p*.png");
    let (json, video, again) = (folder.file("o.jsonl"), folder.file("o.mkv"), folder.file("again.jsonl"));
    for (input, options, expected) in [
        (&*clip, &["--frames", "7"][..], 7),
        (&clip, &["--frames", "1"], 1),
        (&clip, &["--frames", "50"], 50),
        (&clip, &["--frames", "1000"], 50),
        (&clip, &["--frames", "120", "--loop"], 120),
        (&clip, &["--seconds", "1"], 25),
        (&clip, &["--seconds", "0.1"], 3),
        (&clip, &["--seconds", "1", "--frames", "40"], 25),
        (&clip, &["--seconds", "1", "--frames", "4"], 4),
        (&pictures, &["--frames", "3"], 3),
        (&pictures, &["--frames", "10", "--loop"], 10),
        (&pictures, &["--seconds", "0.4"], 2),
        ("test:", &["--frames", "11"], 11),
        ("test:100000000", &["--seconds", "2"], 60),
    ] {
        let arguments = ["run", &colors, "--input", input, "--json", &json, "--video", &video];
        let said = runs(&[&arguments[..], options].concat());
        assert!(said.contains(&format!("frames  {expected} in")) && !said.contains("interrupt"), "{input} {options:?}: {said}");
        let lines = lines(&json);
        assert_eq!(lines.len(), expected, "{input} {options:?}");
        assert!(lines.iter().enumerate().all(|(idx, line)| line["frame"] == idx), "{input} {options:?}");
        runs(&["run", &colors, "-q", "--input", &video, "--json", &again]);
        assert_eq!(self::lines(&again).len(), expected, "{input} {options:?}: the video");
    }
    // Each stream has its own limit.
    let json = folder.file("{stream}.jsonl");
    runs(&["run", &colors, "-q", "--json", &json, "--frames", "9", "--input", &clip, "--input", "test:", "--input", &pictures]);
    let n_lines = |name: &str| lines(&folder.file(&format!("{name}.jsonl"))).len();
    assert_eq!((n_lines("clip"), n_lines("test"), n_lines("p")), (9, 9, 4));
}

#[test]
fn frame_limit_counts_json_lines_if_graph_drops_frames() {
    let folder = Folder::new("limit-drops");
    let json = folder.file("o.jsonl");
    let graph = format!("{{source}} ! videorate ! video/x-raw,framerate=15/1 ! {} ! {{json}} ! {{video}}", detect());
    let rate = description(&folder, "rate.toml", &graph);
    runs(&["run", &rate, "-q", "--input", "test:1000000", "--json", &json, "--frames", "10"]);
    assert_eq!(lines(&json).len(), 10);
    let graph = format!("{{source}} ! tee name=t t. ! queue ! {} ! {{json}} ! fakesink t. ! queue ! {{video}}", detect());
    let branches = description(&folder, "branches.toml", &graph);
    runs(&["run", &branches, "-q", "--input", "test:1000000", "--json", &json, "--frames", "10"]);
    assert_eq!(lines(&json).len(), 10);
}

#[test]
fn invalid_limits_are_refused() {
    let folder = Folder::new("limit-values");
    let colors = folder.file("colors.toml");
    for option in ["--frames=0", "--frames=-1", "--frames=x", "--seconds=0", "--seconds=-1", "--seconds=nan", "--seconds=inf", "--seconds="]
    {
        check_fails(&["run", &colors, "--input", "test:", option], 2, &[option.split('=').next().unwrap()]);
    }
}

#[test]
fn streams_have_given_names() {
    let folder = Folder::new("names");
    let colors = folder.file("colors.toml");
    let json = folder.file("{stream}.jsonl");
    runs(&["run", &colors, "-q", "--input", "test:2", "--name", "gate_1.a", "--json", &json]);
    let line = &lines(&folder.file("gate_1.a.jsonl"))[0];
    assert_eq!(line["stream"], "gate_1.a");
    let said = runs(&["run", &colors, "--input", "test:2", "--name", "door", "--input", "test:3", "--json", &json]);
    assert!(said.contains("stream  door: 2 frames") && said.contains("stream  test: 3 frames"), "{said}");
    assert_eq!((lines(&folder.file("door.jsonl")).len(), lines(&folder.file("test.jsonl")).len()), (2, 3));
    let two = ["run", &colors, "--input", "test:2", "--input", "test:2"];
    check_fails(&[&two[..], &["--name", "a", "--name", "a"]].concat(), 2, &["--name a", "twice"]);
    check_fails(&[&two[..], &["--name", "a", "--name", "b", "--name", "c"]].concat(), 2, &["--name", "got 3"]);
    for name in ["", "a/b", "..", "a b", "\u{1b}[31m", "-"] {
        check_fails(&["run", &colors, "--input", "test:2", &format!("--name={name}")], 2, &["expected 1 to 100 letters"]);
    }
}

#[test]
fn out_of_range_parameter_error_has_property_and_range() {
    let folder = Folder::new("values");
    let graph = |rest: &str| format!("{{source}} ! {} {rest} ! {{video}}", detect());
    let set = |graph: &str, value: &str, says: &[&str]| {
        let path = description(&folder, "it.toml", graph);
        check_fails(&["run", &path, "--input", "test:2", "--set", value], 2, says);
    };
    set(&graph("threshold={threshold}"), "threshold=2", &["`threshold` of `roidetect`", "from -1 to 1", "got `2`"]);
    set(&graph("threshold={threshold}"), "threshold=-7", &["from -1 to 1", "got `-7`"]);
    set(&graph("threshold={threshold}"), "threshold=NaN", &["threshold", "NaN"]);
    set(&graph("threshold={text}"), "text=NaN", &["threshold", "NaN"]);
    set(&graph("nireq={count}"), "count=-1", &["`nireq`", "from 0 to", "got `-1`"]);
    set(&graph("nireq={count}"), "count=99999999999", &["`nireq`", "got `99999999999`"]);
    set(&graph("inference-interval={count}"), "count=0", &["`inference-interval`", "from 1 to", "got `0`"]);
    set(&graph("queue-policy={text}"), "text=never", &["`queue-policy`", "`drop-oldest`", "got `never`"]);
    set(&graph("qos={text}"), "text=perhaps", &["`qos`", "`true` or `false`"]);
    set(&graph("nireq={flag}"), "flag=true", &["`nireq`", "got `true`"]);
    set(&graph("stats={text}"), "text=x", &["`stats`", "read-only"]);
    set(&graph("treshold={threshold}"), "threshold=0.5", &["no property `treshold`", "did you mean `threshold`"]);
    set(&graph("! queue max-size-buffers={count}"), "count=-5", &["`max-size-buffers` of `queue`", "from 0 to", "got `-5`"]);
    set(&graph("! queue leaky={text}"), "text=sideways", &["`leaky`", "`downstream`"]);
    set(&graph("! videoscale method={text}"), "text=best", &["`method` of `videoscale`", "`lanczos`"]);
    set(&graph("! identity drop-probability={threshold}"), "threshold=7", &["`drop-probability`", "from 0 to 1", "got `7`"]);
    let good = description(&folder, "good.toml", &graph("threshold={threshold} nireq={count} qos={flag} labels={text}"));
    runs(&["run", &good, "-q", "--input", "test:2", "--set", "threshold=1", "--set", "count=2", "--set", "flag=true", "--set", "text=a"]);
}

#[test]
fn values_in_the_graph_are_checked_like_parameters() {
    let folder = Folder::new("literals");
    for (rest, code, says) in [
        ("inference-interval=0", 2, &["`inference-interval`", "from 1 to", "got `0`"][..]),
        ("threshold=2", 2, &["`threshold`", "from -1 to 1", "got `2`"]),
        ("threshold=\"nan\"", 2, &["`threshold`", "got `nan`"]),
        ("treshold=0.5", 2, &["no property `treshold`", "did you mean `threshold`"]),
        ("queue-policy=never", 2, &["`queue-policy`", "`wait`"]),
        ("stats=x", 2, &["read-only"]),
        ("! queue leaky=sideways", 2, &["`leaky`", "`no`, `upstream`, `downstream`"]),
        ("! capsfilter caps=\"video/x-raw,width=(int)x\"", 2, &["`caps`", "GstCaps"]),
        ("! roidetec", 1, &["`roidetec` is not installed", "did you mean `roidetect`"]),
        ("! x264nosuchthing", 1, &["gstreamer1.0-plugins-ugly", "gst-inspect-1.0"]),
        ("! gvawatermark3000", 1, &["not installed", "DL Streamer"]),
        ("! !", 2, &["elements joined by `!`"]),
        ("! audioconvert", 2, &["common format"]),
    ] {
        let path = description(&folder, "it.toml", &format!("{{source}} ! {} {rest} ! {{video}}", detect()));
        let output = roiflow(&["run", &path, "--input", "test:2"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{rest}: {said}");
        assert!(says.iter().all(|part| said.contains(part)), "{rest}: expected {says:?}, got {said}");
        assert_eq!(said.contains("lists the installed elements"), code == 1, "{rest}: {said}");
        assert!(!said.contains("panic") && !said.contains("CRITICAL") && !said.contains("internal error"), "{said}");
    }
    let graph = format!(
        "{{source}} ! {} threshold=0.25 queue-policy=wait ! queue max-size-time=0 leaky=2 ! \
         capsfilter caps=\"video/x-raw, width=640\" ! videoscale method=lanczos name=\"scale\" ! {{video}}",
        detect()
    );
    runs(&["run", &description(&folder, "good.toml", &graph), "-q", "--input", "test:2"]);
}

#[test]
fn missing_placeholder_for_output_is_an_error() {
    let folder = Folder::new("places");
    let (json, video) = (folder.file("o.jsonl"), folder.file("o.mp4"));
    let no_json = description(&folder, "no-json.toml", &format!("{{source}} ! {} ! {{video}}", detect()));
    check_fails(&["run", &no_json, "--input", "test:2", "--json", &json], 2, &["--json", "expected `{json}` in the graph"]);
    let no_video = description(&folder, "no-video.toml", &format!("{{source}} ! {} ! {{json}} ! fakesink", detect()));
    check_fails(&["run", &no_video, "--input", "test:2", "--video", &video], 2, &["--video", "expected `{video}`"]);
    check_fails(&["run", &no_video, "--input", "test:2", "--show"], 2, &["--show", "expected `{video}`"]);
    runs(&["run", &no_video, "-q", "--input", "test:2", "--json", &json]);
    let open = description(&folder, "open.toml", &format!("{{source}} ! {} ! {{json}}", detect()));
    check_fails(&["run", &open, "--input", "test:2", "--json", &json], 2, &["ends at `{json}`", "{video}"]);
    let open = description(&folder, "open.toml", &format!("{{source}} ! {}", detect()));
    check_fails(&["run", &open, "--input", "test:2"], 2, &["ends at", "{video}"]);
    let twice = description(&folder, "twice.toml", &format!("{{source}} ! {} ! {{json}} ! {{json}} ! {{video}}", detect()));
    check_fails(&["run", &twice, "--input", "test:2"], 2, &["`{json}` twice"]);
    check_fails(
        &["run", &description(&folder, "nul.toml", "{source} ! {video}"), "--input", "test:2", "--set", "nothing=1"],
        2,
        &["nothing"],
    );
}

#[test]
fn log_does_not_break_progress_bar() {
    let folder = Folder::new("debris");
    if Command::new("script").arg("--version").stdout(Stdio::null()).status().is_err() {
        return eprintln!("skipped: `script` is not installed");
    }
    let typescript = folder.file("typescript");
    let line = format!("{} --log info run {} --input test:3000", env!("CARGO_BIN_EXE_roiflow"), folder.file("colors.toml"));
    let mut shell = Command::new("script");
    shell.args(["-q", "-e", "-c", &line, &typescript]).env("ROIFLOW_CACHE_DIR", "").env("TERM", "xterm");
    assert!(shell.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap().success());
    let bytes = std::fs::read(&typescript).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("INFO") && text.contains("fps"), "{text}");
    // Simulates a terminal: a carriage return moves to the beginning of the line, and CSI K or J clears text.
    let screen = shown(&text);
    let wrong: Vec<&String> = screen.iter().filter(|line| line.contains("INFO") && line.contains(" fps")).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(!screen.iter().any(|line| line.contains('█') || line.contains("s left")), "the bar must be cleared at the end: {screen:?}");
}

/// Returns the final lines of a terminal, for the control sequences that a progress bar uses.
fn shown(text: &str) -> Vec<String> {
    let mut lines: Vec<Vec<char>> = vec![Vec::new()];
    let (mut row, mut column) = (0, 0);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\n' => {
                row += 1;
                if row == lines.len() {
                    lines.push(Vec::new());
                }
            }
            '\r' => column = 0,
            '\u{1b}' if chars.peek() == Some(&'[') => {
                chars.next();
                let mut number = String::new();
                let command = loop {
                    match chars.next() {
                        Some(c) if c.is_ascii_digit() || c == ';' || c == '?' => number.push(c),
                        Some(c) => break c,
                        None => return Vec::new(),
                    }
                };
                let n: usize = number.parse().unwrap_or(1);
                match command {
                    'A' => row = row.saturating_sub(n),
                    'B' => row = (row + n).min(lines.len() - 1),
                    'K' if number == "2" => lines[row].clear(),
                    'K' => lines[row].truncate(column),
                    'J' => {
                        lines[row].truncate(column);
                        lines.truncate(row + 1);
                    }
                    'G' => column = n - 1,
                    _ => {}
                }
            }
            c if c.is_control() => {}
            c => {
                if lines[row].len() <= column {
                    lines[row].resize(column + 1, ' ');
                }
                lines[row][column] = c;
                column += 1;
            }
        }
    }
    lines.iter().map(|line| line.iter().collect()).collect()
}

#[test]
fn quiet_run_prints_nothing() {
    let folder = Folder::new("limit-quiet");
    let output = command().args(["run", &folder.file("colors.toml"), "-q", "--input", "test:", "--frames", "3"]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty() && output.stdout.is_empty(), "{output:?}");
}
