"""Makes the tiny models of the tests: small enough to read, with answers that can be worked out by hand.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install onnx numpy onnxruntime
    /tmp/venv/bin/python assets/tiny/make_models.py          writes the models beside this file
    /tmp/venv/bin/python assets/tiny/make_models.py --check  and compares their answers with those in README.md

Only operators that every engine has, opset 13, IR version 8. Written again by the same version of the onnx package they
come out byte for byte the same.
"""

import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FOLDER = pathlib.Path(__file__).resolve().parent
FLOAT = TensorProto.FLOAT


class Graph:
    """Nodes and constants by name; `g.op("Sub", a, b)` returns the name of the result."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, name, values, dtype=np.float32):
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def op(self, kind, *inputs, out=None, **attributes):
        out = out or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=out, **attributes))
        return out

    def save(self, stem, inputs, outputs, check=True, element=FLOAT, out_element=FLOAT):
        def ports(shapes, element):
            return [helper.make_tensor_value_info(name, element, shape) for name, shape in shapes.items()]

        graph = helper.make_graph(self.nodes, stem, ports(inputs, element), ports(outputs, out_element), self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="roiflow")
        if check:
            onnx.checker.check_model(model, full_check=True)
        path = FOLDER / f"{stem}.onnx"
        path.write_bytes(model.SerializeToString())
        assert path.stat().st_size < 20_000, f"{path} is {path.stat().st_size} bytes"


def rectangle():
    """The rectangle around all colored pixels, those with max(R, G, B) - min(R, G, B) > 96. One box."""
    size, g = 64, Graph()
    brightest = g.op("ReduceMax", "image", axes=[3], keepdims=0)  # [1, 64, 64]
    darkest = g.op("ReduceMin", "image", axes=[3], keepdims=0)
    colored = g.op("Greater", g.op("Sub", brightest, darkest), g.constant("least", [96.0]))
    mask = g.op("Cast", colored, to=FLOAT)
    upward = g.constant("upward", np.arange(1, size + 1))  # i + 1
    downward = g.constant("downward", np.arange(size, 0, -1))  # 64 - i
    inverse = g.constant("inverse", [1.0 / size])
    one = g.constant("one", [1.0])

    def span(any_along):
        # The last colored index plus one is the greatest i + 1; the first is 64 less the greatest 64 - i.
        last = g.op("ReduceMax", g.op("Mul", any_along, upward), axes=[1], keepdims=1)
        first = g.op("ReduceMax", g.op("Mul", any_along, downward), axes=[1], keepdims=1)
        return g.op("Sub", one, g.op("Mul", first, inverse)), g.op("Mul", last, inverse)

    columns = g.op("ReduceMax", mask, axes=[1], keepdims=0)  # [1, 64]: any in this column
    rows = g.op("ReduceMax", mask, axes=[2], keepdims=0)
    x1, x2 = span(columns)
    y1, y2 = span(rows)
    face = g.op("ReduceMax", columns, axes=[1], keepdims=1)  # [1, 1]
    background = g.op("Sub", one, face)
    row = g.op("Concat", background, face, x1, y1, x2, y2, axis=1)
    g.op("Unsqueeze", row, g.constant("axis", [1], np.int64), out="boxes")
    g.save("rectangle", {"image": [1, size, size, 3]}, {"boxes": [1, 1, 6]})


def stripes():
    """One box for each cell of a grid of 20 by 15, scored with the mean brightness of the cell: up to 300 objects."""
    columns, rows, cell, g = 20, 15, 4, Graph()
    gray = g.op("ReduceMean", "image", axes=[1], keepdims=1)  # [1, 1, 60, 80]
    means = g.op("AveragePool", gray, kernel_shape=[cell, cell], strides=[cell, cell])  # [1, 1, 15, 20]
    brightness = g.op("Mul", means, g.constant("inverse", [1.0 / 255.0]))
    score = g.op("Reshape", brightness, g.constant("shape", [1, rows * columns, 1], np.int64))
    background = g.op("Sub", g.constant("one", [1.0]), score)
    corners = [
        [x / columns, y / rows, (x + 1) / columns, (y + 1) / rows] for y in range(rows) for x in range(columns)
    ]
    g.op("Concat", background, score, g.constant("corners", [corners]), axis=2, out="boxes")
    g.save("stripes", {"image": [1, 3, rows * cell, columns * cell]}, {"boxes": [1, rows * columns, 6]})


def fragile():
    """One box over the whole picture, looked up in a table of one row by the mean brightness: of a picture that is bright there is no
    row, and every engine that checks fails, or panics, in the run."""
    g = Graph()
    gray = g.op("ReduceMean", "image", axes=[1, 2, 3], keepdims=0)  # [1]
    row = g.op("Cast", g.op("Mul", gray, g.constant("scale", [2.0 / 255.0])), to=TensorProto.INT64)
    g.op("Gather", g.constant("table", [[[0.0, 1.0, 0.0, 0.0, 1.0, 1.0]]]), row, axis=1, out="boxes")
    g.save("fragile", {"image": [1, 8, 8, 3]}, {"boxes": [1, 1, 6]})


def mean_color(g):
    """Mean of each channel in 0..1, [N, 3], of `image` [N, 3, 8, 8] in 0..255."""
    means = g.op("ReduceMean", "image", axes=[2, 3], keepdims=0)
    return g.op("Mul", means, g.constant("scale", [1.0 / 255.0]))


def color():
    """Names the color: logits are the mean color times 16 with 8 taken off, and 0 for "other"."""
    g = Graph()
    weights = np.zeros((3, 4))
    for channel in range(3):
        weights[:, channel] = -8.0  # the other two channels speak against it
        weights[channel, channel] = 16.0
    logits = g.op("MatMul", mean_color(g), g.constant("weights", weights))
    # Pure red: 16 - 4 against -8 - 4 for green and blue and 0 for other.
    biased = g.op("Add", logits, g.constant("bias", [-4.0, -4.0, -4.0, 0.0]))
    g.op("Softmax", biased, axis=1, out="probabilities")
    g.save("color", {"image": ["N", 3, 8, 8]}, {"probabilities": ["N", 4]})


def brightness():
    """Five bins at 0, 25, 50, 75, 100 percent whose expectation is the mean brightness in percent, exactly."""
    g = Graph()
    gray = g.op("ReduceMean", mean_color(g), axes=[1], keepdims=1)  # [N, 1] in 0..1
    # A triangle over the two nearest bins: weights add up to one, and the mean of the bins is the value itself.
    position = g.op("Mul", gray, g.constant("last_bin", [4.0]))
    distance = g.op("Abs", g.op("Sub", position, g.constant("bins", [[0.0, 1.0, 2.0, 3.0, 4.0]])))
    g.op("Relu", g.op("Sub", g.constant("one", [1.0]), distance), out="probabilities")
    g.save("brightness", {"image": ["N", 3, 8, 8]}, {"probabilities": ["N", 5]})


N_CLIP_FRAMES = 4


def clip_scores(g, change):
    """Scores of "brighter", "darker" and "still" for the change of the brightness, [N, 1]."""
    still = g.op("Add", g.op("Mul", change, g.constant("zero", [0.0])), g.constant("least", [0.1]))
    g.op("Concat", g.op("Relu", change), g.op("Relu", g.op("Neg", change)), still, axis=1, out="scores")


def clip():
    """Whether a clip of four frames becomes brighter or darker: the weighted sum of the frames' means, with weights that depend on the order."""
    g = Graph()
    means = g.op("ReduceMean", "clip", axes=[1, 3, 4], keepdims=0)  # [N, T]
    weights = g.constant("weights", np.asarray([[-0.8], [-0.2], [0.2], [0.8]]) / 255.0)
    clip_scores(g, g.op("MatMul", means, weights))
    g.save("clip", {"clip": ["N", 3, N_CLIP_FRAMES, 8, 8]}, {"scores": ["N", 3]})


