"""Finding the rows of a file: in numpy's format, in safetensors' format, and raw ones."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ._elements import ELEMENTS
from ._files import File
from ._npy import MAGIC, check_shape, header_of
from ._rows import RowArray
from ._safetensors import BITS, tensors_of

_SAFETENSORS = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip

# Types that numpy has with the package ml_dtypes.
_ML_DTYPES = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip


@dataclass
class Place:
    """The place of the rows in one file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    # The type of the values, if numpy does not have it. Then `dtype` is that of their bits.
    element: str | None = None

    @property
    def row_bytes(self) -> int:
        """The length of a row."""
        size = self.dtype.itemsize
        for length in self.shape[1:]:
            size *= length
        return size

    def rows_in(self, file: File) -> RowArray:
        """The rows, if the file has no others."""
        return RowArray(file, self.dtype, self.shape, [(self.shape[0], self.offset)], element=self.element)


def rows_of_file(
    file: File,
    names: Sequence[str],
    *,
    tensor: str | None = None,
    dtype: DTypeLike | None = None,
    shape: Sequence[int] | int | None = None,
    offset: int = 0,
) -> RowArray:
    """The rows of an open file. `names` has its name, or the paths of a list of files."""
    # Reads are expected at random places. A slice is one large read anyway.
    file._native.expect_random()
    named = None if dtype is None else named_dtype(dtype)
    offset = _length(offset, "offset")
    if named is not None and (offset != 0 or not _says_what_it_is(file, names[0])):
        if tensor is not None:
            raise ValueError(f"a tensor ({tensor!r}) of a raw file, which has no tensors")
        place = _raw(file, names[0], named, shape, offset)
        return place.rows_in(file)
    if named is not None and shape is not None:
        raise ValueError(f"{names[0]}: its header has the shape: leave `shape` out, or give the offset of a raw file")
    if shape is not None or offset != 0:
        raise ValueError("a shape or an offset without a dtype: a raw file needs its dtype")
    places = []
    start = 0
    for name in names:
        length = len(file) if len(names) == 1 else os.stat(name).st_size
        place = _place(file, name, start, length, tensor, None if named is None else named[0])
        if named is not None:
            _view(name, place, named)
        if place.shape[0] * place.row_bytes > length - place.offset:
            raise ValueError(f"{name}: the file ends before its last row: it has {length} bytes")
        place.offset += start
        start += length
        places.append(place)
    first = places[0]
    for name, place in zip(names, places):
        if (place.dtype, place.shape[1:]) != (first.dtype, first.shape[1:]):
            raise ValueError(
                f"{name}: its rows have dtype {place.dtype} and shape {place.shape[1:]}, "
                f"and those of {names[0]} have {first.dtype} and {first.shape[1:]}"
            )
    parts = [(place.shape[0], place.offset) for place in places]
    rows = sum(place.shape[0] for place in places)
    return RowArray(file, first.dtype, (rows, *first.shape[1:]), parts, element=first.element)


def named_dtype(dtype: DTypeLike) -> tuple[np.dtype[Any], str | None]:
    """A dtype by its name, also one of ml_dtypes. Without that package: the type of the bits, and the name."""
    if isinstance(dtype, str) and dtype in ELEMENTS:
        return _of_element(dtype)
    return np.dtype(dtype), None


def _of_element(element: str) -> tuple[np.dtype[Any], str | None]:
    try:
        import ml_dtypes  # type: ignore[import-not-found, unused-ignore]

        return np.dtype(getattr(ml_dtypes, element)), None
    except (ImportError, AttributeError):
        bits = np.dtype(ELEMENTS[element])
    warnings.warn(
        f"iomill: numpy has no {element}: the rows are its bits, as {bits}; install the package ml_dtypes, or take them as tensors by iomill.torch",
        stacklevel=6,
    )
    return bits, element


def _view(name: str, place: Place, named: tuple[np.dtype[Any], str | None]) -> None:
    """Gives the rows of a file another type of the same bits. Only if the file does not name the type, or numpy does
    not have it."""
    dtype, element = named
    element_of_file = place.element or (place.dtype.name if place.dtype.name in ELEMENTS else None)
    is_void = place.dtype.kind == "V" and place.dtype.names is None and place.dtype.subdtype is None
    is_bits = element_of_file is not None and dtype == np.dtype(ELEMENTS[element_of_file])
    if (is_void and element_of_file is None) or is_bits:
        if dtype.itemsize != place.dtype.itemsize:
            raise ValueError(
                f"{name}: its values have {place.dtype.itemsize} bytes, and those of {dtype} {dtype.itemsize}"
            )
    elif (element or dtype) != (place.element or place.dtype):
        raise ValueError(
            f"{name}: its header has the dtype {element_of_file or place.dtype}: leave `dtype` out, or give the offset of a raw file"
        )
    place.dtype, place.element = _fixed(name, dtype), element if not is_bits else place.element


