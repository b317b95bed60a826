"""Random minibatches of a Zarr: chunks of one sample in shards of many, read through iomill's cache and engines."""

import tempfile
import time

import numpy as np
import zarr
from zarr.storage import LocalStore

from iomill.zarr import IomillStore

SAMPLES, LENGTH, BATCH = 4000, 256, 32

with tempfile.TemporaryDirectory(dir=".") as place:
    values = np.random.default_rng(1).random((SAMPLES, LENGTH), "f4")
    made = zarr.create_array(
        IomillStore(f"{place}/samples.zarr"),
        shape=values.shape,
        chunks=(1, LENGTH),
        shards=(1000, LENGTH),
        dtype="f4",
        compressors=None,
    )
    made[:] = values
    for store in (LocalStore, IomillStore):
        samples = zarr.open_array(store(f"{place}/samples.zarr", read_only=True), mode="r")
        rng = np.random.default_rng(2)
        begun = time.perf_counter()
        for _ in range(10):
            ids = np.sort(rng.choice(SAMPLES, BATCH, replace=False))
            batch = samples.oindex[ids]
            assert np.array_equal(batch, values[ids])
        seconds = time.perf_counter() - begun
        print(f"{store.__name__:12} {10 * BATCH / seconds:8.0f} samples/s")
