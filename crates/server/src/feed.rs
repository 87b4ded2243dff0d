//! Results and pictures of one stream, from the thread that runs it to any number of clients.
//!
//! The stream never waits for a client. Each client reads from a ring of the newest results; a client that is too slow loses whole
//! results, which are counted. A result is converted to JSON once, when the first client needs it. A picture is taken only while a client
//! waits for one, and encoded once for all clients that waited.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use roiflow_results::json::{self, Context};
use roiflow_results::{Direction, FrameResults, SceneEvent, SceneEventKind, Size};
use tokio::sync::{broadcast, oneshot};

use crate::crops::{self, Crops, Cut};
use crate::events::{EventKind, Events};
use crate::stream::Place;
use crate::telemetry;
use crate::video::{Counts, Video};

/// Number of results that may wait for a slow client of one stream.
pub const MAX_WAITING: usize = 64;
/// Number of results that may wait for a slow client of all streams.
const MAX_WAITING_OF_ALL: usize = 512;
/// Number of results that are kept for clients that ask later.
pub const MAX_RECENT: usize = 100;
/// Time over which the frame rate is measured.
const FPS_TIME: Duration = Duration::from_secs(3);
/// Maximum number of frames for the frame rate.
const FPS_FRAMES: usize = 512;

/// Results of a frame, as the backend delivers them.
#[derive(Debug, Clone)]
pub struct FrameResult {
    /// Results of all elements.
    pub results: Arc<FrameResults>,
    /// Stream time in nanoseconds.
    pub timestamp_ns: Option<u64>,
    /// Presentation timestamp in nanoseconds.
    pub pts_ns: Option<u64>,
    /// Capture time, or the current time.
    pub time: SystemTime,
}

/// Pixels of a frame with its results.
pub trait Pixels: Send + Sync {
    /// Encodes a JPEG of at most `max_width` pixels per row, with boxes drawn if `boxes`.
    ///
    /// # Errors
    /// Returns why the frame cannot be read.
    fn jpeg(&self, max_width: u32, boxes: bool) -> Result<Vec<u8>, String>;

    /// Cuts out the objects with the highest confidence, at most `max_objects`. Each picture has at most `max_side` pixels per side.
    ///
    /// # Errors
    /// Returns why the frame cannot be read.
    fn crops(&self, max_objects: usize, max_side: u32) -> Result<Vec<Cut>, String>;
}

/// A result on its way to clients.
#[derive(Debug)]
pub struct Published {
    number: u64,
    stream: Arc<str>,
    source: Arc<str>,
    frame: FrameResult,
    line: OnceLock<Bytes>,
}

impl Published {
    /// Size of the frame.
    pub fn size(&self) -> Size {
        self.frame.results.size
    }

    /// The result as one line of JSON, without a line feed.
    pub fn line(&self) -> &Bytes {
        self.line.get_or_init(|| {
            let context = Context {
                frame_number: self.number,
                stream_id: Some(&self.stream),
                source: Some(&self.source),
                tags: None,
                timestamp_ns: self.frame.timestamp_ns,
                pts_ns: self.frame.pts_ns,
                time: self.frame.time,
                message_id: None,
                image: None,
                masks: json::MaskFormat::default(),
                maps: json::MapFormat::default(),
            };
            let mut line = Vec::new();
            // Every value has a form in JSON.
            let _written = json::write_line(&mut line, &self.frame.results, &context);
            line.pop();
            line.into()
        })
    }

    /// Number of the frame in its stream.
    pub fn number(&self) -> u64 {
        self.number
    }
}

/// Counters of all feeds of a server, and the results of all streams.
#[derive(Debug)]
pub struct Hub {
    sender: broadcast::Sender<Arc<Published>>,
    /// Clients that receive results.
    pub subscribers: AtomicUsize,
    /// Results that clients of all streams were too slow to receive.
    pub dropped: AtomicU64,
    /// Encoded pictures.
    pub pictures: AtomicU64,
    /// Encoded crops.
    pub crops: AtomicU64,
    /// Counters of live video.
    pub video: Arc<Counts>,
    /// Counters of spans and logs, if they are sent to a collector.
    pub telemetry: OnceLock<Arc<telemetry::Counts>>,
}

