//! Tokenizes a gst-launch line with placeholders. This module works on text only and does not use GStreamer.
//!
//! There are two kinds of placeholders. `{source}`, `{json}` and `{video}` are replaced by elements that the program chooses. In
//! `property={name}`, the placeholder is replaced by the value of the parameter `name`. Values are never pasted into the line: they are
//! set on the elements after parsing. So a path such as `a b"! c.onnx` needs no quoting.

use super::{Error, Result};

/// Elements that replace the structural placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Structure {
    pub source: String,
    pub json: String,
    pub video: String,
}

/// Names of the structural placeholders.
pub const STRUCTURE: [&str; 3] = ["source", "json", "video"];

/// A tokenized line: the text for GStreamer's parser, and the values that are set on the elements afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Graph {
    /// The line; every element of the description has a name.
    pub line: String,
    /// Properties set from parameters.
    pub slots: Vec<Slot>,
    /// Property values that are written in the line itself, unparsed.
    pub literals: Vec<Literal>,
    /// The structural placeholders that the line contains.
    pub places: Vec<&'static str>,
    /// The elements of the description, in order.
    pub elements: Vec<NamedElement>,
    /// Number of elements that are left out. Names count them, so they do not depend on the values of parameters.
    n_left_out: usize,
}

/// A property that is set from a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    pub element: String,
    pub property: String,
    pub parameter: String,
}

/// A property value that is written in the line itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Literal {
    pub element: String,
    pub property: String,
    /// The value with its quotes and escapes.
    pub text: String,
}

/// An element and its name in the pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedElement {
    pub factory: String,
    pub name: String,
}

impl Graph {
    /// Tokenizes a line and replaces the structural placeholders by elements. Inference elements whose model is a parameter without a value,
    /// for which `is_without` returns true, are left out.
    ///
    /// # Errors
    /// Returns an error if a placeholder is in a wrong place, or `{source}` is missing.
    pub fn parse(text: &str, structure: &Structure, is_without: &dyn Fn(&str) -> bool) -> Result<Self> {
        let mut graph = Self::default();
        let mut words: Vec<String> = Vec::new();
        let tokens = tokens(text)?;
        check_links(&tokens)?;
        for group in groups(&tokens) {
            match group {
                Group::Other(token) => match placeholder(token) {
                    Some("source") => graph.add_place("source", &structure.source, &mut words)?,
                    Some("json") => graph.add_place("json", &structure.json, &mut words)?,
                    Some("video") => graph.add_place("video", &structure.video, &mut words)?,
                    Some(other) => {
                        return Err(Error::usage(format!(
                            "placeholder `{{{other}}}` is not part of a property: only {} are replaced by elements; write `property={{{other}}}` for a value",
                            STRUCTURE.map(|name| format!("`{{{name}}}`")).join(", ")
                        )));
                    }
                    None => {
                        check_plain(token)?;
                        words.push(token.to_owned());
                    }
                },
                Group::Element(factory, properties) => {
                    let model = properties.iter().find_map(|property| placeholder(property.strip_prefix("model=")?));
                    if ["roidetect", "roiclassify"].contains(&factory) && model.is_some_and(is_without) {
                        words.push("identity silent=true".to_owned());
                        graph.n_left_out += 1;
                    } else {
                        graph.add_element(factory, &properties, &mut words)?;
                    }
                }
            }
        }
        if !graph.places.contains(&"source") {
            return Err(Error::usage("the graph has no `{source}`: begin the graph with `{source} ! ...`, which --input replaces"));
        }
        graph.line = words.join(" ");
        Ok(graph)
    }

    fn add_place(&mut self, place: &'static str, elements: &str, words: &mut Vec<String>) -> Result<()> {
        if self.places.contains(&place) {
            return Err(Error::usage(format!("the graph has `{{{place}}}` twice: expected it once; use `tee` for several branches")));
        }
        self.places.push(place);
        words.push(elements.to_owned());
        Ok(())
    }

    fn add_element(&mut self, factory: &str, properties: &[&str], words: &mut Vec<String>) -> Result<()> {
        check_plain(factory)?;
        let written_name = properties.iter().find_map(|property| property.strip_prefix("name="));
        let name = match written_name {
            Some(name) => name.trim_matches('"').to_owned(),
            None => format!("{factory}-{}", self.elements.len() + self.n_left_out),
        };
        words.push(factory.to_owned());
        if written_name.is_none() {
            words.push(format!("name={name}"));
        }
        for property in properties {
            let (key, value) = property.split_once('=').expect("groups() puts only key=value here");
            match placeholder(value) {
                Some(parameter) => {
                    let slot = Slot { element: name.clone(), property: key.to_owned(), parameter: parameter.to_owned() };
                    self.slots.push(slot);
                }
                None => {
                    check_plain(property)?;
                    let literal = Literal { element: name.clone(), property: key.to_owned(), text: value.to_owned() };
                    self.literals.push(literal);
                    words.push((*property).to_owned());
                }
            }
        }
        self.elements.push(NamedElement { factory: factory.to_owned(), name });
        Ok(())
    }
}

/// A part of the line: an element with its properties, or a token of another kind.
enum Group<'a> {
    Element(&'a str, Vec<&'a str>),
    Other(&'a str),
}

