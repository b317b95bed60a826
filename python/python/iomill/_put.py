"""`put`: spreads a file over the drives of an array."""

from __future__ import annotations

import builtins
import errno
import operator
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import _iomill
from ._arrays import Array, Draft, is_drive
from ._files import File, Path, path_of, paths_of
from ._formats import rows_of_file
from ._npy import MOST_BYTES

_STEP_BYTES = 8 << 20

# Rows begin at a whole page, so that rows of a page's length are read by one I/O each.
_HEADER_BYTES = 4096

Progress = Callable[[int, int], object]


def put(
    src: Path | NDArray[Any],
    dirs: Path | Sequence[Path],
    name: str | None = None,
    *,
    tensor: str | None = None,
    dtype: DTypeLike | None = None,
    shape: Sequence[int] | int | None = None,
    offset: int = 0,
    progress: bool | Progress | None = None,
) -> str:
    """Copies a file, or an ndarray, into the array on `dirs`, and returns its name there.

    `dirs` are directories, each on an SSD of its own. If they are drives of an array, the file goes into that array; one of
    them is enough. If none is, all of them become the drives of a new one. `name` is that of `src` by default.

    The array gets a file in numpy's format, with rows that begin at a whole page. `dtype`, `shape` and `offset` are those
    of `iomill.open`; `tensor` is one of a safetensors file. Any other file is copied byte for byte. A pipe, a disk and a file of
    ``/proc`` or ``/sys`` are read to their ends.

    `progress` is called with the bytes done and the bytes of all. True prints them; by default that is done on a terminal.

    FileExistsError if the array has the name, FileNotFoundError if a directory does not exist, ValueError if directories are
    drives of several arrays, OSError if a drive is full or another process uses the array. After an error the array has no
    such file.

    >>> import numpy, iomill, os
    >>> os.mkdir("fast0"), os.mkdir("fast1")
    (None, None)
    >>> iomill.put(numpy.arange(12).reshape(4, 3), ["fast0", "fast1"], "graph/features")
    'graph/features'
    >>> iomill.open("fast0", "graph/features")[[3, 0]]
    array([[ 9, 10, 11],
           [ 0,  1,  2]])
    """
    places = paths_of(dirs)
    if not places:
        raise ValueError("put: name at least one directory")
    if isinstance(src, np.ndarray):
        if name is None:
            raise ValueError("put: an ndarray has no name: give one")
        header, total, pieces = _of_array(src)
    else:
        path = path_of(src)
        name = name or os.path.basename(path)
        header, total, pieces = _of_file(path, tensor, dtype, shape, offset)
    # Before anything is made or copied for it.
    _iomill.check_name(name)
    with _array_on(places) as array:
        if name in array:
            raise FileExistsError(errno.EEXIST, "the array has a file of this name: choose another, or delete it", name)
        with array.draft() as draft:
            _copy(draft.file, header, pieces, total, _reporter(name, progress))
            draft.publish(name, replace=False)
    return name


def _copy(file: File, header: bytes, pieces: Iterator[Any], total: int, report: Progress) -> None:
    if header:
        file.write_at(header, 0)
    done = 0
    report(done, total)
    for piece in pieces:
        file.write_at(piece, len(header) + done)
        done += memoryview(piece).nbytes
        report(done, total)


def _array_on(places: list[str]) -> Array:
    """The array of these directories, open for writing: a new one if none of them is a drive."""
    for place in places:
        # A directory that is made here would be on the root disk, if a drive is not mounted or its name has a slip.
        os.stat(place)
    drives = [place for place in places if is_drive(place)]
    if not drives:
        return Array.create(places)
    array = Array(drives[0], "r+")
    try:
        of_array = [os.stat(drive) for drive in array.drives()]
        for place in places:
            if not any(os.path.samestat(os.stat(place), drive) for drive in of_array):
                raise ValueError(
                    f"{place} is no drive of the array of {drives[0]}: name drives of one array, or directories that are none"
                )
    except BaseException:
        array.close()
        raise
    return array


def _header(dtype: np.dtype[Any], shape: tuple[int, ...], least: int = 0) -> bytes:
    """A header of numpy's format that ends with a page, and has so many bytes at least."""
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


