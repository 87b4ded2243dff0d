//! Finds images by a pattern with a number in their name, such as `frames/%05d.jpg`, as C's `printf` writes it. Sorts names with numbers.

use std::cmp::Ordering;
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

/// Compares two paths as people sort them: numbers in names by their value, so `2.jpg` comes before `10.jpg`, everything else byte by byte.
pub(super) fn natural_order(one: &Path, other: &Path) -> Ordering {
    let names = |path: &Path| path.components().map(|name| name.as_os_str().as_encoded_bytes().to_vec()).collect::<Vec<_>>();
    let (one_names, other_names) = (names(one), names(other));
    let differing = one_names.iter().zip(&other_names).map(|(one, other)| natural_order_of_names(one, other));
    let order = differing.fold(Ordering::Equal, Ordering::then).then(one_names.len().cmp(&other_names.len()));
    // `1.jpg` and `01.jpg` have the same number.
    order.then_with(|| one.cmp(other))
}

fn natural_order_of_names(mut one: &[u8], mut other: &[u8]) -> Ordering {
    while let ([first, rest @ ..], [other_first, other_rest @ ..]) = (one, other) {
        if first.is_ascii_digit() && other_first.is_ascii_digit() {
            let (number, behind) = split_number(one);
            let (other_number, other_behind) = split_number(other);
            match number.len().cmp(&other_number.len()).then(number.cmp(other_number)) {
                Ordering::Equal => (one, other) = (behind, other_behind),
                order => return order,
            }
        } else if first == other_first {
            (one, other) = (rest, other_rest);
        } else {
            return first.cmp(other_first);
        }
    }
    one.len().cmp(&other.len())
}

/// Splits digits from the begin of a name. Returns them without zeros in front.
fn split_number(name: &[u8]) -> (&[u8], &[u8]) {
    let n_digits = name.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, behind) = name.split_at(n_digits);
    let n_zeros = digits.iter().take_while(|byte| **byte == b'0').count();
    (&digits[n_zeros..], behind)
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
    fn numbers_in_names_are_sorted_by_value() {
        let sorted = [
            "0.jpg",
            "01.jpg",
            "1.jpg",
            "2.jpg",
            "010.jpg",
            "99999999999999999999998.jpg",
            "99999999999999999999999.jpg",
            "a/2/x1.jpg",
            "a/2/x1b.jpg",
            "a/2/x10.jpg",
            "a/10/x1.jpg",
            "a.jpg",
            "a1b2.jpg",
            "a1b10.jpg",
            "b",
        ];
        let mut shuffled = sorted;
        shuffled.sort_unstable();
        assert_ne!(shuffled, sorted);
        let order = |one: &&str, other: &&str| natural_order(Path::new(one), Path::new(other));
        shuffled.sort_by(order);
        assert_eq!(shuffled, sorted);
        assert!(sorted.iter().all(|name| order(name, name) == Ordering::Equal));
    }

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
