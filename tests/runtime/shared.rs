//! Tensors that two processes share. The tensors are sent in both directions, and requests use them without a copy. A peer that dies, sends
//! invalid layouts or does not seal its file must cause no harm. The peer is this test program, started again with a role.

use std::io::{BufRead, BufReader, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use roiflow::devices;
use roiflow::devices::null::{Gate, Script};
use roiflow::runtime::{ContextParams, ErrorKind as RunErrorKind, InferRequest, Port, RemoteContext};
use roiflow::tensor::{ElementType, ErrorKind, Layout, Shape, SharedTensor, Tensor};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::request::{compile_ports, double, port};
use crate::support::{Scratch, alone, compile, compile_on, in_time, is_here, tiny, values};

const ROLE: &str = "ROIFLOW_TEST_ROLE";
const SOCKET: &str = "ROIFLOW_TEST_SOCKET";

fn context() -> RemoteContext {
    devices::core().create_context("CPU", &ContextParams::SharedMemory).unwrap()
}

/// Returns a tensor in memory that only this process can write.
fn shared(rows: usize, value: f32) -> Tensor {
    let tensor = context().create_tensor(ElementType::F32, [rows, 4]).unwrap();
    tensor.view_mut::<f32>().unwrap().fill(value);
    tensor
}

/// Maps the tensor without a copy. The processes of these tests alternate: one writes, sends a message, and waits for the reply.
fn mapped(shared: SharedTensor) -> Tensor {
    // SAFETY: the processes alternate. So neither process writes memory while a lease in the other process covers it.
    unsafe { shared.map() }.unwrap()
}

/// Returns a tensor in memory that both processes can write.
fn common(rows: usize, value: f32) -> Tensor {
    let tensor = mapped(SharedTensor::new(ElementType::F32, [rows, 4]).unwrap());
    tensor.view_mut::<f32>().unwrap().fill(value);
    tensor
}

/// Returns a request on the device NULL for any number of rows. The script must compute `y = 2 x`.
fn doubling(script: Script) -> InferRequest {
    let model = compile_ports(Arc::new(script), vec![port("x", &[0, 4])], vec![port("y", &[0, 4])]);
    model.create_infer_request().unwrap()
}

/// One end of the connection between the two processes: a socket for tensors, and a socket for text messages.
struct Line {
    tensors: UnixStream,
    words: BufReader<UnixStream>,
}

impl Line {
    fn say(&mut self, word: &str) {
        writeln!(self.words.get_mut(), "{word}").unwrap();
    }

    /// Returns the next message, or an empty string if the other process has ended.
    fn hear(&mut self) -> String {
        let mut word = String::new();
        // If the peer was killed, reading may fail because the connection was reset.
        let _heard = self.words.read_line(&mut word);
        word.trim_end().to_owned()
    }

    fn send(&self, tensor: &Tensor) {
        tensor.export().unwrap().send(&self.tensors).unwrap();
    }

    fn receive(&self) -> SharedTensor {
        SharedTensor::receive(&self.tensors).unwrap().expect("the other process is there")
    }
}

/// The other process. Dropping this value kills the process and waits for its end.
struct Peer {
    child: Child,
    _folder: Scratch,
}

impl Peer {
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the end of the process. Panics if the process failed.
    fn finish(mut self) {
        assert!(self.child.wait().unwrap().success(), "the other process failed");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // If the process has ended already, `kill` fails.
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn peer(role: &str) -> (Peer, Line) {
    let folder = Scratch::new(&format!("shared-{role}"));
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["shared::the_other_process", "--exact", "--nocapture"])
        .envs([(ROLE, role.as_ref()), (SOCKET, path.as_os_str())])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let peer = Peer { child, _folder: folder };
    let accept = move || Line { tensors: listener.accept().unwrap().0, words: BufReader::new(listener.accept().unwrap().0) };
    (peer, in_time(accept))
}

/// If this process was started with a role, plays that role. Without a role, the function does nothing.
#[test]
fn the_other_process() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let connect = || UnixStream::connect(std::env::var_os(SOCKET).unwrap()).unwrap();
    let tensors = connect();
    let mut line = Line { tensors, words: BufReader::new(connect()) };
    match role.to_str().unwrap() {
        "doubler" => play_doubler(&mut line),
        "victim" => play_victim(&mut line),
        "liar" => play_liar(&mut line),
        "unsealed" => play_unsealed(&mut line),
        "scribbler" => play_scribbler(&mut line),
        other => panic!("no role `{other}`"),
    }
}

/// The role of a peer that doubles received tensors with the built-in engine. The peer sends its output tensor once.
fn play_doubler(line: &mut Line) {
    let request = compile(&tiny("double.onnx")).create_infer_request().unwrap();
    let input = mapped(line.receive());
    let output = shared(input.shape()[0], 0.0);
    request.set_output_tensor((), &output).unwrap();
    line.send(&output);
    while line.hear() == "run" {
        request.infer(&input).unwrap();
        line.say("done");
    }
}

#[test]
fn two_processes_exchange_tensors_both_ways_and_see_each_others_writes() {
    let (peer, mut line) = peer("doubler");
    let input = shared(2, 0.0);
    line.send(&input);
    let output = mapped(line.receive());
    let request = doubling(Script::computing(|io, _| double(io)));
    for round in [1.0, 2.0, 3.0] {
        input.view_mut::<f32>().unwrap().fill(round);
        line.say("run");
        assert_eq!(line.hear(), "done");
        assert_eq!(values(&output), [2.0 * round; 8]);
        // The output of the request in the peer is the input of this request.
        request.infer(&output).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [4.0 * round; 8]);
    }
    drop(line);
    peer.finish();
}

