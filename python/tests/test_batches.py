"""`roiflow.load` with several images: lists, pending runs, streams."""

import itertools
import threading

import numpy as np
import pytest

from api import IS_OPENVINO, ov
from vision import GREEN, RED, load, scene, slow

pytestmark = pytest.mark.skipif(IS_OPENVINO, reason="roiflow alone has models that take images")


def test_a_list_of_images_gives_results_in_their_order():
    images = [scene((n, 8, n + 20, 24)) for n in range(40)]
    results = load("rectangle")(images)
    assert [of.boxes.xyxy.tolist() for of in results] == [[[n, 8, n + 20, 24]] for n in range(40)]
    assert load("rectangle")(tuple(images[:2]))[1].boxes.xyxy.tolist() == [[1, 8, 21, 24]]


def test_images_of_a_list_may_differ_in_size_and_kind():
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(scene((32, 16, 80, 48), size=(128, 128)))
    results = load("rectangle")([scene(), picture, scene((16, 8, 40, 24))[:32]])
    assert [of.size for of in results] == [(64, 64), (128, 128), (64, 32)]
    assert all(len(of) == 1 for of in results)


def test_each_image_of_a_list_has_its_regions():
    images = [scene((16, 8, 40, 24), color) for color in (RED, GREEN)]
    found = load("rectangle")(images)
    results = load("color")(images, rois=found)
    assert [of[0].attributes["color"].value for of in results] == ["red", "green"]
    with pytest.raises(ValueError, match="one `rois` for each of 2 images"):
        load("color")(images, rois=found[:1])
    with pytest.raises(ValueError, match="for each of 2 images"):
        load("color")(images, rois=found[0])


def test_the_first_error_of_a_list_is_raised():
    with pytest.raises(TypeError, match="uint8"):
        load("rectangle")([scene(), scene().astype(float), scene()])


def test_batches_give_the_same_results_as_single_images():
    images = [scene((0, 0, 64, 64), color) for color in (RED, GREEN, RED, GREEN, GREEN)]
    single, batched = load("color"), load("color", batch=4)
    assert [of.to_dict()["classifications"] for of in batched(images)] == [single(of).to_dict()["classifications"] for of in images]
    boxes = [(4, 4, 20, 20), (16, 8, 40, 24)]
    assert batched.submit(images[0], rois=boxes).result().to_dict()["objects"] == single(images[0], rois=boxes).to_dict()["objects"]


def test_a_model_of_a_fixed_batch_gives_the_same_results_with_batch():
    images = [scene((n, 8, n + 20, 24)) for n in range(9)]
    assert [of.boxes.xyxy[0, 0] for of in load("rectangle", batch=4)(images)] == list(range(9))


def test_both_forms_of_a_model_give_the_same_results():
    image = scene((13, 7, 41, 30), size=(101, 67))
    expected = load("rectangle")(image).to_dict()["objects"]
    for performance in ("latency", "throughput"):
        model = load("rectangle", performance=performance)
        assert model(image).to_dict()["objects"] == model([image])[0].to_dict()["objects"] == expected


def test_a_pending_run_gives_its_results_to_every_thread_that_waits():
    pending = load("rectangle").submit(scene())
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(pending.result().boxes.xyxy.tolist())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [[[16, 8, 40, 24]]] * 4 and pending.done() and len(pending.result(timeout=0)) == 1


def test_a_wait_with_a_timeout_ends():
    model = slow("slow_pending", 200, performance="throughput", config={"requests": 1})
    running, waiting = [model.submit(np.zeros((8, 8), np.uint8)) for _ in range(2)]
    with pytest.raises(TimeoutError, match=r"0\.01 seconds"):
        waiting.result(timeout=0.01)
    waiting.cancel()
    with pytest.raises(ov.Error):
        waiting.result()
    assert running.result().attributes["slow_pending"].value.shape == (1, 512, 512, 1)


def test_a_stream_takes_only_a_few_images_ahead():
    taken = itertools.count()
    images = (scene((next(taken) % 40, 8, 50, 24)) for _ in itertools.count())
    seen = []
    for image, results in load("rectangle").stream(images):
        seen.append((image, results))
        if len(seen) == 20:
            break
    assert [results.boxes.xyxy[0, 0] for _, results in seen] == list(range(20))
    assert [image[8].any(axis=1).argmax() for image, _ in seen] == list(range(20))
    assert next(taken) < 20 + 70


def test_streams_of_models_are_a_cascade():
    images = [scene((16, 8, 40, 24), color) for color in (RED, GREEN, RED)]
    pairs = list(load("color").stream(load("rectangle").stream(iter(images))))
    assert [results[0].attributes["color"].value for _, results in pairs] == ["red", "green", "red"]
    assert all(given is image for given, (image, _) in zip(images, pairs))


def test_an_error_in_a_stream_names_the_image_and_ends_it():
    stream = load("rectangle").stream([scene(), "/nowhere.png"])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        list(stream)


def test_a_failed_run_is_an_error_and_the_next_image_runs():
    model = load("fragile")
    with pytest.raises(ov.Error):
        model(np.full((8, 8, 3), 255, np.uint8))
    assert len(model(np.zeros((8, 8, 3), np.uint8))) == 1
