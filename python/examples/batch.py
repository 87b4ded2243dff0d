"""Runs several arrays as one batch, without copying them into one array first: `python batch.py MODEL`.

The first axis of the model's input is the batch.
"""

import sys

import numpy as np

import roiflow as ov

N_IMAGES = 4

core = ov.Core()
model = core.read_model(sys.argv[1])
model.reshape([N_IMAGES, *list(model.input(0).partial_shape)[1:]])
compiled = core.compile_model(model)
request = compiled.create_infer_request()
one = [1, *list(compiled.input(0).shape)[1:]]
images = [ov.Tensor(np.full(one, number, np.float32)) for number in range(N_IMAGES)]
request.set_input_tensors(0, images)
request.infer()
print(request.get_output_tensor(0).data.shape)
