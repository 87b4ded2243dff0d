"""The results of a run."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from roiflow._roiflow import ConstOutput

__all__ = ["OVDict"]

Array = npt.NDArray[Any]


class OVDict(Mapping[ConstOutput, Array]):
    """The outputs of a run: a read-only mapping from ports to arrays, in the order of the model.

    A key is a port, an index or a name. Raises KeyError if the model has no such output, and TypeError if the key has another type.
    """

    __slots__ = ("_values",)

    def __init__(self, values: dict[ConstOutput, Array]) -> None:
        self._values = values

    def __getitem__(self, key: Union[ConstOutput, int, str]) -> Array:
        if isinstance(key, ConstOutput):
            return self._values[key]
        if isinstance(key, str):
            for port, value in self._values.items():
                if key in port.names:
                    return value
            raise KeyError(f"no output `{key}`: expected one of {', '.join(map(str, self._names()))}")
        if isinstance(key, (int, np.integer)):
            if 0 <= key < len(self._values):
                return list(self._values.values())[int(key)]
            raise KeyError(f"no output number {key}: there are {len(self._values)}")
        raise TypeError(f"unsupported key type: {type(key)}; expected a port, an index or a name")

    def __contains__(self, key: object) -> bool:
        try:
            self[key]  # type: ignore[index]
        except (KeyError, TypeError):
            return False
        return True

    def __iter__(self) -> Iterator[ConstOutput]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __setitem__(self, key: object, value: object) -> None:
        raise TypeError("'OVDict' object does not support item assignment")

    def __delitem__(self, key: object) -> None:
        raise TypeError("'OVDict' object does not support item deletion")

    def _names(self) -> list[str]:
        return [name for port in self._values for name in sorted(port.names)]

    def keys(self) -> KeysView[ConstOutput]:
        """The ports, in order."""
        return self._values.keys()

    def values(self) -> ValuesView[Array]:
        """The arrays, in order."""
        return self._values.values()

    def items(self) -> ItemsView[ConstOutput, Array]:
        """Pairs of port and array, in order."""
        return self._values.items()

    def names(self) -> tuple[set[str], ...]:
        """The names of each output, in order."""
        return tuple(port.names for port in self._values)

    def to_dict(self) -> dict[ConstOutput, Array]:
        """A dictionary that maps ports to arrays."""
        return dict(self._values)

    def to_tuple(self) -> tuple[Array, ...]:
        """The arrays, in order."""
        return tuple(self._values.values())

    def __repr__(self) -> str:
        return repr({", ".join(sorted(port.names)): value for port, value in self._values.items()})
