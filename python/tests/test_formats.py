"""Files of numpy and safetensors, raw files, lists of them, and files in arrays."""

import concurrent.futures
import json
import os
import pathlib
import pickle
import struct
import sys
import threading

import numpy as np
import pytest

import iomill
from iomill._elements import ELEMENTS


def same(rows, array):
    assert (rows.shape, rows.dtype) == (array.shape, array.dtype)
    ids = [len(array) - 1, 0, -1]
    assert rows[ids].tobytes() == array[ids].tobytes()
    assert rows[:].tobytes() == array.tobytes()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(
    "dtype", ["<f4", ">i8", "?", "S5", "U2", "<M8[s]", "<c16", [("x", "<i2"), ("ü", ">f4", (2,))]], ids=str
)
def test_npy(version, dtype):
    if version < (3, 0) and isinstance(dtype, list):
        dtype = [("x", "<i2"), ("y", ">f4", (2,))]
    item = np.dtype(dtype).itemsize
    array = np.frombuffer(bytes(i % 2 for i in range(12 * item)), dtype).reshape(4, 3)
    with open("x.npy", "wb") as file:
        np.lib.format.write_array(file, array, version)
    same(iomill.open("x.npy"), np.load("x.npy"))


def test_npy_of_python_2_and_of_one_axis_in_fortran_order():
    array = np.arange(6, dtype="<i4")
    header = "{'descr': '<i4', 'fortran_order': True, 'shape': (6L,), }".ljust(118 - 1) + "\n"
    with open("x.npy", "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + array.tobytes())
    same(iomill.open("x.npy"), array)


def test_npy_refused():
    np.save("fortran.npy", np.asfortranarray(np.ones((3, 2))))
    with pytest.raises(ValueError, match="fortran.npy: the array is in Fortran order.*ascontiguousarray"):
        iomill.open("fortran.npy")
    np.save("objects.npy", np.array([{}, []], object), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects in dtype"):
        iomill.open("objects.npy")
    np.save("scalar.npy", np.array(3))
    with pytest.raises(ValueError, match="0-dimensional"):
        iomill.open("scalar.npy")
    np.save("short.npy", np.zeros(100))
    os.truncate("short.npy", 500)
    with pytest.raises(ValueError, match="ends before its last row"):
        iomill.open("short.npy")
    for wrong in (b"", b"hello", b"\x93NUMPY\x09\x00\x10\x00", b"\x93NUMPY\x01\x00\x10\x00{'descr': 1}     "):
        with open("wrong.npy", "wb") as file:
            file.write(wrong)
        with pytest.raises(ValueError, match="wrong.npy"):
            iomill.open("wrong.npy")
    with pytest.raises(FileNotFoundError, match="check the path: 'none.npy'"):
        iomill.open("none.npy")
    with pytest.raises(ValueError, match="name a file on it"):
        iomill.open(".")
    with pytest.raises(ValueError, match="only a file of safetensors"):
        iomill.open("short.npy", "weights")


def test_safetensors():
    numpy_of = pytest.importorskip("safetensors.numpy")
    tensors = {
        "a": np.arange(12, dtype="f4").reshape(4, 3),
        "b.c": np.arange(5, dtype="u2"),
        "n": np.ones((2, 2), bool),
    }
    numpy_of.save_file(tensors, "model.safetensors", metadata={"format": "np"})
    for name, tensor in tensors.items():
        same(iomill.open("model.safetensors", name), tensor)
    with pytest.raises(ValueError, match="name a tensor.*a, b.c, n"):
        iomill.open("model.safetensors")
    with pytest.raises(ValueError, match="no tensor named 'd'; there are a, b.c, n"):
        iomill.open("model.safetensors", "d")


def test_safetensors_refused():
    def made(header, data=b""):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        with open("x.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)

    made({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}, b"1")
    with pytest.raises(ValueError, match="dtype F4"):
        iomill.open("x.safetensors", "a")
    made({"a": {"dtype": "I8", "shape": [2], "data_offsets": [0, 1]}}, b"1")
    with pytest.raises(ValueError, match="has 1 bytes, and its shape"):
        iomill.open("x.safetensors", "a")
    made({"a": {"dtype": "I8", "shape": [2], "data_offsets": [0, 2]}}, b"1")
    with pytest.raises(ValueError, match="ends before its last row"):
        iomill.open("x.safetensors", "a")
    made(b"{broken")
    with pytest.raises(ValueError, match="its header is none"):
        iomill.open("x.safetensors", "a")


def test_raw():
    array = np.arange(24, dtype=">u2").reshape(8, 3)
    with open("x.bin", "wb") as file:
        file.write(b"head" + array.tobytes())
    same(iomill.open("x.bin", dtype=">u2", shape=(8, 3), offset=4), array)
    same(iomill.open("x.bin", dtype=">u2", shape=(-1, 3), offset=4), array)
    same(iomill.open("x.bin", dtype=">u2", offset=4), array.reshape(-1))
    same(iomill.open("x.bin", dtype=">u2", shape=5, offset=4), array.reshape(-1)[:5])
    for how, words in [
        ({"shape": (9, 3), "offset": 4}, "too few for shape"),
        ({"shape": (-1, 5), "offset": 4}, "not a multiple of the row size"),
        ({"shape": (2, -1)}, "only the first length"),
        ({"shape": (-2,)}, "negative dimensions"),
        ({"offset": 99}, "not within"),
        ({"shape": ()}, "0-dimensional"),
    ]:
        with pytest.raises(ValueError, match=words):
            iomill.open("x.bin", dtype=">u2", **how)
    with pytest.raises(ValueError, match="give its dtype"):
        iomill.open("x.bin")
    with pytest.raises(ValueError, match="without a dtype"):
        iomill.open("x.bin", shape=(3,))


def test_lists():
    parts = [np.arange(count * 3, dtype="<i4").reshape(count, 3) + 100 * count for count in (5, 0, 1, 700)]
    names = []
    for number, part in enumerate(parts):
        names.append(f"{number}.npy")
        np.save(names[-1], part)
    rows, whole = iomill.open(names), np.concatenate(parts)
    same(rows, whole)
    ids = np.random.default_rng(1).integers(-len(whole), len(whole), 500)
    assert np.array_equal(rows[ids], whole[ids])
    assert np.array_equal(rows[3:40], whole[3:40]) and np.array_equal(rows.take_async(ids).result(), whole[ids])
    rows.prefetch(ids)
    parts[0].tofile("raw.bin")
    same(iomill.open(["raw.bin"] * 2, dtype="<i4", shape=(-1, 3)), np.concatenate([parts[0], parts[0]]))
    np.save("other.npy", np.zeros((2, 4), "<i4"))
    with pytest.raises(ValueError, match=r"other.npy: its rows have dtype int32 and shape \(4,\)"):
        iomill.open([names[0], "other.npy"])
    with pytest.raises(ValueError, match="list"):
        iomill.open([])
    with pytest.raises(ValueError, match="a list is for reading"):
        iomill.open(names, mode="r+")


def test_put(drives):
    array = np.arange(30000, dtype="<f4").reshape(1000, 30)
    np.save("features.npy", array)
    told = []
    assert iomill.put("features.npy", drives, progress=lambda *done: told.append(done)) == "features.npy"
    assert told[0] == (0, array.nbytes) and told[-1] == (array.nbytes, array.nbytes)
    same(iomill.open(drives[0], "features.npy"), array)
    # Into the same array, by any of its drives.
    assert iomill.put(array[::-1], drives[2], "turned") == "turned"
    same(iomill.open(drives[1], "turned"), array[::-1])
    with pytest.raises(FileExistsError, match="turned"):
        iomill.put(array, drives[2], "turned")
    with open("raw.bin", "wb") as file:
        file.write(array.tobytes())
    iomill.put("raw.bin", drives[0], "bytes")
    same(iomill.open(drives[0], "bytes", dtype="<f4", shape=(-1, 30)), array)
    iomill.put("raw.bin", drives[0], "rows", dtype="<f4", shape=(-1, 30))
    same(iomill.open(drives[0], "rows"), array)
    with iomill.Drives(drives[0]) as opened:
        assert list(opened) == ["bytes", "features.npy", "rows", "turned"]
        same(opened.rows("rows"), array)
        # The file in the array is a file of numpy. Its rows begin at a page.
        held = opened.open("features.npy").read()
        assert len(held) == 4096 + array.nbytes
    with open("back.npy", "wb") as file:
        file.write(held)
    assert np.array_equal(np.load("back.npy"), array)


def test_a_file_without_a_length_is_put_to_its_end(drives):
    version = pathlib.Path("/proc/version").read_bytes()
    iomill.put("/proc/version", drives, "version")
    os.mkfifo("pipe")
    data = bytes(range(256)) * 1000
    writer = threading.Thread(target=lambda: pathlib.Path("pipe").write_bytes(data))
    writer.start()
    iomill.put("pipe", drives[0], "piped")
    writer.join()
    with iomill.Drives(drives[0]) as array:
        assert array.open("version").read() == version
        assert array.open("piped").read() == data
    with pytest.raises(OSError, match="which has no end"):
        iomill.put("/dev/zero", drives[0], "zero")
    with pytest.raises(IsADirectoryError):
        iomill.put(".", drives[0], "directory")


def test_an_array_is_known_by_its_directory(drives):
    iomill.put(np.arange(3), drives, "x")
    here = os.open(drives[0], os.O_DIRECTORY)
    try:
        os.rename(drives[0], "moved")
        os.mkdir(drives[0])
        # The text of the link is a path that leads elsewhere, or nowhere.
        same(iomill.open(f"/proc/self/fd/{here}", "x"), np.arange(3))
    finally:
        os.close(here)


def test_holes_stay_holes(drives):
    """Seen to fail when holes were written as zeros: 6 GiB."""
    length, data, told = (6 << 30) + 5, np.random.default_rng(1).bytes(100_000), []
    for name, places in (("middle", [1, (5 << 30) + 7]), ("end", [length - len(data)]), ("none", [])):
        with open(name, "wb") as file:
            file.truncate(length)
            for place in places:
                file.seek(place)
                file.write(data)
        told.clear()
        iomill.put(name, drives, progress=lambda *done: told.append(done))
        assert told[-1] == (length, length)
        parts = [part.stat() for drive in drives for part in pathlib.Path(drive, "iomill", "parts").iterdir()]
        assert sum(part.st_blocks for part in parts) * 512 < 32 << 20
        with iomill.Drives(drives[0], "r+") as array:
            with array.open(name) as file:
                assert len(file) == length and not any(file.read_at(3 << 30, 1 << 20))
                for place in places:
                    assert file.read_at(place, len(data)) == data and not any(file.read_at(place + len(data), 4096))
            array.delete(name)
    # The rows of a sparse file of numpy.
    rows = np.lib.format.open_memmap("x.npy", "w+", "f4", (1 << 20, 100))
    rows[[7, 800_000]] = 1
    rows.flush()
    iomill.put("x.npy", drives)
    stored = iomill.open(drives[0], "x.npy")
    assert stored.shape == rows.shape and stored[[7, 800_000]].all() and not stored[[8, 1 << 19, -1]].any()


def test_tensors_on_drives(drives):
    numpy_of = pytest.importorskip("safetensors.numpy")
    weights = np.arange(12, dtype="f4").reshape(4, 3)
    numpy_of.save_file({"w": weights, "b": weights[0]}, "m.safetensors")
    # Rows in numpy's format, under the name of their source.
    assert iomill.put("m.safetensors", drives, tensor="w") == "m.safetensors"
    same(iomill.open(drives[0], "m.safetensors"), weights)
    iomill.put(weights, drives, "w.safetensors")
    same(iomill.open(drives[0], "w.safetensors"), weights)
    with iomill.Drives(drives[0], "r+") as array:
        array.put("whole.safetensors", pathlib.Path("m.safetensors").read_bytes())
        same(array.rows("whole.safetensors", tensor="w"), weights)
        with pytest.raises(ValueError, match=r"name a tensor: Drives.rows\(name, tensor=...\); there are b, w"):
            array.rows("whole.safetensors")
        with pytest.raises(ValueError, match="no tensor named 'none'"):
            array.rows("whole.safetensors", tensor="none")
    # Outside drives the suffix decides.
    np.save("x.npy", weights)
    os.rename("x.npy", "x.safetensors")
    with pytest.raises(ValueError, match="x.safetensors: its header has"):
        iomill.open("x.safetensors", "w")


def test_a_failed_put_leaves_nothing(drives):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        iomill.put(np.zeros(10), drives, "x", progress=stop)
    with iomill.Drives(drives[0]) as array:
        assert array.list() == []
    with pytest.raises(ValueError, match="has no name"):
        iomill.put(np.zeros(10), drives)
    # Seen to fail when the mask was lost, and masked values counted as valid.
    with pytest.raises(ValueError, match="mask"):
        iomill.put(np.ma.array([1, 2], mask=[False, True]), drives, "x")
    with pytest.raises(ValueError, match="an array of Python objects"):
        iomill.put(np.array([{}, None]), drives, "x")
    with pytest.raises(FileNotFoundError):
        iomill.put("none.npy", drives)


def test_a_name_that_cannot_be_is_refused_before_anything_is_made(drives):
    np.save("x.npy", np.zeros(10))
    for bad in ["", "a//b", "../x", "a\n", "x" * 1001]:
        for source in (np.zeros(10), "x.npy"):
            with pytest.raises(ValueError, match="name"):
                iomill.put(source, drives, bad)
        assert not any(os.listdir(drive) for drive in drives)
    with iomill.Drives.create(drives) as array:
        with pytest.raises(ValueError, match="name"):
            array.row_writer("a//b", np.float32, (4,))
        assert array.list() == []


def test_put_makes_no_directories(drives):
    rows = np.arange(10)
    with pytest.raises(FileNotFoundError, match="not_mounted"):
        iomill.put(rows, [drives[0], "not_mounted"], "x")
    assert not os.path.exists("not_mounted") and os.listdir(drives[0]) == []
    with pytest.raises(FileNotFoundError, match="not_mounted"):
        iomill.put(rows, "not_mounted", "x")
    iomill.put(rows, drives[:2], "x")
    # Further directories are not silently left out.
    for places in ([drives[0], drives[2]], [drives[2], drives[0]]):
        with pytest.raises(ValueError, match="ssd2 is no drive of the set"):
            iomill.put(rows, places, "y")
    os.mkdir("other")
    iomill.put(rows, "other", "z")
    with pytest.raises(ValueError, match="name drives of one set"):
        iomill.put(rows, [drives[0], "other"], "y")
    assert iomill.put(rows, [drives[1], drives[0]], "y") == "y"
    with iomill.Drives(drives[0]) as array:
        assert array.list() == ["x", "y"]


def test_put_says_how_far_it_is(drives, capsys):
    iomill.put(np.zeros(1 << 20, "u1"), drives, "x", progress=True)
    assert "x: 100% of 1 MB" in capsys.readouterr().err


def test_an_array_is_opened_once(drives):
    iomill.put(np.arange(10), drives, "x")
    one, two = iomill.open(drives[0], "x"), iomill.open(drives[0], "x")
    assert one.file._owner._native is two.file._owner._native
    with pytest.raises(ValueError, match="a cache of their own"):
        iomill.open(drives[0], "x", runtime=iomill.Runtime(cache_bytes=0))


def test_pickles(drives):
    np.save("x.npy", np.arange(10))
    iomill.put("x.npy", drives, "x")
    for rows in (iomill.open("x.npy"), iomill.open(drives[0], "x"), iomill.open("x.npy", dtype="u1", offset=3)):
        assert pickle.loads(pickle.dumps(rows))[7] == rows[7]
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(iomill.open("x.npy", runtime=iomill.Runtime(cache_bytes=0)))


def test_rows_from_a_pickle_are_those_that_were_pickled(drives):
    np.save("x.npy", np.arange(40, dtype="f4").reshape(10, 4))
    iomill.put("x.npy", drives, "x")
    there = [iomill.open("x.npy"), iomill.open(drives[0], "x"), iomill.open("x.npy").astype("f8")]
    pickled = [pickle.dumps(pickle.loads(pickle.dumps(rows))) for rows in there]
    assert [pickle.loads(rows)[3, 1] for rows in pickled] == [13, 13, 13]
    np.save("y.npy", np.arange(6.0))
    os.replace("y.npy", "x.npy")
    with iomill.Drives(drives[0], "r+") as made:
        made.put("x", open("x.npy", "rb").read())
    for rows in pickled:
        with pytest.raises(OSError, match=r"pickled as \(10, 4\) of float.*\(6,\) of float64 now") as caught:
            len(pickle.loads(rows))
        assert caught.value.errno == 116


def test_names_of_dask_are_of_one_content(drives):
    tokenize = pytest.importorskip("dask.base").tokenize
    np.save("x.npy", np.arange(10))
    with iomill.Drives.create(drives, exist_ok=True) as made:
        made.put("x", open("x.npy", "rb").read())

    def opened():
        return [iomill.open("x.npy"), iomill.open(drives[0], "x"), iomill.open(["x.npy"], dtype="u1", offset=3)]

    old = opened()
    names = [tokenize(rows) for rows in old]
    assert names == [tokenize(rows) for rows in opened()] and len(set(names)) == 3
    assert names == [tokenize(pickle.loads(pickle.dumps(rows))) for rows in old]
    assert tokenize(old[0].astype("f4")) == tokenize(opened()[0].astype("f4")) != names[0]
    np.save("y.npy", np.arange(10) + 1)
    os.replace("y.npy", "x.npy")
    with iomill.Drives(drives[0], "r+") as made:
        made.put("x", open("x.npy", "rb").read())
    # Results of both contents may be in one graph.
    assert set(names).isdisjoint(tokenize(rows) for rows in opened())
    assert names == [tokenize(rows) for rows in old]
    del old
    with iomill.open("x.npy", mode="r+") as rows:
        assert tokenize(rows) != tokenize(rows)


def test_paths_of_all_kinds(drives):
    class Bytes:
        def __fspath__(self):
            return b"x.npy"

    np.save("x.npy", np.arange(10))
    iomill.put(b"x.npy", [os.fsencode(drive) for drive in drives], "x")
    for path in (b"x.npy", Bytes(), pathlib.Path("x.npy"), [b"x.npy"], (Bytes(),), np.str_("x.npy")):
        assert iomill.open(path)[3] == 3
        with iomill.File(path) as file:
            assert len(file) == 208
    assert iomill.open(os.fsencode(drives[0]), "x")[3] == 3
    assert iomill.Drives(pathlib.Path(drives[0])).list() == ["x"]
    assert iomill.open(x for x in ["x.npy", b"x.npy"]).shape == (20,)
    with open("x.npy", "rb") as file:
        for wrong in (file, file.fileno(), True, [file], [3]):
            for call in (iomill.open, iomill.File, iomill.Drives, lambda path: iomill.put(path, drives)):
                with pytest.raises(TypeError, match="give the path of the file|a path is text"):
                    call(wrong)
        with pytest.raises(TypeError, match="give the path of the file"):
            iomill.open(file)
    for wrong in (None, 2.5, [None]):
        with pytest.raises(TypeError, match="a path is text"):
            iomill.open(wrong)
    with pytest.raises(TypeError, match="a path is text"):
        iomill.Drives(drives)
    # A single path is not a list of letters.
    os.mkdir("abc")
    iomill.Drives.create("abc").close()
    assert iomill.Drives(b"abc").list() == []


BITS = np.array([[0x3F80, 0xC000], [0x7F80, 0x0001]], "<u2")


def save_bfloat16():
    """A file with bfloat16: 1, -2, infinity, and the least value."""
    header = {"w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}
    header |= {"f8": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [8, 12]}}
    text = json.dumps(header).encode()
    with open("m.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + BITS.tobytes() + b"\x38\xb8\x00\x7e")


def test_paths_that_no_file_has(drives):
    """The same are refused by `open`. As there, mutable bytes are not a path."""
    calls = (
        iomill.open,
        iomill.File,
        iomill.Drives,
        iomill.Drives.create,
        lambda path: iomill.put(path, drives),
        lambda path: iomill.put(BITS, path, "x"),
        lambda path: iomill.create(path, shape=3, dtype="f4"),
    )
    for path, error in (
        ("", FileNotFoundError),
        (b"", FileNotFoundError),
        ("x\0y", ValueError),
        (b"\0", ValueError),
        (bytearray(b"x"), TypeError),
        (memoryview(b"x"), TypeError),
    ):
        for call in calls:
            with pytest.raises(error) as raised:
                call(path)
            assert "descriptor" not in str(raised.value)


def test_types_whose_names_numpy_writes_and_does_not_read(drives):
    """numpy.save writes `<f1` for float8_e5m2, and numpy.load refuses it. Such rows are not lost."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "int4"):
        kind = np.dtype(getattr(ml_dtypes, name))
        values = np.ones((3, 2)).astype(kind)
        np.save("x.npy", values)
        iomill.put(values, drives, name)
        for rows in (iomill.open("x.npy", dtype=kind), iomill.open(drives[0], name, dtype=kind)):
            assert rows.dtype == kind and rows[1].astype("f4").tolist() == [1, 1]
        if name in ELEMENTS:
            # A writer takes it by its name, too.
            with (
                iomill.Drives(drives[0], "r+") as array,
                array.row_writer("written", name, (2,), replace=True) as writer,
            ):
                writer.append(values)
            written = iomill.open(drives[0], "written", dtype=name)
            assert written.dtype == kind and written[1].astype("f4").tolist() == [1, 1]
        if kind.str[1] != "V":
            with pytest.raises(ValueError, match="not understood"):
                iomill.open("x.npy")
            with pytest.raises(ValueError, match="not understood"):
                iomill.open("x.npy", dtype="f4")


def test_types_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    save_bfloat16()
    rows = iomill.open("m.safetensors", "w")
    assert rows.dtype == ml_dtypes.bfloat16 and rows[0].tolist() == [1, -2]
    assert iomill.open("m.safetensors", "f8").dtype == ml_dtypes.float8_e4m3fn
    out = np.empty((1, 2), ml_dtypes.bfloat16)
    assert rows.take([0], out=out) is out and out.tolist() == [[1, -2]]
    # Its bits, and a file without the name of its type.
    bits = iomill.open("m.safetensors", "w", dtype="uint16")
    assert bits.dtype == np.uint16 and np.array_equal(bits[:], BITS)
    np.save("w.npy", rows[:])
    assert iomill.open("w.npy").dtype == np.dtype("V2")
    for dtype in ("bfloat16", ml_dtypes.bfloat16):
        assert iomill.open("w.npy", dtype=dtype)[0].tolist() == [1, -2]
    with pytest.raises(ValueError, match="its values have 2 bytes, and those of float32 4"):
        iomill.open("w.npy", dtype="f4")
    with pytest.raises(ValueError, match="its header has the dtype bfloat16"):
        iomill.open("m.safetensors", "w", dtype="f2")
    with open("raw", "wb") as file:
        file.write(BITS.tobytes())
    assert iomill.open("raw", dtype="bfloat16", shape=(-1, 2))[0].tolist() == [1, -2]


def test_without_ml_dtypes_rows_are_bits(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    save_bfloat16()
    with pytest.warns(UserWarning, match="numpy has no bfloat16: the rows are its bits, as uint16"):
        rows = iomill.open("m.safetensors", "w")
    assert rows.dtype == np.uint16 and np.array_equal(rows[[1, 0]], BITS[::-1])
    with pytest.warns(UserWarning, match="float8_e4m3fn"):
        assert iomill.open("m.safetensors", "f8")[:].tolist() == [0x38, 0xB8, 0, 0x7E]
    np.save("w.npy", BITS.view("V2"))
    with pytest.warns(UserWarning):
        assert np.array_equal(iomill.open("w.npy", dtype="bfloat16")[:], BITS)


def test_rows_that_no_writer_has_are_refused_at_once(drives):
    with iomill.Drives.create(drives) as opened:
        for dtype, shape in [("f4", (-3,)), ("f4", (2**62, 2**62)), ("O", ()), ("S", ()), (("i4", (2,)), ())]:
            with pytest.raises(ValueError):
                opened.row_writer("x", dtype, shape)
        with pytest.raises(TypeError):
            opened.row_writer("x", "f4", (2.5,))
        assert opened.list() == []


def test_rows_batch_by_batch(drives):
    values = np.arange(5000 * 6, dtype="f8").reshape(5000, 2, 3)
    with iomill.Drives.create(drives) as array:
        with array.row_writer("x", "<f4", (2, 3)) as writer:
            for start in range(0, 5000, 700):
                writer.append(values[start : start + 700])
            writer.append(values[7])
            writer.append(np.empty((0, 2, 3)))
            assert len(writer) == 5001 and array.list() == []
        whole = np.concatenate([values, values[7:8]]).astype("<f4")
        same(array.rows("x"), whole)
        # It is a file of numpy.
        held = array.open("x").read()
        assert held[4096 : 4096 + 24] == whole[0].tobytes()
        with open("back.npy", "wb") as file:
            file.write(held)
        assert np.array_equal(np.load("back.npy"), whole)
        with pytest.raises(KeyError), array.row_writer("y", "i4") as writer:
            writer.append([1, 2, 3])
            raise KeyError
        dropped = array.row_writer("y", "i4")
        dropped.append([1, 2, 3])
        del dropped
        assert array.list() == ["x"]
        with pytest.raises(FileExistsError), array.row_writer("x", "i4") as writer:
            writer.append([1])
        with array.row_writer("x", "i4", replace=True) as writer:
            writer.append(1)
            writer.append([2, 3])
            for wrong in (np.zeros((2, 2)), [[1]]):
                with pytest.raises(ValueError, match="rows of shape"):
                    writer.append(wrong)
        same(array.rows("x"), np.array([1, 2, 3], "i4"))
        with pytest.raises(ValueError, match="closed"):
            writer.append([4])
        with array.row_writer("none", "i4", (3,)):
            pass
        assert array.rows("none").shape == (0, 3)
        with pytest.raises(ValueError, match="no bytes"):
            array.row_writer("z", object)
        wide = [(f"a rather long name of a field {number}", "f4") for number in range(300)]
        with pytest.raises(ValueError, match="numpy reads up to 10000"):
            array.row_writer("z", wide)
        with pytest.raises(ValueError, match="numpy reads up to 10000"):
            iomill.put(np.zeros(3, wide), drives, "z")


def test_threads_append_whole_batches(drives):
    with iomill.Drives.create(drives) as made, made.row_writer("x", "i8", (4,)) as writer:

        def append(number):
            for _ in range(50):
                writer.append(np.full((100, 4), number))

        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            list(threads.map(append, range(4)))
    batches = iomill.open(drives[0], "x")[:].reshape(200, 400)
    assert (batches == batches[:, :1]).all() and np.bincount(batches[:, 0]).tolist() == [50] * 4


def test_a_dtype_of_arrays_has_more_axes():
    values = np.arange(12, dtype="<i4")
    text = b"{'descr': ('<i4', (2,)), 'fortran_order': False, 'shape': (3, 2)}"
    with open("x.npy", "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + values.tobytes())
    # numpy does not read it either: the shape does not have the axes of its values.
    for read in (np.load, iomill.open):
        with pytest.raises(ValueError):
            read("x.npy")
    values.tofile("x.bin")
    rows = iomill.open("x.bin", dtype=("<i4", (2, 2)))
    assert rows.shape == (3, 2, 2) and rows.dtype == np.dtype("<i4")
    assert np.array_equal(rows[[2, 0]], values.reshape(3, 2, 2)[[2, 0]])
