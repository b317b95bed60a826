"""`open`: rows of files, of files on drives, and of objects."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from typing import TypedDict

from numpy.typing import DTypeLike

from ._cache import Cache
from ._common import Path, path_of, paths_of
from ._drives import Drives
from ._files import File
from ._formats import rows_of_file
from ._origins import Config, is_url, open_url
from ._rows import RowArray
from ._runtime import Runtime, limit_worker_cache, worker_share


class How(TypedDict):
    """The arguments that describe the rows."""

    dtype: DTypeLike | None
    shape: Sequence[int] | int | None
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
    cache: Cache | Path | Sequence[Path] | None = None,
    config: Config | None = None,
) -> RowArray:
    """Opens rows in a file, or in an object of a store.

    `path` is a file, or a list of files of one format, which are read one after the other. It may also be the directory
    of a drive, or of several drives of one set; then `name` is the file on the drives. For a file of safetensors `name`
    is the tensor.

    A file of numpy (``.npy``) has its dtype and shape in its header. So does a file of safetensors, which its suffix
    identifies. Any other file needs `dtype`; its rows begin at `offset` bytes and have the shape ``shape[1:]``. Without
    `shape` the rows are single values. If the first length is -1, the file's length determines the number of rows.

    numpy has types such as bfloat16 only with the package ml_dtypes, and saves them without their names, as ``V2``. For
    such a file `dtype` names the type. Without the package the rows are the bits, as uint16 or uint8; `iomill.torch`
    returns tensors of the named type.

    `mode` is ``r``, or ``r+`` for writing. `runtime` is a runtime with a cache of its own.

    `path` may be a URL: ``s3://bucket/features.npy``, ``gs://``, ``az://``, ``https://``, ``file:///``. Then `cache`
    names the cache for its bytes: the directories of its drives, or a `Cache`. Credentials and `config` are those of
    `cached`. With `cache` a local path is read through the cache, too, for instance from a slow file system.

    OSError if the file cannot be opened; ValueError if it has another format, Python objects or Fortran order, or if it
    is too short.

    >>> import numpy, iomill
    >>> numpy.arange(6, dtype="<i2").tofile("pairs.bin")
    >>> iomill.open("pairs.bin", dtype="<i2", shape=(-1, 2))[::-1]
    array([[4, 5],
           [2, 3],
           [0, 1]], dtype=int16)
    """
    how: How = {"dtype": dtype, "shape": shape, "offset": offset}
    if cache is not None or is_url(path):
        if mode != "r" or runtime is not None:
            raise ValueError(
                "an object of a store opens for reading only, and its cache has the runtime: iomill.Cache(..., runtime=...)"
            )
        return _open_remote(path, name, how, None if cache is None else Cache._of(cache), config)
    if config is not None:
        raise ValueError("a config applies to an object of a store, and needs a cache")
    return _open(path, name, **how, mode=mode, runtime=runtime)


def _open_remote(
    path: Path | Sequence[Path], name: str | None, how: How, cache: Cache | None, config: Config | None
) -> RowArray:
    with _closed_on_error(open_url(path, cache, config)) as file:
        rows = rows_of_file(file, [path if is_url(path) else path_of(path)], tensor=name, **how)
    if cache is not None and cache._runtime is None:
        used = worker_share(Runtime.shared().cache_bytes)
        place = path if is_url(path) else os.path.abspath(path_of(path))
        rows._recipe = (_open_remote_again, (place, name, how, cache, config, used))
    return rows


def _open_remote_again(
    path: Path, name: str | None, how: How, cache: Cache, config: Config | None, cache_bytes: int, *, now: bool = False
) -> RowArray:
    """`_open_again` for an object."""
    if not now:
        return RowArray._later((_open_remote_again, (path, name, how, cache, config, cache_bytes)))
    if multiprocessing.parent_process() is not None:
        limit_worker_cache(cache_bytes)
    return _open_remote(path, name, how, cache, config)


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
    """`open`. `cache_bytes` is the size of the cache of drives, if this call is the first of the process to open
    them."""
    paths = paths_of(path)
    how: How = {"dtype": dtype, "shape": shape, "offset": offset}
    if paths and os.path.isdir(paths[0]):
        if name is None:
            raise ValueError(f"{paths[0]!r} is a directory: if it is a drive, name a file on it")
        if runtime is not None:
            raise ValueError("drives have a cache of their own, and no runtime")
        drives = Drives._of(paths, mode, cache_bytes)
        used = drives.cache_bytes
        before = _version_on(drives, name)
        with _closed_on_error(drives._open_alone(name)) as file:
            rows = rows_of_file(file, [name], **how)
            after = _version_on(drives, name)
    else:
        before = _version_of(paths)
        with _closed_on_error(File(paths, mode, runtime=runtime)) as file:
            rows = rows_of_file(file, paths, tensor=name, **how)
        after = _version_of(paths)
        used = Runtime.shared().cache_bytes if runtime is None else 0
    # If the version is the same before and after the opening, it is that of the opened file.
    rows._version = before if before == after else None
    if mode == "r" and runtime is None:
        rows._recipe = (_open_again, ([os.path.abspath(one) for one in paths], name, how, worker_share(used)))
    return rows


def _version_of(paths: list[str]) -> tuple[int, ...] | None:
    """What changes with the contents of plain files. None if a file does not exist."""
    version: list[int] = []
    for path in paths:
        try:
            found = os.stat(path)
        except OSError:
            return None
        version += (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return tuple(version)


def _version_on(drives: Drives, name: str) -> tuple[int, ...] | None:
    """What changes with the contents of a file on drives. None if the file does not exist."""
    try:
        found = drives.stat(name)
    except (OSError, ValueError):
        return None
    return (found.version, found.modified_ns, found.size)


@contextlib.contextmanager
def _closed_on_error(file: File) -> Iterator[File]:
    try:
        yield file
    except BaseException:
        file.close()
        raise


def _open_again(paths: list[str], name: str | None, how: How, cache_bytes: int, *, now: bool = False) -> RowArray:
    """Opens rows in another process, at their first use. A worker that was not forked gets the same share of its
    parent's cache as a forked one."""
    if not now:
        return RowArray._later((_open_again, (paths, name, how, cache_bytes)))
    if multiprocessing.parent_process() is None:
        return open(paths, name, **how)
    limit_worker_cache(cache_bytes)
    return _open(paths, name, cache_bytes=cache_bytes, **how)
