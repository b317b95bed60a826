"""Arrays of drives, and bytes of files: `Array`, `File`, `Runtime`."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from . import _iomill
from ._futures import Gather, begun

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._rows import RowArray

Path = str | os.PathLike[str]


class Runtime:
    """What plain files share: one cache, the engines, one queue for each block device.

    A process has one that plain files use unless told otherwise. Another one has a cache of its own:

    >>> import numpy, iomill
    >>> numpy.save("features.npy", numpy.zeros((10, 3)))
    >>> own = iomill.Runtime(cache_bytes=64 << 20)
    >>> x = iomill.open("features.npy", runtime=own)

    `cache_bytes` is the memory for cached pages: by default 512 MiB, and at most a quarter of the memory that the
    process may use. `cache_bytes_max` is how far `resize_cache` may grow it. `engine` demands one for all devices:
    ``io_uring``, ``libaio``, ``posix`` or ``mmap``.
    """

    def __init__(
        self, cache_bytes: int | None = None, *, cache_bytes_max: int | None = None, engine: str | None = None
    ) -> None:
        self._native = _iomill.start_runtime(False, cache_bytes, cache_bytes_max, engine)

    @classmethod
    def shared(cls) -> Runtime:
        """The runtime that plain files use unless told otherwise."""
        return cls._of(_iomill.shared_runtime())

    @classmethod
    def _of(cls, native: _iomill.Runtime) -> Runtime:
        runtime = cls.__new__(cls)
        runtime._native = native
        return runtime

    def resize_cache(self, cache_bytes: int) -> None:
        """Changes the size of the cache, in bytes, while it is used. ValueError above `cache_bytes_max`."""
        self._native.resize_cache(cache_bytes)

    @property
    def hits(self) -> int:
        """Pages of 4 KiB found in the cache so far."""
        return self._native.counters()[0]

    @property
    def misses(self) -> int:
        """Pages asked for and not found in the cache so far."""
        return self._native.counters()[1]

    @property
    def cache_bytes(self) -> int:
        """Memory for cached pages, in bytes."""
        return self._native.counters()[2]

    def notices(self) -> list[str]:
        """What a user should know: fallbacks, file systems without direct I/O."""
        return self._native.notices()

    def metrics(self) -> str:
        """All counters as a page that Prometheus reads."""
        return self._native.metrics()


def configure(
    cache_bytes: int | None = None, *, cache_bytes_max: int | None = None, engine: str | None = None
) -> Runtime:
    """Makes the shared runtime, before the first plain file is opened. The arguments are those of `Runtime`.

    ValueError if there is one already. `Runtime.shared().resize_cache` changes the size of its cache.
    """
    return Runtime._of(_iomill.start_runtime(True, cache_bytes, cache_bytes_max, engine))


def worker_share(cache_bytes: int) -> int:
    """The cache of a worker of this process: its share, if there are as many workers as CPUs."""
    return cache_bytes // len(os.sched_getaffinity(0))


def limit_worker_cache(cache_bytes: int) -> None:
    """Makes the shared runtime of a worker, unless it is there."""
    with contextlib.suppress(ValueError):
        configure(cache_bytes=cache_bytes)


def _writable(mode: str) -> bool:
    if mode not in ("r", "r+"):
        raise ValueError(f"mode must be one of ['r', 'r+'] (got {mode!r})")
    return mode == "r+"


class File(io.RawIOBase):
    """The bytes of a file: of a plain file, or of a file in an array. A file object of Python, and calls with offsets.

    >>> import iomill
    >>> with open("words.txt", "wb") as words:
    ...     _ = words.write(b"one two three")
    >>> with iomill.File("words.txt") as file:
    ...     file.read_at(4, 3), file.read(3), len(file)
    (b'two', b'one', 13)

    `path` is a path, or a list of paths that are read as one file. `mode` is ``r``, or ``r+`` for writing. OSError if
    the file cannot be opened: there is none, or it is a directory, a pipe, a device or a file of ``/proc``. All calls may be made from several threads;
    ``read``, ``readinto``, ``write`` and ``seek`` share one position.
    """

    def __init__(
        self, path: Path | Sequence[Path], mode: str = "r", *, create: bool = False, runtime: Runtime | None = None
    ) -> None:
        paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        native = _iomill.open_plain(paths, _writable(mode), create, runtime._native if runtime else None)
        self._begin(native)

    def _begin(self, native: _iomill.File) -> None:
        self._native = native
        self._position = 0
        self._owner: Array | None = None

    @classmethod
    def _of(cls, native: _iomill.File, owner: Array | None) -> File:
        file = cls.__new__(cls)
        file._begin(native)
        file._owner = owner
        return file

    @property
    def name(self) -> str:
        """Its path without symbolic links; in an array the name when it was opened."""
        return self._native.name

    @property
    def mode(self) -> str:
        """``r`` or ``r+``."""
        return "r+" if self._native.writable else "r"

    def __len__(self) -> int:
        return len(self._native)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self)} bytes"
        return f"<iomill.File {self.name!r}: {state}>"

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on; fewer only at the end of the file."""
        return self._native.read_at(offset, size)

    def readinto_at(self, buffer: Buffer, offset: int) -> int:
        """Reads into a writable buffer in C order. Returns how many bytes it has read; fewer only at the end."""
        return self._native.readinto_at(buffer, offset)

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Gathers ranges, (offset, size) in bytes each, by one call. ValueError if one ends beyond the file."""
        joined = np.empty(sum(size for _, size in ranges), np.uint8)
        self._native.readinto_ranges(joined, ranges)
        return _split(joined, ranges)

    def read_ranges_async(self, ranges: Sequence[tuple[int, int]]) -> Gather[list[memoryview]]:
        """`read_ranges` as a future."""
        ranges = list(ranges)
        return begun(lambda done: self._native.begin_ranges(ranges, done), lambda read: _split(read, ranges))

    def write_at(self, data: Buffer, offset: int) -> None:
        """Writes all bytes of a buffer. A write past the end extends the file. Durable after the next `sync`."""
        self._native.write_at(data, offset)

    def sync(self) -> None:
        """Makes all writes durable."""
        self._native.sync()

    # What follows are the methods of Python's file objects.

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
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
        if not self._native.writable:
            raise io.UnsupportedOperation("not writable")
        self._native.write_at(data, self._position)
        count = memoryview(data).nbytes
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self)}
        if whence not in bases:
            raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        position = bases[whence] + offset
        if position < 0:
            raise ValueError(f"negative seek value {position}")
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def truncate(self, size: int | None = None) -> int:
        if not self._native.writable:
            raise io.UnsupportedOperation("truncate")
        size = self._position if size is None else size
        self._native.set_len(size)
        return size

    def flush(self) -> None:
        """Does nothing, as on Python's raw files: `sync` makes writes durable."""

    def close(self) -> None:
        """Closes this handle. What was written through it is durable then. A second time it does nothing."""
        super().close()
        # `__init__` may have failed before there was one.
        if hasattr(self, "_native"):
            self._native.close()


