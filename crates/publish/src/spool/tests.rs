//! Tests of the spool: recovery, limits, gaps, and delivery after outages.

use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::Value;

use super::*;

/// Time after which a test is considered hanging.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// A folder that is removed when dropped.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("roiflow-spool-{}-{test}", std::process::id()));
        let _removed = std::fs::remove_dir_all(&path);
        Self(path)
    }

    pub(super) fn log(&self, max_bytes: u64) -> Log {
        Log::open(&self.0, Limits { max_bytes, max_age: None }, Arc::default()).unwrap()
    }

    pub(super) fn segments(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let mut segments: Vec<_> = entries.filter(|path| path.extension().is_some_and(|extension| extension == "segment")).collect();
        segments.sort();
        segments
    }

    /// A copy of the folder: what the next process finds after this one was killed.
    pub(super) fn of_killed_process(&self) -> Self {
        let copy = Self(self.0.with_extension("killed"));
        let _removed = std::fs::remove_dir_all(&copy.0);
        std::fs::create_dir_all(&copy.0).unwrap();
        for entry in std::fs::read_dir(&self.0).unwrap().map(Result::unwrap) {
            std::fs::copy(entry.path(), copy.0.join(entry.file_name())).unwrap();
        }
        copy
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn message(frame: u64) -> Message {
    Message { payload: format!("frame {frame}").into_bytes(), stream: Some("door".into()), epoch: 7, frame, part: 0 }
}

pub(super) fn large(frame: u64) -> Message {
    Message { payload: vec![b'x'; 1000], ..message(frame) }
}

pub(super) fn store(log: &mut Log, frames: std::ops::Range<u64>) {
    for frame in frames {
        assert_eq!(log.append(&message(frame), 1), Appended::Stored);
    }
}

/// Reads all unread messages. Returns frame numbers, and gaps as (from, to, dropped).
pub(super) fn read(log: &mut Log) -> Vec<Result<u64, (u64, u64, u64)>> {
    let mut all = Vec::new();
    while let Some(Next { message, is_gap, .. }) = log.next() {
        all.push(if is_gap {
            let gap: Value = serde_json::from_slice(&message.payload).unwrap();
            assert_eq!((&gap["event"], &gap["stream"]), (&"gap".into(), &"door".into()));
            let number = |name: &str| gap[name].as_u64().unwrap();
            Err((number("from"), number("to"), number("dropped")))
        } else {
            Ok(message.frame)
        });
    }
    all
}

pub(super) fn frames(range: std::ops::Range<u64>) -> Vec<Result<u64, (u64, u64, u64)>> {
    range.map(Ok).collect()
}

#[test]
fn unacknowledged_messages_survive_reopening_in_order() {
    let folder = Folder::new("reopen");
    let mut log = folder.log(1 << 20);
    store(&mut log, 0..10);
    assert_eq!(read(&mut log), frames(0..10));
    log.acknowledge(4);
    drop(log);
    let mut log = folder.log(1 << 20);
    assert_eq!((log.n_waiting(), read(&mut log)), (6, frames(4..10)));
    log.rewind();
    assert_eq!(log.next().unwrap().message, message(4));
    store(&mut log, 10..12);
    assert_eq!(read(&mut log), frames(5..12));
    log.acknowledge(8);
    drop(log);
    let mut log = folder.log(1 << 20);
    assert_eq!((log.n_waiting(), read(&mut log)), (0, vec![]));
    store(&mut log, 12..13);
    assert_eq!(read(&mut log), frames(12..13));
}

#[test]
fn torn_record_of_a_killed_process_is_cut() {
    let folder = Folder::new("torn");
    let mut log = folder.log(1 << 20);
    store(&mut log, 0..3);
    drop(log);
    let path = folder.segments().pop().unwrap();
    let whole = std::fs::read(&path).unwrap();
    for n_bytes in 0..whole.len() {
        std::fs::remove_file(folder.0.join("cursor")).unwrap();
        std::fs::write(&path, &whole[..n_bytes]).unwrap();
        let mut log = folder.log(1 << 20);
        let n_whole = read(&mut log).len() as u64;
        store(&mut log, 10..11);
        assert_eq!(read(&mut log), frames(10..11));
        drop(log);
        let mut expected = frames(0..n_whole);
        expected.extend(frames(10..11));
        assert_eq!(read(&mut folder.log(1 << 20)), expected, "{n_bytes} bytes");
    }
}

#[test]
fn damaged_cursor_delivers_again_instead_of_losing() {
    let folder = Folder::new("cursor");
    let mut log = folder.log(1 << 20);
    store(&mut log, 0..3);
    read(&mut log);
    log.acknowledge(2);
    drop(log);
    std::fs::write(folder.0.join("cursor"), b"no cursor").unwrap();
    assert_eq!(read(&mut folder.log(1 << 20)), frames(0..3));
}

#[test]
fn second_process_gets_an_error() {
    let folder = Folder::new("lock");
    let _log = folder.log(1 << 20);
    let error = Log::open(&folder.0, Limits::default(), Arc::default()).unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::WouldBlock, "another process uses this spool folder".to_owned()));
}

