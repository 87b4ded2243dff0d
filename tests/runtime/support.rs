//! Helpers of the runtime tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, mpsc};
use std::time::Duration;

use roiflow::devices;
use roiflow::runtime::device::DeviceInfo;
use roiflow::runtime::{CompiledModel, Config};
use roiflow::tensor::{ElementType, ForeignMemory, Layout, Tensor};

#[path = "../support/models.rs"]
mod models;
pub use models::real;

/// Returns the path of a model made for these tests.
pub fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny").join(name)
}

/// Returns the path of the description of a known model.
pub fn description(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/models").join(name)
}

/// Returns the path of an engine that `scripts/fetch-engines` downloads. If the engine is missing, returns `None`; the tests that need the
/// engine then print a message and pass.
pub fn fetched(path: &str) -> Option<PathBuf> {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/fetch-engines");
        let asked = Command::new(script).arg("--folder").output().unwrap();
        PathBuf::from(String::from_utf8(asked.stdout).unwrap().trim_end())
    });
    let path = FOLDER.join(path);
    if !path.exists() {
        eprintln!("skipped: `{}` is not there (run scripts/fetch-engines)", path.display());
        return None;
    }
    Some(path)
}

/// Compiles a file for the built-in engine.
pub fn compile(path: &Path) -> CompiledModel {
    compile_on("CPU", path)
}

/// Compiles a file for a device.
pub fn compile_on(device: &str, path: &Path) -> CompiledModel {
    let core = devices::core();
    let model = core.read_model(path).unwrap();
    core.compile_model(&model, device, &Config::default()).unwrap()
}

/// Whether this processor computes quantized models with the same results as the machine that created the references.
///
/// That machine has VNNI, which adds products of bytes in 32 bits. Without VNNI, intermediate sums saturate at 16 bits; ONNX Runtime's
/// documentation of quantization describes this. Probabilities then differ by up to 0.27 in ONNX Runtime and 0.29 in OpenVINO. The option
/// `session.x64quantprecision` of ONNX Runtime avoids the difference, but version 1.31 then fails for the emotion model ("Attempt to
/// replace the existing tensor").
pub fn quantizes_as_references_do() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512vnni") || std::arch::is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether a device is available. If it is not, the function prints a message. Panics if an unavailable device is listed in
/// `ROIFLOW_REQUIRE_DEVICES`.
pub fn is_here(device: &str) -> bool {
    static DEVICES: OnceLock<Vec<(String, DeviceInfo)>> = OnceLock::new();
    let devices = DEVICES.get_or_init(|| devices::core().devices());
    // A combined device such as `OPENVINO.HETERO:CPU` is available if its devices are.
    let listed = match (device.split_once('.'), device.rsplit_once(':')) {
        (Some((engine, _)), Some((_, of))) => format!("{engine}.{of}"),
        _ => device.to_owned(),
    };
    let info = devices.iter().find_map(|(name, info)| (*name == listed).then_some(info));
    let why = match info.map(|info| &info.missing) {
        Some(None) => return true,
        Some(Some(missing)) => missing.error(device).to_string(),
        None => format!("device {device} is not listed"),
    };
    let required = std::env::var("ROIFLOW_REQUIRE_DEVICES").unwrap_or_default();
    assert!(!required.split(',').any(|name| name.trim() == device), "{device} is required by ROIFLOW_REQUIRE_DEVICES: {why}");
    eprintln!("skipped on {device}: {why}");
    false
}

/// Returns a tensor of one row with these values.
pub fn row(values: [f32; 4]) -> Tensor {
    Tensor::from_slice([1, 4], &values).unwrap()
}

/// Returns the values of a tensor in row-major order.
pub fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.view::<f32>().unwrap().to_vec()
}

