"""What plain files share: `Runtime`. How large a cache is in a process that is one of several."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
from typing import Protocol

from . import _iomill

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
    return _cpus() if is_worker else 1


def _cpus() -> int:
    """The number of CPUs that this process may use, or of all if a filter of system calls hides it."""
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count() or 1


# Whether the cache of the shared runtime has its size.
_is_sized = False


def shared_native() -> _iomill.Runtime:
    """The shared runtime. Its cache is divided once, unless its size was set."""
    global _is_sized
    native = _iomill.shared_runtime()
    if not _is_sized:
        _is_sized = True
        count = sharers()
        if count > 1:
            native.resize_cache(native.counters()[2] // count)
    return native


class _Tells(Protocol):
    def notices(self) -> list[str]: ...

    def metrics(self) -> str: ...


class Telling:
    """What a runtime and a set of drives tell of themselves."""

    __slots__ = ()

    @property
    def _told(self) -> _Tells:
        raise NotImplementedError

    def notices(self) -> list[str]:
        """What a user should know: fallbacks, repairs, file systems without direct I/O."""
        return self._told.notices()

    def metrics(self) -> str:
        """All counters as a page that Prometheus reads."""
        return self._told.metrics()


class Runtime(Telling):
    """What plain files share: one cache, the engines, one queue for each block device.

    A process has one that plain files use unless told otherwise. Another one has a cache of its own:

    >>> import numpy, iomill
    >>> numpy.save("features.npy", numpy.zeros((10, 3)))
    >>> own = iomill.Runtime(cache_bytes=64 << 20)
    >>> x = iomill.open("features.npy", runtime=own)

    `cache_bytes` is the memory for cached pages: by default 512 MiB, and at most a quarter of the memory that the
    process may use, by its cgroup, too. The default is divided among the processes that a launcher has started here, as
    ``LOCAL_WORLD_SIZE`` and its like say, and by the number of CPUs in workers. `cache_max_bytes` is how far `resize_cache` may grow it. `engine` demands one for all devices:
    ``io_uring``, ``libaio``, ``posix`` or ``mmap``.
    """

    _native: _iomill.Runtime

    def __init__(
        self, cache_bytes: int | None = None, *, cache_max_bytes: int | None = None, engine: str | None = None
    ) -> None:
        self._native = _iomill.start_runtime(False, cache_bytes, cache_max_bytes, engine)

    @classmethod
    def shared(cls) -> Runtime:
        """The runtime that plain files use unless told otherwise."""
        return cls._of(shared_native())

    @classmethod
    def _of(cls, native: _iomill.Runtime) -> Runtime:
        runtime = cls.__new__(cls)
        runtime._native = native
        return runtime

    @property
    def _told(self) -> _iomill.Runtime:
        return self._native

    def resize_cache(self, cache_bytes: int) -> None:
        """Changes the size of the cache, in bytes, while it is used. ValueError above `cache_max_bytes`."""
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
    cache_bytes: int | None = None, *, cache_max_bytes: int | None = None, engine: str | None = None
) -> Runtime:
    """Makes the shared runtime, before the first plain file is opened. The arguments are those of `Runtime`.

    ValueError if there is one already. `Runtime.shared().resize_cache` changes the size of its cache.
    """
    global _is_sized
    native = _iomill.start_runtime(True, cache_bytes, cache_max_bytes, engine)
    _is_sized = _is_sized or cache_bytes is not None
    return Runtime._of(native)


def worker_share(cache_bytes: int) -> int:
    """The cache of a worker of this process: its share, if there are as many workers as CPUs."""
    return cache_bytes // _cpus()


def limit_worker_cache(cache_bytes: int) -> None:
    """Makes the shared runtime of a worker, unless it is there."""
    with contextlib.suppress(ValueError):
        configure(cache_bytes=cache_bytes)
