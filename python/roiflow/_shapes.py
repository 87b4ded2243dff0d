"""Shapes of tensors and ports. The extents of a port's shape can be dynamic."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import SupportsIndex, Union, cast

__all__ = ["Coordinate", "Dimension", "PartialShape", "Shape", "Strides"]


class _Extents(list[int]):
    """A list of non-negative integers. It also compares equal to a tuple of the same numbers."""

    __slots__ = ()

    def __init__(self, values: Iterable[SupportsIndex] = ()) -> None:
        """Raise TypeError if `values` is not a sequence of integers, and ValueError if a number is negative."""
        if isinstance(values, (str, bytes)):
            raise TypeError(f"{type(self).__name__}: expected whole numbers, got {values!r}")
        extents = [operator.index(value) for value in values]
        if any(extent < 0 for extent in extents):
            raise ValueError(f"{type(self).__name__}: expected numbers of 0 or more, got {extents}")
        super().__init__(extents)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (list, tuple)):
            return list(self) == list(other)
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = None

    def __str__(self) -> str:
        return "[" + ",".join(map(str, self)) + "]"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"

    def to_string(self) -> str:
        """The extents in brackets, as in `[1,3,224,224]`."""
        return str(self)


class Shape(_Extents):
    """The extent of each axis, as a list of non-negative integers."""

    __slots__ = ()


class Strides(_Extents):
    """For each axis, the number of bytes from one element to the next."""

    __slots__ = ()


class Coordinate(_Extents):
    """A position in a tensor: one index for each axis."""

    __slots__ = ()


class Dimension:
    """One extent of a partial shape: `Dimension(4)`, `Dimension(1, 8)` for bounds, `Dimension()` or `Dimension(-1)` for any."""

    __slots__ = ("_max", "_min")

    def __init__(self, dimension: SupportsIndex | None = None, max_dimension: SupportsIndex | None = None) -> None:
        """Raise ValueError if no extent is within the bounds."""
        low = -1 if dimension is None else operator.index(dimension)
        high = low if max_dimension is None else operator.index(max_dimension)
        self._min: int = max(low, 0)
        self._max: int = -1 if high < 0 else high
        if 0 <= self._max < self._min:
            raise ValueError(f"Dimension: expected a minimum up to the maximum, got {low} and {high}")

    @staticmethod
    def dynamic() -> Dimension:
        """A dimension that allows any extent."""
        return Dimension()

    @property
    def is_static(self) -> bool:
        """Whether the dimension allows only one extent."""
        return self._min == self._max

    @property
    def is_dynamic(self) -> bool:
        """Whether the dimension allows several extents."""
        return not self.is_static

    def get_length(self) -> int:
        """The extent. Raise RuntimeError if it is dynamic."""
        if not self.is_static:
            raise RuntimeError(f"the dimension {self} is dynamic: it has no length")
        return self._min

    def get_min_length(self) -> int:
        """The minimum extent."""
        return self._min

    def get_max_length(self) -> int:
        """The maximum extent; -1 if there is no maximum."""
        return self._max

    @property
    def min_length(self) -> int:
        """The minimum extent."""
        return self._min

    @property
    def max_length(self) -> int:
        """The maximum extent; -1 if there is no maximum."""
        return self._max

    def __len__(self) -> int:
        return self.get_length()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dimension):
            return (self._min, self._max) == (other._min, other._max)
        if isinstance(other, int):
            return self == Dimension(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._min) if self.is_static else hash((self._min, self._max))

    def __str__(self) -> str:
        if self.is_static:
            return str(self._min)
        if self._max < 0:
            return "?" if self._min == 0 else f"{self._min}.."
        return f"{self._min}..{self._max}"

    def to_string(self) -> str:
        """The extent, its bounds as in `1..10`, or `?` if any extent is allowed."""
        return str(self)

    def __repr__(self) -> str:
        return f"<Dimension: {self}>"


_Extent = Union[SupportsIndex, Dimension, str, tuple[SupportsIndex, SupportsIndex], list[SupportsIndex]]


def _dimension(value: _Extent) -> Dimension:
    if isinstance(value, Dimension):
        return value
    if isinstance(value, str):
        text = value.strip()
        if text in ("?", "-1"):
            return Dimension()
        low, dots, high = text.partition("..")
        return Dimension(int(low or 0), int(high) if high else -1) if dots else Dimension(int(text))
    if isinstance(value, (tuple, list)):
        low_bound, high_bound = value
        return Dimension(low_bound, high_bound)
    return Dimension(value)


class PartialShape(Sequence[Dimension]):
    """A shape whose extents may be dynamic.

    Made of a list of extents: -1 or "?" for any, a pair for bounds; or of a text such as "[?, 3, 1..10]".
    """

    __slots__ = ("_dimensions",)

    def __init__(self, shape: str | Iterable[_Extent]) -> None:
        """Raise TypeError or ValueError if the value is not a shape."""
        if isinstance(shape, str):
            inner = shape.strip().removeprefix("[").removesuffix("]")
            shape = [part for part in inner.split(",") if part.strip()]
        self._dimensions: list[Dimension] = [_dimension(value) for value in shape]

    def _bounds(self) -> list[tuple[int, int]]:
        return [(dimension.min_length, dimension.max_length) for dimension in self._dimensions]

    @property
    def rank(self) -> Dimension:
        """The number of axes."""
        return Dimension(len(self._dimensions))

    @property
    def is_static(self) -> bool:
        """Whether no extent is dynamic."""
        return all(dimension.is_static for dimension in self._dimensions)

    @property
    def is_dynamic(self) -> bool:
        """Whether an extent is dynamic."""
        return not self.is_static

    def to_shape(self) -> Shape:
        """The shape. Raise RuntimeError if it is dynamic."""
        if self.is_dynamic:
            raise RuntimeError(f"the partial shape {self} is dynamic: it is no shape")
        return Shape(dimension.min_length for dimension in self._dimensions)

    def get_shape(self) -> Shape:
        """Same as `to_shape`."""
        return self.to_shape()

    def get_min_shape(self) -> Shape:
        """The minimum extents."""
        return Shape(dimension.min_length for dimension in self._dimensions)

    def get_max_shape(self) -> list[int]:
        """The maximum extents; -1 for an axis without a maximum."""
        return [dimension.max_length for dimension in self._dimensions]

    def get_dimension(self, index: int) -> Dimension:
        """One extent."""
        return self._dimensions[index]

    def __len__(self) -> int:
        return len(self._dimensions)

    def __getitem__(self, index: SupportsIndex | slice) -> Dimension | PartialShape:  # type: ignore[override]
        if isinstance(index, slice):
            return PartialShape(self._dimensions[index])
        return self._dimensions[index]

    def __iter__(self) -> Iterator[Dimension]:
        return iter(self._dimensions)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartialShape):
            return self._dimensions == other._dimensions
        if isinstance(other, (list, tuple)):
            try:
                return self == PartialShape(cast("Iterable[_Extent]", other))
            except (TypeError, ValueError):
                return False
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._dimensions))

    def __str__(self) -> str:
        return "[" + ",".join(map(str, self._dimensions)) + "]"

    def to_string(self) -> str:
        """The extents in brackets, as in `[?,3,1..10]`."""
        return str(self)

    def __repr__(self) -> str:
        return f"<PartialShape: {self}>"
