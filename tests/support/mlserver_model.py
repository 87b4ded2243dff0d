"""A model of MLServer that ONNX Runtime computes, for tests of the device REMOTE.

While the file `hold` is next to the model, calls wait.
"""

import asyncio
import os

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse, MetadataTensor

TYPES = {"tensor(float)": "FP32", "tensor(uint8)": "UINT8"}


def ports(nodes):
    def shape(node):
        return [extent if isinstance(extent, int) else -1 for extent in node.shape]

    return [MetadataTensor(name=node.name, datatype=TYPES[node.type], shape=shape(node)) for node in nodes]


class OnnxModel(MLModel):
    async def load(self):
        path = self.settings.parameters.uri
        self.hold = os.path.join(os.path.dirname(path), "hold")
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.inputs = ports(self.session.get_inputs())
        self.outputs = ports(self.session.get_outputs())
        return True

    async def predict(self, payload):
        while os.path.exists(self.hold):
            await asyncio.sleep(0.01)
        names = [node.name for node in self.session.get_outputs()]
        values = self.session.run(names, {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs})
        outputs = [NumpyCodec.encode_output(name, value) for name, value in zip(names, values)]
        return InferenceResponse(model_name=self.name, outputs=outputs)
