"""Programs that once crashed or hung the process, lost memory, or got wrong results without an error."""

import gc
import pathlib
import re
import threading
import time
import weakref

import numpy as np
import pytest
from onnx import TensorProto

from api import IS_OPENVINO, f32, ov
from models import add, constant, node, port, relu, save, two_outputs_of_input
from test_hazards import program

pytestmark = pytest.mark.skipif(IS_OPENVINO, reason="what roiflow does better")


def compiled(path, device="CPU", **config):
    return ov.compile_model(path, device, config)


def engines():
    here = ov.Core().available_devices
    return ["CPU", *[device for device in ("ORT.CPU", "OPENVINO.CPU") if device in here], "AUTO"]


@pytest.mark.parametrize("device", engines())
def test_an_input_that_is_also_an_output_is_not_overwritten(device):
    model = compiled(two_outputs_of_input(), device)
    for sign in (1, -1):
        x = np.array([[3.0, -1.0, 0.5, -2.0]], np.float32) * sign
        before = x.copy()
        for share in (True, False):
            results = model(x, share_inputs=share)
            np.testing.assert_array_equal(results["y"], before)
            np.testing.assert_array_equal(results["r"], np.maximum(before, 0))
            np.testing.assert_array_equal(x, before)


def nested(depth):
    values = [1.0]
    for _ in range(depth):
        values = [values]
    return values


def test_lists_inside_lists_have_a_limit():
    model = compiled(relu())
    own = [1.0]
    own.append(own)
    for values in (own, nested(200_000), nested(9)):
        for infer in (model, model.create_infer_request().infer):
            with pytest.raises((TypeError, RuntimeError)):
                infer(values)
        with pytest.raises((TypeError, RuntimeError, ValueError, RecursionError)):
            ov.Tensor(values)
    with pytest.raises(TypeError, match="8 lists inside each other"):
        model(own)
    with pytest.raises((TypeError, RuntimeError)):
        model({"x": own})
    np.testing.assert_array_equal(model([[1.0, -2.0, 3.0, 4.0]])[0], [[1, 0, 3, 4]])


class Growing:
    """A key or value whose conversion adds entries to its dictionary."""

    def __init__(self, of):
        self.of = of

    def __array__(self, dtype=None, copy=None):
        for idx in range(100):
            self.of[f"more{idx}"] = f32(1, 4)
        return f32(1, 4)

    def __index__(self):
        self.__array__()
        return 0

    def __str__(self):
        self.__array__()
        return "PERF_COUNT"


def test_a_dictionary_that_changes_while_it_is_read_is_an_error():
    model = compiled(add())
    request = model.create_infer_request()
    given = {}
    given.update({"a": Growing(given), "b": f32(1, 4)})
    for call in (model, request.infer, request.start_async, ov.AsyncInferQueue(model, 1).start_async):
        given.clear()
        given.update({"a": Growing(given), "b": f32(1, 4)})
        with pytest.raises(RuntimeError, match="changed its size"):
            call(given)
    for call in (request.set_tensors, request.set_input_tensors, request.set_output_tensors):
        tensors = {}
        tensors.update({Growing(tensors): ov.Tensor(f32(1, 4)), 1: ov.Tensor(f32(1, 4))})
        with pytest.raises(RuntimeError):
            call(tensors)
    config = {}
    config.update({Growing(config): True})
    with pytest.raises(RuntimeError, match="changed its size"):
        ov.compile_model(relu(), "CPU", config)


