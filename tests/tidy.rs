//! Source rules that the compiler does not check: allowed dependencies between crates and folders, file headers, forbidden words, and names
//! that the README must list.
//!
//! Reads files as text, so disabled features are checked as well. Uses only the standard library.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates that each crate of `crates`, and `python`, may use, from the lowest layer up. The root package may use all of them.
const CRATES: &[(&str, &[&str])] = &[
    ("tensor", &[]),
    ("results", &[]),
    ("publish", &["results"]),
    ("onvif", &[]),
    ("nodes", &[]),
    ("nodes-nats", &["nodes", "publish"]),
    ("server", &["results", "publish", "nodes"]),
    ("vision", &["tensor", "results"]),
    ("images", &["tensor", "vision"]),
    ("runtime", &["tensor"]),
    ("remote", &["tensor", "runtime"]),
    ("devices", &["tensor", "runtime", "remote"]),
    ("analytics", &["tensor", "results", "vision"]),
    ("inference", &["tensor", "results", "vision", "runtime", "devices"]),
    ("python", &["tensor", "results", "vision", "images", "runtime", "devices", "inference"]),
];

/// Folders inside a crate, and the paths that they must not use. The compiler does not enforce these rules.
const APART: &[(&str, &[&str])] = &[
    ("src/elements", &["crate::pipeline", "crate::cli", "roiflow_runtime", "crate::runtime"]),
    ("src/pipeline", &["crate::cli", "crate::runtime", "roiflow_runtime"]),
    // `auto` opens the other devices by name.
    ("crates/devices/src/auto", &["crate::cpu", "crate::openvino", "crate::onnxruntime"]),
    ("crates/devices/src/cpu", &["crate::auto", "crate::openvino", "crate::onnxruntime"]),
    ("crates/devices/src/openvino", &["crate::auto", "crate::cpu", "crate::onnxruntime"]),
    ("crates/devices/src/onnxruntime", &["crate::auto", "crate::cpu", "crate::openvino"]),
];

/// Words that are not allowed in comments.
const FORBIDDEN_WORDS: &[&str] = &["for now", "XXX"];

/// Files of `crates/publish/src` that open files of their own. All others handle addresses, which clients of a server can choose.
const OPENS_FILES: &[&str] = &["files.rs", "file_store.rs", "framing.rs", "line_file.rs", "output_file.rs", "rotating_file.rs", "spool/"];

/// Longer files probably contain several topics and must be split.
const MAX_LINES: usize = 900;

/// The source files of the product.
fn product() -> Vec<File> {
    let folders = names_in("crates", Path::is_dir).into_iter().map(|name| format!("crates/{name}/src"));
    folders.chain(["src".to_owned(), "python/src".to_owned()]).flat_map(|folder| rust_files(&folder)).collect()
}

/// The source files of the product, the tests and the examples.
fn everything() -> Vec<File> {
    product().into_iter().chain(["tests", "examples"].into_iter().flat_map(rust_files)).collect()
}

#[test]
fn crates_use_only_what_the_table_allows() {
    let folders = names_in("crates", Path::is_dir).into_iter().map(|name| (format!("crates/{name}"), name));
    check(folders.chain([("python".to_owned(), "python".to_owned())]).flat_map(|(folder, name)| {
        let Some((_, may_use)) = CRATES.iter().find(|(known, _)| *known == name) else {
            return vec![format!("{folder}: no row in CRATES of tests/tidy.rs")];
        };
        let used = crates_used(&read(&root().join(&folder).join("Cargo.toml")));
        let wrong = used.into_iter().filter(|used| !may_use.contains(&used.as_str()));
        wrong.map(|used| format!("{folder} may use {}, not {used}", may_use.join(", "))).collect()
    }));
}

#[test]
fn folders_of_a_crate_keep_apart() {
    for (folder, _) in APART {
        assert!(root().join(folder).is_dir(), "{folder} of APART is gone");
    }
    check(product().iter().flat_map(|file| {
        let rows = APART.iter().filter(|(folder, _)| file.name.starts_with(&format!("{folder}/")));
        let names = rows.flat_map(|(_, names)| names.iter());
        names.flat_map(|name| file.lines_with(name)).collect::<Vec<_>>()
    }));
}

