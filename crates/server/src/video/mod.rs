//! Live video of a stream for browsers: H.264 in fragments of an MP4 file, the same for all viewers, and only while there are viewers.
//!
//! The frames come from the source of the stream as it has compressed them, or from an encoder. A viewer first gets the header of the file
//! and the fragments since the last key frame, so it shows a picture at once. It then gets each fragment as soon as possible. A viewer that
//! reads too slowly continues with the newest key frame.
//!
//! The source compresses a frame before the stream has its results. So a fragment waits until its frame has passed the stream, at most
//! `MAX_WAIT`. Results then do not arrive later than the picture to which they belong.

mod h264;
mod mp4;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::broadcast;

use crate::stream::Histogram;

/// Number of items that may wait for a slow viewer: some seconds.
const MAX_WAITING: usize = 256;
/// Number of fragments that are kept for new viewers. If key frames are rarer, new viewers wait for the next one.
const MAX_KEPT: usize = 600;
/// Maximum size of these fragments in bytes.
const MAX_KEPT_BYTES: usize = 16 << 20;
/// Number of frames whose time in the file is known.
const MAX_TIMES: usize = 600;
/// How long a fragment waits for the results of its frame.
const MAX_WAIT: Duration = Duration::from_millis(500);
/// Largest difference of two time stamps of the same frame, in nanoseconds. Formats of files round times to milliseconds.
const SAME_FRAME: u64 = 1_000_000;
/// Largest gap between two frames, in nanoseconds. After a larger one, or a step back, the times of the file continue without a gap.
const MAX_GAP: u64 = 5_000_000_000;
/// How far time stamps go back at most because frames are not decoded in the order of display, in nanoseconds.
const MAX_REORDERED: u64 = 1_000_000_000;
/// Duration of a frame that nothing is known about, in nanoseconds.
const USUAL_DURATION: u64 = 33_000_000;

/// A message to a viewer.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A file begins. The fragments that follow belong to it.
    Begin(Header),
    /// A fragment of the file.
    Fragment {
        /// The fragment.
        bytes: Bytes,
        /// When its frame has arrived at the server; `None`: not known, or the fragment is one that was kept for new viewers.
        arrived: Option<Instant>,
        /// Whether an encoder of this server has compressed the frame.
        is_encoded: bool,
    },
    /// The frame with this number is at this time of the file.
    Frame {
        /// Time in the file in microseconds.
        time_us: u64,
        /// Number of the frame in its stream.
        number: u64,
    },
    /// There is no video, for this reason.
    Failed(Arc<str>),
    /// The stream was removed. No item follows. [`Viewer::next`] returns `None` instead of this item.
    End,
}

/// Beginning of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// Name of the codec for browsers, such as `avc1.42C01F`.
    pub codec: String,
    /// The first bytes of the file.
    pub bytes: Bytes,
}

/// How the units of H.264 are separated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format<'a> {
    /// By lengths of four bytes. The configuration record has the parameter sets.
    Lengths {
        /// The configuration record.
        config: &'a [u8],
    },
    /// By start codes.
    StartCodes,
}

/// A compressed frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compressed<'a> {
    /// The frame as H.264.
    pub bytes: &'a [u8],
    /// How its units are separated.
    pub format: Format<'a>,
    /// Width and height in pixels.
    pub size: (u16, u16),
    /// When it is displayed: its presentation timestamp in nanoseconds.
    pub pts_ns: u64,
    /// When it is decoded; `None`: when it is displayed.
    pub dts_ns: Option<u64>,
    /// Whether it needs no other frame.
    pub is_key: bool,
    /// Whether an encoder of this server has compressed it, and not the source.
    pub is_encoded: bool,
    /// When it has arrived at the server; `None`: not known, or [`Video::passed`] tells it.
    pub arrived: Option<Instant>,
}

/// Upper bounds of the buckets of delays, in seconds.
const DELAY_BOUNDS: [f64; 16] = [0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0];

/// Counters of the video of all streams.
#[derive(Debug)]
pub struct Counts {
    /// Viewers.
    pub viewers: AtomicUsize,
    /// Frames that were compressed for viewers.
    pub encoded: AtomicU64,
    /// Frames of sources that were sent as they are.
    pub passed: AtomicU64,
    /// Delays of frames that were compressed for viewers, and of frames that were sent as they are.
    delays: [Mutex<Histogram>; 2],
}

