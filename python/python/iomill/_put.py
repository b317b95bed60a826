"""`put`: spreads a file over drives."""

from __future__ import annotations

import builtins
import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import _iomill
from ._common import Path, path_of, paths_of
from ._drives import Drives
from ._files import File
from ._formats import rows_of_file
from ._npy import header_bytes
from ._openings import is_drive

_STEP_BYTES = 8 << 20

Progress = Callable[[int, int], object]

# Bytes, and their offset in the data. Ranges between pieces are zero.
Piece = tuple[int, Any]


def put(
    src: Path | NDArray[Any],
    dirs: Path | Sequence[Path],
    name: str | None = None,
    *,
    tensor: str | None = None,
    dtype: DTypeLike | None = None,
    shape: Sequence[int] | int | None = None,
    offset: int = 0,
    checksums: bool = False,
    progress: bool | Progress | None = None,
) -> str:
    """Copies a file, or an ndarray, to the drives of `dirs`, and returns its name there.

    `dirs` are directories, each on an SSD of its own. If they are drives, the file is written to their set; one of them
    is enough. If none is a drive, all of them become a new set of drives. By default `name` is the file name of `src`.

    The file on the drives is in numpy's format, and its rows begin at a whole page. `dtype`, `shape` and `offset` are
    those of `iomill.open`; `tensor` names a tensor of a safetensors file. Any other file is copied byte for byte. Holes
    stay holes. A pipe, a disk and a file of ``/proc`` or ``/sys`` are read to their ends.

    With `checksums` each page has a checksum: a page with wrong contents is an OSError, and is never returned. Then a
    put takes longer.

    `progress` is called with the number of copied bytes and of all bytes. True prints them; by default they are printed
    on a terminal.

    FileExistsError if the name exists on the drives, FileNotFoundError if a directory does not exist, ValueError if
    directories are drives of several sets, OSError if a drive is full or another process uses the drives. After an
    error the drives do not have the file.

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
        header, total, pieces = _of_set(src)
    else:
        path = path_of(src)
        name = os.path.basename(path) if name is None else name
        header, total, pieces = _of_file(path, tensor, dtype, shape, offset)
    # Before any drive or file is made.
    _iomill.check_name(name)
    with _drives_on(places) as drives:
        if name in drives:
            raise FileExistsError(
                errno.EEXIST, "the drives have a file of this name: choose another, or delete it", name
            )
        with drives.draft(checksums=checksums) as draft:
            _copy(draft.file, header, pieces, total, _reporter(name, progress))
            draft.publish(name, replace=False)
    return name


def _copy(file: File, header: bytes, pieces: Iterator[Piece], total: int, report: Progress) -> None:
    if header:
        file.write_at(header, 0)
    done, has_holes = 0, False
    report(done, total)
    for offset, piece in pieces:
        if offset > done and not has_holes:
            # Holes stay holes within the length. A write beyond it would take space for the range that it skips.
            has_holes = True
            file.truncate(len(header) + total)
        file.write_at(piece, len(header) + offset)
        done = offset + memoryview(piece).nbytes
        report(done, total)
    if done < total:
        file.truncate(len(header) + total)
        report(total, total)


def _drives_on(places: list[str]) -> Drives:
    """The drives of these directories, open for writing. If none is a drive, they become new ones."""
    for place in places:
        # A missing directory is an error: if it were made here, it would be on the root disk whenever a drive is not
        # mounted or its name is misspelt.
        os.stat(place)
    if not any(map(is_drive, places)):
        return Drives.create(places)
    return Drives._of(places, "r+")


def _of_set(src: NDArray[Any]) -> tuple[bytes, int, Iterator[Piece]]:
    if src.dtype.hasobject or src.ndim == 0:
        raise ValueError("put: an array of Python objects, or without rows, cannot be stored as rows")
    if isinstance(src, np.ma.MaskedArray):
        # numpy.save refuses it, too.
        raise ValueError("put: the mask of a masked array would be lost: give its filled() or its data")
    step = max(1, _STEP_BYTES // max(1, src[:1].nbytes))

    def pieces() -> Iterator[Piece]:
        done = 0
        for start in range(0, len(src), step):
            piece = np.ascontiguousarray(src[start : start + step])
            if piece.nbytes:
                yield done, piece.reshape(-1).view(np.uint8)
                done += piece.nbytes

    return header_bytes(src.dtype, src.shape), src.nbytes, pieces()


def _of_file(
    path: str, tensor: str | None, dtype: DTypeLike | None, shape: Sequence[int] | int | None, offset: int
) -> tuple[bytes, int, Iterator[Piece]]:
    total: int | None
    header, start, total = b"", 0, _size(path)
    if dtype is not None or path.endswith((".npy", ".safetensors")):
        with File(path) as file:
            rows = rows_of_file(file, [path], tensor=tensor, dtype=dtype, shape=shape, offset=offset)
            # If numpy does not have the type, the header does not have its name.
            is_named = rows._element in (None, rows.dtype.name)
            stored = rows.dtype if is_named else np.dtype(f"V{rows.dtype.itemsize}")
            header, total = header_bytes(stored, rows.shape), rows.nbytes
            start = rows._start
    if total is None:
        return header, 0, _until_the_end(path)
    return header, total, _pieces(path, start, total)


# Files that the kernel generates while they are read: `stat` does not have their length.
_OF_KERNEL = ("/proc/", "/sys/")


def _size(path: str) -> int | None:
    """The length of a file. None if it is not known before the end."""
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISBLK(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
        raise OSError(
            errno.EINVAL, "it is a device or a socket, which has no end: put accepts files, disks and pipes", path
        )
    if stat.S_ISBLK(found.st_mode):
        with builtins.open(path, "rb", buffering=0) as disk:
            return disk.seek(0, os.SEEK_END)
    is_made_up = found.st_size == 0 or os.path.realpath(path).startswith(_OF_KERNEL)
    return None if is_made_up else found.st_size


def _until_the_end(path: str) -> Iterator[Piece]:
    done = 0
    with builtins.open(path, "rb", buffering=0) as source:
        while read := source.read(_STEP_BYTES):
            yield done, read
            done += len(read)


def _pieces(path: str, start: int, total: int) -> Iterator[Piece]:
    view = memoryview(bytearray(_STEP_BYTES))
    place, end = start, start + total
    with builtins.open(path, "rb", buffering=0) as source:
        while place < end:
            place, data_end = _data(source.fileno(), place, end)
            if place == end:
                return
            source.seek(place)
            read = source.readinto(view[: min(data_end - place, len(view))])
            if not read:
                raise OSError(errno.EIO, f"it ended {end - place} bytes before its end: another program cut it", path)
            yield place - start, view[:read]
            place += read


def _data(descriptor: int, place: int, end: int) -> tuple[int, int]:
    """The next range of a file that is no hole. It is empty if only a hole follows."""
    try:
        start = os.lseek(descriptor, place, os.SEEK_DATA)
        return min(start, end), min(os.lseek(descriptor, start, os.SEEK_HOLE), end)
    except OSError as error:
        if error.errno == errno.ENXIO and os.fstat(descriptor).st_size >= end:
            return end, end
        # A disk or a file system that does not know holes, or a file that was cut.
        return place, end


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
