//! Proves that the batch items of a graph are independent: the outputs of each item depend on that item only.
//!
//! The proof follows the batch axis through the graph. Each value is a constant, or has the batch items along its first axis ([`Value`]).
//! For each operator of a list, the module knows in which cases the items stay apart. An unknown operator, or an unclear case, ends the
//! proof without a result: the runtime then tests the model with a few runs.

use std::collections::HashMap;

use super::{Constant, Extents, Graph, Node};

/// An extent that the graph computes from the shape of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Extent {
    Batch,
    Known(i64),
    Unknown,
}

#[derive(Debug, Clone)]
enum Value {
    Constant(Constant),
    /// The first axis has the batch items. The extents are those of the other axes.
    Items(Extents),
    /// Extents of a value with batch items, which `Shape` computes.
    Shape(Vec<Extent>),
}

impl Graph {
    /// Returns whether the batch items of the graph are certainly independent.
    pub fn has_independent_rows(&self) -> bool {
        let mut known: HashMap<&str, Value> = HashMap::new();
        known.extend(self.constants.iter().map(|(name, constant)| (&**name, Value::Constant(constant.clone()))));
        known.extend(self.inputs.iter().map(|(name, extents)| (&**name, Value::Items(extents.clone()))));
        for node in &self.nodes {
            let inputs: Vec<Option<&Value>> = node.inputs.iter().map(|name| known.get(&**name)).collect();
            // The value of an operator outside the list is not known, and neither are the values that depend on it.
            if node.is_opaque || node.inputs.iter().zip(&inputs).any(|(name, value)| !name.is_empty() && value.is_none()) {
                continue;
            }
            let Some(values) = (Case { node, inputs }).evaluate() else { continue };
            known.extend(node.outputs.iter().map(|name| &**name).zip(values));
        }
        self.outputs.iter().all(|name| matches!(known.get(&**name), Some(Value::Items(_)))) && !self.outputs.is_empty()
    }
}

/// An operator with the values of its inputs.
struct Case<'a> {
    node: &'a Node,
    inputs: Vec<Option<&'a Value>>,
}

