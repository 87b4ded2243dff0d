//! Makes lines of text into bitmaps, with an outline font, and caches them.
//!
//! Each character is drawn at its own place from left to right: there is no shaping, so scripts that join or reorder letters, such as
//! Arabic and Devanagari, are readable only letter by letter. A character that no font has is drawn as a hollow box.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

use ab_glyph::{Font as _, FontArc, FontVec, GlyphId, PxScale, point};

use crate::frame::Size;

/// DejaVu Sans, reduced to the scripts in `scripts/make-font`, which creates this file.
static EMBEDDED: LazyLock<FontArc> = LazyLock::new(|| {
    FontArc::try_from_slice(include_bytes!("../fonts/DejaVuSans-subset.ttf")).expect("the embedded font is a font: a test reads it")
});

/// Largest font file that is read, in bytes. Fonts with all Chinese, Japanese and Korean characters have about 20 MB.
const MAX_FILE_BYTES: u64 = 128 << 20;
/// Smallest height of a line in pixels.
pub const MIN_HEIGHT: u32 = 16;
/// Largest height of a line in pixels.
pub const MAX_HEIGHT: u32 = 256;
/// Size of the em square, as a fraction of the height of a line.
const EM: f32 = 0.86;
/// Distance of the baseline from the top of a line, as a fraction of the height of a line.
const BASELINE: f32 = 0.8;
/// Number of positions between two pixels at which a glyph is rasterized.
const N_PHASES: u8 = 4;
/// The caches are emptied when they have more entries.
const MAX_GLYPHS: usize = 4096;
const MAX_LINES: usize = 512;

/// Returns a readable height of text for a frame of this size: about 1/30 of the shorter side, and at least 16 pixels.
pub fn height_for(size: Size) -> u32 {
    size.width.min(size.height) / 30
}

/// The fonts of a text. A character is taken from the first font that has it.
#[derive(Clone)]
pub struct Typeface(Vec<FontArc>);

impl Default for Typeface {
    /// The embedded font: DejaVu Sans, with Latin, Greek, Cyrillic, Hebrew, Georgian, Armenian and symbols.
    fn default() -> Self {
        Self(vec![EMBEDDED.clone()])
    }
}

impl fmt::Debug for Typeface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Typeface of {} fonts", self.0.len())
    }
}

/// The typeface of the font file that was read last, for a caller that draws each image with the same file.
#[derive(Debug, Default)]
pub struct LastTypeface(Option<(PathBuf, SystemTime, Typeface)>);

impl LastTypeface {
    /// Creates the store, without a typeface.
    pub const fn new() -> Self {
        Self(None)
    }

    /// Returns the typeface of a file. Reads the file only if its path or its modification time is not that of the last call.
    ///
    /// # Errors
    /// Returns the errors of [`Typeface::with_file`].
    pub fn of_file(&mut self, path: &Path) -> Result<Typeface, String> {
        let modified = path.metadata().and_then(|metadata| metadata.modified()).ok();
        if let Some((last, last_modified, typeface)) = &self.0
            && last == path
            && modified == Some(*last_modified)
        {
            return Ok(typeface.clone());
        }
        let typeface = Typeface::with_file(path)?;
        self.0 = modified.map(|modified| (path.to_owned(), modified, typeface.clone()));
        Ok(typeface)
    }
}

impl Typeface {
    /// Reads a font file in TrueType or OpenType format; of a collection, the first font. The embedded font draws what this font lacks.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, has more than 128 MiB, or is not a font.
    pub fn with_file(path: &Path) -> Result<Self, String> {
        let failed = |reason: String| format!("reading the font `{}` failed: {reason}", path.display());
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(|error| failed(error.to_string()))?;
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(failed(format!("expected at most {} MiB. Set a smaller font file", MAX_FILE_BYTES >> 20)));
        }
        let font = FontVec::try_from_vec(bytes).map_err(|_| {
            failed("expected a font in TrueType or OpenType format, got other data. Set a file with the ending .ttf, .otf or .ttc".into())
        })?;
        Ok(Self(vec![FontArc::new(font), EMBEDDED.clone()]))
    }

    /// The font that has this character, and the glyph.
    fn find(&self, character: char) -> Option<(&FontArc, GlyphId)> {
        self.0.iter().map(|font| (font, font.glyph_id(character))).find(|(_, id)| id.0 != 0)
    }
}

/// A line of text as coverage, 0 to 255 for each pixel. Width and height are even.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Bitmap {
    pub width: usize,
    pub height: usize,
    /// Row by row.
    pub coverage: Vec<u8>,
    /// Mean coverage of each 2x2 pixels, row by row: for subsampled chroma.
    pub half: Vec<u8>,
}

