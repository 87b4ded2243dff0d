"""Detects objects in a video that OpenCV reads, counts them, and draws them into a new video. A classifier adds attributes.

`python video.py VIDEO MODEL [CLASSIFIER] [--out OUT.mp4]`. Needs opencv-python or opencv-python-headless.
"""

import argparse
import collections
import time

import cv2

import roiflow

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("video")
parser.add_argument("model")
parser.add_argument("classifier", nargs="?")
parser.add_argument("--out")
args = parser.parse_args()

capture = cv2.VideoCapture(args.video)
if not capture.isOpened():
    raise SystemExit(f"cannot open {args.video}")


def frames():
    """Yield the frames of the video as BGR arrays. `read` returns a new array for each frame, so the frames need not be copied."""
    while True:
        is_read, frame = capture.read()
        if not is_read:
            return
        yield frame


# Streams take frames ahead, so that OpenCV decodes while models run. The stream of the classifier takes the pairs of frame and results
# that the stream of the detector yields.
pairs = roiflow.load(args.model).stream(frames())
if args.classifier:
    pairs = roiflow.load(args.classifier).stream(pairs)

writer, labels, n_frames, begin = None, collections.Counter(), 0, time.perf_counter()
for frame, results in pairs:
    n_frames += 1
    labels.update(results.boxes.labels)
    if args.out:
        if writer is None:
            height, width = frame.shape[:2]
            rate = capture.get(cv2.CAP_PROP_FPS) or 25
            writer = cv2.VideoWriter(args.out, cv2.VideoWriter_fourcc(*"mp4v"), rate, (width, height))
        writer.write(results.plot(frame))
if writer is not None:
    writer.release()
print(f"{n_frames} frames, {n_frames / (time.perf_counter() - begin):.0f} per second, {dict(labels)}")
