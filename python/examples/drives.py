"""A table of features on a set of local drives: made once, written batch by batch, gathered by row number.

In practice each directory is the mount point of an SSD. Here two directories stand for two drives.
"""

import os
import tempfile

import numpy as np

import iomill

ROWS, WIDTH, BATCH = 50_000, 32, 4096


def features_of(ids):
    """The features of some things: in practice the output of a model."""
    return np.sin(np.outer(ids + 1, np.arange(1, WIDTH + 1))).astype("f4")


with tempfile.TemporaryDirectory(dir=".") as place:
    dirs = [f"{place}/ssd0", f"{place}/ssd1"]
    for directory in dirs:
        os.mkdir(directory)

    # The first run makes the set, and later runs open it.
    with iomill.Drives.create(dirs, exist_ok=True) as drives:
        # The number of rows need not be known. With checksums no read returns wrong bytes.
        with drives.row_writer("train/features", "f4", WIDTH, checksums=True) as writer:
            for start in range(0, ROWS, BATCH):
                writer.append(features_of(np.arange(start, min(start + BATCH, ROWS))))
        # The file has its name from here on. After an exception it would not exist.
        print(f"{len(drives)} file, {drives.stat('train/features').size / 1e6:.1f} MB on {len(dirs)} drives")

    # Any drive of the set, or all of them, name it.
    x = iomill.open(dirs, "train/features")
    ids = np.random.default_rng(1).integers(0, ROWS, 10_000)
    assert np.array_equal(x[ids], features_of(ids))
    print(f"{x!r}: {len(ids)} rows gathered")

    # Rows of a file can be written again. They are durable at the end of the `with`.
    with iomill.open(dirs, "train/features", mode="r+") as writable:
        writable[[7, 49_999]] = 0
    assert not x[[7, 49_999]].any()

    # A label for each row, filled in any order: the file has its shape from the start.
    with iomill.create(dirs, "train/labels", shape=ROWS, dtype="i1") as labels:
        labels[ids] = 1
    assert iomill.open(dirs, "train/labels")[ids].all()
