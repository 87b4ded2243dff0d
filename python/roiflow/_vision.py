"""Models that take images, and their results."""

from __future__ import annotations

import collections
import errno
import json
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex, Union, cast, overload

import numpy as np
import numpy.typing as npt

from roiflow import _roiflow

__all__ = ["Attribute", "Boxes", "Detection", "ImageModel", "Pending", "Results", "load", "register_decoder", "register_preprocess"]


class _ArrayLike(Protocol):
    """An object that numpy converts without a copy, such as an image of Pillow."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


Array = npt.NDArray[Any]
ImageSource = Union[Array, _ArrayLike, str, "os.PathLike[str]"]
Outputs = dict[str, npt.NDArray[np.float32]]
Decode = Callable[[Outputs, tuple[int, int]], Any]
Preprocess = Callable[[npt.NDArray[np.uint8]], Any]

if TYPE_CHECKING:
    # Only for type checkers: in a running program, stubtest would take such an alias for a class.
    _Color = Literal["bgr", "rgb"]

_PREPROCESSING: dict[str, Preprocess] = {}


# Kinds of attributes that `repr` shows.
_SHORT = ("label", "labels", "value", "text")


@dataclass(frozen=True)
class Attribute:
    """A result of a classifier about an object or an image.

    `kind` is `label`, `labels`, `value`, `text`, `tensor`, or a shape: `keypoints`, `rotated-box`, `polygons`, `mask`, `class-map`,
    `value-map`. `value` depends on the kind:

    - label, text: the name of the class (its number as text if it has no name), or the text.
    - labels: pairs of name and confidence, most confident first.
    - value: a number. tensor: an array of float32.
    - keypoints: points [K, 2] in pixels. rotated-box: corners [4, 2]. polygons: arrays [P, 2].
    - mask: cells [rows, columns] of uint8, 128 or more belong to the object. class-map: class numbers. value-map: float32.
    """

    name: str
    model: str
    kind: str
    value: Any
    confidence: float | None = None
    class_id: int | None = None
    corners: npt.NDArray[np.float32] | None = None
    """For masks and maps: top left, top right and bottom left corner [3, 2] of the cells, in pixels. None for other kinds."""
    labels: tuple[str, ...] = ()
    """For class maps: names of the classes. For keypoints: names of the points."""
    edges: tuple[tuple[int, int], ...] = ()
    """For keypoints: pairs of indexes of connected points."""
    confidences: npt.NDArray[np.float32] | None = None
    """For keypoints: the confidence of each point [K]; NaN for points without a confidence."""


def _attribute(name: str, model: str, kind: str, value: Any) -> Attribute:
    def named(class_id: int, label: str | None) -> str:
        return str(class_id) if label is None else label

    if kind == "label":
        class_id, label, confidence = value
        return Attribute(name, model, kind, named(class_id, label), confidence, class_id)
    if kind == "labels":
        return Attribute(name, model, kind, [(named(class_id, label), confidence) for class_id, label, confidence in value])
    if kind == "text":
        return Attribute(name, model, kind, *value)
    if kind == "keypoints":
        points, confidences, names, edges = value
        return Attribute(name, model, kind, points, labels=tuple(names), edges=tuple(edges), confidences=confidences)
    if kind == "rotated-box":
        return Attribute(name, model, kind, value[1])
    if kind in ("mask", "value-map"):
        return Attribute(name, model, kind, value[0], corners=value[1])
    if kind == "class-map":
        return Attribute(name, model, kind, value[0], corners=value[1], labels=tuple(value[2]))
    return Attribute(name, model, kind, value)


def _paste(image: npt.NDArray[np.bool_], cells: npt.NDArray[np.bool_], corners: npt.NDArray[np.float32]) -> None:
    """Set each pixel of the image whose center is in a true cell. `corners` is the position of the grid `cells` [rows, columns]."""
    origin, along, across = corners[0], corners[1] - corners[0], corners[2] - corners[0]
    area = float(along[0] * across[1] - along[1] * across[0])
    ends = np.array([origin, origin + along, origin + across, origin + along + across])
    x_min, y_min = np.clip(np.floor(ends.min(axis=0)), 0, (image.shape[1], image.shape[0])).astype(int)
    x_max, y_max = np.clip(np.ceil(ends.max(axis=0)), 0, (image.shape[1], image.shape[0])).astype(int)
    if area == 0 or x_min >= x_max or y_min >= y_max:
        return
    y, x = np.mgrid[y_min:y_max, x_min:x_max] + 0.5
    x, y = x - origin[0], y - origin[1]
    column = np.floor((x * across[1] - y * across[0]) / area * cells.shape[1]).astype(int)
    row = np.floor((along[0] * y - along[1] * x) / area * cells.shape[0]).astype(int)
    inside = (column >= 0) & (column < cells.shape[1]) & (row >= 0) & (row < cells.shape[0])
    image[y_min:y_max, x_min:x_max][inside] = cells[row[inside], column[inside]]


class Boxes:
    """The boxes of an image, most confident first. The arrays belong to the caller.

    - `xyxy` [N, 4], float32: x_min, y_min, x_max, y_max in pixels, not clipped to the image.
    - `confidence` [N], float32, from 0 to 1.
    - `class_id` [N], int64.
    - `labels`: names of the classes; the number as text for a class without name.
    """

    __slots__ = ("_size", "class_id", "confidence", "labels", "xyxy")

    def __init__(self, results: _roiflow._Results) -> None:
        xyxy, confidence, class_id = results.boxes()
        self._size = results.size
        self.xyxy: npt.NDArray[np.float32] = xyxy
        self.confidence: npt.NDArray[np.float32] = confidence
        self.class_id: npt.NDArray[np.int64] = class_id
        names = zip(results.labels(), class_id.tolist(), strict=True)
        self.labels: list[str] = [str(number) if label is None else label for label, number in names]

    @property
    def xywh(self) -> npt.NDArray[np.float32]:
        """Centers and sizes [N, 4], float32: x, y, width, height in pixels."""
        corners, sizes = self.xyxy[:, :2], self.xyxy[:, 2:] - self.xyxy[:, :2]
        boxes = np.empty_like(self.xyxy)
        boxes[:, :2], boxes[:, 2:] = corners + sizes / 2, sizes
        return boxes

    @property
    def xyxyn(self) -> npt.NDArray[np.float32]:
        """As `xyxy`, in fractions of the width and height of the image."""
        boxes = np.empty_like(self.xyxy)
        boxes[:, 0::2], boxes[:, 1::2] = self.xyxy[:, 0::2] / np.float32(self._size[0]), self.xyxy[:, 1::2] / np.float32(self._size[1])
        return boxes

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"<Boxes: {len(self)} in {self._size[0]}x{self._size[1]}>"


class Detection:
    """One object in an image: `results[0]`."""

    __slots__ = ("_index", "_owner")

    def __init__(self, owner: Results, index: int) -> None:
        self._owner, self._index = owner, index

    @property
    def xyxy(self) -> npt.NDArray[np.float32]:
        """x_min, y_min, x_max, y_max in pixels, [4], float32; not clipped to the image."""
        xyxy: npt.NDArray[np.float32] = self._owner.boxes.xyxy[self._index].copy()
        return xyxy

    @property
    def confidence(self) -> float:
        """Confidence of the detector, from 0 to 1."""
        return float(self._owner.boxes.confidence[self._index])

    @property
    def class_id(self) -> int:
        """Number of the class."""
        return int(self._owner.boxes.class_id[self._index])

    @property
    def label(self) -> str:
        """Name of the class; its number as text if it has no name."""
        return self._owner.boxes.labels[self._index]

    @property
    def keypoints(self) -> npt.NDArray[np.float32]:
        """Points [K, 2] in pixels, in the order of the model; [0, 2] if the model has none."""
        return self._owner._raw.keypoints(self._index)

    @property
    def attributes(self) -> dict[str, Attribute]:
        """Results of classifiers for this object, by the name of the attribute; also its `mask`, `pose` or `rotated_box`."""
        return {name: _attribute(name, *rest) for name, *rest in self._owner._raw.attributes(self._index)}

    @property
    def parent(self) -> int | None:
        """Index of the object in whose region this object was detected; None without such an object."""
        return self._owner._raw.parents()[self._index]

    def crop(self, image: ImageSource) -> npt.NDArray[np.uint8]:
        """The pixels of the box: a view of the array, not a copy.

        The edges are rounded to whole pixels and clipped to the image. The result has no pixels if the box is outside the image.
        Raises ValueError if the size of the image differs from that of the results.
        """
        array, _ = _array_of(image, "bgr")
        height, width = array.shape[:2]
        if (width, height) != self._owner.size:
            raise ValueError(f"expected the image of these results, of {self._owner.size}, got an image of {(width, height)}")
        x_min, y_min, x_max, y_max = self._owner._raw.pixels(self._index) or (0, 0, 0, 0)
        return array[y_min:y_max, x_min:x_max]

    def __repr__(self) -> str:
        values = {name: attribute.value for name, attribute in self.attributes.items() if attribute.kind in _SHORT}
        return f"<Detection: {self.label} {self.confidence:.2f} at {[round(float(value), 1) for value in self.xyxy]}{f' {values}' if values else ''}>"


class Results(Sequence[Detection]):
    """The results of one image: a sequence of `Detection`, and attributes of the whole image.

    Results are immutable. A classifier that gets `rois=results` returns new results with its attributes.
    An index returns a `Detection`. A slice, a list of indexes or a mask of booleans returns `Results` with these detections.
    """

    __slots__ = ("_boxes", "_color", "_known", "_raw")

    def __init__(self, raw: _roiflow._Results, color: _Color = "bgr", known: frozenset[str] = frozenset()) -> None:
        # `_known`: the labels that the detectors could give; empty if they are not known.
        self._raw, self._color, self._known, self._boxes = raw, color, known, cast("Boxes | None", None)

    @property
    def boxes(self) -> Boxes:
        """All boxes as arrays."""
        if self._boxes is None:
            self._boxes = Boxes(self._raw)
        return self._boxes

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the image."""
        return self._raw.size

    @property
    def attributes(self) -> dict[str, Attribute]:
        """Results of classifiers for the whole image, by the name of the attribute."""
        return {name: _attribute(name, *rest) for name, *rest in self._raw.attributes()}

    def __len__(self) -> int:
        return len(self._raw)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Detection: ...  # type: ignore[overload-overlap]
    @overload
    def __getitem__(self, index: slice | Sequence[int] | Sequence[bool] | npt.NDArray[Any]) -> Results: ...
    def __getitem__(self, index: SupportsIndex | slice | Sequence[int] | Sequence[bool] | npt.NDArray[Any]) -> Detection | Results:
        if isinstance(index, SupportsIndex) and not (isinstance(index, np.ndarray) and index.ndim > 0):
            number = operator.index(index)
            if not -len(self) <= number < len(self):
                raise IndexError(f"no detection {number}: there are {len(self)}")
            return Detection(self, number % len(self))
        chosen = np.arange(len(self))[np.asarray(index, int) if isinstance(index, list) and not index else index]
        return Results(self._raw.select(chosen.tolist()), self._color, self._known)

    def __iter__(self) -> Iterator[Detection]:
        return (Detection(self, index) for index in range(len(self)))

    def plot(
        self,
        image: ImageSource,
        *,
        color: _Color | None = None,
        labels: bool = True,
        confidence: bool = True,
        thickness: int = 0,
        font_size: int = 0,
        mask_opacity: int = 40,
        title: str = "",
        font: str | os.PathLike[str] | None = None,
        blur: Iterable[str] = (),
        pixelate: Iterable[str] = (),
    ) -> npt.NDArray[np.uint8]:
        """Draw boxes, masks, keypoints, labels and attributes on a copy of the image, like the element `roioverlay`.

        The copy of an array has the same channels as the array. For Pillow images and paths, the copy is RGB.

        - `color`: order of the channels of an array; default: the order in the call that returned these results.
        - `thickness`, `font_size`: in pixels; 0: computed from the size of the image.
        - `mask_opacity`: opacity of masks and maps in percent, 0 to 100.
        - `title`: text in the bottom-left corner.
        - `font`: a font file in TrueType or OpenType format, for characters that the built-in font lacks.
        - `blur`, `pixelate`: labels of objects that are made unrecognizable; `*`: all objects. Objects that the detector missed stay
          recognizable.

        Raises ValueError if the size of the image differs from that of the results, or if the detector has no label to blur or pixelate.
        Raises ReadError if the font cannot be read.
        """
        array, color = _array_of(image, color or self._color)
        style = (bool(labels), bool(confidence), operator.index(thickness), operator.index(font_size), operator.index(mask_opacity))
        for name, names in (("blur", blur), ("pixelate", pixelate)):
            if isinstance(names, str):
                raise TypeError(f"{name}: expected a list of labels, got the text {names!r}")
        blur, pixelate = list(blur), list(pixelate)
        unknown = {*blur, *pixelate} - {"*", *self._known, *self.boxes.labels} if self._known else None
        if unknown:
            # A label with a spelling mistake would leave faces recognizable.
            raise ValueError(f"blur, pixelate: expected labels of {', '.join(sorted(self._known))}, got {', '.join(sorted(unknown))}")
        file = None if font is None else os.fspath(font)
        return _roiflow._plot(array, color, self._raw, style, title, file, (blur, pixelate))

    def to_json(self, *, frame: int = 0, stream: str | None = None, source: str | None = None) -> str:
        """One line of JSON in the schema of `roiflow run --json`, without a line end.

        Boxes are fractions of the image; `frame`, `stream` and `source` are copied to the line.
        """
        return self._raw.json(frame, stream, source)

    def to_dict(self, *, frame: int = 0, stream: str | None = None, source: str | None = None) -> dict[str, Any]:
        """The content of `to_json` as a dictionary."""
        return cast("dict[str, Any]", json.loads(self.to_json(frame=frame, stream=stream, source=source)))

    def masks(self) -> npt.NDArray[np.bool_] | None:
        """The masks of all detections in the size of the image, [N, height, width]; None if no detection has a mask.

        This array is large: a byte for each pixel of the image and each detection. `Detection.attributes` has the masks without the pixels
        outside the boxes.
        """
        found = [(index, attribute) for index, of in enumerate(self) for attribute in of.attributes.values() if attribute.kind == "mask"]
        if not found:
            return None
        width, height = self.size
        masks = np.zeros((len(self), height, width), bool)
        for index, attribute in found:
            assert attribute.corners is not None
            _paste(masks[index], attribute.value >= 128, attribute.corners)
        return masks

    def to_supervision(self) -> Any:
        """Convert the boxes to `supervision.Detections`, with `class_name` in `data`.

        Masks become its `mask`, and rotated boxes the corners `xyxyxyxy` in `data`. Raises ImportError if supervision is not installed.
        """
        import supervision  # type: ignore[import-not-found, import-untyped, unused-ignore]

        boxes = self.boxes
        data = {"class_name": np.array(boxes.labels, dtype=str)}
        rotated = [attribute.value for of in self for attribute in of.attributes.values() if attribute.kind == "rotated-box"]
        if rotated and len(rotated) == len(self):
            data["xyxyxyxy"] = np.array(rotated, np.float32)
        return supervision.Detections(
            xyxy=boxes.xyxy, mask=self.masks(), confidence=boxes.confidence, class_id=boxes.class_id.astype(int), data=data
        )

    def __repr__(self) -> str:
        counts = collections.Counter(self.boxes.labels)
        parts = [f"{count} {label}" for label, count in counts.items()]
        parts += [f"{name} {attribute.value}" for name, attribute in self.attributes.items() if attribute.kind in _SHORT]
        return f"<Results: {', '.join(parts) or 'nothing'} in {self.size[0]}x{self.size[1]}>"


