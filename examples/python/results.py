"""Prints the results of roiflow's elements for the frames of a pipeline, as examples/c/results.c does.

    python3 results.py 'videotestsrc num-buffers=3 ! video/x-raw,format=RGB,width=320,height=240 !
                        roidetect model=faces.onnx ! fakesink name=sink'

Needs GStreamer's Python bindings (python3-gi, gir1.2-gstreamer-1.0) and the plugin, but no compiler. Results are read at
the sink pad of the element named `sink`. include/roiflow.h documents ownership.
"""

import ctypes
import json
import sys

import gi

gi.require_version("Gst", "1.0")
from gi.repository import Gst  # noqa: E402

ABI_VERSION = 1
LABEL, VALUE = 1, 2


class Object(ctypes.Structure):
    _fields_ = [
        ("x", ctypes.c_float),
        ("y", ctypes.c_float),
        ("width", ctypes.c_float),
        ("height", ctypes.c_float),
        ("confidence", ctypes.c_float),
        ("label_id", ctypes.c_uint32),
        ("label", ctypes.c_char_p),
        ("track_id", ctypes.c_int32),
        ("parent", ctypes.c_int32),
        ("n_attributes", ctypes.c_size_t),
    ]


class Attribute(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("model", ctypes.c_char_p),
        ("label", ctypes.c_char_p),
        ("kind", ctypes.c_int32),
        ("label_id", ctypes.c_uint32),
        ("confidence", ctypes.c_float),
        ("value", ctypes.c_float),
    ]


def load():
    """Loads the library that GStreamer uses: the file of its plugin."""
    plugin = Gst.Registry.get().find_plugin("roiflow")
    if plugin is None:
        sys.exit("GStreamer cannot find roiflow's plugin: set GST_PLUGIN_PATH to its folder")
    library = ctypes.CDLL(plugin.get_filename())
    results, index = ctypes.c_void_p, ctypes.c_size_t
    for name, result, arguments in [
        ("roiflow_abi_version", ctypes.c_uint32, []),
        ("roiflow_results_from_buffer", results, [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]),
        ("roiflow_results_free", None, [results]),
        ("roiflow_results_n_objects", ctypes.c_size_t, [results]),
        ("roiflow_results_get_object", ctypes.c_int, [results, index, ctypes.POINTER(Object)]),
        ("roiflow_results_get_attribute", ctypes.c_int, [results, index, index, ctypes.POINTER(Attribute)]),
        ("roiflow_results_json", ctypes.c_char_p, [results]),
    ]:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    version = library.roiflow_abi_version()
    if version != ABI_VERSION:
        sys.exit(f"expected ABI version {ABI_VERSION} of roiflow, got {version}: use a newer version of this file")
    return library


def text(attribute):
    name = attribute.name.decode()
    if attribute.kind == LABEL:
        return f"{name}={(attribute.label or b'?').decode()} ({attribute.confidence:.2f})"
    return f"{name}={attribute.value:g}" if attribute.kind == VALUE else name


def print_results(library, buffer, width, height):
    # PyGObject's hash of a buffer is the address of the GstBuffer.
    results = library.roiflow_results_from_buffer(hash(buffer), width, height)
    if not results:
        return
    found, attribute = Object(), Attribute()
    for n in range(library.roiflow_results_n_objects(results)):
        library.roiflow_results_get_object(results, n, found)
        place = f"{found.x:g},{found.y:g} {found.width:g}x{found.height:g}"
        words = [(found.label or b"object").decode(), f"{found.confidence:.2f} at {place}"]
        if found.track_id > 0:
            words.append(f"id={found.track_id}")
        for m in range(found.n_attributes):
            library.roiflow_results_get_attribute(results, n, m, attribute)
            words.append(text(attribute))
        print(*words)
    # All results as a dictionary, including data without a function above.
    everything = json.loads(library.roiflow_results_json(results))
    library.roiflow_results_free(results)
    print(json.dumps(everything, separators=(",", ":")))


def main():
    Gst.init(None)
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} PIPELINE")
    library = load()
    pipeline = Gst.parse_launch(sys.argv[1])
    pad = pipeline.get_by_name("sink").get_static_pad("sink")

    def on_buffer(pad, info):
        caps = pad.get_current_caps().get_structure(0)
        width, height = caps.get_value("width"), caps.get_value("height")
        print_results(library, info.get_buffer(), width, height)
        return Gst.PadProbeReturn.OK

    pad.add_probe(Gst.PadProbeType.BUFFER, on_buffer)
    pipeline.set_state(Gst.State.PLAYING)
    message = pipeline.get_bus().timed_pop_filtered(Gst.CLOCK_TIME_NONE, Gst.MessageType.EOS | Gst.MessageType.ERROR)
    pipeline.set_state(Gst.State.NULL)
    if message.type == Gst.MessageType.ERROR:
        sys.exit(message.parse_error()[0].message)


main()
