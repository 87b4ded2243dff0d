//! A cache of idle requests. A [`PooledRequest`] owns its request until it is dropped, so no two users get the same request.
//!
//! Lock order: the lock of the pool before the lock of a request.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use super::io::OutputSlot;
use super::steps::Step;
use super::{CompiledModel, InferRequest, Result};
use crate::sync::Mutex;

/// Caches idle requests for reuse. Creates a request if none is idle. When the cache is full, frees each request that is returned.
///
/// A request that returns releases its inputs, and its variables become zero. A request with a callback, user data, a name, user steps or an
/// output tensor of the user is not used again.
#[derive(Debug)]
pub struct RequestPool(Arc<Idle>);

#[derive(Debug)]
struct Idle {
    capacity: usize,
    requests: Mutex<Vec<InferRequest>>,
}

impl RequestPool {
    /// Creates a pool that caches at most `capacity` idle requests.
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Idle { capacity, requests: Mutex::new(Vec::with_capacity(capacity)) }))
    }

    /// Takes an idle request. If there is none, creates a request of `model`.
    ///
    /// # Errors
    /// Returns the errors of [`CompiledModel::create_infer_request`].
    pub fn take_or_create(&self, model: &CompiledModel) -> Result<PooledRequest> {
        let idle = {
            let mut requests = self.0.requests.lock().unwrap();
            // A `PooledRequest` may be dropped while its request runs. Skip such requests.
            let idle_idx = requests.iter().rposition(|request| request.shared().guarded.lock().unwrap().state.is_quiet());
            idle_idx.map(|idle_idx| requests.remove(idle_idx))
        };
        let request = match idle {
            Some(request) if !is_customized(&request) => request,
            _ => model.create_infer_request()?,
        };
        Ok(PooledRequest { request: Some(request), home: Arc::downgrade(&self.0) })
    }

    /// Frees all cached requests.
    pub fn clear(&self) {
        let requests = std::mem::take(&mut *self.0.requests.lock().unwrap());
        drop(requests);
    }
}

/// A request that returns to its pool when the `PooledRequest` is dropped.
#[derive(Debug)]
pub struct PooledRequest {
    request: Option<InferRequest>,
    home: Weak<Idle>,
}

impl Deref for PooledRequest {
    type Target = InferRequest;

    fn deref(&self) -> &InferRequest {
        self.request.as_ref().expect("only the drop takes the request")
    }
}

impl Drop for PooledRequest {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        // The next user must find no values of this one. A request that cannot be cleared is freed.
        if let (Some(home), Ok(())) = (self.home.upgrade(), request.shared().clear())
            && !is_customized(&request)
        {
            let mut requests = home.requests.lock().unwrap();
            if requests.len() < home.capacity {
                requests.push(request);
            }
        }
    }
}

/// Returns whether an idle request has values of a user that clearing it keeps. Returns false while the request runs.
fn is_customized(request: &InferRequest) -> bool {
    let guarded = request.shared().guarded.lock().unwrap();
    guarded.body.as_ref().is_some_and(|body| {
        let has_values = guarded.callback.is_some() || guarded.user_data.is_some() || guarded.name.is_some();
        has_values || body.steps.iter().any(Step::is_of_user) || body.io.outputs.iter().any(OutputSlot::is_of_user)
    })
}
