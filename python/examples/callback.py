"""A callback that starts the next run of its request: `python callback.py MODEL`."""

import sys
import threading

import numpy as np

import roiflow as ov

N_RUNS = 10

compiled = ov.Core().compile_model(sys.argv[1])
request = compiled.create_infer_request()
image = np.zeros(list(compiled.input(0).shape), np.float32)
finished = threading.Event()


def ended(number: int) -> None:
    print("run", number, request.get_output_tensor(0).data.mean())
    if number < N_RUNS:
        request.start_async({0: image + number}, number + 1)
    else:
        finished.set()


request.set_callback(ended, 1)
request.start_async({0: image})
finished.wait()
request.wait()
