//! A model on inference servers, as the runtime uses it.

use std::sync::Arc;

use tokio::time::Instant;

use super::call::Call;
use super::datatype::info_of;
use super::failure::Failure;
use super::options::Options;
use super::request::RemoteRequest;
use super::servers::{Servers, wait_for};
use super::shared_memory::SharedOutputs;
use crate::runtime::device::{DeviceModel, DeviceRequest, DeviceStep};
use crate::runtime::executor::Executors;
use crate::runtime::{Config, Dim, Error, ErrorKind, Ignored, Model, ModelInfo, ModelSource, PartialShape, Port, Precision, Result};
use crate::tensor::Shape;

/// Default number of concurrent calls: enough to keep the server busy during transfers, and few enough to keep the queue of a server short.
const N_REQUESTS: usize = 4;
/// Maximum size of the inputs of a trial call.
const MAX_TRIAL_BYTES: usize = 256 << 20;

/// The parts of a model that its requests share.
pub(crate) struct Shared {
    pub(crate) servers: Servers,
    pub(crate) info: ModelInfo,
    pub(crate) profiling: bool,
    /// Whether runs of this model must not overlap: the option `exclusive-requests`.
    pub(crate) is_exclusive: bool,
}

pub(crate) struct RemoteModel {
    shared: Arc<Shared>,
    steps: Vec<DeviceStep>,
    config: Config,
}

/// Asks the servers for the ports of a model.
pub(crate) fn read(source: &ModelSource) -> Result<ModelInfo> {
    let servers = Servers::new(Options::of(source, &Config::default())?)?;
    let info = info_of(&servers.metadata()?)?;
    check_ports(source, &info)?;
    Ok(info)
}

fn check_ports(source: &ModelSource, info: &ModelInfo) -> Result<()> {
    if !info.inputs.is_empty() && !info.outputs.is_empty() {
        return Ok(());
    }
    let message = format!(
        "device {}: the server reports no inputs or no outputs for `{source}`: expected at least one of each. Describe them in the \
         configuration of the model on the server, or set the model to a local file that has them",
        super::NAME
    );
    Err(Error::new(ErrorKind::Model, message))
}

impl RemoteModel {
    pub(crate) fn new(model: &Model, config: &Config, executors: &Executors) -> Result<Self> {
        let executor = executors.for_model(super::NAME, config)?;
        let servers = Servers::new(Options::of(model.source(), config)?)?;
        let of_server = info_of(&servers.metadata()?)?;
        if servers.shared().options.shared_memory {
            servers.check_shared_memory()?;
        }
        // Some servers report no ports, for example MLServer if the configuration of the model does not list them. Then use those of the
        // local file.
        let is_unknown = of_server.inputs.is_empty() || of_server.outputs.is_empty();
        let known = if is_unknown { model.info() } else { &of_server };
        check_ports(model.source(), known)?;
        let info = compiled_ports(model, known)?;
        let steps = match config.exclusive_requests {
            true => vec![DeviceStep { name: "infer", executor }],
            false => vec![DeviceStep { name: "send", executor: executor.clone() }, DeviceStep { name: "receive", executor }],
        };
        let shared = Shared { servers, info, profiling: config.profiling, is_exclusive: config.exclusive_requests };
        let this = Self { shared: Arc::new(shared), steps, config: config.clone() };
        let is_admitted = |(wanted, port): (&Port, &Port)| admits(&port.shape, &wanted.shape);
        if !this.shared.info.inputs.iter().zip(&ordered(&model.info().inputs, &known.inputs)).all(is_admitted) {
            this.try_shapes()?;
        }
        Ok(this)
    }

    /// Calls the model once, because the caller wants other shapes than the server reports. Only the server knows whether it can run them.
    fn try_shapes(&self) -> Result<()> {
        let (info, options) = (&self.shared.info, &self.shared.servers.shared().options);
        let shapes: Vec<Shape> = info.inputs.iter().filter_map(|port| largest(&port.shape)).collect();
        let mut n_bytes = shapes.iter().zip(&info.inputs).map(|(shape, port)| shape.n_elements()?.checked_mul(port.element.size()));
        let n_bytes = n_bytes.try_fold(0_usize, |sum, n_bytes| sum.checked_add(n_bytes?));
        let refused = |why: &str| {
            let ports = info.inputs.iter().map(Port::to_string).collect::<Vec<_>>().join(", ");
            Error::new(ErrorKind::Model, format!("device {}: the server cannot run `{}` with {ports}: {why}", super::NAME, options.model))
        };
        if n_bytes.is_none_or(|n_bytes| n_bytes > MAX_TRIAL_BYTES) || shapes.len() < info.inputs.len() {
            return Err(refused("the inputs are too large"));
        }
        let (call, _loans) = Call::of_zeros(info, &options.model, &options.version, &shapes);
        let shared = self.shared.clone();
        let called = wait_for(async move {
            let servers = shared.servers.shared();
            servers.infer(&call, Instant::now() + servers.options.timeout).await
        })?;
        match called.and_then(|response| response.outputs(SharedOutputs::NONE)) {
            Ok(_) => Ok(()),
            Err(failure) if matches!(failure.kind, ErrorKind::Unavailable | ErrorKind::Config) => Err(Failure::into_error(failure)),
            Err(failure) => Err(refused(&failure.message)),
        }
    }
}

