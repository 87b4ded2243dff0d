//! Final boxes of exports that include NMS, or that need none: in one table, or in an output for each role.
//!
//! The formats differ between exporters: TensorRT's EfficientNMS, `--end2end` of YOLOv7, YOLO-NAS, YOLOX, torchvision, PaddleDetection's
//! `multiclass_nms`, and deployment exports of detection transformers. Names of outputs and keys of the description identify columns and
//! outputs. Where they do not, the values do: a class is a whole number, a score is from 0 to 1, and corners are in order.

use std::cmp::Ordering;

use serde::Deserialize;

use super::boxes::{BoxFormat, bad};
use super::{BoxScheme, Coordinates, Output, Port, RawDetection, Results, Section, class_of, is_whole, named, only, unexpected};
use crate::frame::Size;
use crate::tensor::Result;

/// A list of final boxes.
#[derive(Debug)]
pub(super) struct FinalBoxes {
    /// Columns of a table; `None` if the values decide.
    columns: Option<Vec<Column>>,
    format: BoxFormat,
}

/// Description keys of lists of boxes.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
struct FinalKeys {
    /// Columns of a table in order: batch (index of the image), box (four columns), class, score (several are multiplied), unused. Default: the values decide.
    columns: Option<Vec<Column>>,
    /// What the four values of a box are. Default: corners.
    #[serde(default)]
    box_format: BoxFormat,
}

/// The meaning of a column. A box has four columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum Column {
    Batch,
    Box,
    Class,
    Score,
    Unused,
}

use Column::{Batch, Box, Class, Score};

/// Columns of `multiclass_nms` of Paddle.
const PADDLE: [Column; 3] = [Class, Score, Box];

/// The columns of the known exports. If several have the same [`Fit`], the first is used.
const KNOWN: [&[Column]; 8] = [
    &[Box, Score],
    &[Box, Score, Class],
    &[Box, Class, Score],
    &PADDLE,
    // YOLOv7 `--end2end`, YOLO-NAS with flat predictions, YOLOX after its post-processing.
    &[Batch, Box, Class, Score],
    &[Batch, Box, Score, Class],
    &[Box, Score, Score, Class],
    &[Batch, Class, Score, Box],
];

/// Tolerance of scores around 0..=1, for half-precision and quantized models.
const SCORE_TOLERANCE: f32 = 0.02;

fn n_columns(columns: &[Column]) -> usize {
    columns.iter().map(|column| if *column == Box { 4 } else { 1 }).sum()
}

/// A row of a table.
#[derive(Debug, Clone, Copy)]
struct Row {
    place: [f32; 4],
    score: f32,
    class: f32,
    image: f32,
}

impl Row {
    fn read(columns: &[Column], values: &[f32]) -> Self {
        let mut row = Self { place: [0.0; 4], score: 1.0, class: 0.0, image: 0.0 };
        let mut values = values.iter().copied();
        for column in columns {
            let mut next = || values.next().unwrap_or_default();
            match column {
                Box => row.place = std::array::from_fn(|_| next()),
                Batch => row.image = next(),
                Class => row.class = next(),
                Score => row.score *= next(),
                Column::Unused => drop(next()),
            }
        }
        row
    }

    fn is_plausible(&self, format: BoxFormat) -> bool {
        let rect = format.rect(self.place);
        let is_index = |value: f32| class_of(value).is_some() && is_whole(value);
        let is_score = (-SCORE_TOLERANCE..=1.0 + SCORE_TOLERANCE).contains(&self.score);
        is_index(self.class) && is_index(self.image) && is_score && rect.width >= 0.0 && rect.height >= 0.0
    }
}

/// How well an assignment of roles suits the values of an image; a larger one suits better. Scores near 0 or 1 are whole numbers, too, so the
/// later fields decide between them and classes.
#[derive(Debug, Default, Clone, Copy, PartialEq, PartialOrd)]
struct Fit {
    n_plausible: usize,
    /// The negated sum of the distances of classes from whole numbers.
    wholeness: f32,
    /// Sum of the scores. Exporters leave out boxes with a score of 0.
    score: f32,
}

impl Fit {
    fn of(rows: impl Iterator<Item = Row>, format: BoxFormat) -> Self {
        rows.filter(|row| row.is_plausible(format)).fold(Self::default(), |fit, row| Self {
            n_plausible: fit.n_plausible + 1,
            wholeness: fit.wholeness - (row.class - row.class.round()).abs(),
            score: fit.score + row.score,
        })
    }
}

