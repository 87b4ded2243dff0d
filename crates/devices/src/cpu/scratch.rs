//! Frees the thread-local buffers that the engine allocates for each plan state (an execution state of a plan).
//!
//! The engine's matrix products keep buffers for each state in thread-local memory. If the state is dropped on the same thread, the engine
//! frees them. But a request may run on any worker thread, and may be dropped on another thread. So each thread records which states it
//! ran, and frees the buffers of dropped states before it records a new state.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use tract_onnx::prelude::TypedSimplePlan;
use tract_onnx::tract_core::internal::{EvalOp, SessionId};
use tract_onnx::tract_core::ops::matmul::optimized::OptMatMul;

/// Exists as long as a plan state. After it is dropped, threads free their buffers for that state.
#[derive(Debug, Default)]
pub(super) struct Life(Arc<()>);

/// A state that this thread ran: its number, and whether it still exists.
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
            // A plan without a matrix product has no thread-local buffers. Any matrix product of a plan can free the buffers of all matrix
            // products of a state, so the first one is enough.
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
