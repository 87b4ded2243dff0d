//! Reads elements of XML by their local names: devices use different prefixes for the same namespaces.

use roxmltree::{Document, Node};

/// Maximum length of a value in characters. Longer values are cut off.
const MAX_TEXT: usize = 4096;

/// Parses an answer. `None` if it is not well-formed, or has a document type definition.
pub(crate) fn parse(text: &str) -> Option<Document<'_>> {
    Document::parse(text).ok()
}

/// Returns the elements with this name below `node`, in document order.
pub(crate) fn all<'a, 'input>(node: Node<'a, 'input>, name: &'static str) -> impl Iterator<Item = Node<'a, 'input>> {
    node.descendants().filter(move |node| node.is_element() && node.tag_name().name() == name)
}

/// Follows a path of names, starting at `node`: for each name, takes the first descendant element with this name. Returns the last element.
pub(crate) fn find<'a, 'input>(node: Node<'a, 'input>, path: &[&'static str]) -> Option<Node<'a, 'input>> {
    path.iter().try_fold(node, |node, name| all(node, name).next())
}

/// Returns the text of the element at the end of a path, without control characters.
pub(crate) fn text(node: Node<'_, '_>, path: &[&'static str]) -> Option<String> {
    let found = find(node, path)?;
    let text: String = found.descendants().filter_map(|node| if node.is_text() { node.text() } else { None }).collect();
    Some(text.trim().chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect())
}

/// Escapes the characters that have a meaning in XML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_by_local_name() {
        let document = parse("<a:e xmlns:a='urn:a'><a:b><c>1</c></a:b><b xmlns='urn:x'><c> 2\n</c></b></a:e>").unwrap();
        let root = document.root();
        assert_eq!(text(root, &["b", "c"]).as_deref(), Some("1"));
        assert_eq!(all(root, "c").filter_map(|node| text(node, &[])).collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(text(root, &["b", "absent"]), None);
    }

    #[test]
    fn document_type_definitions_are_refused() {
        assert!(parse("<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>").is_none());
        assert_eq!(escaped("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
    }
}
