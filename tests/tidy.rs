//! The rules of the source that the compiler does not know: which folder may use which, who owns an external crate, where
//! `unsafe` may be, file headers, words that must not stay, names that the README must list.
//!
//! Reads the files as text, so it also sees code that is switched off by a feature. Uses nothing but the standard library.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Which folder of `src` may use which others, besides itself. A longer path stands for that one item only. `devices/*` is
/// each device, `main` is `main.rs`; `lib.rs` is free.
const FOLDERS: &[(&str, &[&str])] = &[
    ("folders", &[]),
    ("sync", &[]),
    ("redaction", &[]),
    ("tensor", &["sync"]),
    ("frame", &["tensor"]),
    ("vision", &["frame", "tensor"]),
    ("runtime", &["tensor", "sync"]),
    (
        "devices/*",
        &[
            "runtime",
            "tensor",
            "folders",
            "devices::find",
            "devices::engine",
            "devices::exit",
            "devices::denormals",
            "devices::onnx",
            "devices::kept",
            "devices::quiet",
        ],
    ),
    ("devices", &["runtime", "folders"]),
    ("stages", &["vision", "runtime", "frame", "tensor", "devices::core"]),
    ("elements", &["stages", "frame", "tensor", "redaction"]),
    ("pipeline", &["elements", "stages", "frame", "folders", "redaction"]),
    ("cli", &["pipeline", "stages", "devices", "runtime", "frame", "folders", "redaction"]),
    ("main", &["cli"]),
];

/// Which places of `src` may name an external crate. Every dependency is listed; what another folder needs of one reaches it
/// through the owner's own types.
const CRATES: &[(&str, &[&str])] = &[
    ("tracing", &["tensor", "frame", "vision", "runtime", "devices", "stages", "elements", "pipeline", "cli"]),
    ("ndarray", &["tensor", "runtime"]),
    ("half", &["tensor"]),
    ("rayon_core", &["vision"]),
    ("memchr", &["devices/onnx"]),
    ("rustix", &["tensor", "devices/cpu", "elements/destination"]),
    ("crossbeam_channel", &["runtime", "pipeline"]),
    ("futures_core", &["runtime"]),
    ("tract_onnx", &["devices/cpu"]),
    ("elf", &["pipeline/decoders"]),
    ("libloading", &["devices/find", "elements/analytics", "pipeline/decoders"]),
    ("ort_sys", &["devices/onnxruntime"]),
    ("sha2", &["stages"]),
    ("roxmltree", &["devices/openvino"]),
    ("serde", &["stages", "elements/payload", "elements/publish", "pipeline", "cli"]),
    ("serde_json", &["devices/onnxruntime", "stages", "elements/payload", "elements/publish", "pipeline", "cli"]),
    ("toml", &["stages", "pipeline", "cli"]),
    ("strsim", &["stages", "pipeline", "cli"]),
    ("image", &["elements/publish", "pipeline"]),
    ("gstreamer", &["elements", "pipeline"]),
    ("gstreamer_allocators", &["elements"]),
    ("gstreamer_app", &["pipeline"]),
    ("gstreamer_base", &["elements"]),
    ("gstreamer_video", &["elements", "pipeline"]),
    ("glob", &["pipeline"]),
    ("noto_sans_mono_bitmap", &["elements/overlay"]),
    ("clap", &["cli"]),
    ("clap_complete", &["cli"]),
    ("indicatif", &["cli"]),
    ("signal_hook", &["cli"]),
    ("anyhow", &["cli"]),
    ("tracing_subscriber", &["cli"]),
    ("ittapi", &["cli/vtune"]),
];

/// The only files and folders of `src` in which the word `unsafe` may stand.
const UNSAFE: &[&str] = &[
    "tensor",
    "vision/simd",
    "devices",
    "elements/results_meta",
    "elements/capi",
    "elements/analytics",
    "elements/buffer",
    "pipeline/decoders",
];

/// Macros that must not stay in the code, and words that must not stay in comments.
const FORBIDDEN_MACROS: &[&str] = &["todo", "unimplemented", "dbg"];
const FORBIDDEN_WORDS: &[&str] = &["for now", "XXX"];

/// A longer file has more than one subject.
const MAX_LINES: usize = 900;

#[test]
fn folders_use_only_what_the_table_allows() {
    check(rust_files("src").iter().flat_map(edge_errors));
}

