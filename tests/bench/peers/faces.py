"""A program for faces, gender and age without roiflow: OpenCV and OpenVINO's own Python package, with its queues.

    faces.py VIDEO OUT.jsonl --models FOLDER [--threads N]

Asynchronous with simple means of the package: a request queue for the detector and for each classifier. Callbacks decode, and one
call infers all faces of a frame. Used by scripts/compare-pipelines, in f32 and on as many threads as roiflow.
"""

import argparse
import json
import os

import cv2
import numpy as np
import openvino as ov

parser = argparse.ArgumentParser()
parser.add_argument("video")
parser.add_argument("out")
parser.add_argument("--models", required=True)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--classifiers", default="gender,age")
args = parser.parse_args()

cv2.setNumThreads(1)
core = ov.Core()
config = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": args.threads}
MEAN = np.float32([122.782, 117.001, 104.298])
AGES = np.float32([0.25, *range(1, 81)])


def compiled(name, shape):
    model = core.read_model(os.path.join(args.models, name))
    model.reshape(shape)
    return core.compile_model(model, "CPU", config)


SIZES = {"gender": 32, "age": 64}
wanted = args.classifiers.split(",")
detector = ov.AsyncInferQueue(compiled("ultraface_rfb_320_nhwc.onnx", [1, 240, 320, 3]), args.threads)
queues = {name: ov.AsyncInferQueue(compiled(f"{name}-v1.onnx", [-1, 3, SIZES[name], SIZES[name]]), args.threads) for name in wanted}


def prepared(frame):
    picture = cv2.cvtColor(cv2.resize(frame, (320, 240)), cv2.COLOR_BGR2RGB)
    return ((picture.astype(np.float32) - 127) / 128)[None]


def faces(output, width, height):
    rows = output[0]
    rows = rows[rows[:, 1] > 0.7]
    corners = rows[:, 2:6] * np.float32([width, height, width, height])
    sizes = np.concatenate((corners[:, :2], corners[:, 2:] - corners[:, :2]), 1)
    kept = cv2.dnn.NMSBoxes(sizes.tolist(), rows[:, 1].tolist(), 0.7, 0.3)
    return [([float(side) for side in corners[idx]], float(rows[idx, 1])) for idx in np.array(kept).flatten()]


def chips(frame, boxes, size):
    height, width = frame.shape[:2]
    rows = np.empty((len(boxes), size, size, 3), np.float32)
    for row, ((x1, y1, x2, y2), _) in zip(rows, boxes):
        x1, y1 = min(max(int(x1), 0), width - 1), min(max(int(y1), 0), height - 1)
        crop = frame[y1 : max(int(y2), y1 + 1), x1 : max(int(x2), x1 + 1)]
        row[:] = cv2.cvtColor(cv2.resize(crop, (size, size)), cv2.COLOR_BGR2RGB)
    return np.ascontiguousarray(((rows - MEAN) / 256).transpose(0, 3, 1, 2))


def said(name, output):
    if name == "age":
        return [round(float(row @ AGES), 2) for row in output]
    return [["female", "male"][int(row.argmax())] for row in output]


detected, classified, out = {}, {}, open(args.out, "w")


def on_detected(request, job):
    number, frame = job
    detected[number] = (faces(request.get_output_tensor(0).data, frame.shape[1], frame.shape[0]), frame)


def on_classified(name):
    def call(request, number):
        classified[number][name] = said(name, request.get_output_tensor(0).data)

    return call


detector.set_callback(on_detected)
for name, queue in queues.items():
    queue.set_callback(on_classified(name))
waiting, n_next = {}, 0


def drain():
    """Passes detected frames to the classifiers, in order, and writes completed frames."""
    global n_next
    while n_next in detected:
        boxes, frame = detected.pop(n_next)
        waiting[n_next], classified[n_next] = boxes, {}
        for name, queue in queues.items():
            if boxes:
                queue.start_async([chips(frame, boxes, SIZES[name])], n_next)
            else:
                classified[n_next][name] = []
        n_next += 1
    for number in list(waiting):
        if len(classified[number]) < len(queues):
            break
        boxes, labels = waiting.pop(number), classified.pop(number)
        objects = [
            {"box": [round(side, 1) for side in box], "confidence": round(score, 4), **{name: labels[name][idx] for name in queues}}
            for idx, (box, score) in enumerate(boxes)
        ]
        out.write(json.dumps({"frame": number, "objects": objects}) + "\n")


capture, n_frames = cv2.VideoCapture(args.video), 0
while True:
    is_there, frame = capture.read()
    if not is_there:
        break
    detector.start_async([prepared(frame)], (n_frames, frame))
    n_frames += 1
    drain()
detector.wait_all()
drain()
for queue in queues.values():
    queue.wait_all()
drain()
out.close()
