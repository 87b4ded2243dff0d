//! The device REMOTE with real inference servers, which are held and killed: MLServer, which computes with ONNX Runtime, and Triton.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use roiflow::devices;
use roiflow::runtime::{CompiledModel, Config, ErrorKind, Result};
use roiflow::tensor::Tensor;

use crate::support::{Scratch, tiny, values};

/// The time in which a server must start. MLServer imports many Python packages.
const START: Duration = Duration::from_secs(120);

/// A server with the model `double`, whose calls wait while the file `hold` exists.
struct Server {
    folder: Scratch,
    command: Command,
    hold: PathBuf,
    grpc_port: u16,
    http_port: u16,
    process: Child,
    /// Beginning of the names of its files in `/dev/shm`.
    shared: Option<String>,
}

/// Returns the folder into which a script has installed a server. If the server is not installed, prints a message and returns `None`.
fn installed(script: &str, program: &str) -> Option<PathBuf> {
    let asked = Command::new(root().join(script)).arg("--folder").output().unwrap();
    let folder = PathBuf::from(String::from_utf8(asked.stdout).unwrap().trim_end());
    let is_installed = folder.join(program).exists();
    if !is_installed {
        eprintln!("skipped: the server is not there (run {script})");
    }
    is_installed.then_some(folder)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns a port that no other test uses. It is outside of the range from which the system takes ports of clients, because a server that was
/// killed must get its port again.
fn free_port() -> u16 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    loop {
        let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let port = 20_000 + (std::process::id().wrapping_mul(31).wrapping_add(n) % 12_000) as u16;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Server {
    fn mlserver() -> Option<Self> {
        let program = installed("scripts/fetch-mlserver", "bin/mlserver")?.join("bin/mlserver");
        let folder = Scratch::new("mlserver");
        let (grpc_port, http_port) = (free_port(), free_port());
        let settings = serde_json::json!({
            "host": "127.0.0.1", "grpc_port": grpc_port, "http_port": http_port, "metrics_port": free_port(),
            "parallel_workers": 0, "debug": false,
        });
        folder.file("settings.json", settings.to_string());
        let model = folder.file("double.onnx", std::fs::read(tiny("double.onnx")).unwrap());
        let model = serde_json::json!({ "name": "double", "implementation": "mlserver_model.OnnxModel", "parameters": { "uri": model } });
        folder.file("model-settings.json", model.to_string());
        folder.file("mlserver_model.py", std::fs::read(root().join("tests/support/mlserver_model.py")).unwrap());
        let mut command = Command::new(program);
        command.arg("start").arg(folder.path()).env("PYTHONPATH", folder.path());
        let hold = folder.path().join("hold");
        Some(Self::start(folder, command, hold, [grpc_port, http_port]))
    }

    fn triton() -> Option<Self> {
        let installed = installed("scripts/fetch-triton", "installed-2")?;
        let folder = Scratch::new("triton");
        let (grpc_port, http_port) = (free_port(), free_port());
        // Outputs are in shared memory only if their shape is fixed.
        for (name, n_rows) in [("double", "-1"), ("fixed", "3")] {
            let model = folder.path().join("models").join(name);
            std::fs::create_dir_all(model.join("1")).unwrap();
            std::fs::copy(root().join("tests/support/triton_model.py"), model.join("1/model.py")).unwrap();
            let port = |name: &str| format!("[{{ name: \"{name}\", data_type: TYPE_FP32, dims: [{n_rows}, 4] }}]");
            let (x, y) = (port("x"), port("y"));
            // The Python that runs the model ignores PYTHONPATH, so the configuration names the virtual environment.
            let environment = format!("parameters {{ key: \"EXECUTION_ENV_PATH\" value {{ string_value: \"{}\" }} }}", installed.display());
            let config = format!("backend: \"python\"\ninput {x}\noutput {y}\ninstance_group [{{ kind: KIND_CPU }}]\n{environment}\n");
            std::fs::write(model.join("config.pbtxt"), config).unwrap();
        }
        let mut command = Command::new(installed.join("server/bin/tritonserver"));
        command.arg("--model-repository").arg(folder.path().join("models"));
        command.arg("--backend-directory").arg(installed.join("server/backends"));
        command.args(["--allow-metrics=false", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]);
        command.args(["--http-port", &http_port.to_string(), "--grpc-port", &grpc_port.to_string()]);
        // Files that a killed server leaves.
        let shared = format!("roiflow-test-triton-{grpc_port}");
        command.arg(format!("--backend-config=python,shm-region-prefix-name={shared}"));
        let hold = folder.path().join("hold");
        command.env("ENVIRONMENT", &installed).env("HOLD", &hold);
        let mut server = Self::start(folder, command, hold, [grpc_port, http_port]);
        server.shared = Some(shared);
        Some(server)
    }

    fn start(folder: Scratch, mut command: Command, hold: PathBuf, [grpc_port, http_port]: [u16; 2]) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(folder.path().join("log")).unwrap();
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        // The processes that the server starts are in its group, so that they are killed with it.
        command.process_group(0);
        let process = command.spawn().unwrap();
        Self { folder, command, hold, grpc_port, http_port, process, shared: None }
    }

    fn kill(&mut self) {
        let group = format!("-{}", self.process.id());
        // The processes may have ended already.
        let _killed = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ended = self.process.wait();
    }

    fn start_again(&mut self) {
        self.process = self.command.spawn().unwrap();
    }

    fn hold(&self, holds: bool) {
        if holds { std::fs::write(&self.hold, "").unwrap() } else { std::fs::remove_file(&self.hold).unwrap() }
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

    /// Checks that the server computes, is held, dies and returns. `models` has names of models, and whether shared memory is used.
    fn check_outages(mut self, models: &[(&str, &str)]) {
        for scheme in ["grpc", "http"] {
            let port = if scheme == "grpc" { self.grpc_port } else { self.http_port };
            for (name, shared_memory) in models {
                let model = self.until(|| compile(&format!("{scheme}://127.0.0.1:{port}/{name}"), shared_memory));
                let rows = if *name == "fixed" { "3" } else { "?" };
                assert_eq!((model.inputs()[0].to_string(), model.outputs()[0].name()), (format!("`x` [{rows}, 4] f32"), "y"), "{scheme}");
                self.until(|| check(&model));
                self.hold(true);
                let error = check(&model).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Timeout, "{scheme}: {error}");
                self.hold(false);
                self.until(|| check(&model));
                self.kill();
                self.until(|| match check(&model) {
                    Err(error) if error.to_string().contains("no server is up") => Ok(()),
                    Err(error) => Err(error),
                    Ok(()) => panic!("a killed server computed"),
                });
                self.start_again();
                self.until(|| check(&model));
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let Some(shared) = &self.shared else { return };
        for file in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with(shared) {
                let _removed = std::fs::remove_file(file.path());
            }
        }
    }
}

fn compile(address: &str, shared_memory: &str) -> Result<CompiledModel> {
    let mut config = Config::default();
    config.set("remote.timeout", "1000")?;
    config.set("remote.shared-memory", shared_memory)?;
    let core = devices::core();
    core.compile_model(&core.read_model(address)?, "REMOTE", &config)
}

fn check(model: &CompiledModel) -> Result<()> {
    for n_rows in if model.inputs()[0].to_string().contains('?') { vec![1, 3] } else { vec![3] } {
        let numbers: Vec<f32> = (0..4 * n_rows).map(|number| number as f32 + 0.5).collect();
        let results = model.infer(Tensor::from_slice([n_rows, 4], &numbers).unwrap())?;
        assert_eq!(values(&results[0]), numbers.iter().map(|number| 2.0 * number).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn mlserver_computes_is_held_dies_and_returns() {
    if let Some(server) = Server::mlserver() {
        server.check_outages(&[("double", "no")]);
    }
}

#[test]
fn triton_computes_with_and_without_shared_memory_is_held_dies_and_returns() {
    if let Some(server) = Server::triton() {
        server.check_outages(&[("double", "no"), ("double", "yes"), ("fixed", "yes")]);
    }
}
