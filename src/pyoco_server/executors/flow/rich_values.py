"""Encodes values of classes that are not Python's own: arrays of numpy, and by pickle what nothing else can encode."""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

__all__ = ["NPY_TYPE", "RichForms", "read_npy"]

#: RES-21
NPY_TYPE = "application/x-npy"


class RichForms:
    """Implements `core.values.encode.OtherForms`."""

    def __init__(self, *, pickles: bool = False) -> None:
        self._pickles = pickles

    def raw(self, value: Any) -> tuple[str, bytes] | None:
        data = _npy(value)
        return None if data is None else (NPY_TYPE, data)

    def form(self, value: Any) -> tuple[str, bytes] | None:
        data = _npy(value)
        if data is not None:
            return "npy", data
        if not self._pickles:
            return None
        try:
            return "pickle", pickle.dumps(value)
        except (pickle.PicklingError, TypeError, AttributeError):
            return None


def _npy(value: Any) -> bytes | None:
    """Return an array or a scalar of numpy in its own format. None: it is neither, or has Python objects in it."""
    numpy = sys.modules.get("numpy")  # without it there are no such values
    if numpy is None or not isinstance(value, numpy.ndarray | numpy.generic):
        return None
    array = numpy.asarray(value)
    if array.dtype.hasobject:
        return None
    data = io.BytesIO()
    numpy.save(data, array, allow_pickle=False)
    return data.getvalue()


def read_npy(data: bytes) -> Any:
    """Return the array; a scalar if it has no dimension. Raises ValueError, ImportError."""
    import numpy as np  # noqa: PLC0415  (not a dependency: only for those who use it)

    array = np.load(io.BytesIO(data), allow_pickle=False)
    return array[()] if array.ndim == 0 else array