/// Where boxes, scores and classes are.
enum Found {
    /// Index of the table.
    Table(usize),
    /// Indexes of the boxes, of the other roles, and of the number of boxes.
    Lists { boxes: usize, scores: Scores, count: Option<usize> },
}

enum Scores {
    List {
        scores: usize,
        classes: Option<usize>,
    },
    /// Two lists of scores and classes in unknown order.
    Unordered([usize; 2]),
    /// A score for each class. These boxes may overlap.
    Matrix(usize),
}

impl FinalBoxes {
    pub(super) fn new(section: &mut Section<'_>) -> Result<Self> {
        let FinalKeys { columns, box_format: format } = section.keys()?;
        let n = |of: Column| columns.iter().flatten().filter(|column| **column == of).count();
        if columns.is_some() && (n(Box) != 1 || n(Score) == 0 || n(Class) > 1 || n(Batch) > 1) {
            return Err(bad("`columns`: expected `box` once, `score` at least once, and `class` and `batch` at most once".to_owned()));
        }
        Ok(Self { columns, format })
    }

    /// The format of Paddle's operation `multiclass_nms`, unless the description sets `columns`.
    pub(super) fn of_paddle(section: &mut Section<'_>) -> Result<Self> {
        let own = Self::new(section)?;
        Ok(Self { columns: own.columns.or_else(|| Some(PADDLE.to_vec())), ..own })
    }

    /// The possible columns of a table with this number of columns.
    fn possible(&self, n: usize) -> impl Iterator<Item = &[Column]> {
        let (own, known) = match &self.columns {
            Some(columns) => (Some(&**columns), &[][..]),
            None => (None, &KNOWN[..]),
        };
        own.into_iter().chain(known.iter().copied()).filter(move |columns| n_columns(columns) == n || n == usize::MAX)
    }

    fn find<P: Port>(&self, outputs: &[P]) -> Result<Found> {
        let is_table = |shape: &[usize]| table(shape).is_some_and(|(_, n)| self.possible(n).next().is_some());
        let find = || lists(outputs).or_else(|| only(outputs, is_table).map(Found::Table));
        let expected = "one table [N, 5 to 7] of boxes, scores and classes (see `columns`), or outputs [N, 4] of boxes, [N] of scores and [N] of classes, with or without a batch axis, or `tensors = { box = ..., score = ..., class = ... }`";
        find().ok_or_else(|| unexpected("final-boxes", expected, outputs))
    }
}

/// Returns the number of rows and columns of a table, whose first axis may be a batch axis. Further axes have the extent 1.
fn table(shape: &[usize]) -> Option<(usize, usize)> {
    match shape {
        [rows, columns] => Some((*rows, *columns)),
        [_, between @ .., columns] => Some((rows_of(between)?, *columns)),
        _ => None,
    }
}

/// Returns the number of elements of a list, with or without a batch axis, or as a table of one column.
fn list(shape: &[usize]) -> Option<usize> {
    match shape {
        [rows] | [rows @ 2..=usize::MAX, 1] => Some(*rows),
        [_, rest @ ..] => rows_of(rest),
        [] => None,
    }
}

/// Returns the only extent that is not 1; 1 if there is none; `None` if there are several.
fn rows_of(extents: &[usize]) -> Option<usize> {
    let mut rows = extents.iter().filter(|extent| **extent != 1);
    let first = rows.next().copied().unwrap_or(1);
    rows.next().is_none().then_some(first)
}

