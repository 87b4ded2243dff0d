//! The device REMOTE when servers are slow, refuse calls, die, and come back. The device suite tests what all devices have in common.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use roiflow::devices;
use roiflow::runtime::{CompiledModel, Config, Error, ErrorKind, Model, ModelInfo, ModelSource, Result};
use roiflow::tensor::{ElementType, Tensor};

use crate::kserve::{Behavior, Served, Server, State};
use crate::request::port;
use crate::slow_proxy::Proxy;
use crate::support::{Scratch, eventually, in_time, tiny, values};

/// A model `image` [1, 4] u8 -> `sum` [1] f32, the sum of the bytes.
fn summing() -> Served {
    Served::computing("sums", &[("image", "UINT8", &[1, -1])], &[("sum", "FP32", &[1])], |inputs| {
        let sum: f32 = inputs[0].view::<u8>().unwrap().iter().map(|&byte| f32::from(byte)).sum();
        Ok(vec![("sum".to_owned(), Tensor::from_slice([1], &[sum]).unwrap())])
    })
}

fn server() -> Server {
    Server::start(vec![summing()])
}

fn compile(address: &str, options: &str) -> Result<CompiledModel> {
    let mut config = Config::default();
    config.set_all(options)?;
    let core = devices::core();
    core.compile_model(&core.read_model(address)?, "REMOTE", &config)
}

fn bytes(values: &[u8]) -> Tensor {
    Tensor::from_slice([1, values.len()], values).unwrap()
}

fn infer(model: &CompiledModel) -> Result<f32> {
    model.infer(bytes(&[1, 2, 3, 4])).map(|results| values(&results[0])[0])
}

fn failed(model: &CompiledModel) -> Error {
    infer(model).expect_err("the run fails")
}

/// Waits until a call succeeds.
fn until_it_works(model: &CompiledModel) {
    let model = model.clone();
    eventually(move || infer(&model).is_ok());
}

/// Waits until the model uses all servers, then sets their counters to zero. A model is compiled as soon as one server is up.
fn until_all_are_up(model: &CompiledModel, servers: [&Server; 2]) {
    let (model, states) = (model.clone(), servers.map(|server| server.state.clone()));
    eventually(move || {
        infer(&model).unwrap();
        states.iter().all(|state| State::count(&state.n_computed) > 0)
    });
    for Server { state, .. } in servers {
        state.n_calls.store(0, Ordering::Release);
        state.n_computed.store(0, Ordering::Release);
    }
}

/// Waits until the counter of the server has this value.
fn until(server: &Server, counted: impl Fn(&State) -> usize + Send + 'static, expected: usize) {
    let state = server.state.clone();
    eventually(move || counted(&state) == expected);
}

#[test]
fn bytes_are_sent_as_bytes() {
    let server = server();
    for address in [server.grpc("sums"), server.http("sums")] {
        let model = compile(&address, "").unwrap();
        assert_eq!((model.inputs()[0].element, &*model.inputs()[0].shape.to_string()), (ElementType::U8, "[1, ?]"));
        assert_eq!(infer(&model).unwrap(), 10.0);
        assert_eq!(*server.state.latest_inputs.lock().unwrap(), [("UINT8".to_owned(), 4)]);
    }
}

/// The files of this process in the folder of shared memory.
fn regions() -> Vec<std::path::PathBuf> {
    let prefix = format!("roiflow-{}-", std::process::id());
    let entries = std::fs::read_dir("/dev/shm").unwrap().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&prefix)).collect()
}

const SHARED: &str = "remote.shared-memory=yes";

