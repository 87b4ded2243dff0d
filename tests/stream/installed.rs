//! An installation of `make install` works without the checkout.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::cli::Folder;

/// An installation of the tested binary in a folder, which also contains an empty home folder.
struct Installed {
    folder: Folder,
}

impl Installed {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let binary = Path::new(env!("CARGO_BIN_EXE_roiflow"));
        let installed = make(&folder, "install", binary);
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
        std::fs::create_dir_all(folder.file("home")).unwrap();
        Self { folder }
    }

    /// Runs the installed command with the empty home and only PATH in its environment.
    fn roiflow(&self, arguments: &[&str]) -> Output {
        let home = self.folder.file("home");
        let mut command = Command::new(self.folder.file("prefix/bin/roiflow"));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &home).current_dir(&home).args(arguments).output().unwrap()
    }
}

fn make(folder: &Folder, target: &str, binary: &Path) -> Output {
    let variables = [
        ("PREFIX", PathBuf::from(folder.file("prefix"))),
        ("PLUGIN_DIR", PathBuf::from(folder.file("plugins"))),
        ("BINARY", binary.to_owned()),
        // This test does not load the plugin, so any file can take its place. The tests in tests/analytics load the real plugin.
        ("PLUGIN", binary.to_owned()),
    ];
    let variables = variables.map(|(name, path)| format!("{name}={}", path.display()));
    Command::new("make").current_dir(env!("CARGO_MANIFEST_DIR")).arg(target).args(variables).output().unwrap()
}

#[test]
fn installed_pipelines_are_found_by_name() {
    let installed = Installed::new("installed");
    let inspected = installed.roiflow(&["run", "detect", "--input", "test:3"]);
    let said = String::from_utf8_lossy(&inspected.stderr);
    assert_eq!(inspected.status.code(), Some(2), "{said}");
    assert!(said.contains("`model`"), "the error must contain the parameter: {said}");
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/rectangle.onnx");
    let model = format!("model={}", tiny.display());
    let ran = installed.roiflow(&["run", "detect", "--set", &model, "--device", "CPU", "--input", "test:3", "--json", "found.jsonl"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let lines = std::fs::read_to_string(installed.folder.file("home/found.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 3);
    let unknown = installed.roiflow(&["run", "nosuchthing", "--input", "test:3"]);
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert_eq!(unknown.status.code(), Some(1), "{said}");
    assert!(said.contains("detect, faces, plates, replay, text, vehicles"), "{said}");
}

/// The binary is in a folder that contains nothing else of roiflow.
#[test]
fn a_binary_alone_has_the_pipelines_and_descriptions_built_in() {
    let folder = Folder::new("binary-alone");
    std::fs::copy(env!("CARGO_BIN_EXE_roiflow"), folder.file("roiflow")).unwrap();
    let data = folder.file("data");
    let roiflow = |arguments: &[&str]| {
        let mut command = Command::new(folder.file("roiflow"));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", folder.file("home")).env("ROIFLOW_DATA_DIR", &data);
        command.current_dir(folder.file("")).args(arguments).output().unwrap()
    };
    let listed = roiflow(&["pipelines"]);
    let said = String::from_utf8_lossy(&listed.stdout);
    for part in ["detect: Finds objects", "faces: ", "vehicles: ", "(built in)", "roiflow run detect --input video.mp4", "--set model=PATH"]
    {
        assert!(listed.status.success() && said.contains(part), "{part}: {said}");
    }
    let shown = roiflow(&["inspect", "detect"]);
    assert!(shown.status.success() && String::from_utf8_lossy(&shown.stdout).contains("{source}"), "{shown:?}");
    let tiny = format!("model={}", crate::harness::tiny("rectangle.onnx"));
    let ran = roiflow(&["run", "detect", "--set", &tiny, "--device", "CPU", "--input", "test:3", "--json", "found.jsonl"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    // The models of the demo are not in the binary.
    let without = roiflow(&["run", "faces", "--input", "test:3"]);
    let said = String::from_utf8_lossy(&without.stderr);
    assert_eq!(without.status.code(), Some(2), "{said}");
    for part in ["pipeline `faces`, built in", "parameter `age`", &data, "--set age=FILE", "make demo"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let unknown = roiflow(&["run", "nosuchthing", "--input", "test:3"]);
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert!(unknown.status.code() == Some(1) && said.contains("detect, faces, plates, replay, text, vehicles"), "{said}");
}

#[test]
fn manual_pages_and_completions_are_installed() {
    let installed = Installed::new("manual");
    let read = |name: &str| std::fs::read_to_string(installed.folder.file(&format!("prefix/share/{name}"))).unwrap();
    assert!(read("man/man1/roiflow.1").contains("Detects, tracks and classifies"));
    let run = read("man/man1/roiflow-run.1");
    assert!(run.contains("\\-\\-input") && run.contains("{stream}"), "{run}");
    for name in ["inspect", "describe", "devices", "bench", "pipelines", "completions"] {
        assert!(read(&format!("man/man1/roiflow-{name}.1")).starts_with(".ie"), "{name}");
    }
    assert!(read("bash-completion/completions/roiflow").contains("complete -F _roiflow"));
    assert!(read("fish/vendor_completions.d/roiflow.fish").contains("complete -c roiflow"));
    assert!(read("zsh/site-functions/_roiflow").starts_with("#compdef roiflow"));
}

#[test]
fn installed_binary_ignores_the_checkout() {
    let installed = Installed::new("no-checkout");
    let listed = installed.roiflow(&["devices", "--json"]);
    let said = String::from_utf8_lossy(&listed.stdout);
    assert!(listed.status.success() && !said.contains(env!("CARGO_MANIFEST_DIR")), "{said}");
}

#[test]
fn pkg_config_finds_installed_header() {
    let installed = Installed::new("pkg-config");
    let prefix = installed.folder.file("prefix");
    let mut command = Command::new("pkg-config");
    command.args(["--cflags-only-I", "--libs-only-L", "--modversion", "roiflow"]);
    let asked = command.env("PKG_CONFIG_PATH", format!("{prefix}/lib/pkgconfig")).output().unwrap();
    let said = String::from_utf8_lossy(&asked.stdout);
    assert!(asked.status.success() && said.contains(env!("CARGO_PKG_VERSION")), "{said}");
    let header = std::fs::read_to_string(format!("{prefix}/include/roiflow.h")).unwrap();
    assert!(header.contains("roiflow_results_from_buffer"));
}

#[test]
fn uninstall_removes_all_files() {
    let installed = Installed::new("uninstall");
    let removed = make(&installed.folder, "uninstall", Path::new(env!("CARGO_BIN_EXE_roiflow")));
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
    let mut left = Vec::new();
    let mut folders = vec![PathBuf::from(installed.folder.file("prefix")), installed.folder.file("plugins").into()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.path().is_dir() { folders.push(entry.path()) } else { left.push(entry.path()) }
        }
    }
    assert_eq!(left, [] as [PathBuf; 0]);
}
