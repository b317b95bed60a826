"""A script that averages random rows, before and after. One line changes:

-x = np.load("features.npy", mmap_mode="r")
+x = iomill.open("features.npy")
"""

import os
import tempfile
import time

import numpy as np

import iomill


def script(x):
    """The work of the script on its rows. It is the same for both kinds of rows."""
    rng = np.random.default_rng(7)
    total = np.zeros(x.shape[1:])
    for _ in range(20):
        ids = rng.integers(0, len(x), 2000)
        total += x[ids].mean(axis=0)
    return total / 20


with tempfile.TemporaryDirectory(dir=".") as place:
    os.chdir(place)
    made = np.lib.format.open_memmap("features.npy", "w+", "f4", (200_000, 128))
    made[:] = np.random.default_rng(1).random(made.shape, "f4")
    made.flush()
    del made

    means = []
    for name, opened in [
        ("numpy.memmap", lambda: np.load("features.npy", mmap_mode="r")),
        ("iomill", lambda: iomill.open("features.npy")),
    ]:
        # As after a reboot: the kernel drops the pages that were just written, or read by the other.
        with open("features.npy", "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begun = time.perf_counter()
        means.append(script(opened()))
        print(f"{name:14} {time.perf_counter() - begun:6.2f} s, mean {means[-1].mean():.5f}")
    assert np.array_equal(*means)
    os.chdir("..")
