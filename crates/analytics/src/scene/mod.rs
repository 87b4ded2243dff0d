//! Counts tracked objects at lines and in zones, and measures their speed.
//!
//! Each object is represented by one anchor point. All decisions use the track ID, the anchor point and the timestamp of the frame, so the
//! counts depend on the input only.
//!
//! # Rules
//!
//! | question | rule |
//! |---|---|
//! | when is a line crossed? | the path of the anchor leads through the segment, and the anchor is farther from the line than the hysteresis |
//! | fast objects | the path between two frames counts, so an object may jump over a line or a zone |
//! | an object walks around the end of a line | it changes its side, but this is not a crossing |
//! | a box that jitters | within the hysteresis, the object stays on its side |
//! | `min_time` | minimum time on the old side before the crossing, and on the new side after it |
//! | the same object again | counts once per line and direction, unless [`Line::repeats`] |
//! | an object is not detected for a while | it stays in its zones for [`Layout::absence`]; then it left when last detected |
//! | an object is first seen inside a zone | it has entered |
//! | an object without track ID | is ignored until it has an ID |
//! | a new track ID takes over | see below |
//! | flush, seek, new stream, another layout | objects leave their zones, as lost objects, with the next frame; counts are kept |
//!
//! # New track ID of a known object
//!
//! A tracker may lose an object and give it a new ID. So that such an object is not counted twice and its time in a zone continues, a new
//! ID takes over a known object if all of these conditions hold:
//!
//! - The object was not detected for at least one frame, and at most for [`Layout::absence`].
//! - The known object and the new detection have the same label.
//! - The distance of the new anchor to the last anchor, or to the anchor predicted from the last motion, is at most half the height of the
//!   smaller box.
//!
//! If several known objects meet the conditions, the nearest one is continued.

mod layout;
mod shapes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

pub use layout::{Anchor, Layout, Line, Units, Zone};
pub use shapes::Ground;

use roiflow_results::{Direction, SceneEvent, SceneEventKind, polygon};

use crate::frame::{Detection, ObjectId, Point, Size};

/// Maximum number of stored objects. The object that was seen longest ago is removed first.
const MAX_OBJECTS: usize = 4096;
/// Objects that were not seen for this long are removed. Trackers do not use their track IDs again.
const FORGET_AFTER: Duration = Duration::from_secs(120);
/// Time over which the speed is measured.
const SPEED_TIME: Duration = Duration::from_millis(500);
/// Maximum distance between a known object and a new track ID that continues it, as a fraction of the height of the smaller box.
const TAKEOVER_DISTANCE: f32 = 0.5;

/// Counts objects at lines and in zones; see the module.
#[derive(Debug, Default)]
pub struct SceneCounter {
    layout: Layout,
    size: Size,
    /// The layout in pixels.
    lines: Vec<(Point, Point)>,
    zones: Vec<Vec<Point>>,
    ground: Option<Ground>,
    /// Objects by their newest track ID.
    objects: HashMap<ObjectId, Object>,
    counts: SceneCounts,
    /// Exits that the next frame reports.
    leaving: Vec<SceneEvent>,
    heat: Vec<u64>,
}

/// Counts since the counter was created or restored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SceneCounts {
    /// Crossings by the names of line, direction and label.
    pub crossings: BTreeMap<(Arc<str>, Direction, Arc<str>), u64>,
    /// Entries by the names of zone and label.
    pub entries: BTreeMap<(Arc<str>, Arc<str>), u64>,
    /// Exits by the names of zone and label.
    pub exits: BTreeMap<(Arc<str>, Arc<str>), u64>,
    /// Objects that are in each zone.
    pub occupancy: BTreeMap<Arc<str>, u64>,
    /// The sum of the dwell times of all exits, by zone.
    pub dwell: BTreeMap<Arc<str>, Duration>,
    /// New track IDs that continued a known object.
    pub n_takeovers: u64,
}

/// Motion of an object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Speed in meters per second, or in pixels per second without [`Layout::ground`].
    pub speed: f32,
    /// Direction of the motion in degrees, 0 to 360: 0 along the x axis, 90 along the y axis of the ground or frame.
    pub heading: f32,
}

#[derive(Debug)]
struct Object {
    anchor: Point,
    /// Anchor velocity in pixels per second.
    velocity: (f32, f32),
    height: f32,
    label: Option<Arc<str>>,
    last_seen: Duration,
    at_lines: Vec<AtLine>,
    at_zones: Vec<AtZone>,
    /// An earlier anchor and its time. The speed is measured from there.
    mark: (Point, Duration),
    speed: Option<Speed>,
}

