"""Rows for torch: a dataset, and a loader that gathers the next batches during the training step.

>>> import numpy, iomill, iomill.torch
>>> numpy.save("features.npy", numpy.arange(12, dtype="f4").reshape(4, 3))
>>> loader = iomill.torch.RowLoader(iomill.open("features.npy"), batch_size=2)
>>> [tuple(batch.shape) for batch in loader]
[(2, 3), (2, 3)]
"""

from __future__ import annotations

import collections
import concurrent.futures
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from . import _iomill
from ._keys import integers
from ._rows import RowArray

# The cache's unit, in bytes.
_PAGE_BYTES = 4096


class RowDataset(Dataset[Any]):
    """Rows as a dataset with indices, for ``torch.utils.data.DataLoader`` with workers of any kind.

    An item is one row of each array: a tensor for one array, otherwise a tuple. Several items that a loader requests at
    once are one gather. Workers open the files again.

    >>> import numpy, iomill, iomill.torch
    >>> numpy.save("features.npy", numpy.arange(12, dtype="f4").reshape(4, 3))
    >>> iomill.torch.RowDataset(iomill.open("features.npy"))[2]
    tensor([6., 7., 8.])
    """

    def __init__(self, *arrays: RowArray) -> None:
        """ValueError if the arrays differ in length."""
        self.arrays = _of_one_length(arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        ids = integers(indices)
        taken = [_tensor(rows, ids).unbind(0) for rows in self.arrays]
        return list(taken[0]) if len(taken) == 1 else list(zip(*taken))


class RowLoader:
    """Batches of rows, gathered ahead: during a training step, threads gather the next `ahead` batches.

    A batch is a tensor for one array, otherwise a tuple of tensors. Without `shuffle` the rows are in order. With
    `shuffle` each iteration has another order; `seed` makes the orders the same in each run. `ids` are the rows to
    take, by default all: an array, or batches of numbers from a sampler if `batch_size` is None. The last batch may be
    shorter, unless `drop_last`.

    The shuffled orders of this iteration and the next one are known ahead. If rows are shorter than a page of 4 KiB,
    and need more memory than the cache has, the loader evicts a page after its use if its next use is late. So the
    cache keeps the pages with the earliest next uses.

    With `pin_memory` the tensors are in pinned memory. This is the default if CUDA is available. ValueError if the
    arrays differ in length.

    >>> import numpy, iomill, iomill.torch
    >>> numpy.save("features.npy", numpy.arange(12, dtype="f4").reshape(4, 3))
    >>> numpy.save("labels.npy", numpy.arange(4))
    >>> x, y = iomill.open("features.npy"), iomill.open("labels.npy")
    >>> for features, labels in iomill.torch.RowLoader(x, y, batch_size=3):
    ...     print(features[:, 0].tolist(), labels.tolist())
    [0.0, 3.0, 6.0] [0, 1, 2]
    [9.0] [3]
    """

    def __init__(
        self,
        *arrays: RowArray,
        batch_size: int | None,
        shuffle: bool = False,
        seed: int | None = None,
        ids: NDArray[Any] | Iterable[Any] | None = None,
        drop_last: bool = False,
        ahead: int = 2,
        pin_memory: bool | None = None,
    ) -> None:
        # Integers of numpy would wrap around.
        batch_size = None if batch_size is None else operator.index(batch_size)
        if ahead < 1:
            raise ValueError(f"ahead={ahead}: at least one batch must be gathered ahead")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: a batch has at least one row")
        if batch_size is None and (ids is None or shuffle or drop_last):
            raise ValueError("without a batch_size, `ids` are batches of numbers in their order")
        self.arrays = _of_one_length(arrays)
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._rng = np.random.default_rng(seed)
        self._ids = ids if batch_size is None else _numbers(ids, len(self.arrays[0]))
        # The order of the next iteration, if it is known.
        self._soon: NDArray[Any] | None = None
        self._drop_last = drop_last
        self._ahead = ahead
        self._pin = torch.cuda.is_available() if pin_memory is None else pin_memory

    def __len__(self) -> int:
        """The number of batches."""
        if self._batch_size is None:
            return len(self._ids)  # type: ignore[arg-type]
        whole, rest = divmod(len(self._ids), self._batch_size)  # type: ignore[arg-type]
        return whole + (rest > 0 and not self._drop_last)

    def _batches(self) -> Iterator[tuple[Any, list[bytes] | None]]:
        """The row numbers of each batch, and for each array the pages to evict after the batch."""
        if self._batch_size is None:
            for batch in self._ids:  # type: ignore[union-attr]
                yield batch, None
            return
        ids, far = self._order()
        for start in range(0, len(self) * self._batch_size, self._batch_size):
            part = slice(start, start + self._batch_size)
            yield ids[part], far and [pages[part] for pages in far]

    def _order(self) -> tuple[NDArray[Any], list[bytes] | None]:
        """The order of an iteration, with the pages to evict after each row."""
        rows = np.asarray(self._ids)
        if not self._shuffle:
            return rows, None
        now = self._rng.permutation(rows) if self._soon is None else self._soon
        self._soon = None
        if now.ndim != 1 or now.dtype.kind not in "iu":
            return now, None
        has_short_rows = all(_share_pages(array) for array in self.arrays)
        cache_bytes = min(array.file._planned_bytes() for array in self.arrays)
        # Forked workers do not know the size of their caches.
        if not has_short_rows or not 0 < cache_bytes < sum(array.nbytes for array in self.arrays):
            return now, None
        self._soon = self._rng.permutation(rows)
        natives = [array._of_system for array in self.arrays]
        return now, _iomill.far_pages(natives, integers(now), integers(self._soon), cache_bytes)

    def _gather(self, ids: Any, far: list[bytes] | None) -> Any:
        numbers = np.asarray(ids)
        taken = tuple(self._take(rows, numbers) for rows in self.arrays)
        for rows, pages in zip(self.arrays, far or ()):
            rows._of_system.let_go(integers(numbers), pages)
        return taken[0] if len(taken) == 1 else taken

    def _take(self, rows: RowArray, ids: NDArray[Any]) -> torch.Tensor:
        if not self._pin:
            return _tensor(rows, ids)
        dtype = _dtype(rows)
        pinned = torch.empty((*ids.shape, *rows.shape[1:]), dtype=dtype, pin_memory=True)
        rows.take(ids, out=pinned)
        return pinned

    def __iter__(self) -> Iterator[Any]:
        begun: collections.deque[concurrent.futures.Future[Any]] = collections.deque()
        with concurrent.futures.ThreadPoolExecutor(self._ahead, "iomill-loader") as threads:
            try:
                for ids, far in self._batches():
                    begun.append(threads.submit(self._gather, ids, far))
                    if len(begun) > self._ahead:
                        yield begun.popleft().result()
                while begun:
                    yield begun.popleft().result()
            finally:
                for gather in begun:
                    gather.cancel()


def _share_pages(rows: RowArray) -> bool:
    """Whether an order reads most pages more than once. Rows of a page's length do so if they do not begin with a
    page."""
    row_bytes = rows._row_bytes
    return 0 < row_bytes < _PAGE_BYTES or row_bytes == _PAGE_BYTES and rows._start % _PAGE_BYTES != 0


def _dtype(rows: RowArray) -> torch.dtype:
    """The type of the tensors of rows, also one that numpy does not have, such as bfloat16."""
    if rows._element is None:
        return torch.from_numpy(np.empty(0, rows.dtype)).dtype
    dtype = getattr(torch, rows._element, None)
    if dtype is None:
        raise TypeError(f"torch {torch.__version__} has no {rows._element}: install a later one")
    return dtype


def _tensor(rows: RowArray, ids: NDArray[Any]) -> torch.Tensor:
    taken = rows.take(ids)
    if rows._element is None:
        return torch.from_numpy(taken)
    # By its bits, because torch does not accept such an ndarray.
    bits = np.int16 if taken.dtype.itemsize == 2 else np.uint8
    return torch.from_numpy(taken.view(bits)).view(_dtype(rows))


def _of_one_length(arrays: tuple[RowArray, ...]) -> tuple[RowArray, ...]:
    if not arrays:
        raise ValueError("no arrays: give at least one")
    for rows in arrays:
        if not isinstance(rows, RowArray):
            raise TypeError(
                f"the arrays are rows that iomill.open returns, and this is a {type(rows).__name__}: "
                "save it by numpy.save, and open it"
            )
    if len({len(rows) for rows in arrays}) > 1:
        raise ValueError(
            f"the arrays have {', '.join(str(len(rows)) for rows in arrays)} rows: they must have the same number"
        )
    return arrays


def _numbers(ids: Any, count: int) -> NDArray[Any]:
    if ids is None:
        return np.arange(count)
    numbers = np.asarray(ids)
    # numpy makes one object of a sampler.
    return np.asarray(list(ids)) if numbers.ndim == 0 and isinstance(ids, Iterable) else numbers