#[test]
fn every_dependency_has_an_owner() {
    let manifest = read(&root().join("Cargo.toml"));
    let names = dependencies(&manifest);
    assert!(names.contains(&"tracing".to_owned()), "the [dependencies] of Cargo.toml were not found");
    check(
        names
            .iter()
            .filter(|name| CRATES.iter().all(|(known, _)| known != name))
            .map(|name| format!("Cargo.toml: dependency {name} is missing from CRATES in tests/tidy.rs")),
    );
}

#[test]
fn unsafe_stays_in_its_places() {
    // What is measured is what callers can do too: benchmarks have none.
    let files = rust_files("src").into_iter().filter(|file| !UNSAFE.iter().any(|place| file.is_in(place)));
    check(files.chain(rust_files("tests/bench")).flat_map(|file| {
        let tokens = file.code.tokens.iter().filter(|token| token.is_ident("unsafe"));
        let error = |token: &Token| format!("{}:{}: unsafe may stand only in {} of src", file.name, token.line, UNSAFE.join(", "));
        tokens.map(error).collect::<Vec<_>>()
    }));
}

#[test]
fn files_open_by_saying_what_they_are_for() {
    let files = ["src", "tests", "examples"].into_iter().flat_map(rust_files);
    check(files.filter(|file| !file.text.starts_with("//! ")).map(|file| format!("{}:1: expected `//! ` and a sentence", file.name)));
}

#[test]
fn nothing_is_left_undone() {
    let files = ["src", "tests", "examples"].into_iter().flat_map(rust_files);
    check(files.flat_map(|file| forbidden(&file)));
}

#[test]
fn files_have_one_subject() {
    check(
        ["src", "tests/bench"]
            .into_iter()
            .flat_map(rust_files)
            .filter(|file| file.text.lines().count() > MAX_LINES)
            .map(|file| format!("{}: {} lines, at most {MAX_LINES}", file.name, file.text.lines().count())),
    );
}

#[test]
fn elements_are_registered() {
    let registry = root().join("src/elements/mod.rs");
    if !registry.exists() {
        return;
    }
    let listed = registered_elements(&Code::of(&read(&registry)));
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
    let registry = root().join("src/elements/mod.rs");
    let elements = if registry.exists() { registered_elements(&Code::of(&read(&registry))) } else { Vec::new() };
    // Of the devices that an engine has, the one that it always has.
    let device_of = |folder: &String| match folder.as_str() {
        "onnxruntime" => "ORT.CPU".to_owned(),
        "openvino" => "OPENVINO.CPU".to_owned(),
        folder => folder.to_uppercase(),
    };
    let devices = names_in("src/devices", Path::is_dir).iter().map(device_of).collect::<Vec<_>>();
    let pipelines = names_in("pipelines", Path::is_file).into_iter().filter(|name| name.ends_with(".toml")).collect::<Vec<_>>();
    let names = elements.iter().chain(&devices).chain(&pipelines);
    check(
        names
            .filter(|name| !readme.contains(&format!("`{name}`")) && !readme.contains(&format!("`pipelines/{name}`")))
            .map(|name| format!("README.md: `{name}` is missing")),
    );
}

#[test]
fn every_conformance_test_has_an_equivalent() {
    let list = read(&root().join("tests/conformance.txt"));
    let docs: Vec<String> = ["src", "tests"].into_iter().flat_map(rust_files).flat_map(|file| docs_of_tests(&file.text)).collect();
    check(conformance_errors(&list, &docs).into_iter());
}

fn check(errors: impl Iterator<Item = String>) {
    let list = errors.fold(String::new(), |mut list, error| {
        writeln!(list, "  {error}").expect("a String takes everything");
        list
    });
    assert!(list.is_empty(), "\n{list}");
}

// The rules, on one file.

/// A source file: its name from the project's root, and its place among the modules of the crate.
struct File {
    name: String,
    module: Vec<String>,
    text: String,
    code: Code,
}

impl File {
    fn new(name: &str, text: &str) -> Self {
        let inside = name.split_once('/').map_or(name, |(_, inside)| inside);
        let mut module: Vec<_> = inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if module.last().is_some_and(|last| last == "mod") {
            module.pop();
        }
        Self { name: name.to_owned(), module, text: text.to_owned(), code: Code::of(text) }
    }

    fn is_in(&self, place: &str) -> bool {
        place.split('/').enumerate().all(|(idx, part)| self.module.get(idx).is_some_and(|own| own == part))
    }
}

