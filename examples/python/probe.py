"""Removes objects by a rule in a pad probe: elements downstream of the element `filter` do not see small objects.

    python3 probe.py 'videotestsrc num-buffers=3 ! video/x-raw,format=RGB,width=320,height=240 !
                      roidetect model=faces.onnx name=filter ! roipublish ! fakesink' 80

The last argument is the smallest height of an object in pixels. Needs GStreamer's Python bindings (python3-gi, gir1.2-gstreamer-1.0) and the
plugin. With the Python package, `roiflow.gst` has the same functions.
"""

import ctypes
import sys

import gi

gi.require_version("Gst", "1.0")
from gi.repository import Gst  # noqa: E402

ABI_VERSION = 1


class Object(ctypes.Structure):
    _fields_ = [(name, ctypes.c_float) for name in ("x", "y", "width", "height", "confidence")]
    _fields_ += [("label_id", ctypes.c_uint32), ("label", ctypes.c_char_p), ("track_id", ctypes.c_int32)]
    _fields_ += [("parent", ctypes.c_int32), ("n_attributes", ctypes.c_size_t)]


def load():
    """Loads the library that GStreamer uses: the file of its plugin."""
    plugin = Gst.Registry.get().find_plugin("roiflow")
    if plugin is None:
        sys.exit("GStreamer cannot find roiflow's plugin: set GST_PLUGIN_PATH to its folder")
    library = ctypes.CDLL(plugin.get_filename())
    pointer, number, index = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_size_t
    for name, result, arguments in [
        ("roiflow_probe_buffer", pointer, [pointer]),
        ("roiflow_results_from_buffer", pointer, [pointer, number, number]),
        ("roiflow_results_free", None, [pointer]),
        ("roiflow_results_n_objects", index, [pointer]),
        ("roiflow_results_get_object", ctypes.c_int, [pointer, index, ctypes.POINTER(Object)]),
        ("roiflow_buffer_remove_object", ctypes.c_int, [pointer, number, number, index]),
    ]:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if library.roiflow_abi_version() != ABI_VERSION:
        sys.exit("roiflow has another ABI version: use a newer version of this file")
    return library


def main():
    Gst.init(None)
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} PIPELINE MIN_HEIGHT")
    library, min_height = load(), float(sys.argv[2])
    pipeline = Gst.parse_launch(sys.argv[1])

    def on_buffer(pad, info):
        caps = pad.get_current_caps().get_structure(0)
        size = caps.get_value("width"), caps.get_value("height")
        # PyGObject's hash of the information is its address. A buffer that Python references is not writable, so the program does not call
        # info.get_buffer().
        buffer = library.roiflow_probe_buffer(hash(info))
        results, found = library.roiflow_results_from_buffer(buffer, *size), Object()
        # The last object first, because the indices of later objects change.
        for index in reversed(range(library.roiflow_results_n_objects(results))):
            library.roiflow_results_get_object(results, index, found)
            if found.height < min_height:
                library.roiflow_buffer_remove_object(buffer, *size, index)
        library.roiflow_results_free(results)
        return Gst.PadProbeReturn.OK

    pipeline.get_by_name("filter").get_static_pad("src").add_probe(Gst.PadProbeType.BUFFER, on_buffer)
    pipeline.set_state(Gst.State.PLAYING)
    message = pipeline.get_bus().timed_pop_filtered(Gst.CLOCK_TIME_NONE, Gst.MessageType.EOS | Gst.MessageType.ERROR)
    pipeline.set_state(Gst.State.NULL)
    if message.type == Gst.MessageType.ERROR:
        sys.exit(message.parse_error()[0].message)


main()
