"""Writes cases.json and data.bin: small random frames, and the expected result of preprocessing.

Run in this folder: python3 make_fill.py (needs only numpy). Computes one pixel at a time from the definition:
  - A source pixel is converted to r, g, b in 0..255. Subsampled formats use the chroma sample x >> 1, y >> 1 of the whole frame. Matrix and
    range follow ITU-R BT.601 / 709 / 2020. Colors are clamped, not rounded. Gray is luma only.
  - An input pixel is the bilinear interpolation at (x + 0.5) * s - 0.5, s = region extent / scaled extent, with replicated edges.
  - Rounding "u8" rounds half up after the conversion (and after the conversion to gray), and resizes with integers as OpenCV's
    INTER_LINEAR: weights are multiples of 1/2048, sums of two columns lose their last four bits, products of two rows are truncated to
    quarters, and their sum is rounded half up.
  - The value is (pixel - mean[c]) / scale[c]; for u8 and i8 tensors, it is rounded half up and saturated.
data.bin has the bytes of all frames and expected values. cases.json has their offsets.
"""
import json
import math

import numpy as np

SEED = 20240607
PIXEL_BYTES = {"RGB": 3, "BGR": 3, "RGBx": 4, "BGRx": 4, "RGBA": 4, "BGRA": 4, "GRAY8": 1, "NV12": 1, "I420": 1,
               "P010_10LE": 2, "I420_10LE": 2}
KR_KB = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}


def round_half_up(value):
    return math.floor(value + 0.5)


def make_frame(rng, fmt, width, height):
    """Returns a frame of random samples: (bytes, [(offset, row stride) of each plane]). Planes start at an offset, and rows have
    padding."""
    if fmt in ("P010_10LE", "I420_10LE"):
        data, places = make_frame(rng, {"P010_10LE": "NV12", "I420_10LE": "I420"}[fmt], width, height)
        samples = rng.integers(0, 1024, len(data), dtype=np.uint16) << (6 if fmt == "P010_10LE" else 0)
        return samples.astype("<u2").view(np.uint8), [(2 * offset, 2 * stride) for offset, stride in places]
    chroma_width, chroma_height = (width + 1) // 2, (height + 1) // 2
    planes = {"NV12": [(width, height), (2 * chroma_width, chroma_height)],
              "I420": [(width, height), (chroma_width, chroma_height), (chroma_width, chroma_height)]}
    places, end = [], int(rng.integers(0, 8))
    for row_bytes, n_rows in planes.get(fmt, [(width * PIXEL_BYTES[fmt], height)]):
        stride = row_bytes + int(rng.integers(0, 6))
        places.append((end, stride))
        end += stride * n_rows
    return rng.integers(0, 256, end, dtype=np.uint8), places


def color(case, data, x, y):
    """Returns r, g, b of pixel (x, y) of the whole frame."""
    fmt = case["format"]
    ten = fmt in ("P010_10LE", "I420_10LE")

    def byte(plane, row, column):
        """Returns a sample in 0 to 256. 10-bit samples are divided by 4."""
        offset, stride = case["places"][plane]
        if ten:
            low, high = (int(data[offset + row * stride + 2 * column + i]) for i in (0, 1))
            return (low + 256 * high) / {"P010_10LE": 64, "I420_10LE": 1}[fmt] / 4
        return float(data[offset + row * stride + column])

    # With full range, white is the maximum value of a sample.
    full = 1023 / 4 if ten else 255
    if fmt == "GRAY8":
        luma = (byte(0, y, x) - 16) / 219 if case["range"] == "limited" else byte(0, y, x) / full
        rgb = [min(max(255 * luma, 0.0), 255.0)] * 3
    elif fmt in ("NV12", "I420") or ten:
        if fmt in ("NV12", "P010_10LE"):
            u, v = byte(1, y >> 1, 2 * (x >> 1)), byte(1, y >> 1, 2 * (x >> 1) + 1)
        else:
            u, v = byte(1, y >> 1, x >> 1), byte(2, y >> 1, x >> 1)
        if case["range"] == "limited":
            luma, cb, cr = (byte(0, y, x) - 16) / 219, (u - 128) / 224, (v - 128) / 224
        else:
            luma, cb, cr = byte(0, y, x) / full, (u - 128) / full, (v - 128) / full
        kr, kb = KR_KB[case["matrix"]]
        r = luma + 2 * (1 - kr) * cr
        b = luma + 2 * (1 - kb) * cb
        g = (luma - kr * r - kb * b) / (1 - kr - kb)
        rgb = [min(max(255 * value, 0.0), 255.0) for value in (r, g, b)]
    else:
        start = x * PIXEL_BYTES[fmt]
        three = [byte(0, y, start + i) for i in range(3)]
        rgb = three if fmt.startswith("RGB") else three[::-1]
    if case["rounding"] == "u8":
        rgb = [round_half_up(value) for value in rgb]
    return rgb


def channels(case, data, x, y):
    """Returns the channels of an input pixel, computed from one source pixel."""
    r, g, b = color(case, data, x, y)
    if case["color"] == "gray":
        gray = r if case["format"] == "GRAY8" else 0.299 * r + 0.587 * g + 0.114 * b
        return [round_half_up(gray) if case["rounding"] == "u8" else gray]
    return [r, g, b] if case["color"] == "rgb" else [b, g, r]


def placement(case):
    """Returns (scaled width, scaled height, left, top, frame_from_input). frame_from_input is [scale x, scale y, offset x, offset y]."""
    (_, _, w, h), (width, height) = case["region"], case["input"]
    if case["resize"] == "stretch":
        return width, height, 0, 0, [w / width, h / height, 0.0, 0.0]
    r = min(width / w, height / h)
    if case["resize"] == "letterbox-top-left":
        return max(1, int(w * r)), max(1, int(h * r)), 0, 0, [1 / r, 1 / r, 0.0, 0.0]
    nw, nh = max(1, round(w * r)), max(1, round(h * r))
    left, top = (width - nw) // 2, (height - nh) // 2
    return nw, nh, left, top, [1 / r, 1 / r, -left / r, -top / r]