#[test]
fn tensors_can_be_in_memory_that_the_server_maps() {
    let server = server();
    for (n_models, address) in [server.grpc("sums"), server.http("sums")].into_iter().enumerate() {
        let model = compile(&address, SHARED).unwrap();
        let request = model.create_infer_request().unwrap();
        *server.state.n_shared.lock().unwrap() = (0, 0);
        for n_bytes in [4, 4, 9, 2_000_000, 1] {
            request.infer(bytes(&vec![1; n_bytes])).unwrap();
            assert_eq!(values(&request.output_tensor(()).unwrap()), [n_bytes as f32]);
        }
        assert_eq!(*server.state.n_shared.lock().unwrap(), (4 + 4 + 9 + 2_000_000 + 1, 5 * 4), "{n_models}");
        // A region of a tensor has gaps between its rows, which are not sent.
        let whole = Tensor::from_slice([2, 4], &[1_u8, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        request.infer(whole.roi(&[0, 1], &[1, 3]).unwrap()).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [5.0]);
        assert_eq!((server.state.regions.lock().unwrap().len(), regions().len()), (1, 1));
        drop((request, model));
        until(&server, |state| state.regions.lock().unwrap().len(), 0);
        assert_eq!(regions(), [] as [&Path; 0]);
    }
}

#[test]
fn outputs_of_dynamic_shape_are_in_the_response() {
    let model = Served::computing("echo", &[("x", "FP32", &[-1])], &[("y", "FP32", &[-1]), ("n", "FP32", &[1])], |inputs| {
        let n = inputs[0].shape()[0] as f32;
        Ok(vec![("y".to_owned(), inputs[0].clone()), ("n".to_owned(), Tensor::from_slice([1], &[n]).unwrap())])
    });
    let server = Server::start(vec![model]);
    for address in [server.grpc("echo"), server.http("echo")] {
        let model = compile(&address, SHARED).unwrap();
        for n in [3, 5, 0] {
            let input: Vec<f32> = (0..n).map(|value| value as f32).collect();
            let outputs = model.infer(Tensor::from_slice([n], &input).unwrap()).unwrap();
            assert_eq!((values(&outputs[0]), values(&outputs[1])), (input, vec![n as f32]), "{address}");
        }
    }
}

#[test]
fn a_server_that_was_started_again_gets_the_shared_memory_again() {
    let mut server = server();
    for address in [server.grpc("sums"), server.http("sums")] {
        let model = compile(&address, SHARED).unwrap();
        let request = model.create_infer_request().unwrap();
        request.infer(bytes(&[1, 2])).unwrap();
        // The server forgets the region, but not the connection.
        server.state.regions.lock().unwrap().clear();
        request.infer(bytes(&[3, 4])).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [7.0], "{address}");
        server.kill();
        assert_eq!(request.infer(bytes(&[5, 6])).unwrap_err().kind(), ErrorKind::Unavailable);
        server.revive();
        let again = request.clone();
        eventually(move || again.infer(bytes(&[5, 6])).is_ok());
        assert_eq!(values(&request.output_tensor(()).unwrap()), [11.0], "{address}");
    }
}

/// The server may still write the outputs of a canceled call.
#[test]
fn shared_memory_of_a_canceled_call_is_not_used_again() {
    let server = server();
    let model = compile(&server.grpc("sums"), SHARED).unwrap();
    let request = model.create_infer_request().unwrap();
    request.infer(bytes(&[1, 2])).unwrap();
    let first = regions();
    server.behave(Behavior::Holds);
    request.start_async(bytes(&[1, 2])).unwrap();
    until(&server, |state| State::count(&state.n_calls), 2);
    request.cancel();
    let waiting = request.clone();
    assert_eq!(in_time(move || waiting.wait()).unwrap_err().kind(), ErrorKind::Canceled);
    server.behave(Behavior::Well);
    request.infer(bytes(&[3, 4])).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [7.0]);
    let second = regions();
    assert!(first.len() == 1 && second.len() == 1 && first != second, "{first:?} {second:?}");
    until(&server, |state| state.regions.lock().unwrap().len(), 1);
}

#[test]
fn a_server_without_shared_memory_is_refused_at_the_start() {
    let server = server();
    server.state.has_shared_memory.store(false, Ordering::Release);
    for address in [server.grpc("sums"), server.http("sums")] {
        let error = compile(&address, SHARED).unwrap_err();
        let says = "expected a server on this machine that can use shared memory";
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains(says), "{error}");
        assert!(compile(&address, "").is_ok());
    }
}

