"""Headers beside the libraries that define them: a header that they refuse is a ValueError with the name of the
file."""

import json
import os
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import iomill

QUICK = settings(max_examples=400)
DATA = np.arange(64, dtype="u1").tobytes()


def outcome_of(path, *name):
    """The rows, or None if they are refused. Any other error than a ValueError with the name fails the test."""
    try:
        return iomill.open(path, *name)
    except ValueError as error:
        assert os.path.basename(path) in str(error), error
        return None


def npy(header, data=DATA, version=(1, 0), count=None):
    encoded = header if isinstance(header, bytes) else header.encode("utf8" if version[0] > 2 else "latin1", "replace")
    length = len(encoded) if count is None else count
    form = "<H" if version[0] == 1 else "<I"
    if form == "<H":
        length = min(length, 0xFFFF)
    return b"\x93NUMPY" + bytes(version) + struct.pack(form, length) + encoded + data


def beside_numpy(content):
    with open("x.npy", "wb") as file:
        file.write(content)
    try:
        expected = np.load("x.npy", allow_pickle=False)
    except Exception:
        expected = None
    ours = outcome_of("x.npy")
    if expected is None:
        assert ours is None
        return
    # Arrays that numpy has, and that cannot be rows.
    is_fortran = expected.ndim > 1 and b"'fortran_order': True" in content
    if expected.ndim == 0 or expected.dtype.itemsize == 0 or is_fortran:
        assert ours is None
        return
    assert (ours.shape, ours.dtype) == (expected.shape, expected.dtype)
    assert ours[:].tobytes() == expected.tobytes()


LENGTHS = st.one_of(
    st.integers(0, 4),
    st.sampled_from([-1, 2**31, 2**62, 2**63 - 1, 2**63, 2**70, True, 2.9, None, "3", 2.0]),
)
SHAPES = st.one_of(
    st.lists(LENGTHS, max_size=4).map(tuple),
    st.sampled_from([[2], 3, True, "12", None, {}, (1,) * 70, (0, 2**62, 2**62)]),
)
DESCRS = st.sampled_from(
    [
        "<i4", "|u1", ">f8", "<c16", "|S3", "<U2", "<M8[s]", "|V3", "|O", "|S0", "<i3", "i4,f4", "", 5, None, [], [[]], [()],
        [("a", "<i2"), ("b", ">f4", (2,))], [("a", "<i2"), ("a", "<i2")], [("a", "|O")], ("<i4", (2,)), ("<i4", (-2,)),
        ("<i4", (2**31 - 1, 2**31 - 1)), [("x",)], [("x", "<i4", "y")], {"a": 1}, b"<i4", (), ("<i4",), [("", "<i4")],
        [(("title", "name"), "<i4")], [("a", [("b", "<i4")])], True,
    ]
)  # fmt: skip
KEYS = st.sampled_from(["descr", "fortran_order", "shape", "x", "Descr"])


@QUICK
@given(
    descr=DESCRS,
    shape=SHAPES,
    fortran=st.sampled_from([False, False, False, True, 0, 1, None, "False"]),
    version=st.sampled_from([(1, 0), (2, 0), (3, 0), (1, 1), (0, 0), (4, 0)]),
    ending=st.sampled_from(["", "\n", "   \n", " " * 20000, "\0", "]"]),
    others=st.dictionaries(KEYS, st.integers(), max_size=2),
    without=st.sets(KEYS, max_size=1),
    cut=st.one_of(st.none(), st.integers(0, 140)),
)
@example(descr="<i4", shape=(3, 2), fortran=False, version=(1, 0), ending="\n", others={}, without=set(), cut=None)
@example(descr="<i4", shape=(True,), fortran=False, version=(1, 0), ending="\n", others={}, without=set(), cut=None)
@example(descr="<i4", shape=(2.9,), fortran=False, version=(1, 0), ending="\n", others={}, without=set(), cut=None)
@example(descr="<i4", shape=(3, -4), fortran=False, version=(1, 0), ending="\n", others={}, without=set(), cut=None)
@example(descr="<i4", shape=(2**70, 0), fortran=False, version=(1, 0), ending="\n", others={}, without=set(), cut=None)
@example(
    descr=("<i4", (2,)), shape=(0,), fortran=False, version=(1, 0), ending="\n", others={}, without=set(), cut=None
)
@example(
    descr=("<i4", (2,)), shape=(4,), fortran=False, version=(1, 0), ending="\n", others={}, without=set(), cut=None
)
@example(
    descr=("<i4", (1, 1)), shape=(3,), fortran=False, version=(1, 0), ending="\n", others={}, without=set(), cut=None
)
@example(
    descr=("<i4", (0,)), shape=(1,), fortran=False, version=(1, 0), ending="\n", others={}, without=set(), cut=None
)
def test_npy_beside_numpy(tmp_path_factory, descr, shape, fortran, version, ending, others, without, cut):
    os.chdir(tmp_path_factory.getbasetemp())
    said = {"descr": descr, "fortran_order": fortran, "shape": shape} | others
    text = repr({key: value for key, value in said.items() if key not in without}) + ending
    beside_numpy(npy(text, version=version)[:cut])


