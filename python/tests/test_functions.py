"""Decoders and preprocessing that are Python functions."""

import threading

import numpy as np
import pytest

from api import IS_OPENVINO, ov
from vision import BLUE, RED, load, scene

pytestmark = pytest.mark.skipif(IS_OPENVINO, reason="roiflow alone has models that take images")

DETECTION = {"task": "detection", "input": {"layout": "nhwc"}}


def corners(outputs, size):
    """Rows of the model `rectangle`: background, object, and corners from 0 to 1."""
    rows = outputs["boxes"][0]
    return np.column_stack([rows[:, 2:] * np.array([*size, *size]), rows[:, 1], np.zeros(len(rows))])


def detector(name, function, **keys):
    ov.register_decoder(name, function)
    return load("rectangle", description={**DETECTION, "output": {"decoder": name, "threshold": 0.5, "labels": ["box", "other"], **keys}})


def classifier(name, function):
    ov.register_decoder(name, function, task="classification")
    return load("color", description={"task": "classification", "name": "answer", "output": {"decoder": name}})


def test_a_function_decodes_boxes():
    seen = []

    def decode(outputs, size):
        seen.append(({name: (array.shape, array.dtype.name, array.flags.owndata) for name, array in outputs.items()}, size))
        return corners(outputs, size)

    image = scene((32, 16, 80, 48), size=(128, 128))
    results = detector("corners", decode)(image)
    assert results.boxes.xyxy.tolist() == [[32, 16, 80, 48]] and results.boxes.labels == ["box"]
    assert results.to_dict()["objects"] == load("rectangle", labels=["box"])(image).to_dict()["objects"]
    outputs, size = seen[0]
    assert outputs["boxes"][:2] == ((1, 1, 6), "float32") and size == (64, 64)


def test_rows_are_suppressed_and_limited_by_the_keys_of_the_description():
    rows = [[0, 0, 20, 20, 0.9, 0], [1, 1, 21, 21, 0.8, 0], [1, 1, 21, 21, 0.7, 1], [40, 40, 50, 50, 0.6, 0], [40, 40, 50, 50, 0.2, 0]]
    boxes = detector("fixed", lambda outputs, size: rows)(scene()).boxes
    assert boxes.confidence.tolist() == pytest.approx([0.9, 0.7, 0.6]) and boxes.labels == ["box", "other", "box"]
    assert len(detector("fixed", lambda outputs, size: rows, **{"iou-threshold": 1})(scene())) == 4
    assert len(detector("fixed", lambda outputs, size: rows, **{"max-boxes": 2})(scene())) == 2


def test_keypoints_follow_the_class():
    row = [[0, 0, 32, 32, 1, 0, 8, 16, 24, 32]]
    found = detector("points", lambda outputs, size: row)(scene(size=(128, 64)))[0]
    assert found.keypoints.tolist() == [[16, 16], [48, 32]]


@pytest.mark.parametrize("nothing", [None, [], np.zeros((0, 6)), np.zeros((0, 4))])
def test_no_rows_are_no_boxes(nothing):
    assert len(detector("nothing", lambda outputs, size: nothing)(scene())) == 0


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (2.5, "value", 2.5),
        (np.float32(2.5), "value", 2.5),
        (3, "value", 3),
        ("text", "text", "text"),
        (("text", 0.5), "text", "text"),
        ((1, 0.5), "label", "1"),
    ],
    ids=repr,
)
def test_a_function_decodes_an_attribute(value, kind, expected):
    answer = classifier("answers", lambda outputs, size: value)(scene()).attributes["answer"]
    assert (answer.kind, answer.value) == (kind, expected)
    if isinstance(value, tuple):
        assert answer.confidence == 0.5


def test_a_function_decodes_several_attributes_and_arrays():
    def decode(outputs, size):
        return {"warmth": outputs["probabilities"][0, 0] - outputs["probabilities"][0, 2], "scores": outputs["probabilities"]}

    attributes = classifier("several", decode)(scene((0, 0, 64, 64), RED)).attributes
    assert attributes["warmth"].value == pytest.approx(1, abs=1e-4) and attributes["scores"].value.shape == (1, 4)
    assert classifier("several", decode)(scene((0, 0, 64, 64), BLUE), rois=[[0, 0, 8, 8]])[0].attributes["warmth"].value < -0.9


def test_what_a_decoder_raises_comes_out_of_the_call():
    class OwnError(Exception):
        pass

    def decode(outputs, size):
        raise OwnError("no such row")

    model = detector("failing", decode)
    with pytest.raises(OwnError, match="no such row") as caught:
        model(scene())
    assert any(entry.name == "decode" for entry in caught.traceback)
    with pytest.raises(OwnError):
        model([scene(), scene()])


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        ([[1, 2, 3, 4]], ValueError, r"\[N, 6"),
        ([[0, 0, 1, 1, 1, 0, 5]], ValueError, r"\[N, 6"),
        ([[0, 0, 1, 1, 1, -1]], ValueError, "number of a class"),
        ("boxes", ValueError, "float"),
        ([[0, 0, 1, 1, 1, float("nan")]], ValueError, "number of a class"),
    ],
)
def test_wrong_rows_are_errors(value, error, says):
    with pytest.raises(error, match=says):
        detector("wrong", lambda outputs, size: value)(scene())


def test_rows_that_are_no_boxes_are_dropped():
    rows = [[0, 0, float("inf"), 1, 1, 0], [5, 5, 1, 1, 1, 0], [0, 0, 10, 10, 0.75, 1]]
    assert detector("odd", lambda outputs, size: rows)(scene()).boxes.labels == ["other"]