#[test]
fn auto_runs_an_address_on_remote() {
    let server = server();
    let model = devices::core().compile(server.grpc("sums"), "AUTO").unwrap();
    assert_eq!((model.device(), infer(&model).unwrap()), ("REMOTE", 10.0));
    let error = devices::core().compile(server.grpc("sums"), "CPU").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// The option `remote.url` replaces the engine of a local file, which gives the names of the ports.
#[test]
fn a_local_file_runs_on_the_server_of_the_option() {
    let server = Server::start(vec![Served::of_file("doubles", &tiny("double.onnx"))]);
    let core = devices::core();
    let local = core.read_model(tiny("double.onnx")).unwrap();
    for hides in [false, true] {
        server.state.hides_ports.store(hides, Ordering::Release);
        let mut config = Config::default();
        config.set("remote.url", &server.grpc("doubles")).unwrap();
        let model = core.compile_model(&local, "REMOTE", &config).unwrap();
        let output = model.infer(Tensor::from_slice([1, 4], &[1.0_f32, 2.0, 3.0, 4.0]).unwrap()).unwrap();
        assert_eq!(values(&output[0]), [2.0, 4.0, 6.0, 8.0], "hidden: {hides}");
    }
    let error = compile(&server.grpc("doubles"), "").unwrap_err();
    assert!(error.kind() == ErrorKind::Model && error.to_string().contains("reports no inputs or no outputs"), "{error}");
    let other = core.read_model(tiny("add.onnx")).unwrap();
    server.state.hides_ports.store(false, Ordering::Release);
    let mut config = Config::default();
    config.set("remote.url", &server.grpc("doubles")).unwrap();
    let error = core.compile_model(&other, "REMOTE", &config).unwrap_err();
    assert!(error.to_string().contains("expected the inputs `a` [1, 4] f32"), "{error}");
}

#[test]
fn outputs_may_be_typed_contents_or_json() {
    let server = server();
    server.state.types_outputs.store(true, Ordering::Release);
    for address in [server.grpc("sums"), server.http("sums")] {
        assert_eq!(infer(&compile(&address, "").unwrap()).unwrap(), 10.0, "{address}");
    }
}

#[test]
fn a_cancel_cancels_the_call_on_the_server() {
    let server = server();
    let model = compile(&server.grpc("sums"), "").unwrap();
    let request = model.create_infer_request().unwrap();
    server.behave(Behavior::Holds);
    request.start_async(bytes(&[1, 2])).unwrap();
    until(&server, |state| State::count(&state.n_calls), 1);
    request.cancel();
    let waiting = request.clone();
    assert_eq!(in_time(move || waiting.wait()).unwrap_err().kind(), ErrorKind::Canceled);
    until(&server, |state| State::count(&state.n_canceled), 1);
    server.behave(Behavior::Well);
    request.infer(bytes(&[3, 4])).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [7.0]);
}

#[test]
fn a_run_ends_after_the_timeout() {
    let server = server();
    for address in [server.grpc("sums"), server.http("sums")] {
        let model = compile(&address, "remote.timeout=200").unwrap();
        server.behave(Behavior::Holds);
        let begin = Instant::now();
        let error = failed(&model);
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(error.to_string().contains("within 200 ms (remote.timeout)") || error.to_string().contains("DEADLINE"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        server.behave(Behavior::Well);
        until_it_works(&model);
    }
}

/// The server stops to read while the inputs are sent. The memory of the inputs is free when the run has ended.
#[test]
fn a_server_that_does_not_read_keeps_no_memory() {
    let server = server();
    let proxy = Proxy::start(server.address());
    let large = bytes(&vec![1; 64 << 20]);
    for scheme in ["grpc", "http"] {
        let model = compile(&format!("{scheme}://{}/sums", proxy.address()), "remote.timeout=300").unwrap();
        proxy.freeze(true);
        let (of_run, input) = (model.clone(), large.clone());
        let error = in_time(move || of_run.infer(&input).map(drop)).unwrap_err();
        assert!(error.kind().is_outage(), "{scheme}: {error}");
        large.view_mut::<u8>().unwrap().fill(1);
        proxy.freeze(false);
        until_it_works(&model);
    }
}

#[test]
fn a_call_that_may_have_been_computed_is_not_repeated() {
    let (first, second) = (server(), server());
    let proxy = Proxy::start(first.address());
    let model = compile(&format!("grpc://{}/sums,{}", proxy.address(), second.grpc("sums")), "").unwrap();
    until_all_are_up(&model, [&first, &second]);
    first.behave(Behavior::Holds);
    second.behave(Behavior::Holds);
    let requests: Vec<_> = (0..2).map(|_| model.create_infer_request().unwrap()).collect();
    requests.iter().for_each(|request| request.start_async(bytes(&[1])).unwrap());
    // Each server has one call, because calls go to the server with the fewest calls in flight.
    until(&first, |state| State::count(&state.n_calls), 1);
    until(&second, |state| State::count(&state.n_calls), 1);
    proxy.cut();
    second.behave(Behavior::Well);
    let ends: Vec<_> = requests.into_iter().map(|request| in_time(move || request.wait())).collect();
    let errors: Vec<_> = ends.into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].kind(), ErrorKind::Unavailable);
    assert!(errors[0].to_string().contains("the connection ended before the results arrived"), "{}", errors[0]);
    assert_eq!(State::count(&second.state.n_calls), 1, "the call was repeated");
}

