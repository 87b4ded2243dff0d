"""Writes the golden data of decoders with masks, keypoints and rotated boxes, and of detection transformers.

Every case runs the post-processing of a published package with a permissive license: inference-core and libreyolo are executed, nothing is
copied from them. Only the suppression of rotated boxes is written here, from the formula of its paper, because no such package has it.
Run in this folder, with the names of the files to write, or without names for all:

    apt-get install python3-torch python3-torchvision python3-venv
    /usr/bin/python3 -m venv --system-site-packages env && . env/bin/activate
    pip install --no-deps libreyolo==1.6.0 inference-core==1.8.3
    pip install opencv-python-headless==4.10.0.84 "numpy<2"
    python3 make_shapes.py

The format is that of make.py, with more keys:

- `masks`, `poses` or `rotated`: a list with one entry for each box. A mask is [x, y, columns, rows, runs]: its position and size in pixels
  of the input, and the lengths of alternating runs of pixels outside and inside the object, row by row. A pose is a list of [x, y,
  confidence]. A rotated box is a list of its corners.
- `keys`: more keys of the decoder in a description.
- `off`: the tolerance in pixels, because some packages round.
"""

import json
import sys
import types

import numpy as np
from make import FOLDER, box, rounded, version, without_init, written

SIZE = (160, 96)


def objects(rng, n_objects, n_each, n_classes):
    """Boxes of objects, each detected several times: center, size, class scores."""
    rows = []
    for _ in range(n_objects):
        width, height = rng.uniform(24, 70), rng.uniform(20, 50)
        x, y = rng.uniform(width / 2 + 2, SIZE[0] - width / 2 - 2), rng.uniform(height / 2 + 2, SIZE[1] - height / 2 - 2)
        class_id = int(rng.integers(0, n_classes))
        for _ in range(n_each):
            scores = rng.uniform(0, 0.1, n_classes)
            scores[class_id] = rng.uniform(0.4, 0.98)
            rows.append([*(np.array([x, y, width, height]) + rng.normal(0, 0.8, 4)), *scores])
    return rounded(rows)


def smooth(rng, n_maps, rows, columns):
    """Maps of logits with round shapes, as those of models."""
    y, x = np.mgrid[0:rows, 0:columns]
    maps = []
    for _ in range(n_maps):
        center, radius = rng.uniform(0, 1, 2) * [columns, rows], rng.uniform(3, 12)
        maps.append(2 * np.tanh((radius - np.hypot(x - center[0], y - center[1])) / 3))
    return rounded(maps)


def mask_of(mask, corners):
    """Returns a mask in the format of the files. It has the pixels whose left and upper edges are inside the box."""
    x_min, y_min, x_max, y_max = (int(np.clip(np.ceil(value), 0, limit)) for value, limit in zip(corners, (*SIZE, *SIZE)))
    cells = mask[y_min:y_max, x_min:x_max].astype(bool).ravel()
    edges = np.flatnonzero(np.diff(np.concatenate([[False], cells]).astype(np.int8)))
    runs = np.diff([0, *edges.tolist(), cells.size]).tolist()
    return [x_min, y_min, x_max - x_min, y_max - y_min, runs]


def stored(decoder, made_by, outputs, boxes, score=0.25, iou=0.5, **more):
    tensors = [written(name, tensor) for name, tensor in outputs.items()]
    return {"decoder": decoder, "made_by": made_by, "input": list(SIZE), "score": score, "iou": iou, "agnostic": False, **more,
            "outputs": tensors, "boxes": boxes}


def inference_core():
    without_init("inference", "inference.core", "inference.core.utils")
    # Only an exception class is needed from this module, but the module imports many packages.
    sys.modules["inference.core.exceptions"] = types.SimpleNamespace(PostProcessingError=ValueError)
    sys.modules["inference.core.utils.preprocess"] = types.SimpleNamespace(STATIC_CROP_KEY="", static_crop_should_be_applied=None)


def suppressed(rows, n_extra, score, iou):
    """Rows of center, size, score, class scores and more, suppressed by inference-core. Returns corners, score, class score, class, more."""
    from inference.core.nms import w_np_non_max_suppression

    found = w_np_non_max_suppression(rows[None].copy(), conf_thresh=score, iou_thresh=iou, class_agnostic=False, num_masks=n_extra,
                                     box_format="xywh")
    return np.array(found[0], np.float32).reshape(-1, 7 + n_extra)