fn edge_errors(file: &File) -> Vec<String> {
    if file.module == ["lib"] {
        return Vec::new();
    }
    let Some((own, may_use)) = rule_of(&file.module) else {
        return vec![format!("{}: no row in FOLDERS of tests/tidy.rs", file.name)];
    };
    let mut errors = Vec::new();
    for found in paths(&file.code.tokens, &file.module) {
        let at = format!("{}:{}", file.name, found.line);
        let path = found.path.join("::");
        if !found.in_crate {
            let owners = CRATES.iter().find(|(name, _)| *name == found.path[0]).map(|(_, owners)| *owners);
            if owners.is_some_and(|owners| !owners.iter().any(|place| file.is_in(place))) {
                errors.push(format!("{at}: {path} belongs to {}", owners.unwrap_or_default().join(", ")));
            }
        } else if found.path.is_empty() || rule_of(&found.path[..1]).is_none() {
            errors.push(format!("{at}: crate::{path}: name the folder it lives in"));
        } else {
            let allowed = std::iter::once(own.as_str()).chain(may_use.iter().copied());
            // To import the folder of an allowed item is fine: what is then named through it is looked at where it stands.
            let is_way = |item: &str| found.is_import && item.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with("::"));
            if !allowed.clone().any(|item| starts_with(&found.path, item) || is_way(item)) {
                errors.push(format!("{at}: crate::{path}: only {} may be used here", allowed.collect::<Vec<_>>().join(", ")));
            }
        }
    }
    errors
}

/// The path that a module may always use (its own), and the others of its row.
fn rule_of(module: &[String]) -> Option<(String, &'static [&'static str])> {
    FOLDERS.iter().find_map(|(folder, may_use)| match folder.strip_suffix("/*") {
        Some(parent) => (module.len() > 1 && module[0] == parent).then(|| (module[..2].join("::"), *may_use)),
        None => (module.first()? == folder).then(|| ((*folder).to_owned(), *may_use)),
    })
}

fn starts_with(path: &[String], prefix: &str) -> bool {
    prefix.split("::").enumerate().all(|(idx, part)| path.get(idx).is_some_and(|own| own == part))
}

fn forbidden(file: &File) -> Vec<String> {
    let tokens = &file.code.tokens;
    let macros = tokens.windows(2).filter(|pair| pair[1].is_punct('!') && FORBIDDEN_MACROS.iter().any(|name| pair[0].is_ident(name)));
    let macros = macros.map(|pair| format!("{}:{}: {}! must not stay", file.name, pair[0].line, pair[0].text));
    let words = file.code.comments.iter().flat_map(|(line, comment)| {
        FORBIDDEN_WORDS.iter().filter(|word| has_word(comment, word)).map(move |word| format!("{}:{line}: \"{word}\"", file.name))
    });
    macros.chain(words).collect()
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |character: Option<char>| character.is_some_and(char::is_alphanumeric);
    text.match_indices(word)
        .any(|(begin, _)| !is_part(text[..begin].chars().next_back()) && !is_part(text[begin + word.len()..].chars().next()))
}

/// The names of `list` that no test names, and entries that are wrong.
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

/// The doc comments that stand directly above a `#[test]` or a case of the device suite, each on one line.
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

/// Whether the text has this name, and not as the beginning or the end of a longer one.
fn has_name(text: &str, name: &str) -> bool {
    let is_part = |character: Option<char>| character.is_some_and(|character| character.is_alphanumeric() || character == '_');
    text.match_indices(name)
        .any(|(begin, _)| !is_part(text[..begin].chars().next_back()) && !is_part(text[begin + name.len()..].chars().next()))
}

fn registered_elements(code: &Code) -> Vec<String> {
    let is_name = |text: &str| {
        text.strip_prefix("roi").is_some_and(|rest| {
            // The plugin and the log category are called after the project.
            !rest.is_empty() && rest != "flow" && rest.chars().all(|character| character.is_ascii_lowercase())
        })
    };
    let literals = code.tokens.iter().filter(|token| token.kind == Kind::Literal);
    literals.map(|token| token.text.clone()).filter(|text| is_name(text)).collect()
}

fn dependencies(manifest: &str) -> Vec<String> {
    let lines = manifest.lines().skip_while(|line| line.trim() != "[dependencies]").skip(1);
    let section = lines.take_while(|line| !line.starts_with('['));
    let names = section.filter(|line| !line.starts_with([' ', '#'])).filter_map(|line| line.split_once('='));
    names.map(|(name, _)| name.trim().replace('-', "_")).collect()
}

