"""Python classes that derive from the compiled classes. They allow subclasses, attributes and weak references."""

from __future__ import annotations

from os import PathLike
from typing import Any, Union, cast

from roiflow import _roiflow
from roiflow._roiflow import Model

__all__ = ["AsyncInferQueue", "CompiledModel", "Core", "InferRequest", "compile_model", "get_version"]


class Core(_roiflow.Core):
    __doc__ = _roiflow.Core.__doc__


class CompiledModel(_roiflow.CompiledModel):
    __doc__ = _roiflow.CompiledModel.__doc__


class InferRequest(_roiflow.InferRequest):
    __doc__ = _roiflow.InferRequest.__doc__


class AsyncInferQueue(_roiflow.AsyncInferQueue):
    __doc__ = _roiflow.AsyncInferQueue.__doc__


def compile_model(
    model: Union[Model, str, PathLike[str], bytes], device_name: str = "AUTO", config: Union[dict[str, Any], None] = None
) -> CompiledModel:
    """Compile a model, or the model of a file, for a device. Same as `Core.compile_model`."""
    return cast("CompiledModel", Core().compile_model(model, device_name, config))


def get_version() -> str:
    """The version of the package."""
    return _roiflow.__version__
