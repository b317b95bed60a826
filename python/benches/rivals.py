"""Rows by iomill and by its rivals, each in a process of its own with the same memory: `python benches/rivals.py`, as
root.

Each contender is a process in a memory cgroup of the same limit, the page cache included. Contenders take turns. In a
turn each gathers rows of the same numbers, and the digests of what they gathered must be equal. Rows are made for the
run.

Loads: cold rows at random of data 8 times the memory. Before each turn the kernel forgets the file, and iomill's cache
is a new one. zipf rows by zipf 0.99, at random places of data 10 times the memory. Nothing is forgotten. The first half
of the turns does not count. warm rows at random of data that fits into memory. All of it is read before. zarr as cold,
for chunks of a Zarr array with shards.

Contenders: `memmap` (x[ids]), `memmap-random` (the same after MADV_RANDOM), `memmap-take` (np.take with out), `iomill`
(x[ids]), `iomill-take` (take with out), `row-cache` (a cache of rows over direct reads, as GraphBolt's feature store
has it: rows in one array, a clock over them, all of it by numpy), `lance` (pylance's take of a dataset by file+uring).
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zlib

import numpy as np

CGROUPS = pathlib.Path("/sys/fs/cgroup")
# The memory of Python, numpy and the engines, beside a cache.
BESIDE_MIB = 96


class Memmap:
    def __init__(self, path, chosen):
        self.path, self.rows = path, np.load(path, mmap_mode="r")

    def take(self, ids, out):
        return self.rows[ids]

    def forget(self):
        self.rows._mmap.madvise(mmap.MADV_DONTNEED)
        forget(self.path)

    def warm(self):
        for start in range(0, len(self.rows), 65536):
            self.rows[start : start + 65536].sum()

    def lacking(self):
        return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


class MemmapRandom(Memmap):
    def __init__(self, path, chosen):
        super().__init__(path, chosen)
        self.rows._mmap.madvise(mmap.MADV_RANDOM)


class MemmapTake(Memmap):
    def take(self, ids, out):
        return np.take(self.rows, ids, axis=0, out=out)


class Iomill:
    def __init__(self, path, chosen):
        self.path, self.cache_bytes = path, max(1, chosen.memory_mib - BESIDE_MIB) << 20
        if chosen.load == "warm":
            self.cache_bytes = int(chosen.data_mib * chosen.cache) << 20
        self.forget()

    def take(self, ids, out):
        return self.rows[ids]

    def forget(self):
        import iomill

        # Two caches do not fit into the memory.
        self.rows = self.runtime = None
        self.runtime = iomill.Runtime(cache_bytes=self.cache_bytes)
        self.rows = iomill.open(self.path, runtime=self.runtime)

    def warm(self):
        for start in range(0, len(self.rows), 65536):
            self.rows[np.arange(start, min(start + 65536, len(self.rows)))]

    def lacking(self):
        return self.runtime.misses


class IomillTake(Iomill):
    def take(self, ids, out):
        return self.rows.take(ids, out=out)


class RowCache(Iomill):
    """A cache of rows in one array, with a slot for each cached row, and one bit of use for the clock."""

    def __init__(self, path, chosen):
        super().__init__(path, chosen)
        import iomill

        self.runtime = iomill.Runtime(cache_bytes=0)
        self.rows = iomill.open(path, runtime=self.runtime)
        row_bytes = chosen.row_bytes
        # A row costs its bytes, its place in `row_of` and its bit; each row of the data a place in `slot_of`.
        slots = max(4 * chosen.rows, (self.cache_bytes - 4 * len(self.rows)) // (row_bytes + 9))
        self.kept = np.empty((slots, row_bytes), np.uint8)
        self.slot_of, self.row_of = np.full(len(self.rows), -1, np.int32), np.full(slots, -1, np.int64)
        self.used, self.hand, self.missed = np.zeros(slots, bool), 0, 0

    def take(self, ids, out):
        slots = self.slot_of[ids]
        here = slots >= 0
        self.used[slots[here]] = True
        lacking = np.unique(ids[~here])
        read = self.rows[lacking]
        self.missed += len(lacking)
        np.take(self.kept, slots, axis=0, out=out, mode="clip")
        out[~here] = read[np.searchsorted(lacking, ids[~here])]
        self.keep(lacking, read)
        return out

    def keep(self, ids, rows):
        """Takes the first slots from the clock's hand on without a set bit, and clears the bits on the way."""
        found = []
        wanted = len(ids)
        while wanted:
            window = np.arange(self.hand, min(self.hand + max(64, 2 * wanted), len(self.used)))
            free = window[~self.used[window]][:wanted]
            passed = window if len(free) < wanted else window[window <= free[-1]]
            self.used[passed] = False
            self.hand = (int(passed[-1]) + 1) % len(self.used)
            found.append(free)
            wanted -= len(free)
        if found:
            slots = np.concatenate(found)
            gone = self.row_of[slots]
            self.slot_of[gone[gone >= 0]] = -1
            # The hand may have passed the end.
            slots, first = np.unique(slots, return_index=True)
            self.row_of[slots], self.slot_of[ids[first]], self.kept[slots] = ids[first], slots, rows[first]

    def lacking(self):
        return self.missed


