"""`roiflow.Pipeline`, `python -m roiflow run` and `roiflow.gst`, with the real command.

`scripts/build-python --test-pipelines` sets ROIFLOW_COMMAND and ROIFLOW_PLUGIN to the development build. Without them, the tests that need
the command or the plugin are skipped.
"""

import base64
import datetime
import gc
import io
import json
import logging
import os
import pathlib
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
import zlib

import numpy as np
import pytest

from api import IS_OPENVINO, ov
from vision import ROOT, TINY

if IS_OPENVINO:
    pytest.skip("pipelines of roiflow", allow_module_level=True)

# Number of starts and ends of the command in one test. Set it to 1,000 for a longer run.
N_STARTS = 30
COMMAND = os.environ.get("ROIFLOW_COMMAND")
RECTANGLE, COLOR = TINY / "rectangle.onnx", TINY / "color.onnx"

# An input of so many test patterns that it does not end during a test.
ENDLESS = "test:100000000"

needs_command = pytest.mark.skipif(COMMAND is None, reason="ROIFLOW_COMMAND names no command")


def pipeline(**options):
    """A pipeline of the tiny detector on test patterns. It has no end unless `frames` is given."""
    return ov.Pipeline(**{"model": RECTANGLE, "device": "CPU", "input": ENDLESS, **options})


def fake(folder, monkeypatch, script):
    """A pipeline that runs a shell script instead of the command."""
    path = folder / "roiflow"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("ROIFLOW_COMMAND", str(path))
    return ov.Pipeline("faces", input="video.mp4")


def line(frame=0, **keys):
    base = {"frame": frame, "stream": None, "timestamp": 7, "pts": 8, "time": "t", "source": None, "inference": {"status": "ok"}}
    return {"schema_version": 2, **base, "resolution": {"width": 200, "height": 100}, "objects": [], **keys}


