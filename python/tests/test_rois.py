"""Classifiers and detectors on regions of an image, crops, and results as other forms."""

import json
import sys
import types

import numpy as np
import pytest

from api import IS_OPENVINO, ov
from vision import BLUE, GREEN, RED, ROOT, load, scene

pytestmark = pytest.mark.skipif(IS_OPENVINO, reason="roiflow alone has models that take images")


def two_boxes():
    """A red and a green box, and the boxes as an array."""
    image = scene((4, 4, 20, 20), RED)
    image[30:50, 40:60] = GREEN
    return image, np.array([[4, 4, 20, 20], [40, 30, 60, 50]], np.float32)


def colors(results):
    return [found.attributes["color"].value for found in results]


def test_a_classifier_gives_each_region_its_attribute():
    image, boxes = two_boxes()
    results = load("color")(image, rois=boxes)
    assert colors(results) == ["red", "green"]
    assert results.boxes.xyxy.tolist() == boxes.tolist()
    assert results.attributes == {}, "nothing is said about the whole image"


def test_results_of_a_detector_are_regions():
    image = scene((16, 8, 40, 24), BLUE)
    found = load("rectangle")(image)
    results = load("color")(image, rois=found)
    assert colors(results) == ["blue"] and results.boxes.labels == ["rectangle"]
    assert found[0].attributes == {}, "the earlier results do not change"


def test_attributes_of_several_classifiers_add_up():
    image = scene((16, 8, 40, 24), RED)
    results = load("brightness")(image, rois=load("color")(image, rois=load("rectangle")(image)))
    assert list(results[0].attributes) == ["color", "brightness"]
    assert results[0].attributes["brightness"].kind == "value" and isinstance(results[0].attributes["brightness"].value, float)


def test_many_regions_run_in_one_call():
    image = np.zeros((200, 200, 3), np.uint8)
    boxes = [(x, y, x + 10, y + 10) for y in range(0, 200, 20) for x in range(0, 200, 20)]
    for number, (x, y, x_max, y_max) in enumerate(boxes):
        image[y:y_max, x:x_max] = (RED, GREEN, BLUE)[number % 3]
    assert colors(load("color")(image, rois=boxes)) == [("red", "green", "blue")[number % 3] for number in range(len(boxes))]


def test_no_regions_give_no_results():
    image = scene()
    model = load("color")
    assert len(model(image, rois=[])) == 0
    assert len(model(image, rois=np.zeros((0, 4)))) == 0
    assert len(model(image, rois=load("rectangle")(scene((0, 0, 0, 0))))) == 0


def test_a_detector_in_regions_adds_what_it_finds_with_its_parent():
    image = scene((16, 8, 40, 24), RED, size=(128, 96))
    results = load("rectangle")(image, rois=[[0, 0, 64, 64]])
    assert len(results) == 2
    assert results[1].xyxy.tolist() == [16, 8, 40, 24] and (results[0].parent, results[1].parent) == (None, 0)
    assert results.to_dict()["objects"][1]["parent_id"] == 1


@pytest.mark.parametrize(
    ("rois", "error", "says"),
    [
        ([[1, 2, 3]], ValueError, r"\[N, 4\]"),
        ([1, 2, 3, 4], ValueError, r"\[N, 4\]"),
        ([[100, 0, 110, 10]], ValueError, "inside the image of 64x64.*row 0"),
        ([[0, 0, 10, 10], [5, 5, 5, 9]], ValueError, "row 1"),
        ([[float("nan"), 0, 1, 1]], ValueError, "row 0"),
        ("box", TypeError, "expected results or boxes"),
        (7, ValueError, r"\[N, 4\]"),
        ([[0, 0, 1, 1], [0]], TypeError, "expected results or boxes"),
    ],
)
def test_wrong_regions_are_errors(rois, error, says):
    with pytest.raises(error, match=says):
        load("color")(scene(), rois=rois)


def test_regions_of_an_image_of_another_size_are_an_error():
    results = load("rectangle")(scene())
    with pytest.raises(ValueError, match="64x64.*100x80"):
        load("color")(scene(size=(100, 80)), rois=results)
    with pytest.raises(ValueError, match="64x64"):
        results.plot(scene(size=(100, 80)))
    with pytest.raises(ValueError, match="64"):
        results[0].crop(scene(size=(100, 80)))


def test_a_crop_is_a_view_of_the_array():
    image = scene((16, 8, 40, 24))
    crop = load("rectangle")(image)[0].crop(image)
    assert crop.shape == (16, 24, 3) and np.shares_memory(crop, image) and (crop == RED).all()


def test_results_are_a_sequence_that_can_be_chosen_from():
    image, boxes = two_boxes()
    results = load("color")(image, rois=boxes)
    assert [found.xyxy[0] for found in results] == [4, 40] and results[-1].xyxy[0] == 40
    for chosen in (results[1:], results[[1]], results[np.array([False, True])], results[[False, True]], results[np.array([1])]):
        assert isinstance(chosen, ov.Results) and colors(chosen) == ["green"], chosen
    assert len(results[[]]) == 0
    assert colors(load("color")(image, rois=results[::-1])) == ["green", "red"]
    with pytest.raises(IndexError, match="2"):
        results[2]
    with pytest.raises(IndexError):
        results[[5]]


