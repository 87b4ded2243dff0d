//! Runs the tracker on detections in MOTChallenge format, so that benchmarks can score it.
//!
//! ```text
//! cargo run --release --example mot -- DATA OUT NAME [key=value ...]
//! ```
//!
//! Reads `DATA/det/<set>/<sequence>.txt` (rows `frame,id,x,y,width,height,confidence`, frames from 1) and the frame size from
//! `DATA/gt/<set>/<sequence>/seqinfo.ini`. Writes `OUT/<set>/NAME/data/<sequence>.txt`: rows `frame,id,x,y,width,height,1,-1,-1,-1`.
//!
//! Keys: `method` (`hybrid`, `bytetrack`, `sort` or `iou`), the options `iou-threshold`, `high-confidence`, `max-age`, `min-hits` and
//! `max-tracks`, `min-confidence`: detections with a lower confidence are dropped, and `rate`: frames per second, 0 if unknown. Keys that are not given have the default values of
//! the tracker.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};
use std::{env, fs};

use roiflow_analytics::{TrackMethod, TrackOptions, Tracker};
use roiflow_results::{Detection, FrameResults, ObjectId, Rect, Size};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Tracker options and detection filter, as set by the arguments.
#[derive(Default)]
struct Settings {
    options: TrackOptions,
    min_confidence: f32,
    rate: f32,
}

/// Number of frames of all sequences, and the time that tracking took.
#[derive(Default)]
struct Total {
    n_frames: usize,
    time: Duration,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [data, out, name, settings @ ..] = &arguments[..] else {
        return Err("expected DATA OUT NAME [key=value ...]: folder of the benchmark, folder for the tracks, name of the tracker".into());
    };
    let settings = settings_of(settings)?;
    let mut total = Total::default();
    for set in names_in(&Path::new(data).join("det"))? {
        let target = Path::new(out).join(&set).join(name).join("data");
        fs::create_dir_all(&target).map_err(|error| format!("{}: the folder cannot be made: {error}", target.display()))?;
        for file in names_in(&Path::new(data).join("det").join(&set))? {
            let Some(sequence) = file.strip_suffix(".txt") else { continue };
            let size = frame_size(&Path::new(data).join("gt").join(&set).join(sequence).join("seqinfo.ini"))?;
            let frames = read_detections(&Path::new(data).join("det").join(&set).join(&file), settings.min_confidence)?;
            let tracks = track(frames, size, &settings, &mut total);
            fs::write(target.join(&file), tracks)?;
        }
    }
    let ms_per_frame = total.time.as_secs_f64() * 1e3 / total.n_frames.max(1) as f64;
    println!("{} frames, {ms_per_frame:.4} ms a frame", total.n_frames);
    Ok(())
}

fn settings_of(arguments: &[String]) -> Result<Settings> {
    let mut settings = Settings::default();
    for argument in arguments {
        let (key, value) = argument.split_once('=').ok_or_else(|| format!("{argument}: expected key=value"))?;
        let options = &mut settings.options;
        match key {
            "method" => {
                options.method = match value {
                    "hybrid" => TrackMethod::Hybrid,
                    "bytetrack" => TrackMethod::ByteTrack,
                    "sort" => TrackMethod::Sort,
                    "iou" => TrackMethod::Iou,
                    _ => return Err(format!("method: expected hybrid, bytetrack, sort or iou, got {value}").into()),
                }
            }
            "iou-threshold" => options.iou_threshold = parse(key, value)?,
            "high-confidence" => options.high_confidence = parse(key, value)?,
            "max-age" => options.max_age = parse(key, value)?,
            "min-hits" => options.min_hits = parse(key, value)?,
            "max-tracks" => options.max_tracks = parse(key, value)?,
            "rate" => settings.rate = parse(key, value)?,
            "min-confidence" => settings.min_confidence = parse(key, value)?,
            _ => return Err(format!("{key}: unknown key; the keys are listed at the top of examples/mot.rs").into()),
        }
    }
    Ok(settings)
}

fn parse<T: FromStr<Err: std::fmt::Display>>(key: &str, value: &str) -> Result<T> {
    value.trim().parse().map_err(|error| format!("{key}: expected a number, got {value:?}: {error}").into())
}

/// Names of the entries of a folder, sorted.
fn names_in(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: expected a folder: {error}", folder.display()))?;
    let mut names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn frame_size(path: &Path) -> Result<Size> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let number = |key: &str| {
        let lines = text.lines().filter_map(|line| line.split_once('='));
        let value = lines.into_iter().find(|(name, _)| name.trim() == key);
        let (_, value) = value.ok_or_else(|| format!("{}: expected a line {key}=...", path.display()))?;
        parse::<u32>(key, value)
    };
    Ok(Size::new(number("imWidth")?, number("imHeight")?))
}

/// The detections of each frame.
fn read_detections(path: &Path, min_confidence: f32) -> Result<Vec<Vec<Detection>>> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut frames: Vec<Vec<Detection>> = Vec::new();
    for (line_idx, line) in text.lines().enumerate() {
        let values = line.split(',').map(|value| parse::<f32>("value", value)).collect::<Result<Vec<_>>>();
        let values = values.map_err(|error| format!("{}:{}: {error}", path.display(), line_idx + 1))?;
        let &[frame, _, x, y, width, height, confidence, ..] = &values[..] else {
            return Err(format!("{}:{}: expected 7 values, got {}", path.display(), line_idx + 1, values.len()).into());
        };
        if frame < 1.0 {
            return Err(format!("{}:{}: expected a frame number from 1, got {frame}", path.display(), line_idx + 1).into());
        }
        if frames.len() < frame as usize {
            frames.resize_with(frame as usize, Vec::new);
        }
        if confidence < min_confidence {
            continue;
        }
        frames[frame as usize - 1].push(Detection {
            id: ObjectId(line_idx as i32 + 1),
            track: None,
            track_state: None,
            parent: None,
            rect: Rect { x, y, width, height },
            keypoints: vec![],
            confidence,
            label_id: 0,
            label: None,
            classifications: vec![],
        });
    }
    Ok(frames)
}

/// Tracks the objects of a sequence. Returns the rows of the objects that have a track ID.
fn track(frames: Vec<Vec<Detection>>, size: Size, settings: &Settings, total: &mut Total) -> String {
    let (mut tracker, mut last_id, mut rows) = (Tracker::default(), 0, String::new());
    for (frame_idx, detections) in frames.into_iter().enumerate() {
        let mut results = FrameResults { size, frame_number: frame_idx as u64, detections, ..FrameResults::default() };
        if settings.rate > 0.0 {
            tracker.set_interval(Duration::from_secs_f32(1.0 / settings.rate));
        }
        let begin = Instant::now();
        let new_track_id = || {
            last_id += 1;
            ObjectId(last_id)
        };
        tracker.update(&mut results, &settings.options, |_| true, new_track_id);
        total.time += begin.elapsed();
        total.n_frames += 1;
        for detection in &results.detections {
            let (Some(track), Rect { x, y, width, height }) = (detection.track, detection.rect) else { continue };
            writeln!(rows, "{},{track},{x:.2},{y:.2},{width:.2},{height:.2},1,-1,-1,-1", frame_idx + 1).expect("a string takes any text");
        }
    }
    rows
}
