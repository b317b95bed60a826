"""Arrays of drives: `Array` and `Draft`.

A process opens an array once, whoever asks for it and by whichever drive: an `_Opening`. Each `Array` is a use of it. The array is open for
writing while one of its uses is, and else for reading. A change of the mode opens it again, and its open files go with it.

Rules:
1. What changes openings and their uses holds `_lock`. A fork waits for it, so no child begins with a lock that a thread holds.
2. A child does not count: its parent's openings are its parent's. It reads by those that are open for reading, because the library opens
   them again for it. Any other it opens for itself.
3. A use that is dropped ends as one that is closed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _iomill
from ._files import Closing, File, Path, Telling, is_writing, path_of, paths_of, sharers, tell

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
    from typing_extensions import Buffer

    from ._put import RowWriter
    from ._rows import RowArray

Key = tuple[int, ...]

# A use for writing lingers so long. Another process that wants to read tries for longer.
_LINGER_S = 0.2
_READER_TRIES = 20
_READER_WAIT_S = 0.05


class _Opening:
    """An array that this process has open."""

    def __init__(self, native: _iomill.Array, drive: str | None = None) -> None:
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
        """Begins a use. False if the array is closed, or would have to be opened by its parent."""
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
_openings: weakref.WeakValueDictionary[Key, _Opening] = weakref.WeakValueDictionary()


_lingering: weakref.WeakSet[Lingering] = weakref.WeakSet()


def settle() -> None:
    """Ends uses for writing that only linger, so that other processes can read."""
    with _lock:
        for writing in list(_lingering):
            writing.settle()


def _before_fork() -> None:
    _lock.acquire()
    with contextlib.suppress(Exception):
        settle()


def _in_child() -> None:
    # The thread that forked holds it. So another one is made, for the parent's threads are gone (rule 1).
    global _lock
    _lock = threading.RLock()
    for writing in list(_lingering):
        writing.forget()


# The child has another lock than the one that these functions are made with.
os.register_at_fork(before=_before_fork, after_in_parent=lambda: _lock.release(), after_in_child=_in_child)


def _key(drive: str) -> Key:
    """What a drive is known by. Not its path: links of /proc lead elsewhere than their text says."""
    place, inside = os.stat(drive), os.stat(os.path.join(drive, "iomill"))
    return (place.st_dev, place.st_ino, inside.st_dev, inside.st_ino)


def is_drive(place: str) -> bool:
    """Whether a directory is a drive of an array."""
    # Other directories are named so, too.
    return os.path.isfile(os.path.join(place, "iomill", "label"))


def _used(drive: str, writes: bool, cache_bytes: int | None) -> tuple[_Opening, bool]:
    """The opening of a drive's array, with one use more, and whether it is a new one."""
    with _lock:
        opening = None
        with contextlib.suppress(OSError):
            opening = _openings.get(_key(drive))
        if opening is not None and opening.use(writes):
            return opening, False
        opening = _Opening(_opened(drive, writes, cache_bytes), drive)
        opening.use(writes)
        return opening, True


def _opened(drive: str, writes: bool, cache_bytes: int | None) -> _iomill.Array:
    """Opens an array. A reader waits a moment for a process that has it open for writing: it may only linger."""
    for _ in range(0 if writes else _READER_TRIES):
        try:
            return _iomill.open_array(drive, writes, cache_bytes, sharers())
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        time.sleep(_READER_WAIT_S)
    return _iomill.open_array(drive, writes, cache_bytes, sharers())


@dataclass(frozen=True)
class FileStat:
    """What is known of a file of an array: `Array.stat`.

    `version` changes when the name gets another content, and no other content of the array has the same. Times are in nanoseconds since the
    start of 1970 (UTC): when it was made, and when a change of it was last synced.
    """

    name: str
    size: int
    version: int
    created_ns: int
    modified_ns: int
    layout: str
    block_bytes: int
    drives: list[int]
    attributes: dict[str, str]


