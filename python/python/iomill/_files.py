"""Bytes of files: `File`. Sets of drives are in `_drives`."""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import multiprocessing.util
import operator
import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from . import _iomill
from ._common import Path, is_writing, paths_of, tell
from ._futures import Done, Gather, begun
from ._runtime import Runtime, shared_native

if TYPE_CHECKING:
    from typing_extensions import Buffer


# Files that are open for writing.
_writing: weakref.WeakSet[File] = weakref.WeakSet()


def _sync_all() -> None:
    """Runs at the end of a process. Not all objects are finalized there, and their writes would be lost."""
    with contextlib.ExitStack() as syncs:
        for file in list(_writing):
            if not file.closed:
                syncs.callback(file._of_system.sync_written)


def _forget_all() -> None:
    # A forked child syncs only its own files, and not those of its parent.
    global _writing
    _writing = weakref.WeakSet()


os.register_at_fork(after_in_child=_forget_all)


class _AtFork:
    """Forked workers of multiprocessing end without `atexit`."""

    def in_worker(self) -> None:
        multiprocessing.util.Finalize(None, _sync_all, exitpriority=10)


_at_fork = _AtFork()
multiprocessing.util.register_after_fork(_at_fork, _AtFork.in_worker)
atexit.register(_sync_all)


class Owner(Protocol):
    """The use of a set of drives that a file on drives belongs to."""

    def _counters(self) -> tuple[int, int, int]: ...

    def _file_closed(self) -> None: ...

    def close(self) -> None: ...


