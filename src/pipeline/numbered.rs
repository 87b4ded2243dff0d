//! Finds images by a pattern with a number in their name, such as `frames/%05d.jpg`, as C's `printf` writes it.

use std::path::{Path, PathBuf};

/// A file name with one number.
#[derive(Debug, PartialEq, Eq)]
struct Pattern {
    before: String,
    after: String,
    /// Least number of digits; shorter numbers have zeros in front.
    n_digits: usize,
}

/// Returns the files whose names fit a pattern with a number, in the order of their numbers. Numbers may be missing. `None` if the path is
/// not such a pattern.
pub(super) fn matching(path: &Path) -> Option<Vec<PathBuf>> {
    let pattern = Pattern::parse(path.file_name()?.to_str()?)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: &std::ffi::OsStr| pattern.number(name.to_str()?);
    let mut files: Vec<(u64, PathBuf)> =
        entries.filter_map(|entry| Some((number(&entry.file_name())?, path.with_file_name(entry.file_name())))).collect();
    files.sort();
    Some(files.into_iter().map(|(_, path)| path).collect())
}

impl Pattern {
    /// `%d` is a number, `%05d` a number with at least five digits, and `%%` a percent sign.
    fn parse(name: &str) -> Option<Self> {
        let (mut texts, mut n_digits) = (vec![String::new()], None);
        let mut rest = name;
        while let Some((text, behind)) = rest.split_once('%') {
            let last = texts.last_mut()?;
            last.push_str(text);
            if let Some(behind) = behind.strip_prefix('%') {
                last.push('%');
                rest = behind;
                continue;
            }
            let (digits, behind) = behind.split_once('d')?;
            let is_width = digits.is_empty() || digits.starts_with('0') && digits.bytes().all(|digit| digit.is_ascii_digit());
            if !is_width || n_digits.is_some() {
                return None;
            }
            n_digits = Some(if digits.is_empty() { 1 } else { digits.parse().ok().filter(|n| (1..=20).contains(n))? });
            texts.push(String::new());
            rest = behind;
        }
        texts.last_mut()?.push_str(rest);
        let after = texts.pop()?;
        Some(Self { before: texts.pop()?, after, n_digits: n_digits? })
    }

    /// Returns the number in a file name; `None` if the name does not fit.
    fn number(&self, name: &str) -> Option<u64> {
        let digits = name.strip_prefix(&*self.before)?.strip_suffix(&*self.after)?;
        let is_padded = digits.len() == self.n_digits || digits.len() > self.n_digits && !digits.starts_with('0');
        (is_padded && digits.bytes().all(|digit| digit.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_one_number_are_patterns() {
        let pattern = |before: &str, n_digits, after: &str| Some(Pattern { before: before.to_owned(), after: after.to_owned(), n_digits });
        for (name, expected) in [
            ("%05d.jpg", pattern("", 5, ".jpg")),
            ("frame-%d", pattern("frame-", 1, "")),
            ("100%%-%03d.png", pattern("100%-", 3, ".png")),
            ("100%.png", None),
            ("100%%.png", None),
            ("%d-%d.png", None),
            ("%5d.png", None),
            ("%0d.png", None),
            ("%s.png", None),
            ("%099d.png", None),
        ] {
            assert_eq!(Pattern::parse(name), expected, "{name}");
        }
    }

    #[test]
    fn numbers_have_the_digits_of_the_pattern() {
        let number = |pattern: &str, name: &str| Pattern::parse(pattern).unwrap().number(name);
        assert_eq!(number("%03d.png", "007.png"), Some(7));
        assert_eq!(number("%03d.png", "1000.png"), Some(1000));
        for name in ["7.png", "0007.png", "abc.png", "007.jpg", "x007.png", ".png"] {
            assert_eq!(number("%03d.png", name), None, "{name}");
        }
        assert_eq!((number("%d.png", "12.png"), number("%d.png", "012.png"), number("a%da", "a")), (Some(12), None, None));
    }
}
