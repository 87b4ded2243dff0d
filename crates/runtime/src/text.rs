//! Escapes characters that control a terminal in text from outside: names of files, ports and labels, and messages of libraries.

use std::fmt::{self, Display, Write as _};

/// Displays text with control characters escaped as in Rust, such as `\u{1b}`. Line breaks and tabs are not escaped.
///
/// Characters that change the direction of text are escaped as well, because they can make a line look like a different line.
#[derive(Debug, Clone, Copy)]
pub struct Printable<'a>(pub &'a str);

impl Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\n' | '\t' => f.write_char(c)?,
                _ if is_obeyed(c) => write!(f, "{}", c.escape_default())?,
                _ => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Same as [`Printable`], but the text stays on one line: line breaks and tabs are escaped as well. For names and values inside a line.
#[derive(Debug, Clone, Copy)]
pub struct OneLine<'a>(pub &'a str);

impl Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if is_obeyed(c) { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
        }
        Ok(())
    }
}

/// Displays text as one word of a shell command. Adds single quotes if the text contains a character that a shell interprets.
///
/// Control characters are escaped as by [`OneLine`]. A shell does not undo this escape, so a user must replace the escaped characters
/// before the command works.
#[derive(Debug, Clone, Copy)]
pub struct Quoted<'a>(pub &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |c: char| c.is_alphanumeric() || "-_./:=+,@%".contains(c);
        if !self.0.is_empty() && self.0.chars().all(is_plain) {
            return f.write_str(self.0);
        }
        write!(f, "'{}'", OneLine(&self.0.replace('\'', "'\\''")))
    }
}

/// Returns whether a terminal interprets this character instead of printing it.
pub fn is_obeyed(c: char) -> bool {
    // These ranges of Unicode are direction marks and embeddings, line and paragraph separators, and invisible tags.
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
        || matches!(c, '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_command_are_quoted_where_a_shell_would_read_more() {
        for (text, quoted) in [
            ("models/yolo11n.onnx", "models/yolo11n.onnx"),
            ("a b.onnx", "'a b.onnx'"),
            ("it's.onnx", "'it'\\''s.onnx'"),
            ("out/{stream}.jsonl", "'out/{stream}.jsonl'"),
            ("$(rm).onnx", "'$(rm).onnx'"),
            ("", "''"),
        ] {
            assert_eq!(Quoted(text).to_string(), quoted);
        }
    }

    #[test]
    fn control_characters_are_escaped_and_text_is_not() {
        for (text, printable, one_line) in [
            ("plain `text` with ümlauts and 車\n", "plain `text` with ümlauts and 車\n", "plain `text` with ümlauts and 車\\n"),
            ("a\x1b[31mred\x07", "a\\u{1b}[31mred\\u{7}", "a\\u{1b}[31mred\\u{7}"),
            ("over\rwritten\tx", "over\\rwritten\tx", "over\\rwritten\\tx"),
            (
                "c1 \u{9b}2J, del \u{7f}, rtl \u{202e}, mark \u{61c}, tag \u{e0041}",
                "c1 \\u{9b}2J, del \\u{7f}, rtl \\u{202e}, mark \\u{61c}, tag \\u{e0041}",
                "c1 \\u{9b}2J, del \\u{7f}, rtl \\u{202e}, mark \\u{61c}, tag \\u{e0041}",
            ),
        ] {
            assert_eq!(Printable(text).to_string(), printable);
            assert_eq!(OneLine(text).to_string(), one_line);
        }
    }
}
