//! Writes frames with boxes as image files: `--images FOLDER` and `--video 'FOLDER/{source}.jpg'`.
//!
//! A file is written under a temporary name and then renamed. So readers never see a partial image, and a link with the name of
//! the file is replaced, not followed.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gst::prelude::*;
use gst_video::VideoFrameExt;
use gstreamer as gst;
use gstreamer_app as gst_app;
use gstreamer_video as gst_video;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

use super::{Error, Input, Outputs, Plan, Result, streams};
use crate::elements::{caps, meta, origin, retry};
use crate::frame::Size;
use crate::publish::IfExists;

/// Placeholder in the path of image files. For an input image, it is replaced by the name of the image without its extension. For
/// a frame of a video, it is replaced by the name of the video and the frame number.
pub const PLACEHOLDER: &str = "{source}";

const SINK: &str = "roiflow-images";
/// Quality of JPEG files, the same as that of typical cameras.
const JPEG_QUALITY: u8 = 95;

/// Destination of image files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFiles {
    /// Path of each file, with placeholders. It has no extension if the input decides the format.
    template: PathBuf,
    ending: Ending,
}

/// Format of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// JPEG for JPEG images and videos, PNG for all other images.
    OfInput,
    /// The format of the template's extension.
    OfTemplate(Format),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Jpeg,
    Png,
}

impl Format {
    /// Returns the format for the extension of a file name; `None` if the extension is not one of an image format.
    fn of(path: &Path) -> Option<Self> {
        match &*path.extension()?.to_string_lossy().to_lowercase() {
            "jpg" | "jpeg" => Some(Self::Jpeg),
            "png" => Some(Self::Png),
            _ => None,
        }
    }
}

impl fmt::Display for ImageFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = match self.ending {
            Ending::OfInput => folder_of(&self.template),
            Ending::OfTemplate(_) => &self.template,
        };
        write!(f, "{}", shown.display())
    }
}

impl ImageFiles {
    /// Writes one file per image into this folder, under the name of the image. A missing folder is created.
    pub fn in_folder(folder: &Path) -> Self {
        Self { template: folder.join(PLACEHOLDER), ending: Ending::OfInput }
    }

    /// Writes one file per image to paths such as `out/{source}.jpg`. Returns `None` if the path names a video.
    ///
    /// # Errors
    /// Returns `Usage` if the path has a placeholder but the extension of a video.
    pub fn of_template(path: &Path) -> Result<Option<Self>> {
        match Format::of(path) {
            Some(format) => Ok(Some(Self { template: path.to_owned(), ending: Ending::OfTemplate(format) })),
            None if path.to_string_lossy().contains(PLACEHOLDER) => Err(Error::usage(format!(
                "video `{}`: expected a file name that ends in .jpg or .png, because {PLACEHOLDER} is the name of one image",
                path.display()
            ))),
            None => Ok(None),
        }
    }

    /// Returns the files of the stream with this name.
    #[must_use]
    pub fn of_stream(&self, name: &str) -> Self {
        Self { template: replaced(&self.template, streams::PLACEHOLDER, OsStr::new(name)), ..self.clone() }
    }

    /// Whether the path depends on the stream name.
    pub fn has_stream(&self) -> bool {
        self.template.to_string_lossy().contains(streams::PLACEHOLDER)
    }

    fn target(&self, stem: &OsStr, of_input: Format) -> PathBuf {
        let path = replaced(&self.template, PLACEHOLDER, stem);
        match self.ending {
            Ending::OfTemplate(_) => path,
            Ending::OfInput => {
                let ending = if of_input == Format::Jpeg { ".jpg" } else { ".png" };
                [path.as_os_str(), OsStr::new(ending)].into_iter().collect::<OsString>().into()
            }
        }
    }

    /// Returns the output files of all images. If several images have the same name without extension, their output files get the complete
    /// name or a number.
    fn targets(&self, images: &[PathBuf]) -> Vec<PathBuf> {
        let mut taken: HashSet<PathBuf> = HashSet::with_capacity(images.len());
        let mut n_alike: HashMap<&OsStr, u32> = HashMap::new();
        let mut targets = Vec::with_capacity(images.len());
        for image in images {
            let format = Format::of(image).unwrap_or(Format::Png);
            let stem = image.file_stem().unwrap_or_default();
            let name = image.file_name().unwrap_or_default();
            let mut target = [stem, name].into_iter().map(|stem| self.target(stem, format)).find(|target| !taken.contains(target));
            let n_alike = n_alike.entry(stem).or_insert(1);
            while target.is_none() {
                *n_alike += 1;
                let numbered: OsString = [stem, OsStr::new(&format!("-{n_alike}"))].into_iter().collect();
                target = Some(self.target(&numbered, format)).filter(|target| !taken.contains(target));
            }
            taken.extend(target.clone());
            targets.extend(target);
        }
        targets
    }