WORDS = st.sampled_from(
    ["{", "}", "'descr'", ":", "'<i4'", ",", "'fortran_order'", "False", "'shape'", "(12,)", "(12L,)", "12L", "L", "(", ")",
     "[", "]", "-", "+", "1", "a.b", "\n", "#", "'", '"', "\\", "np.int64(3)", "é", "日", "\0"]
)  # fmt: skip
VALID = ["{", "'descr'", ":", "'<i4'", ",", "'fortran_order'", ":", "False", ",", "'shape'", ":", "(12,)", "}"]


@QUICK
@given(
    places=st.lists(st.tuples(st.integers(0, len(VALID)), WORDS), max_size=3),
    drop=st.sets(st.integers(0, len(VALID) - 1), max_size=2),
    major=st.integers(1, 3),
)
@example(places=[], drop=set(), major=1)
@example(places=[(11, "(12L,)")], drop={11}, major=1)
@example(places=[(11, "(12L,)")], drop={11}, major=3)
def test_npy_texts_beside_numpy(tmp_path_factory, places, drop, major):
    os.chdir(tmp_path_factory.getbasetemp())
    words = [word for place, word in enumerate(VALID) if place not in drop]
    for place, word in places:
        words.insert(place, word)
    beside_numpy(npy(" ".join(words), version=(major, 0)))


@QUICK
@given(content=st.binary(max_size=200), keeps=st.integers(0, 12))
def test_npy_bytes_beside_numpy(tmp_path_factory, content, keeps):
    os.chdir(tmp_path_factory.getbasetemp())
    beside_numpy(npy("{'descr': '<i4', 'fortran_order': False, 'shape': (12,)}")[:keeps] + content)


@pytest.mark.parametrize(
    "text",
    ["1" + "+1" * 4000, "a" + ".a" * 4000, "-" * 9000 + "1", "[" * 9000, "(" * 4500 + ")" * 4500, "a" + "()" * 4000,
     "not " * 2000 + "1", "{'descr':'<i4','fortran_order':False,'shape':(4,),'x':1" + "+1" * 4000 + "}"],
    ids=lambda text: text[:4],
)  # fmt: skip
def test_deep_npy_headers_are_refused(text):
    beside_numpy(npy(text, version=(2, 0)))


def test_a_long_npy_header_is_not_read():
    with open("x.npy", "wb") as file:
        file.write(npy("{", version=(2, 0), count=2**32 - 1))
        file.truncate(1 << 32)
    tracemalloc.start()
    with pytest.raises(ValueError, match="x.npy: its header has 4294967295 bytes, and numpy reads up to 10000"):
        iomill.open("x.npy")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 20


def test_a_dtype_is_no_way_around_a_header(drives):
    np.save("x.npy", np.arange(6, dtype="<i8"))
    with pytest.raises(ValueError, match="its header has the dtype int64"):
        iomill.open("x.npy", dtype="u1")
    with pytest.raises(ValueError, match="its header has the shape"):
        iomill.open("x.npy", dtype="<i8", shape=(6,))
    assert iomill.open("x.npy", dtype="<i8")[5] == 5
    # With an offset it is a raw file.
    assert iomill.open("x.npy", dtype="<i8", offset=128)[5] == 5
    iomill.put("x.npy", drives, "x")
    with pytest.raises(ValueError, match="its header has the dtype int64"):
        iomill.open(drives[0], "x", dtype="f8")


