//! Compares stages that run the regions of a frame in one batch with single runs, and many streams on one compiled model with one stream.

use std::path::Path;
use std::sync::mpsc;

use roiflow::devices;
use roiflow::frame::{Frame, ObjectId, PixelFormat, PixelRect, Size};
use roiflow::runtime::{Config, Result};
use roiflow::stages::{RunGuard, Sharing, Stage, StageOptions, StageResults};

use crate::budgets;
use crate::engines::Engines;
use crate::harness::{Clock, Effort};
use crate::report::Report;

const N_REGIONS: u32 = 16;
/// More frames than requests, as in the in-flight queue of an element.
const N_IN_FLIGHT: usize = 8;

/// Reports two ratios of the time per frame: all regions in a batch against one by one, and 16 streams on one model against one stream.
pub fn stages(_engines: &Engines, effort: &Effort, report: &mut Report) -> Result<()> {
    let effort = effort.of_threads(1);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let here = |path: &str| Some(root.join(path)).filter(|path| path.is_file());
    let tiny = (root.join("assets/tiny/color.onnx"), None);
    // This model is missing until `make demo` has fetched it.
    let gender = here("assets/demo/gender-v1.onnx").zip(here("assets/models/gender.toml").map(Some));
    let core = devices::core();
    for device in ["CPU", "ORT.CPU", "OPENVINO.CPU"] {
        if device != "CPU" && core.compile_model(&core.read_model(&tiny.0)?, device, &Config::default()).is_err() {
            println!("stages on {device}: skipped, it is not there");
            continue;
        }
        for (model, description) in [Some(tiny.clone()), gender.clone()].into_iter().flatten() {
            let options = StageOptions {
                model: model.clone(),
                description,
                device: Some(device.to_owned()),
                sharing: Sharing::SameOptions,
                ..StageOptions::default()
            };
            let with = |batch_size| Stage::classifier(&StageOptions { batch_size, ..options.clone() });
            let name = format!("{} on {device}", model.file_stem().unwrap_or_default().to_string_lossy());
            let one_by_one = [with(Some(1))?];
            for (how, other) in [("as the device likes", [with(None)?]), ("by 16", [with(Some(16))?])] {
                let pairs = effort.compare(|n_frames| play(&one_by_one, n_frames), |n_frames| play(&other, n_frames));
                let name = format!("a frame of {N_REGIONS} regions, {how} against one by one, {name}");
                report.ratio(&name, &pairs, Clock::Wall, None);
                report.ratio(&name, &pairs, Clock::Cpu, None);
            }
            let many = (0..16).map(|_| with(Some(1))).collect::<Result<Vec<_>>>()?;
            let pairs = effort.compare(|n_frames| play(&one_by_one, n_frames), |n_frames| play(&many, n_frames));
            report.ratio(
                &format!("a frame of 16 streams on one model against one stream, {name}"),
                &pairs,
                Clock::Cpu,
                Some(budgets::STREAMS),
            );
        }
    }
    Ok(())
}

/// Runs a number of frames, alternating between the stages.
fn play(stages: &[Stage], n_frames: usize) {
    let size = Size::new(256, 256);
    let frame = Frame::from_packed(PixelFormat::Rgb, size, &[90; 256 * 256 * 3]).expect("so many bytes");
    let rect = |n: u32| PixelRect { x: n % 4 * 64, y: n / 4 * 64, width: 64, height: 64 };
    let (sender, done) = mpsc::channel();
    let ends = || assert_eq!(done.recv(), Ok(0), "regions that failed");
    for n in 0..n_frames {
        if n >= N_IN_FLIGHT {
            ends();
        }
        let sender = sender.clone();
        let tell = move |classified: StageResults| {
            let _received = sender.send(classified.failed.map_or(0, |(_, n_failed)| n_failed));
        };
        let regions = (0..N_REGIONS).map(|n| (ObjectId(n as i32 + 1), rect(n)));
        stages[n % stages.len()].submit_regions(frame.clone(), n as u64, regions, RunGuard::now(), tell);
    }
    (0..n_frames.min(N_IN_FLIGHT)).for_each(|_| ends());
}
