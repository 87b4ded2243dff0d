//! Properties and state changes of `roisource`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstreamer as gst;

use super::worker::{self, Job, Signal};
use super::{Policy, encoded};
use crate::redaction;
use crate::restart::Restart;

pub(super) static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new("roisource", gst::DebugColorFlags::empty(), Some("Source that is opened again when it is lost"))
});

/// How long a change to READY waits for the thread of the source. A thread that takes longer ends by itself.
const MAX_STOP: Duration = Duration::from_secs(6);

/// Settings of the element.
#[derive(Debug, Clone)]
struct Settings {
    uri: Option<String>,
    restart: Policy,
    /// Seconds; 0 = never.
    give_up_after: f64,
    /// Seconds; 0 = no limit.
    no_frame_timeout: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { uri: None, restart: Policy::default(), give_up_after: 0.0, no_frame_timeout: 10.0 }
    }
}

/// State that the element shares with the thread of the source.
pub(super) struct Shared {
    pub(super) pad: gst::GhostPad,
    /// The pad `encoded`, if it was requested.
    pub(super) encoded: Mutex<Option<gst::GhostPad>>,
    /// The decoder of the current attempt.
    pub(super) decoder: Mutex<Option<gst::Element>>,
    /// Whether the element plays, and is not paused. The state of the element itself changes only after `play` has returned.
    pub(super) is_playing: AtomicBool,
    /// Number of restarts after which frames arrived, and the time without frames.
    counts: Mutex<(u64, Duration)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// All source pads.
    pub(super) fn pads(&self) -> Vec<gst::GhostPad> {
        [self.pad.clone()].into_iter().chain(lock(&self.encoded).clone()).collect()
    }

    pub(super) fn count_restart(&self, gap: Duration) {
        let mut counts = lock(&self.counts);
        *counts = (counts.0 + 1, counts.1 + gap);
    }
}

/// The thread of the source.
struct Worker {
    sender: Sender<Signal>,
    /// Nothing is sent: the channel closes when the thread ends.
    ended: Receiver<()>,
}

/// Instance data of `roisource`. No lock is held during a state change, a post or a push.
pub struct RoiSource {
    shared: Arc<Shared>,
    settings: Mutex<Settings>,
    worker: Mutex<Option<Worker>>,
}

#[glib::object_subclass]
impl ObjectSubclass for RoiSource {
    const NAME: &'static str = "RoiSource";
    /// Two copies of the library in one process register this type name, so a name conflict is not an error.
    const ALLOW_NAME_CONFLICT: bool = true;
    type Type = super::RoiSource;
    type ParentType = gst::Bin;

    fn with_class(class: &Self::Class) -> Self {
        let template = class.pad_template("src").expect("pad_templates() gives it");
        let pad = gst::GhostPad::builder_from_template(&template)
            .query_function(|pad, parent, query| {
                Self::catch_panic_pad_function(
                    parent,
                    || false,
                    |_| match query.view_mut() {
                        // Without a source, there is no pad to query.
                        gst::QueryViewMut::Latency(latency) if pad.target().is_none() => {
                            latency.set(true, gst::ClockTime::ZERO, gst::ClockTime::NONE);
                            true
                        }
                        _ => gst::Pad::query_default(pad, parent, query),
                    },
                )
            })
            .build();
        let (encoded, decoder) = Default::default();
        let shared = Shared { pad, encoded, decoder, is_playing: AtomicBool::new(false), counts: Mutex::default() };
        Self { shared: Arc::new(shared), settings: Mutex::default(), worker: Mutex::default() }
    }
}

impl ObjectImpl for RoiSource {
    fn constructed(&self) {
        self.parent_constructed();
        let element = self.obj();
        element.set_suppressed_flags(gst::ElementFlags::SOURCE | gst::ElementFlags::SINK);
        element.set_element_flags(gst::ElementFlags::SOURCE);
        element.add_pad(&self.shared.pad).expect("a new element has no pad of this name");
    }

