//! Ports of a model: names, element types, partial shapes, and the keys with which callers select a port.

use std::borrow::Cow;
use std::fmt;
use std::ops::{RangeFull, RangeInclusive};
use std::str::FromStr;
use std::sync::Arc;

use super::{Error, ErrorKind, Result};
use crate::tensor::{ElementType, MAX_RANK, Shape};

/// An input or output of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Port {
    /// The names of the tensor in the model. Messages show the first name.
    #[cfg_attr(feature = "serde", serde(with = "crate::formats::texts"))]
    pub names: Vec<Arc<str>>,
    /// The element type of tensors for this port.
    pub element: ElementType,
    /// The partial shape of tensors for this port.
    pub shape: PartialShape,
    /// The meaning of the axes, if the caller declared it with [`Model::with_axes`](super::Model::with_axes).
    #[cfg_attr(feature = "serde", serde(default))]
    pub axes: Option<Axes>,
}

impl Port {
    /// Creates a port with one name.
    pub fn new(name: &str, element: ElementType, shape: impl Into<PartialShape>) -> Self {
        Self { names: vec![name.into()], element, shape: shape.into(), axes: None }
    }

    /// Returns the first name, which messages show.
    pub fn name(&self) -> &str {
        self.names.first().map_or("(no name)", |name| name)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {} {}", self.name(), self.shape, self.element)
    }
}

/// One extent of a partial shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A fixed extent.
    Fixed(usize),
    /// A dynamic extent of at least `min` and at most `max`.
    Range {
        /// Smallest extent.
        min: usize,
        /// Largest extent.
        max: usize,
    },
    /// A dynamic extent without bounds.
    Dynamic,
}

impl Dim {
    /// Returns whether a tensor may have this extent on the axis.
    pub fn admits(&self, extent: usize) -> bool {
        match *self {
            Self::Fixed(fixed) => extent == fixed,
            Self::Range { min, max } => (min..=max).contains(&extent),
            Self::Dynamic => true,
        }
    }

    /// Returns whether the extent is dynamic.
    pub fn is_open(&self) -> bool {
        !matches!(self, Self::Fixed(_))
    }
}

impl From<usize> for Dim {
    fn from(extent: usize) -> Self {
        Self::Fixed(extent)
    }
}

impl From<RangeInclusive<usize>> for Dim {
    fn from(range: RangeInclusive<usize>) -> Self {
        Self::Range { min: *range.start(), max: *range.end() }
    }
}

impl From<RangeFull> for Dim {
    fn from(_any: RangeFull) -> Self {
        Self::Dynamic
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(extent) => write!(f, "{extent}"),
            Self::Range { min, max } => write!(f, "{min}..{max}"),
            Self::Dynamic => f.write_str("?"),
        }
    }
}

/// A shape in which some extents may be dynamic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PartialShape(Vec<Dim>);

impl PartialShape {
    /// Creates a partial shape with these extents.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Model`] if there are more than [`MAX_RANK`] axes, and [`ErrorKind::Tensor`] if a range is empty.
    pub fn new(dims: Vec<Dim>) -> Result<Self> {
        if dims.len() > MAX_RANK {
            return Err(Error::new(ErrorKind::Model, format!("shape of a port: expected at most {MAX_RANK} axes, got {}", dims.len())));
        }
        let shape = Self(dims);
        shape.check()?;
        Ok(shape)
    }

    /// Checks that no range is empty.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Tensor`] if a range is empty, as in `8..=2`.
    pub fn check(&self) -> Result<()> {
        let is_empty = |dim: &Dim| matches!(dim, Dim::Range { min, max } if min > max);
        match self.0.iter().position(is_empty) {
            None => Ok(()),
            Some(axis) => {
                let message = format!("shape {self}, axis {axis}: expected a minimum that is at most the maximum, got {}", self.0[axis]);
                Err(Error::new(ErrorKind::Tensor, message))
            }
        }
    }

    /// Returns the extents.
    pub fn dims(&self) -> &[Dim] {
        &self.0
    }

    /// Returns a partial shape with the same number of axes, in which all extents are dynamic.
    pub fn all_open(&self) -> Self {
        Self(vec![Dim::Dynamic; self.0.len()])
    }

    /// Returns the shape, if no extent is dynamic; otherwise `None`.
    pub fn to_static(&self) -> Option<Shape> {
        self.with_dynamic(|_| None)
    }

