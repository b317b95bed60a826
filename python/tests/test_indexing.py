"""A `RowArray` is indexed like the ndarray with the same contents: the same result, or the same kind of error in the
same words."""

import warnings

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import iomill

SHAPES = [(0,), (1,), (7,), (5, 3), (0, 4), (4, 0), (6, 2, 3), (3, 1, 2, 2), (1000,)]
DTYPES = ["u1", "<f4", ">i8", "S3", [("a", "<i2"), ("b", ">f8", (2,))]]


class Pair(tuple):
    def __repr__(self):
        return f"Pair of shape {self[0].shape}"


def contents(shape, dtype="<i8"):
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(bytes(i * 7 % 251 for i in range(count)), dtype).reshape(shape)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """For each shape the ndarray and the rows in a file."""
    place = tmp_path_factory.mktemp("pairs")
    made = []
    for number, shape in enumerate(SHAPES):
        path = place / f"{number}.npy"
        np.save(path, contents(shape))
        made.append(Pair((np.load(path), iomill.open(path))))
    return made


def outcome(call):
    """A result or an error, to be compared."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except (IndexError, TypeError, ValueError) as error:
        return type(error), str(error)


def same(ours, theirs):
    if isinstance(theirs, tuple):
        assert ours == theirs
        return
    assert type(ours) is type(theirs)
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    assert ours.tobytes() == theirs.tobytes()


def keys(shape):
    """Keys that numpy accepts, and keys that it refuses."""
    first = shape[0]
    integers = st.integers(-first - 2, first + 1)
    arrays = hnp.arrays(
        st.sampled_from(["i8", "i4", "u2", "i1", ">i8", "u8"]).map(np.dtype),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements=st.integers(0, max(0, min(first - 1, 100))),
    )
    one = st.one_of(
        integers,
        integers.map(np.int64),
        st.slices(first),
        st.slices(first + 5),
        arrays,
        st.lists(integers, max_size=5),
        hnp.arrays(bool, st.just((first,))),
        hnp.arrays(bool, st.just(shape)),
        hnp.arrays(bool, st.just((first + 1,))),
        st.lists(st.booleans(), min_size=first, max_size=first),
        st.sampled_from([None, Ellipsis, True, False, np.True_, np.array(True), 1.5, "a", [1.5], [[0], [0]], b"x"]),
        st.just(np.array([], float)),
    )
    valid = hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True)
    if 0 not in shape:
        valid |= hnp.integer_array_indices(shape, result_shape=hnp.array_shapes(max_dims=2, max_side=3))
    return st.one_of(one, valid, st.lists(one, max_size=4).map(tuple))


@settings(max_examples=600)
@given(data=st.data())
def test_any_key(pairs, data):
    array, rows = data.draw(st.sampled_from(pairs))
    key = data.draw(keys(array.shape))
    same(outcome(lambda: rows[key]), outcome(lambda: array[key]))


@settings(max_examples=300)
@given(data=st.data())
def test_take(pairs, data):
    array, rows = data.draw(st.sampled_from([pair for pair in pairs if len(pair[0])]))
    limit = len(array) + 1
    ids = data.draw(
        hnp.arrays("i8", hnp.array_shapes(min_dims=0, max_dims=3, min_side=0), elements=st.integers(-limit, limit))
    )
    theirs = outcome(lambda: array.take(ids, axis=0))
    ours = outcome(lambda: rows.take(ids))
    if 0 in array.shape[1:] and not isinstance(ours, tuple):
        assert ours.shape == theirs.shape
        return
    if not isinstance(theirs, tuple):
        theirs = np.asarray(theirs)
    same(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype):
    array = contents((50, 3), dtype)
    np.save("x.npy", array)
    rows = iomill.open("x.npy")
    assert rows.dtype == np.load("x.npy").dtype
    for key in (
        7,
        slice(None, None, -3),
        [1, -1, 1],
        (slice(2, 9), 1),
        (np.arange(4), [0, 1, 2, 0]),
        array[:, 0] == array[3, 0],
    ):
        same(rows[key], np.load("x.npy")[key])


def test_fields_are_taken_from_rows():
    np.save("x.npy", np.zeros(4, [("a", "i4")]))
    rows = iomill.open("x.npy")
    with pytest.raises(IndexError, match="take rows first"):
        rows["a"]
    assert rows[1:3]["a"].shape == (2,)


def test_iteration_and_attributes():
    array = contents((1000, 3))
    np.save("x.npy", array)
    rows = iomill.open("x.npy")
    assert (len(rows), rows.ndim, rows.size, rows.nbytes) == (1000, 2, 3000, 24000)
    assert np.array_equal(list(rows), array)
    assert np.array_equal(np.asarray(rows), array) and np.asarray(rows, "f4").dtype == "f4"
    with pytest.raises(ValueError, match="Unable to avoid copy"):
        np.array(rows, copy=False)
    for refused in (lambda: rows + 1, lambda: array + rows, lambda: np.add(rows, 1)):
        with pytest.raises(TypeError):
            refused()


def test_results_are_arrays_of_their_own():
    np.save("x.npy", contents((100, 64)))
    rows = iomill.open("x.npy")
    taken = rows[[3, 4]]
    assert taken.flags.writeable and taken.flags.c_contiguous
    assert np.from_dlpack(taken).shape == (2, 64)
    # A column does not keep all rows.
    assert rows[:, 0].base is None
    taken[...] = 0
    assert rows[3].any()


def test_out():
    array = contents((100, 4), "<f4")
    np.save("x.npy", array)
    rows = iomill.open("x.npy")
    ids = [5, -1, 5]
    out = np.empty((3, 4), "<f4")
    assert rows.take(ids, out=out) is out and np.array_equal(out, array[ids])
    assert rows.take(ids, out, axis=-2) is out
    memory = bytearray(3 * 16)
    rows.take([9], out=np.frombuffer(memory, "<f4")[:4].reshape(1, 4))
    assert bytes(memory[:16]) == array[9].tobytes()
    flat = np.arange(50, dtype="<f4")
    np.save("flat.npy", flat)
    # Any object with a buffer.
    import array as arrays

    numbers = arrays.array("f", [0] * 2)
    iomill.open("flat.npy").take([7, 8], out=numbers)
    assert list(numbers) == [7, 8]
    strided = np.zeros((3, 8), "<f4")[:, ::2]
    assert np.array_equal(rows.take(ids, out=strided), array[ids])
    with pytest.raises(ValueError, match="does not match"):
        rows.take(ids, out=np.empty((2, 4), "<f4"))
    with pytest.raises(TypeError, match="float64"):
        rows.take(ids, out=np.empty((3, 4)))
    with pytest.raises(ValueError, match="along axis 1"):
        rows.take([0], axis=1)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        rows.take(ids, out=out)
    wide = np.zeros((3, 8), "<f4")
    wide.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        rows.take(ids, out=wide[:, ::2])


def test_ids():
    array = contents((300, 2))
    np.save("x.npy", array)
    rows = iomill.open("x.npy")
    for dtype in ("i1", "u1", "i2", ">u2", "u4", ">i8", "u8"):
        ids = np.array([3, 100, 7], dtype)
        assert np.array_equal(rows[ids], array[ids])
    assert np.array_equal(rows[np.arange(300)[::-7]], array[::-7])
    with pytest.raises(IndexError, match="index 300 is out of bounds for axis 0 with size 300"):
        rows[np.array([0, 300])]
    with pytest.raises(IndexError, match="index -301 is out of bounds for axis 0 with size 300"):
        rows[[-301]]
    with pytest.raises(IndexError, match=f"index {2**64 - 1} is out of bounds"):
        rows[np.array([2**64 - 1], "u8")]
    with pytest.raises(IndexError, match="must be of integer"):
        rows.take([0.5])


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", ">u2", "u4", ">i8", "u8"])
def test_ids_of_any_type_are_written_and_brought_within_bounds(dtype):
    # More rows than a byte can number.
    array = contents((300, 2)).copy()
    np.save("x.npy", array)
    ids = np.array([3, 100, 7, 100], dtype)
    with iomill.open("x.npy", mode="r+") as rows:
        rows[ids] = array[ids] = [[1, 2], [3, 4], [5, 6], [7, 8]]
        if ids.dtype.kind == "i":
            rows[-ids] = array[-ids] = [[9, 2], [9, 4], [9, 6], [9, 8]]
        assert np.array_equal(rows[:], array)
        for mode in ("wrap", "clip"):
            assert np.array_equal(rows.take(ids, mode=mode), array[ids])


@settings(max_examples=60)
@given(data=st.data())
def test_write(tmp_path_factory, data):
    array = contents((9, 2)).copy()
    path = tmp_path_factory.mktemp("write") / "x.npy"
    np.save(path, array)
    key = data.draw(
        st.one_of(
            st.integers(-9, 8),
            st.slices(9),
            st.lists(st.integers(-9, 8), max_size=6),
            hnp.arrays(bool, (9,)),
            hnp.arrays("i4", (2, 2), elements=st.integers(-9, 8)),
            st.just(Ellipsis),
        )
    )
    shape = array[key].shape
    values = data.draw(hnp.arrays("i4", st.sampled_from([shape, (), (2,)]), elements=st.integers(-100, 100)))
    with iomill.open(path, mode="r+") as rows:
        rows[key] = values
        array[key] = values
        assert np.array_equal(rows[:], array)
    assert np.array_equal(np.load(path), array)


def test_write_is_refused():
    np.save("x.npy", contents((9, 2)))
    with iomill.open("x.npy") as rows, pytest.raises(ValueError, match="assignment destination is read-only"):
        rows[0] = 1
    with iomill.open("x.npy", mode="r+") as rows:
        with pytest.raises(ValueError, match="could not broadcast"):
            rows.write([1, 2], np.zeros((3, 2)))
        # -10 would be -1, and -18 the first row, if the number of rows were added twice.
        for number in (9, -10, -18, -19, 2**63 - 1, -(2**63)):
            with pytest.raises(IndexError, match=f"^index {number} is out of bounds for axis 0 with size 9$"):
                rows.write([0, number], [0, 0])
        with pytest.raises(IndexError, match=f"index {2**64 - 1} is out of bounds"):
            rows.write(np.array([2**64 - 1], "u8"), [0, 0])
        assert np.array_equal(rows[:], contents((9, 2)))
        with pytest.raises(ValueError, match="rows are written whole"):
            rows[0, 1] = 3
        rows[0,] = 3
        rows.flush()
    with pytest.raises(ValueError, match="mode must be one of"):
        iomill.open("x.npy", mode="w+")


@pytest.mark.parametrize("mode", ["raise", "wrap", "clip"])
def test_a_single_number_is_brought_within_bounds(mode):
    """Seen to fail: numpy makes a scalar of an array without axes."""
    array = contents((10, 3), "<i4")
    np.save("x.npy", array)
    for number in (3, np.int8(-2), np.array(9, "u2")) if mode == "raise" else (3, 10, -23, np.uint8(200)):
        taken = iomill.open("x.npy").take(number, mode=mode)
        assert np.array_equal(taken, np.take(array, number, axis=0, mode=mode)) and taken.shape == (3,)