Rois = Union[Results, npt.NDArray[Any], Sequence[Sequence[float]]]


class Pending:
    """A submitted image: the return value of `ImageModel.submit`. Dropping it cancels a run that has not begun."""

    __slots__ = ("_color", "_known", "_resized", "_run")

    def __init__(self, run: _roiflow._Run, color: _Color, resized: tuple[int, int] | None, known: frozenset[str]) -> None:
        self._run, self._color, self._resized, self._known = run, color, resized, known

    def done(self) -> bool:
        """Whether the run ended, with results or an error."""
        return self._run.done()

    def cancel(self) -> None:
        """Cancel the run if it has not begun. `result` then raises Canceled."""
        self._run.cancel()

    def result(self, timeout: float | None = None) -> Results:
        """Wait for the results, without the interpreter's lock. Any thread may wait, and more than once.

        Raises the error of the run, and TimeoutError after `timeout` seconds.
        """
        raw = self._run.wait(timeout)
        return Results(raw if self._resized is None else raw.resized(*self._resized), self._color, self._known)


class ImageModel:
    """A detector or a classifier, which turns images into results. `load` creates it. Any number of threads may call it."""

    def __init__(self, make: Callable[[str, int | None], _roiflow._Stage], options: _Options) -> None:
        self._make, self._options = make, options
        # `_single` uses all cores for one image; `_several` runs several images concurrently. The model is compiled for `_several` on its
        # first use. With the option `batch` it is compiled now, so that an error is raised at once if the model cannot run batches.
        self._lock = threading.Lock()
        self._several: _roiflow._Stage | None = None
        if options.batch is not None or options.performance == "throughput":
            self._several = make("throughput", options.batch)
        self._single = self._several if options.performance == "throughput" and self._several else make("latency", None)
        if options.performance == "latency" and self._several is None:
            self._several = self._single

    @property
    def task(self) -> str:
        """`detection` or `classification`."""
        return self._single.task

    @property
    def name(self) -> str:
        """Name of the results. For a classifier, this is the name of the attribute."""
        return self._single.name

    @property
    def labels(self) -> list[str]:
        """Names of the classes, in order; empty if there are none."""
        return self._single.labels

    @property
    def input_size(self) -> tuple[int, int]:
        """Width and height of the model's input. Images may have any size."""
        return self._single.input_size

    @property
    def device(self) -> str:
        """The device that runs the model."""
        return self._single.device

    @property
    def description(self) -> str:
        """Source of the description."""
        return self._single.source

    @property
    def assumed(self) -> list[str]:
        """Defaults that replace keys missing in the description, one sentence each."""
        return self._single.assumed

    @overload
    def __call__(self, image: ImageSource, *, rois: Rois | None = None, color: _Color | None = None) -> Results: ...
    @overload
    def __call__(
        self,
        image: list[ImageSource] | list[str] | list[Array] | tuple[ImageSource, ...],
        *,
        rois: Sequence[Rois | None] | None = None,
        color: _Color | None = None,
    ) -> list[Results]: ...
    def __call__(
        self,
        image: ImageSource | list[Any] | tuple[Any, ...],
        *,
        rois: Rois | Sequence[Rois | None] | None = None,
        color: _Color | None = None,
    ) -> Results | list[Results]:
        """Run one image, or the images of a list concurrently, and wait for the results.

        - `image`: an array of uint8, [H, W], [H, W, 3] or [H, W, 4], read in place; an image of Pillow; the path of an image
          file; or a list of these, which gives a list of `Results`.
        - `rois`: `Results` of this image, or boxes [N, 4] of x_min, y_min, x_max, y_max. The model runs on the region of each
          box, without a copy of pixels. The results contain these boxes with the new attributes. The results of a detector also
          contain the objects in the regions. For a list of images: a list with one value for each image.
        - `color`: order of the channels of arrays, `bgr` or `rgb`; default: that of `load`. Pillow's images and files are RGB.

        Do not write to an array before its run ended. Raises TypeError for other types and element types, ValueError for other shapes,
        empty lists and negative strides, FileNotFoundError for files, and errors of roiflow.
        """
        if not isinstance(image, (list, tuple)):
            return self._submit(self._single, image, cast("Rois | None", rois), color).result()
        if not image:
            raise ValueError("expected at least one image, got an empty list")
        if rois is None:
            return [results for _, results in self._stream(image, None, color)]
        if isinstance(rois, Results) or len(rois) != len(image):
            raise ValueError(f"expected one `rois` for each of {len(image)} images, got {rois if isinstance(rois, Results) else len(rois)}")
        return [results for _, results in self._stream(image, cast("Sequence[Rois | None]", rois), color)]

    def submit(self, image: ImageSource, *, rois: Rois | None = None, color: _Color | None = None) -> Pending:
        """Start the run of one image, and return without waiting. Images wait in order while all requests of the device are busy.

        The run keeps the array. Do not write to the array before the run ended. Arguments and errors: as for a call.
        """
        return self._submit(self._for_several(), image, rois, color)

    def stream(
        self, images: Iterable[ImageSource | tuple[ImageSource, Results]], *, color: _Color | None = None
    ) -> Iterator[tuple[ImageSource, Results]]:
        """Run the images of any iterable concurrently, and yield pairs of image and results in the order of the images.

        Takes an image from the iterable only when the device can soon run it. So the iterable may be endless. If the iterable yields pairs
        of image and results, the results are the `rois` of the image: `age.stream(faces.stream(video))` is a cascade. An iterable that
        writes all frames into one array must yield copies.
        """
        return self._stream(images, None, color)

    def _stream(
        self, images: Iterable[Any], rois: Sequence[Rois | None] | None, color: _Color | None
    ) -> Iterator[tuple[ImageSource, Results]]:
        stage = self._for_several()
        ahead: collections.deque[tuple[ImageSource, Pending]] = collections.deque()
        # Submit one image more than can run concurrently, so that the next image is ready when a run ends.
        limit = stage.n_images_at_once + 1
        for index, item in enumerate(images):
            image, of_image = item if isinstance(item, tuple) and rois is None else (item, rois[index] if rois else None)
            ahead.append((image, self._submit(stage, image, of_image, color)))
            if len(ahead) > limit:
                first, pending = ahead.popleft()
                yield first, pending.result()
        while ahead:
            first, pending = ahead.popleft()
            yield first, pending.result()

    def _for_several(self) -> _roiflow._Stage:
        with self._lock:
            if self._several is None:
                self._several = self._make("throughput", self._options.batch)
            return self._several

    def _submit(self, stage: _roiflow._Stage, image: ImageSource, rois: Rois | None, color: _Color | None) -> Pending:
        array, color = _array_of(image, color or self._options.color)
        size = (array.shape[1], array.shape[0]) if array.ndim > 1 else (0, 0)
        regions = None if rois is None else _rois_of(rois, size)
        resized, known = None, self._known(rois)
        preprocess = self._options.preprocess
        if preprocess is not None:
            returned = preprocess(array)
            values, place = returned if isinstance(returned, tuple) else (returned, None)
            if values is None:
                raise TypeError("preprocess: expected an array, got None. The function must return the image or the input")
            values = np.asarray(values)
            if place is not None or values.ndim == 4:
                return self._submit_values(stage, values, place, size, regions is not None, color, known)
            array = values
            now = (array.shape[1], array.shape[0]) if array.ndim > 1 else (0, 0)
            if now != size and min(*now, *size) > 0:
                regions, resized = None if regions is None else regions.resized(*now), size
        return Pending(stage.submit(array, color, regions), color, resized, known)

    def _known(self, rois: Rois | None) -> frozenset[str]:
        """The labels that objects of the results may have; empty if they are not known."""
        before = rois._known if isinstance(rois, Results) else frozenset()
        return before.union(self.labels) if self.task == "detection" and (rois is None or before) else before

    def _submit_values(
        self,
        stage: _roiflow._Stage,
        values: Array,
        place: Any,
        size: tuple[int, int],
        has_regions: bool,
        color: _Color,
        known: frozenset[str],
    ) -> Pending:
        """Submit the input that a preprocessing function returned."""
        if has_regions:
            raise ValueError("rois: expected none, because the preprocessing function returns the input of the model. Call it with found.crop(image)")
        if place is None:
            width, height = stage.input_size
            place = (size[0] / width, size[1] / height, 0.0, 0.0)
        if len(place) != 4 or not np.isfinite(place).all():
            raise ValueError(f"preprocess: expected scale x, scale y, offset x and offset y from the input to the image, got {place!r}")
        x_scale, y_scale, x_offset, y_offset = map(float, place)
        return Pending(stage.submit_values(values, size, (x_scale, y_scale), (x_offset, y_offset)), color, None, known)

    def __repr__(self) -> str:
        width, height = self.input_size
        return f"<ImageModel: {self.name}, {self.task} at {width}x{height} on {self.device}, description {self.description}>"