#[test]
fn requests_read_and_write_shared_memory_where_it_lies() {
    let (input, output) = (shared(3, 1.5), common(3, 0.0));
    let (ours, theirs) = (mapped(input.export().unwrap()), mapped(output.export().unwrap()));
    let seen = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let addresses = seen.clone();
    let request = doubling(Script::computing(move |io, _| {
        addresses[0].store(io.input(0).extent().as_ptr() as usize, Ordering::Relaxed);
        double(io)?;
        addresses[1].store(io.output(0, &[3, 4])?.extent().as_ptr() as usize, Ordering::Relaxed);
        Ok(())
    }));
    request.set_output_tensor((), &theirs).unwrap();
    request.infer(&ours).unwrap();
    assert_eq!([ours.address() as usize, theirs.address() as usize], [0, 1].map(|idx| seen[idx].load(Ordering::Relaxed)));
    assert_eq!(values(&output), [3.0; 12], "the other mapping has the new values");
    // The built-in engine copies inputs and outputs of the user once. The test checks that the results are in the user's memory.
    let request = compile(&tiny("double.onnx")).create_infer_request().unwrap();
    request.set_output_tensor((), &theirs).unwrap();
    let before = theirs.address();
    input.view_mut::<f32>().unwrap().fill(4.0);
    request.infer(&ours).unwrap();
    assert_eq!((values(&output), theirs.address()), (vec![8.0; 12], before));
}

/// The role of a peer that sends an input and receives an output tensor. The peer then blocks while it writes the output.
fn play_victim(line: &mut Line) {
    let input = shared(2, 7.0);
    line.send(&input);
    let output = mapped(line.receive());
    let words = std::sync::Mutex::new(Line {
        tensors: line.tensors.try_clone().unwrap(),
        words: BufReader::new(line.words.get_ref().try_clone().unwrap()),
    });
    let request = doubling(Script::computing(move |io, _| {
        let bytes = io.output(0, &[2, 4])?;
        bytes.dense_mut::<f32>()?[..4].fill(14.0);
        let mut line = words.lock().unwrap();
        line.say("half");
        // No message arrives here, because the test kills this process.
        line.hear();
        Ok(())
    }));
    request.set_output_tensor((), &output).unwrap();
    request.infer(&input).unwrap();
}

