//! Futures of runs that the tests poll manually.

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use roiflow::runtime::RunFuture;

use super::*;
use crate::support::in_time;

#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// During the first callback, a future begins to wait for the first run. Then a second run starts and fails immediately. The future must
/// return the result of the first run.
#[test]
fn who_begins_to_wait_during_a_callback_gets_the_end_of_its_run_before_the_next_callback() {
    in_time(|| {
        let n_runs = AtomicUsize::new(0);
        let script = Script {
            executor: Some(Arc::new(Inline)),
            ..Script::computing(move |_, _| match n_runs.fetch_add(1, Ordering::AcqRel) {
                0 => Ok(()),
                _ => Err(Error::new(ErrorKind::Device, "the second run")),
            })
        };
        let request = compile(script).create_infer_request().unwrap();
        let woken = Arc::new(Counting::default());
        let waiting: Arc<Mutex<Option<RunFuture>>> = Arc::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (to, keep, counting) = (seen.clone(), waiting.clone(), woken.clone());
        request
            .set_callback(move |request, result| {
                to.lock().unwrap().push((result.is_ok(), counting.0.load(Ordering::Acquire)));
                if result.is_ok() {
                    let (request_there, counting) = (request.clone(), counting.clone());
                    let waiter = std::thread::spawn(move || {
                        let mut future = request_there.into_future();
                        assert!(pin!(&mut future).poll(&mut Context::from_waker(&Waker::from(counting))).is_pending());
                        future
                    });
                    *keep.lock().unwrap() = Some(waiter.join().unwrap());
                    request.start_async(()).unwrap();
                }
            })
            .unwrap();
        request.start_async(()).unwrap();
        assert_eq!(*seen.lock().unwrap(), [(true, 0), (false, 1)], "the waiter of the first run is woken before the second callback");
        let future = waiting.lock().unwrap().take().unwrap();
        let polled = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Ok(()))), "got {polled:?}");
    });
}
