//! The keys of all items, and who writes them; the module documentation of the crate has the table.

/// Beginning of the keys of stream specifications: `streams.<stream>`.
pub const STREAMS: &str = "streams.";
/// Beginning of the keys of nodes: `nodes.<node>`.
pub const NODES: &str = "nodes.";
/// Beginning of the keys of assignments: `assign.<stream>`.
pub const ASSIGN: &str = "assign.";
/// Beginning of the keys of the states of streams: `status.<stream>`.
pub const STATUS: &str = "status.";
/// Beginning of the keys of requests to drain a node: `drain.<node>`.
pub const DRAIN: &str = "drain.";
/// Key of the planner's lock.
pub const PLANNER: &str = "lock.planner";

/// Longest name of a stream or node, in bytes.
pub const MAX_NAME: usize = 100;

/// A key, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key<'a> {
    /// Specification of a stream.
    Stream(&'a str),
    /// Record of a node.
    Node(&'a str),
    /// Assignment of a stream.
    Assign(&'a str),
    /// State of a stream.
    Status(&'a str),
    /// Request to drain a node.
    Drain(&'a str),
    /// The planner's lock.
    Planner,
}

impl<'a> Key<'a> {
    /// Returns `None` for a key that this version does not know.
    pub fn parse(key: &'a str) -> Option<Self> {
        if key == PLANNER {
            return Some(Self::Planner);
        }
        let name = |prefix: &str| key.strip_prefix(prefix).filter(|name| is_name(name));
        let kind = name(STREAMS).map(Self::Stream).or_else(|| name(NODES).map(Self::Node));
        let kind = kind.or_else(|| name(ASSIGN).map(Self::Assign)).or_else(|| name(STATUS).map(Self::Status));
        kind.or_else(|| name(DRAIN).map(Self::Drain))
    }
}

/// Returns the key of a stream's specification.
pub fn stream(stream: &str) -> String {
    format!("{STREAMS}{stream}")
}

/// Returns the key of a node's record.
pub fn node(node: &str) -> String {
    format!("{NODES}{node}")
}

/// Returns the key of a stream's assignment.
pub fn assign(stream: &str) -> String {
    format!("{ASSIGN}{stream}")
}

/// Returns the key of a stream's state.
pub fn status(stream: &str) -> String {
    format!("{STATUS}{stream}")
}

/// Returns the key of a request to drain a node.
pub fn drain(node: &str) -> String {
    format!("{DRAIN}{node}")
}

/// Whether a text is a valid name of a stream or node: 1 to [`MAX_NAME`] letters, digits, `-`, `_` and `.`. Dots separate parts that are not
/// empty, because each part is a part of a NATS subject.
pub fn is_name(text: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    text.len() <= MAX_NAME && text.split('.').all(|part| !part.is_empty() && part.chars().all(is_valid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_parsed_as_they_are_written() {
        for name in ["door", "hall-2_b", "a.b.c"] {
            assert_eq!(Key::parse(&stream(name)), Some(Key::Stream(name)));
            assert_eq!(Key::parse(&node(name)), Some(Key::Node(name)));
            assert_eq!(Key::parse(&assign(name)), Some(Key::Assign(name)));
            assert_eq!(Key::parse(&status(name)), Some(Key::Status(name)));
            assert_eq!(Key::parse(&drain(name)), Some(Key::Drain(name)));
        }
        assert_eq!(Key::parse(PLANNER), Some(Key::Planner));
        for unknown in ["", "streams.", "streams", "other.x", "streams.a b", "streams..a", "nodes.a*", "nodes.a>"] {
            assert_eq!(Key::parse(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn names_have_a_limit() {
        assert!(is_name(&"a".repeat(MAX_NAME)) && !is_name(&"a".repeat(MAX_NAME + 1)));
        assert!(!is_name("") && !is_name(".") && !is_name("a.") && !is_name("é"));
    }
}
