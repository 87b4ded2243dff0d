"""roiflow: models that take images, on the built-in engine, OpenVINO or ONNX Runtime.

    import roiflow

    faces, age = roiflow.load("face.onnx"), roiflow.load("age.onnx")
    results = age(image, rois=faces(image))
    print(results.boxes.xyxy, results[0].attributes)

Pipelines on videos and cameras, run by the command `roiflow`:

    for frame in roiflow.Pipeline("faces", input="video.mp4"):
        print(frame.index, frame.objects)

The layer below these classes has inference requests with OpenVINO's Python API: `compile_model`, `InferRequest`, `AsyncInferQueue`.
"""

from roiflow._api import AsyncInferQueue, CompiledModel, Core, InferRequest, compile_model, get_version
from roiflow._frame import Frame, FrameObject
from roiflow._pipeline import Pipeline, PipelineError
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
from roiflow._vision import (
    Attribute,
    Boxes,
    Detection,
    ImageModel,
    Pending,
    Results,
    load,
    register_decoder,
    register_preprocess,
)

__all__ = [
    "AsyncInferQueue",
    "Attribute",
    "Boxes",
    "Busy",
    "Canceled",
    "CompiledModel",
    "ConfigError",
    "ConstOutput",
    "Coordinate",
    "Core",
    "Detection",
    "DeviceError",
    "Dimension",
    "Error",
    "Frame",
    "FrameObject",
    "ImageModel",
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
    "Pending",
    "Pipeline",
    "PipelineError",
    "ProfilingInfo",
    "ReadError",
    "RemoteContext",
    "RemoteTensor",
    "Results",
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
    "load",
    "register_decoder",
    "register_preprocess",
]
