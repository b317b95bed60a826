"""`create`: files of rows to be written later. Also the attributes of rows."""

import os
import pickle
import resource
import stat

import numpy as np
import pytest

import iomill


def test_a_new_npy_is_one_of_numpys():
    with iomill.create("x.npy", shape=(20, 3), dtype="<i4") as x:
        assert x.shape == (20, 3) and x.dtype == "<i4" and x.file.mode == "r+" and not x[:].any()
        x[[3, -1]] = [[1, 2, 3], [4, 5, 6]]
        x.flush()
        found = np.load("x.npy")
        assert found.shape == (20, 3) and found[3].tolist() == [1, 2, 3] and found[19].tolist() == [4, 5, 6]
        assert np.lib.format.open_memmap("x.npy").offset == x._start
    assert iomill.open("x.npy")[3].tolist() == [1, 2, 3] and not iomill.open("x.npy")[:3].any()


def test_other_names_are_raw_unless_it_is_said():
    with iomill.create("x.bin", shape=(2, 3), dtype="<f8") as x:
        x[1] = 7
    assert os.path.getsize("x.bin") == 48 and np.fromfile("x.bin").tolist() == [0, 0, 0, 7, 7, 7]
    with iomill.create("y", shape=5, dtype="<f8", format="npy"):
        pass
    assert np.load("y").shape == (5,)
    with iomill.create("z.npy", shape=(np.int64(5), 2), dtype="u1", format="raw"):
        pass
    assert os.path.getsize("z.npy") == 10
    with iomill.create(b"none.npy", shape=(0, 4), dtype="i2") as x:
        assert len(x) == 0
    assert np.load("none.npy").shape == (0, 4)


def test_on_drives(drives):
    with pytest.raises(OSError):
        iomill.create(drives[0], "x", shape=3, dtype="f4")
    assert os.listdir(drives[0]) == []
    iomill.Drives.create(drives).close()
    with iomill.create(drives[1], "graph/x", shape=(5, 2), dtype="f4") as x:
        x.write(slice(1, 3), 7)
    y = iomill.open(drives[0], "graph/x")
    assert y[:].tolist() == [[0, 0], [7, 7], [7, 7], [0, 0], [0, 0]]
    # Open handles of the old one keep it.
    with pytest.raises(FileExistsError):
        iomill.create(drives[0], "graph/x", shape=3, dtype="u1")
    with iomill.create(drives[0], "graph/x", shape=3, dtype="u1", replace=True, format="raw") as x:
        x[2] = 9
    assert y[1].tolist() == [7, 7]
    with iomill.Drives(drives[0]) as opened:
        assert opened.open("graph/x").read() == b"\0\0\x09" and opened.list() == ["graph/x"]
    with pytest.raises(ValueError, match="name"):
        iomill.create(drives[0], shape=3, dtype="f4")
    with pytest.raises(ValueError, match="name"):
        iomill.create(drives[0], "", shape=3, dtype="f4")


def test_what_is_there_is_not_lost():
    np.save("x.npy", np.arange(3))
    os.chmod("x.npy", 0o640)
    os.symlink("x.npy", "link.npy")
    for name in ("x.npy", "link.npy"):
        with pytest.raises(FileExistsError):
            iomill.create(name, shape=3, dtype="f4")
    assert np.load("x.npy").tolist() == [0, 1, 2]
    old = iomill.open("x.npy")
    with iomill.create("link.npy", shape=2, dtype="f4", replace=True) as x:
        x[:] = 5
    assert np.load("x.npy").tolist() == [5, 5] and os.path.islink("link.npy") and old[2] == 2
    assert stat.S_IMODE(os.stat("x.npy").st_mode) == 0o640
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        for replace in (False, True):
            with pytest.raises(OSError):
                iomill.create("x.npy" if replace else "y.npy", shape=1 << 20, dtype="f8", replace=replace)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert np.load("x.npy").tolist() == [5, 5] and sorted(os.listdir()) == ["link.npy", "x.npy"]
    with pytest.raises(OSError, match="no regular file"):
        iomill.create("/dev/null", shape=3, dtype="f4", replace=True)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize(
    "shape, dtype",
    [
        ((), "f4"),
        ((-1, 3), "f4"),
        (3, "O"),
        (3, "S0"),
        ((2**62, 2**62), "f4"),
        ((3, -3), "f4"),
        (3, [("a", "O")]),
        (2**63, "u1"),
    ],
)
def test_rows_that_cannot_be_are_refused(drives, shape, dtype):
    iomill.Drives.create(drives).close()
    for place in (["x.npy"], ["x"], [drives[0], "x"]):
        with pytest.raises(ValueError):
            iomill.create(*place, shape=shape, dtype=dtype)
    assert sorted(os.listdir()) == ["ssd0", "ssd1", "ssd2"] and iomill.Drives(drives[0]).list() == []


