//! Memory that a request shares with a server on the same machine: the extension "system shared memory" of KServe v2, which Triton has.
//!
//! A region is a file in `/dev/shm`. It contains the inputs of a request, and its outputs of fixed shape. The request registers the name of
//! the file with the server, and the server maps the file into its memory. This process does not map the file: it copies values with
//! `pread` and `pwrite`. So a server that writes at the wrong time can cause wrong results, but no data race in this process.
//!
//! A region whose call failed or was canceled is not used again, because the server may still write into it.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::connection::Connection;
use super::datatype::n_bytes_of;
use super::failure::{Blame, Failure};
use super::protocol::Parameter;
use super::servers::runtime;
use crate::runtime::io::DeviceIo;
use crate::runtime::{Error, ErrorKind, ModelInfo, Result};
use crate::tensor::Shape;

/// The folder of POSIX shared memory on Linux.
const FOLDER: &str = "/dev/shm";
const PREFIX: &str = "roiflow-";
/// Tensors begin at multiples of this, as the engines of servers expect.
const ALIGNMENT: usize = 64;
/// Minimum age of files of ended processes that are removed.
const MIN_STALE_AGE: Duration = Duration::from_secs(60);
/// Time limit of the request that ends the registration of a region.
const UNREGISTER_TIME: Duration = Duration::from_secs(1);

/// The key of a parameter of an input or output: the name of its region.
const REGION: &str = "shared_memory_region";
const SIZE: &str = "shared_memory_byte_size";
const OFFSET: &str = "shared_memory_offset";

/// The position of a tensor in a region, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: usize,
    pub(crate) n_bytes: usize,
}

/// The positions of the tensors of one run.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    inputs: Vec<Place>,
    /// `None`: an output of dynamic shape, which is part of the response.
    outputs: Vec<Option<Place>>,
    n_bytes: usize,
}

impl Plan {
    /// Returns `None` if the tensors are too large for the address space.
    fn of(info: &ModelInfo, shapes: &[Shape]) -> Option<Self> {
        let mut end = 0_usize;
        let mut place = |n_bytes: Option<usize>| {
            let place = Place { offset: end, n_bytes: n_bytes? };
            end = end.checked_add(place.n_bytes)?.checked_next_multiple_of(ALIGNMENT)?;
            Some(place)
        };
        let bytes = |shape: &Shape, port: &crate::runtime::Port| shape.n_elements()?.checked_mul(port.element.size());
        let inputs = info.inputs.iter().zip(shapes).map(|(port, shape)| place(bytes(shape, port))).collect::<Option<_>>()?;
        let outputs = info.outputs.iter().map(|port| match port.shape.to_static() {
            Some(shape) => place(bytes(&shape, port)).map(Some),
            None => Some(None),
        });
        let outputs = outputs.collect::<Option<_>>()?;
        Some(Self { inputs, outputs, n_bytes: end })
    }
}

/// The tensors of a call in a region.
pub(crate) struct Placement {
    region: Region,
    plan: Plan,
}

impl Placement {
    /// Returns a placement for the inputs of a run, in the region of an earlier run if they fit, and copies the inputs.
    ///
    /// # Errors
    /// Returns `OutOfMemory` or `Io` if there is no memory for the region; the errors of reading an input.
    pub(crate) fn new(info: &ModelInfo, io: &DeviceIo<'_>, earlier: Option<Self>) -> Result<Self> {
        let shapes: Vec<Shape> = (0..info.inputs.len()).map(|idx| *io.input(idx).layout().shape()).collect();
        let too_large = || Error::new(ErrorKind::OutOfMemory, "the inputs and outputs are too large for shared memory");
        let plan = Plan::of(info, &shapes).ok_or_else(too_large)?;
        let region = match earlier {
            Some(earlier) if earlier.region.n_bytes >= plan.n_bytes => earlier.region,
            _ => Region::new(plan.n_bytes)?,
        };
        for (input_idx, place) in plan.inputs.iter().enumerate() {
            let bytes = io.input(input_idx);
            match bytes.layout().is_dense() {
                true => region.write(*place, bytes.extent())?,
                false => {
                    let mut dense = vec![0; place.n_bytes];
                    bytes.copy_all_to_dense(&mut dense)?;
                    region.write(*place, &dense)?;
                }
            }
        }
        Ok(Self { region, plan })
    }

    /// Returns the parameters of an input.
    pub(crate) fn of_input(&self, input_idx: usize) -> HashMap<String, Parameter> {
        self.region.parameters(self.plan.inputs[input_idx])
    }

