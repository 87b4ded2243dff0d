//! Everything that is drawn, in every format, compared with stored images that people have looked at.
//!
//! `ROIFLOW_UPDATE=1 cargo test -p roiflow-images --test goldens` writes the images to `tests/golden/overlay`.

use std::path::PathBuf;
use std::sync::Arc;

use roiflow_images::draw::{Canvas, Plane};
use roiflow_images::overlay::{ColorBy, Painter, Style, Surroundings};
use roiflow_images::privacy::{Privacy, PrivacyRules};
use roiflow_images::scene::{Counts, Place, Scene};
use roiflow_tensor::{ElementType, Tensor};
use roiflow_vision::frame::{
    Classification, Colorimetry, Detection, Frame, FrameResults, Geometry, Grid, Keypoint, Keypoints, ObjectId, Outcome, PixelFormat,
    Point, Rect, Size, Skeleton,
};
use roiflow_vision::{InputLayout, Preprocess, Scratch};

const SIZE: Size = Size::new(320, 180);

/// Largest difference of a color component: the rasterizer of fonts adds in another order on other processors.
const TOLERANCE: u8 = 4;

fn at(x: f32, y: f32) -> Point {
    Point { x, y }
}

fn detection(track: i32, label: &str, rect: Rect, outcomes: Vec<Outcome>) -> Detection {
    let classification = |outcome| Classification { name: "attribute".into(), model: "m".into(), outcome };
    Detection {
        id: ObjectId(track),
        track: Some(ObjectId(track)),
        track_state: None,
        parent: None,
        rect,
        keypoints: vec![],
        confidence: 0.87,
        label_id: track as u32,
        label: Some(label.into()),
        classifications: outcomes.into_iter().map(classification).collect(),
    }
}

/// The results of a frame: a box with a label in another script, a mask, a pose, and an object to blur.
fn results(frame: usize) -> FrameResults {
    let moved = frame as f32 * 4.0;
    let corners = [at(100.0, 60.0), at(150.0, 60.0), at(100.0, 130.0)];
    let round = (0..70 * 50).map(|idx| if ((idx % 50 - 25) as f32 / 25.0).hypot((idx / 50 - 35) as f32 / 35.0) < 1.0 { 255 } else { 0 });
    let mask = Geometry::Mask(Grid { columns: 50, values: round.collect::<Vec<u8>>().into(), corners });
    let points =
        [(180.0, 70.0), (190.0, 95.0), (175.0, 120.0), (205.0, 120.0)].map(|(x, y)| Keypoint { point: at(x, y), confidence: None });
    let skeleton = Arc::new(Skeleton { names: vec![], edges: vec![(0, 1), (1, 2), (1, 3)] });
    let pose = Geometry::Keypoints(Keypoints { points: points.to_vec(), skeleton });
    let text = Outcome::Text { text: "字 €5".into(), confidence: 0.9 };
    let detections = vec![
        detection(1, "прохожий", Rect { x: 20.0 + moved, y: 50.0, width: 40.0, height: 80.0 }, vec![text]),
        detection(2, "łódź", Rect { x: 100.0, y: 60.0, width: 50.0, height: 70.0 }, vec![Outcome::Geometry(mask)]),
        detection(3, "pose", Rect { x: 168.0, y: 62.0, width: 44.0, height: 66.0 }, vec![Outcome::Geometry(pose)]),
        detection(4, "face", Rect { x: 245.0, y: 41.0, width: 51.0, height: 60.0 }, vec![]),
        detection(5, "plate", Rect { x: 245.0, y: 120.0, width: 50.0, height: 21.0 }, vec![]),
    ];
    FrameResults { size: SIZE, detections, ..FrameResults::default() }
}

/// A gray image with a pattern in which a blur is visible, in this format.
fn planes(format: PixelFormat) -> ([Vec<u8>; 3], [usize; 3]) {
    let mut strides = [0; 3];
    let planes = [0, 1, 2].map(|plane_idx| {
        if plane_idx >= format.n_planes() {
            return Vec::new();
        }
        let shape = format.plane_shape(plane_idx, SIZE);
        strides[plane_idx] = shape.iter().skip(1).product::<usize>() * format.element().size();
        let mut bytes = vec![255; shape[0] * strides[plane_idx]];
        for (component_idx, place) in format.components().iter().enumerate().filter(|(_, place)| place.plane_idx == plane_idx) {
            let (of_width, of_height) = place.n_pixels;
            for y in 0..shape[0] {
                for x in 0..(SIZE.width as usize).div_ceil(of_width) {
                    let is_dark = (x * of_width / 8 + y * of_height / 8).is_multiple_of(2);
                    let is_chroma = component_idx > 0 && !format.is_rgb() && format != PixelFormat::Gray8;
                    let value: u16 = if is_chroma {
                        128
                    } else if is_dark {
                        90
                    } else {
                        150
                    };
                    let sample = ((value << (format.depth() - 8)) << format.n_low_bits()).to_le_bytes();
                    let n = format.element().size();
                    bytes[y * strides[plane_idx] + place.offset_bytes + x * place.stride_bytes..][..n].copy_from_slice(&sample[..n]);
                }
            }
        }
        bytes
    });
    (planes, strides)
}