def test_rows_that_contradict_the_model_are_reported_once():
    model = detector("tiny", lambda outputs, size: [[0.25, 0.25, 0.5, 0.5, 0.9, 0]])
    with pytest.warns(UserWarning, match="boxes smaller than a pixel|do not match decoder `tiny`"):
        model(scene())


def test_a_decoder_must_not_run_a_model():
    other = load("color")
    model = detector("nested", lambda outputs, size: other(scene()))
    with pytest.raises(ov.WouldDeadlock, match="decoder"):
        model(scene())


def test_a_decoder_runs_for_several_threads():
    model, wrong = detector("shared", corners), []

    def call(number):
        for _ in range(20):
            if model(scene((number, 8, number + 20, 24))).boxes.xyxy.tolist() != [[number, 8, number + 20, 24]]:
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(model([scene()] * 20)) == 20


def test_wrong_registrations_are_errors():
    with pytest.raises(TypeError, match="expected a function"):
        ov.register_decoder("name", 5)
    with pytest.raises(ValueError, match="task"):
        ov.register_decoder("name", corners, task="segmentation")
    with pytest.raises(ValueError, match="name"):
        ov.register_decoder("a b", corners)
    with pytest.raises(TypeError, match="expected a function"):
        ov.register_preprocess("name", 5)


def test_preprocessing_is_a_function_from_image_to_image():
    image = scene((16, 8, 40, 24), RED, size=(128, 64))
    dark = (image * 0.2).astype(np.uint8)
    assert len(load("rectangle")(dark)) == 0
    ov.register_preprocess("brighter", lambda image: np.minimum(image.astype(int) * 5, 255).astype(np.uint8))
    assert load("rectangle", preprocess="brighter")(dark).boxes.xyxy.tolist() == [[16, 8, 40, 24]]


def test_boxes_are_mapped_back_when_preprocessing_resizes():
    half = load("rectangle", preprocess=lambda image: np.ascontiguousarray(image[::2, ::2]))
    image = scene((32, 16, 80, 48), size=(128, 128))
    results = half(image)
    assert results.size == (128, 128) and results.boxes.xyxy.tolist() == [[32, 16, 80, 48]]
    named = load("color", preprocess=lambda image: np.ascontiguousarray(image[::2, ::2]))(image, rois=results)
    assert named[0].attributes["color"].value == "red" and named.boxes.xyxy.tolist() == [[32, 16, 80, 48]]


def test_what_preprocessing_raises_comes_out_of_the_call():
    with pytest.raises(ZeroDivisionError):
        load("rectangle", preprocess=lambda image: 1 / 0)(scene())
    with pytest.raises(TypeError, match="uint8"):
        load("rectangle", preprocess=lambda image: image / 255)(scene())
    with pytest.raises(TypeError, match="got None"):
        load("rectangle", preprocess=lambda image: None)(scene())


def stretched(image):
    """The image, resized to the input of the model `rectangle`: [1, 64, 64, 3] RGB, by nearest-neighbor interpolation."""
    rows, columns = (np.arange(64) * image.shape[axis] // 64 for axis in (0, 1))
    return image[rows][:, columns][None].astype(np.float32)


def test_preprocessing_may_return_the_input_of_the_model():
    model = load("rectangle", preprocess=stretched)
    image = scene((32, 16, 80, 48), size=(128, 64))
    results = model(image)
    assert results.size == (128, 64) and results.boxes.xyxy.tolist() == [[32, 16, 80, 48]]
    assert results.to_dict()["objects"] == load("rectangle")(image).to_dict()["objects"]
    assert [of.boxes.xyxy[0, 0] for of in model([scene((n, 8, 40, 24)) for n in range(9)])] == list(range(9))


def test_preprocessing_may_return_where_the_input_lies_in_the_image():
    # The input is the right lower quarter of the image, without scaling.
    model = load("rectangle", preprocess=lambda image: (image[64:, 64:][None], (1, 1, 64, 64)))
    assert model(scene((72, 80, 100, 120), size=(128, 128))).boxes.xyxy.tolist() == [[72, 80, 100, 120]]


def test_preprocessed_inputs_form_batches():
    def input_of(image):
        return np.broadcast_to(image[:1, :1].transpose(2, 0, 1)[None], (1, 3, 8, 8)).astype(np.float64)

    images = [scene((0, 0, 64, 64), color) for color in (RED, BLUE, BLUE, RED, BLUE)]
    results = load("color", preprocess=input_of, batch=4)(images)
    assert [of.attributes["color"].value for of in results] == ["red", "blue", "blue", "red", "blue"]


@pytest.mark.parametrize(
    ("returned", "error", "says"),
    [
        (np.zeros((1, 3, 64, 64), np.float32), ov.TensorError, r"expected dense values of \[1, 64, 64, 3\] f32, got \[1, 3, 64, 64\]"),
        (np.zeros((2, 64, 64, 3), np.float32), ov.TensorError, r"\[2, 64, 64, 3\]"),
        (np.array([[[["text"]]]]), TypeError, "no tensor"),
        ((np.zeros((1, 64, 64, 3), np.float32), (1, 1)), ValueError, "scale x"),
        ((np.zeros((1, 64, 64, 3), np.float32), (1, 1, 0, float("nan"))), ValueError, "scale x"),
    ],
)
def test_a_wrong_input_of_preprocessing_is_an_error(returned, error, says):
    with pytest.raises(error, match=says):
        load("rectangle", preprocess=lambda image: returned)(scene())


def test_preprocessing_that_returns_the_input_takes_whole_images():
    with pytest.raises(ValueError, match="crop"):
        load("rectangle", preprocess=stretched)(scene(), rois=[[0, 0, 9, 9]])
