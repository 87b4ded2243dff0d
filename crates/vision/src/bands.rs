//! Writes the lines of an input tensor. The lines of a large image are divided into bands, which several threads process concurrently.

use std::ops::Range;
use std::sync::OnceLock;

use super::filtered::FilteredRows;
use super::image::Image;
use super::letterbox::Placement;
use super::preprocess::Preprocess;
use super::scaled_rows::ScaledRows;
use super::simd::Simd;
use super::store::InputRow;
use crate::frame::Size;

/// Minimum number of pixels per band. With AVX-512, such a band takes about half a millisecond.
const PIXELS_PER_BAND: u64 = 2 << 20;

/// Cost of a filtered pixel, relative to an unfiltered pixel.
const FILTER_COST: u64 = 16;

/// Returns the threads that process bands, shared by the whole process: one per core, minus one for the calling thread. `None` if
/// there is only one core, or if the system cannot start the threads.
fn helpers() -> Option<&'static rayon_core::ThreadPool> {
    static HELPERS: OnceLock<Option<rayon_core::ThreadPool>> = OnceLock::new();
    let start = || {
        let n_threads = std::thread::available_parallelism().map_or(1, |n_cores| n_cores.get() - 1);
        let pool = rayon_core::ThreadPoolBuilder::new().num_threads(n_threads).thread_name(|idx| format!("roiflow-fill-{idx}"));
        if n_threads > 0 { pool.build().ok() } else { None }
    };
    HELPERS.get_or_init(start).as_ref()
}

/// An image, its position in the input, and how it is preprocessed.
#[derive(Debug)]
pub(super) struct Fill<'a> {
    pub(super) preprocess: &'a Preprocess,
    pub(super) image: &'a Image,
    pub(super) placement: Placement,
    /// Size of the input before rotation.
    pub(super) input_size: Size,
    /// Whether the image is scaled with the filter of [`Preprocess::antialias`].
    pub(super) is_filtered: bool,
}

/// Buffers for the source rows that one thread processes.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    rows: ScaledRows,
    filtered: FilteredRows,
}

/// Buffers of one additional thread.
#[derive(Debug, Default)]
pub(super) struct Band {
    workspace: Workspace,
    /// Buffer for one line of the input; see [`InputRow`].
    lines: Vec<u8>,
}