def _length(value: Any, what: str) -> int:
    """An integer of any kind as an int of Python, which does not wrap around."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{what}: {value!r} is no number")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what}: {value!r} is no integer") from None


def _says_what_it_is(file: File, name: str) -> bool:
    """Whether a file has a header with its dtype."""
    return name.endswith(".safetensors") or file.read_at(0, len(MAGIC)) == MAGIC


def _has_tensors(file: File, name: str) -> bool:
    """Whether a file is one of safetensors, by its suffix. On drives a file of numpy may have this suffix, too: `put`
    stores a tensor in numpy's format, by default under the name of its source."""
    return name.endswith(".safetensors") and (file._owner is None or file.read_at(0, len(MAGIC)) != MAGIC)


def _place(file: File, name: str, start: int, length: int, tensor: str | None, named: np.dtype[Any] | None) -> Place:
    def read(offset: int, count: int) -> bytes:
        return file.read_at(start + offset, max(0, min(count, length - offset)))

    try:
        if _has_tensors(file, name):
            how = "iomill.open(path, name)" if file._owner is None else "Drives.rows(name, tensor=...)"
            return _tensor(how, read, length, tensor)
        if tensor is not None:
            raise ValueError(
                "only a file of safetensors has named tensors, and this file does not end with .safetensors"
            )
        if read(0, len(MAGIC)) != MAGIC:
            raise ValueError("it begins like no file of numpy or safetensors; give its dtype if it is a raw file")
        header = header_of(read, named)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if header.fortran and len(header.shape) > 1:
        raise ValueError(
            f"{name}: the array is in Fortran order, so the bytes of a row are not adjacent in the file; "
            "save it again in C order: numpy.save(path, numpy.ascontiguousarray(x))"
        )
    return Place(_fixed(name, header.dtype), _with_rows(name, header.shape), header.end)


def _tensor(how: str, read: Callable[[int, int], bytes], length: int, tensor: str | None) -> Place:
    tensors = tensors_of(read, length)
    names = ", ".join(sorted(tensors))
    if tensor is None:
        raise ValueError(f"name a tensor: {how}; there are {names}")
    found = tensors.get(tensor)
    if found is None:
        raise ValueError(f"no tensor named {tensor!r}; there are {names}")
    element = None
    if found.dtype in _SAFETENSORS:
        dtype = np.dtype(_SAFETENSORS[found.dtype])
    elif found.dtype in _ML_DTYPES:
        dtype, element = _of_element(_ML_DTYPES[found.dtype])
    else:
        raise ValueError(
            f"tensor {tensor!r} has the dtype {found.dtype} with values of {BITS[found.dtype]} bits: its rows are not whole bytes"
        )
    check_shape(dtype, found.shape)
    return Place(dtype, _with_rows(repr(tensor), found.shape), found.start, element)


def _raw(
    file: File,
    name: str,
    named: tuple[np.dtype[Any], str | None],
    shape: Sequence[int] | int | None,
    offset: int,
) -> Place:
    dtype, element = named
    _fixed(name, dtype)
    dtype, lengths = _of_values(dtype, (-1,) if shape is None else lengths_of(shape))
    if offset < 0 or offset > len(file):
        raise ValueError(f"{name}: offset {offset} is not within its {len(file)} bytes")
    if any(length < 0 for length in lengths[1:]):
        raise ValueError(f"{name}: shape {lengths}: only the first length may be -1")
    place = Place(dtype, _with_rows(name, lengths), offset, element)
    row_bytes, left = place.row_bytes, len(file) - offset
    if lengths[0] == -1:
        if row_bytes == 0 or left % row_bytes != 0:
            raise ValueError(
                f"{name}: size of available data is not a multiple of the row size: {left} bytes, rows of {row_bytes}"
            )
        place.shape = (left // row_bytes, *lengths[1:])
    elif lengths[0] < 0:
        raise ValueError(f"{name}: shape {lengths}: negative dimensions are not allowed")
    elif lengths[0] * row_bytes > left:
        raise ValueError(f"{name}: the file has {left} bytes from offset {offset} on, too few for shape {lengths}")
    try:
        check_shape(dtype, place.shape)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return place


def place_of_new(name: str, dtype: DTypeLike, shape: Sequence[int] | int) -> Place:
    """The place of the rows in a new file without a header. ValueError if no array has this dtype and shape."""
    named, element = named_dtype(dtype)
    values, lengths = _of_values(_fixed(name, named), _with_rows(name, lengths_of(shape)))
    try:
        check_shape(values, lengths)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return Place(values, lengths, 0, element)


def lengths_of(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple. An integer is a shape of one axis."""
    if isinstance(shape, (str, bytes)) or not hasattr(shape, "__iter__") or getattr(shape, "ndim", 1) == 0:
        return (_length(shape, "shape"),)
    return tuple(_length(length, "shape") for length in shape)


def _of_values(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Splits a dtype with arrays as values, such as ``(int, (2,))``, as numpy does: the axes of the values become the
    last ones."""
    if dtype.subdtype is None:
        return dtype, shape
    value, axes = dtype.subdtype
    return value, shape + axes


def _fixed(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.hasobject:
        raise ValueError(f"{name}: Python objects in dtype: the file does not have them as rows of one length")
    if dtype.itemsize == 0:
        raise ValueError(f"{name}: values of dtype {dtype} have 0 bytes")
    return dtype


def _with_rows(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if not shape:
        raise ValueError(f"{name}: a 0-dimensional array has no rows")
    return shape
