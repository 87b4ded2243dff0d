//! Frees the thread-local buffers that the engine allocates for each plan state.
//!
//! The engine's matrix products keep buffers per state in thread-local memory. The engine frees them if the state is dropped on the same
//! thread. But a request runs on any worker thread and may be dropped on another. So each thread records which states it ran, and frees the
//! buffers of dropped states before it runs a new state.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use tract_onnx::prelude::TypedSimplePlan;
use tract_onnx::tract_core::internal::{EvalOp, SessionId};
use tract_onnx::tract_core::ops::matmul::optimized::OptMatMul;

/// Shows whether a state still exists. After it is dropped, threads free their buffers for that state.
#[derive(Debug, Default)]
pub(super) struct Life(Arc<()>);

/// A state that this thread ran, and how to free its buffers.
struct Ran {
    session: SessionId,
    life: Weak<()>,
}

thread_local! {
    static RAN: RefCell<Vec<Ran>> = const { RefCell::new(Vec::new()) };
}

impl Life {
    /// Records that this thread ran the state `session` of `plan`, and frees the thread's buffers of dropped states.
    pub(super) fn ran(&self, session: SessionId, plan: &TypedSimplePlan) {
        RAN.with_borrow_mut(|ran| {
            if ran.iter().any(|known| known.session == session) {
                return;
            }
            // Plans without a matrix product have no such buffers. Any matrix product of the plan can free all buffers of a session, so the
            // first one is enough.
            let Some((node_id, product)) = plan.model().nodes().iter().find_map(|node| Some((node.id, node.op_as::<OptMatMul>()?))) else {
                return;
            };
            ran.retain(|known| {
                let lives = known.life.strong_count() > 0;
                if !lives {
                    product.drop_session(known.session, node_id);
                }
                lives
            });
            ran.push(Ran { session, life: Arc::downgrade(&self.0) });
        });
    }
}