def test_integers_of_numpy_do_not_wrap():
    with open("big.bin", "wb") as file:
        file.truncate(5 << 30)
        file.seek(16 + (4 << 30))
        file.write(b"\7" * 100)
    assert iomill.open("big.bin", dtype="u1", offset=np.uint32(16)).shape == ((5 << 30) - 16,)
    rows = iomill.open("big.bin", dtype="u1", shape=(np.uint32(70000), np.uint32(65536)))
    assert rows.shape == (70000, 65536) and type(rows.shape[0]) is int and rows.nbytes == 70000 * 65536
    assert iomill.open("big.bin", dtype="f8", shape=(10, np.uint8(32)))[[1]].shape == (1, 32)
    assert iomill.open("big.bin", dtype="f8", shape=(-1, np.uint8(32))).shape == ((5 << 30) // 256, 32)
    assert iomill.open("big.bin", dtype="f8", shape=np.int64(5)).shape == (5,)
    assert iomill.open("big.bin", dtype="f8", shape=np.array([5, 2])).shape == (5, 2)
    with iomill.File("big.bin") as file:
        assert file.seek(np.uint32(4_000_000_000)) == 4_000_000_000
        assert file.seek(np.int32(2_000_000_000), os.SEEK_CUR) == 6_000_000_000
        assert len(file.read_at(np.uint32(5), np.int16(3))) == 3
        ranges = [(np.uint32(16), np.int8(100))] * 3
        assert [len(part) for part in file.read_ranges(ranges)] == [100] * 3
        assert [len(part) for part in file.read_ranges_async(ranges).result()] == [100] * 3
    for wrong in (True, 2.0, "5", (5, True), (2.5, 1), [np.bool_(True)]):
        with pytest.raises(TypeError, match="shape: "):
            iomill.open("big.bin", dtype="f8", shape=wrong)
    with pytest.raises(TypeError, match="offset: "):
        iomill.open("big.bin", dtype="f8", offset=0.0)
    with pytest.raises(ValueError, match="big.bin"):
        iomill.open("big.bin", dtype="f8", shape=(0, 2**62, 2**62))


def tensors(header, data=b"", count=None):
    text = header if isinstance(header, bytes) else header.encode("utf8", "surrogatepass")
    return struct.pack("<Q", len(text) if count is None else count) + text + data


TYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8",
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
    "F8_E4M3FNUZ": "u1", "F8_E5M2FNUZ": "u1",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:iomill. numpy has no")
def beside_safetensors(content, is_twice=False):
    safetensors = pytest.importorskip("safetensors")
    with open("x.safetensors", "wb") as file:
        file.write(content)
    try:
        expected = dict(safetensors.deserialize(content))
    except safetensors.SafetensorError:
        expected = None
    if expected is None or is_twice:
        for name in ("a", "b", "", "nope"):
            assert outcome_of("x.safetensors", name) is None
        return
    assert outcome_of("x.safetensors", "nope") is None
    for name, tensor in expected.items():
        ours = outcome_of("x.safetensors", name)
        if not tensor["shape"] or tensor["dtype"] not in TYPES:
            assert ours is None
            continue
        assert ours is not None and ours.shape == tuple(tensor["shape"])
        assert ours[:].tobytes() == bytes(tensor["data"])


NUMBERS = st.one_of(st.integers(-1, 9), st.sampled_from([1.0, "1", None, True, 2**63, 2**64, [1]]))
TENSORS = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*TYPES, "F4", "F6_E2M3", "F6_E3M2", "C128", "f32", "", None, 1]),
        "shape": st.one_of(st.lists(st.integers(0, 3), max_size=3), st.lists(NUMBERS, max_size=2), NUMBERS),
        "data_offsets": st.one_of(
            st.tuples(st.integers(0, 8), st.integers(0, 16)).map(list), st.lists(NUMBERS, max_size=3), NUMBERS
        ),
    },
    optional={"x": st.sampled_from([1, 1.5, None, [], {"y": []}, "text"])},
)


def fitted(items):
    """Adjacent tensors, so that the library accepts some of them."""
    start, made = 0, {}
    for name, dtype, shape in items:
        bits = {"F4": 4, "F6_E2M3": 6}.get(dtype) or 8 * np.dtype(TYPES[dtype]).itemsize
        end = start + bits * int(np.prod(shape)) // 8
        made[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        start = end
    return made, start


FITTED = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "", "é", "日"]), st.sampled_from([*TYPES, "F4", "F6_E2M3"]), st.lists(st.integers(0, 3), max_size=3)
    ),
    max_size=3,
    unique_by=lambda item: item[0],
).map(fitted)  # fmt: skip