@dataclass(frozen=True)
class _Options:
    color: _Color
    batch: int | None
    performance: str | None
    preprocess: Preprocess | None


def _array_of(image: ImageSource, color: _Color) -> tuple[npt.NDArray[Any], _Color]:
    """Convert an image to an array. Returns the array and the order of its channels."""
    if isinstance(image, np.ndarray):
        return image, color
    if isinstance(image, (str, os.PathLike)):
        return _roiflow._read_image(image), "rgb"
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(image, pillow.Image):
        # Convert other modes, which have palettes, other colors or more than 8 bits.
        plain = image if image.mode in ("RGB", "RGBA", "L") else image.convert("RGB")
        return np.asarray(plain), "rgb"
    if not isinstance(image, (type, np.generic)) and (hasattr(image, "__array__") or hasattr(image, "__array_interface__")):
        return np.asarray(image), color
    raise TypeError(f"image: expected an array, an image of Pillow, a path, or a list of these, got {type(image)}")


def _rois_of(rois: Rois, size: tuple[int, int]) -> _roiflow._Results:
    if isinstance(rois, Results):
        return rois._raw
    try:
        boxes = np.ascontiguousarray(rois, np.float32)
    except (TypeError, ValueError) as error:
        raise TypeError(f"rois: expected results or boxes [N, 4], got {type(rois)}") from error
    if boxes.size == 0:
        boxes = boxes.reshape(0, 4)
    if boxes.ndim != 2:
        raise ValueError(f"rois: expected boxes of shape [N, 4], got {list(boxes.shape)}")
    return _roiflow._Results.of_boxes(*size, boxes)