def clip_open():
    """The same for clips of any number of frames: the difference of the means of the newest and the oldest frame. The channels are last."""
    g = Graph()
    means = g.op("ReduceMean", "clip", axes=[2, 3, 4], keepdims=0)  # [1, T]
    end = [g.constant("begin", [-1], np.int64), g.constant("end", [np.iinfo(np.int64).max], np.int64), g.constant("time", [1], np.int64)]
    newest = g.op("Slice", means, *end)
    oldest = g.op("Slice", means, g.constant("zero_at", [0], np.int64), g.constant("one_at", [1], np.int64), "time")
    clip_scores(g, g.op("Mul", g.op("Sub", newest, oldest), g.constant("inverse", [1.0 / 255.0])))
    g.save("clip_open", {"clip": [1, "T", 8, 8, 3]}, {"scores": [1, 3]})


def clip_time_first():
    """The same as `clip`, with the time before the channels."""
    g = Graph()
    means = g.op("ReduceMean", "clip", axes=[2, 3, 4], keepdims=0)  # [N, T]
    weights = g.constant("weights", np.asarray([[-0.8], [-0.2], [0.2], [0.8]]) / 255.0)
    clip_scores(g, g.op("MatMul", means, weights))
    g.save("clip_time_first", {"clip": ["N", N_CLIP_FRAMES, 3, 8, 8]}, {"scores": ["N", 3]})