/// A file that an address names is opened in one place, which needs the right to do so.
#[test]
fn destinations_open_no_files_themselves() {
    let is_destination = |file: &&File| {
        let name = file.name.strip_prefix("crates/publish/src/");
        name.is_some_and(|name| !name.contains("tests") && !OPENS_FILES.iter().any(|known| name.starts_with(known)))
    };
    let files = product();
    assert!(files.iter().filter(is_destination).count() > 10);
    check(files.iter().filter(is_destination).flat_map(|file| {
        let opening = ["fs::", "File::open", "OpenOptions", "pem_file", "process::Command"];
        opening.iter().flat_map(|call| file.lines_with(call)).collect::<Vec<_>>()
    }));
}

#[test]
fn files_open_by_saying_what_they_are_for() {
    check(
        everything()
            .iter()
            .filter(|file| !file.text.starts_with("//! "))
            .map(|file| format!("{}:1: expected `//! ` and a sentence", file.name)),
    );
}

#[test]
fn the_check_runs_the_tests_of_all_crates() {
    let script = read(&root().join("scripts/check"));
    let is_rust = |path: &Path| path.extension().is_some_and(|extension| extension == "rs");
    let folders = names_in("crates", Path::is_dir).into_iter().map(|name| format!("crates/{name}/tests"));
    let targets = folders.flat_map(|folder| names_in(&folder, is_rust));
    let options = targets.map(|target| format!("--test {}", target.trim_end_matches(".rs")));
    check(options.filter(|option| !script.contains(option)).map(|option| format!("scripts/check: expected `{option}`")));
}

#[test]
fn nothing_is_left_undone() {
    check(everything().iter().filter(|file| file.name != "tests/tidy.rs").flat_map(forbidden));
}

#[test]
fn files_have_one_subject() {
    let files = product().into_iter().chain(rust_files("tests/bench"));
    check(
        files
            .filter(|file| file.text.lines().count() > MAX_LINES)
            .map(|file| format!("{}: {} lines, at most {MAX_LINES}", file.name, file.text.lines().count())),
    );
}

#[test]
fn elements_are_registered() {
    let listed = registered_elements(&read(&root().join("src/elements/mod.rs")));
    let folders = names_in("src/elements", Path::is_dir);
    check(
        folders
            .iter()
            .map(|folder| format!("roi{folder}"))
            .filter(|name| !listed.contains(name))
            .map(|name| format!("src/elements/mod.rs: element {name} is not in the list")),
    );
}

#[test]
fn readme_lists_elements_pipelines_and_devices() {
    let readme = read(&root().join("README.md"));
    let elements = registered_elements(&read(&root().join("src/elements/mod.rs")));
    // Each engine is represented by the device that it always has.
    let device_of = |folder: &String| match folder.as_str() {
        "onnxruntime" => "ORT.CPU".to_owned(),
        "openvino" => "OPENVINO.CPU".to_owned(),
        folder => folder.to_uppercase(),
    };
    // `graph` reads models for all of them.
    let folders = names_in("crates/devices/src", |path| path.is_dir() && !path.ends_with("graph"));
    let devices = folders.iter().map(device_of).collect::<Vec<_>>();
    let pipelines = names_in("pipelines", Path::is_file).into_iter().filter(|name| name.ends_with(".toml")).collect::<Vec<_>>();
    let names = elements.iter().chain(&devices).chain(&pipelines);
    check(
        names
            .filter(|name| !readme.contains(&format!("`{name}`")) && !readme.contains(&format!("`pipelines/{name}`")))
            .map(|name| format!("README.md: `{name}` is missing")),
    );
}

#[test]
fn the_readme_stays_short() {
    let readme = read(&root().join("README.md"));
    let (n_lines, n_words) = (readme.lines().count(), readme.split_whitespace().count());
    assert!(n_lines <= 150 && n_words <= 1200, "README.md: expected at most 150 lines and 1200 words, got {n_lines} and {n_words}");
}

/// The pages for users: in the top folder and in the book, without the book's table of contents.
fn pages() -> Vec<String> {
    let folders = [(".", ""), ("docs", "docs/"), ("docs/reference", "docs/reference/")];
    let names = folders
        .into_iter()
        .flat_map(|(folder, before)| names_in(folder, Path::is_file).into_iter().map(move |name| format!("{before}{name}")));
    names.filter(|name| name.ends_with(".md") && name != "docs/SUMMARY.md").collect()
}

#[test]
fn links_of_the_documentation_lead_somewhere() {
    check(pages().into_iter().flat_map(|page| {
        let text = read(&root().join(&page));
        links(&text).into_iter().filter(|link| !leads_somewhere(&page, link)).map(|link| format!("{page}: `{link}`")).collect::<Vec<_>>()
    }));
}

