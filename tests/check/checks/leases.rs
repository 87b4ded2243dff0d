//! Checks leases of tensors, and the pool of tensor memory. A lease is a borrow that is checked at run time.

use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};

use roiflow_check::devices::null::{NullDevice, Script};
use roiflow_check::runtime::executor::Inline;
use roiflow_check::runtime::{Config, Core, Dim, InferRequest, Model, ModelInfo, PartialShape, Port};
use roiflow_check::tensor::{ElementType, Layout, Memory, Tensor, TensorPool};
use shuttle::thread;

use crate::Check;
use crate::explore::{Search, explore, point};

pub fn checks() -> Vec<Check> {
    vec![
        Check {
            name: "many_readers_or_one_writer",
            bounds: "3 threads, one lease each, every mix; at most 4 preemptions",
            run: many_readers_or_one_writer,
        },
        Check {
            name: "a_writer_goes_on_as_a_reader",
            bounds: "one that downgrades beside another, all schedules; beside two, at most 4 preemptions",
            run: a_writer_goes_on_as_a_reader,
        },
        Check {
            name: "leases_taken_again_and_again",
            bounds: "2 threads, two leases each, every mix; at most 4 preemptions",
            run: leases_again,
        },
        Check {
            name: "each_byte_has_many_readers_or_one_writer",
            bounds: "2 threads, one lease each, every mix of four spans; 3 threads, some mixes; at most 3 preemptions",
            run: each_byte_has_many_readers_or_one_writer,
        },
        Check {
            name: "a_tensor_that_moves_is_whole",
            bounds: "a view beside a set_shape; all schedules",
            run: a_tensor_that_moves_is_whole,
        },
        Check {
            name: "a_growing_output_is_whole",
            bounds: "a view beside two runs, which grow and shrink the output; at most 3 preemptions",
            run: a_growing_output_is_whole,
        },
        Check {
            name: "memory_of_a_pool_has_one_user",
            bounds: "3 threads, two takes each; at most 2 preemptions",
            run: memory_of_a_pool_has_one_user,
        },
    ]
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Read,
    Write,
    WriteThenRead,
}

/// Counts the current users: each reader counts 1, and a writer counts [`WRITER`]. Checks that a writer is alone. The checker does not
/// control this counter.
#[derive(Default)]
struct Inside(AtomicIsize);

impl Inside {
    fn visit(&self, amount: isize) {
        let before = self.0.fetch_add(amount, Ordering::SeqCst);
        let is_alone = before == 0;
        assert!(if amount > 1 { is_alone } else { before < WRITER }, "a writer and another user hold the memory: {before} and {amount}");
        point();
        self.0.fetch_sub(amount, Ordering::SeqCst);
    }
}

const WRITER: isize = 1000;

fn lease(memory: &Arc<Memory>, inside: &Inside, kind: Kind) -> bool {
    match kind {
        Kind::Read => memory.lease_read().is_ok_and(|_lease| {
            inside.visit(1);
            true
        }),
        Kind::Write => memory.lease_write().is_ok_and(|_lease| {
            inside.visit(WRITER);
            true
        }),
        Kind::WriteThenRead => memory.lease_write().is_ok_and(|lease| {
            inside.visit(WRITER);
            let _lease = lease.downgrade();
            inside.visit(1);
            true
        }),
    }
}

fn in_threads(search: Search, programs: Vec<Vec<Kind>>) -> usize {
    explore(search, move || {
        let (memory, inside) = (Memory::zeroed(4), Arc::new(Inside::default()));
        let threads: Vec<_> = programs
            .iter()
            .map(|program| {
                let (memory, inside, program) = (memory.clone(), inside.clone(), program.clone());
                thread::spawn(move || program.into_iter().filter(|kind| lease(&memory, &inside, *kind)).count())
            })
            .collect();
        let n_leased: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert!(n_leased > 0, "no thread got a lease");
        assert!(memory.lease_write().is_ok(), "all leases have ended");
    })
}

const KINDS: [Kind; 3] = [Kind::Read, Kind::Write, Kind::WriteThenRead];

fn many_readers_or_one_writer() -> usize {
    let two = [Kind::Read, Kind::Write];
    let mut n = 0;
    for (a_idx, a) in two.into_iter().enumerate() {
        for (b_idx, b) in two.into_iter().enumerate().skip(a_idx) {
            for c in two.into_iter().skip(b_idx) {
                n += in_threads(Search::Preemptions(4), vec![vec![a], vec![b], vec![c]]);
            }
        }
    }
    n
}

