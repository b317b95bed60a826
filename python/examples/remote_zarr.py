"""Random minibatches of a remote Zarr: chunks that were read before are read from local drives.

A directory stands for the store here. With `s3://bucket/samples` and drives of yours nothing else changes.
"""

import pathlib
import tempfile
import time

import numpy as np
import zarr

import iomill
from iomill.zarr import RemoteStore

SAMPLES, LENGTH, BATCH, BATCHES = 4000, 256, 32, 20

with tempfile.TemporaryDirectory(dir=".") as place:
    here = pathlib.Path(place).absolute()
    (here / "bucket").mkdir()
    (here / "ssd0").mkdir()
    cache = iomill.Cache(here / "ssd0", bytes=64 << 20, revalidate="never", on_root=True, index_dir=here)
    store = RemoteStore(iomill.cached((here / "bucket").as_uri(), cache))
    values = np.random.default_rng(1).random((SAMPLES, LENGTH), "f4")
    made = zarr.create_array(
        store, shape=values.shape, chunks=(1, LENGTH), shards=(1000, LENGTH), dtype="f4", compressors=None
    )
    made[:] = values
    samples = zarr.open_array(store, mode="r")
    for epoch in range(2):
        rng = np.random.default_rng(2)
        begun, before = time.perf_counter(), cache.counters()["gets"]
        for _ in range(BATCHES):
            ids = np.sort(rng.choice(SAMPLES, BATCH, replace=False))
            assert np.array_equal(samples.oindex[ids], values[ids])
        seconds = time.perf_counter() - begun
        cache.wait_until_written()
        gets = cache.counters()["gets"] - before
        print(f"epoch {epoch}: {BATCHES * BATCH / seconds:8.0f} samples/s, {gets} GETs")
