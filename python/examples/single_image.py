"""Runs a model once with an inference request: `python single_image.py MODEL`."""

import sys

import numpy as np

import roiflow as ov

compiled = ov.Core().compile_model(sys.argv[1])
request = compiled.create_infer_request()
image = np.random.default_rng(0).random(list(compiled.input(0).shape)).astype(np.float32)
results = request.infer({0: image}, share_inputs=True)
for port, values in results.items():
    print(port.any_name, values.shape, f"{request.latency:.2f} ms")
