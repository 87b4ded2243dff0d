//! Writes messages as lines to a file that is rotated by size or time. Rotation renames the file to a numbered part, which can be
//! compressed.
//!
//! `results.jsonl` becomes `results.000001.jsonl`, then `results.000001.jsonl.gz`. Numbers grow with time and continue after a restart. A
//! part always ends with a whole line. Each file needs its own writer.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::{Deadline, Destination, Failure, Framing, IfExists, LineFile, Message};

/// When a file is rotated, and what happens to its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Rotation {
    /// Maximum size of a part. A single line may be longer.
    pub(crate) max_bytes: Option<u64>,
    /// Maximum time from the first line of a part to the next part.
    pub(crate) max_age: Option<Duration>,
    /// Number of parts that are kept, in addition to the current file. Older parts are deleted.
    pub(crate) keep: Option<u64>,
    /// Whether parts are compressed.
    pub(crate) gzip: bool,
}

/// A file with its parts.
pub(crate) struct RotatingFile {
    path: PathBuf,
    rotation: Rotation,
    framing: Framing,
    file: LineFile,
    deadline: Deadline,
    /// Acknowledged messages of earlier parts.
    n_before: u64,
    /// Size of the current file, including the lines that are not written yet.
    n_bytes: u64,
    first_line_at: Option<Instant>,
    compressing: Option<JoinHandle<()>>,
}

impl RotatingFile {
    pub(crate) fn new(path: PathBuf, if_exists: IfExists, rotation: Rotation, framing: Framing) -> Self {
        let file = LineFile::new(&path, if_exists).with_framing(framing);
        let (deadline, n_before, n_bytes, first_line_at, compressing) = Default::default();
        Self { path, rotation, framing, file, deadline, n_before, n_bytes, first_line_at, compressing }
    }

    fn is_due(&self, n_new: u64) -> bool {
        let is_large = self.rotation.max_bytes.is_some_and(|max| self.n_bytes + n_new > max);
        let is_old = self.rotation.max_age.is_some_and(|max| self.first_line_at.is_some_and(|at| at.elapsed() >= max));
        self.first_line_at.is_some() && (is_large || is_old)
    }

    /// Writes all pending lines, and then begins a new part.
    fn rotate(&mut self) -> Result<(), Failure> {
        self.file.flush()?;
        if !self.framing.is_open_ended() {
            self.file.close()?;
        }
        if let Err(error) = self.rename() {
            // Do not lose lines: if the file cannot be renamed, continue to append to it.
            tracing::warn!("cannot rename the full file {}, which continues to grow: {error}", self.path.display());
            self.first_line_at = Some(Instant::now());
            self.n_bytes = 0;
            return Ok(());
        }
        self.n_before += self.file.acknowledged();
        self.file = LineFile::new(&self.path, IfExists::Append).with_framing(self.framing);
        (self.n_bytes, self.first_line_at) = (0, None);
        self.file.connect(&self.deadline)?;
        self.tidy();
        Ok(())
    }

    fn rename(&self) -> io::Result<()> {
        let next = parts(&self.path)?.last().map_or(1, |(number, _)| number + 1);
        std::fs::rename(&self.path, part_path(&self.path, next))
    }

    /// Compresses and deletes parts on another thread, including parts of earlier processes.
    fn tidy(&mut self) {
        if let Some(compressing) = self.compressing.take() {
            let _ended = compressing.join();
        }
        let (path, rotation) = (self.path.clone(), self.rotation);
        let tidy = move || {
            if let Err(error) = tidy(&path, rotation) {
                tracing::warn!("cannot compress or delete completed parts of {}: {error}", path.display());
            }
        };
        match std::thread::Builder::new().name("roiflow-rotate".to_owned()).spawn(tidy) {
            Ok(thread) => self.compressing = Some(thread),
            Err(error) => tracing::warn!("cannot start the thread that compresses files: {error}"),
        }
    }
}

impl Destination for RotatingFile {
    fn connect(&mut self, deadline: &Deadline) -> Result<(), Failure> {
        self.deadline = deadline.clone();
        self.file.connect(deadline)?;
        self.n_bytes = std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        self.first_line_at = (self.n_bytes > 0).then(Instant::now);
        if self.rotation.gzip || self.rotation.keep.is_some() {
            self.tidy();
        }
        Ok(())
    }

    fn publish(&mut self, message: &Message) -> Result<(), Failure> {
        let n_new = message.payload.len() as u64 + 1;
        if self.is_due(n_new) {
            self.rotate()?;
        }
        self.n_bytes += n_new;
        self.first_line_at.get_or_insert_with(Instant::now);
        self.file.publish(message)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.file.flush()
    }

    fn acknowledged(&self) -> u64 {
        self.n_before + self.file.acknowledged()
    }

    fn committed(&self) -> u64 {
        self.n_before + self.file.committed()
    }

    fn idle(&mut self) -> Result<(), Failure> {
        if self.is_due(0) { self.rotate() } else { Ok(()) }
    }

    fn close(&mut self) -> Result<(), Failure> {
        if let Some(compressing) = self.compressing.take() {
            let _ended = compressing.join();
        }
        self.file.close()
    }
}

/// Returns the path of a numbered part: for `results.jsonl` and 3, `results.000003.jsonl`.
fn part_path(path: &Path, number: u64) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map_or(String::new(), |extension| format!(".{}", extension.to_string_lossy()));
    path.with_file_name(format!("{stem}.{number:06}{extension}"))
}