def test_wrong_calls(tmp_path):
    for wrong in (3.5, "3", (2.5,), True, None):
        with pytest.raises(TypeError):
            iomill.create("x.npy", shape=wrong, dtype="f4")
    for place in ("s3://bucket/x.npy", "x.safetensors"):
        with pytest.raises(ValueError):
            iomill.create(place, shape=3, dtype="f4")
    with pytest.raises(TypeError, match="descriptor"):
        iomill.create(3, shape=3, dtype="f4")
    with pytest.raises(FileNotFoundError):
        iomill.create("none/x.npy", shape=3, dtype="f4")
    with pytest.raises(ValueError, match="no directory"):
        iomill.create("x.npy", "tensor", shape=3, dtype="f4")
    with pytest.raises(ValueError, match="format"):
        iomill.create("x.npy", shape=3, dtype="f4", format="parquet")
    assert os.listdir() == []


def test_types_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with iomill.create("x.npy", shape=(3, 2), dtype="bfloat16") as x:
        assert x.dtype == ml_dtypes.bfloat16
        x[1] = np.array([1.5, -2], ml_dtypes.bfloat16)
    assert np.load("x.npy").view(ml_dtypes.bfloat16)[1].tolist() == [1.5, -2]
    assert iomill.open("x.npy", dtype="bfloat16").astype("f4")[1].tolist() == [1.5, -2]


def test_rows_of_another_dtype(drives):
    values = np.arange(-6, 6, dtype="i2").reshape(4, 3)
    np.save("x.npy", values)
    x = iomill.open("x.npy")
    y = x.astype(np.float32)
    assert (y.dtype, y.itemsize, y.nbytes, y.shape) == (np.float32, 4, 48, (4, 3)) and x.itemsize == 2
    expected = values.astype("f4")
    for key in (2, -1, slice(None, None, -1), [3, 0], (slice(1, 3), 1), np.array([True, False, True, False])):
        assert np.array_equal(y[key], expected[key]) and np.asarray(y[key]).dtype == np.float32
    assert np.array_equal(y.take([1, 1]), expected[[1, 1]]) and np.array_equal(
        y.take_async([3]).result(), expected[[3]]
    )
    out = np.empty((2, 3), "f4")
    assert y.take([0, 2], out=out) is out and np.array_equal(out, expected[[0, 2]])
    with pytest.raises(TypeError, match="output array has dtype int16"):
        y.take([0], out=np.empty((1, 3), "i2"))
    assert np.array_equal(np.asarray(y), expected) and [row.dtype for row in y] == [np.float32] * 4
    assert np.array_equal(np.take(y, [1], axis=0), expected[[1]])
    assert np.array_equal(pickle.loads(pickle.dumps(y))[[1]], expected[[1]])
    assert np.array_equal(y.astype("i8")[:], values) and y.astype("U")[0].tolist() == ["-6.0", "-5.0", "-4.0"]
    assert x.astype("c8", casting="safe").dtype == "c8"
    with pytest.raises(TypeError, match="Cannot cast"):
        y.astype("i2", casting="safe")
    with pytest.raises(TypeError, match="axes"):
        y.astype("(2,)i2")
    np.save("z.npy", values)
    with iomill.open("z.npy", mode="r+") as z:
        with pytest.raises(ValueError, match="read-only"):
            z.astype("f4")[0] = 1
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(z.astype("f4"))


def test_hits(drives):
    values = np.arange(40_000, dtype="i4").reshape(10_000, 4)
    np.save("x.npy", values)
    iomill.put(values, drives, "x")
    for x in (
        iomill.open("x.npy", runtime=iomill.Runtime(cache_bytes=16 << 20)),
        iomill.open(drives[0], "x"),
    ):
        x[[1, 5000]]
        hits, misses = x.hits, x.misses
        assert misses > 0
        x[[1, 5000]]
        assert x.hits > hits and x.misses == misses


def test_truth(drives):
    """An object that is not a sequence is true, also with length 0. Rows are like an ndarray."""
    open("none", "w").close()
    with iomill.File("none") as file:
        assert file and len(file) == 0
    with iomill.Drives.create(drives) as opened:
        assert opened and opened.create_file("x") and opened.row_writer("y", "f4", (3,))
    for values in (np.zeros(1), np.ones((1, 1)), np.zeros(2), np.zeros((0, 3))):
        np.save("x.npy", values)
        try:
            expected = bool(values)
        except ValueError:
            with pytest.raises(ValueError, match="truth value"):
                bool(iomill.open("x.npy"))
        else:
            assert bool(iomill.open("x.npy")) is expected


def test_flush_is_sync(monkeypatch):
    """In each class it makes the writes durable."""
    synced, sync = [], iomill.File.sync
    monkeypatch.setattr(iomill.File, "sync", lambda self: synced.append(self) or sync(self))
    np.save("x.npy", np.zeros(3))
    with iomill.open("x.npy", mode="r+") as x:
        x[1] = 5
        x.flush()
        x.file.flush()
        assert synced == [x.file] * 2
    # A close syncs the writes, once. It does not flush.
    with iomill.File("x.npy") as file:
        file.flush()
    assert len(synced) == 2
    with pytest.raises(ValueError, match="closed"):
        file.flush()
