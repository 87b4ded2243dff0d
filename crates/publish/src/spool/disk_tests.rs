//! Tests of the spool on disks that are full, damaged or missing.

use std::os::unix::fs::FileExt;

use super::tests::{Folder, frames, large, message, read, store};
use serde_json::Value;

use super::log::Appended;
use super::record::Record;
use super::*;

type Read = Result<u64, (u64, u64, u64)>;

/// Bytes of a file that is no segment.
fn noise(n_bytes: usize) -> Vec<u8> {
    (0..n_bytes as u32).map(|idx| (idx.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Mounts a small file system in memory. Returns `None` if the process may not mount.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(test: &str) -> Option<Self> {
        let path = std::env::temp_dir().join(format!("roiflow-disk-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let mount = std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(&path).status();
        mount.is_ok_and(|status| status.success()).then_some(Self(path))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _unmounted = std::process::Command::new("umount").arg(&self.0).status();
        let _removed = std::fs::remove_dir(&self.0);
    }
}

/// A file that takes all free space of a disk while it exists.
fn fill(path: &Path) {
    let file = std::fs::File::create(path).unwrap();
    for (idx, size) in [4096, 1].into_iter().cycle().enumerate() {
        if !file.write_at(&vec![1; size], file.metadata().unwrap().len()).is_ok_and(|n| n > 0) && idx % 2 == 1 {
            return;
        }
    }
}

/// Stores large messages from `first` on until the disk fails. Returns the number of the first message in memory.
fn store_until_in_memory(log: &mut Log, first: u64) -> u64 {
    let last = (first..first + 1000).find(|frame| {
        assert_eq!(log.append(&large(*frame), 1), Appended::Stored);
        log.n_in_memory() > 0
    });
    last.expect("the disk fails")
}

#[test]
fn memory_takes_over_while_the_disk_is_full_and_nothing_is_lost() {
    let Some(disk) = SmallDisk::mount("memory") else {
        eprintln!("skipped: this user may not mount a file system");
        return;
    };
    let (folder, other) = (disk.0.join("spool"), disk.0.join("other"));
    let open = || Log::open(&folder, Limits::default(), Arc::default()).unwrap();
    let mut log = open();
    let first = store_until_in_memory(&mut log, 0);
    assert!(first > 100 && log.disk_error().contains("No space left"), "{first}: {}", log.disk_error());
    (first + 1..first + 50).for_each(|frame| assert_eq!(log.append(&large(frame), 1), Appended::Stored));
    let n_all = first + 50;
    assert_eq!(read(&mut log), frames(0..n_all));
    // After a failure of the destination, the messages in memory are read again.
    log.acknowledge(first as usize + 10);
    log.rewind();
    assert_eq!(read(&mut log), frames(first + 10..n_all));
    log.acknowledge(1000);
    assert_eq!((log.n_waiting(), log.n_dropped(), log.has_unread()), (0, 0, false));
    // The space is free again, so the next messages are on disk.
    log.refresh();
    assert_eq!((log.disk_error(), log.n_in_memory()), ("", 0));
    store(&mut log, n_all..n_all + 3);
    drop(log);
    assert_eq!(read(&mut open()), frames(n_all..n_all + 3));
    // The disk is full of other files: the only segment is freed when its messages are acknowledged, and delivery goes on.
    let mut log = open();
    fill(&other);
    let mut next = store_until_in_memory(&mut log, n_all + 3) + 1;
    for _ in 0..5 {
        let all = read(&mut log);
        log.acknowledge(all.len());
        assert_eq!((log.n_waiting(), log.n_dropped()), (0, 0));
        (next..next + 200).for_each(|frame| assert_eq!(log.append(&large(frame), 1), Appended::Stored));
        next += 200;
    }
    std::fs::remove_file(&other).unwrap();
    log.refresh();
    drop(log);
    assert_eq!(read(&mut open()), frames(next - 200..next));
}

#[test]
fn full_memory_replaces_the_oldest_messages_by_one_gap() {
    let Some(disk) = SmallDisk::mount("full") else {
        eprintln!("skipped: this user may not mount a file system");
        return;
    };
    let mut log = Log::open(&disk.0.join("spool"), Limits { max_bytes: 4 << 20, max_age: None }, Arc::default()).unwrap();
    let mut reasons = std::collections::BTreeSet::new();
    for frame in 0..12_000 {
        match log.append(&message(frame), 1) {
            Appended::Replacing(reason) | Appended::Dropped(reason) => drop(reasons.insert(reason)),
            Appended::Stored => {}
        }
    }
    assert!(reasons.len() == 1 && reasons.first().unwrap().contains("No space left"), "{reasons:?}");
    assert!(log.n_in_memory() <= 4096);
    let all = read(&mut log);
    let Err((0, last, n_dropped)) = all[0] else { panic!("expected a gap first: {:?}", &all[..3]) };
    assert_eq!((n_dropped, &all[1..]), (last + 1, &*frames(last + 1..12_000)));
    assert!(all.len() > 4096, "disk and memory are used: {}", all.len());
}

#[test]
fn spool_continues_when_its_folder_is_back() {
    let folder = Folder::new("moved");
    let mut log = folder.log(1 << 20);
    let elsewhere = folder.0.with_extension("elsewhere");
    store(&mut log, 0..2);
    std::fs::rename(&folder.0, &elsewhere).unwrap();
    // The open segment is still written. The first message that needs a new segment waits in memory.
    let first = store_until_in_memory(&mut log, 2);
    assert!(first > 2 && log.disk_error().contains("No such file"), "{first}: {}", log.disk_error());
    log.refresh();
    assert!(log.n_in_memory() > 0 && !folder.0.exists(), "a folder that was moved is not created again");
    std::fs::rename(&elsewhere, &folder.0).unwrap();
    log.refresh();
    store(&mut log, first + 1..first + 3);
    assert_eq!(read(&mut log), frames(0..first + 3));
    drop(log);
    assert_eq!(read(&mut folder.log(1 << 20)), frames(0..first + 3));
}

#[test]
fn deleted_folder_is_created_again_and_only_complete_segments_are_missing() {
    let folder = Folder::new("deleted");
    let mut log = folder.log(1 << 20);
    store(&mut log, 0..10);
    std::fs::remove_dir_all(&folder.0).unwrap();
    store(&mut log, 10..20);
    assert_eq!(read(&mut log), frames(0..20));
    log.rewind();
    log.refresh();
    store(&mut log, 20..30);
    drop(log);
    // The first segment is complete, and the second is open.
    let mut log = folder.log(Limits::MIN_BYTES);
    assert_eq!(read(&mut log), frames(0..30));
    log.rewind();
    (30..45).for_each(|frame| assert_eq!(log.append(&large(frame), 1), Appended::Stored));
    std::fs::remove_dir_all(&folder.0).unwrap();
    log.refresh();
    let all = read(&mut log);
    let Err((0, last, n_lost)) = all[0] else { panic!("{all:?}") };
    assert_eq!((n_lost, &all[1..]), (last + 1, &*frames(last + 1..45)));
    log.acknowledge(all.len());
    assert_eq!((log.n_waiting(), log.n_dropped()), (0, n_lost));
    store(&mut log, 45..47);
    drop(log);
    assert_eq!(read(&mut folder.log(Limits::MIN_BYTES)), frames(45..47));
}

#[test]
fn damaged_byte_costs_at_most_its_record() {
    let folder = Folder::new("byte");
    let mut log = folder.log(1 << 20);
    store(&mut log, 0..5);
    log.refresh();
    drop(log);
    let (path, cursor) = (folder.segments().pop().unwrap(), folder.0.join("cursor"));
    let (whole, of_cursor) = (std::fs::read(&path).unwrap(), std::fs::read(&cursor).unwrap());
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x20;
        std::fs::write(&path, &damaged).unwrap();
        std::fs::write(&cursor, &of_cursor).unwrap();
        let mut log = folder.log(1 << 20);
        store(&mut log, 5..6);
        let mut all = read(&mut log);
        if let Some(gap) = all.iter().position(Result::is_err) {
            assert_eq!(all[gap], Err((gap as u64, gap as u64, 1)), "byte {at}");
            all[gap] = Ok(gap as u64);
            assert_eq!(log.next(), None);
        }
        assert_eq!(all, frames(0..6), "byte {at}");
        log.acknowledge(all.len());
        assert_eq!((log.n_waiting(), folder.segments().len()), (0, 1), "byte {at}");
    }
}

#[test]
fn each_part_of_a_spool_that_is_missing_becomes_a_gap() {
    let folder = Folder::new("missing");
    let mut log = folder.log(Limits::MIN_BYTES);
    (0..40).for_each(|frame| assert_eq!(log.append(&large(frame), 1), Appended::Stored));
    log.refresh();
    drop(log);
    let files: Vec<(PathBuf, Vec<u8>)> =
        folder.segments().into_iter().chain([folder.0.join("cursor")]).map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    let n_segments = files.len() - 1;
    assert!(n_segments > 4);
    let cut = |bytes: &[u8], from: usize, to: usize| [&bytes[..from], &vec![0; to - from], &bytes[to..]].concat();
    let mut cases: Vec<(String, Box<dyn Fn()>)> = Vec::new();
    for (idx, (path, bytes)) in files[..n_segments].iter().enumerate() {
        cases.push((format!("segment {idx} is deleted"), Box::new(move || std::fs::remove_file(path).unwrap())));
        cases.push((format!("segment {idx} is cut"), Box::new(move || std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap())));
        cases.push((format!("segment {idx} is empty"), Box::new(move || std::fs::write(path, "").unwrap())));
        cases.push((format!("segment {idx} is zero"), Box::new(move || std::fs::write(path, vec![0; bytes.len()]).unwrap())));
        cases.push((format!("segment {idx} is noise"), Box::new(move || std::fs::write(path, noise(bytes.len())).unwrap())));
        let become_folder = move || {
            std::fs::remove_file(path).unwrap();
            std::fs::create_dir(path).unwrap();
        };
        cases.push((format!("segment {idx} is a folder"), Box::new(become_folder)));
        cases.push((format!("a block of segment {idx} is zero"), Box::new(move || std::fs::write(path, cut(bytes, 2000, 4096)).unwrap())));
    }
    let all_deleted = || files[..n_segments].iter().for_each(|(path, _)| std::fs::remove_file(path).unwrap());
    cases.push(("all segments are deleted".to_owned(), Box::new(all_deleted)));
    for (name, damage) in cases {
        folder.segments().iter().for_each(|path| std::fs::remove_file(path).unwrap());
        files.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
        damage();
        let mut log = folder.log(1 << 20);
        store(&mut log, 40..42);
        let all = read(&mut log);
        let gaps: Vec<&Read> = all.iter().filter(|read| read.is_err()).collect();
        let [Err((from, to, n_lost))] = gaps[..] else { panic!("{name}: {gaps:?}") };
        assert_eq!((to + 1 - from, all.len() as u64), (*n_lost, 42 - n_lost + 1), "{name}");
        let frames: Vec<u64> =
            all.iter().flat_map(|read| read.map_or_else(|(from, to, _)| from..to + 1, |frame| frame..frame + 1)).collect();
        assert!(frames.iter().copied().eq(0..42), "{name}: {all:?}");
        log.acknowledge(all.len());
        assert_eq!((log.n_waiting(), log.n_dropped()), (0, *n_lost), "{name}");
    }
}

#[test]
fn file_that_is_no_segment_is_set_aside_whole() {
    let folder = Folder::new("foreign");
    drop(folder.log(1 << 20));
    let path = folder.segments().pop().unwrap();
    let set_aside = |suffix: &str| PathBuf::from(format!("{}.damaged{suffix}", path.display()));
    for (text, suffix) in [("a text of the user", ""), ("short", "-2"), ("RFSPOOL9", "-3")] {
        std::fs::write(&path, text).unwrap();
        let mut log = folder.log(1 << 20);
        store(&mut log, 0..3);
        let all = read(&mut log);
        assert_eq!(all[all.len() - 3..], frames(0..3), "{text}");
        log.acknowledge(all.len());
        drop(log);
        assert_eq!(std::fs::read_to_string(set_aside(suffix)).unwrap(), text);
    }
    // A FIFO would block its reader, and a file of this size would fill the memory.
    std::fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    drop(folder.log(1 << 20));
    std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    drop(folder.log(1 << 20));
    assert!(set_aside("-4").exists());
    assert_eq!(std::fs::metadata(set_aside("-5")).unwrap().len(), 1 << 40);
}

#[test]
fn files_with_other_names_stay_in_the_folder() {
    let folder = Folder::new("names");
    let mut log = folder.log(1 << 20);
    store(&mut log, 0..2);
    drop(log);
    let names = ["2.segment", "+000000000000002.segment", "00000000000000AA.segment", "ffffffffffffffff.segment", "notes.segment"];
    names.iter().for_each(|name| std::fs::write(folder.0.join(name), "of the user").unwrap());
    let mut log = folder.log(1 << 20);
    assert_eq!(read(&mut log), frames(0..2));
    log.acknowledge(2);
    (2..100).for_each(|frame| drop(log.append(&large(frame), 1)));
    names.iter().for_each(|name| assert_eq!(std::fs::read_to_string(folder.0.join(name)).unwrap(), "of the user", "{name}"));
}

#[test]
fn damaged_cursor_and_segment_stop_no_delivery() {
    let folder = Folder::new("both");
    let mut log = folder.log(Limits::MIN_BYTES);
    (0..30).for_each(|frame| assert_eq!(log.append(&large(frame), 1), Appended::Stored));
    log.refresh();
    drop(log);
    let cursor = std::fs::read(folder.0.join("cursor")).unwrap();
    let zeros = vec![0; cursor.len()];
    for damaged in [&cursor[..0], &cursor[..10], &cursor[..20], &cursor[..cursor.len() - 1], &zeros, &noise(cursor.len())] {
        let copy = folder.of_killed_process();
        std::fs::write(copy.0.join("cursor"), damaged).unwrap();
        let path = copy.segments().remove(1);
        let n_bytes = std::fs::metadata(&path).unwrap().len();
        std::fs::write(&path, vec![0; n_bytes as usize]).unwrap();
        let mut log = copy.log(Limits::MIN_BYTES);
        store(&mut log, 30..31);
        let all = read(&mut log);
        let Some(&Err((from, to, n_lost))) = all.iter().find(|read| read.is_err()) else { panic!("{damaged:?}: {all:?}") };
        let expected = [frames(0..from), vec![Err((from, to, n_lost))], frames(to + 1..31)].concat();
        assert_eq!((n_lost, all), (to + 1 - from, expected));
    }
}

#[test]
fn damaged_message_before_a_stored_gap_has_its_own_gap() {
    let folder = Folder::new("before gap");
    let mut log = folder.log(1 << 20);
    store(&mut log, 0..5);
    let oversize = |frame| Message { payload: vec![0; 1 << 20], ..message(frame) };
    (5..8).for_each(|frame| assert!(matches!(log.append(&oversize(frame), 1), Appended::Dropped(_))));
    store(&mut log, 8..10);
    log.refresh();
    drop(log);
    let damage = |texts: &[&str]| {
        let path = folder.segments().pop().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        for text in texts {
            let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
            bytes[at] ^= 1;
        }
        std::fs::write(&path, bytes).unwrap();
    };
    damage(&["frame 3", "frame 4"]);
    let mut log = folder.log(1 << 20);
    let expected = [frames(0..3), vec![Err((3, 4, 2)), Err((5, 7, 3))], frames(8..10)].concat();
    assert_eq!((log.n_waiting(), read(&mut log)), (7, expected));
    drop(log);
    // The gap record is damaged, too.
    damage(&["the message is too large"]);
    let mut log = folder.log(1 << 20);
    assert_eq!(read(&mut log), [frames(0..3), vec![Err((3, 7, 5))], frames(8..10)].concat());
    assert_eq!(log.n_waiting(), 10);
}

#[test]
fn replaced_segment_counts_its_damaged_messages() {
    let folder = Folder::new("replaced");
    let mut log = folder.log(Limits::MIN_BYTES);
    (0..20).for_each(|frame| assert_eq!(log.append(&large(frame), 1), Appended::Stored));
    log.refresh();
    drop(log);
    // The segments have seven messages each.
    let paths = folder.segments();
    for (path, record) in [(&paths[0], 3), (&paths[1], 0)] {
        let mut bytes = std::fs::read(path).unwrap();
        let n_bytes = (bytes.len() - 8) / 7;
        bytes[8 + record * n_bytes + n_bytes / 2] ^= 1;
        std::fs::write(path, bytes).unwrap();
    }
    let mut log = folder.log(Limits::MIN_BYTES);
    let mut frame = 20;
    while log.n_dropped() < 14 {
        log.append(&large(frame), 1);
        frame += 1;
    }
    let expected = [vec![Err((0, 13, 14))], frames(14..frame)].concat();
    assert_eq!((log.n_dropped(), log.n_waiting(), read(&mut log)), (14, frame - 14, expected));
}

#[test]
fn gap_record_of_an_earlier_version_covers_all_its_messages() {
    let folder = Folder::new("earlier gap");
    let mut log = folder.log(1 << 20);
    store(&mut log, 0..2);
    log.refresh();
    drop(log);
    let path = folder.segments().pop().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let gap = r#"{"event":"gap","message_id":"","stream":"door","epoch":7,"from":2,"to":4,"dropped":3,"reason":"the spool is full"}"#;
    let gap = Message { payload: gap.into(), ..message(4) };
    Record { message: gap, time: 1, is_gap: true, first: None, number: Some(4) }.write(&mut bytes);
    Record { message: message(5), time: 1, is_gap: false, first: Some(5), number: Some(5) }.write(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
    let mut log = folder.log(1 << 20);
    assert_eq!((log.n_waiting(), read(&mut log)), (3, vec![Ok(0), Ok(1), Err((2, 4, 3)), Ok(5)]));
}

#[test]
fn damage_of_one_stream_is_no_gap_of_another() {
    let folder = Folder::new("streams");
    let of = |stream: &str, frame| Message { stream: Some(stream.into()), ..message(frame) };
    let mut log = folder.log(1 << 20);
    for frame in 0..5 {
        // The stream `gate` has results for some frames only.
        assert_eq!([log.append(&of("gate", 10 * frame), 1), log.append(&of("door", frame), 1)], [Appended::Stored, Appended::Stored]);
    }
    log.refresh();
    drop(log);
    let path = folder.segments().pop().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(8).position(|window| window == b"frame 20").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let mut log = folder.log(1 << 20);
    let gaps: Vec<Value> = std::iter::from_fn(|| log.next())
        .filter(|next| next.is_gap)
        .map(|next| serde_json::from_slice(&next.message.payload).unwrap())
        .collect();
    let [gap] = &gaps[..] else { panic!("{gaps:?}") };
    assert_eq!((&gap["stream"], &gap["from"], &gap["to"], &gap["dropped"]), (&"gate".into(), &11.into(), &29.into(), &1.into()));
}

#[test]
fn files_of_the_first_version_are_delivered() {
    let folder = Folder::new("version 1");
    std::fs::create_dir_all(&folder.0).unwrap();
    let (segment, cursor) = (include_bytes!("stored/version-1.segment"), include_bytes!("stored/version-1.cursor"));
    let restore = || {
        std::fs::write(folder.0.join("0000000000000001.segment"), segment).unwrap();
        std::fs::write(folder.0.join("cursor"), cursor).unwrap();
    };
    restore();
    let mut log = folder.log(1 << 20);
    store(&mut log, 6..8);
    assert_eq!(log.n_waiting(), 8);
    for frame in 0..6 {
        let message = log.next().unwrap().message;
        let line: Value = serde_json::from_slice(&message.payload).unwrap();
        assert_eq!((message.frame, message.stream.as_deref()), (frame, Some("door")));
        assert_eq!((&line["frame"], &line["message_id"]), (&frame.into(), &message.id().into()));
    }
    assert_eq!(read(&mut log), frames(6..8));
    log.acknowledge(6);
    drop(log);
    // The segment of the first version is gone, and the newer ones stay.
    let mut log = folder.log(1 << 20);
    assert_eq!((folder.segments().len(), read(&mut log)), (1, frames(6..8)));
    drop(log);
    // A damaged payload costs its record in this version, too.
    folder.segments().iter().for_each(|path| std::fs::remove_file(path).unwrap());
    restore();
    let mut damaged = segment.to_vec();
    damaged[800] ^= 1;
    std::fs::write(folder.0.join("0000000000000001.segment"), damaged).unwrap();
    let mut log = folder.log(1 << 20);
    assert_eq!(std::iter::from_fn(|| log.next()).count(), 5);
}

/// Whether this process must do the work of a test that needs permissions. A privileged process may write everywhere, so it runs the
/// test as another user, and must not do the work itself.
fn is_without_privileges(test: &str) -> bool {
    let folder = Folder::new(&format!("probe-{test}"));
    std::fs::create_dir_all(&folder.0).unwrap();
    set_mode(&folder.0, 0o500);
    if std::fs::write(folder.0.join("file"), "").is_err() {
        return true;
    }
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let again = std::process::Command::new("setpriv").args(user).arg(std::env::current_exe().unwrap()).args(["--exact", test]).output();
    match again {
        Ok(output) if output.status.code().is_none_or(|code| code < 126) => {
            assert!(output.status.success(), "as another user: {}", String::from_utf8_lossy(&output.stdout));
        }
        _ => eprintln!("skipped: this test cannot run as another user"),
    }
    false
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn lost_permission_keeps_messages_in_memory_until_it_is_back() {
    if !is_without_privileges("spool::disk_tests::lost_permission_keeps_messages_in_memory_until_it_is_back") {
        return;
    }
    let folder = Folder::new("permission");
    let mut log = folder.log(1 << 20);
    set_mode(&folder.0, 0o500);
    let first = store_until_in_memory(&mut log, 0);
    assert!(first > 0 && log.disk_error().contains("Permission denied"), "{first}: {}", log.disk_error());
    log.refresh();
    drop(log);
    // A spool that may not be written is an error at the start, and stays as it is.
    let segments = folder.segments();
    set_mode(&folder.0.join("cursor"), 0o400);
    let error = Log::open(&folder.0, Limits::default(), Arc::default()).unwrap_err();
    assert_eq!((error.kind(), folder.segments()), (io::ErrorKind::PermissionDenied, segments));
    set_mode(&folder.0.join("cursor"), 0o600);
    set_mode(&folder.0, 0o700);
    let mut log = folder.log(1 << 20);
    store(&mut log, first + 1..first + 2);
    let expected = [frames(0..first), vec![Err((first, first, 1))], frames(first + 1..first + 2)].concat();
    assert_eq!(read(&mut log), expected, "messages that end with their process leave a gap");
    drop(log);
    // A segment that may only be read is delivered, and new messages go to another segment.
    let segments = folder.segments();
    segments.iter().for_each(|path| set_mode(path, 0o400));
    let mut log = folder.log(1 << 20);
    store(&mut log, first + 2..first + 3);
    assert_eq!(read(&mut log), [expected, frames(first + 2..first + 3)].concat());
    drop(log);
    // A segment that may not be read is missing.
    set_mode(&segments[0], 0);
    let mut log = folder.log(1 << 20);
    store(&mut log, first + 3..first + 4);
    let all = read(&mut log);
    assert!(matches!(all[0], Err((0, ..))) && all.last() == Some(&Ok(first + 3)), "{all:?}");
}

#[test]
fn read_only_disk_is_an_error_at_the_start() {
    let Some(disk) = SmallDisk::mount("read-only") else {
        eprintln!("skipped: this user may not mount a file system");
        return;
    };
    let folder = disk.0.join("spool");
    let open = || Log::open(&folder, Limits::default(), Arc::default());
    let mut log = open().unwrap();
    store(&mut log, 0..3);
    drop(log);
    let mount = |options: &str| std::process::Command::new("mount").args(["-o", options]).arg(&disk.0).status().unwrap().success();
    assert!(mount("remount,ro"));
    assert_eq!(open().unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    assert!(mount("remount,rw"));
    assert_eq!(read(&mut open().unwrap()), frames(0..3));
}
