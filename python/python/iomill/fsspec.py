"""Files of an array for fsspec: ``iomill://NAME`` with the option ``drive``.

>>> import fsspec, os, iomill
>>> os.makedirs("nvme0")
>>> iomill.Array.create(["nvme0"]).close()
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
import io
import os
from typing import Any

from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from ._files import Array, Draft, Path


class IomillFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of an array. `drive` is the directory of one of its drives; `mode` is ``r`` or ``r+``.

    Names with slashes look like files in directories. A directory is there while a file is in it. A file that is written
    appears when it is closed, and replaces an older one at once. A file that is open keeps its content.
    """

    protocol = "iomill"
    root_marker = ""
    # An array that is open for writing belongs to one process.
    cachable = True

    def __init__(self, drive: Path, mode: str = "r+", **options: Any) -> None:
        super().__init__(**options)
        self._array = Array(drive, mode)

    @property
    def array(self) -> Array:
        """The array."""
        return self._array

    def close(self) -> None:
        """Closes the array. fsspec then makes a new file system for the same drive."""
        self._array.close()
        self._cache.pop(self._fs_token_, None)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        return path.removeprefix("iomill://").strip("/")

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        path = self._strip_protocol(path)
        prefix = f"{path}/" if path else ""
        entries: dict[str, dict[str, Any]] = {}
        for name in self._array.list(prefix):
            child = prefix + name[len(prefix) :].split("/", 1)[0]
            if child == name:
                entries[child] = self._file_info(name)
            else:
                entries.setdefault(child, {"name": child, "size": 0, "type": "directory"})
        if not entries and path:
            entries = {path: self._file_info(path)}
        found = sorted(entries.values(), key=lambda entry: entry["name"])
        return found if detail else [entry["name"] for entry in found]

    def _file_info(self, name: str) -> dict[str, Any]:
        return {"name": name, "size": self._array.size_of(name), "type": "file"}

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        try:
            return self._file_info(path)
        except (FileNotFoundError, ValueError):
            if not path or self._array.list(f"{path}/"):
                return {"name": path, "size": 0, "type": "directory"}
            raise FileNotFoundError(path) from None

    def exists(self, path: str, **options: Any) -> bool:
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Does nothing: a directory is there while a file is in it."""

    makedirs = mkdir

    def rmdir(self, path: str) -> None:
        """OSError if there is a file in it."""
        if self._array.list(f"{self._strip_protocol(path)}/"):
            raise OSError(f"directory not empty: {path!r}")

    def rm_file(self, path: str) -> None:
        self._array.delete(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for name in self.expand_path(path, recursive=recursive, maxdepth=maxdepth):
            if name in self._array:
                self.rm_file(name)
            elif not recursive:
                raise IsADirectoryError(f"{name!r} is a directory: remove it with recursive=True")

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        if self.isdir(path1):
            return
        self._array.copy(self._strip_protocol(path1), self._strip_protocol(path2))

    def mv_file(self, path1: str, path2: str, **options: Any) -> None:
        """Renames a file, durably."""
        self._array.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        with self._array.open(self._strip_protocol(path)) as file:
            first, last, _ = slice(start, end).indices(len(file))
            return file.read_at(first, max(0, last - first))

    def cat_ranges(
        self, paths: Any, starts: Any, ends: Any, max_gap: Any = None, on_error: str = "return", **options: Any
    ) -> list[Any]:
        """One gather for each file."""
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        places = collections.defaultdict(list)
        for place, path in enumerate(paths):
            places[self._strip_protocol(path)].append(place)
        results: list[Any] = [None] * len(paths)
        for name, wanted in places.items():
            try:
                with self._array.open(name) as file:
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

    def _open(
        self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True, **options: Any
    ) -> Any:
        name = self._strip_protocol(path)
        if mode == "rb":
            return io.BufferedReader(self._array.open(name))
        if mode not in ("wb", "xb", "ab"):
            raise ValueError(f"mode {mode!r}: a file is opened with rb, wb, xb or ab")
        is_there = name in self._array
        if mode == "xb" and is_there:
            raise FileExistsError(name)
        if mode == "ab" and is_there:
            file = self._array.open(name)
            file.seek(0, os.SEEK_END)
            return io.BufferedWriter(file)
        return io.BufferedWriter(_Written(self._array, name))


class _Written(io.RawIOBase):
    """A file that gets its name when it is closed."""

    def __init__(self, array: Array, name: str) -> None:
        self._name = name
        self._draft: Draft | None = array.draft()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        assert self._draft is not None
        return self._draft.file.write(data)

    def tell(self) -> int:
        return self._draft.file.tell() if self._draft is not None else 0

    def close(self) -> None:
        draft, self._draft = self._draft, None
        super().close()
        if draft is not None:
            # After an error the draft gives its space back at once.
            with draft:
                draft.publish(self._name)