/// Where an object is, relative to a line.
#[derive(Debug, Clone, Copy, Default)]
struct AtLine {
    /// Whether the object is on the right side of the line, and since when.
    is_right: Option<(bool, Duration)>,
    /// Set while a change of the side is not confirmed: its time, and whether the path led through the segment.
    pending: Option<(Duration, bool)>,
    /// Whether the path led through the segment when the anchor last passed the infinite line. Ignores the hysteresis.
    led_through: bool,
    /// Whether the object has been counted: for the direction in and the direction out.
    is_counted: [bool; 2],
}

/// Where an object is, relative to a zone.
#[derive(Debug, Clone, Copy, Default)]
struct AtZone {
    /// Since when the object is inside; `None`: outside.
    inside_since: Option<Duration>,
    /// Set while an entry or exit is not confirmed: the time when the object passed the border.
    pending: Option<Duration>,
    has_loitered: bool,
}

impl SceneCounter {
    /// Creates a counter.
    ///
    /// # Errors
    /// Returns an error if the layout is not valid, see [`Layout::check`].
    pub fn new(layout: Layout) -> Result<Self, String> {
        layout.check()?;
        let heat = vec![0; layout.heat_map.0 * layout.heat_map.1];
        let mut counter = Self { layout, heat, ..Self::default() };
        counter.counts.occupancy = counter.layout.zones.iter().map(|zone| (zone.name.clone(), 0)).collect();
        Ok(counter)
    }

    /// The objects and directions that are counted.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Counts so far.
    pub fn counts(&self) -> &SceneCounts {
        &self.counts
    }

    /// Continues the counts of an earlier counter. All zones start empty.
    pub fn restore(&mut self, counts: SceneCounts) {
        self.objects.clear();
        self.leaving.clear();
        self.counts = counts;
        self.flush();
    }

    /// Continues with another layout. Objects keep their places at lines and in zones that stay the same. At other lines and zones, they
    /// are counted from now on: an object inside a new zone enters it. Counts go on by the name of the line or zone, and those of removed
    /// names are forgotten. A heat map of another size begins again.
    ///
    /// # Errors
    /// Returns an error if the layout is not valid, see [`Layout::check`]; then the counter continues as before.
    pub fn set_layout(&mut self, layout: Layout) -> Result<(), String> {
        layout.check()?;
        let is_comparable = layout.units == self.layout.units && layout.anchor == self.layout.anchor;
        let kept_lines: Vec<Option<usize>> =
            layout.lines.iter().map(|line| self.layout.lines.iter().position(|known| is_comparable && known == line)).collect();
        let kept_zones: Vec<Option<usize>> =
            layout.zones.iter().map(|zone| self.layout.zones.iter().position(|known| is_comparable && known == zone)).collect();
        let removed: Vec<bool> = (0..self.layout.zones.len()).map(|idx| !kept_zones.contains(&Some(idx))).collect();
        self.leave(|_, _, zone_idx| removed[zone_idx]);
        for object in self.objects.values_mut() {
            object.at_lines = kept_lines.iter().map(|kept| kept.map_or_else(AtLine::default, |idx| object.at_lines[idx])).collect();
            object.at_zones = kept_zones.iter().map(|kept| kept.map_or_else(AtZone::default, |idx| object.at_zones[idx])).collect();
        }
        let counts = &mut self.counts;
        let occupancy = layout.zones.iter().zip(&kept_zones).map(|(zone, kept)| {
            let n_inside = counts.occupancy.get(&zone.name).filter(|_| kept.is_some());
            (zone.name.clone(), n_inside.copied().unwrap_or(0))
        });
        counts.occupancy = occupancy.collect();
        counts.crossings.retain(|(name, _, _), _| layout.lines.iter().any(|line| line.name == *name));
        counts.entries.retain(|(name, _), _| layout.zones.iter().any(|zone| zone.name == *name));
        counts.exits.retain(|(name, _), _| layout.zones.iter().any(|zone| zone.name == *name));
        counts.dwell.retain(|name, _| layout.zones.iter().any(|zone| zone.name == *name));
        if layout.heat_map != self.layout.heat_map {
            self.heat = vec![0; layout.heat_map.0 * layout.heat_map.1];
        }
        self.layout = layout;
        self.place();
        Ok(())
    }

    /// Number of detections in each cell of the heat map, row by row.
    pub fn heat_map(&self) -> &[u64] {
        &self.heat
    }

    /// Removes all objects, and keeps the counts. Objects leave their zones: the next frame has the events. Call this after a flush or a
    /// seek, and for a new stream.
    pub fn flush(&mut self) {
        self.leave(|_, _, _| true);
        self.objects.clear();
        self.counts.occupancy = self.layout.zones.iter().map(|zone| (zone.name.clone(), 0)).collect();
    }

