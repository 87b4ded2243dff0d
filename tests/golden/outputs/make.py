"""Writes models whose outputs contradict the description that their ports suggest, and a model with hostile names, to test the messages
about them.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install onnx numpy
    /tmp/venv/bin/python tests/golden/outputs/make.py        writes the models to the folder of this file

Outputs are constant tables, except for classifiers, whose outputs depend on the image. Opset 13, IR version 8.
"""

import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FOLDER = pathlib.Path(__file__).resolve().parent
HOSTILE = "evil\x1b[2J\r\x9b31m\u202e\nname"


class Graph:
    def __init__(self, size):
        self.size, self.nodes, self.constants, self.outputs = size, [], [], {}
        # Add a term that depends on the image and is 0 for any image, so that every engine has to read the input.
        mean = self.op("ReduceMean", "image", axes=[1, 2, 3], keepdims=0)
        self.zero = self.op("Mul", mean, self.constant("nothing", [0.0]))

    def constant(self, name, values, dtype=np.float32):
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def op(self, kind, *inputs, out=None, **attributes):
        out = out or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=out, **attributes))
        return out

    def table(self, name, values):
        values = np.asarray(values, np.float32)
        self.op("Add", self.constant(f"table of {name}", values), self.zero, out=name)
        self.outputs[name] = list(values.shape)

    def filled(self, name, value, shape):
        one = self.op("Add", self.constant(f"value of {name}", np.full((1,) * len(shape), value)), self.zero)
        self.op("Expand", one, self.constant(f"shape of {name}", shape, np.int64), out=name)
        self.outputs[name] = list(shape)

    def save(self, stem, image="image", metadata=()):
        def port(name, shape):
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

        for node in self.nodes:
            node.input[:] = [image if name == "image" else name for name in node.input]
        graph = helper.make_graph(
            self.nodes,
            stem,
            [port(image, [1, 3, self.size, self.size])],
            [port(name, shape) for name, shape in self.outputs.items()],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="roiflow")
        for key, value in metadata:
            entry = model.metadata_props.add()
            entry.key, entry.value = key, value
        onnx.checker.check_model(model, full_check=True)
        (FOLDER / f"{stem}.onnx").write_bytes(model.SerializeToString())


def grid_boxes(size):
    """Returns centers and sizes in pixels as in outputs of YOLOv5: three rows per cell of strides 8, 16 and 32."""
    rows = []
    for stride in (8, 16, 32):
        cells = size // stride
        for n in range(3 * cells * cells):
            rows.append([(n % cells + 0.5) * stride, (n // cells % cells + 0.5) * stride, 2.0 * stride, 1.5 * stride])
    return np.array(rows)


def yolov5(stem, scale, logits=False):
    """Writes a model that outputs one object in row 100. The box is in the center of the image, with half its width, a quarter of its
    height, and score 0.859."""
    g, boxes = Graph(64), grid_boxes(64)
    boxes[100] = [32, 32, 32, 16]
    scores = np.full((len(boxes), 2), 0.001)
    scores[100] = [0.859, 1.0 - 1e-7]
    if logits:
        scores = np.log(scores / (1 - scores))
    g.table("output", np.concatenate([boxes * scale, scores], axis=1)[None])
    g.save(stem)


def yolov8(stem, scale):
    """Writes a model that outputs the same object in columns, as YOLOv8: boxes, then the scores of one class."""
    g, boxes = Graph(64), grid_boxes(64)[::3]
    boxes[40] = [32, 32, 32, 16]
    scores = np.full((len(boxes), 1), 0.001)
    scores[40] = 0.859
    g.table("output0", np.concatenate([boxes * scale, scores], axis=1).T[None])
    g.save(stem)


def ultraface(stem, apply_priors):
    """Writes a model that outputs scores, and either decoded boxes (`apply_priors`) or offsets from priors. The ports of both are the
    same."""
    random, size = np.random.default_rng(1), 64
    priors = []
    for stride, extents in ((8, (10, 16, 24)), (16, (32, 48)), (32, (64, 96)), (64, (128, 192, 256))):
        for y in range(-(-size // stride)):
            for x in range(-(-size // stride)):
                priors += [[(x + 0.5) * stride / size, (y + 0.5) * stride / size, extent / size, extent / size] for extent in extents]
    priors, offsets = np.array(priors), random.normal(0, 1, (len(priors), 4))
    scores = np.full((len(priors), 2), (0.99, 0.01))
    scores[[5, 70, 150]] = (0.1, 0.9)
    if apply_priors:
        centers = priors[:, :2] + offsets[:, :2] * 0.1 * priors[:, 2:]
        extents = priors[:, 2:] * np.exp(offsets[:, 2:] * 0.2)
        offsets = np.concatenate([centers - extents / 2, centers + extents / 2], axis=1)
    g = Graph(size)
    g.table("scores", scores[None])
    g.table("boxes", offsets[None])
    g.save(stem)


def blazeface():
    """Writes a model that outputs offsets in pixels and keypoints of 896 anchors, and logits."""
    g = Graph(128)
    g.filled("regressors", 3.0, [1, 896, 16])
    g.filled("classificators", -4.0, [1, 896, 1])
    g.save("blazeface")


def ssd_pixels():
    g = Graph(64)
    g.table("detection_out", [[[[0, 1, 0.9, 8, 16, 40, 48], [-1, 0, 0, 0, 0, 0, 0]]]])
    g.save("ssd_pixels")


def classifier(stem, values):
    g = Graph(16)
    g.table("scores", [values])
    g.save(stem)


def hostile():
    """Writes a model that outputs an object in the format of YOLOv10. Its names contain terminal control characters."""
    g = Graph(64)
    g.table(HOSTILE, [[[8, 16, 40, 48, 0.9, 0], [0, 0, 0, 0, 0, 0]]])
    g.save("hostile", image=HOSTILE + " in", metadata=[(HOSTILE, HOSTILE), ("note", "a\x1b]0;title\x07b")])


yolov5("yolov5_normalized", 1 / 64)
yolov5("yolov5_pixels", 1)
yolov5("yolov5_logits", 1, logits=True)
yolov8("yolov8_normalized", 1 / 64)
ultraface("ultraface_offsets", apply_priors=False)
ultraface("ultraface", apply_priors=True)
blazeface()
ssd_pixels()
classifier("class_logits", [-2.0, 5.0, 0.5])
classifier("class_probabilities", [0.1, 0.7, 0.2])
classifier("class_nan", [0.1, 0.7, float("nan")])
hostile()