// The scanner: paths in the code of a file.

/// A path named in the code. `path` is resolved from the root of this crate if `in_crate`, else it begins with an external
/// crate, or with a name that is no concern of ours.
#[derive(Debug, PartialEq)]
struct Found {
    line: usize,
    in_crate: bool,
    is_import: bool,
    path: Vec<String>,
}

/// A path as written, and the name by which an import makes it known.
struct Leaf {
    line: usize,
    path: Vec<String>,
    name: String,
}

fn paths(tokens: &[Token], module: &[String]) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    // Names of the file that stand for something else: modules declared here, and imports from this crate.
    let mut known: Vec<(String, Vec<String>)> = Vec::new();
    for pair in tokens.windows(2).filter(|pair| pair[0].is_ident("mod") && pair[1].kind == Kind::Ident) {
        known.push((pair[1].text.clone(), module.iter().chain([&pair[1].text]).cloned().collect()));
    }
    // Modules written inside the file, each with the depth of braces it ends at.
    let mut inner: Vec<(usize, String)> = Vec::new();
    let mut depth = 0;
    let mut at = 0;
    while at < tokens.len() {
        let token = &tokens[at];
        let is_use = token.is_ident("use");
        let follows_path = at >= 2 && is_separator(tokens, at - 2);
        let is_method = at >= 1 && tokens[at - 1].is_punct('.');
        let begins_path = token.kind == Kind::Ident && !follows_path && !is_method && is_separator(tokens, at + 1);
        if is_use || begins_path {
            let begin = at + usize::from(is_use);
            let mut trees = Vec::new();
            at = tree(tokens, begin, &[], &mut trees).max(at + 1);
            let here: Vec<_> = module.iter().chain(inner.iter().map(|(_, name)| name)).cloned().collect();
            for Leaf { line, path, name } in trees {
                let (in_crate, path) = resolve(path, &here, &known);
                if is_use && in_crate {
                    known.push((name, path.clone()));
                }
                found.push(Found { line, in_crate, is_import: is_use, path });
            }
            continue;
        }
        if token.is_punct('{') {
            if at >= 2 && tokens[at - 2].is_ident("mod") {
                inner.push((depth, tokens[at - 1].text.clone()));
            }
            depth += 1;
        } else if token.is_punct('}') {
            depth = depth.saturating_sub(1);
            inner.retain(|(ends_at, _)| *ends_at < depth);
        }
        at += 1;
    }
    found
}

/// Reads a path or a tree of paths, `a::{b, c::*}`, and returns where it ends.
fn tree(tokens: &[Token], begin: usize, prefix: &[String], found: &mut Vec<Leaf>) -> usize {
    let mut path = prefix.to_vec();
    let mut at = begin;
    let mut line = tokens.get(at).map_or(0, |token| token.line);
    if is_separator(tokens, at) {
        at += 2; // `use ::name`
    }
    while let Some(token) = tokens.get(at) {
        if token.kind == Kind::Ident {
            line = token.line;
            // `a::{self}` names a itself.
            if token.text != "self" || path.is_empty() {
                path.push(token.text.clone());
            }
            at += 1;
            if !is_separator(tokens, at) {
                break;
            }
            at += 2;
        } else if token.is_punct('{') {
            at += 1;
            while tokens.get(at).is_some_and(|token| !token.is_punct('}')) {
                let end = tree(tokens, at, &path, found);
                // `as name`, and what lies before the next comma.
                at = (end..tokens.len()).find(|&end| tokens[end].is_punct(',') || tokens[end].is_punct('}')).unwrap_or(tokens.len());
                at += usize::from(tokens.get(at).is_some_and(|token| token.is_punct(',')));
            }
            return at + 1;
        } else {
            at += usize::from(token.is_punct('*'));
            break;
        }
    }
    let alias = tokens.get(at).filter(|token| token.is_ident("as")).and_then(|_| tokens.get(at + 1)).map(|token| token.text.clone());
    if let Some(name) = alias.or_else(|| path.last().cloned()) {
        found.push(Leaf { line, path, name });
    }
    at
}

