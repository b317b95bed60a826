"""`open`: files of rows in numpy's and safetensors' formats, and raw ones."""

from __future__ import annotations

import ast
import contextlib
import json
import multiprocessing
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ._arrays import Array
from ._files import File, Path, Runtime, limit_worker_cache, paths_of, worker_share
from ._rows import RowArray

_NPY = b"\x93NUMPY"

_SAFETENSORS = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip

# Types that numpy has with the package ml_dtypes.
_ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


@dataclass
class Place:
    """Where the rows of one file are."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


def open(
    path: Path | Sequence[Path],
    name: str | None = None,
    *,
    dtype: DTypeLike | None = None,
    shape: Sequence[int] | int | None = None,
    offset: int = 0,
    mode: str = "r",
    runtime: Runtime | None = None,
) -> RowArray:
    """Opens rows in a file.

    `path` is a file, or a list of files of one format whose rows follow each other. It may be the directory of a drive;
    then `name` is the file in its array. For a file of safetensors `name` is the tensor.

    A file of numpy (``.npy``) says what is in it. So does a file of safetensors, which is known by its suffix. Any other
    file needs `dtype`; then its rows begin at `offset` bytes and have the shape ``shape[1:]``. Without `shape` the rows
    are single values. A first length of -1 takes as many rows as there are.

    `mode` is ``r``, or ``r+`` for writing. `runtime` has another cache than that of the process.

    OSError if the file cannot be opened; ValueError if it has another format, Python objects or Fortran order, or if it
    is too short.

    >>> import numpy, iomill
    >>> numpy.arange(6, dtype="<i2").tofile("pairs.bin")
    >>> iomill.open("pairs.bin", dtype="<i2", shape=(-1, 2))[::-1]
    array([[4, 5],
           [2, 3],
           [0, 1]], dtype=int16)
    """
    return _open(path, name, dtype=dtype, shape=shape, offset=offset, mode=mode, runtime=runtime)


def _open(
    path: Path | Sequence[Path],
    name: str | None,
    *,
    dtype: DTypeLike | None = None,
    shape: Sequence[int] | int | None = None,
    offset: int = 0,
    mode: str = "r",
    runtime: Runtime | None = None,
    cache_bytes: int | None = None,
) -> RowArray:
    """`open`, and with `cache_bytes` the size of the cache of an array that this process has not open."""
    paths = paths_of(path)
    how: dict[str, Any] = {"dtype": dtype, "shape": shape, "offset": offset}
    if len(paths) == 1 and os.path.isdir(paths[0]):
        if name is None:
            raise ValueError(f"{paths[0]!r} is a directory: if it is a drive of an array, name a file of the array")
        if runtime is not None:
            raise ValueError("an array has a cache of its own, and no runtime")
        array = Array._shared(paths[0], mode, cache_bytes)
        used = array.cache_bytes
        with _closed_on_error(array._open_alone(name)) as file:
            rows = rows_of_file(file, [name], **how)
    else:
        with _closed_on_error(File(paths, mode, runtime=runtime)) as file:
            rows = rows_of_file(file, paths, tensor=name, **how)
        used = Runtime.shared().cache_bytes if runtime is None else 0
    if mode == "r" and runtime is None:
        rows._recipe = (_open_again, ([os.path.abspath(one) for one in paths], name, how, worker_share(used)))
    return rows


@contextlib.contextmanager
def _closed_on_error(file: File) -> Iterator[File]:
    try:
        yield file
    except BaseException:
        file.close()
        raise


def _open_again(
    paths: list[str], name: str | None, how: dict[str, Any], cache_bytes: int, *, now: bool = False
) -> RowArray:
    """Opens rows in another process, at their first use. A worker that was not forked gets the share of its parent's cache that
    a forked one has."""
    if not now:
        return RowArray._later((_open_again, (paths, name, how, cache_bytes)))
    if multiprocessing.parent_process() is None:
        return open(paths, name, **how)
    limit_worker_cache(cache_bytes)
    return _open(paths, name, cache_bytes=cache_bytes, **how)


def rows_of_file(
    file: File,
    names: Sequence[str],
    *,
    tensor: str | None = None,
    dtype: DTypeLike | None = None,
    shape: Sequence[int] | int | None = None,
    offset: int = 0,
) -> RowArray:
    """The rows of an open file. `names` has the file's name, or the paths of the files that it is a list of."""
    # Reads will be at random places. Slices are read by large calls anyway.
    file._native.expect_random()
    if dtype is not None:
        if tensor is not None:
            raise ValueError(f"a name ({tensor!r}) and a dtype: a raw file has no tensors, and others know their dtype")
        place = _raw(file, names[0], np.dtype(dtype), shape, offset)
        return RowArray(file, place.dtype, place.shape, [(place.shape[0], place.offset)])
    if shape is not None or offset != 0:
        raise ValueError("a shape or an offset without a dtype: a raw file needs its dtype")
    places = []
    start = 0
    for name in names:
        length = len(file) if len(names) == 1 else os.stat(name).st_size
        place = _place(file, name, start, length, tensor)
        if place.shape[0] * _row_bytes(place) > length - place.offset:
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
    return RowArray(file, first.dtype, (rows, *first.shape[1:]), parts)