def fill(case, data):
    """Returns the values of one batch item as a flat array, and frame_from_input (see `placement`)."""
    (x0, y0, w, h), (width, height) = case["region"], case["input"]
    nw, nh, left, top, transform = placement(case)
    n_channels = 1 if case["color"] == "gray" else 3
    out = np.zeros((height, width, n_channels))
    for y in range(height):
        for x in range(width):
            i, j = x - left, y - top
            if 0 <= i < nw and 0 <= j < nh:
                sx, sy = (i + 0.5) * (w / nw) - 0.5, (j + 0.5) * (h / nh) - 0.5
                ix, iy = math.floor(sx), math.floor(sy)
                fx, fy = sx - ix, sy - iy
                pixel = [0.0] * n_channels
                for dy, wy in ((0, 1 - fy), (1, fy)):
                    for dx, wx in ((0, 1 - fx), (1, fx)):
                        column, row = min(max(ix + dx, 0), w - 1), min(max(iy + dy, 0), h - 1)
                        sample = channels(case, data, x0 + column, y0 + row)
                        pixel = [p + wx * wy * s for p, s in zip(pixel, sample)]
                if case["rounding"] == "u8":
                    kx, ky = round(2048 * fx), round(2048 * fy)
                    pixel = [2] * n_channels
                    for dy, wy in ((0, 2048 - ky), (1, ky)):
                        sums = [0] * n_channels
                        for dx, wx in ((0, 2048 - kx), (1, kx)):
                            column, row = min(max(ix + dx, 0), w - 1), min(max(iy + dy, 0), h - 1)
                            sample = channels(case, data, x0 + column, y0 + row)
                            sums = [total + wx * int(s) for total, s in zip(sums, sample)]
                        pixel = [p + (((total >> 4) * wy) >> 16) for p, total in zip(pixel, sums)]
                    pixel = [p >> 2 for p in pixel]
            else:
                pixel = [case["pad"]] * n_channels
            for c in range(n_channels):
                out[y, x, c] = (pixel[c] - case["mean"][c]) / case["scale"][c]
    if case["element"] == "u8":
        out = np.clip(np.floor(out + 0.5), 0, 255).astype(np.uint8)
    elif case["element"] == "i8":
        out = np.clip(np.floor(out + 0.5), -128, 127).astype(np.int8)
    else:
        out = out.astype("<f4")
    if case["layout"] == "nchw":
        out = out.transpose(2, 0, 1)
    return np.ascontiguousarray(out), transform


def main():
    rng = np.random.default_rng(SEED)
    resizes = ["stretch", "letterbox-top-left", "letterbox-center"]
    norms = [([0, 0, 0], [1, 1, 1]), ([127, 127, 127], [128, 128, 128]), ([103.53, 116.28, 123.675], [57.375, 57.12, 58.395])]
    variants = []
    for fmt in PIXEL_BYTES:
        for layout in ("nchw", "nhwc"):
            for resize in resizes:
                for rounding in ("exact", "u8"):
                    variants.append((fmt, layout, resize, rounding, "f32"))
        variants.append((fmt, "nhwc", "stretch", "u8", "u8"))
        variants.append((fmt, "nchw", "letterbox-center", "exact", "u8"))
        variants.append((fmt, "nchw", "stretch", "exact", "i8"))
    yuv = [(m, r) for m in KR_KB for r in ("limited", "full")]
    cases, blobs, end = [], [], 0

    def append(array):
        nonlocal end
        raw = array.tobytes()
        # Padding makes each array begin at a multiple of four bytes. The planes of a frame begin at any offset in its array.
        blobs.append(raw + b"\0" * (-len(raw) % 4))
        start, end = end, end + len(blobs[-1])
        return [start, len(raw)]

    for index, (fmt, layout, resize, rounding, element) in enumerate(variants):
        width, height = int(rng.integers(5, 18)), int(rng.integers(5, 14))
        region = [0, 0, width, height]
        if index % 3:  # a region, mostly at odd offsets
            x, y = int(rng.integers(0, 3)) | index & 1, int(rng.integers(0, 3)) | 1
            region = [x, y, int(rng.integers(1, width - x + 1)), int(rng.integers(1, height - y + 1))]
        matrix, color_range = yuv[index % len(yuv)]
        mean, scale = norms[index % 3] if element == "f32" else norms[0]
        if element == "i8":
            mean = [128, 128, 128]
        data, places = make_frame(rng, fmt, width, height)
        case = {
            "format": fmt, "size": [width, height], "places": places, "matrix": matrix, "range": color_range, "region": region,
            "input": [int(rng.integers(3, 12)), int(rng.integers(3, 12))], "layout": layout, "resize": resize, "rounding": rounding,
            "element": element, "color": ["rgb", "bgr", "rgb", "bgr", "gray"][index % 5], "pad": [114, 0, 255][index % 3],
            "mean": mean, "scale": scale,
        }
        expected, transform = fill(case, data)
        case["frame_from_input"] = transform
        case["frame"], case["expected"] = append(data), append(expected)
        cases.append(case)
    with open("cases.json", "w") as file:
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        file.write(f'{{"seed":{SEED},"cases":[\n{lines}\n]}}\n')
    with open("data.bin", "wb") as file:
        file.write(b"".join(blobs))
    print(len(cases), "cases,", end, "bytes of data")


if __name__ == "__main__":
    main()
