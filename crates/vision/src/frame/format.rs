//! Pixel formats and colorimetry: planes, chroma subsampling, color matrix and range.

use std::fmt;

use super::Size;
use crate::tensor::{ElementType, Shape};

/// Arrangement of pixels in memory. Uses the names and byte orders of GStreamer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PixelFormat {
    /// Luma plane, and a plane of interleaved U and V at half width and height.
    Nv12,
    /// Luma plane, U plane and V plane; U and V at half width and height.
    I420,
    /// NV12 with 10-bit samples in the upper bits of little-endian 16-bit words. The lower six bits are 0.
    P010,
    /// I420 with 10-bit samples in the lower bits of little-endian 16-bit words.
    I420Ten,
    Rgb,
    Bgr,
    Rgbx,
    Bgrx,
    Rgba,
    Bgra,
    Gray8,
    /// Like RGBx, with the unused byte first.
    Xrgb,
    /// Like BGRx, with the unused byte first.
    Xbgr,
    /// Opacity, red, green and blue.
    Argb,
    /// Opacity, blue, green and red.
    Abgr,
    /// Planes of green, blue and red.
    Gbr,
    /// GBR, and a plane of opacity, which is not used.
    Gbra,
    /// I420, and a plane of opacity, which is not used.
    A420,
    /// Luma plane, U plane and V plane; U and V at half width.
    Y42b,
    /// Luma plane, U plane and V plane, all of the same size.
    Y444,
    /// Y42B with 10-bit samples in the lower bits of little-endian 16-bit words.
    I422Ten,
    /// Y444 with 10-bit samples in the lower bits of little-endian 16-bit words.
    Y444Ten,
    /// Two pixels in four bytes: Y, U, Y, V.
    Yuy2,
    /// Two pixels in four bytes: U, Y, V, Y.
    Uyvy,
    /// Opacity, Y, U and V.
    Ayuv,
}

/// Position of the samples of a component in the planes of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ComponentPlace {
    pub plane_idx: usize,
    /// Offset of the first sample in a row.
    pub offset_bytes: usize,
    /// Distance of adjacent samples in a row.
    pub stride_bytes: usize,
    /// Number of pixels that share a sample, per axis: 1 or 2.
    pub n_pixels: (usize, usize),
}

impl PixelFormat {
    /// All formats.
    pub const ALL: [PixelFormat; 25] = [
        Self::Nv12,
        Self::I420,
        Self::P010,
        Self::I420Ten,
        Self::Rgb,
        Self::Bgr,
        Self::Rgbx,
        Self::Bgrx,
        Self::Rgba,
        Self::Bgra,
        Self::Gray8,
        Self::Xrgb,
        Self::Xbgr,
        Self::Argb,
        Self::Abgr,
        Self::Gbr,
        Self::Gbra,
        Self::A420,
        Self::Y42b,
        Self::Y444,
        Self::I422Ten,
        Self::Y444Ten,
        Self::Yuy2,
        Self::Uyvy,
        Self::Ayuv,
    ];