impl Default for Counts {
    fn default() -> Self {
        let delays = [(); 2].map(|()| Mutex::new(Histogram::new(&DELAY_BOUNDS)));
        Self { viewers: AtomicUsize::default(), encoded: AtomicU64::default(), passed: AtomicU64::default(), delays }
    }
}

impl Counts {
    /// Counts how long a frame took from its arrival at the server until it was written to the connection of a viewer.
    pub(crate) fn delayed(&self, is_encoded: bool, delay: Duration) {
        let [encoded, passed] = &self.delays;
        let delays = if is_encoded { encoded } else { passed };
        delays.lock().unwrap_or_else(PoisonError::into_inner).add(delay);
    }

    /// Returns the delays by the kind of video, under the names that the metrics use.
    pub(crate) fn delays(&self) -> [(&'static str, Histogram); 2] {
        let [encoded, passed] = self.delays.each_ref().map(|delays| delays.lock().unwrap_or_else(PoisonError::into_inner).clone());
        [("encoded", encoded), ("passed", passed)]
    }
}

/// The video of one stream. Clones share it.
#[derive(Debug, Clone)]
pub struct Video(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    sender: broadcast::Sender<Item>,
    counts: Arc<Counts>,
    n_viewers: AtomicUsize,
    /// Whether the stream was removed. Written while `state` is locked.
    is_ended: AtomicBool,
    state: Mutex<State>,
}

/// State while there are viewers.
#[derive(Debug, Default)]
struct State {
    /// The file and its fragments since the last key frame.
    kept: Vec<Item>,
    /// Size of the fragments in `kept`.
    kept_bytes: usize,
    /// Configuration record of the file.
    config: Vec<u8>,
    n_fragments: u32,
    clock: Clock,
    last_pts: u64,
    /// Compressed frames that were not sent yet, in the order of decoding.
    waiting: VecDeque<Waiting>,
    /// Time stamps of compressed frames, and their times in the file, in nanoseconds.
    times: VecDeque<(u64, u64)>,
    /// Frames that have passed the stream before they were compressed.
    numbers: VecDeque<Passed>,
}

/// A frame that has passed the stream.
#[derive(Debug)]
struct Passed {
    pts_ns: u64,
    number: u64,
    arrived: Option<Instant>,
}

/// A compressed frame that was not sent yet.
#[derive(Debug)]
struct Waiting {
    bytes: Vec<u8>,
    pts_ns: u64,
    /// Time in the file at which it is decoded, in nanoseconds.
    time: u64,
    delay: i64,
    is_key: bool,
    is_encoded: bool,
    /// When its frame has arrived at the server.
    arrived: Option<Instant>,
    /// Since when it waits.
    since: Instant,
    /// Whether its results are known, or those of a later frame.
    is_due: bool,
}

/// Gives times to frames that never go back, even if the time stamps do, for example because a file starts again.
#[derive(Debug, Default)]
pub struct Clock {
    /// The last time stamp and its time.
    last: Option<(u64, u64)>,
    duration: u64,
}

impl Clock {
    /// Returns the time of a frame in nanoseconds. Each time is later than the one before.
    pub fn time(&mut self, stamp: u64) -> u64 {
        let time = match self.last {
            None => 0,
            Some((last, time)) => {
                let step = stamp.checked_sub(last).filter(|step| (1_000..=MAX_GAP).contains(step));
                if let Some(step) = step {
                    self.duration = step;
                }
                time + step.unwrap_or(if self.duration == 0 { USUAL_DURATION } else { self.duration })
            }
        };
        self.last = Some((stamp, time));
        time
    }
}

/// A viewer. The video of the stream is no longer made when the last viewer is dropped.
#[derive(Debug)]
pub struct Viewer {
    video: Video,
    receiver: broadcast::Receiver<Item>,
}

impl Viewer {
    /// Waits for the next items. If the viewer was too slow, these are the file and its fragments since the last key frame. Returns `None`
    /// at the end of the stream.
    pub async fn next(&mut self) -> Option<Vec<Item>> {
        match self.receiver.recv().await {
            // The viewer itself keeps the channel open, so the end is an item.
            Ok(Item::End) | Err(broadcast::error::RecvError::Closed) => None,
            Ok(item) => Some(vec![item]),
            Err(broadcast::error::RecvError::Lagged(_)) => {
                let state = self.video.lock();
                if self.video.is_ended() {
                    return None;
                }
                self.receiver = self.receiver.resubscribe();
                Some(state.kept.clone())
            }
        }
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let inner = &self.video.0;
        inner.counts.viewers.fetch_sub(1, Ordering::Relaxed);
        let mut state = self.video.lock();
        if inner.n_viewers.fetch_sub(1, Ordering::AcqRel) == 1 {
            *state = State::default();
        }
    }
}

impl Video {
    /// Creates the video of a stream without viewers.
    pub fn new(counts: Arc<Counts>) -> Self {
        let sender = broadcast::channel(MAX_WAITING).0;
        let (n_viewers, is_ended) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self(Arc::new(Inner { sender, counts, n_viewers, is_ended, state: Mutex::default() }))
    }

