"""Caches of objects on local drives: `Cache`. Stores over them are in `_origins`."""

from __future__ import annotations

import atexit
import math
import multiprocessing.util
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _iomill
from ._common import Path, path_of, paths_of, tell
from ._runtime import Runtime

Revalidate = str | float

# The seconds for which the end of the process waits for fetched granules that are not yet written.
_WRITE_OUT_S = 10.0


def check_build() -> None:
    """Raises NotImplementedError if this build has no origins."""
    if not hasattr(_iomill, "open_cache"):
        raise NotImplementedError("this build of iomill has no remote stores: build it with the feature `origins`")


class _Opened:
    """A cache that this process has open."""

    __slots__ = ("__weakref__", "native")

    def __init__(self, native: _iomill.Cache) -> None:
        self.native = native


# The open caches of this process, by their arguments. A forked child continues to use them: each opens its drives there
# again.
_opened: weakref.WeakValueDictionary[tuple[object, ...], _Opened] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def _new_lock() -> None:
    global _lock
    # A thread that the child does not have may hold its parent's lock.
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


def _write_out() -> None:
    for opened in list(_opened.values()):
        opened.native.wait_until_written(_WRITE_OUT_S)


class _AtFork:
    """Forked workers of multiprocessing end without `atexit`."""

    def in_worker(self) -> None:
        multiprocessing.util.Finalize(None, _write_out, exitpriority=10)


_at_fork = _AtFork()
multiprocessing.util.register_after_fork(_at_fork, _AtFork.in_worker)


def _end() -> None:
    _write_out()
    if hasattr(_iomill, "stop_origins"):
        _iomill.stop_origins()


atexit.register(_end)


def _seconds(when: Revalidate) -> float:
    if when == "always":
        return 0.0
    if when == "never":
        return math.inf
    if isinstance(when, str) or isinstance(when, bool) or not 0 <= when:
        raise ValueError(f"revalidate must be 'always', 'never' or seconds (got {when!r})")
    return float(when)


class Cache:
    """A cache of objects on local drives, with a directory on each. All processes of the machine may open it at the
    same time.

    A directory that is no drive of a cache becomes one, unless it is on the file system of ``/``: the mount point of an
    unmounted drive is there. `on_root` allows that, too.

    `bytes` is the size of the cache on all drives together, by default three quarters of the free space. `revalidate`
    determines when a call asks for the version of an object again: ``always`` (in each call), ``never`` (objects do not
    change), seconds, or a dictionary of these by prefixes of paths. These paths begin after the bucket or the host, for
    all stores over the cache. With `by_time` size and time identify objects without an etag. `runtime` keeps hot pages
    in memory; by default it is the runtime of plain files.

    Lengths and `bytes` count when a directory becomes a drive. `docs/origin.md` describes the other options.

    >>> import iomill, os
    >>> os.makedirs("nvme0")
    >>> cache = iomill.Cache("nvme0", bytes=64 << 20, on_root=True, index_dir=".")
    >>> cache.counters()["hits"]
    0
    """

    def __init__(
        self,
        drives: Path | Sequence[Path],
        *,
        bytes: int | None = None,
        revalidate: Revalidate | Mapping[str, Revalidate] = "always",
        granule_bytes: int | None = None,
        by_time: bool = False,
        on_root: bool = False,
        index_dir: Path | None = None,
        fill_bytes: int | None = None,
        read_within: float | None = None,
        wait_for_others: float | None = None,
        admit: float | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        prefixes = revalidate if isinstance(revalidate, Mapping) else {"": revalidate}
        options: dict[str, Any] = {
            "bytes": bytes,
            "granule_bytes": granule_bytes,
            "index_dir": None if index_dir is None else os.path.abspath(path_of(index_dir)),
            "revalidate": [(prefix, _seconds(when)) for prefix, when in prefixes.items()],
            "by_time": by_time,
            "on_root": on_root,
            "fill_bytes": fill_bytes,
            "read_within": read_within,
            "wait_for_others": wait_for_others,
            "admit": admit,
        }
        self._begin([os.path.abspath(drive) for drive in paths_of(drives)], options, runtime)
        tell(self._native.notices())

    def _begin(self, drives: list[str], options: dict[str, Any], runtime: Runtime | None = None) -> None:
        self._drives = drives
        self._options = {name: value for name, value in options.items() if value is not None}
        self._runtime = runtime
        self._held: _Opened | None = None

    @classmethod
    def _of(cls, drives: Cache | Path | Sequence[Path], **options: Any) -> Cache:
        """A given cache, or a new one on directories."""
        if not isinstance(drives, Cache):
            return cls(drives, **options)
        if options:
            raise ValueError(f"a cache has its options already: {', '.join(options)}")
        return drives

    @classmethod
    def _later(cls, drives: list[str], options: dict[str, Any]) -> Cache:
        """A cache that is opened at its first use, because unpickling must not fail."""
        cache = cls.__new__(cls)
        cache._begin(drives, options)
        return cache

    @property
    def runtime(self) -> Runtime:
        """The runtime that keeps hot pages in memory."""
        return self._runtime or Runtime.shared()

    @property
    def _native(self) -> _iomill.Cache:
        if self._held is None:
            runtime = self.runtime
            key = (*sorted(self._drives), repr(sorted(self._options.items())), id(self._runtime))
            with _lock:
                held = _opened.get(key)
                if held is None:
                    check_build()
                    opened = _iomill.open_cache(self._drives, runtime._native, **self._options)
                    held = _opened[key] = _Opened(opened)
                self._held = held
        return self._held.native

    @property
    def drives(self) -> list[str]:
        """The directories."""
        return list(self._drives)

    def counters(self) -> dict[str, int]:
        """Counters of this process: hits, misses by reason, GETs, requested and fetched bytes."""
        return self._native.counters()

    def notices(self) -> list[str]:
        """Messages for users: drives that are left out, that have failed, or that are full."""
        return self._native.notices()

    def wait_until_written(self, seconds: float = 600.0) -> bool:
        """Waits until all fetched granules are on the drives. Returns False if that takes longer. No call needs it."""
        return self._native.wait_until_written(seconds)

    def unpin_all(self) -> int:
        """Unpins all bytes, those of old versions too. Returns how many were pinned."""
        return self._native.unpin_all()

    def __reduce__(self) -> tuple[Callable[..., Cache], tuple[list[str], dict[str, Any]]]:
        if self._runtime is not None:
            raise TypeError("a cache with a runtime of its own cannot be pickled")
        return Cache._later, (self._drives, self._options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cache) and self._what() == other._what()

    def __hash__(self) -> int:
        return hash(repr(self._what()))

    def _what(self) -> tuple[object, ...]:
        return (sorted(self._drives), self._options, id(self._runtime))

    def __repr__(self) -> str:
        # With the options: fsspec takes arguments of one text for equal.
        how = dict(sorted(self._options.items()))
        if self._runtime is not None:
            how["runtime"] = self._runtime
        return f"<iomill.Cache on {', '.join(self._drives)}: {how}>"