def clip_six_axes():
    """The same as `clip`, with one more axis after the batch, as exports of MMAction2 have."""
    g = Graph()
    means = g.op("ReduceMean", "clip", axes=[1, 2, 4, 5], keepdims=0)  # [N, T]
    weights = g.constant("weights", np.asarray([[-0.8], [-0.2], [0.2], [0.8]]) / 255.0)
    clip_scores(g, g.op("MatMul", means, weights))
    g.save("clip_six_axes", {"clip": ["N", 1, 3, N_CLIP_FRAMES, 8, 8]}, {"scores": ["N", 3]})


def quantized():
    """The mean of each channel, as integers without DequantizeLinear and QuantizeLinear. Input: pixel - 128 as i8. Output: 20 + 200 times the
    mean in 0..1, as u8."""
    g = Graph()
    pixels = g.op("Add", g.op("Cast", "image", to=FLOAT), g.constant("input_zero", [128.0]))
    means = g.op("ReduceMean", pixels, axes=[2, 3], keepdims=0)
    scores = g.op("Add", g.op("Mul", means, g.constant("scale", [200.0 / 255.0])), g.constant("output_zero", [20.5]))
    g.op("Cast", g.op("Floor", scores), to=TensorProto.UINT8, out="scores")
    g.save("quantized", {"image": ["N", 3, 8, 8]}, {"scores": ["N", 3]}, element=TensorProto.INT8, out_element=TensorProto.UINT8)


def plate():
    """Indexes of characters with the end -1, as license-plate-recognition-barrier-0001 gives them: the mean of each row of the image, from top
    to bottom, rounded; rows whose mean is above 100 are -1."""
    g = Graph()
    means = g.op("ReduceMean", "image", axes=[1, 3], keepdims=0)  # [1, 8]
    row = g.op("Floor", g.op("Add", means, g.constant("half", [0.5])))
    is_end = g.op("Cast", g.op("Greater", row, g.constant("most", [100.0])), to=FLOAT)
    one = g.constant("one", [1.0])
    indexes = g.op("Sub", g.op("Mul", row, g.op("Sub", one, is_end)), is_end)
    g.op("Reshape", indexes, g.constant("shape", [1, 8, 1, 1], np.int64), out="decode")
    g.save("plate", {"image": [1, 3, 8, 8]}, {"decode": [1, 8, 1, 1]})


def identity():
    g = Graph()
    g.op("Identity", "x", out="y")
    g.save("identity", {"x": [1, 4]}, {"y": [1, 4]})


def add():
    g = Graph()
    g.op("Add", "a", "b", out="sum")
    g.op("Sub", "a", "b", out="difference")
    g.save("add", {"a": [1, 4], "b": [1, 4]}, {"sum": [1, 4], "difference": [1, 4]})


def double():
    g = Graph()
    g.op("Mul", "x", g.constant("two", [2.0]), out="y")
    g.save("double", {"x": ["N", 4]}, {"y": ["N", 4]})


def total():
    """Recurrent: what comes in is added to what is kept, which is given twice, as exporters do."""
    g = Graph()
    g.op("Add", "x", "total_in", out="total_out")
    g.op("Identity", "total_out", out="y")
    g.save("sum", {"x": [1, 4], "total_in": [1, 4]}, {"y": [1, 4], "total_out": [1, 4]})


def append():
    """Its first axis is open and no batch: a row is added to what comes in."""
    g = Graph()
    g.op("Concat", "x", g.constant("row", [[0.5, 1.5, 2.5, 3.5]]), out="y", axis=0)
    g.save("append", {"x": ["N", 4]}, {"y": ["M", 4]})


def center():
    """Its first axis is open and no batch: the mean of all rows is taken from each."""
    g = Graph()
    g.op("Sub", "x", g.op("ReduceMean", "x", axes=[0], keepdims=1), out="y")
    g.save("center", {"x": ["N", 4]}, {"y": ["N", 4]})


def pick():
    """The values of a table at the given indices."""
    g = Graph()
    g.op("Gather", g.constant("table", [0.5, 1.5, 2.5, 3.5]), "indices", axis=0, out="y")
    g.save("pick", {"indices": ["N"]}, {"y": ["N"]}, element=TensorProto.INT64)