#[test]
fn a_peer_that_is_killed_in_mid_run_takes_nothing_with_it() {
    let (mut peer, mut line) = peer("victim");
    let (input, output) = (mapped(line.receive()), common(2, -1.0));
    let gate = Gate::closed();
    let request = doubling(Script { gate: Some(gate.clone()), ..Script::computing(|io, _| double(io)) });
    request.start_async(&input).unwrap();
    gate.wait_for_arrivals(1);
    line.send(&output);
    assert_eq!(line.hear(), "half");
    // Both processes are in the middle of a run. The peer writes memory of this process, and this process reads the tensor of the peer.
    peer.kill();
    assert_eq!(values(&output), [14.0, 14.0, 14.0, 14.0, -1.0, -1.0, -1.0, -1.0]);
    gate.open();
    request.wait().unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [14.0; 8]);
    assert_eq!(line.hear(), "");
    let received = SharedTensor::receive(&line.tensors);
    assert!(matches!(&received, Ok(None)) || received.is_err_and(|error| error.kind() == ErrorKind::Io));
    let error = output.export().unwrap().send(&line.tensors).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(roiflow::runtime::Error::from(error).kind(), RunErrorKind::Io);
    // The request stays usable.
    request.set_output_tensor((), &output).unwrap();
    request.infer(&input).unwrap();
    assert_eq!(values(&output), [14.0; 8]);
}

fn layout(shape: &[usize]) -> Layout {
    Layout::dense(ElementType::F32, shape).unwrap()
}

/// The role of a peer that sends several layouts that exceed the memory, and then the correct layout.
fn play_liar(line: &mut Line) {
    let tensor = shared(1024, 3.0);
    let lie = |layout: Layout, offset_bytes: usize| SharedTensor { layout, offset_bytes, ..tensor.export().unwrap() };
    for lie in [
        lie(layout(&[1025, 4]), 0),
        lie(layout(&[1024, 4]), 4),
        lie(layout(&[1, 4]), 1024 * 4 * 4),
        lie(Layout::strided(ElementType::F32, [2, 4], &[1 << 40, 4]).unwrap(), 0),
        lie(layout(&[1, 4]), usize::MAX - 3),
        lie(layout(&[1 << 40, 4]), 0),
    ] {
        lie.send(&line.tensors).unwrap();
    }
    line.send(&tensor);
    assert_eq!(line.hear(), "shrink");
    // This process is the peer. It cannot shrink the file that it has sent, because the file is sealed.
    let file = tensor.export().unwrap().descriptor;
    let refused = [rustix::fs::ftruncate(&file, 0), rustix::fs::ftruncate(&file, 1 << 20)];
    assert!(refused.iter().all(|refused| *refused == Err(rustix::io::Errno::PERM)), "{refused:?}");
    assert_eq!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE), Err(rustix::io::Errno::PERM));
    line.say("refused");
}

#[test]
fn a_peer_that_lies_about_the_size_is_refused_and_the_truth_is_accepted() {
    let (peer, mut line) = peer("liar");
    for lie_idx in 0..6 {
        let error = line.receive().import().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape, "{lie_idx}: {error}");
        assert!(error.to_string().contains("exceeds the file of 16384 bytes"), "{lie_idx}: {error}");
    }
    let tensor = line.receive().import().unwrap();
    line.say("shrink");
    assert_eq!(line.hear(), "refused");
    assert!(values(&tensor).iter().all(|&value| value == 3.0));
    drop(line);
    peer.finish();
}

/// Number of values in the memory that the peer with the role `scribbler` writes.
const N_SCRIBBLED: usize = 64;

/// An index past the end of every table, even if an engine uses only its lower 32 bits.
const NO_INDEX: i64 = (1 << 40) + (1 << 30);

