//! The pads of an inference element: templates, and functions that call the driver.
//!
//! This module contains no logic: the driver makes all decisions.

use std::sync::Arc;

use gst::prelude::*;
use gst::subclass::prelude::*;
use gstreamer as gst;

use super::caps;
use super::infer::Driver;

/// Gives the pad functions access to the [`Driver`] of an element.
pub(super) trait InferenceElement {
    fn driver(&self) -> &Arc<Driver>;
}

/// Creates the sink pad and the source pad, whose functions call the driver.
pub(super) fn pads<T>() -> (gst::Pad, gst::Pad)
where
    T: ElementImpl + InferenceElement,
    T::Type: IsA<gst::Element>,
{
    let [sink_template, src_template] = T::pad_templates() else { unreachable!("pad_templates() gives these two") };
    let sinkpad = gst::Pad::builder_from_template(sink_template)
        .chain_function(|_pad, parent, buffer| {
            T::catch_panic_pad_function(
                parent,
                || Err(gst::FlowError::Error),
                |imp| imp.driver().sink_chain(imp.obj().upcast_ref(), buffer),
            )
        })
        .event_function(|pad, parent, event| {
            T::catch_panic_pad_function(
                parent,
                || false,
                |imp| {
                    let element: gst::Element = imp.obj().clone().upcast();
                    imp.driver().sink_event(pad, &element, event, &src_pad(&element))
                },
            )
        })
        .query_function(|pad, parent, query| {
            T::catch_panic_pad_function(
                parent,
                || false,
                |imp| {
                    let element: gst::Element = imp.obj().clone().upcast();
                    imp.driver().sink_query(pad, &element, query, &src_pad(&element))
                },
            )
        })
        .activatemode_function(|pad, parent, mode, active| {
            T::catch_panic_pad_function(
                parent,
                || Err(gst::loggable_error!(gst::CAT_RUST, "panic in pad activation")),
                |imp| {
                    let element: gst::Element = imp.obj().clone().upcast();
                    match mode {
                        gst::PadMode::Push => {
                            imp.driver().sink_activate(pad, &element, active, &src_pad(&element));
                            Ok(())
                        }
                        _ => Err(gst::loggable_error!(gst::CAT_RUST, "expected push mode, got {mode:?}")),
                    }
                },
            )
        })
        .flags(gst::PadFlags::PROXY_CAPS)
        .build();
    let srcpad = gst::Pad::builder_from_template(src_template)
        .query_function(|pad, parent, query| {
            T::catch_panic_pad_function(
                parent,
                || false,
                |imp| {
                    let element: gst::Element = imp.obj().clone().upcast();
                    let sinkpad = element.static_pad("sink").expect("added in constructed()");
                    imp.driver().src_query(pad, &element, query, &sinkpad)
                },
            )
        })
        .event_function(|pad, parent, event| {
            T::catch_panic_pad_function(parent, || false, |imp| imp.driver().src_event(pad, imp.obj().upcast_ref(), event))
        })
        .activatemode_function(|pad, parent, mode, active| {
            T::catch_panic_pad_function(
                parent,
                || Err(gst::loggable_error!(gst::CAT_RUST, "panic in pad activation")),
                |imp| match mode {
                    gst::PadMode::Push => imp.driver().src_activate(pad, imp.obj().upcast_ref(), active),
                    _ => Err(gst::loggable_error!(gst::CAT_RUST, "expected push mode, got {mode:?}")),
                },
            )
        })
        .flags(gst::PadFlags::PROXY_CAPS)
        .build();
    (sinkpad, srcpad)
}

fn src_pad(element: &gst::Element) -> gst::Pad {
    element.static_pad("src").expect("added in constructed()")
}

/// Returns the pad templates of an inference element.
pub(super) fn pad_templates() -> Vec<gst::PadTemplate> {
    let caps = caps::raw_video();
    [("sink", gst::PadDirection::Sink), ("src", gst::PadDirection::Src)]
        .into_iter()
        .map(|(name, direction)| {
            gst::PadTemplate::new(name, direction, gst::PadPresence::Always, &caps).expect("a static template is valid")
        })
        .collect()
}
