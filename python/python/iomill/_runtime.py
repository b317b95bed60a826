"""The common parts of plain files: `Runtime`. Also the size of a cache in a process that is one of several."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
from typing import Protocol

from . import _iomill

# The number of processes that a launcher has started on this machine, including this one: torchrun and accelerate,
# DeepSpeed, Horovod, Open MPI, MPICH and Intel MPI, MVAPICH, Slurm. Of Slurm's two variables only that of the step is
# set without an option of srun.
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

# No machine runs more, and a cache has a minimal size.
_MOST_SHARERS = 1024

# Workers of Ray have one of these variables. There is usually one worker per CPU. Workers of Dask are workers of
# multiprocessing.
_WORKER_MARKS = ("RAY_RAYLET_PID", "RAY_WORKER_ID")


def sharers() -> int:
    """The probable number of processes with equal rights to the memory of this machine or container, including this
    one."""
    for name in _LOCAL_SIZES:
        # Slurm writes `4(x2)` for two nodes with four each.
        said = re.match(r"[0-9]+", os.environ.get(name, ""))
        if said is not None and int(said[0]) > 0:
            return min(int(said[0]), _MOST_SHARERS)
    is_worker = multiprocessing.parent_process() is not None or any(name in os.environ for name in _WORKER_MARKS)
    return _cpus() if is_worker else 1


def _cpus() -> int:
    """The number of CPUs that this process may use. If a filter of system calls hides it, the number of all CPUs."""
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count() or 1


# Whether the size of the shared runtime's cache was set or divided.
_is_sized = False


def shared_native() -> _iomill.Runtime:
    """The shared runtime. Its cache is divided once among the processes, unless its size was set."""
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
    """The notices and metrics of a runtime or a set of drives."""

    __slots__ = ()

    @property
    def _told(self) -> _Tells:
        raise NotImplementedError

    def notices(self) -> list[str]:
        """Messages for users: fallbacks, repairs, file systems without direct I/O."""
        return self._told.notices()

    def metrics(self) -> str:
        """All counters, in the text format of Prometheus."""
        return self._told.metrics()


class Runtime(Telling):
    """The common parts of plain files: one cache, the engines, one queue for each block device.

    Plain files use the shared runtime of the process by default. Another runtime has a cache of its own:

    >>> import numpy, iomill
    >>> numpy.save("features.npy", numpy.zeros((10, 3)))
    >>> own = iomill.Runtime(cache_bytes=64 << 20)
    >>> x = iomill.open("features.npy", runtime=own)

    `cache_bytes` is the memory for cached pages: by default 512 MiB, and at most a quarter of the memory limit of the
    process and its cgroup. The default is divided among the processes that a launcher has started here, by
    ``LOCAL_WORLD_SIZE`` and similar variables. In workers it is divided by the number of CPUs. `cache_max_bytes` is the
    limit for `resize_cache`. `engine` demands one engine for all devices: ``io_uring``, ``libaio``, ``posix`` or
    ``mmap``.
    """

    _native: _iomill.Runtime

    def __init__(
        self, cache_bytes: int | None = None, *, cache_max_bytes: int | None = None, engine: str | None = None
    ) -> None:
        self._native = _iomill.start_runtime(False, cache_bytes, cache_max_bytes, engine)

    @classmethod
    def shared(cls) -> Runtime:
        """The runtime that plain files use by default."""
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
        """Pages requested so far and not found in the cache."""
        return self._native.counters()[1]

    @property
    def cache_bytes(self) -> int:
        """Memory for cached pages, in bytes."""
        return self._native.counters()[2]


def configure(
    cache_bytes: int | None = None, *, cache_max_bytes: int | None = None, engine: str | None = None
) -> Runtime:
    """Makes the shared runtime, before the first plain file is opened. The arguments are those of `Runtime`.

    ValueError if it exists already. `Runtime.shared().resize_cache` changes the size of its cache.
    """
    global _is_sized
    native = _iomill.start_runtime(True, cache_bytes, cache_max_bytes, engine)
    _is_sized = _is_sized or cache_bytes is not None
    return Runtime._of(native)


def worker_share(cache_bytes: int) -> int:
    """The size of the cache of a worker of this process, for one worker per CPU."""
    return cache_bytes // _cpus()


def limit_worker_cache(cache_bytes: int) -> None:
    """Makes the shared runtime of a worker, unless it exists."""
    with contextlib.suppress(ValueError):
        configure(cache_bytes=cache_bytes)
