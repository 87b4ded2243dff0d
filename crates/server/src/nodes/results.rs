//! Results that all nodes have published: the interface to the server that keeps them, and the gaps between two owners of a stream.

use bytes::Bytes;
use roiflow_nodes::types::{Cause, Interruption};
use roiflow_results::{EPOCHS_PER_ASSIGNMENT, Gap, LastResult};
use tokio::sync::broadcast;

/// Lines of results as they arrive.
pub type Lines = broadcast::Receiver<Bytes>;

/// The results that all nodes have published.
pub trait ResultLog: std::fmt::Debug + Send + Sync {
    /// Returns the newest result of a stream; `None`: there is none. Blocks for seconds if the server does not answer.
    ///
    /// # Errors
    /// Returns why the server does not answer.
    fn last(&self, stream: &str) -> Result<Option<LastResult>, String>;

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
    // If there is none, the server may have removed it because of its age.
    let last = log.and_then(|log| {
        let warn = |error: &String| tracing::warn!("cannot read the last result of the stream `{stream}` from before the gap: {error}");
        log.last(stream).inspect_err(warn).ok().flatten()
    });
    // If the earlier owner has ended during a hand-over, the newest result may be the first one after the gap.
    let last = last.filter(|last| last.epoch / EPOCHS_PER_ASSIGNMENT < assignment);
    Gap { stream: stream.to_owned(), assignment, reason, last }
}

#[cfg(test)]
mod tests {
    use roiflow_nodes::types::{Epoch, Member, Ownership, Session};

    use super::*;

    /// The log answers each question with this.
    #[derive(Debug)]
    struct Fixed(Result<Option<LastResult>, String>);

    impl ResultLog for Fixed {
        fn last(&self, _stream: &str) -> Result<Option<LastResult>, String> {
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
        let last = |epoch| Some(LastResult { epoch, frame: 41, time: Some("2026-11-26T12:00:00.000Z".to_owned()) });
        let known = found(Ok(last(7_000_002)));
        assert_eq!(known.last, last(7_000_002));
        assert!(known.reason.contains("the node `a` ended") && known.assignment == 8, "{known:?}");
        for answer in [Ok(None), Ok(last(8_000_000)), Err("down".to_owned())] {
            let gap = found(answer.clone());
            assert!(gap.last.is_none() && gap.assignment == 8, "{answer:?}: {gap:?}");
        }
        assert_eq!(gap("door", 8, &interruption, None).last, None);
    }
}
