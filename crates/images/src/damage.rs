//! Keeps which areas of a canvas were drawn on.

use crate::draw::Area;

/// Areas that are nearer to each other are combined, in pixels.
const GAP: i64 = 8;
/// Maximum number of areas that are compared with each other.
const MAX_COMPARED: usize = 1000;

/// The areas of a canvas that were drawn on.
#[derive(Debug, Default)]
pub struct Damage(Vec<Area>);

impl Damage {
    pub(crate) fn add(&mut self, area: Area) {
        // The parts of a line follow each other, so that most areas are combined at once.
        if let Some(last) =
            self.0.last_mut().filter(|last| is_near(last, &area) && extent(&union(last, &area)) <= 2 * (extent(last) + extent(&area)))
        {
            *last = union(last, &area);
        } else {
            self.0.push(area);
        }
    }

    /// Returns at most `n_max` rectangles that do not overlap and together cover everything that was drawn on.
    pub fn rectangles(self, n_max: usize) -> Vec<Area> {
        let mut areas = self.0;
        let whole = |areas: &[Area]| areas.iter().copied().reduce(|one, other| union(&one, &other));
        if areas.len() > MAX_COMPARED {
            return whole(&areas).into_iter().collect();
        }
        let mut first = 0;
        while first < areas.len() {
            match (first + 1..areas.len()).find(|second| is_near(&areas[first], &areas[*second])) {
                // The larger area may touch earlier areas, too.
                Some(second) => {
                    let other = areas.swap_remove(second);
                    areas[first] = union(&areas[first], &other);
                    first = 0;
                }
                None => first += 1,
            }
        }
        if areas.len() > n_max { whole(&areas).into_iter().collect() } else { areas }
    }
}

fn is_near(one: &Area, other: &Area) -> bool {
    one.x_min - GAP < other.x_max && other.x_min - GAP < one.x_max && one.y_min - GAP < other.y_max && other.y_min - GAP < one.y_max
}

fn union(one: &Area, other: &Area) -> Area {
    Area {
        x_min: one.x_min.min(other.x_min),
        y_min: one.y_min.min(other.y_min),
        x_max: one.x_max.max(other.x_max),
        y_max: one.y_max.max(other.y_max),
    }
}

fn extent(area: &Area) -> i64 {
    (area.x_max - area.x_min) * (area.y_max - area.y_min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rectangles_cover_everything_without_overlap() {
        // The edges of two boxes, and a caption that joins them later.
        let edges = |x: i64| [Area::at(x, 0, 50, 2), Area::at(x, 48, 50, 2), Area::at(x, 2, 2, 46), Area::at(x + 48, 2, 2, 46)];
        let rectangles = |areas: &[Area], n_max| {
            let mut damage = Damage::default();
            areas.iter().for_each(|area| damage.add(*area));
            let mut rectangles = damage.rectangles(n_max);
            rectangles.sort_by_key(|area| area.x_min);
            rectangles
        };
        let apart: Vec<Area> = edges(0).into_iter().chain(edges(100)).collect();
        assert_eq!(rectangles(&apart, 9), [Area::at(0, 0, 50, 50), Area::at(100, 0, 50, 50)]);
        assert_eq!(rectangles(&apart, 1), [Area::at(0, 0, 150, 50)]);
        let joined: Vec<Area> = apart.iter().copied().chain([Area::at(40, 10, 70, 16)]).collect();
        assert_eq!(rectangles(&joined, 9), [Area::at(0, 0, 150, 50)]);
        assert_eq!(rectangles(&[], 9), []);
        let many: Vec<Area> = (0..5000).map(|n| Area::at(n % 70 * 20, n / 70 * 20, 2, 2)).collect();
        assert_eq!(rectangles(&many, 9000).len(), 1);
    }
}
