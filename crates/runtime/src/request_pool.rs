//! A bounded set of idle requests. Who takes one owns it until the guard is dropped, so a busy request can't be touched.
//!
//! Lock order: the pool's own, then a request's.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use super::{CompiledModel, InferRequest, Result};
use crate::sync::Mutex;

/// Keeps idle requests for reuse; makes further ones on demand and forgets what exceeds its capacity.
#[derive(Debug)]
pub struct RequestPool(Arc<Idle>);

#[derive(Debug)]
struct Idle {
    capacity: usize,
    requests: Mutex<Vec<InferRequest>>,
}

impl RequestPool {
    /// A pool that keeps at most `capacity` idle requests.
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Idle { capacity, requests: Mutex::new(Vec::with_capacity(capacity)) }))
    }

    /// An idle request, or a new one of `model`.
    ///
    /// # Errors
    /// As [`CompiledModel::create_infer_request`].
    pub fn take_or_create(&self, model: &CompiledModel) -> Result<PooledRequest> {
        let idle = {
            let mut requests = self.0.requests.lock().unwrap();
            // One may have been given back while it ran.
            let idle_idx = requests.iter().rposition(|request| request.shared().guarded.lock().unwrap().state.is_quiet());
            idle_idx.map(|idle_idx| requests.remove(idle_idx))
        };
        let request = match idle {
            Some(request) => request,
            None => model.create_infer_request()?,
        };
        Ok(PooledRequest { request: Some(request), home: Arc::downgrade(&self.0) })
    }

    /// Frees the idle requests.
    pub fn clear(&self) {
        let requests = std::mem::take(&mut *self.0.requests.lock().unwrap());
        drop(requests);
    }
}

/// A request that goes back to its pool when dropped.
#[derive(Debug)]
pub struct PooledRequest {
    request: Option<InferRequest>,
    home: Weak<Idle>,
}

impl Deref for PooledRequest {
    type Target = InferRequest;

    fn deref(&self) -> &InferRequest {
        self.request.as_ref().expect("only drop takes it")
    }
}

impl Drop for PooledRequest {
    fn drop(&mut self) {
        if let (Some(home), Some(request)) = (self.home.upgrade(), self.request.take()) {
            let mut requests = home.requests.lock().unwrap();
            if requests.len() < home.capacity {
                requests.push(request);
            }
        }
    }
}
