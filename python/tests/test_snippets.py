"""Documented programs: the README, the pages of the book, the examples, and the snippets of OpenVINO's documentation."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import models
from api import IS_OPENVINO, ConstOutput, compile, core, f32, ov

ROOT = pathlib.Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(IS_OPENVINO, reason="programs that import roiflow")


def blocks(page):
    text = (ROOT / page).read_text()
    return "\n".join(part.split("```")[0] for part in text.split("```python\n")[1:])


def run(text, folder):
    (folder / "model.onnx").write_bytes(pathlib.Path(models.relu()).read_bytes())
    return subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("page", ["README.md", "python/README.md", "docs/python.md"])
def test_the_snippets_of_a_page_run_one_after_the_other(page, tmp_path):
    done = run(blocks(page), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["single_image", "batch", "queue_full_load", "callback"])
def test_an_example_runs(name):
    model = models.open_batch() if name == "batch" else models.relu()
    command = [sys.executable, str(ROOT / "python" / "examples" / f"{name}.py"), model]
    done = subprocess.run([*command, "0.3"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and done.stdout, done.stderr


def test_the_command_lists_the_devices():
    done = subprocess.run([sys.executable, "-m", "roiflow"], capture_output=True, text=True, timeout=100, cwd=os.path.dirname(__file__))
    assert done.returncode == 0 and "CPU" in done.stdout, done.stderr


def test_snippets_of_the_inference_request_page():
    # reference 000, unchanged except for `compiled_model` and code for omitted parts
    compiled_model = compile(models.region())
    infer_request = compiled_model.create_infer_request()
    infer_request1, infer_request2 = compiled_model.create_infer_request(), compiled_model.create_infer_request()
    infer_request1.infer(f32(1, 3, 4, 5))
    output = infer_request1.get_output_tensor(0)
    infer_request2.set_input_tensor(0, output)
    infer_request2.infer()
    input_tensor = ov.Tensor(type=ov.Type.f32, shape=ov.Shape([1, 3, 20, 20]))
    begin = [0, 0, 0, 0]
    end = [1, 2, 3, 3]
    roi_tensor = ov.Tensor(input_tensor, begin, end)
    assert list(roi_tensor.shape) == [1, 2, 3, 3]
    assert infer_request.get_compiled_model() is not None


def test_snippets_of_the_advanced_inference_page():
    # reference 003, unchanged
    path = models.save(
        "two_inputs",
        [models.node("Add", "input_0 input_1", "y")],
        [models.port("input_0", [1, 4]), models.port("input_1", [1, 4])],
        [models.port("y", [1, 4])],
    )
    compiled_model = compile(path)
    request = compiled_model.create_infer_request()
    data_0 = data_1 = data_2 = data_3 = f32(1, 4)
    results_0 = compiled_model({"input_0": data_0, "input_1": data_1})
    results_1 = compiled_model({"input_0": data_2, "input_1": data_3})
    _ = compiled_model({"input_0": data_0, "input_1": data_1}, share_inputs=True)
    _ = request.infer({"input_0": data_0, "input_1": data_1}, share_inputs=True)
    _ = request.infer({"input_0": data_0, "input_1": data_1}, share_outputs=True)
    _ = compiled_model({"input_0": data_0, "input_1": data_1}, share_inputs=False, share_outputs=True)
    results = request.infer({"input_0": data_0, "input_1": data_1})[0]
    request.start_async({"input_0": data_0, "input_1": data_1})
    request.wait()
    results = request.get_output_tensor(0).data  # Gather data "on demand" from InferRequest
    assert np.array_equal(results, 2 * data_0) and np.array_equal(results_0[0], results_1[0])


def test_every_name_of_the_request_page_is_there():
    # reference 002
    names = """_is_single_input cancel get_compiled_model get_input_tensor get_output_tensor get_profiling_info get_tensor infer query_state
        reset_state set_callback set_input_tensor set_input_tensors set_output_tensor set_output_tensors set_tensor set_tensors start_async wait
        wait_for input_tensors inputs latency model_inputs model_outputs output_tensors outputs profiling_info results userdata"""
    assert [name for name in names.split() if not hasattr(ov.InferRequest, name)] == []


def test_the_package_is_found_under_the_path_of_older_programs():
    from roiflow.runtime import AsyncInferQueue, Core  # noqa: PLC0415

    assert Core is ov.Core and AsyncInferQueue is ov.AsyncInferQueue
    assert core().compile_model(models.relu()).input().__class__ is ConstOutput