    /// The speed of an object, if it was seen for long enough.
    pub fn speed(&self, track: ObjectId) -> Option<Speed> {
        self.objects.get(&track)?.speed
    }

    /// Processes the objects of the next frame and appends the events. `time` must not decrease between calls, except after
    /// [`flush`](Self::flush).
    pub fn update(&mut self, detections: &[Detection], size: Size, time: Duration, events: &mut Vec<SceneEvent>) {
        self.set_size(size);
        events.append(&mut self.leaving);
        for detection in detections {
            if let Some(track) = detection.track.filter(|_| detection.rect.is_proper()) {
                self.see(track, detection, detections, time, events);
            }
        }
        self.leave_absent(time, events);
    }

    fn set_size(&mut self, size: Size) {
        if self.size == size {
            return;
        }
        if self.size != Size::default() {
            self.flush();
        }
        self.size = size;
        self.place();
    }

    /// Converts the layout to pixels.
    fn place(&mut self) {
        let (layout, size) = (&self.layout, self.size);
        let pixels = |point: &Point| layout.pixels(*point, size);
        self.lines = layout.lines.iter().map(|line| (pixels(&line.from), pixels(&line.to))).collect();
        self.zones = layout.zones.iter().map(|zone| zone.corners.iter().map(pixels).collect()).collect();
        self.ground = layout.ground.and_then(|(image, meters)| Ground::new(image.map(|point| pixels(&point)), meters));
    }

    /// Processes one object of a frame.
    fn see(&mut self, track: ObjectId, detection: &Detection, all: &[Detection], time: Duration, events: &mut Vec<SceneEvent>) {
        let anchor = self.layout.anchor.of(&detection.rect);
        self.heat_up(anchor);
        let known = self.objects.remove(&track).or_else(|| {
            let earlier = self.continued(detection, anchor, all, time)?;
            self.counts.n_takeovers += 1;
            self.objects.remove(&earlier)
        });
        let is_new = known.is_none();
        let mut object = known.unwrap_or_else(|| Object {
            anchor,
            velocity: (0.0, 0.0),
            height: detection.rect.height,
            label: detection.label.clone(),
            last_seen: time,
            at_lines: vec![AtLine::default(); self.lines.len()],
            at_zones: vec![AtZone::default(); self.zones.len()],
            mark: (anchor, time),
            speed: None,
        });
        let was = object.anchor;
        object.height = detection.rect.height;
        object.label.clone_from(&detection.label);
        let margin = self.layout.hysteresis * object.height;
        let counts = &mut self.counts;
        for ((line, at), points) in self.layout.lines.iter().zip(&mut object.at_lines).zip(&self.lines) {
            if has_class(&line.classes, detection)
                && let Some(direction) = at.follow(*points, line, (was, anchor), margin, time)
            {
                let key = (line.name.clone(), direction, label_of(&object.label));
                *counts.crossings.entry(key).or_default() += 1;
                let of_line = counts.crossings.iter().filter(|((name, of, _), _)| *name == line.name && *of == direction);
                let kind = SceneEventKind::Crossed { direction, count: of_line.map(|(_, count)| count).sum() };
                events.push(SceneEvent { kind, place: line.name.clone(), track, label: object.label.clone() });
            }
        }
        for ((zone, at), corners) in self.layout.zones.iter().zip(&mut object.at_zones).zip(&self.zones) {
            if has_class(&zone.classes, detection) {
                let path = (!is_new).then_some(was);
                at.follow(corners, zone, (path, anchor), margin, time, |kind| {
                    counts.record(kind, zone, track, &object.label, events);
                });
            }
        }
        object.move_to(anchor, time, self.ground.as_ref());
        self.objects.insert(track, object);
    }

    /// Returns the old track ID of the object that a new track ID continues; see the module.
    fn continued(&self, detection: &Detection, anchor: Point, all: &[Detection], time: Duration) -> Option<ObjectId> {
        let distance = |object: &Object| {
            let seconds = time.saturating_sub(object.last_seen).as_secs_f32();
            let (x, y) = (object.anchor.x + object.velocity.0 * seconds, object.anchor.y + object.velocity.1 * seconds);
            let moved = (anchor.x - x).hypot(anchor.y - y);
            let stayed = (anchor.x - object.anchor.x).hypot(anchor.y - object.anchor.y);
            moved.min(stayed) / object.height.min(detection.rect.height)
        };
        let is_absent = |(track, object): &(&ObjectId, &Object)| {
            object.last_seen < time
                && time - object.last_seen <= self.layout.absence
                && object.label == detection.label
                && !all.iter().any(|other| other.track == Some(**track))
        };
        let near = self.objects.iter().filter(is_absent).map(|(track, object)| (distance(object), *track));
        let nearest = near.filter(|(distance, _)| *distance <= TAKEOVER_DISTANCE).min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        nearest.map(|(_, track)| track)
    }

