//! Frees the buffers that the engine keeps on each thread for each of its states.
//!
//! Matrix products of the engine keep buffers per state in thread-local memory, and free them if the state is dropped on that thread. But a request
//! runs on any worker and is dropped on any thread. So each thread remembers which states it ran, and frees the buffers of dropped states
//! before it runs a new one.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use tract_onnx::prelude::TypedSimplePlan;
use tract_onnx::tract_core::internal::{EvalOp, SessionId};
use tract_onnx::tract_core::ops::matmul::optimized::OptMatMul;

/// Belongs to a state. After it is dropped, threads free their buffers of the state.
#[derive(Debug, Default)]
pub(super) struct Life(Arc<()>);

/// A state that this thread ran.
struct Ran {
    session: SessionId,
    life: Weak<()>,
}

thread_local! {
    static RAN: RefCell<Vec<Ran>> = const { RefCell::new(Vec::new()) };
}

impl Life {
    /// Records that this thread ran the state `session` of `plan`, and frees its buffers of dropped states.
    pub(super) fn ran(&self, session: SessionId, plan: &TypedSimplePlan) {
        RAN.with_borrow_mut(|ran| {
            if ran.iter().any(|known| known.session == session) {
                return;
            }
            // Plans without such an operator keep no buffers, and any such operator frees the buffers of all for a session.
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