def has_ended(pid, seconds=10.0):
    """Wait until the process has ended and was reaped. Return false if this takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def command_lines(*arguments):
    done = subprocess.run([COMMAND, "run", "--quiet", "--json=-", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(text) for text in done.stdout.splitlines()]


def without_time(data):
    return {name: value for name, value in data.items() if name != "time"}


@needs_command
def test_frames_have_the_results_of_the_command():
    frames = list(pipeline(classify=COLOR, track=True, frames=4, input="test:"))
    arguments = ["--model", RECTANGLE, "--classify", COLOR, "--track", "--device=CPU", "--input=test:", "--frames=4"]
    assert [without_time(frame.to_dict()) for frame in frames] == [without_time(data) for data in command_lines(*arguments)]
    assert [frame.index for frame in frames] == [0, 1, 2, 3]
    first = frames[0]
    assert (first.stream, first.timestamp, first.source, first.size, first.status) == (None, 0, "test:", (640, 480), "ok")
    [found] = first.objects
    assert (found.label, found.confidence, found.box, found.track_id, found.class_id) == ("rectangle", 1.0, (0, 0, 640, 480), 1, 0)
    assert found.xyxy.tolist() == [0, 0, 640, 480] and found.keypoints.shape == (0, 2) and found.parent is None
    color = found.attributes["color"]
    assert (color.kind, color.value, color.class_id, color.model) == ("label", "other", 3, "color")
    assert json.loads(first.to_json()) == first.to_dict()


@needs_command
def test_results_of_images_equal_those_of_the_model_in_python(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[8:24, 16:40] = (255, 0, 0)
    image.fromarray(pixels).save(tmp_path / "in.png")
    [frame] = pipeline(input=tmp_path / "in.png", classify=COLOR)
    model, color = (ov.load(path, device="CPU") for path in (RECTANGLE, COLOR))
    [found], [expected] = frame.objects, color(tmp_path / "in.png", rois=model(tmp_path / "in.png"))
    assert found.xyxy.tolist() == expected.xyxy.tolist() == [16, 8, 40, 24]
    assert (found.label, found.confidence, found.class_id) == (expected.label, expected.confidence, expected.class_id)
    assert found.attributes["color"].value == expected.attributes["color"].value == "red"


@needs_command
def test_several_inputs_are_streams_with_names():
    frames = list(pipeline(input=["test:", "test:"], name=["door", "gate"], frames=3))
    indexes = {name: [frame.index for frame in frames if frame.stream == name] for name in ("door", "gate")}
    assert indexes == {"door": [0, 1, 2], "gate": [0, 1, 2]}


@needs_command
def test_keywords_are_parameters_of_the_description():
    [frame] = ov.Pipeline("detect", input="test:", model=RECTANGLE, device="CPU", frames=1)
    assert frame.objects[0].label == "rectangle"
    made = ov.Pipeline("faces", input="a.mp4", detector_description="d", parameters={"x_y": True}, seconds=1.5, loop=True)
    assert made.command[1:] == [
        *("run", "--quiet", "--json=-", "--input=a.mp4", "--seconds=1.5", "--loop"),
        *("--set=detector-description=d", "--set=x_y=true", "--", "faces"),
    ]


@needs_command
def test_each_loop_starts_from_the_beginning():
    made = pipeline(frames=2)
    assert [frame.index for frame in made] == [frame.index for frame in made] == [0, 1]


@needs_command
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input": "missing.mp4"}, "cannot read input `missing.mp4`: No such file"),
        ({"input": "test:", "model": "none.onnx"}, "model: cannot read model `none.onnx`"),
        ({"input": "test:", "arguments": ["--bad"]}, "unexpected argument '--bad'"),
    ],
    ids=["input", "model", "argument"],
)
def test_the_message_of_an_error_is_that_of_the_command(options, message):
    with pytest.raises(ov.PipelineError, match="^" + message) as error:
        list(pipeline(**options))
    assert error.value.exit_code in (1, 2) and isinstance(error.value, ov.Error)


@needs_command
def test_wrong_parameters_are_an_error_of_the_command():
    with pytest.raises(ov.PipelineError, match="no parameter `bad`: expected one of"):
        list(ov.Pipeline("detect", input="test:", bad=1))


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"input": []}, ValueError),
        ({"input": 3}, TypeError),
        ({"bad": 3}, TypeError),
        ({"arguments": "--track"}, TypeError),
        ({"pipeline": "faces", "track": True}, TypeError),
        ({"pipeline": "faces", "bad": b"x"}, TypeError),
        ({"model": None}, TypeError),
        ({"image": "yuv"}, ValueError),
        ({"image": True}, ValueError),
    ],
    ids=["no input", "input", "parameter", "arguments", "track", "value", "nothing", "color", "no color"],
)
def test_wrong_arguments_are_errors_before_the_start(options, kind, monkeypatch):
    monkeypatch.setenv("ROIFLOW_COMMAND", sys.executable)
    with pytest.raises(kind, match="expected"):
        pipeline(**options)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def stop_by_break(pids):
    for _ in (made := pipeline()):
        pids.append(made.pid)
        break


def stop_by_close(pids):
    for _ in (made := pipeline()):
        pids.append(made.pid)
        made.close()


def stop_by_with(pids):
    with pipeline() as made:
        frames = iter(made)
        next(frames)
        pids.append(made.pid)


def stop_by_exception(pids):
    with pytest.raises(KeyError):
        for _ in (made := pipeline()):
            pids.append(made.pid)
            raise KeyError


def stop_by_collection(pids):
    frames = iter(made := pipeline())
    next(frames)
    pids.append(made.pid)
    cycle = [frames]
    cycle.append(cycle)
    del frames, made, cycle
    gc.collect()


def stop_by_break_with_images(pids):
    for frame in (made := pipeline(image="rgb")):
        pids.append(made.pid)
        assert frame.image.shape == (480, 640, 3)
        break


def stop_at_the_end(pids):
    for _ in (made := pipeline(frames=1)):
        pids.append(made.pid)


@needs_command
@pytest.mark.parametrize(
    "stop",
    [stop_by_break, stop_by_close, stop_by_with, stop_by_exception, stop_by_collection, stop_by_break_with_images, stop_at_the_end],
)
def test_many_starts_and_stops_leave_no_process_descriptor_or_thread(stop):
    pids = []
    stop(pids)
    gc.collect()
    before = descriptors(), threading.active_count()
    for _ in range(N_STARTS // 6):
        stop(pids)
    gc.collect()
    assert (descriptors(), threading.active_count()) == before
    assert len(pids) == N_STARTS // 6 + 1 and all(has_ended(pid, 0.1) for pid in pids)


def colored_images(folder, n_images, size=(64, 48)):
    """Files of one color each. Returns the colors in the order of the names."""
    image = pytest.importorskip("PIL.Image")
    colors = [((index * 37) % 256, (index * 11) % 256, index % 256) for index in range(n_images)]
    for index, color in enumerate(colors):
        image.new("RGB", size, color).save(folder / f"{index:04}.png")
    return colors


@needs_command
@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_frames_have_the_pixels_that_the_models_got(color, tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (47, 63, 3), np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    image.fromarray(pixels[:20, :30]).save(tmp_path / "b.png")
    whole, part = pipeline(input=tmp_path, image=color)
    expected = pixels if color == "rgb" else pixels[:, :, ::-1]
    assert np.array_equal(whole.image, expected) and np.array_equal(part.image, expected[:20, :30])
    assert whole.image.dtype == np.uint8 and whole.image.flags.writeable and whole.image.flags.c_contiguous
    assert "image" not in whole.to_dict() and whole.image is whole.image


@needs_command
def test_an_object_is_cut_out_of_the_image_of_its_frame(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[8:24, 16:40] = (255, 0, 0)
    image.fromarray(pixels).save(tmp_path / "in.png")
    [frame] = pipeline(input=tmp_path / "in.png", image="rgb")
    crop = frame.objects[0].crop(frame.image)
    assert np.array_equal(crop, pixels[8:24, 16:40]) and np.shares_memory(crop, frame.image)
    with pytest.raises(ValueError, match="expected the image of this frame"):
        frame.objects[0].crop(frame.image[1:])


@needs_command
def test_the_pixels_of_a_video_are_those_of_the_image_files(tmp_path):
    image = pytest.importorskip("PIL.Image")
    video = tmp_path / "in.mkv"
    list(pipeline(frames=3, arguments=["--video", str(video)]))
    frames = list(pipeline(input=video, image="rgb", arguments=["--video", str(tmp_path / "{source}.png")], model=None, classify=COLOR))
    files = sorted(tmp_path.glob("in-*.png"))
    assert len(frames) == len(files) >= 3
    for frame, file in zip(frames, files):
        difference = np.abs(frame.image.astype(int) - np.asarray(image.open(file).convert("RGB")).astype(int))
        # GStreamer's converter wrote the files. It rounds more, and its pixels differ at edges between colors. The files also contain drawn
        # text.
        assert np.median(difference) <= 2 and (difference > 8).mean() < 0.05


@needs_command
def test_kept_frames_keep_their_pixels(tmp_path):
    colors = colored_images(tmp_path, 300)
    frames = list(pipeline(input=tmp_path, image="rgb"))
    assert [tuple(frame.image[-1, -1].tolist()) for frame in frames] == colors
    assert all((frame.image == frame.image[0, 0]).all() for frame in frames)


@needs_command
def test_views_keep_the_pixels_of_their_frame(tmp_path):
    colors = colored_images(tmp_path, 200)
    views = [frame.image[5:9, 3:7, 1:][::2] for frame in pipeline(input=tmp_path, image="rgb")]
    gc.collect()
    assert [tuple(view[0, 0].tolist()) for view in views] == [color[1:] for color in colors]


@needs_command
def test_images_that_are_not_kept_use_their_memory_again():
    frames, used = iter(made := pipeline(image="bgr")), []
    for _ in range(500):
        assert next(frames).image.shape == (480, 640, 3)
        used.append(os.fstat(made._run._memory.descriptor).st_blocks * 512)
    frames.close()
    # At most 128 frames wait to be read, and a few more are in flight.
    n_bytes = 480 * 640 * 3
    assert 0 < used[-1] < 140 * (n_bytes + (1 << 16)), used[-1] / n_bytes


@needs_command
def test_streams_share_the_memory_of_images(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    colors = colored_images(tmp_path / "a", 40), colored_images(tmp_path / "b", 60, (640, 480))
    frames = list(pipeline(input=[tmp_path / "a", tmp_path / "b"], name=["a", "b"], image="rgb"))
    found = [[tuple(frame.image[0, 0].tolist()) for frame in frames if frame.stream == name] for name in ("a", "b")]
    assert found == list(colors)


@needs_command
def test_images_outlive_the_loop():
    made = pipeline(image="rgb")
    for frame in made:
        image, expected = frame.image, frame.image.copy()
        break
    made.close()
    gc.collect()
    assert np.array_equal(image, expected)
    image[:] = 7
    assert (image == 7).all()


def test_a_frame_without_an_image_says_how_to_get_one(tmp_path, monkeypatch):
    [frame] = fake(tmp_path, monkeypatch, f"echo '{json.dumps(line())}'")
    with pytest.raises(ValueError, match='expected a pipeline with image="rgb"'):
        _ = frame.image


def pipeline_snippets():
    """The snippets about pipelines on the pages, which other tests cannot run because they need the command."""
    pages = [ROOT / "docs" / "python.md", ROOT / "python" / "README.md"]
    parts = [part for page in pages for part in page.read_text().split("```python,ignore\n")[1:]]
    return [snippet for part in parts if "roiflow.Pipeline" in (snippet := part.split("```")[0])]


@needs_command
@pytest.mark.parametrize("snippet", pipeline_snippets())
def test_the_snippets_about_pipelines_run(snippet, tmp_path):
    pytest.importorskip("cv2")
    # Small models and a clip stand in for the names on the pages.
    list(pipeline(frames=5, arguments=["--video", str(tmp_path / "video.mp4")]))
    graph = f"{{source}} ! roidetect model={RECTANGLE} device=CPU ! roiclassify model={COLOR} device=CPU ! {{json}} ! {{video}}"
    (tmp_path / "small.toml").write_text(f'version = 1\nname = "small"\ndescription = "a test"\n[pipeline]\ngraph = """{graph}"""\n')
    (tmp_path / "yolo11n.onnx").write_bytes((TINY / "ultralytics.onnx").read_bytes())
    for name, small in (("faces", "small.toml"), ("rtsp://door/stream", "video.mp4"), ("rtsp://gate/stream", "video.mp4"), ("age", "color")):
        snippet = snippet.replace(f'"{name}"', f'"{small}"')
    done = subprocess.run(
        [sys.executable, "-c", f"import cv2, roiflow\n{snippet}"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout or list(tmp_path.glob("0-*.jpg"))


@needs_command
def test_a_loop_that_is_left_completes_the_files_of_the_command(tmp_path):
    video = tmp_path / "out.mp4"
    for frame in pipeline(arguments=["--video", str(video)]):
        if frame.index == 20:
            break
    # Files of this format are readable only if they are complete. So the command has completed the file.
    frames = [frame.index for frame in pipeline(input=video)]
    assert len(frames) >= 20 and frames == list(range(len(frames)))


@needs_command
def test_the_command_waits_while_frames_are_not_taken():
    frames = iter(pipeline())
    first = next(frames)
    time.sleep(1)
    end_of_pause = time.time()
    taken = [first, *(next(frames) for _ in range(1000))]
    frames.close()
    assert [frame.index for frame in taken] == list(range(1001)), "no frame is dropped"
    # Lines have more than 300 bytes. Up to 64 KiB are in the pipe and as much in the reader; the command has a few frames in flight.
    last = datetime.datetime.fromisoformat(taken[-1].time.replace("Z", "+00:00"))
    after_buffers = datetime.datetime.fromisoformat(taken[600].time.replace("Z", "+00:00"))
    assert end_of_pause - 0.001 <= after_buffers.timestamp() <= last.timestamp()


@needs_command
def test_close_from_another_thread_ends_a_loop_that_waits(tmp_path, monkeypatch):
    made = fake(tmp_path, monkeypatch, f"echo '{json.dumps(line())}'; exec sleep 60")
    frames, closed = iter(made), []
    next(frames)
    thread = threading.Thread(target=lambda: (time.sleep(0.2), made.close(), closed.append(time.monotonic())))
    begin, pid = time.monotonic(), made.pid
    thread.start()
    assert list(frames) == []
    thread.join()
    assert time.monotonic() - begin < 5 and closed and has_ended(pid, 0.1)


def test_two_loops_at_once_are_an_error(tmp_path, monkeypatch):
    made = fake(tmp_path, monkeypatch, f"echo '{json.dumps(line())}'; exec sleep 60")
    first = iter(made)
    next(first)
    with pytest.raises(ov.PipelineError, match="runs already"):
        next(iter(made))
    first.close()
    assert made.pid is None
    made.close()


def test_a_command_that_ignores_the_signal_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("roiflow._pipeline.STOP_SECONDS", 0.3)
    made = fake(tmp_path, monkeypatch, f"trap '' TERM; echo '{json.dumps(line())}'; while :; do sleep 0.05; done")
    for _ in made:
        pid = made.pid
        break
    assert has_ended(pid, 0.1)


def test_a_command_that_finishes_its_files_after_the_signal_is_not_killed(tmp_path, monkeypatch):
    script = f"trap 'sleep 0.5; echo complete >{tmp_path}/out; exit 0' TERM; while :; do echo '{json.dumps(line())}'; done"
    for _ in fake(tmp_path, monkeypatch, script):
        break
    assert (tmp_path / "out").read_text() == "complete\n"


def test_a_forked_process_does_not_end_the_command(tmp_path, monkeypatch):
    script = f"echo '{json.dumps(line(0))}'; sleep 0.5; echo '{json.dumps(line(1))}'"
    frames = iter(fake(tmp_path, monkeypatch, script))
    next(frames)
    forked = os.fork()
    if forked == 0:
        frames.close()
        os._exit(0)
    os.waitpid(forked, 0)
    assert [frame.index for frame in frames] == [1]


def test_many_messages_on_standard_error_do_not_block(tmp_path, monkeypatch, caplog):
    script = "i=0; while [ $i -lt 20000 ]; do echo 'a line of some length on standard error' >&2; i=$((i+1)); done\n"
    script += f"echo 'warning: the disk is slow' >&2; echo '{json.dumps(line())}'; echo 'error: first' >&2; echo second >&2; exit 1"
    with caplog.at_level(logging.WARNING, "roiflow.pipeline"), pytest.raises(ov.PipelineError, match="^first\nsecond$") as error:
        assert [frame.index for frame in fake(tmp_path, monkeypatch, script)] == [0]
    assert error.value.exit_code == 1
    assert caplog.messages == ["warning: the disk is slow"]


def test_a_crash_of_the_command_is_an_error(tmp_path, monkeypatch):
    frames = iter(fake(tmp_path, monkeypatch, f"echo '{json.dumps(line())}'; kill -SEGV $$"))
    assert next(frames).index == 0
    with pytest.raises(ov.PipelineError, match="ended by SIGSEGV") as error:
        next(frames)
    assert error.value.exit_code == -signal.SIGSEGV


def test_lines_that_are_not_results_are_an_error(tmp_path, monkeypatch):
    with pytest.raises(ov.PipelineError, match="expected a JSON line"):
        list(fake(tmp_path, monkeypatch, "echo hello"))


def test_events_are_not_frames(tmp_path, monkeypatch):
    event = {"event": "source-lost", "stream": "door"}
    made = fake(tmp_path, monkeypatch, f"echo '{json.dumps(line(0))}'; echo '{json.dumps(event)}'; printf '%s' '{json.dumps(line(1))}'")
    assert [frame.index for frame in made] == [0, 1]
    assert list(made.events) == [event]


def test_objects_have_all_kinds_of_attributes(tmp_path, monkeypatch):
    model, point = {"name": "m"}, {"x": 0.5, "y": 0.25}
    corners = [point, {"x": 1.0, "y": 0.25}, {"x": 0.5, "y": 1.0}]
    found = {
        **{"x": 0, "y": 0, "w": 5, "h": 5, "id": 4, "track_state": "held", "region_id": 2, "parent_id": 1, "roi_type": "object"},
        "detection": {
            "bounding_box": {"x_min": -0.1, "y_min": 0.5, "x_max": 0.5, "y_max": None},
            **{"confidence": 0.5, "label_id": 7, "label": None, "keypoints": [point]},
        },
        "age": {"value": 31.5, "model": model},
        "plate": {"text": "AB 1", "confidence": 0.5, "model": model},
        "clothes": {"labels": [{"label": None, "label_id": 3, "confidence": 0.5}], "model": model},
        "face": {"shape": [1, 2], "data": [0.5, None], "model": model},
        "pose": {"keypoints": [{**point, "name": "nose", "confidence": 0.5}], "skeleton": [[0, 0]], "model": model},
        "turned": {"corners": [*corners, point], "angle": 30.0, "model": model},
        "shape": {"polygons": [[point]], "model": model},
        "mask": {"corners": corners, "columns": 3, "rows": 2, "runs": [1, 2, 3], "model": model},
        "road": {"corners": corners, "columns": 3, "rows": 1, "class_runs": [[4, 2], [0, 1]], "labels": ["a"], "model": model},
        "depth": {"corners": corners, "columns": 2, "rows": 1, "values": [1.5, None], "model": model},
        "later": {"unknown": 1, "model": model},
    }
    parts = {"objects": [found], "classifications": {"scene": {"label": "day", "label_id": 1, "confidence": 0.5, "model": model}}}
    (tmp_path / "lines").write_text(json.dumps(line(**parts)))
    [frame] = fake(tmp_path, monkeypatch, f"cat {tmp_path}/lines")
    assert (frame.attributes["scene"].value, frame.attributes["scene"].class_id) == ("day", 1)
    [found] = frame.objects
    assert (found.label, found.track_id, found.track_state, found.parent) == ("7", 4, "held", 0)
    assert found.box[:3] == (-20.0, 50.0, 100.0) and np.isnan(found.box[3])
    assert found.keypoints.tolist() == [[100, 25]]
    of = found.attributes
    kinds = {name: attribute.kind for name, attribute in of.items()}
    assert kinds == {
        **{"age": "value", "plate": "text", "clothes": "labels", "face": "tensor", "pose": "keypoints", "turned": "rotated-box"},
        **{"shape": "polygons", "mask": "mask", "road": "class-map", "depth": "value-map"},
    }
    assert (of["age"].value, of["plate"].value, of["plate"].confidence, of["clothes"].value) == (31.5, "AB 1", 0.5, [("3", 0.5)])
    assert of["face"].value.shape == (1, 2) and np.isnan(of["face"].value[0, 1])
    assert (of["pose"].labels, of["pose"].edges, of["pose"].confidences.tolist()) == (("nose",), ((0, 0),), [0.5])
    assert of["turned"].value.shape == (4, 2) and of["shape"].value[0].tolist() == [[100, 25]]
    assert of["mask"].value.tolist() == [[0, 255, 255], [0, 0, 0]] and of["mask"].corners[1].tolist() == [200, 25]
    assert (of["road"].value.tolist(), of["road"].labels) == ([[4, 4, 0]], ("a",))
    assert of["depth"].value[0, 0] == 1.5


def png_lines(values):
    """The lines of a PNG image whose first lines use each of the five filters: none, left, above, mean, Paeth."""
    n_bytes, rows = values.dtype.itemsize, values.astype(values.dtype.newbyteorder(">")).view(np.uint8).astype(int)
    left, above = np.zeros_like(rows), np.zeros_like(rows)
    left[:, n_bytes:], above[1:] = rows[:, :-n_bytes], rows[:-1]
    corner = np.zeros_like(rows)
    corner[1:] = left[:-1]
    near = np.stack([left, above, corner])
    paeth = np.take_along_axis(near, np.abs(left + above - corner - near).argmin(0)[None], 0)[0]
    predictions = [np.zeros_like(rows), left, above, (left + above) // 2, paeth]
    return b"".join(bytes([index % 5, *((row - predictions[index % 5][index]) % 256)]) for index, row in enumerate(rows))


def png(values):
    """A gray PNG image in base64, of uint8 or uint16, with its pixels in two chunks."""
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 8 * values.dtype.itemsize, 0, 0, 0, 0)
    packed = zlib.compress(png_lines(values))
    chunks = [(b"IHDR", header), (b"tEXt", b"a\0b"), (b"IDAT", packed[:9]), (b"IDAT", packed[9:]), (b"IEND", b"")]
    parts = [struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks]
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


def attributes_of(tmp_path, monkeypatch, **attributes):
    cells = {"corners": [{"x": 0.5, "y": 0.25}] * 3, "model": {"name": "m"}}
    data = {"classifications": {name: {**cells, **attribute} for name, attribute in attributes.items()}}
    (tmp_path / "lines").write_text(json.dumps(line(**data)))
    [frame] = fake(tmp_path, monkeypatch, f"cat {tmp_path}/lines")
    return frame.attributes


def test_masks_and_maps_can_be_images(tmp_path, monkeypatch):
    random = np.random.default_rng(7)
    bytes_of, numbers_of = random.integers(0, 256, (12, 7), np.uint8), random.integers(1, 65_536, (11, 5), np.uint16)
    numbers_of[3, 2], numbers_of[5, 1], numbers_of[6, 4] = 0, 1, 65_535
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(base64.b64decode(png(bytes_of))))
    assert (np.asarray(image) == bytes_of).all(), "another program reads the image of this test"
    of_bytes = {"columns": 7, "rows": 12, "png": png(bytes_of)}
    depth = {"columns": 5, "rows": 11, "png": png(numbers_of), "min": -2.0, "max": 8.0}
    roads = {**of_bytes, "areas": [], "labels": ["road"]}
    of = attributes_of(tmp_path, monkeypatch, mask={**of_bytes, "area": 5.0}, roads=roads, depth=depth)
    assert {name: attribute.kind for name, attribute in of.items()} == {"mask": "mask", "roads": "class-map", "depth": "value-map"}
    assert of["mask"].value.dtype == np.uint8 and (of["mask"].value == bytes_of).all()
    assert (of["roads"].value == bytes_of).all() and of["roads"].labels == ("road",)
    value = of["depth"].value
    assert value.dtype == np.float32 and np.isnan(value[3, 2]) and (value[5, 1], value[6, 4]) == (-2.0, 8.0)
    expected = -2.0 + (numbers_of - 1.0) / 65_534 * 10.0
    assert np.nanmax(np.abs(value - np.where(numbers_of == 0, np.nan, expected))) < 1e-5


@pytest.mark.parametrize("text", ["", "AAAA", "no base64!", png(np.zeros((2, 2), np.uint8))[:60], png(np.zeros((2, 2), np.uint8))])
def test_a_wrong_image_of_a_mask_is_an_error(text, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="expected a gray PNG image of 3x2 pixels"):
        attributes_of(tmp_path, monkeypatch, mask={"columns": 3, "rows": 2, "png": text, "area": 1.0})


@needs_command
def test_masks_of_the_command_can_be_images(tmp_path):
    def mask(form):
        graph = f"{{source}} ! roidetect name=detect model={TINY / 'mask.onnx'} device=CPU ! {{json}} masks={form} ! {{video}}"
        (tmp_path / "masks.toml").write_text(f'version = 1\nname = "m"\ndescription = "d"\n[pipeline]\ngraph = "{graph}"\n')
        [frame] = ov.Pipeline(tmp_path / "masks.toml", input="test:", frames=1)
        [found] = [attribute for found in frame.objects for attribute in found.attributes.values() if attribute.kind == "mask"]
        return found.value

    runs, image = mask("runs"), mask("png")
    assert runs.shape == image.shape and ((image >= 128) == (runs == 255)).all() and (runs == 255).any() and (runs == 0).any()


def test_a_missing_command_is_one_sentence_with_the_install_line(monkeypatch, tmp_path):
    monkeypatch.setenv("ROIFLOW_COMMAND", str(tmp_path / "none"))
    with pytest.raises(ov.PipelineError, match="expected a program in ROIFLOW_COMMAND.*make install"):
        pipeline()
    monkeypatch.delenv("ROIFLOW_COMMAND")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ov.PipelineError, match="cannot find the command `roiflow` in PATH. Install it with `make install`"):
        pipeline()


def test_missing_gstreamer_is_one_sentence_with_the_install_line(monkeypatch, tmp_path):
    message = "roiflow: error while loading shared libraries: libgstapp-1.0.so.0: cannot open shared object file: No such file"
    with pytest.raises(ov.PipelineError, match="because GStreamer is missing .*libgstapp.*apt-get install libgst"):
        list(fake(tmp_path, monkeypatch, f"echo '{message}' >&2; exit 127"))


PROGRAM = """
import os, sys, roiflow
made = roiflow.Pipeline(model=sys.argv[1], device="CPU", input=sys.argv[2])
for frame in made:
    if frame.index == 0:
        print(made.pid, flush=True)
        if sys.argv[3:] == ["exit"]:
            frames = iter(roiflow.Pipeline(model=sys.argv[1], device="CPU", input=sys.argv[2]))
            next(frames)
            sys.exit(0)
