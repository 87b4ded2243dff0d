//! Values that an engine reads as positions, or counts, and reads again later. If another thread changes such a value in between, the engine
//! accesses other memory.

use std::collections::HashSet;

use super::{Graph, Node};
use crate::runtime::io::is_index;
use crate::runtime::{ModelInfo, Port};

/// The inputs whose values an engine counts or sorts, or from which it computes a number of elements, with the index of the first such input.
/// Engines read these values several times, and crash if they change in between.
const COUNTS: [(&str, usize); 8] = [
    ("NonZero", 0),
    ("Unique", 0),
    ("TopK", 0),
    ("NonMaxSuppression", 0),
    ("Range", 0),
    ("Resize", 1),
    ("Interpolate", 1),
    ("Upsample", 1),
];
/// Operators whose first output may have the memory of their first input.
const VIEWS: [&str; 8] = ["Identity", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split"];

impl Graph {
    /// Returns for each of the inputs whether an engine may crash if other code writes its values during a run, apart from integers.
    pub fn inputs_counted(&self) -> Vec<bool> {
        let counted = self.counted();
        self.inputs.iter().map(|(name, _)| counted.contains(&**name)).collect()
    }

    /// Returns for each of the outputs whether an engine may crash if other code writes its values during a run: an operator reads it as an
    /// index, or counts its values. If the graph is not known, this holds for all integers.
    pub fn outputs_counted(&self, info: &ModelInfo) -> Vec<bool> {
        let counted = self.counted();
        let is_known = self.outputs.len() == info.outputs.len();
        let is_read = |name: &str| self.nodes.iter().any(|node| node.reads(name));
        let is_counted = |(idx, port): (usize, &Port)| match is_known {
            true => counted.contains(&*self.outputs[idx]) || (is_index(port.element) && is_read(&self.outputs[idx])),
            false => is_index(port.element),
        };
        info.outputs.iter().enumerate().map(is_counted).collect()
    }

    /// Returns the names of all values that are counted.
    fn counted(&self) -> HashSet<&str> {
        let mut counted = HashSet::new();
        for node in self.nodes.iter().rev() {
            let operator = &*node.operator;
            if let Some((_, first)) = COUNTS.iter().find(|(name, _)| *name == operator) {
                counted.extend(node.inputs.iter().skip(*first).map(|name| &**name));
            }
            if VIEWS.contains(&operator) && node.outputs.iter().any(|output| counted.contains(&**output)) {
                counted.extend(node.inputs.first().map(|name| &**name));
            }
            // The graphs inside an operator may count the values around it.
            node.bodies.iter().for_each(|body| counted.extend(body.counted()));
        }
        counted
    }

    /// Returns whether an operator reads this value, or it is an output.
    pub fn reads(&self, name: &str) -> bool {
        self.outputs.iter().any(|output| output == name) || self.nodes.iter().any(|node| node.reads(name))
    }
}

impl Node {
    /// Returns whether the operator, or a graph inside it, reads this value.
    fn reads(&self, name: &str) -> bool {
        self.inputs.iter().any(|input| input == name) || self.bodies.iter().any(|body| body.reads(name))
    }
}
