"""`roiflow.load`: images in, results out, and the errors of wrong models, options and images."""

import gc
import json
import pathlib
import shutil
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import models
from api import IS_OPENVINO, ov
from vision import BLUE, GREEN, MODELS, RED, ROOT, TINY, load, pattern, scene, slow

pytestmark = pytest.mark.skipif(IS_OPENVINO, reason="roiflow alone has models that take images")


def without_time(line):
    return {key: value for key, value in line.items() if key not in ("time", "stream", "source", "timestamp", "pts", "frame")}


def test_a_detector_finds_the_box_of_an_array():
    results = load("rectangle")(scene((16, 8, 40, 24)))
    assert results.boxes.xyxy.tolist() == [[16, 8, 40, 24]]
    assert (results.boxes.confidence.tolist(), results.boxes.class_id.tolist(), results.boxes.labels) == ([1], [0], ["rectangle"])
    assert (results.boxes.xyxy.dtype, results.boxes.confidence.dtype, results.boxes.class_id.dtype) == ("f4", "f4", "i8")
    assert results.boxes.xywh.tolist() == [[28, 16, 24, 16]]
    assert results.boxes.xyxyn.tolist() == [[0.25, 0.125, 0.625, 0.375]]
    assert results.size == (64, 64) and len(results) == len(results.boxes) == 1


def test_boxes_are_pixels_of_the_image_whatever_its_size():
    results = load("rectangle")(scene((32, 16, 80, 48), size=(128, 128)))
    assert results.boxes.xyxy.tolist() == [[32, 16, 80, 48]]


def test_an_image_without_objects_has_empty_arrays():
    results = load("rectangle")(scene((0, 0, 0, 0)))
    assert results.boxes.xyxy.shape == (0, 4) and results.boxes.labels == [] and len(results) == 0 and list(results) == []
    assert results.to_dict()["objects"] == []


def test_a_classifier_names_a_whole_image():
    results = load("color")(scene((0, 0, 64, 64), GREEN))
    color = results.attributes["color"]
    assert (color.value, color.class_id, color.kind, color.name, color.model) == ("green", 1, "label", "color", "color")
    assert color.confidence == pytest.approx(1, abs=1e-4)
    assert len(results) == 0


def test_a_detection_has_the_values_of_its_box():
    found = load("rectangle")(scene((16, 8, 40, 24)))[0]
    assert (found.label, found.class_id, found.confidence, found.xyxy.tolist()) == ("rectangle", 0, 1.0, [16, 8, 40, 24])
    assert found.keypoints.shape == (0, 2) and found.attributes == {} and found.parent is None
    assert "rectangle 1.00" in repr(found)


def test_bgr_is_the_default_order_of_channels():
    model = ov.load(TINY / "color.onnx", device="CPU")
    assert model(scene((0, 0, 64, 64), RED)).attributes["color"].value == "blue"
    assert model(scene((0, 0, 64, 64), RED), color="rgb").attributes["color"].value == "red"
    assert load("color")(scene((0, 0, 64, 64), RED)).attributes["color"].value == "red"


def test_gray_arrays_and_arrays_with_opacity_are_images():
    model = load("color")
    assert model(np.full((20, 30), 255, np.uint8)).attributes["color"].value == "other"
    assert model(np.full((20, 30, 1), 255, np.uint8)).attributes["color"].value == "other"
    opaque = np.dstack([scene((0, 0, 64, 64), BLUE), np.zeros((64, 64), np.uint8)])
    assert model(opaque).attributes["color"].value == "blue"
    assert model(opaque, color="bgr").attributes["color"].value == "red"


def test_images_of_pillow_are_rgb_whatever_color_says():
    image = pytest.importorskip("PIL.Image")
    model = ov.load(TINY / "color.onnx", device="CPU")
    red = image.fromarray(scene((0, 0, 64, 64), RED))
    for mode in ("RGB", "RGBA", "P", "CMYK"):
        assert model(red.convert(mode)).attributes["color"].value == "red", mode
    assert model(red.convert("L")).attributes["color"].value == "other"