    /// Returns GStreamer's name of the format in caps.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nv12 => "NV12",
            Self::I420 => "I420",
            Self::P010 => "P010_10LE",
            Self::I420Ten => "I420_10LE",
            Self::Rgb => "RGB",
            Self::Bgr => "BGR",
            Self::Rgbx => "RGBx",
            Self::Bgrx => "BGRx",
            Self::Rgba => "RGBA",
            Self::Bgra => "BGRA",
            Self::Gray8 => "GRAY8",
            Self::Xrgb => "xRGB",
            Self::Xbgr => "xBGR",
            Self::Argb => "ARGB",
            Self::Abgr => "ABGR",
            Self::Gbr => "GBR",
            Self::Gbra => "GBRA",
            Self::A420 => "A420",
            Self::Y42b => "Y42B",
            Self::Y444 => "Y444",
            Self::I422Ten => "I422_10LE",
            Self::Y444Ten => "Y444_10LE",
            Self::Yuy2 => "YUY2",
            Self::Uyvy => "UYVY",
            Self::Ayuv => "AYUV",
        }
    }

    /// Returns the format with this GStreamer name; `None` if the format is not supported.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Returns the number of planes. Planes of opacity do not count.
    pub const fn n_planes(self) -> usize {
        match self {
            Self::Nv12 | Self::P010 => 2,
            Self::I420 | Self::I420Ten | Self::A420 | Self::Y42b | Self::Y444 | Self::I422Ten | Self::Y444Ten | Self::Gbr | Self::Gbra => 3,
            _ => 1,
        }
    }

    /// Returns the distance of adjacent pixels in plane 0, in bytes.
    pub const fn pixel_bytes(self) -> usize {
        match self {
            Self::Nv12 | Self::I420 | Self::Gray8 | Self::A420 | Self::Y42b | Self::Y444 | Self::Gbr | Self::Gbra => 1,
            Self::P010 | Self::I420Ten | Self::I422Ten | Self::Y444Ten | Self::Yuy2 | Self::Uyvy => 2,
            Self::Rgb | Self::Bgr => 3,
            Self::Rgbx | Self::Bgrx | Self::Rgba | Self::Bgra | Self::Xrgb | Self::Xbgr | Self::Argb | Self::Abgr | Self::Ayuv => 4,
        }
    }

    /// Returns the offsets of red, green and blue in a pixel, in bytes. `None` for YUV and gray formats, and for planes of colors.
    pub const fn rgb_offsets(self) -> Option<[usize; 3]> {
        match self {
            Self::Rgb | Self::Rgbx | Self::Rgba => Some([0, 1, 2]),
            Self::Bgr | Self::Bgrx | Self::Bgra => Some([2, 1, 0]),
            Self::Xrgb | Self::Argb => Some([1, 2, 3]),
            Self::Xbgr | Self::Abgr => Some([3, 2, 1]),
            _ => None,
        }
    }

    /// Whether the components are red, green and blue.
    pub const fn is_rgb(self) -> bool {
        self.rgb_offsets().is_some() || matches!(self, Self::Gbr | Self::Gbra)
    }

    /// Returns the offset of luma in a pixel of plane 0, in bytes; 0 for RGB formats.
    pub const fn luma_offset(self) -> usize {
        matches!(self, Self::Uyvy | Self::Ayuv) as usize
    }

    /// Returns the places of red, green and blue, or of luma, U and V. Gray has the same place three times.
    pub fn components(self) -> [ComponentPlace; 3] {
        let n = self.element().size();
        let place = |plane_idx, offset_bytes, stride_bytes| ComponentPlace { plane_idx, offset_bytes, stride_bytes, n_pixels: (1, 1) };
        let chroma = |plane_idx, offset_bytes, stride_bytes| ComponentPlace {
            n_pixels: self.chroma_pixels(),
            ..place(plane_idx, offset_bytes, stride_bytes)
        };
        let luma = place(0, self.luma_offset(), self.pixel_bytes());
        match self {
            Self::Gray8 => [luma; 3],
            Self::Nv12 | Self::P010 => [luma, chroma(1, 0, 2 * n), chroma(1, n, 2 * n)],
            Self::Yuy2 | Self::Uyvy => [luma, chroma(0, 1 - self.luma_offset(), 4), chroma(0, 3 - self.luma_offset(), 4)],
            Self::Ayuv => [luma, place(0, 2, 4), place(0, 3, 4)],
            Self::Gbr | Self::Gbra => [place(2, 0, 1), luma, place(1, 0, 1)],
            _ => match self.rgb_offsets() {
                Some(offsets) => offsets.map(|offset| place(0, offset, self.pixel_bytes())),
                None => [luma, chroma(1, 0, n), chroma(2, 0, n)],
            },
        }
    }

    /// Returns the number of pixels that share a chroma sample, per axis: 1 or 2.
    pub const fn chroma_pixels(self) -> (usize, usize) {
        match self {
            _ if self.is_subsampled() => (2, 2),
            Self::Y42b | Self::I422Ten | Self::Yuy2 | Self::Uyvy => (2, 1),
            _ => (1, 1),
        }
    }

    /// Whether chroma has one sample for 2x2 pixels.
    pub const fn is_subsampled(self) -> bool {
        matches!(self, Self::Nv12 | Self::I420 | Self::P010 | Self::I420Ten | Self::A420)
    }

    /// Whether U and V are interleaved in a plane of their own.
    pub const fn has_interleaved_chroma(self) -> bool {
        matches!(self, Self::Nv12 | Self::P010)
    }

    /// Whether plane 0 has two pixels in four bytes, so that regions begin and end between two such groups.
    pub const fn has_pixel_pairs(self) -> bool {
        matches!(self, Self::Yuy2 | Self::Uyvy)
    }

    /// Returns the element type of a sample in memory.
    pub const fn element(self) -> ElementType {
        match self.depth() {
            8 => ElementType::U8,
            _ => ElementType::U16,
        }
    }

    /// Returns the number of bits of a sample.
    pub const fn depth(self) -> u32 {
        match self {
            Self::P010 | Self::I420Ten | Self::I422Ten | Self::Y444Ten => 10,
            _ => 8,
        }
    }

    /// Returns the number of unused bits below the bits of the sample.
    pub const fn n_low_bits(self) -> u32 {
        match self {
            Self::P010 => 6,
            _ => 0,
        }
    }

    /// Returns the shape of a plane: `[rows, columns]` or `[rows, columns, channels]`. If the width or height is odd, half of it
    /// is rounded up for chroma planes, and for formats with two pixels in four bytes.
    pub fn plane_shape(self, plane_idx: usize, size: Size) -> Shape {
        let (width, height) = (size.width as usize, size.height as usize);
        let (of_width, of_height) = self.chroma_pixels();
        match plane_idx {
            _ if self.has_pixel_pairs() => Shape::from([height, width.div_ceil(2), 4]),
            1 if self.has_interleaved_chroma() => Shape::from([height.div_ceil(2), width.div_ceil(2), 2]),
            1 | 2 => Shape::from([height.div_ceil(of_height), width.div_ceil(of_width)]),
            _ if self.pixel_bytes() == self.element().size() => Shape::from([height, width]),
            _ => Shape::from([height, width, self.pixel_bytes()]),
        }
    }
}