impl Case<'_> {
    /// Returns the values that the operator computes; `None` if they are not known.
    fn evaluate(&self) -> Option<Vec<Value>> {
        let operator = &*self.node.operator;
        if self.inputs.iter().flatten().all(|value| matches!(value, Value::Constant(_))) {
            return self.of_constants();
        }
        if self.inputs.iter().flatten().any(|value| matches!(value, Value::Shape(_))) && operator != "Reshape" && operator != "Resize" {
            return self.of_shapes();
        }
        let mut value = match operator {
            _ if ELEMENTWISE.contains(&operator) => self.elementwise()?,
            "BatchNormalization" | "InstanceNormalization" | "GroupNormalization" | "LRN" => self.with_constants(Some)?,
            "LayerNormalization" => self.on_axis("axis", -1)?,
            "Softmax" | "LogSoftmax" | "Hardmax" => self.on_axis("axis", if self.number("opset", 13) < 13 { 1 } else { -1 })?,
            "CumSum" | "TopK" => {
                let axis = if operator == "CumSum" { *self.numbers_of(1)?.first()? } else { self.number("axis", -1) };
                let mut extents = self.with_constants(Some)?;
                *extents.get_mut(self.inner_axis(axis, rank_of(self.items(0)?))?)? = None;
                return Some(vec![Value::Items(extents.clone()), Value::Items(extents)]);
            }
            "QuantizeLinear" | "DequantizeLinear" => {
                self.inner_axis(self.number("axis", 1), rank_of(self.items(0)?)).or_else(|| self.scalar_scale())?;
                self.with_constants(Some)?
            }
            "Conv" | "ConvInteger" | "ConvTranspose" | "MaxPool" | "AveragePool" | "LpPool" => self.window()?,
            "GlobalAveragePool" | "GlobalMaxPool" | "GlobalLpPool" => {
                self.items(0)?.iter().enumerate().map(|(idx, extent)| if idx == 0 { *extent } else { Some(1) }).collect()
            }
            "DepthToSpace" | "SpaceToDepth" => vec![None; self.items(0)?.len()],
            "MatMul" => self.product()?,
            "Gemm" => self.gemm()?,
            "Concat" => self.concat()?,
            "Transpose" => self.transpose()?,
            "Flatten" if self.inner_axis(self.number("axis", 1), rank_of(self.items(0)?)) == Some(0) => {
                vec![product_of(self.items(0)?)]
            }
            "Reshape" => self.reshape()?,
            "Squeeze" | "Unsqueeze" => self.squeeze()?,
            "Resize" | "Upsample" => self.resize()?,
            "Slice" => self.slice()?,
            "Pad" => self.pad()?,
            "Gather" => self.gather()?,
            "Split" => {
                let mut extents = self.items(0)?.clone();
                let axis = self.inner_axis(self.number("axis", 0), rank_of(&extents))?;
                extents[axis] = None;
                return Some(vec![Value::Items(extents); self.node.outputs.len()]);
            }
            "Shape" if !self.node.attributes.contains_key("start") && !self.node.attributes.contains_key("end") => {
                let inner = self.items(0)?.iter().map(|extent| extent.map_or(Extent::Unknown, Extent::Known));
                return Some(vec![Value::Shape([Extent::Batch].into_iter().chain(inner).collect())]);
            }
            "ArgMax" | "ArgMin" => self.reduced(&[self.number("axis", 0)])?,
            _ if operator.starts_with("Reduce") => self.reduce()?,
            _ => return None,
        };
        if let Some(extents) = &self.node.extents {
            value.clone_from(extents);
        }
        Some(vec![Value::Items(value)])
    }

    fn number(&self, name: &str, default: i64) -> i64 {
        self.node.attributes.get(name).and_then(|numbers| numbers.first()).copied().unwrap_or(default)
    }

    fn input(&self, input_idx: usize) -> Option<&Value> {
        *self.inputs.get(input_idx)?
    }

    /// Returns the extents of an input with batch items.
    fn items(&self, input_idx: usize) -> Option<&Extents> {
        if let Value::Items(extents) = self.input(input_idx)? { Some(extents) } else { None }
    }

    fn constant(&self, input_idx: usize) -> Option<&Constant> {
        if let Value::Constant(constant) = self.input(input_idx)? { Some(constant) } else { None }
    }

    /// Returns the whole numbers of a constant input.
    fn numbers_of(&self, input_idx: usize) -> Option<Vec<i64>> {
        Some(self.constant(input_idx)?.values.as_ref()?.iter().map(|value| *value as i64).collect())
    }

    /// Returns the position of an axis among the axes after the first one; `None` if it is the first axis.
    fn inner_axis(&self, axis: i64, rank: usize) -> Option<usize> {
        let axis = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(axis - 1).ok().filter(|inner| inner + 1 < rank)
    }

    /// Returns the result of `shape` for the first input, if all other inputs are constant.
    fn with_constants(&self, shape: impl FnOnce(Extents) -> Option<Extents>) -> Option<Extents> {
        if self.number("training_mode", 0) != 0
            || (1..self.inputs.len()).any(|idx| self.input(idx).is_some() && self.constant(idx).is_none())
        {
            return None;
        }
        shape(self.items(0)?.clone())
    }

    fn on_axis(&self, name: &str, default: i64) -> Option<Extents> {
        self.with_constants(Some).filter(|extents| self.inner_axis(self.number(name, default), rank_of(extents)).is_some())
    }

    fn scalar_scale(&self) -> Option<usize> {
        self.constant(1)?.dims.as_ref()?.iter().all(|extent| *extent == 1).then_some(0)
    }

    fn of_constants(&self) -> Option<Vec<Value>> {
        const RANDOM: [&str; 6] = ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"];
        if RANDOM.contains(&&*self.node.operator) || ["If", "Loop", "Scan"].contains(&&*self.node.operator) {
            return None;
        }
        let same = |constant: &Constant| constant.clone();
        let constant = match &*self.node.operator {
            "Cast" | "Identity" => same(self.constant(0)?),
            // The rank changes, the values stay.
            "Unsqueeze" | "Squeeze" => Constant { dims: None, values: self.constant(0)?.values.clone(), ..Constant::default() },
            _ => Constant::default(),
        };
        Some(vec![Value::Constant(constant); self.node.outputs.len()])
    }

    /// Evaluates the operators that computations of shapes usually have.
    fn of_shapes(&self) -> Option<Vec<Value>> {
        let shape = |input_idx: usize| match self.input(input_idx)? {
            Value::Shape(extents) => Some(extents.clone()),
            Value::Constant(constant) => {
                Some(constant.values.as_ref()?.iter().map(|value| Extent::Known(*value as i64)).collect::<Vec<_>>())
            }
            Value::Items(_) => None,
        };
        let extents = match &*self.node.operator {
            "Cast" | "Identity" | "Unsqueeze" | "Squeeze" => shape(0)?,
            "Concat" => (0..self.inputs.len()).map(shape).collect::<Option<Vec<_>>>()?.concat(),
            "Gather" => {
                let all = shape(0)?;
                let at = |idx: i64| all.get(usize::try_from(if idx < 0 { idx + all.len() as i64 } else { idx }).ok()?).copied();
                self.numbers_of(1)?.into_iter().map(at).collect::<Option<_>>()?
            }
            "Slice" => {
                let all = shape(0)?;
                let [begin, end, step] = [(1, "starts"), (2, "ends"), (4, "steps")].map(|(idx, name)| self.list(idx, name));
                if step.is_some_and(|step| step != [1]) {
                    return None;
                }
                let clamp = |at: i64| (if at < 0 { at.saturating_add(all.len() as i64) } else { at }).clamp(0, all.len() as i64) as usize;
                all.get(clamp(*begin?.first()?)..clamp(*end?.first()?))?.to_vec()
            }
            // Arithmetic with extents: an extent that is computed from the batch size is not known.
            "Add" | "Sub" | "Mul" | "Div" => {
                let (a, b) = (shape(0)?, shape(1)?);
                if a.iter().chain(&b).any(|extent| *extent == Extent::Batch) {
                    return None;
                }
                vec![Extent::Unknown; a.len().max(b.len())]
            }
            _ => return None,
        };
        Some(vec![Value::Shape(extents)])
    }

    /// Returns the numbers of an input, or of an attribute in older versions of the operator.
    fn list(&self, input_idx: usize, name: &str) -> Option<Vec<i64>> {
        self.numbers_of(input_idx).or_else(|| self.node.attributes.get(name).cloned())
    }

    /// Broadcasts the inputs. All inputs with batch items have the same rank, and a constant has at most one batch item.
    fn elementwise(&self) -> Option<Extents> {
        let rank = self
            .inputs
            .iter()
            .flatten()
            .find_map(|value| if let Value::Items(extents) = value { Some(extents.len() + 1) } else { None })?;
        let mut result: Extents = vec![Some(1); rank - 1];
        for value in self.inputs.iter().flatten() {
            let extents: Extents = match value {
                Value::Items(extents) if extents.len() + 1 == rank => extents.clone(),
                Value::Constant(constant) => {
                    let dims = constant.dims.as_ref()?;
                    if dims.len() > rank || (dims.len() == rank && dims[0] != 1) {
                        return None;
                    }
                    let inner = dims.iter().skip(usize::from(dims.len() == rank));
                    let missing = rank - 1 - inner.len();
                    std::iter::repeat_n(Some(1), missing).chain(inner.map(|extent| Some(*extent))).collect()
                }
                _ => return None,
            };
            for (result, extent) in result.iter_mut().zip(extents) {
                *result = match (*result, extent) {
                    (Some(1), other) | (other, Some(1)) => other,
                    (Some(a), Some(b)) if a == b => Some(a),
                    _ => None,
                };
            }
        }
        Some(result)
    }

    /// Convolutions and pools. The extents of the image are not computed.
    fn window(&self) -> Option<Extents> {
        let channels = match &*self.node.operator {
            "ConvTranspose" => None,
            operator if operator.starts_with("Conv") => self.constant(1)?.dims.as_ref()?.first().copied(),
            _ => *self.items(0)?.first()?,
        };
        self.with_constants(|extents| Some([channels].into_iter().chain(std::iter::repeat_n(None, extents.len() - 1)).collect()))
    }

    fn product(&self) -> Option<Extents> {
        let is_transposed = ["transA", "transB"].iter().any(|name| self.number(name, 0) != 0);
        match (self.input(0)?, self.input(1)?) {
            (Value::Items(a), Value::Items(b)) if a.len() == b.len() && a.len() >= 2 => {
                let mut extents = vec![None; a.len()];
                if !is_transposed {
                    extents[a.len() - 2] = a[a.len() - 2];
                    extents[a.len() - 1] = b[b.len() - 1];
                }
                Some(extents)
            }
            (Value::Items(a), Value::Constant(b)) => {
                let dims = b.dims.as_ref()?;
                let (rank, n_dims) = (rank_of(a), dims.len());
                let keeps_items = n_dims == 2 || (n_dims > 2 && (n_dims < rank || (n_dims == rank && dims[0] == 1)));
                if !keeps_items || (self.number("transA", 0) != 0 && rank < 3) || (n_dims > 2 && rank < 3) {
                    return None;
                }
                let mut extents = a.clone();
                if is_transposed || n_dims > 2 {
                    extents.fill(None);
                } else {
                    *extents.last_mut()? = dims.last().copied();
                }
                Some(extents)
            }
            (Value::Constant(a), Value::Items(b)) => {
                let dims = a.dims.as_ref()?;
                (b.len() >= 2 && dims.len() >= 2 && (dims.len() <= b.len() || (dims.len() == b.len() + 1 && dims[0] == 1)))
                    .then(|| vec![None; b.len()])
            }
            _ => None,
        }
    }

    fn gemm(&self) -> Option<Extents> {
        let is_bias = |dims: &Vec<i64>| dims.len() <= 1 || dims[0] == 1;
        if self.number("transA", 0) != 0
            || self.items(0)?.len() != 1
            || (self.input(2).is_some() && !self.constant(2)?.dims.as_ref().is_some_and(is_bias))
        {
            return None;
        }
        let dims = self.constant(1)?.dims.as_ref()?;
        Some(vec![dims.get(usize::from(self.number("transB", 0) == 0)).copied()])
    }

    fn concat(&self) -> Option<Extents> {
        let all: Vec<&Extents> = (0..self.inputs.len()).map(|idx| self.items(idx)).collect::<Option<_>>()?;
        let mut extents = (*all.first()?).clone();
        let axis = self.inner_axis(self.number("axis", 0), rank_of(&extents))?;
        if all.iter().any(|other| other.len() != extents.len()) {
            return None;
        }
        extents[axis] = all.iter().map(|extents| extents[axis]).sum();
        Some(extents)
    }

    fn transpose(&self) -> Option<Extents> {
        let (extents, order) = (self.items(0)?, self.list(1, "perm")?);
        let inner = |axis: &i64| extents.get(usize::try_from(axis - 1).ok()?).copied();
        if *order.first()? == 0 && order.len() == rank_of(extents) { order[1..].iter().map(inner).collect() } else { None }
    }

    /// The first axis stays if the new shape names it: as 0, as the computed batch size, or as the rest (-1) of known extents.
    fn reshape(&self) -> Option<Extents> {
        let own = self.items(0)?;
        let copies_zero = self.number("allowzero", 0) == 0;
        let wanted: Vec<Extent> = match self.input(1) {
            Some(Value::Shape(extents)) => extents.clone(),
            _ => self.list(1, "shape")?.into_iter().map(Extent::Known).collect(),
        };
        let inner = wanted.get(1..)?;
        let known = |(idx, extent): (usize, &Extent)| match *extent {
            Extent::Known(0) if copies_zero => own.get(idx).copied().flatten(),
            Extent::Known(extent) if extent > 0 => Some(extent),
            _ => None,
        };
        let mut extents: Extents = inner.iter().enumerate().map(known).collect();
        if inner.contains(&Extent::Batch) {
            return None;
        }
        match wanted.first()? {
            Extent::Batch => {}
            Extent::Known(0) if copies_zero => {}
            Extent::Known(-1) => return (product_of(&extents)? == product_of(own)?).then_some(extents),
            Extent::Known(_) | Extent::Unknown => return None,
        }
        let rest: Vec<usize> = (0..inner.len()).filter(|idx| inner[*idx] == Extent::Known(-1)).collect();
        if let ([rest], Some(all)) = (&rest[..], product_of(own)) {
            let others: Option<i64> = extents.iter().enumerate().filter(|(idx, _)| idx != rest).map(|(_, extent)| *extent).product();
            extents[*rest] = others.filter(|others| *others > 0).map(|others| all / others);
        }
        Some(extents)
    }

    fn squeeze(&self) -> Option<Extents> {
        let mut extents = self.items(0)?.clone();
        let axes = self.list(1, "axes")?;
        let adds = self.node.operator == "Unsqueeze";
        let rank = rank_of(&extents) + if adds { axes.len() } else { 0 };
        let mut axes = axes.into_iter().map(|axis| self.inner_axis(axis, rank)).collect::<Option<Vec<_>>>()?;
        axes.sort_unstable();
        if adds {
            axes.iter().try_for_each(|axis| (*axis <= extents.len()).then(|| extents.insert(*axis, Some(1))))?;
        } else {
            for axis in axes.into_iter().rev() {
                if axis >= extents.len() {
                    return None;
                }
                extents.remove(axis);
            }
        }
        Some(extents)
    }

    fn reduce(&self) -> Option<Extents> {
        let axes = self.list(1, "axes")?;
        if axes.is_empty() { None } else { self.reduced(&axes) }
    }

    fn reduced(&self, axes: &[i64]) -> Option<Extents> {
        let mut extents = self.items(0)?.clone();
        let rank = rank_of(&extents);
        let mut axes = axes.iter().map(|axis| self.inner_axis(*axis, rank)).collect::<Option<Vec<_>>>()?;
        axes.sort_unstable();
        for axis in axes.into_iter().rev() {
            match self.number("keepdims", 1) {
                0 => _ = extents.remove(axis),
                _ => extents[axis] = Some(1),
            }
        }
        Some(extents)
    }

    fn resize(&self) -> Option<Extents> {
        let n_axes = self.items(0)?.len();
        let keeps_items = match (self.input(3), self.node.operator == "Upsample") {
            (Some(Value::Shape(sizes)), _) => sizes.len() == n_axes + 1 && sizes[0] == Extent::Batch,
            (Some(_), _) => false,
            (None, is_upsample) => {
                let scales = self.constant(if is_upsample { 1 } else { 2 })?.values.as_ref()?;
                scales.len() == n_axes + 1 && scales[0] == 1.0
            }
        };
        (keeps_items && !self.node.attributes.contains_key("axes")).then(|| vec![None; n_axes])
    }

    fn slice(&self) -> Option<Extents> {
        let mut extents = self.items(0)?.clone();
        let rank = rank_of(&extents);
        let n_axes = self.list(1, "starts")?.len();
        // Without axes, the slice begins with the first axis.
        for axis in self.list(3, "axes").filter(|axes| axes.len() == n_axes)? {
            extents[self.inner_axis(axis, rank)?] = None;
        }
        (2..self.inputs.len()).all(|idx| self.input(idx).is_none() || self.constant(idx).is_some()).then_some(extents)
    }

    fn pad(&self) -> Option<Extents> {
        let n_axes = self.items(0)?.len();
        let pads = self.list(1, "pads")?;
        let keeps_items = self.input(3).is_none() && pads.len() == 2 * (n_axes + 1) && pads[0] == 0 && pads[n_axes + 1] == 0;
        keeps_items.then(|| vec![None; n_axes])
    }

    fn gather(&self) -> Option<Extents> {
        let axis = self.number("axis", 0);
        match (self.input(0)?, self.input(1)?) {
            (Value::Items(extents), Value::Constant(indices)) => {
                let axis = self.inner_axis(axis, rank_of(extents))?;
                let picked = indices.dims.as_ref()?.iter().map(|extent| Some(*extent));
                Some(extents[..axis].iter().copied().chain(picked).chain(extents[axis + 1..].iter().copied()).collect())
            }
            // A table with one row for each index.
            (Value::Constant(table), Value::Items(indices)) if axis == 0 => {
                Some(indices.iter().copied().chain(table.dims.as_ref()?.iter().skip(1).map(|extent| Some(*extent))).collect())
            }
            _ => None,
        }
    }
}

fn rank_of(extents: &[Option<i64>]) -> usize {
    extents.len() + 1
}

fn product_of(extents: &[Option<i64>]) -> Option<i64> {
    extents.iter().try_fold(1_i64, |product, extent| product.checked_mul((*extent)?))
}

/// Operators that compute each element from the elements at the same position of their inputs, which are broadcast.
const ELEMENTWISE: [&str; 78] = [
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "And",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BitShift",
    "Cast",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "Div",
    "Dropout",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "FakeQuantize",
    "Floor",
    "Gelu",
    "Greater",
    "GreaterOrEqual",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "Max",
    "Mean",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "PRelu",
    "Pow",
    "Reciprocal",
    "Relu",
    "Round",
    "Select",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "SquaredDifference",
    "Sub",
    "Sum",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Where",
    "Xor",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "CastLike",
    "HSigmoid",
    "HSwish",
    "SoftPlus",
    "SoftSign",
];