impl Bitmap {
    fn new(width: usize, height: usize) -> Self {
        let (width, height) = (width.next_multiple_of(2), height.next_multiple_of(2));
        Self { width, height, coverage: vec![0; width * height], half: Vec::new() }
    }

    /// Adds coverage; pixels outside the bitmap are ignored.
    fn add(&mut self, x: i32, y: i32, value: u8) {
        let at = |value: i32, limit: usize| usize::try_from(value).ok().filter(|value| *value < limit);
        if let (Some(x), Some(y)) = (at(x, self.width), at(y, self.height)) {
            let pixel = &mut self.coverage[y * self.width + x];
            *pixel = pixel.saturating_add(value);
        }
    }

    fn finish(mut self) -> Self {
        let rows = self.coverage.chunks_exact(2 * self.width.max(1));
        self.half = rows
            .flat_map(|rows| {
                let (upper, lower) = rows.split_at(self.width);
                upper.as_chunks::<2>().0.iter().zip(lower.as_chunks::<2>().0).map(|([a, b], [c, d])| {
                    let sum = u32::from(*a) + u32::from(*b) + u32::from(*c) + u32::from(*d);
                    (sum / 4) as u8
                })
            })
            .collect();
        self
    }
}

/// A rasterized character.
#[derive(Debug)]
struct Glyph {
    /// Position of the first pixel, relative to the pen and the baseline.
    left: i32,
    top: i32,
    width: usize,
    coverage: Vec<u8>,
}

/// A line in the cache.
#[derive(Debug)]
struct Line {
    bitmap: Arc<Bitmap>,
    /// The last frame that used the line.
    used_in: u64,
}

/// Makes lines of text, and caches their bitmaps and glyphs.
#[derive(Debug)]
pub struct Letters {
    typeface: Typeface,
    height: u32,
    max_width: u32,
    frame: u64,
    /// By character and position between two pixels.
    glyphs: HashMap<(char, u8), Glyph>,
    lines: HashMap<String, Line>,
}

impl Default for Letters {
    fn default() -> Self {
        Self::new(Typeface::default())
    }
}

impl Letters {
    /// Creates an empty cache.
    pub fn new(typeface: Typeface) -> Self {
        Self { typeface, height: MIN_HEIGHT, max_width: 0, frame: 0, glyphs: HashMap::new(), lines: HashMap::new() }
    }

    /// Begins a frame. `height` is the height of a line in pixels, limited to 16..=256 and rounded up to an even number. Lines that are wider
    /// than `max_width` pixels are cut.
    pub fn begin(&mut self, height: u32, max_width: u32) {
        let height = height.clamp(MIN_HEIGHT, MAX_HEIGHT).next_multiple_of(2);
        if (height, max_width) != (self.height, self.max_width) {
            (self.height, self.max_width) = (height, max_width);
            self.glyphs.clear();
            self.lines.clear();
        }
        self.frame += 1;
        if self.glyphs.len() > MAX_GLYPHS {
            self.glyphs.clear();
        }
        if self.lines.len() > MAX_LINES {
            // Lines of the last frame are likely to be used again.
            let last = self.frame - 1;
            self.lines.retain(|_, line| line.used_in == last);
        }
    }

    /// Height of a line in pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Returns the bitmap of one line of text, from the cache if it was drawn before. Line breaks and other control characters are spaces.
    pub fn line(&mut self, text: &str) -> Arc<Bitmap> {
        if let Some(line) = self.lines.get_mut(text) {
            line.used_in = self.frame;
            return line.bitmap.clone();
        }
        let bitmap = Arc::new(self.draw(text));
        self.lines.insert(text.to_owned(), Line { bitmap: bitmap.clone(), used_in: self.frame });
        bitmap
    }

    fn draw(&mut self, text: &str) -> Bitmap {
        let margin = self.height as f32 / 6.0;
        let characters: Vec<char> = self.fitting(text, self.max_width as f32 - 2.0 * margin);
        let width = 2.0 * margin + characters.iter().map(|character| self.advance(*character)).sum::<f32>();
        let mut bitmap = Bitmap::new(width.ceil() as usize, self.height as usize);
        let baseline = (self.height as f32 * BASELINE).round() as i32;
        let mut pen = margin;
        for character in characters {
            let steps = (pen * f32::from(N_PHASES)).round() as i32;
            let (x, phase) = (steps.div_euclid(i32::from(N_PHASES)), steps.rem_euclid(i32::from(N_PHASES)) as u8);
            let glyph = self.glyph(character, phase);
            for (idx, value) in glyph.coverage.iter().enumerate().filter(|(_, value)| **value > 0) {
                let (column, row) = ((idx % glyph.width) as i32, (idx / glyph.width) as i32);
                bitmap.add(x + glyph.left + column, baseline + glyph.top + row, *value);
            }
            pen += self.advance(character);
        }
        bitmap.finish()
    }