/// Whether a path written in module `here` is one of this crate, and the path from the crate's root if so.
fn resolve(path: Vec<String>, here: &[String], known: &[(String, Vec<String>)]) -> (bool, Vec<String>) {
    let n_super = path.iter().take_while(|part| *part == "super").count();
    let (base, n_taken) = match path[0].as_str() {
        "crate" => (&[][..], 1),
        "self" => (here, 1),
        "super" => (&here[..here.len().saturating_sub(n_super)], n_super),
        // The latest import of a name wins; scopes are not told apart.
        first => match known.iter().rev().find(|(name, _)| name == first) {
            Some((_, base)) => (base.as_slice(), 1),
            None => return (false, path),
        },
    };
    (true, base.iter().chain(&path[n_taken..]).cloned().collect())
}

fn is_separator(tokens: &[Token], at: usize) -> bool {
    tokens.get(at..at + 2).is_some_and(|pair| pair.iter().all(|token| token.is_punct(':')))
}

/// The code of a file without its comments, and the comments.
struct Code {
    tokens: Vec<Token>,
    comments: Vec<(usize, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// A name, a keyword or a number.
    Ident,
    /// The text of a string, a byte string or a character, without quotes.
    Literal,
    /// One character of anything else.
    Punct,
}

struct Token {
    line: usize,
    kind: Kind,
    text: String,
}

impl Token {
    fn is_ident(&self, text: &str) -> bool {
        self.kind == Kind::Ident && self.text == text
    }

    fn is_punct(&self, character: char) -> bool {
        self.kind == Kind::Punct && self.text.starts_with(character)
    }
}

impl Code {
    fn of(text: &str) -> Self {
        let mut scanner = Scanner { rest: text, line: 1 };
        let mut code = Self { tokens: Vec::new(), comments: Vec::new() };
        while let Some(first) = scanner.rest.chars().next() {
            let line = scanner.line;
            if scanner.rest.starts_with("//") {
                let comment = scanner.take(scanner.rest.find('\n').unwrap_or(scanner.rest.len()));
                code.comments.push((line, comment.to_owned()));
            } else if scanner.rest.starts_with("/*") {
                let comment = scanner.take(block_comment_len(scanner.rest));
                code.comments.extend(comment.lines().enumerate().map(|(idx, comment)| (line + idx, comment.to_owned())));
            } else if let Some((begin, end, len)) = literal(scanner.rest) {
                let literal = scanner.take(len);
                code.tokens.push(Token { line, kind: Kind::Literal, text: literal[begin..end].to_owned() });
            } else if first.is_alphanumeric() || first == '_' {
                let raw = usize::from(scanner.rest.starts_with("r#")) * 2;
                let is_end = |character: char| !(character.is_alphanumeric() || character == '_');
                let len = scanner.rest[raw..].find(is_end).map_or(scanner.rest.len(), |len| raw + len);
                let text = scanner.take(len)[raw..].to_owned();
                code.tokens.push(Token { line, kind: Kind::Ident, text });
            } else {
                scanner.take(first.len_utf8());
                if !first.is_whitespace() {
                    code.tokens.push(Token { line, kind: Kind::Punct, text: first.to_string() });
                }
            }
        }
        code
    }
}

struct Scanner<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Scanner<'a> {
    fn take(&mut self, len: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        self.line += taken.matches('\n').count();
        taken
    }
}

