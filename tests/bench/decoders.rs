//! Decoding of the largest usual output, [1, 25200, 85] of YOLOv5 at 640x640, compared with a plain implementation.

use std::hint::black_box;

use roiflow::frame::{Rect, Size};
use roiflow::runtime::Result;
use roiflow::vision::decode::{DecoderRegistry, Output, RawDetection, Results};
use roiflow::vision::nms::{NmsMethod, NmsOptions, suppress};

use crate::budgets;
use crate::harness::{Clock, Effort};
use crate::report::Report;

const INPUT: Size = Size::new(640, 640);
const SHAPE: [usize; 3] = [1, 25_200, 85];
/// Default threshold of the decoder.
const IOU: f32 = 0.45;
const MAX_BOXES: usize = 300;

/// Measures decoding and NMS, absolutely and relative to the plain implementation. The first output is that of a street scene with many
/// objects. In the second output every row is a candidate, an extreme case that no useful threshold produces.
pub fn decoders(effort: &Effort, report: &mut Report) -> Result<()> {
    let effort = effort.of_threads(1);
    for (name, n_objects, score, budget) in
        [("60 objects, threshold 0.25", 60, 0.25, Some(budgets::DECODER_US)), ("every row, threshold 0.001", 630, 0.001, None)]
    {
        let data = street(n_objects, if budget.is_some() { 12 } else { 40 });
        let output = Output { name: "output", shape: &SHAPE, data: &data };
        let decoder = DecoderRegistry::built_in().make_from_text("yolov5", &format!("threshold = {score}"))?;
        let mut results = Results::default();
        decoder.decode(&[output], INPUT, &mut results)?;
        let plain = plain(&data, score);
        assert_eq!(results.boxes.len(), plain.len(), "{name}: both find the same");
        println!("decoders, {name}: {} boxes", results.boxes.len());
        let mut ours = |n_runs: usize| {
            for _ in 0..n_runs {
                results.clear();
                black_box(decoder.decode(black_box(&[output]), INPUT, &mut results).is_ok());
            }
        };
        let none = |n_runs: usize| (0..n_runs).for_each(|_| black_box(()));
        let pairs = effort.compare(none, &mut ours);
        report.more_us(&format!("YOLOv5 output of 25,200 rows, {name}"), &pairs, Clock::Cpu, budget);
        let bare = |n_runs: usize| (0..n_runs).for_each(|_| drop(black_box(self::plain(black_box(&data), score))));
        let pairs = effort.compare(bare, &mut ours);
        report.ratio(&format!("the same against plain loops, {name}"), &pairs, Clock::Cpu, None);
    }
    masks(&effort, report)?;
    let candidates = candidates(2000);
    let mut boxes = candidates.clone();
    for (name, method) in [("hard", NmsMethod::Hard), ("gaussian", NmsMethod::Gaussian { sigma: 0.5 })] {
        let options = NmsOptions { method, score_min: 0.25, ..NmsOptions::default() };
        let none = |n_runs: usize| (0..n_runs).for_each(|_| black_box(()));
        let pairs = effort.compare(none, |n_runs| {
            for _ in 0..n_runs {
                boxes.copy_from_slice(&candidates);
                black_box(suppress(black_box(&mut boxes), &options));
            }
        });
        report.more_us(&format!("suppression of 2,000 boxes of 100 objects, {name}"), &pairs, Clock::Cpu, None);
    }
    Ok(())
}

