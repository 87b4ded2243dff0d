//! Full disks and deleted folders do not keep results from a healthy server.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::brokers::{Broker, LIMIT, Proxy, subscribe};
use crate::disk::SmallDisk;
use crate::harness::{Folder, eventually, on_buffers, run, tiny};
use crate::outages::{Received, stat, stream};
use crate::results_schema::check_events;

#[test]
fn full_disk_of_the_spool_drops_nothing_while_the_broker_is_healthy() {
    let folder = Folder::new("full spool disk");
    let Some(disk) = SmallDisk::mount(&folder) else {
        eprintln!("skipped: this user may not mount a file system");
        return;
    };
    let mut broker = Broker::mosquitto(&folder, "");
    broker.start();
    let subscriber = subscribe(broker.port, "roiflow/#");
    disk.fill();
    let url = format!("mqtt://127.0.0.1:{}/roiflow/{{stream}}", broker.port);
    // Fewer results than memory holds: the stream is not slowed down to the speed of a camera.
    let pipeline = stream(4000, &format!("url={url} spool=\"{}\"", disk.spool().display()));
    let ending = run(&pipeline);
    assert_eq!((ending.error, stat(&pipeline, "spool-dropped"), stat(&pipeline, "spool-waiting")), (None, 0, 0), "{:?}", ending.warnings);
    let mut received = Received::default();
    received.receive(&subscriber, 4000);
    received.check_complete();
}

#[test]
fn disk_that_is_full_during_an_outage_delivers_everything_and_goes_on() {
    let folder = Folder::new("full during outage");
    let Some(disk) = SmallDisk::mount(&folder) else {
        eprintln!("skipped: this user may not mount a file system");
        return;
    };
    let mut broker = Broker::mosquitto(&folder, "");
    broker.start();
    let proxy = Proxy::new(broker.port, true);
    let subscriber = subscribe(broker.port, "roiflow/#");
    let pipeline = stream(4000, &format!("url=mqtt://127.0.0.1:{}/roiflow/{{stream}} spool=\"{}\"", proxy.port, disk.spool().display()));
    let of_probe = gstreamer::prelude::ObjectExt::downgrade(&pipeline);
    // The broker returns when 2,000 results wait: more than the disk has space for. Then the stream goes on.
    on_buffers(&pipeline, "publish", "src", move |n, _| {
        if n == 2000 {
            let pipeline = of_probe.upgrade().unwrap();
            eventually("the results wait", || stat(&pipeline, "spool-waiting") >= 2000);
            proxy.open();
            eventually("the results are delivered", || stat(&pipeline, "spool-waiting") == 0);
        }
    });
    let ending = run(&pipeline);
    assert_eq!((ending.error, stat(&pipeline, "spool-dropped"), stat(&pipeline, "spool-waiting")), (None, 0, 0));
    let said = |text: &str| ending.warnings.iter().filter(|warning| warning.contains(text)).count();
    assert_eq!(
        [said("cannot reach"), said("No space left on device (os error 28); results are kept in memory")],
        [1, 1],
        "{:?}",
        ending.warnings
    );
    let mut received = Received::default();
    received.receive(&subscriber, 4000);
    received.check_complete();
}

#[test]
fn deleted_folder_of_the_spool_does_not_stop_delivery() {
    let folder = Folder::new("deleted spool");
    let mut broker = Broker::mosquitto(&folder, "");
    broker.start();
    let subscriber = subscribe(broker.port, "roiflow/#");
    let spool = folder.file("spool");
    let pipeline = stream(3000, &format!("url=mqtt://127.0.0.1:{}/roiflow/{{stream}} spool=\"{spool}\"", broker.port));
    on_buffers(&pipeline, "publish", "src", move |n, _| {
        if n == 300 {
            std::fs::remove_dir_all(&spool).unwrap();
        }
    });
    let ending = run(&pipeline);
    assert_eq!((ending.error, stat(&pipeline, "spool-dropped"), stat(&pipeline, "spool-waiting")), (None, 0, 0), "{:?}", ending.warnings);
    let mut received = Received::default();
    received.receive(&subscriber, 3000);
    received.check_complete();
}

#[test]
fn full_disk_of_json_does_not_stop_a_healthy_broker() {
    for output in ["--json", "--publish"] {
        let folder = Folder::new("full json");
        let mut broker = Broker::mosquitto(&folder, "");
        broker.start();
        let subscriber = subscribe(broker.port, "roiflow/#");
        let url = format!("mqtt://127.0.0.1:{}/roiflow/{{stream}}", broker.port);
        let full = if output == "--json" { "/dev/full" } else { "file:///dev/full" };
        let run = ["run", "--classify", &tiny("brightness.onnx"), "--device", "CPU", "--input", "test:900", "--name", "door"];
        let output = crate::cli::roiflow(&[&run[..], &[output, full, "--publish", &url]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("No space left") && said.contains("900 lines of results"), "{said}");
        let mut received = Received::default();
        received.receive(&subscriber, 900);
        received.check_complete();
    }
}

#[test]
fn outages_of_a_broker_are_events() {
    let folder = Folder::new("broker events");
    let mut broker = Broker::mosquitto(&folder, "");
    broker.start();
    let proxy = Proxy::new(broker.port, true);
    proxy.open();
    let subscriber = subscribe(broker.port, "roiflow/#");
    let (events, url) = (folder.file("events.jsonl"), format!("mqtt://me:hunter22@127.0.0.1:{}/roiflow/{{stream}}", proxy.port));
    let (classifier, spool) = (tiny("brightness.onnx"), folder.file("spool"));
    let run = ["run", "--classify", &classifier, "--device", "CPU", "--input", "test:100000000", "--name", "door", "--quiet"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_roiflow"));
    command.args(run).args(["--publish", &url, "--spool", &spool, "--events", &events]).stdin(Stdio::null());
    let mut process = command.stderr(std::fs::File::create(folder.file("stderr")).unwrap()).spawn().unwrap();
    let names = |path: &str| -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.map(|line| line["event"].as_str().unwrap().to_owned()).collect()
    };
    subscriber.recv_timeout(LIMIT).unwrap();
    let mut expected = Vec::new();
    for _ in 0..2 {
        proxy.close();
        broker.kill();
        expected.push("destination-lost");
        eventually("the loss is told", || names(&events) == expected);
        broker.start();
        proxy.open();
        expected.push("destination-back");
        eventually("the return is told", || names(&events) == expected);
    }
    crate::rtsp::signal(&process, "INT");
    process.wait().unwrap();
    let events = check_events(&events);
    let told = std::fs::read_to_string(folder.file("stderr")).unwrap();
    let n_told = |text: &str| told.lines().filter(|line| line.contains(text)).count();
    assert_eq!((n_told("warning: cannot reach"), n_told("accepts results again")), (2, 2), "each outage is told: {told}");
    assert!(events.iter().all(|event| event["stream"] == "door" && !event.to_string().contains("hunter22")), "{events:?}");
    assert!(events.iter().all(|event| event["destination"] == format!("mqtt://127.0.0.1:{}/roiflow/{{stream}}", proxy.port)), "{events:?}");
}
