"""Typical errors of bindings: memory, the interpreter's lock, reference cycles, process exit. One test per hazard."""

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest

import models
from api import DEVICE, F32, IS_OPENVINO, address, compile, compile_batched, f32, ov, request

pytestmark = pytest.mark.skipif(IS_OPENVINO, reason="what roiflow does better")


def program(text, timeout=110, **variables):
    """Runs a program in a separate process, in this folder."""
    folder = os.path.dirname(os.path.abspath(__file__))
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(text)],
        cwd=folder, env={**os.environ, **variables}, timeout=timeout, capture_output=True, text=True,
    )  # fmt: skip


def test_jobs_of_a_queue_own_the_arrays_that_they_share():
    q, seen = ov.AsyncInferQueue(compile(models.open_batch()), 4), {}
    q.set_callback(lambda r, job: seen.__setitem__(job, float(r.get_output_tensor().data[0, 0])))
    for job in range(100):
        q.start_async(np.full((500, 4), job, np.float32), job, share_inputs=True)
    q.wait_all()
    assert seen == {job: 2.0 * job for job in range(100)}


def test_a_request_keeps_the_array_behind_a_tensor():
    r = request(models.open_batch())
    r.set_tensor("x", ov.Tensor(np.full((2000, 4), 3, np.float32), shared_memory=True))
    gc.collect()
    clutter = [np.full((2000, 4), 9, np.float32) for _ in range(20)]
    assert (r.infer()[0] == 6).all() and clutter


def test_regions_and_copies_keep_the_array():
    part = ov.Tensor(ov.Tensor(np.full((40, 400), 5, np.float32), shared_memory=True), [1, 1], [3, 300])
    other = copy.copy(part)
    del part
    clutter = [np.full((40, 400), 9, np.float32) for _ in range(20)]
    assert (other.data == 5).all() and clutter


def test_growth_leaves_views_their_memory():
    tensor = ov.Tensor(f32(10, 10))
    view = tensor.data
    tensor.shape = [1000, 1000]
    assert np.array_equal(view, f32(10, 10))
    tensor.data[:] = 7
    assert np.array_equal(view, f32(10, 10))


def test_copied_inputs_are_never_written_into_an_array_of_the_caller():
    r, first = request(models.open_batch()), f32(1, 4)
    r.infer(first, share_inputs=True)
    r.infer(f32(1, 4, start=50))
    r.infer(f32(3, 4, start=50))
    assert first.tolist() == f32(1, 4).tolist()
    compiled = compile(models.relu())
    compiled(first)
    compiled(f32(1, 4, start=9), share_inputs=False)
    assert first.tolist() == f32(1, 4).tolist()


def test_arrays_of_several_requests_stay_as_they_are():
    compiled, arrays = compile(models.relu()), [f32(1, 4, start=10 * n) for n in range(4)]
    requests = [compiled.create_infer_request() for _ in range(4)]
    for n, r in enumerate(requests):
        r.start_async(arrays[n], share_inputs=n % 2 == 0)
    for n, r in enumerate(requests):
        r.wait()
        r.infer(f32(1, 4, start=1000))
    assert all(np.array_equal(array, f32(1, 4, start=10 * n)) for n, array in enumerate(arrays))


