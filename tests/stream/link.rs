//! Unlinked, late linked and relinked pads: the new peer gets sticky events and EOS.

use std::sync::mpsc::{Receiver, channel};

use gst::prelude::*;
use gstreamer as gst;

use crate::harness::{FRAME_TIME, TIMEOUT, caps, detect, eventually};
use crate::rig::{OTHER_SIZE, Rig, SIZE};

#[test]
fn flush_while_unlinked_still_returns_not_linked() {
    let rig = Rig::new(&detect("rectangle", "nireq=1"));
    rig.begin();
    let _nobody_took_it = rig.source.push_event(gst::event::FlushStart::new());
    let _nobody_took_it = rig.source.push_event(gst::event::FlushStop::new(true));
    rig.segment();
    assert_eq!(rig.refusal(), gst::FlowError::NotLinked);
}

#[test]
fn late_linked_pad_gets_caps_segment_and_frames() {
    let rig = Rig::new(&detect("rectangle", "nireq=1"));
    rig.begin();
    assert_eq!(rig.refusal(), gst::FlowError::NotLinked);
    rig.event(gst::event::Caps::new(&caps("RGB", OTHER_SIZE)));
    rig.event(gst::event::Caps::new(&caps("RGB", SIZE)));
    rig.link();
    rig.frame(7).unwrap();
    rig.expect(&["stream-start", "caps 64x48", "segment", "frame 7 of 64x48"]);
    assert!(!rig.has_error(), "upstream got the error");
}

#[test]
fn link_during_not_linked_return_continues_stream() {
    let rig = Rig::begun(&detect("rectangle", "nireq=1"));
    let mut is_first = true;
    rig.answer(move |pad| {
        if std::mem::take(&mut is_first) {
            // RECONFIGURE arrives before the flow return, as if another thread linked the pad.
            assert!(pad.push_event(gst::event::Reconfigure::new()));
            return Err(gst::FlowError::NotLinked);
        }
        Ok(gst::FlowSuccess::Ok)
    });
    rig.frames(0..5);
    (1..5).for_each(|n| rig.expect(&[&format!("frame {n} of 64x48")]));
    rig.event(gst::event::Eos::new());
    rig.expect(&["eos"]);
    assert!(!rig.has_error());
    rig.check_counts();
}

/// Returns another peer for the source pad, and a receiver of the items that arrive at this peer.
fn another_sink() -> (gst::Pad, Receiver<String>) {
    let (sender, seen) = channel();
    let of_events = sender.clone();
    let sink = gst::Pad::builder(gst::PadDirection::Sink)
        .chain_function(move |_, _, buffer| {
            let _nobody_looks = sender.send(format!("frame {}", buffer.pts().unwrap() / FRAME_TIME));
            Ok(gst::FlowSuccess::Ok)
        })
        .event_function(move |_, _, event| {
            let _nobody_looks = of_events.send(event.type_().name().to_string());
            true
        })
        .build();
    sink.set_active(true).unwrap();
    (sink, seen)
}

fn expect(seen: &Receiver<String>, expected: &[&str]) {
    let seen: Vec<String> = expected.iter().map(|_| seen.recv_timeout(TIMEOUT.into()).expect("an item leaves in time")).collect();
    assert_eq!(seen, expected);
}

#[test]
fn pad_linked_after_eos_receives_eos() {
    let rig = Rig::begun(&detect("rectangle", "nireq=1"));
    let src = rig.element.static_pad("src").unwrap();
    let end_unheard = |sink: &gst::Pad| {
        src.unlink(sink).unwrap();
        rig.event(gst::event::Eos::new());
        eventually("EOS is pushed", || src.sticky_event::<gst::event::Eos>(0).is_some());
    };
    rig.frame(0).unwrap();
    rig.expect(&["frame 0 of 64x48"]);
    end_unheard(&rig.sink);
    let _nobody_took_it = rig.source.push_event(gst::event::FlushStart::new());
    let _nobody_took_it = rig.source.push_event(gst::event::FlushStop::new(true));
    rig.segment();
    rig.link();
    rig.frame(1).unwrap();
    rig.expect(&["segment", "frame 1 of 64x48"]);

    rig.event(gst::event::Eos::new());
    rig.expect(&["eos"]);
    // This query returns when the pad has recorded that EOS was delivered. If the pad were relinked earlier, it would record that EOS was
    // delivered to the new peer.
    let _answered = rig.source.peer_query(gst::query::Drain::new().query_mut());
    src.unlink(&rig.sink).unwrap();
    let (another, seen) = another_sink();
    src.link(&another).unwrap();
    expect(&seen, &["stream-start", "caps", "segment", "eos"]);

    rig.event(gst::event::FlushStart::new());
    rig.event(gst::event::FlushStop::new(true));
    expect(&seen, &["flush-start", "flush-stop"]);
    rig.segment();
    end_unheard(&another);
    src.link(&another).unwrap();
    expect(&seen, &["segment", "eos"]);
    assert!(!rig.has_error());
    rig.check_counts();
}

#[test]
fn unlinking_during_push_does_not_end_stream() {
    for is_linked_at_once in [true, false] {
        let rig = Rig::begun(&detect("rectangle", "nireq=1"));
        let src = rig.element.static_pad("src").unwrap();
        let (another, seen) = another_sink();
        let (of_task, next) = (src.clone(), another.clone());
        // The sink is unlinked and stopped during a push, like a sink that waits for its clock.
        rig.answer(move |sink| {
            of_task.unlink(sink).unwrap();
            if is_linked_at_once {
                of_task.link(&next).unwrap();
            }
            Err(gst::FlowError::Flushing)
        });
        // This push may already return the error.
        let taken = rig.frame(0);
        assert!(taken.is_ok() || !is_linked_at_once, "{taken:?}");
        if !is_linked_at_once {
            assert_eq!(rig.refusal(), gst::FlowError::NotLinked);
            src.link(&another).unwrap();
        }
        rig.frame(1).unwrap();
        expect(&seen, &["stream-start", "caps", "segment", "frame 1"]);
        rig.event(gst::event::Eos::new());
        expect(&seen, &["eos"]);
        assert!(!rig.has_error());
        rig.check_counts();
    }
}

#[test]
fn relinking_reopens_stream_closed_by_stopped_peer() {
    let rig = Rig::begun(&detect("rectangle", "nireq=1"));
    let src = rig.element.static_pad("src").unwrap();
    // The previous peer was stopped and the new one is linked, but RECONFIGURE has not arrived yet.
    rig.answer(|_| Err(gst::FlowError::Flushing));
    assert_eq!(rig.refusal(), gst::FlowError::Flushing);
    rig.answer(|_| Ok(gst::FlowSuccess::Ok));
    assert!(src.send_event(gst::event::Reconfigure::new()));
    rig.frame(7).unwrap();
    rig.expect(&["frame 7 of 64x48"]);
    rig.event(gst::event::Eos::new());
    rig.expect(&["eos"]);
    assert!(!rig.has_error());
    rig.check_counts();
}