"""


def program(*arguments):
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(RECTANGLE), ENDLESS, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@needs_command
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=["SIGKILL", "SIGTERM", "SIGINT"])
def test_the_command_ends_with_the_python_process(number):
    with program() as python:
        pid = int(python.stdout.readline())
        time.sleep(0.2)
        python.send_signal(number)
        assert python.wait(20) == (-number)
        error = python.stderr.read()
        assert ("KeyboardInterrupt" in error) == (number == signal.SIGINT), error
    assert has_ended(pid)


def test_a_command_without_results_ends_if_python_is_killed(tmp_path, monkeypatch):
    # The command writes no further results, as with a lost camera. So it cannot notice that its pipe has no reader.
    fake(tmp_path, monkeypatch, f"echo '{json.dumps(line())}'; exec sleep 600")
    with program() as python:
        pid = int(python.stdout.readline())
        python.kill()
    assert has_ended(pid)


@needs_command
def test_the_command_ends_with_the_interpreter():
    with program("exit") as python:
        pid = int(python.stdout.readline())
        assert python.wait(20) == 0 and python.stderr.read() == ""
    assert has_ended(pid, 0.5)


def module(*arguments, **options):
    command = [sys.executable, "-m", "roiflow", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@needs_command
def test_python_m_roiflow_is_the_command():
    arguments = ["--model", RECTANGLE, "--device=CPU", "--input=test:", "--frames=2", "--json=-", "--quiet"]
    out, error = module("run", *arguments).communicate(timeout=60)
    assert [json.loads(text)["frame"] for text in out.splitlines()] == [0, 1] and error == ""
    wrong = module("run", "--bad")
    assert "unexpected argument" in wrong.communicate(timeout=60)[1] and wrong.returncode == 2
    failed = module("run", "--model=none.onnx", "--input=test:", "--json=-")
    assert "cannot read model" in failed.communicate(timeout=60)[1] and failed.returncode == 1


@needs_command
def test_python_m_roiflow_run_gets_signals():
    run = module("run", "--model", RECTANGLE, "--device=CPU", f"--input={ENDLESS}", "--json=-", "--quiet")
    pid = run.pid
    run.stdout.readline()
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=20)
    assert run.returncode == 0 and has_ended(pid, 0.1)


@needs_command
def test_the_reader_of_python_m_roiflow_run_may_close_the_pipe():
    run = module("run", "--model", RECTANGLE, "--device=CPU", f"--input={ENDLESS}", "--json=-", "--quiet")
    run.stdout.readline()
    run.stdout.close()
    assert run.wait(20) == -signal.SIGPIPE
    assert run.stderr.read() == ""
    run.stderr.close()


def test_python_m_roiflow_without_the_command_says_so(tmp_path):
    run = module("run", env={**os.environ, "ROIFLOW_COMMAND": str(tmp_path / "none")})
    assert "make install" in run.communicate(timeout=60)[1] and run.returncode == 1


@needs_command
def test_the_example_prints_frames():
    command = [sys.executable, str(ROOT / "python" / "examples" / "pipeline.py"), "detect", "test:3", f"model={RECTANGLE}", "device=CPU"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "3 frames, {'rectangle': 3}"


# --- roiflow.gst

GST = """
import sys
import gi
gi.require_version("Gst", "1.0")
from gi.repository import Gst
import roiflow.gst

