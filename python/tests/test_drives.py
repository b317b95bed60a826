"""Sets of drives: making one that may exist, naming several of its drives, and its files as a collection."""

import os
import threading

import numpy as np
import pytest

import iomill

VALUES = np.arange(12, dtype="i4").reshape(4, 3)


def test_a_set_that_exists_is_opened(drives):
    for run in range(2):
        with iomill.Drives.create(drives, exist_ok=True) as opened:
            assert opened.mode == "r+" and len(opened) == run
            opened.put(f"run{run}", b"")
    # Any order, and other paths of the same directories.
    os.symlink(drives[1], "link")
    with iomill.Drives.create([drives[2], "link", drives[0]], exist_ok=True) as opened:
        assert opened.list() == ["run0", "run1"]
        # Also while this process has it open.
        with iomill.Drives.create(drives, exist_ok=True) as again:
            assert again._native is opened._native
    with pytest.raises(OSError):
        iomill.Drives.create(drives)


def test_only_exactly_these_drives_are_accepted(drives, tmp_path):
    iomill.Drives.create(drives[:2]).close()
    with pytest.raises(ValueError, match=f"other drives, too: {drives[1]}; name all"):
        iomill.Drives.create(drives[:1], exist_ok=True)
    # The third is a drive of none, and stays so.
    with pytest.raises(OSError, match="mount the drive") as refused:
        iomill.Drives.create(drives, exist_ok=True)
    assert refused.value.filename == drives[2] and os.listdir(drives[2]) == []
    with pytest.raises(FileNotFoundError):
        iomill.Drives.create([*drives[:2], "none"], exist_ok=True)
    iomill.Drives.create(drives[2:]).close()
    with pytest.raises(ValueError, match="ssd2 is no drive of the set of .*ssd0"):
        iomill.Drives.create(drives, exist_ok=True)
    with pytest.raises(ValueError):
        iomill.Drives.create([], exist_ok=True)
    with pytest.raises(ValueError, match="ssd2 is named twice"):
        iomill.Drives.create([drives[2], drives[2]], exist_ok=True)
    # All of these errors left nothing open.
    with iomill.Drives(drives[0], "r+"), iomill.Drives(drives[2], "r+"):
        pass


def test_threads_that_make_one_set_share_it(drives):
    barrier, opened = threading.Barrier(4), []

    def make():
        barrier.wait()
        opened.append(iomill.Drives.create(drives, exist_ok=True))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one._native) for one in opened}) == 1 and len(opened) == 4
    for one in opened:
        one.close()


def test_several_drives_of_a_set_name_it(drives):
    iomill.put(VALUES, drives, "train/x")
    for named in (drives, drives[1:], (os.fsencode(drives[2]), drives[0])):
        with iomill.open(named, "train/x") as x:
            assert np.array_equal(x[:], VALUES)
    with iomill.create(drives, "y", shape=(4, 3), dtype="i4") as y:
        y[:] = VALUES
    assert np.array_equal(iomill.open(drives, "y", mode="r+")[[3, 0]], VALUES[[3, 0]])
    with pytest.raises(ValueError, match="name a file on it"):
        iomill.open(drives)
    with pytest.raises(FileNotFoundError, match="none"):
        iomill.open([drives[0], "none"], "y")
    os.mkdir("other")
    for call in (lambda: iomill.open([*drives, "other"], "y"), lambda: iomill.open(["other", *drives], "y")):
        with pytest.raises(ValueError, match="other is no drive of the set of .*ssd0"):
            call()
    with pytest.raises(ValueError, match="one path"):
        iomill.create(["x.npy", "y.npy"], shape=3, dtype="i4")
    with pytest.raises(ValueError, match="one path"):
        iomill.create([], shape=3, dtype="i4")
    # The refused calls have ended their uses.
    with iomill.Drives(drives[0]) as opened:
        assert opened._native.mode == "r"


def test_files_are_a_collection_of_names(drives):
    with iomill.Drives.create(drives) as opened:
        assert len(opened) == 0 and opened
        for name in ("b", "a/c", "a"):
            opened.put(name, b"")
        assert len(opened) == 3 and sorted(opened) == ["a", "a/c", "b"] and "a/c" in opened
        opened.delete("b")
        assert len(opened) == 2
    with pytest.raises(ValueError, match="closed"):
        len(opened)


def test_a_row_of_one_axis_has_a_length_as_its_shape(drives):
    with iomill.Drives.create(drives) as opened:
        with opened.row_writer("x", "i4", 3) as writer:
            writer.append(VALUES)
            writer.append(VALUES[0])
        with pytest.raises(TypeError, match="shape: "):
            opened.row_writer("y", "i4", "3")
    assert np.array_equal(iomill.open(drives, "x")[:], np.vstack([VALUES, VALUES[:1]]))
