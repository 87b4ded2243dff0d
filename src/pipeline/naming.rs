//! Stream names given by the user, instead of names derived from the inputs.

use super::{Error, Result, streams};

/// Maximum length of a name. Longer names are invalid file names on some systems.
const MAX_LENGTH: usize = 100;

/// Returns a name for each input. The first inputs get the given names, in order. The names of the remaining inputs are derived
/// from the inputs.
///
/// # Errors
/// Returns `Usage` if there are more names than inputs, two names are equal, or a name has invalid characters for a file name.
pub fn names(inputs: &[String], given: &[String]) -> Result<Vec<String>> {
    if given.len() > inputs.len() {
        return Err(Error::usage(format!("--name: expected at most {} names, one per input, got {}", inputs.len(), given.len())));
    }
    for (place, name) in given.iter().enumerate() {
        check(name)?;
        if given[..place].contains(name) {
            return Err(Error::usage(format!("--name {name}: expected different names, got this name twice")));
        }
    }
    let mut names = given.to_vec();
    for name in streams::names(&inputs[given.len()..]) {
        let numbered = (2..).map(|n| format!("{name}-{n}"));
        let free = std::iter::once(name.clone()).chain(numbered).find(|name| !names.contains(name));
        names.extend(free);
    }
    Ok(names)
}

fn check(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    let fits = !name.is_empty() && name.len() <= MAX_LENGTH && name.chars().all(is_plain) && !name.starts_with(['-', '.']);
    if fits {
        return Ok(());
    }
    Err(Error::usage(format!(
        "--name `{name}`: expected 1 to {MAX_LENGTH} letters, digits, `-`, `_` or `.`, that begin with a letter, a digit or `_`"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_of(inputs: &[&str], given: &[&str]) -> Result<Vec<String>> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        names(&owned(inputs), &owned(given))
    }

    #[test]
    fn given_names_take_precedence_over_derived_ones() {
        assert_eq!(names_of(&["a", "b"], &[]).unwrap(), ["a", "b"]);
        assert_eq!(names_of(&["a", "b"], &["door", "gate"]).unwrap(), ["door", "gate"]);
        assert_eq!(names_of(&["test:1", "test:2"], &["door"]).unwrap(), ["door", "test"]);
        assert_eq!(names_of(&["a", "b", "c/b"], &["b"]).unwrap(), ["b", "b-2", "b-2-2"]);
    }

    #[test]
    fn invalid_file_names_are_refused() {
        for (given, says) in [
            (&["a", "b", "c"][..], "at most 2 names, one per input, got 3"),
            (&["a", "a"], "this name twice"),
            (&[""], "expected 1 to"),
            (&["a/b"], "letters"),
            (&[".."], "begin with"),
            (&["a b"], "letters"),
            (&["a\n"], "letters"),
        ] {
            let error = names_of(&["x", "y"], given).expect_err(says);
            assert_eq!(error.kind(), super::super::ErrorKind::Usage);
            assert!(error.to_string().contains(says), "{given:?}: {error}");
        }
    }
}