class Array(Closing, Telling):
    """A set of drives used together, with one catalog of files. `drive` is the directory of one of them.

    >>> import iomill, os
    >>> os.makedirs("ssd0"), os.makedirs("ssd1")
    (None, None)
    >>> with iomill.Array.create(["ssd0", "ssd1"]) as array:
    ...     with array.create_file("words") as file:
    ...         file.write_at(b"one two three", 0)
    >>> with iomill.Array("ssd0") as array:
    ...     print(array.list(), array.open("words").read())
    ['words'] b'one two three'

    `mode` is ``r``, or ``r+`` for writing. Several processes may have an array open for reading; a process that has it
    open for writing has it alone. OSError if a drive is missing or another process uses the array.

    Within a process all users of an array share one opening and one cache, whichever drive they name. While one of them
    writes, it is open for writing. The first that writes and the last that ends open the array again: that takes some
    milliseconds and empties the cache, and open files stay open.

    `cache_bytes` is the memory for cached pages: by default 512 MiB, and at most a quarter of the memory that the process
    may use. The first user in a process sets it.
    """

    _opening: _Opening | None = None

    def __init__(self, drive: Path, mode: str = "r", *, cache_bytes: int | None = None) -> None:
        self._begin(is_writing(mode))
        place = path_of(drive)
        self._opening, is_new = _used(place, self._writes, cache_bytes)
        if cache_bytes is not None and not is_new:
            now = self.cache_bytes
            warnings.warn(
                f"iomill: this process has the array of {place} open already, with a cache of {now} bytes", stacklevel=2
            )
        tell(self.notices())

    def _begin(self, writes: bool) -> None:
        self._writes = writes
        self._files: weakref.WeakSet[File] = weakref.WeakSet()

    @classmethod
    def _shared(cls, drive: str, mode: str, cache_bytes: int | None = None) -> Array:
        """A use of an array whose cache may have another size, if it is open already."""
        array = cls.__new__(cls)
        array._begin(is_writing(mode))
        array._opening, _ = _used(drive, array._writes, cache_bytes)
        tell(array.notices())
        return array

    @classmethod
    def create(cls, drives: Path | Sequence[Path], *, cache_bytes: int | None = None) -> Array:
        """Makes directories into the drives of a new array, and opens it for writing. OSError if one does not exist."""
        array = cls.__new__(cls)
        array._begin(True)
        with _lock:
            opening = _Opening(_iomill.create_array(paths_of(drives), cache_bytes, sharers()))
            opening.use(True)
        array._opening = opening
        tell(array.notices())
        return array

    @property
    def _native(self) -> _iomill.Array:
        opening = self._opening
        if opening is None:
            raise ValueError("the array is closed")
        return opening.native

    @property
    def _to_write(self) -> _iomill.Array:
        native = self._native
        if not self._writes:
            raise OSError(errno.EROFS, 'the array was opened for reading; open it with mode="r+"')
        return native

    @property
    def mode(self) -> str:
        """``r`` or ``r+``."""
        return "r+" if self._writes else "r"

    def open(self, name: str) -> File:
        """Opens a file for what the array is open for. FileNotFoundError if there is none."""
        return self._hold(File._of(self._native.open(name, self._writes), self))

    def _open_alone(self, name: str) -> File:
        """Opens a file that ends this use of the array when it is closed."""
        return File._of(self._native.open(name, self._writes), self, owns=True)

    def _hold(self, file: File) -> File:
        self._files.add(file)
        return file

    def rows(self, name: str, **how: Any) -> RowArray:
        """Opens a file as rows. `how` has the arguments `dtype`, `shape` and `offset` of `iomill.open`."""
        from ._formats import rows_of_file

        return rows_of_file(self.open(name), [name], **how)

    def create_file(self, name: str, *, layout: str | None = None, block_bytes: int | None = None) -> File:
        """Creates a file of length 0, durably. FileExistsError if the name exists.

        `layout` is the rule by which blocks lie on the drives: ``rotated``, ``striping`` or ``hash``. `block_bytes` is their
        size, a power of two.
        """
        return self._hold(File._of(self._to_write.create(name, layout, block_bytes), self))

    def row_writer(self, name: str, dtype: DTypeLike, shape: Sequence[int] = (), *, replace: bool = False) -> RowWriter:
        """Writes rows batch by batch, into a file in numpy's format that appears when the writer is closed.

        `shape` is that of a row. FileExistsError at the end if the array has the name, unless `replace`.

        >>> import iomill, numpy, os
        >>> os.mkdir("batches")
        >>> iomill.Array.create("batches").close()
        >>> with iomill.Array("batches", "r+") as array:
        ...     with array.row_writer("features", "f4", (3,)) as writer:
        ...         for start in range(0, 6, 2):
        ...             writer.append(numpy.full((2, 3), start))
        >>> iomill.open("batches", "features")[[0, 5]]
        array([[0., 0., 0.],
               [4., 4., 4.]], dtype=float32)
        """
        from ._put import RowWriter

        return RowWriter(self, name, dtype, shape, replace=replace)

    def draft(self, *, layout: str | None = None, block_bytes: int | None = None) -> Draft:
        """Begins a file that gets its name when its content is complete. The options are those of `create_file`."""
        return Draft(self, layout, block_bytes)

    def put(self, name: str, content: Buffer, *, replace: bool = True) -> None:
        """Writes a whole file, durably: the name appears with all of its content. FileExistsError if it must not be replaced."""
        self._to_write.put(name, bytes(content), replace)

    def copy(self, old: str, new: str, *, replace: bool = True) -> None:
        """Copies a file within the array, durably. The copy appears whole or not at all."""
        self._to_write.copy(old, new, replace)

    def delete(self, name: str) -> None:
        """Deletes a file, durably. Its handles keep the content, and the space is free when the last one is closed."""
        self._to_write.delete(name)

    def rename(self, old: str, new: str) -> None:
        """Renames a file, durably, and replaces the one with the new name."""
        self._to_write.rename(old, new)

    def list(self, prefix: str = "") -> list[str]:
        """The names that begin with `prefix`, sorted."""
        return self._native.list(prefix)

    def __contains__(self, name: str) -> bool:
        try:
            self._native.len_of(name)
        except FileNotFoundError:
            return False
        return True

    def stat(self, name: str) -> FileStat:
        """What is known of a file, without opening it. FileNotFoundError if there is none.

        >>> import iomill, os
        >>> os.makedirs("plain0")
        >>> with iomill.Array.create(["plain0"]) as array:
        ...     array.put("words", b"one two")
        ...     array.set_attribute("words", "language", "en")
        ...     found = array.stat("words")
        >>> found.size, found.attributes
        (7, {'language': 'en'})
        """
        return FileStat(**self._native.stat(name))

    def set_attribute(self, name: str, key: str, value: str | None) -> None:
        """Sets an attribute of a file, durably; None removes it. `stat` has them."""
        self._to_write.set_attribute(name, key, value)

    def size_of(self, name: str) -> int:
        """The length of a file in bytes."""
        return self._native.len_of(name)

    @property
    def cache_bytes(self) -> int:
        """Memory for cached pages, in bytes."""
        return self._native.cache_bytes()

    @property
    def total_bytes(self) -> int:
        """The size of the file systems that the drives are on."""
        return self._native.space()[0]

    @property
    def free_bytes(self) -> int:
        """How much of it is free."""
        return self._native.space()[1]

    def drives(self) -> Any:
        """The directories of the drives."""
        return self._native.drives()

    def sync(self) -> None:
        """Makes all that was written to files of the array durable."""
        self._native.sync()

    def close(self) -> None:
        """Ends this use of the array: makes what was written through it durable, and closes its files. A second time it does
        nothing. The last use of a process that ends closes the array."""
        with _lock:
            opening, self._opening = self._opening, None
            if opening is None:
                return
            with contextlib.ExitStack() as ends:
                ends.callback(opening.end_use, self._writes)
                for file in list(self._files):
                    ends.callback(file.close)

    def __del__(self) -> None:
        # `__init__` may have failed. While the interpreter ends, a thread that is no more may hold the lock, and the process gives all back.
        if self._opening is not None and not sys.is_finalizing():
            with contextlib.suppress(Exception):
                self.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self.list())

    def __repr__(self) -> str:
        if self._opening is None:
            return "<iomill.Array: closed>"
        return f"<iomill.Array on {', '.join(map(str, self.drives()))}>"