/// Runs `action` and returns its result. Panics if `action` does not return in time.
pub fn in_time<T: Send + 'static>(action: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let acting = std::thread::spawn(move || {
        // If the timeout has expired, the receiver no longer exists and sending fails.
        let _heard = sender.send(action());
    });
    match receiver.recv_timeout(Duration::from_secs(60)) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Disconnected) => match acting.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("it sends before it ends"),
        },
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
    }
}

/// Waits until `holds` returns true. Use it for changes that a worker makes after it has notified the waiters of its run.
pub fn eventually(holds: impl Fn() -> bool + Send + 'static) {
    in_time(move || {
        while !holds() {
            std::thread::yield_now();
        }
    });
}

/// Returns the next message. Panics if no message arrives in time.
pub fn receive<T>(receiver: &mpsc::Receiver<T>) -> T {
    receiver.recv_timeout(Duration::from_secs(60)).expect("a message within a minute")
}

/// Runs `body` in a separate process, because other tests would disturb measurements of threads and memory. `test` is the full name of the
/// calling test.
pub fn alone(test: &str, body: fn()) {
    const KEY: &str = "ROIFLOW_TEST_ALONE";
    if std::env::var_os(KEY).is_some_and(|name| *name == *test) {
        return body();
    }
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args([test, "--exact", "--nocapture", "--test-threads=1"]).env(KEY, test).output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test} alone: {}\n{out}\n{error}", output.status);
    assert!(out.contains("1 passed"), "{test} is not the name of the test: {out}");
    eprint!("{error}");
}

/// Random numbers for tests (xorshift64). A seed gives the same numbers on every machine.
pub struct Random(u64);

impl Random {
    /// Creates a generator with the seed in `ROIFLOW_SEED`, or with a fixed seed. Also returns the seed, for failure messages.
    pub fn seeded() -> (Self, u64) {
        let seed = std::env::var("ROIFLOW_SEED").ok().map_or(0x5eed, |seed| seed.parse().expect("ROIFLOW_SEED"));
        (Self(seed | 1), seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a random number in `low..=high`.
    pub fn range(&mut self, low: u32, high: u32) -> u32 {
        low + (self.next() >> 16) as u32 % (high - low + 1)
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.range(0, of.len() as u32 - 1) as usize]
    }
}

/// Memory that other code may write during a run, like an array of Python. Clones share the memory.
#[derive(Clone)]
pub struct Written(Arc<[AtomicU64]>);

impl Written {
    pub fn new(values: &[i64]) -> Self {
        Self(values.iter().map(|value| AtomicU64::new(value.cast_unsigned())).collect())
    }

    /// Writes a value, whether the memory is leased or not.
    pub fn set(&self, idx: usize, value: i64) {
        self.0[idx].store(value.cast_unsigned(), Ordering::Release);
    }

    pub fn tensor(&self, element: ElementType, shape: &[usize]) -> Tensor {
        Tensor::foreign_whole(Box::new(self.clone()), Layout::dense(element, shape).unwrap()).unwrap()
    }

    /// Returns the number of tensors over this memory, plus one.
    pub fn n_owners(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

// SAFETY: the atomic integers are initialized bytes at a fixed address, and `may_change` says that other code writes them.
unsafe impl ForeignMemory for Written {
    fn as_ptr(&self) -> NonNull<u8> {
        NonNull::from(&self.0[0]).cast()
    }

    fn len(&self) -> usize {
        8 * self.0.len()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn may_change(&self) -> bool {
        true
    }
}

/// Returns the size of the resident memory of this process, or `None` if the system does not report it.
pub fn resident_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<usize>().ok().map(|kilobytes| kilobytes * 1024)
}

/// A temporary folder for the files of one test. The folder is unique, even if tests use equal names. Dropping this value removes the
/// folder.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        static N_MADE: AtomicUsize = AtomicUsize::new(0);
        let n_made = N_MADE.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("roiflow-{}-{n_made}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// Writes a file and returns its path.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If the folder cannot be removed, its files stay in the temporary folder of the system.
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}
