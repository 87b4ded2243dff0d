//! Implements roiflow's preprocessing with other crates, as a baseline: `yuv` for RGB, `fast_image_resize` without antialiasing, and a
//! plain loop for normalized planes.

use std::hint::black_box;
use std::time::Instant;

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use yuv::{YuvBiPlanarImage, YuvConversionMode, YuvPlanarImage, YuvRange, YuvStandardMatrix, yuv_nv12_to_rgb, yuv420_to_rgb};

use roiflow_vision::frame::{PixelFormat, PixelRect};
use crate::{Case, Error, HEIGHT, MEAN, SCALE, WIDTH, mean};

/// Nanoseconds per run, and the mean of the values.
pub fn time(case: &Case, frame: &[u8], n_runs: usize) -> Result<(f64, f64), Error> {
    let mut values = vec![0.0; case.n_values()];
    let mut chain = Chain::new(case);
    let mut run = || -> Result<(), Error> {
        for (row, values) in values.chunks_exact_mut(case.n_values() / case.n_rows).enumerate() {
            chain.fill(case, black_box(frame), case.rect(row), values)?;
        }
        black_box(&mut values);
        Ok(())
    };
    run()?;
    let begin = Instant::now();
    for _ in 0..n_runs {
        run()?;
    }
    let ns = begin.elapsed().as_nanos() as f64 / n_runs as f64;
    Ok((ns, mean(&values)))
}

/// Buffers and options, created once.
struct Chain {
    rgb: Vec<u8>,
    scaled: Image<'static>,
    resizer: Resizer,
    options: ResizeOptions,
}

impl Chain {
    fn new(case: &Case) -> Self {
        let scaled = case.scaled();
        Self {
            rgb: vec![0; 3 * (case.region.width * case.region.height) as usize],
            scaled: Image::new(scaled.width, scaled.height, PixelType::U8x3),
            resizer: Resizer::new(),
            options: ResizeOptions::new().resize_alg(ResizeAlg::Interpolation(FilterType::Bilinear)),
        }
    }

    fn fill(&mut self, case: &Case, frame: &[u8], rect: PixelRect, values: &mut [f32]) -> Result<(), Error> {
        let (x, y) = (rect.x as usize, rect.y as usize);
        if case.format == PixelFormat::Rgb {
            let whole = ImageRef::new(WIDTH as u32, HEIGHT as u32, frame, PixelType::U8x3)?;
            let crop = self.options.crop(rect.x.into(), rect.y.into(), rect.width.into(), rect.height.into());
            self.resizer.resize(&whole, &mut self.scaled, &crop)?;
        } else {
            let (luma, chroma) = frame.split_at(WIDTH * HEIGHT);
            let (range, matrix, mode) = (YuvRange::Limited, YuvStandardMatrix::Bt601, YuvConversionMode::Balanced);
            let stride = 3 * rect.width;
            if case.format == PixelFormat::Nv12 {
                let picture = YuvBiPlanarImage {
                    y_plane: &luma[y * WIDTH + x..],
                    y_stride: WIDTH as u32,
                    uv_plane: &chroma[y / 2 * WIDTH + x..],
                    uv_stride: WIDTH as u32,
                    width: rect.width,
                    height: rect.height,
                };
                yuv_nv12_to_rgb(&picture, &mut self.rgb, stride, range, matrix, mode)?;
            } else {
                let (u, v) = chroma.split_at(chroma.len() / 2);
                let begin = y / 2 * (WIDTH / 2) + x / 2;
                let picture = YuvPlanarImage {
                    y_plane: &luma[y * WIDTH + x..],
                    y_stride: WIDTH as u32,
                    u_plane: &u[begin..],
                    u_stride: WIDTH as u32 / 2,
                    v_plane: &v[begin..],
                    v_stride: WIDTH as u32 / 2,
                    width: rect.width,
                    height: rect.height,
                };
                yuv420_to_rgb(&picture, &mut self.rgb, stride, range, matrix)?;
            }
            let picture = ImageRef::new(rect.width, rect.height, &self.rgb, PixelType::U8x3)?;
            self.resizer.resize(&picture, &mut self.scaled, &self.options)?;
        }
        let (width, height) = (case.input.width as usize, case.input.height as usize);
        let n_shown = self.scaled.height() as usize * width;
        let n_above = (height * width - n_shown) / 2 / width * width;
        for (channel, plane) in values.chunks_exact_mut(height * width).enumerate() {
            let (mean, factor) = (MEAN[channel], 1.0 / SCALE);
            let (above, rest) = plane.split_at_mut(n_above);
            let (shown, below) = rest.split_at_mut(n_shown);
            above.fill((114.0 - mean) * factor);
            below.fill((114.0 - mean) * factor);
            for (value, pixel) in shown.iter_mut().zip(self.scaled.buffer().as_chunks::<3>().0) {
                *value = (f32::from(pixel[channel]) - mean) * factor;
            }
        }
        Ok(())
    }
}
