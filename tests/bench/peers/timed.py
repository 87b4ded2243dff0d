"""Runs a Python program that reads a video with OpenCV and writes a line of JSON a frame, unchanged, and notes when.

    timed.py PROGRAM VIDEO OUT [ARGUMENT...]      fps from TIMED_FPS: frames come as from a camera; else as fast as they are read

A frame arrives when `cv2.VideoCapture.read` returns it, and its result is there when its line is given to the file: what then
waits in the file's buffer is not counted against the program. Used by scripts/compare-pipelines, which reads the last line of
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
    """`cv2.VideoCapture` with a note of when each frame came."""

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
