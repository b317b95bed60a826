"""Shuffled epochs over rows through a small cache: `python benches/epochs.py`.

For each size of the cache the program prints, in percent, how often pages that rows ask for are in the cache: by
`RowLoader` where it knows the order, by `RowLoader` with batches of a sampler, which it does not know ahead, and by the
optimum (Belady) of the same order. Beside them stand rows a second and CPU time per row, as ratios of the first to the
second. The file is read by direct I/O. The first two epochs do not count.
"""

from __future__ import annotations

import argparse
import heapq
import os
import resource
import tempfile
import time

import numpy as np

import iomill
from iomill.torch import RowLoader

PAGE_BYTES = 4096
SEED = 5


class Sampler:
    """Batches in the same orders as a loader with the seed has."""

    def __init__(self, rows, batch):
        self.rng, self.rows, self.batch = np.random.default_rng(SEED), rows, batch

    def __iter__(self):
        order = self.rng.permutation(self.rows)
        yield from (order[start : start + self.batch] for start in range(0, self.rows, self.batch))


def measure(path, share, epochs, loader_of):
    """Misses, rows a second and CPU seconds of the epochs after the first two."""
    runtime = iomill.Runtime(cache_bytes=int(os.path.getsize(path) * share))
    x = iomill.open(path, runtime=runtime)
    loader = loader_of(x)
    for epoch in range(epochs):
        if epoch == 2:
            misses, began, used = runtime.misses, time.perf_counter(), cpu_seconds()
        for _ in loader:
            pass
    seconds = time.perf_counter() - began
    return runtime.misses - misses, len(x) * (epochs - 2) / seconds, cpu_seconds() - used, runtime.cache_bytes


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def touches(rows, row_bytes, start, epochs):
    """The pages of the rows, in their order, by epochs. There is one epoch more than are measured, because the loader
    knows that one, too."""
    rng = np.random.default_rng(SEED)
    for _ in range(epochs + 1):
        first = rng.permutation(rows) * row_bytes + start
        yield [
            page for at in first.tolist() for page in range(at // PAGE_BYTES, (at + row_bytes - 1) // PAGE_BYTES + 1)
        ]


def fewest_misses(order, pages, counted):
    """Misses at the positions `counted` of a cache that evicts, or does not cache, the page with the latest next
    use."""
    again, seen = [0] * len(order), {}
    for place in range(len(order) - 1, -1, -1):
        again[place] = seen.get(order[place], len(order) + place)
        seen[order[place]] = place
    held, latest, misses = {}, [], 0
    for place, page in enumerate(order):
        misses += page not in held and place in counted
        held[page] = again[place]
        heapq.heappush(latest, (-again[place], page))
        while len(held) > pages:
            when, out = heapq.heappop(latest)
            if held.get(out) == -when:
                del held[out]
    return misses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--row-bytes", type=int, default=512)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--shares", default="0.1,0.25,0.5,0.75,0.9")
    said = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as place:
        path = f"{place}/rows.npy"
        made = np.lib.format.open_memmap(path, "w+", "u1", (said.rows, said.row_bytes))
        made[:] = np.arange(said.rows)[:, None] % 251
        made.flush()
        of_epochs = list(touches(said.rows, said.row_bytes, made.offset, said.epochs))
        del made
        order = [page for pages in of_epochs for page in pages]
        first, last = sum(map(len, of_epochs[:2])), sum(map(len, of_epochs[: said.epochs]))
        print(f"rows of {said.row_bytes} B: {said.rows}, batches of {said.batch}")
        print("cache     known unknown optimum    rows/s     CPU")
        for share in map(float, said.shares.split(",")):
            known, rate, cpu, cache_bytes = measure(
                path, share, said.epochs,
                lambda x: RowLoader(x, batch_size=said.batch, shuffle=True, seed=SEED, ahead=1),
            )  # fmt: skip
            unknown, other_rate, other_cpu, _ = measure(
                path, share, said.epochs,
                lambda x: RowLoader(x, batch_size=None, ids=Sampler(said.rows, said.batch), ahead=1),
            )  # fmt: skip
            optimum = fewest_misses(order, cache_bytes // PAGE_BYTES, range(first, last))
            hits = [100 * (1 - misses / (last - first)) for misses in (known, unknown, optimum)]
            print(
                f"{share:5.0%} {hits[0]:9.1f} {hits[1]:7.1f} {hits[2]:7.1f} {rate / other_rate:8.2f}x {cpu / other_cpu:6.2f}x",
                flush=True,
            )


if __name__ == "__main__":
    main()
