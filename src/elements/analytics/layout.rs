//! The layout of `roianalytics` as text: a file in TOML, and the short form of the properties `lines` and `zones`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use crate::frame::Point;
use crate::stages::scene::{Anchor, Layout, Line, Units, Zone};

/// Maximum size of a layout file.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct File {
    units: FileUnits,
    anchor: FileAnchor,
    hysteresis: f32,
    absence: f64,
    heat_map: Option<(usize, usize)>,
    line: Vec<FileLine>,
    zone: Vec<FileZone>,
    ground: Option<FileGround>,
}

impl Default for File {
    fn default() -> Self {
        let Layout { hysteresis, absence, .. } = Layout::default();
        let (units, anchor) = (FileUnits::Fractions, FileAnchor::Bottom);
        Self { units, anchor, hysteresis, absence: absence.as_secs_f64(), heat_map: None, line: vec![], zone: vec![], ground: None }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FileUnits {
    Fractions,
    Pixels,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FileAnchor {
    Bottom,
    Center,
    Top,
    Left,
    Right,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileLine {
    name: String,
    from: (f32, f32),
    to: (f32, f32),
    #[serde(default)]
    classes: Vec<String>,
    #[serde(default)]
    min_time: f64,
    #[serde(default)]
    repeats: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileZone {
    name: String,
    corners: Vec<(f32, f32)>,
    #[serde(default)]
    classes: Vec<String>,
    #[serde(default)]
    min_time: f64,
    loiter_time: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileGround {
    image: [(f32, f32); 4],
    meters: [(f32, f32); 4],
}

fn shared(names: Vec<String>) -> Vec<Arc<str>> {
    names.into_iter().map(Into::into).collect()
}

fn point((x, y): (f32, f32)) -> Point {
    Point { x, y }
}

/// Converts a number of seconds. Errors name the key.
fn seconds(key: &str, value: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(value).map_err(|_| format!("{key}: expected seconds, 0 or more, got {value}"))
}

/// Reads a layout file and adds the lines and zones of the short form. `text` reads the file.
///
/// # Errors
/// Returns a message with the file or property, and with the expected and the actual value.
pub(super) fn read(
    path: Option<&str>,
    lines: Option<&str>,
    zones: Option<&str>,
    text: impl FnOnce(&Path) -> Result<String, String>,
) -> Result<Layout, String> {
    let mut layout = match path {
        Some(path) => parse(&text(Path::new(path)).map_err(|error| format!("layout {path:?}: {error}"))?)
            .map_err(|error| format!("layout {path:?}: {error}"))?,
        None => Layout::default(),
    };
    for (idx, (name, points)) in short_forms("lines", lines)?.into_iter().enumerate() {
        let &[from, to] = &points[..] else {
            return Err(format!("lines: expected x1,y1,x2,y2 for each line, got {} points", points.len()));
        };
        let name = name.unwrap_or_else(|| format!("line-{}", idx + 1).into());
        layout.lines.push(Line { name, from, to, classes: vec![], min_time: Duration::ZERO, repeats: false });
    }
    for (idx, (name, corners)) in short_forms("zones", zones)?.into_iter().enumerate() {
        let name = name.unwrap_or_else(|| format!("zone-{}", idx + 1).into());
        layout.zones.push(Zone { name, corners, classes: vec![], min_time: Duration::ZERO, loiter_time: None });
    }
    layout.check()?;
    Ok(layout)
}

/// Returns the text of a regular file.
pub(super) fn text(path: &Path) -> Result<String, String> {
    let metadata = std::fs::metadata(path).map_err(|error| format!("the file cannot be read: {error}"))?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(format!("expected a regular file of at most {MAX_BYTES} bytes"));
    }
    std::fs::read_to_string(path).map_err(|error| format!("the file cannot be read: {error}"))
}

fn parse(text: &str) -> Result<Layout, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    let line = |line: FileLine| {
        let min_time = seconds("min-time", line.min_time)?;
        Ok(Line {
            name: line.name.into(),
            from: point(line.from),
            to: point(line.to),
            classes: shared(line.classes),
            min_time,
            repeats: line.repeats,
        })
    };
    let zone = |zone: FileZone| {
        let (min_time, loiter_time) =
            (seconds("min-time", zone.min_time)?, zone.loiter_time.map(|time| seconds("loiter-time", time)).transpose()?);
        let corners = zone.corners.into_iter().map(point).collect();
        Ok(Zone { name: zone.name.into(), corners, classes: shared(zone.classes), min_time, loiter_time })
    };
    Ok(Layout {
        units: match file.units {
            FileUnits::Fractions => Units::Fractions,
            FileUnits::Pixels => Units::Pixels,
        },
        anchor: match file.anchor {
            FileAnchor::Bottom => Anchor::Bottom,
            FileAnchor::Center => Anchor::Center,
            FileAnchor::Top => Anchor::Top,
            FileAnchor::Left => Anchor::Left,
            FileAnchor::Right => Anchor::Right,
        },
        hysteresis: file.hysteresis,
        absence: seconds("absence", file.absence)?,
        lines: file.line.into_iter().map(line).collect::<Result<_, String>>()?,
        zones: file.zone.into_iter().map(zone).collect::<Result<_, String>>()?,
        ground: file.ground.map(|ground| (ground.image.map(point), ground.meters.map(point))),
        heat_map: file.heat_map.unwrap_or_default(),
    })
}

/// The optional name and the points of a line or zone.
type NamedPoints = (Option<Arc<str>>, Vec<Point>);

/// Reads `name:x,y,x,y;name:...`; names are optional.
fn short_forms(property: &str, text: Option<&str>) -> Result<Vec<NamedPoints>, String> {
    let parts = text.unwrap_or_default().split(';').map(str::trim).filter(|part| !part.is_empty());
    let of_part = |part: &str| {
        let (name, numbers) = part.split_once(':').map_or((None, part), |(name, numbers)| (Some(name.trim().into()), numbers));
        let numbers = numbers.split(',').map(|number| {
            let wrong = || format!("{property}: expected numbers with commas between, such as 0.1,0.5,0.9,0.5, got {number:?} in {part:?}");
            number.trim().parse::<f32>().map_err(|_| wrong())
        });
        let numbers = numbers.collect::<Result<Vec<f32>, String>>()?;
        let (points, rest) = numbers.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(format!("{property}: expected an x and a y for each point, got {} numbers in {part:?}", numbers.len()));
        }
        Ok((name, points.iter().map(|&[x, y]| Point { x, y }).collect()))
    };
    parts.map(of_part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_and_properties_give_one_layout() {
        let text = r#"
            anchor = "center"
            absence = 2.5
            heat-map = [16, 9]
            [[line]]
            name = "door"
            from = [0.1, 0.5]
            to = [0.9, 0.5]
            classes = ["person"]
            min-time = 0.2
            [[zone]]
            name = "hall"
            corners = [[0, 0], [1, 0], [0.5, 1]]
            loiter-time = 60
            [ground]
            image = [[0.4, 0.5], [0.6, 0.5], [1, 1], [0, 1]]
            meters = [[0, 40], [10, 40], [10, 0], [0, 0]]
        "#;
        let layout = parse(text).unwrap();
        layout.check().unwrap();
        assert_eq!((layout.anchor, layout.absence, layout.heat_map), (Anchor::Center, Duration::from_millis(2500), (16, 9)));
        assert_eq!((&*layout.lines[0].name, layout.lines[0].min_time), ("door", Duration::from_millis(200)));
        assert_eq!((layout.zones[0].corners.len(), layout.zones[0].loiter_time), (3, Some(Duration::from_secs(60))));
        let short = read(None, Some("0,0.5,1,0.5; gate: 0,0.2,1,0.2"), Some("0,0,1,0,1,1"), super::text).unwrap();
        let names: Vec<&str> = short.lines.iter().map(|line| &*line.name).chain(short.zones.iter().map(|zone| &*zone.name)).collect();
        assert_eq!(names, ["line-1", "gate", "zone-1"]);
    }

    #[test]
    fn wrong_layouts_are_refused_with_a_reason() {
        for (lines, zones, reason) in [
            (None, None, "at least one"),
            (Some("0,0.5,1"), None, "an x and a y"),
            (Some("0,0.5,1,b"), None, "\"b\""),
            (Some("0,0,1,1,0,1"), None, "x1,y1,x2,y2"),
            (None, Some("0,0,1,1"), "three corners"),
        ] {
            let error = read(None, lines, zones, text).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(read(Some("/nowhere/layout.toml"), None, None, text).unwrap_err().contains("/nowhere/layout.toml"));
        assert!(parse("[[line]]\nname = \"a\"\nfrom = [0, 0]\nto = [1, 1]\nmin-tme = 1").unwrap_err().contains("min-tme"));
        assert!(parse("absence = -1").unwrap_err().contains("absence"));
    }
}
