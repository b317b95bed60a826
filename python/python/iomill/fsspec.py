"""Files on drives for fsspec: ``iomill://NAME`` with the option ``drive``.

>>> import fsspec, os, iomill
>>> os.makedirs("nvme0")
>>> iomill.Drives.create(["nvme0"]).close()
>>> with fsspec.open("iomill://graph/words", "wb", drive="nvme0") as file:
...     file.write(b"one two three")
13
>>> files = fsspec.filesystem("iomill", drive="nvme0")
>>> files.cat_ranges(["graph/words"] * 2, [4, 0], [7, 3])
[b'two', b'one']
>>> files.close()
"""

from __future__ import annotations

import collections
import datetime
import errno
import io
import os
from typing import Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.utils import stringify_path

from . import _iomill
from ._common import Path, path_of
from ._drives import Drives, Lingering
from ._files import File
from ._openings import settle
from ._writing import Buffered, Compressed, Text, Written

_COPY_BYTES = 8 << 20


def text_of(path: Any) -> str:
    """A path of fsspec as text. TypeError for any other object, with advice."""
    path = stringify_path(path)
    return path if isinstance(path, str) else path_of(path)


def bounds_of(paths: Any, starts: Any, ends: Any) -> tuple[list[Any], list[Any]]:
    """The bounds of `cat_ranges`, one of each for every path. The errors are those of fsspec."""
    if not isinstance(paths, list):
        raise TypeError(f"cat_ranges: the paths must be a list, and this is a {type(paths).__name__}")
    starts = starts if isinstance(starts, list) else [starts] * len(paths)
    ends = ends if isinstance(ends, list) else [ends] * len(paths)
    if not len(paths) == len(starts) == len(ends):
        raise ValueError(f"cat_ranges: {len(paths)} paths, {len(starts)} starts and {len(ends)} ends")
    return starts, ends


class Whole(AbstractFileSystem):  # type: ignore[misc]
    """A file system with files that appear as a whole, when they are closed, or not at all. Paths may also be bytes."""

    def expand_path(self, path: Any, *arguments: Any, **options: Any) -> Any:
        # fsspec would read bytes as a list of numbers.
        return super().expand_path(os.fsdecode(path) if isinstance(path, bytes) else path, *arguments, **options)

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if "r" in mode and "+" not in mode:
            return super().open(path, mode, **options)
        if "b" not in mode:
            text = {key: options.pop(key) for key in ("encoding", "errors", "newline") if key in options}
            return Text(self.open(path, mode.replace("t", "") + "b", **options), **text)
        compression = options.pop("compression", None)
        file = super().open(path, mode, **options)
        if compression is None:
            return file
        from fsspec.compression import compr
        from fsspec.core import get_compression

        kind = get_compression(path, compression)
        return file if kind is None else Compressed(compr[kind](file, mode="w"), file)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        """Moves files one by one. `cp_file` does it, because fsspec's `copy` finds the pairs of paths. IsADirectoryError
        for a directory without `recursive`."""
        # fsspec itself copies all and then removes all. So a file that is moved onto itself would be lost.
        if isinstance(path1, str) and not recursive and self.isdir(path1):
            raise IsADirectoryError(errno.EISDIR, "it is a directory: move it with recursive=True", path1)
        self.copy(path1, path2, recursive, maxdepth, on_error="raise", moves=True, **options)


