//! Protects the process from what a source sends: it bounds the memory for data without a frame, and keeps decoders from a crash of
//! GStreamer.
//!
//! Used by `pipeline` and by the element `roisource`, which both open their sources with `uridecodebin`. This module counts and discards
//! data; its users decide what a source with too much data means. It never blocks. The elements for inference use only its protection of
//! decoders. `colors` keeps the color range of the video.

mod colors;
#[allow(unsafe_code, reason = "calls functions of GLib and of the C library that have no safe bindings")]
mod connections;
mod fetches;
mod jpeg;
mod packets;
mod parts;
#[allow(unsafe_code, reason = "replaces a function of a class of libsoup")]
mod responses;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gst::glib;
use gst::glib::translate::IntoGlib;
use gst::prelude::*;
use gstreamer as gst;

use self::connections::Connection;
pub(crate) use self::fetches::{is_of_camera, is_of_network, watch_cameras};
use self::packets::Packets;

/// Maximum size of the data that a source may send without a frame. A camera with 100 Mbit/s may send a key frame every five seconds.
/// GStreamer stores such data without a limit, for example a part of MJPEG.
pub(crate) const MAX_BYTES: u64 = 64 << 20;
/// Maximum size of the data that an RTSP server may send in addition to its video, such as the description of its streams.
const MAX_CONTROL_BYTES: u64 = 8 << 20;
/// Maximum size of a playlist, a manifest or a key, which GStreamer reads as a whole. A playlist of a day with segments of two seconds has 3 MiB.
const MAX_PLAYLIST_BYTES: u64 = 8 << 20;
/// Maximum number of video streams of a demuxer that are decoded. Each one has threads and frames of its own.
const MAX_VIDEOS: usize = 4;
/// Maximum number of other streams of a demuxer that leave it. Each one has a thread.
const MAX_OTHERS: usize = 16;
/// Maximum number of the streams of a camera that are received.
const MAX_STREAMS: u32 = 8;
/// Maximum time from the end of a file until its first frame is decoded.
const MAX_DECODING: Duration = Duration::from_secs(20);
/// Maximum number of pixels of a frame, as for images. A decoder allocates several frames before it returns the first one.
const MAX_PIXELS: u64 = 134_217_728;

/// The probes that count data. Data that is pulled is not stored.
const DATA: gst::PadProbeType = gst::PadProbeType::BUFFER.union(gst::PadProbeType::BUFFER_LIST).union(gst::PadProbeType::PUSH);

/// What a source has sent. See the module.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    /// Bytes since the last frame.
    n_bytes: AtomicU64,
    /// Bytes of all RTP packets.
    n_packet_bytes: AtomicU64,
    n_frames: AtomicU64,
    /// Number of compressed video frames.
    n_compressed: AtomicU64,
    /// Codec of a decoder that has not returned a frame yet, or none since its input has changed.
    untried: Mutex<Option<String>>,
    /// Whether the source has no end that it declares, such as MJPEG by HTTP.
    is_endless: AtomicBool,
    /// Size of frames that are too large, as pixels.
    too_large: AtomicU64,
    /// Bytes of the playlist or manifest that the source itself sends.
    n_playlist_bytes: AtomicU64,
    /// Whether a further playlist, a key or a part of a manifest is too large.
    has_large_part: AtomicBool,
    /// Whether an element stores too much data of one stream while frames of other streams arrive.
    has_endless_frame: AtomicBool,
    /// Whether anything was fetched by HTTP.
    is_of_network: AtomicBool,
    /// Whether frames have changed to a pixel format that GStreamer cannot represent.
    is_unknown: AtomicBool,
    /// When a demuxer has sent the last video of the source.
    ended: Mutex<Option<Instant>>,
    /// TCP connections of `rtspsrc`.
    connections: Mutex<Vec<Connection>>,
    /// Whether connections and requests are ended. Elements then begin new ones.
    is_hung_up: AtomicBool,
}

