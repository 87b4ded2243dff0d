"""Checks that roiflow and GStreamer's analytics elements read each other's metadata. scripts/test-analytics runs this script in a root with
GStreamer 1.26. The plugin may have been built with an older version of GStreamer.

    python3 check.py FOLDER OUT      FOLDER has the tiny models; the image of the overlay is written to the folder OUT

Every check prints its name; the exit status is 0 if all checks pass.
"""

import ctypes
import json
import math
import pathlib
import subprocess
import sys
import traceback

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstAnalytics", "1.0")
gi.require_version("GstVideo", "1.0")
from gi.repository import GLib, Gst, GstAnalytics, GstVideo  # noqa: E402

MODELS, OUT = map(pathlib.Path, sys.argv[1:3])
TIMEOUT = 60 * Gst.SECOND
REL = GstAnalytics.RelTypes
# The area is 160 x 120, so each of its 20 x 15 cells is 8 x 8, and the white cell is in column 3 and row 2.
WIDTH, HEIGHT = 320, 240
AREA, CELL = (80, 60, 160, 120), (104, 76, 8, 8)
DETECT = f"roidetect model={MODELS}/rectangle.onnx device=CPU"
CELLS = f"roidetect model={MODELS}/stripes.onnx device=CPU inference-region=roi-list object-class=rectangle"
COLOR = f"roiclassify model={MODELS}/color.onnx device=CPU"
CAPS = f"video/x-raw,format=RGB,width={WIDTH},height={HEIGHT},framerate=25/1"


def image(rects):
    """Returns the bytes of a black RGB frame with colored rectangles."""
    pixels = bytearray(WIDTH * HEIGHT * 3)
    for (x, y, width, height), color in rects:
        for row in range(y, y + height):
            at = (row * WIDTH + x) * 3
            pixels[at : at + width * 3] = bytes(color) * width
    return bytes(pixels)


def area_with_cell():
    return Gst.Buffer.new_wrapped(image([(AREA, (255, 0, 0)), (CELL, (255, 255, 255))]))


def run(line, buffers, look=None, n_sinks=1):
    """Pushes the buffers through the pipeline. Returns `look(buffer)` of each output buffer per sink, and the warnings."""
    sinks = "" if n_sinks == 0 else "appsink name=sink0 sync=false"
    pipeline = Gst.parse_launch(f"appsrc name=source format=time caps={CAPS} ! {line.replace('SINK', sinks)}")
    source = pipeline.get_by_name("source")
    pipeline.set_state(Gst.State.PLAYING)
    for number, buffer in enumerate(buffers):
        buffer.pts, buffer.duration = number * 40 * Gst.MSECOND, 40 * Gst.MSECOND
        source.emit("push-buffer", buffer)
    source.emit("end-of-stream")
    arrived = [[] for _ in range(n_sinks)]
    for number, seen in enumerate(arrived):
        sink = pipeline.get_by_name(f"sink{number}")
        while sample := sink.emit("try-pull-sample", TIMEOUT):
            seen.append(look(sample.get_buffer()))
    warnings = []
    kinds = Gst.MessageType.EOS | Gst.MessageType.ERROR | Gst.MessageType.WARNING
    while True:
        message = pipeline.get_bus().timed_pop_filtered(TIMEOUT, kinds)
        assert message is not None, f"{line}: expected EOS or an error, got neither"
        if message.type == Gst.MessageType.ERROR:
            raise AssertionError(f"{line}: {message.parse_error()}")
        if message.type == Gst.MessageType.EOS:
            break
        warnings.append(message.parse_warning()[0].message)
    pipeline.set_state(Gst.State.NULL)
    return arrived, warnings


def entries(buffer):
    """Returns the detections and classifications in the buffer's relation meta, and the relations between them."""
    meta = GstAnalytics.buffer_get_analytics_relation_meta(buffer)
    if meta is None:
        return None
    objects, classes = {}, {}
    for mtd in meta:
        if isinstance(mtd, GstAnalytics.ODMtd):
            found, x, y, width, height, confidence = mtd.get_location()
            assert found
            objects[mtd.id] = (GLib.quark_to_string(mtd.get_obj_type()), (x, y, width, height), round(confidence, 3))
        elif isinstance(mtd, GstAnalytics.ClsMtd):
            classes[mtd.id] = (GLib.quark_to_string(mtd.get_quark(0)), round(mtd.get_level(0), 2))
    ids = [*objects, *classes]
    relations = {(a, b): int(meta.get_relation(a, b)) for a in ids for b in ids if int(meta.get_relation(a, b))}
    return objects, classes, relations


def results_of(line, buffers):
    """Runs the pipeline on the buffers, and returns the JSON lines of its results."""
    path = OUT / "results.jsonl"
    run(f'{line} ! roipublish address="{path}" ! fakesink', buffers, n_sinks=0)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    return lines


def place(thing):
    return tuple(thing[key] for key in ("x", "y", "w", "h"))


def same(got, expected):
    assert got == expected, f"expected {expected}, got {got}"