def is_clear(rows, n_extra):
    """Whether the result does not depend on the IoU threshold. The package adds a pixel to the sizes of boxes."""
    counts = {len(suppressed(rows, n_extra, 0.25, iou)) for iou in (0.4, 0.5, 0.6)}
    return len(counts) == 1


def yolo_seg(decoder):
    inference_core()
    from inference.core.utils.postprocess import process_mask_accurate

    n_classes, n_maps = 3, 4
    made = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        found = objects(rng, 4, 3, n_classes)
        coefficients = rounded(rng.normal(0, 2, (len(found), n_maps)))
        prototypes = smooth(rng, n_maps, SIZE[1] // 4, SIZE[0] // 4)
        objectness = rounded(rng.uniform(0.7, 1, (len(found), 1))) if decoder == "yolov5-seg" else np.ones((len(found), 1), np.float32)
        scores = objectness * found[:, 4:].max(1, keepdims=True)
        rows = np.hstack([found[:, :4], scores, found[:, 4:], coefficients])
        if not is_clear(rows, n_maps) or len(made) == 3:
            continue
        kept = suppressed(rows, n_maps, 0.25, 0.5)
        masks = process_mask_accurate(prototypes, kept[:, 7:], kept[:, :4], (SIZE[1], SIZE[0])) > 0
        boxes = [box(*row[:4], row[4], row[6]) for row in kept]
        if decoder == "yolov5-seg":
            table = np.zeros((1, 3 * 315, 5 + n_classes + n_maps), np.float32)
            table[0, : len(found)] = np.hstack([found[:, :4], objectness, found[:, 4:], coefficients])
        elif decoder == "yolov8-seg":
            table = np.zeros((1, 4 + n_classes + n_maps, 315), np.float32)
            table[0, :, : len(found)] = np.hstack([found, coefficients]).T
        else:
            table = rounded(np.hstack([kept[:, :5], kept[:, 6:]]))[None]
        more = {"masks": [mask_of(mask, row[:4]) for mask, row in zip(masks, kept)]}
        outputs = {"output0": rounded(table), "output1": prototypes[None]}
        by = version("inference-core", "w_np_non_max_suppression, process_mask_accurate")
        made.append(stored(decoder, by, outputs, boxes, iou=0.5, **more))
    return made


def yolo_pose(decoder):
    inference_core()
    made = []
    for seed in range(100):
        n_keypoints = 17 if len(made) == 0 else 5
        rng = np.random.default_rng(seed)
        found = objects(rng, 4, 3, 1)
        keypoints = np.stack([rng.uniform(0, SIZE[0], (len(found), n_keypoints)), rng.uniform(0, SIZE[1], (len(found), n_keypoints)),
                              rng.uniform(0, 1, (len(found), n_keypoints))], -1)
        keypoints = rounded(keypoints.reshape(len(found), -1))
        rows = np.hstack([found[:, :4], found[:, 4:], found[:, 4:], keypoints])
        if not is_clear(rows, 3 * n_keypoints) or len(made) == 2:
            continue
        kept = suppressed(rows, 3 * n_keypoints, 0.25, 0.5)
        if decoder == "yolov8-pose":
            table = np.zeros((1, 5 + 3 * n_keypoints, 315), np.float32)
            table[0, :, : len(found)] = np.hstack([found, keypoints]).T
        else:
            table = rounded(np.hstack([kept[:, :5], kept[:, 6:]]))[None]
        boxes = [box(*row[:4], row[4], row[6]) for row in kept]
        poses = [rounded(row[7:].reshape(-1, 3)).round(4).tolist() for row in kept]
        made.append(stored(decoder, version("inference-core", "w_np_non_max_suppression"), {"output0": rounded(table)}, boxes, poses=poses))
    return made


def probabilistic_iou(one, other):
    """The probabilistic IoU of Llerena et al. 2021, equations 3 to 9, of boxes [x, y, width, height, angle]."""
    def gaussian(of):
        turn = np.array([[np.cos(of[4]), -np.sin(of[4])], [np.sin(of[4]), np.cos(of[4])]])
        return of[:2], turn @ np.diag(of[2:4] ** 2 / 12) @ turn.T

    (mean, variance), (other_mean, other_variance) = gaussian(one), gaussian(other)
    middle, offset = (variance + other_variance) / 2, mean - other_mean
    distance = offset @ np.linalg.inv(middle) @ offset / 8
    distance += 0.5 * np.log(np.linalg.det(middle) / np.sqrt(np.linalg.det(variance) * np.linalg.det(other_variance)))
    return 1 - np.sqrt(max(0.0, 1 - np.exp(-distance)))


def yolo_obb(decoder):
    import torch
    from libreyolo.postprocess.obb_ops import xywhr_to_corners, xywhr_to_xyxy

    n_classes, made = 3, []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        found = objects(rng, 6, 3, n_classes)
        angles = rounded(np.repeat(rng.uniform(-np.pi / 4, 3 * np.pi / 4, 6), 3) + rng.normal(0, 0.02, len(found)))
        places = np.hstack([found[:, :4], angles[:, None]])
        classes, scores = found[:, 4:].argmax(1), found[:, 4:].max(1)
        kept = []
        for row in np.argsort(-scores):
            overlaps = lambda other: classes[other] == classes[row] and probabilistic_iou(places[row].astype(float), places[other].astype(float)) > 0.5
            if not any(map(overlaps, kept)):
                kept.append(int(row))
        if decoder == "yolov8-obb":
            table = np.zeros((1, 5 + n_classes, 315), np.float32)
            table[0, :, : len(found)] = np.hstack([found, angles[:, None]]).T
        else:
            table = np.hstack([found[kept, :4], scores[kept, None], classes[kept, None], angles[kept, None]])[None]
        rotated = torch.from_numpy(places[kept].astype(np.float32))
        corners, enclosing = xywhr_to_corners(rotated).numpy(), xywhr_to_xyxy(rotated).numpy()
        boxes = [box(*corner, scores[row], classes[row]) for corner, row in zip(enclosing, kept)]
        by = version("libreyolo", "xywhr_to_corners, xywhr_to_xyxy; suppression: numpy ") + np.__version__
        made.append(stored(decoder, by, {"output0": rounded(table)}, boxes, rotated=rounded(corners).round(4).tolist()))
    return made


def transformer(decoder):
    import torch
    from libreyolo.postprocess import rfdetr, rtdetr

    made = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        n_queries, n_classes = 12, 5
        found = objects(rng, n_queries, 1, n_classes)
        places = rounded(found[:, :4] / [*SIZE, *SIZE])
        logits = rounded(rng.normal(-2, 1.5, (n_queries, n_classes)))
        tensors = {"pred_logits": torch.from_numpy(logits)[None], "pred_boxes": torch.from_numpy(places)[None]}
        if decoder == "detr":
            maps = rounded(smooth(rng, n_queries, SIZE[1] // 4, SIZE[0] // 4))
            with_maps = seed > 0
            if with_maps:
                tensors["pred_masks"] = torch.from_numpy(maps)[None]
            answer = rfdetr.postprocess(tensors, torch.tensor([[SIZE[1], SIZE[0]]]), num_select=30)[0]
            keep = (answer["scores"] > 0.3).numpy()
            boxes = [box(*corners, score, label) for corners, score, label in zip(answer["boxes"].numpy()[keep], answer["scores"].numpy()[keep], answer["labels"].numpy()[keep])]
            outputs = {"dets": places[None], "labels": logits[None]} | ({"masks": maps[None]} if with_maps else {})
            more = {"masks": [mask_of(mask, corners) for mask, corners in zip(answer["masks"].numpy()[keep], answer["boxes"].numpy()[keep])]} if with_maps else {}
            made.append(stored(decoder, version("libreyolo", "postprocess.rfdetr"), outputs, boxes, 0.3, **more))
        else:
            answer = rtdetr.postprocess(tensors, 0.3, 0.5, SIZE)
            parts = [answer[name].numpy() for name in ("boxes", "scores", "classes")]
            boxes = [box(*corners, rounded(score), label) for corners, score, label in zip(*parts)]
            # Deployed models contain this post-processing without the threshold. So its result is the output of the model in this case.
            final = rtdetr.postprocess(tensors, 0.0, 0.5, SIZE, max_det=20)
            outputs = {"labels": final["classes"].numpy().astype(np.float32)[None], "boxes": rounded(final["boxes"].numpy())[None],
                       "scores": rounded(final["scores"].numpy())[None]}
            made.append(stored(decoder, version("libreyolo", "postprocess.rtdetr"), outputs, boxes, 0.3))
    return made


def anchors(decoder):
    import torch
    from libreyolo.postprocess.darknet_yolo import postprocess

    sizes, n_classes, made = [[(10, 14), (23, 27), (37, 58)], [(51, 52), (75, 49), (44, 69)]], 3, []
    for seed, (kind, scale) in enumerate([("yolo", 1.0), ("yolo", 1.05), ("region", 1.0)]):
        rng = np.random.default_rng(seed)
        outputs, specs = {}, []
        for stride, of_grid in zip((16, 32), sizes):
            rows, columns = SIZE[1] // stride, SIZE[0] // stride
            tensor = rng.normal(0, 0.6, (3, 5 + n_classes, rows, columns))
            tensor[:, 4] -= 5
            for _ in range(3):
                place = (int(rng.integers(3)), slice(None), int(rng.integers(1, rows - 1)), int(rng.integers(1, columns - 1)))
                tensor[place] = [0, 0, 0.1, -0.1, 2.5, *rng.normal(0, 2, n_classes)]
            outputs[f"output{stride}"] = rounded(tensor.reshape(1, -1, rows, columns))
            # YOLOv2 counts its anchors in cells.
            in_units = [[side / stride for side in size] for size in of_grid] if kind == "region" else of_grid
            specs.append(types.SimpleNamespace(anchors=in_units, num_classes=n_classes, stride=stride, scale_x_y=scale, kind=kind))
        answer = postprocess([torch.from_numpy(tensor) for tensor in outputs.values()], specs, 0.25, 0.45, SIZE[0])
        boxes = [box(*corners, score, label) for corners, score, label in zip(answer["boxes"], answer["scores"], answer["classes"])]
        keys = f"anchors = {json.dumps(sizes)}\ncenter-scale = {scale}\nsoftmax = {json.dumps(kind == 'region')}"
        made.append(stored(decoder, version("libreyolo", "postprocess.darknet_yolo"), outputs, boxes, iou=0.45, keys=keys))
    return made


def text_lines(decoder):
    from libreyolo.postprocess.ppocr import db_postprocess

    made = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        y, x = np.mgrid[0 : SIZE[1], 0 : SIZE[0]]
        probabilities = np.full(SIZE[::-1], 0.02)
        for line in range(3):
            turn = rng.uniform(-0.3, 0.3)
            dx, dy = x - rng.uniform(60, 100), y - (18 + 30 * line)
            along, across = dx * np.cos(turn) + dy * np.sin(turn), dy * np.cos(turn) - dx * np.sin(turn)
            probabilities[(abs(along) < rng.uniform(25, 45)) & (abs(across) < rng.uniform(4, 6))] = rng.uniform(0.7, 0.95)
        probabilities = rounded(probabilities)
        quads, _ = db_postprocess(probabilities, *SIZE, thresh=0.3, box_thresh=0.5, unclip_ratio=1.5)
        boxes = [box(*quad.min(0), *quad.max(0), None, 0) for quad in quads]
        made.append(stored(decoder, version("libreyolo", "postprocess.ppocr.db_postprocess"), {"maps": probabilities[None, None]}, boxes, 0.5,
                           keys="unclip-ratio = 1.5", off=1.6, rotated=[quad.tolist() for quad in quads]))
    return made


MAKERS = {
    "yolo-anchors": anchors,
    "db-text": text_lines,
    "yolov5-seg": yolo_seg,
    "yolov8-seg": yolo_seg,
    "yolov10-seg": yolo_seg,
    "yolov8-pose": yolo_pose,
    "yolov10-pose": yolo_pose,
    "yolov8-obb": yolo_obb,
    "yolov10-obb": yolo_obb,
    "detr": transformer,
    "detr-final": transformer,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or MAKERS:
        made = MAKERS[name](name)
        lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in made)
        (FOLDER / f"{name}.json").write_text(f"[\n{lines}\n]\n")
        print(name, made[0]["made_by"], [len(one["boxes"]) for one in made])