#[test]
fn full_spool_replaces_the_oldest_messages_by_one_gap() {
    let folder = Folder::new("full");
    let mut log = folder.log(Limits::MIN_BYTES);
    (0..500).for_each(|frame| {
        log.append(&large(frame), frame);
        assert!(log.n_bytes() <= Limits::MIN_BYTES);
    });
    let all = read(&mut log);
    let Err((0, last, n_dropped)) = all[0] else { panic!("expected a gap first: {all:?}") };
    assert_eq!(n_dropped, last + 1);
    assert_eq!(all[1..], frames(last + 1..500));
    assert!(all.len() > 30, "most of the space is used: {}", all.len());
    assert_eq!((log.n_dropped(), log.n_waiting()), (n_dropped, 500 - n_dropped));
    drop(log);
    // The gap is on disk.
    let mut log = folder.log(Limits::MIN_BYTES);
    assert_eq!((read(&mut log), log.n_waiting()), (all.clone(), 500 - n_dropped));
    log.acknowledge(all.len());
    assert_eq!((log.n_waiting(), folder.segments().len()), (0, 1));
}

#[test]
fn gap_of_a_killed_process_is_whole_although_old_records_follow_it() {
    let folder = Folder::new("half replaced");
    let mut log = folder.log(Limits::MIN_BYTES);
    let number_of_segments = |log: &Log| log.n_bytes() / log.segment_bytes();
    let mut frame = 0;
    while number_of_segments(&log) < 4 {
        log.append(&large(frame), 0);
        frame += 1;
    }
    let first = folder.segments().remove(0);
    let old = std::fs::read(&first).unwrap();
    while log.n_dropped() == 0 {
        log.append(&large(frame), 0);
        frame += 1;
    }
    let n_dropped = log.n_dropped();
    drop(log);
    // Simulate a process that was killed after it wrote the gap record and before it removed the old records.
    let gap = std::fs::read(&first).unwrap();
    std::fs::write(&first, [&gap, &old[gap.len()..]].concat()).unwrap();
    let mut log = folder.log(Limits::MIN_BYTES);
    let mut expected = vec![Err((0, n_dropped - 1, n_dropped))];
    expected.extend(frames(n_dropped..frame));
    assert_eq!((read(&mut log), log.n_waiting()), (expected, frame - n_dropped));
}

#[test]
fn messages_in_flight_are_not_dropped() {
    let folder = Folder::new("flight");
    let mut log = folder.log(Limits::MIN_BYTES);
    (0..10).for_each(|frame| assert_eq!(log.append(&large(frame), 0), Appended::Stored));
    for frame in 0..4 {
        assert_eq!(log.next().unwrap().message.frame, frame);
    }
    (10..200).for_each(|frame| drop(log.append(&large(frame), 0)));
    // In the meantime, the destination has acknowledged the four messages that were in flight.
    log.acknowledge(4);
    let all = read(&mut log);
    let at = all.iter().position(Result::is_err).unwrap();
    let Err((from, to, _)) = all[at] else { unreachable!() };
    assert_eq!((all[..at].to_vec(), all[at + 1..].to_vec()), (frames(4..from), frames(to + 1..200)));
}

#[test]
fn old_messages_are_dropped_by_age() {
    let folder = Folder::new("age");
    let limits = Limits { max_age: Some(Duration::from_millis(100)), ..Limits::default() };
    let mut log = Log::open(&folder.0, limits, Arc::default()).unwrap();
    (0..5).for_each(|frame| drop(log.append(&message(frame), 1000 + frame)));
    assert!(!log.drop_old(1050));
    assert!(log.drop_old(1105));
    store(&mut log, 5..6);
    assert_eq!(read(&mut log), [Err((0, 4, 5)), Ok(5)]);
}

