//! The newest events on disk, so that they survive a restart of the server: `events.jsonl` in the state folder, one event per line.
//!
//! A thread writes, so a slow disk delays no stream. The file is written anew when it has twice as many events as are kept, and after an error.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use crate::events::{Event, MAX_EVENTS};
use crate::state_folder;

/// Number of events that may wait for the disk. Further ones are written with the next rewrite.
const MAX_WAITING: usize = 256;
/// Largest file that is read. A file of this program is smaller.
const MAX_BYTES: u64 = 16 << 20;
/// How long the thread waits after an error until it tries again.
const PAUSE: Duration = Duration::from_secs(1);

/// A way to the thread that writes.
#[derive(Debug)]
pub(crate) struct EventFile(SyncSender<Wake>);

#[derive(Debug)]
enum Wake {
    Event(Arc<Event>),
    /// Says when all earlier events are written.
    Flush(Sender<()>),
}

impl EventFile {
    /// Starts to keep events in a folder. `all` returns the events that the file must have.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub(crate) fn start(folder: &Path, all: impl Fn() -> Option<Vec<Arc<Event>>> + Send + 'static) -> io::Result<Self> {
        let (sender, received) = sync_channel(MAX_WAITING);
        let writer = Writer { path: path_in(folder), file: None, n_lines: 0, last: 0, has_failed: false };
        std::thread::Builder::new().name("roiflow-event-file".to_owned()).spawn(move || writer.run(&received, all))?;
        Ok(Self(sender))
    }

    /// Writes an event. Never blocks.
    pub(crate) fn write(&self, event: Arc<Event>) {
        if let Err(TrySendError::Full(_)) = self.0.try_send(Wake::Event(event)) {
            tracing::debug!("the disk is too slow for the events, which are written later");
        }
    }

    /// Waits until the events so far are written, at most for this time.
    pub(crate) fn flush(&self, limit: Duration) {
        let (sender, flushed) = std::sync::mpsc::channel();
        if self.0.try_send(Wake::Flush(sender)).is_ok() {
            let _in_time = flushed.recv_timeout(limit);
        }
    }
}

fn path_in(folder: &Path) -> PathBuf {
    folder.join("events.jsonl")
}

/// Reads the newest events of a folder, oldest first. Says what cannot be read.
pub(crate) fn read(folder: &Path) -> Vec<Event> {
    let path = path_in(folder);
    let mut bytes = Vec::new();
    let text = match File::open(&path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)) {
        Ok(_) => String::from_utf8_lossy(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::warn!("the events of earlier runs in `{}` cannot be read, and the list begins empty: {error}", path.display());
            return Vec::new();
        }
    };
    let mut events: Vec<Event> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    // The last line of a killed process may be incomplete.
    let n_lost = text.lines().count() - events.len() - usize::from(!text.is_empty() && !text.ends_with('\n'));
    if n_lost > 0 {
        tracing::warn!("{n_lost} lines of `{}` are no events of this version of roiflow, and are skipped", path.display());
    }
    drop(events.drain(..events.len().saturating_sub(MAX_EVENTS)));
    events
}

struct Writer {
    path: PathBuf,
    /// `None`: the file must be written anew.
    file: Option<File>,
    n_lines: usize,
    /// Number of the last event in the file.
    last: u64,
    has_failed: bool,
}

impl Writer {
    fn run(mut self, received: &Receiver<Wake>, all: impl Fn() -> Option<Vec<Arc<Event>>>) {
        // The events of earlier runs are there already.
        let mut is_due = false;
        loop {
            let wake = match received.recv_timeout(if is_due { PAUSE } else { Duration::MAX }) {
                Ok(wake) => Some(wake),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let written = match &wake {
                Some(Wake::Event(event)) => self.write(event, &all),
                Some(Wake::Flush(_)) | None if is_due => self.rewrite(&all),
                Some(Wake::Flush(_)) | None => Ok(()),
            };
            is_due = written.is_err();
            match written {
                Ok(()) => self.has_failed = false,
                Err(error) => {
                    self.file = None;
                    if !std::mem::replace(&mut self.has_failed, true) {
                        let path = self.path.display();
                        tracing::warn!(
                            "the events cannot be written to `{path}`: {error}. They are kept in memory, and written when that is possible"
                        );
                    }
                }
            }
            if let Some(Wake::Flush(done)) = wake {
                let _waits = done.send(());
            }
        }
    }

    /// Adds an event to the file.
    fn write(&mut self, event: &Event, all: &impl Fn() -> Option<Vec<Arc<Event>>>) -> io::Result<()> {
        match &mut self.file {
            Some(_) if event.id <= self.last => Ok(()),
            Some(file) if self.n_lines < 2 * MAX_EVENTS && event.id == self.last + 1 => {
                file.write_all(&line(event)?)?;
                (self.n_lines, self.last) = (self.n_lines + 1, event.id);
                Ok(())
            }
            // Events may be missing between the last one and this one.
            _ => self.rewrite(all),
        }
    }

    /// Writes the file with all events that are kept.
    fn rewrite(&mut self, all: &impl Fn() -> Option<Vec<Arc<Event>>>) -> io::Result<()> {
        let Some(events) = all() else { return Ok(()) };
        let mut text = Vec::new();
        for event in &events {
            text.extend_from_slice(&line(event)?);
        }
        state_folder::create(self.path.parent().unwrap_or(Path::new(".")))?;
        state_folder::replace(&self.path, &text)?;
        self.file = Some(File::options().append(true).open(&self.path)?);
        (self.n_lines, self.last) = (events.len(), events.last().map_or(0, |event| event.id));
        Ok(())
    }
}

fn line(event: &Event) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{EventKind, Events};