impl Intake {
    /// Watches a `uridecodebin`. Call this before the element starts, and before other probes on its pads and on those of its elements.
    pub(crate) fn of(decoder: &gst::Bin) -> Arc<Self> {
        let intake = Arc::<Self>::default();
        fetches::connect(&intake, decoder.upcast_ref());
        let of_elements = intake.clone();
        decoder.connect_deep_element_added(move |_, bin, element| of_elements.watch(bin, element));
        let of_frames = intake.clone();
        decoder.connect_pad_added(move |_, pad| {
            let intake = of_frames.clone();
            pad.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
                intake.n_frames.fetch_add(1, Ordering::Relaxed);
                intake.n_bytes.store(0, Ordering::Relaxed);
                gst::PadProbeReturn::Ok
            });
        });
        intake
    }

    /// Returns why no more data is accepted from the source; `None` while its data is within the limits. Call this several times per
    /// second: it also ends connections on which an RTSP server sends too much, because `rtspsrc` reads each response to its end.
    pub(crate) fn excess(&self) -> Option<String> {
        let pixels = self.too_large.load(Ordering::Relaxed);
        if pixels > 0 {
            return Some(format!("its frames have {pixels} pixels, expected at most {MAX_PIXELS}; set a smaller resolution"));
        }
        if self.is_unknown.load(Ordering::Relaxed) {
            return lock(&self.untried).as_deref().map(|codec| cannot_be_decoded(codec, UNKNOWN_FORMAT));
        }
        // Sometimes `decodebin` of GStreamer 1.22 reports neither the end nor the error of a decoder that has refused all frames.
        if self.n_frames() == 0 && self.n_compressed() > 0 && lock(&self.ended).is_some_and(|ended| ended.elapsed() > MAX_DECODING) {
            return lock(&self.untried).as_deref().map(|codec| cannot_be_decoded(codec, DAMAGED));
        }
        if self.n_playlist_bytes.load(Ordering::Relaxed) > MAX_PLAYLIST_BYTES || self.has_large_part.load(Ordering::Relaxed) {
            return Some(format!("it sent a playlist or a key of more than {} MiB; check that it sends video", MAX_PLAYLIST_BYTES >> 20));
        }
        if self.n_bytes.load(Ordering::Relaxed) > MAX_BYTES || self.has_endless_frame.load(Ordering::Relaxed) {
            let what = "MiB without a complete frame, which is the limit; check that it sends video";
            return Some(format!("it sent {} {what}", MAX_BYTES >> 20));
        }
        let mut connections = lock(&self.connections);
        connections.retain(Connection::is_open);
        let n_received: u64 = connections.iter().map(Connection::n_received).sum();
        // Video over TCP is framed. So the connection receives a little more than the packets of the video.
        let allowed = MAX_CONTROL_BYTES + 2 * self.n_packet_bytes.load(Ordering::Relaxed);
        (n_received > allowed).then(|| {
            self.is_hung_up.store(true, Ordering::Relaxed);
            connections.iter().for_each(Connection::close);
            format!("it sent more than {} MiB that are no video; check that it is a camera", MAX_CONTROL_BYTES >> 20)
        })
    }

    /// Ends requests for parts of a playlist, and the connections of an RTSP server that has sent no video. `rtspsrc` cannot be stopped while it
    /// reads an answer. A server that has sent video gets a request to end its session instead.
    pub(crate) fn hang_up(&self) {
        if self.n_packet_bytes.load(Ordering::Relaxed) == 0 {
            // After this, connections that are new are ended too.
            self.is_hung_up.store(true, Ordering::Relaxed);
            lock(&self.connections).iter().for_each(Connection::close);
        }
    }

    /// Whether the source declares no end, so that it must deliver frames all the time.
    pub(crate) fn is_endless(&self) -> bool {
        self.is_endless.load(Ordering::Relaxed)
    }

    pub(crate) fn n_frames(&self) -> u64 {
        self.n_frames.load(Ordering::Relaxed)
    }

    /// Number of compressed video frames that have reached a decoder.
    pub(crate) fn n_compressed(&self) -> u64 {
        self.n_compressed.load(Ordering::Relaxed)
    }

    /// Describes an error of the source if a decoder cannot make frames that GStreamer can represent.
    pub(crate) fn undecodable(&self, error: &gst::message::Error) -> Option<String> {
        let codec = lock(&self.untried).clone().filter(|_| self.n_compressed() > 0)?;
        let flow = error.details().and_then(|details| details.get::<i32>("flow-return").ok());
        let why = match flow {
            Some(flow) if flow == gst::FlowError::NotNegotiated.into_glib() => UNKNOWN_FORMAT,
            // `decodebin` posts this error without a flow if the frames reach the decoder only at its end.
            None if error.error().matches(gst::StreamError::Failed) => DAMAGED,
            _ => return None,
        };
        Some(cannot_be_decoded(&codec, why))
    }

    fn watch(self: &Arc<Self>, bin: &gst::Bin, element: &gst::Element) {
        colors::keep(element);
        let factory = factory_name(element);
        let (is_decoder, klass) = (is_video_decoder(element), klass(element));
        if klass.contains("Demuxer") {
            self.limit_streams(element);
        }
        match &*factory {
            "rtspsrc" => self.watch_connections(element),
            "multipartdemux" => self.watch_parts(element),
            "tsdemux" => self.limit_packets(element),
            "rtpjitterbuffer" => self.watch_packets(element),
            _ if klass.contains("Adaptive") => self.limit_playlist(element),
            _ if klass.contains("Depayloader") || klass.contains("Parser") => self.limit_stored(element),
            _ if is_decoder => {
                render_safely(element);
                self.watch_decoder(element);
            }
            _ => {}
        }
        if is_source(element) && !is_in_rtsp(bin) {
            for pad in element.src_pads() {
                self.limit(&pad);
                parts::search_images(&pad);
            }
        }
    }

    /// Discards a playlist or manifest beyond the limit. Its demuxer would need many times its size to read it.
    fn limit_playlist(self: &Arc<Self>, demuxer: &gst::Element) {
        let Some(sink) = demuxer.static_pad("sink") else { return };
        let intake = self.clone();
        sink.add_probe(DATA | gst::PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
            let is_end = matches!(&info.data, Some(gst::PadProbeData::Event(event)) if event.type_() == gst::EventType::Eos);
            let n_bytes = n_bytes(info);
            let is_too_large = intake.n_playlist_bytes.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes > MAX_PLAYLIST_BYTES;
            if is_too_large && (is_end || n_bytes > 0) { consume(info) } else { gst::PadProbeReturn::Ok }
        });
    }

    /// Notes the end of the video of a demuxer, and leaves out further streams. Call this before `decodebin` connects its signal.
    fn limit_streams(self: &Arc<Self>, demuxer: &gst::Element) {
        let intake = Arc::downgrade(self);
        demuxer.connect_pad_added(move |demuxer, pad| {
            let is_one = is_video(pad);
            let n_streams = demuxer.src_pads().iter().filter(|other| is_video(other) == is_one).count();
            if n_streams > if is_one { MAX_VIDEOS } else { MAX_OTHERS } {
                demuxer.stop_signal_emission_by_name("pad-added");
            } else if is_one {
                let intake = intake.clone();
                pad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
                    let is_end = matches!(&info.data, Some(gst::PadProbeData::Event(event)) if event.type_() == gst::EventType::Eos);
                    if let Some(intake) = intake.upgrade().filter(|_| is_end) {
                        lock(&intake.ended).get_or_insert_with(Instant::now);
                    }
                    gst::PadProbeReturn::Ok
                });
            }
        });
    }

    /// Limits the data of incomplete frames that a demuxer of MPEG-TS stores for all streams.
    fn limit_packets(self: &Arc<Self>, demuxer: &gst::Element) {
        let Some(sink) = demuxer.static_pad("sink") else { return };
        let (intake, packets) = (self.clone(), Mutex::new(Packets::default()));
        sink.add_probe(gst::PadProbeType::BUFFER | gst::PadProbeType::BUFFER_LIST, move |_, info| {
            let mut packets = lock(&packets);
            let mut read = |buffer: &gst::BufferRef| buffer.map_readable().map_or(0, |bytes| packets.read(&bytes));
            let n_stored = match &info.data {
                Some(gst::PadProbeData::Buffer(buffer)) => read(buffer),
                Some(gst::PadProbeData::BufferList(buffers)) => buffers.iter().map(&mut read).last().unwrap_or(0),
                _ => 0,
            };
            intake.check_stored(n_stored, info)
        });
    }

    /// Limits the data that an element for one stream stores until it returns data.
    fn limit_stored(self: &Arc<Self>, element: &gst::Element) {
        let (Some(sink), Some(src)) = (element.static_pad("sink"), element.static_pad("src")) else { return };
        let n_stored = Arc::new(AtomicU64::new(0));
        let (intake, of_sink) = (self.clone(), n_stored.clone());
        sink.add_probe(DATA, move |_, info| {
            let n_bytes = n_bytes(info);
            intake.check_stored(of_sink.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes, info)
        });
        src.add_probe(DATA, move |_, _| {
            n_stored.store(0, Ordering::Relaxed);
            gst::PadProbeReturn::Ok
        });
    }

    /// Discards the data of a probe if its element already stores too much.
    fn check_stored(&self, n_stored: u64, info: &mut gst::PadProbeInfo<'_>) -> gst::PadProbeReturn {
        if n_stored <= MAX_BYTES {
            return gst::PadProbeReturn::Ok;
        }
        self.has_endless_frame.store(true, Ordering::Relaxed);
        consume(info)
    }

    /// Counts the data that leaves a pad, and discards data beyond the limit. While downstream is blocked, no data leaves.
    fn limit(self: &Arc<Self>, pad: &gst::Pad) {
        let intake = self.clone();
        pad.add_probe(DATA, move |_, info| {
            let n_bytes = n_bytes(info);
            if intake.n_bytes.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes > MAX_BYTES { consume(info) } else { gst::PadProbeReturn::Ok }
        });
        let intake = self.clone();
        pad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
            if let Some(gst::PadProbeData::Event(event)) = &info.data
                && event.structure().is_some_and(has_no_length)
            {
                intake.is_endless.store(true, Ordering::Relaxed);
            }
            gst::PadProbeReturn::Ok
        });
    }

    /// Limits the packets in a jitter buffer, which stores them without a limit while downstream is blocked.
    fn watch_packets(self: &Arc<Self>, buffer: &gst::Element) {
        let (Some(sink), Some(src)) = (buffer.static_pad("sink"), buffer.static_pad("src")) else { return };
        let n_stored = Arc::new(AtomicU64::new(0));
        let (intake, of_sink) = (self.clone(), n_stored.clone());
        sink.add_probe(DATA, move |_, info| {
            let n_bytes = n_bytes(info);
            intake.n_packet_bytes.fetch_add(n_bytes, Ordering::Relaxed);
            if of_sink.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes > MAX_BYTES { consume(info) } else { gst::PadProbeReturn::Ok }
        });
        src.add_probe(DATA, move |_, _| {
            n_stored.store(0, Ordering::Relaxed);
            gst::PadProbeReturn::Ok
        });
        self.limit(&src);
    }

    /// Lets only the first kind of image through, and announces that no more pads follow. Otherwise `decodebin` waits for further streams, until
    /// it has stored 8 MiB, and does not see the end of the source if one follows later.
    fn watch_parts(self: &Arc<Self>, demuxer: &gst::Element) {
        self.is_endless.store(true, Ordering::Relaxed);
        let has_images = AtomicBool::new(false);
        demuxer.connect_pad_added(move |demuxer, pad| {
            if !is_video(pad) || has_images.swap(true, Ordering::Relaxed) {
                // If no pad of the demuxer is linked, it ends with an error. With this probe, it continues.
                pad.add_probe(DATA | gst::PadProbeType::EVENT_DOWNSTREAM, |_, info| consume(info));
                return demuxer.stop_signal_emission_by_name("pad-added");
            }
            let demuxer = demuxer.downgrade();
            pad.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
                demuxer.upgrade().iter().for_each(ElementExt::no_more_pads);
                gst::PadProbeReturn::Remove
            });
        });
    }

    /// Counts the compressed frames of a decoder, refuses frames that are too large, and notes whether it returns frames.
    fn watch_decoder(self: &Arc<Self>, decoder: &gst::Element) {
        let (Some(sink), Some(src)) = (decoder.static_pad("sink"), decoder.static_pad("src")) else { return };
        let (intake, header) = (self.clone(), Mutex::new(None));
        sink.add_probe(gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
            match &info.data {
                Some(gst::PadProbeData::Buffer(buffer)) => {
                    intake.n_compressed.fetch_add(1, Ordering::Relaxed);
                    if let (Some(header), Ok(bytes)) = (&mut *lock(&header), buffer.map_readable()) {
                        intake.check_size(jpeg::Header::read(header, &bytes).unwrap_or(0));
                    }
                }
                Some(gst::PadProbeData::Event(event)) => match event.view() {
                    gst::EventView::Caps(caps) => {
                        // Caps of JPEG may have no size.
                        let is_jpeg = caps.caps().structure(0).is_some_and(|structure| structure.name() == "image/jpeg");
                        *lock(&header) = is_jpeg.then(jpeg::Header::default);
                        intake.input_changed(caps.caps());
                    }
                    // EOS makes the decoder return the frames before the refused ones.
                    _ => return gst::PadProbeReturn::Ok,
                },
                _ => {}
            }
            let is_refused = intake.too_large.load(Ordering::Relaxed) > 0 || intake.is_unknown.load(Ordering::Relaxed);
            if is_refused { consume(info) } else { gst::PadProbeReturn::Ok }
        });
        let intake = self.clone();
        src.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
            if !intake.is_unknown.load(Ordering::Relaxed) {
                *lock(&intake.untried) = None;
            }
            gst::PadProbeReturn::Ok
        });
        // A decoder declares the size of its frames, and asks for a pool, before it allocates the first one.
        let intake = self.clone();
        src.add_probe(
            gst::PadProbeType::EVENT_DOWNSTREAM | gst::PadProbeType::QUERY_DOWNSTREAM | gst::PadProbeType::PUSH,
            move |_, info| {
                match &mut info.data {
                    Some(gst::PadProbeData::Event(event)) => {
                        if let gst::EventView::Caps(caps) = event.view() {
                            intake.check_size(n_pixels(caps.caps().structure(0)));
                        }
                    }
                    Some(gst::PadProbeData::Query(query)) => {
                        if let gst::QueryViewMut::Allocation(allocation) = query.view_mut()
                            && intake.too_large.load(Ordering::Relaxed) > 0
                        {
                            allocation.add_allocation_pool(Some(&glib::Object::new::<NoFrames>()), 1, 0, 0);
                            return gst::PadProbeReturn::Handled;
                        }
                    }
                    _ => {}
                }
                gst::PadProbeReturn::Ok
            },
        );
    }

    /// The input of a decoder has these caps from now on.
    fn input_changed(&self, caps: &gst::CapsRef) {
        let Some(structure) = caps.structure(0) else { return };
        let profile = structure.get::<String>("profile").map_or_else(|_| String::new(), |profile| format!(", profile {profile}"));
        *lock(&self.untried) = Some(format!("{}{profile}", structure.name().trim_start_matches("video/x-")));
        // A decoder reports the first format itself. After a change, it would write such frames into memory for the earlier format.
        if self.n_compressed() > 0 && !is_known_format(structure) {
            self.is_unknown.store(true, Ordering::Relaxed);
        }
        self.check_size(n_pixels(Some(structure)));
    }

    fn check_size(&self, n_pixels: u64) {
        if n_pixels > MAX_PIXELS {
            self.too_large.store(n_pixels, Ordering::Relaxed);
        }
    }

    /// Limits the streams of an `rtspsrc`, and notes its connections. The signal is emitted on the thread that has connected, before each request.
    fn watch_connections(self: &Arc<Self>, source: &gst::Element) {
        connections::listen();
        source.connect("select-stream", false, |values| {
            let number = values.get(1).and_then(|value| value.get::<u32>().ok());
            Some(number.is_none_or(|number| number < MAX_STREAMS).to_value())
        });
        let intake = self.clone();
        source.connect("before-send", false, move |_| {
            let mut connections = lock(&intake.connections);
            let new = Connection::of_this_thread().filter(|connection| !connections.contains(connection));
            connections.extend(new);
            if intake.is_hung_up.load(Ordering::Relaxed) {
                connections.iter().for_each(Connection::close);
            }
            Some(true.to_value())
        });
    }
}

