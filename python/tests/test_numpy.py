"""Functions of numpy with a `RowArray`: none silently reads all rows."""

import inspect
import itertools
import operator
import os
import warnings

import numpy as np
import pytest

import iomill

VALUES = np.arange(60, dtype="i4").reshape(20, 3)


@pytest.fixture
def rows():
    np.save("x.npy", VALUES)
    return iomill.open("x.npy")


@pytest.fixture
def conversions(monkeypatch):
    """Counts the conversions of all rows to an ndarray."""
    made = []
    monkeypatch.setattr(iomill.RowArray, "_slice", lambda self, key: made.append(key) or VALUES[key])
    return made


# These are documented to convert their argument to an ndarray. They are written in C, so `__array__` cannot distinguish
# them from `numpy.asarray`.
CONVERT = {
    "asarray", "asanyarray", "array", "ascontiguousarray", "asfortranarray", "from_dlpack", "fromiter", "frombuffer",
    "nditer", "broadcast", "flatiter", "nested_iters", "ndarray", "frompyfunc", "vectorize", "arange",
}  # fmt: skip

# These do not compute; they run numpy's tests, for instance.
APART = {
    "test",
    "show_config",
    "show_runtime",
    "info",
    "get_include",
    "setbufsize",
    "set_printoptions",
    "seterr",
    "save",
}

pytest.importorskip("numpy", "2.0")

MODULES = [
    np, np.linalg, np.fft, np.polynomial.polynomial, np.polynomial.chebyshev, np.lib.stride_tricks, np.lib.scimath,
    np.char, np.strings, np.emath,
]  # fmt: skip


def functions():
    for module in MODULES:
        for name in sorted(dir(module)):
            function = getattr(module, name)
            if name.startswith("_") or not callable(function) or inspect.isclass(function):
                continue
            if name not in CONVERT | APART:
                yield pytest.param(function, id=f"{module.__name__}.{name}")


def arguments(rows):
    """Ways to call a function with rows."""
    plain = np.arange(3)
    for before, after in itertools.product(
        ([], [1], [plain], ["i,j"]), ([], [0], [1, 0], [plain], [rows], [rows, rows])
    ):
        yield [*before, rows, *after]


@pytest.mark.parametrize("function", functions())
def test_no_function_reads_all_rows(rows, conversions, function):
    for given in arguments(rows):
        before = len(conversions)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function(*given)
        except Exception:
            # Refused, or called wrongly.
            pass
        # An iteration reads blocks of rows.
        whole = [key for key in conversions[before:] if key == slice(None)]
        assert not whole, f"{function} of {given}"


def test_functions_that_need_no_rows(rows, conversions):
    assert np.shape(rows) == (20, 3) and np.ndim(rows) == 2 and np.size(rows) == 60
    assert np.zeros_like(rows).shape == (20, 3) and np.empty_like(rows, dtype="f8").dtype == "f8"
    assert np.result_type(rows, np.float64) == np.float64 and np.isrealobj(rows)
    assert not conversions


