"""`create`: a file of rows to be written later."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from . import _iomill
from ._common import Path, paths_of
from ._drives import Drives
from ._files import File
from ._formats import Place, place_of_new
from ._npy import header_bytes
from ._origins import is_url
from ._rows import RowArray


def create(
    path: Path | Sequence[Path],
    name: str | None = None,
    *,
    shape: Sequence[int] | int,
    dtype: DTypeLike,
    format: Literal["npy", "raw"] | None = None,
    replace: bool = False,
    checksums: bool = False,
) -> RowArray:
    """Makes a file of rows, all of them zero, and opens it for writing: numpy's ``open_memmap(mode="w+")``.

    `path` is a file, or the directory of a drive, or of several drives of one set; then `name` is the file on the
    drives. `format` is ``npy``, numpy's format, or ``raw``, without a header. The default is ``npy``, except for a plain file with a name that does not end
    with ``.npy``. The file takes space as it is written. Only a file on drives can have `checksums`. With them a page
    with wrong contents is an OSError, and is never returned.

    FileExistsError if the file exists, unless `replace`. Then the new file replaces the old one at once, and open
    handles keep the old one. OSError if the file cannot be made, ValueError if no array has this dtype and shape.

    >>> import numpy, iomill
    >>> with iomill.create("features.npy", shape=(1000, 3), dtype="f4") as x:
    ...     x[[7, 999]] = [[1, 2, 3], [4, 5, 6]]
    >>> numpy.load("features.npy")[[7, 8]]
    array([[1., 2., 3.],
           [0., 0., 0.]], dtype=float32)
    """
    if is_url(path):
        raise ValueError(f"{path!r} is an object of a store: make a local file, and put it there")
    places = paths_of(path)
    if not places or (len(places) > 1 and not all(map(os.path.isdir, places))):
        raise ValueError(f"{places}: a new file has one path, and several paths are directories of drives")
    place, on_drives = places[0], os.path.isdir(places[0])
    if on_drives and name is None:
        raise ValueError(f"{place!r} is a directory: if it is a drive, name a file on it")
    if not on_drives and name is not None:
        raise ValueError(f"a name ({name!r}) on {place!r}, which is no directory of a drive")
    if checksums and not on_drives:
        raise ValueError(f"checksums on {place!r}, which is no directory of a drive: a plain file has none")
    if place.endswith(".safetensors"):
        raise ValueError(f"{place}: make files of safetensors by the library safetensors")
    kind = format or ("npy" if on_drives or place.endswith(".npy") else "raw")
    if kind not in ("npy", "raw"):
        raise ValueError(f"format must be one of ['npy', 'raw'] (got {format!r})")
    rows = place_of_new(name or place, dtype, shape)
    header = _header(rows) if kind == "npy" else b""
    rows.offset = len(header)
    size = rows.offset + rows.shape[0] * rows.row_bytes
    if name is not None:
        file = _on_drives(places, name, header, size, replace, checksums)
    else:
        file = _plain(place, header, size, replace)
    try:
        file._native.expect_random()
        return rows.rows_in(file)
    except BaseException:
        file.close()
        raise


def _header(rows: Place) -> bytes:
    # numpy saves a type of the package ml_dtypes without its name.
    dtype = rows.dtype if rows.element is None else np.dtype(f"V{rows.dtype.itemsize}")
    return header_bytes(dtype, rows.shape)


def _on_drives(places: list[str], name: str, header: bytes, size: int, replace: bool, checksums: bool) -> File:
    _iomill.check_name(name)
    drives = Drives._of(places, "r+")
    try:
        with drives.draft(checksums=checksums) as draft:
            draft.file.write_at(header, 0)
            draft.file.truncate(size)
            draft.publish(name, replace=replace)
        return drives._open_alone(name)
    except BaseException:
        drives.close()
        raise


def _plain(path: str, header: bytes, size: int, replace: bool) -> File:
    # Links are followed, as by an open for writing.
    path = os.path.realpath(path)
    place = path
    if replace:
        if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file, so it is not replaced", path)
        place = os.path.join(os.path.dirname(path), f".{secrets.token_hex(8)}.tmp")
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:
            if replace and os.path.exists(path):
                os.fchmod(descriptor, stat.S_IMODE(os.stat(path).st_mode))
            file.write(header)
            file.truncate(size)
        if replace:
            os.replace(place, path)
    except BaseException:
        os.unlink(place)
        raise
    return File(path, "r+")
