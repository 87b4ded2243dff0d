"""A model of Triton that doubles its input, for tests of the device REMOTE.

While the file that the environment variable HOLD names exists, calls wait. ENVIRONMENT names the virtual environment with NumPy.
"""

import os
import sys
import time

import triton_python_backend_utils as triton

# Another NumPy would hide that a machine without one cannot load this model.
assert os.path.samefile(sys.prefix, os.environ["ENVIRONMENT"]), f"expected the environment {os.environ['ENVIRONMENT']}, got {sys.prefix}"


class TritonPythonModel:
    def execute(self, requests):
        while os.path.exists(os.environ["HOLD"]):
            time.sleep(0.01)
        inputs = [triton.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [triton.InferenceResponse([triton.Tensor("y", 2 * values)]) for values in inputs]
