//! Warns once if a label in `object-class` cannot come from any detector upstream, and suggests the nearest label.
//!
//! Warns if no label of `object-class` is known upstream, or if an unknown label is similar to a known label. The known labels are the
//! labels of the detectors upstream. These detectors are found by following pads through bins and queues.
//!
//! There is no warning if the known labels may be incomplete. They may be incomplete if a detector has no labels, if a foreign element may
//! attach objects, or if the frame has objects with unknown labels.

use std::sync::atomic::{AtomicBool, Ordering};

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::detect::RoiDetect;
use super::regions::ObjectClasses;
use crate::frame::FrameResults;
use crate::stages::{self, OneLine, Printable};

/// Maximum number of known labels that the warning lists.
const N_NAMED: usize = 8;
/// Maximum number of pads to visit upstream.
const MAX_PADS: usize = 1000;

/// One-time check on the first frame of an element. See the module.
#[derive(Debug, Default)]
pub(super) struct ClassCheck(AtomicBool);

impl ClassCheck {
    /// Warns about labels that no object can have, on the first call only. `results` are the results of earlier elements.
    pub(super) fn check(&self, element: &glib::WeakRef<gst::Element>, classes: &ObjectClasses, results: &FrameResults) {
        if self.0.swap(true, Ordering::Relaxed) || classes.is_all() {
            return;
        }
        let Some(element) = element.upgrade() else { return };
        let Some(producers) = producers(&element) else { return };
        let given: Vec<&str> = producers.iter().flat_map(|(_, labels)| labels.iter().map(String::as_str)).collect();
        let is_foreign = |label: Option<&str>| label.is_none_or(|label| !given.contains(&label));
        if results.detections.iter().any(|detection| is_foreign(detection.label.as_deref())) {
            return;
        }
        let unknown = classes.list().unknown(given.iter().copied());
        // `object-class` may be written for several models, and then contains labels that no detector upstream has. So if at least one
        // label is known, warn only about an unknown label that is similar to a known label, because it is probably a typing error.
        let has_known = given.iter().any(|label| classes.list().has(label));
        let unknown = unknown.into_iter().filter_map(|class| {
            let meant = stages::nearest(class, given.iter().copied()).filter(|label| !classes.list().has(label));
            match meant {
                Some(label) => Some(format!("`{}` (did you mean `{}`?)", OneLine(class), OneLine(label))),
                None => (!has_known).then(|| format!("`{}`", OneLine(class))),
            }
        });
        let unknown: Vec<String> = unknown.collect();
        if unknown.is_empty() {
            return;
        }
        let producers = producers.iter().map(|(name, labels)| {
            let named = labels.iter().take(N_NAMED).map(|label| OneLine(label).to_string()).collect::<Vec<_>>().join(", ");
            let more = labels.len().saturating_sub(N_NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("`{}` produces {named}{more}", OneLine(name))
        });
        let (unknown, producers) = (unknown.join(", "), producers.collect::<Vec<_>>().join("; "));
        gst::element_warning!(
            element,
            gst::ResourceError::Settings,
            ("object-class: no model upstream has the label {unknown}: {producers}. No object can match it; set object-class to one of these labels. This warning appears only once")
        );
    }

    /// Whether the check has not run yet.
    pub(super) fn is_due(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }

    /// Makes the next frame repeat the check. Called when `object-class` or the elements upstream may have changed.
    pub(super) fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Posts a warning about the model of an element.
pub(super) fn warn(element: &glib::WeakRef<gst::Element>, warning: &str) {
    if let Some(element) = element.upgrade() {
        gst::element_warning!(element, gst::StreamError::Decode, ("{}", Printable(warning)));
    }
}

/// Returns the names and labels of the detectors upstream, nearest detector first. `None` if there is no detector, or if the
/// labels of any detector are unknown.
fn producers(element: &gst::Element) -> Option<Vec<(String, Vec<String>)>> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let mut seen: Vec<gst::Pad> = Vec::new();
    let mut next = element.sink_pads();
    while let Some(pad) = next.pop() {
        if seen.contains(&pad) || seen.len() >= MAX_PADS {
            continue;
        }
        let peer = pad.peer();
        seen.push(pad);
        let Some(mut peer) = peer else { continue };
        // A ghost pad stands for a pad of an element in the bin: continue with that pad.
        while let Some(target) = peer.downcast_ref::<gst::GhostPad>().and_then(|ghost| ghost.target()) {
            peer = target;
        }
        // The peer belongs to a sink pad of the bin that contains the element: continue with that sink pad, outside the bin.
        if let Some(outside) = peer.downcast_ref::<gst::ProxyPad>().and_then(|proxy| proxy.internal()) {
            next.push(outside.upcast());
            continue;
        }
        let upstream = peer.parent_element()?;
        if let Some(detector) = upstream.downcast_ref::<RoiDetect>() {
            let labels = detector.labels()?;
            if labels.is_empty() {
                return None;
            }
            let names = (0..labels.len() as u32).filter_map(|class_id| labels.get(class_id)).map(ToString::to_string);
            let entry = (upstream.name().to_string(), names.collect());
            if !found.contains(&entry) {
                found.push(entry);
            }
        } else if may_attach(&upstream) {
            return None;
        }
        next.extend(upstream.sink_pads());
    }
    (!found.is_empty()).then_some(found)
}

/// Whether this element may attach objects whose labels are unknown. Such elements are analyzers of GStreamer and DL Streamer,
/// and elements that run user code.
fn may_attach(element: &gst::Element) -> bool {
    let Some(factory) = element.factory() else { return true };
    let name = factory.name();
    if name.starts_with("roi") {
        // A `roidetect` of another copy of the library, or stored results: the labels are unknown.
        return ["roidetect", "roiattach"].contains(&name.as_str());
    }
    let kinds = factory.metadata("klass").unwrap_or_default().to_lowercase();
    ["gva", "py"].iter().any(|begin| name.starts_with(begin))
        || ["analy", "detect", "inference", "tracker"].iter().any(|word| kinds.contains(word))
}
