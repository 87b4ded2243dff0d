//! Searches for the shared libraries of engines, and loads them.
//!
//! A device describes its library as [`Wanted`]. All libraries are searched for in the same places, in this order:
//!
//! 1. the path in the engine's own environment variable;
//! 2. the folders that other environment variables of the engine name;
//! 3. the loader's path and the system's folders;
//! 4. the packages of the Python interpreter that has loaded this library, and of a `python3` program;
//! 5. the folder `engines` of roiflow's data, which `scripts/fetch-engines` fills;
//! 6. the packages of a `python3` that is a script of a version manager. The script must be run to find the packages. This can take longer
//!    than loading an engine, so this place is last.
//!
//! If a library cannot be used, the search logs a warning and continues. But if the engine's own variable is set, only the library that
//! this variable names is tried.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use elf::abi::{EM_AARCH64, EM_X86_64, PT_LOAD};
use elf::endian::AnyEndian;
use elf::file::Class;
use elf::segment::ProgramHeader;
use elf::{ElfStream, ParseError};
pub use libloading::Library;

use crate::folders;
use crate::runtime::device::Missing;

/// A library to search for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The name of the engine.
    pub engine: &'static str,
    /// The environment variable that names the library or its folder.
    pub variable: &'static str,
    /// The file name without a version. An installed file may have a version after this name.
    pub file: &'static str,
    /// Returns the folders that the engine's other variables and its installers name.
    pub folders: fn() -> Vec<PathBuf>,
    /// The folder of the library inside the folder of Python packages.
    pub in_packages: &'static str,
    /// The command that installs the library.
    pub install: &'static str,
}

impl Wanted {
    /// Returns the first library that `open` accepts, and its path.
    ///
    /// # Errors
    /// Returns the reasons why the found libraries cannot be used. If no library was found, returns the places that were searched.
    pub fn find<T>(&self, open: impl Fn(&Path) -> Result<T, String>) -> Result<(T, PathBuf), Missing> {
        let missing = |reason: String| Missing { reason, install: Some(self.install) };
        let try_open =
            |path: &Path| check_shared_object(path).and_then(|()| open(path)).map_err(|why| format!("`{}`: {why}", path.display()));
        if let Some(named) = std::env::var_os(self.variable).filter(|value| !value.is_empty()) {
            let named = PathBuf::from(named);
            let candidates = if named.is_dir() { versions_in(&named, self.file) } else { vec![named.clone()] };
            let mut refused = format!("there is no `{}` in `{}`", self.file, named.display());
            for path in candidates {
                // If the variable has only a file name, the loader searches for the library.
                let is_name = path.components().count() == 1 && !path.exists();
                match if is_name { open(&path) } else { try_open(&path) } {
                    Ok(opened) if is_name => return Ok((opened, loaded_path(&named.to_string_lossy()).unwrap_or(path))),
                    Ok(opened) => return Ok((opened, path)),
                    Err(why) => refused = why,
                }
            }
            let reason = format!("{} names a library that cannot be used: {refused}", self.variable);
            tracing::warn!("{}: {reason}", self.engine);
            return Err(missing(reason));
        }
        let mut refused = Vec::new();
        let mut looked_in = Vec::new();
        let in_packages = |packages: &[PathBuf]| packages.iter().map(|packages| packages.join(self.in_packages)).collect();
        let places: [(&str, &dyn Fn() -> Vec<PathBuf>); 6] = [
            ("its folders", &self.folders),
            ("the loader's path", &loader_folders),
            ("the system's folders", &system_folders),
            ("the packages of python3", &|| in_packages(&python_packages(Python::Program))),
            ("the data folders of roiflow", &|| in_packages(&own_packages())),
            ("the packages of a python3 that is a script", &|| in_packages(&python_packages(Python::Script))),
        ];
        for (place, folders) in places {
            for folder in folders() {
                for path in versions_in(&folder, self.file) {
                    match try_open(&path) {
                        Ok(opened) => return Ok((opened, path)),
                        Err(why) => {
                            tracing::warn!("{}: skipping a library that cannot be used: {why}", self.engine);
                            refused.push(why);
                        }
                    }
                }
                looked_in.push(folder);
            }
            if place == "the system's folders" {
                // The loader's cache may list the library in a folder that was not searched above. So pass the loader only the file name.
                let name = Path::new(self.file);
                if let Ok(opened) = open(name) {
                    return Ok((opened, loaded_path(self.file).unwrap_or_else(|| name.to_owned())));
                }
            }
        }
        if refused.is_empty() {
            let packages = [Python::Program, Python::Script].map(python_packages).concat();
            let packages: Vec<_> = packages.iter().map(|folder| folder.display().to_string()).collect();
            let packages = if packages.is_empty() { "python3 was not found".to_owned() } else { packages.join(", ") };
            return Err(missing(format!(
                "no `{}` was found: {} is not set, and the file is neither on the loader's path nor among the packages of python3 ({packages})",
                self.file, self.variable
            )));
        }
        Err(missing(refused.join("; ")))
    }
}