Gst.init(None)
if sys.argv[1:] == ["no plugin"]:
    try:
        roiflow.gst.results(Gst.Buffer())
    except roiflow.NotFound as error:
        print(error)
    sys.exit()
try:
    roiflow.gst.results("a text")
except TypeError as error:
    print(error)
print(roiflow.gst.results(Gst.Buffer()))
graph = "videotestsrc num-buffers=200 pattern=red ! video/x-raw,format=RGB,width=320,height=240 ! "
graph += f"roidetect model={sys.argv[1]} device=CPU ! roiclassify model={sys.argv[2]} device=CPU ! identity name=change ! "
graph += "roitrack name=after ! fakesink name=sink"
pipeline = Gst.parse_launch(graph)
frames = []

def on_buffer(pad, info):
    frames.append(roiflow.gst.results(info.get_buffer(), 320, 240))
    return Gst.PadProbeReturn.OK

changed = []

def change(pad, info):
    found = roiflow.gst.add_object(info, (10, 20, 30, 60), "dog", parent=0, track_id=7)
    roiflow.gst.add_attribute(info, found, "fur", "brown", confidence=0.5)
    roiflow.gst.add_attribute(info, found, "age", 3)
    for act, error in (
        (lambda: roiflow.gst.remove_object(info, 2), IndexError),
        (lambda: roiflow.gst.remove_object(info, -1), IndexError),
        (lambda: roiflow.gst.add_attribute(info, 2, "age", 3), IndexError),
        (lambda: roiflow.gst.add_object(info, (500, 0, 600, 10)), ValueError),
        (lambda: roiflow.gst.remove_object(info.get_buffer(), 0), ValueError),
    ):
        try:
            act()
            print("no error")
        except error:
            pass
    roiflow.gst.remove_object(info, 0)
    return Gst.PadProbeReturn.OK

