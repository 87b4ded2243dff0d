//! Reads the settings of OpenTelemetry, and makes spans and logs of the process its own.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use opentelemetry::logs::{LogRecord as _, Logger as _, LoggerProvider as _, Severity};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Key, KeyValue, logs::AnyValue};
use opentelemetry_otlp::{LogExporter, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::{LogExporter as _, SdkLogger, SdkLoggerProvider};
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanExporter as _};
use roiflow_server::config::{self, LogLevel};
use roiflow_server::telemetry::{Counts, TARGET};
use tracing::{Event, Level, Subscriber, field};
use tracing_subscriber::filter::{LevelFilter, Targets, filter_fn};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::client::Client;
use super::queue::{Collector, Exporters, Queue};
use crate::cli::terminal::Terminal;
use crate::pipeline;
use crate::redaction::{self, Secrets, percent_decoded};

/// How long the end of the process waits for the collector.
const MAX_END: Duration = Duration::from_millis(500);
/// Attempts to send a batch, after the first one.
const MAX_RETRIES: usize = 2;
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Spans and logs that are sent to a collector.
pub(in crate::cli) struct Telemetry {
    queue: Queue,
    tracers: Option<SdkTracerProvider>,
    loggers: Option<SdkLoggerProvider>,
    level: LevelFilter,
}

impl Telemetry {
    /// Starts to send spans and logs, if the settings or the environment name a collector.
    ///
    /// # Errors
    /// Returns an error if the settings or the environment variables are wrong.
    pub(in crate::cli) fn new(settings: &config::Telemetry, terminal: &Terminal) -> anyhow::Result<Option<Self>> {
        // Without a variable, the exporters would send to this machine. So a signal without a variable is not sent.
        let general = || variable("OTEL_EXPORTER_OTLP_ENDPOINT");
        let address = |name: &str| settings.endpoint.clone().or_else(|| variable(name)).or_else(general);
        let of_traces = address("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        let of_logs = address("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT");
        let is_any = of_traces.is_some() || of_logs.is_some();
        if !is_any || variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let usage = |error: String| anyhow!(pipeline::Error::usage(error));
        for address in of_traces.iter().chain(&of_logs) {
            terminal.hide(Secrets::of(address));
            if !["http://", "https://"].iter().any(|scheme| address.starts_with(scheme)) {
                let shown = redaction::redact(address);
                return Err(usage(format!("telemetry: expected the address of a collector such as http://127.0.0.1:4318, got `{shown}`")));
            }
        }
        let protocols = ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL"];
        if let Some((name, other)) =
            protocols.iter().filter_map(|name| Some((name, variable(name)?))).find(|(_, value)| value != "http/protobuf")
        {
            return Err(usage(format!(
                "{name}: expected http/protobuf, the only supported protocol, got `{other}`. Collectors accept it at port 4318"
            )));
        }
        for name in ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_LOGS_HEADERS"] {
            terminal.hide(secrets_of_headers(&variable(name).unwrap_or_default()));
        }
        let is_wanted = |name: &str| variable(name).is_none_or(|value| value != "none");
        let of_traces = of_traces.filter(|_| settings.traces && is_wanted("OTEL_TRACES_EXPORTER"));
        let level = level(settings.logs);
        let of_logs = of_logs.filter(|_| level != LevelFilter::OFF && is_wanted("OTEL_LOGS_EXPORTER"));

        let client = |address: &str| Client::new(address.starts_with("https://"));
        let retries = RetryPolicy::default().with_max_retries(MAX_RETRIES).with_initial_delay(RETRY_DELAY);
        let endpoint = |signal: &str| settings.endpoint.as_ref().map(|base| format!("{}/v1/{signal}", base.trim_end_matches('/')));
        let wrong = |error: &dyn std::fmt::Display| usage(format!("telemetry: {error}"));
        let resource = resource();
        let mut spans = None;
        if let Some(address) = &of_traces {
            let client = client(address)?;
            let mut builder = SpanExporter::builder().with_http().with_http_client(client.clone()).with_retry_policy(retries.clone());
            builder = endpoint("traces").into_iter().fold(builder, |builder, endpoint| builder.with_endpoint(endpoint));
            let mut exporter = builder.build().map_err(|error| wrong(&error))?;
            exporter.set_resource(&resource);
            spans = Some((exporter, Collector::new("spans", address, client)));
        }
        let mut logs = None;
        if let Some(address) = &of_logs {
            let client = client(address)?;
            let mut builder = LogExporter::builder().with_http().with_http_client(client.clone()).with_retry_policy(retries);
            builder = endpoint("logs").into_iter().fold(builder, |builder, endpoint| builder.with_endpoint(endpoint));
            let mut exporter = builder.build().map_err(|error| wrong(&error))?;
            exporter.set_resource(&resource);
            logs = Some((exporter, Collector::new("logs", address, client)));
        }
        let queue = Queue::new(terminal);
        let tracers = spans
            .is_some()
            .then(|| SdkTracerProvider::builder().with_span_processor(queue.clone()).with_resource(resource.clone()).build());
        let loggers =
            logs.is_some().then(|| SdkLoggerProvider::builder().with_log_processor(queue.clone()).with_resource(resource).build());
        queue.start(Exporters { spans, logs })?;
        Ok(Some(Self { queue, tracers, loggers, level }))
    }

