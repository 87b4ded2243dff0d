//! Graphs of models, as far as roiflow must know them: whether batch items are independent (`rows`), constants that an engine would narrow
//! ([`Graph::integer_beyond_32_bits`]), and values that must not change during a run (`counted`).
//!
//! `onnx` and `ir` read the graphs of the two formats. Both use the operator names of ONNX.

#[cfg(any(feature = "openvino", feature = "onnxruntime"))]
mod counted;
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
    /// The graphs of the model's own operators (functions).
    pub functions: Vec<Graph>,
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
    /// Whether the operator is not one of ONNX, or differs from it. The name and the inputs are known, but not what it computes.
    pub is_opaque: bool,
    /// The graphs inside the operator, such as the branches of `If`. They may read all values that are computed before the operator.
    pub bodies: Vec<Graph>,
}

/// A value that does not depend on the inputs.
#[derive(Debug, Clone, Default)]
pub struct Constant {
    /// The extents; `None` if they are not known.
    pub dims: Option<Vec<i64>>,
    /// The values, if they are known.
    pub values: Option<Vec<f64>>,
    /// A whole number that does not fit into 32 bits, if there is one.
    pub beyond_32_bits: Option<i64>,
}

/// A whole number of a constant that does not fit into 32 bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LargeInteger<'a> {
    /// The operator that reads the constant.
    pub operator: &'a str,
    /// The number.
    pub value: i64,
}

/// The inputs that are limits and may have any value, and the operators that only move the values of their first input.
const LIMITS: [(&str, usize); 6] =
    [("Slice", 1), ("Slice", 2), ("StridedSlice", 1), ("StridedSlice", 2), ("Loop", 0), ("NonMaxSuppression", 2)];
const MOVES_FIRST: [&str; 9] = ["Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Slice", "StridedSlice", "Gather", "Transpose"];

impl Graph {
    /// Returns the first constant with a whole number beyond 32 bits that changes the result if an engine computes in 32 bits. A limit of
    /// `Slice`, or of a number of boxes or iterations, may have any value. `Clip`, `Min` and `Max` may have the largest number of 64 bits as
    /// "no limit".
    ///
    /// A number may pass through operators such as `Unsqueeze` that only move it. The operator that uses it then decides. `narrows` has the
    /// operators among them that the engine computes in 32 bits.
    pub fn integer_beyond_32_bits(&self, narrows: &[&str]) -> Option<LargeInteger<'_>> {
        let found = self.large_values(&HashMap::new(), narrows).and_then(|large| match self.large_output(&large) {
            Some(value) => Err(LargeInteger { operator: "Result", value }),
            None => Ok(large),
        });
        let in_functions = || self.functions.iter().find_map(|function| function.large_values(&HashMap::new(), narrows).err());
        found.err().or_else(in_functions)
    }

    /// Returns the values of this graph, and those of `outer` that it may read, that have such a number.
    ///
    /// # Errors
    /// Returns the first number whose operator does not allow it.
    fn large_values<'a>(&'a self, outer: &HashMap<&'a str, i64>, narrows: &[&str]) -> Result<HashMap<&'a str, i64>, LargeInteger<'a>> {
        let mut large = outer.clone();
        large.extend(self.constants.iter().filter_map(|(name, constant)| Some((&**name, constant.beyond_32_bits?))));
        for node in &self.nodes {
            let operator = &*node.operator;
            for body in &node.bodies {
                if let Some(value) = body.large_output(&body.large_values(&large, narrows)?) {
                    large.extend(node.outputs.iter().map(|output| (&**output, value)));
                }
            }
            for (input_idx, name) in node.inputs.iter().enumerate() {
                let Some(&value) = large.get(&**name) else { continue };
                let is_unlimited = is_limit(value) && ["Clip", "Min", "Max"].contains(&operator);
                let moves = operator == "Concat" || (input_idx == 0 && MOVES_FIRST.contains(&operator));
                if moves && !narrows.contains(&operator) {
                    large.extend(node.outputs.iter().map(|output| (&**output, value)));
                } else if !is_unlimited && !LIMITS.contains(&(operator, input_idx)) {
                    return Err(LargeInteger { operator, value });
                }
            }
        }
        Ok(large)
    }

    fn large_output(&self, large: &HashMap<&str, i64>) -> Option<i64> {
        self.outputs.iter().find_map(|name| large.get(&**name).copied())
    }
}

