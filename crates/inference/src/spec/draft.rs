//! A draft of a description consists of known values, assumed values with reasons, and missing values. This module formats a draft as
//! `model.toml`.

use std::fmt::Write as _;

use crate::labels::Labels;
use crate::runtime::text::is_obeyed;

/// A value of a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Text(String),
    Number(f32),
    Flag(bool),
    Numbers(Vec<f32>),
    Whole(u64),
    Wholes(Vec<u64>),
    Texts(Vec<String>),
    /// Lists of widths and heights.
    Anchors(Vec<Vec<[f32; 2]>>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<f32> for Value {
    fn from(number: f32) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

/// A key of the description with its value.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    key: &'static str,
    value: Value,
    /// Reason for the value, if it is assumed.
    assumed: Option<String>,
    /// If the value is missing, a text with the possible values; `value` is then only an example.
    open: Option<String>,
}

/// A table of the description.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Section(Vec<Line>);

impl Section {
    /// Sets a known value. Replaces an earlier value of the key.
    pub(super) fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        self.put(Line { key, value: value.into(), assumed: None, open: None });
    }

    /// Sets an assumed value, with the reason `why` it is assumed.
    pub(super) fn assume(&mut self, key: &'static str, value: impl Into<Value>, why: impl Into<String>) {
        self.put(Line { key, value: value.into(), assumed: Some(why.into()), open: None });
    }

    /// Marks a key as missing. `example` is a valid value, and `choices` describes the possible values.
    pub(super) fn leave(&mut self, key: &'static str, example: impl Into<Value>, choices: impl Into<String>) {
        self.put(Line { key, value: example.into(), assumed: None, open: Some(choices.into()) });
    }

    /// Returns the value of a key; `None` if the key is not in the section or is marked as missing.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|line| line.key == key && line.open.is_none()).map(|line| &line.value)
    }

    fn put(&mut self, line: Line) {
        match self.0.iter_mut().find(|known| known.key == line.key) {
            Some(known) => *known = line,
            None => self.0.push(line),
        }
    }

    fn assumed(&self, table: &str) -> impl Iterator<Item = String> {
        self.0
            .iter()
            .filter_map(move |line| line.assumed.as_ref().map(|why| format!("{table} `{}` is {}: {why}", line.key, brief(&line.value))))
    }

    fn write(&self, text: &mut String) {
        for line in &self.0 {
            if let Some(why) = &line.assumed {
                comment(text, &format!("Assumed: {why}."));
            }
            let value = format!("{} = {}", line.key, written(&line.value));
            match &line.open {
                None => writeln!(text, "{value}"),
                Some(choices) => {
                    comment(text, choices);
                    writeln!(text, "# {value}")
                }
            }
            .expect("a String takes everything");
        }
    }
}

/// A draft of a description.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Draft {
    /// Comment lines at the beginning of the file.
    pub(super) about: Vec<String>,
    /// The keys outside of tables: `task` and `name`.
    pub(super) top: Section,
    pub(super) input: Section,
    pub(super) output: Section,
    /// The heads of a classifier with several outputs. If there are heads, they are written instead of the keys in `output`.
    pub(super) heads: Vec<Section>,
}

impl Draft {
    /// Returns one sentence for each assumed value.
    pub(super) fn assumed(&self) -> Vec<String> {
        let heads = self.heads.iter().flat_map(|head| head.assumed("[[output.heads]]"));
        let of_tables = self.top.assumed("").map(|text| text.trim_start().to_owned()).chain(self.input.assumed("[input]"));
        of_tables.chain(self.output.assumed("[output]")).chain(heads).collect()
    }

    /// Returns the description as text.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        self.about.iter().for_each(|line| comment(&mut text, line));
        text.push_str("version = 1\n");
        self.top.write(&mut text);
        text.push_str("\n[input]\n");
        self.input.write(&mut text);
        if self.heads.is_empty() {
            text.push_str("\n[output]\n");
            self.output.write(&mut text);
        }
        for head in &self.heads {
            text.push_str("\n[[output.heads]]\n");
            head.write(&mut text);
        }
        text
    }
}

/// Formats the key `labels` with these labels as a line of TOML.
pub(super) fn labels_line(labels: &Labels) -> String {
    let names = (0..labels.len() as u32).filter_map(|class_id| labels.get(class_id)).map(|name| name.to_string());
    format!("labels = {}", written(&Value::Texts(names.collect())))
}

/// Writes text as a comment, wrapped at spaces.
fn comment(text: &mut String, comment: &str) {
    const WIDTH: usize = 118;
    for line in comment.lines() {
        let mut n_written = 0;
        for word in line.split_whitespace() {
            let word: String = word.chars().filter(|character| !is_obeyed(*character)).collect();
            let n_letters = word.chars().count();
            if n_written == 0 || n_written + 1 + n_letters > WIDTH {
                text.push_str(if n_written == 0 { "# " } else { "\n# " });
                n_written = n_letters;
            } else {
                text.push(' ');
                n_written += 1 + n_letters;
            }
            text.push_str(&word);
        }
        text.push('\n');
    }
}

/// Maximum number of list entries that [`brief`] writes.
const N_NAMED: usize = 4;

/// Formats a value for use in a sentence.
fn brief(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        Value::Texts(texts) if texts.len() > N_NAMED => format!("{} and {} more", texts[..N_NAMED].join(", "), texts.len() - N_NAMED),
        Value::Texts(texts) => texts.join(", "),
        other => written(other),
    }
}

/// Formats a value as TOML.
fn written(value: &Value) -> String {
    let list = |values: Vec<toml::Value>| toml::Value::Array(values).to_string();
    match value {
        Value::Text(text) => quoted(text),
        Value::Number(number) => number_value(*number).to_string(),
        Value::Flag(flag) => flag.to_string(),
        Value::Numbers(numbers) => list(numbers.iter().map(|number| number_value(*number)).collect()),
        Value::Whole(number) => number.to_string(),
        Value::Wholes(numbers) => format!("[{}]", numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
        Value::Anchors(lists) => {
            let size = |[width, height]: &[f32; 2]| list(vec![number_value(*width), number_value(*height)]);
            let lists = lists.iter().map(|sizes| format!("[{}]", sizes.iter().map(size).collect::<Vec<_>>().join(", ")));
            format!("[{}]", lists.collect::<Vec<_>>().join(", "))
        }
        Value::Texts(texts) => format!("[{}]", texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ")),
    }
}

/// Returns a quoted TOML string. All control characters are escaped, even those that TOML allows, because the text may be printed to a
/// terminal.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            _ if is_obeyed(character) => quoted.push_str(&format!("\\U{:08X}", u32::from(character))),
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// Converts a number to TOML with as many digits as identify its 32-bit value.
fn number_value(number: f32) -> toml::Value {
    toml::Value::Float(number.to_string().parse().unwrap_or(f64::from(number)))
}