class Lance:
    def __init__(self, path, chosen):
        import lance

        self.path = path
        self.rows = lance.dataset(f"file+uring://{os.path.abspath(path)}.lance")

    def take(self, ids, out):
        column = self.rows.take(ids).column(0).combine_chunks()
        return np.asarray(column.flatten()).reshape(len(ids), -1)

    def forget(self):
        for part in pathlib.Path(f"{self.path}.lance").rglob("*"):
            if part.is_file():
                forget(part)

    def warm(self):
        for batch in self.rows.to_batches():
            del batch

    def lacking(self):
        """It has no counter."""
        return 0


class ZarrLocal:
    """Chunks of one row, in shards of 1,024, by Zarr's own store."""

    def __init__(self, path, chosen):
        import zarr

        self.path = f"{path}.zarr"
        self.rows = zarr.open_array(self.store(), mode="r")

    def store(self):
        from zarr.storage import LocalStore

        return LocalStore(self.path, read_only=True)

    def take(self, ids, out):
        return self.rows.oindex[ids]

    def forget(self):
        for part in pathlib.Path(self.path).rglob("*"):
            if part.is_file():
                forget(part)

    def lacking(self):
        """It has no counter."""
        return 0


class ZarrIomill(ZarrLocal):
    """The same by `iomill.zarr`. Its cache is so small that it cannot serve cold reads."""

    def store(self):
        import iomill
        import iomill.zarr

        iomill.configure(cache_bytes=8 << 20)
        return iomill.zarr.IomillStore(self.path, read_only=True)


CONTENDERS = {
    "memmap": Memmap,
    "memmap-random": MemmapRandom,
    "memmap-take": MemmapTake,
    "iomill": Iomill,
    "iomill-take": IomillTake,
    "row-cache": RowCache,
    "lance": Lance,
    "zarr-local": ZarrLocal,
    "zarr-iomill": ZarrIomill,
}
LOADS = {
    "cold": ["memmap", "memmap-random", "iomill", "iomill-take", "lance"],
    "zipf": ["memmap-random", "iomill", "iomill-take", "row-cache"],
    "warm": ["memmap", "memmap-take", "iomill", "iomill-take"],
    "zarr": ["zarr-local", "zarr-iomill"],
}


def forget(path):
    file = os.open(path, os.O_RDONLY)
    os.fdatasync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


class Popular:
    """Zipf 0.99 by inversion of its continuous form, at places that a permutation of the rows scatters."""

    def __init__(self, count):
        self.count = count
        step = int(count * 0.6180339887) | 1
        while np.gcd(step, count) != 1:
            step += 2
        self.step = step

    def __call__(self, rng, wanted):
        exponent = 1 - 0.99
        ranks = ((self.count**exponent - 1) * rng.random(wanted) + 1) ** (1 / exponent)
        return (np.minimum(ranks.astype(np.int64), self.count) - 1) * self.step % self.count


