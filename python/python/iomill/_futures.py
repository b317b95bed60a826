"""Reads as futures."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import numpy as np

from . import _iomill

S = TypeVar("S")
T = TypeVar("T")

# A callback that gets an array of bytes, or the exception.
Done = Callable[[np.ndarray | None, Exception | None], object]

# The thread that delivers results must end before the interpreter does.
atexit.register(_iomill.stop)


class Gather(concurrent.futures.Future[T]):
    """A gather in flight: a ``concurrent.futures.Future``, and awaitable under asyncio. It cannot be cancelled.

    >>> import numpy, iomill
    >>> numpy.save("features.npy", numpy.arange(12).reshape(4, 3))
    >>> gather = iomill.open("features.npy").take_async([2, 0])
    >>> gather.result()
    array([[6, 7, 8],
           [0, 1, 2]])
    """

    def __init__(self) -> None:
        self._home = os.getpid()
        super().__init__()

    @classmethod
    def _of(cls, result: T) -> Gather[T]:
        """A gather with a result."""
        gather = cls()
        gather.set_running_or_notify_cancel()
        gather.set_result(result)
        return gather

    # All methods of a future begin with this lock. At a fork a thread may hold it that does not exist in the child.
    @property
    def _condition(self) -> threading.Condition:
        if self._home != os.getpid():
            self._leave_parent()
        return self._lock

    @_condition.setter
    def _condition(self, lock: threading.Condition) -> None:
        self._lock = lock

    def _leave_parent(self) -> None:
        """For a forked child: an existing result stays, and no other one arrives."""
        self._home = os.getpid()
        self._lock = threading.Condition()
        if self._state != "FINISHED":
            self._exception = RuntimeError("the gather was begun before this process was forked: begin it again")
            self._state = "FINISHED"

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self).__await__()


def begun(
    begin: Callable[[Callable[[S | None, Exception | None], object]], object], finish: Callable[[S], T]
) -> Gather[T]:
    """Begins a read. Its result is `finish` of the bytes."""
    gather: Gather[T] = Gather()
    gather.set_running_or_notify_cancel()

    def done(read: S | None, error: Exception | None) -> None:
        if read is None:
            gather.set_exception(error)
            return
        try:
            result = finish(read)
        except BaseException as failed:  # A panic of native code is no `Exception`.
            gather.set_exception(failed)
        else:
            gather.set_result(result)

    begin(done)
    return gather
