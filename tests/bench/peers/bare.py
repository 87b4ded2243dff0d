"""The bare engine calls: a lower bound for every program that uses the engine. Used by scripts/compare-pipelines.

Reads one JSON object from standard input:
  - `library` (OpenVINO's C library), `n_threads`;
  - `detector` and `classifiers`: each has `model`, `shape`, and `range` of the input values;
  - `frames`: for each frame of the clip, a list with the number of rows for each classifier. The rows run in one call if the model's
    batch size is dynamic, otherwise one by one.
Inputs are set once, and results are not copied. There are as many threads as cores, and each takes the next frame. Each thread has
separate requests, which use one thread and f32, as in roiflow. Prints one JSON object: CPU and wall time of all frames, and the
overhead of Python's calls into the library.

Uses only the standard library, because the work of this process besides the engine must be small. This work is measured and subtracted.
"""

import array
import ctypes
import itertools
import json
import random
import sys
import threading
import time

F32 = 4  # the value of F32 in OpenVINO's ov_element_type_e since 2025.1


class Shape(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_int64), ("dims", ctypes.POINTER(ctypes.c_int64))]


class Dimension(ctypes.Structure):
    _fields_ = [("min", ctypes.c_int64), ("max", ctypes.c_int64)]


class PartialShape(ctypes.Structure):
    _fields_ = [("rank", Dimension), ("dims", ctypes.POINTER(Dimension))]


class Engine:
    """OpenVINO on the CPU, through its C API."""

    def __init__(self, library, n_threads):
        self.library = ctypes.CDLL(library)
        # `ov_shape_t` is passed by value; everything else is a pointer or a number.
        self.library.ov_tensor_create_from_host_ptr.argtypes = [ctypes.c_int, Shape, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
        for function in ("ov_infer_request_infer", "ov_infer_request_set_input_tensor_by_index"):
            getattr(self.library, function).argtypes = None
        self.core = self.made("ov_core_create")
        self.properties = {
            "PERFORMANCE_HINT": "THROUGHPUT",
            "INFERENCE_PRECISION_HINT": "f32",
            "NUM_STREAMS": n_threads,
            "INFERENCE_NUM_THREADS": n_threads,
            "ENABLE_CPU_PINNING": "NO",
        }

    def call(self, function, *arguments):
        status = getattr(self.library, function)(*arguments)
        if status != 0:
            raise SystemExit(f"{function}: expected status 0, got {status}")

    def made(self, function, *arguments):
        place = ctypes.c_void_p()
        self.call(function, *arguments, ctypes.byref(place))
        return place

    def compiled(self, path, shape, is_batched):
        model = self.made("ov_core_read_model", self.core, path.encode(), None)
        if not is_batched:
            dims = (Dimension * len(shape))(*(Dimension(extent, extent) for extent in shape))
            partial = PartialShape(Dimension(len(shape), len(shape)), dims)
            index = ctypes.c_size_t(0)
            self.call("ov_model_reshape_by_port_indexes", model, ctypes.byref(index), ctypes.byref(partial), ctypes.c_size_t(1))
        compiled = ctypes.c_void_p()
        texts = [ctypes.c_char_p(str(text).encode()) for pair in self.properties.items() for text in pair]
        self.call("ov_core_compile_model", self.core, model, b"CPU", ctypes.c_size_t(len(texts)), ctypes.byref(compiled), *texts)
        return compiled

    def tensor(self, shape, numbers):
        dims = (ctypes.c_int64 * len(shape))(*shape)
        address, _ = numbers.buffer_info()
        return self.made("ov_tensor_create_from_host_ptr", F32, Shape(len(shape), dims), ctypes.c_void_p(address))


class Calls:
    """A model with a request per thread. `run(n)` of a request makes one call with n rows if the model has a dynamic batch, otherwise n
    calls."""

    def __init__(self, engine, model, n_rows_max):
        self.engine = engine
        self.is_batched = model.get("is_batched", False)
        shape = model["shape"]
        self.compiled = engine.compiled(model["model"], shape, self.is_batched)
        noise = random.Random(1)
        size = 1
        for extent in shape:
            size *= extent
        low, high = model["range"]
        n_rows = n_rows_max if self.is_batched else 1
        self.numbers = array.array("f", (noise.uniform(low, high) for _ in range(size))) * n_rows
        self.tensors = [None] + [engine.tensor([rows, *shape[1:]], self.numbers) for rows in range(1, n_rows + 1)]

    def request(self):
        request = self.engine.made("ov_compiled_model_create_infer_request", self.compiled)
        infer, set_input = self.engine.library.ov_infer_request_infer, self.engine.library.ov_infer_request_set_input_tensor_by_index
        tensors, first = self.tensors, ctypes.c_size_t(0)
        set_input(request, first, tensors[1])
        if self.is_batched:

            def run(n_rows):
                if n_rows:
                    set_input(request, first, tensors[n_rows])
                    if infer(request) != 0:
                        raise SystemExit("a bare call failed")
                return 2 if n_rows else 0

        else:

            def run(n_rows):
                for _ in range(n_rows):
                    if infer(request) != 0:
                        raise SystemExit("a bare call failed")
                return n_rows

        return run


def measured(makers, frames, n_threads):
    """Runs all frames. Returns CPU and wall time in seconds, and the number of calls into the library."""
    turns, n_calls = iter(frames), [0] * n_threads
    ready, go = threading.Barrier(n_threads + 1), threading.Event()

    def work(thread_idx):
        runs = [maker.request() for maker in makers]
        # Run each request once before the measurement, because the first run allocates memory.
        for run in runs:
            run(1)
        ready.wait()
        go.wait()
        count = 0
        for rows in turns:
            count += runs[0](1)
            for run, n_rows in zip(runs[1:], rows):
                count += run(n_rows)
        n_calls[thread_idx] = count

    threads = [threading.Thread(target=work, args=(thread_idx,)) for thread_idx in range(n_threads)]
    [thread.start() for thread in threads]
    ready.wait()
    wall, cpu = time.perf_counter(), time.process_time()
    go.set()
    [thread.join() for thread in threads]
    return time.process_time() - cpu, time.perf_counter() - wall, sum(n_calls)


def cost_of_a_call(engine):
    """Returns the time in seconds that Python needs to call a trivial function of the library."""
    function, n_calls = engine.library.ov_get_error_info, 20_000
    function.argtypes = None
    begin = time.process_time()
    for _ in itertools.repeat(None, n_calls):
        function(0)
    return (time.process_time() - begin) / n_calls


def main():
    asked = json.load(sys.stdin)
    # ctypes releases Python's lock during a call, so the calls of the threads run in parallel.
    engine = Engine(asked["library"], asked["n_threads"])
    n_rows_max = max((rows for frame in asked["frames"] for rows in frame), default=1) or 1
    makers = [Calls(engine, model, n_rows_max) for model in [asked["detector"], *asked["classifiers"]]]
    cpu, wall, n_calls = measured(makers, asked["frames"], asked["n_threads"])
    of_python = n_calls * cost_of_a_call(engine)
    print(json.dumps({"cpu_s": cpu - of_python, "wall_s": wall, "n_calls": n_calls, "python_s": of_python}))


main()