class Lingering:
    """A use of an array for writing that goes on for a moment after its last need.

    To open an array for writing takes longer than to write a small file. So a program that writes files one after the other opens
    it once. A process that is forked, and one that gets a pickled handle, finds the array open for reading.
    """

    def __init__(self, drive: str) -> None:
        self._drive = drive
        self.forget()
        with _lock:
            _lingering.add(self)

    def forget(self) -> None:
        """For a child: what its parent has is its parent's."""
        self._array: Array | None = None
        self._needs = 0
        self._timer: threading.Timer | None = None

    def begin(self) -> Array:
        """The array, open for writing until `end`."""
        with _lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._array is None:
                self._array = Array._shared(self._drive, "r+")
            self._needs += 1
            return self._array

    def end(self) -> None:
        """Ends one need."""
        if sys.is_finalizing():
            # No thread starts any more, and one that is no more may hold the lock. The process gives all back.
            return
        with _lock:
            if self._needs == 0:
                # The need was its parent's, and this is a child.
                return
            self._needs -= 1
            if self._needs == 0 and self._array is not None:
                # It is no daemon: the interpreter waits for it before it ends.
                self._timer = threading.Timer(_LINGER_S, self.settle)
                try:
                    self._timer.start()
                except RuntimeError:
                    # No thread can be started: by a limit, or because the interpreter ends.
                    self.settle()

    def settle(self) -> None:
        """Ends the use, unless there is a need."""
        with _lock:
            if self._needs > 0:
                return
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            array, self._array = self._array, None
            if array is not None:
                array.close()

    @contextlib.contextmanager
    def array(self) -> Iterator[Array]:
        """The array, open for writing meanwhile."""
        array = self.begin()
        try:
            yield array
        finally:
            self.end()