impl Default for Hub {
    fn default() -> Self {
        let sender = broadcast::channel(MAX_WAITING_OF_ALL).0;
        Self {
            sender,
            subscribers: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            pictures: AtomicU64::new(0),
            crops: AtomicU64::new(0),
            video: Arc::default(),
            telemetry: OnceLock::new(),
        }
    }
}

impl Hub {
    /// Receives the results of all streams.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Published>> {
        self.sender.subscribe()
    }
}

/// The feed of a stream. Clones share it. It lives as long as the stream is configured, so clients stay connected over restarts.
#[derive(Clone)]
pub struct Feed(Arc<Inner>);

/// A feed that a client reads. It does not keep the feed, so the client notices that the stream was removed.
#[derive(Clone)]
pub struct WeakFeed(Weak<Inner>);

impl WeakFeed {
    /// Returns the feed; `None` if the stream was removed.
    pub fn upgrade(&self) -> Option<Feed> {
        self.0.upgrade().map(Feed)
    }
}

struct Inner {
    stream: Arc<str>,
    source: Mutex<Arc<str>>,
    hub: Arc<Hub>,
    events: Events,
    sender: broadcast::Sender<Arc<Published>>,
    state: Mutex<State>,
    /// Results that clients of this stream were too slow to receive.
    dropped: AtomicU64,
    n_waiting: AtomicUsize,
    waiting: Mutex<Vec<oneshot::Sender<Arc<Shot>>>>,
    video: Video,
    crops: Crops,
}

impl Drop for Inner {
    /// Ends the video. A viewer keeps the channel of the video open, so it would wait forever.
    fn drop(&mut self) {
        self.video.end();
    }
}

#[derive(Default)]
struct State {
    n_frames: u64,
    /// By name.
    places: BTreeMap<Arc<str>, Place>,
    recent: VecDeque<Arc<Published>>,
    arrivals: VecDeque<Instant>,
}

/// A frame whose picture clients have requested. It is encoded once per size.
pub struct Shot {
    number: u64,
    time: SystemTime,
    pixels: Arc<dyn Pixels>,
    encoded: Mutex<HashMap<(u32, bool), Bytes>>,
}

impl Shot {
    /// Returns the picture. May take tens of milliseconds.
    ///
    /// # Errors
    /// Returns the errors of [`Pixels::jpeg`].
    pub fn jpeg(&self, max_width: u32, boxes: bool, hub: &Hub) -> Result<Bytes, String> {
        let mut encoded = self.encoded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = encoded.get(&(max_width, boxes)) {
            return Ok(known.clone());
        }
        let picture = Bytes::from(self.pixels.jpeg(max_width, boxes)?);
        hub.pictures.fetch_add(1, Ordering::Relaxed);
        encoded.insert((max_width, boxes), picture.clone());
        Ok(picture)
    }

    /// Cuts out the objects of the frame. May take tens of milliseconds.
    ///
    /// # Errors
    /// Returns the errors of [`Pixels::crops`].
    pub(crate) fn crops(&self, hub: &Hub) -> Result<Vec<Cut>, String> {
        let cuts = self.pixels.crops(crops::MAX_PER_FRAME, crops::MAX_SIDE)?;
        hub.crops.fetch_add(cuts.len() as u64, Ordering::Relaxed);
        Ok(cuts)
    }

    /// Number of the frame in its stream.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Capture time of the frame.
    pub(crate) fn time(&self) -> SystemTime {
        self.time
    }
}

