#!/usr/bin/env python3
"""Exports networks with random weights by Ultralytics, and stores their metadata and ports.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install ultralytics==8.4.190 onnx==1.23.2 openvino==2026.4.1
    /tmp/venv/bin/python tests/golden/descriptions/make.py

Writes ultralytics.json next to this file, and folders of an OpenVINO export without weights. Downloads nothing.
"""
import json
import os
import pathlib
import re
import tempfile
import xml.etree.ElementTree as ElementTree

import onnx
import torch
import ultralytics
from ultralytics import RTDETR, YOLO

NAMES = {0: "person", 1: "it's", 2: 'a "quoted" \\ name', 3: "Straße"}
HERE = pathlib.Path(__file__).parent.resolve()
CASES = [
    ("yolov8n", {"imgsz": [64, 96]}),
    ("yolo11n", {"imgsz": [64, 96], "dynamic": True}),
    ("yolov8n", {"imgsz": 64, "nms": True}),
    ("yolov10n", {"imgsz": 64}),
    ("yolo26n", {"imgsz": 64}),
    ("yolov8n-cls", {"imgsz": 64}),
    ("yolov8n-seg", {"imgsz": 64}),
    ("yolov8n-pose", {"imgsz": 64}),
    ("yolov8n-obb", {"imgsz": 64}),
    ("rtdetr-l", {"imgsz": 64}),
]


def ports(values):
    return [{"name": v.name, "shape": [d.dim_value or None for d in v.type.tensor_type.shape.dim]} for v in values]


def network(name):
    kind = RTDETR if name.startswith("rtdetr") else YOLO
    source = kind(f"{name}.yaml")
    args = source.model.args
    cfg = dict(source.model.yaml, nc=len(NAMES))
    torch.manual_seed(0)
    source.model = type(source.model)(cfg, verbose=False)
    source.model.names = dict(NAMES)
    source.model.args = args
    source.model.task = source.task
    return source


def quiet(metadata):
    # The date differs from run to run, so it is replaced.
    return {key: re.sub(r"\d{4}-.*", "2026-01-01", value) if key == "date" else value for key, value in metadata.items()}


def main():
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, options in CASES:
            path = network(name).export(format="onnx", simplify=False, **options)
            model = onnx.load(path)
            metadata = quiet({entry.key: entry.value for entry in model.metadata_props})
            cases.append({"network": name, "options": options, "metadata": metadata, "inputs": ports(model.graph.input), "outputs": ports(model.graph.output)})
        for name in ["yolov8n", "yolov8n-cls"]:
            exported = pathlib.Path(network(name).export(format="openvino", imgsz=64))
            xml = next(exported.glob("*.xml"))
            info = ElementTree.parse(xml).getroot().find("rt_info/model_info")
            entries = {f"model_info {entry.tag}": entry.get("value") for entry in info}
            yaml = re.sub(r"date: .*", "date: '2026-01-01'", (exported / "metadata.yaml").read_text())
            cases.append({"network": name, "options": {"format": "openvino", "imgsz": 64}, "metadata": entries, "yaml": yaml})
    versions = {"ultralytics": ultralytics.__version__, "torch": torch.__version__, "onnx": onnx.__version__}
    (HERE / "ultralytics.json").write_text(json.dumps({"versions": versions, "names": list(NAMES.values()), "cases": cases}, indent=1, ensure_ascii=False) + "\n")


main()