    /// The characters that fit in this width. If some do not fit, the last character is an ellipsis.
    fn fitting(&self, text: &str, width: f32) -> Vec<char> {
        let mut characters = Vec::new();
        let (mut end, mut n_fitting) = (0.0, 0);
        for character in text.chars().filter(|character| !is_invisible(*character)) {
            let character = if character.is_control() { ' ' } else { character };
            end += self.advance(character);
            if end > width {
                characters.truncate(n_fitting);
                characters.push('…');
                break;
            }
            characters.push(character);
            if end + self.advance('…') <= width {
                n_fitting = characters.len();
            }
        }
        characters
    }

    fn advance(&self, character: char) -> f32 {
        let em = self.height as f32 * EM;
        match self.typeface.find(character) {
            Some((font, id)) => font.h_advance_unscaled(id) / font.units_per_em().unwrap_or(1000.0) * em,
            None => 0.65 * em,
        }
    }

    fn glyph(&mut self, character: char, phase: u8) -> &Glyph {
        let (typeface, height) = (&self.typeface, self.height as f32);
        self.glyphs.entry((character, phase)).or_insert_with(|| match typeface.find(character) {
            Some((font, id)) => outline(font, id, height * EM, f32::from(phase) / f32::from(N_PHASES)),
            None => hollow_box(height * EM),
        })
    }
}

/// Whether a character has no shape of its own: joiners, marks of direction, variation selectors.
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}')
}

/// Rasterizes a glyph. `shift` moves it to the right, 0 to 1 pixels.
fn outline(font: &FontArc, id: GlyphId, em: f32, shift: f32) -> Glyph {
    let scale = PxScale::from(em * font.height_unscaled() / font.units_per_em().unwrap_or(1000.0));
    let Some(outlined) = font.outline_glyph(id.with_scale_and_position(scale, point(shift, 0.0))) else {
        return Glyph { left: 0, top: 0, width: 0, coverage: Vec::new() };
    };
    let bounds = outlined.px_bounds();
    let (width, height) = (bounds.width().ceil() as usize, bounds.height().ceil() as usize);
    // A font file may claim a glyph of any size.
    if width.max(height) > 16 * MAX_HEIGHT as usize {
        return Glyph { left: 0, top: 0, width: 0, coverage: Vec::new() };
    }
    let mut coverage = vec![0; width * height];
    outlined.draw(|x, y, part| {
        if let Some(pixel) = coverage.get_mut(y as usize * width + x as usize) {
            *pixel = (part.clamp(0.0, 1.0) * 255.0).round() as u8;
        }
    });
    Glyph { left: bounds.min.x as i32, top: bounds.min.y as i32, width, coverage }
}