def _toml(value: Any) -> str:
    """Format a value of a description as TOML on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, str)):
        # A JSON string is also a TOML string, unless it contains the character DEL. No text of a description needs this character.
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(key))} = {_toml(of)}" for key, of in value.items()) + " }"
    if isinstance(value, (list, tuple, np.ndarray)):
        return "[" + ", ".join(_toml(of) for of in value) + "]"
    if isinstance(value, np.generic):
        return _toml(value.item())
    raise TypeError(f"description: expected numbers, texts, lists and dictionaries, got {type(value)}")


def _description_text(description: Mapping[str, Any]) -> str:
    if "task" not in description:
        known = ", ".join(map(repr, description)) or "none"
        raise ValueError(f'description: expected the key "task" with "detection" or "classification", got the keys {known}')
    values = {"version": 1, **description}
    return "".join(f"{json.dumps(str(key))} = {_toml(value)}\n" for key, value in values.items())


def load(
    model: str | os.PathLike[str],
    *,
    description: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    device: str = "AUTO",
    confidence: float | None = None,
    iou: float | None = None,
    classes: Iterable[str | int] | None = None,
    labels: Sequence[str] | None = None,
    gallery: str | os.PathLike[str] | None = None,
    color: _Color = "bgr",
    preprocess: str | Preprocess | None = None,
    batch: int | None = None,
    performance: Literal["latency", "throughput"] | None = None,
    config: Mapping[str, str | int | float | bool] | None = None,
) -> ImageModel:
    """Load a detector or a classifier from an ONNX file or an OpenVINO IR.

    - `description`: how an image becomes the input, and what the outputs mean: a file, the name of a known model, or a
      dictionary with the tables of such a file. Default: the file next to the model, a built-in one, or the model's metadata.
    - `device`: `CPU`, `OPENVINO.CPU`, `ORT.CPU` and so on. `AUTO` selects the first of `OPENVINO.CPU`, `ORT.CPU` and `CPU` that runs
      the model.
    - `confidence`: objects with a lower confidence are omitted; default: the threshold of the description.
    - `iou`: a box is suppressed if its overlap with a box of higher confidence exceeds this value; default: that of the description.
    - `classes`: labels or numbers of the classes that a detector reports; default: all.
    - `labels`: names of the classes. They replace the labels of the description.
    - `gallery`: for models with the decoder `embedding`: a file with names and vectors, which `roiflow gallery add` writes. An object then gets the
      name of the nearest vector, or `unknown` if the best cosine is below `confidence`.
    - `color`: order of the channels of arrays: `bgr` as OpenCV reads images, or `rgb`.
    - `preprocess`: a function that gets the image, or its registered name; see `register_preprocess`.
    - `batch`: number of images and regions per call of the engine, for models with a dynamic batch axis.
    - `performance`: `latency` uses all cores for one image, `throughput` runs several images concurrently. Default: `latency` for
      single images, `throughput` for lists, `submit` and `stream`. The model is compiled for `throughput` when one of these is first used.
    - `config`: options of the device, such as `{"threads": 2}`.

    Raises FileNotFoundError if the file does not exist, ConfigError (a RuntimeError) if there is no description or an option is
    invalid, ModelError if no device can run the file as a model, and ValueError for invalid arguments.
    """
    path = os.fspath(model)
    if not isinstance(path, str):
        raise TypeError(f"expected the path of a model, got {type(model)}")
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, "no model file", path)
    if color not in ("bgr", "rgb"):
        raise ValueError(f'color: expected "bgr" or "rgb", got {color!r}')
    if performance not in (None, "latency", "throughput"):
        raise ValueError(f'performance: expected "latency", "throughput" or None, got {performance!r}')
    if gallery is not None and not os.path.exists(gallery):
        raise FileNotFoundError(errno.ENOENT, "no gallery", os.fspath(gallery))
    for name, fraction in (("confidence", confidence), ("iou", iou)):
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError(f"{name}: expected a number from 0 to 1, got {fraction}")
    if batch is not None and operator.index(batch) < 1:
        raise ValueError(f"batch: expected a number of 1 or more, got {batch}")
    if isinstance(preprocess, str):
        if preprocess not in _PREPROCESSING:
            raise ValueError(f"preprocess: expected a registered name, one of {', '.join(_PREPROCESSING) or 'none'}, got {preprocess!r}")
        preprocess = _PREPROCESSING[preprocess]
    elif preprocess is not None and not callable(preprocess):
        raise TypeError(f"preprocess: expected a function or its name, got {type(preprocess)}")
    if isinstance(classes, str):
        raise TypeError(f"classes: expected a list of labels or numbers, got the text {classes!r}")
    chosen = None if classes is None else list(classes)
    text = _description_text(description) if isinstance(description, Mapping) else None
    file = None if description is None or isinstance(description, Mapping) else os.fspath(description)
    options = {str(key): ("true" if value else "false") if isinstance(value, bool) else str(value) for key, value in (config or {}).items()}

    def make(hint: str, batch_size: int | None) -> _roiflow._Stage:
        # The models of a cascade run in turn on the same cores. If threads of ONNX Runtime spin after a run, the next model lacks their
        # cores: three models reach only a third of the images per second. Other engines ignore the option.
        defaults = {"ORT.session.intra_op.allow_spinning": "0"} if hint == "latency" else {}
        merged = ",".join(f"{key}={value}" for key, value in {"performance": hint, **defaults, **options}.items())
        names = None if labels is None else list(labels)
        known = None if gallery is None else os.fspath(gallery)
        return _roiflow._Stage(path, file, text, device, confidence, iou, names, known, chosen, batch_size, merged)

    return ImageModel(make, _Options(color, batch, performance, preprocess))


def register_decoder(name: str, function: Decode, *, task: Literal["detection", "classification"] = "detection") -> None:
    """Register a function as a decoder, which descriptions name by `decoder = "..."`, for models that are loaded later.

    The function is called as `function(outputs, (width, height))`. `outputs` contains the outputs by name, as arrays of float32
    with a first axis of 1; the function may keep them. The size is that of the model's input. Several threads call the function at
    the same time. The function must not run models.

    - For `detection` it returns rows [N, 6 + 2 K]: x_min, y_min, x_max, y_max in pixels of the input, confidence, class, and the
      coordinates of K keypoints. roiflow then drops rows below the threshold, suppresses overlaps, and maps the rest to the image. The
      description has the keys `threshold`, `iou-threshold` and so on.
    - For `classification` it returns a number, a text, a pair of class number and confidence, a pair of text and confidence, an
      array, or a dictionary of these by the name of the attribute.

    If the function raises an exception, the call of the model raises it. Raises TypeError and ValueError for invalid arguments.
    """
    _roiflow._register_decoder(name, function, task)


def register_preprocess(name: str, function: Preprocess) -> None:
    """Register a preprocessing function by a name, for `load(..., preprocess=name)`.

    The function gets the caller's array of uint8, and must not change it. It returns one of these:

    - An image of uint8 with the same scene, of any size. It is then preprocessed as the description specifies. Boxes
      are mapped to the original image.
    - The input of the model: an array with four axes, cast to the element type of the model. Boxes are mapped to the
      image as if the image was stretched to the input.
    - A pair of the input and (scale x, scale y, offset x, offset y). The coordinates of a point in the image are its coordinates in
      the input times scale plus offset.

    If a function returns the input, it gets whole images only: calls with `rois` raise ValueError. Raises TypeError if `function` is
    not callable.
    """
    if not callable(function):
        raise TypeError(f"preprocess `{name}`: expected a function, got {type(function)}")
    _PREPROCESSING[name] = function
