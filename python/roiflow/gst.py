"""Results of roiflow's GStreamer elements, for programs that run their own pipelines with GStreamer's Python bindings.

    from gi.repository import Gst
    import roiflow.gst

    def on_buffer(pad, info):
        frame = roiflow.gst.results(info.get_buffer())

Needs GStreamer 1.22 or newer, its Python bindings (python3-gi, gir1.2-gstreamer-1.0) and roiflow's plugin. This module has no compiled
code: `ctypes` calls the C API of the plugin that GStreamer has loaded.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

from roiflow._frame import Frame
from roiflow._roiflow import NotFound, Unsupported

__all__ = ["results"]

_ABI_VERSION = 1


_loaded: tuple[Any, ctypes.CDLL] | None = None


def _library() -> tuple[Any, ctypes.CDLL]:
    """Return the type `Gst.Buffer`, and the plugin library that GStreamer has loaded."""
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
    ):
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise Unsupported(f"roiflow.gst: expected a plugin with the C API of roiflow, got {plugin.get_filename()}") from error
        function.restype, function.argtypes = returned, arguments
    version = library.roiflow_abi_version()
    if version != _ABI_VERSION:
        raise Unsupported(f"roiflow.gst: expected ABI version {_ABI_VERSION} of roiflow's plugin, got {version}. Install the same version of both.")
    return Gst.Buffer, library


def results(buffer: Any, width: int = 0, height: int = 0) -> Frame | None:
    """Return the results that roiflow's elements have attached to a `Gst.Buffer`; None if it has no results.

    `width` and `height` are the frame size in the buffer's caps. If both are 0, the size is that of the video meta, or else the size when
    the results were attached. The frame is a copy. Its `stream` and `timestamp` are None, because the buffer does not contain them.

    Raises TypeError for other objects, ImportError without GStreamer's Python bindings, and NotFound without roiflow's plugin.
    """
    buffer_type, library = _library()
    if not isinstance(buffer, buffer_type):
        raise TypeError(f"buffer: expected a Gst.Buffer, got {type(buffer)}")
    # PyGObject's hash of a buffer is the address of the GstBuffer.
    read = library.roiflow_results_from_buffer(hash(buffer), width, height)
    if not read:
        return None
    try:
        return Frame(json.loads(library.roiflow_results_json(read)))
    finally:
        library.roiflow_results_free(read)