def test_plot_draws_on_a_copy():
    image = scene((16, 20, 60, 50), size=(320, 240))
    before = image.copy()
    results = load("rectangle")(image)
    drawn = results.plot(image)
    assert drawn.shape == image.shape and drawn.dtype == np.uint8 and not np.array_equal(drawn, image) and np.array_equal(image, before)
    without_text = results.plot(image, labels=False, thickness=1)
    assert (without_text != image).any(axis=2).sum() < (drawn != image).any(axis=2).sum()


def test_plot_writes_a_title_and_hides_objects(tmp_path):
    image = np.random.default_rng(1).integers(0, 90, (240, 320, 3), np.uint8)
    image[20:50, 16:60] = (255, 0, 0)
    image[34:36, 20:56] = (255, 120, 0)
    results = load("rectangle")(image)
    plain = results.plot(image)
    titled = results.plot(image, title="north gate")
    differs = (plain != titled).any(axis=2)
    assert differs[200:, :160].any() and not differs[:180].any()
    quiet = {"labels": False, "thickness": 1}
    inside = (slice(28, 42), slice(26, 50))
    assert np.array_equal(results.plot(image, **quiet)[inside], image[inside])
    for hidden in (results.plot(image, **quiet, blur=["rectangle"]), results.plot(image, **quiet, pixelate=["*"])):
        assert not np.array_equal(hidden[inside], image[inside]) and np.array_equal(hidden[100:], image[100:])
    with pytest.raises(ValueError, match="expected labels of rectangle, got rectangel"):
        results.plot(image, blur=["rectangle", "rectangel"])
    # The labels are those of the detector, whatever ran afterwards.
    with pytest.raises(ValueError, match="got red"):
        load("color")(image, rois=results[:1]).plot(image, pixelate=["red"])
    with pytest.raises(TypeError, match="expected a list of labels"):
        results.plot(image, blur="rectangle")
    with pytest.raises(ov.ReadError, match="gone.ttf"):
        results.plot(image, font=tmp_path / "gone.ttf")


def test_plot_uses_the_channel_order_of_the_image():
    rgb = scene((16, 20, 60, 50), size=(320, 240))
    bgr = np.ascontiguousarray(rgb[..., ::-1])
    of_rgb, of_bgr = load("rectangle")(rgb), load("rectangle")(bgr, color="bgr")
    assert np.array_equal(of_rgb.plot(rgb), of_bgr.plot(bgr)[..., ::-1])
    assert np.array_equal(of_rgb.plot(rgb), of_rgb.plot(bgr, color="bgr")[..., ::-1])
    gray = of_rgb.plot(rgb[..., 0])
    assert gray.shape == (240, 320)


def test_json_has_the_schema_of_the_command():
    image, boxes = two_boxes()
    results = load("color")(image, rois=boxes)
    line = results.to_json(frame=7, stream="door", source="door.jpg")
    assert "\n" not in line and json.loads(line) == {**results.to_dict(frame=7, stream="door", source="door.jpg"), "time": json.loads(line)["time"]}
    written = json.loads(line)
    assert (written["frame"], written["stream"], written["source"], written["resolution"]) == (7, "door", "door.jpg", {"width": 64, "height": 64})
    assert written["objects"][1]["color"]["label"] == "green"
    schema = json.loads((ROOT / "assets" / "results.schema.json").read_text())
    assert set(written) <= set(schema["properties"])


def test_supervision_gets_the_arrays(monkeypatch):
    try:
        import supervision
    except ImportError:
        supervision = types.SimpleNamespace(Detections=lambda **values: types.SimpleNamespace(**values))
        monkeypatch.setitem(sys.modules, "supervision", supervision)
    found = load("rectangle")(scene()).to_supervision()
    assert found.xyxy.tolist() == [[16, 8, 40, 24]] and found.confidence.tolist() == [1] and found.class_id.tolist() == [0]
    assert found.data["class_name"].tolist() == ["rectangle"]
    assert load("rectangle")(scene((0, 0, 0, 0))).to_supervision().xyxy.shape == (0, 4)


def test_masks_have_the_size_of_the_image(monkeypatch):
    monkeypatch.setitem(sys.modules, "supervision", types.SimpleNamespace(Detections=lambda **values: types.SimpleNamespace(**values)))
    found = load("mask")(scene((16, 40, 96, 80), size=(192, 128)))
    masks = found.masks()
    assert masks.shape == (1, 128, 192) and masks.dtype == bool
    assert masks[0, 42:78, 18:94].all() and not masks[0, :38].any() and not masks[0, :, 98:].any()
    assert found.to_supervision().mask.sum() == masks.sum() and found[0].attributes["mask"].value.shape == (20, 40)
    assert load("rectangle")(scene()).masks() is None


def test_supervision_gets_the_corners_of_rotated_boxes(monkeypatch):
    monkeypatch.setitem(sys.modules, "supervision", types.SimpleNamespace(Detections=lambda **values: types.SimpleNamespace(**values)))
    corners = load("rotated")(scene((16, 40, 96, 80), size=(192, 128))).to_supervision().data["xyxyxyxy"]
    assert corners.shape == (1, 4, 2) and abs(corners[0, 0] - [16, 40]).max() < 1 and abs(corners[0, 2] - [96, 80]).max() < 1