/// Returns whether models use this number as "no limit".
fn is_limit(value: i64) -> bool {
    [i64::MIN, i64::MAX, -i64::MAX].contains(&value)
}

/// Returns a number that does not fit into 32 bits, if there is one. Prefers a number that is no limit.
fn beyond_32_bits(values: &[i64]) -> Option<i64> {
    let beyond = || values.iter().copied().filter(|value| i32::try_from(*value).is_err());
    beyond().find(|value| !is_limit(*value)).or_else(|| beyond().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(operator: &str, inputs: &[&str], output: &str) -> Node {
        let inputs = inputs.iter().map(|name| (*name).to_owned()).collect();
        Node { operator: operator.to_owned(), inputs, outputs: vec![output.to_owned()], ..Node::default() }
    }

    #[test]
    fn the_operator_that_uses_a_large_integer_decides() {
        let found = |nodes: Vec<Node>, values: &[i64], narrows: &[&str]| {
            let constant = |value: &i64| Constant { beyond_32_bits: beyond_32_bits(&[1, *value]), ..Constant::default() };
            let constants = values.iter().enumerate().map(|(idx, value)| (format!("c{idx}"), constant(value))).collect();
            let graph = Graph { nodes, constants, outputs: vec!["y".to_owned()], ..Graph::default() };
            graph.integer_beyond_32_bits(narrows).map(|large| large.operator.to_owned())
        };
        let limit = |last: Node| {
            vec![node("Unsqueeze", &["c0", "axes"], "a"), node("Concat", &["zero", "a"], "b"), node("Cast", &["b"], "end"), last]
        };
        assert_eq!(found(limit(node("Slice", &["x", "zero", "end"], "y")), &[i64::MAX], &[]), None);
        assert_eq!(found(limit(node("Slice", &["x", "zero", "end"], "y")), &[i64::MAX], &["Cast"]), Some("Cast".to_owned()));
        assert_eq!(found(limit(node("Add", &["x", "end"], "y")), &[i64::MAX], &[]), Some("Add".to_owned()));
        assert_eq!(found(limit(node("Slice", &["end", "zero", "zero"], "y")), &[1 << 40], &[]), Some("Result".to_owned()));
        assert_eq!(found(vec![node("Min", &["x", "c0"], "y")], &[i64::MAX], &[]), None);
        let two = vec![node("Min", &["x", "c0"], "z"), node("Expand", &["z", "c1"], "y")];
        assert_eq!(found(two, &[i64::MAX, 1 << 41], &[]), Some("Expand".to_owned()));
        let of_body = |body: Graph, last: Node| vec![Node { bodies: vec![body], ..node("If", &["x"], "inner") }, last];
        let body = |nodes: Vec<Node>, output: &str| Graph { nodes, outputs: vec![output.to_owned()], ..Graph::default() };
        let adds = body(vec![node("Add", &["x", "c0"], "z")], "z");
        assert_eq!(found(of_body(adds, node("Relu", &["inner"], "y")), &[i64::MAX], &[]), Some("Add".to_owned()));
        let moves = || body(vec![node("Identity", &["c0"], "z")], "z");
        assert_eq!(found(of_body(moves(), node("Slice", &["x", "zero", "inner"], "y")), &[1 << 40], &[]), None);
        assert_eq!(found(of_body(moves(), node("Mul", &["x", "inner"], "y")), &[1 << 40], &[]), Some("Mul".to_owned()));
        assert_eq!(beyond_32_bits(&[1, i64::MAX, 1 << 40]), Some(1 << 40));
        assert_eq!(beyond_32_bits(&[i32::MAX.into(), i32::MIN.into()]), None);
    }
}
