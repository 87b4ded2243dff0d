//! `roiflow serve` with as many streams as its limits allow.

use serde_json::{Value, json};

use crate::cli::Folder;
use crate::serve::Served;

const N_STREAMS: usize = 64;
const N_ACTIVE: usize = 16;

/// The other streams belong to cameras that do not answer.
#[test]
fn sixty_four_streams_are_configured_while_sixteen_run() {
    let folder = Folder::new("serve-many");
    crate::harness::make_clip(&folder.file("clip.mp4"), 25, "mp4mux");
    let server = Served::start(&folder, &[]);
    for n in 0..N_STREAMS {
        let input = if n < N_ACTIVE { "clip.mp4" } else { "rtspt://127.0.0.1:1/live" };
        // The metrics of destinations need one, which need not run.
        let publish: &[&str] = if n == 0 { &["mqtt://127.0.0.1:1/roiflow"] } else { &[] };
        let stream = json!({"name": format!("s{n:02}"), "pipeline": "colors", "input": input, "loop": true, "publish": publish});
        let (status, view) = server.json("POST", "/api/streams", Some(stream));
        assert_eq!(status, 201, "{view}");
    }
    let (status, body) = server.json("POST", "/api/streams", Some(json!({"name": "more", "pipeline": "colors", "input": "test:"})));
    assert_eq!((status, &body["error"]["code"]), (409, &"too_many_streams".into()));
    let views = || server.json("GET", "/api/streams", None).1["streams"].as_array().unwrap().clone();
    let number = |view: &Value| view["name"].as_str().unwrap()[1..].parse::<usize>().unwrap();
    for n in 0..N_ACTIVE {
        // The clip has 25 frames, so each stream has started it again.
        server.wait_until(&format!("s{n:02}"), |view| view["state"] == "running" && view["frames"].as_u64().unwrap() > 50);
    }
    let all = views();
    assert_eq!(all.len(), N_STREAMS);
    for view in &all {
        assert_eq!(view["state"] == "running", number(view) < N_ACTIVE, "{view}");
    }
    // The server answers at once while it tries 48 cameras again and again.
    let begin = std::time::Instant::now();
    assert_eq!(server.send("GET", "/healthz", None).0, 200);
    assert!(begin.elapsed().as_secs() < 2, "{:?}", begin.elapsed());
    let (_, metrics) = server.send("GET", "/metrics", None);
    let metrics = String::from_utf8(metrics).unwrap();
    assert_eq!(metrics.matches(",state=\"running\"} 1").count(), N_ACTIVE);
    // The alerts name only metrics that exist.
    let rules = rules();
    let words = rules
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("roiflow_") || word.starts_with("process_"));
    for word in words {
        assert!(metrics.lines().any(|line| line.starts_with(word)), "packaging/prometheus-rules.yml: there is no metric `{word}`");
    }
    // A change of one stream disturbs no other.
    let (status, _) = server.json("DELETE", "/api/streams/s63", None);
    assert_eq!((status, views().len()), (200, N_STREAMS - 1));
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
}

/// The alerts for Prometheus.
fn rules() -> String {
    std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/prometheus-rules.yml")).unwrap()
}

/// `promtool check rules` reports the same mistakes. It also runs if it is installed.
#[test]
fn alert_rules_are_complete_and_have_different_names() {
    let rules = rules();
    let mut names = std::collections::BTreeSet::new();
    let (head, alerts) = rules.split_once("    rules:\n").unwrap();
    assert!(head.contains("groups:\n  - name: roiflow\n"), "{head}");
    for alert in alerts.split("      - alert: ").skip(1) {
        let (name, rest) = alert.split_once('\n').unwrap();
        assert!(names.insert(name.to_owned()), "{name} is defined twice");
        assert!(name.starts_with("Roiflow") && name.chars().all(|c| c.is_ascii_alphanumeric()), "{name}");
        let keys = rest.lines().filter(|line| line.starts_with("        ") && line.as_bytes().get(8).is_some_and(u8::is_ascii_alphabetic));
        let keys: Vec<&str> = keys.map(|line| line.trim().split(':').next().unwrap()).collect();
        assert!(matches!(&keys[..], ["expr", "annotations"] | ["expr", "for", "annotations"]), "{name}: {keys:?}");
        for (open, close) in [('(', ')'), ('[', ']'), ('{', '}')] {
            assert_eq!(rest.matches(open).count(), rest.matches(close).count(), "{name}: {open}{close}");
        }
        assert!(rest.contains("          summary: \"") && rest.matches('"').count() % 2 == 0, "{name}");
        if let Some((_, time)) = rest.split_once("        for: ") {
            let time = time.lines().next().unwrap();
            assert!(time[..time.len() - 1].parse::<u32>().is_ok() && time.ends_with(['s', 'm', 'h']), "{name}: {time}");
        }
        assert!(!rest.contains('\t'), "{name}");
    }
    assert!(names.len() > 8, "{names:?}");
    let page = include_str!("../../docs/howto/run-as-a-service.md");
    let missing: Vec<&String> = names.iter().filter(|name| !page.contains(&format!("| `{name}` |"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/prometheus-rules.yml");
    if let Ok(output) = std::process::Command::new("promtool").args(["check", "rules", "--lint=all", "--lint-fatal", path]).output() {
        assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    }
}