fn block_comment_len(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// Begin and end of what stands between the quotes, and the length of it all, if a literal begins here.
fn literal(text: &str) -> Option<(usize, usize, usize)> {
    let prefix = ["br", "cr", "b", "c", "r"].into_iter().find(|prefix| {
        text.strip_prefix(prefix)
            .is_some_and(|rest| rest.trim_start_matches('#').starts_with('"') || (*prefix == "b" && rest.starts_with('\'')))
    });
    let prefix = prefix.unwrap_or_default();
    let rest = &text[prefix.len()..];
    if prefix.ends_with('r') {
        let n_hashes = rest.len() - rest.trim_start_matches('#').len();
        let begin = prefix.len() + n_hashes + 1;
        let close = format!("\"{}", "#".repeat(n_hashes));
        let end = text[begin..].find(&close).map_or(text.len(), |len| begin + len);
        return Some((begin, end, (end + close.len()).min(text.len())));
    }
    let quote = rest.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let begin = prefix.len() + 1;
    if quote == '\'' {
        // A character ends after one, escaped or not; anything else is a lifetime.
        let mut inside = text[begin..].chars();
        let is_escaped = inside.next()? == '\\';
        if !is_escaped && inside.next() != Some('\'') {
            return None;
        }
    }
    let mut is_escape = false;
    let end = text[begin..].char_indices().find(|&(_, character)| {
        let ends = character == quote && !is_escape;
        is_escape = character == '\\' && !is_escape;
        ends
    });
    let end = end.map_or(text.len(), |(len, _)| begin + len);
    Some((begin, end, (end + 1).min(text.len())))
}

// Files.

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
                files.push(File::new(&name.to_string_lossy(), &read(&path)));
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

/// Nothing where the folder does not exist.
fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

mod scanner {
    //! The scanner and the rules on pieces of code.

    use super::{Code, File, conformance_errors, dependencies, docs_of_tests, edge_errors, forbidden, paths, registered_elements};

    /// The paths found in `src/stages/spec.rs` with this text; those of other crates begin with `::`.
    #[track_caller]
    fn finds(text: &str, expected: &[&str]) {
        let file = File::new("src/stages/spec.rs", text);
        let found = paths(&file.code.tokens, &file.module);
        let found: Vec<_> =
            found.iter().map(|found| format!("{}{}", if found.in_crate { "" } else { "::" }, found.path.join("::"))).collect();
        assert_eq!(found, expected, "in {text}");
    }

    #[track_caller]
    fn errors(name: &str, text: &str, expected: &[&str]) {
        let errors = edge_errors(&File::new(name, text));
        assert_eq!(errors, expected, "in {text}");
    }

    #[test]
    fn paths_are_found_plain_grouped_and_in_expressions() {
        finds("use crate::a;", &["a"]);
        finds("pub(crate) use crate::a::b as c;", &["a::b"]);
        finds("fn f(x: X) -> f32 { x.image.sum::<f32>() + x.y::<g::Z>() }", &["::g::Z"]);
        finds("use crate::{a, b::c, d::{e, f::*, self},};", &["a", "b::c", "d::e", "d::f", "d"]);
        finds("use {crate::a, std::fmt};", &["a", "::std::fmt"]);
        finds("fn f(x: &crate::a::B<crate::c::D>) -> f32 { crate::e::<u8>(x).sum::<f32>() }", &["a::B", "c::D", "e"]);
        finds("use ::serde::Serialize; #[derive(toml::X)] struct S;", &["::serde::Serialize", "::toml::X"]);
        finds("macro_rules! m { () => { $crate::a::b() } }", &["a::b"]);
        finds("pub(in crate::a) struct S { x: u8 } use crate::b;", &["a", "b"]);
        finds("use r#crate::r#type;", &["type"]);
    }

    #[test]
    fn relative_paths_are_resolved() {
        finds("use super::detector; use self::inner::X;", &["stages::detector", "stages::spec::inner::X"]);
        finds("use super::super::cli;", &["cli"]);
        finds("use crate::tensor; fn f() -> tensor::Result {}", &["tensor", "tensor::Result"]);
        finds("mod tests { use super::S; } use super::T;", &["stages::spec::S", "stages::T"]);
        finds("mod a { fn f() { { 1 }; } mod b { use super::super::S; } } use super::T;", &["stages::spec::S", "stages::T"]);
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        finds("// use crate::a;\n/* use crate::b; /* nested */ use crate::c; */ use crate::d;", &["d"]);
        finds(r##"let x = "use crate::a; \" crate::b"; let y = r#"crate::c " crate::d"#; crate::e::f();"##, &["e::f"]);
        finds(r#"let x = ('"', b'"', '\'', '\\', b"crate::a", c"crate::b"); crate::c::d();"#, &["c::d"]);
        finds("fn f<'a>(x: &'a crate::a::B, c: char) { 'outer: loop { break 'outer; } }", &["a::B"]);
        finds("let x = 'ä'; crate::a::b(\"ö // no comment\"); crate::c::d()", &["a::b", "c::d"]);
    }

    #[test]
    fn lines_are_counted_through_literals_and_comments() {
        let code = Code::of("/*\n*/ \"\n\" a // b\nc");
        let lines: Vec<_> = code.tokens.iter().map(|token| token.line).collect();
        assert_eq!(lines, [2, 3, 4]);
        assert_eq!(code.comments.last(), Some(&(3, "// b".to_owned())));
    }

    #[test]
    fn the_table_is_held() {
        errors("src/frame/mod.rs", "use crate::tensor::Tensor; use super::frame::Rect;", &[]);
        errors("src/tensor/mod.rs", "\nuse crate::frame;", &["src/tensor/mod.rs:2: crate::frame: only tensor, sync may be used here"]);
        errors("src/tensor/mod.rs", "use super::frame;", &["src/tensor/mod.rs:1: crate::frame: only tensor, sync may be used here"]);
        errors("src/stages/mod.rs", "use crate::devices::core; fn f() { crate::devices::core(); }", &[]);
        errors(
            "src/stages/mod.rs",
            "use crate::devices as d; fn f() { d::null::script(); }",
            &[
                "src/stages/mod.rs:1: crate::devices::null::script: only stages, vision, runtime, frame, tensor, devices::core may be used here",
            ],
        );
        errors("src/stages/mod.rs", "use crate::devices; fn f() { devices::core(); }", &[]);
        errors(
            "src/stages/mod.rs",
            "fn f() { crate::devices::null::script(); }",
            &[
                "src/stages/mod.rs:1: crate::devices::null::script: only stages, vision, runtime, frame, tensor, devices::core may be used here",
            ],
        );
        errors("src/devices/mod.rs", "mod cpu; use self::cpu::Cpu; use crate::runtime::Core;", &[]);
        errors("src/devices/cpu/model.rs", "use super::request; use crate::devices::cpu::mod_; use crate::runtime;", &[]);
        errors(
            "src/devices/cpu/model.rs",
            "use crate::devices::null::Script;",
            &[
                "src/devices/cpu/model.rs:1: crate::devices::null::Script: only devices::cpu, runtime, tensor, folders, devices::find, devices::engine, devices::exit, devices::denormals, devices::onnx, devices::kept, devices::quiet may be used here",
            ],
        );
        errors("src/cli/mod.rs", "use crate::Tensor;", &["src/cli/mod.rs:1: crate::Tensor: name the folder it lives in"]);
        errors("src/extra/mod.rs", "", &["src/extra/mod.rs: no row in FOLDERS of tests/tidy.rs"]);
        errors("src/lib.rs", "pub use crate::tensor::Tensor; use anyhow::Error;", &[]);
        errors("src/main.rs", "fn main() { roiflow::cli::run() }", &[]);
    }

    #[test]
    fn external_crates_stay_with_their_owners() {
        errors("src/devices/cpu/model.rs", "use tract_onnx::prelude::*; tracing::info!(\"x\");", &[]);
        errors("src/stages/mod.rs", "use tract_onnx::prelude::*;", &["src/stages/mod.rs:1: tract_onnx::prelude belongs to devices/cpu"]);
        errors("src/vision/mod.rs", "fn f(x: half::f16) {}", &["src/vision/mod.rs:1: half::f16 belongs to tensor"]);
        errors("src/stages/mod.rs", "use gstreamer as gst;", &["src/stages/mod.rs:1: gstreamer belongs to elements, pipeline"]);
        errors("src/elements/publish/json.rs", "use serde_json::json;", &[]);
        errors(
            "src/elements/meta.rs",
            "mod tests { use serde_json::json; }",
            &[
                "src/elements/meta.rs:1: serde_json::json belongs to devices/onnxruntime, stages, elements/payload, elements/publish, pipeline, cli",
            ],
        );
        // A module of the same name is another thing.
        errors("src/frame/mod.rs", "use super::frame::image::Image;", &[]);
        errors("src/frame/mod.rs", "mod image; use image::Image; fn f() { image::g() }", &[]);
    }

    #[test]
    fn forbidden_words_are_found_in_code_and_comments_only() {
        let found = |text: &str| forbidden(&File::new("src/a.rs", text)).len();
        assert_eq!(found("fn f() { todo!() }"), 1);
        assert_eq!(found("dbg!(1); unimplemented! (); // good for now"), 3);
        assert_eq!(found("/* XXX */"), 1);
        assert_eq!(found("let x = \"todo!() for now XXX\"; let todo = !x; // wait for nowhere, XXXL"), 0);
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
        let code = Code::of(r#"const LIST: &[(&str, F)] = &[("roidetect", d), ("roiflow", x)]; // "roicomment""#);
        assert_eq!(registered_elements(&code), ["roidetect"]);
        let manifest =
            "[package]\nname = \"x\"\n[dependencies]\n# Why.\na-b = \"1\"\nc = { version = \"1\" }\n\n[dev-dependencies]\nd = \"1\"\n";
        assert_eq!(dependencies(manifest), ["a_b", "c"]);
    }
}
