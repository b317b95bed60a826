"""Bytes of files: `File`, `Runtime`. Arrays of drives are in `_arrays`."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import operator
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from . import _iomill
from ._futures import Gather, begun

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._arrays import Array

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def path_of(path: Any) -> str:
    """A path as text. TypeError for anything else, in words."""
    if isinstance(path, (str, bytes, os.PathLike)):
        return os.fsdecode(path)
    if isinstance(path, int) or callable(getattr(path, "fileno", None)):
        raise TypeError(f"{path!r} is a file object or a descriptor: give the path of the file")
    raise TypeError(f"a path is text, bytes or has __fspath__, and {path!r} is of type {type(path).__name__}")


def paths_of(paths: Any) -> list[str]:
    """A path, or several."""
    if isinstance(paths, (str, bytes, os.PathLike, int)) or not isinstance(paths, Iterable) or hasattr(paths, "fileno"):
        return [path_of(paths)]
    return [path_of(path) for path in paths]


# How many processes a launcher has started on this machine, this one among them: torchrun and accelerate, DeepSpeed, Horovod, Open MPI,
# MPICH and Intel MPI, MVAPICH, Slurm. Of Slurm's two only the step's is there without an option of srun.
_LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE",
    "LOCAL_SIZE",
    "HOROVOD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "PMI_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NTASKS_PER_NODE",
)

# More do not run on a machine, and a cache has a least size.
_MOST_SHARERS = 1024

# Workers of Ray have one of these, and are usually as many as there are CPUs. Those of Dask are multiprocessing's.
_WORKER_MARKS = ("RAY_RAYLET_PID", "RAY_WORKER_ID")


def sharers() -> int:
    """How many processes probably share the memory of this machine or container with equal rights, this one among them."""
    for name in _LOCAL_SIZES:
        # Slurm writes `4(x2)` for two nodes with four each.
        said = re.match(r"[0-9]+", os.environ.get(name, ""))
        if said is not None and int(said[0]) > 0:
            return min(int(said[0]), _MOST_SHARERS)
    is_worker = multiprocessing.parent_process() is not None or any(name in os.environ for name in _WORKER_MARKS)
    return len(os.sched_getaffinity(0)) if is_worker else 1


# Whether the cache of the shared runtime has its size.
_is_sized = False


def _shared() -> _iomill.Runtime:
    """The shared runtime. Its cache is divided once, unless its size was set."""
    global _is_sized
    native = _iomill.shared_runtime()
    if not _is_sized:
        _is_sized = True
        count = sharers()
        if count > 1:
            native.resize_cache(native.counters()[2] // count)
    return native


_said: set[str] = set()


def tell(notices: Iterable[str]) -> None:
    """Warns of each of these once in a process."""
    for notice in notices:
        if notice not in _said:
            _said.add(notice)
            warnings.warn(f"iomill: {notice}", RuntimeWarning, stacklevel=4)


class Closing:
    """What ``with`` closes at its end."""

    __slots__ = ()

    def close(self) -> None:
        """Gives back what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Telling:
    """What a runtime and an array tell of themselves."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def _native(self) -> Any: ...

    def notices(self) -> list[str]:
        """What a user should know: fallbacks, repairs, file systems without direct I/O."""
        found: list[str] = self._native.notices()
        return found

    def metrics(self) -> str:
        """All counters as a page that Prometheus reads."""
        page: str = self._native.metrics()
        return page


class Runtime(Telling):
    """What plain files share: one cache, the engines, one queue for each block device.

    A process has one that plain files use unless told otherwise. Another one has a cache of its own:

    >>> import numpy, iomill
    >>> numpy.save("features.npy", numpy.zeros((10, 3)))
    >>> own = iomill.Runtime(cache_bytes=64 << 20)
    >>> x = iomill.open("features.npy", runtime=own)

    `cache_bytes` is the memory for cached pages: by default 512 MiB, and at most a quarter of the memory that the
    process may use, by its cgroup, too. The default is divided among the processes that a launcher has started here, as
    ``LOCAL_WORLD_SIZE`` and its like say, and by the number of CPUs in workers. `cache_bytes_max` is how far `resize_cache` may grow it. `engine` demands one for all devices:
    ``io_uring``, ``libaio``, ``posix`` or ``mmap``.
    """

    _native: _iomill.Runtime

    def __init__(
        self, cache_bytes: int | None = None, *, cache_bytes_max: int | None = None, engine: str | None = None
    ) -> None:
        self._native = _iomill.start_runtime(False, cache_bytes, cache_bytes_max, engine)

    @classmethod
    def shared(cls) -> Runtime:
        """The runtime that plain files use unless told otherwise."""
        return cls._of(_shared())

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


def configure(
    cache_bytes: int | None = None, *, cache_bytes_max: int | None = None, engine: str | None = None
) -> Runtime:
    """Makes the shared runtime, before the first plain file is opened. The arguments are those of `Runtime`.

    ValueError if there is one already. `Runtime.shared().resize_cache` changes the size of its cache.
    """
    global _is_sized
    native = _iomill.start_runtime(True, cache_bytes, cache_bytes_max, engine)
    _is_sized = _is_sized or cache_bytes is not None
    return Runtime._of(native)


def worker_share(cache_bytes: int) -> int:
    """The cache of a worker of this process: its share, if there are as many workers as CPUs."""
    return cache_bytes // len(os.sched_getaffinity(0))


def limit_worker_cache(cache_bytes: int) -> None:
    """Makes the shared runtime of a worker, unless it is there."""
    with contextlib.suppress(ValueError):
        configure(cache_bytes=cache_bytes)


def is_writing(mode: str) -> bool:
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
        paths, used = paths_of(path), _shared() if runtime is None else runtime._native
        self._begin(_iomill.open_plain(paths, is_writing(mode), create, used))
        self._runtime = used
        tell(used.notices())

    def _begin(self, native: _iomill.File) -> None:
        self._native = native
        self._position = 0
        self._owner: Array | None = None
        self._owns = False

    @classmethod
    def _of(cls, native: _iomill.File, owner: Array | None, *, owns: bool = False) -> File:
        """A file of an array. One that owns its use of the array ends it when it is closed."""
        file = cls.__new__(cls)
        file._begin(native)
        file._owner = owner
        file._owns = owns
        return file

    @property
    def name(self) -> str:
        """Its path without symbolic links; in an array the name when it was opened."""
        return self._native.name

    @property
    def mode(self) -> str:
        """``r`` or ``r+``."""
        return "r+" if self._native.writable else "r"

    def _row_reader(self, row_bytes: int, parts: list[tuple[int, int]]) -> _iomill.Rows:
        """Rows of one length in this file. `parts` has the number of rows of each part, and its first byte."""
        return _iomill.Rows(self._native, row_bytes, parts)

    def _cache_bytes(self) -> int:
        """Memory for cached pages, of this file and of those that share its cache."""
        return self._runtime.counters()[2] if self._owner is None else self._owner.cache_bytes

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
        ranges = [(operator.index(offset), operator.index(size)) for offset, size in ranges]
        joined = np.empty(sum(size for _, size in ranges), np.uint8)
        self._native.readinto_ranges(joined, ranges)
        return _split(joined, ranges)

    def read_ranges_async(self, ranges: Sequence[tuple[int, int]]) -> Gather[list[memoryview]]:
        """`read_ranges` as a future."""
        ranges = [(operator.index(offset), operator.index(size)) for offset, size in ranges]
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
        # Integers of numpy would wrap.
        position = bases[whence] + operator.index(offset)
        if position < 0:
            raise ValueError(f"negative seek value {position}")
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def truncate(self, size: int | None = None) -> int:
        if not self._native.writable:
            raise io.UnsupportedOperation("truncate")
        size = self._position if size is None else operator.index(size)
        self._native.set_len(size)
        return size

    def flush(self) -> None:
        """Does nothing, as on Python's raw files: `sync` makes writes durable."""

    def close(self) -> None:
        """Closes this handle. What was written through it is durable then. A second time it does nothing."""
        super().close()
        # `__init__` may have failed before there was one.
        if not hasattr(self, "_native"):
            return
        try:
            self._native.close()
        finally:
            if self._owner is not None and self._owns:
                self._owner.close()


def _split(joined: np.ndarray, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
    view, start, parts = memoryview(joined), 0, []
    for _, size in ranges:
        parts.append(view[start : start + size])
        start += size
    return parts