def _split(joined: np.ndarray, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
    view, start, parts = memoryview(joined), 0, []
    for _, size in ranges:
        parts.append(view[start : start + size])
        start += size
    return parts


class Array:
    """A set of drives used together, with one catalog of files. `drive` is the directory of one of them.

    >>> import iomill, os
    >>> os.makedirs("ssd0"), os.makedirs("ssd1")
    (None, None)
    >>> with iomill.Array.create(["ssd0", "ssd1"]) as array:
    ...     with array.create_file("words") as file:
    ...         file.write_at(b"one two three", 0)
    >>> with iomill.Array("ssd0") as array:
    ...     print(array.list(), array.open("words").read())
    ['words'] b'one two three'

    `mode` is ``r``, or ``r+`` for writing. Several processes may have an array open for reading; a process that has it
    open for writing has it alone. `cache_bytes` is the memory for cached pages: by default 512 MiB, and at most a
    quarter of the memory that the process may use. OSError if a drive is missing or the array is in use.
    """

    def __init__(self, drive: Path, mode: str = "r", *, cache_bytes: int | None = None) -> None:
        self._native = _iomill.open_array(drive, _writable(mode), cache_bytes)

    @classmethod
    def create(cls, drives: Sequence[Path], *, cache_bytes: int | None = None) -> Array:
        """Makes directories into the drives of a new array, and opens it for writing."""
        array = cls.__new__(cls)
        array._native = _iomill.create_array(drives, cache_bytes)
        return array

    @property
    def mode(self) -> str:
        """``r`` or ``r+``."""
        return "r+" if self._native.writable else "r"

    def open(self, name: str) -> File:
        """Opens a file for what the array is open for. FileNotFoundError if there is none."""
        return File._of(self._native.open(name), self)

    def rows(self, name: str, **how: Any) -> RowArray:
        """Opens a file as rows. `how` has the arguments `dtype`, `shape` and `offset` of `iomill.open`."""
        from ._formats import rows_of_file

        return rows_of_file(self.open(name), [name], **how)

    def create_file(self, name: str) -> File:
        """Creates a file of length 0, durably. FileExistsError if the name exists."""
        return File._of(self._native.create(name), self)

    def draft(self) -> Draft:
        """Begins a file that gets its name when its content is complete."""
        return Draft(self)

    def copy(self, old: str, new: str, *, replace: bool = True) -> None:
        """Copies a file within the array, durably. The copy appears whole or not at all."""
        self._native.copy(old, new, replace)

    def delete(self, name: str) -> None:
        """Deletes a file, durably. Its handles keep the content, and the space is free when the last one is closed."""
        self._native.delete(name)

    def rename(self, old: str, new: str) -> None:
        """Renames a file, durably, and replaces the one with the new name."""
        self._native.rename(old, new)

    def list(self, prefix: str = "") -> list[str]:
        """The names that begin with `prefix`, sorted."""
        return self._native.list(prefix)

    def __contains__(self, name: str) -> bool:
        try:
            self._native.len_of(name)
        except FileNotFoundError:
            return False
        return True

    def size_of(self, name: str) -> int:
        """The length of a file in bytes."""
        return self._native.len_of(name)

    @property
    def cache_bytes(self) -> int:
        """Memory for cached pages, in bytes."""
        return self._native.cache_bytes()

    def drives(self) -> Any:
        """The directories of the drives."""
        return self._native.drives()

    def notices(self) -> Any:
        """What a user should know: fallbacks, repairs."""
        return self._native.notices()

    def metrics(self) -> str:
        """All counters as a page that Prometheus reads."""
        return self._native.metrics()

    def close(self) -> None:
        """Makes every open file durable, and closes the array. A second time it does nothing."""
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self.list())

    def __repr__(self) -> str:
        return f"<iomill.Array on {', '.join(map(str, self.drives()))}>"