    const LIMIT: Duration = Duration::from_secs(20);

    fn messages(events: &Events) -> Vec<(u64, String)> {
        events.newest(None, usize::MAX).iter().map(|event| (event.id, event.message.clone())).collect()
    }

    #[test]
    fn events_go_on_after_a_restart() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let events = Events::default();
        events.add("a", EventKind::Node, "before the folder is known");
        events.keep_in(folder.path());
        events.add("a", EventKind::SourceLost, "one\ntwo");
        events.flush(LIMIT);
        assert_eq!(std::fs::metadata(path_in(folder.path())).unwrap().permissions().mode() & 0o777, 0o600);
        // A process that is killed leaves a part of a line.
        let mut file = File::options().append(true).open(path_in(folder.path())).unwrap();
        file.write_all(b"{\"id\":3,\"time_ms\":").unwrap();
        let again = Events::default();
        again.keep_in(folder.path());
        assert_eq!(messages(&again), messages(&events));
        again.add("a", EventKind::SourceBack, "three");
        again.flush(LIMIT);
        let third = Events::default();
        third.keep_in(folder.path());
        assert_eq!(messages(&third).last().unwrap(), &(3, "three".to_owned()), "numbers go on");
        assert_eq!(messages(&third).len(), 3);
    }

    #[test]
    fn file_stays_small() {
        let folder = tempfile::tempdir().unwrap();
        let events = Events::default();
        events.keep_in(folder.path());
        for n in 0..3 * MAX_EVENTS {
            events.add("a", EventKind::Warning, "x".repeat(n * 10));
            // No event is too fast for the disk.
            events.flush(LIMIT);
        }
        let size = std::fs::metadata(path_in(folder.path())).unwrap().len();
        assert!(size < MAX_BYTES / 2, "{size}");
        let again = Events::default();
        again.keep_in(folder.path());
        assert_eq!(messages(&again), messages(&events));
        assert_eq!(again.newest(None, usize::MAX).len(), MAX_EVENTS);
    }

    #[test]
    fn damaged_file_loses_only_its_damaged_lines() {
        let folder = tempfile::tempdir().unwrap();
        let good = r#"{"id":7,"time_ms":5,"stream":"a","kind":"failed","message":"m"}"#;
        for text in [&b""[..], b"\xff\xfe\n", b"{}\n", b"\0\0\0\0"] {
            std::fs::write(path_in(folder.path()), [text, good.as_bytes(), b"\n"].concat()).unwrap();
            let events = Events::default();
            events.keep_in(folder.path());
            events.add("a", EventKind::Ended, "new");
            let newest = events.newest(None, usize::MAX);
            assert_eq!(newest.last().unwrap().message, "new", "{text:?}");
            // The line that begins with zeros is the damaged one.
            assert_eq!(newest.len(), if text.starts_with(b"\0") { 1 } else { 2 }, "{text:?}");
        }
    }

    #[test]
    fn events_are_written_after_the_disk_was_away() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let events = Events::default();
        // A file is where the folder should be.
        std::fs::write(&state, "").unwrap();
        events.keep_in(&state);
        events.add("a", EventKind::Warning, "one");
        events.flush(LIMIT);
        std::fs::remove_file(&state).unwrap();
        // Without a further event.
        crate::registry::tests::wait_until(|| read(&state).len() == 1);
        events.add("a", EventKind::Warning, "two");
        events.flush(LIMIT);
        assert_eq!(read(&state).len(), 2);
    }
}