def open_faces(stem, batch, height, width):
    """A face detector as SCRFD writes its outputs, of pictures of any size: two anchors per cell of grids of 8, 16 and 32 pixels. The
    first one's score is the mean brightness of its cell, the second one's is 0; boxes reach 1 cell to all sides of the cell's corner."""
    g = Graph()
    gray = g.op("ReduceMean", "image", axes=[1], keepdims=1)  # [N, 1, H, W]
    outputs = {}
    for stride in (8, 16, 32):
        cells = g.op("AveragePool", gray, kernel_shape=[stride, stride], strides=[stride, stride])
        score = g.op("Mul", cells, g.constant(f"inverse_{stride}", [1.0 / 255.0]))
        zero = g.op("Mul", cells, g.constant(f"zero_{stride}", [0.0]))
        one = g.op("Add", zero, g.constant(f"one_{stride}", [1.0]))
        for name, parts in (("score", [score, zero]), ("bbox", [one] * 8)):
            columns = len(parts) // 2
            table = g.op("Transpose", g.op("Concat", *parts, axis=1), perm=[0, 2, 3, 1])
            shape = g.constant(f"shape_{name}_{stride}", [0, -1, columns], np.int64)
            g.op("Reshape", table, shape, out=f"{name}_{stride}")
            outputs[f"{name}_{stride}"] = [batch, f"{name}_rows_{stride}", columns]
    g.save(stem, {"image": [batch, 3, height, width]}, outputs)


