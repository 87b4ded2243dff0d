"""Writes sort.txt and bytetrack.txt: drawn boxes, and the track IDs that the package `trackers` gives them.

Run in this folder: python3 make.py (needs numpy, supervision and trackers 2.6.1). The boxes are random walks with noise, missing boxes
and false boxes, from a fixed seed. Rows: frame, left, top, right, bottom, confidence, track ID (0: none).
"""
import numpy as np
import supervision as sv
import trackers

SEED = 20261125
N_FRAMES, N_OBJECTS = 60, 9


def frames(rng):
    """Boxes of each frame, in tenths of pixels, so that text keeps them exactly."""
    position = rng.uniform((0, 0), (560, 360), (N_OBJECTS, 2))
    speed = rng.uniform(-7, 7, (N_OBJECTS, 2))
    size = rng.uniform((30, 50), (60, 110), (N_OBJECTS, 2))
    gone_until = np.zeros(N_OBJECTS, int)
    for frame in range(N_FRAMES):
        speed += rng.normal(0, 0.6, speed.shape)
        position += speed
        corner = position + rng.normal(0, 1.5, position.shape)
        boxes = np.c_[corner, corner + size * rng.normal(1, 0.03, size.shape)]
        confidence = np.clip(rng.normal(0.75, 0.2, N_OBJECTS), 0.15, 0.99)
        # Objects are hidden for a few frames. Some are hidden for longer than a track lives.
        begins = (rng.random(N_OBJECTS) < 0.05) & (gone_until <= frame)
        gone_until = np.where(begins, frame + rng.integers(1, 10, N_OBJECTS), gone_until)
        boxes, confidence = boxes[gone_until <= frame], confidence[gone_until <= frame]
        if rng.random() < 0.3:
            false = rng.uniform((0, 0), (560, 360))
            boxes, confidence = np.r_[boxes, [[*false, *(false + (40, 80))]]], np.r_[confidence, rng.uniform(0.2, 0.8)]
        yield boxes.round(1), confidence.round(2)


def write(name, tracker):
    with open(f"{name}.txt", "w") as file:
        for frame, (boxes, confidence) in enumerate(frames(np.random.default_rng(SEED)), 1):
            classes = np.arange(len(boxes))
            found = tracker.update(sv.Detections(xyxy=boxes, confidence=confidence, class_id=classes))
            # The order of the result differs from that of the input; class_id is the position in the input.
            ids = np.zeros(len(boxes), int)
            for position, track in zip(found.class_id, found.tracker_id):
                ids[position] = track + 1
            for box, score, track in zip(boxes, confidence, ids):
                print(*(f"{value:g}" for value in (frame, *box, score, track)), file=file)


write("sort", trackers.SORTTracker(minimum_consecutive_frames=3, minimum_iou_threshold=0.3, track_activation_threshold=0.0, lost_track_buffer=5))
write("bytetrack", trackers.ByteTrackTracker(minimum_consecutive_frames=2, minimum_iou_threshold=0.1, high_conf_det_threshold=0.6,
                                             track_activation_threshold=0.7, lost_track_buffer=5))
