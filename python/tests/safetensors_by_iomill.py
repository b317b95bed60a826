"""A plugin of pytest by which the tests of safetensors, unchanged, read files by iomill:
`pytest -p safetensors_by_iomill TESTS`.

Their source distribution has them (`bindings/python/tests`). `safetensors.safe_open` is all that the library reads a
file by, and is replaced here before anything else imports it. What writes and what reads from memory stays the
library's.
"""

import os

import numpy as np
import pytest
import safetensors

import iomill
from iomill._safetensors import tensors_of

LEFT_OUT = {
    "test_deserialization_metadata": "iomill.open has no call for the metadata of a file",
    "test_safe_open_round_trip": "it looks at the metadata, too",
    "test_numpy_slice": "indices that are wrong fail in numpy's words, as of an ndarray",
    "test_invalid_backend_string_raises": "it is about an option of the library",
    "test_deserialization_safe": "its file of torch is not in the source distribution",
}

ONE_VALUE = {"BOOL": "?", "F32": "f4"}


class Opened:
    """The result of `safe_open`."""

    def __init__(self, filename, framework, device="cpu", backend="mmap"):
        assert device in ("cpu", None) and backend in ("mmap", "pread")
        self._path, self._framework = os.fspath(filename), {"numpy": "np"}.get(framework, framework)
        try:
            self._file = iomill.File(self._path)
            self._tensors = tensors_of(self._file.read_at, len(self._file))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"No such file or directory: {self._path}") from error
        except ValueError as error:
            raise safetensors.SafetensorError(str(error)) from error

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._file.close()

    def keys(self):
        if self._file.closed:
            raise safetensors.SafetensorError("File is closed")
        return list(self._tensors)

    offset_keys = keys

    def get_tensor(self, name):
        tensor = self._tensors[name]
        if tensor.shape == ():
            # A single value has no rows. It is read as a raw file of one value.
            dtype = ONE_VALUE[tensor.dtype]
            return self._made(iomill.open(self._path, dtype=dtype, shape=1, offset=tensor.start)[:].reshape(()))
        rows = iomill.open(self._path, name)
        if self._framework == "np":
            return rows[:]
        from iomill.torch import _tensor

        return _tensor(rows, np.arange(len(rows)))

    def get_tensors(self, names=None):
        return {name: self.get_tensor(name) for name in names or self.keys()}

    def get_slice(self, name):
        return Slice(self, iomill.open(self._path, name), self._tensors[name].dtype)

    def _made(self, values):
        if self._framework == "np":
            return values
        import torch

        return torch.from_numpy(np.array(values))


class Slice:
    """The result of `get_slice`."""

    def __init__(self, opened, rows, dtype):
        self._opened, self._rows, self._dtype = opened, rows, dtype

    def get_dtype(self):
        return self._dtype

    def __getitem__(self, key):
        return self._opened._made(self._rows[key])

    def get_shape(self):
        return list(self._rows.shape)


safetensors.safe_open = Opened
safetensors._safe_open_handle = lambda file, framework, device: Opened(file.name, framework, device)


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path, monkeypatch):
    """The tests write to `tests/data` of the current directory."""
    (tmp_path / "tests" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.name in LEFT_OUT:
            item.add_marker(pytest.mark.skip(reason=LEFT_OUT[item.name]))
