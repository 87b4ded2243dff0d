//! Formats of recognized text: regular expressions that select texts, such as license plates, and rewrite them.

use regex_lite::Regex;
use serde::Deserialize;

use super::boxes::bad;
use crate::tensor::Result;

/// A format, as written in a description.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(super) struct FormatKeys {
    /// Regular expression that must match the whole text.
    pattern: String,
    /// The text to report: `$1` is the first group of the pattern. Default: the text as it was read.
    text: Option<String>,
}

/// Formats of a text. Without formats, every text is reported.
#[derive(Debug, Default)]
pub(super) struct TextFormats {
    is_uppercase: bool,
    formats: Vec<(Regex, Option<String>)>,
}

impl TextFormats {
    /// Compiles the patterns.
    ///
    /// # Errors
    /// Returns `Unsupported` if a pattern is invalid.
    pub(super) fn new(formats: &[FormatKeys], is_uppercase: bool) -> Result<Self> {
        let compile = |FormatKeys { pattern, text }: &FormatKeys| {
            let whole = Regex::new(&format!("^(?:{pattern})$"));
            let regex = whole.map_err(|error| bad(format!("`formats`: expected a regular expression, got {pattern:?}: {error}")))?;
            Ok((regex, text.clone()))
        };
        Ok(Self { is_uppercase, formats: formats.iter().map(compile).collect::<Result<_>>()? })
    }

    /// Returns the text in the first format whose pattern matches; `None` if no pattern matches.
    pub(super) fn apply(&self, text: String) -> Option<String> {
        let text = if self.is_uppercase { text.to_uppercase() } else { text };
        if self.formats.is_empty() {
            return Some(text);
        }
        self.formats.iter().find_map(|(regex, format)| {
            let groups = regex.captures(&text)?;
            let Some(format) = format else { return Some(text.clone()) };
            let mut formatted = String::new();
            groups.expand(format, &mut formatted);
            Some(formatted)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formats(formats: &[(&str, Option<&str>)], is_uppercase: bool) -> TextFormats {
        let keys = |&(pattern, text): &(&str, Option<&str>)| FormatKeys { pattern: pattern.to_owned(), text: text.map(str::to_owned) };
        TextFormats::new(&formats.iter().map(keys).collect::<Vec<_>>(), is_uppercase).unwrap()
    }

    #[test]
    fn first_matching_format_rewrites_the_text() {
        let german = ("([A-Z]{1,3})[ .-]*([A-Z]{1,2})[ -]*([1-9][0-9]{0,3})", Some("$1-$2 $3"));
        let plates = formats(&[german, ("[0-9]{4} ?[A-Z]{3}", None)], true);
        let apply = |text: &str| plates.apply(text.to_owned());
        assert_eq!(apply("B.ab1234").as_deref(), Some("B-AB 1234"));
        assert_eq!(apply("1234 BCD").as_deref(), Some("1234 BCD"), "without a text to report");
        assert_eq!([apply("TAXI"), apply("xB-AB 1234 "), apply("")], [None, None, None], "the whole text must match");
        let any = formats(&[], false);
        assert_eq!(any.apply("any Text".to_owned()).as_deref(), Some("any Text"));
    }

    #[test]
    fn alternatives_belong_to_one_pattern() {
        let either = formats(&[("a|b", None)], false);
        assert_eq!((either.apply("ab".to_owned()), either.apply("b".to_owned()).as_deref()), (None, Some("b")));
    }

    #[test]
    fn invalid_pattern_is_explained() {
        let error = TextFormats::new(&[FormatKeys { pattern: "([A-Z]".to_owned(), text: None }], false).unwrap_err().to_string();
        assert!(error.contains("`formats`: expected a regular expression, got \"([A-Z]\""), "{error}");
    }
}
