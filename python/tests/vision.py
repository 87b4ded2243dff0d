"""Models and images of the tests of `roiflow.load`: the project's tiny models, whose results can be computed by hand."""

import os
import pathlib

import numpy as np

import models
from api import ov

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "assets" / "tiny"
MODELS = pathlib.Path(os.environ.get("ROIFLOW_MODELS", "/nonexistent"))

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def load(name, **options):
    """A tiny model on the built-in engine; arrays are RGB unless the test says otherwise."""
    return ov.load(TINY / f"{name}.onnx", **{"device": "CPU", "color": "rgb", **options})


def scene(box=(16, 8, 40, 24), color=RED, size=(64, 64)):
    """A black RGB image of width and height `size` with a box of one color: x_min, y_min, x_max, y_max."""
    image = np.zeros((size[1], size[0], 3), np.uint8)
    image[box[1] : box[3], box[0] : box[2]] = color
    return image


def pattern(width=100, height=75):
    """The RGB image of tests/golden/image_results.json: a gray pattern, and a red box in it."""
    y, x = np.mgrid[0:height, 0:width]
    image = np.repeat(((x + y) % 200).astype(np.uint8)[..., None], 3, axis=2)
    image[10:41, 20:53] = (250, 20, 30)
    return image


def slow(name, n_layers, **options):
    """A classifier whose run takes long: a chain of products of matrices of 512x512. Its attribute `name` is a tensor."""
    description = {"task": "classification", "input": {"color": "gray", "layout": "nhwc"}, "output": {"decoder": "custom"}}
    products = [models.node("MatMul", f"m{n} w", f"m{n + 1}") for n in range(n_layers)]
    path = models.save(
        name,
        [models.node("Squeeze", "image axes", "m0"), *products, models.node("Unsqueeze", f"m{n_layers} axes", "y")],
        [models.port("image", [1, 512, 512, 1])],
        [models.port("y", [1, 512, 512, 1])],
        [models.constant("axes", [0, 3], np.int64), models.constant("w", np.eye(512))],
    )
    return ov.load(path, **{"device": "CPU", "description": description, **options})
