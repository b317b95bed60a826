"""`RowArray`: rows of one dtype and shape in a file, indexed like an ndarray."""

from __future__ import annotations

import errno
import operator
import os
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, SupportsIndex, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import _iomill
from ._common import Closing
from ._elements import ELEMENTS, bits_of, is_of_element
from ._files import File
from ._futures import Done, Gather, begun
from ._keys import integers, item_of
from ._openings import settle

if TYPE_CHECKING:
    from ._keys import Clip, Ids, Item, Key

_Out = TypeVar("_Out")

# The bytes that an iteration reads at a time.
_BLOCK_BYTES = 4 << 20

# A library may convert rows to an ndarray without the user's knowledge. From this number of bytes on that warns.
_TOLD_BYTES = 256 << 20

_WHOLE = slice(None)

# Functions of numpy that need no rows: a shape and a dtype are enough.
_OF_SHAPE = {
    "shape", "ndim", "size", "empty_like", "zeros_like", "ones_like", "full_like", "result_type", "can_cast",
    "min_scalar_type", "common_type", "iscomplexobj", "isrealobj",
}  # fmt: skip


class RowArray(Closing):
    """Rows in a file, indexed like an ndarray: `iomill.open` returns one. Each result is a new ndarray.

    >>> import numpy, iomill
    >>> numpy.save("features.npy", numpy.arange(12, dtype="f4").reshape(4, 3))
    >>> x = iomill.open("features.npy")
    >>> x.shape, x.dtype, len(x)
    ((4, 3), dtype('float32'), 4)
    >>> x[[3, -4]]
    array([[ 9., 10., 11.],
           [ 0.,  1.,  2.]], dtype=float32)
    >>> x[1:3, 0]
    array([3., 6.], dtype=float32)

    The first axis is read from the drives, and the others are indexed in memory. Integers, slices, boolean masks,
    arrays of integers of any shape and tuples of them work as in numpy. A key that numpy refuses is refused with
    numpy's error.

    It is not an ndarray: operators, comparisons, ufuncs and functions of numpy refuse it, because they would read all
    rows. ``numpy.take(x, ids, axis=0)`` is `take`. ``numpy.asarray(x)`` and ``x[:]`` read all rows. An iteration reads
    blocks of rows. Any number of threads may call it. While a call waits, other threads run, and Ctrl-C ends it within
    about 16,384 rows.
    """

    __slots__ = (
        "__weakref__", "_casts", "_dtype", "_element", "_file", "_first", "_recipe", "_row_bytes", "_row_shape", "_rows", "_shape", "_start", "_version",
    )  # fmt: skip

    # The first opening of rows from a pickle, under one key.
    _first: dict[str, RowArray]

    # Otherwise `ndarray + x` would read all rows.
    __array_ufunc__ = None

    @classmethod
    def _later(cls, recipe: Recipe) -> RowArray:
        """Rows that are opened at their first use. A worker must not fail while it unpickles a `RowArray`: a pool of
        processes would wait for its answer for ever."""
        rows = cls.__new__(cls)
        rows._recipe = recipe
        rows._first = {}
        return rows

    def __getattr__(self, name: str) -> Any:
        # Python calls this for missing attributes only: the parts of rows that are not yet open.
        if name not in _PARTS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        open_now, arguments = object.__getattribute__(self, "_recipe")
        # Several threads may open the rows at once. All use the first opening: the others are closed when they are
        # dropped. A lock here might be held at a fork.
        opened = object.__getattribute__(self, "_first").setdefault("rows", open_now(*arguments, now=True))
        for part in _PARTS:
            object.__setattr__(self, part, getattr(opened, part))
        return getattr(self, name)

    def __init__(
        self,
        file: File,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        parts: list[tuple[int, int]],
        recipe: Recipe | None = None,
        element: str | None = None,
    ) -> None:
        """For `iomill.open`. `parts` has the number of rows of each part, and the offset of its first byte in the
        file."""
        row_bytes = dtype.itemsize
        for length in shape[1:]:
            row_bytes *= length
        self._file = file
        self._row_bytes = row_bytes
        self._rows = file._row_reader(row_bytes, parts)
        self._dtype = dtype
        # The dtypes to which rows are converted, in this order: `astype`.
        self._casts: tuple[np.dtype[Any], ...] = ()
        # The type of the values, if numpy itself does not have it.
        self._element = element or (dtype.name if dtype.name in ELEMENTS else None)
        self._shape = shape
        self._row_shape = shape[1:]
        self._recipe = recipe
        self._start = parts[0][1]
        # What changes with the contents of the file, if the opening knows it.
        self._version: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """As in an ndarray."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """As in an ndarray."""
        return self._casts[-1] if self._casts else self._dtype

    @property
    def ndim(self) -> int:
        """As in an ndarray."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of values."""
        size = 1
        for length in self._shape:
            size *= length
        return size

    @property
    def nbytes(self) -> int:
        """The length of all rows, in bytes."""
        return self.size * self.itemsize

    @property
    def itemsize(self) -> int:
        """The length of a value, in bytes."""
        return self.dtype.itemsize

    @property
    def hits(self) -> int:
        """Pages of 4 KiB found so far in the cache of the file. Other files share the cache."""
        return self._file._counters()[0]

    @property
    def misses(self) -> int:
        """Pages requested so far and not found in the cache of the file."""
        return self._file._counters()[1]

    @property
    def file(self) -> File:
        """The file with the rows."""
        return self._file

    def __len__(self) -> int:
        return self._shape[0]

    def __repr__(self) -> str:
        name = self._file.name
        if os.path.isabs(name):
            # A plain file. Other names are short, and have no directories to leave out.
            name = os.path.basename(name)
        return f"<iomill.RowArray {name!r}: shape {self._shape}, {self.dtype}>"

    @overload
    def take(self, ids: ArrayLike, out: None = None, *, axis: int | None = 0, mode: Clip = "raise") -> NDArray[Any]: ...
    @overload
    def take(self, ids: ArrayLike, out: _Out, *, axis: int | None = 0, mode: Clip = "raise") -> _Out: ...

    def take(
        self, ids: ArrayLike, out: _Out | None = None, *, axis: int | None = 0, mode: Clip = "raise"
    ) -> NDArray[Any] | _Out:
        """The rows `ids`, in their order: an ndarray of shape ``ids.shape + x.shape[1:]``.

        `ids` has integers of any type and shape. Negative ones count from the end. With `out` the rows are read into
        that memory, without a copy if it is in C order: an ndarray, a tensor of torch, any object with a buffer. It
        must have the shape and the dtype of the result, and is returned.

        `mode` is as in numpy: ``raise``, or ``wrap`` or ``clip`` for numbers out of bounds. Only `axis` 0 can be taken
        from the file.

        IndexError if a row does not exist, ValueError if `out` has another shape, TypeError if it has another dtype.
        After an error the contents of `out` are undefined.

        >>> import numpy, iomill
        >>> numpy.save("features.npy", numpy.arange(12).reshape(4, 3))
        >>> out = numpy.empty((2, 3), int)
        >>> iomill.open("features.npy").take([2, 0], out=out)
        array([[6, 7, 8],
               [0, 1, 2]])
        """
        if axis != 0:
            self._check_axis(axis)
        numbers = integers(ids)
        if mode != "raise":
            numbers = self._in_bounds(numbers, mode)
        shape = numbers.shape + self._row_shape
        if out is None:
            result = np.empty(shape, self._dtype)
            self._rows.take(numbers, result)
            return self._as_cast(result)
        target = out if isinstance(out, np.ndarray) else self._memory_of(out)
        if target.shape != shape:
            raise ValueError(
                f"output array does not match result of take: it has shape {target.shape}, and the rows have {shape}"
            )
        if target.dtype != self.dtype:
            raise TypeError(f"output array has dtype {target.dtype}, and the rows have {self.dtype}")
        if target.flags.c_contiguous and not self._casts:
            self._rows.take(numbers, target)
        elif not target.flags.writeable:
            raise ValueError("output array is read-only")
        else:
            target[...] = self.take(numbers)
        return out

    def _check_axis(self, axis: int | None) -> None:
        if axis is None and self.ndim == 1:
            return
        if axis is None or operator.index(axis) + self.ndim != 0:
            raise ValueError(
                f"take along axis {axis}: rows are along axis 0; take rows first, and then along the other axes in memory"
            )

    def _in_bounds(self, numbers: NDArray[Any], mode: Clip) -> NDArray[Any]:
        if mode not in ("wrap", "clip"):
            raise ValueError(f"clipmode must be one of 'clip', 'raise', or 'wrap' (got {mode!r})")
        if len(self) == 0:
            if numbers.size > 0:
                raise IndexError("cannot do a non-empty take from an empty axes.")
            return numbers
        if numbers.dtype.itemsize < 8:
            # The number of rows may be out of the range of a shorter type.
            numbers = numbers.astype(np.intp)
        if mode == "wrap":
            bounded: NDArray[Any] = np.remainder(numbers, len(self))
        else:
            bounded = np.clip(numbers, 0, len(self) - 1)
        # numpy makes a scalar of an array without axes.
        return np.asarray(bounded, np.intp)

    def _from_start(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Row numbers that do not count from the end. IndexError if a row does not exist."""
        outside = (numbers < -len(self)) | (numbers >= len(self))
        if outside.any():
            raise IndexError(f"index {numbers[outside][0]} is out of bounds for axis 0 with size {len(self)}")
        numbers = numbers.astype(np.intp)
        return np.where(numbers < 0, numbers + len(self), numbers)

    def _memory_of(self, out: Any) -> NDArray[Any]:
        """An ndarray over the memory of `out`."""
        if isinstance(out, np.ndarray):
            return out
        if is_of_element(out, self._element):
            return bits_of(out, self.dtype)
        if hasattr(out, "__dlpack__"):
            # numpy's `from_dlpack` returns read-only memory. torch's own method does not.
            tensor = out.numpy() if callable(getattr(out, "numpy", None)) else np.from_dlpack(out)
            return np.asarray(tensor)
        return np.asarray(memoryview(out))

    def astype(self, dtype: DTypeLike, *, casting: Casting = "unsafe") -> RowArray:
        """These rows with another dtype: results are converted after they are read. This call reads nothing.

        The result is read-only, and is closed with this array. ``numpy.asarray(x.astype(dtype))`` reads all rows.
        TypeError if `casting` does not allow the conversion.

        >>> import numpy, iomill
        >>> numpy.save("features.npy", numpy.arange(12, dtype="i2").reshape(4, 3))
        >>> iomill.open("features.npy").astype("f4")[[3, 0]]
        array([[ 9., 10., 11.],
               [ 0.,  1.,  2.]], dtype=float32)
        """
        if self._element is not None and self._element != self._dtype.name:
            raise TypeError(
                f"numpy has no {self._element}: install the package ml_dtypes, or take the rows as tensors by iomill.torch"
            )
        if np.dtype(dtype).subdtype is not None:
            raise TypeError(f"astype: {np.dtype(dtype)} would add axes: convert the rows after they are taken")
        # numpy determines the length of texts.
        cast = np.empty(0, self.dtype).astype(dtype, casting=casting).dtype
        rows = RowArray.__new__(RowArray)
        for part in _PARTS:
            setattr(rows, part, getattr(self, part))
        rows._casts, rows._element = (*self._casts, cast), cast.name if cast.name in ELEMENTS else None
        rows._recipe = None if self._recipe is None else (_cast_again, (self._recipe, cast))
        return rows

    def take_async(self, ids: ArrayLike) -> Gather[NDArray[Any]]:
        """`take` as a future. The gather has begun when this returns. Errors in `ids` are raised at once.

        >>> import asyncio, numpy, iomill
        >>> numpy.save("features.npy", numpy.arange(12).reshape(4, 3))
        >>> async def sums():
        ...     x = iomill.open("features.npy")
        ...     return (await x.take_async([2, 0])).sum()
        >>> int(asyncio.run(sums()))
        24
        """
        numbers = integers(ids)
        shape = numbers.shape + self._row_shape

        def finish(read: np.ndarray) -> np.ndarray:
            return self._as_cast(read.view(self._dtype).reshape(shape))

        if 0 in shape or self._dtype.itemsize == 0:
            return Gather._of(self.take(numbers))

        def begin(done: Done) -> None:
            self._rows.begin_take(numbers, done)

        return begun(begin, finish)

    def prefetch(self, ids: ArrayLike) -> None:
        """Begins to read rows into the cache, and returns at once. Until it ends, it also uses memory of the rows'
        size."""
        if self.nbytes > 0:
            self._rows.prefetch(integers(ids))

    def write(self, ids: Key, rows: ArrayLike) -> None:
        """Writes rows. `ids` names them: an integer, a slice, a mask or an array of integers.

        `rows` is broadcast and cast as in ``ndarray[ids] = rows``. If a row is named twice, the last value counts.
        Later reads of this process see the rows. They are durable after `sync`. ValueError if the file is open for
        reading only.

        >>> import numpy, iomill
        >>> numpy.save("features.npy", numpy.zeros((4, 3), "i2"))
        >>> with iomill.open("features.npy", mode="r+") as x:
        ...     x.write([1, 3], [[7, 8, 9], [1, 2, 3]])
        ...     x[1:]
        array([[7, 8, 9],
               [0, 0, 0],
               [1, 2, 3]], dtype=int16)
        """
        if not self._file.writable() or self._casts:
            raise ValueError("assignment destination is read-only")
        numbers = self._numbers(ids)
        values = np.empty(numbers.shape + self._row_shape, self._dtype)
        values[...] = bits_of(rows, self._dtype) if is_of_element(rows, self._element) else rows
        numbers, values = numbers.reshape(-1), values.reshape((numbers.size, *self._row_shape))
        if values.size == 0:
            return
        # Two writes of one row in a call have no order in the library, so only the last one is passed.
        numbers = self._from_start(numbers)
        last_first, place = np.unique(numbers[::-1], return_index=True)
        if last_first.size < numbers.size:
            numbers, values = last_first, values[::-1][place]
        self._of_system.write(np.ascontiguousarray(numbers), np.ascontiguousarray(values))

    def __setitem__(self, key: Key | tuple[Key], rows: ArrayLike) -> None:
        """`write`, for keys of the first axis. ValueError for other keys: read whole rows, change them, and write
        them."""
        if isinstance(key, tuple):
            if len(key) != 1:
                raise ValueError("rows are written whole: read them, change them, and write them")
            key = key[0]
        self.write(key, rows)

    def sync(self) -> None:
        """Makes all writes durable. OSError if a drive fails."""
        self._file.sync()

    def flush(self) -> None:
        """`sync` under the name of numpy.memmap."""
        self.sync()

    def close(self) -> None:
        """Makes its writes durable, and closes the file. Later calls raise ValueError."""
        self._file.close()

    def __reduce__(self) -> tuple[Callable[..., RowArray], tuple[Any, ...]]:
        """The other process opens the file by its path, at its first use of the rows. So a `RowArray` can be sent to a
        worker of any kind. OSError (ESTALE) there, if the file has other rows by then: another shape or dtype."""
        settle()
        if self._recipe is None:
            raise TypeError("only rows that `iomill.open` opened for reading, without a `runtime`, can be pickled")
        if self._recipe[0] is _same_again:
            # It came from a pickle, and is perhaps not open.
            return self._recipe
        return _same_again, (self._recipe, self._shape, self._dtype)

    def __dask_tokenize__(self) -> object:
        """For the names of Dask's results: rows of a file that was replaced or changed have another name. If that is
        not known, each call returns another value."""
        if self._recipe is None or self._version is None:
            return uuid.uuid4().hex
        recipe = self._recipe[1][0] if self._recipe[0] is _same_again else self._recipe
        return recipe, self._version

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """All rows, for ``numpy.asarray(x)``."""
        if copy is False:
            raise ValueError("Unable to avoid copy while creating an array as requested: the rows are in a file")
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.split(".")[0] == "numpy" and not caller.startswith("numpy.testing"):
            # The caller is a function of numpy that does not call `__array_function__`.
            raise self._too_much("this function of numpy")
        if self.nbytes > _TOLD_BYTES:
            warnings.warn(
                f"iomill: reads all {self.nbytes} bytes of {self!r} into memory; x[:] does so without this warning",
                RuntimeWarning,
                stacklevel=2,
            )
        rows = self._slice(_WHOLE)
        return rows if dtype is None else rows.astype(dtype, copy=False)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        """Functions of numpy: `take`, and those that need no rows. The others would read all rows, and are refused."""
        name = function.__name__
        if function is np.take and isinstance(options.get("a", *arguments[:1]), RowArray):
            return _numpy_take(*arguments, **options)
        if name in _OF_SHAPE and function is getattr(np, name):
            arguments = [one._stand_in() if isinstance(one, RowArray) else one for one in arguments]
            options = {key: one._stand_in() if isinstance(one, RowArray) else one for key, one in options.items()}
            return function(*arguments, **options)
        raise self._too_much(f"numpy.{name}")

    def _too_much(self, what: str) -> TypeError:
        return TypeError(
            f"{what} would read all {self.nbytes} bytes of {self!r} into memory: pass the needed rows, or x[:]"
        )

    @property
    def _of_system(self) -> _iomill.Rows:
        """The native half of rows in a file of the system."""
        if not isinstance(self._rows, _iomill.Rows):
            raise ValueError("assignment destination is read-only")
        return self._rows

    def _stand_in(self) -> NDArray[Any]:
        """An array of this shape and dtype that takes no memory. Its values are arbitrary."""
        return np.broadcast_to(np.empty((), self.dtype), self._shape)

    def _as_cast(self, rows: NDArray[Any]) -> NDArray[Any]:
        for dtype in self._casts:
            rows = rows.astype(dtype, copy=False)
        return rows

    def _compare(self, other: object) -> Any:
        raise self._too_much("a comparison")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _compare

    if not TYPE_CHECKING:
        # A type checker refuses operators, because it does not find these.
        def _operate(self, *others: object) -> NoReturn:
            raise self._too_much("an operator")

        __add__ = __sub__ = __mul__ = __matmul__ = __truediv__ = __floordiv__ = __mod__ = __divmod__ = _operate
        __radd__ = __rsub__ = __rmul__ = __rmatmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rdivmod__ = _operate
        __pow__ = __lshift__ = __rshift__ = __and__ = __or__ = __xor__ = _operate
        __rpow__ = __rlshift__ = __rrshift__ = __rand__ = __ror__ = __rxor__ = _operate
        __neg__ = __pos__ = __abs__ = __invert__ = _operate

    # It equals only itself, as a plain object does.
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        # As in an ndarray: the truth of the only value, and an error for several values or none. By the length an array
        # of one zero would be true.
        if self.size <= 1:
            return bool(self._slice(_WHOLE))
        raise ValueError(f"the truth value of {self!r} is ambiguous: test its len, or its rows")

    def __iter__(self) -> Iterator[Any]:
        row_bytes = max(1, self.nbytes // max(1, len(self)))
        step = max(1, _BLOCK_BYTES // row_bytes)
        for start in range(0, len(self), step):
            yield from self._slice(slice(start, start + step))

    # A value or an ndarray. A tuple is also a sequence, and a scalar of numpy is convertible, so this comes first.
    @overload
    def __getitem__(self, key: int | np.integer[Any] | tuple[Item, ...]) -> Any: ...
    @overload
    def __getitem__(self, key: slice | EllipsisType | Ids | None) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, key: SupportsIndex) -> Any: ...

    def __getitem__(self, key: Any) -> Any:
        kind = type(key)
        try:
            if kind is np.ndarray and key.dtype.kind in "iu" and key.ndim > 0:
                return self.take(key)
            if kind is slice:
                return self._slice(key)
            if kind is int:
                return self.take(np.array([key]))[0]
            return self._index(key)
        except IndexError as error:
            failed = error
        # numpy accepts numbers out of bounds if the result has no values. Otherwise its error names the first wrong
        # item.
        result = self._in_numpy(key)
        if isinstance(result, np.ndarray) and result.size == 0:
            return result.copy()
        raise failed

    def _slice(self, key: slice) -> NDArray[Any]:
        rows = range(len(self))[key]
        if rows.step not in (1, -1) or len(rows) == 0:
            return self.take(_array_of(rows))
        result = np.empty((len(rows), *self._row_shape), self._dtype)
        self._rows.read_range(min(rows[0], rows[-1]), len(rows), result)
        result = self._as_cast(result)
        return result if rows.step == 1 else result[::-1]

    def _index(self, key: Any) -> Any:
        """Any key. Its item of the first axis names the rows to read. The rest of the key then indexes these rows."""
        items = [item_of(item) for item in (key if isinstance(key, tuple) else (key,))]
        place = self._first_axis(key, items)
        if place is None:
            return self._slice(_WHOLE)[tuple(items)]
        item = items[place]
        if isinstance(item, slice):
            rows, items[place] = self._slice(item), _WHOLE
        elif isinstance(item, int):
            rows, items[place] = self.take(np.array([item])), 0
        elif item.dtype.kind == "b":
            if item.shape != self._shape[: item.ndim]:
                raise self._refusal(key)
            found = item.nonzero()
            numbers, within = np.unique(found[0], return_inverse=True)
            rows, items[place : place + 1] = self.take(numbers), [within.reshape(-1), *found[1:]]
        else:
            rows = self.take(item.reshape(-1))
            if len(items) == 1:
                return rows.reshape(item.shape + self._row_shape)
            items[place] = np.arange(item.size).reshape(item.shape)
        result = rows[tuple(items)]
        # A small view would keep the memory of all rows.
        if isinstance(result, np.ndarray) and result.base is not None and result.size * 2 <= rows.size:
            return result.copy()
        return result

    def _first_axis(self, key: Any, items: list[Any]) -> int | None:
        """The position of the item of the first axis; None if the key takes all rows."""
        axes = []
        for item in items:
            if item is None or isinstance(item, bool):
                axes.append(0)
            elif item is Ellipsis:
                axes.append(-1)
            elif isinstance(item, np.ndarray) and item.dtype.kind == "b":
                axes.append(item.ndim)
            elif isinstance(item, (int, slice)) or (isinstance(item, np.ndarray) and item.dtype.kind in "iu"):
                axes.append(1)
            else:
                raise self._refusal(key)
        if axes.count(-1) > 1 or sum(axis for axis in axes if axis > 0) > self.ndim:
            raise self._refusal(key)
        for place, axis in enumerate(axes):
            if axis > 0:
                return place
            if axis < 0 and sum(axis for axis in axes if axis > 0) < self.ndim:
                return None
        return None

    def _in_numpy(self, key: Any) -> Any:
        """The result of numpy for a key, on an array of this shape that takes no memory. Its values are arbitrary."""
        return self._stand_in()[key]

    def _refusal(self, key: Any) -> Exception:
        """numpy's error for a key."""
        try:
            self._in_numpy(key)
        except (IndexError, ValueError, TypeError) as refused:
            return refused
        return IndexError(f"the key {key!r} does not name rows: take rows first, and index the result")

    def _numbers(self, key: Any) -> NDArray[Any]:
        """The numbers of the rows that a key of the first axis names."""
        item = item_of(key)
        if item is Ellipsis:
            item = _WHOLE
        if isinstance(item, slice):
            return _array_of(range(len(self))[item])
        if isinstance(item, int) and not isinstance(item, bool):
            return np.array(item)
        if isinstance(item, np.ndarray) and item.dtype.kind in "iu":
            return item
        if isinstance(item, np.ndarray) and item.dtype.kind == "b" and item.shape == self._shape[:1]:
            return item.nonzero()[0]
        raise self._refusal(key)


def _array_of(numbers: range) -> NDArray[Any]:
    # The step of a single number may be out of the range of numpy's integers.
    return numbers.start + np.arange(len(numbers)) * (numbers.step if len(numbers) > 1 else 1)


def _numpy_take(a: RowArray, indices: ArrayLike, axis: int | None = None, out: Any = None, mode: Clip = "raise") -> Any:
    """`numpy.take`."""
    return a.take(indices, out, axis=axis, mode=mode)


def _cast_again(recipe: Recipe, dtype: np.dtype[Any], *, now: bool = False) -> RowArray:
    """Opens rows with another dtype in another process, at their first use."""
    if not now:
        return RowArray._later((_cast_again, (recipe, dtype)))
    open_now, arguments = recipe
    return open_now(*arguments, now=True).astype(dtype)


def _same_again(recipe: Recipe, shape: tuple[int, ...], dtype: np.dtype[Any], *, now: bool = False) -> RowArray:
    """Opens rows from a pickle, at their first use. The file must have rows of the same shape and dtype."""
    if not now:
        return RowArray._later((_same_again, (recipe, shape, dtype)))
    open_now, arguments = recipe
    rows = open_now(*arguments, now=True)
    if rows._shape != shape or rows._dtype != dtype:
        name = rows._file.name
        found = f"{rows._shape} of {rows._dtype}"
        rows.close()
        raise OSError(
            errno.ESTALE,
            f"the rows were pickled as {shape} of {dtype}, and the file has {found} now: open it again where they were pickled",
            name,
        )
    return rows


Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]

# The function with which another process opens the rows, and its arguments.
Recipe = tuple[Callable[..., RowArray], tuple[Any, ...]]

# The attributes that are missing until rows are open.
_PARTS = frozenset(RowArray.__slots__) - {"__weakref__", "_first", "_recipe"}
