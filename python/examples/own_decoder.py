"""A decoder of your own, for a model that no built-in decoder reads: `python own_decoder.py [MODEL]`.

Without an argument, the program uses a tiny model of this project, which finds the rectangle around all colored pixels. Each row of the
model's output `boxes` has the background score, the object score, and two corners in 0 to 1.
"""

import pathlib
import sys

import numpy as np

import roiflow

MODEL = pathlib.Path(__file__).resolve().parents[2] / "assets" / "tiny" / "rectangle.onnx"


def corners(outputs, input_size):
    """Return rows of x_min, y_min, x_max, y_max in pixels of the input, confidence and class."""
    rows = outputs["boxes"][0]
    boxes = rows[:, 2:6] * np.array([*input_size, *input_size])
    return np.column_stack([boxes, rows[:, 1], np.zeros(len(rows))])


roiflow.register_decoder("corners", corners)
model = roiflow.load(
    sys.argv[1] if len(sys.argv) > 1 else MODEL,
    # A file `rectangle.toml` next to the model could have the same content. roiflow applies the threshold, suppresses overlapping boxes,
    # and maps boxes to the image.
    description={
        "task": "detection",
        "input": {"color": "rgb", "layout": "nhwc"},
        "output": {"decoder": "corners", "threshold": 0.5, "labels": ["rectangle"]},
    },
)
image = np.zeros((240, 320, 3), np.uint8)
image[60:120, 80:200] = (0, 0, 255)  # Red: the order of the channels is BGR, as in OpenCV.
print(model(image)[0])
