//! Reads the parts of an OpenVINO IR file that the C library does not report: all names of a tensor (the library reports only one), and the
//! section `model_info` in `rt_info`, in which exporters describe inputs and outputs.
//!
//! The keys of `model_info` are the keys that OpenVINO's Model API writes into the metadata of ONNX files, such as `model_info labels`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use roxmltree::{Document, Node};

use crate::engine::{IR, other_format};
use crate::runtime::{ModelSource, Port};

/// Maximum size of a file that is parsed. The limit bounds memory, because parsing builds a tree of all nodes in memory.
const MAX_BYTES: u64 = 64 << 20;

/// Returns the text of an IR. Returns an empty text for other formats and for files above `MAX_BYTES`.
pub(super) fn text_of(source: &ModelSource) -> Cow<'_, str> {
    match source {
        _ if other_format(source) != Some(IR) => Cow::default(),
        ModelSource::File(path) if std::fs::metadata(path).is_ok_and(|file| file.len() <= MAX_BYTES) => {
            Cow::Owned(std::fs::read_to_string(path).unwrap_or_default())
        }
        ModelSource::Bytes(bytes) if bytes.model().len() as u64 <= MAX_BYTES => {
            Cow::Borrowed(std::str::from_utf8(bytes.model()).unwrap_or_default())
        }
        _ => Cow::default(),
    }
}

/// The parts of an IR that roiflow uses. All parts are empty for a model that is not an IR.
#[derive(Debug, Default)]
pub struct Ir {
    /// The entries of `model_info`. Their keys are `model_info NAME`.
    pub metadata: BTreeMap<String, String>,
    /// For each tensor that has more than one name: its names.
    aliases: Vec<Vec<String>>,
}

impl Ir {
    /// Reads the text of an IR.
    pub fn of_text(text: &str) -> Self {
        // Most files have neither a `model_info` nor a tensor with two names. Such files need not be parsed.
        let names = || text.split("names=").skip(1).filter_map(|rest| rest.get(1..)?.split(['"', '\'']).next());
        if !text.contains("<model_info") && !names().any(|names| names.contains(',')) {
            return Self::default();
        }
        let Ok(document) = Document::parse(text) else { return Self::default() };
        Self { metadata: model_info(&document), aliases: aliases(&document) }
    }

    /// Adds the other names of a port's tensor to the port.
    pub fn complete(&self, port: &mut Port) {
        let own = port.names.first().and_then(|own| self.aliases.iter().find(|names| names.iter().any(|name| **name == **own)));
        for name in own.into_iter().flatten() {
            if port.names.iter().all(|known| **known != **name) {
                port.names.push(name.as_str().into());
            }
        }
    }
}

fn model_info(document: &Document<'_>) -> BTreeMap<String, String> {
    let child = |node: Node<'_, '_>, name: &str| node.children().find(|child| child.has_tag_name(name)).map(|child| child.id());
    let info = child(document.root_element(), "rt_info")
        .and_then(|rt_info| document.get_node(rt_info))
        .and_then(|rt_info| child(rt_info, "model_info"))
        .and_then(|model_info| document.get_node(model_info));
    let entries = info.into_iter().flat_map(|info| info.children()).filter(Node::is_element);
    entries.filter_map(|node| Some((format!("model_info {}", node.tag_name().name()), node.attribute("value")?.to_owned()))).collect()
}

fn aliases(document: &Document<'_>) -> Vec<Vec<String>> {
    // Names are attributes of output ports. In newer files, they are also attributes of result layers.
    let lists = document.descendants().filter_map(|node| match node.tag_name().name() {
        "port" => node.attribute("names"),
        "layer" => node.attribute("output_names"),
        _ => None,
    });
    lists.map(split_names).filter(|names| names.len() > 1).collect()
}

/// Splits a list of names at commas. A comma inside a name has a backslash before it.
fn split_names(list: &str) -> Vec<String> {
    const OWN_COMMA: &str = "\u{0}";
    list.replace("\\,", OWN_COMMA).split(',').map(|name| name.replace(OWN_COMMA, ",")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::ElementType;

    #[test]
    fn the_entries_of_model_info_are_metadata() {
        let text = r#"<?xml version="1.0"?>
            <net name="a" version="11"><layers><layer id="0"><rt_info><model_info><labels value="of a layer"/></model_info></rt_info></layer></layers>
            <rt_info><MO_version value="2024"/><model_info>
                <labels value="a b &amp;c"/><model_type value="ssd"/><nested><deep value="1"/></nested>
            </model_info></rt_info></net>"#;
        let entries = Ir::of_text(text).metadata;
        let list: Vec<(&str, &str)> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(list, [("model_info labels", "a b &c"), ("model_info model_type", "ssd")]);
        for broken in ["", "<model_info", "<net><rt_info><model_info></net>", "<model_info/>", "names=", "names='a,b", "<p names=\"a,é"] {
            assert!(Ir::of_text(broken).metadata.is_empty(), "{broken}");
        }
    }

    #[test]
    fn a_port_gets_all_names_of_its_tensor_and_keeps_the_first() {
        let text = r#"<net><layers>
            <layer id="0"><output><port id="0" names="x"/></output></layer>
            <layer id="1"><output><port id="1" names="angle_y_fc,fc_y,one\,name &amp; more"/></output></layer>
            <layer id="2" type="Result" output_names="a,b"/></layers></net>"#;
        let ir = Ir::of_text(text);
        let names = |name: &str| {
            let mut port = Port::new(name, ElementType::F32, [1]);
            ir.complete(&mut port);
            port.names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names("fc_y"), ["fc_y", "angle_y_fc", "one,name & more"]);
        assert_eq!(names("b"), ["b", "a"]);
        assert_eq!(names("x"), ["x"]);
        assert_eq!(names("fc"), ["fc"]);
    }
}
