//! Prepares a plan while another pipeline of its stream runs, without opening the source: builds the pipeline, which sets all properties,
//! loads the models, and runs each model on one frame.

use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::time::Duration;

use super::descriptors::Reservation;
use super::{Error, Plan, Result, build, check, outputs};
use crate::elements;
use crate::frame::Size;
use crate::stages::Snapshot;

/// Maximum time of a preparation for which a client waits. An engine that hangs must not block its request.
pub(super) const MAX_REQUEST: Duration = Duration::from_secs(15);
/// Maximum time of a preparation for which no client waits.
pub(super) const MAX_RELOAD: Duration = Duration::from_secs(60);
/// How long the models of a preparation that took longer stay loaded, so that the next attempt finds them.
const KEPT: Duration = Duration::from_secs(60);
/// Maximum number of preparations that took too long and have not ended yet.
const MAX_LATE: usize = 8;

/// Checks whether a plan can run: its elements, properties and files, and that each model loads and runs on a black frame of this size.
/// `None`: the size of the model's input. The source is not opened, and no output is written. While the result exists, a stream of this plan
/// compiles no model again; [`PipelineHandle::add_prepared`](super::PipelineHandle::add_prepared) also reads no file again.
///
/// # Errors
/// Returns why an element, a property or a model cannot be used. Returns an error of the kind
/// [`ErrorKind::Unavailable`](super::ErrorKind::Unavailable) if an inference server does not answer, or if the preparation takes longer than
/// 15 seconds.
pub fn prepare(plan: &Plan, size: Option<Size>) -> Result<Snapshot> {
    prepare_in(plan, Snapshot::default(), size, MAX_REQUEST)
}

/// Like [`prepare`], with the models and files of a snapshot, and with a time limit. Files that the snapshot does not have are read.
pub(super) fn prepare_in(plan: &Plan, snapshot: Snapshot, size: Option<Size>, limit: Duration) -> Result<Snapshot> {
    static LATE: Mutex<Vec<Weak<()>>> = Mutex::new(Vec::new());
    let mut late = LATE.lock().unwrap_or_else(PoisonError::into_inner);
    late.retain(|running| running.strong_count() > 0);
    if late.len() >= MAX_LATE {
        let message = format!(
            "loading the models failed: expected at most {MAX_LATE} earlier attempts that have not ended, got {}. A device is slow or hangs; \
             try again later, or restart the process",
            late.len()
        );
        return Err(Error::unavailable(message));
    }
    drop(late);
    let running = Arc::new(());
    let is_running = Arc::downgrade(&running);
    let (sender, receiver) = mpsc::sync_channel(0);
    let plan = plan.clone();
    let body = move || {
        let prepared = prepare_now(&plan, snapshot, size);
        // If the receiver no longer waits, keep the models for the next attempt.
        if let Err(mpsc::SendError(Ok(_loaded))) = sender.send(prepared) {
            std::thread::sleep(KEPT);
        }
        drop(running);
    };
    std::thread::Builder::new()
        .name("roiflow-prepare".to_owned())
        .spawn(body)
        .map_err(|error| Error::failed(format!("cannot start the thread that prepares a stream: {error}")))?;
    match receiver.recv_timeout(limit) {
        Ok(prepared) => prepared,
        Err(mpsc::RecvTimeoutError::Timeout) => {
            LATE.lock().unwrap_or_else(PoisonError::into_inner).push(is_running);
            Err(Error::unavailable(format!(
                "loading the models failed: expected at most {} s, got no result in this time. The device is slow or hangs; try again in a minute",
                limit.as_secs()
            )))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(Error::failed("internal error: preparing a stream panicked")),
    }
}

fn prepare_now(plan: &Plan, snapshot: Snapshot, size: Option<Size>) -> Result<Snapshot> {
    let secrets = plan.secrets();
    let prepare = || {
        let _descriptors = Reservation::of(&plan.input)?;
        // The description is valid. Whether its elements take the values is a matter of this preparation.
        let pipeline = build::build(plan).map_err(|error| Error::failed(error.to_string()))?;
        outputs::check_built(&pipeline, plan)?;
        elements::set_snapshot(&pipeline, &snapshot);
        check::check_files(&pipeline)?;
        elements::prepare(&pipeline, size).map_err(|(element, error)| {
            let message = format!("{element}: {error}");
            if error.kind().is_outage() { Error::unavailable(message) } else { Error::failed(message) }
        })
    };
    prepare().map_err(|error: Error| error.scrubbed(&secrets))?;
    Ok(snapshot)
}