#[test]
fn message_that_cannot_be_stored_leaves_a_gap_in_its_place() {
    let folder = Folder::new("oversize");
    let mut log = folder.log(Limits::MIN_BYTES);
    store(&mut log, 0..2);
    let oversize = Message { payload: vec![0; 1 << 20], ..message(2) };
    assert!(matches!(log.append(&oversize, 1), Appended::Dropped(reason) if reason.contains("too large")));
    store(&mut log, 3..4);
    assert_eq!(read(&mut log), [Ok(0), Ok(1), Err((2, 2, 1)), Ok(3)]);
}

#[test]
fn clock_that_is_set_back_keeps_messages() {
    let folder = Folder::new("clock");
    let limits = Limits { max_age: Some(Duration::from_millis(100)), ..Limits::default() };
    let mut log = Log::open(&folder.0, limits, Arc::default()).unwrap();
    (0..3).for_each(|frame| drop(log.append(&message(frame), 10_000)));
    // The clock was set back: messages seem to be from the future, and are kept.
    assert!(!log.drop_old(5000));
    (3..5).for_each(|frame| drop(log.append(&message(frame), 5000)));
    assert!(!log.drop_old(5050));
    assert_eq!(read(&mut log), frames(0..5));
}

/// The next action of the scripted destination.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Down,
    Accept,
    /// Accepts messages without acknowledging them, and fails in the flush.
    Lose,
    Refuse,
    /// Like `Refuse`, and then `Down`.
    RefuseOnce,
}

/// A destination that a test switches on and off.
struct Switched {
    mode: Arc<Mutex<Mode>>,
    delivered: Sender<Message>,
    in_flight: Vec<Message>,
    n_acknowledged: u64,
    refused: Vec<(u64, io::Error)>,
}

impl Switched {
    fn failed() -> Failure {
        Failure::retryable(io::Error::other("switched off"))
    }
}

impl Destination for Switched {
    fn connect(&mut self, _deadline: &Deadline) -> Result<(), Failure> {
        if *self.mode.lock().unwrap() == Mode::Down { Err(Self::failed()) } else { Ok(()) }
    }

    fn publish(&mut self, message: &Message) -> Result<(), Failure> {
        self.in_flight.push(message.clone());
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let mode = *self.mode.lock().unwrap();
        let messages = std::mem::take(&mut self.in_flight);
        match mode {
            Mode::Down | Mode::Lose => Err(Self::failed()),
            Mode::Accept => {
                self.n_acknowledged += messages.len() as u64;
                // The test may have dropped the receiver.
                messages.into_iter().for_each(|message| drop(self.delivered.send(message)));
                Ok(())
            }
            Mode::Refuse | Mode::RefuseOnce => {
                for message in messages {
                    if message.frame == 1 && message.payload.starts_with(b"frame") {
                        self.refused.push((self.n_acknowledged, io::Error::other("not this one")));
                        if mode == Mode::RefuseOnce {
                            *self.mode.lock().unwrap() = Mode::Down;
                        }
                    } else {
                        drop(self.delivered.send(message));
                    }
                    self.n_acknowledged += 1;
                }
                Ok(())
            }
        }
    }

    fn acknowledged(&self) -> u64 {
        self.n_acknowledged
    }

    fn take_refused(&mut self) -> Vec<(u64, io::Error)> {
        std::mem::take(&mut self.refused)
    }
}

struct Rig {
    folder: Folder,
    mode: Arc<Mutex<Mode>>,
    spool: Arc<Spool>,
    delivered: Receiver<Message>,
    events: Receiver<String>,
    writer: SpoolWriter,
}

impl Rig {
    fn new(folder: Folder, mode: Mode) -> Self {
        let (sender, delivered) = channel();
        let mode = Arc::new(Mutex::new(mode));
        let of_destination = mode.clone();
        let retry = Retry { delay: Duration::ZERO, max_delay: Duration::ZERO, ..Retry::unlimited() };
        let new = || Switched { mode: of_destination, delivered: sender, in_flight: vec![], n_acknowledged: 0, refused: vec![] };
        let (reported, events) = channel();
        let on_event = move |event: Event<'_>| {
            // The test may have dropped the receiver.
            let _sent = reported.send(match event {
                Event::Lost { n_messages, .. } => format!("lost {n_messages}"),
                Event::Down(_) => "down".to_owned(),
                Event::Up => "up".to_owned(),
                Event::Dropping(_) => "dropping".to_owned(),
                Event::InMemory(_) => "in memory".to_owned(),
            });
        };
        let (spool, writer) = Spool::open(&folder.0, Limits::default(), retry, new, on_event).unwrap();
        Self { folder, mode, spool, delivered, events, writer }
    }

    fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }

    fn expect(&self, frames: std::ops::Range<u64>) {
        for frame in frames {
            assert_eq!(self.delivered.recv_timeout(LIMIT).unwrap(), message(frame));
        }
    }
}