/// Finds outputs with a separate role each.
fn lists<P: Port>(outputs: &[P]) -> Option<Found> {
    let is_same = |one: usize, other: usize| one == other || one == usize::MAX || other == usize::MAX;
    let is_boxes = |shape: &[usize]| table(shape).is_some_and(|(_, columns)| columns == 4);
    let boxes = named(outputs, "box", is_boxes).or_else(|| only(outputs, is_boxes))?;
    let (n_rows, _) = table(outputs[boxes].shape())?;
    let of_roles = |roles: &[&str], fits: &dyn Fn(&[usize]) -> bool| roles.iter().find_map(|role| named(outputs, role, fits));
    let is_number = |shape: &[usize]| shape.iter().all(|&extent| extent == 1 || extent == usize::MAX);
    let count = of_roles(&["count", "num"], &is_number);
    let is_list = |shape: &[usize]| list(shape).is_some_and(|n| is_same(n, n_rows));
    let others: Vec<usize> =
        (0..outputs.len()).filter(|idx| *idx != boxes && Some(*idx) != count && is_list(outputs[*idx].shape())).collect();
    let is_other = |idx: &usize| others.contains(idx);
    let scores = of_roles(&["score", "conf", "prob"], &is_list).filter(is_other);
    let classes = of_roles(&["class", "label", "cls"], &is_list).filter(is_other);
    let rest = |known: usize| match others.iter().filter(|idx| **idx != known).collect::<Vec<_>>()[..] {
        [rest] => Some(*rest),
        _ => None,
    };
    let matrix = || {
        let is_matrix =
            |shape: &[usize]| table(shape).is_some_and(|(rows, columns)| is_same(rows, n_rows) && columns > 0) && !is_list(shape);
        let is_free = |idx: &usize| *idx != boxes;
        let of_name = of_roles(&["score", "conf", "prob"], &is_matrix).filter(is_free);
        of_name.or_else(|| only(outputs, |shape| is_matrix(shape) && !is_boxes(shape))).map(Scores::Matrix)
    };
    let scores = match (scores, classes, &others[..]) {
        (Some(scores), Some(classes), _) if scores != classes => Scores::List { scores, classes: Some(classes) },
        (Some(scores), None, _) => Scores::List { scores, classes: rest(scores) },
        (None, Some(classes), _) => rest(classes).map(|scores| Scores::List { scores, classes: Some(classes) }).or_else(matrix)?,
        (_, _, &[scores]) => Scores::List { scores, classes: None },
        (_, _, &[one, other]) => Scores::Unordered([one, other]),
        _ => matrix()?,
    };
    Some(Found::Lists { boxes, scores, count })
}

/// Returns scores and classes: scores are from 0 to 1, classes are whole numbers. If both orders have the same [`Fit`], the first list has
/// the classes, as in the lists of torchvision.
fn ordered([one, other]: [&[f32]; 2]) -> [&[f32]; 2] {
    let fit = |scores: &[f32], classes: &[f32]| {
        let rows = scores.iter().zip(classes).map(|(&score, &class)| Row { place: [0.0; 4], score, class, image: 0.0 });
        Fit::of(rows, BoxFormat::default())
    };
    if fit(one, other) > fit(other, one) { [one, other] } else { [other, one] }
}

