//! What exporters leave at the end of an OpenVINO IR, under `rt_info`: of that the `model_info`, which tells what the model wants and says.
//!
//! The library's C functions give it to nobody, so the file is read here. Keys are those that Model API writes into the metadata of
//! ONNX files: `model_info labels`.

use std::collections::BTreeMap;
use std::path::Path;

use roxmltree::{Document, Node};

/// A larger file is read by the engine alone: what is wanted of it takes a tree of all of its nodes.
const MAX_BYTES: u64 = 64 << 20;

/// The `model_info` of a file; nothing if it is no IR, or has none.
pub(super) fn of_file(path: &Path) -> BTreeMap<String, String> {
    let is_own_format = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("xml"));
    let is_small = || std::fs::metadata(path).is_ok_and(|file| file.len() <= MAX_BYTES);
    let text = if is_own_format && is_small() { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() };
    of_text(&text)
}

fn of_text(text: &str) -> BTreeMap<String, String> {
    let mut entries = BTreeMap::new();
    // Most files have none: their nodes need no tree.
    if !text.contains("<model_info") {
        return entries;
    }
    let Ok(document) = Document::parse(text) else { return entries };
    let named = |node: Node<'_, '_>, name: &str| node.children().find(|child| child.has_tag_name(name)).map(|child| child.id());
    let info = named(document.root_element(), "rt_info")
        .and_then(|rt_info| document.get_node(rt_info))
        .and_then(|rt_info| named(rt_info, "model_info"))
        .and_then(|model_info| document.get_node(model_info));
    for node in info.into_iter().flat_map(|info| info.children()).filter(Node::is_element) {
        if let Some(value) = node.attribute("value") {
            entries.insert(format!("model_info {}", node.tag_name().name()), value.to_owned());
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entries_of_model_info_are_metadata() {
        let text = r#"<?xml version="1.0"?>
            <net name="a" version="11"><layers><layer id="0"><rt_info><model_info><labels value="of a layer"/></model_info></rt_info></layer></layers>
            <rt_info><MO_version value="2024"/><model_info>
                <labels value="a b &amp;c"/><model_type value="ssd"/><nested><deep value="1"/></nested>
            </model_info></rt_info></net>"#;
        let entries = of_text(text);
        let list: Vec<(&str, &str)> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(list, [("model_info labels", "a b &c"), ("model_info model_type", "ssd")]);
        for broken in ["", "<model_info", "<net><rt_info><model_info></net>", "<model_info/>"] {
            assert!(of_text(broken).is_empty(), "{broken}");
        }
    }
}
