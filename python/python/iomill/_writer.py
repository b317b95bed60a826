"""Rows that are written batch by batch: `RowWriter`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from . import _iomill
from ._drafts import Draft
from ._elements import ELEMENTS, bits_of, is_of_element
from ._formats import lengths_of, named_dtype
from ._npy import check_shape, header_bytes


class RowWriter:
    """Writes rows batch by batch: `Drives.row_writer`. They appear when it is closed, unless an exception ends its
    ``with``. Several threads may append: each batch is whole, and the batches are in the order of their writes."""

    def __init__(
        self, draft: Callable[[], Draft], name: str, dtype: DTypeLike, shape: Sequence[int] | int, *, replace: bool
    ) -> None:
        _iomill.check_name(name)
        self._name = name
        self._dtype, element = named_dtype(dtype)
        # If numpy does not have the type, the header does not have its name.
        self._stored = self._dtype if element is None else np.dtype(f"V{self._dtype.itemsize}")
        self._element = element or (self._dtype.name if self._dtype.name in ELEMENTS else None)
        self._shape = lengths_of(shape)
        self._replace = replace
        self._count = 0
        if self._dtype.hasobject or self._dtype.itemsize == 0 or self._dtype.subdtype is not None:
            raise ValueError(f"values of dtype {self._dtype} have no bytes of one length, or axes of their own")
        check_shape(self._dtype, (0, *self._shape))
        # The header for the largest number of rows, because the number is not yet known.
        self._start = len(header_bytes(self._stored, (1 << 62, *self._shape)))
        self._end = self._start
        # Held while a batch is written: the next one begins at its end.
        self._lock = threading.Lock()
        self._draft: Draft | None = draft()

    def __len__(self) -> int:
        """The number of rows so far."""
        return self._count

    def __bool__(self) -> bool:
        # It is not a sequence: a writer without rows is true.
        return True

    def append(self, rows: ArrayLike) -> None:
        """Appends rows, which are cast as in ``ndarray[...] = rows``. `rows` may also be a single row."""
        given = bits_of(rows, self._dtype) if is_of_element(rows, self._element) else np.asarray(rows)
        if given.shape == self._shape:
            given = given[np.newaxis]
        if given.shape[1:] != self._shape or given.ndim != len(self._shape) + 1:
            raise ValueError(f"rows of shape {given.shape[1:]}, and those of the file have {self._shape}")
        values = np.empty(given.shape, self._dtype)
        values[...] = given
        with self._lock:
            if self._draft is None:
                raise ValueError("the writer is closed")
            if values.nbytes:
                self._draft.file.write_at(values.reshape(-1).view(np.uint8), self._end)
            self._end += values.nbytes
            self._count += len(values)

    def close(self) -> None:
        """Makes the rows durable, and publishes the file. A second call does nothing."""
        with self._lock:
            draft, self._draft = self._draft, None
        if draft is not None:
            with draft:
                header = header_bytes(self._stored, (self._count, *self._shape), self._start)
                draft.file.write_at(header, 0)
                draft.publish(self._name, replace=self._replace)

    def discard(self) -> None:
        """Discards the rows."""
        # Without the lock, which a thread of the parent of a forked process may hold.
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        if getattr(self, "_draft", None) is not None:
            self.discard()
