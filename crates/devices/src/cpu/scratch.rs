//! What the engine keeps on each thread for each of its states, and how it is given back.
//!
//! Its matrix products keep buffers per state in memory of the thread that runs them, and give them back where the state is dropped: on
//! that thread alone. A request is run by any worker and dropped by any thread, so each thread remembers whom it ran, and gives back
//! what is left of those that are gone before it runs a new one.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use tract_onnx::prelude::TypedSimplePlan;
use tract_onnx::tract_core::internal::{EvalOp, SessionId};
use tract_onnx::tract_core::ops::matmul::optimized::OptMatMul;

/// A state's life: a thread's memory of it is given back after this was dropped.
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
    /// To be called by the thread that ran a turn of the state, with its plan.
    pub(super) fn ran(&self, session: SessionId, plan: &TypedSimplePlan) {
        RAN.with_borrow_mut(|ran| {
            if ran.iter().any(|known| known.session == session) {
                return;
            }
            // Plans without such an operator keep nothing, and any such operator gives back what all of them keep for a session.
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