    /// Checks that no output file is an input image.
    ///
    /// # Errors
    /// Returns `Usage` if an output file is an input image; the message names the file or the folder.
    pub(super) fn check(&self, input: &Input) -> Result<()> {
        self.check_way_back()?;
        let has_names = self.template.to_string_lossy().contains(PLACEHOLDER);
        let Input::Images(images) = input else {
            return if has_names { Ok(()) } else { Err(self.needs_names()) };
        };
        if !has_names && images.len() > 1 {
            return Err(self.needs_names());
        }
        let identity = |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        if self.ending == Ending::OfInput {
            let folder = self.template.parent().unwrap_or(Path::new("."));
            if folder.exists() && !folder.is_dir() {
                return Err(Error::usage(format!("--images `{}`: expected a folder, got a file", folder.display())));
            }
            let folders: HashSet<&Path> = images.iter().map(|image| folder_of(image)).collect();
            let own = identity(folder);
            if own.is_some() && folders.into_iter().any(|folder| identity(folder) == own) {
                return Err(Error::usage(format!(
                    "--images `{}`: expected another folder than that of the input images, which would be overwritten",
                    folder.display()
                )));
            }
        }
        let targets = self.targets(images);
        if !targets.iter().any(|target| fs::symlink_metadata(target).is_ok()) {
            return Ok(());
        }
        let inputs: HashSet<_> = images.iter().filter_map(|image| identity(image)).collect();
        match targets.iter().find(|target| identity(target).is_some_and(|target| inputs.contains(&target))) {
            Some(target) => Err(Error::usage(format!(
                "cannot write images to `{}`: this file is an input image. Write to another folder",
                target.display()
            ))),
            None => Ok(()),
        }
    }

    /// Refuses a path such as `new/../out` if `new` does not exist. Until `new` is created, it is unknown which folder the path names.
    ///
    /// # Errors
    /// Returns `Usage` with the folder if `..` follows a folder that does not exist.
    fn check_way_back(&self) -> Result<()> {
        let mut folder = PathBuf::new();
        for component in self.template.components() {
            if component == Component::ParentDir && folder.components().next().is_some() && !folder.is_dir() {
                return Err(Error::usage(format!(
                    "images `{}`: expected `..` after an existing folder, got `{}`, which does not exist; create it first, or leave it out",
                    self.template.display(),
                    folder.display()
                )));
            }
            folder.push(component);
        }
        Ok(())
    }

    /// Refuses output files that exist. For a video, the names of the files are known only when its frames arrive, so nothing is
    /// checked.
    ///
    /// # Errors
    /// Returns `Usage`, with the file, if a file exists.
    fn check_new(&self, input: &Input) -> Result<()> {
        let Input::Images(images) = input else { return Ok(()) };
        match self.targets(images).into_iter().find(|target| fs::symlink_metadata(target).is_ok()) {
            Some(target) => Err(Error::usage(format!(
                "images `{}`: expected a new file, because of --no-overwrite, but the file exists. Remove the file, or write to another folder",
                target.display()
            ))),
            None => Ok(()),
        }
    }

    fn needs_names(&self) -> Error {
        Error::usage(format!(
            "images `{}`: expected one file per frame, got one file for all; add {PLACEHOLDER} to the name, as in out/{PLACEHOLDER}.jpg",
            self.template.display()
        ))
    }
}

/// Checks that no image that a stream writes is an input of any stream, or is also written by another stream.
///
/// # Errors
/// Returns `Usage`, with the file, if a stream would overwrite an image.
pub fn check_streams<'a>(plans: impl IntoIterator<Item = &'a Plan>) -> Result<()> {
    let plans: Vec<&Plan> = plans.into_iter().collect();
    let inputs = || plans.iter().map(|plan| &plan.input);
    for images in plans.iter().filter_map(|plan| plan.outputs.images.as_ref()) {
        inputs().filter(|input| matches!(input, Input::Images(_))).try_for_each(|input| images.check_against(input))?;
    }
    Ok(())
}

impl ImageFiles {
    /// Checks that no output file is an input image of another stream.
    fn check_against(&self, input: &Input) -> Result<()> {
        let Input::Images(images) = input else { return Ok(()) };
        let folder = folder_of(&self.template);
        let identity = |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        let own = identity(folder);
        match images.iter().find(|image| own.is_some() && identity(folder_of(image)) == own) {
            Some(image) if self.ending == Ending::OfInput || self.format_is_of(image) => Err(Error::usage(format!(
                "cannot write images to `{}`: the input `{}` is in this folder. Write to another folder",
                folder.display(),
                image.display()
            ))),
            _ => Ok(()),
        }
    }

