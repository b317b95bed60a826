"""Reads that end later."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import numpy as np

from . import _iomill

T = TypeVar("T")

# The thread that delivers results must end before the interpreter does.
atexit.register(_iomill.stop)


class Gather(concurrent.futures.Future[T]):
    """A gather that runs: a ``concurrent.futures.Future``, and awaitable under asyncio. It cannot be cancelled.

    >>> import numpy, iomill
    >>> numpy.save("features.npy", numpy.arange(12).reshape(4, 3))
    >>> gather = iomill.open("features.npy").take_async([2, 0])
    >>> gather.result()
    array([[6, 7, 8],
           [0, 1, 2]])
    """

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self).__await__()


def begun(begin: Callable[[Callable[[Any, Any], None]], None], finish: Callable[[np.ndarray], T]) -> Gather[T]:
    """Begins a read. Its result is `finish` of the bytes."""
    gather: Gather[T] = Gather()
    gather.set_running_or_notify_cancel()

    def done(read: np.ndarray | None, error: Exception | None) -> None:
        if read is None:
            gather.set_exception(error)
            return
        try:
            result = finish(read)
        except Exception as failed:
            gather.set_exception(failed)
        else:
            gather.set_result(result)

    begin(done)
    return gather
