//! The page `/metrics`: counters of streams, clients and the process for Prometheus.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::feed::Feed;
use crate::registry::Registry;
use crate::stream::{Counters, Destination, Histogram, Place, State};
use crate::telemetry;

/// Content type of the page.
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// Requests by class of status: 1xx to 5xx.
#[derive(Debug, Default)]
pub struct Requests([AtomicU64; 5]);

impl Requests {
    /// Counts a request that was answered with this status.
    pub fn count(&self, status: u16) {
        if let Some(counter) = self.0.get(usize::from(status / 100).wrapping_sub(1)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns the page. `n_refused_items` counts refused items that nodes share; `None`: there are no other nodes.
pub fn page(registry: &Registry, requests: &Requests, n_connections: usize, n_refused_items: Option<u64>, version: &'static str) -> String {
    let mut own = prometheus_client::registry::Registry::with_prefix("roiflow");
    let requests = requests.0.each_ref().map(|counter| counter.load(Ordering::Relaxed));
    let hub = registry.hub();
    let clients = Clients {
        requests,
        n_connections: n_connections as u64,
        n_refused_items,
        n_subscribers: hub.subscribers.load(Ordering::Relaxed) as u64,
        n_dropped: hub.dropped.load(Ordering::Relaxed),
        n_pictures: hub.pictures.load(Ordering::Relaxed),
        n_crops: hub.crops.load(Ordering::Relaxed),
        telemetry: hub.telemetry.get().cloned(),
        delays: hub.video.delays(),
        n_viewers: hub.video.viewers.load(Ordering::Relaxed) as u64,
        video_frames: [("encoded", &hub.video.encoded), ("passed", &hub.video.passed)]
            .map(|(kind, counter)| (kind, counter.load(Ordering::Relaxed))),
    };
    own.register_collector(Box::new(Streams(registry.counters())));
    own.register_collector(Box::new(clients));
    own.register_collector(Box::new(Build(version)));
    let mut process = prometheus_client::registry::Registry::default();
    process.register_collector(Box::new(Process::read()));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = prometheus_text::encode(&mut text, &own);
    let _written = prometheus_text::encode(&mut text, &process);
    text
}

/// The version of the program, as a label.
#[derive(Debug)]
struct Build(&'static str);

impl Collector for Build {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut family = encoder.encode_descriptor("build_info", "Always 1, with the version of the program", None, MetricType::Gauge)?;
        ConstGauge::new(1).encode(family.encode_family(&[("version", self.0)])?)
    }
}

#[derive(Debug)]
struct Streams(Vec<(String, State, Counters, Feed)>);

type Labels<'a> = Vec<(&'static str, &'a str)>;

impl Streams {
    /// Writes one counter per stream.
    fn counter(&self, encoder: &mut DescriptorEncoder, name: &str, help: &str, of: impl Fn(&Counters, &Feed) -> f64) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (stream, _, counters, feed) in &self.0 {
            let labels: Labels<'_> = vec![("stream", stream)];
            ConstCounter::new(of(counters, feed)).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Writes one gauge per stream.
    fn gauge(&self, encoder: &mut DescriptorEncoder, name: &str, help: &str, of: impl Fn(State, &Counters, &Feed) -> f64) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (stream, state, counters, feed) in &self.0 {
            let labels: Labels<'_> = vec![("stream", stream)];
            ConstGauge::new(of(*state, counters, feed)).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn frames(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "Frames by outcome. analyzed: left the last inference element; failed: inference failed; dropped and skipped: not inferred, with the element and the reason";
        let mut family = encoder.encode_descriptor("frames", help, None, MetricType::Counter)?;
        for (stream, _, counters, _) in &self.0 {
            let mut write = |outcome, element, reason, n_frames: u64| {
                let labels: Labels<'_> = vec![("stream", stream), ("outcome", outcome), ("element", element), ("reason", reason)];
                ConstCounter::new(n_frames).encode(family.encode_family(&labels)?)
            };
            write("analyzed", "", "", counters.frames)?;
            write("failed", "", "", counters.failed)?;
            for (outcome, all) in [("dropped", &counters.dropped), ("skipped", &counters.skipped)] {
                for skipped in all {
                    write(outcome, &skipped.element, &skipped.reason, skipped.frames)?;
                }
            }
        }
        Ok(())
    }

    fn latency(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "Time from the first to the last inference element";
        let mut family = encoder.encode_descriptor("latency_seconds", help, None, MetricType::Histogram)?;
        for (stream, _, counters, _) in self.0.iter().filter(|(_, _, counters, _)| !counters.latency.buckets.is_empty()) {
            write_histogram(&mut family, "stream", stream, &counters.latency)?;
        }
        Ok(())
    }

    fn stages(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        {
            let mut family = encoder.encode_descriptor("inferences", "Inferences by element and device", None, MetricType::Counter)?;
            for (stream, _, counters, _) in &self.0 {
                for stage in &counters.stages {
                    let labels: Labels<'_> = vec![("stream", stream), ("element", &stage.element), ("device", &stage.device)];
                    ConstCounter::new(stage.runs).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        let mut family = encoder.encode_descriptor("inference_seconds", "Time by element and step", None, MetricType::Counter)?;
        for (stream, _, counters, _) in &self.0 {
            for stage in &counters.stages {
                for (step, time) in &stage.steps {
                    let labels: Labels<'_> =
                        vec![("stream", stream), ("element", &stage.element), ("device", &stage.device), ("step", step)];
                    ConstCounter::new(time.as_secs_f64()).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }

    fn places(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let places: Vec<(&str, Vec<Place>)> = self.0.iter().map(|(stream, _, _, feed)| (&**stream, feed.places())).collect();
        {
            let help = "Crossings of lines by direction, and objects that entered (in) and left (out) zones";
            let mut family = encoder.encode_descriptor("place_objects", help, None, MetricType::Counter)?;
            for (stream, place) in places.iter().flat_map(|(stream, places)| places.iter().map(move |place| (*stream, place))) {
                for (direction, count) in [("in", place.r#in), ("out", place.out)] {
                    let labels: Labels<'_> = vec![("stream", stream), ("place", &place.name), ("direction", direction)];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        let mut family = encoder.encode_descriptor("zone_objects", "Objects that are in the zone", None, MetricType::Gauge)?;
        for (stream, place) in places.iter().flat_map(|(stream, places)| places.iter().map(move |place| (*stream, place))) {
            if let Some(inside) = place.inside {
                let labels: Labels<'_> = vec![("stream", stream), ("place", &place.name)];
                ConstGauge::new(inside).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn destinations(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let all = || self.0.iter().flat_map(|(stream, _, counters, _)| counters.destinations.iter().map(move |to| (&**stream, to)));
        {
            let help = "Results by destination and outcome. written: stored by the destination or its spool; lost: not accepted; dropped: the queue or the spool was full. Streams with the same destination share its spool, and each counts what it drops";
            let mut family = encoder.encode_descriptor("destination_results", help, None, MetricType::Counter)?;
            for (stream, to) in all() {
                for (outcome, n_results) in [("written", to.written), ("lost", to.lost), ("dropped", to.dropped)] {
                    let labels: Labels<'_> = vec![("stream", stream), ("destination", &to.address), ("outcome", outcome)];
                    ConstCounter::new(n_results).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        for (name, help, of) in [
            (
                "destination_waiting",
                "Results that wait for the destination, in the queue and in the spool, which streams with the same destination share",
                (|to| to.waiting) as fn(&Destination) -> u64,
            ),
            ("destination_spool_bytes", "Size of the spool of the destination, which streams with the same destination share", |to| {
                to.spool_bytes
            }),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (stream, to) in all() {
                let labels: Labels<'_> = vec![("stream", stream), ("destination", &to.address)];
                ConstGauge::new(of(to)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn states(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let mut family = encoder.encode_descriptor("stream_state", "1 for the state of the stream", None, MetricType::Gauge)?;
        for (stream, state, _, _) in &self.0 {
            for other in State::ALL {
                let labels: Labels<'_> = vec![("stream", stream), ("state", other.name())];
                ConstGauge::new(i64::from(*state == other)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Collector for Streams {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let encoder = &mut encoder;
        self.states(encoder)?;
        self.gauge(encoder, "stream_fps", "Frames per second over the last seconds", |_, _, feed| feed.fps())?;
        self.frames(encoder)?;
        self.places(encoder)?;
        self.destinations(encoder)?;
        self.counter(encoder, "objects", "Objects of the detectors", |counters, _| counters.objects as f64)?;
        self.gauge(encoder, "frames_in_flight", "Frames between the first and the last inference element", |_, counters, _| {
            counters.in_flight as f64
        })?;
        self.latency(encoder)?;
        self.stages(encoder)?;
        self.counter(
            encoder,
            "source_restarts",
            "How often the source was lost: once per outage, however many attempts it takes to open the source again",
            |counters, _| counters.restarts as f64,
        )?;
        self.counter(encoder, "source_down_seconds", "Time without a source, including the outage that has not ended", |counters, _| {
            counters.time_down.as_secs_f64()
        })?;
        self.counter(encoder, "results_lost", "Results that could not be written to a destination", |counters, _| {
            counters.results_lost as f64
        })?;
        self.counter(encoder, "results_dropped", "Results that clients of the stream were too slow to receive", |_, feed| {
            feed.n_dropped() as f64
        })
    }
}

#[derive(Debug)]
struct Clients {
    requests: [u64; 5],
    n_connections: u64,
    n_refused_items: Option<u64>,
    n_subscribers: u64,
    n_dropped: u64,
    n_pictures: u64,
    n_crops: u64,
    telemetry: Option<Arc<telemetry::Counts>>,
    delays: [(&'static str, Histogram); 2],
    n_viewers: u64,
    video_frames: [(&'static str, u64); 2],
}

impl Collector for Clients {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        {
            let mut family =
                encoder.encode_descriptor("http_requests", "Answered requests by class of status", None, MetricType::Counter)?;
            for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(self.requests) {
                ConstCounter::new(count).encode(family.encode_family(&[("status", class)])?)?;
            }
        }
        for (name, help, value) in [
            ("http_connections", "Open connections", self.n_connections),
            ("subscribers", "Clients that receive results, pictures or video live", self.n_subscribers),
            ("video_viewers", "Clients that receive video", self.n_viewers),
        ] {
            ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        {
            let help = "Time from the arrival of a frame at the server until it was written to the connection of a viewer. A viewer that reads slowly makes it longer";
            let mut family = encoder.encode_descriptor("video_delay_seconds", help, None, MetricType::Histogram)?;
            for (kind, delays) in &self.delays {
                write_histogram(&mut family, "kind", kind, delays)?;
            }
        }
        if let Some(n_refused_items) = self.n_refused_items {
            let help = "Items of the coordinator that were refused, because they were not sealed with the key of the nodes";
            ConstCounter::new(n_refused_items).encode(encoder.encode_descriptor(
                "nodes_refused_items",
                help,
                None,
                MetricType::Counter,
            )?)?;
        }
        if let Some(counts) = &self.telemetry {
            let help = "Spans and logs for the collector. lost: the collector did not accept them in time";
            let mut family = encoder.encode_descriptor("telemetry_items", help, None, MetricType::Counter)?;
            for (kind, outcome, count) in [
                ("span", "sent", &counts.spans_sent),
                ("span", "lost", &counts.spans_lost),
                ("log", "sent", &counts.logs_sent),
                ("log", "lost", &counts.logs_lost),
            ] {
                let labels: Labels<'_> = vec![("kind", kind), ("outcome", outcome)];
                ConstCounter::new(count.load(Ordering::Relaxed)).encode(family.encode_family(&labels)?)?;
            }
        }
        {
            let help = "Frames of live video. encoded: by this server; passed: sent as the source has compressed them";
            let mut family = encoder.encode_descriptor("video_frames", help, None, MetricType::Counter)?;
            for (kind, n_frames) in self.video_frames {
                ConstCounter::new(n_frames).encode(family.encode_family(&[("kind", kind)])?)?;
            }
        }
        for (name, help, value) in [
            ("results_dropped_of_all", "Results that clients of all streams were too slow to receive", self.n_dropped),
            ("pictures", "Encoded pictures", self.n_pictures),
            ("crops", "Objects that were cut out of frames and encoded", self.n_crops),
        ] {
            ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        Ok(())
    }
}

/// Writes a histogram with one label.
fn write_histogram(family: &mut MetricEncoder<'_>, label: &'static str, value: &str, of: &Histogram) -> fmt::Result {
    let labels: Labels<'_> = vec![(label, value)];
    // The encoder adds the infinite bound.
    let buckets: Vec<(f64, u64)> = of.buckets.iter().copied().filter(|(bound, _)| bound.is_finite()).collect();
    family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(of.sum.as_secs_f64(), of.count(), &buckets, None)
}

/// The usual metrics of a process, read from `/proc`.
#[derive(Debug, Default)]
struct Process {
    resident_bytes: u64,
    virtual_bytes: u64,
    cpu_seconds: f64,
    threads: u64,
    open_files: u64,
    start_seconds: f64,
}

impl Process {
    fn read() -> Self {
        /// Clock ticks per second on Linux, and bytes per page on the supported machines.
        const TICKS: f64 = 100.0;
        const PAGE: u64 = 4096;
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let stat = read("/proc/self/stat");
        // The name of the process may contain spaces.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field = |idx: usize| fields.get(idx).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        let uptime: f64 = read("/proc/uptime").split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0.0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Self {
            resident_bytes: field(21) * PAGE,
            virtual_bytes: field(20),
            cpu_seconds: (field(11) + field(12)) as f64 / TICKS,
            threads: field(17),
            open_files: std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64),
            start_seconds: now - uptime + field(19) as f64 / TICKS,
        }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let cpu = encoder.encode_descriptor("process_cpu_seconds", "Processor time of the process", None, MetricType::Counter)?;
        ConstCounter::new(self.cpu_seconds).encode(cpu)?;
        for (name, help, value) in [
            ("process_resident_memory_bytes", "Resident memory", self.resident_bytes as f64),
            ("process_virtual_memory_bytes", "Virtual memory", self.virtual_bytes as f64),
            ("process_threads", "Threads", self.threads as f64),
            ("process_open_fds", "Open file descriptors", self.open_files as f64),
            ("process_start_time_seconds", "Start of the process in seconds since 1970", self.start_seconds),
        ] {
            ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        Ok(())
    }
}
