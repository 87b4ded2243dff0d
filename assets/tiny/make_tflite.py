"""Writes double.tflite: `x` [1, 4] f32, `y` [1, 4] = x + x. Run in this folder:

    pip install tflite==2.18.0 flatbuffers==25.12.19
    python3 make_tflite.py
"""

import importlib
import pathlib

import flatbuffers
import tflite

# The package exports classes under the names of its modules.
AddOptions, Buffer, Model, Operator, OperatorCode, SubGraph, Tensor = (
    importlib.import_module(f"tflite.{name}")
    for name in ("AddOptions", "Buffer", "Model", "Operator", "OperatorCode", "SubGraph", "Tensor")
)


def offsets(builder, start, values):
    start(builder, len(values))
    for value in reversed(values):
        builder.PrependUOffsetTRelative(value)
    return builder.EndVector()


def numbers(builder, start, values):
    start(builder, len(values))
    for value in reversed(values):
        builder.PrependInt32(value)
    return builder.EndVector()


builder = flatbuffers.Builder(1024)


def tensor(name):
    text = builder.CreateString(name)
    shape = numbers(builder, Tensor.StartShapeVector, [1, 4])
    Tensor.Start(builder)
    Tensor.AddShape(builder, shape)
    Tensor.AddType(builder, tflite.TensorType.FLOAT32)
    # Buffer 0 is empty: the tensor is computed.
    Tensor.AddBuffer(builder, 0)
    Tensor.AddName(builder, text)
    return Tensor.End(builder)


AddOptions.Start(builder)
options = AddOptions.End(builder)
operator_inputs = numbers(builder, Operator.StartInputsVector, [0, 0])
operator_outputs = numbers(builder, Operator.StartOutputsVector, [1])
Operator.Start(builder)
Operator.AddOpcodeIndex(builder, 0)
Operator.AddInputs(builder, operator_inputs)
Operator.AddOutputs(builder, operator_outputs)
Operator.AddBuiltinOptionsType(builder, tflite.BuiltinOptions.AddOptions)
Operator.AddBuiltinOptions(builder, options)
operator = Operator.End(builder)

tensors = offsets(builder, SubGraph.StartTensorsVector, [tensor("x"), tensor("y")])
graph_inputs = numbers(builder, SubGraph.StartInputsVector, [0])
graph_outputs = numbers(builder, SubGraph.StartOutputsVector, [1])
operators = offsets(builder, SubGraph.StartOperatorsVector, [operator])
SubGraph.Start(builder)
SubGraph.AddTensors(builder, tensors)
SubGraph.AddInputs(builder, graph_inputs)
SubGraph.AddOutputs(builder, graph_outputs)
SubGraph.AddOperators(builder, operators)
graph = SubGraph.End(builder)

OperatorCode.Start(builder)
OperatorCode.AddDeprecatedBuiltinCode(builder, tflite.BuiltinOperator.ADD)
OperatorCode.AddBuiltinCode(builder, tflite.BuiltinOperator.ADD)
OperatorCode.AddVersion(builder, 1)
code = OperatorCode.End(builder)
Buffer.Start(builder)
buffer = Buffer.End(builder)

codes = offsets(builder, Model.StartOperatorCodesVector, [code])
graphs = offsets(builder, Model.StartSubgraphsVector, [graph])
buffers = offsets(builder, Model.StartBuffersVector, [buffer])
Model.Start(builder)
Model.AddVersion(builder, 3)
Model.AddOperatorCodes(builder, codes)
Model.AddSubgraphs(builder, graphs)
Model.AddBuffers(builder, buffers)
builder.Finish(Model.End(builder), file_identifier=b"TFL3")
(pathlib.Path(__file__).resolve().parent / "double.tflite").write_bytes(builder.Output())
