"""The command ``python -m iomill``, and the examples."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import iomill
from iomill import _bench
from iomill.__main__ import main

EXAMPLES = sorted((pathlib.Path(__file__).parents[1] / "examples").glob("*.py"))


def test_bench(capsys):
    assert main(["bench", "--mib", "2", "--rows", "64", "--rounds", "2"]) == 0
    said = capsys.readouterr().out
    assert "cold" in said and "warm" in said and said.count("iomill x.take(ids, out=)") == 2
    assert said.count("MADV_RANDOM ") == 4 and "the faster mapping" in said
    np.save("x.npy", np.zeros((1000, 3)))
    assert main(["bench", "x.npy", "--rows", "10", "--rounds", "1"]) == 0


def test_bench_compares_with_the_faster_mapping():
    rows = {"memmap[ids]": 8.0, "memmap[ids], MADV_RANDOM": 2.0, "iomill x[ids]": 1.0}
    takes = {"take(memmap, ids, out=)": 3.0, "take(memmap, out=), MADV_RANDOM": 6.0, "iomill x.take(ids, out=)": 1.5}
    assert [_bench._rival(way, rows | takes) for way in (*rows, *takes)] == [2.0] * 3 + [3.0] * 3


def test_bench_ends_in_time_and_keeps_to_the_memory_that_there_is(monkeypatch, capsys):
    np.save("x.npy", np.zeros((100_000, 128)))
    caches, made = [], iomill.Runtime.__init__

    def runtime(self, cache_bytes=None, **options):
        caches.append(cache_bytes)
        made(self, cache_bytes, **options)

    monkeypatch.setattr(iomill.Runtime, "__init__", runtime)
    monkeypatch.setattr(_bench, "_memory_bytes", lambda: 64 << 20)
    assert main(["bench", "x.npy", "--rounds", "1000000", "--seconds", "0.5"]) == 0
    # A quarter of the memory, and the room that sets of the cache need.
    assert caches == [0, 20 << 20]
    assert "warm, 4096 rows of the first 16384" in capsys.readouterr().out
    monkeypatch.setattr(_bench, "_memory_bytes", lambda: 1 << 20)
    assert main(["bench", "x.npy", "--rounds", "1"]) == 0
    assert "warm, 64 rows of the first 256" in capsys.readouterr().out


def test_bench_gathers_fewer_rows_where_a_mapping_is_slow(monkeypatch, capsys):
    class Slow:
        """Each call of the clock returns a second more."""

        def __init__(self):
            self.now = 0

        def __call__(self):
            self.now += 1
            return self.now

    np.save("x.npy", np.zeros((10_000, 4)))
    monkeypatch.setattr(_bench.time, "perf_counter", Slow())
    assert main(["bench", "x.npy", "--rounds", "1", "--seconds", "60"]) == 0
    # 64 rows took a second, and a gather may take three.
    assert "cold, 192 rows" in capsys.readouterr().out


def test_bench_knows_the_memory_of_its_cgroup():
    assert 0 < _bench._memory_bytes() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("kind", [_bench._V1, _bench._V2], ids=["version 1", "version 2"])
def test_pages_of_files_are_no_used_memory(tmp_path, kind):
    """Seen to fail when they counted: at least half of the limit counted as free instead, also if it was used."""
    _, limit, used, start = kind
    group = tmp_path / "group"
    group.mkdir()
    (group / limit).write_text("134217728\n")
    (group / used).write_text("120000000\n")
    pages = f"{start}active_file 3000000\n{start}inactive_file 7000000\n"
    (group / "memory.stat").write_text(f"active_file 1\n{pages}other 5\n" if start else f"{pages}other 5\n")
    assert _bench._left_in("/group", str(tmp_path), *kind[1:]) == 134217728 - 110000000
    (group / limit).write_text("max\n")
    assert _bench._left_in("/group", str(tmp_path), *kind[1:]) == sys.maxsize


def test_wrong_calls(drives, capsys, monkeypatch):
    np.save("none.npy", np.zeros((0, 3)))
    for wrong, words in (
        (["bench", "missing.npy"], "No such file"),
        (["bench", "none.npy"], "has no rows"),
        (["put", "missing.npy", *drives], "missing.npy"),
        (["put", "none.npy", "nowhere"], "nowhere"),
        (["put", "none.npy", *drives, "--name", ""], "name"),
    ):
        assert main(wrong) == 1
        assert words in capsys.readouterr().err
    for option in ("--rows", "--row-bytes", "--rounds", "--mib"):
        with pytest.raises(SystemExit) as ended:
            main(["bench", option, "0"])
        assert ended.value.code == 2 and "less than 1" in capsys.readouterr().err
    # A package that is missing is told before the measurement.
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match="matplotlib"):
        main(["bench", "missing.npy", "--plot", "x.svg"])


def test_bench_draws():
    pytest.importorskip("matplotlib")
    assert main(["bench", "--mib", "1", "--rows", "8", "--rounds", "1", "--plot", "bench.svg"]) == 0
    assert "</svg>" in pathlib.Path("bench.svg").read_text()


def test_put(drives, capsys):
    np.save("x.npy", np.arange(10))
    assert main(["put", "x.npy", *drives, "--name", "graph/x"]) == 0
    assert capsys.readouterr().out == "graph/x\n"
    assert iomill.open(drives[1], "graph/x")[7] == 7


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples(example):
    lines = example.read_text().splitlines()
    assert len(lines) < 60
    for needed in ("dask.distributed", "torch", "usearch", "zarr"):
        if any(f"import {needed}" in line or f"from {needed}" in line for line in lines):
            pytest.importorskip(needed)
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