/// Returns the ports of the compiled model: those of the server, with the input shapes that the caller wants.
fn compiled_ports(model: &Model, known: &ModelInfo) -> Result<ModelInfo> {
    let wanted = model.info();
    let check = |kind: &str, wanted: &[Port], known: &[Port]| {
        let is_missing = |port: &&Port| known.iter().all(|other| other.name() != port.name());
        match wanted.iter().find(is_missing) {
            None if wanted.len() == known.len() => Ok(()),
            _ => {
                let names = |ports: &[Port]| ports.iter().map(Port::to_string).collect::<Vec<_>>().join(", ");
                let (expected, got) = (names(wanted), names(known));
                let message = format!(
                    "device {}: `{}`: expected the {kind}s {expected}, as in the local model, got {got} from the server",
                    super::NAME,
                    model.name()
                );
                Err(Error::new(ErrorKind::Model, message))
            }
        }
    };
    check("input", &wanted.inputs, &known.inputs)?;
    check("output", &wanted.outputs, &known.outputs)?;
    let (mut inputs, mut outputs) = (ordered(&wanted.inputs, &known.inputs), ordered(&wanted.outputs, &known.outputs));
    let mut is_narrower = true;
    for (input, wanted) in inputs.iter_mut().zip(&wanted.inputs) {
        if model.is_reshaped() {
            is_narrower &= admits(&input.shape, &wanted.shape);
            input.shape = wanted.shape.clone();
        }
        input.axes.clone_from(&wanted.axes);
    }
    if !is_narrower {
        outputs.iter_mut().for_each(|port| port.shape = port.shape.all_open());
    }
    Ok(ModelInfo { inputs, outputs, metadata: known.metadata.clone() })
}

/// Returns the ports of the server in the order of the caller's ports. Both have the same names.
fn ordered(wanted: &[Port], known: &[Port]) -> Vec<Port> {
    wanted.iter().filter_map(|port| known.iter().find(|other| other.name() == port.name()).cloned()).collect()
}

/// Returns whether a port of this shape accepts all tensors of the other shape.
fn admits(port: &PartialShape, wanted: &PartialShape) -> bool {
    let fits = |(port, wanted): (&Dim, &Dim)| match (port, wanted) {
        (Dim::Dynamic, _) => true,
        (_, Dim::Dynamic) => false,
        (port, Dim::Fixed(extent)) => port.admits(*extent),
        (port, Dim::Range { min, max }) => port.admits(*min) && port.admits(*max),
    };
    port.dims().len() == wanted.dims().len() && port.dims().iter().zip(wanted.dims()).all(fits)
}

/// Returns the shape with the maximum of each extent; 1 for extents without a maximum.
fn largest(shape: &PartialShape) -> Option<Shape> {
    shape.with_dynamic(|axis| {
        Some(match shape.dims()[axis] {
            Dim::Range { max, .. } => max,
            Dim::Fixed(_) | Dim::Dynamic => 1,
        })
    })
}

impl DeviceModel for RemoteModel {
    fn info(&self) -> &ModelInfo {
        &self.shared.info
    }

    fn device(&self) -> Option<&str> {
        Some(super::NAME)
    }

    fn ignored(&self) -> Vec<Ignored> {
        let (config, why) = (&self.config, "the configuration of the model on the server decides");
        Ignored::of([
            (config.precision != Precision::F32, "precision", why),
            (config.n_threads.is_some(), "n_threads", why),
            (config.cache_folder.is_some(), "cache_folder", "the server loads the model"),
        ])
    }

    fn steps(&self) -> Vec<DeviceStep> {
        self.steps.clone()
    }

    fn optimal_number_of_requests(&self) -> usize {
        self.config.n_requests.unwrap_or(N_REQUESTS)
    }

    /// The server computes what it wants, so a few runs prove nothing.
    fn rows_can_be_tried(&self) -> bool {
        false
    }

    fn create_request(&self) -> Result<Box<dyn DeviceRequest>> {
        Ok(Box::new(RemoteRequest::new(self.shared.clone())))
    }
}