fn a_writer_goes_on_as_a_reader() -> usize {
    KINDS.into_iter().map(|kind| in_threads(Search::All, vec![vec![Kind::WriteThenRead], vec![kind]])).sum::<usize>()
        + in_threads(Search::Preemptions(4), vec![vec![Kind::WriteThenRead], vec![Kind::Read], vec![Kind::Write]])
}

fn leases_again() -> usize {
    let programs: Vec<Vec<Kind>> = KINDS.into_iter().flat_map(|a| KINDS.map(|b| vec![a, b])).collect();
    let mut n = 0;
    for (a_idx, a) in programs.iter().enumerate() {
        for b in &programs[a_idx..] {
            n += in_threads(Search::Preemptions(4), vec![a.clone(), b.clone()]);
        }
    }
    n
}

/// The part of a four-byte memory block that a thread borrows.
#[derive(Clone, Copy)]
enum Span {
    Whole,
    Left,
    Right,
    Even,
}

impl Span {
    const ALL: [Span; 4] = [Span::Whole, Span::Left, Span::Right, Span::Even];

    fn bytes(self) -> &'static [usize] {
        match self {
            Self::Whole => &[0, 1, 2, 3],
            Self::Left => &[0, 1],
            Self::Right => &[2, 3],
            Self::Even => &[0, 2],
        }
    }

    fn tensor(self, memory: &Arc<Memory>) -> Tensor {
        let bytes = self.bytes();
        let layout = Layout::strided(ElementType::U8, [bytes.len()], &[bytes[1] - bytes[0]]).unwrap();
        Tensor::part_of(memory.clone(), layout, bytes[0]).unwrap()
    }
}

/// The current users of each byte.
#[derive(Default)]
struct Bytes([Inside; 4]);

impl Bytes {
    fn visit(&self, span: Span, amount: isize) {
        for &byte in span.bytes() {
            let before = self.0[byte].0.fetch_add(amount, Ordering::SeqCst);
            let is_alone = before == 0;
            assert!(if amount > 1 { is_alone } else { before < WRITER }, "byte {byte} has a writer and another user: {before} and {amount}");
        }
        point();
        for &byte in span.bytes() {
            self.0[byte].0.fetch_sub(amount, Ordering::SeqCst);
        }
    }
}

fn lease_span(memory: &Arc<Memory>, inside: &Bytes, (span, kind): (Span, Kind)) -> bool {
    let tensor = span.tensor(memory);
    match kind {
        Kind::Read => tensor.elements().is_ok_and(|_lease| {
            inside.visit(span, 1);
            true
        }),
        Kind::Write => tensor.elements_mut().is_ok_and(|_lease| {
            inside.visit(span, WRITER);
            true
        }),
        Kind::WriteThenRead => tensor.elements_mut().is_ok_and(|lease| {
            inside.visit(span, WRITER);
            let _lease = lease.downgrade();
            inside.visit(span, 1);
            true
        }),
    }
}

fn spans_in_threads(programs: Vec<(Span, Kind)>) -> usize {
    let may_meet = |(a_idx, a): (usize, &(Span, Kind))| {
        programs.iter().enumerate().any(|(b_idx, b)| a_idx != b_idx && a.0.bytes().iter().any(|byte| b.0.bytes().contains(byte)))
    };
    let all_are_apart = !programs.iter().enumerate().any(may_meet);
    explore(Search::Preemptions(3), move || {
        let (memory, inside) = (Memory::zeroed(4), Arc::new(Bytes::default()));
        let threads: Vec<_> = programs
            .iter()
            .map(|&program| {
                let (memory, inside) = (memory.clone(), inside.clone());
                thread::spawn(move || lease_span(&memory, &inside, program))
            })
            .collect();
        let n_threads = threads.len();
        let n_leased = threads.into_iter().map(|thread| thread.join().unwrap()).filter(|leased| *leased).count();
        assert!(n_leased > 0, "no thread got a lease");
        assert!(!all_are_apart || n_leased == n_threads, "spans without a common byte are independent");
        assert!(memory.lease_write().is_ok(), "all leases have ended");
    })
}

