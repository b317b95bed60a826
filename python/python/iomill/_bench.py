"""``python -m iomill bench``: gathers of the same rows by iomill and by ``numpy.memmap``, in turns.

A mapping is measured with and without the advice MADV_RANDOM. Without it the kernel reads many pages for each row that
is not in memory. Ratios are to the faster of both.

The file is made for the run, or given. Cold, the kernel is asked to drop the file's pages before each turn, and iomill
has no cache. Warm, the first rows of the file are in memory, and iomill's cache has room for them. They have up to
``--mib``, or less if the process has little memory. The figures are medians. A run ends after about ``--seconds``, with
the turns so far.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import pathlib
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

# The rows of a cold gather, and the gathers that a mapping must make in the time of a run.
_TRIED_ROWS = 64
_LEAST_COLD_GATHERS = 20

# A run takes no less memory than this has room for.
_LEAST_BYTES = 1 << 20

Way = tuple[str, Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", help="a file of numpy; by default one is made")
    parser.add_argument("--dir", default=".", help="where the file is made (default: here)")
    parser.add_argument(
        "--mib", type=_count, default=256, help="its size in MiB, and that of the warm rows (default: 256)"
    )
    parser.add_argument("--seconds", type=float, default=60, help="end after this time (default: 60)")
    parser.add_argument("--row-bytes", type=_count, default=512, help="the length of its rows (default: 512)")
    parser.add_argument("--rows", type=_count, default=4096, help="rows of one gather (default: 4096)")
    parser.add_argument("--rounds", type=_count, default=15, help="gathers of each way (default: 15)")
    parser.add_argument("--plot", metavar="FILE", help="draw the medians; takes matplotlib")


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count} is less than 1")
    return count


def run(chosen: argparse.Namespace) -> int:
    if chosen.plot:
        # Before the measurement.
        _figure()
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


# The files of a cgroup with its limit and its use, and the start of the keys of its pages of files: version 2 and 1.
_V2 = ("/sys/fs/cgroup", "memory.max", "memory.current", "")
_V1 = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


def _memory_bytes() -> int:
    """The memory that this process may still use, by the machine and by its cgroups."""
    with open("/proc/meminfo") as told:
        lines = dict(line.split(":") for line in told)
    least = int(lines["MemAvailable"].split()[0]) << 10
    with open("/proc/self/cgroup") as told:
        groups = [line.rstrip("\n").split(":", 2) for line in told]
    for _, kinds, group in groups:
        if kinds and "memory" not in kinds.split(","):
            continue
        # Where a container does not show its groups, the last directory is that of the container.
        for depth in range(group.rstrip("/").count("/") + 1):
            with contextlib.suppress(OSError):
                least = min(least, _left_in(group.rstrip("/").rsplit("/", depth)[0], *(_V1 if kinds else _V2)))
    return max(least, _LEAST_BYTES)


def _left_in(group: str, root: str, limit: str, used: str, start: str) -> int:
    """The memory that a cgroup has left. Pages of files do not count as used, because the kernel drops them."""
    most = pathlib.Path(f"{root}{group}/{limit}").read_text().strip()
    if most == "max":
        return sys.maxsize
    amounts = dict(line.split() for line in pathlib.Path(f"{root}{group}/memory.stat").read_text().splitlines())
    pages = sum(int(amounts.get(f"{start}{kind}_file", 0)) for kind in ("active", "inactive"))
    return int(most) - int(pathlib.Path(f"{root}{group}/{used}").read_text()) + pages


class _Clock:
    """The end of a run, and its progress."""

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
    if mapped.ndim == 0 or len(mapped) == 0:
        raise ValueError(f"{path} has no rows")
    row_bytes = max(1, mapped[:1].nbytes)
    # The results of two gathers and their comparison also need memory.
    chosen.rows = max(1, min(chosen.rows, _memory_bytes() // 16 // row_bytes))
    cold = open_rows(path, runtime=Runtime(cache_bytes=0))
    print(f"rows of {mapped[:1].nbytes} bytes, {len(mapped)} in the file, medians of up to {chosen.rounds} turns")
    few = _affordable(path, mapped, chosen)
    results = {f"cold, {few} rows": (few, _turns(path, mapped, cold, len(mapped), few, chosen, clock, forget=True))}
    # Both iomill and the kernel have them in memory.
    warm_bytes = min(int(mapped.nbytes), chosen.mib << 20, _memory_bytes() // 4)
    warm_rows = max(1, min(len(mapped), warm_bytes // row_bytes))
    # The sets of the cache are not equally full, so it needs a little more memory than the data.
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
    """The time of the fastest mapping that gathers in the same form, in seconds."""
    form = "[ids]" if "[ids]" in way else "out="
    return min(seconds for other, seconds in rows.items() if "memmap" in other and form in other)


def _affordable(path: str, mapped: NDArray[Any], chosen: argparse.Namespace) -> int:
    """The number of rows of a cold gather. With little memory the kernel reads many pages for each row of a mapping."""
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
    """The median time of each way, in seconds."""
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
        # Half of the time is for the warm turns. There is always one turn.
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
            # The mapping is not read again for the comparison, because that would read all pages again.
            expected = np.array(taken) if expected is None else expected
            if not np.array_equal(taken, expected):
                raise RuntimeError(f"{name} gave other bytes")
    return {name: statistics.median(all_times) for name, all_times in times.items()}


def _forget(path: str, *mapped: Any) -> None:
    """Asks the kernel to drop the file's pages. Mapped pages would stay, so the mapping releases them first."""
    for one in mapped:
        one._mmap.madvise(mmap.MADV_DONTNEED)
    file = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit("--plot takes the package matplotlib: pip install matplotlib") from None
    return Figure(figsize=(9, 3.2), layout="constrained")


def _plot(results: dict[str, dict[str, float]], path: str) -> None:
    figure = _figure()
    for axes, (name, rows) in zip(figure.subplots(1, len(results)), results.items()):
        colours = ["#c44" if "iomill" in way else "#888" for way in rows]
        axes.barh(list(rows), [seconds * 1e3 for seconds in rows.values()], color=colours)
        axes.invert_yaxis()
        axes.set(title=name, xlabel="ms a gather")
    figure.savefig(path)
    print(f"\ndrawn: {path}")