/// Makes a decoder allocate its frames itself, and then copy them to memory of GStreamer.
///
/// The decoders of libav can also write into memory of GStreamer. For a pixel format that GStreamer does not have, such as gray with 10
/// bits, they would then use uninitialized memory and crash. With this setting they report an error. The copy takes 0.2 ms for a frame of
/// 1920x1080 pixels.
pub(crate) fn render_safely(decoder: &gst::Element) {
    const DIRECT: &str = "direct-rendering";
    if decoder.find_property(DIRECT).is_some_and(|property| property.value_type() == bool::static_type()) {
        decoder.set_property(DIRECT, false);
    }
}

/// Calls [`render_safely`] for all decoders of an element's pipeline, also for those that are added later, and keeps the color range of their
/// frames. Further calls have no effect.
pub(crate) fn protect_decoders(element: &gst::Element) {
    static KNOWN: Mutex<Vec<glib::WeakRef<gst::Bin>>> = Mutex::new(Vec::new());
    let parents = std::iter::successors(Some(element.clone().upcast::<gst::Object>()), |object| object.parent());
    let Some(pipeline) = parents.last().and_then(|object| object.downcast::<gst::Bin>().ok()) else { return };
    {
        let mut known = lock(&KNOWN);
        known.retain(|weak| weak.upgrade().is_some());
        if known.iter().any(|weak| weak.upgrade().as_ref() == Some(&pipeline)) {
            return;
        }
        known.push(pipeline.downgrade());
    }
    let protect = |element: &gst::Element| {
        render_safely(element);
        colors::keep(element);
    };
    pipeline.connect_deep_element_added(move |_, _, element| protect(element));
    pipeline.iterate_recurse().into_iter().flatten().for_each(|element| protect(&element));
}

