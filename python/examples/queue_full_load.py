"""Keeps the device busy with an `AsyncInferQueue`, and prints runs per second: `python queue_full_load.py MODEL [SECONDS]`."""

import sys
import time

import numpy as np

import roiflow as ov

seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 5.0
compiled = ov.Core().compile_model(sys.argv[1], config={"PERFORMANCE_HINT": "THROUGHPUT"})
queue = ov.AsyncInferQueue(compiled)
image = np.zeros(list(compiled.input(0).shape), np.float32)
done = []
queue.set_callback(lambda request, number: done.append(request.latency))
began = time.perf_counter()
while time.perf_counter() - began < seconds:
    queue.start_async({0: image}, len(done), share_inputs=True)
queue.wait_all()
took = time.perf_counter() - began
print(f"{len(queue)} requests, {len(done) / took:.0f} runs per second, median {np.median(done):.2f} ms")
