//! CSV format: a row for each object, as in RFC 4180.
//!
//! The columns have the meaning of the keys in [`crate::json`]. Empty fields are unknown values, which are null in JSON. Masks, polygons,
//! keypoints and other results that are not labels, numbers or texts are left out.

use std::collections::HashMap;
use std::fmt::{Display, Write as _};

use crate::json::{Context, objects, rfc3339, track_state};
use crate::{Classification, Detection, FrameResults, ObjectId, Outcome, PixelRect};

/// The first line of a file, with its line feed.
pub const HEADER: &str =
    "stream,source,frame,timestamp,time,width,height,region_id,parent_id,id,track_state,roi_type,label_id,confidence,x,y,w,h,attributes\n";

/// Appends the rows of a frame, with a line feed between rows and none at the end. Appends nothing if the frame has no objects.
pub fn write_rows(rows: &mut Vec<u8>, results: &FrameResults, context: &Context) {
    let mut text = String::new();
    let region_ids: HashMap<ObjectId, usize> = objects(results).zip(1..).map(|((detection, _), number)| (detection.id, number)).collect();
    for ((detection, pixels), region_id) in objects(results).zip(1..) {
        let parent_id = detection.parent.and_then(|parent| region_ids.get(&parent).copied());
        if !text.is_empty() {
            text.push('\n');
        }
        row(&mut text, (detection, pixels, region_id, parent_id), results, context);
    }
    rows.extend_from_slice(text.as_bytes());
}

fn row(
    text: &mut String,
    (detection, pixels, region_id, parent_id): (&Detection, PixelRect, usize, Option<usize>),
    results: &FrameResults,
    context: &Context,
) {
    let mut add = |value: &dyn Display| {
        let value = value.to_string();
        if value.contains([',', '"', '\n', '\r']) {
            let _written = write!(text, "\"{}\",", value.replace('"', "\"\""));
        } else {
            *text += &value;
            text.push(',');
        }
    };
    add(&context.stream_id.unwrap_or_default());
    add(&context.source.unwrap_or_default());
    add(&context.frame_number);
    add(&shown(context.timestamp_ns));
    add(&rfc3339(context.time));
    add(&results.size.width);
    add(&results.size.height);
    add(&region_id);
    add(&shown(parent_id));
    add(&shown(detection.track.map(|track| track.0)));
    add(&detection.stated().map_or("", track_state));
    add(&detection.label.as_deref().unwrap_or("object"));
    add(&detection.label_id);
    add(&shown(detection.known_confidence()));
    add(&pixels.x);
    add(&pixels.y);
    add(&pixels.width);
    add(&pixels.height);
    add(&attributes(&detection.classifications));
    text.pop();
}

/// Attributes as `name=value`, with semicolons between.
fn attributes(classifications: &[Classification]) -> String {
    let value = |outcome: &Outcome| match outcome {
        Outcome::Label { label_id, label, .. } => Some(label.as_deref().map_or_else(|| label_id.to_string(), str::to_owned)),
        Outcome::Value(value) => Some(value.to_string()),
        Outcome::Text { text, .. } => Some(text.to_string()),
        _ => None,
    };
    let all =
        classifications.iter().filter_map(|classification| Some(format!("{}={}", classification.name, value(&classification.outcome)?)));
    all.collect::<Vec<_>>().join(";")
}

fn shown(value: Option<impl Display>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::{ObjectId, Rect, Size};

    #[test]
    fn rows_have_all_columns_and_quote_special_characters() {
        let detection = Detection {
            id: ObjectId(1),
            track: None,
            track_state: None,
            parent: None,
            rect: Rect { x: -5.0, y: 2.0, width: 15.0, height: 20.0 },
            keypoints: vec![],
            confidence: 0.5,
            label_id: 2,
            label: Some("car, \"red\"".into()),
            classifications: vec![
                Classification {
                    name: "color".into(),
                    model: "m".into(),
                    outcome: Outcome::Label { label_id: 1, label: Some("red".into()), confidence: 0.9 },
                },
                Classification { name: "age".into(), model: "m".into(), outcome: Outcome::Value(31.5) },
            ],
        };
        let results = FrameResults { size: Size::new(64, 48), detections: vec![detection.clone(), detection], ..FrameResults::default() };
        let context = Context {
            frame_number: 7,
            stream_id: Some("door"),
            source: None,
            tags: None,
            timestamp_ns: Some(40),
            pts_ns: None,
            time: SystemTime::UNIX_EPOCH,
            message_id: None,
            image: None,
            masks: crate::json::MaskFormat::default(),
            maps: crate::json::MapFormat::default(),
        };
        let mut rows = Vec::new();
        write_rows(&mut rows, &results, &context);
        let expected =
            |id| format!("door,,7,40,1970-01-01T00:00:00.000Z,64,48,{id},,,,\"car, \"\"red\"\"\",2,0.5,0,2,10,20,color=red;age=31.5");
        assert_eq!(String::from_utf8(rows).unwrap(), format!("{}\n{}", expected(1), expected(2)));
        assert_eq!(HEADER.trim_end().split(',').count(), 19);
    }
}