    /// Takes objects that are absent for too long out of their zones, and later removes them.
    fn leave_absent(&mut self, time: Duration, events: &mut Vec<SceneEvent>) {
        let absence = |object: &Object| time.saturating_sub(object.last_seen);
        let max_absence = self.layout.absence;
        self.leave(|_, object, _| absence(object) > max_absence);
        let is_inside = |object: &Object| object.at_zones.iter().any(|at| at.inside_since.is_some());
        self.objects.retain(|_, object| absence(object) <= FORGET_AFTER.max(max_absence));
        while self.objects.len() > MAX_OBJECTS {
            let oldest = self.objects.iter().filter(|(_, object)| !is_inside(object) || absence(object) > Duration::ZERO);
            let oldest = oldest.min_by_key(|(track, object)| (object.last_seen, **track)).map(|(track, _)| *track);
            let Some(oldest) = oldest else { break };
            self.leave(|track, _, _| track == oldest);
            self.objects.remove(&oldest);
        }
        events.append(&mut self.leaving);
    }

    /// Takes objects out of the zones for which `leaves` is true, as lost objects. The events are in `leaving`.
    fn leave(&mut self, leaves: impl Fn(ObjectId, &Object, usize) -> bool) {
        let Self { objects, counts, layout, leaving, .. } = self;
        let is_inside = |object: &Object| object.at_zones.iter().any(|at| at.inside_since.is_some() || at.pending.is_some());
        let mut gone: Vec<_> = objects.iter_mut().filter(|(_, object)| is_inside(object)).collect();
        // Sort, because the order of a hash map differs between runs.
        gone.sort_by_key(|(track, _)| **track);
        for (track, object) in gone {
            for (zone_idx, zone) in layout.zones.iter().enumerate() {
                if !leaves(*track, object, zone_idx) {
                    continue;
                }
                let at = &mut object.at_zones[zone_idx];
                at.pending = None;
                if let Some(since) = at.inside_since.take() {
                    let kind = SceneEventKind::Exited { occupancy: 0, dwell: object.last_seen.saturating_sub(since), is_lost: true };
                    counts.record(kind, zone, *track, &object.label, leaving);
                }
            }
        }
    }

    fn heat_up(&mut self, anchor: Point) {
        let (columns, rows) = self.layout.heat_map;
        let cell = |value: f32, extent: u32, n: usize| {
            let share = value / extent.max(1) as f32;
            (0.0..1.0).contains(&share).then_some((share * n as f32) as usize)
        };
        if let (Some(x), Some(y)) = (cell(anchor.x, self.size.width, columns), cell(anchor.y, self.size.height, rows))
            && let Some(count) = self.heat.get_mut(y * columns + x)
        {
            *count += 1;
        }
    }
}

impl SceneCounts {
    /// Counts an entry, exit or loitering, and appends the event with the new occupancy.
    fn record(&mut self, kind: SceneEventKind, zone: &Zone, track: ObjectId, label: &Option<Arc<str>>, events: &mut Vec<SceneEvent>) {
        let occupancy = self.occupancy.entry(zone.name.clone()).or_default();
        let key = (zone.name.clone(), label_of(label));
        let kind = match kind {
            SceneEventKind::Entered { .. } => {
                *occupancy += 1;
                *self.entries.entry(key).or_default() += 1;
                SceneEventKind::Entered { occupancy: *occupancy }
            }
            SceneEventKind::Exited { dwell, is_lost, .. } => {
                *occupancy = occupancy.saturating_sub(1);
                *self.exits.entry(key).or_default() += 1;
                *self.dwell.entry(zone.name.clone()).or_default() += dwell;
                SceneEventKind::Exited { occupancy: *occupancy, dwell, is_lost }
            }
            kind => kind,
        };
        events.push(SceneEvent { kind, place: zone.name.clone(), track, label: label.clone() });
    }
}