/// The role of a peer that continuously writes received memory without synchronization: first ones, then a number that is not a valid
/// index.
fn play_scribbler(line: &mut Line) {
    let shared = line.receive();
    let scribbles = [1, NO_INDEX].map(|value| Tensor::from_slice(shared.layout.shape().as_ref(), &[value; N_SCRIBBLED]).unwrap());
    line.say("writing");
    loop {
        // This loop ends when the test kills the process.
        scribbles.iter().for_each(|scribble| shared.write_from(scribble).unwrap());
    }
}

/// Starts a process that continuously writes memory shared with this process.
fn scribbler() -> (Peer, Line, SharedTensor) {
    let (peer, mut line) = peer("scribbler");
    let shared = SharedTensor::new(ElementType::I64, [N_SCRIBBLED]).unwrap();
    shared.send(&line.tensors).unwrap();
    assert_eq!(line.hear(), "writing");
    (peer, line, shared)
}

#[test]
fn an_import_stays_as_it_is_while_the_other_process_writes() {
    let (_peer, _line, shared) = scribbler();
    let tensor = Tensor::new(ElementType::I64, [N_SCRIBBLED]).unwrap();
    for _ in 0..200 {
        shared.read_to(&tensor).unwrap();
        for imported in [&tensor, &shared.import().unwrap()] {
            let view = imported.view::<i64>().unwrap();
            let seen = view.to_vec();
            assert!(seen.iter().all(|value| [0, 1, NO_INDEX].contains(value)), "{seen:?}");
            (0..20).for_each(|_| assert_eq!(view.to_vec(), seen));
        }
    }
}

/// Engines check an index first and read the table later. If another process changed the index in between, they would read out of bounds.
#[test]
fn indices_in_shared_memory_are_copied_before_the_engine_sees_them() {
    let (_peer, _line, shared) = scribbler();
    let descriptor = shared.descriptor.try_clone().unwrap();
    let again = || SharedTensor { descriptor: descriptor.try_clone().unwrap(), layout: shared.layout, offset_bytes: 0 };
    let tensor = mapped(again());
    // An index outside the table must fail the run or give 0.
    let check = |output: roiflow::runtime::Result<()>, request: &InferRequest| match output {
        Ok(()) => assert!(values(&request.output_tensor(()).unwrap()).iter().all(|value| [0.0, 0.5, 1.5].contains(value))),
        // The runtime reports a panic of the built-in engine as an error.
        Err(error) => assert!(matches!(error.kind(), RunErrorKind::Device | RunErrorKind::Panic | RunErrorKind::Unsupported), "{error}"),
    };
    for device in ["CPU", "ORT.CPU", "OPENVINO.CPU", "OPENVINO.HETERO:CPU"].into_iter().filter(|device| is_here(device)) {
        let request = compile_on(device, &tiny("pick.onnx")).create_infer_request().unwrap();
        // The other process violates the contract of `map`. This process only copies from such memory.
        for _ in 0..2000 {
            check(request.infer(&tensor), &request);
        }
        check(request.infer(again().import().unwrap()), &request);
    }
    let input = Port::new("indices", ElementType::I64, Shape::from([N_SCRIBBLED]));
    let address = tensor.address() as usize;
    let script = Script::computing(move |io, _| {
        assert_ne!(io.input(0).extent().as_ptr() as usize, address);
        assert_ne!(io.input_tensor(0).address() as usize, address);
        let before = io.input(0).dense::<i64>()?.to_vec();
        (0..100).for_each(|_| assert_eq!(io.input(0).dense::<i64>().unwrap(), before));
        Ok(())
    });
    let request = compile_ports(Arc::new(script), vec![input], vec![port("y", &[1])]).create_infer_request().unwrap();
    for _ in 0..100 {
        request.infer(&tensor).unwrap();
    }
}