    /// Returns the parameters of an output. They are empty if the output is part of the response.
    pub(crate) fn of_output(&self, output_idx: usize) -> HashMap<String, Parameter> {
        self.plan.outputs[output_idx].map(|place| self.region.parameters(place)).unwrap_or_default()
    }

    /// Registers the region with a server, unless this was already done over this connection.
    pub(crate) async fn register(&self, connection: &Connection, deadline: Instant) -> Result<(), Failure> {
        self.region.register(connection, deadline).await
    }

    /// Returns whether a call failed because the server does not know the region, for example because the server was restarted. The region
    /// then counts as not registered.
    pub(crate) fn is_unknown(&self, failure: &Failure, connection: &Connection) -> bool {
        let is_unknown = failure.blames != Blame::Connection && failure.message.contains(&self.region.name);
        if is_unknown {
            self.region.known_by.lock().unwrap().retain(|known| !known.is(connection));
        }
        is_unknown
    }
}

/// The outputs that the server writes to shared memory.
#[derive(Clone, Copy)]
pub(crate) struct SharedOutputs<'a>(Option<(&'a Placement, &'a ModelInfo)>);

impl<'a> SharedOutputs<'a> {
    /// For calls that use no shared memory.
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn of(placement: &'a Placement, info: &'a ModelInfo) -> Self {
        Self(Some((placement, info)))
    }

    /// Returns the values of an output of the response. `inline` are its values in the response, if it has any: the response of some servers
    /// does not tell which outputs are in shared memory, and has empty values for them.
    ///
    /// # Errors
    /// Fails if the output is neither in the response nor in shared memory.
    pub(crate) fn values(self, name: &str, datatype: &str, shape: &[i64], inline: Option<Bytes>) -> Result<Bytes, Failure> {
        let fail = |why: String| Failure::protocol(format!("output `{name}`: {why}"));
        match (inline, self.place(name)) {
            (Some(values), None) => Ok(values),
            (Some(values), Some(_)) if !values.is_empty() => Ok(values),
            (None, None) => Err(fail("expected its values in the response, got none".to_owned())),
            (_, Some((region, place))) => match n_bytes_of(datatype, shape) {
                Some(n_bytes) if n_bytes <= place.n_bytes => {
                    region.read(Place { n_bytes, ..place }).map_err(|error| fail(format!("cannot read it in shared memory: {error}")))
                }
                _ => Err(fail(format!("expected at most {} bytes in shared memory, got the shape {shape:?} of {datatype}", place.n_bytes))),
            },
        }
    }

    /// Whether an output is in shared memory.
    pub(crate) fn contains(self, name: &str) -> bool {
        self.place(name).is_some()
    }

    fn place(self, name: &str) -> Option<(&'a Region, Place)> {
        let (placement, info) = self.0?;
        let output_idx = info.outputs.iter().position(|port| port.name() == name)?;
        placement.plan.outputs[output_idx].map(|place| (&placement.region, place))
    }
}

/// Checks that a server can use shared memory of this machine.
///
/// # Errors
/// Fails with `Config` if the server cannot; with `Io` if this process cannot create shared memory.
pub(crate) async fn check(connection: &Connection, deadline: Instant) -> Result<(), Failure> {
    let region = Region::new(ALIGNMENT).map_err(|error| Failure::new(error.kind(), error.to_string()))?;
    region.register(connection, deadline).await
}

/// A file that servers map.
struct Region {
    name: String,
    path: PathBuf,
    file: File,
    n_bytes: usize,
    /// The connections over which the region was registered.
    known_by: Mutex<Vec<Connection>>,
}