impl AtLine {
    /// Updates the side of the object. Returns the direction if the object has crossed the line.
    fn follow(&mut self, (a, b): (Point, Point), line: &Line, (was, is): (Point, Point), margin: f32, time: Duration) -> Option<Direction> {
        use shapes::{meeting_point, signed_distance};
        let (distance, earlier) = (signed_distance(a, b, is), signed_distance(a, b, was));
        if (distance > 0.0) != (earlier > 0.0) {
            self.led_through = meeting_point(a, b, was, is).is_some_and(|share| (0.0..=1.0).contains(&share));
        }
        let Some((is_right, since)) = self.is_right else {
            if distance.abs() > margin {
                self.is_right = Some((distance > 0.0, time));
            }
            return None;
        };
        if distance.abs() <= margin && self.pending.is_none() {
            return None;
        }
        if (distance > 0.0) == is_right {
            if distance.abs() > margin {
                self.pending = None;
            }
            return None;
        }
        let (pending_since, led_through) = *self.pending.get_or_insert((time, self.led_through));
        if time.saturating_sub(pending_since) < line.min_time {
            return None;
        }
        self.pending = None;
        self.is_right = Some((!is_right, pending_since));
        let direction = if is_right { Direction::In } else { Direction::Out };
        let was_long_enough = pending_since.saturating_sub(since) >= line.min_time;
        let is_counted = &mut self.is_counted[usize::from(is_right)];
        let counts = led_through && was_long_enough && (line.repeats || !*is_counted);
        *is_counted |= counts;
        counts.then_some(direction)
    }
}

impl AtZone {
    /// Updates whether the object is inside, and reports its entry, exit or loitering. `was` is `None` for an object that is seen for the
    /// first time.
    fn follow(
        &mut self,
        corners: &[Point],
        zone: &Zone,
        (was, is): (Option<Point>, Point),
        margin: f32,
        time: Duration,
        mut report: impl FnMut(SceneEventKind),
    ) {
        let is_inside = polygon::contains(corners, is);
        let is_clear = was.is_none() || shapes::border_distance(corners, is) > margin;
        if is_inside == self.inside_since.is_some() {
            if is_clear {
                self.pending = None;
            }
            let is_passage = || was.is_some_and(|was| !polygon::contains(corners, was) && shapes::leads_through(corners, was, is));
            if !is_inside && zone.min_time.is_zero() && is_passage() {
                report(SceneEventKind::Entered { occupancy: 0 });
                report(SceneEventKind::Exited { occupancy: 0, dwell: Duration::ZERO, is_lost: false });
            }
        } else if is_clear || self.pending.is_some() {
            let since = *self.pending.get_or_insert(time);
            if time.saturating_sub(since) >= zone.min_time {
                self.pending = None;
                if let Some(entered) = self.inside_since.take() {
                    let dwell = since.saturating_sub(entered);
                    report(SceneEventKind::Exited { occupancy: 0, dwell, is_lost: false });
                } else {
                    (self.inside_since, self.has_loitered) = (Some(since), false);
                    report(SceneEventKind::Entered { occupancy: 0 });
                }
            }
        }
        if let (Some(since), Some(loiter_time)) = (self.inside_since, zone.loiter_time)
            && !self.has_loitered
            && time.saturating_sub(since) >= loiter_time
        {
            self.has_loitered = true;
            report(SceneEventKind::Loitered { dwell: time.saturating_sub(since) });
        }
    }
}

impl Object {
    /// Moves the anchor, and updates the velocity (for predictions) and the speed (for results).
    fn move_to(&mut self, anchor: Point, time: Duration, ground: Option<&Ground>) {
        let seconds = time.saturating_sub(self.last_seen).as_secs_f32();
        if seconds > 0.0 {
            let moved = ((anchor.x - self.anchor.x) / seconds, (anchor.y - self.anchor.y) / seconds);
            self.velocity = ((self.velocity.0 + moved.0) / 2.0, (self.velocity.1 + moved.1) / 2.0);
        }
        (self.anchor, self.last_seen) = (anchor, time);
        let (mark, marked_at) = self.mark;
        let seconds = time.saturating_sub(marked_at);
        if seconds < SPEED_TIME {
            return;
        }
        self.mark = (anchor, time);
        let position = |point: Point| ground.map_or(Some((f64::from(point.x), f64::from(point.y))), |ground| ground.map(point));
        self.speed = position(mark).zip(position(anchor)).map(|((was_x, was_y), (x, y))| {
            let (x, y) = (x - was_x, y - was_y);
            let speed = (x.hypot(y) / seconds.as_secs_f64()) as f32;
            Speed { speed, heading: (y.atan2(x).to_degrees().rem_euclid(360.0)) as f32 }
        });
    }
}

fn has_class(classes: &[Arc<str>], detection: &Detection) -> bool {
    classes.is_empty() || detection.label.as_ref().is_some_and(|label| classes.contains(label))
}

fn label_of(label: &Option<Arc<str>>) -> Arc<str> {
    label.clone().unwrap_or_else(|| "object".into())
}
