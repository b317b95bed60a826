"""Keys of rows: their types for type checkers, and their items in the forms that `RowArray` reads."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:

    class Convertible(Protocol):
        """An ndarray, a scalar of numpy, a tensor."""

        def __array__(self) -> NDArray[Any]: ...

    # Row numbers, or a mask.
    Ids = Sequence[SupportsIndex] | Sequence[Sequence[SupportsIndex]] | Convertible
    # Names rows by the first axis, as in numpy.
    Key = SupportsIndex | slice | EllipsisType | Ids
    # Names values.
    Item = Key | None
    # The treatment of row numbers out of bounds.
    Clip = Literal["raise", "wrap", "clip"]


def item_of(item: Any) -> Any:
    """One item of a key: None, Ellipsis, a bool, an int, a slice or an ndarray. Other items are returned unchanged, and
    refused later."""
    if item is None or isinstance(item, (EllipsisType, slice, bool, int)):
        return item
    if isinstance(item, np.bool_):
        return bool(item)
    if not isinstance(item, (np.ndarray, np.generic, str)):
        try:
            return operator.index(item)
        except TypeError:
            array = np.asarray(item)
            # An empty list names no rows, and its type does not matter.
            item = array.astype(np.intp) if array.size == 0 and not hasattr(item, "dtype") else array
    if isinstance(item, (np.ndarray, np.generic)) and item.ndim == 0 and item.dtype.kind in "iub":
        return item.item()
    return item


def integers(ids: ArrayLike) -> NDArray[Any]:
    """Row numbers in the form of the native half: in C order, and in the machine's byte order."""
    numbers = ids if type(ids) is np.ndarray else np.asarray(ids)
    if numbers.dtype.kind not in "iu":
        if numbers.size > 0 or isinstance(ids, np.ndarray):
            raise IndexError("arrays used as indices must be of integer (or boolean) type")
        return numbers.astype(np.intp)
    if not numbers.flags.c_contiguous or not numbers.dtype.isnative:
        return numbers.astype(numbers.dtype.newbyteorder("="), order="C")
    return numbers