impl BoxScheme for FinalBoxes {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        match self.find(outputs)? {
            Found::Lists { scores: Scores::Matrix(scores), .. } => {
                let n_classes = outputs[scores].1.last().copied().unwrap_or(0);
                Ok(if n_classes == usize::MAX { 0 } else { n_classes as u32 })
            }
            _ => Ok(0),
        }
    }

    fn candidates(&self, outputs: &[Output<'_>], _input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let mut take = |row_idx: usize, place: [f32; 4], score: f32, class: f32| {
            results.look_at_class(class);
            // Unused rows have the class -1.
            if let Some(class_id) = class_of(class).filter(|_| score > score_min) {
                results.boxes.push(RawDetection { rect: self.format.rect(place), score, class_id, row: row_idx as u32 });
            }
        };
        let (boxes, scores, count) = match self.find(outputs)? {
            Found::Table(idx) => {
                let Output { shape, data, .. } = outputs[idx];
                let n = shape.last().copied().unwrap_or_default();
                let fit = |columns: &[Column]| Fit::of(data.chunks_exact(n).map(|row| Row::read(columns, row)), self.format);
                // `max_by` returns the last of equal elements, but the first has precedence.
                let possible: Vec<&[Column]> = self.possible(n).collect();
                let columns = match possible[..] {
                    [columns] => columns,
                    _ => possible
                        .into_iter()
                        .rev()
                        .max_by(|one, other| fit(one).partial_cmp(&fit(other)).unwrap_or(Ordering::Equal))
                        .expect("`find` accepts only such tables"),
                };
                for (row_idx, values) in data.chunks_exact(n).enumerate() {
                    let Row { place, score, class, image } = Row::read(columns, values);
                    // The outputs are those of one image. Rows of another image belong to the padding of the batch.
                    if image.abs() < 0.5 {
                        take(row_idx, place, score, class);
                    }
                }
                return Ok(());
            }
            Found::Lists { boxes, scores, count } => (outputs[boxes].data.as_chunks::<4>().0, scores, count),
        };
        // The cast saturates: NaN becomes 0 rows, and a number that is too large becomes all rows.
        let n_rows = count.and_then(|count| outputs[count].data.first()).map_or(usize::MAX, |&count| count as usize);
        let [scores, classes] = match scores {
            Scores::List { scores, classes: Some(classes) } => [scores, classes].map(|idx| outputs[idx].data),
            Scores::Unordered(idxs) => ordered(idxs.map(|idx| outputs[idx].data)),
            Scores::List { scores, classes: None } => {
                let rows = boxes.iter().zip(outputs[scores].data).take(n_rows);
                rows.enumerate().for_each(|(row_idx, (place, &score))| take(row_idx, *place, score, 0.0));
                return Ok(());
            }
            Scores::Matrix(scores) => {
                let n_classes = outputs[scores].shape.last().copied().unwrap_or(1);
                for (row_idx, (place, scores)) in boxes.iter().zip(outputs[scores].data.chunks_exact(n_classes)).take(n_rows).enumerate() {
                    (0..n_classes).zip(scores).for_each(|(class, &score)| take(row_idx, *place, score, class as f32));
                }
                return Ok(());
            }
        };
        let rows = boxes.iter().zip(scores.iter().zip(classes)).take(n_rows);
        rows.enumerate().for_each(|(row_idx, (place, (&score, &class)))| take(row_idx, *place, score, class));
        Ok(())
    }

    fn coordinates(&self) -> Option<Coordinates> {
        Some(Coordinates::Pixels)
    }

    fn guesses_unit(&self) -> bool {
        true
    }

    fn overlaps(&self) -> bool {
        false
    }

    fn suppresses(&self, outputs: &[Output<'_>]) -> bool {
        matches!(self.find(outputs), Ok(Found::Lists { scores: Scores::Matrix(_), .. }))
    }

    fn roles(&self) -> &'static [&'static str] {
        &["box", "score", "class", "label", "count"]
    }

    fn takes_unbatched(&self) -> bool {
        true
    }

    fn names_images(&self, n_columns: usize) -> bool {
        self.possible(n_columns).any(|columns| columns.contains(&Batch))
    }
}

#[cfg(test)]
mod tests {
    use super::Output;
    use crate::decode::tests::{boxes, decoder};
    use crate::frame::{Rect, Size};

    const INPUT: Size = Size::new(64, 64);

    /// The objects of all cases: corners, score, class.
    const CAR: (Rect, f32, u32) = (Rect { x: 10.0, y: 20.0, width: 10.0, height: 20.0 }, 0.9, 2);
    const BUS: (Rect, f32, u32) = (Rect { x: 30.0, y: 25.0, width: 10.0, height: 5.0 }, 0.6, 0);

