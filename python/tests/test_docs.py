"""The examples in docstrings and in the README run."""

import doctest
import importlib
import pathlib
import pkgutil

import pytest

import iomill

MODULES = ["iomill"] + [f"iomill.{m.name}" for m in pkgutil.iter_modules(iomill.__path__) if m.name != "__main__"]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    for needed in ("fsspec", "torch", "zarr"):
        if name in (f"iomill.{needed}", f"iomill.{needed}_cache"):
            pytest.importorskip(needed)
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_readme():
    readme = pathlib.Path(__file__).parents[1] / "README.md"
    failed, tried = doctest.testfile(str(readme), module_relative=False)
    assert failed == 0 and tried > 0