/// Loads a library, which runs its initializers. The library is never unloaded, because the threads and exit handlers of an engine need its
/// code.
///
/// # Errors
/// Returns the message of the dynamic loader.
///
/// # Safety
/// The initializers of the library and of its dependencies must be safe to run in this process.
pub unsafe fn load(path: &Path) -> Result<&'static Library, String> {
    // SAFETY: the caller guarantees that the initializers are safe to run. The library is leaked below, so its code stays valid.
    let library = unsafe { Library::new(path) }.map_err(|error| innermost(&error))?;
    Ok(Box::leak(Box::new(library)))
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut said = error;
    while let Some(source) = said.source() {
        said = source;
    }
    said.to_string()
}

/// Returns the folders into which `scripts/fetch-engines` installs packages.
fn own_packages() -> Vec<PathBuf> {
    folders::data().iter().map(|folder| folder.join("engines")).collect()
}

/// Returns the files in the folder with this name, or with this name and a version after it. The newest version is first.
fn versions_in(folder: &Path, name: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<(Vec<u64>, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let file = entry.file_name();
            let version = file.to_str()?.strip_prefix(name)?;
            let numbers = match version.strip_prefix('.') {
                None if version.is_empty() => Vec::new(),
                None => return None,
                Some(numbers) => numbers.split('.').map(str::parse).collect::<Result<_, _>>().ok()?,
            };
            Some((numbers, entry.path()))
        })
        .collect();
    found.sort_by(|(a, _), (b, _)| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

fn split_paths(variable: &str) -> Vec<PathBuf> {
    let value = std::env::var_os(variable).unwrap_or_default();
    std::env::split_paths(&value).filter(|path| path.is_absolute()).collect()
}

fn loader_folders() -> Vec<PathBuf> {
    split_paths("LD_LIBRARY_PATH")
}

fn system_folders() -> Vec<PathBuf> {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let roots = ["/usr/local/lib", "/usr/local/lib64", "/usr/lib", "/usr/lib64"].map(PathBuf::from);
    roots.iter().flat_map(|root| [root.join(&triplet), root.clone()]).collect()
}

/// The kind of the first `python3` on the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Python {
    /// A program: its packages are in a folder next to it.
    Program,
    /// A script that starts a Python program. The script must be run to find the packages.
    Script,
}

/// The folders of packages of the interpreter that has loaded this library.
static OWN_PACKAGES: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Sets the module folders (`sys.path`) of the Python interpreter that has loaded this library. Engines are searched for among its packages
/// first, also if its virtual environment is not active. Only the first call has an effect.
pub fn set_python_path(folders: impl IntoIterator<Item = PathBuf>) {
    OWN_PACKAGES.get_or_init(|| folders.into_iter().filter(|folder| is_packages(folder)).collect());
}

fn is_packages(folder: &Path) -> bool {
    matches!(folder.file_name().and_then(OsStr::to_str), Some("site-packages" | "dist-packages"))
}