def test_the_binding_has_no_panicking_paths():
    """A panic becomes a PanicException, which `except Exception` does not catch. The listed cases cannot fail."""
    sources = pathlib.Path(__file__).parents[1] / "src"
    if not sources.is_dir():
        pytest.skip("the sources are not here")
    allowed = [
        r"(lock|get_mut|wait|wait_while\(.*\)|wait_timeout_while\(.*\))\(?\)?\.unwrap\(\)",
        r'expect\("only the drop takes it"\)',
        r'expect\("a stage exists until it is dropped"\)',
        r'expect\("both forms end with it"\)',
        r'expect\("the array has the bytes of its shape"\)',
        r"const _: \(\) = assert!",
    ]
    panics = re.compile(r"\.unwrap\(\)|\.expect\(|\b(panic|unreachable|todo|unimplemented|assert|assert_eq)!|\bdict\.iter\(\)|PyDict.*\.iter\(\)")
    found = []
    for path in sorted(sources.glob("*.rs")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.split("//")[0]
            for pattern in allowed:
                code = re.sub(pattern, "", code)
            if panics.search(code):
                found.append(f"{path.name}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


def test_requests_and_queues_whose_callback_raised_are_freed():
    model = compiled(relu())

    def of_request():
        request = model.create_infer_request()

        def callback(_):
            held = request  # noqa: F841 - the traceback of the exception holds the frame with the request
            raise ValueError("raised")

        request.set_callback(callback, None)
        request.start_async(f32(1, 4))
        with pytest.raises(ValueError):
            request.wait()
        return weakref.ref(request)

    def of_queue():
        queue = ov.AsyncInferQueue(model, 2)

        def callback(request, userdata):
            held = queue, request  # noqa: F841
            raise ValueError("raised")

        queue.set_callback(callback)
        queue.start_async(f32(1, 4))
        while not queue.is_ready() or len([request for request in queue if request.latency == 0]) == 2:
            time.sleep(0)
        return weakref.ref(queue)

    for made in (of_request, of_queue):
        refs = [made() for _ in range(3)]
        for _ in range(3):
            gc.collect()
        assert [ref() for ref in refs] == [None] * 3, made


def test_a_signal_handler_may_use_the_other_requests_of_a_queue():
    done = program(
        """
        import signal, threading, os, time
        import numpy as np
        import roiflow as ov
        from models import slow
        model = ov.compile_model(slow(), "CPU")
        queue = ov.AsyncInferQueue(model, 2)
        x = np.ones(model.input().shape, np.float32)
        raised = []
        def handler(*_):
            try:
                raised.append(queue.get_idle_request_id())
                queue.start_async(x)
                queue.start_async(x)  # No request is idle: waits for the job above.
                raised.append("started")
                queue.wait_all()
            except ov.WouldDeadlock:
                raised.append("would deadlock")
        signal.signal(signal.SIGUSR1, handler)
        threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        begin = time.monotonic()
        while not raised and time.monotonic() - begin < 20:
            queue[0].infer(x)
        queue.wait_all()
        print(raised)
        """
    )
    assert done.returncode == 0, done.stderr
    assert "[1, 'started', 'would deadlock']" in done.stdout, done.stdout + done.stderr


def test_a_signal_handler_may_not_wait_for_the_run_that_it_interrupts():
    done = program(
        """
        import signal, threading, os, time
        import numpy as np
        import roiflow as ov
        from models import slow
        model = ov.compile_model(slow(), "CPU")
        request = model.create_infer_request()
        queue = ov.AsyncInferQueue(model, 1)
        x = np.ones(model.input().shape, np.float32)
        begin = time.monotonic(); request.infer(x); print("a run takes", time.monotonic() - begin)
        raised = []
        def handler(*_):
            for wait in (request.wait, lambda: request.wait_for(10_000), queue.wait_all):
                try:
                    wait(); raised.append("waited")
                except ov.WouldDeadlock as error:
                    raised.append("would deadlock")
        signal.signal(signal.SIGUSR1, handler)
        for infer in (request.infer, queue[0].infer):
            raised.clear()
            threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            begin = time.monotonic()
            while not raised and time.monotonic() - begin < 20:
                infer(x)
            print(raised)
        """
    )
    assert done.returncode == 0, done.stderr
    assert "['would deadlock', 'would deadlock', 'waited']" in done.stdout, done.stdout + done.stderr
    assert "['waited', 'waited', 'would deadlock']" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("ending, code", [("", 0), ("raise SystemExit(3)", 3), ("sys.exit(5)", 5), ("1 / 0", 1)])
@pytest.mark.parametrize("callback", ["while True: sum(range(1000))", "time.sleep(30)", "np.random.rand(4000, 4000) @ np.random.rand(4000, 4000)"])
def test_a_callback_that_computes_does_not_change_the_exit_code(callback, ending, code):
    if ending not in ("", "sys.exit(5)") and "sum" not in callback:
        pytest.skip("covered by another callback")
    begin = time.monotonic()
    done = program(
        f"""
        import sys, threading, time
        import numpy as np
        import roiflow as ov
        from models import relu
        request = ov.compile_model(relu(), "CPU").create_infer_request()
        called = threading.Event()
        def callback(_):
            called.set()
            while True:
                {callback}
        request.set_callback(callback, None)
        request.start_async(np.ones((1, 4), np.float32))
        called.wait()
        print("begun", flush=True)
        {ending}
        """
    )
    assert (done.returncode, "begun" in done.stdout) == (code, True), (done.returncode, done.stderr)
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("device", engines())
def test_a_forked_child_exits_normally(device):
    done = program(
        f"""
        import os, sys
        import numpy as np
        import roiflow as ov
        from models import relu
        model = ov.compile_model(relu(), "{device}")
        request = model.create_infer_request()
        request.start_async(np.ones((1, 4), np.float32)); request.wait()
        children = []
        for code in (0, 7):
            child = os.fork()
            if child == 0:
                print("child", flush=True)
                sys.exit(code)
            children.append(child)
        print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
        model(np.ones((1, 4), np.float32))
        """
    )
    assert done.returncode == 0, done.stderr
    assert "[0, 7]" in done.stdout and done.stdout.count("child") == 2, done.stdout + done.stderr


def gather():
    return save(
        "gather_indices",
        [node("Gather", "table i", "y")],
        [port("i", [1 << 16], TensorProto.INT64)],
        [port("y", [1 << 16])],
        [constant("table", np.arange(16, dtype=np.float32))],
    )


INDICES = {
    "array": "i = np.zeros(1 << 16, np.int64); infer = lambda: model(i)",
    "own tensor": "i = request.get_input_tensor().data; infer = request.infer",
    "given tensor": "t = ov.Tensor(np.int64, [1 << 16]); i = t.data; request.set_input_tensor(t); infer = request.infer",
}


@pytest.mark.parametrize("device", engines())
@pytest.mark.parametrize("given", INDICES)
def test_indices_may_be_written_while_a_run_reads_them(device, given):
    """Without a copy, this ends in a segmentation fault: the engine checks an index, and uses it later."""
    done = program(
        f"""
        import threading
        import numpy as np
        import roiflow as ov
        from test_attacks import gather
        model = ov.compile_model(gather(), "{device}")
        request = model.create_infer_request()
        {INDICES[given]}
        over = False
        def write():
            while not over:
                i[:] = 1 << 30
                i[:] = 0
        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(300):
            try:
                infer()
            except ov.Error:
                pass
        over = True
        writer.join()
        i[:] = 5
        request = model.create_infer_request()
        request.set_input_tensor(ov.Tensor(i, shared_memory=True))
        i[:] = 7
        request.infer()
        print(request.get_output_tensor().data[:2])
        """
    )
    assert done.returncode == 0, done.stderr
    assert "[7. 7.]" in done.stdout, done.stdout


@pytest.mark.parametrize("device", engines())
def test_outputs_that_are_indices_may_be_written_during_a_run(device):
    """The output `i` is an index of the last operator. With the memory of `i` in use by the engine, a write is a segmentation fault."""
    n = 256
    products = [node("MatMul", f"{'m' if layer == 0 else f'm{layer - 1}'} w", f"m{layer}") for layer in range(12)]
    path = save(
        "output_indices",
        [
            node("Cast", "x", "i", to=TensorProto.INT64),
            *products,
            node("ReduceMean", "m11", "d", keepdims=0, axes=[1]),
            node("Gather", "d i", "y"),
        ],
        [port("x", [n]), port("m", [n, n])],
        [port("i", [n], TensorProto.INT64), port("y", [n])],
        [constant("w", np.eye(n, dtype=np.float32))],
    )
    done = program(
        f"""
        import threading
        import numpy as np
        import roiflow as ov
        request = ov.compile_model({str(path)!r}, "{device}").create_infer_request()
        inputs = {{"x": np.zeros({n}, np.float32), "m": np.repeat(np.arange({n}, dtype=np.float32)[:, None], {n}, 1)}}
        indices = request.get_output_tensor(0).data
        over = False
        def write():
            while not over:
                indices[:] = 1 << 40
        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(50):
            request.infer(inputs)
            assert not request.get_output_tensor(1).data.any()
        over = True
        writer.join()
        print("right")
        """
    )
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr


@pytest.mark.parametrize("device", engines())
def test_counted_values_may_be_written_while_a_run_counts_them(device):
    """Engines count the values that are not zero, and then write their positions."""
    n = 1 << 18
    nodes = [node("Reshape", "x shape", "row"), node("NonZero", "row", "y")]
    path = save("counted", nodes, [port("x", [n])], [port("y", [1, None], TensorProto.INT64)], [constant("shape", [n], np.int64)])
    done = program(
        f"""
        import threading
        import numpy as np
        import roiflow as ov
        request = ov.compile_model({str(path)!r}, "{device}").create_infer_request()
        x, over = np.zeros({n}, np.float32), False
        def write():
            while not over:
                x[:] = 1
                x[:] = 0
        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(150):
            request.infer(x, share_inputs=True)
        over = True
        writer.join()
        x[:] = 0
        x[5] = 3
        request.infer(x, share_inputs=True)
        print(request.get_output_tensor().data)
        """
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[[5]]"), done.stderr


@pytest.mark.parametrize("device", engines())
def test_runs_in_a_forked_child_work_or_fail(device):
    done = program(
        f"""
        import os, sys
        import numpy as np
        import roiflow as ov
        from models import relu
        model = ov.compile_model(relu(), "{device}")
        request, x = model.create_infer_request(), np.ones((1, 4), np.float32)
        request.infer(x)
        request.start_async(x); request.wait()
        child = os.fork()
        if child == 0:
            for run in (lambda: request.infer(x), lambda: model(x), lambda: model.create_infer_request().infer(x)):
                try:
                    print("child", run()[0][0], flush=True)
                except ov.Error as error:
                    print("child", type(error).__name__, flush=True)
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert done.returncode == 0 and done.stdout.count("child") == 3 and done.stdout.strip().endswith("0"), done.stdout + done.stderr


RECURRENT = [{}, {"direction": "bidirectional"}, {"direction": "reverse"}, {"clip": 0.1}, {"activations": ["Relu"]}]


@pytest.mark.parametrize("device", engines())
@pytest.mark.parametrize("kind, gates", [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("attributes", RECURRENT, ids=str)
def test_recurrent_operators_are_right_in_each_run_or_refused(device, kind, gates, attributes):
    random, n_directions = np.random.default_rng(0), 2 if "bidirectional" in attributes.values() else 1
    weights = [constant(name, random.normal(size=(n_directions, gates * 3, n))) for name, n in (("w", 4), ("r", 3))]
    if "activations" in attributes:
        attributes = {"activations": ["Relu", "Relu", "Relu"][: 1 if kind == "RNN" else 2 if kind == "GRU" else 3]}
    operator = node(kind, "x w r", "y", hidden_size=3, **attributes)
    path = save(f"{kind}_{'_'.join(attributes)}", [operator], [port("x", [5, 1, 4])], [port("y", [5, n_directions, 1, 3])], weights)
    x = random.normal(size=(5, 1, 4)).astype(np.float32)
    try:
        model = compiled(path, device)
    except ov.ModelError as error:
        assert device == "CPU" and attributes and next(iter(attributes)) in str(error)
        return
    first = model(x)[0]
    if "ORT.CPU" in engines():
        np.testing.assert_allclose(first, compiled(path, "ORT.CPU")(x)[0], atol=1e-5)
    model(np.zeros_like(x))
    for _ in range(3):
        np.testing.assert_array_equal(model(x)[0], first)


@pytest.mark.parametrize("device", ["CPU", *engines()[1:-1]])
def test_small_outputs_of_a_model_that_mixes_runs_are_no_reason_to_batch(device):
    path = save(
        "small_outputs",
        [
            node("ReduceMean", "x", "m", axes=[0], keepdims=1),
            node("Sub", "x m", "c"),
            node("Tanh", "c", "t"),
            node("Softmax", "t", "y", axis=1),
        ],
        [port("x", ["N", 5000])],
        [port("y", ["N", 5000])],
    )
    with pytest.raises(RuntimeError, match="not independent"):
        compiled(path, device, **{"batch-size": 4})


@pytest.mark.parametrize("action", ["request.wait()", "request.cancel(); request.wait()"])
def test_a_signal_handler_may_wait_while_results_become_python_objects(action):
    done = program(
        f"""
        import signal, sys
        import numpy as np
        import roiflow as ov
        from models import relu
        request = ov.compile_model(relu(), "CPU").create_infer_request()
        signal.signal(signal.SIGALRM, lambda *_: exec({action!r}))
        raised = []
        def profile(frame, event, arg):
            if frame.f_code.co_name == "__init__" and "_results" in frame.f_code.co_filename and not raised:
                raised.append(1)
                signal.raise_signal(signal.SIGALRM)
        sys.setprofile(profile)
        results = request.infer(np.ones((1, 4), np.float32))
        sys.setprofile(None)
        print(raised, results[0])
        """
    )
    assert done.stdout.strip() == "[1] [[1. 1. 1. 1.]]", done.stdout + done.stderr


def test_a_child_that_a_callback_forks_ends():
    done = program(
        """
        import os
        import numpy as np
        import roiflow as ov
        from models import relu
        request, children = ov.compile_model(relu(), "CPU").create_infer_request(), []
        request.set_callback(lambda _: children.append(os.fork()), None)
        request.start_async(np.ones((1, 4), np.float32))
        request.wait()
        print(os.waitpid(children[0], 0)[0] == children[0])
        """
    )
    assert done.stdout.strip() == "True", done.stdout + done.stderr


@pytest.mark.parametrize("device", engines()[1:])
def test_arrays_for_bfloat16_are_converted_or_refused(device):
    path = save("bf16", [node("Cast", "x", "f", to=1), node("Relu", "f", "y")], [port("x", [1, 64], TensorProto.BFLOAT16)], [port("y", [1, 64])])
    model = compiled(path, device)
    for kind in (np.float32, np.float64, np.int32, np.int16, np.uint16, np.uint8):
        np.testing.assert_array_equal(model(np.full((1, 64), 3, kind))[0], np.full((1, 64), 3, np.float32))

    class Lies(np.ndarray):
        def astype(self, *_, **__):
            return np.ones((1, 64), np.uint8)

    with pytest.raises((TypeError, RuntimeError)):
        model(np.ones((1, 64), np.float32).view(Lies))


def test_engines_are_found_among_the_packages_of_the_interpreter(tmp_path):
    """Also if its virtual environment is not active: no variable and no program on the path names it."""
    libs = tmp_path / "site-packages" / "openvino" / "libs"
    libs.mkdir(parents=True)
    (libs / "libopenvino_c.so.2026").write_bytes(b"no library")
    done = program(
        f"""
        import os, sys
        sys.path.insert(0, {str(tmp_path / "site-packages")!r})
        os.environ.update(PATH="/nonexistent", HOME="/nonexistent")
        for name in ("VIRTUAL_ENV", "ROIFLOW_OPENVINO_LIB", "ROIFLOW_DATA_DIR", "XDG_DATA_HOME"):
            os.environ.pop(name, None)
        import roiflow as ov
        from models import relu
        ov.compile_model(relu(), "OPENVINO.CPU")
        """
    )
    assert str(libs) in done.stderr, done.stderr


def test_classes_may_have_constructors_of_their_own():
    class Core(ov.Core):
        def __init__(self, name):
            super().__init__()
            self.name = name

    class Model(ov.CompiledModel):
        def __init__(self, name, model):
            super().__init__(model)
            self.name = name

    class Queue(ov.AsyncInferQueue):
        def __init__(self, name, model, jobs=2):
            super().__init__(model, jobs)
            self.name = name

    class Tensor(ov.Tensor):
        def __init__(self, name, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.name = name

    core = Core("core")
    model = Model("model", core.compile_model(relu(), "CPU"))
    queue = Queue("queue", model)
    queue.start_async(f32(1, 4))
    queue.wait_all()
    tensor = Tensor("tensor", f32(1, 4), shared_memory=True)
    zeros = Tensor(name="zeros", type=np.float32, shape=[1, 4])
    assert [thing.name for thing in (core, model, queue, tensor, zeros)] == ["core", "model", "queue", "tensor", "zeros"]
    np.testing.assert_array_equal(model(tensor)[0], np.maximum(f32(1, 4), 0))
    assert (len(queue), zeros.shape, tensor.data.shape) == (2, [1, 4], (1, 4))
    for wrong in (lambda: ov.Core(1), lambda: ov.AsyncInferQueue(), lambda: ov.Tensor(), lambda: ov.CompiledModel(1), lambda: ov.CompiledModel()):
        with pytest.raises(TypeError):
            wrong()

    class Forgets(ov.CompiledModel):
        def __init__(self):
            pass

    class ForgetsQueue(ov.AsyncInferQueue):
        def __init__(self):
            pass

    for use in (lambda: Forgets().inputs, lambda: repr(Forgets()), lambda: Forgets()(f32(1, 4)), lambda: len(ForgetsQueue())):
        with pytest.raises(RuntimeError, match="__init__ was not called"):
            use()


def test_ports_are_found_by_the_keywords_of_openvino():
    model = compiled(add())
    assert model.input(index=1).any_name == "b" and model.input(tensor_name="a").any_name == "a"
    assert model.output(index=0).any_name == "sum" and model.output(tensor_name="difference").any_name == "difference"
    assert model.input(0).any_name == "a" and model.output("sum").any_name == "sum"
    request = model.create_infer_request()
    for call in (request.get_input_tensor, request.get_output_tensor, model.input):
        with pytest.raises(RuntimeError, match="number -1"):
            call(-1)
    with pytest.raises(TypeError):
        request.set_callback(lambda _: None)


def test_an_array_without_axes_is_a_value_for_an_input_of_one_element():
    one = save("one_element", [node("Relu", "x", "y")], [port("x", [1])], [port("y", [1])])
    model = compiled(one)
    for value in (np.array(3.0, np.float32), np.array(3), np.float64(3), 3):
        assert model(value)[0].tolist() == [3.0]
        assert model.create_infer_request().infer({"x": value})[0].tolist() == [3.0]
    with pytest.raises(RuntimeError):
        compiled(relu())(np.array(3.0, np.float32))


def test_small_types_of_openvino_are_not_the_large_types_of_numpy():
    for name in ("u1", "u2", "u3", "u4", "u6", "i4"):
        with pytest.raises(TypeError, match="whole bytes"):
            ov.Type(name)
    assert ov.Type(np.dtype("u4")) == ov.Type.u32 and ov.Type("u8") == ov.Type.u8 and ov.Type("uint32") == ov.Type.u32


@pytest.mark.skipif(int(np.__version__.split(".")[0]) < 2, reason="numpy 1 has no copy=False of this meaning")
def test_an_array_that_must_be_copied_is_refused_without_a_copy():
    tensor = ov.Tensor(f32(1, 4))
    assert np.shares_memory(np.asarray(tensor, copy=False), tensor.data)
    assert np.shares_memory(np.asarray(tensor, dtype=np.float32, copy=False), tensor.data)
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(tensor, dtype=np.float64, copy=False)
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
    assert not np.shares_memory(np.array(tensor, copy=True), tensor.data)


def test_profiling_that_is_polled_keeps_no_run_from_its_start():
    request = compiled(relu(), PERF_COUNT=True).create_infer_request()
    request.infer(f32(1, 4))
    over = threading.Event()

    def poll():
        while not over.is_set():
            try:
                request.profiling_info  # noqa: B018
            except ov.Busy:
                pass

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        for _ in range(60):
            request.start_async(f32(1, 4))
            request.wait()
    finally:
        over.set()
        polling.join()