    /// Returns the shape in which each dynamic axis has the extent that `extent` returns for it. Returns `None` if `extent` returns `None`
    /// for any axis.
    pub fn with_dynamic(&self, mut extent: impl FnMut(usize) -> Option<usize>) -> Option<Shape> {
        let mut dims = [0; MAX_RANK];
        for (axis, dim) in self.0.iter().enumerate() {
            dims[axis] = match dim {
                Dim::Fixed(fixed) => *fixed,
                Dim::Range { .. } | Dim::Dynamic => extent(axis)?,
            };
        }
        Some(Shape::new(&dims[..self.0.len()]))
    }

    /// Returns whether a tensor may have this shape.
    pub fn admits(&self, shape: &[usize]) -> bool {
        shape.len() == self.0.len() && self.0.iter().zip(shape).all(|(dim, &extent)| dim.admits(extent))
    }
}

impl From<Shape> for PartialShape {
    fn from(shape: Shape) -> Self {
        Self(shape.iter().map(|&extent| Dim::Fixed(extent)).collect())
    }
}

/// Write `PartialShape::from([Dim::from(1..=8), 3.into(), (..).into()])`, or `PartialShape::from([1, 3, 224, 224])` if all extents are
/// fixed.
impl<D: Into<Dim>, const N: usize> From<[D; N]> for PartialShape {
    fn from(dims: [D; N]) -> Self {
        const { assert!(N <= MAX_RANK, "a port has at most MAX_RANK axes") };
        Self(dims.into_iter().map(Into::into).collect())
    }
}

impl fmt::Display for PartialShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (axis, dim) in self.0.iter().enumerate() {
            let comma = if axis > 0 { ", " } else { "" };
            write!(f, "{comma}{dim}")?;
        }
        f.write_str("]")
    }
}

/// The meaning of the axes of a port: one letter for each axis, as in `NCHW`. `?` stands for an axis without a declared meaning, and `...`
/// for any number of axes without a declared meaning.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Axes(String);

impl Axes {
    /// Returns the index of the batch axis `N`; `None` if there is none.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Tensor`] if the declared axes do not fit this number of axes.
    pub fn batch_axis(&self, rank: usize) -> Result<Option<usize>> {
        let (front, back) = self.0.split_once("...").unwrap_or((&self.0, ""));
        let n_named = front.chars().count() + back.chars().count();
        let has_gap = self.0.contains("...");
        if n_named > rank || (!has_gap && n_named < rank) {
            return Err(Error::new(ErrorKind::Tensor, format!("axes `{self}`: expected {rank} axes, got {n_named}")));
        }
        let in_back = || back.chars().position(|axis| axis == 'N').map(|at| rank - back.chars().count() + at);
        Ok(front.chars().position(|axis| axis == 'N').or_else(in_back))
    }
}

impl FromStr for Axes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let letters: Vec<char> = text.replacen("...", "", 1).chars().collect();
        let unknown = letters.iter().find(|letter| !letter.is_ascii_uppercase() && **letter != '?');
        let twice = letters.iter().enumerate().find(|(at, letter)| **letter != '?' && letters[..*at].contains(letter));
        if let Some(letter) = unknown.or(twice.map(|(_, letter)| letter)) {
            let message =
                format!("axes `{text}`: `{letter}` is unexpected; a capital letter for each axis, each once, as in `NCHW` or `N...`");
            return Err(Error::new(ErrorKind::Config, message));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A key that selects an input or output.
#[derive(Debug, Clone, Copy)]
pub enum PortKey<'a> {
    /// The port with this tensor name.
    Name(&'a str),
    /// The port at this index.
    Index(usize),
    /// The port that equals this port.
    Port(&'a Port),
    /// The only port, if there is exactly one.
    Only,
}

impl<'a> From<&'a str> for PortKey<'a> {
    fn from(name: &'a str) -> Self {
        Self::Name(name)
    }
}

impl From<usize> for PortKey<'_> {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

impl<'a> From<&'a Port> for PortKey<'a> {
    fn from(port: &'a Port) -> Self {
        Self::Port(port)
    }
}

impl From<()> for PortKey<'_> {
    fn from((): ()) -> Self {
        Self::Only
    }
}

impl<'a> From<&'a String> for PortKey<'a> {
    fn from(name: &'a String) -> Self {
        Self::Name(name)
    }
}