def after(pad, info):
    changed.append(roiflow.gst.results(info))
    return Gst.PadProbeReturn.OK

pipeline.get_by_name("change").get_static_pad("sink").add_probe(Gst.PadProbeType.BUFFER, on_buffer)
pipeline.get_by_name("change").get_static_pad("src").add_probe(Gst.PadProbeType.BUFFER, change)
pipeline.get_by_name("after").get_static_pad("src").add_probe(Gst.PadProbeType.BUFFER, after)
pipeline.set_state(Gst.State.PLAYING)
message = pipeline.get_bus().timed_pop_filtered(30 * Gst.SECOND, Gst.MessageType.EOS | Gst.MessageType.ERROR)
pipeline.set_state(Gst.State.NULL)
assert message is not None and message.type == Gst.MessageType.EOS, message and message.parse_error()
assert [frame.index for frame in frames] == list(range(200))
assert {(frame.objects[0].box, frame.objects[0].attributes["color"].value) for frame in frames} == {((0, 0, 320, 240), "red")}
print(frames[-1], frames[-1].objects, frames[-1].stream)
assert len(changed) == 200
for frame in changed:
    (dog,) = frame.objects
    box = tuple(round(value, 3) for value in dog.box)  # The plugin has fractions of the frame.
    seen = (dog.label, box, dog.track_id, dog.attributes["fur"].value, dog.attributes["age"].value, str(dog.confidence))
    assert seen == ("dog", (10, 20, 30, 60), 7, "brown", 3.0, "nan"), seen
