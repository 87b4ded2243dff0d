"""Pipelines on videos and cameras, run by the command `roiflow`.

A pipeline runs in a child process, not in the Python process, for two reasons:

- The package must not link GStreamer. It stays small, and works on machines without GStreamer.
- A crash of a decoder or a driver ends the child, and raises `PipelineError`. The Python process continues.

The child writes one JSON line for each frame to a pipe. If the program does not read, the pipe fills up, and the child waits. Images are
passed in shared memory, see `_frame_memory`.
"""

from __future__ import annotations

import collections
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from roiflow._frame import Frame
from roiflow._frame_memory import FrameMemory, checked_color
from roiflow._roiflow import Error

__all__ = ["Pipeline", "PipelineError", "find_command"]

Path = Union[str, "os.PathLike[str]"]
ParameterValue = Union[str, bool, int, float, "os.PathLike[str]"]

STOP_SECONDS = 10.0
"""Time from SIGTERM to SIGKILL. The command ends itself 8 seconds after SIGTERM."""
MAX_EVENTS = 1000
MAX_MESSAGE_LINES = 20
_CHUNK = 1 << 16
_INSTALL = "Install it with `make install` in roiflow's source folder, or set ROIFLOW_COMMAND to its path"
_INSTALL_GSTREAMER = (
    "Install it, for example with `apt-get install libgstreamer-plugins-base1.0-0 libgstreamer-plugins-bad1.0-0 gstreamer1.0-plugins-good "
    "gstreamer1.0-libav`"
)
_LOGGER = logging.getLogger("roiflow.pipeline")


class PipelineError(Error):
    """The command `roiflow` is missing, or a pipeline failed. The message contains the error message of the command.

    `exit_code` is the exit code of the command: 2 for wrong arguments, 3 if a part of the inputs failed, negative for a signal; None if
    the command did not start.
    """

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def find_command() -> str:
    """Find the command: first in ROIFLOW_COMMAND, then in PATH, then in the folder of the Python interpreter."""
    chosen = os.environ.get("ROIFLOW_COMMAND")
    if chosen:
        path = shutil.which(chosen)
        if path is None:
            raise PipelineError(f"cannot run the command `roiflow`: expected a program in ROIFLOW_COMMAND, got {chosen!r}. {_INSTALL}.")
        return path
    path = shutil.which("roiflow") or shutil.which("roiflow", path=os.path.dirname(sys.executable))
    if path is None:
        raise PipelineError(f"cannot find the command `roiflow` in PATH. {_INSTALL}.")
    return path


# This script waits until its standard input ends, and then ends the command. Its argument is the process ID of the command.
_WATCH = 'read -r _; kill -TERM "$1"'


def _watch(pid: int) -> subprocess.Popen[bytes] | None:
    """Start a shell that ends the command if this process is killed. Otherwise the command would run until it writes its next result.

    Returns None if the shell cannot be started.
    """
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "sh", str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None