class RowWriter:
    """Rows that are written batch by batch: `Array.row_writer`. They appear when it is closed, unless an exception ends its ``with``."""

    def __init__(self, array: Array, name: str, dtype: DTypeLike, shape: Sequence[int], *, replace: bool) -> None:
        _iomill.check_name(name)
        self._name = name
        self._dtype = np.dtype(dtype)
        self._shape = tuple(operator.index(length) for length in shape)
        self._replace = replace
        self._count = 0
        if self._dtype.hasobject or self._dtype.itemsize == 0:
            raise ValueError(f"values of dtype {self._dtype} have no bytes of one length")
        # The longest one, because the number of rows is not known.
        self._start = len(_header(self._dtype, (1 << 62, *self._shape)))
        self._end = self._start
        self._draft: Draft | None = array.draft()

    def __len__(self) -> int:
        """The number of rows so far."""
        return self._count

    def append(self, rows: ArrayLike) -> None:
        """Appends rows, which are cast as in ``ndarray[...] = rows``. A single row is one of them."""
        if self._draft is None:
            raise ValueError("the writer is closed")
        given = np.asarray(rows)
        if given.shape == self._shape:
            given = given[np.newaxis]
        if given.shape[1:] != self._shape or given.ndim != len(self._shape) + 1:
            raise ValueError(f"rows of shape {given.shape[1:]}, and those of the file have {self._shape}")
        values = np.empty(given.shape, self._dtype)
        values[...] = given
        if values.nbytes:
            self._draft.file.write_at(values.reshape(-1).view(np.uint8), self._end)
        self._end += values.nbytes
        self._count += len(values)

    def close(self) -> None:
        """Makes the rows durable, and gives them their name. A second time it does nothing."""
        draft, self._draft = self._draft, None
        if draft is not None:
            with draft:
                header = _header(self._dtype, (self._count, *self._shape), self._start)
                draft.file.write_at(header, 0)
                draft.publish(self._name, replace=self._replace)

    def discard(self) -> None:
        """Gives the rows up."""
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        if getattr(self, "_draft", None) is not None:
            self.discard()


def _of_array(src: NDArray[Any]) -> tuple[bytes, int, Iterator[Any]]:
    if src.dtype.hasobject or src.ndim == 0:
        raise ValueError("put: an array of Python objects, or without rows, cannot be gathered from")
    step = max(1, _STEP_BYTES // max(1, src[:1].nbytes))

    def pieces() -> Iterator[Any]:
        for start in range(0, len(src), step):
            piece = np.ascontiguousarray(src[start : start + step])
            if piece.nbytes:
                yield piece.reshape(-1).view(np.uint8)

    return _header(src.dtype, src.shape), src.nbytes, pieces()


def _of_file(
    path: str, tensor: str | None, dtype: DTypeLike | None, shape: Sequence[int] | int | None, offset: int
) -> tuple[bytes, int, Iterator[Any]]:
    total: int | None
    header, start, total = b"", 0, _size(path)
    if dtype is not None or path.endswith((".npy", ".safetensors")):
        with File(path) as file:
            rows = rows_of_file(file, [path], tensor=tensor, dtype=dtype, shape=shape, offset=offset)
            header, total = _header(rows.dtype, rows.shape), rows.nbytes
            start = rows._start
    if total is None:
        return header, 0, _until_the_end(path)
    return header, total, _pieces(path, start, total)


# Files that the kernel makes up as they are read: their length says nothing.
_OF_KERNEL = ("/proc/", "/sys/")


def _size(path: str) -> int | None:
    """The length of a file. None if only its end tells it."""
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISBLK(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
        raise OSError(
            errno.EINVAL, "it is a device or a socket, which has no end: put takes files, disks and pipes", path
        )
    if stat.S_ISBLK(found.st_mode):
        with builtins.open(path, "rb", buffering=0) as disk:
            return disk.seek(0, os.SEEK_END)
    is_made_up = found.st_size == 0 or os.path.realpath(path).startswith(_OF_KERNEL)
    return None if is_made_up else found.st_size


def _until_the_end(path: str) -> Iterator[Any]:
    with builtins.open(path, "rb", buffering=0) as source:
        while read := source.read(_STEP_BYTES):
            yield read


def _pieces(path: str, start: int, total: int) -> Iterator[Any]:
    buffer = bytearray(_STEP_BYTES)
    view = memoryview(buffer)
    with builtins.open(path, "rb", buffering=0) as source:
        source.seek(start)
        left = total
        while left > 0:
            read = source.readinto(view[: min(left, len(view))])
            if not read:
                raise OSError(f"{path} ended {left} bytes before its end: another program cut it")
            left -= read
            yield view[:read]


def _reporter(name: str, progress: bool | Progress | None) -> Progress:
    if callable(progress):
        return progress
    if progress is False or (progress is None and not sys.stderr.isatty()):
        return lambda done, total: None
    begun = time.monotonic()

    def report(done: int, total: int) -> None:
        # The length of a pipe, and of a file of the kernel, is not known before its end.
        share = min(100, 100 * done // total) if total else 100
        speed = done / 1e6 / max(1e-9, time.monotonic() - begun)
        end = "\n" if done == total else ""
        print(f"\r{name}: {share:3}% of {total / 1e6:.0f} MB, {speed:.0f} MB/s", end=end, file=sys.stderr, flush=True)

    return report