def test_producers_of_one_queue_get_their_own_results():
    q, seen = ov.AsyncInferQueue(compile(models.relu()), 3), {}
    q.set_callback(lambda r, job: seen.__setitem__(job, float(r.get_output_tensor().data[0, 0])))

    def produce(of):
        for job in range(of, of + 50):
            q.start_async(np.full((1, 4), job, np.float32), job)

    threads = [threading.Thread(target=produce, args=(100 * n,)) for n in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    q.wait_all()
    assert len(seen) == 200 and all(job == value for job, value in seen.items())


def test_direct_calls_of_many_threads_get_their_own_results():
    compiled, wrong = compile(models.relu()), []

    def call(of):
        for number in range(of, of + 200):
            results = compiled(np.full((1, 4), number, np.float32))[0]
            if results[0, 0] != number:
                wrong.append((number, results))

    threads = [threading.Thread(target=call, args=(1000 * n,)) for n in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert wrong == []


def test_infer_of_one_request_is_one_step_to_other_threads():
    r, wrong = request(models.relu()), []

    def call(number):
        for _ in range(300):
            try:
                if r.infer(np.full((1, 4), number, np.float32))[0][0, 0] != number:
                    wrong.append(number)
            except ov.Busy:
                pass

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert wrong == []


def test_a_queue_is_as_new_after_wait_all_raised():
    q = ov.AsyncInferQueue(compile(models.two_open()), 2)
    for _ in range(3):
        q.start_async([f32(2, 4), f32(3, 4)])
    with pytest.raises(RuntimeError):
        q.wait_all()
    q.wait_all()
    q.start_async([f32(2, 4), f32(2, 4)])
    q.wait_all()


def test_refused_inputs_take_no_request_out_of_the_queue():
    q = ov.AsyncInferQueue(compile(models.relu()), 1)
    for _ in range(5):
        with pytest.raises(RuntimeError):
            q.start_async(f32(1, 5))
        with pytest.raises(TypeError):
            q.start_async({"x": object()})
    assert q.is_ready()
    q.start_async(f32(1, 4))
    q.wait_all()


@pytest.mark.parametrize("index", [2, -3, 10**6])
def test_a_request_that_a_queue_has_not_is_an_index_error(index):
    q = ov.AsyncInferQueue(compile(models.relu()), 2)
    with pytest.raises(IndexError):
        q[index]  # noqa: B018


def test_to_wait_for_oneself_is_an_error():
    r, raised = request(models.relu()), []

    def callback(_):
        for wait in (r.wait, lambda: r.wait_for(1000)):
            try:
                wait()
            except ov.WouldDeadlock as error:
                raised.append(error)

    r.set_callback(callback, None)
    r.start_async(f32(1, 4))
    r.wait()
    assert len(raised) == 2

    q = ov.AsyncInferQueue(compile(models.relu()), 1)
    raised.clear()

    def of_queue(_, job):
        for call in (q.wait_all, lambda: q.start_async(f32(1, 4)), q.get_idle_request_id):
            try:
                call()
            except ov.WouldDeadlock as error:
                raised.append(error)

    q.set_callback(of_queue)
    q.start_async(f32(1, 4))
    q.wait_all()
    assert len(raised) == 3


def test_a_request_is_dropped_in_its_own_callback():
    done, held = threading.Event(), {"r": request(models.relu())}

    def callback(_):
        held.clear()
        done.set()

    held["r"].set_callback(callback, None)
    held["r"].start_async(f32(1, 4))
    assert done.wait(20)


def test_a_queue_is_dropped_while_callbacks_want_the_lock():
    q, seen = ov.AsyncInferQueue(compile(models.relu()), 4), []
    q.set_callback(lambda r, job: (time.sleep(0.01), seen.append(job)))
    for job in range(8):
        q.start_async(f32(1, 4), job)
    del q
    n_seen = len(seen)
    time.sleep(0.3)
    assert len(seen) == n_seen


def test_a_callback_outlives_the_handle_through_which_it_was_set():
    r, seen = request(models.relu()), []
    ov.InferRequest(r).set_callback(seen.append, 1)
    gc.collect()
    r.start_async(f32(1, 4))
    r.wait()
    assert seen == [1]


@pytest.mark.parametrize("kind", ["request", "queue", "attribute"])
def test_cycles_are_collected(kind):
    compiled = compile(models.relu())
    thing = ov.AsyncInferQueue(compiled, 2) if kind == "queue" else compiled.create_infer_request()
    if kind == "queue":
        thing.set_callback(lambda r, job: thing)
    elif kind == "request":
        thing.set_callback(lambda job: thing, thing)
    else:
        thing.me = thing
    gone = weakref.ref(thing)
    cell = [thing]
    del thing
    cell.clear()
    gc.collect()
    assert kind != "attribute" or gone() is None


def test_a_cycle_through_a_callback_is_freed():
    def make():
        r = request(models.relu())
        r.set_callback(lambda _: r, r)
        q = ov.AsyncInferQueue(compile(models.relu()), 2)
        q.set_callback(lambda request, job: q)
        return weakref.ref(r), weakref.ref(q)

    gone = make()
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


END_OF_PROCESS = {
    "a run": "r.start_async(x)",
    "a callback": "r.set_callback(lambda _: None, None); r.start_async(x)",
    "a queue": "q = ov.AsyncInferQueue(compiled, 2); q.set_callback(lambda r, j: None); [q.start_async(x) for _ in range(3)]",
    "a daemon in infer": "threading.Thread(target=lambda: [r.infer(x) for _ in range(100)], daemon=True).start(); time.sleep(0.2)",
    "a daemon in a call": "threading.Thread(target=lambda: [compiled(x) for _ in range(100)], daemon=True).start(); time.sleep(0.2)",
    "a daemon in wait": "r.start_async(x); threading.Thread(target=r.wait, daemon=True).start(); time.sleep(0.1)",
}


@pytest.mark.parametrize("what", END_OF_PROCESS)
def test_a_process_ends_with_its_own_code_whatever_is_on(what):
    done = program(
        f"""
        import sys, threading, time
        import roiflow as ov, models
        compiled = ov.Core().compile_model(models.chain(300), "CPU", {F32!r})
        r, x = compiled.create_infer_request(), models.slow_input()
        {END_OF_PROCESS[what]}
        sys.exit(7)
        """
    )
    assert done.returncode == 7, done.stderr


CTRL_C = {
    "wait": "r.start_async(x); r.wait()",
    "wait_for": "r.start_async(x); r.wait_for(60_000)",
    "infer": "r.infer(x)",
    "call": "compiled(x)",
    "wait_all": "q.start_async(x); q.wait_all()",
    "start_async": "q.start_async(x); q.start_async(x)",
    "get_idle_request_id": "q.start_async(x); q.get_idle_request_id()",
}


@pytest.mark.parametrize("where", CTRL_C)
def test_ctrl_c_comes_out_within_a_second(where):
    done = program(
        f"""
        import os, signal, sys, threading, time
        import roiflow as ov, models
        compiled = ov.Core().compile_model(models.chain(400), "CPU", {F32!r})
        r, x, q = compiled.create_infer_request(), models.slow_input(), ov.AsyncInferQueue(compiled, 1)
        at = []
        threading.Timer(0.5, lambda: (at.append(time.monotonic()), os.kill(os.getpid(), signal.SIGINT))).start()
        try:
            {CTRL_C[where]}
        except KeyboardInterrupt:
            print("after", time.monotonic() - at[0])
        """
    )
    assert "after" in done.stdout, done.stderr + done.stdout
    assert float(done.stdout.split()[1]) < 2


def test_ctrl_c_comes_out_of_a_run_that_is_longer_than_the_one_before():
    """A short run handles no signals. A larger input may take longer."""
    done = program(
        f"""
        import os, signal, threading, time
        import numpy as np
        import roiflow as ov, models
        request = ov.Core().compile_model(models.open_chain(400), "CPU", {F32!r}).create_infer_request()
        request.infer(models.slow_input()[:1])
        request.infer(models.slow_input()[:1])
        at = []
        threading.Timer(0.5, lambda: (at.append(time.monotonic()), os.kill(os.getpid(), signal.SIGINT))).start()
        try:
            request.infer(np.concatenate([models.slow_input()] * 4))
        except KeyboardInterrupt:
            print("after", time.monotonic() - at[0])
        """
    )
    assert "after" in done.stdout, done.stderr + done.stdout
    assert float(done.stdout.split()[1]) < 2


def test_the_callback_of_a_request_is_called_after_failed_and_canceled_runs():
    r, seen = request(models.two_open()), []
    r.set_callback(seen.append, 1)
    r.start_async([f32(2, 4), f32(3, 4)])
    with pytest.raises(RuntimeError):
        r.wait()
    slow = request(models.slow(1.0))
    slow.set_callback(seen.append, 2)
    slow.start_async(models.slow_input())
    slow.cancel()
    with pytest.raises(ov.Canceled):
        slow.wait()
    assert seen == [1, 2]


def test_what_a_callback_raised_comes_out_as_itself_as_often_as_asked():
    class Mine(Exception):
        pass

    r = request(models.relu())

    def callback(_):
        raise Mine("here")

    r.set_callback(callback, None)
    r.start_async(f32(1, 4))
    for wait in (r.wait, r.wait, lambda: r.wait_for(1000)):
        with pytest.raises(Mine):
            wait()
    r.set_callback(lambda _: None, None)
    r.start_async(f32(1, 4))
    r.wait()


def test_the_request_of_a_queues_callback_is_a_request():
    q, seen = ov.AsyncInferQueue(compile(models.relu()), 2), []
    q.set_callback(lambda r, job: seen.append((type(r), r.results[0].tolist(), r.results["y"].tolist(), r.userdata)))
    q.start_async(f32(1, 4), "mine")
    q.wait_all()
    assert seen == [(ov.InferRequest, f32(1, 4).tolist(), f32(1, 4).tolist(), "mine")]


def test_refused_inputs_leave_the_request_as_it_was():
    r = request(models.add())
    r.infer([f32(1, 4), f32(1, 4)])
    for wrong in ({"a": f32(1, 4, start=9), "b": f32(1, 5)}, {"a": f32(1, 4, start=9), "b": object()}, [f32(1, 4, start=9), f32(4)]):
        for share in (False, True):
            with pytest.raises((RuntimeError, TypeError)):
                r.infer(wrong, share_inputs=share)
    assert r.infer()["sum"].tolist() == [[0, 2, 4, 6]]


def test_slices_of_a_batch_are_checked_and_may_be_regions():
    r = compile_batched(models.batch_of_four()).create_infer_request()
    with pytest.raises(RuntimeError):
        r.set_input_tensors([ov.Tensor(np.zeros((1, 2, 2), np.float64)) for _ in range(4)])
    whole = ov.Tensor(f32(4, 4, 4))
    r.set_input_tensors([ov.Tensor(whole, [n, 1, 1], [n + 1, 3, 3]) for n in range(4)])
    assert np.array_equal(r.infer()[0], f32(4, 4, 4)[:, 1:3, 1:3] + 1)
    assert (r.infer(np.zeros((4, 2, 2), np.float32))[0] == 1).all()


def test_tensors_do_not_reach_beyond_their_array_or_make_it_writable():
    array = f32(4)
    for shape, element in (([5], ov.Type.f32), ([3], ov.Type.f64), ([17], ov.Type.u8)):
        with pytest.raises(RuntimeError):
            ov.Tensor(array, shape, element)
    array.setflags(write=False)
    for tensor in (ov.Tensor(array, shared_memory=True), ov.Tensor(array, [2, 2])):
        assert not tensor.data.flags.writeable
    with pytest.raises(RuntimeError):
        ov.Tensor(array.astype(">f4"), shared_memory=True)
    assert ov.Tensor(f32(4).astype(">f4")).data.tolist() == f32(4).tolist()


def test_unaligned_arrays_and_odd_booleans_are_read_as_numpy_reads_them():
    odd = np.frombuffer(b"\0" + f32(1, 4).tobytes(), np.uint8)[1:].view(np.float32).reshape(1, 4)
    for share in (False, True):
        assert request(models.relu()).infer(odd, share_inputs=share)[0].tolist() == odd.tolist()
        bools = np.array([2, 0, 255, 1, 0], np.uint8).view(bool)
        results = request(models.concat(bool)).infer([bools, bools], share_inputs=share)[0]
        assert results.view(np.uint8).tolist() == [1, 0, 1, 1, 0] * 2


def test_deepcopy_of_a_region_is_the_region_and_shapes_are_the_callers():
    whole = ov.Tensor(f32(4, 4))
    assert copy.deepcopy(ov.Tensor(whole, [1, 1], [3, 3])).data.tolist() == [[5, 6], [9, 10]]
    shape = whole.shape
    shape[0] = 99
    assert list(whole.shape) == [4, 4]


def test_a_request_that_is_dropped_after_cancel_does_not_run_on():
    r = request(models.slow(2.0))
    r.start_async(models.slow_input())
    time.sleep(0.1)
    began = time.perf_counter()
    r.cancel()
    del r
    assert time.perf_counter() - began < 1


def test_latency_while_a_run_is_on_is_that_of_the_run_before():
    r = request(models.slow())
    r.infer(models.slow_input())
    before = r.latency
    r.start_async(models.slow_input())
    assert r.latency == before > 0
    r.wait()


def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def test_nothing_grows_from_run_to_run():
    compiled = compile(models.open_batch())
    r, q = compiled.create_infer_request(), ov.AsyncInferQueue(compiled, 2)
    q.set_callback(lambda request, job: job)

    def rounds(n):
        for _ in range(n):
            array = np.zeros((20_000, 4), np.float32)
            r.infer(array, share_inputs=True)
            r.start_async(array, share_inputs=True)
            r.wait()
            q.start_async(array, array, share_inputs=True)
            compiled(array, share_outputs=True)
            compiled.create_infer_request()
        q.wait_all()
        gc.collect()

    rounds(30)
    before, n_threads = resident_kib(), threading.active_count()
    rounds(200)
    assert resident_kib() - before < 30_000
    assert threading.active_count() <= n_threads


def test_an_object_that_becomes_an_array_without_a_copy_keeps_its_memory():
    class Wrapped:
        def __init__(self, array):
            self.array = array

        def __array__(self, dtype=None, copy=None):
            return self.array

    values, r = f32(1, 4), request(models.relu())
    r.infer(Wrapped(values), share_inputs=True)
    assert address(r.get_input_tensor().data) == address(values)


def test_callbacks_of_runs_that_were_started_in_a_callback_do_not_overlap():
    r, inside, overlaps, done = request(models.relu()), [], [], threading.Event()

    def callback(n):
        if inside:
            overlaps.append(n)
        inside.append(n)
        if n < 20:
            r.start_async(f32(1, 4), n + 1)
        time.sleep(0.002)
        inside.pop()
        if n == 20:
            done.set()

    r.set_callback(callback, 0)
    r.start_async(f32(1, 4))
    assert done.wait(20)
    r.wait()
    assert overlaps == []
    r.set_callback(lambda _: None, None)


@pytest.mark.parametrize("make", [lambda: request(models.relu()), lambda: compile(models.relu()), ov.Core, lambda: ov.AsyncInferQueue(compile(models.relu()), 1)], ids=["request", "model", "core", "queue"])
def test_handles_are_neither_copied_nor_pickled(make):
    thing = make()
    for action in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            action(thing)
    thing.mine = 5
    assert thing.mine == 5 and weakref.ref(thing)() is thing


def test_ports_and_tensors_are_copied_as_far_as_that_makes_sense():
    port = compile(models.relu()).input()
    assert copy.copy(port) == port
    for action in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            action(port)
    with pytest.raises(TypeError):
        pickle.dumps(ov.Tensor(f32(2)))


def test_requests_are_subclassed():
    class Mine(ov.InferRequest):
        def __init__(self, compiled, name):
            super().__init__(compiled.create_infer_request())
            self.name = name

    r = Mine(compile(models.relu()), "first")
    assert r.infer(f32(1, 4))[0].tolist() == f32(1, 4).tolist() and r.name == "first"


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: request(models.relu()).get_tensor("nothing"), "NotFound"),
        (lambda: request(models.relu()).infer(f32(1, 5)), "TensorError"),
        (lambda: ov.Core().read_model("/nowhere.onnx"), "ReadError"),
        (lambda: ov.Core().compile_model(models.relu(), DEVICE, {"PERF_COUNT": "maybe"}), "ConfigError"),
    ],
    ids=["port", "shape", "file", "property"],
)
def test_errors_have_types_below_runtime_error(call, kind):
    with pytest.raises(getattr(ov, kind)) as error:
        call()
    assert isinstance(error.value, ov.Error) and isinstance(error.value, RuntimeError)


def test_the_lock_is_free_while_an_engine_works():
    r, steps = request(models.slow(0.5)), [0]
    over = threading.Event()

    def count():
        while not over.is_set():
            steps[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    r.infer(models.slow_input())
    over.set()
    thread.join()
    assert steps[0] > 50


def test_a_request_of_a_queue_runs_by_itself_while_it_is_idle_and_in_its_callback():
    q, seen = ov.AsyncInferQueue(compile(models.relu()), 2), []
    assert q[1].infer(f32(1, 4))[0].tolist() == f32(1, 4).tolist()
    q.set_callback(lambda r, job: seen.append(r.infer(f32(1, 4, start=7))[0][0, 0]))
    q[0].start_async(f32(1, 4), "job")
    q.wait_all()
    assert seen == [7] and q[0].userdata == "job" and q.is_ready()
    with pytest.raises(ov.OwnedByQueue):
        q[0].set_callback(lambda _: None, None)


def test_signals_other_than_ctrl_c_are_handled_in_a_wait():
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.monotonic()))
    r = request(models.slow(1.5))
    r.start_async(models.slow_input())
    at = time.monotonic()
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    r.wait()
    signal.signal(signal.SIGUSR1, before)
    assert seen and seen[0] - at < 1