    fn format_is_of(&self, image: &Path) -> bool {
        self.template.extension() == image.extension()
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn replaced(path: &Path, what: &str, by: &OsStr) -> PathBuf {
    let (bytes, what) = (path.as_os_str().as_bytes(), what.as_bytes());
    let (mut replaced, mut at) = (Vec::with_capacity(bytes.len() + by.len()), 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(what) {
            replaced.extend_from_slice(by.as_bytes());
            at += what.len();
        } else {
            replaced.push(bytes[at]);
            at += 1;
        }
    }
    OsString::from_vec(replaced).into()
}

/// Returns the image files that a plan writes for its input images. Empty for a video, because the files are unknown until its
/// frames arrive.
pub(super) fn targets(plan: &Plan) -> Vec<PathBuf> {
    match (&plan.outputs.images, &plan.input) {
        (Some(images), Input::Images(paths)) => images.targets(paths),
        _ => Vec::new(),
    }
}

/// Returns the elements for `{video}`. If images are requested, adds a branch that writes images.
pub(super) fn with_branch(video: String, outputs: &Outputs, input: &Input) -> Result<String> {
    let Some(images) = &outputs.images else { return Ok(video) };
    images.check(input)?;
    if outputs.if_exists == IfExists::Fail {
        images.check_new(input)?;
    }
    let write = format!("videoconvert ! video/x-raw,format=RGB ! appsink name={SINK} sync=false max-buffers=2");
    if outputs.video.is_none() && !outputs.show && !outputs.application {
        return Ok(write);
    }
    Ok(format!("tee name={SINK}-tee {SINK}-tee. ! queue ! {write} {SINK}-tee. ! queue ! {video}"))
}

/// Makes a pipeline write its frames as image files, if the plan requests images. A file that cannot be written does not end the stream.
/// `first_frame` is added to the frame numbers in file names. Returns the number of frames that could not be written, which grows.
pub(super) fn write_from(pipeline: &gst::Pipeline, plan: &Plan, first_frame: u64) -> Result<Arc<AtomicU64>> {
    let n_failed = Arc::new(AtomicU64::new(0));
    let Some(images) = plan.outputs.images.clone() else { return Ok(n_failed) };
    let sink = pipeline.by_name(SINK).and_then(|sink| sink.downcast::<gst_app::AppSink>().ok());
    let sink = sink.ok_or_else(|| Error::usage("the graph has no output for images: end it with `{video}`"))?;
    let (targets, stem) = match &plan.input {
        Input::Images(paths) => (images.targets(paths), OsString::new()),
        Input::File(path) => (Vec::new(), path.file_stem().unwrap_or_default().to_owned()),
        other => (Vec::new(), streams::names(&[other.name()]).concat().into()),
    };
    let replaces = plan.outputs.if_exists != IfExists::Fail;
    let mut n_frames: u64 = 0;
    // Why images are not written at present.
    let mut lost: Option<String> = None;
    let n_lost = n_failed.clone();
    let write = move |sink: &gst_app::AppSink| {
        let sample = sink.pull_sample().map_err(|_| gst::FlowError::Eos)?;
        let frame_idx = n_frames;
        n_frames += 1;
        let target = |buffer: &gst::BufferRef, size: Size| match origin::read(buffer) {
            Some(origin) if !targets.is_empty() => targets.get(origin.image_idx as usize).cloned(),
            _ => {
                let number = first_frame + meta::read_shared(buffer, size).map_or(frame_idx, |results| results.frame_number);
                let stem: OsString = [&*stem, OsStr::new(&format!("-{number:06}"))].into_iter().collect();
                Some(images.target(&stem, Format::Jpeg))
            }
        };
        match write_sample(&sample, target, images.ending, replaces) {
            Ok(path) => lost.take().iter().for_each(|reason| retry::report(sink, reason, &path)),
            Err(error) => {
                n_lost.fetch_add(1, Ordering::AcqRel);
                if lost.is_none() {
                    let reason = error.to_string();
                    retry::report_lost(sink, &reason, false);
                    lost = Some(reason);
                }
            }
        }
        Ok(gst::FlowSuccess::Ok)
    };
    sink.set_callbacks(gst_app::AppSinkCallbacks::builder().new_sample(write).build());
    Ok(n_failed)
}

/// Writes a frame as an image, and returns its path.
fn write_sample(
    sample: &gst::Sample,
    target: impl Fn(&gst::BufferRef, Size) -> Option<PathBuf>,
    ending: Ending,
    replaces: bool,
) -> Result<PathBuf> {
    let failed = |reason: &str| Error::failed(format!("cannot write an image: {reason}"));
    let (buffer, caps) = sample.buffer().zip(sample.caps()).ok_or_else(|| failed("the pipeline delivered no buffer or no caps"))?;
    let info = gst_video::VideoInfo::from_caps(caps).map_err(|error| failed(&error.to_string()))?;
    let path = target(buffer, caps::size_in_caps(caps).unwrap_or(Size::new(0, 0)))
        .ok_or_else(|| failed("a frame came from an image that is not among the inputs, so its file has no name"))?;
    let frame = gst_video::VideoFrameRef::from_buffer_ref_readable(buffer, &info).map_err(|error| failed(&error.to_string()))?;
    let (width, height) = (info.width(), info.height());
    let row_bytes = width as usize * 3;
    let rows = frame.plane_data(0).map_err(|error| failed(&error.to_string()))?.chunks(frame.plane_stride()[0] as usize);
    let pixels: Vec<u8> = rows.take(height as usize).flat_map(|row| &row[..row_bytes]).copied().collect();
    let format = match ending {
        Ending::OfTemplate(format) => format,
        Ending::OfInput => Format::of(&path).unwrap_or(Format::Png),
    };
    match write_file(&path, &pixels, (width, height), format, replaces) {
        Ok(()) => Ok(path),
        Err(error) => Err(Error::failed(format!("cannot write image `{}`: {error}", path.display()))),
    }
}

/// Writes an image file atomically. If `replaces` is true, an existing file is replaced. If it is false, an existing file is an error.
fn write_file(path: &Path, pixels: &[u8], (width, height): (u32, u32), format: Format, replaces: bool) -> Result<(), String> {
    let folder = folder_of(path);
    fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let temporary = folder.join(format!(".roiflow-{}-{:?}.part", std::process::id(), std::thread::current().id()));
    let write = || {
        let mut file = BufWriter::new(fs::File::create(&temporary).map_err(|error| error.to_string())?);
        match format {
            Format::Jpeg => {
                JpegEncoder::new_with_quality(&mut file, JPEG_QUALITY).write_image(pixels, width, height, ExtendedColorType::Rgb8)
            }
            Format::Png => PngEncoder::new(&mut file).write_image(pixels, width, height, ExtendedColorType::Rgb8),
        }
        .map_err(|error| error.to_string())?;
        file.flush().map_err(|error| error.to_string())?;
        let named = if replaces { fs::rename(&temporary, path) } else { fs::hard_link(&temporary, path) };
        named.map_err(|error| error.to_string())
    };
    let written = write();
    // The temporary file still exists after a hard link to it was made, and after a failure. So remove it.
    let _removed = fs::remove_file(&temporary);
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_has_its_own_file() {
        let images = ["in/a.png", "in/a.jpg", "in/a.jpeg", "b/a.jpg", "b/a.bmp", "c.WEBP", "d.e.jpg"].map(PathBuf::from);
        let names = |images_out: &ImageFiles| {
            let targets = images_out.targets(&images);
            targets.iter().map(|target| target.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            names(&ImageFiles::in_folder(Path::new("out"))),
            ["out/a.png", "out/a.jpg", "out/a.jpeg.jpg", "out/a.jpg.jpg", "out/a.bmp.png", "out/c.png", "out/d.e.jpg"]
        );
        let template = ImageFiles::of_template(Path::new("out/{source} drawn.jpg")).unwrap().unwrap();
        assert_eq!(
            names(&template),
            [
                "out/a drawn.jpg",
                "out/a.jpg drawn.jpg",
                "out/a.jpeg drawn.jpg",
                "out/a-2 drawn.jpg",
                "out/a.bmp drawn.jpg",
                "out/c drawn.jpg",
                "out/d.e drawn.jpg"
            ]
        );
    }

    #[test]
    fn extension_distinguishes_images_from_videos() {
        let of = |path: &str| ImageFiles::of_template(Path::new(path));
        assert!(of("out.mp4").unwrap().is_none() && of("-").unwrap().is_none() && of("{stream}.mkv").unwrap().is_none());
        assert!(of("{source}.JPG").unwrap().is_some() && of("x.png").unwrap().is_some());
        assert!(of("{source}.mp4").unwrap_err().to_string().contains(".jpg or .png"));
        assert!(of("x.png").unwrap().unwrap().check(&Input::Test(2)).is_err(), "one file for all frames");
        let streams = of("{stream}/{source}.png").unwrap().unwrap();
        assert!(streams.has_stream());
        assert_eq!(streams.of_stream("door").template, Path::new("door/{source}.png"));
    }
}