/// The shape of a character that no font has.
fn hollow_box(em: f32) -> Glyph {
    let (width, height) = ((0.5 * em).round().max(3.0) as usize, (0.73 * em).round().max(4.0) as usize);
    let stroke = (em / 14.0).round().max(1.0) as usize;
    let is_edge = |at: usize, extent: usize| at < stroke || at + stroke >= extent;
    let pixels = (0..width * height).map(|idx| if is_edge(idx % width, width) || is_edge(idx / width, height) { 255 } else { 0 });
    Glyph { left: (0.07 * em) as i32, top: -(height as i32), width, coverage: pixels.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters(height: u32, max_width: u32) -> Letters {
        let mut letters = Letters::default();
        letters.begin(height, max_width);
        letters
    }

    #[test]
    fn characters_of_many_scripts_have_different_shapes() {
        let mut letters = letters(32, 1000);
        let mut drawn = Vec::new();
        for text in ["A", "é", "ł", "ß", "Ω", "Ж", "ק", "ა", "Ա", "€", "→", "½", "ế", "✓", "?"] {
            let bitmap = letters.line(text);
            assert!(bitmap.coverage.iter().any(|value| *value > 200), "{text} is drawn");
            assert!(!drawn.contains(&bitmap), "{text} has a shape of its own");
            drawn.push(bitmap);
        }
        let missing = letters.line("字");
        assert!(missing.coverage.contains(&255) && !drawn.contains(&missing), "a missing character is a box");
        assert_eq!(missing, letters.line("𓀀"), "all missing characters look the same");
    }

    #[test]
    fn text_is_antialiased_and_its_half_is_the_mean() {
        let bitmap = letters(32, 1000).line("aS8");
        let values: std::collections::BTreeSet<u8> = bitmap.coverage.iter().copied().collect();
        assert!(values.len() > 16, "expected many gray levels, got {values:?}");
        assert_eq!((bitmap.width % 2, bitmap.height, bitmap.half.len() * 4), (0, 32, bitmap.coverage.len()));
        let (x, y) = (bitmap.width / 4, 8);
        let sum: u32 = [(0, 0), (1, 0), (0, 1), (1, 1)]
            .map(|(dx, dy)| u32::from(bitmap.coverage[(2 * y + dy) * bitmap.width + 2 * x + dx]))
            .iter()
            .sum();
        assert_eq!(u32::from(bitmap.half[y * bitmap.width / 2 + x]), sum / 4);
    }

    #[test]
    fn digits_have_one_width() {
        let mut letters = letters(32, 1000);
        let width = letters.line("0.00").width;
        assert!((1..10).all(|digit| letters.line(&format!("{digit}.{digit}{digit}")).width == width), "captions do not tremble");
    }

    #[test]
    fn text_wider_than_the_frame_ends_in_an_ellipsis() {
        let mut letters = letters(16, 80);
        let (long, short) = (letters.line(&"m".repeat(10_000)), letters.line("m"));
        assert!(long.width <= 80 && long.width > 50 && short.width < 30, "{} and {}", long.width, short.width);
        letters.begin(16, 3);
        assert!(letters.line("mmm").width < 30, "a frame that is narrower than one character");
    }

    #[test]
    fn letters_grow_with_the_frame() {
        let height = |width, height| {
            let mut letters = Letters::default();
            letters.begin(height_for(Size::new(width, height)), width);
            letters.height()
        };
        assert_eq!([height(320, 180), height(640, 480), height(1280, 720), height(1920, 1080)], [16, 16, 24, 36]);
        assert_eq!([height(1080, 1920), height(3840, 2160), height(7680, 4320), height(1, 1)], [36, 72, 144, 16]);
        assert_eq!([17, 40, 256, u32::MAX].map(|height| letters(height, 99).height()), [18, 40, 256, 256]);
        let (small, large) = (letters(16, 999).line("E").coverage.clone(), letters(64, 999).line("E").coverage.clone());
        let mean = |values: &[u8]| values.iter().map(|value| u32::from(*value)).sum::<u32>() / values.len() as u32;
        assert!(mean(&small).abs_diff(mean(&large)) < 12, "{} and {}", mean(&small), mean(&large));
    }

    #[test]
    fn caches_stay_bounded() {
        let mut letters = letters(16, 200);
        for n in 0..2000 {
            letters.begin(16, 200);
            letters.line("always");
            letters.line(&format!("{n}"));
        }
        assert!(letters.lines.len() <= MAX_LINES + 3 && letters.lines.contains_key("always"), "{}", letters.lines.len());
        for character in ('\u{100}'..'\u{3000}').chain('\u{4e00}'..'\u{5e00}') {
            letters.begin(16, 200);
            letters.line(&character.to_string());
        }
        assert!(letters.glyphs.len() <= MAX_GLYPHS + 1, "{}", letters.glyphs.len());
    }

    #[test]
    fn invisible_and_control_characters_do_not_show_as_boxes() {
        let mut letters = letters(16, 200);
        assert_eq!(letters.line("a\u{200D}b\u{FE0F}"), letters.line("ab"));
        assert_eq!(letters.line("a\nb\u{0}"), letters.line("a b "));
    }

    #[test]
    fn font_file_comes_first_and_errors_name_the_file() {
        let path = std::env::temp_dir().join(format!("roiflow-font-{}.ttf", std::process::id()));
        std::fs::write(&path, include_bytes!("../fonts/DejaVuSans-subset.ttf")).unwrap();
        let read = Typeface::with_file(&path);
        std::fs::write(&path, b"not a font").unwrap();
        let wrong = Typeface::with_file(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap().0.len(), 2);
        let (wrong, gone) = (wrong.unwrap_err(), Typeface::with_file(&path).unwrap_err());
        assert!(wrong.contains("TrueType") && wrong.contains("roiflow-font"), "{wrong}");
        assert!(gone.contains("roiflow-font") && gone.starts_with("reading the font"), "{gone}");
    }

    #[test]
    fn last_font_is_read_again_only_if_its_file_has_changed() {
        let path = std::env::temp_dir().join(format!("roiflow-last-font-{}.ttf", std::process::id()));
        let write = |bytes: &[u8], seconds: u64| {
            std::fs::write(&path, bytes).unwrap();
            let modified = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        };
        let mut last = LastTypeface::new();
        write(include_bytes!("../fonts/DejaVuSans-subset.ttf"), 1000);
        assert_eq!(last.of_file(&path).unwrap().0.len(), 2);
        write(b"not a font", 1000);
        assert_eq!(last.of_file(&path).unwrap().0.len(), 2, "the file is not read again");
        write(b"not a font", 1001);
        assert!(last.of_file(&path).unwrap_err().contains("TrueType"));
        assert!(last.of_file(Path::new("/gone.ttf")).unwrap_err().contains("gone.ttf"), "another file");
        std::fs::remove_file(&path).unwrap();
        assert!(last.of_file(&path).unwrap_err().starts_with("reading the font"));
    }
}
