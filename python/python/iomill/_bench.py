"""``python -m iomill bench``: rows gathered by iomill and by ``numpy.memmap``, in turns, with the same numbers.

A mapping is measured with and without the advice MADV_RANDOM. Without it the kernel reads many pages for each row that is not in memory, so
ratios are to the faster of both.

The file is made for the run, or given. Cold, the kernel is asked to forget the file before each turn, and iomill has no cache.
Warm, the first rows of the file are in memory, and iomill's cache has room for them: up to ``--mib``, and less where the process may not use
much memory. The figures are medians. A run ends after about ``--seconds``, with the turns that there were.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._open import open as open_rows
from ._rows import RowArray
from ._runtime import Runtime

# The rows of a cold gather, and the gathers that a mapping is to make in the time of a run.
_TRIED_ROWS = 64
_LEAST_COLD_GATHERS = 20

Way = tuple[str, Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", help="a file of numpy; by default one is made")
    parser.add_argument("--dir", default=".", help="where the file is made (default: here)")
    parser.add_argument(
        "--mib", type=int, default=256, help="its size in MiB, and that of the warm rows (default: 256)"
    )
    parser.add_argument("--seconds", type=float, default=60, help="end after this time (default: 60)")
    parser.add_argument("--row-bytes", type=int, default=512, help="the length of its rows (default: 512)")
    parser.add_argument("--rows", type=int, default=4096, help="rows of one gather (default: 4096)")
    parser.add_argument("--rounds", type=int, default=15, help="gathers of each way (default: 15)")
    parser.add_argument("--plot", metavar="FILE", help="draw the medians; takes matplotlib")


def run(chosen: argparse.Namespace) -> int:
    if chosen.file is not None:
        return _measure(chosen.file, chosen)
    with tempfile.TemporaryDirectory(dir=chosen.dir) as place:
        path = os.path.join(place, "rows.npy")
        _make(path, chosen.mib << 20, chosen.row_bytes)
        return _measure(path, chosen)


def _make(path: str, size: int, row_bytes: int) -> None:
    count = max(1, size // row_bytes)
    made = np.lib.format.open_memmap(path, "w+", np.uint8, (count, row_bytes))
    rng = np.random.default_rng(1)
    step = max(1, (16 << 20) // row_bytes)
    for start in range(0, count, step):
        made[start : start + step] = rng.integers(0, 256, (min(step, count - start), row_bytes), np.uint8)
    made.flush()


def _memory_bytes() -> int:
    """How much memory this process may use more: by the machine, and by its cgroups."""
    with open("/proc/meminfo") as told:
        lines = dict(line.split(":") for line in told)
    least = int(lines["MemAvailable"].split()[0]) << 10
    with open("/proc/self/cgroup") as told:
        groups = [line.rstrip("\n").split(":", 2) for line in told]
    for _, kinds, group in groups:
        root, limit, used = "/sys/fs/cgroup", "memory.max", "memory.current"
        if kinds:
            root, limit, used = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            if "memory" not in kinds.split(","):
                continue
        while True:
            try:
                with open(f"{root}{group}/{limit}") as most, open(f"{root}{group}/{used}") as now:
                    said = most.read().strip()
                    # Pages of files count, and are given up. So half of the limit is there at least, for a process that is alone.
                    if said != "max":
                        least = min(least, max(int(said) - int(now.read()), int(said) // 2))
            except OSError:
                pass
            if group in ("", "/"):
                break
            group = os.path.dirname(group)
    return least


class _Clock:
    """When a run ends, and how far it is."""

    def __init__(self, seconds: float) -> None:
        self._begun = time.monotonic()
        self._seconds = seconds
        self._is_shown = sys.stderr.isatty()

    def is_over(self, share: float) -> bool:
        return time.monotonic() - self._begun > self._seconds * share

    def show(self, what: str) -> None:
        if self._is_shown:
            print(f"\r\x1b[K{what}, {time.monotonic() - self._begun:.0f} s", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _measure(path: str, chosen: argparse.Namespace) -> int:
    clock = _Clock(chosen.seconds)
    mapped = np.load(path, mmap_mode="r")
    row_bytes = max(1, mapped[:1].nbytes)
    # The results of two gathers, and what is compared, are in memory as well.
    chosen.rows = max(1, min(chosen.rows, _memory_bytes() // 16 // row_bytes))
    cold = open_rows(path, runtime=Runtime(cache_bytes=0))
    print(f"rows of {mapped[:1].nbytes} bytes, {len(mapped)} in the file, medians of up to {chosen.rounds} turns")
    few = _affordable(path, mapped, chosen)
    results = {f"cold, {few} rows": (few, _turns(path, mapped, cold, len(mapped), few, chosen, clock, forget=True))}
    # iomill and the kernel both keep them.
    warm_bytes = min(int(mapped.nbytes), chosen.mib << 20, _memory_bytes() // 4)
    warm_rows = max(1, min(len(mapped), warm_bytes // row_bytes))
    # Sets of the cache are not all filled alike, so it needs a little more than the data.
    warm = open_rows(path, runtime=Runtime(cache_bytes=max(8 << 20, 5 * warm_bytes // 4)))
    step = max(1, (4 << 20) // row_bytes)
    for start in range(0, warm_rows, step):
        end = min(warm_rows, start + step)
        warm.take(np.arange(start, end))
        mapped[start:end].sum()
        clock.show(f"fills the caches: {100 * end // warm_rows}%")
    of = "" if warm_rows == len(mapped) else f" of the first {warm_rows}"
    turns = _turns(path, mapped, warm, warm_rows, chosen.rows, chosen, clock, forget=False)
    results[f"warm, {chosen.rows} rows{of}"] = (chosen.rows, turns)
    clock.end()
    for name, (gathered, rows) in results.items():
        print(f"\n{name:36}{'ms':>10}{'rows/s':>12}{'of memmap':>12}")
        for way, seconds in rows.items():
            print(f"{way:36}{seconds * 1e3:10.2f}{gathered / seconds:12.0f}{seconds / _rival(way, rows):11.3f}x")
    print("\nof memmap: the time over that of the faster mapping, with or without MADV_RANDOM")
    if chosen.plot:
        _plot({name: turns for name, (_, turns) in results.items()}, chosen.plot)
    return 0


def _rival(way: str, rows: dict[str, float]) -> float:
    """The seconds of the fastest mapping that gathers in the same form."""
    form = "[ids]" if "[ids]" in way else "out="
    return min(seconds for other, seconds in rows.items() if "memmap" in other and form in other)


def _affordable(path: str, mapped: NDArray[Any], chosen: argparse.Namespace) -> int:
    """How many rows a cold gather may have. With little memory the kernel reads many pages for each row of a mapping."""
    ids = np.random.default_rng(3).integers(0, len(mapped), min(_TRIED_ROWS, chosen.rows))
    _forget(path, mapped)
    begun = time.perf_counter()
    _ = mapped[ids]
    seconds = (time.perf_counter() - begun) / len(ids)
    most: int = chosen.rows
    return max(len(ids), min(most, int(chosen.seconds / _LEAST_COLD_GATHERS / max(seconds, 1e-9))))


def _turns(
    path: str,
    mapped: NDArray[Any],
    rows: RowArray,
    count: int,
    gathered: int,
    chosen: argparse.Namespace,
    clock: _Clock,
    *,
    forget: bool,
) -> dict[str, float]:
    """The median seconds of each way."""
    advised: Any = np.load(path, mmap_mode="r")
    advised._mmap.madvise(mmap.MADV_RANDOM)
    ways: list[Way] = [
        ("memmap[ids]", lambda ids, _: mapped[ids]),
        ("memmap[ids], MADV_RANDOM", lambda ids, _: advised[ids]),
        ("iomill x[ids]", lambda ids, _: rows[ids]),
        ("take(memmap, ids, out=)", lambda ids, out: np.take(mapped, ids, axis=0, out=out)),
        ("take(memmap, out=), MADV_RANDOM", lambda ids, out: np.take(advised, ids, axis=0, out=out)),
        ("iomill x.take(ids, out=)", lambda ids, out: rows.take(ids, out=out)),
    ]
    rng = np.random.default_rng(2)
    times: dict[str, list[float]] = {name: [] for name, _ in ways}
    out = np.empty((gathered, *mapped.shape[1:]), mapped.dtype)
    for turn in range(chosen.rounds):
        # Half of the time is for the warm ones. One turn there is always.
        if turn > 0 and clock.is_over(0.5 if forget else 1):
            break
        clock.show(f"{'cold' if forget else 'warm'} turn {turn + 1} of {chosen.rounds}")
        ids = rng.integers(0, count, gathered)
        expected = None
        for name, gather in ways:
            if forget:
                _forget(path, mapped, advised)
            begun = time.perf_counter()
            taken = gather(ids, out)
            times[name].append(time.perf_counter() - begun)
            # Not another time by the mapping, which would read it all again.
            expected = np.array(taken) if expected is None else expected
            if not np.array_equal(taken, expected):
                raise RuntimeError(f"{name} gave other bytes")
    return {name: statistics.median(all_times) for name, all_times in times.items()}


def _forget(path: str, *mapped: Any) -> None:
    """Asks the kernel to drop the file's pages. Pages that are mapped would stay, so the mapping gives them up first."""
    for one in mapped:
        one._mmap.madvise(mmap.MADV_DONTNEED)
    file = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _plot(results: dict[str, dict[str, float]], path: str) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit("--plot takes the package matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, (name, rows) in zip(figure.subplots(1, len(results)), results.items()):
        colours = ["#c44" if "iomill" in way else "#888" for way in rows]
        axes.barh(list(rows), [seconds * 1e3 for seconds in rows.values()], color=colours)
        axes.invert_yaxis()
        axes.set(title=name, xlabel="ms a gather")
    figure.savefig(path)
    print(f"\ndrawn: {path}")
