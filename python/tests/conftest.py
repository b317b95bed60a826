"""Common fixtures of all tests."""

import os

import hypothesis
import pytest

import iomill

# The number of valid draws depends on chance, and their time on the machine. Neither shows a fault.
hypothesis.settings.register_profile("iomill", deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
hypothesis.settings.load_profile("iomill")


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    """Each test has a directory of its own, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def drives(tmp_path):
    """Directories for an array."""
    places = [tmp_path / f"ssd{number}" for number in range(3)]
    for place in places:
        place.mkdir()
    return [os.fspath(place) for place in places]


@pytest.fixture
def files(tmp_path):
    """The file system of fsspec on an array of one drive."""
    fsspec = pytest.importorskip("fsspec")
    (tmp_path / "nvme").mkdir()
    iomill.Drives.create([tmp_path / "nvme"]).close()
    made = fsspec.filesystem("iomill", drive=str(tmp_path / "nvme"))
    yield made
    made.close()
