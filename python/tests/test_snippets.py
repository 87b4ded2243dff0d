"""Documented programs: the README, the pages of the book, the examples, and the snippets of OpenVINO's documentation."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import models
from api import IS_OPENVINO, ConstOutput, compile, core, f32, ov
from vision import ROOT, TINY, scene

pytestmark = pytest.mark.skipif(IS_OPENVINO, reason="programs that import roiflow")


def blocks(page):
    text = (ROOT / page).read_text()
    return "\n".join(part.split("```")[0] for part in text.split("```python\n")[1:])


def run(text, folder):
    cv2 = pytest.importorskip("cv2")
    (folder / "model.onnx").write_bytes(pathlib.Path(models.relu()).read_bytes())
    for name, source in (("yolo11n.onnx", "ultralytics.onnx"), ("color.onnx", "color.onnx"), ("color.toml", "color.toml")):
        (folder / name).write_bytes((TINY / source).read_bytes())
    cv2.imwrite(str(folder / "street.jpg"), scene((200, 150, 450, 350), size=(640, 480)))
    return subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("page", ["README.md", "python/README.md", "docs/python.md", "docs/tutorials/python.md"])
def test_the_snippets_of_a_page_run_one_after_the_other(page, tmp_path):
    done = run(blocks(page), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["single_image", "batch", "queue_full_load", "callback"])
def test_an_example_runs(name):
    model = models.open_batch() if name == "batch" else models.relu()
    command = [sys.executable, str(ROOT / "python" / "examples" / f"{name}.py"), model]
    done = subprocess.run([*command, "0.3"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and done.stdout, done.stderr


def run_example(name, *arguments):
    command = [sys.executable, str(ROOT / "python" / "examples" / f"{name}.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0 and done.stdout, done.stderr
    return done.stdout


def test_the_example_of_one_image_draws_and_prints_it(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.fromarray(scene()).save(tmp_path / "in.png")
    said = run_example("image", TINY / "rectangle.onnx", tmp_path / "in.png", tmp_path / "out.png", "--classify", TINY / "color.onnx")
    assert "rectangle 1.00 [16, 8, 40, 24] {'color': 'red'}" in said and '"label":"red"' in said
    assert image.open(tmp_path / "out.png").size == (64, 64)


def test_the_example_of_a_folder_prints_a_line_for_each_image(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for n in range(5):
        image.fromarray(scene((n, 8, 30, 24))).save(tmp_path / f"{n}.png")
    lines = [json.loads(line) for line in run_example("folder", TINY / "rectangle.onnx", tmp_path).splitlines()]
    assert [(line["source"], line["objects"][0]["x"]) for line in lines] == [(f"{n}.png", n) for n in range(5)]


def test_the_example_of_a_video_writes_a_video(tmp_path):
    cv2 = pytest.importorskip("cv2")
    writer = cv2.VideoWriter(str(tmp_path / "in.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 25, (320, 240))
    for n in range(30):
        writer.write(scene((10 + n, 40, 200, 160), (0, 0, 255), (320, 240)))
    writer.release()
    said = run_example("video", tmp_path / "in.avi", TINY / "rectangle.onnx", TINY / "color.onnx", "--out", tmp_path / "out.mp4")
    assert "30 frames" in said and "'rectangle': 30" in said
    assert cv2.VideoCapture(str(tmp_path / "out.mp4")).read()[0]


def test_the_example_of_full_load_keeps_images_in_flight():
    assert "per second" in run_example("full_load", TINY / "rectangle.onnx", 0.3)


def test_the_example_of_an_own_decoder_finds_the_rectangle():
    assert "<Detection: rectangle 1.00 at [80.0, 60.0, 200.0, 120.0]>" in run_example("own_decoder")


def test_the_command_lists_the_devices():
    done = subprocess.run([sys.executable, "-m", "roiflow"], capture_output=True, text=True, timeout=100, cwd=os.path.dirname(__file__))
    assert done.returncode == 0 and "CPU" in done.stdout, done.stderr


def test_snippets_of_the_inference_request_page():
    # from OpenVINO's page "Inference Request". The snippets are unchanged, except for the definition of `compiled_model` and code for omitted parts.
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
    # from OpenVINO's page "Python API Advanced Inference". The snippets are unchanged.
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
    # from OpenVINO's class reference of InferRequest
    names = """_is_single_input cancel get_compiled_model get_input_tensor get_output_tensor get_profiling_info get_tensor infer query_state
        reset_state set_callback set_input_tensor set_input_tensors set_output_tensor set_output_tensors set_tensor set_tensors start_async wait
        wait_for input_tensors inputs latency model_inputs model_outputs output_tensors outputs profiling_info results userdata"""
    assert [name for name in names.split() if not hasattr(ov.InferRequest, name)] == []


def test_the_package_is_found_under_the_path_of_older_programs():
    from roiflow.runtime import AsyncInferQueue, Core  # noqa: PLC0415

    assert Core is ov.Core and AsyncInferQueue is ov.AsyncInferQueue
    assert core().compile_model(models.relu()).input().__class__ is ConstOutput
