"""Writes line.txt and zone.txt: drawn paths, and what LineZone and PolygonZone of the package `supervision` count.

Run in this folder: python3 make.py (needs numpy and supervision 0.31.2). Rows: frame, track ID, x and y of the middle of the bottom edge,
and for line.txt `in`, `out` or `-`, for zone.txt 1 if the object is inside. The rules of both programs agree without hysteresis, for a line
from edge to edge of the frame, and away from the border of the zone, where PolygonZone rounds to pixels.
"""
import numpy as np
import supervision as sv

SEED = 20261125
N_FRAMES, N_OBJECTS, SIZE = 80, 6, 200
CORNERS = np.array([[40, 30], [160, 60], [150, 170], [90, 110], [30, 150]])


def paths(rng, is_far):
    position = rng.uniform(0, SIZE, (N_OBJECTS, 2))
    for _ in range(N_FRAMES):
        step = np.clip(position + rng.normal(0, 25, position.shape), 1, SIZE - 1).round(1)
        position = np.where([[is_far(point)] for point in step], step, position)
        yield position


def detections(position):
    boxes = np.c_[position - (10, 30), position + (10, 0)]
    return sv.Detections(xyxy=boxes, class_id=np.zeros(N_OBJECTS, int), tracker_id=np.arange(1, N_OBJECTS + 1))


def rows(file, frame, position, words):
    for track, ((x, y), word) in enumerate(zip(position, words), 1):
        print(frame, track, f"{x:g}", f"{y:g}", word, file=file)


line = sv.LineZone(sv.Point(0, 120), sv.Point(SIZE, 80), triggering_anchors=[sv.Position.BOTTOM_CENTER])
with open("line.txt", "w") as file:
    for frame, position in enumerate(paths(np.random.default_rng(SEED), lambda point: 12 < point[0] < SIZE - 12)):
        ins, outs = line.trigger(detections(position))
        rows(file, frame, position, ["in" if i else "out" if o else "-" for i, o in zip(ins, outs)])


def is_far_from_border(point):
    ends = np.roll(CORNERS, -1, axis=0)
    along = ends - CORNERS
    share = np.clip(((point - CORNERS) * along).sum(1) / (along**2).sum(1), 0, 1)
    return np.linalg.norm(point - CORNERS - share[:, None] * along, axis=1).min() > 2


zone = sv.PolygonZone(CORNERS, triggering_anchors=[sv.Position.BOTTOM_CENTER])
with open("zone.txt", "w") as file:
    for frame, position in enumerate(paths(np.random.default_rng(SEED), is_far_from_border)):
        rows(file, frame, position, zone.trigger(detections(position)).astype(int))