impl State {
    /// Counts an event at a line or a zone.
    fn count(&mut self, event: &SceneEvent) {
        let new = || Place { name: event.place.to_string(), r#in: 0, out: 0, inside: None };
        let place = self.places.entry(event.place.clone()).or_insert_with(new);
        match event.kind {
            SceneEventKind::Crossed { direction: Direction::In, .. } => place.r#in += 1,
            SceneEventKind::Crossed { direction: Direction::Out, .. } => place.out += 1,
            SceneEventKind::Entered { occupancy } => (place.r#in, place.inside) = (place.r#in + 1, Some(occupancy)),
            SceneEventKind::Exited { occupancy, .. } => (place.out, place.inside) = (place.out + 1, Some(occupancy)),
            SceneEventKind::Loitered { .. } => {}
        }
    }
}

impl Feed {
    /// Creates the feed of a stream. `source` is the input without credentials.
    pub fn new(stream: &str, source: &str, hub: Arc<Hub>, events: Events) -> Self {
        Self(Arc::new(Inner {
            stream: stream.into(),
            source: Mutex::new(source.into()),
            video: Video::new(hub.video.clone()),
            crops: Crops::default(),
            hub,
            events,
            sender: broadcast::channel(MAX_WAITING).0,
            state: Mutex::default(),
            dropped: AtomicU64::new(0),
            n_waiting: AtomicUsize::new(0),
            waiting: Mutex::default(),
        }))
    }

    /// Sets the input, without credentials, of later results.
    pub fn set_source(&self, source: &str) {
        *self.0.source.lock().unwrap_or_else(PoisonError::into_inner) = source.into();
    }

    /// Name of the stream.
    pub fn name(&self) -> &str {
        &self.0.stream
    }

    /// Returns a reference that does not keep the feed.
    pub fn downgrade(&self) -> WeakFeed {
        WeakFeed(Arc::downgrade(&self.0))
    }

    /// Live video for browsers.
    pub fn video(&self) -> &Video {
        &self.0.video
    }

    /// The latest crops.
    pub(crate) fn crops(&self) -> &Crops {
        &self.0.crops
    }

    /// Delivers the results of a frame, and returns its number. Never blocks on a client.
    pub fn publish(&self, frame: FrameResult) -> u64 {
        let source = self.0.source.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut state = self.lock();
        let number = state.n_frames;
        state.n_frames += 1;
        frame.results.events.iter().for_each(|event| state.count(event));
        let published = Arc::new(Published { number, stream: self.0.stream.clone(), source, frame, line: OnceLock::new() });
        let oldest = if state.recent.len() == MAX_RECENT { state.recent.pop_front() } else { None };
        state.recent.push_back(published.clone());
        if state.arrivals.len() == FPS_FRAMES {
            state.arrivals.pop_front();
        }
        state.arrivals.push_back(Instant::now());
        drop(state);
        // Freeing results takes time, so it happens without the lock.
        drop(oldest);
        if self.0.hub.sender.receiver_count() > 0 {
            let _sent = self.0.hub.sender.send(published.clone());
        }
        if self.0.sender.receiver_count() > 0 {
            let _sent = self.0.sender.send(published);
        }
        number
    }

    /// Number of results since the feed was created.
    pub fn n_frames(&self) -> u64 {
        self.lock().n_frames
    }

    /// Counts of lines and zones, by name.
    pub fn places(&self) -> Vec<Place> {
        self.lock().places.values().cloned().collect()
    }

    /// Forgets the counts of lines and zones that were removed.
    pub fn forget_places(&self, names: impl Iterator<Item = String>) {
        let mut state = self.lock();
        names.for_each(|name| drop(state.places.remove(&*name)));
    }

    /// Adds an event of the stream. `message` has no credentials.
    pub fn event(&self, kind: EventKind, message: impl Into<String>) {
        if kind == EventKind::Started {
            // A new pipeline knows no objects yet.
            self.lock().places.values_mut().for_each(|place| place.inside = place.inside.map(|_| 0));
        }
        self.0.events.add(&self.0.stream, kind, message);
    }

    /// Whether a client waits for a picture.
    pub fn wants_picture(&self) -> bool {
        self.0.n_waiting.load(Ordering::Acquire) > 0
    }

    /// Gives the newest frame to the clients that wait for a picture, with the number that [`Feed::publish`] has returned, and its capture
    /// time. The frame is released when the clients have encoded it.
    pub fn give_picture(&self, pixels: Arc<dyn Pixels>, number: u64, time: SystemTime) {
        let waiting = {
            let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            self.0.n_waiting.store(0, Ordering::Release);
            std::mem::take(&mut *waiting)
        };
        let shot = Arc::new(Shot { number, time, pixels, encoded: Mutex::default() });
        for client in waiting {
            // A client may have stopped waiting.
            let _sent = client.send(shot.clone());
        }
    }

    /// Requests the next frame as a picture.
    pub fn next_picture(&self) -> oneshot::Receiver<Arc<Shot>> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|client| !client.is_closed());
        waiting.push(sender);
        self.0.n_waiting.store(waiting.len(), Ordering::Release);
        receiver
    }

