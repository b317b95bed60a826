"""Sets of drives that this process has open: `Opening`.

A process opens a set once, whoever asks for it and by whichever drive. Each `Drives` is a use of it. It is open for writing while one of
its uses is, and else for reading. A change of the mode opens it again, and its open files go with it.

Rules:
1. What changes openings and their uses holds `lock`. A fork waits for it, so no child begins with a lock that a thread holds.
2. A child does not count: its parent's openings are its parent's. It reads by those that are open for reading, because the library opens
   them again for it. Any other it opens for itself.
3. A use that is dropped ends as one that is closed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import weakref
from typing import Protocol

from . import _iomill
from ._runtime import sharers

Key = tuple[int, ...]

# Another process may have a set of drives open for writing for a moment longer than it needs: `_drives.Lingering`.
_TRIES = 20
_WAIT_S = 0.05


class Opening:
    """A set of drives that this process has open."""

    def __init__(self, native: _iomill.Drives, drive: str | None = None) -> None:
        self.native = native
        # It has the process that opened it (rule 2).
        self.home = os.getpid()
        self.users = 0
        self.writers = 0
        places = [os.fspath(place) for place in native.drives()] + ([drive] if drive is not None else [])
        for place in places:
            with contextlib.suppress(OSError):
                _openings[_key(place)] = self

    def use(self, writes: bool) -> bool:
        """Begins a use. False if the drives are closed, or would have to be opened by its parent."""
        if self.home != os.getpid():
            return not writes and self.native.mode == "r"
        self.users += 1
        self.writers += writes
        # The last use may have ended just before.
        if self.native.mode is None:
            return False
        try:
            if writes and self.native.mode == "r":
                self.native.change_mode(True)
        except BaseException:
            self.end_use(writes)
            raise
        return True

    def end_use(self, writes: bool) -> None:
        if self.home != os.getpid():
            return
        self.users -= 1
        self.writers -= writes
        if self.users == 0:
            self.native.close()
        elif self.writers == 0 and self.native.mode == "r+":
            self.native.change_mode(False)


_lock = threading.RLock()
_openings: weakref.WeakValueDictionary[Key, Opening] = weakref.WeakValueDictionary()


class Lingers(Protocol):
    """A use for writing that goes on for a moment after its last need."""

    def settle(self) -> None: ...

    def forget(self) -> None: ...


lingering: weakref.WeakSet[Lingers] = weakref.WeakSet()


def lock() -> threading.RLock:
    """The lock of rule 1. A child has another one than its parent."""
    return _lock


def settle() -> None:
    """Ends uses for writing that only linger, so that other processes can read."""
    with _lock:
        for writing in list(lingering):
            writing.settle()


def _before_fork() -> None:
    _lock.acquire()
    with contextlib.suppress(Exception):
        settle()


def _in_child() -> None:
    # The thread that forked holds it. So another one is made, for the parent's threads are gone (rule 1).
    global _lock
    _lock = threading.RLock()
    for writing in list(lingering):
        writing.forget()


# The child has another lock than the one that these functions are made with.
os.register_at_fork(before=_before_fork, after_in_parent=lambda: _lock.release(), after_in_child=_in_child)


def _key(drive: str) -> Key:
    """What a drive is known by. Not its path: links of /proc lead elsewhere than their text says."""
    place, inside = os.stat(drive), os.stat(os.path.join(drive, "iomill"))
    return (place.st_dev, place.st_ino, inside.st_dev, inside.st_ino)


def is_drive(place: str) -> bool:
    """Whether a directory is a drive."""
    # Other directories are named so, too.
    return os.path.isfile(os.path.join(place, "iomill", "label"))


def used(drive: str, writes: bool, cache_bytes: int | None) -> tuple[Opening, bool]:
    """The opening of a drive's set, with one use more, and whether it is a new one."""
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
    """Opens a set of drives. It waits a moment for a process that has it open for writing: it may only linger."""
    for _ in range(_TRIES):
        try:
            return _iomill.open_drives(drive, writes, cache_bytes, sharers())
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        time.sleep(_WAIT_S)
    return _iomill.open_drives(drive, writes, cache_bytes, sharers())
