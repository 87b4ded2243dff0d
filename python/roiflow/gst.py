"""Results of roiflow's GStreamer elements, for programs that run their own pipelines with GStreamer's Python bindings.

    from gi.repository import Gst
    import roiflow.gst

    def on_buffer(pad, info):
        frame = roiflow.gst.results(info)
        for index in reversed(range(len(frame.objects))):
            if frame.objects[index].confidence < 0.8:
                roiflow.gst.remove_object(info, index)
        return Gst.PadProbeReturn.OK

Needs GStreamer 1.22 or newer, its Python bindings (python3-gi, gir1.2-gstreamer-1.0) and roiflow's plugin. This module has no compiled
code: `ctypes` calls the C API of the plugin that GStreamer has loaded.
"""

from __future__ import annotations

import ctypes
import json
from typing import TYPE_CHECKING, Any

from roiflow._frame import Frame
from roiflow._roiflow import NotFound, Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["add_attribute", "add_object", "remove_object", "results"]

_ABI_VERSION = 1


class _Object(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_float) for name in ("x", "y", "width", "height", "confidence")),
        ("label_id", ctypes.c_uint32),
        ("label", ctypes.c_char_p),
        ("track_id", ctypes.c_int32),
        ("parent", ctypes.c_int32),
        ("n_attributes", ctypes.c_size_t),
    )


class _Attribute(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_char_p) for name in ("name", "model", "label")),
        ("kind", ctypes.c_int32),
        ("label_id", ctypes.c_uint32),
        ("confidence", ctypes.c_float),
        ("value", ctypes.c_float),
    )


_LABEL, _VALUE = 1, 2

_loaded: tuple[Any, ctypes.CDLL] | None = None


def _library() -> tuple[Any, ctypes.CDLL]:
    """Return the module `Gst`, and the plugin library that GStreamer has loaded."""
    global _loaded
    if _loaded is None:
        _loaded = _load()
    return _loaded


def _load() -> tuple[Any, ctypes.CDLL]:
    try:
        import gi  # type: ignore[import-not-found, import-untyped, unused-ignore]

        gi.require_version("Gst", "1.0")
        from gi.repository import Gst  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except (ImportError, ValueError) as error:
        raise ImportError(
            f"roiflow.gst needs GStreamer's Python bindings ({error}). Install them with `apt-get install python3-gi gir1.2-gstreamer-1.0`."
        ) from error
    if not Gst.is_initialized():
        Gst.init(None)
    plugin = Gst.Registry.get().find_plugin("roiflow")
    if plugin is None:
        raise NotFound(
            "roiflow.gst: GStreamer cannot find roiflow's plugin. Install it with `make install` in roiflow's source folder, or set "
            "GST_PLUGIN_PATH to its folder before the program starts."
        )
    library = ctypes.CDLL(plugin.get_filename())
    pointer, number = ctypes.c_void_p, ctypes.c_uint32
    for name, returned, arguments in (
        ("roiflow_abi_version", number, ()),
        ("roiflow_results_from_buffer", pointer, (pointer, number, number)),
        ("roiflow_results_json", ctypes.c_char_p, (pointer,)),
        ("roiflow_results_free", None, (pointer,)),
        ("roiflow_probe_buffer", pointer, (pointer,)),
        ("roiflow_buffer_remove_object", ctypes.c_int, (pointer, number, number, ctypes.c_size_t)),
        ("roiflow_buffer_add_object", ctypes.c_int, (pointer, number, number, ctypes.POINTER(_Object), ctypes.POINTER(ctypes.c_size_t))),
        ("roiflow_buffer_add_attribute", ctypes.c_int, (pointer, number, number, ctypes.c_size_t, ctypes.POINTER(_Attribute))),
    ):
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise Unsupported(f"roiflow.gst: expected a plugin with the C API of roiflow, got {plugin.get_filename()}") from error
        function.restype, function.argtypes = returned, arguments
    version = library.roiflow_abi_version()
    if version != _ABI_VERSION:
        raise Unsupported(f"roiflow.gst: expected ABI version {_ABI_VERSION} of roiflow's plugin, got {version}. Install the same version of both.")
    return Gst, library


def _address(buffer: Any) -> tuple[int, ctypes.CDLL]:
    """Return the address of the GstBuffer, and the library."""
    gst, library = _library()
    # PyGObject's hash of a buffer, and of the information of a probe, is the address of the C struct.
    if isinstance(buffer, gst.Buffer):
        return hash(buffer), library
    if not isinstance(buffer, gst.PadProbeInfo):
        raise TypeError(f"buffer: expected a Gst.Buffer, or the Gst.PadProbeInfo of a probe, got {type(buffer)}")
    address = library.roiflow_probe_buffer(hash(buffer))
    if not address:
        raise ValueError("buffer: expected the Gst.PadProbeInfo of a probe for buffers, got one without a buffer")
    return address, library


