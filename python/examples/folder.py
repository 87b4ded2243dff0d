"""Runs a model on the images of a folder concurrently, and prints JSON lines: `python folder.py MODEL FOLDER > results.jsonl`."""

import pathlib
import sys

import roiflow

model, folder = roiflow.load(sys.argv[1]), pathlib.Path(sys.argv[2])
paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".bmp", ".webp"))
n_objects = 0
# `model(paths)` would return a list of all results. A stream holds only the images whose runs are in progress, so the folder may have any
# size.
for number, (path, results) in enumerate(model.stream(paths)):
    n_objects += len(results)
    print(results.to_json(frame=number, source=path.name))
print(f"{len(paths)} images, {n_objects} objects", file=sys.stderr)
