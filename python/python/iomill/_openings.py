"""Sets of drives that this process has open: `Opening`.

A process opens a set once, by any of its drives, for all callers. Each `Drives` is a use of the opening. The opening is
for writing while one of its uses is, and otherwise for reading. A change of the mode reopens the set, and its open
files stay open. A file that was removed or replaced would be lost, so the set stays open for writing until that file is
closed.

Rules:
1. Code that changes openings and their uses holds `lock`. A fork waits for the lock, so no child begins with a lock
   that a thread holds.
2. A forked child does not count its uses of its parent's openings. It reads through those that are open for reading,
   because the library opens them again for the child. Other sets it opens for itself.
3. The drop of a use ends it like a close.
4. An opening that could not return to reading is `late`. It tries again when a file is closed, when a use ends, before
   a fork or a pickle, and after a failure also by itself.
5. A set that could not be opened again, usually because another process has opened it, is `away`. It comes back at its
   next use, or by itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

from . import _iomill
from ._runtime import sharers

Key = tuple[int, ...]
T = TypeVar("T")

# Another process may keep a set of drives open for writing for a moment longer than it needs: `_drives.Lingering`.
_TRIES = 20
_WAIT_S = 0.05

# After a failed return: the time to the next try. It doubles up to the maximum. Files of a set that is away are of no
# use, so it has a smaller one.
_RETRY_S = 1.0
_RETRY_MAX_S = 60.0
_AWAY_MAX_S = 4.0


class Opening:
    """A set of drives that this process has open."""

    def __init__(self, native: _iomill.Drives, drive: str | None = None) -> None:
        self.native = native
        # The process that opened it (rule 2).
        self.home = os.getpid()
        self.users = 0
        self.writers = 0
        # Whether it is open for writing although no use writes (rule 4).
        self.late = False
        # Whether it could not be opened again (rule 5): as `native.mode` says, but without the lock that it takes.
        self.is_away = False
        self._retry: threading.Timer | None = None
        self._retry_s = _RETRY_S
        places = [os.fspath(place) for place in native.drives()] + ([drive] if drive is not None else [])
        for place in places:
            with contextlib.suppress(OSError):
                _openings[_key(place)] = self

    def use(self, writes: bool) -> bool:
        """Begins a use. False if the drives are closed, or if the opening is the parent's and does not serve this
        mode."""
        if self.home != os.getpid():
            return not writes and self.native.mode == "r"
        self.users += 1
        self.writers += writes
        # The last use may just have ended.
        if self.native.mode is None:
            return False
        try:
            if self.is_away:
                self.come_back()
            if writes and self.native.mode == "r" and not self.native.change_mode(True):
                raise OSError(errno.EBUSY, "a file that was removed or replaced is open; close it to write")
        except BaseException:
            self._note_away()
            self.end_use(writes)
            raise
        return True

    def end_use(self, writes: bool) -> None:
        if self.home != os.getpid():
            return
        self.users -= 1
        self.writers -= writes
        if self.users == 0:
            self.late = self.is_away = False
            self.native.close()
        else:
            self.return_to_reading()

    def return_to_reading(self) -> None:
        """Reopens the set for reading if no use writes. If that is not possible now, the opening is late (rule 4)."""
        if self.home != os.getpid() or self.users == 0 or self.writers > 0 or self.native.mode != "r+":
            self.late = False
            return
        self.late = True
        try:
            self.late = not self.native.change_mode(False)
        except BaseException:
            self._note_away()
            self._try_later()
            raise
        self._retry_s = _RETRY_S
        self._note_away()

    def _note_away(self) -> None:
        self.is_away = self.native.mode == "away"
        if self.is_away:
            self.late = False
            self._try_later()

    def come_back(self) -> None:
        """Opens a set again that is away. OSError if that is not possible now."""
        with lock():
            _patiently(self._come_back)

    def _come_back(self) -> None:
        self.native.come_back(self.writers > 0)
        if self.home != os.getpid():
            # It was away at a fork. The child has copies of its parent's uses, and not the thread of the next try.
            self.home, self._retry = os.getpid(), None
        self.is_away = False
        self._retry_s = _RETRY_S

    def try_again(self) -> None:
        """`return_to_reading` for a late opening, at an occasion of rule 4."""
        if not self.late or sys.is_finalizing():
            return
        # A failure does not concern the caller, and the next try is due already.
        with lock(), contextlib.suppress(OSError):
            self.return_to_reading()

    def _retry_now(self) -> None:
        with lock():
            self._retry = None
            self.try_again()
            if self.is_away and self.home == os.getpid() and not sys.is_finalizing():
                try:
                    self._come_back()
                except OSError:
                    self._try_later()

    def _try_later(self) -> None:
        if self._retry is not None or sys.is_finalizing():
            return
        retry = threading.Timer(self._retry_s, self._retry_now)
        # The end of the process does not wait for it.
        retry.daemon = True
        # Without a thread the other occasions of rule 4 remain.
        with contextlib.suppress(RuntimeError):
            retry.start()
            self._retry = retry
            self._retry_s = min(2 * self._retry_s, _AWAY_MAX_S if self.is_away else _RETRY_MAX_S)


_lock = threading.RLock()
_openings: weakref.WeakValueDictionary[Key, Opening] = weakref.WeakValueDictionary()


class Lingers(Protocol):
    """A use for writing that lingers for a moment after its last need."""

    def settle(self) -> None: ...

    def forget(self) -> None: ...


lingering: weakref.WeakSet[Lingers] = weakref.WeakSet()


def lock() -> threading.RLock:
    """The lock of rule 1. A forked child has a new one."""
    return _lock


def settle() -> None:
    """Ends lingering uses for writing, so that other processes can read. An error does not keep the others back."""
    with _lock, contextlib.ExitStack() as ends:
        # Called in the reverse order.
        for opening in set(_openings.values()):
            ends.callback(opening.try_again)
        for writing in list(lingering):
            ends.callback(writing.settle)


def _before_fork() -> None:
    _lock.acquire()
    with contextlib.suppress(Exception):
        settle()


def _in_child() -> None:
    # The forking thread holds the lock, and the child does not have the parent's threads. So the child makes a new lock
    # (rule 1).
    global _lock
    _lock = threading.RLock()
    for writing in list(lingering):
        writing.forget()


# `_lock` is looked up at the call, because a child replaces it.
os.register_at_fork(before=_before_fork, after_in_parent=lambda: _lock.release(), after_in_child=_in_child)


def _key(drive: str) -> Key:
    """The identity of a drive. Not its path, because a link of /proc may lead elsewhere than its text."""
    place, inside = os.stat(drive), os.stat(os.path.join(drive, "iomill"))
    return (place.st_dev, place.st_ino, inside.st_dev, inside.st_ino)


def is_drive(place: str) -> bool:
    """Whether a directory is a drive."""
    # Other directories may also have the name `iomill`, so the label decides.
    return os.path.isfile(os.path.join(place, "iomill", "label"))


def used(drive: str, writes: bool, cache_bytes: int | None) -> tuple[Opening, bool]:
    """Begins a use of a drive's set. Returns its opening, and whether the opening is new."""
    with _lock:
        opening = None
        with contextlib.suppress(OSError):
            opening = _openings.get(_key(drive))
        if opening is not None and opening.use(writes):
            return opening, False
        opening = Opening(_opened(drive, writes, cache_bytes), drive)
        opening.use(writes)
        return opening, True


def _opened(drive: str, writes: bool, cache_bytes: int | None) -> _iomill.Drives:
    return _patiently(lambda: _iomill.open_drives(drive, writes, cache_bytes, sharers()))


def _patiently(open_now: Callable[[], T]) -> T:
    """Opens a set of drives. It waits a moment for a process that has the set open for writing, because that use may
    only linger."""
    for _ in range(_TRIES):
        try:
            return open_now()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        time.sleep(_WAIT_S)
    return open_now()