def bytes_read():
    """The bytes that this process has read from drives."""
    for line in pathlib.Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise SystemExit("the kernel does not count this process's I/O")


def turn(chosen):
    """A contender: reads the seeds of turns, and writes the measurements."""
    contender = CONTENDERS[chosen.contender](chosen.path, chosen)
    count = chosen.data_mib * (1 << 20) // chosen.row_bytes
    out = np.empty((chosen.rows, chosen.row_bytes), np.uint8)
    popular = Popular(count)
    if chosen.load == "warm":
        contender.warm()
    print("ready", flush=True)
    for line in sys.stdin:
        rng = np.random.default_rng(int(line))
        if chosen.load in ("cold", "zarr"):
            contender.forget()
        times, cpu, digest, before, read = [], 0.0, 0, contender.lacking(), bytes_read()
        for _ in range(chosen.gathers):
            ids = popular(rng, chosen.rows) if chosen.load == "zipf" else rng.integers(0, count, chosen.rows)
            used, begun = time.process_time(), time.perf_counter()
            taken = contender.take(ids, out)
            times.append(time.perf_counter() - begun)
            cpu += time.process_time() - used
            digest = zlib.crc32(taken, digest)
        rows = chosen.gathers * chosen.rows
        said = {"seconds": sum(times), "cpu": cpu, "digest": digest}
        said |= {"lacking": (contender.lacking() - before) / rows, "read": (bytes_read() - read) / rows}
        if chosen.load in ("cold", "zarr"):
            # Pages that stay mapped would be hits of the next contender.
            contender.forget()
        print(json.dumps(said), flush=True)


def limited(name, mib):
    """A new memory cgroup, of either version, and the function that puts a process into it."""
    if (CGROUPS / "memory").is_dir():
        place, limit = CGROUPS / "memory" / f"rivals-{os.getpid()}-{name}", "memory.limit_in_bytes"
    else:
        place, limit = CGROUPS / f"rivals-{os.getpid()}-{name}", "memory.max"
    place.mkdir()
    (place / limit).write_text(str(mib << 20))
    return place