/// Returns the folders of Python packages. For a program: the folders of the interpreter that has loaded this library, of an active virtual
/// environment, of the first `python3` on the path, and of the user. For a script: the folders that the script prints when it is run.
fn python_packages(kind: Python) -> Vec<PathBuf> {
    static NAMED: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let python = split_paths("PATH").iter().map(|folder| folder.join("python3")).find(|python| python.is_file());
    let python = python.filter(|python| is_script(python) == (kind == Python::Script));
    if kind == Python::Script {
        return NAMED.get_or_init(|| python.iter().flat_map(|python| ask_for_packages(python)).collect()).clone();
    }
    let mut folders = OWN_PACKAGES.get().cloned().unwrap_or_default();
    if let Some(environment) = std::env::var_os("VIRTUAL_ENV") {
        folders.extend(packages_under(Path::new(&environment)));
    }
    folders.extend(python.iter().flat_map(|python| packages_of(python)));
    if let Some(home) = std::env::var_os("HOME") {
        folders.extend(packages_under(&Path::new(&home).join(".local")));
    }
    let mut seen = std::collections::HashSet::new();
    folders.retain(|folder| seen.insert(folder.clone()));
    folders
}

fn is_script(program: &Path) -> bool {
    let mut begin = [0; 2];
    File::open(program).and_then(|mut file| file.read_exact(&mut begin)).is_ok() && &begin == b"#!"
}

/// Returns the package folders that belong to a Python program.
fn packages_of(python: &Path) -> Vec<PathBuf> {
    let prefix_of = |program: &Path| program.parent().and_then(Path::parent).map(Path::to_owned);
    let mut folders: Vec<_> = prefix_of(python).iter().flat_map(|prefix| packages_under(prefix)).collect();
    let behind_links = python.canonicalize().ok().and_then(|program| prefix_of(&program));
    folders.extend(behind_links.iter().flat_map(|prefix| packages_under(prefix)));
    folders
}

fn packages_under(prefix: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for lib in ["lib", "lib64", "local/lib"] {
        let Ok(entries) = fs::read_dir(prefix.join(lib)) else { continue };
        for entry in entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("python3"))) {
            folders.extend(
                ["site-packages", "dist-packages"].map(|packages| entry.path().join(packages)).into_iter().filter(|path| path.is_dir()),
            );
        }
    }
    // Put the newest Python first. The packages of any version can be used, because the engines' libraries do not depend on the version of
    // Python.
    folders.sort_by(|a, b| b.cmp(a));
    folders
}