    /// Whether there are viewers, and the stream was not removed.
    pub fn is_wanted(&self) -> bool {
        self.0.n_viewers.load(Ordering::Acquire) > 0 && !self.is_ended()
    }

    /// Ends the video for current and later viewers, because the stream was removed. Later frames are ignored.
    pub fn end(&self) {
        let mut state = self.lock();
        self.0.is_ended.store(true, Ordering::Release);
        *state = State::default();
        self.send(Item::End);
    }

    fn is_ended(&self) -> bool {
        self.0.is_ended.load(Ordering::Acquire)
    }

    /// Adds a viewer. Returns it with the file and its fragments since the last key frame.
    pub fn watch(&self) -> (Viewer, Vec<Item>) {
        // The lock orders this with `send`, so that no item is missing or received twice.
        let state = self.lock();
        self.0.n_viewers.fetch_add(1, Ordering::AcqRel);
        self.0.counts.viewers.fetch_add(1, Ordering::Relaxed);
        let viewer = Viewer { video: self.clone(), receiver: self.0.sender.subscribe() };
        if self.is_ended() {
            // A viewer that connects while the stream is removed must not wait forever.
            self.send(Item::End);
        }
        (viewer, state.kept.clone())
    }

    /// Adds a compressed frame, in the order of decoding. Returns false if browsers cannot play it. Does nothing without viewers.
    pub fn compressed(&self, frame: &Compressed<'_>) -> bool {
        let mut state = self.lock();
        if !self.is_wanted() {
            return true;
        }
        if !self.begin(&mut state, frame) {
            return false;
        }
        if state.config.is_empty() {
            // The file begins with a key frame.
            return true;
        }
        let back = state.last_pts.saturating_sub(frame.pts_ns);
        if frame.dts_ns.is_none() && !frame.is_key && (1..MAX_REORDERED).contains(&back) {
            // The order of display is unknown.
            return false;
        }
        state.last_pts = frame.pts_ns;
        let bytes = match frame.format {
            Format::Lengths { .. } => frame.bytes.to_vec(),
            Format::StartCodes => h264::with_lengths(frame.bytes),
        };
        let counter = if frame.is_encoded { &self.0.counts.encoded } else { &self.0.counts.passed };
        counter.fetch_add(1, Ordering::Relaxed);
        let dts = frame.dts_ns.unwrap_or(frame.pts_ns);
        let time = state.clock.time(dts);
        let delay = i64::try_from(frame.pts_ns).unwrap_or(0) - i64::try_from(dts).unwrap_or(0);
        let now = Instant::now();
        let displayed = time.saturating_add_signed(delay);
        push(&mut state.times, (frame.pts_ns, displayed));
        // A file that starts again has the same time stamps again, so each number is used once.
        let known = state.numbers.iter().rposition(|passed| passed.pts_ns.abs_diff(frame.pts_ns) <= SAME_FRAME);
        let passed = known.and_then(|idx| state.numbers.remove(idx));
        if let Some(Passed { number, .. }) = passed {
            self.send(Item::Frame { time_us: displayed / 1000, number });
        }
        let is_due = passed.is_some();
        let arrived = frame.arrived.or(passed.and_then(|passed| passed.arrived));
        let (is_key, is_encoded) = (frame.is_key, frame.is_encoded);
        state.waiting.push_back(Waiting { bytes, pts_ns: frame.pts_ns, time, delay, is_key, is_encoded, arrived, since: now, is_due });
        self.flush(&mut state, now);
        true
    }

