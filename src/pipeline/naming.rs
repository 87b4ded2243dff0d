//! Names that the user gives to streams, instead of those made from the inputs.

use super::{Error, Result, streams};

/// Longer names can't be file names everywhere.
const MAX_LENGTH: usize = 100;

/// The names of the streams of these inputs: the given ones in the order of the inputs, then those made from the other inputs.
///
/// # Errors
/// `Usage` if there are more names than inputs, two are equal, or one has characters that are no part of a plain file name.
pub fn names(inputs: &[String], given: &[String]) -> Result<Vec<String>> {
    if given.len() > inputs.len() {
        return Err(Error::usage(format!("--name: expected at most one for each of {} inputs, got {}", inputs.len(), given.len())));
    }
    for (place, name) in given.iter().enumerate() {
        check(name)?;
        if given[..place].contains(name) {
            return Err(Error::usage(format!("--name {name}: two streams have this name; each needs its own")));
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
    fn given_names_come_first_and_made_ones_give_way() {
        assert_eq!(names_of(&["a", "b"], &[]).unwrap(), ["a", "b"]);
        assert_eq!(names_of(&["a", "b"], &["door", "gate"]).unwrap(), ["door", "gate"]);
        assert_eq!(names_of(&["test:1", "test:2"], &["door"]).unwrap(), ["door", "test"]);
        assert_eq!(names_of(&["a", "b", "c/b"], &["b"]).unwrap(), ["b", "b-2", "b-2-2"]);
    }

    #[test]
    fn names_that_are_no_file_names_are_refused() {
        for (given, says) in [
            (&["a", "b", "c"][..], "at most one for each of 2 inputs, got 3"),
            (&["a", "a"], "two streams have this name"),
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