_shared: weakref.WeakValueDictionary[tuple[int, int, str, int], Array] = weakref.WeakValueDictionary()
_sharing = threading.Lock()


def shared_array(drive: Path, mode: str, cache_bytes: int | None = None) -> Array:
    """The array of a drive. All users in this process share it, and its cache, while one of them is there. The first sets the cache's size."""
    # Not by the path: links of /proc lead elsewhere than their text says.
    found = os.stat(drive)
    key = (found.st_dev, found.st_ino, mode, os.getpid())
    with _sharing:
        array = _shared.get(key)
        if array is None:
            array = _shared[key] = Array(drive, mode, cache_bytes=cache_bytes)
        return array


class Draft:
    """A file without a name, from `Array.draft`. `publish` gives it one: its content appears as a whole, or not at all.

    A draft that is closed without a name gives its space back. `file` is the file.

    >>> import iomill, os
    >>> os.makedirs("disk")
    >>> with iomill.Array.create(["disk"]) as array:
    ...     with array.draft() as draft:
    ...         _ = draft.file.write(b"whole")
    ...         draft.publish("object")
    ...     print(array.open("object").read())
    b'whole'
    """

    def __init__(self, array: Array) -> None:
        self._native = array._native.draft()
        self.file = File._of(self._native.file(), array)

    def publish(self, name: str, *, replace: bool = True) -> None:
        """Makes the content durable, then the name. A file that has the name loses it at the same moment, and handles
        of it keep its content. FileExistsError if it must not be replaced; then the draft is given up."""
        self._native.publish(name, replace)
        self.file.close()

    def close(self) -> None:
        """Gives the file up, unless it was published. A second time it does nothing."""
        self.file._native.discard()
        self._native.close()

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