    /// Tells the number of a frame that has passed the stream, and when it has arrived at the server, if this is known.
    pub fn passed(&self, pts_ns: u64, number: u64, arrived: Option<Instant>) {
        let mut state = self.lock();
        if !self.is_wanted() {
            return;
        }
        let displayed = state.times.iter().rev().find(|(pts, _)| pts.abs_diff(pts_ns) <= SAME_FRAME).map(|(_, time)| *time);
        match displayed {
            Some(time) => self.send(Item::Frame { time_us: time / 1000, number }),
            None => push(&mut state.numbers, Passed { pts_ns, number, arrived }),
        }
        // Frames that are decoded before this one are due, too: it may need them.
        if let Some(last) = state.waiting.iter().rposition(|waiting| waiting.pts_ns <= pts_ns + SAME_FRAME) {
            state.waiting.iter_mut().take(last + 1).for_each(|waiting| waiting.is_due = true);
        }
        self.flush(&mut state, Instant::now());
    }

    /// Tells why there is no video.
    pub fn fail(&self, reason: &str) {
        let mut state = self.lock();
        if self.is_ended() {
            return;
        }
        *state = State { kept: vec![Item::Failed(reason.into())], ..State::default() };
        self.send(Item::Failed(reason.into()));
    }

    /// Begins a file with a key frame if its parameter sets differ from those of the current file. Returns false if browsers cannot play it.
    fn begin(&self, state: &mut State, frame: &Compressed<'_>) -> bool {
        if !frame.is_key {
            return true;
        }
        let config = match frame.format {
            Format::Lengths { config } => Some(config.to_vec()),
            Format::StartCodes => h264::config(frame.bytes),
        };
        // Without parameter sets, those of the frames before apply.
        let Some(config) = config.filter(|config| *config != state.config) else { return true };
        if !h264::is_playable(&config) {
            return false;
        }
        let header = Header { codec: h264::codec(&config), bytes: mp4::header(&config, frame.size.0, frame.size.1) };
        // Frames of the file before that were not sent yet do not fit into this one.
        *state = State { config, numbers: std::mem::take(&mut state.numbers), ..State::default() };
        state.kept.push(Item::Begin(header.clone()));
        self.send(Item::Begin(header));
        true
    }

    /// Sends the frames that are due. The last one waits, because its duration is not known yet.
    fn flush(&self, state: &mut State, now: Instant) {
        while let [first, second, ..] = state.waiting.make_contiguous() {
            if !first.is_due && now.duration_since(first.since) < MAX_WAIT {
                return;
            }
            let micro = |time: u64| time / 1000;
            let duration = u32::try_from(micro(second.time) - micro(first.time)).unwrap_or(u32::MAX);
            let frame = mp4::Frame {
                bytes: &first.bytes,
                time: micro(first.time),
                duration,
                delay: i32::try_from(first.delay / 1000).unwrap_or(0),
                is_key: first.is_key,
            };
            let (bytes, is_key) = (mp4::fragment(state.n_fragments, &frame), first.is_key);
            let (arrived, is_encoded) = (first.arrived, first.is_encoded);
            state.n_fragments = state.n_fragments.wrapping_add(1);
            state.waiting.pop_front();
            let is_full = state.kept.len() > MAX_KEPT || state.kept_bytes + bytes.len() > MAX_KEPT_BYTES;
            if is_key || is_full {
                // The header remains.
                state.kept.truncate(1);
                state.kept_bytes = 0;
            }
            // After too many fragments without a key frame, new viewers wait for the next one.
            if is_key || state.kept.len() > 1 {
                state.kept_bytes += bytes.len();
                state.kept.push(Item::Fragment { bytes: bytes.clone(), arrived: None, is_encoded });
            }
            self.send(Item::Fragment { bytes, arrived, is_encoded });
        }
    }