fn ask_for_packages(python: &Path) -> Vec<PathBuf> {
    const QUESTION: &str = "import sys; print('\\n'.join(sys.path))";
    const PATIENCE: Duration = Duration::from_secs(5);
    let asked = Command::new(python).args(["-c", QUESTION]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let Ok(mut asked) = asked else { return Vec::new() };
    let deadline = Instant::now() + PATIENCE;
    while let Ok(None) = asked.try_wait() {
        if Instant::now() > deadline {
            tracing::warn!(
                "stopping `{}`, which did not print its package folders in time; libraries in these folders are not found",
                python.display()
            );
            // If `kill` fails, the process has already ended.
            let _killed = asked.kill();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut answer = String::new();
    if let Some(mut out) = asked.stdout.take()
        && out.read_to_string(&mut answer).is_err()
    {
        return Vec::new();
    }
    answer.lines().map(PathBuf::from).filter(|path| is_packages(path) && path.is_dir()).collect()
}

/// Returns the path of a library that the loader found by its name alone. Searches the files that are mapped into this process.
fn loaded_path(name: &str) -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    paths.into_iter().find(|path| path.file_name().and_then(OsStr::to_str).is_some_and(|file| file.starts_with(name))).map(Path::to_owned)
}

/// Checks that the loader can map the file. If the file is truncated, the loader reads past its end, which kills the process.
///
/// # Errors
/// Returns the reason why the file cannot be loaded.
pub fn check_shared_object(path: &Path) -> Result<(), String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a file".to_owned());
    }
    let len = metadata.len();
    let cut = || format!("the file is cut off or damaged ({len} bytes)");
    let library = ElfStream::<AnyEndian, _>::open_stream(file).map_err(|error| match error {
        ParseError::BadMagic(_) => "the file is not a shared library".to_owned(),
        _ => cut(),
    })?;
    let own = match std::env::consts::ARCH {
        "x86_64" => Some((EM_X86_64, Class::ELF64)),
        "aarch64" => Some((EM_AARCH64, Class::ELF64)),
        // For other architectures, the machine is not checked here. The loader checks it.
        _ => None,
    };
    let (machine, class) = (library.ehdr.e_machine, library.ehdr.class);
    if own.is_some_and(|own| own != (machine, class)) {
        return Err(format!("the library is for another processor (machine {machine} of {class:?}): expected {}", std::env::consts::ARCH));
    }
    let is_cut = |segment: &ProgramHeader| segment.p_offset.checked_add(segment.p_filesz).is_none_or(|end| end > len);
    if library.segments().iter().any(|segment| segment.p_type == PT_LOAD && is_cut(segment)) { Err(cut()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("roiflow-find-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn of_several_versions_the_newest_comes_first_and_other_files_do_not_count() {
        let folder = scratch("versions");
        for name in ["libx.so", "libx.so.9", "libx.so.10.1", "libx.so.10.0.3", "libx.so.txt", "libx.sox", "liby.so.11"] {
            fs::write(folder.join(name), "").unwrap();
        }
        let found: Vec<_> = versions_in(&folder, "libx.so").iter().map(|path| path.file_name().unwrap().to_owned()).collect();
        assert_eq!(found, ["libx.so.10.1", "libx.so.10.0.3", "libx.so.9", "libx.so"]);
        fs::remove_dir_all(folder).unwrap();
    }

    /// Returns the end of the segments that the loader maps. Debugging information may follow in the file.
    fn end_of_segments(library: &[u8]) -> usize {
        let number =
            |at: usize, n_bytes: usize| library[at..at + n_bytes].iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte));
        let headers = (0..number(56, 2)).map(|idx| number(32, 8) + idx * number(54, 2));
        headers.filter(|&header| number(header, 4) == 1).map(|header| number(header + 8, 8) + number(header + 32, 8)).max().unwrap()
    }

    #[test]
    fn a_library_cut_off_anywhere_is_refused_before_the_loader_sees_it() {
        let folder = scratch("cut");
        let whole = fs::read(std::env::current_exe().unwrap()).unwrap();
        check_shared_object(&std::env::current_exe().unwrap()).unwrap();
        let path = folder.join("libcut.so");
        let end = end_of_segments(&whole);
        for n_bytes in [0, 3, 40, 64, 100, 4096, end / 2, end - 1] {
            fs::write(&path, &whole[..n_bytes]).unwrap();
            assert!(check_shared_object(&path).unwrap_err().contains("cut off"), "{n_bytes} of {end}");
        }
        let mut other = whole;
        other[18] = 40;
        fs::write(&path, &other).unwrap();
        assert!(check_shared_object(&path).unwrap_err().contains("another processor"));
        fs::write(&path, vec![b'a'; 100]).unwrap();
        assert!(check_shared_object(&path).unwrap_err().contains("not a shared library"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_environments_packages_are_found_beside_its_python() {
        let folder = scratch("environment");
        let packages = folder.join("lib/python3.99/site-packages");
        fs::create_dir_all(&packages).unwrap();
        fs::create_dir_all(folder.join("bin")).unwrap();
        fs::write(folder.join("bin/python3"), b"\x7fELF").unwrap();
        assert_eq!(packages_of(&folder.join("bin/python3")), [packages.clone(), packages]);
        fs::remove_dir_all(folder).unwrap();
    }
}
