"""Typical errors of bindings, for models that take images: memory, signals, the end of the process. One test per hazard."""

import gc
import os
import threading
import weakref

import numpy as np
import pytest

from api import IS_OPENVINO, ov
from test_hazards import program
from vision import TINY, load, scene, slow

pytestmark = pytest.mark.skipif(IS_OPENVINO, reason="roiflow alone has models that take images")

RECTANGLE = f"""
import sys, threading, time, numpy as np, roiflow
model = roiflow.load({str(TINY / "rectangle.onnx")!r}, device="CPU")
image = np.zeros((2000, 3000, 3), np.uint8)
"""


def test_a_program_may_end_while_images_run():
    done = program(RECTANGLE + "pending = [model.submit(image) for _ in range(50)]\nsys.exit(7)\n")
    assert done.returncode == 7, done.stderr


def test_a_program_may_end_while_threads_call_a_model():
    done = program(RECTANGLE + """
def call():
    while True:
        model(image)
for _ in range(4):
    threading.Thread(target=call, daemon=True).start()
time.sleep(0.3)
sys.exit(7)
""")
    assert done.returncode == 7, done.stderr


def test_a_program_may_end_while_decoders_run():
    done = program(f"""
import sys, time, numpy as np, roiflow
roiflow.register_decoder("slow", lambda outputs, size: time.sleep(0.05))
output = {{"decoder": "slow", "threshold": 0.5}}
model = roiflow.load({str(TINY / "rectangle.onnx")!r}, device="CPU",
    description={{"task": "detection", "input": {{"layout": "nhwc"}}, "output": output}})
pending = [model.submit(np.zeros((64, 64, 3), np.uint8)) for _ in range(50)]
time.sleep(0.1)
sys.exit(7)
""")
    assert done.returncode == 7, done.stderr


def test_an_interrupt_ends_a_wait():
    done = program("""
import os, signal, threading, time
import numpy as np
from vision import slow
model = slow("interrupted", 1500)
image = np.zeros((8, 8), np.uint8)
begin = time.monotonic()
model(image)
one = time.monotonic() - begin
threading.Timer(one / 4, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begin = time.monotonic()
try:
    model([image] * 200)
except KeyboardInterrupt:
    print("interrupted", one, time.monotonic() - begin)
""")
    word, one, seconds = done.stdout.split()
    # All images take at least 200 / n_cores times as long as one. A run that is canceled ends after its present operator.
    assert word == "interrupted" and float(seconds) < 100 / os.cpu_count() * float(one), done.stdout + done.stderr


def test_a_run_outlives_its_model():
    model = load("rectangle")
    pending = [model.submit(scene((n, 8, 40, 24))) for n in range(10)]
    del model
    gc.collect()
    assert [of.result().boxes.xyxy[0, 0] for of in pending] == list(range(10))


def test_results_outlive_the_model_and_the_image():
    results = load("rectangle")(scene())
    gc.collect()
    boxes, found = results.boxes, results[0]
    del results
    gc.collect()
    assert boxes.xyxy.tolist() == [[16, 8, 40, 24]] and found.label == "rectangle"


def test_arrays_of_results_belong_to_the_caller():
    results = load("rectangle")(scene())
    results.boxes.xyxy[:] = 0
    assert results.to_dict()["objects"][0]["x"] == 16


def test_an_array_of_a_failed_run_is_released():
    class Watched(np.ndarray):
        pass

    model = load("fragile")
    image = np.full((8, 8, 3), 255, np.uint8).view(Watched)
    gone = weakref.ref(image)
    with pytest.raises(ov.Error):
        model(image)
    del image
    load("color")(scene())
    gc.collect()
    assert gone() is None


def test_a_pending_run_that_is_dropped_does_not_run():
    model = slow("dropped", 100, performance="throughput", config={"requests": 1})
    image = np.zeros((8, 8), np.uint8)
    first = model.submit(image)
    for _ in range(1000):
        model.submit(image)
    last = model.submit(image)
    assert first.result() is not None and last.result(timeout=20) is not None


def test_models_are_loaded_and_dropped_by_many_threads():
    wrong = []

    def call():
        for _ in range(5):
            if len(load("rectangle")([scene()] * 3)) != 3:
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