/// Whether an HTTP response has no length. `structure` is that of an event of the source.
fn has_no_length(structure: &gst::StructureRef) -> bool {
    let headers = || structure.get::<gst::Structure>("response-headers").ok();
    structure.name() == "http-headers"
        && headers().is_some_and(|headers| !headers.fields().any(|field| field.eq_ignore_ascii_case("content-length")))
}

/// Whether GStreamer has a pixel format for the frames of H.264 or H.265 with these caps. The caps of other codecs do not tell.
fn is_known_format(structure: &gst::StructureRef) -> bool {
    let n_bits = structure.get::<u32>("bit-depth-luma").unwrap_or(8);
    let is_gray = structure.get::<String>("chroma-format").is_ok_and(|format| format == "4:0:0");
    n_bits == 8 || !is_gray && [10, 12].contains(&n_bits)
}

const DAMAGED: &str = "they are damaged, or GStreamer does not support their pixel format";
const UNKNOWN_FORMAT: &str = "GStreamer does not support their pixel format";

fn cannot_be_decoded(codec: &str, why: &str) -> String {
    format!(
        "its frames ({codec}) cannot be decoded: {why}. Gray with 10 bits is not supported, for example; expected a common format, such as \
         4:2:0 or gray with 8 bits. Change the settings of the camera, or convert the video"
    )
}