#[test]
fn a_refused_call_goes_to_another_server() {
    for scheme in ["grpc", "http"] {
        let (refusing, well) = (server(), server());
        let model = compile(&format!("{scheme}://{}/sums,{scheme}://{}/sums", refusing.address(), well.address()), "").unwrap();
        until_all_are_up(&model, [&refusing, &well]);
        refusing.behave(Behavior::Unavailable);
        for _ in 0..20 {
            assert_eq!(infer(&model).unwrap(), 10.0);
        }
        assert_eq!(State::count(&well.state.n_computed), 20);
        // After several refusals in a row the server is ejected, so it does not get every second call.
        assert!((1..=6).contains(&State::count(&refusing.state.n_calls)), "{}", State::count(&refusing.state.n_calls));
    }
}

#[test]
fn a_dead_server_is_replaced_and_returns() {
    let (mut dies, stays) = (server(), server());
    let model = compile(&format!("{},{}", dies.grpc("sums"), stays.grpc("sums")), "").unwrap();
    until_all_are_up(&model, [&dies, &stays]);
    for _ in 0..4 {
        infer(&model).unwrap();
    }
    assert_eq!((State::count(&dies.state.n_calls), State::count(&stays.state.n_calls)), (2, 2), "calls take turns");
    dies.kill();
    // The first call may be on its way when the server dies.
    let _lost = infer(&model);
    for _ in 0..10 {
        infer(&model).unwrap();
    }
    assert_eq!(State::count(&dies.state.n_computed), 2);
    dies.revive();
    let (of_thread, state) = (model.clone(), dies.state.clone());
    eventually(move || {
        infer(&of_thread).unwrap();
        State::count(&state.n_computed) > 2
    });
}

#[test]
fn runs_fail_at_once_while_no_server_is_up() {
    for scheme in ["grpc", "http"] {
        let mut server = server();
        let model = compile(&format!("{scheme}://{}/sums", server.address()), "").unwrap();
        infer(&model).unwrap();
        server.kill();
        let of_thread = model.clone();
        eventually(move || infer(&of_thread).is_err_and(|error| error.to_string().contains("no server is up")));
        let begin = Instant::now();
        for _ in 0..50 {
            let error = failed(&model);
            assert!(error.kind() == ErrorKind::Unavailable && error.is_transient(), "{error}");
        }
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        server.revive();
        until_it_works(&model);
    }
}

#[test]
fn a_model_that_is_not_ready_gets_no_calls() {
    let server = server();
    server.behave(Behavior::NotReady);
    for address in [server.grpc("sums"), server.http("sums")] {
        let error = compile(&address, "").unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("to be ready, got not ready"), "{error}");
    }
    assert_eq!(State::count(&server.state.n_calls), 0);
}

#[test]
fn a_server_that_fails_many_calls_is_ejected_and_returns() {
    let server = server();
    let model = compile(&server.grpc("sums"), "").unwrap();
    server.behave(Behavior::Internal);
    for _ in 0..5 {
        let error = failed(&model);
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        assert!(error.to_string().contains("INTERNAL: the engine of the server failed: 100 % \u{20ac}"), "{error}");
    }
    let error = failed(&model);
    assert!(error.to_string().contains("no server is up"), "{error}");
    server.behave(Behavior::Well);
    until_it_works(&model);
}

#[test]
fn errors_name_what_is_wrong() {
    let server = Server::start(vec![
        summing(),
        Served::computing("texts", &[("text", "BYTES", &[1])], &[("sum", "FP32", &[1])], |_| Err("never".to_owned())),
        Served::computing("picky", &[("x", "FP32", &[-1, 4])], &[("y", "FP32", &[-1, 4])], |inputs| match inputs[0].shape()[1] {
            4 => Ok(vec![("y".to_owned(), inputs[0].clone())]),
            other => Err(format!("expected 4 columns, got {other}")),
        }),
    ]);
    for (address, options, kind, says) in [
        (server.grpc("sums"), "remote.tmeout=3", ErrorKind::Config, "no option `remote.tmeout`"),
        (server.grpc("other"), "", ErrorKind::Unavailable, "expected the model `other` to be ready"),
        (server.grpc("texts"), "", ErrorKind::Model, "input `text` of the server: expected a type of numbers"),
        ("grpc://127.0.0.1:1/sums".to_owned(), "", ErrorKind::Unavailable, "cannot connect"),
        ("grpc://127.0.0.1/sums".to_owned(), "", ErrorKind::Config, "expected a port"),
    ] {
        let error = compile(&address, options).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(says), "{address} {options}: {error:?}");
    }
    let core = devices::core();
    let error = core.compile_model(
        &Model::from_ports(ModelInfo { inputs: vec![port("x", &[1])], ..ModelInfo::default() }),
        "REMOTE",
        &Config::default(),
    );
    assert!(error.unwrap_err().to_string().contains("option `remote.url`: expected the address of a model"));
    let picky = core.read_model(server.grpc("picky")).unwrap();
    let wider = picky.reshape([("x", [1, 5].into())]).unwrap();
    let error = core.compile_model(&wider, "REMOTE", &Config::default()).unwrap_err();
    assert!(error.kind() == ErrorKind::Model && error.to_string().contains("expected 4 columns, got 5"), "{error}");
}

