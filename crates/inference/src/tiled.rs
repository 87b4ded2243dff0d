//! Detection in tiles: runs a detector on the whole frame and on its tiles, and merges the detections.
//!
//! The areas of a frame are its jobs: they form one batch if the model and the device support it. Otherwise they are distributed over the
//! inference requests. An area is not copied: it uses the memory of its frame.

use std::sync::Arc;

use super::job::{JobImage, JobInput, StageResults};
use super::{RunGuard, Stage};
use crate::frame::{Frame, ObjectId, PixelRect, Point, Size};
use crate::vision::tiles::{SearchArea, TileDetection, Tiles, merge};

impl Stage {
    /// Like [`Stage::submit`], but runs on the whole frame and on its tiles in the search area, and merges the detections of all of them.
    /// `search_area` selects only tiles: `done` also gets objects outside it, which were detected in the whole frame.
    ///
    /// Results other than detections are those of the whole frame.
    pub fn submit_tiles(
        &self,
        frame: Frame,
        frame_number: u64,
        (tiles, search_area): (&Tiles, &SearchArea),
        guard: Arc<RunGuard>,
        done: impl FnOnce(StageResults) + Send + 'static,
    ) {
        let size = frame.size();
        let areas = tiles.areas(size, self.spec().input_size, search_area);
        let class_agnostic = self.spec().heads.iter().any(|head| head.decoder.is_class_agnostic());
        let mut results = StageResults::default();
        let mut inputs = Vec::with_capacity(areas.len());
        for (area_idx, area) in areas.iter().enumerate() {
            match frame.region(*area) {
                Ok(image) => inputs.push(JobInput {
                    image: JobImage::Frame(image),
                    corner: Point { x: area.x as f32, y: area.y as f32 },
                    alignment: None,
                    region: Some((area_idx, ObjectId(area_idx as i32))),
                }),
                Err(error) => results.fail(error.into(), true),
            }
        }
        // Release this reference to the frame, so that only the areas hold the frame's memory.
        drop(frame);
        self.submit_inputs(inputs, frame_number, guard, results, move |results| done(merged(results, &areas, size, class_agnostic)));
    }
}

/// Merges the results of the areas of a frame. In `results`, the parent ID of each detection is the index of its area.
fn merged(results: StageResults, areas: &[PixelRect], size: Size, class_agnostic: bool) -> StageResults {
    let StageResults { detections, mut classifications, of_regions, failed } = results;
    let in_tiles = detections.into_iter().map(|mut detection| {
        let area_idx = detection.parent.take().map_or(0, |ObjectId(area_idx)| area_idx as usize);
        TileDetection { area_idx, detection }
    });
    let detections = merge(in_tiles.collect(), areas, size, class_agnostic);
    classifications.extend(of_regions.into_iter().filter(|(ObjectId(area_idx), _)| *area_idx == 0).map(|(_, of_frame)| of_frame));
    StageResults { detections, classifications, of_regions: Vec::new(), failed }
}
