"""numpy's own tests of `numpy.memmap`, unchanged, over rows in a plain file.

Those are left out that want an ndarray: views, fields of its own as `filename`, and functions of numpy over all rows,
which a `RowArray` refuses.
"""

import os

import numpy as np
import pytest

import iomill

theirs = pytest.importorskip("numpy._core.tests.test_memmap")

OF_NDARRAYS = [
    "test_roundtrip", "test_unnamed_file", "test_filename", "test_path", "test_arithmetic_drops_references",
    "test_slicing_keeps_references", "test_view", "test_ufunc_return_ndarray", "test_getitem", "test_memmap_subclass",
    "test_empty_array",
]  # fmt: skip


class Rows:
    """A replacement of `numpy.memmap`: rows, in a new file for the mode ``w+``."""

    def __init__(self, file, dtype=np.uint8, mode="r+", offset=0, shape=None):
        self.filename = getattr(file, "name", file)
        self.offset, self.mode = offset, mode
        if hasattr(file, "flush"):
            file.flush()
        if mode == "w+":
            lengths = np.atleast_1d(np.asarray(shape))
            with open(self.filename, "ab") as made:
                made.truncate(offset + int(np.prod(lengths)) * np.dtype(dtype).itemsize)
        how = {"shape": shape, "offset": offset, "mode": "r+" if mode == "w+" else mode}
        self._rows = iomill.open(os.fspath(self.filename), dtype=dtype, **how)

    def __getattr__(self, name):
        return getattr(self._rows, name)

    def __getitem__(self, key):
        return self._rows[key]

    def __setitem__(self, key, value):
        self._rows[key] = value

    def __del__(self):
        if hasattr(self, "_rows"):
            self._rows.close()


@pytest.fixture(autouse=True)
def by_iomill(monkeypatch):
    monkeypatch.setattr(theirs, "memmap", Rows)


class TestRows(theirs.TestMemmap):
    pass


for name in OF_NDARRAYS:
    assert hasattr(theirs.TestMemmap, name), f"numpy has renamed {name}"
    setattr(TestRows, name, None)
