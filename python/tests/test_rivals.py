"""The comparison with rivals runs, and finds the same bytes everywhere."""

import os
import pathlib
import subprocess
import sys

import pytest

RIVALS = pathlib.Path(__file__).parents[1] / "benches" / "rivals.py"


def may_limit():
    memory = pathlib.Path("/sys/fs/cgroup/memory")
    return os.access(memory if memory.is_dir() else memory.parent, os.W_OK) and os.access(
        "/proc/sys/vm/drop_caches", os.W_OK
    )


@pytest.mark.skipif(not may_limit(), reason="processes cannot be put into memory cgroups here: that takes root")
@pytest.mark.parametrize(
    "load, contenders",
    [("cold", "memmap-random,iomill-take"), ("zipf", "iomill,row-cache"), ("warm", "memmap-take,iomill")],
)
def test_a_load(load, contenders):
    small = ["--data-mib=16", "--turns=2", "--gathers=2", "--rows=256", "--memory-mib=256"]
    command = [sys.executable, RIVALS, load, f"--contenders={contenders}", *small]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    told = {line.split()[0]: line.split() for line in ran.stdout.splitlines() if line.split()[:1]}
    for name in contenders.split(","):
        assert float(told[name][1]) > 0
        lacking = float(told[name][3])
        # Warm, nothing is read from a drive; cold, each row is.
        assert lacking == 0 if load == "warm" else lacking > 0.5 or load == "zipf", ran.stdout
