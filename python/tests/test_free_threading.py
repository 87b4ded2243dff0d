"""Threads that use the package at the same time, without Python locks.

The tests can also run on free-threaded CPython. It has no package `onnx`, so the tests use model files of the project.
"""

import pathlib
import sys
import sysconfig
import threading

import numpy as np
import pytest

from api import IS_OPENVINO, ov

pytestmark = pytest.mark.skipif(IS_OPENVINO, reason="what roiflow does better")

TINY = pathlib.Path(__file__).resolve().parents[2] / "assets" / "tiny"
N_THREADS = 8


def in_threads(body):
    """Runs `body(thread_idx)` in several threads, which begin together. Raises the first error of a thread."""
    begin, errors = threading.Barrier(N_THREADS), []

    def run(thread_idx):
        try:
            begin.wait()
            body(thread_idx)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(thread_idx,)) for thread_idx in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.fixture(scope="module")
def double():
    """x [1, 4] -> 2 x"""
    return ov.Core().compile_model(TINY / "double.onnx", "CPU")


def test_the_import_does_not_switch_the_lock_of_the_interpreter_on():
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this CPython always has the lock")
    assert not sys._is_gil_enabled()


def test_threads_call_one_compiled_model(double):
    def call(thread_idx):
        for run in range(200):
            x = np.full((1, 4), thread_idx * 1000 + run, np.float32)
            assert np.array_equal(double(x)[0], 2 * x)

    in_threads(call)


def test_threads_have_their_own_requests(double):
    def run(thread_idx):
        request = double.create_infer_request()
        x = np.full((1, 4), thread_idx, np.float32)
        for _ in range(200):
            request.start_async({0: x}, share_inputs=True)
            request.wait()
            assert np.array_equal(request.get_output_tensor().data, 2 * x)

    in_threads(run)


def test_a_request_that_threads_share_is_busy_or_gives_the_result_of_a_run(double):
    request = double.create_infer_request()
    n_done = []

    def run(thread_idx):
        for _ in range(200):
            try:
                result = request.infer(np.full((1, 4), thread_idx, np.float32))[0]
            except ov.Busy:
                continue
            assert np.array_equal(result, np.full((1, 4), 2 * thread_idx, np.float32))
            n_done.append(1)

    in_threads(run)
    assert n_done


def test_threads_push_jobs_into_one_queue(double):
    jobs, results = ov.AsyncInferQueue(double, 4), {}
    jobs.set_callback(lambda request, job: results.__setitem__(job, request.get_output_tensor().data[0, 0].item()))

    def push(thread_idx):
        for run in range(100):
            job = thread_idx * 100 + run
            jobs.start_async(np.full((1, 4), job, np.float32), job)

    in_threads(push)
    jobs.wait_all()
    assert results == {job: 2.0 * job for job in range(N_THREADS * 100)}


def test_threads_detect_with_one_model():
    detector = ov.load(TINY / "rectangle.onnx", device="CPU", color="rgb")
    image = np.zeros((64, 64, 3), np.uint8)
    image[8:24, 16:40] = (255, 0, 0)
    expected = detector(image).boxes.xyxy
    assert len(expected) == 1

    def detect(_thread_idx):
        for _ in range(20):
            assert np.array_equal(detector(image).boxes.xyxy, expected)

    in_threads(detect)
