//! The device REMOTE with a real inference server: MLServer, which computes with ONNX Runtime. The server is held and killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use roiflow::devices;
use roiflow::runtime::{CompiledModel, Config, ErrorKind, Result};
use roiflow::tensor::Tensor;

use crate::support::{Scratch, tiny, values};

/// The time in which the server must start. It imports many Python packages.
const START: Duration = Duration::from_secs(120);

struct MlServer {
    command: PathBuf,
    folder: Scratch,
    grpc_port: u16,
    http_port: u16,
    process: Child,
}

impl MlServer {
    /// Starts the server with the model `double`. If MLServer is not installed, prints a message and returns `None`.
    fn start() -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/fetch-mlserver");
        let asked = Command::new(script).arg("--folder").output().unwrap();
        let command = Path::new(String::from_utf8(asked.stdout).unwrap().trim_end()).join("bin/mlserver");
        if !command.exists() {
            eprintln!("skipped: MLServer is not there (run scripts/fetch-mlserver)");
            return None;
        }
        let folder = Scratch::new("mlserver");
        let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (grpc_port, http_port, metrics_port) = (free(), free(), free());
        let settings = serde_json::json!({
            "host": "127.0.0.1", "grpc_port": grpc_port, "http_port": http_port, "metrics_port": metrics_port,
            "parallel_workers": 0, "debug": false,
        });
        folder.file("settings.json", settings.to_string());
        let model = folder.file("double.onnx", std::fs::read(tiny("double.onnx")).unwrap());
        let model = serde_json::json!({ "name": "double", "implementation": "mlserver_model.OnnxModel", "parameters": { "uri": model } });
        folder.file("model-settings.json", model.to_string());
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/mlserver_model.py");
        folder.file("mlserver_model.py", std::fs::read(python).unwrap());
        let process = Self::spawn(&command, &folder);
        Some(Self { command, folder, grpc_port, http_port, process })
    }

    fn spawn(command: &Path, folder: &Scratch) -> Child {
        let log = std::fs::File::options().create(true).append(true).open(folder.path().join("log")).unwrap();
        let mut command = Command::new(command);
        command.arg("start").arg(folder.path()).current_dir(folder.path()).env("PYTHONPATH", folder.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn start_again(&mut self) {
        self.process = Self::spawn(&self.command, &self.folder);
    }

    fn hold(&self, holds: bool) {
        let file = self.folder.path().join("hold");
        if holds { std::fs::write(file, "").unwrap() } else { std::fs::remove_file(file).unwrap() }
    }

    /// Calls `attempt` until it succeeds.
    fn until<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> T {
        let begin = Instant::now();
        loop {
            match attempt() {
                Ok(done) => return done,
                Err(error) if begin.elapsed() < START => {
                    assert!(error.kind().is_outage(), "{error}");
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => panic!("{error}: {}", std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()),
            }
        }
    }
}

impl Drop for MlServer {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ended = (self.process.kill(), self.process.wait());
    }
}

fn compile(address: &str) -> Result<CompiledModel> {
    let mut config = Config::default();
    config.set("remote.timeout", "1000")?;
    let core = devices::core();
    core.compile_model(&core.read_model(address)?, "REMOTE", &config)
}

fn check(model: &CompiledModel) -> Result<()> {
    for n_rows in [1, 3] {
        let numbers: Vec<f32> = (0..4 * n_rows).map(|number| number as f32 + 0.5).collect();
        let results = model.infer(Tensor::from_slice([n_rows, 4], &numbers).unwrap())?;
        assert_eq!(values(&results[0]), numbers.iter().map(|number| 2.0 * number).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn mlserver_computes_is_held_dies_and_returns() {
    let Some(mut server) = MlServer::start() else { return };
    for scheme in ["grpc", "http"] {
        let port = if scheme == "grpc" { server.grpc_port } else { server.http_port };
        let address = format!("{scheme}://127.0.0.1:{port}/double");
        let model = server.until(|| compile(&address));
        assert_eq!((model.inputs()[0].to_string(), model.outputs()[0].name()), ("`x` [?, 4] f32".to_owned(), "y"), "{scheme}");
        server.until(|| check(&model));
        server.hold(true);
        let error = check(&model).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{scheme}: {error}");
        server.hold(false);
        server.until(|| check(&model));
        server.kill();
        server.until(|| match check(&model) {
            Err(error) if error.to_string().contains("no server is up") => Ok(()),
            Err(error) => Err(error),
            Ok(()) => panic!("a killed server computed"),
        });
        server.start_again();
        server.until(|| check(&model));
    }
}