def suppressed():
    """A detector whose boxes are suppressed in the model, as TensorFlow's detection API exports them: a box for each cell of a grid of
    4 by 4, and the score is the mean brightness of the cell. How many boxes it gives depends on the picture, and the last operation's
    shape is computed, so that an engine may not know it before."""
    cells, size, g = 4, 64, Graph()
    image = g.op("Transpose", g.op("Cast", "image_tensor", to=FLOAT), perm=[0, 3, 1, 2])
    gray = g.op("ReduceMean", image, axes=[1], keepdims=1)
    means = g.op("AveragePool", gray, kernel_shape=[size // cells] * 2, strides=[size // cells] * 2)
    scores = g.op("Reshape", g.op("Mul", means, g.constant("inverse", [1.0 / 255.0])), g.constant("list", [1, 1, -1], np.int64))
    corners = [[y / cells, x / cells, (y + 1) / cells, (x + 1) / cells] for y in range(cells) for x in range(cells)]
    boxes = g.constant("corners", [corners])
    most = g.constant("most", [10], np.int64)
    found = g.op("NonMaxSuppression", boxes, scores, most, g.constant("overlap", [0.5]), g.constant("least", [0.3]))
    # Batch, class and cell of each box.
    rows = g.op("Gather", found, g.constant("cell", 2, np.int64), axis=1)
    # The number of boxes, through numbers with a fraction, by which no engine follows shapes.
    count = g.op("Cast", g.op("Shape", rows), to=FLOAT)
    number = g.op("Cast", g.op("Floor", g.op("Add", count, g.constant("half", [0.5]))), to=TensorProto.INT64)
    unit = g.constant("unit", [1], np.int64)
    table = g.op("Concat", unit, number, g.constant("four", [4], np.int64), axis=0)
    row = g.op("Concat", unit, number, axis=0)
    flat = g.op("Squeeze", boxes, g.constant("first", [0], np.int64))
    g.op("Reshape", g.op("Gather", flat, rows, axis=0), table, out="detection_boxes")
    score = g.op("Gather", g.op("Reshape", scores, g.constant("flat", [-1], np.int64)), rows, axis=0)
    g.op("Reshape", score, row, out="detection_scores")
    zeros = g.op("Mul", score, g.constant("nothing", [0.0]))
    g.op("Reshape", g.op("Add", zeros, g.constant("class_one", [1.0])), row, out="detection_classes")
    g.op("Identity", count, out="num_detections")
    outputs = {"detection_boxes": [1, "n", 4], "detection_scores": [1, "n"], "detection_classes": [1, "n"], "num_detections": [1]}
    g.save("suppressed", {"image_tensor": [1, size, size, 3]}, outputs, element=TensorProto.UINT8)


def bf16():
    g = Graph()
    g.op("Cast", "x", to=FLOAT, out="y")
    g.save("bf16", {"x": [1, 4]}, {"y": [1, 4]}, element=TensorProto.BFLOAT16)


def int64():
    g = Graph()
    g.op("Add", "x", g.constant("one", [1], np.int64), out="y")
    g.save("int64", {"x": [1, 4]}, {"y": [1, 4]}, element=TensorProto.INT64, out_element=TensorProto.INT64)


def unsupported():
    g = Graph()
    g.op("FancyOp", "x", out="y")
    # No engine has the operator, and the checker of the onnx package knows it as little.
    g.save("unsupported", {"x": [1, 4]}, {"y": [1, 4]}, check=False)


def check():
    """Every answer that README.md states, from another engine than the tests use."""
    import onnxruntime

    def run(stem, **inputs):
        session = onnxruntime.InferenceSession(FOLDER / f"{stem}.onnx", providers=["CPUExecutionProvider"])
        names = [port.name for port in session.get_outputs()]
        kept = (np.uint8, np.int8, np.int64)
        values = {name: value if getattr(value, "dtype", None) in kept else np.asarray(value, np.float32) for name, value in inputs.items()}
        return dict(zip(names, session.run(None, values)))

    def same(got, expected, tolerance=1e-6):
        np.testing.assert_allclose(got, np.asarray(expected, np.float32), atol=tolerance, rtol=0)

    picture = np.full((1, 64, 64, 3), 128.0)
    same(run("rectangle", image=picture)["boxes"], [[[1, 0, 1, 1, 0, 0]]])
    picture[0, 10:30, 16:48] = (255, 0, 0)
    same(run("rectangle", image=picture)["boxes"], [[[0, 1, 16 / 64, 10 / 64, 48 / 64, 30 / 64]]])
    picture[0, 63, 0] = (0, 97, 0)
    same(run("rectangle", image=picture)["boxes"], [[[0, 1, 0, 10 / 64, 48 / 64, 1]]])
    picture[:] = (96, 0, 0)
    same(run("rectangle", image=picture)["boxes"][0, 0, :2], [1, 0])

    grid = np.zeros((1, 3, 60, 80))
    assert run("stripes", image=grid)["boxes"][0, :, 1].max() == 0
    grid[0, :, 4:8, 12:16] = 255  # cell (3, 1)
    boxes = run("stripes", image=grid)["boxes"][0]
    same(boxes[:, 1].nonzero()[0], [1 * 20 + 3])
    same(boxes[23], [0, 1, 3 / 20, 1 / 15, 4 / 20, 2 / 15])
    same(run("stripes", image=np.full((1, 3, 60, 80), 255.0))["boxes"][0, :, 1], np.ones(300))

    same(run("fragile", image=np.full((1, 8, 8, 3), 120.0))["boxes"], [[[0, 1, 0, 0, 1, 1]]])
    try:
        run("fragile", image=np.full((1, 8, 8, 3), 130.0))
    except Exception as error:
        assert "out of" in str(error), error
    else:
        raise AssertionError("a row that is not there was found")

    patches = np.zeros((5, 3, 8, 8))
    for channel in range(3):
        patches[channel, channel] = 255
    patches[3] = 128  # gray; patches[4] is black
    probabilities = run("color", image=patches)["probabilities"]
    assert probabilities.argmax(1).tolist() == [0, 1, 2, 3, 3]
    same(probabilities[0], np.array([np.exp(12.0), np.exp(-12.0), np.exp(-12.0), 1.0]) / (np.exp(12.0) + 2 * np.exp(-12.0) + 1))
    same(probabilities[4, 3], 1 / (1 + 3 * np.exp(-4.0)))

    probabilities = run("brightness", image=np.stack([np.full((3, 8, 8), v) for v in (0.0, 51.0, 127.5, 255.0)]))["probabilities"]
    same(probabilities[1], [0.2, 0.8, 0, 0, 0])
    same(probabilities @ [0, 25, 50, 75, 100], [0, 20, 50, 100], 1e-4)

    frames = np.stack([np.full((3, 8, 8), v) for v in (0.0, 51.0, 102.0, 153.0)], axis=1)[None]
    change = 0.8 * 0.6 + 0.2 * 0.2
    same(run("clip", clip=frames)["scores"], [[change, 0, 0.1]])
    same(run("clip", clip=frames[:, :, ::-1])["scores"], [[0, change, 0.1]])
    same(run("clip_time_first", clip=frames.transpose(0, 2, 1, 3, 4))["scores"], [[change, 0, 0.1]])
    same(run("clip_six_axes", clip=frames[:, None])["scores"], [[change, 0, 0.1]])
    last = frames.transpose(0, 2, 3, 4, 1)
    same(run("clip_open", clip=last)["scores"], [[0.6, 0, 0.1]])
    same(run("clip_open", clip=last[:, ::-1])["scores"], [[0, 0.6, 0.1]])
    colors = np.broadcast_to(np.array([200, 100, 50]).reshape(1, 3, 1, 1) - 128, (1, 3, 8, 8)).astype(np.int8)
    assert run("quantized", image=colors)["scores"].tolist() == [[177, 98, 59]]
    rows = np.broadcast_to(np.array([0.0, 1, 10, 11, 200, 3, 3, 3]).reshape(1, 1, 8, 1), (1, 3, 8, 8))
    assert run("plate", image=rows)["decode"].flatten().tolist() == [0, 1, 10, 11, -1, 3, 3, 3]

    x = [[1.0, -2.0, 3.5, 0.0]]
    same(run("identity", x=x)["y"], x)
    same(run("double", x=x * 3)["y"], np.array(x * 3) * 2)
    same(run("append", x=x)["y"], x + [[0.5, 1.5, 2.5, 3.5]])
    same(run("center", x=[[1.0, 2, 3, 4], [3, 2, 1, 0]])["y"], [[-1, 0, 1, 2], [1, 0, -1, -2]])
    same(run("pick", indices=np.array([3, 0, 1]))["y"], [3.5, 0.5, 1.5])
    same(run("sum", x=x, total_in=[[1.0, 1, 1, 1]])["y"], [[2, -1, 4.5, 1]])
    wide = run("int64", x=np.array([[0, -1, 2**31, 2**40]]))["y"]
    assert wide.tolist() == [[1, 0, 2**31 + 1, 2**40 + 1]]
    both = run("add", a=x, b=[[10.0, 20.0, 30.0, 40.0]])
    same(both["sum"], [[11, 18, 33.5, 40]])
    same(both["difference"], [[-9, -22, -26.5, -40]])
    picture = np.zeros((1, 3, 64, 96))
    picture[0, :, 8:16, 16:24] = 255  # cell (2, 1) of the finest grid, the third of its row
    for stem in ("open_size", "open_all", "open_width"):
        found = run(stem, image=picture)
        assert [found[f"score_{stride}"].shape for stride in (8, 16, 32)] == [(1, 192, 1), (1, 48, 1), (1, 12, 1)]
        same(found["score_8"][0, :, 0].nonzero()[0], [2 * (12 + 2)])
        same(found["bbox_8"], np.ones((1, 192, 4)))
    picture = np.zeros((1, 64, 64, 3), np.uint8)
    picture[0, 16:32, 32:48] = 255  # cell (2, 1)
    picture = np.zeros((1, 3, HEIGHT, WIDTH))
    picture[0, 0, 20:40, 8:48] = 1
    found = run("mask", images=picture)
    same(found["output0"][0, :, 0], [28, 30, 40, 20, 0.9, 1, 1])
    same(found["output1"][0, 0, 5:10, 2:12], np.full((5, 10), 4.0))
    found = run("transformer", images=picture, orig_target_sizes=np.array([[960, 320]], np.int64))
    same(found["boxes"], [[[80, 100, 480, 200]]], 1e-3)
    same(found["labels"], [[1.0]])
    picture[0, 2, 50:54, 80:84] = 1
    same(run("pose", images=picture)["output0"][0, :, 0], [46, 37, 76, 34, 0.9, 28, 30, 1, 0, 0, 0, 82, 52, 1], 1e-4)
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH] + 0.5
    along, across = (x - 50) * 0.8 + (y - 30) * 0.6, (y - 30) * 0.8 - (x - 50) * 0.6
    picture[0] = ((abs(along) < 20) & (abs(across) < 8)) * np.array([1.0, 0, 0]).reshape(3, 1, 1)
    found = run("rotated", images=picture)["output0"][0, :, 0]
    same(found, [50, 30, 40, 16, 0.9, np.arctan2(0.6, 0.8)], 0.3)
    picture = np.zeros((1, 64, 64, 3), np.uint8)
    picture[0, 16:32, 32:48] = 255  # cell (2, 1)
    found = run("suppressed", image_tensor=picture)
    same(found["detection_boxes"], [[[0.25, 0.5, 0.5, 0.75]]])
    same(found["detection_scores"], [[1.0]])
    same(found["detection_classes"], [[1.0]])
    same(found["num_detections"], [1.0])
    try:
        run("unsupported", x=x)
    except Exception as error:
        assert "FancyOp" in str(error), error
    else:
        raise AssertionError("FancyOp was run")
    print("all answers as stated")


def ultralytics():
    # What YOLO models say of themselves when Ultralytics exports them. The same box whatever the picture.
    table = np.full((1, 8, 126), 0.01, np.float32)
    # Boxes of other sizes with scores near 0, so that the outputs look like those of a real model.
    row = np.arange(126)
    table[0, :4] = [row * 7 % 96, row * 5 % 64, 8 + row % 40, 8 + row % 30]
    table[0, :, 50] = [48, 32, 96 / 5, 64 / 5, 0.1, 0.1, 0.9, 0.1]
    g = Graph()
    mean = g.op("ReduceMean", "images", keepdims=0)
    nothing = g.op("Mul", mean, g.constant("zero", 0.0))
    g.op("Add", g.constant("table", table), nothing, out="output0")
    g.save("ultralytics", {"images": [1, 3, 64, 96]}, {"output0": [1, 8, 126]})
    path = FOLDER / "ultralytics.onnx"
    model = onnx.load(path)
    metadata = {
        "author": "Ultralytics",
        "description": "Ultralytics YOLO11n model",
        "imgsz": "[64, 96]",
        "names": "{0: 'person', 1: 'bicycle', 2: 'car', 3: 'truck'}",
        "stride": "32",
        "task": "detect",
        "end2end": "False",
        "version": "8.4.190",
    }
    for key, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.save(model, path)


WIDTH, HEIGHT = 96, 64


def difference(g, positive):
    """Cells [1, 1, 64, 96] that are 1 where the channel `positive`, or the brightest one, exceeds the others, or the darkest one, by 0.4."""
    if positive is None:
        most, least = g.op("ReduceMax", "images", axes=[1], keepdims=1), g.op("ReduceMin", "images", axes=[1], keepdims=1)
    else:
        others = [channel for channel in range(3) if channel != positive]
        index = lambda channels: g.constant(f"channels_{positive}_{len(channels)}", channels, np.int64)
        most = g.op("Gather", "images", index([positive]), axis=1)
        least = g.op("ReduceMax", g.op("Gather", "images", index(others), axis=1), axes=[1], keepdims=1)
    return g.op("Cast", g.op("Greater", g.op("Sub", most, least), g.constant(f"least_{positive}", [0.4])), to=FLOAT)


def extent(g, mask):
    """Center and size of the cells of a mask, and whether there are any: five tensors [1, 1, 1, 1]."""
    half = g.constant("half", [0.5])

    def span(name, size, axis, shape):
        any_along = g.op("ReduceMax", mask, axes=[5 - axis], keepdims=1)
        last = g.op("Mul", any_along, g.constant(f"upward_{name}", np.arange(1, size + 1).reshape(shape)))
        first = g.op("Mul", any_along, g.constant(f"downward_{name}", np.arange(size, 0, -1).reshape(shape)))
        end = g.op("ReduceMax", last, axes=[2, 3], keepdims=1)
        begin = g.op("Sub", g.constant(f"size_{name}", [float(size)]), g.op("ReduceMax", first, axes=[2, 3], keepdims=1))
        return g.op("Mul", g.op("Add", begin, end), half), g.op("Sub", end, begin)

    (x, width), (y, height) = span("x", WIDTH, 3, (1, 1, 1, WIDTH)), span("y", HEIGHT, 2, (1, 1, HEIGHT, 1))
    score = g.op("Mul", g.op("ReduceMax", mask, axes=[2, 3], keepdims=1), g.constant("score", [0.9]))
    return [x, y, width, height, score]


def centers():
    """Centers of the pixels along x and y."""
    x = (np.arange(WIDTH) + 0.5).reshape(1, 1, 1, WIDTH)
    return x, (np.arange(HEIGHT) + 0.5).reshape(1, 1, HEIGHT, 1)


def table(g, stem, values, more={}):
    """Saves a model whose output has these values in its first column, and boxes of low scores in the other columns."""
    row = np.arange(125)
    rest = np.full((1, len(values), 125), 0.01, np.float32)
    rest[0, :4] = [row * 7 % WIDTH, row * 5 % HEIGHT, 8 + row % 40, 8 + row % 30]
    column = g.op("Reshape", g.op("Concat", *values, axis=1), g.constant("column", [1, len(values), 1], np.int64))
    g.op("Concat", column, g.constant("rest", rest), axis=2, out="output0")
    g.save(stem, {"images": [1, 3, HEIGHT, WIDTH]}, {"output0": [1, len(values), 126], **more})


def mask():
    """The mask of all colored pixels, as YOLOv8-seg writes it: one class, two prototypes. The second prototype is not used."""
    g = Graph()
    colored = difference(g, None)
    cells = g.op("AveragePool", colored, kernel_shape=[4, 4], strides=[4, 4])
    logits = g.op("Sub", g.op("Mul", cells, g.constant("eight", [8.0])), g.constant("four", [4.0]))
    g.op("Concat", logits, g.op("Mul", logits, g.constant("zero", [0.0])), axis=1, out="output1")
    values = [*extent(g, colored), g.constant("first", np.ones((1, 1, 1, 1))), g.constant("second", np.ones((1, 1, 1, 1)))]
    table(g, "mask", values, {"output1": [1, 2, 16, 24]})


def pose():
    """Three keypoints, as YOLOv8-pose writes them: the centers of the red, the green and the blue pixels."""
    g = Graph()
    values = extent(g, difference(g, None))
    x, y = (g.constant(name, numbers) for name, numbers in zip("xy", centers()))
    one, sixteenth = g.constant("at_least", [1.0]), g.constant("sixteenth", [1 / 16])
    for channel in range(3):
        cells = difference(g, channel)
        count = g.op("ReduceSum", cells, g.constant(f"axes_{channel}", [2, 3], np.int64), keepdims=1)
        for place in (x, y):
            total = g.op("ReduceSum", g.op("Mul", cells, place), g.constant(f"axes_{channel}_{place}", [2, 3], np.int64), keepdims=1)
            values.append(g.op("Div", total, g.op("Max", count, one)))
        values.append(g.op("Min", g.op("Mul", count, sixteenth), one))
    table(g, "pose", values)


def rotated():
    """The rotated box of all colored pixels, as YOLOv8-obb writes it, from their moments."""
    g = Graph()
    cells = difference(g, None)
    x, y = (g.constant(name, numbers) for name, numbers in zip("xy", centers()))
    axes, two, half, small = (g.constant(name, value, kind) for name, value, kind in [
        ("axes", [2, 3], np.int64), ("two", [2.0], np.float32), ("one_half", [0.5], np.float32), ("small", [1e-3], np.float32)])
    count = g.op("Max", g.op("ReduceSum", cells, axes, keepdims=1), g.constant("at_least", [1.0]))
    mean = lambda values: g.op("Div", g.op("ReduceSum", g.op("Mul", cells, values), axes, keepdims=1), count)
    center = [mean(x), mean(y)]
    dx, dy = g.op("Sub", x, center[0]), g.op("Sub", y, center[1])
    xx, yy, xy = mean(g.op("Mul", dx, dx)), mean(g.op("Mul", dy, dy)), mean(g.op("Mul", dx, dy))
    less, twice = g.op("Sub", xx, yy), g.op("Mul", xy, two)
    root = g.op("Sqrt", g.op("Add", g.op("Mul", less, less), g.op("Mul", twice, twice)))
    angle = g.op("Atan", g.op("Div", twice, g.op("Add", g.op("Add", less, root), small)))
    total, twelve = g.op("Add", xx, yy), g.constant("twelve", [12.0])
    side = lambda kind: g.op("Sqrt", g.op("Max", g.op("Mul", g.op("Mul", g.op(kind, total, root), half), twelve), small))
    score = g.op("Mul", g.op("ReduceMax", cells, axes=[2, 3], keepdims=1), g.constant("score", [0.9]))
    table(g, "rotated", [*center, side("Add"), side("Sub"), score, angle])


def transformer():
    """The box of all colored pixels, as the deployed D-FINE writes it: fractions of the image, scaled by the second input."""
    g = Graph()
    x, y, width, height, score = extent(g, difference(g, None))
    half = g.constant("one_half", [0.5])
    low = lambda at, size: g.op("Sub", at, g.op("Mul", size, half))
    high = lambda at, size: g.op("Add", at, g.op("Mul", size, half))
    corners = g.op("Concat", low(x, width), low(y, height), high(x, width), high(y, height), axis=1)  # [1, 4, 1, 1]
    corners = g.op("Reshape", corners, g.constant("one_row", [1, 1, 4], np.int64))
    fractions = g.op("Div", corners, g.constant("own_size", [WIDTH, HEIGHT, WIDTH, HEIGHT]))
    sizes = g.op("Cast", "orig_target_sizes", to=FLOAT)
    sizes = g.op("Reshape", g.op("Concat", sizes, sizes, axis=1), g.constant("one_row_too", [1, 1, 4], np.int64))
    g.op("Mul", fractions, sizes, out="boxes")
    g.op("Reshape", score, g.constant("one_score", [1, 1], np.int64), out="scores")
    # Real models have labels of int64, which the built-in engine does not support.
    g.op("Floor", g.op("Mul", "scores", g.constant("two", [2.0])), out="labels")
    info = helper.make_tensor_value_info
    inputs = [info("images", FLOAT, ["N", 3, HEIGHT, WIDTH]), info("orig_target_sizes", TensorProto.INT64, ["N", 2])]
    outputs = [info("labels", FLOAT, [1, 1]), info("boxes", FLOAT, [1, 1, 4]), info("scores", FLOAT, [1, 1])]
    graph = helper.make_graph(g.nodes, "transformer", inputs, outputs, g.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="roiflow")
    (FOLDER / "transformer.onnx").write_bytes(model.SerializeToString())


for make in (mask, pose, rotated, transformer, rectangle, stripes, fragile, color, brightness, clip, clip_open, clip_time_first, clip_six_axes, quantized, plate, identity, add, double, total, append, center, pick, bf16, int64, suppressed, unsupported, ultralytics):
    make()
for shape in (("open_size", 1, "H", "W"), ("open_all", "N", "H", "W"), ("open_width", 1, 64, "W")):
    open_faces(*shape)
if "--check" in sys.argv:
    check()