fn groups<'a>(tokens: &[&'a str]) -> Vec<Group<'a>> {
    let mut groups = Vec::new();
    for &token in tokens {
        let is_property = token.split_once('=').is_some_and(|(key, _)| key.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_'));
        match groups.last_mut() {
            Some(Group::Element(_, properties)) if is_property => properties.push(token),
            _ if is_element(token) => groups.push(Group::Element(token, Vec::new())),
            _ => groups.push(Group::Other(token)),
        }
    }
    groups
}

/// Whether the token is an element: not a link, a pad reference (`tee.`), caps (`video/x-raw,...`), a bracket or a placeholder.
fn is_element(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic()) && token.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

fn placeholder(token: &str) -> Option<&str> {
    token.strip_prefix('{')?.strip_suffix('}').filter(|name| !name.contains(['{', '}']))
}

fn check_plain(token: &str) -> Result<()> {
    if token.starts_with('"') || !token.contains('{') {
        return Ok(());
    }
    Err(Error::usage(format!("`{token}`: expected a placeholder as the whole value of a property, as in `model={{detector}}`")))
}

/// Checks that each `!` links two elements. GStreamer's parser would log critical warnings for dangling links.
fn check_links(tokens: &[&str]) -> Result<()> {
    let is_link = |token: Option<&&str>| token.is_none_or(|token| *token == "!");
    for (place, _) in tokens.iter().enumerate().filter(|(_, token)| **token == "!") {
        let before = place.checked_sub(1).and_then(|before| tokens.get(before));
        if is_link(before) || is_link(tokens.get(place + 1)) {
            let example = "{source} ! roidetect model={model} ! {json} ! {video}";
            return Err(Error::usage(format!(
                "the graph has a `!` with no element on one side: expected elements joined by `!`, as in `{example}`"
            )));
        }
    }
    Ok(())
}

/// Splits the text into words at spaces. Quoted parts are not split.
fn tokens(text: &str) -> Result<Vec<&str>> {
    if text.contains('\0') {
        return Err(Error::usage("the graph has a NUL character; remove this character"));
    }
    let mut tokens = Vec::new();
    let mut begin = None;
    let mut quoted = false;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        if c.is_whitespace() && !quoted {
            if let Some(begin) = begin.take() {
                tokens.push(&text[begin..at]);
            }
            continue;
        }
        begin.get_or_insert(at);
        if c == '"' && !escaped {
            quoted = !quoted;
        }
        escaped = c == '\\' && !escaped;
    }
    if quoted {
        return Err(Error::usage("the graph has an unclosed quote (\")"));
    }
    tokens.extend(begin.map(|begin| &text[begin..]));
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Graph> {
        Graph::parse(text, &Structure { source: "SRC".into(), json: "JSON".into(), video: "SINK".into() }, &|name| name == "none")
    }

    #[test]
    fn values_become_slots_and_elements_get_names() {
        let graph = parse(
            "{source} ! roidetect model={detector} nireq=2 ! capsfilter caps=\"video/x-raw, width=3\" ! roioverlay name=draw ! {video}",
        )
        .unwrap();
        assert_eq!(
            graph.line,
            "SRC ! roidetect name=roidetect-0 nireq=2 ! capsfilter name=capsfilter-1 caps=\"video/x-raw, width=3\" ! roioverlay name=draw ! SINK"
        );
        assert_eq!(graph.slots, [Slot { element: "roidetect-0".into(), property: "model".into(), parameter: "detector".into() }]);
        assert_eq!(graph.elements.iter().map(|element| &*element.name).collect::<Vec<_>>(), ["roidetect-0", "capsfilter-1", "draw"]);
        let literals: Vec<_> = graph.literals.iter().map(|literal| (&*literal.element, &*literal.property, &*literal.text)).collect();
        let expected = [("roidetect-0", "nireq", "2"), ("capsfilter-1", "caps", "\"video/x-raw, width=3\""), ("draw", "name", "draw")];
        assert_eq!(literals, expected);
        assert_eq!(graph.places, ["source", "video"]);
    }

    #[test]
    fn element_without_its_optional_model_is_left_out() {
        let graph = parse("{source} ! roiclassify model={none} device={device} ! roiclassify model={some} ! {video}").unwrap();
        assert_eq!(graph.line, "SRC ! identity silent=true ! roiclassify name=roiclassify-1 ! SINK");
        assert_eq!((graph.slots.len(), graph.elements.len()), (1, 1));
    }

    #[test]
    fn branches_caps_and_pad_references_stay_unchanged() {
        let graph = parse("{source} ! tee name=t t. ! queue ! {video} t. ! video/x-raw,width=4 ! {json} ! fakesink").unwrap();
        assert_eq!(
            graph.line,
            "SRC ! tee name=t t. ! queue name=queue-1 ! SINK t. ! video/x-raw,width=4 ! JSON ! fakesink name=fakesink-2"
        );
    }

    #[test]
    fn misplaced_placeholders_are_errors() {
        for (text, says) in [
            ("{source} ! roidetect model=a{b}c ! fakesink", "whole value"),
            ("{source} ! {detector} ! fakesink", "`property={detector}`"),
            ("videotestsrc ! fakesink", "no `{source}`"),
            ("{source} ! roidetect model=\"a ! fakesink", "unclosed quote"),
            ("{source} ! tee name=t t. ! {video} t. ! {video}", "`{video}` twice"),
            ("{source} ! ! {video}", "elements joined by `!`"),
            ("! {source} ! {video}", "elements joined by `!`"),
            ("{source} ! {video} !", "elements joined by `!`"),
            ("{source} ! {video}\0", "NUL"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