def the_overlay_of_gstreamer_draws_our_boxes():
    drawn, plain = OUT / "drawn.png", OUT / "plain.png"
    blue = 0xFF0000FF
    for path, overlay in ((drawn, f"! objectdetectionoverlay object-detection-outline-color={blue}"), (plain, "")):
        # The pipeline itself draws a red area on black.
        x, y, width, height = AREA
        line = (
            f"videotestsrc num-buffers=1 pattern=solid-color foreground-color=0xffff0000 ! video/x-raw,format=BGRA,width={width},height={height} "
            f"! videobox fill=black left=-{x} right=-{WIDTH - x - width} top=-{y} bottom=-{HEIGHT - y - height} ! videoconvert "
            f"! {DETECT} ! {COLOR} {overlay} ! videoconvert ! pngenc ! filesink location={path}"
        )
        done = subprocess.run(["gst-launch-1.0", "-q", *line.split()], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    with_boxes, without = (pixels_of(path) for path in (drawn, plain))
    left, top, width, height = AREA
    right, bottom = left + width, top + height
    middle_x, middle_y = left + width // 2, top + height // 2
    # The overlay's line is two pixels wide, so check both pixels of each edge.
    edges = [(side + at, middle_y) for side in (left, right) for at in (-1, 0)]
    edges += [(middle_x, side + at) for side in (top, bottom) for at in (-1, 0)]
    for x, y in edges:
        r, g, b = with_boxes(x, y)
        assert b > 200 and r < 60 and g < 60, f"the edge at ({x}, {y}) is {(r, g, b)}, expected blue"
        assert without(x, y)[2] < 60, f"without the overlay ({x}, {y}) is {without(x, y)}"
    # Check that only the edges changed: three pixels away from an edge, the image is unchanged.
    off = [(left - 3, middle_y), (left + 3, middle_y), (right - 4, middle_y), (right + 3, middle_y)]
    off += [(middle_x, top + 3), (middle_x, bottom - 4), (middle_x, bottom + 3)]
    for x, y in off:
        same(with_boxes(x, y), without(x, y))


def pixels_of(path):
    pipeline = Gst.parse_launch(f"filesrc location={path} ! pngdec ! videoconvert ! video/x-raw,format=RGB ! appsink name=sink")
    pipeline.set_state(Gst.State.PLAYING)
    sample = pipeline.get_by_name("sink").emit("try-pull-sample", TIMEOUT)
    buffer = sample.get_buffer()
    data = buffer.extract_dup(0, buffer.get_size())
    pipeline.set_state(Gst.State.NULL)
    same(len(data), WIDTH * HEIGHT * 3)
    return lambda x, y: tuple(data[(y * WIDTH + x) * 3 :][:3])


def what_we_find_is_read_by_others():
    color_of_area = f"{COLOR} object-class=rectangle"
    arrived, _ = run(f"{DETECT} ! {CELLS} ! {color_of_area} ! SINK", [area_with_cell() for _ in range(5)], entries)
    same(len(arrived[0]), 5)
    for objects, classes, relations in arrived[0]:
        (area, (area_type, area_place, _)), (cell, (cell_type, cell_place, _)) = objects.items()
        same((area_type, area_place, cell_type, cell_place), ("rectangle", AREA, "cell", CELL))
        ((red, (label, confidence)),) = classes.items()
        same((label, confidence > 0.9), ("red", True))
        # The relation must not be RELATE_TO: DL Streamer takes the target of that relation for a class descriptor.
        contains, part_of = (int(kind) for kind in (REL.CONTAIN, REL.IS_PART_OF))
        expected = {(area, cell): contains, (cell, area): part_of, (area, red): contains, (red, area): part_of}
        same(relations, expected)


def the_property_turns_it_off():
    arrived, _ = run(f"{DETECT} analytics-meta=false ! SINK", [area_with_cell()], entries)
    same(arrived[0], [None])


def others_metas_are_kept_and_adopted(n_frames=5):
    """Detections in another program's meta become regions once, and roiflow does not write a second meta for them."""

    def buffer():
        buffer = Gst.Buffer.new_wrapped(image([((0, 0, 40, 40), (255, 0, 0)), ((100, 50, 60, 30), (0, 0, 255))]))
        meta = GstAnalytics.buffer_add_analytics_relation_meta(buffer)
        _, first = meta.add_od_mtd(GLib.quark_from_string("left"), 0, 0, 40, 40, 0.75)
        _, second = meta.add_od_mtd(GLib.quark_from_string("right"), 100, 50, 60, 30, 0.5)
        _, said = meta.add_one_cls_mtd(0.25, GLib.quark_from_string("parked"))
        meta.set_relation(REL.RELATE_TO, first.id, said.id)
        meta.set_relation(REL.IS_PART_OF, second.id, first.id)
        return buffer

    for line in results_of(COLOR, [buffer() for _ in range(n_frames)]):
        left, right = line["objects"]
        same((left["roi_type"], place(left), left["detection"]["confidence"]), ("left", (0, 0, 40, 40), 0.75))
        same((right["roi_type"], place(right), right["detection"]["confidence"]), ("right", (100, 50, 60, 30), 0.5))
        same((left["color"]["label"], right["color"]["label"]), ("red", "blue"))
        same((left["classification"]["label"], left["classification"]["confidence"]), ("parked", 0.25))
        same(("classification" in right, left["parent_id"], right["parent_id"]), (False, None, left["region_id"]))
    # Three elements of roiflow in a row do not duplicate objects.
    arrived, _ = run(f"{COLOR} ! {DETECT} ! {COLOR.replace('color.onnx', 'brightness.onnx')} ! SINK", [buffer() for _ in range(n_frames)], entries)
    for objects, classes, relations in arrived[0]:
        same([name for name, *_ in objects.values()], ["left", "right", "rectangle"])
        same(sorted(label for label, _ in classes.values()), ["blue", "parked", "red"])
        same(relations[(0, 2)], int(REL.RELATE_TO))


def others_detections_and_ours_are_told_apart():
    """With another program's detector between two elements of roiflow, roiflow's objects are matched by ID, and the other objects are
    added."""
    arrived, _ = run(f"{DETECT} ! SINK", [area_with_cell()], lambda buffer: buffer)
    buffer = arrived[0][0].copy_deep()
    meta = GstAnalytics.buffer_get_analytics_relation_meta(buffer)
    _, theirs = meta.add_od_mtd(GLib.quark_from_string("sign"), 10, 10, 20, 20, 0.5)
    _, said = meta.add_one_cls_mtd(0.75, GLib.quark_from_string("large"))
    meta.set_relation(REL.IS_PART_OF, said.id, 0)
    (line,) = results_of(COLOR, [buffer])
    same([(thing["roi_type"], place(thing)) for thing in line["objects"]], [("rectangle", AREA), ("sign", (10, 10, 20, 20))])
    area, sign = line["objects"]
    same((area["classification"]["label"], area["color"]["label"]), ("large", "red"))
    same(("classification" in sign, sign["color"]["label"]), (False, "other"))


def classifications_of_the_whole_frame_go_both_ways():
    red = lambda: Gst.Buffer.new_wrapped(image([((0, 0, WIDTH, HEIGHT), (255, 0, 0))]))  # noqa: E731
    frame = f"{COLOR} inference-region=full-frame"
    # Another element attaches again, and another model adds nothing that has a label.
    brightness = frame.replace("color.onnx", "brightness.onnx")
    arrived, _ = run(f"{frame} ! {brightness} ! {DETECT} ! SINK", [red() for _ in range(3)], entries)
    for objects, classes, relations in arrived[0]:
        same([label for label, _ in classes.values()], ["red"])
        same((len(objects), relations), (1, {}))

    def buffer():
        buffer = red()
        meta = GstAnalytics.buffer_add_analytics_relation_meta(buffer)
        _, indoor = meta.add_one_cls_mtd(0.75, GLib.quark_from_string("indoor"))
        _, labels = meta.add_cls_mtd([0.0, 0.0], [GLib.quark_from_string(label) for label in ("outdoor", "indoor")])
        meta.set_relation(REL.RELATE_TO, indoor.id, labels.id)
        return buffer

    for elements in ("identity", "roitrack", frame, f"{frame} ! {DETECT}"):
        for line in results_of(elements, [buffer() for _ in range(2)]):
            said = line["classifications"]["classification"]
            same((said["label"], said["label_id"], said["confidence"], line["inference"]["status"]), ("indoor", 1, 0.75, "ok"))
            same(set(line["classifications"]), {"classification", "color"} if "color" in elements else {"classification"})
    arrived, _ = run(f"{frame} ! {DETECT} ! SINK", [buffer()], lambda buffer: sorted(label for label, _ in entries(buffer)[1].values()))
    same(arrived[0], [["indoor", "outdoor", "red"]])


def removes_regions(label):
    """Returns a probe that removes the region metas of this label, with C functions, because Python's reference makes a buffer read-only."""
    plugin, core, video = (
        ctypes.CDLL(name) for name in (Gst.Registry.get().find_plugin("roiflow").get_filename(), "libgstreamer-1.0.so.0", "libgstvideo-1.0.so.0")
    )
    pointer = ctypes.c_void_p
    plugin.roiflow_probe_buffer.restype, plugin.roiflow_probe_buffer.argtypes = pointer, [pointer]
    find = video.gst_buffer_get_video_region_of_interest_meta_id
    find.restype, find.argtypes = pointer, [pointer, ctypes.c_int]
    core.gst_buffer_remove_meta.argtypes = [pointer, pointer]

    def probe(pad, info):
        buffer = plugin.roiflow_probe_buffer(hash(info))
        for number in range(64):
            meta = find(buffer, number)
            # The type of the region is a quark behind the header of the meta, which has 16 bytes.
            if meta and ctypes.c_uint32.from_address(meta + 16).value == GLib.quark_from_string(label):
                core.gst_buffer_remove_meta(buffer, meta)
        return Gst.PadProbeReturn.OK

    return probe


def objects_whose_region_is_removed_stay_removed():
    scale = f"videoscale add-borders=false ! video/x-raw,width={WIDTH // 2},height={HEIGHT // 2}"
    path = OUT / "removed.jsonl"
    for middle in ("identity", scale, "videoconvert ! video/x-raw,format=NV12", "tee"):
        line = f'{DETECT} ! {CELLS} name=cells ! {middle} ! {COLOR} ! roipublish address="{path}" ! fakesink'
        pipeline = Gst.parse_launch(f"appsrc name=source format=time caps={CAPS} ! {line}")
        pipeline.get_by_name("cells").get_static_pad("src").add_probe(Gst.PadProbeType.BUFFER, removes_regions("cell"))
        source = pipeline.get_by_name("source")
        pipeline.set_state(Gst.State.PLAYING)
        source.emit("push-buffer", area_with_cell())
        source.emit("end-of-stream")
        pipeline.get_bus().timed_pop_filtered(TIMEOUT, Gst.MessageType.EOS | Gst.MessageType.ERROR)
        pipeline.set_state(Gst.State.NULL)
        same([thing["roi_type"] for thing in json.loads(path.read_text())["objects"]], ["rectangle"])
        path.unlink()


def track_of(buffer):
    """Returns the label and the track ID of each detection."""
    meta = GstAnalytics.buffer_get_analytics_relation_meta(buffer)
    mtds = [*meta]
    tracks = {mtd.id: mtd.get_info() for mtd in mtds if isinstance(mtd, GstAnalytics.TrackingMtd)}
    found = []
    for mtd in mtds:
        if isinstance(mtd, GstAnalytics.ODMtd):
            related = [track for track in tracks if int(meta.get_relation(mtd.id, track)) == int(REL.RELATE_TO)]
            assert len(related) <= 1, related
            found.append((GLib.quark_to_string(mtd.get_obj_type()), tracks[related[0]][1] if related else None))
    return found


def names_of_tracks_are_written_once():
    line = f"{DETECT} ! roitrack min-hits=1 ! {COLOR} ! SINK"
    arrived, _ = run(line, [area_with_cell() for _ in range(4)], track_of)
    names = {track for ((label, track),) in arrived[0] if label == "rectangle"}
    same((len(arrived[0]), len(names)), (4, 1))
    assert names.pop() > 0
    # Without an analytics meta of the detector, the tracker adds none.
    arrived, _ = run(f"{DETECT} analytics-meta=false ! roitrack min-hits=1 ! SINK", [area_with_cell()], entries)
    same(arrived[0], [None])


def names_that_others_gave_are_read():
    def buffer():
        buffer = Gst.Buffer.new_wrapped(image([((0, 0, 40, 40), (255, 0, 0))]))
        meta = GstAnalytics.buffer_add_analytics_relation_meta(buffer)
        _, found = meta.add_od_mtd(GLib.quark_from_string("left"), 0, 0, 40, 40, 0.75)
        _, track = meta.add_tracking_mtd(77, 0)
        meta.set_relation(REL.RELATE_TO, found.id, track.id)
        return buffer

    for line in results_of(COLOR, [buffer() for _ in range(3)]):
        same([thing["id"] for thing in line["objects"]], [77])
    arrived, _ = run(f"{COLOR} ! SINK", [buffer()], track_of)
    same(arrived[0], [[("left", 77)]])


def elements_between_keep_them():
    """After tee, conversion and scaling, the entries of the meta still match roiflow's objects, have the scaled boxes, and are not
    duplicated."""
    x, y, width, height = AREA
    half = (x // 2, y // 2, width // 2, height // 2)
    for middle, expected in (
        ("tee name=t t. ! queue ! fakesink async=false t. ! queue", AREA),
        ("videoconvert ! video/x-raw,format=NV12", AREA),
        (f"videoscale add-borders=false ! video/x-raw,width={WIDTH // 2},height={HEIGHT // 2}", half),
        (f"videoconvertscale add-borders=false ! video/x-raw,format=I420,width={WIDTH // 2},height={HEIGHT // 2}", half),
        ("videorate ! video/x-raw,framerate=50/1", AREA),
    ):
        arrived, warnings = run(f"{DETECT} ! {middle} ! {COLOR} ! SINK", [area_with_cell() for _ in range(3)], entries)
        assert len(arrived[0]) >= 3, middle
        for objects, classes, _ in arrived[0]:
            same([(name, place) for name, place, _ in objects.values()], [("rectangle", expected)])
            same([label for label, _ in classes.values()], ["red"])
        same(warnings, [])
        for line in results_of(f"{DETECT} ! {middle} ! {COLOR}", [area_with_cell()])[:1]:
            same([place(thing) for thing in line["objects"]], [expected])


def what_an_encoder_or_a_crop_takes_is_in_our_meta():
    """roiflow's results arrive exactly once, even if other metas are changed."""
    for middle in ("videoconvert ! x264enc tune=zerolatency ! avdec_h264 ! videoconvert", "videoflip method=horizontal-flip"):
        (line, *_) = results_of(f"{DETECT} ! {middle} ! {COLOR}", [area_with_cell() for _ in range(3)])
        same(len(line["objects"]), 1)
    path = OUT / "results.jsonl"
    _, warnings = run(f'{DETECT} ! videocrop left=40 ! {COLOR} ! roipublish address="{path}" ! fakesink', [area_with_cell()], n_sinks=0)
    (found,) = json.loads(path.read_text())["objects"]
    path.unlink()
    if Gst.version() >= (1, 28):
        # videocrop moves the region metas with the image.
        same((place(found), warnings), ((AREA[0] - 40, *AREA[1:]), []))
    else:
        assert len(warnings) == 1 and "upstream of the detector" in warnings[0], warnings


def many_objects_fit():
    white = Gst.Buffer.new_wrapped(image([((0, 0, WIDTH, HEIGHT), (255, 255, 255))]))
    arrived, _ = run(f"roidetect model={MODELS}/stripes.onnx device=CPU ! {COLOR} ! SINK", [white], entries)
    ((objects, classes, relations),) = arrived[0]
    same((len(objects), len(classes), len(relations)), (300, 300, 600))
    same(len({place for _, place, _ in objects.values()}), 300)


def what_does_not_fit_is_in_our_meta():
    """The relation meta has a byte per pair of entries, so 18,300 objects would take 300 MB per frame. roiflow writes only 2048 entries
    into it."""
    stripes = f"roidetect model={MODELS}/stripes.onnx device=CPU"
    # The frame has sixty bright cells, and each of them has three hundred cells.
    white = lambda: Gst.Buffer.new_wrapped(image([((0, 0, WIDTH, 3 * HEIGHT // 15), (255, 255, 255))]))  # noqa: E731
    line = f"{stripes} ! {stripes} inference-region=roi-list object-class=cell"
    arrived, _ = run(f"{line} ! SINK", [white()], lambda buffer: len([*GstAnalytics.buffer_get_analytics_relation_meta(buffer)]))
    same(arrived, [[2048]])
    same(len(results_of(line, [white()])[0]["objects"]), 60 + 60 * 300)


# Simulation of DL Streamer's elements. Data and lookups are as in DL Streamer's source.


# Names of the structures in region metas. The Python bindings find a structure by its name, but cannot list the structures.
STRUCTURES = ("detection", "color", "type")


def iterate(buffer):
    """Returns the region metas of a buffer. The Python bindings find a meta by its ID, but cannot list the metas, so this function tries
    IDs."""
    found = (GstVideo.buffer_get_video_region_of_interest_meta_id(buffer, number) for number in range(64))
    return [meta for meta in found if meta is not None]


def params(meta):
    """Returns the structures of a region meta by name."""
    found = {name: meta.get_param(name) for name in STRUCTURES}
    return {name: structure for name, structure in found.items() if structure is not None}


def descriptor(meta, labels):
    """Adds the class descriptor of a model: all its labels with confidence 0."""
    quarks = [GLib.quark_from_string(label) for label in labels]
    _, mtd = meta.add_cls_mtd([0.0] * len(labels), quarks)
    return mtd


def gvadetect(buffer, objects, labels):
    """Attaches detections (label, box, parent) as gvadetect does. Returns the IDs of their entries."""
    meta = GstAnalytics.buffer_add_analytics_relation_meta(buffer)
    classes = descriptor(meta, labels) if labels else None
    ids = []
    for label, (x, y, w, h), parent in objects:
        _, found = meta.add_od_mtd(GLib.quark_from_string(label), x, y, w, h, 0.875)
        if classes:
            meta.set_relation(REL.RELATE_TO, found.id, classes.id)
        region = GstVideo.buffer_add_video_region_of_interest_meta(buffer, label, x, y, w, h)
        region.id, region.parent_id = found.id, -1 if parent is None else ids[parent]
        if parent is not None:
            meta.set_relation(REL.IS_PART_OF, found.id, ids[parent])
            meta.set_relation(REL.CONTAIN, ids[parent], found.id)
        edges = f"x_min=(double){x / WIDTH}, x_max=(double){(x + w) / WIDTH}, y_min=(double){y / HEIGHT}, y_max=(double){(y + h) / HEIGHT}"
        label_id = labels.index(label) if labels else 0
        text = f"detection, {edges}, confidence=(double)0.875, label_id=(int){label_id}, model_name=(string)cars, layer_name=(string)out"
        region.add_param(Gst.Structure.from_string(text)[0])
        ids.append(found.id)
    return ids


def gvaclassify(buffer, label, labels):
    """Classifies every region with this label as gvaclassify does, with the same errors."""
    meta = GstAnalytics.buffer_get_analytics_relation_meta(buffer)
    assert meta is not None, "Failed to get analytics relation meta"
    n_classified = 0
    for region in iterate(buffer):
        found, entry = meta.get_od_mtd(region.id)
        assert found, f"Failed to get ODMtd from analytics relation meta: {region.id}"
        _, x, y, w, h, _ = entry.get_location()
        same(((region.x, region.y, region.w, region.h), region.roi_type), ((x, y, w, h), entry.get_obj_type()))
        detection = params(region)["detection"]
        edges = [detection.get_double(edge) for edge in ("x_min", "x_max", "y_min", "y_max")]
        assert all(ok and 0 <= edge <= 1 for ok, edge in edges), f"expected edges between 0 and 1, got {edges}"
        if GLib.quark_to_string(region.roi_type) != label:
            continue
        classes = descriptor(meta, labels)
        _, said = meta.add_one_cls_mtd(0.75, GLib.quark_from_string(labels[2]))
        meta.set_relation(REL.CONTAIN, entry.id, said.id)
        meta.set_relation(REL.IS_PART_OF, said.id, entry.id)
        meta.set_relation(REL.RELATE_TO, said.id, classes.id)
        text = f"type, attribute_name=(string)type, model_name=(string)attributes, type=(string)classification_result, label=(string){labels[2]}"
        region.add_param(Gst.Structure.from_string(f"{text}, label_id=(int)2, confidence=(double)0.75")[0])
        n_classified += 1
    return n_classified


def gvametaconvert(buffer):
    """Returns the objects of a buffer as gvametaconvert prints them: for each entry, it searches the region meta by ID."""
    meta = GstAnalytics.buffer_get_analytics_relation_meta(buffer)
    entries = [mtd for mtd in meta if isinstance(mtd, GstAnalytics.ODMtd)]
    printed = []
    for entry in entries:
        region = GstVideo.buffer_get_video_region_of_interest_meta_id(buffer, entry.id)
        assert region is not None, f"entry {entry.id} has no region: its box would be printed in pixels"
        structures = params(region)
        detection = structures.pop("detection")
        box = [round(detection.get_double(edge)[1], 4) for edge in ("x_min", "x_max", "y_min", "y_max")]
        parents = [other.id for other in entries if int(meta.get_relation(entry.id, other.id)) & int(REL.IS_PART_OF)]
        said = {}
        for name, structure in structures.items():
            label, model = structure.get_string("label"), structure.get_string("model_name")
            if label is not None and model is not None:
                said[structure.get_string("attribute_name") or name] = (label, model, structure.get_int("label_id")[1])
        printed.append((GLib.quark_to_string(entry.get_obj_type()), box, detection.get_int("label_id")[1], said, parents))
    return printed


def part_of(x, y, w, h):
    return [round(edge, 4) for edge in (x / WIDTH, (x + w) / WIDTH, y / HEIGHT, (y + h) / HEIGHT)]


def gvametaconvert_and_gvaclassify_find_our_objects():
    for line in (f"{DETECT} ! {CELLS} ! {COLOR} object-class=rectangle", f"{DETECT} ! {CELLS} ! roitrack ! tee ! queue ! {COLOR} object-class=rectangle"):
        arrived, _ = run(f"{line} ! SINK", [area_with_cell() for _ in range(3)], lambda buffer: buffer.copy_deep())
        for buffer in arrived[0]:
            (area, cell) = gvametaconvert(buffer)
            same(area[:3], ("rectangle", part_of(*AREA), 0))
            same(area[3]["color"], ("red", "color", 0))
            same(cell[:4], ("cell", part_of(*CELL), 0, {}))
            same((len(cell[4]), area[4]), (1, []))
            same(gvaclassify(buffer, "cell", ["a", "b", "c"]), 1)
            (line_of_json,) = results_of(COLOR, [buffer])
            area, cell = line_of_json["objects"]
            same((cell["type"]["label"], cell["type"]["label_id"], cell["type"]["model"]["name"]), ("c", 2, "attributes"))
            same(("classification" in cell, "classification" in area, "type" in area), (False, False, False))
            same((area["region_id"], cell["region_id"], cell["parent_id"]), (1, 2, 1))


def what_gvadetect_finds_is_read_once(n_frames=3):
    labels = ["person", "car", "plate"]
    objects = [("car", (80, 60, 160, 120), None), ("plate", (104, 76, 8, 8), 0)]
    for known in (labels, []):

        def buffer():
            buffer = area_with_cell()
            gvadetect(buffer, objects, known)
            return buffer

        for line in ("identity", COLOR, f"{DETECT} ! roitrack ! {COLOR}"):
            for result in results_of(line, [buffer() for _ in range(n_frames)]):
                car, plate = result["objects"][:2]
                same((car["roi_type"], place(car), car["detection"]["confidence"]), ("car", (80, 60, 160, 120), 0.875))
                same((plate["roi_type"], place(plate)), ("plate", (104, 76, 8, 8)))
                same((car["detection"]["label_id"], plate["detection"]["label_id"]), (1, 2) if known else (0, 0))
                same((car["parent_id"], plate["parent_id"]), (None, car["region_id"]))
                same(len(result["objects"]), 3 if "rectangle" in line else 2)
                assert not any("classification" in thing for thing in result["objects"]), f"a class descriptor is not a result: {result}"
        # gvaclassify, downstream of roiflow's elements, finds the objects of gvadetect and of roiflow.
        arrived, _ = run(f"{DETECT} ! {COLOR} ! SINK", [buffer()], lambda buffer: buffer.copy_deep())
        (buffer_of_both,) = arrived[0]
        same(gvaclassify(buffer_of_both, "car", ["van", "truck", "bus"]), 1)
        same([name for name, *_ in gvametaconvert(buffer_of_both)], ["car", "plate", "rectangle"])
        (result,) = results_of("identity", [buffer_of_both])
        same([thing.get("type", {}).get("label") for thing in result["objects"]], ["bus", None, None])


def what_gvaclassify_says_without_its_regions_is_read_from_the_entries():
    """A scaler drops the parameters of region metas. The label ID is then the index in the class descriptor."""
    buffer = area_with_cell()
    gvadetect(buffer, [("car", AREA, None)], ["person", "car"])
    gvaclassify(buffer, "car", ["bus", "truck", "van"])
    half = f"videoscale add-borders=false ! video/x-raw,width={WIDTH // 2},height={HEIGHT // 2}"
    (result,) = results_of(half, [buffer])
    (car,) = result["objects"]
    same((car["roi_type"], place(car)), ("car", tuple(edge // 2 for edge in AREA)))
    same((car["classification"]["label"], car["classification"]["label_id"], car["classification"]["confidence"]), ("van", 2, 0.75))


def rotated_boxes_of_others_are_read():
    buffer = area_with_cell()
    meta = GstAnalytics.buffer_add_analytics_relation_meta(buffer)
    # A box of 80x40 around (160, 120), turned by a right angle, is a box of 40x80.
    meta.add_oriented_od_mtd(GLib.quark_from_string("ship"), 120, 100, 80, 40, math.pi / 2, 0.75)
    for line in ("identity", COLOR):
        (result,) = results_of(line, [buffer])
        (ship,) = result["objects"]
        same((ship["roi_type"], place(ship)), ("ship", (140, 80, 40, 80)))
        same(round(ship["rotated"]["angle"]), 90)


def diagonal_bar():
    """Returns a frame with a red bar of 120x24 around its center, rotated clockwise by 30 degrees."""
    pixels = bytearray(WIDTH * HEIGHT * 3)
    sin, cos = math.sin(math.radians(30)), math.cos(math.radians(30))
    for y in range(HEIGHT):
        for x in range(WIDTH):
            dx, dy = x + 0.5 - WIDTH / 2, y + 0.5 - HEIGHT / 2
            if abs(dx * cos + dy * sin) <= 60 and abs(dy * cos - dx * sin) <= 12:
                pixels[(y * WIDTH + x) * 3 : (y * WIDTH + x) * 3 + 3] = b"\xff\x00\x00"
    return Gst.Buffer.new_wrapped(bytes(pixels))


def rotated_places(buffer):
    meta = GstAnalytics.buffer_get_analytics_relation_meta(buffer)
    return [mtd.get_oriented_location()[1:6] for mtd in meta if isinstance(mtd, GstAnalytics.ODMtd)]


def our_rotated_boxes_are_written():
    detect = f"roidetect model={MODELS}/rotated.onnx device=CPU"
    half = f"videoscale add-borders=false ! video/x-raw,width={WIDTH // 2},height={HEIGHT // 2}"
    for middle, scale in (("identity", 1), (half, 2)):
        # Two elements of roiflow read and write the results again.
        arrived, _ = run(f"{detect} ! {middle} ! {COLOR} ! roitrack min-hits=1 ! SINK", [diagonal_bar()], rotated_places)
        (((x, y, width, height, angle),),) = arrived[0]
        expected = (WIDTH / 2, HEIGHT / 2, 120, 24)
        for got, value in zip((x + width / 2, y + height / 2, width, height), expected):
            assert abs(got * scale - value) <= 8, (middle, arrived)
        assert abs(angle - math.radians(30)) < 0.05, (middle, arrived)
        (result,) = results_of(f"{detect} ! {middle} ! {COLOR}", [diagonal_bar()])
        (bar,) = result["objects"]
        (rotated,) = [value for value in bar.values() if isinstance(value, dict) and "angle" in value]
        assert abs(rotated["angle"] - 30) < 3, bar
        left, top, width, height = place(bar)
        assert abs((left + width / 2) * scale - WIDTH / 2) <= 4 and abs((top + height / 2) * scale - HEIGHT / 2) <= 4, bar


def entries_follow_moved_boxes():
    """A program moves a region. The next element of roiflow writes the entries again, unless the meta has entries of other elements."""
    x, y, width, height = AREA
    moved = (x - 40, y - 30, width, height)
    for is_alone in (True, False):
        arrived, _ = run(f"{DETECT} ! {CELLS} ! roitrack min-hits=1 ! SINK", [area_with_cell()], lambda buffer: buffer.copy_deep())
        (buffer,) = arrived[0]
        if not is_alone:
            GstAnalytics.buffer_get_analytics_relation_meta(buffer).add_one_cls_mtd(0.75, GLib.quark_from_string("indoor"))
        (region,) = [region for region in iterate(buffer) if GLib.quark_to_string(region.roi_type) == "rectangle"]
        region.x, region.y = moved[:2]
        look = lambda buffer: (entries(buffer)[:2], track_of(buffer), [(roi.x, roi.y, roi.w, roi.h) for roi in iterate(buffer)])  # noqa: E731
        arrived, _ = run(f"{COLOR} object-class=rectangle ! roitrack min-hits=1 ! SINK", [buffer], look)
        (((objects, classes), tracks, regions),) = arrived[0]
        same([name for name, *_ in objects.values()], ["rectangle", "cell"])
        same([place for _, place, _ in objects.values()], [moved, CELL] if is_alone else [AREA, CELL])
        same(regions, [moved, CELL])
        same(len([track for _, track in tracks if track]), 2)
        same(sorted(label for label, _ in classes.values()), ["red"] if is_alone else ["indoor", "red"])


MASK = f"roidetect model={MODELS}/mask.onnx device=CPU"


def segmentations(buffer):
    """Returns the rectangle, the region IDs and the rows of each mask, and the relations between it and each detection."""
    meta = GstAnalytics.buffer_get_analytics_relation_meta(buffer)
    found, mtds = [], [*meta]
    for mtd in mtds:
        if isinstance(mtd, GstAnalytics.SegmentationMtd):
            mask, *rect = mtd.get_mask()
            video = GstVideo.buffer_get_video_meta(mask)
            same(video.format, GstVideo.VideoFormat.GRAY8)
            data = mask.extract_dup(0, mask.get_size())
            rows = [data[video.offset[0] + row * video.stride[0] :][: video.width] for row in range(video.height)]
            regions = [mtd.get_region_id(idx) for idx in range(mtd.get_region_count())]
            others = [other.id for other in mtds if isinstance(other, GstAnalytics.ODMtd)]
            relations = [(int(meta.get_relation(mtd.id, other)), int(meta.get_relation(other, mtd.id))) for other in others]
            found.append((tuple(rect), regions, rows, relations))
    return found


def our_masks_are_written():
    frames = lambda: [Gst.Buffer.new_wrapped(image([(AREA, (255, 0, 0))])) for _ in range(2)]  # noqa: E731
    half = f"videoscale add-borders=false ! video/x-raw,width={WIDTH // 2},height={HEIGHT // 2}"
    for middle, scale in (("identity", 1), (half, 2)):
        arrived, _ = run(f"{MASK} ! {middle} ! {COLOR} ! roitrack min-hits=1 ! SINK", frames(), segmentations)
        for masks in arrived[0]:
            ((rect, regions, rows, relations),) = masks
            assert all(abs(got * scale - edge) <= 6 for got, edge in zip(rect, AREA)), (rect, AREA)
            same((regions[0], len(regions)), (0, 2))
            same(relations, [(int(REL.RELATE_TO), int(REL.RELATE_TO))])
            inside = sum(row.count(regions[1]) for row in rows)
            outside = sum(row.count(0) for row in rows)
            assert inside + outside == len(rows) * len(rows[0]) and inside > 4 * outside, (inside, outside)
        (result, _) = results_of(f"{MASK} ! {middle} ! {COLOR}", frames())
        (shape,) = result["objects"]
        same(len([value for value in shape.values() if isinstance(value, dict) and "runs" in value]), 1)
    # The reader of GStreamer 1.28.
    if Gst.ElementFactory.find("segmentationoverlay"):
        run(f"{MASK} ! videoconvert ! segmentationoverlay ! fakesink", frames(), n_sinks=0)


def gray(width, height, value, stride=None):
    """Returns a mask with a value for each column and row."""
    stride = stride or (width + 3) // 4 * 4
    mask = Gst.Buffer.new_wrapped(bytes(value(x, y) if x < width else 255 for y in range(height) for x in range(stride)))
    GstVideo.buffer_add_video_meta(mask, GstVideo.VideoFrameFlags.NONE, GstVideo.VideoFormat.GRAY8, width, height)
    return mask


def masks_of_others_are_read():
    instance, semantic = GstAnalytics.SegmentationType.INSTANCE, GstAnalytics.SegmentationType.SEMANTIC

    def buffer():
        buffer = area_with_cell()
        meta = GstAnalytics.buffer_add_analytics_relation_meta(buffer)
        _, found = meta.add_od_mtd(GLib.quark_from_string("fruit"), *AREA, 0.75)
        # The regions of yolosegtensordecoder: the count excludes the second one.
        _, mask = meta.add_segmentation_mtd(gray(6, 4, lambda x, y: 7 * (x < 3)), instance, [0], *AREA)
        meta.set_relation(REL.RELATE_TO, found.id, mask.id)
        meta.set_relation(REL.RELATE_TO, mask.id, found.id)
        _, road = meta.add_segmentation_mtd(gray(5, 2, lambda x, y: [0, 12, 31][y + (x > 3)]), semantic, [0, 12, 31], 0, 0, WIDTH, HEIGHT)
        _, classes = meta.add_cls_mtd([-1.0] * 3, [GLib.quark_from_string(name) for name in ("ground", "road", "car")])
        meta.set_relation(REL.N_TO_N, road.id, classes.id)
        # An element may write anything: a mask without cells, and a rectangle without pixels.
        meta.add_segmentation_mtd(gray(1, 1, lambda x, y: 1), instance, [1], 5, 5, 0, 0)
        return buffer

    for line in ("identity", COLOR, f"{DETECT} ! {COLOR} ! roitrack"):
        for result in results_of(line, [buffer() for _ in range(2)]):
            fruit = result["objects"][0]
            same((fruit["roi_type"], place(fruit)), ("fruit", AREA))
            mask = fruit["mask"]
            assert not {"mask_2", "segmentation_2"} & {*fruit, *result["classifications"]}, fruit
            same((mask["columns"], mask["rows"], mask["runs"]), (6, 4, [0, 3, 3, 3, 3, 3, 3, 3, 3]))
            roads = result["classifications"]["segmentation"]
            same((roads["columns"], roads["rows"], roads["labels"]), (5, 2, ["ground", "road", "car"]))
            same(roads["class_runs"], [[0, 4], [1, 5], [2, 1]])
    # roiflow does not write them again.
    arrived, _ = run(f"{COLOR} ! {COLOR.replace('color', 'brightness')} ! roitrack ! SINK", [buffer()], lambda buffer: len(segmentations(buffer)))
    same(arrived[0], [3])


def embedding():
    """Returns an element whose results are tensors: the outputs of the color model as they are."""
    for suffix in ("onnx", "toml"):
        content = (MODELS / f"color.{suffix}").read_bytes()
        if suffix == "toml":
            content = content.split(b"[output]")[0].replace(b'"color"', b'"look"') + b'[output]\ndecoder = "embedding"\n'
        (MODELS / f"look.{suffix}").write_bytes(content)
    return COLOR.replace("color.onnx", "look.onnx")


def tensors_go_both_ways():
    if not hasattr(GstAnalytics, "TensorMtd"):
        raise Skipped("expected GStreamer 1.28 or newer")
    kind, order = GstAnalytics.TensorDataType, GstAnalytics.TensorDimOrder

    def tensors(buffer):
        meta = GstAnalytics.buffer_get_analytics_relation_meta(buffer)
        found = []
        for mtd in meta:
            if isinstance(mtd, GstAnalytics.TensorMtd):
                tensor = mtd.get_tensor()
                same((tensor.data_type, tensor.dims_order), (kind.FLOAT32, order.ROW_MAJOR))
                data = tensor.data.extract_dup(0, tensor.data.get_size())
                relations = [int(meta.get_relation(other.id, mtd.id)) for other in meta if isinstance(other, GstAnalytics.ODMtd)]
                found.append((GLib.quark_to_string(tensor.id), list(tensor.get_dims()), [round(x, 2) for x in memoryview(data).cast("f")], relations))
        return found

    arrived, _ = run(f"{DETECT} ! {embedding()} ! {COLOR} ! roitrack ! SINK", [area_with_cell()], tensors)
    (((_, shape, values, relations),),) = arrived[0]
    same((math.prod(shape), values, relations), (4, [1.0, 0.0, 0.0, 0.0], [int(REL.CONTAIN)]))

    def buffer():
        buffer = area_with_cell()
        meta = GstAnalytics.buffer_add_analytics_relation_meta(buffer)
        _, found = meta.add_od_mtd(GLib.quark_from_string("face"), *AREA, 0.75)
        for name, of_type, data in (("features", kind.FLOAT32, memoryview(bytes(16)).cast("f")), ("bytes", kind.UINT8, bytes(4))):
            _, tensor = meta.add_tensor_mtd_simple(
                GLib.quark_from_string(name), of_type, Gst.Buffer.new_wrapped(bytes(data)), order.ROW_MAJOR, [2, 2]
            )
            meta.set_relation(REL.CONTAIN, found.id, tensor.id)
        return buffer

    for line in ("identity", COLOR):
        (result,) = results_of(line, [buffer()])
        (face,) = result["objects"]
        same((face["features"]["shape"], face["features"]["data"], "bytes" in face), ([2, 2], [0.0] * 4, False))


class Library:
    """Functions of GStreamer 1.30, called in C, because the bindings of an older version do not know them."""

    def __init__(self):
        self.c = ctypes.CDLL("libgstanalytics-1.0.so.0")
        pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p

        class Mtd(ctypes.Structure):
            _fields_ = [("id", ctypes.c_uint), ("meta", pointer)]

        self.Mtd = Mtd
        self.c.gst_analytics_mtd_get_semantic_tag.restype = text
        self.c.gst_analytics_mtd_get_mtd_type.restype = size
        for name in ("group", "keypoint"):
            getattr(self.c, f"gst_analytics_{name}_mtd_get_mtd_type").restype = size
        self.c.gst_analytics_group_mtd_iterate.argtypes = [pointer, pointer, size, pointer]
        self.c.gst_analytics_relation_meta_add_keypoints_group.argtypes = [
            pointer, text, ctypes.c_int, size, pointer, size, pointer, pointer, size, pointer, pointer
        ]  # fmt: skip

    def mtd(self, meta, number):
        return self.Mtd(number, hash(meta))

    def tag(self, meta, number):
        return self.c.gst_analytics_mtd_get_semantic_tag(ctypes.byref(self.mtd(meta, number))).decode()

    def set_tag(self, meta, number, tag):
        self.c.gst_analytics_mtd_set_semantic_tag(ctypes.byref(self.mtd(meta, number)), tag)

    def is_group(self, meta, number):
        return self.c.gst_analytics_mtd_get_mtd_type(ctypes.byref(self.mtd(meta, number))) == self.c.gst_analytics_group_mtd_get_mtd_type()

    def keypoints(self, meta, number):
        """Returns the ID, the position and the confidence of each keypoint of a group."""
        state, member, found = ctypes.c_void_p(), self.Mtd(), []
        group, of_type = self.mtd(meta, number), self.c.gst_analytics_keypoint_mtd_get_mtd_type()
        while self.c.gst_analytics_group_mtd_iterate(ctypes.byref(group), ctypes.byref(state), of_type, ctypes.byref(member)):
            (x, y, z, dimensions), confidence = (ctypes.c_int() for _ in range(4)), ctypes.c_float()
            self.c.gst_analytics_keypoint_mtd_get_position(*map(ctypes.byref, (member, x, y, z, dimensions)))
            self.c.gst_analytics_keypoint_mtd_get_confidence(ctypes.byref(member), ctypes.byref(confidence))
            same(dimensions.value, 2)
            found.append((member.id, (x.value, y.value), round(confidence.value, 2)))
        return found

    def add_keypoints(self, meta, tag, points, confidences, edges):
        numbers = lambda of, values: (of * len(values))(*values)  # noqa: E731
        flat, pairs, group = [edge for point in points for edge in point], [end for edge in edges for end in edge], self.Mtd()
        assert self.c.gst_analytics_relation_meta_add_keypoints_group(
            hash(meta), tag, 2, len(flat), numbers(ctypes.c_int, flat), len(points), numbers(ctypes.c_float, confidences), None,
            len(pairs), numbers(ctypes.c_int, pairs), ctypes.byref(group)
        )  # fmt: skip
        return group.id


def keypoints_and_tags_go_both_ways():
    if not hasattr(ctypes.CDLL("libgstanalytics-1.0.so.0"), "gst_analytics_mtd_set_semantic_tag"):
        raise Skipped("expected GStreamer 1.30 or newer")
    library = Library()
    dots = [((80, 60, 16, 16), (255, 0, 0)), ((224, 60, 16, 16), (0, 255, 0)), ((80, 164, 16, 16), (0, 0, 255))]
    pose = f"roidetect model={MODELS}/pose.onnx device=CPU"

    def keypoints(buffer):
        meta = GstAnalytics.buffer_get_analytics_relation_meta(buffer)
        # The bindings cannot list entries of a type that they do not know.
        numbers = range(ctypes.CDLL("libgstanalytics-1.0.so.0").gst_analytics_relation_get_length(ctypes.c_void_p(hash(meta))))
        groups = [number for number in numbers if library.is_group(meta, number)]
        points = [library.keypoints(meta, group) for group in groups]
        links = [int(meta.get_relation(points[0][0][0], other)) for other, *_ in points[0]] if points else []
        return [library.tag(meta, group) for group in groups], points, links, [int(meta.get_relation(0, group)) for group in groups]

    arrived, _ = run(f"{pose} ! {COLOR} ! roitrack ! SINK", [Gst.Buffer.new_wrapped(image(dots))], keypoints)
    ((tags, (points,), links, relations),) = arrived[0]
    assert tags[0].endswith("-3-kp"), tags
    for (_, got, _), expected in zip(points, ((88, 68), (232, 68), (88, 172))):
        assert all(abs(one - other) <= 4 for one, other in zip(got, expected)), (points, expected)
    same((len(points), links, relations), (3, [0, int(REL.RELATE_TO), int(REL.RELATE_TO)], [int(REL.CONTAIN)]))

    arrived, _ = run(f"{DETECT} ! {COLOR} ! SINK", [area_with_cell()], lambda buffer: buffer.copy_deep())
    meta = GstAnalytics.buffer_get_analytics_relation_meta(arrived[0][0])
    same([library.tag(meta, mtd.id) for mtd in meta if isinstance(mtd, GstAnalytics.ClsMtd)], ["color"])

    def buffer():
        buffer = area_with_cell()
        meta = GstAnalytics.buffer_add_analytics_relation_meta(buffer)
        _, found = meta.add_od_mtd(GLib.quark_from_string("hand"), *AREA, 0.75)
        group = library.add_keypoints(meta, b"posture/hand-3-kp", [(90, 70), (100, 80), (110, 95)], [0.5, 1.0, -1.0], [(0, 1), (1, 2)])
        meta.set_relation(REL.CONTAIN, found.id, group)
        _, said = meta.add_one_cls_mtd(0.75, GLib.quark_from_string("open"))
        library.set_tag(meta, said.id, b"gestures")
        meta.set_relation(REL.CONTAIN, found.id, said.id)
        return buffer

    for line in ("identity", COLOR, f"{COLOR} ! roitrack ! {COLOR}"):
        (result,) = results_of(line, [buffer()])
        (hand,) = result["objects"]
        points = [(round(point["x"] * WIDTH), round(point["y"] * HEIGHT)) for point in hand["hand"]["keypoints"]]
        same(points, [(90, 70), (100, 80), (110, 95)])
        same((hand["classification"]["label"], hand["classification"]["model"]["name"]), ("open", "gestures"))
    arrived, _ = run(f"{COLOR} ! roitrack ! SINK", [buffer()], keypoints)
    same(arrived[0][0][0], ["posture/hand-3-kp"])


def batches_of_streams_are_refused():
    """Elements refuse the caps of analyticscombiner, or the first buffer, with an error."""
    caps = "multistream/x-analytics-batch(meta:GstAnalyticsBatchMeta)"
    for element in (DETECT, COLOR, "roitrack"):
        pipeline = Gst.parse_launch(f'appsrc name=source format=time caps="{caps}" ! {element} ! fakesink')
        pipeline.set_state(Gst.State.PLAYING)
        pipeline.get_by_name("source").emit("push-buffer", Gst.Buffer.new())
        message = pipeline.get_bus().timed_pop_filtered(TIMEOUT, Gst.MessageType.ERROR | Gst.MessageType.EOS)
        same(message and message.type, Gst.MessageType.ERROR)
        pipeline.set_state(Gst.State.NULL)


class Skipped(Exception):
    """A check needs a newer GStreamer."""


CHECKS = [
    the_overlay_of_gstreamer_draws_our_boxes,
    what_we_find_is_read_by_others,
    the_property_turns_it_off,
    others_metas_are_kept_and_adopted,
    others_detections_and_ours_are_told_apart,
    classifications_of_the_whole_frame_go_both_ways,
    objects_whose_region_is_removed_stay_removed,
    names_of_tracks_are_written_once,
    names_that_others_gave_are_read,
    elements_between_keep_them,
    what_an_encoder_or_a_crop_takes_is_in_our_meta,
    many_objects_fit,
    what_does_not_fit_is_in_our_meta,
    gvametaconvert_and_gvaclassify_find_our_objects,
    what_gvadetect_finds_is_read_once,
    what_gvaclassify_says_without_its_regions_is_read_from_the_entries,
    rotated_boxes_of_others_are_read,
    our_rotated_boxes_are_written,
    entries_follow_moved_boxes,
    our_masks_are_written,
    masks_of_others_are_read,
    tensors_go_both_ways,
    keypoints_and_tags_go_both_ways,
    batches_of_streams_are_refused,
]

Gst.init(None)
print(f"{Gst.version_string()}: roiflow {Gst.Registry.get().find_plugin('roiflow').get_version()}")
n_failed = n_skipped = 0
for check in CHECKS:
    try:
        check()
        print(f"  {check.__name__} ... ok")
    except Skipped as why:
        n_skipped += 1
        print(f"  {check.__name__} ... skipped: {why}")
    except Exception:
        n_failed += 1
        print(f"  {check.__name__} ... FAILED")
        traceback.print_exc(file=sys.stdout)
print(f"{len(CHECKS) - n_failed - n_skipped} passed, {n_failed} failed, {n_skipped} skipped")
sys.exit(1 if n_failed else 0)
