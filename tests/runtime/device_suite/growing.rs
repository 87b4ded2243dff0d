//! Outputs of dynamic shape that another thread reads. The thread must get the shape and values of a single run, never a mix of two runs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use roiflow::runtime::{ErrorKind, InferRequest};

use super::*;

/// Numbers of rows of successive runs. Some runs need more memory than all previous runs.
const N_ROWS: [usize; 8] = [1, 3, 2, 7, 4, 30, 11, 90];

/// Checks that `values` are consecutive numbers that start with `first`, multiplied by `factor`.
fn check_whole(shape: &[usize], values: &[f32], factor: f32) {
    // The first value identifies the run: its number of rows plus 0.5.
    let n_rows = (values[0] / factor - 0.5) as usize;
    assert_eq!((shape, values.len()), (&[n_rows, 4][..], 4 * n_rows), "{n_rows} rows were computed");
    let expected: Vec<f32> = numbers(n_rows, n_rows).iter().map(|value| factor * value).collect();
    assert_eq!(values, expected, "of a run of {n_rows} rows");
}

/// Stops the loops of the other threads when it is dropped, even if a check fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn new_pair(device: &UnderTest) -> (InferRequest, InferRequest) {
    let (first, second) = ((device.double)().create_infer_request().unwrap(), (device.double)().create_infer_request().unwrap());
    first.infer(batch(1, 1)).unwrap();
    second.set_input_tensor((), &first.output_tensor(()).unwrap()).unwrap();
    (first, second)
}

/// The cascade in the guide, with its two requests on two threads.
pub fn a_growing_cascade_of_two_threads_is_never_torn(device: &UnderTest) {
    let n_seen = AtomicUsize::new(0);
    let deadline = Instant::now() + Duration::from_secs(30);
    for round in 0.. {
        let (first, second) = new_pair(device);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    match second.start_async(()) {
                        Ok(()) => second.wait().unwrap(),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                            assert!(error.to_string().contains("input `x`"), "{error}");
                            continue;
                        }
                    }
                    let output = second.output_tensor(()).unwrap();
                    check_whole(&output.shape(), &values(&output), 4.0);
                    n_seen.fetch_add(1, Ordering::AcqRel);
                }
            });
            let _over = Over(&is_over);
            for n_rows in N_ROWS {
                loop {
                    match first.start_async(batch(n_rows, n_rows)) {
                        Ok(()) => break,
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                            assert!(error.to_string().contains("output `y`"), "{error}");
                        }
                    }
                }
                first.wait().unwrap();
            }
        });
        if round >= 20 && (n_seen.load(Ordering::Acquire) > 20 || Instant::now() > deadline) {
            break;
        }
    }
    assert!(n_seen.into_inner() > 0, "the second request never ran");
}

/// A reader of the output gets the shape and values of a single run. Reading never makes a started run fail.
pub fn a_reader_of_a_growing_output_fails_no_started_run(device: &UnderTest) {
    for _ in 0..20 {
        let (first, _) = new_pair(device);
        let output = first.output_tensor(()).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    if let Ok(view) = output.view::<f32>() {
                        check_whole(view.shape(), &view.to_vec(), 2.0);
                    }
                }
            });
            let _over = Over(&is_over);
            for n_rows in N_ROWS {
                first.start_async(batch(n_rows, n_rows)).unwrap();
                first.wait().unwrap();
                assert_eq!(first.output_tensor(()).unwrap().shape()[..], [n_rows, 4]);
            }
        });
        assert_eq!(values(&output), doubled(&numbers(90, 90)));
    }
}

/// If a guard still reads the output when a run starts, the run writes to new memory, and the guard keeps the old values.
pub fn a_growing_output_that_is_read_gets_fresh_memory(device: &UnderTest) {
    let (first, second) = new_pair(device);
    let output = first.output_tensor(()).unwrap();
    for n_rows in [5, 2] {
        let before = values(&output);
        let view = output.view::<f32>().unwrap();
        first.infer(batch(n_rows, n_rows)).unwrap();
        assert_eq!(view.to_vec(), before);
        assert_eq!((&output.shape()[..], values(&output)), (&[n_rows, 4][..], doubled(&numbers(n_rows, n_rows))));
        second.infer(()).unwrap();
        assert_eq!(values(&second.output_tensor(()).unwrap()), doubled(&doubled(&numbers(n_rows, n_rows))));
    }
    let written = output.view_mut::<f32>().unwrap();
    let error = first.infer(batch(9, 9)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("output `y`") && error.to_string().contains("being written"), "{error}");
    drop(written);
    first.infer(batch(9, 9)).unwrap();
}
