"""Reads gray PNG images whose pixels are the cells of masks and maps. With `masks=png` and `maps=png`, the command writes such images."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import numpy.typing as npt

# Size of the signature at the begin of a file. The chunks follow.
_SIGNATURE_BYTES = 8


def read_gray(text: str, shape: tuple[int, int]) -> npt.NDArray[np.uint16]:
    """Decode a gray PNG image in base64 with 8 or 16 bits per pixel to an array [rows, columns].

    Raises ValueError if the image has another shape, or is no such image.
    """
    try:
        header, packed = _chunks(base64.b64decode(text))
        columns, rows, n_bits, color, _, _, interlacing = struct.unpack(">IIBBBBB", header)
        if (rows, columns) != shape or n_bits not in (8, 16) or color != 0 or interlacing != 0:
            raise ValueError(f"got {columns}x{rows} pixels of {n_bits} bits, color type {color}, interlacing {interlacing}")
        n_pixel_bytes = n_bits // 8
        lines = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(rows, 1 + columns * n_pixel_bytes)
        pixels = np.zeros((rows, columns * n_pixel_bytes), np.uint8)
        above = pixels[0]
        for line, row in zip(lines, pixels):
            row[:] = _without_filter(int(line[0]), line[1:], above, n_pixel_bytes)
            above = row
    except (ValueError, IndexError, struct.error, zlib.error) as error:
        raise ValueError(f"expected a gray PNG image of {shape[1]}x{shape[0]} pixels: {error}") from error
    return pixels.view(">u2" if n_pixel_bytes == 2 else np.uint8).astype(np.uint16)


def _chunks(file: bytes) -> tuple[bytes, bytes]:
    """The header, and the compressed pixels of all their chunks. A chunk is: size, type, data, checksum."""
    header, packed, place = b"", b"", _SIGNATURE_BYTES
    while place < len(file):
        n_bytes, kind = struct.unpack_from(">I4s", file, place)
        data = file[place + 8 : place + 8 + n_bytes]
        if kind == b"IHDR":
            header = data
        elif kind == b"IDAT":
            packed += data
        place += n_bytes + 12
    return header, packed


def _without_filter(kind: int, line: npt.NDArray[np.uint8], above: npt.NDArray[np.uint8], n_pixel_bytes: int) -> npt.NDArray[np.uint8]:
    """Undo the filter of a line: each byte was stored as its difference from a prediction, modulo 256."""
    if kind == 0:
        return line
    if kind == 1:
        return np.cumsum(line.reshape(-1, n_pixel_bytes), axis=0, dtype=np.uint8).reshape(-1)
    if kind == 2:
        return line + above
    if kind not in (3, 4):
        raise ValueError(f"got the unknown filter {kind}")
    # The left byte and the corner byte are 0 at the begin of a line.
    values, before = bytearray(n_pixel_bytes) + line.tobytes(), bytes(n_pixel_bytes) + above.tobytes()
    for index in range(n_pixel_bytes, len(values)):
        left, up, corner = values[index - n_pixel_bytes], before[index], before[index - n_pixel_bytes]
        if kind == 3:
            predicted = (left + up) // 2
        else:
            # Paeth's prediction: the neighbor that is nearest to `left + up - corner`; of equally near ones, the first.
            predicted = min((left, up, corner), key=lambda value: abs(left + up - corner - value))
        values[index] = (values[index] + predicted) % 256
    return np.frombuffer(bytes(values[n_pixel_bytes:]), np.uint8)