fn each_byte_has_many_readers_or_one_writer() -> usize {
    use Kind::{Read, Write, WriteThenRead};
    use Span::{Even, Left, Right, Whole};
    let leases: Vec<(Span, Kind)> = Span::ALL.into_iter().flat_map(|span| KINDS.map(|kind| (span, kind))).collect();
    let mut n = 0;
    for (a_idx, a) in leases.iter().enumerate() {
        for b in &leases[a_idx..] {
            n += spans_in_threads(vec![*a, *b]);
        }
    }
    for three in [
        [(Left, Write), (Right, Write), (Whole, Write)],
        [(Left, Read), (Right, Write), (Whole, Read)],
        [(Left, Read), (Right, Read), (Whole, Write)],
        [(Left, WriteThenRead), (Right, Write), (Whole, Read)],
        [(Left, Write), (Even, Read), (Whole, Read)],
        [(Left, Read), (Even, Write), (Whole, Write)],
    ] {
        n += spans_in_threads(three.to_vec());
    }
    n
}

/// A view that is created while another thread replaces the memory has the old or the new shape.
fn a_tensor_that_moves_is_whole() -> usize {
    explore(Search::All, || {
        let tensor = Tensor::from_slice([2], &[1.0_f32, 2.0]).unwrap();
        let mut moved = tensor.clone();
        let moving = thread::spawn(move || moved.set_shape([64]).is_ok());
        let seen = tensor.view::<f32>().map(|view| {
            let seen = (view.len(), view.iter().sum::<f32>());
            point();
            assert_eq!(seen, (view.len(), view.iter().sum::<f32>()), "the values of a view changed");
            seen
        });
        let has_moved = moving.join().unwrap();
        if let Ok(seen) = &seen {
            assert!([(2, 3.0), (64, 0.0)].contains(seen), "got {seen:?}");
        }
        assert!(has_moved || seen.is_ok(), "one of the two came first");
        assert_eq!(tensor.shape().as_ref(), if has_moved { &[64][..] } else { &[2] });
    })
}

/// Returns a request whose runs write 1, 3, 2 and 4 values, each equal to the number of values.
fn growing() -> InferRequest {
    let n_runs = AtomicIsize::new(0);
    let script = Script::computing(move |io, _| {
        let n_values = [1, 3, 2, 4][n_runs.fetch_add(1, Ordering::SeqCst) as usize];
        io.output(0, &[n_values])?.dense_mut::<f32>()?.fill(n_values as f32);
        Ok(())
    });
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::new(Arc::new(Script { executor: Some(Arc::new(Inline)), ..script }))));
    let outputs = vec![Port::new("y", ElementType::F32, PartialShape::new(vec![Dim::Dynamic]).unwrap())];
    let model = Model::from_ports(ModelInfo { outputs, ..ModelInfo::default() });
    core.compile_model(&model, "NULL", &Config::default()).unwrap().create_infer_request().unwrap()
}

/// The shape and values of a view belong to one run, and the view does not make a run fail.
fn a_growing_output_is_whole() -> usize {
    explore(Search::Preemptions(3), || {
        let request = growing();
        (0..2).for_each(|_| request.infer(()).unwrap());
        let output = request.output_tensor(()).unwrap();
        let running = thread::spawn(move || {
            for n_values in [2, 4] {
                request.infer(()).unwrap();
                assert_eq!(request.output_tensor(()).unwrap().view::<f32>().unwrap().to_vec(), vec![n_values as f32; n_values]);
            }
        });
        if let Ok(view) = output.view::<f32>() {
            let seen = view.to_vec();
            assert_eq!(seen, vec![seen.len() as f32; seen.len()], "shape and values of one run");
            point();
            assert_eq!(view.to_vec(), seen, "the values of a view changed");
        }
        running.join().unwrap();
    })
}

fn memory_of_a_pool_has_one_user() -> usize {
    explore(Search::Preemptions(2), || {
        let pool = TensorPool::new(ElementType::F32, [1], 2).unwrap();
        let users = Arc::new(std::sync::Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (pool, users) = (pool.clone(), users.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let tensor = pool.take();
                        let address = tensor.address() as usize;
                        assert!(!users.lock().unwrap().contains(&address), "two users have the same memory");
                        users.lock().unwrap().push(address);
                        point();
                        users.lock().unwrap().retain(|other| *other != address);
                        drop(tensor);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!((1..=2).contains(&pool.n_idle()), "the pool must keep at most its capacity: {}", pool.n_idle());
    })
}