def _row_bytes(place: Place) -> int:
    size = place.dtype.itemsize
    for length in place.shape[1:]:
        size *= length
    return size


def _place(file: File, name: str, start: int, length: int, tensor: str | None) -> Place:
    magic = file.read_at(start, 8)
    if name.endswith(".safetensors"):
        return _safetensors(file, name, start, length, tensor)
    if tensor is not None:
        raise ValueError(f"{name}: only a file of safetensors has tensors with names; this has no such suffix")
    if magic.startswith(_NPY):
        return _npy(file, name, start, magic)
    raise ValueError(f"{name}: it begins like no file of numpy or safetensors; give its dtype if it is a raw file")


def _npy(file: File, name: str, start: int, magic: bytes) -> Place:
    major = magic[6]
    if major not in (1, 2, 3):
        raise ValueError(f"{name}: version {major} of numpy's format is not known; there are 1, 2 and 3")
    count, encoding = ("<H", "latin1") if major == 1 else ("<I", "utf8" if major == 3 else "latin1")
    header_start = 8 + struct.calcsize(count)
    (header_bytes,) = struct.unpack(count, file.read_at(start + 8, header_start - 8))
    header = file.read_at(start + header_start, header_bytes)
    try:
        text = header.decode(encoding)
        # Python 2 wrote lengths like 10L.
        said = ast.literal_eval(re.sub(r"(?<=\d)L\b", "", text) if major < 3 else text)
        dtype = np.lib.format.descr_to_dtype(said["descr"])
        shape = tuple(int(length) for length in said["shape"])
        fortran = bool(said["fortran_order"])
    except (ValueError, SyntaxError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}: its header is none of numpy's: {error}") from error
    if len(header) < header_bytes:
        raise ValueError(f"{name}: the file ends within its header")
    if fortran and len(shape) > 1:
        raise ValueError(
            f"{name}: the array is in Fortran order, so its rows are not together in the file; "
            "save it again in C order: numpy.save(path, numpy.ascontiguousarray(x))"
        )
    return Place(_fixed(name, dtype), _with_rows(name, shape), header_start + header_bytes)


def _safetensors(file: File, name: str, start: int, length: int, tensor: str | None) -> Place:
    try:
        (header_bytes,) = struct.unpack("<Q", file.read_at(start, 8))
        if header_bytes > length - 8:
            raise ValueError("the file ends within it")
        header = json.loads(file.read_at(start + 8, header_bytes))
        header.pop("__metadata__", None)
        names = sorted(header)
    except (ValueError, struct.error, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}: its header is none of safetensors': {error}") from error
    if tensor is None:
        raise ValueError(f"{name}: name a tensor: iomill.open(path, name); there are {', '.join(names)}")
    if tensor not in header:
        raise ValueError(f"{name}: no tensor named {tensor!r}; there are {', '.join(names)}")
    said = header[tensor]
    kind = said["dtype"]
    if kind in _SAFETENSORS:
        dtype = np.dtype(_SAFETENSORS[kind])
    elif kind in _ML_DTYPES:
        try:
            import ml_dtypes  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise ValueError(f"{name}: numpy has no {kind}; install the package ml_dtypes") from None
        dtype = np.dtype(getattr(ml_dtypes, _ML_DTYPES[kind]))
    else:
        raise ValueError(f"{name}: tensor {tensor!r} has the dtype {kind}, which numpy does not have")
    begin, end = said["data_offsets"]
    place = Place(dtype, _with_rows(f"{name}: {tensor!r}", tuple(said["shape"])), 8 + header_bytes + begin)
    if place.shape[0] * _row_bytes(place) != end - begin:
        raise ValueError(f"{name}: tensor {tensor!r} has {end - begin} bytes, and its shape is {place.shape}")
    return place


def _raw(file: File, name: str, dtype: np.dtype[Any], shape: Sequence[int] | int | None, offset: int) -> Place:
    _fixed(name, dtype)
    lengths = (-1,) if shape is None else (shape,) if isinstance(shape, int) else tuple(shape)
    if offset < 0 or offset > len(file):
        raise ValueError(f"{name}: offset {offset} is not within its {len(file)} bytes")
    if any(length < 0 for length in lengths[1:]):
        raise ValueError(f"{name}: shape {lengths}: only the first length may be -1")
    place = Place(dtype, _with_rows(name, lengths), offset)
    row_bytes, left = _row_bytes(place), len(file) - offset
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
    return place


def _fixed(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.hasobject:
        raise ValueError(f"{name}: Python objects in dtype: they are not in the file as rows of one length")
    if dtype.itemsize == 0:
        raise ValueError(f"{name}: values of dtype {dtype} have 0 bytes")
    return dtype


def _with_rows(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if not shape:
        raise ValueError(f"{name}: a 0-dimensional array has no rows")
    return shape
