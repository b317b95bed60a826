"""Headers of safetensors' files: `tensors_of`. A header that the library `safetensors` refuses is a ValueError.

A tensor or a field that occurs twice is refused, too, because readers differ in the one that they use.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# The library refuses longer headers.
_MOST_BYTES = 100_000_000

# Bits of a value, by dtype.
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

_U64 = 2**64

# The limit of the library's parser.
_MOST_DEPTH = 127


@dataclass
class Tensor:
    """The place of a tensor: from `start` to `end` in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def tensors_of(read: Callable[[int, int], bytes], length: int) -> dict[str, Tensor]:
    """The tensors of a file of `length` bytes. `read` takes an offset and a length, and returns less only at the end of
    the file."""
    start = read(0, 8)
    if len(start) < 8:
        raise ValueError("the file ends within its header")
    (count,) = struct.unpack("<Q", start)
    if count > _MOST_BYTES:
        raise ValueError(f"its header has {count} bytes, and safetensors reads up to {_MOST_BYTES}")
    if count > length - 8:
        raise ValueError("the file ends within its header")
    try:
        tensors = _parsed(read(8, count).decode("utf8"), 8 + count)
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"its header is none of safetensors': {error or type(error).__name__}") from error
    _check_places(tensors, 8 + count, length)
    return tensors


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON with all of its keys, also repeated ones."""


def _parsed(text: str, base: int) -> dict[str, Tensor]:
    header = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_refuse, parse_int=_integer, parse_float=_finite)
    _check_depth(header, 1)
    tensors: dict[str, Tensor] = {}
    is_told = False
    for name, said in _object(header, "it"):
        if name == "__metadata__":
            if is_told:
                raise ValueError("__metadata__ occurs twice")
            is_told = True
            _check_metadata(said)
            continue
        if name in tensors:
            raise ValueError(f"tensor {name!r} occurs twice")
        tensors[name] = _tensor(name, said, base)
    return tensors


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _integer(digits: str) -> int | float:
    # As in the library: integers have 64 bits. Larger ones are floats, which are no lengths.
    value = int(digits) if len(digits) < 25 else _U64
    return _finite(digits) if digits == "-0" or not -_U64 // 2 <= value < _U64 else value


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{digits} is out of range")
    return value


def _check_depth(value: Any, depth: int) -> None:
    if isinstance(value, str):
        # A lone surrogate of UTF-16 is no text.
        value.encode("utf8")
    if not isinstance(value, list):
        return
    if depth > _MOST_DEPTH:
        raise ValueError("it is nested too deeply")
    for part in value:
        if isinstance(value, _Pairs):
            part[0].encode("utf8")
            part = part[1]
        _check_depth(part, depth + 1)


def _object(value: Any, what: str) -> _Pairs:
    if not isinstance(value, _Pairs):
        raise ValueError(f"{what} is no object")
    return value


def _check_metadata(said: Any) -> None:
    if said is None:
        return
    for key, value in _object(said, "__metadata__"):
        if not isinstance(value, str):
            raise ValueError(f"__metadata__: {key!r} is no text")


def _tensor(name: str, said: Any, base: int) -> Tensor:
    fields: dict[str, Any] = {}
    for key, value in _object(said, f"tensor {name!r}"):
        if key in fields and key in ("dtype", "shape", "data_offsets"):
            raise ValueError(f"tensor {name!r}: {key} occurs twice")
        fields[key] = value
    for key in ("dtype", "shape", "data_offsets"):
        if key not in fields:
            raise ValueError(f"tensor {name!r} has no {key}")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"tensor {name!r} has the dtype {dtype!r}, which safetensors does not have")
    for key, values in (("shape", shape), ("data_offsets", offsets)):
        is_list = isinstance(values, list) and not isinstance(values, _Pairs)
        if not is_list or not all(type(value) is int and value >= 0 for value in values):
            raise ValueError(f"tensor {name!r}: its {key} is no list of lengths")
    if len(offsets) != 2:
        raise ValueError(f"tensor {name!r}: its data_offsets are {len(offsets)} numbers, and not 2")
    bits = 1
    for factor in (*shape, BITS[dtype]):
        bits *= factor
        if bits >= _U64:
            raise ValueError(f"tensor {name!r} is too big")
    if bits % 8 != 0:
        raise ValueError(f"tensor {name!r} does not end with a byte")
    if offsets[1] - offsets[0] != bits // 8:
        raise ValueError(
            f"tensor {name!r} has {offsets[1] - offsets[0]} bytes, and its shape is {tuple(shape)} of {dtype}"
        )
    return Tensor(dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _check_places(tensors: dict[str, Tensor], start: int, length: int) -> None:
    """Checks that the tensors are adjacent, from the header to the end of the file."""
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if tensor.start != start:
            raise ValueError(f"tensor {name!r} begins at byte {tensor.start}, and those before it end at {start}")
        start = tensor.end
    if start > length:
        raise ValueError(f"the file ends before its last row: it has {length} bytes, and its tensors end at {start}")
    if start < length:
        raise ValueError(f"after its tensors the file has {length - start} bytes more")
