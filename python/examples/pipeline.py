"""Runs a pipeline on a video or cameras, prints the objects of each frame, and at the end their numbers. Ctrl-C ends the program.

`python pipeline.py PIPELINE INPUT... [NAME=VALUE...]`, such as `python pipeline.py faces video.mp4`. Needs the command `roiflow`.
"""

import collections
import sys

import roiflow

pipeline, *rest = sys.argv[1:] or [__doc__]
inputs = [text for text in rest if "=" not in text or "://" in text]
parameters = dict(text.split("=", 1) for text in rest if text not in inputs)
if not inputs:
    raise SystemExit(__doc__)

n_frames, labels = 0, collections.Counter()
with roiflow.Pipeline(pipeline, input=inputs, parameters=parameters) as frames:
    try:
        for frame in frames:
            n_frames += 1
            for found in frame.objects:
                labels[found.label] += 1
                values = {name: attribute.value for name, attribute in found.attributes.items()}
                print(frame.stream or "", frame.index, found.label, [round(edge) for edge in found.box], found.track_id, values)
    except KeyboardInterrupt:
        print("ended by Ctrl-C")
    except roiflow.PipelineError as error:
        raise SystemExit(str(error)) from error
print(f"{n_frames} frames, {dict(labels)}")