#[test]
fn the_book_lists_every_page() {
    let summary = read(&root().join("docs/SUMMARY.md"));
    let is_listed = |page: &String| summary.contains(&format!("]({})", page.trim_start_matches("docs/")));
    check(pages().into_iter().filter(|page| !is_listed(page)).map(|page| format!("docs/SUMMARY.md: {page} is missing")));
}

#[test]
fn the_documentation_lists_the_environment_variables() {
    /// Environment variables for tests, and for processes that the command starts itself.
    const INTERNAL: &[&str] = &["ROIFLOW_APART", "ROIFLOW_UPDATE", "ROIFLOW_SEED", "ROIFLOW_MODELS"];
    let page = read(&root().join("docs/reference/environment.md"));
    check(product().iter().flat_map(|file| {
        let strings = file
            .text
            .split('"')
            .filter(|text| text.starts_with("ROIFLOW_") && !text.contains(|c: char| !(c.is_ascii_uppercase() || c == '_')));
        let missing = strings.filter(|name| !INTERNAL.contains(name) && !page.contains(&format!("`{name}`")));
        missing.map(|name| format!("{}: `{name}` is missing in docs/reference/environment.md", file.name)).collect::<Vec<_>>()
    }));
}

#[test]
fn guide_for_dl_streamer_denies_nothing_that_roiflow_has() {
    let page = read(&root().join("docs/howto/from-dlstreamer.md"));
    let docs = |name: &str| read(&root().join("docs").join(name));
    let schemes = docs("howto/publish-results.md");
    let tables = [
        ("## Properties of `gvadetect` and `gvaclassify`", docs("reference/roidetect.md")),
        ("## Properties of `gvatrack`", docs("reference/roitrack.md")),
        ("## Properties of `gvametaconvert` and `gvametapublish`", docs("reference/roipublish.md")),
    ];
    check(tables.iter().flat_map(|(heading, properties)| {
        let table = page.split_once(heading).expect(heading).1.split("\n## ").next().unwrap_or_default();
        let denied = table.lines().filter(|row| row.split('|').nth(2).is_some_and(|roiflow| roiflow.trim_start().starts_with("none")));
        let names = denied.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2));
        let has = |name: &&str| {
            let (name, value) = name.split_once('=').unwrap_or((name, "-"));
            properties.contains(&format!("| `{name}` |")) && value == "-" || schemes.contains(&format!("`{value}://"))
        };
        names.filter(has).map(|name| format!("from-dlstreamer.md: roiflow has `{name}`")).collect::<Vec<_>>()
    }));
}

#[test]
fn every_promise_of_the_guide_names_its_test() {
    let page = read(&root().join("docs/inference-requests.md"));
    let chapter = page.split("## ").find(|chapter| chapter.starts_with("What cannot go wrong")).expect("the guide has this chapter");
    let code: String = everything().into_iter().map(|file| file.text).collect();
    check(promises_without_test(chapter, &code).into_iter());
}

#[test]
fn every_conformance_test_has_an_equivalent() {
    let list = read(&root().join("tests/conformance.txt"));
    let docs: Vec<String> = everything().iter().flat_map(|file| docs_of_tests(&file.text)).collect();
    check(conformance_errors(&list, &docs).into_iter());
}

#[test]
fn container_runs_without_root_and_is_checked() {
    let text = read(&root().join("packaging/Containerfile"));
    let lines = |word: &str| text.lines().filter(|line| line.starts_with(&format!("{word} "))).map(str::to_owned).collect::<Vec<_>>();
    let stages = lines("FROM");
    assert!(stages.len() == 2 && stages[0].ends_with(" AS build"), "expected a stage that builds and one that runs: {stages:?}");
    assert!(stages.iter().all(|stage| stage.contains("debian:12-slim")), "the libraries of both stages must be equal: {stages:?}");
    let last = text.rsplit_once("FROM ").map_or("", |(_, last)| last);
    let users = lines("USER");
    assert!(users.len() == 1 && last.contains(&users[0]) && users[0] != "USER root" && users[0] != "USER 0", "{users:?}");
    let health = lines("HEALTHCHECK").concat();
    assert!(health.contains("CMD [\"roiflow\", \"ctl\", \"health\"]"), "{health}");
    // Every file that the build stage copies exists.
    for path in [
        "scripts/make-deb",
        "packaging/debian/control.in",
        "packaging/debian/roiflow.service",
        "packaging/debian/server.toml",
        "packaging/nodes/roiflow-node.service",
        "packaging/debian/node.env",
    ] {
        assert!(root().join(path).is_file(), "{path}");
    }
}

