#!/usr/bin/env python3
"""Writes two small models with metadata: one as exported by Ultralytics, one with model_info of OpenVINO's Model API.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install onnx==1.23.2 openvino==2026.4.1
    /tmp/venv/bin/python tests/golden/descriptions/make_models.py

Both models output a constant box: the central fifth of the image, with the third of four classes.
"""
import json
import pathlib
import tempfile

import numpy as np
import onnx
import openvino
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).parent.resolve()


def model(name, table, shape):
    image = helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)
    output = helper.make_tensor_value_info("output0", TensorProto.FLOAT, table.shape)
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["table", "nothing"], ["output0"]),
    ]
    weights = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.float32(0), "zero")]
    graph = helper.make_graph(nodes, name, [image], [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def main():
    exported = next(case for case in json.loads((HERE / "ultralytics.json").read_text())["cases"] if case.get("outputs", [{}])[0].get("shape") == [1, 8, 126])
    table = np.zeros((1, 8, 126), np.float32)
    table[0, :, 50] = [48, 32, 96 / 5, 64 / 5, 0.1, 0.1, 0.9, 0.1]
    yolo = model("yolo", table, [1, 3, 64, 96])
    for key, value in exported["metadata"].items():
        entry = yolo.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.save(yolo, HERE / "yolo.onnx")

    rows = np.zeros((1, 1, 4, 7), np.float32)
    rows[0, 0, 0] = [0, 2, 0.9, 0.4, 0.4, 0.6, 0.6]
    rows[0, 0, 1:, 0] = -1
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model("ssd", rows, [1, 3, 64, 96]), f"{folder}/ssd.onnx")
        ssd = openvino.Core().read_model(f"{folder}/ssd.onnx")
    entries = {"model_type": "ssd", "labels": "one two three four", "confidence_threshold": 0.25, "resize_type": "fit_to_window_letterbox",
               "reverse_input_channels": True, "mean_values": "123.675 116.28 103.53", "scale_values": "58.395 57.12 57.375", "pad_value": 114}
    for key, value in entries.items():
        ssd.set_rt_info(value, ["model_info", key])
    openvino.save_model(ssd, HERE / "ssd.xml", compress_to_fp16=False)


main()