    /// Counters of spans and logs.
    pub(in crate::cli) fn counts(&self) -> Arc<Counts> {
        self.queue.counts()
    }

    /// Sends what waits, for at most half a second.
    pub(in crate::cli) fn end(&self) {
        self.queue.end(MAX_END);
    }
}

/// Returns the layer that turns spans of `tracing` into spans of OpenTelemetry.
pub(in crate::cli) fn traces<S>(telemetry: Option<&Telemetry>) -> Option<impl Layer<S> + use<S>>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let tracer = telemetry?.tracers.as_ref()?.tracer("roiflow");
    let layer = tracing_opentelemetry::layer::<S>().with_tracer(tracer);
    let layer = layer.with_location(false).with_threads(false).with_target(false).with_tracked_inactivity(false);
    Some(layer.with_filter(filter_fn(|metadata| metadata.is_span() && metadata.target() == TARGET)))
}

/// Returns the layer that turns events of `tracing` into logs of OpenTelemetry.
pub(in crate::cli) fn logs<S>(telemetry: Option<&Telemetry>) -> Option<impl Layer<S> + use<S>>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let telemetry = telemetry?;
    let layer = Logs { logger: telemetry.loggers.as_ref()?.logger("roiflow"), queue: telemetry.queue.clone() };
    Some(Layer::<S>::with_filter(layer, Targets::new().with_target("roiflow", telemetry.level)))
}

/// Turns events into logs.
struct Logs {
    logger: SdkLogger,
    queue: Queue,
}

impl<S: Subscriber> Layer<S> for Logs {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields { queue: &self.queue, message: String::new(), others: Vec::new() };
        event.record(&mut fields);
        let Fields { message, others, .. } = fields;
        let metadata = event.metadata();
        let mut record = self.logger.create_log_record();
        record.set_target(metadata.target());
        record.set_timestamp(SystemTime::now());
        let (severity, text) = severity(*metadata.level());
        record.set_severity_number(severity);
        record.set_severity_text(text);
        record.set_body(AnyValue::from(self.queue.scrub(&message)));
        record.add_attributes(others);
        self.logger.emit(record);
    }
}

/// Collects the fields of an event.
struct Fields<'a> {
    queue: &'a Queue,
    message: String,
    others: Vec<(Key, AnyValue)>,
}

impl Fields<'_> {
    fn add(&mut self, field: &field::Field, value: AnyValue) {
        self.others.push((field.name().into(), value));
    }
}

