//! A model and its ports: names, element types, shapes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Error, ErrorKind, Result};
use crate::tensor::{ElementType, MAX_RANK, Shape};

/// One extent of a port's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Known when the model is compiled.
    Fixed(usize),
    /// Known when a tensor is set.
    Dynamic,
}

/// A shape in which some extents may be open.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PartialShape(Vec<Dim>);

impl PartialShape {
    /// A shape of these extents.
    ///
    /// # Errors
    /// If there are more than [`MAX_RANK`].
    pub fn new(dims: Vec<Dim>) -> Result<Self> {
        if dims.len() > MAX_RANK {
            return Err(Error::new(ErrorKind::Model, format!("a port with {} axes: at most {MAX_RANK} are supported", dims.len())));
        }
        Ok(Self(dims))
    }

    /// The extents.
    pub fn dims(&self) -> &[Dim] {
        &self.0
    }

    /// The shape, if nothing is open.
    pub fn to_static(&self) -> Option<Shape> {
        self.with_dynamic(|_| None)
    }

    /// The shape with the open extents replaced; `None` as soon as one is not.
    pub fn with_dynamic(&self, mut extent: impl FnMut(usize) -> Option<usize>) -> Option<Shape> {
        let mut dims = [0; MAX_RANK];
        for (axis, dim) in self.0.iter().enumerate() {
            dims[axis] = match dim {
                Dim::Fixed(fixed) => *fixed,
                Dim::Dynamic => extent(axis)?,
            };
        }
        Some(Shape::new(&dims[..self.0.len()]))
    }

    /// Whether a tensor of this shape fits.
    pub fn admits(&self, shape: &[usize]) -> bool {
        shape.len() == self.0.len() && self.0.iter().zip(shape).all(|(dim, &extent)| *dim == Dim::Dynamic || *dim == Dim::Fixed(extent))
    }
}

impl From<Shape> for PartialShape {
    fn from(shape: Shape) -> Self {
        Self(shape.iter().map(|&extent| Dim::Fixed(extent)).collect())
    }
}

impl fmt::Display for PartialShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (axis, dim) in self.0.iter().enumerate() {
            let comma = if axis > 0 { ", " } else { "" };
            match dim {
                Dim::Fixed(extent) => write!(f, "{comma}{extent}")?,
                Dim::Dynamic => write!(f, "{comma}?")?,
            }
        }
        f.write_str("]")
    }
}

/// An input or output of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The tensor names, the first one for display.
    pub names: Vec<Arc<str>>,
    /// The only element type that its tensors may have.
    pub element: ElementType,
    /// The shapes that its tensors may have.
    pub shape: PartialShape,
}

impl Port {
    /// The name for display.
    pub fn name(&self) -> &str {
        self.names.first().map_or("(no name)", |name| name)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {} {}", self.name(), self.shape, self.element)
    }
}

/// How a caller names a port.
#[derive(Debug, Clone, Copy)]
pub enum PortKey<'a> {
    /// By any of its tensor names.
    Name(&'a str),
    /// By position.
    Index(usize),
    /// By the port itself.
    Port(&'a Port),
    /// The only one.
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

impl PortKey<'_> {
    /// The index of the port among `ports`, which are "input"s or "output"s.
    pub(crate) fn find(self, kind: &str, ports: &[Port]) -> Result<usize> {
        let names = || ports.iter().map(|port| format!("`{}`", port.name())).collect::<Vec<_>>().join(", ");
        let found = match self {
            Self::Name(name) => ports.iter().position(|port| port.names.iter().any(|own| **own == *name)),
            Self::Port(port) => ports.iter().position(|own| own == port),
            Self::Index(index) => (index < ports.len()).then_some(index),
            Self::Only if ports.len() == 1 => Some(0),
            Self::Only => {
                return Err(Error::new(ErrorKind::NotFound, format!("the model has {} {kind}s: say which of {}", ports.len(), names())));
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

/// What a model says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelInfo {
    /// Its inputs, in order.
    pub inputs: Vec<Port>,
    /// Its outputs, in order.
    pub outputs: Vec<Port>,
    /// Key and value pairs that the exporter left in the file.
    pub metadata: BTreeMap<String, String>,
}

/// Where a model comes from.
#[derive(Debug, Clone)]
pub enum ModelSource {
    /// A file, in any format that a device reads.
    File(PathBuf),
    /// Ports only: for devices that compute nothing.
    Ports,
}

/// A model that was read but is not compiled. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Model {
    source: Arc<ModelSource>,
    info: Arc<ModelInfo>,
}

impl Model {
    /// A model of a file; devices make it when they read one.
    pub fn from_file(path: &Path, info: ModelInfo) -> Self {
        Self { source: Arc::new(ModelSource::File(path.to_owned())), info: Arc::new(info) }
    }

    /// A model that is ports alone.
    pub fn from_ports(info: ModelInfo) -> Self {
        Self { source: Arc::new(ModelSource::Ports), info: Arc::new(info) }
    }

    /// Where it comes from.
    pub fn source(&self) -> &ModelSource {
        &self.source
    }

    /// Ports and metadata.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// What to call it in messages: the path, or the name of its first input.
    pub fn name(&self) -> String {
        match &*self.source {
            ModelSource::File(path) => path.display().to_string(),
            ModelSource::Ports => "model of ports".to_owned(),
        }
    }
}