    fn found(name: &str, keys: &str, outputs: &[Output<'_>]) -> Vec<(Rect, f32, u32)> {
        let keys = format!("threshold = 0.3\n{keys}");
        boxes(&*decoder(name, &keys), outputs, INPUT).iter().map(|found| (found.rect, found.score, found.class_id)).collect()
    }

    #[test]
    fn columns_of_known_tables_are_recognized_by_their_values() {
        let rows: [(&str, &[f32], usize); 7] = [
            ("corners, score, class", &[10.0, 20.0, 20.0, 40.0, 0.9, 2.0, 30.0, 25.0, 40.0, 30.0, 0.6, 0.0], 6),
            ("corners, class, score", &[10.0, 20.0, 20.0, 40.0, 2.0, 0.9, 30.0, 25.0, 40.0, 30.0, 0.0, 0.6], 6),
            ("class, score, corners", &[2.0, 0.9, 10.0, 20.0, 20.0, 40.0, 0.0, 0.6, 30.0, 25.0, 40.0, 30.0], 6),
            ("YOLOv7 end2end", &[0.0, 10.0, 20.0, 20.0, 40.0, 2.0, 0.9, 0.0, 30.0, 25.0, 40.0, 30.0, 0.0, 0.6], 7),
            ("YOLO-NAS", &[0.0, 10.0, 20.0, 20.0, 40.0, 0.9, 2.0, 0.0, 30.0, 25.0, 40.0, 30.0, 0.6, 0.0], 7),
            ("YOLOX", &[10.0, 20.0, 20.0, 40.0, 1.0, 0.9, 2.0, 30.0, 25.0, 40.0, 30.0, 0.75, 0.8, 0.0], 7),
            ("batch, class, score, corners", &[0.0, 2.0, 0.9, 10.0, 20.0, 20.0, 40.0, 0.0, 0.0, 0.6, 30.0, 25.0, 40.0, 30.0], 7),
        ];
        for (name, values, n) in rows {
            for shape in [&[2, n][..], &[1, 2, n], &[1, 1, 2, n]] {
                let [car, bus] = found("final-boxes", "", &[Output { name: "output", shape, data: values }])[..] else { panic!("{name}") };
                assert!(car == CAR && bus.0 == BUS.0 && (bus.1 - 0.6).abs() < 1e-6 && bus.2 == 0, "{name}: {car:?} {bus:?}");
            }
        }
    }

    /// Scores near 1 of the class 0 look like a class.
    #[test]
    fn one_object_of_the_first_class_with_a_high_score_is_found() {
        for score in [0.96, 1.0] {
            for (name, row, padding) in [
                ("YOLO-NAS", &[0.0, 10.0, 20.0, 20.0, 40.0, score, 0.0][..], 0.0),
                ("YOLOv7 end2end", &[0.0, 10.0, 20.0, 20.0, 40.0, 0.0, score], 0.0),
                ("corners, score, class", &[10.0, 20.0, 20.0, 40.0, score, 0.0], 0.0),
                ("corners, class, score", &[10.0, 20.0, 20.0, 40.0, 0.0, score], -1.0),
                ("class, score, corners", &[0.0, score, 10.0, 20.0, 20.0, 40.0], -1.0),
            ] {
                let mut rows = vec![padding; 3 * row.len()];
                rows[..row.len()].copy_from_slice(row);
                let found = found("final-boxes", "", &[Output { name: "y", shape: &[3, row.len()], data: &rows }]);
                assert_eq!(found, [(CAR.0, score, 0)], "{name}");
            }
            for lists in [[score, 0.0], [0.0, score]] {
                let [one, other] = lists.each_ref().map(std::slice::from_ref);
                let outputs = [
                    Output { name: "a", shape: &[1, 4], data: &[10.0, 20.0, 20.0, 40.0] },
                    Output { name: "b", shape: &[1, 1], data: one },
                    Output { name: "c", shape: &[1, 1], data: other },
                ];
                assert_eq!(found("final-boxes", "", &outputs), [(CAR.0, score, 0)]);
            }
        }
    }

    #[test]
    fn rows_of_padding_do_not_change_the_columns() {
        for padding in [0.0, -1.0] {
            let mut rows = vec![padding; 7 * 300];
            rows[..7].copy_from_slice(&[0.0, 10.0, 20.0, 20.0, 40.0, 0.9, 2.0]);
            assert_eq!(found("final-boxes", "", &[Output { name: "y", shape: &[1, 300, 7], data: &rows }]), [CAR], "{padding}");
        }
        assert_eq!(found("final-boxes", "", &[Output { name: "y", shape: &[0, 7], data: &[] }]), []);
    }

    #[test]
    fn rows_of_other_images_are_dropped() {
        let rows = [0.0, 10.0, 20.0, 20.0, 40.0, 2.0, 0.9, 1.0, 30.0, 25.0, 40.0, 30.0, 0.0, 0.6];
        assert_eq!(found("final-boxes", "", &[Output { name: "y", shape: &[2, 7], data: &rows }]), [CAR]);
    }

    #[test]
    fn described_columns_are_used_whatever_the_values() {
        let rows = [0.9, 20.0, 10.0, 40.0, 20.0, 5.0, 2.0, 7.0];
        let keys = "columns = [\"score\", \"box\", \"unused\", \"class\", \"unused\"]\nbox-format = \"corners-y-first\"";
        assert_eq!(found("final-boxes", keys, &[Output { name: "y", shape: &[1, 8], data: &rows }]), [CAR]);
        let registry = crate::decode::DecoderRegistry::built_in();
        for columns in ["\"box\"", "\"box\", \"box\", \"score\"", "\"box\", \"score\", \"class\", \"class\""] {
            let error = registry.make_from_text("final-boxes", &format!("columns = [{columns}]")).unwrap_err().to_string();
            assert!(error.contains("expected `box` once"), "{error}");
        }
    }

    #[test]
    fn outputs_of_separate_roles_are_recognized_by_name_or_values() {
        let places = [10.0, 20.0, 20.0, 40.0, 30.0, 25.0, 40.0, 30.0];
        let (scores, classes) = ([0.9, 0.6], [2.0, 0.0]);
        #[derive(Debug)]
        struct Case([&'static str; 3], [&'static [usize]; 3]);
        for case in [
            Case(["det_boxes", "det_scores", "det_classes"], [&[1, 2, 4], &[1, 2], &[1, 2]]),
            Case(["boxes", "scores", "labels"], [&[2, 4], &[2], &[2]]),
            Case(["pred_boxes", "pred_scores", "pred_classes"], [&[1, 2, 4], &[1, 2, 1], &[1, 2, 1]]),
            Case(["a", "b", "c"], [&[1, 2, 4], &[1, 2], &[1, 2]]),
            Case(["a", "c", "b"], [&[2, 4], &[2, 1], &[2]]),
            Case(["bboxes", "x", "cls"], [&[1, 1, 2, 4], &[2], &[2]]),
        ] {
            let Case(names, shapes) = case;
            let mut outputs = [
                Output { name: names[0], shape: shapes[0], data: &places },
                Output { name: names[1], shape: shapes[1], data: &scores },
                Output { name: names[2], shape: shapes[2], data: &classes },
                Output { name: "num_dets", shape: &[1, 1], data: &[1.0] },
            ];
            assert_eq!(found("final-boxes", "", &outputs[..3]), [CAR, BUS], "{case:?}");
            assert_eq!(found("final-boxes", "", &outputs), [CAR], "{case:?}: the number of boxes");
            outputs.reverse();
            assert_eq!(found("final-boxes", "", &outputs), [CAR], "{case:?}");
        }
        // One class.
        let outputs = [Output { name: "boxes", shape: &[2, 4], data: &places }, Output { name: "scores", shape: &[2], data: &scores }];
        assert_eq!(found("final-boxes", "", &outputs), [(CAR.0, 0.9, 0), BUS]);
        assert!(decoder("final-boxes", "").check(&[("boxes", &[2, 4])], INPUT).unwrap_err().to_string().contains("tensors = { box"));
    }

    /// The PyTorch port of YOLOv4 has fractions of the input and a score for each class, before NMS.
    #[test]
    fn scores_for_each_class_are_suppressed_and_fractions_are_recognized() {
        let places = [0.15625, 0.3125, 0.3125, 0.625, 0.15625, 0.3125, 0.3125, 0.65, 0.46875, 0.390625, 0.625, 0.46875];
        let scores = [0.0, 0.0, 0.9, 0.0, 0.0, 0.8, 0.6, 0.0, 0.0];
        let outputs =
            [Output { name: "boxes", shape: &[1, 3, 1, 4], data: &places }, Output { name: "confs", shape: &[1, 3, 3], data: &scores }];
        for name in ["final-boxes", "detr-final"] {
            assert_eq!(found(name, "", &outputs), [CAR, BUS]);
        }
        assert_eq!(found("boxes-scores", "iou-threshold = 0.5", &outputs), [CAR, BUS]);
        assert_eq!(decoder("final-boxes", "").check(&outputs.map(|output| (output.name, output.shape)), INPUT), Ok(3));
    }

    #[test]
    fn paddle_columns_are_class_score_and_corners() {
        let rows = [2.0, 0.9, 10.0, 20.0, 20.0, 40.0, -1.0, 0.8, 0.0, 0.0, 5.0, 5.0, 0.0, 0.3, 0.0, 0.0, 5.0, 5.0];
        let count = Output { name: "count", shape: &[1], data: &[3.0] };
        for shape in [&[3, 6][..], &[1, 3, 6]] {
            let list = Output { name: "multiclass_nms3_0.tmp_0", shape, data: &rows };
            for count in [count, Output { shape: &[], ..count }] {
                assert_eq!(found("multiclass-nms", "", &[list, count]), [CAR]);
            }
        }
        assert_eq!(found("multiclass-nms", "", &[Output { name: "list", shape: &[0, 6], data: &[] }]), []);
        decoder("multiclass-nms", "").check(&[("list", &[1, 300, 7])], INPUT).unwrap_err();
    }
}
