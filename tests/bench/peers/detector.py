"""A detector program without roiflow: OpenCV reads and resizes, OpenVINO infers in an AsyncInferQueue. Prints JSON lines.

    detector.py VIDEO --model MODEL --size 256 --threads 2      for SSD outputs [1, 1, N, 7]; used by scripts/compare-pipelines

Prints a line as soon as the results of its frame are available.
"""

import argparse
import json
import sys

import cv2
import numpy as np
import openvino as ov

parser = argparse.ArgumentParser()
parser.add_argument("video")
parser.add_argument("--model", required=True)
parser.add_argument("--size", type=int, required=True)
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--threshold", type=float, default=0.5)
args = parser.parse_args()

cv2.setNumThreads(1)
config = {"INFERENCE_NUM_THREADS": args.threads, "PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}
queue = ov.AsyncInferQueue(ov.Core().compile_model(args.model, "CPU", config), args.threads)


def write(request, frame_idx):
    rows = request.get_output_tensor(0).data.reshape(-1, 7)
    objects = [[round(float(number), 4) for number in row[2:]] for row in rows if row[2] > args.threshold]
    sys.stdout.write(json.dumps({"frame": frame_idx, "objects": objects}) + "\n")
    sys.stdout.flush()


queue.set_callback(write)
capture, frame_idx = cv2.VideoCapture(args.video), 0
while True:
    is_read, frame = capture.read()
    if not is_read:
        break
    planes = cv2.resize(frame, (args.size, args.size)).transpose(2, 0, 1)[None]
    queue.start_async([np.ascontiguousarray(planes, dtype=np.float32)], frame_idx)
    frame_idx += 1
queue.wait_all()
