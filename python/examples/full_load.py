"""Keeps the device busy with a queue of images, and prints images per second: `python full_load.py MODEL [SECONDS]`."""

import collections
import sys
import time

import numpy as np

import roiflow

seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 5.0
model = roiflow.load(sys.argv[1], performance="throughput")
image = np.random.default_rng(0).integers(0, 256, (720, 1280, 3), np.uint8)
model(image)  # The first run is slower.

pending: collections.deque[roiflow.Pending] = collections.deque()
n_images, begin = 0, time.perf_counter()
while time.perf_counter() - begin < seconds or pending:
    # `submit` returns at once. Keep a few images in flight, and take the oldest results.
    while len(pending) < 8 and time.perf_counter() - begin < seconds:
        pending.append(model.submit(image))
        n_images += 1
    pending.popleft().result()
took = time.perf_counter() - begin
print(f"{model.device}: {n_images} images, {n_images / took:.0f} per second")