def test_numpy_take(rows, conversions):
    ids = np.array([[3, -1], [0, 7]])
    assert np.array_equal(np.take(rows, ids, axis=0), VALUES[ids])
    out = np.empty((2, 2, 3), "i4")
    assert np.array_equal(np.take(a=rows, indices=ids, axis=0), VALUES[ids])
    with pytest.raises(TypeError, match="would read all"):
        np.take(VALUES, rows, axis=0)
    assert np.take(rows, ids, axis=0, out=out) is out and np.array_equal(out, VALUES[ids])
    wild = np.array([-45, -1, 5, 20, 99])
    for mode in ("wrap", "clip"):
        expected = np.take(VALUES, wild, axis=0, mode=mode)
        assert np.array_equal(np.take(rows, wild, axis=0, mode=mode), expected)
        assert np.array_equal(rows.take(wild, axis=0, mode=mode), expected)
        assert np.array_equal(rows.take(wild.astype(">i8"), mode=mode), expected)
        assert np.array_equal(rows.take(np.array([250, 3], "u1"), mode=mode), VALUES.take([250, 3], 0, mode=mode))
    with pytest.raises(IndexError, match="out of bounds"):
        np.take(rows, wild, axis=0)
    with pytest.raises(ValueError, match="clipmode"):
        np.take(rows, ids, axis=0, mode="none")
    with pytest.raises(ValueError, match="along axis None"):
        np.take(rows, ids)
    with pytest.raises(ValueError, match="along axis 1"):
        np.take(rows, ids, axis=1)
    assert not conversions
    np.save("flat.npy", np.arange(9))
    assert np.take(iomill.open("flat.npy"), [3, 8]).tolist() == [3, 8]
    np.save("none.npy", np.zeros((0, 3)))
    with pytest.raises(IndexError, match="non-empty take"):
        np.take(iomill.open("none.npy"), [1], axis=0, mode="wrap")


def test_comparisons_are_refused(rows, conversions):
    other = np.zeros((20, 3))
    for compare in (
        lambda: rows == 3,
        lambda: 3 == rows,
        lambda: rows != other,
        lambda: other == rows,
        lambda: rows < 3,
        lambda: rows >= other,
        lambda: other > rows,
        lambda: rows == rows,
    ):
        with pytest.raises(TypeError, match="would read all 240 bytes"):
            compare()
    with pytest.raises(ValueError, match="ambiguous"):
        bool(rows)
    assert not conversions
    # It can still be a key of a dictionary, and be found in a list.
    assert {rows: 1}[rows] == 1 and rows in [rows]


def test_operators_are_refused_with_advice(rows, conversions):
    other = np.zeros((20, 3))
    for operate in (
        lambda: rows + 1,
        lambda: 1 - rows,
        lambda: other * rows,
        lambda: rows @ other.T,
        lambda: rows**2,
        lambda: -rows,
        lambda: abs(rows),
        lambda: divmod(rows, 2),
        lambda: operator.iadd(rows, 1),
    ):
        with pytest.raises(TypeError, match=r"an operator would read all 240 bytes .* pass the needed rows, or x\[:\]"):
            operate()
    assert not conversions


def test_what_reads_all_rows_says_so(rows, monkeypatch):
    assert np.array_equal(np.asarray(rows), VALUES) and np.array_equal(np.array(rows, "f8"), VALUES)
    with pytest.raises(TypeError, match="this function of numpy would read all 240 bytes"):
        np.polynomial.polynomial.polyval(2, rows)
    # A function of tests compares all values on purpose.
    np.testing.assert_array_equal(rows, VALUES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.asarray(rows)
    monkeypatch.setattr(iomill._rows, "_TOLD_BYTES", 100)
    with pytest.warns(RuntimeWarning, match="reads all 240 bytes"):
        np.random.default_rng(1).permutation(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(rows[:], VALUES)


def test_an_iteration_reads_blocks(rows, monkeypatch):
    read = []
    take = iomill.RowArray._slice
    monkeypatch.setattr(iomill._rows, "_BLOCK_BYTES", 60)
    monkeypatch.setattr(iomill.RowArray, "_slice", lambda self, key: read.append(key) or take(self, key))
    assert sum(row.sum() for row in rows) == VALUES.sum()
    assert len(read) == 4 and os.path.exists("x.npy")


def test_a_representation_has_the_whole_name_on_drives(drives):
    iomill.put(VALUES, drives, "train/features")
    assert repr(iomill.open(drives[0], "train/features")) == "<iomill.RowArray 'train/features': shape (20, 3), int32>"
    os.mkdir("place")
    np.save("place/x.npy", VALUES)
    assert repr(iomill.open("place/x.npy")) == "<iomill.RowArray 'x.npy': shape (20, 3), int32>"