fn check(errors: impl Iterator<Item = String>) {
    let list = errors.fold(String::new(), |mut list, error| {
        writeln!(list, "  {error}").expect("a String takes everything");
        list
    });
    assert!(list.is_empty(), "\n{list}");
}

// Rules for a single file.

/// A source file with its path from the project's root.
struct File {
    name: String,
    text: String,
}

impl File {
    /// Positions of this text in the code.
    fn lines_with(&self, text: &str) -> Vec<String> {
        let lines = self.text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//") && line.contains(text));
        lines.map(|(idx, _)| format!("{}:{}: {text} may not be used here", self.name, idx + 1)).collect()
    }
}

/// The workspace crates among the dependencies of a manifest.
fn crates_used(manifest: &str) -> Vec<String> {
    let lines = manifest.lines().skip_while(|line| line.trim() != "[dependencies]").skip(1);
    let section = lines.take_while(|line| !line.starts_with('['));
    let names = section.filter_map(|line| line.strip_prefix("roiflow-")).filter_map(|line| line.split(['.', ' ', '=']).next());
    names.map(str::to_owned).collect()
}

fn forbidden(file: &File) -> Vec<String> {
    let comments = file.text.lines().enumerate().filter_map(|(idx, line)| Some((idx, line.split_once("//")?.1)));
    comments
        .flat_map(|(idx, comment)| FORBIDDEN_WORDS.iter().filter(move |word| has_word(comment, word)).map(move |word| (idx, word)))
        .map(|(idx, word)| format!("{}:{}: \"{word}\"", file.name, idx + 1))
        .collect()
}

/// The targets of a page's links, except network links.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// Whether this file exists and has this heading.
fn leads_somewhere(page: &str, link: &str) -> bool {
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let target = if file.is_empty() { root().join(page) } else { root().join(page).with_file_name("").join(file) };
    let has_heading = |anchor: &str| read(&target).lines().filter_map(|line| line.strip_prefix('#')).any(|heading| slug(heading) == anchor);
    target.exists() && anchor.is_none_or(has_heading)
}

/// The anchor that GitHub generates for a heading.
fn slug(heading: &str) -> String {
    let plain = heading.trim_start_matches('#').trim().to_lowercase();
    plain.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_')).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |character: Option<char>| character.is_some_and(char::is_alphanumeric);
    text.match_indices(word)
        .any(|(begin, _)| !is_part(text[..begin].chars().next_back()) && !is_part(text[begin + word.len()..].chars().next()))
}

/// Errors in the conformance list: names without a test, and invalid entries.
fn conformance_errors(list: &str, docs: &[String]) -> Vec<String> {
    let entries = list.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with(['#', '[']));
    let mut seen: Vec<&str> = Vec::new();
    let mut errors = Vec::new();
    for (line_idx, entry) in entries {
        let (name, reason) = entry.split_once(" | ").map_or((entry, None), |(name, reason)| (name, Some(reason)));
        let at = format!("tests/conformance.txt:{}", line_idx + 1);
        if seen.contains(&name) {
            errors.push(format!("{at}: {name} is listed twice"));
        }
        seen.push(name);
        match reason {
            Some(reason) if reason.trim().is_empty() => errors.push(format!("{at}: {name} is left out without a reason")),
            None if !docs.iter().any(|doc| has_name(doc, name)) => {
                errors.push(format!("{at}: {name} stands in no doc comment directly above a test"));
            }
            Some(_) | None => {}
        }
    }
    errors
}

/// The rows of a table whose last column does not name a function of the code.
fn promises_without_test(chapter: &str, code: &str) -> Vec<String> {
    let rows = chapter.lines().filter(|line| line.starts_with("| ")).skip(1);
    let is_named = |row: &str| {
        let name = row.trim_end_matches(" |").rsplit("| ").next().unwrap_or_default().trim_matches('`');
        !name.is_empty() && code.contains(&format!("fn {name}("))
    };
    rows.filter(|row| !is_named(row)).map(|row| format!("docs/inference-requests.md: no test of this name: {row}")).collect()
}

/// The doc comments directly above a `#[test]` or a case of the device suite, each joined into one line.
fn docs_of_tests(text: &str) -> Vec<String> {
    let (mut docs, mut doc) = (Vec::new(), String::new());
    for line in text.lines().map(str::trim_start) {
        if let Some(comment) = line.strip_prefix("///") {
            doc.push_str(comment);
        } else if line == "#[test]" || ((line.starts_with("fn ") || line.starts_with("pub fn ")) && line.contains("(device: &UnderTest)")) {
            docs.extend((!doc.is_empty()).then(|| std::mem::take(&mut doc)));
        } else if !line.starts_with("#[") {
            doc.clear();
        }
    }
    docs
}