    fn send(&self, item: Item) {
        // Without viewers, the item is not needed.
        let _sent = self.0.sender.send(item);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds an item to a ring.
fn push<T>(ring: &mut VecDeque<T>, item: T) {
    if ring.len() == MAX_TIMES {
        ring.pop_front();
    }
    ring.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: [u8; 4] = [1, 66, 0xc0, 31];
    const MS: u64 = 1_000_000;

    fn frame(pts_ms: u64, is_key: bool) -> Compressed<'static> {
        let format = Format::Lengths { config: &CONFIG };
        Compressed {
            bytes: &[1, 2, 3],
            format,
            size: (64, 48),
            pts_ns: pts_ms * MS,
            dts_ns: None,
            is_key,
            is_encoded: false,
            arrived: None,
        }
    }

    fn video() -> (Video, Arc<Counts>) {
        let counts = Arc::new(Counts::default());
        (Video::new(counts.clone()), counts)
    }

    fn received(viewer: &mut Viewer) -> Vec<Item> {
        std::iter::from_fn(|| viewer.receiver.try_recv().ok()).collect()
    }

    fn n_fragments(items: &[Item]) -> usize {
        items.iter().filter(|item| matches!(item, Item::Fragment { .. })).count()
    }

    #[test]
    fn nothing_is_kept_or_counted_without_viewers() {
        let (video, counts) = video();
        (0..5).for_each(|idx| assert!(video.compressed(&frame(idx * 40, true))));
        assert_eq!(counts.passed.load(Ordering::Relaxed), 0);
        let (viewer, kept) = video.watch();
        assert!(kept.is_empty() && video.is_wanted() && counts.viewers.load(Ordering::Relaxed) == 1);
        video.compressed(&frame(200, true));
        drop(viewer);
        assert!(!video.is_wanted() && video.watch().1.is_empty(), "the last viewer frees the frames");
    }

    #[test]
    fn fragment_waits_for_the_results_of_its_frame() {
        let (video, _) = video();
        let (mut viewer, _) = video.watch();
        (0..4).for_each(|idx| assert!(video.compressed(&frame(idx * 40, idx == 0))));
        let items = received(&mut viewer);
        assert!(matches!(&items[..], [Item::Begin(header)] if header.codec == "avc1.42C01F"), "{items:?}");
        video.passed(40 * MS + 500, 17, None);
        let items = received(&mut viewer);
        assert_eq!(items[0], Item::Frame { time_us: 40_000, number: 17 });
        assert_eq!(n_fragments(&items), 2);
    }

    #[test]
    fn frames_of_a_file_that_starts_again_get_new_numbers() {
        let (video, _) = video();
        let (mut viewer, _) = video.watch();
        for number in 0..8 {
            video.compressed(&frame(number % 4 * 40, number % 4 == 0));
            video.passed(number % 4 * 40 * MS, number, None);
        }
        let items = received(&mut viewer);
        let frames =
            items.iter().filter_map(|item| if let Item::Frame { time_us, number } = item { Some((*number, *time_us)) } else { None });
        assert_eq!(frames.collect::<Vec<_>>(), (0..8).map(|number| (number, number * 40_000)).collect::<Vec<_>>());
    }

    #[test]
    fn fragment_of_an_encoded_frame_is_sent_with_the_next_one() {
        let (video, _) = video();
        let (mut viewer, _) = video.watch();
        for idx in 0..3 {
            video.passed(idx * 40 * MS, 100 + idx, None);
            video.compressed(&frame(idx * 40, idx == 0));
        }
        let items = received(&mut viewer);
        assert_eq!(n_fragments(&items), 2);
        assert!(items.contains(&Item::Frame { time_us: 80_000, number: 102 }), "{items:?}");
    }

    #[test]
    fn fragment_has_the_time_at_which_its_frame_has_arrived() {
        let (video, _) = video();
        let (mut viewer, _) = video.watch();
        let arrived = Some(Instant::now());
        // The source has compressed the first two frames, and the encoder the others.
        for idx in 0..2 {
            video.compressed(&Compressed { arrived, ..frame(idx * 40, idx == 0) });
            video.passed(idx * 40 * MS, idx, None);
        }
        for idx in 2..4 {
            video.passed(idx * 40 * MS, idx, arrived);
            video.compressed(&Compressed { is_encoded: true, ..frame(idx * 40, false) });
        }
        let of = |items: &[Item]| -> Vec<(Option<Instant>, bool)> {
            let fragments = items.iter().filter_map(|item| match item {
                Item::Fragment { arrived, is_encoded, .. } => Some((*arrived, *is_encoded)),
                _ => None,
            });
            fragments.collect()
        };
        assert_eq!(of(&received(&mut viewer)), [(arrived, false), (arrived, false), (arrived, true)]);
        assert_eq!(of(&video.watch().1), [(None, false), (None, false), (None, true)], "new viewers are not late");
    }

    #[test]
    fn new_viewer_gets_the_file_from_the_last_key_frame_on() {
        let (video, _) = video();
        let _first = video.watch();
        for idx in 0..10 {
            video.compressed(&frame(idx * 40, idx % 4 == 0));
            video.passed(idx * 40 * MS, idx, None);
        }
        let (_, kept) = video.watch();
        // Key frames are 0, 4 and 8. The last frame waits for the next one.
        assert!(matches!(&kept[..], [Item::Begin(_), Item::Fragment { .. }]), "{kept:?}");
        assert!(video.compressed(&Compressed { format: Format::Lengths { config: &[1, 77, 0, 31] }, ..frame(400, true) }));
        let (_, kept) = video.watch();
        assert!(matches!(&kept[..], [Item::Begin(header)] if header.codec == "avc1.4D001F"), "another file: {kept:?}");
        assert!(!video.compressed(&Compressed { format: Format::Lengths { config: &[1, 110, 0, 31] }, ..frame(440, true) }));
    }

    #[test]
    fn end_reaches_current_slow_and_late_viewers() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let next = |viewer: &mut Viewer| {
            let next = async { tokio::time::timeout(Duration::from_secs(10), viewer.next()).await };
            runtime.block_on(next).expect("a viewer must not wait for a stream that was removed")
        };
        let (video, _) = video();
        let (mut slow, _) = video.watch();
        let mut current = None;
        for idx in 0..MAX_WAITING as u64 {
            video.compressed(&frame(idx * 40, true));
            current = Some(video.watch().0);
            video.passed(idx * 40 * MS, idx, None);
        }
        let mut current = current.unwrap();
        video.end();
        assert!(!video.is_wanted());
        let is_number = |item: &Item| matches!(item, Item::Frame { number, .. } if *number == MAX_WAITING as u64 - 1);
        assert!(next(&mut current).is_some_and(|items| items.iter().any(is_number)), "earlier items arrive");
        while next(&mut current).is_some() {}
        assert_eq!(next(&mut slow), None);
        drop((current, slow));
        video.fail("the encoder ends after the stream");
        let (mut late, kept) = video.watch();
        assert!(kept.is_empty() && next(&mut late).is_none());
    }