def make(path, chosen):
    count = chosen.data_mib * (1 << 20) // chosen.row_bytes
    made = np.lib.format.open_memmap(path, "w+", np.uint8, (count, chosen.row_bytes))
    rng = np.random.default_rng(1)
    for start in range(0, count, 65536):
        made[start : start + 65536] = np.frombuffer(
            rng.bytes(min(65536, count - start) * chosen.row_bytes), np.uint8
        ).reshape(-1, chosen.row_bytes)
    made.flush()
    if "lance" in chosen.contenders:
        import lance
        import pyarrow as pa

        kind = pa.list_(pa.uint8(), chosen.row_bytes)

        def batches():
            for start in range(0, count, 65536):
                rows = pa.array(np.asarray(made[start : start + 65536]).reshape(-1))
                yield pa.record_batch([pa.FixedSizeListArray.from_arrays(rows, type=kind)], names=["row"])

        schema = pa.schema([pa.field("row", kind)])
        lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), f"{path}.lance", mode="overwrite")
    if chosen.load == "zarr":
        import zarr

        shape = {"shape": made.shape, "chunks": (1, chosen.row_bytes), "shards": (1024, chosen.row_bytes)}
        stored = zarr.create_array(f"{path}.zarr", **shape, dtype="u1", compressors=None)
        for start in range(0, count, 1024):
            stored[start : start + 1024] = made[start : start + 1024]
    # The kernel drops no page that is mapped.
    made._mmap.close()
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def measure(path, chosen):
    groups = {name: limited(name, chosen.memory_mib) for name in chosen.contenders}
    processes, results = {}, {name: [] for name in chosen.contenders}
    try:
        for name, group in groups.items():
            arguments = [f"--{key.replace('_', '-')}={getattr(chosen, key)}" for key in SENT]
            processes[name] = subprocess.Popen(
                [sys.executable, __file__, f"--contender={name}", f"--path={path}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=lambda group=group: (group / "cgroup.procs").write_text(str(os.getpid())) and None,
            )
            if processes[name].stdout.readline().strip() != "ready":
                raise SystemExit(f"{name} did not start")
        for seed in range(chosen.turns):
            for name, process in processes.items():
                process.stdin.write(f"{seed}\n")
                process.stdin.flush()
                said = process.stdout.readline()
                if not said:
                    raise SystemExit(f"{name} ended in turn {seed}")
                results[name].append(json.loads(said))
            if len({result[seed]["digest"] for result in results.values()}) != 1:
                raise SystemExit(f"contenders gave different bytes in turn {seed}")
    finally:
        for process in processes.values():
            process.stdin.close()
            process.wait()
        for group in groups.values():
            group.rmdir()
    return results


def tell(results, chosen):
    counted = {name: rows[len(rows) // 2 :] if chosen.load == "zipf" else rows for name, rows in results.items()}
    of_turn = chosen.gathers * chosen.rows
    print(
        f"\n{chosen.load}: {chosen.rows} rows of {chosen.row_bytes} B a gather, {chosen.data_mib} MiB of data, "
        f"{chosen.memory_mib} MiB of memory each, medians of {len(next(iter(counted.values())))} turns of {chosen.gathers}"
    )
    first = next(iter(counted))
    print(f"{'':16}{'rows/s':>12}{'CPU us/row':>12}{'lacking':>10}{'KiB read':>10}{f'time / {first}':>22}")
    for name, rows in counted.items():
        seconds = statistics.median(row["seconds"] for row in rows)
        ratio = statistics.median(
            row["seconds"] / base["seconds"] for row, base in zip(rows, counted[first], strict=True)
        )
        cpu = statistics.median(row["cpu"] for row in rows) / of_turn * 1e6
        lacking = statistics.median(row["lacking"] for row in rows)
        read = statistics.median(row["read"] for row in rows) / 1024
        print(f"{name:16}{of_turn / seconds:12.0f}{cpu:12.2f}{lacking:10.3f}{read:10.2f}{ratio:21.3f}x")
    if chosen.json:
        print(json.dumps({"load": chosen.load, "results": results}))


SENT = ["load", "rows", "row_bytes", "gathers", "data_mib", "memory_mib", "cache"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", nargs="?", choices=list(LOADS))
    parser.add_argument("--load", dest="load_", choices=list(LOADS), help=argparse.SUPPRESS)
    parser.add_argument("--contenders", type=lambda said: said.split(","), help="names with commas between them")
    parser.add_argument("--dir", default=".", help="where the data is made (default: here)")
    parser.add_argument("--memory-mib", type=int, default=512, help="memory of each contender (default: 512)")
    parser.add_argument("--data-mib", type=int, help="the data (default: 8, 10 or half times the memory)")
    parser.add_argument("--cache", type=float, default=1.25, help="iomill's cache in the load warm, times the data")
    parser.add_argument("--row-bytes", type=int, default=512)
    parser.add_argument("--rows", type=int, default=4096, help="rows of a gather (default: 4096)")
    parser.add_argument("--gathers", type=int, default=4, help="gathers of a turn (default: 4)")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.load = chosen.load or chosen.load_ or "cold"
    if chosen.contender:
        return turn(chosen)
    if chosen.load == "warm":
        # Each contender must have room for all of the data, in its own way.
        chosen.data_mib = chosen.data_mib or 512
        chosen.memory_mib = int(chosen.data_mib * max(1.25, chosen.cache)) + 3 * BESIDE_MIB
    else:
        chosen.data_mib = chosen.data_mib or chosen.memory_mib * {"cold": 8, "zipf": 10, "zarr": 1}[chosen.load]
    chosen.contenders = chosen.contenders or LOADS[chosen.load]
    with tempfile.TemporaryDirectory(dir=chosen.dir) as place:
        path = os.path.join(place, "rows.npy")
        make(path, chosen)
        tell(measure(path, chosen), chosen)


if __name__ == "__main__":
    main()