#[test]
fn outage_is_reported_once_and_nothing_is_lost() {
    let mut rig = Rig::new(Folder::new("outage"), Mode::Accept);
    (0..10).for_each(|frame| rig.writer.publish(&message(frame)).unwrap());
    rig.expect(0..10);
    rig.set(Mode::Lose);
    (10..600).for_each(|frame| rig.writer.publish(&message(frame)).unwrap());
    assert_eq!(rig.events.recv_timeout(LIMIT).unwrap(), "down");
    rig.set(Mode::Down);
    assert!(!rig.spool.drain(Duration::ZERO, || false));
    assert_eq!([rig.spool.n_waiting_to_report() > 0, rig.spool.n_waiting_to_report() > 0], [true, false]);
    rig.set(Mode::Accept);
    rig.expect(10..600);
    assert_eq!(rig.events.recv_timeout(LIMIT).unwrap(), "up");
    assert!(rig.spool.drain(LIMIT, || false));
    assert_eq!(rig.spool.n_waiting_to_report(), 0);
    assert_eq!(rig.events.try_recv().ok(), None);
    let status = rig.spool.status();
    assert_eq!((status.delivered, status.waiting, status.dropped, status.is_down), (600, 0, 0, false));
}

#[test]
fn messages_wait_for_the_next_process() {
    let mut rig = Rig::new(Folder::new("process"), Mode::Down);
    (0..5).for_each(|frame| rig.writer.publish(&message(frame)).unwrap());
    let Rig { folder, spool, writer, .. } = rig;
    drop((spool, writer));
    let rig = Rig::new(folder, Mode::Accept);
    rig.expect(0..5);
}

#[test]
fn refused_message_becomes_a_gap_and_is_kept_with_its_reason() {
    let mut rig = Rig::new(Folder::new("refuse"), Mode::Refuse);
    (0..3).for_each(|frame| rig.writer.publish(&message(frame)).unwrap());
    let mut delivered: Vec<Message> = (0..3).map(|_| rig.delivered.recv_timeout(LIMIT).unwrap()).collect();
    let gap_at = delivered.iter().position(|message| message.payload.starts_with(b"{")).unwrap();
    let gap: Value = serde_json::from_slice(&delivered.remove(gap_at).payload).unwrap();
    let reason = "refused by the destination: not this one";
    assert_eq!((&gap["from"], &gap["to"], &gap["reason"]), (&1.into(), &1.into(), &reason.into()));
    assert_eq!(delivered, [message(0), message(2)]);
    assert_eq!((rig.events.recv_timeout(LIMIT).unwrap(), rig.spool.status().refused), ("lost 1".to_owned(), 1));
    let kept: Value = serde_json::from_slice(&std::fs::read(rig.folder.0.join("refused.jsonl")).unwrap()).unwrap();
    assert_eq!((&kept["message_id"], &kept["reason"], &kept["result"]), (&"door/7/1".into(), &"not this one".into(), &"frame 1".into()));
    assert!(rig.spool.drain(LIMIT, || false));
    assert_eq!([rig.spool.n_refused_to_report(), rig.spool.n_refused_to_report()], [1, 0]);
}

#[test]
fn gap_of_a_refused_message_survives_a_killed_process() {
    let mut rig = Rig::new(Folder::new("refuse-killed"), Mode::RefuseOnce);
    (0..2).for_each(|frame| rig.writer.publish(&message(frame)).unwrap());
    rig.expect(0..1);
    // The destination is down now, and the gap record cannot be sent.
    assert_eq!(rig.events.recv_timeout(LIMIT).unwrap(), "lost 1");
    assert_eq!(rig.events.recv_timeout(LIMIT).unwrap(), "down");
    let killed = rig.folder.of_killed_process();
    drop(rig);
    for _ in 0..2 {
        // Until the gap record is acknowledged, each process sends it again.
        let mut log = killed.log(1 << 20);
        assert_eq!((read(&mut log), log.n_waiting()), (vec![Err((1, 1, 1))], 0));
    }
    let rig = Rig::new(killed, Mode::Accept);
    let gap = rig.delivered.recv_timeout(LIMIT).unwrap();
    assert!(String::from_utf8(gap.payload).unwrap().contains("refused by the destination: not this one"));
    assert!(rig.spool.drain(LIMIT, || false));
    let Rig { folder, spool, writer, .. } = rig;
    drop((spool, writer));
    assert!(read(&mut folder.log(1 << 20)).is_empty());
}