"""


def system_python(folder, *arguments, plugins):
    """Runs the program in the system's Python, which has GStreamer's bindings, with this installed package."""
    python = "/usr/bin/python3"
    site = pathlib.Path(ov.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(site), "GST_PLUGIN_PATH": str(plugins), "GST_REGISTRY": str(folder / "registry")}
    needs = "import gi, sys, numpy; gi.require_version('Gst', '1.0'); assert sys.version_info[:2] == " + repr(sys.version_info[:2])
    has = subprocess.run([python, "-c", needs], env=environment, capture_output=True, text=True, check=False) if os.path.exists(python) else None
    if has is None or has.returncode != 0:
        pytest.skip("no Python bindings of GStreamer for this version of Python; install python3-gi and gir1.2-gstreamer-1.0")
    return subprocess.run([python, "-c", GST, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_results_of_a_buffer_are_those_of_the_plugin(tmp_path):
    plugin = os.environ.get("ROIFLOW_PLUGIN")
    if plugin is None:
        pytest.skip("ROIFLOW_PLUGIN names no plugin")
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "libgstroiflow.so").symlink_to(plugin)
    done = system_python(tmp_path, RECTANGLE, COLOR, plugins=tmp_path / "plugins")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "buffer: expected a Gst.Buffer, or the Gst.PadProbeInfo of a probe, got <class 'str'>",
        "None",
        "<Frame 199: 1 objects> [<FrameObject: rectangle 1.00 at [0.0, 0.0, 320.0, 240.0] {'color': 'red'}>] None",
    ]


def test_a_missing_plugin_is_one_sentence_with_the_install_line(tmp_path):
    done = system_python(tmp_path, "no plugin", plugins=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "cannot find roiflow's plugin. Install it with `make install`" in done.stdout


def test_missing_bindings_of_gstreamer_are_one_sentence_with_the_install_line():
    program = "import sys; sys.modules['gi'] = None\nimport roiflow.gst\nroiflow.gst.results(None)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "ImportError: roiflow.gst needs GStreamer's Python bindings" in done.stderr and "apt-get install python3-gi" in done.stderr
