//! Suggests the nearest known name for a mistyped name ("did you mean ...?").

/// Returns the known name that is most similar to `name`, ignoring case; `None` if no name is similar. Of equally similar names, it returns
/// the first.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed = name.to_lowercase();
    // Names are similar if at most a third of the letters differ, or if one name is a prefix of the other.
    let distance = |known: &str| {
        let known = known.to_lowercase();
        let is_ending = !typed.is_empty() && !known.is_empty() && (typed.starts_with(&known) || known.starts_with(&typed));
        let distance = strsim::damerau_levenshtein(&typed, &known);
        let most = typed.chars().count().max(known.chars().count()).div_ceil(3).min(3);
        (distance <= most || (is_ending && distance <= 4)).then_some(distance)
    };
    let mut best: Option<(usize, &str)> = None;
    for known in known {
        if let Some(distance) = distance(known)
            && best.is_none_or(|(least, _)| distance < least)
        {
            best = Some((distance, known));
        }
    }
    best.map(|(_, known)| known)
}

/// Returns "; did you mean `b`?" if a known name is similar, otherwise an empty string.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

/// Like [`did_you_mean`], but takes the name and the known names from a message such as "unknown field `a`, expected one of `b`,
/// `c`".
pub fn hint_of_unknown(message: &str) -> String {
    if !message.starts_with("unknown ") {
        return String::new();
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    quoted.next().map(|name| did_you_mean(name, quoted)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{hint_of_unknown, nearest};

    #[test]
    fn unknown_key_gets_the_most_similar_name() {
        let message = "unknown field `treshold`, expected one of `decoder`, `threshold`";
        assert_eq!(hint_of_unknown(message), "; did you mean `threshold`?");
        assert_eq!(hint_of_unknown("unknown field `x`, expected one of `decoder`, `threshold`"), "");
        assert_eq!(hint_of_unknown("missing field `decoder`"), "");
    }

    #[test]
    fn typo_is_similar_and_other_word_is_not() {
        let known = ["person", "car", "truck", "traffic light"];
        for (typed, meant) in [
            ("cars", Some("car")),
            ("Car", Some("car")),
            ("persn", Some("person")),
            ("persons", Some("person")),
            ("trcuk", Some("truck")),
            ("traffic-light", Some("traffic light")),
            ("dog", None),
            ("", None),
            ("vehicle", None),
        ] {
            assert_eq!(nearest(typed, known), meant, "{typed}");
        }
    }
}
