"""roiflow: inference requests with OpenVINO's Python API, on the embedded engine, OpenVINO or ONNX Runtime.

    import roiflow as ov

    compiled = ov.compile_model("model.onnx")
    results = compiled(image)
"""

from roiflow._api import AsyncInferQueue, CompiledModel, Core, InferRequest, compile_model, get_version
from roiflow._profiling import ProfilingInfo
from roiflow._results import OVDict
from roiflow._roiflow import (
    Busy,
    Canceled,
    ConfigError,
    ConstOutput,
    DeviceError,
    Error,
    Model,
    ModelError,
    NotFound,
    OutOfMemory,
    Output,
    OwnedByQueue,
    Panicked,
    ReadError,
    RemoteContext,
    RemoteTensor,
    Stopped,
    Tensor,
    TensorError,
    Type,
    Unsupported,
    VariableState,
    WouldDeadlock,
    __version__,
)
from roiflow._shapes import Coordinate, Dimension, PartialShape, Shape, Strides

__all__ = [
    "AsyncInferQueue",
    "Busy",
    "Canceled",
    "CompiledModel",
    "ConfigError",
    "ConstOutput",
    "Coordinate",
    "Core",
    "DeviceError",
    "Dimension",
    "Error",
    "InferRequest",
    "Model",
    "ModelError",
    "NotFound",
    "OVDict",
    "OutOfMemory",
    "Output",
    "OwnedByQueue",
    "Panicked",
    "PartialShape",
    "ProfilingInfo",
    "ReadError",
    "RemoteContext",
    "RemoteTensor",
    "Shape",
    "Stopped",
    "Strides",
    "Tensor",
    "TensorError",
    "Type",
    "Unsupported",
    "VariableState",
    "WouldDeadlock",
    "__version__",
    "compile_model",
    "get_version",
]