class _Reader:
    """Reads both pipes of a child process, so that the child never blocks because one pipe is full."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None and process.stderr is not None
        self.process = process
        self.out, self.err = process.stdout.fileno(), process.stderr.fileno()
        self.open = {self.out, self.err}
        self.lines: collections.deque[bytes] = collections.deque()
        self.messages: collections.deque[str] = collections.deque(maxlen=MAX_MESSAGE_LINES)
        self._rest: dict[int, list[bytes]] = {self.out: [], self.err: []}
        self._poll = select.poll()
        for pipe in self.open:
            self._poll.register(pipe, select.POLLIN)

    def wait(self, timeout: float | None) -> bool:
        """Wait for data, at most `timeout` seconds, and split it into lines. Returns whether data arrived or a pipe ended."""
        ready = self._poll.poll(None if timeout is None else max(timeout, 0) * 1000)
        for pipe, _ in ready:
            data = os.read(pipe, _CHUNK)
            if not data:
                self._poll.unregister(pipe)
                self.open.discard(pipe)
                if self._rest[pipe]:
                    self._take(pipe, [b""])
                continue
            self._take(pipe, data.split(b"\n"))
        return bool(ready)

    def _take(self, pipe: int, parts: list[bytes]) -> None:
        rest = self._rest[pipe]
        rest.append(parts[0])
        if len(parts) == 1 and pipe in self.open:
            return
        lines = [b"".join(rest), *parts[1:-1]]
        self._rest[pipe] = [parts[-1]] if len(parts) > 1 and parts[-1] else []
        if pipe == self.out:
            self.lines.extend(line for line in lines if line.strip())
            return
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if text:
                self.messages.append(text)
                if text.startswith("warning:") or " WARN " in text[:60]:
                    _LOGGER.warning("%s", text)


def _end(reader: _Reader, watcher: subprocess.Popen[bytes] | None, memory: FrameMemory | None, owner: int) -> None:
    """End a child process: send SIGTERM, read until it has ended, and send SIGKILL after a timeout. Called once for each child."""
    if os.getpid() != owner:
        return  # This process is a fork of the process that started the child, and must not end the child.
    process = reader.process
    try:
        # Read the pipes, and end the shared memory, so that the child is not blocked and can finish its files.
        process.terminate()
        if process.stdin is not None:
            process.stdin.close()
        deadline = time.monotonic() + STOP_SECONDS
        while reader.open and time.monotonic() < deadline and process.poll() is None:
            reader.wait(min(deadline - time.monotonic(), 0.1))
            reader.lines.clear()
        process.wait(max(deadline - time.monotonic(), 0.01))
    except subprocess.TimeoutExpired:
        pass
    finally:
        # End the watcher before its pipe is closed. When the pipe closes, the watcher sends SIGTERM to the process ID of the child, which
        # may belong to another process by then.
        for child in (process, watcher):
            if child is not None and child.poll() is None:
                child.kill()
                child.wait()
        for pipe in (process.stdout, process.stderr, None if watcher is None else watcher.stdin):
            if pipe is not None:
                pipe.close()
        if memory is not None:
            memory.close()


class _Run:
    """One run of the command."""

    def __init__(self, command: Sequence[str], color: str | None) -> None:
        memory = None if color is None else FrameMemory()
        descriptors = () if memory is None else (memory.descriptor,)
        options = [f"--frame-memory={descriptor}:{color}" for descriptor in descriptors]
        try:
            # The child runs in its own session. So Ctrl-C in a terminal reaches only this process, which then ends the child with one
            # signal.
            process = subprocess.Popen(
                [*command[:2], *options, *command[2:]],
                bufsize=0,
                stdin=subprocess.DEVNULL if memory is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=descriptors,
                start_new_session=True,
            )
        except OSError as error:
            if memory is not None:
                memory.close()
            raise PipelineError(f"cannot run the command `{command[0]}`: {error.strerror}. {_INSTALL}.") from error
        self._memory = memory
        self._reader = _Reader(process)
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._is_closing = False
        # The finalizer also ends the child when this object is garbage-collected, and when the interpreter ends.
        self._finalizer = weakref.finalize(self, _end, self._reader, _watch(process.pid), memory, os.getpid())

    @property
    def pid(self) -> int:
        return self._reader.process.pid

    def next_data(self) -> tuple[dict[str, Any], npt.NDArray[np.uint8] | None] | None:
        """The next JSON line with its image; None at the end. Raises PipelineError if the command failed."""
        with self._lock:
            self._thread = threading.get_ident()
            try:
                self._answer()
                line = self._next_line()
                return None if line is None else self._parsed(line)
            finally:
                self._thread = None

    def _parsed(self, line: bytes) -> tuple[dict[str, Any], npt.NDArray[np.uint8] | None]:
        try:
            data: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise PipelineError(f"cannot read results: expected a JSON line from the command, got {line[:200]!r}") from error
        if self._memory is None or (place := data.pop("image", None)) is None:
            return data, None
        image = self._memory.image(place)
        self._answer()
        return data, image

    def _answer(self) -> None:
        """Tell the command which lines were read, and which images are no longer used."""
        pipe = self._reader.process.stdin
        if self._memory is None or pipe is None or pipe.closed:
            return
        if answers := self._memory.answers():
            try:
                pipe.write(answers)
            except OSError:
                pass  # The command has ended. The exit code tells the reason.

    def _next_line(self) -> bytes | None:
        reader = self._reader
        while not self._is_closing and self._finalizer.alive:
            if reader.lines:
                return reader.lines.popleft()
            if reader.out not in reader.open:
                self._finish()
                return None
            reader.wait(None)
        # `close` was called: read until the child has ended.
        self._finalizer()
        return None

    def _finish(self) -> None:
        """Wait for the end of the command after its last line, without a time limit: the command may still finish a large file."""
        reader = self._reader
        while reader.process.poll() is None:
            if reader.err in reader.open:
                reader.wait(0.1)
            else:
                try:
                    reader.process.wait(0.1)
                except subprocess.TimeoutExpired:
                    continue
            if self._is_closing:
                self._finalizer()
                return
        # Read the data that is in the pipe, but do not wait for the end of the pipe: a process that the command started may hold it open.
        while reader.err in reader.open and reader.wait(0):
            pass
        code = reader.process.returncode
        messages = list(reader.messages)
        self._finalizer()
        if code != 0 and not self._is_closing:
            raise PipelineError(_message(code, messages), code)

    def close(self) -> None:
        """End the child and wait for its end. Any thread may call this method, also while another thread waits for a line."""
        self._is_closing = True
        if not self._lock.acquire(blocking=False):
            self._reader.process.terminate()
            if self._thread == threading.get_ident():
                return  # A signal handler called `close` while this thread reads. The interrupted read continues, and ends the child.
            if not self._lock.acquire(timeout=STOP_SECONDS):
                self._reader.process.kill()
                self._lock.acquire()
        try:
            self._finalizer()
        finally:
            self._lock.release()


def _message(code: int, lines: list[str]) -> str:
    """Build the message of a failed command from its last lines, starting with the first error."""
    text = "\n".join(lines)
    if code == 127 or "error while loading shared libraries" in text:
        library = "GStreamer" if "libgst" in text else "a library"
        advice = f" {_INSTALL_GSTREAMER}." if library == "GStreamer" else ""
        return f"the command `roiflow` cannot start, because {library} is missing ({lines[-1] if lines else 'exit code 127'}).{advice}"
    errors = [index for index, line in enumerate(lines) if line.startswith("error:")]
    shown = "\n".join(lines[errors[0] :] if errors else lines).removeprefix("error: ")
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"the command `roiflow` was ended by {name}" + (f": {shown}" if shown else "")
    return shown or f"the command `roiflow` failed with exit code {code}"


def _texts(what: str, values: Path | Iterable[Path]) -> list[str]:
    """Convert a text, a path, or several of these to a list of texts."""
    several: Iterable[Path] = [values] if isinstance(values, (str, os.PathLike)) else values
    if not isinstance(several, Iterable):
        raise TypeError(f"{what}: expected a text or a path, or a list of these, got {type(values)}")
    texts = []
    for value in several:
        text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
        if not isinstance(text, str):
            raise TypeError(f"{what}: expected a text or a path, got {type(value)}")
        texts.append(text)
    return texts


def _parameter(name: str, value: ParameterValue) -> str:
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
    elif isinstance(value, (int, float)):
        text = str(value)
    else:
        raise TypeError(f"{name}: expected a text, a number, a boolean or a path, got {type(value)}")
    return f"--set={name}={text}"


class Pipeline:
    """A pipeline on videos, images or cameras: an iterable of `Frame`.

        for frame in roiflow.Pipeline("faces", input="video.mp4"):
            print(frame.index, frame.objects)

    The command `roiflow` runs the pipeline in a child process. Each `for` loop starts the command, and the end of the loop ends the
    command. A further `for` loop reads the inputs from the beginning. The child waits while the program does not take frames; up to 128 KiB
    of results are buffered. Warnings of the command go to the logger `roiflow.pipeline`.
    """

    def __init__(
        self,
        pipeline: Path | None = None,
        *,
        input: Path | Iterable[Path],
        name: str | Iterable[str] = (),
        classify: Path | Iterable[Path] = (),
        track: bool = False,
        device: str | None = None,
        frames: int | None = None,
        seconds: float | None = None,
        loop: bool = False,
        image: str | None = None,
        arguments: Iterable[str] = (),
        parameters: Mapping[str, ParameterValue] | None = None,
        **named_parameters: ParameterValue,
    ) -> None:
        """Check the arguments and find the command. A `for` loop starts the command.

        - `pipeline`: a pipeline description: a file, or the name of an installed description. Without a description, `model` is a
          detector, `classify` is one or several classifiers, and `track=True` gives each object a track ID.
        - `input`: a video, an image, a folder of images, `rtsp://...`, `v4l2:///dev/video0`, or `test:`; or a list of these.
        - `name`: the names of the streams, in the order of `input`.
        - `device`: the device that runs the models.
        - `frames`, `seconds`: end each stream after this number of frames or seconds of stream time.
        - `loop`: restart the input when it ends.
        - `image`: "rgb" or "bgr", so that each frame has an `image` with colors in this order (OpenCV uses "bgr"). None: no images.
        - `arguments`: further arguments of `roiflow run`, such as `["--video", "out.mp4"]`.
        - other keywords: parameters of the description. `_` stands for `-`: `detector_description` sets `detector-description`.
        - `parameters`: parameters of the description by their exact names.

        Raises PipelineError if there is no command, TypeError and ValueError for wrong arguments. Wrong names of parameters, and inputs
        that cannot be read, raise PipelineError in the `for` loop.
        """
        self._image = checked_color(image)
        self._is_running = False
        self._run: _Run | None = None
        self.events: collections.deque[dict[str, Any]] = collections.deque(maxlen=MAX_EVENTS)
        """The newest 1,000 events of the command: its JSON lines with the key `event`."""
        inputs = _texts("input", input)
        if not inputs:
            raise ValueError("input: expected at least one input, got an empty list")
        values = {**{key.replace("_", "-"): value for key, value in named_parameters.items()}, **(parameters or {})}
        options = [f"--input={text}" for text in inputs]
        options += [f"--name={text}" for text in _texts("name", name)]
        classifiers = _texts("classify", classify)
        if pipeline is None:
            model = values.pop("model", None)
            if model is None and not classifiers:
                raise TypeError("expected a pipeline description, or `model` or `classify`")
            if values:
                raise TypeError(f"expected parameters only with a pipeline description, got {', '.join(values)}")
            if model is not None:
                options += [f"--model={text}" for text in _texts("model", model)]  # type: ignore[arg-type]
            options += [f"--classify={text}" for text in classifiers]
            options += ["--track"] * bool(track)
        elif classifiers or track:
            raise TypeError("`classify` and `track`: expected no pipeline description, because the description has its own elements")
        options += [f"--{key}={value}" for key, value in (("device", device), ("frames", frames), ("seconds", seconds)) if value is not None]
        options += ["--loop"] * bool(loop)
        options += [_parameter(key, value) for key, value in values.items()]
        description = [] if pipeline is None else ["--", *_texts("pipeline", pipeline)]
        if isinstance(arguments, str):
            raise TypeError(f"arguments: expected a list of texts, got the text {arguments!r}")
        self._command = [find_command(), "run", "--quiet", "--json=-", *options, *_texts("arguments", arguments), *description]

    @property
    def command(self) -> list[str]:
        """The command that a `for` loop runs, with its arguments."""
        return list(self._command)

    @property
    def pid(self) -> int | None:
        """The process ID of the running command; None if it does not run."""
        run = self._run
        return None if run is None else run.pid

    def __iter__(self) -> Generator[Frame, None, None]:
        """Run the command. Raises PipelineError if it fails, or if an earlier `for` loop still runs it."""
        if self._is_running:
            raise PipelineError("this pipeline runs already: expected the end of the other loop, or `close()`")
        self._is_running = True
        try:
            self.events.clear()
            run = self._run = _Run(self._command, self._image)
            try:
                while (next_data := run.next_data()) is not None:
                    data, image = next_data
                    if "event" in data:
                        self.events.append(data)
                        continue
                    frame = Frame(data, image)
                    # Keep no reference to the image while the program works on the frame.
                    del next_data, image
                    yield frame
                    del frame
            finally:
                run.close()
        finally:
            self._run, self._is_running = None, False

    def close(self) -> None:
        """End the command with SIGTERM, or with SIGKILL after 10 seconds, and wait for its end. A running `for` loop ends without an error.

        Any thread may call this method. Without a running command, it has no effect.
        """
        run = self._run
        if run is not None:
            run.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Pipeline: {'running' if self._is_running else 'not running'}>"