fn memory_file(n_bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, n_bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

/// The role of a peer that sends files without the seal against shrinking, and shrinks them.
fn play_unsealed(line: &mut Line) {
    for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::GROW | SealFlags::SEAL] {
        let descriptor = memory_file(4096, seals);
        SharedTensor { descriptor: descriptor.try_clone().unwrap(), layout: layout(&[16, 4]), offset_bytes: 0 }
            .send(&line.tensors)
            .unwrap();
        assert_eq!(line.hear(), "next");
        rustix::fs::ftruncate(&descriptor, 0).unwrap();
    }
}

#[test]
fn a_peer_that_does_not_seal_its_memory_is_refused() {
    let (peer, mut line) = peer("unsealed");
    for _ in 0..3 {
        let error = line.receive().import().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Access);
        assert!(error.to_string().contains("F_SEAL_SHRINK"), "{error}");
        line.say("next");
    }
    peer.finish();
}

/// The test sends invalid messages, because the process at the other end of the socket may be any program.
#[test]
fn messages_that_are_no_tensor_are_refused() {
    let tensor = shared(1, 0.0).export().unwrap();
    let message = {
        let (near, far) = UnixStream::pair().unwrap();
        tensor.send(&near).unwrap();
        let mut message = [0; 4096];
        let n_bytes = std::io::Read::read(&mut &far, &mut message).unwrap();
        message[..n_bytes].to_vec()
    };
    let send = |message: &[u8], descriptors: &[BorrowedFd<'_>]| {
        let (near, far) = UnixStream::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
        rustix::net::sendmsg(&near, &[std::io::IoSlice::new(message)], &mut control, SendFlags::empty()).unwrap();
        drop(near);
        SharedTensor::receive(&far)
    };
    let file = tensor.descriptor.as_fd();
    assert!(send(&message, &[file]).unwrap().is_some());
    for (message, descriptors) in
        [(&message[..], &[][..]), (&message[..10], &[file]), (b"GET / HTTP/1.1\r\n", &[]), (&[0xff; 200], &[file])]
    {
        assert_eq!(send(message, descriptors).unwrap_err().kind(), ErrorKind::Io, "{} bytes, {} files", message.len(), descriptors.len());
    }
    assert_eq!(open_files(|| drop(send(&message, &[file; 8]))), 0, "unexpected descriptors were not closed");
    let (near, far) = UnixStream::pair().unwrap();
    drop(near);
    assert!(SharedTensor::receive(&far).unwrap().is_none());
}

fn n_open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the change in the number of open files that `action` causes. Because other tests open files concurrently, the function calls
/// `action` 100 times and returns the smallest change.
fn open_files(action: impl Fn()) -> isize {
    let change = || {
        let before = n_open_files();
        action();
        n_open_files() as isize - before as isize
    };
    (0..100).map(|_| change()).min_by_key(|change| change.abs()).unwrap()
}

#[test]
fn exports_and_imports_do_not_grow_memory_files_or_mappings() {
    alone("shared::exports_and_imports_do_not_grow_memory_files_or_mappings", || {
        const N: usize = 100_000;
        let (near, far) = UnixStream::pair().unwrap();
        let kept = shared(16, 1.0);
        let exchange = |round: usize| {
            // Every tenth round sends a new tensor. The other rounds send the same tensor again.
            let tensor = if round.is_multiple_of(10) { shared(16, 1.0) } else { kept.roi(&[1, 0], &[9, 4]).unwrap() };
            tensor.export().unwrap().send(&near).unwrap();
            let imported = SharedTensor::receive(&far).unwrap().unwrap().import().unwrap();
            assert_eq!(imported.view::<f32>().unwrap()[[0, 0]], 1.0);
        };
        (0..2000).for_each(exchange);
        let n_mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let measure = || (resident_bytes(), n_open_files(), n_mappings());
        let before = measure();
        (0..N).for_each(exchange);
        let after = measure();
        eprintln!("{N} exports and imports: (bytes, files, mappings) {before:?} to {after:?}");
        assert_eq!((after.1, after.2), (before.1, before.2));
        assert!(after.0.saturating_sub(before.0) < 1 << 20, "resident memory grew from {} to {} bytes", before.0, after.0);
    });
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}