class File(io.RawIOBase):
    """The bytes of a file: of a plain file, or of a file on drives. A file object of Python, and calls with offsets.

    >>> import iomill
    >>> with open("words.txt", "wb") as words:
    ...     _ = words.write(b"one two three")
    >>> with iomill.File("words.txt") as file:
    ...     file.read_at(4, 3), file.read(3), len(file)
    (b'two', b'one', 13)

    `path` is a path, or a list of paths that are read as one file. `mode` is ``r``, or ``r+`` for writing. OSError if
    the file cannot be opened: it does not exist, or is a directory, a pipe, a device or a file of ``/proc``. Several
    threads may make any calls; ``read``, ``readinto``, ``write`` and ``seek`` share one position.
    """

    _is_closing = False

    def __init__(
        self, path: Path | Sequence[Path], mode: str = "r", *, create: bool = False, runtime: Runtime | None = None
    ) -> None:
        paths, used = paths_of(path), shared_native() if runtime is None else runtime._native
        self._begin(_iomill.open_plain(paths, is_writing(mode), create, used))
        self._runtime = used
        tell(used.notices())

    def _begin(self, native: _iomill.File | _iomill.Content) -> None:
        self._native = native
        self._position = 0
        self._owner: Owner | None = None
        self._owns = False
        if native.writable:
            _writing.add(self)

    # A file is true, also an empty one: it has a length, but is not a sequence.
    def __bool__(self) -> bool:
        return True

    @classmethod
    def _of(cls, native: _iomill.File, owner: Owner | None, *, owns: bool = False) -> File:
        """A file on drives. If it `owns` its use of the drives, its close ends that use."""
        file = cls.__new__(cls)
        file._begin(native)
        file._owner = owner
        file._owns = owns
        return file

    @property
    def _of_system(self) -> _iomill.File:
        """The native half of a file of the system. OSError for an object of a store."""
        if not isinstance(self._native, _iomill.File):
            raise OSError(errno.EROFS, "an object of a store is open for reading only", self.name)
        return self._native

    @property
    def name(self) -> str:
        """The path without symbolic links; on drives the name at the opening."""
        return self._native.name

    @property
    def mode(self) -> str:
        """``r`` or ``r+``."""
        return "r+" if self._native.writable else "r"

    def _row_reader(self, row_bytes: int, parts: list[tuple[int, int]]) -> _iomill.Rows | _iomill.ContentRows:
        """Rows of one length in this file. `parts` has the number of rows and the first byte of each part."""
        return _iomill.Rows(self._of_system, row_bytes, parts)

    def _counters(self) -> tuple[int, int, int]:
        """Hits, misses and the memory of the cache, which other files share."""
        return self._runtime.counters() if self._owner is None else self._owner._counters()

    def _planned_bytes(self) -> int:
        """The memory of the cache, if an order of rows may be planned for it."""
        return self._counters()[2]

    def __len__(self) -> int:
        return len(self._native)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self)} bytes"
        return f"<iomill.File {self.name!r}: {state}>"

    def _from_zero(self, what: str, number: int) -> int:
        """An offset or a size. ValueError if it is negative."""
        number = operator.index(number)
        if number < 0:
            raise ValueError(f"{self.name}: the {what} {number} is negative")
        return number

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on. They are fewer only at the end of the file."""
        return self._native.read_at(self._from_zero("offset", offset), self._from_zero("size", size))

    def readinto_at(self, buffer: Buffer, offset: int) -> int:
        """Reads into a writable buffer in C order. Returns the number of bytes. They are fewer than the buffer has only
        at the end of the file."""
        return self._native.readinto_at(buffer, self._from_zero("offset", offset))

    def _within(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The ranges as integers. ValueError if one ends beyond the file: before memory is allocated for it."""
        checked = [(operator.index(offset), operator.index(size)) for offset, size in ranges]
        length = len(self)
        for offset, size in checked:
            if offset < 0 or size < 0:
                raise ValueError(
                    f"{self.name}: a range begins at {offset} and has {size} bytes: neither may be negative"
                )
            if offset + size > length:
                raise ValueError(
                    f"{self.name}: a range of {size} bytes begins at {offset}, but the file ends at {length}"
                )
        return checked

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Gathers ranges, (offset, size) in bytes each, by one call. ValueError if a range ends beyond the file."""
        ranges = self._within(ranges)
        joined = np.empty(sum(size for _, size in ranges), np.uint8)
        self._native.readinto_ranges(joined, ranges)
        return _split(joined, ranges)

    def read_ranges_async(self, ranges: Sequence[tuple[int, int]]) -> Gather[list[memoryview]]:
        """`read_ranges` as a future."""
        ranges = self._within(ranges)

        def begin(done: Done) -> None:
            self._native.begin_ranges(ranges, done)

        return begun(begin, lambda read: _split(read, ranges))

    def write_at(self, data: Buffer, offset: int) -> None:
        """Writes all bytes of a buffer. A write past the end extends the file. Durable after the next `sync`."""
        self._of_system.write_at(data, self._from_zero("offset", offset))

    def sync(self) -> None:
        """Makes all writes durable."""
        self._native.sync()

    # The methods of Python's file objects follow.

    def readable(self) -> bool:
        self._checkClosed()
        return True

    def seekable(self) -> bool:
        self._checkClosed()
        return True

    def writable(self) -> bool:
        self._checkClosed()
        return self._native.writable

    def readinto(self, buffer: Buffer) -> int:
        count = self._native.readinto_at(buffer, self._position)
        self._position += count
        return count

    def readall(self) -> bytes:
        read = self._native.read_at(self._position, max(0, len(self) - self._position))
        self._position += len(read)
        return read

    def write(self, data: Buffer) -> int:
        if not self.writable():
            raise io.UnsupportedOperation("not writable")
        self._of_system.write_at(data, self._position)
        count = memoryview(data).nbytes
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self)}
        if whence not in bases:
            raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        # Integers of numpy would wrap around.
        position = bases[whence] + operator.index(offset)
        if position < 0:
            raise ValueError(f"negative seek value {position}")
        self._position = position
        return position

    def tell(self) -> int:
        self._checkClosed()
        return self._position

    def truncate(self, size: int | None = None) -> int:
        if not self.writable():
            raise io.UnsupportedOperation("truncate")
        size = self._position if size is None else self._from_zero("size", size)
        self._of_system.set_len(size)
        return size

    def flush(self) -> None:
        """`sync`, by the name that Python's files have for it. For reading it does nothing."""
        # There is no other buffer. `io` also calls `flush` in `close`, and then `close` itself syncs the writes of this
        # handle.
        super().flush()
        if not self._is_closing and self._native.writable:
            self.sync()

    def close(self) -> None:
        """Closes this handle, and makes its writes durable. A second call does nothing."""
        self._is_closing = True
        super().close()
        # `__init__` may have failed before it set `_native`.
        if not hasattr(self, "_native"):
            return
        try:
            self._native.close()
        finally:
            if self._owner is not None:
                self._owner.close() if self._owns else self._owner._file_closed()


def _split(joined: np.ndarray, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
    view, start, parts = memoryview(joined), 0, []
    for _, size in ranges:
        parts.append(view[start : start + size])
        start += size
    return parts