class _ByPlace(type(Whole)):  # type: ignore[misc]
    """Makes the path of the drive absolute. fsspec keeps a file system by its arguments, and a pickle has them, too: a
    relative path would be another drive in another directory."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if arguments:
            arguments = (os.path.abspath(path_of(arguments[0])), *arguments[1:])
        elif "drive" in options:
            options["drive"] = os.path.abspath(path_of(options["drive"]))
        return super().__call__(*arguments, **options)


class IomillFileSystem(Whole, metaclass=_ByPlace):
    """The files on drives. `drive` is the directory of one of the drives. With `mode` ``r`` it only reads.

    Names with slashes look like files in directories. A directory exists as long as a file is in it. A name may be both
    a file and a directory: then `info` returns the file, and `ls` and `find` return both.

    A written file appears when it is closed, and replaces an older one at once. It does not appear if a write failed,
    if an exception ended its ``with``, or if it was dropped without a close. An open file keeps its content.

    With `checksums` each page of a written file has a checksum: a page with wrong contents is an OSError, and is never
    returned.

    The drives are open for reading. A write opens them for writing, until a moment after the write.
    """

    protocol = "iomill"
    root_marker = ""
    cachable = True

    def __init__(self, drive: Path, mode: str = "r+", *, checksums: bool = False, **options: Any) -> None:
        super().__init__(**options)
        if mode not in ("r", "r+"):
            raise ValueError(f"mode must be one of ['r', 'r+'] (got {mode!r})")
        # The settings of fsspec may have it, and then it is not yet absolute.
        self._drive = os.path.abspath(path_of(drive))
        self._mode = mode
        self._checksums = checksums
        # The drives are opened at the first use: a worker must not fail while it unpickles a file system.
        self._opened: Drives | None = None
        self._is_closed = False
        self._writing = Lingering(self._drive)

    @property
    def drives(self) -> Drives:
        """The drives, open for reading."""
        if self._is_closed:
            raise ValueError("the file system is closed")
        if self._opened is None:
            self._opened = Drives._shared(self._drive, "r")
        return self._opened

    def _check_writable(self) -> None:
        if self._is_closed:
            raise ValueError("the file system is closed")
        if self._mode == "r":
            raise OSError(errno.EROFS, 'the file system was made with mode="r"')

    def _changing(self) -> Any:
        self._check_writable()
        return self._writing.drives()

    def close(self) -> None:
        """Ends this use of the drives. fsspec then makes a new file system for the same drive."""
        self._is_closed = True
        self._cache.pop(getattr(self, "_fs_token_", None), None)
        try:
            self._writing.settle()
        finally:
            if self._opened is not None:
                self._opened.close()

    def __reduce__(self) -> Any:
        settle()
        return super().__reduce__()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return text_of(path).removeprefix("iomill://").strip("/")

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        path = self._strip_protocol(path)
        found = [_info(entry) for entry in self.drives._native.entries(f"{path}/" if path else "", "/")]
        if not found and path:
            found = [self._file_info(path)]
        found.sort(key=lambda info: (info["name"], info["type"]))
        return found if detail else sorted({info["name"] for info in found})

    def _file_info(self, name: str) -> dict[str, Any]:
        native = self.drives._native
        try:
            stat = native.stat(name)
        except (FileNotFoundError, ValueError):
            # A file with an invalid name does not exist.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None
        return _info((name, stat["size"], stat["version"], stat["created_ns"], stat["modified_ns"]))

    def _is_directory(self, path: str) -> bool:
        return not path or self.drives._native.has_prefix(f"{path}/")

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        try:
            return self._file_info(path)
        except FileNotFoundError:
            if self._is_directory(path):
                return {"name": path, "size": 0, "type": "directory"}
            raise

    def exists(self, path: str, **options: Any) -> bool:
        # First of all: missing drives are an error.
        _ = self.drives
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def created(self, path: str) -> datetime.datetime:
        return self._file_info(self._strip_protocol(path))["created"]  # type: ignore[no-any-return]

    def modified(self, path: str) -> datetime.datetime:
        return self._file_info(self._strip_protocol(path))["modified"]  # type: ignore[no-any-return]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        """The files below a path, and the file of this name. A name that is both a file and a directory is returned as
        a file."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        path = self._strip_protocol(path)
        prefix = f"{path}/" if path else ""
        found: dict[str, dict[str, Any]] = {}
        if withdirs and path and self._is_directory(path):
            found[path] = {"name": path, "size": 0, "type": "directory"}
        for entry in self.drives._native.entries(prefix):
            parts = entry[0][len(prefix) :].split("/")
            depth = len(parts) if maxdepth is None else min(len(parts), maxdepth)
            if withdirs:
                for end in range(1, min(len(parts) - 1, depth) + 1):
                    name = prefix + "/".join(parts[:end])
                    found.setdefault(name, {"name": name, "size": 0, "type": "directory"})
            if depth == len(parts):
                found[entry[0]] = _info(entry)
        if path:
            try:
                found[path] = self._file_info(path)
            except FileNotFoundError:
                pass
        return {name: found[name] for name in sorted(found)} if detail else sorted(found)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Does nothing: a directory exists as long as a file is in it."""

    makedirs = mkdir

    def rmdir(self, path: str) -> None:
        """OSError if a file is in it, NotADirectoryError if it is a file."""
        name = self._strip_protocol(path)
        if self._is_directory(name):
            raise OSError(errno.ENOTEMPTY, "directory not empty", path)
        if self.isfile(name):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)

    def rm_file(self, path: str) -> None:
        name = self._strip_protocol(path)
        self._check_file(name)
        with self._changing() as drives:
            drives.delete(name)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        names = self.expand_path(path, recursive=recursive, maxdepth=maxdepth)
        with self._changing() as drives:
            for name in names:
                if name in drives:
                    drives.delete(name)
                elif not self._is_directory(name):
                    # A directory has disappeared with its last file.
                    if not recursive:
                        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
                elif not recursive:
                    raise IsADirectoryError(errno.EISDIR, "it is a directory: remove it with recursive=True", name)

    def cp_file(self, path1: str, path2: str, *, moves: bool = False, **options: Any) -> None:
        name = self._strip_protocol(path1)
        if self.isdir(name):
            return
        if moves:
            self.mv_file(path1, path2)
            return
        self._file_info(name)
        with self._changing() as drives:
            drives.copy(name, self._strip_protocol(path2))

    def mv_file(self, path1: str, path2: str, **options: Any) -> None:
        """Renames a file, durably."""
        old, new = self._strip_protocol(path1), self._strip_protocol(path2)
        self._file_info(old)
        if old != new:
            with self._changing() as drives:
                drives.rename(old, new)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        with self._to_read(path) as file:
            first, last, _ = slice(start, end).indices(len(file))
            return file.read_at(first, max(0, last - first))

    def _to_read(self, path: str) -> File:
        name = self._strip_protocol(path)
        self._check_file(name)
        return self.drives.open(name)

    def _check_file(self, name: str) -> None:
        """Raises fsspec's error for a name that no file has."""
        try:
            self._file_info(name)
        except FileNotFoundError:
            if self._is_directory(name):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name) from None
            raise

    def cat_ranges(
        self, paths: Any, starts: Any, ends: Any, max_gap: Any = None, on_error: str = "return", **options: Any
    ) -> list[Any]:
        """Reads the ranges of each file by one gather."""
        starts, ends = bounds_of(paths, starts, ends)
        places = collections.defaultdict(list)
        for place, path in enumerate(paths):
            places[self._strip_protocol(path)].append(place)
        results: list[Any] = [None] * len(paths)
        for name, wanted in places.items():
            try:
                with self._to_read(name) as file:
                    bounds = [slice(starts[place], ends[place]).indices(len(file)) for place in wanted]
                    ranges = [(first, max(0, last - first)) for first, last, _ in bounds]
                    for place, read in zip(wanted, file.read_ranges(ranges)):
                        results[place] = bytes(read)
            except OSError as error:
                if on_error == "raise":
                    raise
                for place in wanted:
                    results[place] = error
        return results

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **options: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def _open(
        self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True, **options: Any
    ) -> Any:
        if mode == "rb":
            file = self._to_read(path)
            # A caller that names one of fsspec's caches gets a file with that cache. For each short read at a random
            # place fsspec's default would read 5 MiB.
            known = {key: options[key] for key in ("cache_type", "cache_options") if options.get(key)}
            if known:
                return _Fetched(self, path, file, block_size or "default", **known)
            return _Reader(file)
        if mode not in ("wb", "xb", "ab"):
            raise ValueError(f"mode {mode!r}: a file is opened with rb, wb, xb or ab")
        self._check_writable()
        name = self._strip_protocol(path)
        drives = self._writing.begin()
        try:
            return Buffered(self._written(drives, name, mode, autocommit))
        except BaseException:
            self._writing.end()
            raise

    def _written(self, drives: Drives, name: str, mode: str, autocommit: bool) -> Written:
        is_there = name in drives
        if mode == "xb" and is_there:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        if mode == "ab" and is_there and autocommit:
            file = drives.open(name)
            file.seek(0, os.SEEK_END)
            return Written(name, file, None, autocommit=True, replace=True, ended=self._writing.end)
        _iomill.check_name(name)
        draft = drives.draft(checksums=self._checksums)
        if mode == "ab" and is_there:
            with drives.open(name) as old:
                while piece := old.read(_COPY_BYTES):
                    draft.file.write(piece)
        is_new = mode == "xb"
        return Written(name, draft.file, draft, autocommit=autocommit, replace=not is_new, ended=self._writing.end)


class _Reader(io.BufferedReader):
    """A file to read, with the attributes `mode` and `size` of fsspec's own files."""

    mode = "rb"

    @property
    def size(self) -> int:
        return len(self.raw)  # type: ignore[arg-type]


class _Fetched(AbstractBufferedFile):  # type: ignore[misc]
    """A file to read through one of fsspec's caches."""

    def __init__(self, files: IomillFileSystem, path: str, file: File, block_size: int | str, **cache: Any) -> None:
        self._file = file
        super().__init__(files, path, "rb", block_size, size=len(file), **cache)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._file.read_at(start, end - start)

    def close(self) -> None:
        super().close()
        self._file.close()


def _info(entry: tuple[str, int, int, int, int]) -> dict[str, Any]:
    name, size, version, created_ns, modified_ns = entry
    if name.endswith("/"):
        return {"name": name[:-1], "size": 0, "type": "directory"}
    return {
        "name": name,
        "size": size,
        "type": "file",
        # It shows caches whether a file has changed. A change within the file keeps the version, but has a later time.
        "version": version,
        "created": _time(created_ns),
        "modified": _time(modified_ns),
        "mtime": modified_ns / 1e9,
    }


def _time(ns: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ns / 1e9, datetime.UTC)