impl field::Visit for Fields<'_> {
    fn record_debug(&mut self, field: &field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            // Writing to a string cannot fail.
            let _written = write!(self.message, "{value:?}");
        } else {
            let text = self.queue.scrub(&format!("{value:?}"));
            self.add(field, text.into());
        }
    }

    fn record_str(&mut self, field: &field::Field, value: &str) {
        let text = self.queue.scrub(value);
        self.add(field, text.into());
    }

    fn record_i64(&mut self, field: &field::Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &field::Field, value: u64) {
        self.add(field, i64::try_from(value).map_or_else(|_| value.to_string().into(), AnyValue::from));
    }

    fn record_f64(&mut self, field: &field::Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &field::Field, value: bool) {
        self.add(field, value.into());
    }
}

fn severity(level: Level) -> (Severity, &'static str) {
    match level {
        Level::ERROR => (Severity::Error, "ERROR"),
        Level::WARN => (Severity::Warn, "WARN"),
        Level::INFO => (Severity::Info, "INFO"),
        Level::DEBUG => (Severity::Debug, "DEBUG"),
        Level::TRACE => (Severity::Trace, "TRACE"),
    }
}

fn level(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    }
}

/// Returns an environment variable that is not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the attributes of the process. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` have priority.
fn resource() -> Resource {
    let has_name = variable("OTEL_SERVICE_NAME").is_some()
        || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|attributes| attributes.contains("service.name="));
    let builder = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if has_name { builder.build() } else { builder.with_service_name("roiflow").build() }
}

/// Returns the values of headers such as `authorization=Bearer%20x,tenant=y`.
fn secrets_of_headers(headers: &str) -> Secrets {
    let mut secrets = Secrets::default();
    for (_, value) in headers.split(',').filter_map(|header| header.split_once('=')) {
        let value = percent_decoded(value.trim());
        let value = String::from_utf8_lossy(&value).into_owned();
        secrets.add(value.strip_prefix("Bearer ").or(value.strip_prefix("Basic ")).unwrap_or(&value));
    }
    secrets
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::atomic::Ordering;

    use opentelemetry::trace::{Span as _, Status, Tracer as _};

    use super::*;

    /// Accepts one connection, answers all its requests, and returns their bodies.
    fn collect(listener: &TcpListener) -> Vec<u8> {
        let mut reader = BufReader::new(listener.accept().unwrap().0);
        let mut bodies = Vec::new();
        loop {
            let (mut length, mut line) = (None, String::new());
            while reader.read_line(&mut line).is_ok_and(|n_bytes| n_bytes > 2) {
                length = line.to_ascii_lowercase().strip_prefix("content-length:").map(|text| text.trim().parse().unwrap()).or(length);
                line.clear();
            }
            let Some(length) = length else { return bodies };
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            bodies.extend(body);
            reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        }
    }

    #[test]
    fn end_sends_the_waiting_spans_without_credentials() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Some(format!("http://{}", listener.local_addr().unwrap()));
        let collector = std::thread::spawn(move || collect(&listener));
        let terminal = Terminal::new();
        terminal.hide(Secrets::of("rtsp://admin:secret77x@camera/live"));
        let settings = config::Telemetry { endpoint, traces: true, logs: LogLevel::Off };
        let telemetry = Telemetry::new(&settings, &terminal).unwrap().unwrap();
        let tracer = telemetry.tracers.as_ref().unwrap().tracer("test");
        let mut span = tracer.start("GET /door/secret77x");
        span.set_attribute(KeyValue::new("model", "grpc://user:other88y@server/model"));
        span.set_status(Status::error("no answer to secret77x"));
        span.end();
        telemetry.queue.end(Duration::from_secs(60));
        let counts = telemetry.counts();
        assert_eq!((counts.spans_sent.load(Ordering::Relaxed), counts.spans_lost.load(Ordering::Relaxed)), (1, 0));
        // The thread that sends has ended, so the connection is closed.
        let text = String::from_utf8_lossy(&collector.join().unwrap()).into_owned();
        assert!(text.contains("GET /door/***") && text.contains("no answer to ***") && text.contains("server/model"), "{text}");
        assert!(!text.contains("secret77x") && !text.contains("other88y"), "{text}");
    }
}
