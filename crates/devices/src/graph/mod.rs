//! Graphs of models, as far as roiflow must know them: whether batch items are independent (`rows`), and constants that an engine would
//! narrow ([`Graph::integer_beyond_32_bits`]).
//!
//! `onnx` and `ir` read the graphs of the two formats. Both use the operator names of ONNX. Only the outermost graph is read: graphs inside
//! operators such as `If` are not.

#[cfg(feature = "openvino")]
pub mod ir;
pub mod onnx;
mod rows;

use std::collections::HashMap;

/// The largest number of elements of a constant whose values are read, such as the axes of an operator.
const MAX_VALUES: usize = 256;

/// A graph, in the order of its computation.
#[derive(Debug, Default)]
pub struct Graph {
    /// The names of the inputs, with the extents of their axes after the first one. All have batch items along the first axis.
    pub inputs: Vec<(String, Extents)>,
    /// The names of the outputs.
    pub outputs: Vec<String>,
    /// The operators.
    pub nodes: Vec<Node>,
    /// The constants, such as weights, by name.
    pub constants: HashMap<String, Constant>,
}

/// Extents of axes; `None` if an extent is not known.
pub type Extents = Vec<Option<i64>>;

/// An operator of a graph.
#[derive(Debug, Default)]
pub struct Node {
    /// The name of the operator in ONNX.
    pub operator: String,
    /// The names of the values that it reads. An empty name is an input that is left out.
    pub inputs: Vec<String>,
    /// The names of the values that it computes.
    pub outputs: Vec<String>,
    /// The attributes that are numbers.
    pub attributes: HashMap<String, Vec<i64>>,
    /// The extents of the first output after its first axis, if the file has them.
    pub extents: Option<Extents>,
}

/// A value that does not depend on the inputs.
#[derive(Debug, Clone, Default)]
pub struct Constant {
    /// The extents; `None` if they are not known.
    pub dims: Option<Vec<i64>>,
    /// The values, if they are known.
    pub values: Option<Vec<f64>>,
    /// The first whole number that does not fit into 32 bits.
    pub beyond_32_bits: Option<i64>,
}

/// A whole number of a constant that does not fit into 32 bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LargeInteger<'a> {
    /// The operator that reads the constant.
    pub operator: &'a str,
    /// The number.
    pub value: i64,
    /// Whether the operator uses the number as the extent of a tensor. Such a tensor exceeds any memory.
    pub is_extent: bool,
}

impl Graph {
    /// Returns the first constant with a whole number beyond 32 bits that changes the result if an engine computes in 32 bits. A limit of
    /// `Slice` may have any value, and `Clip`, `Min` and `Max` may have the largest number of 64 bits as "no limit".
    pub fn integer_beyond_32_bits(&self) -> Option<LargeInteger<'_>> {
        const EXTENTS: [(&str, usize); 8] = [
            ("Expand", 1),
            ("Broadcast", 1),
            ("Reshape", 1),
            ("ConstantOfShape", 0),
            ("Tile", 1),
            ("Resize", 3),
            ("Pad", 1),
            ("OneHot", 1),
        ];
        self.nodes.iter().find_map(|node| {
            node.inputs.iter().enumerate().find_map(|(input_idx, name)| {
                let operator = &*node.operator;
                let value = self.constants.get(name)?.beyond_32_bits?;
                let is_unlimited = [i64::MIN, i64::MAX, -i64::MAX].contains(&value) && ["Clip", "Min", "Max"].contains(&operator);
                let is_harmless = is_unlimited || ["Slice", "StridedSlice"].contains(&operator);
                let is_extent = EXTENTS.contains(&(operator, input_idx)) || operator == "Range";
                (!is_harmless).then_some(LargeInteger { operator, value, is_extent })
            })
        })
    }
}