    fn properties() -> &'static [glib::ParamSpec] {
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
            let default = Settings::default();
            let seconds = |name: &str, nick, blurb, default| {
                glib::ParamSpecDouble::builder(name)
                    .nick(nick)
                    .blurb(blurb)
                    .minimum(0.0)
                    .maximum(1e9)
                    .default_value(default)
                    .mutable_ready()
                    .build()
            };
            vec![
                glib::ParamSpecString::builder("uri")
                    .nick("Address")
                    .blurb("Address of the source, such as rtsp://camera/1. Its credentials are not shown when the property is read")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecEnum::builder_with_default("restart", default.restart)
                    .nick("Restart policy")
                    .blurb("Which sources are opened again when they are lost. The first attempt follows after 1 to 2 seconds; the delay doubles up to 60 seconds")
                    .mutable_ready()
                    .build(),
                seconds(
                    "give-up-after",
                    "Time limit of an outage",
                    "Seconds without a frame after which a lost source ends the stream with an error; 0 = never",
                    default.give_up_after,
                ),
                seconds(
                    "no-frame-timeout",
                    "Time limit of a frame",
                    "Seconds without a frame after which a live source counts as lost; three times as long before the first frame; 0 = no limit",
                    default.no_frame_timeout,
                ),
                glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
                    .nick("Statistics")
                    .blurb("Number of restarts, and the time without the source")
                    .read_only()
                    .build(),
            ]
        });
        &PROPERTIES
    }

    fn set_property(&self, _id: usize, value: &glib::Value, spec: &glib::ParamSpec) {
        let mut settings = lock(&self.settings);
        match spec.name() {
            "uri" => settings.uri = value.get().expect("GObject has checked the type"),
            "restart" => settings.restart = value.get().expect("GObject has checked the type"),
            "give-up-after" => settings.give_up_after = value.get().expect("GObject has checked the type"),
            "no-frame-timeout" => settings.no_frame_timeout = value.get().expect("GObject has checked the type"),
            name => unreachable!("GObject knows no writable property {name}"),
        }
    }

    fn property(&self, _id: usize, spec: &glib::ParamSpec) -> glib::Value {
        let settings = lock(&self.settings);
        match spec.name() {
            "uri" => settings.uri.as_deref().map(|uri| redaction::redact(uri).into_owned()).to_value(),
            "restart" => settings.restart.to_value(),
            "give-up-after" => settings.give_up_after.to_value(),
            "no-frame-timeout" => settings.no_frame_timeout.to_value(),
            "stats" => {
                let (n_restarts, time_down) = *lock(&self.shared.counts);
                let time_down_ns = u64::try_from(time_down.as_nanos()).unwrap_or(u64::MAX);
                let stats = gst::Structure::builder("application/x-roiflow-stats");
                stats.field("restarts", n_restarts).field("time-down-ns", time_down_ns).build().to_value()
            }
            name => unreachable!("GObject knows no property {name}"),
        }
    }
}

impl GstObjectImpl for RoiSource {}

