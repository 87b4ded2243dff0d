//! Sends the lines and zones of `roianalytics` downstream, so that `roioverlay` can draw them and `roipublish` can select objects in them.
//!
//! The event is sticky, and has a structure whose name begins with `roiflow-scene` and stands for the element. So an element that is linked
//! later gets the event of each `roianalytics` upstream. Counts that change later are in the events of each frame's results.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use gst::prelude::*;
use gstreamer as gst;
use roiflow_images::scene::{Counts, Place, Scene};

use crate::frame::{Direction, PixelRect, Point, Rect, Size};
use crate::stages::SceneCounts;
use crate::stages::scene::{Anchor, Layout, Units};

const NAME: &str = "roiflow-scene";
/// The anchors, by the number that stands for them in the event.
const ANCHORS: [Anchor; 5] = [Anchor::Bottom, Anchor::Center, Anchor::Top, Anchor::Left, Anchor::Right];

/// Creates the event of an element for a frame size, which converts pixels to fractions.
pub(super) fn event(element: &gst::Object, layout: &Layout, counts: &SceneCounts, size: Size) -> gst::Event {
    let fractions = |point: &Point| match layout.units {
        Units::Fractions => [point.x, point.y],
        Units::Pixels => [point.x / size.width.max(1) as f32, point.y / size.height.max(1) as f32],
    };
    let place = |name: &str, points: &[Point], counts: &[u64]| {
        gst::Structure::builder("place")
            .field("name", name)
            .field("points", gst::Array::new(points.iter().flat_map(fractions)))
            .field("counts", gst::Array::new(counts.iter().copied()))
            .build()
            .to_send_value()
    };
    let lines = layout.lines.iter().map(|line| {
        let n = |direction: Direction| -> u64 {
            let of_line = counts.crossings.iter().filter(|((name, of, _), _)| *name == line.name && *of == direction);
            of_line.map(|(_, n)| *n).sum()
        };
        place(&line.name, &[line.from, line.to], &[n(Direction::In), n(Direction::Out)])
    });
    let zones = layout.zones.iter().map(|zone| place(&zone.name, &zone.corners, &[counts.occupancy.get(&zone.name).copied().unwrap_or(0)]));
    let places = gst::Array::from_values(lines.chain(zones));
    let anchor = ANCHORS.iter().position(|anchor| *anchor == layout.anchor).unwrap_or(0);
    // GStreamer keeps one sticky event for each name. Names of elements may have characters that those of structures cannot have.
    let name = format!("{NAME}-{:x}", BuildHasherDefault::<DefaultHasher>::default().hash_one(element.name().as_str()));
    let structure = gst::Structure::builder(name).field("places", places).field("anchor", anchor as i32).build();
    gst::event::CustomDownstreamSticky::new(structure)
}

/// Reads the scene in an event. Returns `None` if the event has none. Places with unexpected fields are ignored.
pub(super) fn read(event: &gst::EventRef) -> Option<Scene> {
    let structure = event.structure().filter(|structure| structure.name().starts_with(NAME))?;
    let places = structure.get::<gst::Array>("places").ok()?;
    let place = |structure: gst::Structure| {
        let points: Vec<f32> = structure.get::<gst::Array>("points").ok()?.iter().filter_map(|value| value.get().ok()).collect();
        let counts: Vec<u64> = structure.get::<gst::Array>("counts").ok()?.iter().filter_map(|value| value.get().ok()).collect();
        let counts = match counts[..] {
            [n_in, n_out] => Counts::Line { n_in, n_out },
            [occupancy] => Counts::Zone { occupancy },
            _ => return None,
        };
        let points = points.as_chunks::<2>().0.iter().map(|[x, y]| Point { x: *x, y: *y }).collect();
        Some(Place { name: structure.get::<String>("name").ok()?.into(), points, counts })
    };
    Some(Scene { element: structure.name().as_str().into(), places: places.iter().filter_map(|value| place(value.get().ok()?)).collect() })
}

/// The lines and zones of a stream, and the point that represents an object.
#[derive(Debug, Clone)]
pub(super) struct Zones {
    scene: Scene,
    anchor: Anchor,
}

impl Zones {
    /// Returns the point that represents an object, in fractions of the frame.
    pub(super) fn anchor_of(&self, rect: &Rect, size: Size) -> Point {
        let whole = Rect { x: 0.0, y: 0.0, width: 1.0, height: 1.0 };
        self.anchor.of(rect).moved_with(PixelRect::whole(size).to_rect(), whole)
    }

    /// Returns the names of all lines and zones.
    pub(super) fn places(&self) -> impl Iterator<Item = &str> {
        self.scene.places.iter().map(|place| &*place.name)
    }

    /// Returns the names and corners of the zones, in fractions of the frame.
    pub(super) fn zones(&self) -> impl Iterator<Item = (&str, &[Point])> {
        let zones = self.scene.places.iter().filter(|place| matches!(place.counts, Counts::Zone { .. }));
        zones.map(|zone| (&*zone.name, &*zone.points))
    }
}

/// Reads the lines and zones in an event, and the name that stands for the element. Returns `None` if the event has none.
pub(super) fn zones(event: &gst::EventRef) -> Option<(String, Zones)> {
    let scene = read(event)?;
    let anchor = event.structure()?.get::<i32>("anchor").ok().and_then(|anchor| ANCHORS.get(usize::try_from(anchor).ok()?).copied());
    Some((scene.element.to_string(), Zones { scene, anchor: anchor.unwrap_or_default() }))
}
