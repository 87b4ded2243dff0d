"""Images of frames in memory that is shared with the command `roiflow`.

The memory is an anonymous file. The command writes the pixels of a frame to a free slot, and the JSON line of the frame contains the offset
of the slot. The image is an array over the mapped slot, without a copy. When the last array over the slot is gone, the slot is returned to
the command, which then uses it for another frame.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import fcntl
import mmap
import os
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

# The file uses memory only where the command has written to it. Its size is larger than the memory of any machine, so it never has to grow.
_SIZE = 1 << 40
# From <linux/fcntl.h>, for versions of Python without these names.
_ADD_SEALS, _SEAL_SHRINK, _SEAL_GROW = 1033, 2, 4


class FrameMemory:
    """Memory for the images of one run of the command. Only one thread may read images at a time."""

    def __init__(self) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError(errno.ENOSYS, "images of frames: expected Linux, because they are passed in its anonymous files")
        self.descriptor = os.memfd_create("roiflow-frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, _SIZE)
            # A mapped file that shrinks would end this process.
            fcntl.fcntl(self.descriptor, _ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW)
        except OSError:
            os.close(self.descriptor)
            raise
        self._maps: dict[int, mmap.mmap] = {}
        # Offsets of the slots whose arrays were freed. Any thread may free an array, so slots are added with `append`, which is atomic.
        self._freed: collections.deque[int] = collections.deque()
        self._answers: list[str] = []

    def image(self, place: Mapping[str, int]) -> npt.NDArray[np.uint8]:
        """Return the image [H, W, 3], without a copy. `place` is the key `image` of the JSON line: offset, width and height."""
        offset, width, height = place["offset"], place["width"], place["height"]
        n_bytes = width * height * 3
        mapped = self._maps.get(offset)
        if mapped is None or len(mapped) < n_bytes:
            mapped = self._maps[offset] = mmap.mmap(self.descriptor, n_bytes, offset=offset)
        # All arrays over the slot refer to this object. So it is freed when the last array is freed.
        owner = (ctypes.c_uint8 * n_bytes).from_buffer(mapped)
        weakref.finalize(owner, self._freed.append, offset)
        self._answers.append(f"read {offset}\n")
        return np.frombuffer(memoryview(owner), np.uint8).reshape(height, width, 3)

    def answers(self) -> bytes:
        """Return the messages for the command since the last call: which images were read, and which slots are free."""
        while self._freed:
            self._answers.append(f"free {self._freed.popleft()}\n")
        answers, self._answers = self._answers, []
        return "".join(answers).encode()

    def close(self) -> None:
        """Close the file. Existing arrays stay valid."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self._maps.clear()


def checked_color(color: Any) -> str | None:
    """Check the argument `image` of a pipeline."""
    if color is None or color in ("rgb", "bgr"):
        return color  # type: ignore[no-any-return]
    raise ValueError(f'image: expected None, "rgb" or "bgr", got {color!r}')