class Draft(Closing):
    """A file without a name, from `Array.draft`. `publish` gives it one: its content appears as a whole, or not at all.

    A draft that is closed without a name gives its space back. `file` is the file.

    >>> import iomill, os
    >>> os.makedirs("disk")
    >>> with iomill.Array.create(["disk"]) as array:
    ...     with array.draft() as draft:
    ...         _ = draft.file.write(b"whole")
    ...         draft.publish("object")
    ...     print(array.open("object").read())
    b'whole'
    """

    def __init__(self, array: Array, layout: str | None = None, block_bytes: int | None = None) -> None:
        self._native = array._to_write.draft(layout, block_bytes)
        self.file = File._of(self._native.file(), array)

    def set_attribute(self, key: str, value: str | None) -> None:
        """Sets an attribute that the file has when it gets its name."""
        self._native.set_attribute(key, value)

    def publish(self, name: str, *, replace: bool = True) -> None:
        """Makes the content durable, then the name. A file that has the name loses it at the same moment, and handles
        of it keep its content. FileExistsError if it must not be replaced; then the draft is given up."""
        self._native.publish(name, replace)
        self.file.close()

    def close(self) -> None:
        """Gives the file up, unless it was published. A second time it does nothing."""
        self.file._native.discard()
        self._native.close()