impl ElementImpl for RoiSource {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Source that is opened again when it is lost",
                "Source/Video",
                "Decodes a camera or another address, and opens it again when it is lost, without black or repeated frames",
                "roiflow developers",
            )
        });
        Some(&METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
            let caps = gst::Caps::new_empty_simple("video/x-raw");
            let src = gst::PadTemplate::new("src", gst::PadDirection::Src, gst::PadPresence::Always, &caps);
            let encoded = gst::PadTemplate::new("encoded", gst::PadDirection::Src, gst::PadPresence::Request, &encoded::caps());
            vec![src.expect("a valid template"), encoded.expect("a valid template")]
        });
        &TEMPLATES
    }

    fn request_new_pad(&self, template: &gst::PadTemplate, _name: Option<&str>, _caps: Option<&gst::Caps>) -> Option<gst::Pad> {
        let mut encoded = lock(&self.shared.encoded);
        if encoded.is_some() {
            gst::warning!(CAT, imp = self, "expected at most one pad `encoded`, got another request");
            return None;
        }
        let decoded = self.shared.pad.clone();
        let pad = gst::GhostPad::builder_from_template(template)
            .name("encoded")
            .query_function(move |pad, parent, query| match query.type_() {
                // The parser before this pad has no peer upstream.
                gst::QueryType::Latency => decoded.query(query),
                _ => gst::Pad::query_default(pad, parent, query),
            })
            .build();
        pad.set_active(true).ok()?;
        self.obj().add_pad(&pad).ok()?;
        *encoded = Some(pad.clone());
        Some(pad.upcast())
    }

    fn release_pad(&self, pad: &gst::Pad) {
        *lock(&self.shared.encoded) = None;
        // An inactive pad has no frames. Removing it cannot fail, because it belongs to this element.
        let _inactive = pad.set_active(false);
        let _removed = self.obj().remove_pad(pad);
    }

    fn change_state(&self, transition: gst::StateChange) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::NullToReady => self.check()?,
            gst::StateChange::PausedToReady => self.stop(),
            _ => {}
        }
        let changed = self.parent_change_state(transition)?;
        match transition {
            gst::StateChange::PausedToPlaying => self.play()?,
            gst::StateChange::PlayingToPaused => {
                self.shared.is_playing.store(false, Ordering::Release);
                if let Some(worker) = &*lock(&self.worker) {
                    let _sent = worker.sender.send(Signal::StateChanged);
                }
                return Ok(gst::StateChangeSuccess::NoPreroll);
            }
            gst::StateChange::ReadyToPaused => return Ok(gst::StateChangeSuccess::NoPreroll),
            _ => {}
        }
        Ok(changed)
    }

    fn send_event(&self, event: gst::Event) -> bool {
        match (event.view(), &*lock(&self.worker)) {
            (gst::EventView::Eos(_), Some(worker)) => worker.sender.send(Signal::End).is_ok(),
            _ => false,
        }
    }
}

impl BinImpl for RoiSource {}

impl RoiSource {
    fn check(&self) -> Result<(), gst::StateChangeError> {
        let uri = lock(&self.settings).uri.clone().unwrap_or_default();
        if uri.contains(':') {
            return Ok(());
        }
        let got = if uri.is_empty() { "none".to_owned() } else { format!("`{}`", redaction::redact(&uri)) };
        gst::element_imp_error!(
            self,
            gst::ResourceError::Settings,
            ("uri: expected an address such as rtsp://camera/1, got {got}. Set the property `uri`")
        );
        Err(gst::StateChangeError)
    }

    /// Starts the thread of the source, or continues after a pause.
    fn play(&self) -> Result<(), gst::StateChangeError> {
        let element = self.obj();
        self.shared.is_playing.store(true, Ordering::Release);
        if let Some(worker) = &*lock(&self.worker) {
            if let Some(decoder) = lock(&self.shared.decoder).clone() {
                decoder.set_base_time(element.base_time().unwrap_or_default());
                decoder.set_start_time(element.start_time());
            }
            let _sent = worker.sender.send(Signal::StateChanged);
            return Ok(());
        }
        let settings = lock(&self.settings).clone();
        let seconds = |seconds: f64| (seconds > 0.0).then(|| Duration::from_secs_f64(seconds));
        let restart = Restart { policy: settings.restart.into(), give_up_after: seconds(settings.give_up_after), ..Restart::default() };
        let (sender, signals) = unbounded();
        let job = Job {
            uri: settings.uri.unwrap_or_default(),
            restart,
            no_frame_timeout: seconds(settings.no_frame_timeout),
            shared: self.shared.clone(),
            sender: sender.clone(),
            signals,
        };
        let weak = element.downgrade();
        let (is_running, ended) = bounded(0);
        let work = move || {
            let _is_running: Sender<()> = is_running;
            worker::run(&job, &weak);
        };
        match std::thread::Builder::new().name("roisource".to_owned()).spawn(work) {
            Ok(_detached) => {
                *lock(&self.worker) = Some(Worker { sender, ended });
                Ok(())
            }
            Err(error) => {
                gst::element_imp_error!(self, gst::ResourceError::Failed, ("cannot start the thread of the source: {error}"));
                Err(gst::StateChangeError)
            }
        }
    }

    /// Stops the thread of the source, within a limited time.
    fn stop(&self) {
        let Some(Worker { sender, ended }) = lock(&self.worker).take() else { return };
        let _sent = sender.send(Signal::Stop);
        if ended.recv_timeout(MAX_STOP) == Err(RecvTimeoutError::Timeout) {
            gst::warning!(CAT, imp = self, "the source does not stop in time and is abandoned");
        }
    }
}