/// The parts of a file by number, compressed or not.
fn parts(path: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut parts = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let plain = name.strip_suffix(".gz").unwrap_or(&name);
        let number = plain.split('.').rev().take(2).find_map(|word| word.parse::<u64>().ok().filter(|_| word.len() >= 6));
        if let Some(number) = number.filter(|number| part_path(path, *number).file_name().is_some_and(|part| part == plain)) {
            parts.push((number, folder.join(&name)));
        }
    }
    parts.sort();
    Ok(parts)
}

fn tidy(path: &Path, rotation: Rotation) -> io::Result<()> {
    if rotation.gzip {
        for (_, part) in parts(path)?.into_iter().filter(|(_, part)| part.extension().is_none_or(|extension| extension != "gz")) {
            compress(&part)?;
        }
    }
    if let Some(keep) = rotation.keep {
        let parts = parts(path)?;
        let n_deleted = parts.len().saturating_sub(keep as usize);
        parts[..n_deleted].iter().try_for_each(|(_, part)| std::fs::remove_file(part))?;
    }
    Ok(())
}

/// Replaces a file by its compressed form. The compressed file gets its final name when it is complete.
fn compress(path: &Path) -> io::Result<()> {
    let with = |ending: &str| PathBuf::from(format!("{}{ending}", path.display()));
    let (unfinished, finished) = (with(".gz.unfinished"), with(".gz"));
    let mut encoder = GzEncoder::new(BufWriter::new(File::create(&unfinished)?), Compression::default());
    io::copy(&mut BufReader::new(File::open(path)?), &mut encoder)?;
    encoder.finish()?.flush()?;
    std::fs::rename(&unfinished, &finished)?;
    std::fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("roiflow-rotate-{}-{test}", std::process::id()));
            let _removed = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(&self.0).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }

        /// The lines of all parts and of the current file, in order.
        fn lines(&self) -> Vec<u64> {
            let path = self.0.join("a.jsonl");
            let mut text = String::new();
            for (_, part) in parts(&path).unwrap() {
                let file = File::open(&part).unwrap();
                if part.extension().unwrap() == "gz" {
                    GzDecoder::new(file).read_to_string(&mut text).unwrap();
                } else {
                    BufReader::new(file).read_to_string(&mut text).unwrap();
                }
                assert!(text.ends_with('\n'), "a part ends with a whole line");
            }
            text += &std::fs::read_to_string(path).unwrap_or_default();
            text.lines().map(|line| line.parse().unwrap()).collect()
        }

        fn write(&self, numbers: std::ops::Range<u64>, rotation: Rotation) {
            let mut file = RotatingFile::new(self.0.join("a.jsonl"), IfExists::Append, rotation, Framing::LINES);
            file.connect(&Deadline::default()).unwrap();
            let n = numbers.end - numbers.start;
            for number in numbers {
                file.publish(&Message { payload: number.to_string().into_bytes(), ..Message::default() }).unwrap();
            }
            file.flush().unwrap();
            assert_eq!((file.acknowledged(), file.committed()), (n, n));
            file.close().unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _removed = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn parts_have_the_maximum_size_and_all_lines() {
        let folder = Folder::new("size");
        let rotation = Rotation { max_bytes: Some(40), ..Rotation::default() };
        folder.write(100..120, rotation);
        folder.write(120..125, rotation);
        assert_eq!(folder.lines(), (100..125).collect::<Vec<_>>());
        assert_eq!(folder.names(), ["a.000001.jsonl", "a.000002.jsonl", "a.jsonl"]);
        assert!(folder.names().iter().all(|name| std::fs::metadata(folder.0.join(name)).unwrap().len() <= 40));
    }

    #[test]
    fn parts_are_compressed_also_those_of_a_killed_process() {
        let folder = Folder::new("gzip");
        std::fs::write(folder.0.join("a.000001.jsonl"), "98\n99\n").unwrap();
        std::fs::write(folder.0.join("a.000001.jsonl.gz.unfinished"), "torn").unwrap();
        std::fs::write(folder.0.join("a.notes.jsonl"), "a file of the user").unwrap();
        folder.write(100..125, Rotation { max_bytes: Some(40), gzip: true, ..Rotation::default() });
        assert_eq!(folder.lines(), (98..125).collect::<Vec<_>>());
        assert_eq!(folder.names(), ["a.000001.jsonl.gz", "a.000002.jsonl.gz", "a.000003.jsonl.gz", "a.jsonl", "a.notes.jsonl"]);
    }

    #[test]
    fn only_the_newest_parts_are_kept() {
        let folder = Folder::new("keep");
        folder.write(100..200, Rotation { max_bytes: Some(40), keep: Some(2), gzip: true, ..Rotation::default() });
        assert_eq!(folder.names(), ["a.000008.jsonl.gz", "a.000009.jsonl.gz", "a.jsonl"]);
        assert_eq!(folder.lines(), (170..200).collect::<Vec<_>>());
    }

    #[test]
    fn file_begins_anew_by_time_also_without_new_lines() {
        let folder = Folder::new("age");
        let rotation = Rotation { max_age: Some(Duration::ZERO), ..Rotation::default() };
        folder.write(0..3, rotation);
        assert_eq!(folder.names(), ["a.000001.jsonl", "a.000002.jsonl", "a.jsonl"]);
        let mut file = RotatingFile::new(folder.0.join("a.jsonl"), IfExists::Append, rotation, Framing::LINES);
        file.connect(&Deadline::default()).unwrap();
        file.idle().unwrap();
        file.idle().unwrap();
        assert_eq!(folder.names(), ["a.000001.jsonl", "a.000002.jsonl", "a.000003.jsonl", "a.jsonl"]);
        assert_eq!(folder.lines(), [0, 1, 2]);
    }
}
