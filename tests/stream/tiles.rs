//! `roidetect` finds small objects in tiles of the frame.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gst::prelude::*;
use gstreamer as gst;
use roiflow::frame::{FrameResults, PixelFormat, PixelRect, Size};

use crate::harness::{assert_near, caps, collect, detect, feed, on_buffers, picture, pipeline, run};

/// The input of the rectangle detector has 64x64 pixels, so one of its pixels covers 16x12 pixels of the frame. In one of 4x4 tiles without
/// overlap, it covers 4x3 pixels.
const SIZE: Size = Size::new(1024, 768);
const RED: [u8; 3] = [255, 0, 0];
const GRID: &str = "tiles=4x4 overlap=0";

/// Runs one frame with a rectangle through a detector with these properties. Returns the results, and the number of batch items.
fn detected(properties: &str, format: PixelFormat, rect: PixelRect) -> (FrameResults, u64) {
    let detector = detect("rectangle", &format!("name=detect {properties}"));
    let pipeline = pipeline(&format!("appsrc name=source ! videoconvert ! video/x-raw,format={format} ! {detector} ! fakesink name=sink"));
    let arrived = collect(&pipeline, "sink", "sink");
    // Read the counter before the element stops, because it then releases its model.
    let (element, n_items) = (pipeline.by_name("detect").unwrap().downgrade(), Arc::new(AtomicU64::new(0)));
    let counter = n_items.clone();
    on_buffers(&pipeline, "sink", "sink", move |_, _| {
        let stats: gst::Structure = element.upgrade().unwrap().property("stats");
        counter.store(stats.get("rows").unwrap(), Ordering::Relaxed);
    });
    feed(&pipeline, &caps("RGB", SIZE), [picture(SIZE, rect, RED)]);
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings), (None, vec![]), "{properties}");
    let results = arrived.lock().unwrap()[0].results().unwrap();
    (results, n_items.load(Ordering::Relaxed))
}

#[test]
fn object_in_a_tile_has_the_precision_of_the_tile() {
    // In the second tile of the third row, at multiples of 4 and 3 pixels, but not of 16 and 12.
    let rect = PixelRect { x: 256 + 68, y: 384 + 57, width: 76, height: 63 };
    for format in [PixelFormat::Rgb, PixelFormat::Nv12, PixelFormat::I420, PixelFormat::Bgrx] {
        let (whole, n_items) = detected("", format, rect);
        assert_eq!((whole.detections.len(), n_items), (1, 1));
        let (tiled, n_items) = detected(GRID, format, rect);
        assert_eq!((tiled.detections.len(), n_items), (1, 17), "{format}: one object, in the frame and 16 tiles");
        assert_near(tiled.detections[0].rect, rect.to_rect(), 0.01, &format!("{format}"));
        assert_ne!(whole.detections[0].rect, tiled.detections[0].rect);
        assert_eq!(tiled.detections[0].parent, None);
    }
}

#[test]
fn object_across_tiles_is_one_object() {
    // The four tiles in the middle of the frame see a part each. The whole frame sees the object, at multiples of 16 and 12 pixels.
    let rect = PixelRect { x: 512 - 160, y: 384 - 96, width: 288, height: 192 };
    let (tiled, _) = detected(GRID, PixelFormat::Rgb, rect);
    let [found] = &*tiled.detections else { panic!("{:?}", tiled.detections) };
    assert_near(found.rect, rect.to_rect(), 0.01, "the box of the whole frame");
}

#[test]
fn auto_selects_tiles_by_the_sizes() {
    let rect = PixelRect { x: 100, y: 100, width: 200, height: 200 };
    // Tiles of at most 128x128 pixels, twice the input, would be 8x6, and tiles of 160x160 would be 7x5. Both are more than 31 tiles. Tiles
    // of at most 200x200 pixels are 6x4.
    let (_, n_items) = detected("tiles=auto overlap=0", PixelFormat::Rgb, rect);
    assert_eq!(n_items, 1 + 6 * 4);
}

#[test]
fn search_area_limits_objects_and_tiles() {
    let rect = PixelRect { x: 256 + 68, y: 384 + 57, width: 76, height: 63 };
    let around = "search-area=\"0.26,0.51,0.49,0.51,0.49,0.74,0.26,0.74\"";
    let (found, n_items) = detected(&format!("{GRID} {around}"), PixelFormat::Rgb, rect);
    assert_eq!((found.detections.len(), n_items), (1, 2), "the frame and one tile");
    let elsewhere = "search-area=\"0,0,0.2,0,0,0.2\"";
    let (found, n_items) = detected(&format!("{GRID} {elsewhere}"), PixelFormat::Rgb, rect);
    assert_eq!((found.detections.len(), n_items), (0, 2));
    // Without tiles, the area selects objects only.
    let [inside, outside] = [around, elsewhere].map(|area| detected(area, PixelFormat::Rgb, rect).0.detections.len());
    assert_eq!([inside, outside], [1, 0]);
}

#[test]
fn invalid_properties_are_explained() {
    for (properties, reason) in [
        ("tiles=0x2", "reading the property tiles failed: expected auto, or columns x rows"),
        ("search-area=0,0,1,1", "reading the property search-area failed: expected x and y of at least three corners"),
        ("tiles=2x2 inference-region=roi-list", "expected tiles with inference-region=full-frame, got inference-region=roi-list"),
    ] {
        let detector = detect("rectangle", properties);
        let pipeline = pipeline(&format!("videotestsrc num-buffers=1 ! videoconvert ! {detector} ! fakesink"));
        let error = run(&pipeline).error.unwrap_or_default();
        assert!(error.contains(reason), "{properties}: {error}");
    }
}