/// Measures the masks of 50 objects of 20 to 120 pixels, with 32 prototypes of 160x160.
fn masks(effort: &Effort, report: &mut Report) -> Result<()> {
    const N_OBJECTS: usize = 50;
    const N_CLASSES: usize = 80;
    const N_MAPS: usize = 32;
    const SIDE: usize = 160;
    let mut random = Random(0x3a5c);
    let n_cells = 8400;
    let mut table = vec![0.0; (4 + N_CLASSES + N_MAPS) * n_cells];
    for object_idx in 0..N_OBJECTS {
        let cell = object_idx * 131;
        let place = [
            60.0 + 520.0 * random.fraction(),
            60.0 + 520.0 * random.fraction(),
            20.0 + 100.0 * random.fraction(),
            20.0 + 100.0 * random.fraction(),
        ];
        (0..4).for_each(|row| table[row * n_cells + cell] = place[row]);
        // Different classes, so that no object is suppressed.
        table[(4 + object_idx) * n_cells + cell] = 0.9;
        let coefficients: Vec<f32> = (0..N_MAPS).map(|_| random.fraction() - 0.5).collect();
        coefficients.iter().enumerate().for_each(|(map, value)| table[(4 + N_CLASSES + map) * n_cells + cell] = *value);
    }
    let maps: Vec<f32> = (0..N_MAPS * SIDE * SIDE).map(|_| random.fraction() * 4.0 - 2.0).collect();
    let outputs = [
        Output { name: "output0", shape: &[1, 4 + N_CLASSES + N_MAPS, n_cells], data: &table },
        Output { name: "output1", shape: &[1, N_MAPS, SIDE, SIDE], data: &maps },
    ];
    let make = |name: &str| DecoderRegistry::built_in().make_from_text(name, "threshold = 0.25");
    let (with_masks, boxes_only) = (make("yolov8-seg")?, make("yolov8")?);
    let only_boxes = [Output { name: "output0", shape: &[1, 4 + N_CLASSES + N_MAPS, n_cells], data: &table }];
    let mut results = Results::default();
    with_masks.decode(&outputs, INPUT, &mut results)?;
    assert_eq!((results.boxes.len(), results.attributes.len()), (N_OBJECTS, N_OBJECTS));
    let mut ours = |n_runs: usize| {
        for _ in 0..n_runs {
            results.clear();
            black_box(with_masks.decode(black_box(&outputs), INPUT, &mut results).is_ok());
        }
    };
    let mut without = Results::default();
    let none = |n_runs: usize| {
        for _ in 0..n_runs {
            without.clear();
            black_box(boxes_only.decode(black_box(&only_boxes), INPUT, &mut without).is_ok());
        }
    };
    let pairs = effort.compare(none, &mut ours);
    report.more_us("masks of 50 objects at 640x640, more than boxes alone", &pairs, Clock::Cpu, None);
    Ok(())
}

/// Objects of realistic sizes, each detected by several rows. All other rows are nearly zero.
fn street(n_objects: usize, n_rows_each: usize) -> Vec<f32> {
    let (n_rows, n_columns) = (SHAPE[1], SHAPE[2]);
    let mut data = vec![0.0; n_rows * n_columns];
    let mut random = Random(0x5eed);
    for row in data.chunks_exact_mut(n_columns) {
        row.iter_mut().for_each(|value| *value = random.fraction() * 0.01);
        row[4] = random.fraction() * 0.01;
    }
    for object_idx in 0..n_objects {
        let (x, y) = (40.0 + 560.0 * random.fraction(), 40.0 + 560.0 * random.fraction());
        let (width, height) = (20.0 + 60.0 * random.fraction(), 20.0 + 60.0 * random.fraction());
        for near_idx in 0..n_rows_each {
            let row = &mut data[(object_idx * n_rows_each + near_idx) * 7919 % n_rows * n_columns..][..n_columns];
            let mut off = || (random.fraction() - 0.5) * 6.0;
            row[..4].copy_from_slice(&[x + off(), y + off(), width + off(), height + off()]);
            row[4] = 0.3 + 0.69 * random.fraction();
            row[5 + object_idx % 7] = 0.9 + 0.09 * random.fraction();
        }
    }
    data
}

fn candidates(n_boxes: usize) -> Vec<RawDetection> {
    let data = street(100, n_boxes / 100);
    plain_rows(&data, 0.25)
}

fn plain_rows(data: &[f32], score_min: f32) -> Vec<RawDetection> {
    let mut boxes = Vec::new();
    for (row, values) in (0..).zip(data.chunks(SHAPE[2])) {
        let class_scores = values[5..].iter().map(|score| score * values[4]).enumerate();
        let Some((class_idx, score)) = class_scores.max_by(|one, other| one.1.total_cmp(&other.1).then(other.0.cmp(&one.0))) else {
            continue;
        };
        if score > score_min {
            let rect = Rect { x: values[0] - values[2] / 2.0, y: values[1] - values[3] / 2.0, width: values[2], height: values[3] };
            boxes.push(RawDetection { rect, score, class_id: class_idx as u32, row });
        }
    }
    boxes
}

/// The plain implementation reads every class score of every row, sorts the boxes, and compares each box with all kept boxes.
fn plain(data: &[f32], score_min: f32) -> Vec<RawDetection> {
    let mut boxes = plain_rows(data, score_min);
    boxes.sort_by(|one, other| other.score.total_cmp(&one.score));
    let mut kept: Vec<RawDetection> = Vec::new();
    for found in boxes {
        let is_free = |other: &RawDetection| other.class_id != found.class_id || other.rect.iou(&found.rect) <= IOU;
        if kept.iter().all(is_free) {
            kept.push(found);
        }
    }
    kept.truncate(MAX_BOXES);
    kept
}

/// Pseudorandom numbers (xorshift).
struct Random(u64);

impl Random {
    fn fraction(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / 16_777_216.0
    }
}
