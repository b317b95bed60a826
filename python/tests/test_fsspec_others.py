"""`iomill://` beside other parts of fsspec: moves, relative paths, ranges, and file systems over it."""

import os
import pickle
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest

pytest.importorskip("fsspec")

import fsspec  # noqa: E402
from fsspec.generic import rsync, set_generic_fs  # noqa: E402

import iomill  # noqa: E402
from iomill import _openings  # noqa: E402
from iomill.fsspec import IomillFileSystem  # noqa: E402


def test_a_move_is_a_rename(files):
    files.pipe({"a": b"1", "d/x": b"2", "d/s/y": b"3"})
    version = files.info("a")["version"]
    with files.open("a") as reader:
        files.mv("a", "b")
        assert reader.read() == b"1" and files.info("b")["version"] == version
    # A copy and a removal would remove the only file.
    for same in ("/b", "iomill://b", "b/"):
        files.mv("b", same)
        assert files.cat("b") == b"1"
    with pytest.raises(IsADirectoryError):
        files.mv("d", "e")
    files.mv("d", "d/in", recursive=True)
    assert files.find("d") == ["d/in/s/y", "d/in/x"]
    files.mv("d/in", "e", recursive=True)
    assert files.find("") == ["b", "e/s/y", "e/x"]
    # As with a copy, the destination is a directory if there is one of its name.
    files.mv(["e/x", "b"], "e/s/")
    files.mv("e/s/*", "f/")
    assert files.find("") == ["f/b", "f/x", "f/y"] and files.cat("f/x") == b"2"
    files.mv(["f/b", "f/x"], ["one", "two"])
    assert files.find("") == ["f/y", "one", "two"]
    for missing in (lambda: files.mv("none", "x"), lambda: files.mv("none", "x", recursive=True)):
        with pytest.raises(FileNotFoundError):
            missing()


def test_a_relative_drive_is_that_of_the_directory_in_which_it_was_named(tmp_path):
    for place in ("here/a", "there/a"):
        os.makedirs(place)
        iomill.Drives.create(place).close()
    os.chdir("here")
    files = fsspec.filesystem("iomill", drive="a")
    os.chdir(tmp_path / "there")
    other = fsspec.filesystem("iomill", drive="a")
    # They are opened at their first use.
    files.pipe("x", b"here")
    assert files.cat("x") == b"here" and other.find("") == [] and files != other
    copy = pickle.dumps(files), files.to_json()
    for again in (pickle.loads(copy[0]), IomillFileSystem.from_json(copy[1])):
        assert again == files and again.cat("x") == b"here"
    os.chdir(tmp_path / "here")
    assert fsspec.filesystem("iomill", drive=os.path.abspath("a")) == files
    for one in (files, other):
        one.close()


def test_a_relative_drive_of_zarr(tmp_path):
    zarr = pytest.importorskip("zarr")
    import iomill.zarr

    os.makedirs("here/a")
    iomill.Drives.create("here/a").close()
    os.chdir("here")
    store = iomill.zarr.DrivesStore("a", "z")
    os.chdir(tmp_path)
    zarr.create_array(store, name="v", data=np.arange(10))
    assert iomill.Drives("here/a").list("z/v/z") == ["z/v/zarr.json"]


def test_the_ranges_must_fit_the_paths(files):
    files.pipe("x", b"0123456789")
    for starts, ends in (([0], [1, 2]), ([0, 1], [1]), ([0, 1, 2], [1, 2, 3])):
        with pytest.raises(ValueError, match="2 paths"):
            files.cat_ranges(["x", "x"], starts, ends)
    with pytest.raises(TypeError, match="list"):
        files.cat_ranges("x", [0], [1])
    assert files.cat_ranges(["x", "x"], 1, 3) == [b"12", b"12"]
    assert files.cat_ranges(["x"] * 2, [np.int64(-3), np.uint8(200)], [None, None]) == [b"789", b""]
    read = files.cat_ranges(["bad\0name", "x"], 0, 1)
    assert isinstance(read[0], FileNotFoundError) and read[1] == b"0"


def test_a_short_read_reads_little(files):
    """Seen to fail when each file had fsspec's cache: 5 MiB for 10 bytes."""
    files.pipe("x", bytes(16 << 20))
    # The end of writing empties the cache.
    _openings.settle()
    before = files.drives.misses
    with files.open("x") as file:
        file.seek(8 << 20)
        assert file.read(10) == bytes(10)
    assert files.drives.misses - before < 64


def test_files_and_directories_are_told_apart(files):
    files.pipe("x", b"")
    with pytest.raises(NotADirectoryError):
        files.rmdir("x")
    files.rmdir("none")
    files.pipe("d/x", b"")
    for call in (
        files.cat_file,
        files.open,
        files.rm_file,
        lambda path: files.cat_ranges([path], 0, 1, on_error="raise"),
    ):
        with pytest.raises(IsADirectoryError):
            call("d")