    /// Receives later results.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Published>> {
        self.0.sender.subscribe()
    }

    /// Returns the newest results, oldest first.
    pub fn recent(&self, limit: usize) -> Vec<Arc<Published>> {
        let state = self.lock();
        state.recent.iter().skip(state.recent.len().saturating_sub(limit)).cloned().collect()
    }

    /// Counts results that a client was too slow to receive.
    pub fn count_dropped(&self, n_results: u64) {
        self.0.dropped.fetch_add(n_results, Ordering::Relaxed);
    }

    /// Number of results that clients were too slow to receive.
    pub fn n_dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Frames per second over the last seconds.
    pub fn fps(&self) -> f64 {
        let now = Instant::now();
        let state = self.lock();
        let within: Vec<&Instant> = state.arrivals.iter().filter(|arrival| now.duration_since(**arrival) <= FPS_TIME).collect();
        match (within.first(), within.len()) {
            (Some(first), n_frames @ 2..) => {
                // The first frames of a stream arrive together, so less than a second says little about the rate.
                let least = if n_frames < FPS_FRAMES { 1.0 } else { 1e-3 };
                (n_frames - 1) as f64 / now.duration_since(**first).as_secs_f64().max(least)
            }
            _ => 0.0,
        }
    }

    /// Objects in the newest frame by label; empty if no frame has arrived for seconds.
    pub fn objects(&self) -> BTreeMap<String, u64> {
        let state = self.lock();
        let is_new = state.arrivals.back().is_some_and(|arrival| arrival.elapsed() <= FPS_TIME);
        let newest = state.recent.back().filter(|_| is_new).cloned();
        drop(state);
        let mut objects = BTreeMap::new();
        for detection in newest.iter().flat_map(|published| &published.frame.results.detections) {
            let label = detection.label.as_deref().map_or_else(|| format!("class {}", detection.label_id), str::to_owned);
            *objects.entry(label).or_default() += 1;
        }
        objects
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Feed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feed").field("stream", &self.0.stream).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> FrameResult {
        FrameResult { results: Arc::default(), timestamp_ns: Some(7), pts_ns: None, time: SystemTime::UNIX_EPOCH }
    }

    fn feed() -> (Feed, Arc<Hub>) {
        let hub = Arc::new(Hub::default());
        (Feed::new("door", "test:", hub.clone(), Events::default()), hub)
    }

    #[test]
    fn slow_client_loses_whole_results() {
        let (feed, _) = feed();
        let mut receiver = feed.subscribe();
        (0..MAX_WAITING + 5).for_each(|_| assert!(feed.publish(frame()) < 100));
        let lag = receiver.try_recv();
        assert!(matches!(lag, Err(broadcast::error::TryRecvError::Lagged(5))), "{lag:?}");
        assert_eq!(receiver.try_recv().unwrap().number(), 5, "the newest results are kept");
    }

    #[test]
    fn first_frames_that_arrive_together_are_no_high_rate() {
        let (feed, _) = feed();
        (0..10).for_each(|number| assert_eq!(feed.publish(frame()), number));
        assert!((1.0..=9.0).contains(&feed.fps()), "{}", feed.fps());
    }

    #[test]
    fn recent_results_are_bounded_and_in_order() {
        let (feed, _) = feed();
        (0..MAX_RECENT + 2).for_each(|number| assert_eq!(feed.publish(frame()), number as u64));
        let numbers: Vec<u64> = feed.recent(3).iter().map(|published| published.number()).collect();
        assert_eq!(numbers, [99, 100, 101]);
        assert_eq!(feed.recent(usize::MAX).len(), MAX_RECENT);
        let line: serde_json::Value = serde_json::from_slice(feed.recent(1)[0].line()).unwrap();
        assert_eq!((&line["frame"], &line["stream"], &line["source"]), (&101.into(), &"door".into(), &"test:".into()));
    }

    #[test]
    fn events_at_lines_and_zones_are_counted_by_name() {
        let (feed, _) = feed();
        let event = |place: &str, kind| SceneEvent { kind, place: place.into(), track: roiflow_results::ObjectId(1), label: None };
        let events = vec![
            event("gate", SceneEventKind::Crossed { direction: Direction::In, count: 1 }),
            event("gate", SceneEventKind::Crossed { direction: Direction::Out, count: 1 }),
            event("hall", SceneEventKind::Entered { occupancy: 1 }),
            event("hall", SceneEventKind::Entered { occupancy: 2 }),
            event("hall", SceneEventKind::Exited { occupancy: 1, dwell: Duration::ZERO, is_lost: false }),
        ];
        let results = FrameResults { events, ..FrameResults::default() };
        feed.publish(FrameResult { results: Arc::new(results), ..frame() });
        let place = |name: &str, r#in, out, inside| Place { name: name.into(), r#in, out, inside };
        assert_eq!(feed.places(), [place("gate", 1, 1, None), place("hall", 2, 1, Some(1))]);
        feed.event(EventKind::Started, "");
        assert_eq!(feed.places()[1], place("hall", 2, 1, Some(0)), "counts go on, and nothing is inside a new pipeline's zones");
        feed.forget_places(["gate".to_owned()].into_iter());
        assert_eq!(feed.places().len(), 1);
    }

    #[test]
    fn viewers_end_with_the_feed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (feed, _) = feed();
        let (mut viewer, _) = feed.video().watch();
        let (weak, mut results) = (feed.downgrade(), feed.subscribe());
        assert!(weak.upgrade().is_some());
        drop(feed);
        let next = async { tokio::time::timeout(Duration::from_secs(10), viewer.next()).await };
        assert_eq!(runtime.block_on(next), Ok(None));
        assert!(weak.upgrade().is_none() && matches!(results.try_recv(), Err(broadcast::error::TryRecvError::Closed)));
    }

    struct Counted(AtomicUsize);

    impl Pixels for Counted {
        fn jpeg(&self, _: u32, _: bool) -> Result<Vec<u8>, String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(vec![1])
        }

        fn crops(&self, _: usize, _: u32) -> Result<Vec<Cut>, String> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn picture_is_encoded_once_for_all_that_wait() {
        let (feed, hub) = feed();
        assert!(!feed.wants_picture());
        let (mut one, mut other) = (feed.next_picture(), feed.next_picture());
        assert!(feed.wants_picture());
        let pixels = Arc::new(Counted(AtomicUsize::new(0)));
        feed.give_picture(pixels.clone(), 0, SystemTime::UNIX_EPOCH);
        assert!(!feed.wants_picture(), "nothing is taken while no client waits");
        for receiver in [&mut one, &mut other] {
            receiver.try_recv().unwrap().jpeg(320, true, &hub).unwrap();
        }
        assert_eq!((pixels.0.load(Ordering::Relaxed), hub.pictures.load(Ordering::Relaxed)), (1, 1));
    }
}