impl fmt::Display for PixelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Matrix of the conversion between Y'CbCr and R'G'B'.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ColorMatrix {
    #[default]
    Bt601,
    Bt709,
    Bt2020,
}

impl ColorMatrix {
    /// Returns the weights of red and blue in luma, `(Kr, Kb)`. Sources: ITU-R BT.601-7, BT.709-6, BT.2020-2.
    pub const fn kr_kb(self) -> (f32, f32) {
        match self {
            Self::Bt601 => (0.299, 0.114),
            Self::Bt709 => (0.2126, 0.0722),
            Self::Bt2020 => (0.2627, 0.0593),
        }
    }
}

/// Range of sample values from black to white.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ColorRange {
    /// Luma 16 to 235, chroma 16 to 240. For samples of more than 8 bits, these values are multiplied by a power of two.
    #[default]
    Limited,
    /// 0 to 255. For samples of more than 8 bits, 0 to the largest sample.
    Full,
}

/// Color matrix and range of a frame. Has no effect if the format is RGB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Colorimetry {
    pub matrix: ColorMatrix,
    pub range: ColorRange,
}

/// Coefficients of the conversion of stored samples to colors: `r = y * (Y - y_offset) + r_v * (V - c_offset)`, and so on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct YuvCoefficients {
    pub y_offset: i32,
    pub c_offset: i32,
    pub y: f32,
    pub r_v: f32,
    pub g_u: f32,
    pub g_v: f32,
    pub b_u: f32,
}

impl Colorimetry {
    /// Returns the coefficients that convert samples of `format` to red, green and blue in 0..=255.
    pub fn yuv_coefficients(self, format: PixelFormat) -> YuvCoefficients {
        let (kr, kb) = self.matrix.kr_kb();
        let kg = 1.0 - kr - kb;
        // Both factors are powers of two, so that the scaling is exact.
        let (beyond_eight, below) = (1 << (format.depth() - 8), 1 << format.n_low_bits());
        let unit = (beyond_eight * below) as f32;
        let (black, y, c) = match self.range {
            ColorRange::Limited => (16 * beyond_eight, 255.0 / 219.0 / unit, 255.0 / 224.0 / unit),
            ColorRange::Full => {
                let all = 255.0 / (256 * beyond_eight - 1) as f32 / below as f32;
                (0, all, all)
            }
        };
        YuvCoefficients {
            y_offset: black * below,
            c_offset: 128 * beyond_eight * below,
            y,
            r_v: 2.0 * (1.0 - kr) * c,
            g_u: -2.0 * (1.0 - kb) * kb / kg * c,
            g_v: -2.0 * (1.0 - kr) * kr / kg * c,
            b_u: 2.0 * (1.0 - kb) * c,
        }
    }
}
