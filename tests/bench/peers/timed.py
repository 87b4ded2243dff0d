"""Runs an unchanged Python program that reads a video with OpenCV and writes a JSON line per frame. Records when each frame arrives and
when its line is written.

    timed.py PROGRAM VIDEO OUT [ARGUMENT...]      with TIMED_FPS, frames arrive at this rate; otherwise as fast as the program reads them

A frame arrives when `cv2.VideoCapture.read` returns it. Its result is complete when the program writes its line to the file, even
if the file's buffer still holds the line. Used by scripts/compare-pipelines, which reads the last line of
standard error: latencies, and for each line the monotonic and the processor time at which it was written.
"""

import json
import os
import runpy
import sys
import time

import cv2

RATE = float(os.environ.get("TIMED_FPS") or 0)
arrived, written = [], []


class Timed:
    """`cv2.VideoCapture` that records the arrival time of each frame."""

    opened = cv2.VideoCapture

    def __init__(self, *arguments):
        self.capture = Timed.opened(*arguments)
        self.begin = None

    def read(self):
        frame = self.capture.read()
        now = time.monotonic()
        if RATE and frame[0]:
            self.begin = self.begin or now
            due = self.begin + len(arrived) / RATE
            if due > now:
                time.sleep(due - now)
                now = time.monotonic()
        arrived.append(now)
        return frame

    def __getattr__(self, name):
        return getattr(self.capture, name)


dumped = json.dumps


def dumps(value, **options):
    text = dumped(value, **options)
    if "frame" in value:
        written.append((time.monotonic(), time.process_time()))
    return text


cv2.VideoCapture, json.dumps = Timed, dumps
program, sys.argv = sys.argv[1], sys.argv[1:]
runpy.run_path(program, run_name="__main__")
latencies = [line - frame for frame, (line, _) in zip(arrived, written)]
print(dumped({"latencies": latencies, "lines": written}), file=sys.stderr)
