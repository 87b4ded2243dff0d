"""Writes cases.json and data.bin: small images, and regions of them that Pillow and torchvision resized with antialiasing.

Run in this folder: python3 make.py (needs numpy, Pillow, torch and torchvision; cases.json has their versions). Three results per case:
  - `pillow_u8`: Image.resize(BILINEAR) of the 8-bit image. Pillow up to 12 filters columns first. Pillow 13 filters rows first if that
    is faster, and single pixels differ by one.
  - `pillow_f32`: Image.resize(BILINEAR) of each channel in single precision (mode F).
  - `torch_f32`: torchvision.transforms.v2.functional.resize(antialias=True), bilinear, of a single-precision tensor.
data.bin has the bytes of all images and results, in row-major order. cases.json has their offsets.
"""
import json

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from torchvision.transforms.v2.functional import resize

SEED = 20261122
# Cases: (width, height) of the image; region as (x, y, width, height); (width, height) of the input. The regions are downscaled, upscaled,
# both (one per axis), or unscaled.
SHAPES = [
    ((40, 30), (0, 0, 40, 30), (13, 9)),
    ((40, 30), (3, 5, 31, 20), (10, 10)),
    ((64, 9), (0, 0, 64, 9), (5, 9)),
    ((9, 64), (1, 1, 7, 60), (7, 4)),
    ((70, 50), (9, 2, 60, 48), (1, 1)),
    ((33, 21), (0, 0, 33, 21), (32, 20)),
    ((12, 40), (2, 3, 9, 36), (20, 11)),
    ((40, 12), (3, 2, 36, 9), (11, 20)),
    ((7, 6), (1, 1, 5, 4), (16, 12)),
    ((16, 16), (2, 2, 11, 9), (11, 9)),
    ((90, 60), (0, 0, 90, 60), (17, 16)),
]


def main():
    rng = np.random.default_rng(SEED)
    cases, blobs, end = [], [], 0

    def append(array):
        nonlocal end
        raw = np.ascontiguousarray(array).tobytes()
        blobs.append(raw + b"\0" * (-len(raw) % 4))
        start, end = end, end + len(blobs[-1])
        return [start, len(raw)]

    for (width, height), (x, y, w, h), size in SHAPES:
        for mode in ("RGB", "GRAY8"):
            channels = 3 if mode == "RGB" else 1
            data = rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
            # Add edges between black and white, so that weighted sums reach both limits of the range.
            data[rng.random((height, width)) < 0.3] = 255
            data[rng.random((height, width)) < 0.3] = 0
            cut = np.ascontiguousarray(data[y : y + h, x : x + w])
            small = np.asarray(Image.fromarray(cut if channels == 3 else cut[..., 0]).resize(size, Image.Resampling.BILINEAR))
            planes = [Image.fromarray(cut[..., c].astype(np.float32)).resize(size, Image.Resampling.BILINEAR) for c in range(channels)]
            tensor = torch.from_numpy(cut.astype(np.float32)).permute(2, 0, 1)
            cases.append({
                "format": mode, "size": [width, height], "region": [x, y, w, h], "input": list(size), "frame": append(data),
                "pillow_u8": append(small), "pillow_f32": append(np.stack([np.asarray(plane) for plane in planes], axis=-1)),
                "torch_f32": append(resize(tensor, [size[1], size[0]], antialias=True).permute(1, 2, 0).numpy()),
            })  # fmt: skip
    versions = {"Pillow": PIL.__version__, "torch": torch.__version__, "torchvision": torchvision.__version__, "numpy": np.__version__}
    with open("cases.json", "w") as file:
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        file.write(f'{{"seed":{SEED},"versions":{json.dumps(versions)},"cases":[\n{lines}\n]}}\n')
    with open("data.bin", "wb") as file:
        file.write(b"".join(blobs))
    print(len(cases), "cases,", end, "bytes of data")


if __name__ == "__main__":
    main()