def test_a_directory_is_known_by_its_first_file(files):
    """Seen to fail when all files were listed: half a second for 20,000."""
    with iomill.Drives(files.storage_options["drive"], "r+") as drives:
        for number in range(300):
            drives.put(f"d/{number}", b"")
    assert files.isdir("d") and not files.isdir("d/7") and not files.isdir("d/70/")
    tracemalloc.start()
    assert files.info("d")["type"] == "directory" and files.exists("d") and not files.exists("d/none")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 30_000


CHECKSUMS = """
import fsspec, sys
files = fsspec.filesystem("iomill", drive=sys.argv[1])
print(files.checksum("d/x"), files.ukey("d/x"))
"""


def test_checksums_are_those_of_other_processes(files):
    files.pipe("d/x", b"1")
    files.close()
    drive = files.storage_options["drive"]
    said = set()
    for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo")):
        environment = os.environ | {"PYTHONHASHSEED": seed, "TZ": zone}
        command = [sys.executable, "-c", CHECKSUMS, drive]
        said.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(said) == 1 and len(said.pop().split()) == 2


def test_file_systems_over_it(files):
    drive = {"drive": files.storage_options["drive"]}
    files.pipe({"d/x": b"0123456789", "d/s/y": b"yy"})
    below = fsspec.filesystem("dir", path="d", fs=files)
    below.pipe("z", b"z")
    below.mv("z", "s/z")
    assert below.find("") == ["s/y", "s/z", "x"] and files.cat("d/s/z") == b"z"
    refs = {"version": 1, "refs": {"one": ["iomill://d/x", 2, 3], "two": ["iomill://d/x"]}}
    reference = fsspec.filesystem("reference", fo=refs, remote_protocol="iomill", remote_options=drive)
    assert reference.cat(["one", "two"]) == {"one": b"234", "two": b"0123456789"}
    with files.open("a.zip", "wb") as file, zipfile.ZipFile(file, "w") as packed:
        packed.writestr("in/one.txt", "in the zip")
    with fsspec.open("zip://in/one.txt::iomill://a.zip", iomill=drive) as file:
        assert file.read() == b"in the zip"
    with files.open("a.tar", "wb") as file, tarfile.open(fileobj=file, mode="w") as packed:
        packed.add(__file__, "this")
    with files.open("a.tar") as file, tarfile.open(fileobj=file) as packed:
        assert packed.extractfile("this").read() == open(__file__, "rb").read()
    mapping = files.get_mapper("map")
    mapping["k/1"] = b"1"
    mapping.setitems({"k/2": b"2"})
    assert dict(mapping) == {"k/1": b"1", "k/2": b"2"} and mapping.getitems(["k/1", "none"], on_error="omit") == {
        "k/1": b"1"
    }
    for wrong in (lambda: mapping["none"], lambda: mapping.pop("none"), lambda: mapping.__delitem__("none")):
        with pytest.raises(KeyError):
            wrong()
    os.makedirs("source/in")
    open("source/in/file", "w").write("copied")
    set_generic_fs("iomill", **drive)
    set_generic_fs("file")
    rsync(f"file://{os.path.abspath('source')}", "iomill://synced", inst_kwargs={"default_method": "generic"})
    assert files.cat("synced/in/file") == b"copied"


@pytest.mark.parametrize("kind", ["filecache", "blockcache"])
def test_caches_see_changes_within_a_file(files, kind):
    drive = files.storage_options["drive"]
    cache = fsspec.filesystem(kind, fs=files, check_files=True, cache_check=0, cache_storage=kind)
    files.pipe("x", b"old!" * 1000)

    def content():
        with cache.open("x", block_size=512) as file:
            return file.read()

    assert content() == b"old!" * 1000
    with iomill.Drives(drive, "r+") as drives, drives.open("x") as file:
        for number in range(5):
            # Of the same length, in the same tick of a coarse clock.
            file.write_at(b"%d" % number, 0)
            file.sync()
            assert content()[:5] == b"%dld!o" % number
    # For a file that has grown fsspec's blockcache itself fails, over any file system.
    if kind == "filecache":
        with files.open("x", "ab") as file:
            file.write(b"more")
        assert content()[-8:] == b"old!more"
    files.pipe("x", b"new")
    assert content() == b"new" and cache.info("x")["size"] == 3
    files.rm("x")
    with pytest.raises(FileNotFoundError):
        content()


def test_a_transaction_that_fails_at_its_end(files):
    with pytest.raises(FileExistsError), files.transaction:
        files.pipe("a", b"1")
        with files.open("b", "xb") as file:
            file.write(b"2")
        files.pipe("c", b"3")
        with iomill.Drives(files.storage_options["drive"], "r+") as drives:
            drives.put("b", b"another program's")
    assert files.find("") == ["a", "b"] and files.cat("b") == b"another program's"
    files.pipe("d", b"4")
    assert files.find("") == ["a", "b", "d"] and files._writing._needs == 0
