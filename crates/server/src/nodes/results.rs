//! Results that all nodes have published: the interface to the server that keeps them, and the gaps between two owners of a stream.

use bytes::Bytes;
use roiflow_nodes::types::{Cause, Interruption};
use roiflow_results::{EPOCHS_PER_ASSIGNMENT, Gap, LastResult};
use serde_json::Value;
use tokio::sync::broadcast;

/// Lines of results as they arrive.
pub type Lines = broadcast::Receiver<Bytes>;

/// The results that all nodes have published.
pub trait ResultLog: std::fmt::Debug + Send + Sync {
    /// Returns the newest line of a stream; `None`: there is none. Blocks for seconds if the server does not answer.
    ///
    /// # Errors
    /// Returns why the server does not answer.
    fn last(&self, stream: &str) -> Result<Option<Vec<u8>>, String>;

    /// Receives the lines of all streams from now on.
    fn subscribe(&self) -> Lines;
}

/// Returns the gap before an assignment that follows an interruption.
pub(super) fn gap(stream: &str, assignment: u64, interruption: &Interruption, log: Option<&dyn ResultLog>) -> Gap {
    let node = &interruption.earlier.owner.node;
    let reason = match interruption.cause {
        Cause::NodeLost => format!("the node `{node}` ended without leaving, or lost its connection"),
        Cause::NodeLeft => format!("the node `{node}` has left"),
        Cause::StreamFailed => format!("the stream failed on the node `{node}`"),
    };
    let last = match log.map(|log| log.last(stream)) {
        // The server may have had results, and removed them because of their age or number.
        None | Some(Ok(None)) => None,
        Some(Ok(Some(line))) => last_result(stream, &line),
        Some(Err(error)) => {
            tracing::warn!("cannot read the last result of the stream `{stream}` from before the gap: {error}");
            None
        }
    };
    // If the earlier owner has ended during a hand-over, the newest result may be the first one after the gap.
    let last = last.filter(|last| last.epoch / EPOCHS_PER_ASSIGNMENT < assignment);
    Gap { stream: stream.to_owned(), assignment, reason, last }
}

/// Reads the message ID `stream/epoch/frame` of a line, and its time.
fn last_result(stream: &str, line: &[u8]) -> Option<LastResult> {
    let line: Value = serde_json::from_slice(line).ok()?;
    let mut parts = line["message_id"].as_str()?.rsplitn(3, '/');
    let (frame, epoch, name) = (parts.next()?, parts.next()?, parts.next()?);
    // The record of a gap ends with its last frame. Other records have the number of a frame, a dot, and a number of their own.
    let frame = frame.rsplit('-').next()?.split('.').next()?;
    let time = line["time"].as_str().map(str::to_owned);
    (name == stream).then_some(())?;
    Some(LastResult { epoch: epoch.parse().ok()?, frame: frame.parse().ok()?, time })
}

#[cfg(test)]
mod tests {
    use roiflow_nodes::types::{Epoch, Member, Ownership, Session};

    use super::*;

    /// The log answers each question with this.
    #[derive(Debug)]
    struct Fixed(Result<Option<Vec<u8>>, String>);

    impl ResultLog for Fixed {
        fn last(&self, _stream: &str) -> Result<Option<Vec<u8>>, String> {
            self.0.clone()
        }

        fn subscribe(&self) -> Lines {
            broadcast::channel(1).1
        }
    }

    #[test]
    fn gap_begins_after_the_last_result_that_was_published() {
        let owner = Member { node: "a".to_owned(), session: Session(1) };
        let interruption = Interruption { earlier: Ownership { owner, epoch: Epoch(7) }, cause: Cause::NodeLost };
        let found = |answer| gap("door", 8, &interruption, Some(&Fixed(answer)));
        let line = br#"{"message_id":"door/7000002/41","time":"2026-11-26T12:00:00.000Z"}"#.to_vec();
        let time = Some("2026-11-26T12:00:00.000Z".to_owned());
        let known = found(Ok(Some(line)));
        assert_eq!(known.last, Some(LastResult { epoch: 7_000_002, frame: 41, time }));
        assert!(known.reason.contains("the node `a` ended") && known.assignment == 8, "{known:?}");
        for (id, frame) in [("door/7/9.2", Some(9)), ("door/7/gap-3-12", Some(12)), ("d_or/7/9", None), ("?", None)] {
            let line = format!(r#"{{"message_id":"{id}"}}"#).into_bytes();
            assert_eq!(found(Ok(Some(line))).last.map(|last| last.frame), frame, "{id}");
        }
        let after = br#"{"message_id":"door/8000000/0","time":"2026-11-26T12:00:00.000Z"}"#.to_vec();
        for answer in [Ok(None), Ok(Some(after)), Err("down".to_owned())] {
            let gap = found(answer.clone());
            assert!(gap.last.is_none() && gap.assignment == 8, "{answer:?}: {gap:?}");
        }
        assert_eq!(gap("door", 8, &interruption, None).last, None);
    }
}
