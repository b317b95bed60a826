"""Headers beside the libraries that define them: a header that they refuse is a ValueError with the name of the
file."""

import io
import json
import os
import random
import re
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
    """The rows, or None if they are refused. Any other error than a ValueError with the name fails the test. While
    memory is traced, so does memory beyond a bound by the length of the file."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        return iomill.open(path, *name)
    except ValueError as error:
        assert os.path.basename(path) in str(error), error
        return None
    finally:
        assert tracemalloc.get_traced_memory()[1] - before < 100 * os.path.getsize(path) + (2 << 20)


def npy(header, data=DATA, version=(1, 0), count=None):
    encoded = header if isinstance(header, bytes) else header.encode("utf8" if version[0] > 2 else "latin1", "replace")
    length = len(encoded) if count is None else count
    form = "<H" if version[0] == 1 else "<I"
    if form == "<H":
        length = min(length, 0xFFFF)
    return b"\x93NUMPY" + bytes(version) + struct.pack(form, length) + encoded + data


def is_fortran(content):
    """Whether numpy reads an array as one in Fortran order."""
    version = content[len(np.lib.format.MAGIC_PREFIX)]
    # Versions 2 and 3 differ in the encoding, which plays no part here.
    as_known = content[:6] + bytes([min(version, 2)]) + content[7:]
    read = np.lib.format.read_array_header_1_0 if version == 1 else np.lib.format.read_array_header_2_0
    return read(io.BytesIO(as_known[8:]))[1]


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
    if expected.ndim == 0 or expected.dtype.itemsize == 0 or (expected.ndim > 1 and is_fortran(content)):
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


def saved(values):
    file = io.BytesIO()
    np.lib.format.write_array(file, values)
    return file.getvalue()


# Headers as numpy writes them, of all versions, and the header of Python 2.
GOOD_NPY = [
    saved(np.arange(12, dtype="<i4").reshape(4, 3)),
    saved(np.arange(5, dtype=">f8")),
    saved(np.asfortranarray(np.arange(6, dtype="<u2").reshape(2, 3))),
    saved(np.zeros(3, dtype=[("a", "<i2"), ("b", ">f4", (2,)), ("c", [("d", "S3")])])),
    saved(np.zeros(2, dtype=[("日", "<i4")])),
    saved(np.array(["ab", "c"])),
    saved(np.array(7)),
    npy("{'descr': '<i4', 'fortran_order': False, 'shape': (4, 2)}\n", version=(2, 0)),
    npy("{'descr': '|u1', 'fortran_order': False, 'shape': (8L, 4L)}\n"),
]
PARTS_OF_NPY = [
    b"'descr'", b"'fortran_order'", b"'shape'", b"'|O'", b"'O'", b"'<i4'", b"'<M8[s]'", b"'V0'", b"'i4,O'", b"'(2,)i4'",
    b"[('a', '<i2')]", b"('<i4', (2,))", b"None", b"True", b"False", b"()", b"(3,)", b"(-1,)", b"{}", b"{'shape': ",
    b"L", b"\\", b"\\N{DIGIT ONE}", b"\\ud800", b"f'", b"b'", b"1if 1else 2", b"lambda:0", b"...",
]  # fmt: skip

SAFE = {
    "a": {"dtype": "I8", "shape": [2, 3], "data_offsets": [0, 6]},
    "é": {"dtype": "F32", "shape": [2, 2], "data_offsets": [6, 22]},
    "c": {"dtype": "BF16", "shape": [4], "data_offsets": [22, 30]},
}
GOOD_SAFETENSORS = [
    tensors(json.dumps(SAFE, ensure_ascii=False), bytes(range(30))),
    tensors(json.dumps({"__metadata__": {"format": "pt"}} | SAFE), bytes(range(30))),
    tensors(json.dumps({"a": SAFE["a"], "e": {"dtype": "F64", "shape": [0], "data_offsets": [6, 6]}}), bytes(6)),
    tensors(json.dumps({"a": {"dtype": "U8", "shape": [], "data_offsets": [0, 1]}}) + "  ", b"1"),
]
PARTS_OF_SAFETENSORS = [
    b'"dtype"', b'"shape"', b'"data_offsets"', b'"__metadata__"', b'"F4"', b'"F6_E2M3"', b'"C64"', b'"I8"', b"null", b"true", b"[]",
    b"[0,6]", b"[6,0]", b"[-6,0]", b'{"a":', b"{}", b"NaN", b"1e999", b"-0", b"0.5", b'"\\ud800"', b'"\\u0061"', b"\xef\xbb\xbf",
]  # fmt: skip
NUMBERS_OF_ANY = [
    0, 1, -1, 2, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**40, 10**400,
]  # fmt: skip


def mutated(rng, goods, parts):
    """A good file with some changes: of bits, of pieces, of numbers, of its length and of that of its header."""
    content = bytearray(rng.choice(goods))
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        # Most changes are within the header. The bytes of the rows do not matter.
        start = rng.randrange(len(content) + 1)
        end = min(len(content), start + rng.choice([0, 0, 1, 2, 5, 20]))
        digits = [at for at, byte in enumerate(content[8:], 8) if chr(byte).isdigit()]
        match rng.randrange(10):
            case 0 | 1 if start < len(content):
                content[start] ^= 1 << rng.randrange(8)
            case 2:
                content[start:end] = rng.randbytes(rng.randrange(4))
            case 3 | 4:
                content[start:end] = rng.choice(parts)
            case 5 if digits:
                at = rng.choice(digits)
                content[at : at + rng.choice([1, 1, 2])] = str(rng.choice(NUMBERS_OF_ANY)).encode()
            case 6 if pairs := list(re.finditer(rb"(\d{1,9}), ?(\d{1,9})\]", content)):
                # Moves two offsets, so that a tensor overlaps another one, or leaves a hole.
                pair, by = rng.choice(pairs), rng.choice([-6, -1, 1, 2, 6])
                content[slice(*pair.span())] = b"%d,%d]" % (int(pair[1]) + by, int(pair[2]) + by)
            case 7:
                other = rng.choice(goods)
                at = rng.randrange(len(other))
                content[start:end] = other[at : at + rng.randrange(60)]
            case 8 if rng.randrange(4) == 0:
                opening = rng.choice([b"(", b"[", b"{", b'{"a":', b"-", b"+1", b"'"])
                content[start:end] = opening * rng.choice([30, 150, 3000])
            case 8 | 9 if rng.randrange(4) == 0:
                del content[start:]
            case _:
                content[start:start] = content[start:end] * rng.randrange(3)
    return bytes(content)


def with_length(rng, content, form):
    """The same with the right length of the header, mostly, so that the change is read."""
    at, size = (0, 8) if form == "<Q" else (8, struct.calcsize(form))
    if len(content) < at + size or rng.randrange(5) == 0:
        return content
    if rng.randrange(8) == 0:
        length = rng.choice(NUMBERS_OF_ANY[3:-3]) % 256**size
    elif form == "<Q":
        length = max(content.rfind(b"}") + 1 - 8, 0)
    else:
        length = max(content.rfind(b"}") + 1, content.find(b"\n") + 1, at + size) - at - size
    return content[:at] + struct.pack(form, length % 256**size) + content[at + size :]


def cases(count):
    """Numbers of cases, by which each can be repeated: `IOMILL_SEED` names one, `IOMILL_ROUNDS` asks for more."""
    if "IOMILL_SEED" in os.environ:
        return [int(os.environ["IOMILL_SEED"])]
    if "IOMILL_ROUNDS" in os.environ:
        first = random.SystemRandom().randrange(2**40)
        return range(first, first + count * int(os.environ["IOMILL_ROUNDS"]))
    return range(count)


def each(goods, parts, form, judge):
    """Judges changed files. In some cases memory is traced, which takes time, and `outcome_of` checks its bound."""
    for seed in cases(1000):
        rng = random.Random(seed)
        content = mutated(rng, goods, parts)
        content = with_length(rng, content, form(content))
        if seed % 10 == 0:
            tracemalloc.start()
        try:
            judge(content)
        except BaseException as error:
            error.add_note(f"again: IOMILL_SEED={seed}; the file is {content!r}")
            raise
        finally:
            tracemalloc.stop()


@pytest.mark.filterwarnings("ignore")
def test_changed_npy_headers():
    """`IOMILL_ROUNDS=20` tries twenty times as many, from new seeds."""
    each(GOOD_NPY, PARTS_OF_NPY, lambda content: "<H" if content[6:7] == b"\1" else "<I", beside_numpy)


@pytest.mark.filterwarnings("ignore")
def test_changed_safetensors_headers():
    def judge(content):
        beside_safetensors(content, is_twice=has_twice(content))

    each(GOOD_SAFETENSORS, PARTS_OF_SAFETENSORS, lambda content: "<Q", judge)


def has_twice(content):
    """Whether a header names a tensor twice."""
    names = []

    def note(pairs):
        # The whole header comes last.
        names[:] = [name for name, _ in pairs]

    try:
        json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")], object_pairs_hook=note)
    except (ValueError, RecursionError):
        return False
    return len(set(names)) < len(names)
