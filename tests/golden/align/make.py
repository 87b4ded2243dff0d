"""Writes cases.json and data.bin: small frames with keypoints, and aligned images as face recognition programs compute them.

Run in this folder: python3 make.py (needs numpy, opencv-python-headless and scikit-image; cases.json has their versions). The target
positions of the five keypoints are those of InsightFace for ArcFace, in an input of 112x112. scikit-image's SimilarityTransform computes
the transform. Each case has two images:
  - `exact`: computed from the definition in float64. A pixel of the input is interpolated bilinearly at its position in the frame. Integer
    positions are pixel centers, and pixels outside the frame have the value `pad`.
  - `opencv`: cv2.warpAffine(INTER_LINEAR, BORDER_CONSTANT) on 8 bits. OpenCV 4 rounds positions to 1/32 of a pixel, so steep edges
    differ by several levels. OpenCV 5 does not.
data.bin has the bytes of all frames and images, in row-major order. cases.json has their offsets.
"""
import json

import cv2
import numpy as np
import skimage
from skimage.transform import SimilarityTransform

SEED = 20261122
# arcface_dst of insightface's utils/face_align.py, in fractions of 112.
TARGETS = np.array([[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]) / 112
# Frame size, input size, face size in pixels, face center, angle in degrees.
SHAPES = [
    ((60, 50), (20, 20), 30, (30, 25), 0),
    ((60, 50), (20, 20), 24, (33, 22), 25),
    ((60, 50), (16, 24), 30, (28, 30), -40),
    ((50, 40), (24, 24), 12, (20, 18), 10),
    ((60, 50), (20, 20), 40, (8, 10), -15),
    ((40, 30), (20, 20), 30, (39, 29), 170),
    ((30, 30), (12, 12), 20, (90, 15), 0),
]


def smooth(rng, width, height):
    """Returns a random frame without sharp edges."""
    small = rng.integers(0, 256, (6, 6, 3)).astype(np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def exact(frame, frame_from_input, size, pad):
    height, width = frame.shape[:2]
    out = np.zeros((size[1], size[0], 3))
    for y in range(size[1]):
        for x in range(size[0]):
            px, py = frame_from_input[:2] @ [x, y, 1]
            x0, y0 = int(np.floor(px)), int(np.floor(py))
            for dy, wy in ((0, 1 - (py - y0)), (1, py - y0)):
                for dx, wx in ((0, 1 - (px - x0)), (1, px - x0)):
                    inside = 0 <= x0 + dx < width and 0 <= y0 + dy < height
                    out[y, x] += wx * wy * (frame[y0 + dy, x0 + dx] if inside else pad)
    return out


def main():
    rng = np.random.default_rng(SEED)
    cases, blobs, end = [], [], 0

    def append(array):
        nonlocal end
        raw = np.ascontiguousarray(array).tobytes()
        blobs.append(raw + b"\0" * (-len(raw) % 4))
        start, end = end, end + len(blobs[-1])
        return [start, len(raw)]

    for index, ((width, height), size, extent, center, degrees) in enumerate(SHAPES):
        frame = smooth(rng, width, height)
        angle = np.deg2rad(degrees)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        # Add noise, because the keypoints of a real face never equal the targets exactly.
        keypoints = ((TARGETS - 0.5) * extent + rng.normal(0, 0.03 * extent, (5, 2))) @ turn.T + center
        keypoints = keypoints.astype(np.float32)
        transform = SimilarityTransform.from_estimate(keypoints.astype(np.float64), TARGETS * size)
        input_from_frame = transform.params
        pad = [0, 114][index % 2]
        warped = cv2.warpAffine(frame, input_from_frame[:2], size, flags=cv2.INTER_LINEAR, borderValue=(pad,) * 3)
        cases.append({
            "size": [width, height], "input": list(size), "pad": pad, "keypoints": [[float(v) for v in point] for point in keypoints],
            "frame": append(frame), "exact": append(exact(frame, np.linalg.inv(input_from_frame), size, pad).astype("<f4")),
            "opencv": append(warped),
        })  # fmt: skip
    versions = {"opencv": cv2.__version__, "scikit-image": skimage.__version__, "numpy": np.__version__}
    head = f'"seed":{SEED},"versions":{json.dumps(versions)},"targets":{json.dumps(TARGETS.tolist())}'
    with open("cases.json", "w") as file:
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        file.write(f'{{{head},"cases":[\n{lines}\n]}}\n')
    with open("data.bin", "wb") as file:
        file.write(b"".join(blobs))
    for case in cases:
        fetch = lambda key, kind: np.frombuffer(b"".join(blobs)[case[key][0] :][: case[key][1]], kind).astype(float)
        print(case["size"], "opencv differs by at most", np.abs(fetch("exact", "<f4") - fetch("opencv", np.uint8)).max())
    print(len(cases), "cases,", end, "bytes of data")


if __name__ == "__main__":
    main()