impl Fill<'_> {
    /// Writes all lines of the input, on at most `n_threads` threads.
    pub(super) fn run(&self, target: InputRow<'_>, n_threads: usize, workspace: &mut Workspace, bands: &mut Vec<Band>, on: Simd) {
        let n_bands = if target.is_divisible() { self.n_bands(n_threads) } else { 1 };
        self.run_in(n_bands, target, workspace, bands, on);
    }

    fn run_in(&self, n_bands: usize, target: InputRow<'_>, workspace: &mut Workspace, bands: &mut Vec<Band>, on: Simd) {
        let n_lines = self.input_size.height as usize;
        let Some(helpers) = (if n_bands > 1 { helpers() } else { None }) else {
            return self.lines(0..n_lines, target, workspace, on);
        };
        if bands.len() < n_bands - 1 {
            bands.resize_with(n_bands - 1, Band::default);
        }
        // Bands divide the visible lines, because border lines cost almost nothing.
        let (_, visible) = self.placement.visible(self.input_size);
        let begin_of = |band_idx: usize| visible.start + visible.len() * band_idx / n_bands;
        helpers.in_place_scope(|scope| {
            let (mut target, mut end) = (target, n_lines);
            for (band_idx, Band { workspace, lines }) in (1..n_bands).rev().zip(bands) {
                let own = begin_of(band_idx)..end;
                end = own.start;
                let target = target.split_off(own.start, lines);
                scope.spawn(move |_| self.lines(own, target, workspace, on));
            }
            self.lines(0..end, target, workspace, on);
        });
    }

    fn n_bands(&self, n_threads: usize) -> usize {
        if n_threads < 2 {
            return 1;
        }
        let Size { width, height } = self.image.size();
        let cost = u64::from(width) * u64::from(height) * if self.is_filtered { FILTER_COST } else { 1 };
        let (_, visible) = self.placement.visible(self.input_size);
        usize::try_from(cost / PIXELS_PER_BAND).unwrap_or(usize::MAX).min(n_threads).min(visible.len()).max(1)
    }

    fn lines(&self, range: Range<usize>, mut target: InputRow<'_>, workspace: &mut Workspace, on: Simd) {
        let Self { preprocess, image, placement, input_size, is_filtered } = self;
        let (columns, visible) = placement.visible(*input_size);
        let visible = visible.start.max(range.start)..visible.end.min(range.end);
        let Workspace { rows, filtered } = workspace;
        if *is_filtered {
            filtered.begin(preprocess, image, placement, (columns.clone(), visible.clone()), on);
        } else {
            rows.begin(preprocess, image, placement, (columns.clone(), visible.clone()), on);
        }
        let border = preprocess.normalizers().map(|normalizer| normalizer.value(preprocess.pad));
        let (width, source_rows) = (input_size.width as usize, image.rows());
        for y in range {
            if !visible.contains(&y) {
                target.fill(y, 0, width, border);
                continue;
            }
            target.fill(y, 0, columns.start, border);
            target.fill(y, columns.end, width - columns.end, border);
            let line_idx = y - visible.start;
            let line = if *is_filtered { filtered.line(line_idx, source_rows, on) } else { rows.line(line_idx, source_rows, on) };
            target.blend(y, columns.start, columns.len(), &line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Colorimetry, Frame, PixelFormat};
    use crate::tensor::{ElementType, Tensor};
    use crate::{Anchor, ChannelOrder, InputLayout, Resize, Rotation, Rounding, Scratch};

    fn frame(format: PixelFormat, size: Size) -> Frame {
        let plane = |plane_idx: usize| {
            let shape = format.plane_shape(plane_idx, size);
            let n_bytes = shape.iter().product::<usize>();
            let bytes: Vec<u8> = (0..n_bytes).map(|idx| (idx * 7919 % 251) as u8).collect();
            Tensor::from_slice(shape, &bytes).unwrap()
        };
        let planes: Vec<Tensor> = (0..format.n_planes()).map(plane).collect();
        Frame::from_planes(format, size, &planes, Colorimetry::default()).unwrap()
    }

    #[test]
    fn bands_give_the_same_result_as_one_thread() {
        let resizes = [Resize::Stretch, Resize::Letterbox { anchor: Anchor::Center }, Resize::Crop];
        let mut n_divided = 0;
        // Reuse the buffers for all formats, so that they contain values of the previous format when a format is tested.
        let (mut workspace, mut bands) = (Workspace::default(), Vec::new());
        for case_idx in 0..96_u32 {
            let format = [PixelFormat::Nv12, PixelFormat::I420, PixelFormat::Rgb, PixelFormat::Gray8][case_idx as usize % 4];
            let size = Size::new(30 + case_idx * 7 % 90, 20 + case_idx * 11 % 70);
            let frame = frame(format, size);
            let layout = [InputLayout::Nchw, InputLayout::Nhwc][case_idx as usize / 4 % 2];
            let preprocess = Preprocess {
                layout,
                color: [ChannelOrder::Rgb, ChannelOrder::Gray][case_idx as usize / 48],
                resize: resizes[case_idx as usize % 3],
                antialias: case_idx / 8 % 2 == 1,
                rounding: [Rounding::Exact, Rounding::U8][case_idx as usize / 16 % 2],
                rotation: if case_idx % 5 == 4 { Rotation::Half } else { Rotation::None },
                ..Preprocess::default()
            };
            let (n_channels, height) = (preprocess.color.n_channels(), 3 + case_idx as usize % 40);
            let shape = match layout {
                InputLayout::Nchw => [2, n_channels, height, 33],
                InputLayout::Nhwc => [2, height, 33, n_channels],
            };
            let image = Image::of_frame(&frame).unwrap();
            let input_size = preprocess.input_size(&shape).unwrap();
            let placement = Placement::of_turned(preprocess.resize, preprocess.rotation, size, input_size);
            let is_filtered = preprocess.antialias;
            let fill = Fill { preprocess: &preprocess, image: &image, placement, input_size, is_filtered };
            let filled = [1, 2, 3, 7].map(|n_bands| {
                let input = Tensor::new(ElementType::F32, shape).unwrap();
                let (mut bytes, mut lines) = (input.bytes_mut().unwrap(), Vec::new());
                bytes.extent_mut().fill(0x55);
                let on = Simd::fastest();
                let target = InputRow::new(&mut bytes, layout, preprocess.rotation, 1, on, &mut lines).unwrap();
                let n_bands = if target.is_divisible() { n_bands.min(height) } else { 1 };
                n_divided += u32::from(n_bands > 1);
                fill.run_in(n_bands, target, &mut workspace, &mut bands, on);
                bytes.extent_mut().to_vec()
            });
            assert!(filled.iter().all(|bytes| *bytes == filled[0]), "case {case_idx}: {preprocess:?}");
        }
        assert!(n_divided > 200, "{n_divided}");
    }

    #[test]
    fn number_of_bands_depends_on_size_and_threads() {
        let n_bands = |width: u32, height: u32, antialias: bool, n_threads: usize| {
            let size = Size::new(width, height);
            let frame = frame(PixelFormat::Gray8, size);
            let (preprocess, input_size) = (Preprocess { antialias, ..Preprocess::default() }, Size::new(640, 640));
            let placement = Placement::of_turned(preprocess.resize, preprocess.rotation, size, input_size);
            let image = Image::of_frame(&frame).unwrap();
            Fill { preprocess: &preprocess, image: &image, placement, input_size, is_filtered: antialias }.n_bands(n_threads)
        };
        assert_eq!([n_bands(1280, 720, false, 8), n_bands(1920, 1080, false, 8), n_bands(3840, 2160, false, 8)], [1, 1, 3]);
        assert_eq!([n_bands(3840, 2160, false, 2), n_bands(3840, 2160, false, 1)], [2, 1]);
        assert_eq!([n_bands(1280, 720, true, 8), n_bands(3840, 2160, true, 8), n_bands(300, 300, true, 8)], [7, 8, 1]);
    }

    #[test]
    fn scratch_with_threads_gives_the_same_result() {
        let frame = frame(PixelFormat::Nv12, Size::new(2600, 2000));
        let filled = [1, 4].map(|n_threads| {
            let (input, mut scratch) = (Tensor::new(ElementType::F32, [1, 3, 97, 100]).unwrap(), Scratch::default());
            scratch.set_threads(n_threads);
            Preprocess::default().fill(&frame, &mut input.bytes_mut().unwrap(), 0, &mut scratch).unwrap();
            input.view::<f32>().unwrap().to_vec()
        });
        assert!(filled[0] == filled[1]);
    }
}
