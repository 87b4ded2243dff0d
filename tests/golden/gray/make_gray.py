#!/usr/bin/env python3
"""Writes the faces that UltraFace detects in two clips converted to gray, computed with OpenCV and ONNX Runtime.

usage: make_gray.py MODELS      (the folder with models/ and videos/ of the development set)
Needs numpy, opencv-python-headless, onnxruntime. Made with numpy 2.4, OpenCV 5.0, ONNX Runtime 1.31.

The network was trained on color images. On gray images it detects partly other boxes: at IoU 0.9, only 76 % and 93 % of the boxes in color
are also detected in gray. So the tests compare a pipeline with GRAY8 input with these results, not with the results for color. A line is
the result for a frame: a list of [x1, y1, x2, y2] in source pixels.
"""
import json
import pathlib
import sys

import cv2
import numpy as np
import onnxruntime

N_FRAMES, SCORE, IOU = 200, 0.7, 0.3


def suppress(boxes, scores):
    kept = []
    for i in np.argsort(-scores, kind="stable"):
        x1, y1 = np.maximum(boxes[i, 0], boxes[kept, 0]), np.maximum(boxes[i, 1], boxes[kept, 1])
        x2, y2 = np.minimum(boxes[i, 2], boxes[kept, 2]), np.minimum(boxes[i, 3], boxes[kept, 3])
        overlap = np.clip(x2 - x1, 0, None) * np.clip(y2 - y1, 0, None)
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        if not np.any(overlap / (area[i] + area[kept] - overlap) > IOU):
            kept.append(i)
    return boxes[kept]


def main():
    root = pathlib.Path(sys.argv[1])
    session = onnxruntime.InferenceSession(str(root / "models/ultraface_rfb_320_nhwc.onnx"), providers=["CPUExecutionProvider"])
    for clip, name in (("WolfgangLanger_Pexels.mp4", "one_face.jsonl"), ("faces_grid_1280x720.mp4", "several_faces.jsonl")):
        video = cv2.VideoCapture(str(root / "videos" / clip))
        with open(pathlib.Path(__file__).with_name(name), "w") as out:
            for _ in range(N_FRAMES):
                _, frame = video.read()
                height, width = frame.shape[:2]
                gray = cv2.cvtColor(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2RGB)
                pixels = (cv2.resize(gray, (320, 240), interpolation=cv2.INTER_LINEAR).astype(np.float32) - 127) / 128
                found = session.run(None, {session.get_inputs()[0].name: pixels[None]})[0][0]
                found = found[found[:, 1] > SCORE]
                boxes = suppress(found[:, 2:6] * [width, height, width, height], found[:, 1])
                out.write(json.dumps([[round(float(v), 2) for v in box] for box in boxes]) + "\n")


main()
