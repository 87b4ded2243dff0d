//! Runs one description with several inputs. Each input is a stream with its own pipeline, name and results.
//!
//! Elements of one process share a compiled model automatically if their options are equal. A failed stream does not end other
//! streams.

use std::path::{Path, PathBuf};

use super::handle::{Event, PipelineHandle, StreamEvent, StreamId};
use super::input::file_of_uri;
use super::{Crops, Ending, Error, Interrupt, Outputs, Plan, Result};
use crate::publish::Url;
use crate::redaction::{self, HIDDEN};

/// Placeholder for the stream's name in output paths.
pub const PLACEHOLDER: &str = "{stream}";

/// Returns a name for each input: the file name without extension, or host and path of a URI, with a number for duplicates. The names
/// contain only characters that are safe in file names, and no passwords.
pub fn names(inputs: &[String]) -> Vec<String> {
    let mut names: Vec<String> = Vec::with_capacity(inputs.len());
    for input in inputs {
        let base = name(input);
        let numbered = (2..).map(|n| format!("{base}-{n}"));
        let free = std::iter::once(base.clone()).chain(numbered).find(|name| !names.contains(name));
        names.extend(free);
    }
    names
}

/// Returns an input without credentials. The path of an existing file is unchanged.
pub fn redacted(input: &str) -> String {
    if Path::new(input).exists() { input.to_owned() } else { redaction::redact(input).into_owned() }
}

fn name(input: &str) -> String {
    let of_path = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let shown = redacted(input);
    let text = match (file_of_uri(input), shown.split_once("://")) {
        _ if input.starts_with("test:") && !Path::new(input).exists() => "test".to_owned(),
        (Ok(Some(path)), _) => of_path(&path),
        (_, Some((_, place))) => {
            let place = place.split(['?', '#']).next().unwrap_or_default();
            let host = place.strip_prefix(HIDDEN).and_then(|place| place.strip_prefix('@')).unwrap_or(place);
            host.replace(HIDDEN, "")
        }
        (_, None) => of_path(Path::new(shown.trim_end_matches('/'))),
    };
    let plain = |c: char| if c.is_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    let name: String = text.chars().map(plain).collect();
    match name.trim_matches(|c| c == '-' || c == '.') {
        "" => "stream".to_owned(),
        name => name.to_owned(),
    }
}