#[test]
fn refused_message_that_cannot_be_kept_has_a_gap() {
    let folder = Folder::new("refuse-folder");
    std::fs::create_dir_all(folder.0.join("refused.jsonl")).unwrap();
    let mut rig = Rig::new(folder, Mode::Refuse);
    (1..3).for_each(|frame| rig.writer.publish(&message(frame)).unwrap());
    let mut delivered: Vec<Message> = (0..2).map(|_| rig.delivered.recv_timeout(LIMIT).unwrap()).collect();
    delivered.retain(|message| message.payload.starts_with(b"{"));
    assert_eq!((delivered.len(), rig.events.recv_timeout(LIMIT).unwrap()), (1, "lost 1".to_owned()));
}

#[test]
fn killed_process_leaves_the_number_of_its_last_message() {
    let mut rig = Rig::new(Folder::new("last number"), Mode::Down);
    (0..5).for_each(|frame| rig.writer.publish(&message(frame)).unwrap());
    rig.writer.flush().unwrap();
    let killed = rig.folder.of_killed_process();
    killed.segments().iter().for_each(|path| std::fs::remove_file(path).unwrap());
    assert_eq!(read(&mut killed.log(1 << 20)), [Err((0, 4, 5))]);
}

#[test]
fn losses_are_counted_on_after_the_spool_was_closed() {
    let reject = |rig: &mut Rig, n_refused| {
        (0..3).for_each(|frame| rig.writer.publish(&message(frame)).unwrap());
        assert_eq!(rig.events.recv_timeout(LIMIT).unwrap(), "lost 1");
        // Too large for any spool, so it is dropped at once.
        rig.writer.publish(&Message { payload: vec![0; 33 << 20], ..message(3) }).unwrap();
        let status = rig.spool.status();
        assert_eq!((status.refused, status.dropped), (n_refused, n_refused));
    };
    let mut rig = Rig::new(Folder::new("losses"), Mode::Refuse);
    reject(&mut rig, 1);
    assert!(rig.spool.drain(LIMIT, || false));
    let Rig { folder, spool, writer, .. } = rig;
    drop((spool, writer));
    let mut rig = Rig::new(folder, Mode::Refuse);
    assert_eq!((rig.spool.status().refused, rig.spool.status().dropped), (1, 1));
    reject(&mut rig, 2);
    let other = Rig::new(Folder::new("losses-other"), Mode::Accept);
    assert_eq!((other.spool.status().refused, other.spool.status().dropped), (0, 0), "each folder has its own numbers");
}

#[test]
fn publishers_of_a_process_share_a_spool() {
    let rig = Rig::new(Folder::new("shared"), Mode::Accept);
    let second = || -> Switched { panic!("one destination") };
    let (other, mut writer) = Spool::open(&rig.folder.0, Limits::default(), Retry::unlimited(), second, |_| {}).unwrap();
    assert!(Arc::ptr_eq(&rig.spool, &other));
    writer.publish(&message(3)).unwrap();
    rig.expect(3..4);
}

#[test]
fn outage_at_the_start_is_always_reported() {
    for round in 0..100 {
        let rig = Rig::new(Folder::new(&format!("start {round}")), Mode::Down);
        assert_eq!(rig.events.recv_timeout(LIMIT).unwrap(), "down");
    }
}

#[test]
fn parts_of_a_frame_keep_their_ids() {
    let folder = Folder::new("parts");
    let mut log = folder.log(1 << 20);
    let part = Message { part: 3, ..message(5) };
    assert_eq!(log.append(&message(5), 1), Appended::Stored);
    assert_eq!(log.append(&part, 1), Appended::Stored);
    drop(log);
    let mut log = folder.log(1 << 20);
    assert_eq!(log.next().unwrap().message, message(5));
    assert_eq!(log.next().unwrap().message, part);
    assert_eq!((message(5).id(), part.id()), ("door/7/5".to_owned(), "door/7/5.3".to_owned()));
}
