//! Real brokers that fail, and what arrived there.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::brokers::{Broker, NatsClient, Proxy, subscribe};
use crate::harness::Folder;
use crate::kafka::Cluster;
use crate::received::Received;
use crate::verdict::Violations;

/// How a broker fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// SIGKILL; later it starts again. Kafka's mock cluster would lose its messages: it closes its connections and refuses new ones.
    Killed,
    /// SIGSTOP, later SIGCONT.
    Paused,
}

enum Kind {
    /// The broker keeps nothing, so a client receives all the time. The proxy is closed before the broker is killed: without it, the broker
    /// could acknowledge a message and be killed before the client has the message.
    Mqtt {
        proxy: Proxy,
        client: Option<JoinHandle<()>>,
    },
    Nats,
    Redis,
    Kafka(Cluster),
}

/// A broker with what arrived there.
pub struct Server {
    pub name: &'static str,
    pub url: String,
    /// `None` for Kafka.
    broker: Option<Broker>,
    kind: Kind,
    received: Arc<Mutex<Received>>,
    violations: Arc<Violations>,
    outage: Option<Outage>,
}

impl Server {
    /// Starts the brokers.
    pub fn all(folder: &Folder, violations: &Arc<Violations>) -> Vec<Self> {
        let new = |name, url: String, broker, kind| {
            let (received, violations) = (Arc::default(), violations.clone());
            let mut server = Self { name, url, broker: Some(broker), kind, received, violations, outage: None };
            server.start();
            server
        };
        let of_kafka: Arc<Mutex<Received>> = Arc::default();
        let (received, of_thread) = (of_kafka.clone(), violations.clone());
        let cluster = Cluster::start(move |payload| received.lock().unwrap().add("Kafka", payload, &of_thread));
        let kafka = Self {
            name: "Kafka",
            url: format!("kafka://{}/results", cluster.address),
            broker: None,
            kind: Kind::Kafka(cluster),
            received: of_kafka,
            violations: violations.clone(),
            outage: None,
        };
        let mqtt = Broker::mosquitto(folder, "");
        let proxy = Proxy::new(mqtt.port, true);
        let nats = Broker::new("nats-server", &["-a", "127.0.0.1", "-p", "{port}", "-js", "-sd", &folder.file("nats")]);
        let redis = Broker::redis(folder);
        vec![
            new("MQTT", format!("mqtt://127.0.0.1:{}/roiflow/{{stream}}", proxy.port), mqtt, Kind::Mqtt { proxy, client: None }),
            new("NATS", format!("nats://127.0.0.1:{}/roiflow.{{stream}}?create=results", nats.port), nats, Kind::Nats),
            new("Redis", format!("redis://127.0.0.1:{}", redis.port), redis, Kind::Redis),
            kafka,
        ]
    }

    fn start(&mut self) {
        if let Kind::Kafka(cluster) = &mut self.kind {
            return cluster.tell("up");
        }
        let Some(broker) = &mut self.broker else { return };
        broker.start();
        let Kind::Mqtt { proxy, client } = &mut self.kind else { return };
        let messages = subscribe(broker.port, "roiflow/#");
        let (received, violations) = (self.received.clone(), self.violations.clone());
        *client = Some(std::thread::spawn(move || {
            while let Ok((_, payload)) = messages.recv() {
                received.lock().unwrap().add("MQTT", &payload, &violations);
            }
        }));
        proxy.open();
    }

    fn kill(&mut self) {
        if let Kind::Kafka(cluster) = &mut self.kind {
            return cluster.tell("down");
        }
        if let Kind::Mqtt { proxy, .. } = &self.kind {
            proxy.close();
            // The broker passes on what it has acknowledged.
            std::thread::sleep(Duration::from_millis(200));
        }
        self.broker.iter_mut().for_each(Broker::kill);
        if let Kind::Mqtt { client, .. } = &mut self.kind {
            client.take().into_iter().for_each(|client| client.join().expect("the client of MQTT"));
        }
    }

    fn signal(&self, name: &str) {
        if let Kind::Kafka(cluster) = &self.kind {
            cluster.signal(name);
        }
        self.broker.iter().for_each(|broker| broker.signal(name));
    }

    fn port(&self) -> u16 {
        self.broker.as_ref().map_or(0, |broker| broker.port)
    }

    /// Begins an outage.
    pub fn fail(&mut self, outage: Outage) {
        self.outage = Some(outage);
        match outage {
            Outage::Killed => self.kill(),
            Outage::Paused => self.signal("STOP"),
        }
    }

    /// Ends the outage.
    pub fn heal(&mut self) {
        match self.outage.take() {
            Some(Outage::Killed) => self.start(),
            Some(Outage::Paused) => self.signal("CONT"),
            None => {}
        }
    }

    /// Reads what is stored, ends the broker, and returns all that has arrived.
    pub fn finish(mut self, streams: &[String]) -> Received {
        match &mut self.kind {
            Kind::Mqtt { .. } => self.kill(),
            Kind::Nats => self.read_nats(),
            Kind::Redis => streams.iter().for_each(|stream| self.read_redis(stream)),
            Kind::Kafka(cluster) => cluster.finish(),
        }
        std::mem::take(&mut self.received.lock().unwrap())
    }

    fn read_nats(&self) {
        let mut client = NatsClient::connect(self.port());
        let info = client.request("$JS.API.STREAM.INFO.results", "");
        let n_messages = info["state"]["messages"].as_u64().unwrap_or_default();
        let settings = r#"{"deliver_policy":"all","ack_policy":"none","replay_policy":"instant","inactive_threshold":60000000000}"#;
        let created = client.request("$JS.API.CONSUMER.CREATE.results", &format!(r#"{{"stream_name":"results","config":{settings}}}"#));
        let consumer = created["name"].as_str().expect("the server creates a consumer").to_owned();
        // The server closes a connection that does not read as fast as it sends, so this client asks for a part at a time.
        let mut n_left = n_messages;
        while n_left > 0 {
            let n_asked = n_left.min(500);
            client.ask(&format!("$JS.API.CONSUMER.MSG.NEXT.results.{consumer}"), &format!(r#"{{"batch":{n_asked}}}"#));
            let mut received = self.received.lock().unwrap();
            (0..n_asked).for_each(|_| received.add(self.name, &client.next(), &self.violations));
            n_left -= n_asked;
        }
    }

    fn read_redis(&self, stream: &str) {
        let port = self.port().to_string();
        let output = Command::new("redis-cli").args(["-p", &port, "--raw", "XRANGE", &format!("roiflow:{stream}"), "-", "+"]).output();
        let output = output.expect("redis-cli is installed").stdout;
        let mut received = self.received.lock().unwrap();
        for line in output.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{")) {
            received.add(self.name, line, &self.violations);
        }
    }
}
