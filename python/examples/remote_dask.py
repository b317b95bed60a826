"""Sums of blocks of a remote file on two workers of Dask, which share one cache on local drives.

A directory stands for the store here. With `s3://bucket/features.npy` and drives of yours nothing else changes.
"""

import pathlib
import tempfile

import numpy as np
from dask.distributed import Client

import iomill

ROWS, WIDTH, BLOCK = 20_000, 64, 1000


def total(rows, start):
    # The rows are pickled without their bytes. The worker opens the object and the drives.
    return rows[start : start + BLOCK].sum(axis=0, dtype="i8")


def main():
    with tempfile.TemporaryDirectory(dir=".") as place:
        here = pathlib.Path(place).absolute()
        values = np.random.default_rng(1).integers(0, 1000, (ROWS, WIDTH), dtype="i4")
        np.save(here / "features.npy", values)
        (here / "ssd0").mkdir()
        cache = iomill.Cache(here / "ssd0", bytes=64 << 20, revalidate="never", on_root=True, index_dir=here)
        rows = iomill.open((here / "features.npy").as_uri(), cache=cache)
        with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
            for epoch in range(2):
                sums = client.gather([client.submit(total, rows, start, pure=False) for start in range(0, ROWS, BLOCK)])
                assert np.array_equal(np.sum(sums, axis=0), values.sum(axis=0, dtype="i8"))
                print(f"epoch {epoch}: right")


if __name__ == "__main__":
    main()