/// A type that can be a key in a list or map of inputs.
pub trait AsPortKey {
    /// Returns the value as a key.
    fn as_port_key(&self) -> PortKey<'_>;
}

impl AsPortKey for PortKey<'_> {
    fn as_port_key(&self) -> PortKey<'_> {
        *self
    }
}

impl AsPortKey for &str {
    fn as_port_key(&self) -> PortKey<'_> {
        PortKey::Name(self)
    }
}

impl AsPortKey for String {
    fn as_port_key(&self) -> PortKey<'_> {
        PortKey::Name(self)
    }
}

impl AsPortKey for usize {
    fn as_port_key(&self) -> PortKey<'_> {
        PortKey::Index(*self)
    }
}

impl AsPortKey for &Port {
    fn as_port_key(&self) -> PortKey<'_> {
        PortKey::Port(self)
    }
}

impl AsPortKey for () {
    fn as_port_key(&self) -> PortKey<'_> {
        PortKey::Only
    }
}

impl PortKey<'_> {
    /// Returns the index of the selected port in `ports`. `kind` is "input" or "output", for messages.
    pub(crate) fn find(self, kind: &str, ports: &[Port]) -> Result<usize> {
        self.find_in(kind, ports.iter())
    }

    /// Same as [`PortKey::find`], but takes an iterator, for ports that are not in one slice.
    pub(crate) fn find_in<'p>(self, kind: &str, mut ports: impl ExactSizeIterator<Item = &'p Port> + Clone) -> Result<usize> {
        let all = ports.clone();
        let names = || all.clone().map(|port| format!("`{}`", port.name())).collect::<Vec<_>>().join(", ");
        let n_ports = ports.len();
        let found = match self {
            Self::Name(name) => ports.position(|port| port.names.iter().any(|own| **own == *name)),
            Self::Port(port) => ports.position(|own| own == port),
            Self::Index(index) => (index < n_ports).then_some(index),
            Self::Only if n_ports == 1 => Some(0),
            Self::Only => {
                return Err(Error::new(ErrorKind::NotFound, format!("the model has {n_ports} {kind}s: select one of {}", names())));
            }
        };
        found.ok_or_else(|| {
            let wanted: Cow<'_, str> = match self {
                Self::Name(name) => format!("`{name}`").into(),
                Self::Index(index) => format!("number {index}").into(),
                Self::Port(port) => format!("{port}").into(),
                Self::Only => "".into(),
            };
            Error::new(ErrorKind::NotFound, format!("no {kind} {wanted}: the model has {}", names()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_admits_what_its_extents_admit() {
        let shape = PartialShape::from([Dim::from(1..=4), 3.into(), (..).into()]);
        assert_eq!(shape.to_string(), "[1..4, 3, ?]");
        assert!(shape.admits(&[1, 3, 0]) && shape.admits(&[4, 3, 99]));
        for other in [&[0, 3, 1][..], &[5, 3, 1], &[1, 2, 1], &[1, 3], &[1, 3, 1, 1]] {
            assert!(!shape.admits(other), "{other:?}");
        }
        assert_eq!((shape.to_static(), PartialShape::from([2, 3]).to_static()), (None, Some(Shape::from([2, 3]))));
    }

    #[test]
    fn axes_say_where_the_batch_is() {
        let batch_axis = |axes: &str, rank| axes.parse::<Axes>().unwrap().batch_axis(rank);
        let cases = [
            ("NCHW", 4, Some(0)),
            ("CN", 2, Some(1)),
            ("N...", 1, Some(0)),
            ("?...N", 3, Some(2)),
            ("...CN", 4, Some(3)),
            ("DCHW", 4, None),
            ("", 0, None),
        ];
        for (axes, rank, expected) in cases {
            assert_eq!(batch_axis(axes, rank).unwrap(), expected, "{axes}");
        }
        for rank in [3, 5] {
            assert!(batch_axis("NCHW", rank).unwrap_err().to_string().contains(&format!("expected {rank} axes, got 4")));
        }
        assert!(batch_axis("C...HW", 2).unwrap_err().to_string().contains("expected 2 axes, got 3"));
        assert_eq!(batch_axis("N...", 5).unwrap(), Some(0), "`...` stands for any number of axes");
        for bad in ["NN", "nchw", "N.C", "N......C"] {
            assert_eq!(bad.parse::<Axes>().unwrap_err().kind(), ErrorKind::Config, "{bad}");
        }
    }
}