@pytest.mark.filterwarnings("ignore:iomill. numpy has no")
@QUICK
@given(
    fitted=FITTED,
    changes=st.dictionaries(st.sampled_from(["a", "b"]), TENSORS, max_size=1),
    metadata=st.sampled_from([..., ..., ..., None, {}, {"k": "v"}, {"k": 1}, [], "x", {"k": None}]),
    more=st.integers(-2, 2),
    before=st.sampled_from(["", "", "", " ", "\n", "\ufeff", "x"]),
    after=st.sampled_from(["", "", "", " ", "\n\t", "\0", "}", ",", "{}"]),
    without=st.sampled_from([None, None, None, "dtype", "shape", "data_offsets"]),
)
def test_safetensors_beside_the_library(tmp_path_factory, fitted, changes, metadata, more, before, after, without):
    os.chdir(tmp_path_factory.getbasetemp())
    header, size = fitted
    header = header | changes
    if without is not None:
        header = {name: {key: of[key] for key in of if key != without} for name, of in header.items()}
    if metadata is not ...:
        header["__metadata__"] = metadata
    beside_safetensors(
        tensors(before + json.dumps(header, ensure_ascii=False) + after, bytes(max(0, size + more * (more != 1))))
    )


I8 = '{"dtype":"I8","shape":[2],"data_offsets":[%s]}'
BAD = {
    "negative offsets": '{"a":' + I8 % "-2,0" + "}",
    "overlap": '{"a":' + I8 % "0,2" + ',"b":' + I8 % "1,3" + "}",
    "the same bytes": '{"a":' + I8 % "0,2" + ',"b":' + I8 % "0,2" + "}",
    "a hole": '{"a":' + I8 % "0,2" + ',"b":' + I8 % "3,5" + "}",
    "a hole in front": '{"a":' + I8 % "2,4" + "}",
    "backwards": '{"a":' + I8 % "2,0" + "}",
    "byte order mark": '\ufeff{"a":' + I8 % "0,2" + "}",
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "no UTF-8": b'{"\xff":1}',
    "half of a pair": '{"\\ud800":' + I8 % "0,2" + "}",
    "half of a pair as it is": '{"a\ud800":' + I8 % "0,2" + "}",
    "NaN": '{"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2],"x":NaN}}',
    "Infinity": '{"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2],"x":1e999}}',
    "an integer out of range": '{"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2],"x":' + "9" * 400 + "}}",
    "float": '{"a":{"dtype":"I8","shape":[2.0],"data_offsets":[0,2]}}',
    "minus zero": '{"a":' + I8 % "-0,2" + "}",
    "nested": '{"a":' + "[" * 100_000 + "]" * 100_000 + "}",
    "nested in what is ignored": '{"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2],"x":'
    + "[" * 200
    + "]" * 200
    + "}}",
    "open": '{"a":' * 1000,
    "too big": '{"a":{"dtype":"I8","shape":[18446744073709551615,2],"data_offsets":[0,2]}}',
    "no field": '{"a":{"shape":[2],"data_offsets":[0,2]}}',
    "a field twice": '{"a":{"dtype":"I8","dtype":"I8","shape":[2],"data_offsets":[0,2]}}',
    "metadata twice": '{"__metadata__":{},"__metadata__":{},"a":' + I8 % "0,2" + "}",
    "a number": '{"a":1}',
    "a list": "[]",
    "nothing": "",
    "control character": '{"a\1":' + I8 % "0,2" + "}",
    "F4 within a byte": '{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}',
}


@pytest.mark.parametrize("header", BAD.values(), ids=BAD)
def test_bad_safetensors(header):
    safetensors = pytest.importorskip("safetensors")
    for size in (2, 3, 4, 5, 0):
        content = tensors(header, bytes(size))
        with pytest.raises(safetensors.SafetensorError):
            safetensors.deserialize(content)
        beside_safetensors(content)


def test_a_tensor_that_is_there_twice_is_refused():
    """The library uses the later one."""
    beside_safetensors(tensors('{"a":' + I8 % "0,2" + ',"a":' + I8 % "0,2" + "}", b"12"), is_twice=True)


def test_lengths_of_safetensors_headers():
    for count in (0, 1, 3, 10**9, 2**63, 2**64 - 1):
        beside_safetensors(tensors("{}", b"12", count))
    for length in range(10):
        beside_safetensors(tensors('{"a":' + I8 % "0,2" + "}", b"12")[:length])
    with open("x.safetensors", "wb") as file:
        file.write(struct.pack("<Q", 2**40))
        file.truncate(2**41)
    with pytest.raises(ValueError, match="safetensors reads up to 100000000"):
        iomill.open("x.safetensors", "a")