/// Whether the text contains this name as a whole word.
fn has_name(text: &str, name: &str) -> bool {
    let is_part = |character: Option<char>| character.is_some_and(|character| character.is_alphanumeric() || character == '_');
    text.match_indices(name)
        .any(|(begin, _)| !is_part(text[..begin].chars().next_back()) && !is_part(text[begin + name.len()..].chars().next()))
}

/// The element names among the string literals of this text.
fn registered_elements(text: &str) -> Vec<String> {
    let is_name = |text: &&str| {
        text.strip_prefix("roi").is_some_and(|rest| {
            // The plugin and the log category have the name of the project.
            !rest.is_empty() && rest != "flow" && rest.chars().all(|character| character.is_ascii_lowercase())
        })
    };
    text.split('"').filter(is_name).map(str::to_owned).collect()
}

// File access.

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn rust_files(folder: &str) -> Vec<File> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).expect("it was found below the root");
                files.push(File { name: name.to_string_lossy().into_owned(), text: read(&path) });
            }
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files
}

fn names_in(folder: &str, keep: fn(&Path) -> bool) -> Vec<String> {
    let paths = entries(&root().join(folder)).into_iter().filter(|path| keep(path));
    let mut names: Vec<_> = paths.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect();
    names.sort();
    names
}

/// Returns an empty list if the folder does not exist.
fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

mod rules {
    //! Tests of the rules on short texts.

    use super::{File, conformance_errors, crates_used, docs_of_tests, forbidden, leads_somewhere, links, registered_elements, slug};

    fn file(text: &str) -> File {
        File { name: "src/a.rs".to_owned(), text: text.to_owned() }
    }

    #[test]
    fn names_are_found_in_code_only() {
        assert_eq!(file("// crate::cli\nuse crate::cli::run;\n").lines_with("crate::cli"), ["src/a.rs:2: crate::cli may not be used here"]);
        assert_eq!(file("    /// [`crate::cli`]\nuse crate::client;").lines_with("crate::cli::").len(), 0);
    }

    #[test]
    fn links_are_followed_to_their_headings() {
        assert_eq!(links("[a](b.md#c) and ![d](e.png), [f](https://g)"), ["b.md#c", "e.png"]);
        assert_eq!(slug("## Users and `pass-words`, C++"), "users-and-pass-words-c");
        for (link, leads) in
            [("../README.md", true), ("nowhere.md", false), ("../README.md#license", true), ("../README.md#licence", false)]
        {
            assert_eq!(leads_somewhere("docs/inputs.md", link), leads, "{link}");
        }
    }

    #[test]
    fn forbidden_words_are_found_in_comments_only() {
        let found = |text: &str| forbidden(&file(text)).len();
        assert_eq!(found("f(); // good for now"), 1);
        assert_eq!(found("// XXX"), 1);
        assert_eq!(found("let x = \"for now XXX\"; // wait for nowhere, XXXL"), 0);
    }

    #[test]
    fn a_conformance_name_counts_only_directly_above_a_test() {
        let text = "/// one,\n/// two.\n#[test]\n#[ignore]\nfn f() {}\n/// three_more\n#[allow(x)]\n#[test]\nfn g() {}\n\
            /// four\nfn h(device: &UnderTest) {}\n/// five\nfn helper() {}\n// six\n#[test]\n/// seven\n\n#[test]\n";
        let docs = docs_of_tests(text);
        assert_eq!(docs, [" one, two.", " three_more", " four"]);
        let missing = |list: &str| conformance_errors(list, &docs).len();
        assert_eq!(missing("# x\n[section]\none\ntwo\nthree_more\nfour\n\nfive | for a reason\n"), 0);
        assert_eq!(missing("three\nmore\nfive\nsix\nseven\n"), 5);
        assert_eq!(missing("one\none\nfive | \n"), 2);
    }

    #[test]
    fn names_are_read_from_the_sources() {
        assert_eq!(registered_elements(r#"[("roidetect", d), ("roiflow", x), ("ROI", y)]"#), ["roidetect"]);
        let manifest = "[package]\nname = \"x\"\n[dependencies]\n# Why.\nroiflow-tensor.workspace = true\nroiflow-vision = { path = \"y\" }\nserde = \"1\"\n\n[dev-dependencies]\nroiflow-z = \"1\"\n";
        assert_eq!(crates_used(manifest), ["tensor", "vision"]);
    }
}