/// Draws the eighth frame of a stream, and returns its pixels in RGB.
fn drawn(format: PixelFormat) -> Vec<u8> {
    let (mut planes, strides) = planes(format);
    let style = Style { color_by: ColorBy::Track, trail_length: 20, ..Style::default() };
    let rules = PrivacyRules { blur: vec!["face".into()], pixelate: vec!["plate".into()], ..PrivacyRules::default() };
    let scene = Scene {
        places: vec![
            Place { name: "door".into(), points: vec![at(0.7, 0.0), at(0.7, 1.0)], counts: Counts::Line { n_in: 3, n_out: 12 } },
            Place {
                name: "hall".into(),
                points: vec![at(0.03, 0.75), at(0.4, 0.75), at(0.4, 0.98), at(0.03, 0.98)],
                counts: Counts::Zone { occupancy: 1 },
            },
        ],
        ..Scene::default()
    };
    let surroundings = Surroundings { scenes: &[scene], title: "gate 3  12:34:56" };
    let (mut painter, mut privacy) = (Painter::default(), Privacy::default());
    for frame in 0..8 {
        painter.follow(&results(frame), &style);
    }
    let [a, b, c] = &mut planes;
    let views = [(a, 0), (b, 1), (c, 2)].map(|(bytes, plane_idx)| Plane { bytes, row_stride_bytes: strides[plane_idx] });
    let mut canvas = Canvas::new(format, SIZE, Colorimetry::default(), views).unwrap();
    let results = results(7);
    privacy.follow(&rules, SIZE, Some(&results)).iter().for_each(|area| area.apply(&mut canvas));
    painter.draw(&mut canvas, SIZE, &results, &style, &surroundings);

    let tensors: Vec<Tensor> = (0..format.n_planes())
        .map(|plane_idx| {
            let tensor = Tensor::new(format.element(), format.plane_shape(plane_idx, SIZE)).unwrap();
            tensor.bytes_mut().unwrap().extent_mut().copy_from_slice(&planes[plane_idx]);
            tensor
        })
        .collect();
    let frame = Frame::from_planes(format, SIZE, &tensors, Colorimetry::default()).unwrap();
    let rgb = Tensor::new(ElementType::U8, [1, SIZE.height as usize, SIZE.width as usize, 3]).unwrap();
    let preprocess = Preprocess { layout: InputLayout::Nhwc, ..Preprocess::default() };
    preprocess.fill(&frame, &mut rgb.bytes_mut().unwrap(), 0, &mut Scratch::default()).unwrap();
    rgb.bytes().unwrap().extent().to_vec()
}

#[test]
fn drawing_is_that_of_the_stored_images_in_every_format() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/overlay"));
    for format in PixelFormat::ALL {
        // Formats that differ only in the places of their samples have the same image.
        let stored = match format {
            PixelFormat::A420 => PixelFormat::I420,
            PixelFormat::Ayuv => PixelFormat::Y444,
            PixelFormat::Yuy2 | PixelFormat::Uyvy => PixelFormat::Y42b,
            _ if format.is_rgb() => PixelFormat::Rgb,
            _ => format,
        };
        let path = folder.join(format!("{stored}.png"));
        let pixels = drawn(format);
        if stored == format && std::env::var_os("ROIFLOW_UPDATE").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            image::save_buffer(&path, &pixels, SIZE.width, SIZE.height, image::ExtendedColorType::Rgb8).unwrap();
            continue;
        }
        let stored = image::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into_rgb8();
        let off = pixels.iter().zip(stored.as_raw()).position(|(a, b)| a.abs_diff(*b) > TOLERANCE);
        let place = off.map(|byte| (byte / 3 % SIZE.width as usize, byte / 3 / SIZE.width as usize));
        assert_eq!((stored.dimensions(), place), ((SIZE.width, SIZE.height), None), "{format}: first pixel that differs");
    }
}
