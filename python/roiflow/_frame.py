"""The results of one frame of a pipeline, read from a JSON line of the command."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from roiflow import _roiflow
from roiflow._vision import Attribute

__all__ = ["Frame", "FrameObject"]

Floats = npt.NDArray[np.float32]

# Keys of an object in a JSON line that are not attributes.
_OBJECT_KEYS = frozenset(("x", "y", "w", "h", "id", "track_state", "region_id", "parent_id", "roi_type", "detection"))


def _number(value: float | None) -> float:
    """Convert a number of a JSON line. `null` stands for numbers that are not finite, and becomes NaN."""
    return float("nan") if value is None else float(value)


def _named(label: str | None, class_id: int) -> str:
    return str(class_id) if label is None else label


def _points(points: Iterable[Mapping[str, float | None]], size: tuple[int, int]) -> Floats:
    """Convert points of a JSON line to an array [N, 2] in pixels."""
    rows = [(_number(point["x"]) * size[0], _number(point["y"]) * size[1]) for point in points]
    return np.array(rows, np.float32).reshape(-1, 2)


def _attribute(name: str, data: Mapping[str, Any], size: tuple[int, int]) -> Attribute | None:
    """Convert an attribute of a JSON line. Returns None for kinds that this version does not know."""
    model = str(data.get("model", {}).get("name", ""))
    cells = (int(data.get("rows", 0)), int(data.get("columns", 0)))
    if "keypoints" in data:
        points = data["keypoints"]
        confidences = np.array([_number(point.get("confidence")) for point in points], np.float32)
        names = tuple(str(point["name"]) for point in points if "name" in point)
        edges = tuple((int(first), int(second)) for first, second in data.get("skeleton", ()))
        return Attribute(name, model, "keypoints", _points(points, size), labels=names, edges=edges, confidences=confidences)
    if "counts" in data:
        # The run lengths of COCO: `pycocotools.mask.decode` reads this dictionary.
        return Attribute(name, model, "coco", {"size": data["size"], "counts": data["counts"]})
    if "polygons" in data:
        return Attribute(name, model, "polygons", [_points(polygon, size) for polygon in data["polygons"]])
    if "corners" in data:
        corners = _points(data["corners"], size)
        if "angle" in data:
            return Attribute(name, model, "rotated-box", corners)
        if "png" in data:
            return _image_attribute(name, model, data, _roiflow._read_gray(base64.b64decode(data["png"]), cells), corners)
        if "runs" in data:
            runs = np.asarray(data["runs"], np.int64)
            inside = np.where(np.arange(len(runs)) % 2 == 1, 255, 0).astype(np.uint8)
            return Attribute(name, model, "mask", np.repeat(inside, runs).reshape(cells), corners=corners)
        if "class_runs" in data:
            pairs = np.asarray(data["class_runs"], np.int64).reshape(-1, 2)
            classes = np.repeat(pairs[:, 0], pairs[:, 1]).reshape(cells)
            return Attribute(name, model, "class-map", classes, corners=corners, labels=tuple(data.get("labels", ())))
        if "values" in data:
            values = np.array([_number(value) for value in data["values"]], np.float32).reshape(cells)
            return Attribute(name, model, "value-map", values, corners=corners)
        return None
    if "labels" in data:
        pairs_of = [(_named(found["label"], found["label_id"]), _number(found["confidence"])) for found in data["labels"]]
        return Attribute(name, model, "labels", pairs_of)
    if "label_id" in data:
        label = _named(data["label"], data["label_id"])
        return Attribute(name, model, "label", label, _number(data["confidence"]), int(data["label_id"]))
    if "text" in data:
        return Attribute(name, model, "text", str(data["text"]), _number(data.get("confidence")))
    if "data" in data:
        tensor = np.array([_number(value) for value in data["data"]], np.float32).reshape(data["shape"])
        return Attribute(name, model, "tensor", tensor)
    if "value" in data:
        return Attribute(name, model, "value", _number(data["value"]))
    return None


def _image_attribute(name: str, model: str, data: Mapping[str, Any], pixels: npt.NDArray[np.uint16], corners: Floats) -> Attribute:
    """Convert a mask or map whose cells are the pixels of an image."""
    if "area" in data:
        return Attribute(name, model, "mask", pixels.astype(np.uint8), corners=corners)
    if "min" not in data:
        return Attribute(name, model, "class-map", pixels.astype(np.int64), corners=corners, labels=tuple(data.get("labels", ())))
    # Pixel 0 is a cell without a finite number. The pixels 1 to 65535 represent the numbers from `min` to `max`.
    low, high = _number(data["min"]), _number(data["max"])
    numbers = np.where(pixels == 0, np.nan, low + (pixels - 1.0) / 65_534 * (high - low))
    return Attribute(name, model, "value-map", numbers.astype(np.float32), corners=corners)


def _attributes(items: Iterable[tuple[str, Any]], size: tuple[int, int]) -> dict[str, Attribute]:
    found = ((name, _attribute(name, data, size)) for name, data in items if isinstance(data, dict))
    return {name: attribute for name, attribute in found if attribute is not None}


class FrameObject:
    """One object in a frame of a pipeline. `label`, `confidence`, `class_id`, `xyxy`, `keypoints` and `attributes` are as in
    `Detection`."""

    __slots__ = ("_data", "_size")

    def __init__(self, data: dict[str, Any], size: tuple[int, int]) -> None:
        self._data, self._size = data, size

    @property
    def label(self) -> str:
        """Name of the class; its number as text if it has no name."""
        detection = self._data["detection"]
        return _named(detection["label"], detection["label_id"])

    @property
    def confidence(self) -> float:
        """Confidence of the detector, from 0 to 1; NaN if the object was attached without a confidence."""
        return _number(self._data["detection"].get("confidence"))

    @property
    def class_id(self) -> int:
        """Number of the class."""
        return int(self._data["detection"]["label_id"])

    @property
    def box(self) -> tuple[float, float, float, float]:
        """x_min, y_min, x_max, y_max in pixels, not clipped to the frame."""
        box, (width, height) = self._data["detection"]["bounding_box"], self._size
        left, right = _number(box["x_min"]) * width, _number(box["x_max"]) * width
        return left, _number(box["y_min"]) * height, right, _number(box["y_max"]) * height

    @property
    def xyxy(self) -> Floats:
        """`box` as an array [4] of float32."""
        return np.array(self.box, np.float32)

    @property
    def track_id(self) -> int | None:
        """Track ID, the same in every frame; None without a tracker, and until the tracker assigns an ID."""
        return cast("int | None", self._data["id"])

    @property
    def track_state(self) -> str | None:
        """`tentative`, `confirmed`, or `held` on a frame without inference; None without a tracker."""
        return cast("str | None", self._data.get("track_state"))

    @property
    def parent(self) -> int | None:
        """Index in `frame.objects` of the object in whose region this object was detected; None without such an object."""
        parent = self._data["parent_id"]
        return None if parent is None else int(parent) - 1

    @property
    def keypoints(self) -> Floats:
        """Points [K, 2] in pixels, in the order of the model; [0, 2] if the model has none."""
        return _points(self._data["detection"].get("keypoints", ()), self._size)

    @property
    def attributes(self) -> dict[str, Attribute]:
        """Results of classifiers for this object, by the name of the attribute."""
        return _attributes(((name, data) for name, data in self._data.items() if name not in _OBJECT_KEYS), self._size)

    def crop(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The pixels of the box in `frame.image`, clipped to the frame: a view, not a copy.

        Raises ValueError if the image has another size than the frame.
        """
        if (image.shape[1], image.shape[0]) != self._size:
            raise ValueError(f"expected the image of this frame, of {self._size}, got an image of {(image.shape[1], image.shape[0])}")
        x, y, width, height = (int(self._data[key]) for key in ("x", "y", "w", "h"))
        return image[y : y + height, x : x + width]

    def to_dict(self) -> dict[str, Any]:
        """The object as in the JSON line. The dictionary belongs to the frame: do not change it."""
        return self._data

    def __repr__(self) -> str:
        values = {name: attribute.value for name, attribute in self.attributes.items()}
        track = "" if self.track_id is None else f" track {self.track_id}"
        box = [round(value, 1) for value in self.box]
        return f"<FrameObject: {self.label} {self.confidence:.2f} at {box}{track}{f' {values}' if values else ''}>"