def test_image_files_are_rgb(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.fromarray(scene((0, 0, 64, 64), RED)).save(tmp_path / "red.png")
    model = ov.load(TINY / "color.onnx", device="CPU")
    assert model(tmp_path / "red.png").attributes["color"].value == "red"
    assert model(str(tmp_path / "red.png")).attributes["color"].value == "red"


def test_results_equal_those_of_the_rust_crates_bit_by_bit():
    # tests/runtime/image_results.rs compares the same file with the results of the Rust type `Stage`.
    expected = json.loads((ROOT / "tests" / "golden" / "image_results.json").read_text())
    image = pattern()
    boxes = load("rectangle")(image)
    results = load("color")(image, rois=boxes)
    assert without_time(results.to_dict()) == without_time(expected)
    bgr = np.ascontiguousarray(image[..., ::-1])
    again = load("color")(bgr, rois=load("rectangle")(bgr, color="bgr"), color="bgr")
    assert without_time(again.to_dict()) == without_time(expected), "the same pixels in the other order"


def command():
    built = [ROOT / "target" / kind / "roiflow" for kind in ("debug", "release")]
    return next((path for path in built if path.exists()), shutil.which("roiflow"))


@pytest.mark.skipif(not MODELS.exists(), reason="ROIFLOW_MODELS names no folder of models")
@pytest.mark.skipif(command() is None, reason="the command is not built")
@pytest.mark.parametrize("name", ["version-RFB-320.onnx", "yolox_nano_416x416.onnx"])
def test_results_of_real_models_equal_those_of_the_command_bit_by_bit(name, tmp_path):
    model, image = MODELS / "models" / name, MODELS / "images" / "multi_face.jpg"
    lines = tmp_path / "lines.jsonl"
    run = [command(), "run", "--model", model, "--device", "CPU", "--input", image, "--json", lines]
    done = subprocess.run([str(part) for part in run], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    results = ov.load(model, device="CPU")(image)
    assert len(results) > 0
    assert without_time(results.to_dict()) == without_time(json.loads(lines.read_text()))


def test_arrays_are_read_in_place():
    model, image = load("rectangle"), scene()
    before = image.copy()
    for array in (image, image[:, :, :], image[0:64, 0:64], np.pad(image, ((0, 0), (0, 9), (0, 0)))[:, :64]):
        assert model(array).boxes.xyxy.tolist() == [[16, 8, 40, 24]]
    assert np.array_equal(image, before)


def test_a_part_of_an_array_is_an_image():
    image = scene((16, 8, 40, 24), size=(100, 80))
    part = image[4:68, 8:72]
    assert load("rectangle")(part).boxes.xyxy.tolist() == [[8, 4, 32, 20]]


@pytest.mark.parametrize(
    "array",
    [
        lambda image: image.transpose(1, 0, 2).copy().transpose(1, 0, 2),
        lambda image: np.repeat(image, 2, axis=1)[:, ::2],
        lambda image: np.asfortranarray(image),
    ],
    ids=["transposed", "every second column", "fortran order"],
)
def test_arrays_with_scattered_pixels_are_copied(array):
    assert load("rectangle")(array(scene())).boxes.xyxy.tolist() == [[16, 8, 40, 24]]


def seen_by_the_model(name="seen", size=(11, 7)):
    """A model that returns its input [1, 3, H, W] as an attribute: the resized image, RGB, from 0 to 255."""
    width, height = size
    path = models.save(
        name,
        [models.node("Relu", "image", "seen")],
        [models.port("image", [1, 3, height, width])],
        [models.port("seen", [1, 3, height, width])],
    )
    return ov.load(path, device="CPU", description={"task": "classification", "input": {}, "output": {"decoder": "custom"}})


def test_any_view_gives_the_same_input_as_a_copy_of_it():
    model, random = seen_by_the_model(), np.random.default_rng(5)
    for case in range(300):
        channels = int(random.choice([1, 3, 4]))
        shape = (*random.integers(1, 40, 2), channels)
        image = random.integers(0, 256, shape, np.uint8)
        begin = [int(random.integers(0, extent)) for extent in shape[:2]]
        view = image[begin[0] :, begin[1] :]
        if random.random() < 0.3:
            view = view[:: int(random.integers(1, 4)), :: int(random.integers(1, 4))]
        if random.random() < 0.3:
            view = view.transpose(1, 0, 2)
        if channels == 1 and random.random() < 0.5:
            view = view[..., 0]
        if channels == 4 and random.random() < 0.5:
            view = view[..., :3]
        color = str(random.choice(["rgb", "bgr"]))
        copy = np.array(view, order="C")
        same = [model(array, color=color).attributes["seen"].value for array in (view, copy)]
        assert np.array_equal(*same), (case, view.shape, view.strides)
        if view.ndim == 3 and view.shape[2] >= 3:
            other = np.array(copy[..., [2, 1, 0, 3][: view.shape[2]]])
            assert np.array_equal(model(other, color="bgr" if color == "rgb" else "rgb").attributes["seen"].value, same[0])


def test_an_image_of_the_size_of_the_input_is_the_input():
    image = np.random.default_rng(1).integers(0, 256, (7, 11, 3), np.uint8)
    assert np.array_equal(seen_by_the_model()(image, color="rgb").attributes["seen"].value[0], image.transpose(2, 0, 1).astype(np.float32))


def test_read_only_arrays_are_images():
    image = scene()
    image.setflags(write=False)
    assert len(load("rectangle")(image)) == 1
    assert load("color")(np.broadcast_to(np.uint8(255), (8, 8, 3))).attributes["color"].value == "other"


def test_the_box_of_a_detection_is_a_copy():
    results = load("rectangle")(scene())
    results[0].xyxy[:] = 0
    assert results[0].xyxy.tolist() == results.boxes.xyxy[0].tolist() == [16, 8, 40, 24]


def test_a_canceled_image_raises_canceled():
    model = load("rectangle")
    outcomes = set()
    for _ in range(50):
        pending = [model.submit(scene()) for _ in range(20)]
        for one in pending:
            one.cancel()
        for one in pending:
            try:
                one.result()
                outcomes.add("results")
            except ov.Canceled:
                outcomes.add("canceled")
    assert "canceled" in outcomes, outcomes


def test_an_array_is_kept_until_its_run_ended():
    class Watched(np.ndarray):
        pass

    image = scene().view(Watched)
    gone = weakref.ref(image)
    pending = load("rectangle").submit(image)
    del image
    gc.collect()
    assert pending.result().boxes.xyxy.tolist() == [[16, 8, 40, 24]]
    del pending
    # The run's reference to the image is dropped when a thread next enters the package.
    load("color")(scene())
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("image", "error", "says"),
    [
        (np.zeros((8, 8, 3), np.float32), TypeError, "expected an array of uint8.*float32"),
        (np.zeros((8, 8, 3), bool), TypeError, "uint8"),
        (np.array(["a"]), TypeError, "uint8"),
        (np.zeros((3, 8, 9), np.uint8), ValueError, "channels last"),
        (np.zeros((1, 8, 8, 3), np.uint8), ValueError, "list"),
        (np.zeros((8, 8, 2), np.uint8), ValueError, r"\[8, 8, 2\]"),
        (np.zeros(8, np.uint8), ValueError, r"\[8\]"),
        (np.uint8(3), TypeError, "expected an array"),
        (np.zeros((0, 8, 3), np.uint8), ValueError, "at least 1x1 pixels, got 8x0"),
        (np.zeros((8, 0), np.uint8), ValueError, "at least 1x1 pixels, got 0x8"),
        (np.zeros((8, 8, 3), np.uint8)[:, :, ::-1], ValueError, "color="),
        (np.zeros((8, 8, 3), np.uint8)[::-1], ValueError, "ascontiguousarray"),
        (np.zeros((8, 8, 3), np.uint8)[:, ::-1], ValueError, "ascontiguousarray"),
        ([], ValueError, "empty list"),
        ((), ValueError, "empty list"),
        (None, TypeError, "expected an array"),
        (5, TypeError, "expected an array"),
        (np.ndarray, TypeError, "expected an array"),
        ([[np.zeros((8, 8, 3), np.uint8)]], TypeError, "expected an array"),
        ("/nowhere/image.jpg", FileNotFoundError, "/nowhere/image.jpg"),
        (pathlib.Path("/nowhere/image.jpg"), FileNotFoundError, "/nowhere/image.jpg"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_no_image_is_an_error_of_its_kind(image, error, says):
    with pytest.raises(error, match=says):
        load("rectangle")(image)


def test_a_damaged_image_file_is_a_read_error(tmp_path):
    (tmp_path / "image.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut")
    with pytest.raises(ov.ReadError, match=r"image\.jpg.*truncated"):
        load("rectangle")(tmp_path / "image.jpg")
    with pytest.raises(ov.ReadError, match="not a regular file"):
        load("rectangle")(tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"confidence": 1.5}, ValueError, "confidence.*1.5"),
        ({"iou": -1}, ValueError, "iou.*-1"),
        ({"confidence": float("nan")}, ValueError, "confidence"),
        ({"color": "RGB"}, ValueError, "color"),
        ({"performance": "fast"}, ValueError, "performance"),
        ({"batch": 0}, ValueError, "batch"),
        ({"classes": ["rectangel"]}, ValueError, "rectangle.*rectangel"),
        ({"classes": [1]}, ValueError, "1"),
        ({"classes": "rectangle"}, TypeError, "list"),
        ({"device": "NOWHERE"}, ov.Error, "NOWHERE"),
        ({"description": "nowhere.toml"}, ov.ReadError, "nowhere.toml"),
        ({"description": {"task": "detection", "input": {"layout": "nhwc"}, "output": {"decoder": "yolov9"}}}, ov.ConfigError, "yolov9"),
        ({"description": {"task": object()}}, TypeError, "description"),
        ({"description": {}}, ValueError, 'expected the key "task".*got the keys none'),
        ({"preprocess": "unknown"}, ValueError, "preprocess.*unknown"),
        ({"preprocess": 5}, TypeError, "preprocess"),
        ({"config": {"no-option": 1}}, ov.Error, "no-option"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_wrong_option_is_an_error_that_names_it(options, error, says):
    with pytest.raises(error, match=says):
        load("rectangle", **options)


def test_a_classifier_refuses_classes():
    with pytest.raises(ValueError, match="classes: expected none for a classifier"):
        load("color", classes=["red"])


def test_wrong_model_files_are_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.onnx"):
        ov.load("nowhere.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(ov.Error, match=r"text\.onnx"):
        ov.load(tmp_path / "text.onnx")
    with pytest.raises(ov.ConfigError, match="description"):
        ov.load(TINY / "identity.onnx")
    with pytest.raises(TypeError):
        ov.load(5)


def test_a_model_knows_its_task_labels_size_and_device():
    model = load("rectangle")
    assert (model.task, model.name, model.labels, model.input_size, model.device) == ("detection", "rectangle", ["rectangle"], (64, 64), "CPU")
    assert "rectangle.toml" in model.description and model.assumed == []
    assert "rectangle, detection at 64x64 on CPU" in repr(model)


def test_a_description_is_a_dictionary_too():
    description = {
        "task": "detection",
        "input": {"layout": "nhwc"},
        "output": {"decoder": "ultraface", "threshold": 0.5, "labels": ['a "box"']},
    }
    results = load("rectangle", description=description)(scene())
    assert results.boxes.labels == ['a "box"']


def test_confidence_and_classes_leave_objects_out():
    gray = np.full((60, 80, 3), 200, np.uint8)
    gray[:4, :4] = 255
    everything = load("stripes", confidence=0.5)(gray)
    assert len(everything) == 300
    assert len(load("stripes", confidence=0.9)(gray)) == 1
    assert len(load("stripes", confidence=0.5, classes=[0])(gray)) == 300
    assert len(load("rectangle", classes=["rectangle"])(scene())) == 1


def test_labels_replace_those_of_the_description():
    assert load("rectangle", labels=["thing"])(scene()).boxes.labels == ["thing"]


def test_a_gallery_names_objects_by_the_nearest_vector(tmp_path):
    gallery = tmp_path / "stones.jsonl"
    entries = [{"name": "ruby", "vector": [1, 0, 0, 0]}, {"name": "emerald", "vector": [0, 2, 0, 0]}]
    gallery.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    description = {"task": "classification", "name": "stone", "output": {"decoder": "embedding"}}
    model = load("color", description=description, gallery=gallery)
    found = {color: model(scene((0, 0, 64, 64), color)).attributes["stone"] for color in (RED, GREEN, BLUE)}
    assert [(stone.kind, stone.value) for stone in found.values()] == [("label", "ruby"), ("label", "emerald"), ("label", "unknown")]
    assert found[RED].confidence == pytest.approx(1, abs=1e-3)
    vectors = load("color", description=description)(scene((0, 0, 64, 64), RED)).attributes["stone"]
    assert (vectors.kind, vectors.value.shape) == ("tensor", (1, 4)), "without a gallery"
    with pytest.raises(FileNotFoundError, match="gone.jsonl"):
        load("color", description=description, gallery=tmp_path / "gone.jsonl")
    gallery.write_text('{"name": "ruby", "vector": [1, 0]}\n')
    with pytest.raises(RuntimeError, match="gallery"):
        load("color", description=description, gallery=gallery)(scene())


def test_classes_without_names_are_called_by_number():
    description = {"task": "detection", "input": {"layout": "nhwc"}, "output": {"decoder": "ultraface", "threshold": 0.5}}
    results = load("rectangle", description=description)(scene())
    assert (results.boxes.labels, results[0].label) == (["0"], "0")


def test_one_model_is_called_from_many_threads():
    model, wrong = load("rectangle"), []

    def call(number):
        image = scene((number, 8, number + 20, 24))
        for _ in range(30):
            if model(image).boxes.xyxy.tolist() != [[number, 8, number + 20, 24]]:
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_other_threads_run_while_a_call_waits():
    model = slow("slow_image", 150)
    image, counts, ended = np.zeros((8, 8), np.uint8), [], threading.Event()

    def count():
        while not ended.wait(0.001):
            counts.append(1)

    thread = threading.Thread(target=count)
    thread.start()
    for _ in range(3):
        model(image)
    ended.set()
    thread.join()
    assert len(counts) > 5


def test_the_wheel_links_no_gstreamer():
    from roiflow import _roiflow

    listed = subprocess.run(["ldd", _roiflow.__file__], capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("ldd is missing")
    assert "gst" not in listed.stdout.lower() and "glib" not in listed.stdout.lower()
