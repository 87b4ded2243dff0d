//! Counters of an element: as a property, as bus messages, in the JSON and in the command's summary.

use gst::prelude::*;
use gstreamer as gst;

use crate::harness::{TIMEOUT, detect};
use crate::rig::Rig;

/// Returns the next statistics message on the bus.
fn told(rig: &Rig) -> gst::Structure {
    let message = rig.bus.timed_pop_filtered(TIMEOUT, &[gst::MessageType::Element]).expect("statistics are posted");
    message.structure().unwrap().to_owned()
}

#[test]
fn stats_are_posted_at_interval_even_without_frames() {
    let rig = Rig::begun(&detect("rectangle", "nireq=2"));
    rig.frames(0..10);
    (0..10).for_each(|n| assert_eq!(rig.next(), format!("frame {n} of 64x48")));
    assert!(rig.bus.pop_filtered(&[gst::MessageType::Element]).is_none(), "no interval is set");
    rig.element.set_property("stats-interval", 20_u32);
    for _ in 0..3 {
        let stats = told(&rig);
        assert_eq!(stats.name(), "application/x-roiflow-stats");
        assert_eq!((stats.get::<u64>("frames-in"), stats.get::<u64>("inferred")), (Ok(10), Ok(10)), "{stats}");
    }
    rig.element.set_property("stats-interval", 0_u32);
    rig.frame(10).unwrap();
    assert_eq!(rig.next(), "frame 10 of 64x48");
    while rig.bus.pop().is_some() {}
    rig.frame(11).unwrap();
    assert_eq!(rig.next(), "frame 11 of 64x48");
    assert!(rig.bus.pop_filtered(&[gst::MessageType::Element]).is_none(), "the interval was reset");
}

#[test]
fn stats_have_latency_and_frame_rate() {
    let rig = Rig::begun(&detect("rectangle", "nireq=2"));
    let stats = || rig.element.property::<gst::Structure>("stats");
    assert_eq!((rig.count("latency-p99-ns"), stats().get::<f64>("fps")), (0, Ok(0.0)));
    let begin = std::time::Instant::now();
    for n in 0..50 {
        rig.frame(n).unwrap();
        assert_eq!(rig.next(), format!("frame {n} of 64x48"));
    }
    let most = begin.elapsed();
    let [p50, p95, p99, total] = ["p50", "p95", "p99", "total"].map(|which| rig.count(&format!("latency-{which}-ns")));
    assert!(0 < p50 && p50 <= p95 && p95 <= p99 && p99 < most.as_nanos() as u64, "{}", stats());
    assert!(total >= p50 * 25 && total <= most.as_nanos() as u64);
    let fps = stats().get::<f64>("fps").unwrap();
    let least = 49.0 / begin.elapsed().as_secs_f64();
    assert!(fps >= least * 0.9, "expected at least {least} fps, got {fps}");
    // Read the frame rate when the element forwards EOS, and again much later than a next frame would have arrived. Both values must be
    // equal.
    let (sender, receiver) = std::sync::mpsc::channel();
    let element = rig.element.clone();
    let fps_of = |element: &gst::Element| element.property::<gst::Structure>("stats").get::<f64>("fps").unwrap();
    rig.element.static_pad("src").unwrap().add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
        if info.event().is_some_and(|event| event.type_() == gst::EventType::Eos) {
            std::thread::sleep(std::time::Duration::from_millis(20));
            sender.send(fps_of(&element)).unwrap();
        }
        gst::PadProbeReturn::Ok
    });
    rig.event(gst::event::Eos::new());
    rig.until_eos();
    let at_the_end = receiver.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(fps_of(&rig.element), at_the_end, "EOS is not a stall");
}

#[test]
fn frames_lost_by_downstream_error_are_counted() {
    let rig = Rig::begun(&detect("rectangle", "nireq=2"));
    rig.answer(|_| Err(gst::FlowError::Error));
    assert_eq!(rig.refusal(), gst::FlowError::Error);
    rig.check_counts();
    assert!(rig.count("frames-out") >= 1, "the refused frame counts as left");
}