/// Returns the size of the data of a probe.
fn n_bytes(info: &gst::PadProbeInfo<'_>) -> u64 {
    let n_bytes = match &info.data {
        Some(gst::PadProbeData::Buffer(buffer)) => buffer.size(),
        Some(gst::PadProbeData::BufferList(buffers)) => buffers.iter().map(gst::BufferRef::size).sum(),
        _ => 0,
    };
    n_bytes as u64
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the caps of a pad are those of video or images.
fn is_video(pad: &gst::Pad) -> bool {
    let caps = pad.current_caps();
    let kind = caps.as_ref().and_then(|caps| caps.structure(0)).map(|structure| structure.name().as_str());
    kind.is_some_and(|kind| kind.starts_with("video/") || kind.starts_with("image/"))
}

/// Returns the size of frames with these caps; 0: not known.
fn n_pixels(structure: Option<&gst::StructureRef>) -> u64 {
    let extent = |name: &str| -> u64 {
        let extent = structure.and_then(|structure| structure.get::<i32>(name).ok());
        extent.map_or(0, |extent| extent.unsigned_abs().into())
    };
    extent("width") * extent("height")
}

/// Keeps data of a probe from going on. `Drop` would do the same, but makes GStreamer 1.22 release events twice.
pub(crate) fn consume(info: &mut gst::PadProbeInfo<'_>) -> gst::PadProbeReturn {
    drop(info.data.take());
    gst::PadProbeReturn::Handled
}

/// Whether the element opens an address or a device.
pub(crate) fn is_source(element: &gst::Element) -> bool {
    element.element_flags().contains(gst::ElementFlags::SOURCE) && element.downcast_ref::<gst::Bin>().is_none()
}

/// Whether the bin is an `rtspsrc` or inside one. Buffers of the UDP sources in an `rtspsrc` do not count, because these sources receive
/// RTCP reports even without video.
pub(crate) fn is_in_rtsp(bin: &gst::Bin) -> bool {
    std::iter::successors(Some(bin.clone().upcast::<gst::Object>()), |object| object.parent())
        .any(|object| object.downcast_ref::<gst::Element>().is_some_and(|element| factory_name(element) == "rtspsrc"))
}

pub(crate) fn factory_name(element: &gst::Element) -> String {
    element.factory().map(|factory| factory.name().to_string()).unwrap_or_default()
}

/// Returns the element's class, such as `Codec/Decoder/Video`.
pub(crate) fn klass(element: &gst::Element) -> String {
    let factory = element.factory();
    factory.and_then(|factory| factory.metadata(gst::ELEMENT_METADATA_KLASS).map(str::to_owned)).unwrap_or_default()
}

pub(crate) fn is_video_decoder(element: &gst::Element) -> bool {
    let klass = klass(element);
    klass.contains("Decoder") && (klass.contains("Video") || klass.contains("Image"))
}

glib::wrapper! {
    /// A pool without memory, for a decoder whose frames are too large.
    pub struct NoFrames(ObjectSubclass<imp::NoFrames>) @extends gst::BufferPool, gst::Object;
}

mod imp {
    use gst::subclass::prelude::*;

    use super::*;

    #[derive(Default)]
    pub struct NoFrames;

    #[glib::object_subclass]
    impl ObjectSubclass for NoFrames {
        const NAME: &'static str = "RoiflowNoFrames";
        /// Two copies of the library in one process register this type name, so a name conflict is not an error.
        const ALLOW_NAME_CONFLICT: bool = true;
        type Type = super::NoFrames;
        type ParentType = gst::BufferPool;
    }

    impl ObjectImpl for NoFrames {}

    impl GstObjectImpl for NoFrames {}

    impl BufferPoolImpl for NoFrames {
        fn alloc_buffer(&self, _params: Option<&gst::BufferPoolAcquireParams>) -> Result<gst::Buffer, gst::FlowError> {
            Err(gst::FlowError::Error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_whose_decoder_says_nothing_after_its_end_cannot_be_decoded() {
        let intake = Intake::default();
        *lock(&intake.untried) = Some("h265".to_owned());
        *lock(&intake.ended) = Some(Instant::now());
        intake.n_compressed.store(1, Ordering::Relaxed);
        assert_eq!(intake.excess(), None);
        *lock(&intake.ended) = Instant::now().checked_sub(2 * MAX_DECODING);
        assert!(intake.excess().unwrap().contains("(h265) cannot be decoded"));
        intake.n_frames.store(1, Ordering::Relaxed);
        assert_eq!(intake.excess(), None);
    }
}