    #[test]
    fn large_fragments_are_not_kept_without_limit() {
        let (video, _) = video();
        let _viewer = video.watch();
        let bytes = vec![1; MAX_KEPT_BYTES / 4];
        let large = |idx: u64, is_key| Compressed { bytes: &bytes, ..frame(idx * 40, is_key) };
        let n_kept = |video: &Video| n_fragments(&video.watch().1);
        for idx in 0..6 {
            video.compressed(&large(idx, idx == 0));
            video.passed(idx * 40 * MS, idx, None);
        }
        assert_eq!(n_kept(&video), 0, "the header remains");
        for idx in 6..9 {
            video.compressed(&large(idx, idx == 6));
            video.passed(idx * 40 * MS, idx, None);
        }
        assert_eq!(n_kept(&video), 2, "a key frame begins again");
    }

    #[test]
    fn video_begins_with_a_key_frame() {
        let (video, counts) = video();
        let (mut viewer, _) = video.watch();
        (0..3).for_each(|idx| assert!(video.compressed(&frame(idx * 40, false))));
        assert!(received(&mut viewer).is_empty() && counts.passed.load(Ordering::Relaxed) == 0);
    }

    #[test]
    fn frames_in_another_order_than_that_of_display_need_their_time_of_decoding() {
        let (video, _) = video();
        let _viewer = video.watch();
        assert!(video.compressed(&frame(0, true)) && video.compressed(&frame(120, false)));
        assert!(!video.compressed(&frame(40, false)));
        assert!(video.compressed(&Compressed { dts_ns: Some(40 * MS), ..frame(80, false) }));
    }

    #[test]
    fn times_go_on_when_time_stamps_go_back() {
        let mut clock = Clock::default();
        let stamps = [1000, 1040, 1080, 0, 40, 90_000, 90_040];
        let times = stamps.map(|stamp| clock.time(stamp * MS) / MS);
        assert_eq!(times, [0, 40, 80, 120, 160, 200, 240]);
    }
}