impl Outputs {
    /// Checks that `n_streams` streams can use these outputs.
    ///
    /// # Errors
    /// Returns `Usage` if several streams would write to the same file.
    pub fn check_for(&self, n_streams: usize) -> Result<()> {
        let is_stdout = |path: &Option<PathBuf>| path.as_deref().is_some_and(crate::publish::is_stdout);
        if n_streams < 2 {
            return Ok(());
        }
        if is_stdout(&self.video) {
            return Err(Error::usage(format!(
                "--video -: expected one input, got {n_streams}; write files, as in --video {PLACEHOLDER}.mkv"
            )));
        }
        if let Some(images) = self.images.as_ref().filter(|images| !images.has_stream()) {
            return Err(Error::usage(format!(
                "images {images}: expected a folder for each of {n_streams} inputs; add {PLACEHOLDER} to the path, as in --images out/{PLACEHOLDER}"
            )));
        }
        for (option, path, ending) in [("--json", &self.json, "jsonl"), ("--video", &self.video, "mp4")] {
            if let Some(path) = path.as_ref().filter(|path| !Self::is_for_all(path) && !path.to_string_lossy().contains(PLACEHOLDER)) {
                return Err(Error::usage(format!(
                    "{option} {}: expected a file for each of {n_streams} inputs; add {PLACEHOLDER} to the path, as in {option} out/{PLACEHOLDER}.{ending}",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// Returns the outputs of the stream with this name. If `is_one_of_many` is true, the results of the stream contain the name.
    #[must_use]
    pub fn of_stream(&self, name: &str, is_one_of_many: bool) -> Self {
        let of_file = |url: &Url| Url { text: url.text.replace(PLACEHOLDER, name), ..url.clone() };
        let place = |path: &PathBuf| match path.to_str() {
            Some(text) => PathBuf::from(text.replace(PLACEHOLDER, name)),
            None => path.clone(),
        };
        Self {
            json: self.json.as_ref().map(place),
            video: self.video.as_ref().map(place),
            crops: self.crops.clone().map(|crops| Crops { folder: crops.folder.as_ref().map(place), ..crops }),
            images: self.images.as_ref().map(|images| images.of_stream(name)),
            publish: self.publish.iter().map(|url| if is_file_url(&url.text) { of_file(url) } else { url.clone() }).collect(),
            stream: is_one_of_many.then(|| name.to_owned()),
            stream_of_servers: Some(name.to_owned()),
            ..self.clone()
        }
    }
}

/// Whether a destination of `--publish` is a file. [`Outputs::of_stream`] replaces the placeholder only in paths of files. In the address
/// of a server, `roipublish` replaces it.
fn is_file_url(url: &str) -> bool {
    url.starts_with("file:") || !url.contains("://")
}

/// Plays all plans at the same time, each to its end, and returns their results in the order of the plans. Calls `report` on the calling
/// thread, with each event and the index of the plan to which the event belongs.
pub fn run_all(plans: &[Plan], interrupt: &Interrupt, report: impl FnMut(usize, &Event)) -> Vec<Result<Ending>> {
    run_all_with(plans, interrupt, |_, _| {}, report)
}

/// Like [`run_all`], but also calls `started` when all streams were added. `started` receives the streams in the order of the plans; `None`
/// for a plan whose pipeline cannot be built.
pub fn run_all_with(
    plans: &[Plan],
    interrupt: &Interrupt,
    started: impl FnOnce(&PipelineHandle, &[Option<StreamId>]),
    mut report: impl FnMut(usize, &Event),
) -> Vec<Result<Ending>> {
    let (handle, mut events) = match PipelineHandle::new() {
        Ok(new) => new,
        Err(error) => return plans.iter().map(|_| Err(error.clone())).collect(),
    };
    let streams: Vec<Result<StreamId>> = plans.iter().map(|plan| handle.add(plan)).collect();
    interrupt.attach(&handle);
    started(&handle, &streams.iter().map(|added| added.as_ref().ok().copied()).collect::<Vec<_>>());
    for (plan_idx, failed) in streams.iter().enumerate().filter_map(|(plan_idx, added)| Some((plan_idx, added.as_ref().err()?))) {
        report(plan_idx, &Event::Ended(Err(failed.clone())));
    }
    let mut n_running = streams.iter().flatten().count();
    while n_running > 0 {
        let Some(StreamEvent { stream, event }) = events.next() else { break };
        n_running -= usize::from(matches!(event, Event::Ended(_)));
        streams.iter().position(|added| added.as_ref() == Ok(&stream)).into_iter().for_each(|plan_idx| report(plan_idx, &event));
    }
    interrupt.detach(&handle);
    streams.into_iter().map(|added| added.and_then(|stream| handle.wait(stream))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_names_derive_from_inputs_and_are_unique() {
        let inputs = [
            "clips/door.mp4",
            "other/door.mkv",
            "door-2.mp4",
            "test:",
            "test:40",
            "rtsp://user:secret@camera.local:554/live/1?token=secret#x",
            "rtsp://camera.local",
            "v4l2:///dev/video0",
            "rtsp://user:se/cr?et@camera.local/live",
            "rtsp://camera.local/user=admin_password=secret_channel=1",
            "rtsp:/user:secret@camera.local/live",
            "http://camera.local/token/secret/live.m3u8",
            "file:///videos/a b.mp4",
            "FILE:///videos/a%20c%5B1%5D.mp4",
            "images/",
            "images/*.png",
            "..",
        ];
        let expected = [
            "door",
            "door-2",
            "door-2-2",
            "test",
            "test-2",
            "camera.local-554-live-1",
            "camera.local",
            "dev-video0",
            "camera.local-live",
            "camera.local-user-_password-_channel-1",
            "live",
            "camera.local-token--live.m3u8",
            "a-b",
            "a-c-1",
            "images",
            "stream",
            "stream-2",
        ];
        assert_eq!(names(&inputs.map(str::to_owned)), expected);
    }

    #[test]
    fn each_stream_has_its_own_files() {
        let outputs = |json: &str, video: &str| Outputs {
            json: Some(json.into()).filter(|_| !json.is_empty()),
            video: Some(video.into()).filter(|_| !video.is_empty()),
            ..Outputs::default()
        };
        let own = outputs("out/{stream}/{stream}.jsonl", "{stream}.mp4").of_stream("door", true);
        assert_eq!((own.json.unwrap(), own.video.unwrap()), ("out/door/door.jsonl".into(), "door.mp4".into()));
        assert_eq!(own.stream.as_deref(), Some("door"));
        for (json, video, n_streams, says) in [
            ("all.jsonl", "", 2, "a file for each of 2 inputs"),
            ("", "all.mp4", 3, "out/{stream}.mp4"),
            ("", "-", 2, "expected one input, got 2"),
        ] {
            let error = outputs(json, video).check_for(n_streams).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
            outputs(json, video).check_for(1).unwrap();
        }
        outputs("-", "{stream}.mp4").check_for(16).unwrap();
    }
}