def results(buffer: Any, width: int = 0, height: int = 0) -> Frame | None:
    """Return the results that roiflow's elements have attached to a buffer; None if it has no results.

    `buffer` is a `Gst.Buffer`, or the `Gst.PadProbeInfo` of a probe. `width` and `height` are the frame size in the buffer's caps. If both
    are 0, the size is that of the video meta, or else the size when the results were attached. The frame is a copy. Its `stream` and
    `timestamp` are None, because the buffer does not contain them.

    Raises TypeError for other objects, ImportError without GStreamer's Python bindings, and NotFound without roiflow's plugin.
    """
    address, library = _address(buffer)
    read = library.roiflow_results_from_buffer(address, width, height)
    if not read:
        return None
    try:
        return Frame(json.loads(library.roiflow_results_json(read)))
    finally:
        library.roiflow_results_free(read)


def remove_object(info: Any, index: int, *, width: int = 0, height: int = 0) -> None:
    """Remove an object from the results of a buffer, also an object of another element. Elements downstream do not see it.

    `info` is the `Gst.PadProbeInfo` of a probe. `index` counts the objects that are on the buffer now, so remove the last one first.
    `width` and `height` are as for `results`.

    Raises IndexError if there is no such object, and ValueError for a buffer that is not writable. The buffer of a probe is made writable.
    """
    address, library = _address(info)
    if not library.roiflow_buffer_remove_object(address, width, height, _index(index)):
        raise _failed(info, index)


def add_object(
    info: Any,
    xyxy: Sequence[float],
    label: str | None = None,
    *,
    confidence: float | None = None,
    class_id: int = 0,
    track_id: int | None = None,
    parent: int | None = None,
    width: int = 0,
    height: int = 0,
) -> int:
    """Add an object to the results of a buffer. Return its index.

    `xyxy` are left, top, right and bottom in pixels of the frame; `parent` is the index of the object that contains this one.

    Raises ValueError if the box has no pixel in the frame, if `parent` is the index of no object, or for a buffer that is not writable.
    """
    address, library = _address(info)
    left, top, right, bottom = map(float, xyxy)
    text = None if label is None else label.encode()
    found = _Object(
        left,
        top,
        right - left,
        bottom - top,
        float("nan") if confidence is None else confidence,
        class_id,
        text,
        track_id or 0,
        -1 if parent is None else _index(parent),
    )
    index = ctypes.c_size_t()
    if not library.roiflow_buffer_add_object(address, width, height, found, index):
        raise ValueError(
            f"add_object: expected a writable buffer, a box with pixels in the frame and the index of a parent, got the box {tuple(xyxy)} "
            f"and the parent {parent}. Pass the Gst.PadProbeInfo of a probe, and width and height if the buffer has no results yet"
        )
    return index.value


def add_attribute(
    info: Any,
    index: int,
    name: str,
    value: str | float,
    *,
    confidence: float = 1.0,
    class_id: int = 0,
    model: str | None = None,
    width: int = 0,
    height: int = 0,
) -> None:
    """Add an attribute to an object of a buffer: a label if `value` is a text, otherwise a number.

    Raises IndexError if there is no such object, and ValueError for a buffer that is not writable.
    """
    address, library = _address(info)
    of_model = None if model is None else model.encode()
    if isinstance(value, str):
        attribute = _Attribute(name.encode(), of_model, value.encode(), _LABEL, class_id, confidence)
    else:
        attribute = _Attribute(name.encode(), of_model, None, _VALUE, value=value)
    if not library.roiflow_buffer_add_attribute(address, width, height, _index(index), attribute):
        raise _failed(info, index)


def _index(index: int) -> int:
    if index < 0:
        raise IndexError(f"expected the index of an object, from 0, got {index}")
    return index


def _failed(buffer: Any, index: int) -> Exception:
    """Return the error of a change to an object."""
    gst, _ = _library()
    if isinstance(buffer, gst.Buffer):
        return ValueError(
            f"expected a writable buffer with the object {index}, got another one. Pass the Gst.PadProbeInfo of a probe instead of the "
            "Gst.Buffer, because Python's reference makes the buffer read-only"
        )
    return IndexError(f"expected the index of an object of the buffer, got {index}")
