"""Headers of numpy's files: `header_of`. A header that numpy refuses is a ValueError. Non-goals: the use of the
rows."""

from __future__ import annotations

import ast
import io
import math
import struct
import tokenize
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MAGIC = b"\x93NUMPY"

# numpy refuses longer headers by default: a parser of Python needs much memory for them, and may crash.
MOST_BYTES = 10_000

# Rows begin at a whole page, so that rows of a page's length are read by one I/O each.
_HEADER_BYTES = 4096

# The format of the header's length, and the encoding of its text, by version.
_VERSIONS = {1: ("<H", "latin1"), 2: ("<I", "latin1"), 3: ("<I", "utf8")}


@dataclass
class Header:
    """The fields of a header, and the offset of the rows."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    end: int


def header_of(read: Callable[[int, int], bytes], named: np.dtype[Any] | None = None) -> Header:
    """The header of a file. `read` takes an offset and a length, and returns less only at the end of the file. `named`
    is the dtype that the user has given: numpy writes names of some types of ml_dtypes, such as ``<f1``, that it cannot
    read."""
    start = read(0, len(MAGIC) + 2)
    if len(start) < len(MAGIC) + 2:
        raise ValueError("the file ends within its header")
    major, minor = start[-2:]
    if major not in _VERSIONS or minor != 0:
        raise ValueError(f"version {major}.{minor} of numpy's format is unknown; there are 1.0, 2.0 and 3.0")
    count, encoding = _VERSIONS[major]
    text_start = len(start) + struct.calcsize(count)
    said = read(len(start), text_start - len(start))
    if len(said) < text_start - len(start):
        raise ValueError("the file ends within its header")
    (length,) = struct.unpack(count, said)
    if length > MOST_BYTES:
        raise ValueError(f"its header has {length} bytes, and numpy reads up to {MOST_BYTES}")
    encoded = read(text_start, length)
    if len(encoded) < length:
        raise ValueError("the file ends within its header")
    try:
        values = _evaluated(encoded.decode(encoding), may_be_old=major < 3)
        dtype, shape, fortran = _parts(values, named)
    # The parser of Python raises some of these for text that is nested too deeply. An invalid dtype raises the others.
    except (
        ValueError,
        SyntaxError,
        TypeError,
        KeyError,
        IndexError,
        MemoryError,
        RecursionError,
        OverflowError,
    ) as error:
        raise ValueError(f"its header is none of numpy's: {error or type(error).__name__}") from error
    return Header(dtype, shape, fortran, text_start + length)


def _evaluated(text: str, *, may_be_old: bool) -> Any:
    try:
        return ast.literal_eval(text)
    except SyntaxError:
        if not may_be_old:
            raise
    # Python 2 wrote lengths like 10L.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.literal_eval(_without_l(text))


def _without_l(text: str) -> str:
    tokens = []
    after_number = False
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if not (after_number and token.type == tokenize.NAME and token.string == "L"):
                tokens.append(token)
            after_number = token.type == tokenize.NUMBER
    except tokenize.TokenError as error:
        raise ValueError(str(error)) from error
    return tokenize.untokenize(tokens)


def _parts(values: Any, named: np.dtype[Any] | None) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    if not isinstance(values, dict) or values.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("it is no dictionary with descr, fortran_order and shape")
    shape, fortran = values["shape"], values["fortran_order"]
    # True is an int in Python, but no length.
    if not isinstance(shape, tuple) or not all(type(length) is int for length in shape):
        raise ValueError(f"shape is not valid: {shape!r}")
    if not isinstance(fortran, bool):
        raise ValueError(f"fortran_order is not a valid bool: {fortran!r}")
    is_named = named is not None and named.isbuiltin == 2 and values["descr"] == named.str
    dtype = named if named is not None and is_named else np.lib.format.descr_to_dtype(values["descr"])
    if dtype.subdtype is not None:
        # numpy reads values that are arrays in this way: it takes as many numbers as the shape has values. So each
        # array has one number, or there are none.
        dtype, axes = dtype.subdtype
        check_shape(dtype, shape)
        if math.prod(shape) * math.prod(axes) != math.prod(shape):
            raise ValueError(f"shape {shape} for values that are arrays of shape {axes}")
    check_shape(dtype, shape)
    return dtype, shape, fortran


def check_shape(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """ValueError if numpy has no array of this shape."""
    if any(length < 0 for length in shape):
        raise ValueError("negative dimensions are not allowed")
    try:
        # It takes no memory.
        np.broadcast_to(np.empty((), dtype), shape)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"shape {shape}: {error}") from error
    size = dtype.itemsize
    for length in shape:
        size *= max(1, length)
    if size > np.iinfo(np.intp).max:
        raise ValueError(f"shape {shape}: the array is too big")


def header_bytes(dtype: np.dtype[Any], shape: tuple[int, ...], least: int = 0) -> bytes:
    """A header in numpy's format that ends with a page, and has at least `least` bytes."""
    said = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    text = repr(said)
    try:
        encoded, version = text.encode("latin1"), 2
    except UnicodeEncodeError:
        encoded, version = text.encode("utf8"), 3
    start = b"\x93NUMPY" + bytes([version, 0])
    taken = len(start) + 4 + len(encoded) + 1
    padding = max(0, least - taken)
    padding += -(taken + padding) % _HEADER_BYTES
    if taken + padding > MOST_BYTES:
        raise ValueError(f"a header of {taken + padding} bytes for dtype {dtype}: numpy reads up to {MOST_BYTES}")
    length = len(encoded) + padding + 1
    return start + length.to_bytes(4, "little") + encoded + b" " * padding + b"\n"