class Frame:
    """The results of one frame, with its image if the pipeline was created with `image=`."""

    __slots__ = ("_data", "_image", "_objects")

    def __init__(self, data: dict[str, Any], image: npt.NDArray[np.uint8] | None = None) -> None:
        self._data, self._image = data, image
        self._objects = cast("list[FrameObject] | None", None)

    @property
    def image(self) -> npt.NDArray[np.uint8]:
        """The image as an array [H, W, 3] of uint8, without boxes: the frame that the models got.

        The array is a view of memory that the command wrote, without a copy. It belongs to the program as long as the program refers to
        it, and may be changed. After `os.fork`, use a copy: the child process does not keep the memory.

        Raises ValueError if the pipeline was created without `image=`, or was closed before it wrote the pixels of this frame.
        """
        if self._image is None:
            raise ValueError('this frame has no image: expected a pipeline with image="rgb" or image="bgr", which was not closed')
        return self._image

    @property
    def index(self) -> int:
        """Number of the frame in its stream, from 0."""
        return int(self._data["frame"])

    @property
    def stream(self) -> str | None:
        """Name of the stream; None for a single input without a name."""
        return cast("str | None", self._data["stream"])

    @property
    def timestamp(self) -> int | None:
        """Stream time in nanoseconds."""
        return cast("int | None", self._data["timestamp"])

    @property
    def pts(self) -> int | None:
        """Presentation time stamp of the buffer in nanoseconds."""
        return cast("int | None", self._data["pts"])

    @property
    def time(self) -> str:
        """Capture time, or the current time if it is unknown. UTC, in the format of RFC 3339."""
        return str(self._data["time"])

    @property
    def source(self) -> str | None:
        """Address of the input without user, password and tokens, or the path of an image."""
        return cast("str | None", self._data["source"])

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the frame in pixels; (0, 0) if they are not known."""
        resolution = self._data["resolution"] or {}
        return int(resolution.get("width", 0)), int(resolution.get("height", 0))

    @property
    def status(self) -> str:
        """`ok`, `skipped` or `failed`: whether the frame was inferred."""
        return str(self._data["inference"]["status"])

    @property
    def reason(self) -> str | None:
        """Why the frame was skipped or failed."""
        return cast("str | None", self._data["inference"].get("reason"))

    @property
    def objects(self) -> list[FrameObject]:
        """The objects in the order of the JSON line."""
        if self._objects is None:
            size = self.size
            self._objects = [FrameObject(found, size) for found in self._data["objects"]]
        return self._objects

    @property
    def attributes(self) -> dict[str, Attribute]:
        """Results of classifiers for the whole frame, by the name of the attribute."""
        return _attributes(self._data.get("classifications", {}).items(), self.size)

    def to_dict(self) -> dict[str, Any]:
        """The JSON line as a dictionary, in the format of the command. It belongs to the frame: do not change it."""
        return self._data

    def to_json(self) -> str:
        """The JSON line, without a line end."""
        return json.dumps(self._data, separators=(",", ":"), ensure_ascii=False)

    def __repr__(self) -> str:
        stream = "" if self.stream is None else f" of {self.stream}"
        return f"<Frame {self.index}{stream}: {len(self.objects)} objects>"
