//! Tiles and search area of `roidetect`: the properties, and their check.
//!
//! This module uses GObject, but no pads and no buffers. From `crate::stages`, it uses only the types of tiles and errors.

use std::sync::LazyLock;

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::properties::Properties;
use crate::stages;
use crate::stages::tiles::MAX_OVERLAP;
use crate::stages::{SearchArea, TileCount, Tiles};

/// Values of the properties, as texts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TileSettings {
    /// Number of tiles; empty: no tiles.
    count: String,
    overlap: f32,
    /// Polygons; empty: the whole frame.
    search_area: String,
}

impl Default for TileSettings {
    fn default() -> Self {
        Self { count: String::new(), overlap: 0.2, search_area: String::new() }
    }
}

/// The properties. Only detectors have them.
pub(super) static PROPERTIES: LazyLock<Properties<TileSettings>> = LazyLock::new(|| {
    let text = |name: &'static str, nick: &'static str, blurb: &'static str| {
        glib::ParamSpecString::builder(name).nick(nick).blurb(blurb).mutable_ready().build()
    };
    Properties::<TileSettings>::new()
        .with(
            text(
                "tiles",
                "Tiles",
                "For small objects: detect also in tiles of the frame, columns x rows such as 2x2; auto: selected by the sizes of frame and model input; default: none",
            ),
            |settings| given(&settings.count),
            |settings, count: Option<String>| settings.count = count.unwrap_or_default(),
        )
        .with(
            glib::ParamSpecFloat::builder("overlap")
                .nick("Overlap of tiles")
                .blurb("Overlap of neighboring tiles, as a fraction of the width or height of a tile")
                .minimum(0.0)
                .maximum(MAX_OVERLAP)
                .default_value(TileSettings::default().overlap)
                .mutable_ready()
                .build(),
            |settings| settings.overlap,
            |settings, overlap| settings.overlap = overlap,
        )
        .with(
            text(
                "search-area",
                "Search area",
                "Polygons as x,y,x,y,x,y in fractions of the frame, separated by semicolons: only objects with their center in a polygon are reported, and tiles outside all polygons are not computed; default: the whole frame",
            ),
            |settings| given(&settings.search_area),
            |settings, area: Option<String>| settings.search_area = area.unwrap_or_default(),
        )
});

fn given(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

impl TileSettings {
    /// Parses the properties. The first value is `None` if no tiles are used.
    ///
    /// # Errors
    /// Returns `Config` if a text is invalid, or if the overlap is not a number from 0 to [`MAX_OVERLAP`].
    pub(super) fn checked(&self) -> stages::Result<(Option<Tiles>, SearchArea)> {
        let invalid = |property: &str, reason: String| {
            stages::Error::new(stages::ErrorKind::Config, format!("reading the property {property} failed: {reason}. Correct {property}"))
        };
        let count = match self.count.trim() {
            "" => None,
            count => Some(count.parse::<TileCount>().map_err(|reason| invalid("tiles", reason))?),
        };
        // GObject checks the range of a number, but accepts NaN.
        if !(0.0..=MAX_OVERLAP).contains(&self.overlap) {
            return Err(invalid("overlap", format!("expected a number from 0 to {MAX_OVERLAP}, got {}", self.overlap)));
        }
        let search_area = self.search_area.parse().map_err(|reason| invalid("search-area", reason))?;
        Ok((count.map(|count| Tiles { count, overlap: self.overlap }), search_area))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_outside_its_range_is_an_error() {
        let checked = |overlap: f32| TileSettings { count: "auto".to_owned(), overlap, ..TileSettings::default() }.checked();
        assert_eq!(checked(MAX_OVERLAP).unwrap().0, Some(Tiles { count: TileCount::Auto, overlap: MAX_OVERLAP }));
        for overlap in [f32::NAN, -0.1, 1.0] {
            let message = checked(overlap).unwrap_err().to_string();
            assert!(message.contains("property overlap") && message.contains("0 to 0.9"), "{message}");
        }
    }
}
