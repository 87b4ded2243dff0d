//! SIGHUP: reads the pipeline description again, and lets the running streams continue with it.
//!
//! If the description is invalid, all streams continue as they are. If only some streams can use the new description, the remaining
//! streams continue as they are.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::service::Service;
use super::terminal::Terminal;
use crate::pipeline::{self, Phase, PipelineHandle, Plan, StreamId};

/// A message to the thread that reloads the description.
enum Wake {
    Reload,
    End,
}

/// Sends requests to reload the description. All clones send to the same thread.
#[derive(Debug, Clone)]
pub(super) struct Reloads(Sender<Wake>);

/// Receives the requests that [`Reloads`] sends.
#[derive(Debug)]
pub(super) struct Requests(Receiver<Wake>);

impl Reloads {
    pub(super) fn new() -> (Self, Requests) {
        let (sender, receiver) = channel();
        (Self(sender), Requests(receiver))
    }

    /// Requests to read the description again.
    pub(super) fn request(&self) {
        // Sending fails only after the run has ended.
        let _sent = self.0.send(Wake::Reload);
    }

    /// Makes [`Requests::serve`] return.
    pub(super) fn end(&self) {
        let _sent = self.0.send(Wake::End);
    }
}

impl Requests {
    /// Handles requests until the run ends. `plans` reads the description again, and returns the plans of `streams`.
    pub(super) fn serve(
        &self,
        handle: &PipelineHandle,
        streams: &[Option<StreamId>],
        plans: impl Fn() -> anyhow::Result<Vec<Result<Plan, pipeline::Error>>>,
        service: &Service,
        terminal: &Terminal,
    ) {
        while let Ok(Wake::Reload) = self.0.recv() {
            let plans = match plans() {
                Ok(plans) => plans,
                Err(error) => {
                    service.reload([], &terminal.scrub(&format!("{error:#}")));
                    terminal.warn(format_args!("the description was not reloaded, and the run continues as before: {error:#}"));
                    continue;
                }
            };
            let (mut valid, mut refused) = (Vec::new(), Vec::new());
            for (stream_idx, (stream, plan)) in streams.iter().zip(&plans).enumerate() {
                let Some(stream) = stream.filter(|stream| is_running(handle, *stream)) else { continue };
                match plan {
                    Ok(plan) => valid.push((stream_idx, stream, plan)),
                    Err(error) => {
                        terminal.warn(format_args!("a stream was not reloaded, and continues as before: {error}"));
                        refused.push(error.to_string());
                    }
                }
            }
            service.reload(valid.iter().map(|(stream_idx, ..)| *stream_idx), &terminal.scrub(&refused.join("; ")));
            valid.into_iter().for_each(|(_, stream, plan)| handle.reload(stream, plan));
        }
    }
}

fn is_running(handle: &PipelineHandle, stream: StreamId) -> bool {
    handle.status(stream).is_some_and(|status| status.phase != Phase::Ended)
}