impl Region {
    fn new(n_bytes: usize) -> Result<Self> {
        static N_REGIONS: AtomicU64 = AtomicU64::new(0);
        static REMOVE_STALE: Once = Once::new();
        REMOVE_STALE.call_once(|| remove_stale(Path::new(FOLDER)));
        // A name must be unique among all clients of a server. A process in another container may have the same ID, so add a random
        // number.
        let random = RandomState::new().hash_one(0);
        let name = format!("{PREFIX}{}-{}-{random:016x}", std::process::id(), N_REGIONS.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(FOLDER).join(&name);
        let failed = |error: io::Error| {
            let message = format!("cannot create {n_bytes} bytes of shared memory in {FOLDER}: {error}. Set remote.shared-memory=no");
            Error::new(ErrorKind::Io, message)
        };
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
        let region = Self { name, path, file, n_bytes: n_bytes.max(1), known_by: Mutex::default() };
        // The system releases the lock when this process ends, so that other processes know which files they may remove.
        region.file.lock().map_err(failed)?;
        // Write zeros, to reserve the memory. Otherwise, a server that writes to the mapped file gets the signal SIGBUS if memory is short.
        let zeros = vec![0; region.n_bytes.min(1 << 20)];
        let mut offset = 0;
        while offset < region.n_bytes {
            let len = zeros.len().min(region.n_bytes - offset);
            region.file.write_all_at(&zeros[..len], offset as u64).map_err(failed)?;
            offset += len;
        }
        Ok(region)
    }

    fn write(&self, place: Place, bytes: &[u8]) -> Result<()> {
        let failed = |error: io::Error| Error::new(ErrorKind::Io, format!("cannot write to shared memory: {error}"));
        self.file.write_all_at(bytes, place.offset as u64).map_err(failed)
    }

    fn read(&self, place: Place) -> io::Result<Bytes> {
        let mut values = vec![0; place.n_bytes];
        self.file.read_exact_at(&mut values, place.offset as u64)?;
        Ok(values.into())
    }

    fn parameters(&self, place: Place) -> HashMap<String, Parameter> {
        HashMap::from([
            (REGION.to_owned(), Parameter::text(&self.name)),
            (OFFSET.to_owned(), Parameter::number(place.offset)),
            (SIZE.to_owned(), Parameter::number(place.n_bytes)),
        ])
    }

    async fn register(&self, connection: &Connection, deadline: Instant) -> Result<(), Failure> {
        if self.known_by.lock().unwrap().iter().any(|known| known.is(connection)) {
            return Ok(());
        }
        let mut registered = connection.register(&self.name, self.n_bytes, deadline).await;
        if registered.as_ref().is_err_and(|failure| failure.blames != Blame::Connection && !failure.is_uncomputed) {
            // A server refuses a region that it knows from an earlier connection.
            let _ignored = connection.unregister(&self.name, deadline).await;
            registered = connection.register(&self.name, self.n_bytes, deadline).await;
        }
        registered.map_err(|failure| match failure.kind {
            ErrorKind::Unavailable | ErrorKind::Timeout => failure,
            _ => Failure::new(
                ErrorKind::Config,
                format!(
                    "option `remote.shared-memory`: expected a server on this machine that can use shared memory, got: {}. Set it to no",
                    failure.message
                ),
            ),
        })?;
        let mut known_by = self.known_by.lock().unwrap();
        known_by.retain(|known| !known.life().is_over());
        known_by.push(connection.clone());
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let known_by = std::mem::take(self.known_by.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner));
        // A server that has mapped the file keeps the memory until the registration ends, even if the file was removed.
        let _ignored = std::fs::remove_file(&self.path);
        let Ok(runtime) = runtime() else { return };
        for connection in known_by.into_iter().filter(|connection| !connection.life().is_over()) {
            let name = self.name.clone();
            runtime.spawn(async move {
                let deadline = Instant::now() + UNREGISTER_TIME;
                if let Ok(Err(failure)) = tokio::time::timeout_at(deadline, connection.unregister(&name, deadline)).await {
                    tracing::debug!("a server still has the shared memory `{name}`: {}", failure.message);
                }
            });
        }
    }
}

/// Removes the files of processes that were killed.
fn remove_stale(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        // Only regular files: opening a FIFO of another user would block. The metadata are not those of the target of a link.
        let Some(metadata) = entry.metadata().ok().filter(std::fs::Metadata::is_file) else { continue };
        let is_old = || metadata.modified().ok()?.elapsed().ok().map(|age| age > MIN_STALE_AGE);
        if is_old() != Some(true) {
            continue;
        }
        if File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ignored = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn stale_files_are_removed_and_other_entries_are_left() {
        let folder = std::env::temp_dir().join(format!("roiflow-stale-{:016x}", RandomState::new().hash_one(0)));
        std::fs::create_dir(&folder).unwrap();
        let path = |name: &str| folder.join(format!("{PREFIX}{name}"));
        let before = SystemTime::now() - MIN_STALE_AGE - Duration::from_secs(60);
        for name in ["stale", "locked", "new"] {
            let file = File::create_new(path(name)).unwrap();
            file.set_modified(if name == "new" { SystemTime::now() } else { before }).unwrap();
        }
        let locked = File::open(path("locked")).unwrap();
        locked.lock().unwrap();
        assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
        assert!(Command::new("touch").args(["-d", "2 hours ago"]).arg(path("fifo")).status().unwrap().success());
        let (done, is_done) = std::sync::mpsc::channel();
        let of_thread = folder.clone();
        std::thread::spawn(move || {
            remove_stale(&of_thread);
            let _sent = done.send(());
        });
        is_done.recv_timeout(Duration::from_secs(10)).expect("a FIFO blocks the first region of the process");
        let is_left = ["stale", "locked", "new", "fifo"].map(|name| path(name).exists());
        assert_eq!(is_left, [false, true, true, true]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
