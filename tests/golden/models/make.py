"""Writes golden results of real models: computed with OpenCV, numpy and the Python packages of engines on stored images.

Needs the development set in the folder `ROIFLOW_MODELS`, or next to the project. The set has models, images, their results, and
`reference/decoders.py`: the plain pre- and postprocessing with which these results were computed. The set already has the results of
UltraFace (NHWC), gender, age, YOLOX, vehicle-detection-0200 and EfficientNet, so this script does not compute them again.

    python3 -m venv env && env/bin/pip install onnxruntime==1.31.1 openvino==2026.4.1 opencv-python-headless==4.12.0.88 "numpy<2.3"
    env/bin/python make.py

A line of a file has an image and two results: for `u8`, the image was resized with 8 bits, and for `exact`, in floating point. For a
detector, a result is a list of [x1, y1, x2, y2, score, class] in pixels. For a classifier, it is a list of crops, each with its pixels [x1,
y1, x2, y2] (right and bottom exclusive) and the values of each output. The first line of a file has the versions of the programs.
"""

import importlib.metadata
import json
import os
import pathlib
import sys

import cv2
import numpy as np
import onnxruntime
import openvino

FOLDER = pathlib.Path(__file__).resolve().parent
SET = pathlib.Path(os.environ.get("ROIFLOW_MODELS", FOLDER.parents[2].parent / "shared" / "models"))
sys.path.insert(0, str(SET / "reference"))
import decoders  # noqa: E402

FACES = ["demo_A_face_gender_age", "demo_A2_faces_grid"]
N_CROPS = 24  # maximum number of crops per classifier
LEAST = 24  # minimum width and height in pixels of a box that is classified


def onnx(file):
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(SET / "models" / file, options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_outputs()]
    return lambda x: dict(zip(names, session.run(None, {session.get_inputs()[0].name: x})))


def ir(file):
    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().compile_model(SET / "models" / file, "CPU", options)
    return lambda x: {name: np.array(value) for port, value in model([x]).items() for name in port.names}


def frames(*names):
    """Yields the paths of stored frames, with the reference boxes in each frame, in pixels."""
    for name in names:
        for line in open(SET / "reference" / f"{name}.jsonl"):
            answer = json.loads(line)
            if answer["png"]:
                yield f"reference/{answer['png']}", [found["bbox"] for found in answer["objects"]]


def rounded(values, digits=6):
    return [round(float(value), digits) for value in np.asarray(values).ravel()]


def both(answer, image):
    """Returns the results for the image resized with 8 bits, and for the image resized in floating point."""
    return {"u8": answer(image), "exact": answer(image.astype(np.float32))}


def detections(file, pictures, engine, pre, post):
    run = engine(file)

    def answer(image):
        return [rounded(row[:4], 3) + rounded(row[4:5]) + [int(row[5])] for row in post(run(pre(image)), image)]

    for picture, _ in pictures:
        yield {"picture": picture, **both(answer, cv2.imread(str(SET / picture)))}


def classifications(file, pictures, engine, pre, keys):
    run = engine(file)
    n_crops = 0
    for picture, boxes in pictures:
        image = cv2.imread(str(SET / picture))
        crops = [decoders.crop(image, box)[1] for box in boxes[: N_CROPS - n_crops]]
        crops = [(x, y, right, bottom) for x, y, right, bottom in crops if min(right - x, bottom - y) >= LEAST]
        n_crops += len(crops)

        def answer(image):
            outputs = [run(pre(image[y:bottom, x:right])) for x, y, right, bottom in crops]
            values = [{name: rounded(output[key]) for name, key in keys.items()} for output in outputs]
            return [{"crop": crop, **said} for crop, said in zip(crops, values)]

        if crops:
            yield {"picture": picture, **both(answer, image)}


def detection_output(outputs, image):
    """Decodes rows of image index, class, score and corners in 0 to 1. A negative image index ends the list of rows."""
    height, width = image.shape[:2]
    rows = outputs["detection_out"].reshape(-1, 7)
    ends = np.flatnonzero(rows[:, 0] < 0)
    rows = rows[: ends[0]] if len(ends) else rows
    rows = rows[rows[:, 2] > 0.5]
    return np.c_[rows[:, 3:7] * [width, height, width, height], rows[:, 2], rows[:, 1]]


def stretched(width, height):
    return lambda image: decoders.nchw(decoders.stretch(image, width, height))


def emotion(crop):
    gray = cv2.cvtColor(crop, cv2.COLOR_BGR2GRAY)
    return ((decoders.stretch(gray, 64, 64).astype(np.float32) / 255 - 0.5) * 2)[None, :, :, None]


def person(crop):
    """Returns the input of a model with width 128 and height 256, NHWC."""
    return decoders.stretch(crop, 128, 256).astype(np.float32)[None]


def unit(run):
    def normalized(x):
        outputs = run(x)
        vector = next(iter(outputs.values())).ravel()
        return {"vector": vector / np.linalg.norm(vector)}

    return normalized


ATTRIBUTES = "vehicle-attributes-recognition-barrier-0039"
FACE = "face-detection-retail-0004"
STREET = "dev_B_yolox_imagenet_vehicle"
HEADS = {"type": "type", "color": "color"}
CASES = {
    "version-RFB-320.onnx": lambda file: detections(
        file, frames(*FACES), onnx, decoders.ultraface_pre, decoders.ultraface_post
    ),
    "nanodet_m_320.onnx": lambda file: detections(
        file,
        frames(STREET),
        onnx,
        lambda image: decoders.nanodet_pre(image, 320, 320),
        lambda outputs, image: decoders.nanodet_post(outputs, image, 320, 320),
    ),
    f"{FACE}.xml": lambda file: detections(
        file, frames(*FACES), ir, stretched(300, 300), detection_output
    ),
    f"int8/{FACE}-int8.xml": lambda file: detections(
        file, frames(*FACES), ir, stretched(300, 300), detection_output
    ),
    f"{ATTRIBUTES}.onnx": lambda file: classifications(file, frames(STREET, "dev_C_omz_vehicle_attributes"), onnx, stretched(72, 72), HEADS),
    f"int8/{ATTRIBUTES}-int8.xml": lambda file: classifications(
        file, frames(STREET, "dev_C_omz_vehicle_attributes"), ir, stretched(72, 72), HEADS
    ),
    "emotion_mini_xception.onnx": lambda file: classifications(file, frames(*FACES), onnx, emotion, {"emotion": "predictions"}),
    "person-reidentification-retail-0288.onnx": lambda file: classifications(
        file, [next(frames(STREET))] + [*frames(STREET)][4:6], lambda file: unit(onnx(file)), person, {"identity": "vector"}
    ),
}


def main():
    packages = {name: importlib.metadata.version(name) for name in ("onnxruntime", "openvino", "opencv-python-headless")}
    for file, case in CASES.items():
        lines = list(case(file))
        with open(FOLDER / f"{pathlib.Path(file).stem}.jsonl", "w") as out:
            print(json.dumps({"model": f"models/{file}", "made with": packages}), file=out)
            for line in lines:
                print(json.dumps(line), file=out)
        print(file, len(lines), "pictures,", sum(len(line["u8"]) for line in lines), "answers")


main()