/// The token is read from the environment, and is in no message.
#[test]
fn a_token_opens_the_server_and_is_never_printed() {
    let server = server();
    *server.state.required_login.lock().unwrap() = Some("Bearer open-sesame".to_owned());
    // Nextest runs each test in its own process, and this test has started no other thread that reads variables.
    let program = std::env::current_exe().unwrap();
    if std::env::var_os("ROIFLOW_TEST_TOKEN").is_none() {
        let run = Command::new(program)
            .args(["inference_servers::a_token_opens_the_server_and_is_never_printed", "--exact", "--nocapture"])
            .env("ROIFLOW_TEST_TOKEN", "open-sesame")
            .output()
            .unwrap();
        let said = [run.stdout, run.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(run.status.success() && said.contains("1 passed"), "{said}");
        assert!(!said.contains("sesame"), "{said}");
        return;
    }
    for address in [server.grpc("sums"), server.http("sums")] {
        let error = compile(&address, "").unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains("Set remote.token-env"), "{error}");
        let source = ModelSource::Remote(format!("{address},token-env=ROIFLOW_TEST_TOKEN").into());
        let model = devices::core().read_model(source).unwrap();
        eprintln!("{model:?}");
        let model = devices::core().compile_model(&model, "REMOTE", &Config::default()).unwrap();
        assert_eq!(infer(&model).unwrap(), 10.0);
        eprintln!("{:?}", model.properties());
    }
}

#[test]
fn many_runs_on_two_servers_while_one_dies_again_and_again() {
    let (mut dies, stays) = (server(), server());
    let model = compile(&format!("{},{}", dies.grpc("sums"), stays.grpc("sums")), "remote.timeout=5000").unwrap();
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (model, is_over) = (model.clone(), is_over.clone());
            std::thread::spawn(move || {
                let (mut n_right, mut n_lost) = (0, 0);
                while !is_over.load(Ordering::Acquire) {
                    match infer(&model) {
                        Ok(sum) => {
                            assert_eq!(sum, 10.0);
                            n_right += 1;
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                            n_lost += 1;
                        }
                    }
                }
                (n_right, n_lost)
            })
        })
        .collect();
    for _ in 0..5 {
        let n_computed = State::count(&dies.state.n_computed);
        let state = dies.state.clone();
        eventually(move || State::count(&state.n_computed) > n_computed + 20);
        dies.kill();
        dies.revive();
    }
    is_over.store(true, Ordering::Release);
    for thread in threads {
        let (n_right, n_lost) = thread.join().unwrap();
        // Each death costs at most the call in flight of each thread.
        assert!(n_right > 0 && n_lost <= 5, "{n_right} right, {n_lost} lost");
    }
}

/// Creates a certificate for `localhost` with the command `openssl`.
fn certificate(folder: &Path) -> bool {
    let script = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test-ca -keyout ca.key -out ca.pem -addext basicConstraints=critical,CA:TRUE && \
                  printf 'subjectAltName=DNS:localhost,IP:127.0.0.1' > names && \
                  openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key.pem -out request.pem && \
                  openssl x509 -req -days 2 -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -out cert.pem";
    Command::new("sh").args(["-c", script]).current_dir(folder).output().is_ok_and(|made| made.status.success())
}

#[test]
fn tls_checks_the_certificate_of_the_server() {
    let scratch = Scratch::new("remote-tls");
    if !certificate(scratch.path()) {
        eprintln!("skipped: the command openssl is not there");
        return;
    }
    let server = server();
    let tls = crate::tls_proxy::start(server.address(), &scratch.path().join("cert.pem"), &scratch.path().join("key.pem"));
    let ca = scratch.path().join("ca.pem");
    for scheme in ["grpcs", "https"] {
        let address = format!("{scheme}://localhost:{}/sums", tls.port());
        let error = compile(&address, "").unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("TLS handshake"), "{error}");
        let model = compile_tls(&address, &ca).unwrap();
        assert_eq!(infer(&model).unwrap(), 10.0);
    }
}

fn compile_tls(address: &str, ca: &Path) -> Result<CompiledModel> {
    let model = devices::core().read_model(ModelSource::Remote(format!("{address},ca-file={}", ca.display()).into()))?;
    devices::core().compile_model(&model, "REMOTE", &Config::default())
}
