"""Sets of drives: `Drives`. `_openings` has the sets that this process has open."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from . import _iomill
from ._common import Closing, Path, is_writing, path_of, paths_of, tell
from ._drafts import Draft
from ._files import File
from ._formats import rows_of_file
from ._openings import Opening, is_drive, lingering, lock, used
from ._rows import RowArray
from ._runtime import Telling, sharers
from ._writer import RowWriter

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
    from typing_extensions import Buffer

# The time for which a use for writing lingers. Another process that opens the drives for reading tries for longer.
_LINGER_S = 0.2


# `Drives` has a method `list`, so annotations in it cannot name that type.
Directories = list[pathlib.Path]


@dataclass(frozen=True)
class FileStat:
    """The metadata of a file on drives: `Drives.stat`.

    `version` changes when the name gets another content, and no other content on these drives has the same version.
    Times are in nanoseconds since the start of 1970 (UTC): of the creation, and of the last synced change.
    """

    name: str
    size: int
    version: int
    created_ns: int
    modified_ns: int
    layout: str
    block_bytes: int
    checksums: bool
    drives: list[int]
    attributes: dict[str, str]


class Drives(Closing, Telling):
    """A set of drives used together, with one catalog of files. `drive` is the directory of one of them.

    >>> import iomill, os
    >>> os.makedirs("ssd0"), os.makedirs("ssd1")
    (None, None)
    >>> with iomill.Drives.create(["ssd0", "ssd1"]) as drives:
    ...     with drives.create_file("words") as file:
    ...         file.write_at(b"one two three", 0)
    >>> with iomill.Drives("ssd0") as drives:
    ...     print(drives.list(), drives.open("words").read())
    ['words'] b'one two three'

    `mode` is ``r``, or ``r+`` for writing. Several processes may have the drives open for reading; while a process has
    them open for writing, no other process can open them. OSError if a drive is missing or another process uses the
    drives.

    Within a process all users of a set share one opening and one cache, whichever drive they name. The set is open for
    writing while one of them writes, or while a file that was removed or replaced is still open. The begin of the first
    write use and the end of the last one reopen the set: that takes some milliseconds and empties the cache, and open
    files stay open.

    `cache_bytes` is the memory for cached pages: by default 512 MiB, and at most a quarter of the process's memory
    limit. The first user in a process sets it.
    """

    _opening: Opening | None = None

    def __init__(self, drive: Path, mode: str = "r", *, cache_bytes: int | None = None) -> None:
        self._begin(is_writing(mode))
        place = path_of(drive)
        self._opening, is_new = used(place, self._writes, cache_bytes)
        if cache_bytes is not None and not is_new:
            now = self.cache_bytes
            warnings.warn(
                f"iomill: this process has the drives of {place} open already, with a cache of {now} bytes",
                stacklevel=2,
            )
        tell(self.notices())

    def _begin(self, writes: bool) -> None:
        self._writes = writes
        self._files: weakref.WeakSet[File] = weakref.WeakSet()

    @classmethod
    def _shared(cls, drive: str, mode: str, cache_bytes: int | None = None) -> Drives:
        """A use of drives. If they are open already, their cache keeps its size."""
        shared = cls.__new__(cls)
        shared._begin(is_writing(mode))
        shared._opening, _ = used(drive, shared._writes, cache_bytes)
        tell(shared.notices())
        return shared

    @classmethod
    def _of(cls, places: Sequence[str], mode: str, cache_bytes: int | None = None) -> Drives:
        """A use of the set of drives in these directories. One of them is enough. ValueError if one is no drive of the
        set."""
        if len(places) == 1:
            return cls._shared(places[0], mode, cache_bytes)
        known = next((place for place in places if is_drive(place)), places[0])
        shared = cls._shared(known, mode, cache_bytes)
        try:
            shared._check_drives(known, places)
        except BaseException:
            shared.close()
            raise
        return shared

    def _check_drives(self, known: str, places: Sequence[str]) -> list[str]:
        """Whether these are drives of this set. The result is its other drives."""
        drives = {os.fspath(drive): os.stat(drive) for drive in self.directories}
        others = set(drives)
        for place in places:
            found = os.stat(place)
            same = [drive for drive, stat in drives.items() if os.path.samestat(stat, found)]
            if not same:
                raise ValueError(
                    f"{place} is no drive of the set of {known}: name drives of one set, or directories that are no drives"
                )
            others.difference_update(same)
        return sorted(others)

    @classmethod
    def create(cls, drives: Path | Sequence[Path], *, exist_ok: bool = False, cache_bytes: int | None = None) -> Drives:
        """Makes a new set of drives of directories, and opens it for writing.

        The directories must exist, and may have other contents: the drive is a new directory ``iomill`` in each. With
        `exist_ok` a set that has exactly these drives is opened, as `os.makedirs` accepts a directory that exists. The
        directory of a drive that is not mounted is empty, so if none is mounted, a new set is made there.

        FileNotFoundError if a directory does not exist, OSError if one is a drive already, and `exist_ok` does not
        accept it. With `exist_ok` ValueError if the directories are drives of several sets, or not all drives of one.

        >>> import iomill, os
        >>> os.mkdir("shelf0"), os.mkdir("shelf1")
        (None, None)
        >>> for run in range(2):
        ...     with iomill.Drives.create(["shelf0", "shelf1"], exist_ok=True) as drives:
        ...         drives.put(f"run{run}", b"...")
        ...         print(drives.list())
        ['run0']
        ['run0', 'run1']
        """
        places = paths_of(drives)
        made = cls.__new__(cls)
        made._begin(True)
        try:
            with lock():
                opening = Opening(_iomill.create_drives(places, cache_bytes, sharers()))
                opening.use(True)
        except OSError:
            # Only now, because another process may have made the set meanwhile.
            there = [place for place in places if is_drive(place)]
            if not exist_ok or not there:
                raise
            for other in set(places).difference(there):
                if not os.path.isdir(other):
                    raise
                why = f"it is no drive, while {there[0]} is one: mount the drive, or name other directories"
                raise OSError(errno.ENODATA, why, other) from None
            return cls._existing(places, cache_bytes)
        made._opening = opening
        tell(made.notices())
        return made

    @classmethod
    def _existing(cls, places: list[str], cache_bytes: int | None) -> Drives:
        """The set of exactly these drives, open for writing."""
        named = [os.path.realpath(place) for place in places]
        for index, place in enumerate(places):
            if named[index] in named[:index]:
                raise ValueError(f"{place} is named twice: name each drive once")
        found = cls(places[0], "r+", cache_bytes=cache_bytes)
        try:
            if others := found._check_drives(places[0], places):
                raise ValueError(
                    f"the set of {places[0]} has other drives, too: {', '.join(others)}; name all of them, or open it "
                    "by `iomill.Drives`"
                )
        except BaseException:
            found.close()
            raise
        return found

    @property
    def _native(self) -> _iomill.Drives:
        opening = self._opening
        if opening is None:
            raise ValueError("the drives are closed")
        if opening.is_away:
            opening.come_back()
        return opening.native

    @property
    def _told(self) -> _iomill.Drives:
        return self._native

    @property
    def _to_write(self) -> _iomill.Drives:
        native = self._native
        if not self._writes:
            raise OSError(errno.EROFS, 'the drives were opened for reading; open them with mode="r+"')
        return native

    @property
    def mode(self) -> str:
        """``r`` or ``r+``."""
        return "r+" if self._writes else "r"

    def open(self, name: str) -> File:
        """Opens a file in the mode of the drives. FileNotFoundError if it does not exist."""
        return self._hold(File._of(self._native.open(name, self._writes), self))

    def _open_alone(self, name: str) -> File:
        """Opens a file. Closing it also ends this use of the drives."""
        return File._of(self._native.open(name, self._writes), self, owns=True)

    def _hold(self, file: File) -> File:
        self._files.add(file)
        return file

    def rows(
        self,
        name: str,
        *,
        tensor: str | None = None,
        dtype: DTypeLike | None = None,
        shape: Sequence[int] | int | None = None,
        offset: int = 0,
    ) -> RowArray:
        """Opens a file as rows. `dtype`, `shape` and `offset` are those of `iomill.open`; `tensor` names a tensor of a
        file of safetensors."""
        return rows_of_file(self.open(name), [name], tensor=tensor, dtype=dtype, shape=shape, offset=offset)

    def create_file(
        self, name: str, *, layout: str | None = None, block_bytes: int | None = None, checksums: bool = False
    ) -> File:
        """Creates a file of length 0, durably. FileExistsError if the name exists.

        `layout` is the rule that places blocks on the drives: ``rotated``, ``striping`` or ``hash``. `block_bytes` is
        the size of a block, a power of two. With `checksums` a page with wrong contents is an OSError, and is never
        returned.
        """
        return self._hold(File._of(self._to_write.create(name, layout, block_bytes, checksums), self))

    def row_writer(
        self,
        name: str,
        dtype: DTypeLike,
        shape: Sequence[int] | int = (),
        *,
        replace: bool = False,
        layout: str | None = None,
        block_bytes: int | None = None,
        checksums: bool = False,
    ) -> RowWriter:
        """Writes rows batch by batch to a file in numpy's format. The file appears when the writer is closed.

        `shape` is the shape of a row, or its length. FileExistsError at the end if the name exists, unless `replace`.
        The other options are those of `create_file`.

        >>> import iomill, numpy, os
        >>> os.mkdir("batches")
        >>> iomill.Drives.create("batches").close()
        >>> with iomill.Drives("batches", "r+") as drives:
        ...     with drives.row_writer("features", "f4", (3,)) as writer:
        ...         for start in range(0, 6, 2):
        ...             writer.append(numpy.full((2, 3), start))
        >>> iomill.open("batches", "features")[[0, 5]]
        array([[0., 0., 0.],
               [4., 4., 4.]], dtype=float32)
        """

        def begin() -> Draft:
            return self.draft(layout=layout, block_bytes=block_bytes, checksums=checksums)

        return RowWriter(begin, name, dtype, shape, replace=replace)

    def draft(self, *, layout: str | None = None, block_bytes: int | None = None, checksums: bool = False) -> Draft:
        """Makes a file without a name, to publish when its content is complete. The options are those of
        `create_file`."""
        return Draft(self._to_write.draft(layout, block_bytes, checksums), self)

    def put(
        self,
        name: str,
        content: Buffer,
        *,
        replace: bool = True,
        layout: str | None = None,
        block_bytes: int | None = None,
        checksums: bool = False,
    ) -> None:
        """Writes a whole file, durably: the name appears with all of its content. FileExistsError if the name exists
        and `replace` is False. The other options are those of `create_file`."""
        self._to_write.put(name, bytes(memoryview(content)), replace, layout, block_bytes, checksums)

    def copy(self, old: str, new: str, *, replace: bool = True) -> None:
        """Copies a file within the drives, durably. The copy appears whole or not at all."""
        self._to_write.copy(old, new, replace)

    def delete(self, name: str) -> None:
        """Deletes a file, durably. Its open handles keep the content. Its space is free when the last of them is
        closed."""
        self._to_write.delete(name)

    def rename(self, old: str, new: str) -> None:
        """Renames a file, durably, and replaces the one with the new name."""
        self._to_write.rename(old, new)

    def list(self, prefix: str = "") -> list[str]:
        """The names that begin with `prefix`, sorted."""
        return self._native.list(prefix)

    def __len__(self) -> int:
        """The number of files."""
        return len(self._native)

    # It is true, also without files: it is not a sequence.
    def __bool__(self) -> bool:
        return True

    def __contains__(self, name: str) -> bool:
        try:
            self._native.len_of(name)
        except FileNotFoundError:
            return False
        return True

    def stat(self, name: str) -> FileStat:
        """The metadata of a file, without opening it. FileNotFoundError if it does not exist.

        >>> import iomill, os
        >>> os.makedirs("plain0")
        >>> with iomill.Drives.create(["plain0"]) as drives:
        ...     drives.put("words", b"one two")
        ...     drives.set_attribute("words", "language", "en")
        ...     found = drives.stat("words")
        >>> found.size, found.attributes
        (7, {'language': 'en'})
        """
        return FileStat(**self._native.stat(name))

    def set_attribute(self, name: str, key: str, value: str | None) -> None:
        """Sets an attribute of a file, durably; None removes it. `stat` returns the attributes."""
        self._to_write.set_attribute(name, key, value)

    def size_of(self, name: str) -> int:
        """The length of a file in bytes."""
        return self._native.len_of(name)

    @property
    def cache_bytes(self) -> int:
        """Memory for cached pages, in bytes."""
        return self._counters()[2]

    @property
    def hits(self) -> int:
        """Pages of 4 KiB found in the cache so far."""
        return self._counters()[0]

    @property
    def misses(self) -> int:
        """Pages requested so far and not found in the cache."""
        return self._counters()[1]

    def _counters(self) -> tuple[int, int, int]:
        return self._native.counters()

    def _file_closed(self) -> None:
        if self._opening is not None:
            self._opening.try_again()

    @property
    def total_bytes(self) -> int:
        """The size of the drives' file systems."""
        return self._native.space()[0]

    @property
    def free_bytes(self) -> int:
        """The free space of the drives' file systems."""
        return self._native.space()[1]

    @property
    def directories(self) -> Directories:
        """The directories of the drives."""
        return self._native.drives()

    def sync(self) -> None:
        """Makes all writes to files of the drives durable."""
        self._native.sync()

    def close(self) -> None:
        """Ends this use of the drives: makes its writes durable, and closes its files. A second call does nothing. The
        end of the last use in a process closes the drives."""
        with lock():
            opening, self._opening = self._opening, None
            if opening is None:
                return
            with contextlib.ExitStack() as ends:
                ends.callback(opening.end_use, self._writes)
                for file in list(self._files):
                    ends.callback(file.close)

    def __del__(self) -> None:
        # `__init__` may have failed. While the interpreter ends, an ended thread may hold the lock. The end of the
        # process frees everything anyway.
        if self._opening is not None and not sys.is_finalizing():
            with contextlib.suppress(Exception):
                self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "drives cannot be pickled: open them in the other process, or pass it the result of `iomill.open`"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.list())

    def __repr__(self) -> str:
        if self._opening is None:
            return "<iomill.Drives: closed>"
        if self._opening.is_away:
            return "<iomill.Drives: not open now>"
        return f"<iomill.Drives on {', '.join(map(str, self.directories))}>"


class Lingering:
    """A use of drives for writing that lingers for a moment after its last need.

    Opening drives for writing takes longer than writing a small file. With this class a program that writes one file
    after the other opens them once. A fork and a pickle end the lingering use first, so the other process can read.
    """

    def __init__(self, drive: str) -> None:
        self._drive = drive
        self.forget()
        with lock():
            lingering.add(self)

    def forget(self) -> None:
        """For a forked child: it does not use its parent's drives."""
        self._drives: Drives | None = None
        self._needs = 0
        self._timer: threading.Timer | None = None

    def begin(self) -> Drives:
        """The drives, open for writing until `end`."""
        with lock():
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._drives is None:
                self._drives = Drives._shared(self._drive, "r+")
            self._needs += 1
            return self._drives

    def end(self) -> None:
        """Ends one need."""
        if sys.is_finalizing():
            # No thread can start any more, and an ended thread may hold the lock. The end of the process frees
            # everything.
            return
        with lock():
            if self._needs == 0:
                # This is a forked child, and the need was its parent's.
                return
            self._needs -= 1
            if self._needs == 0 and self._drives is not None:
                # It is not a daemon: the interpreter waits for it before it ends.
                self._timer = threading.Timer(_LINGER_S, self.settle)
                try:
                    self._timer.start()
                except RuntimeError:
                    # No thread can be started, because of a limit or the end of the interpreter.
                    self.settle()

    def settle(self) -> None:
        """Ends the lingering use, unless it is needed."""
        with lock():
            if self._needs > 0:
                return
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            drives, self._drives = self._drives, None
            if drives is not None:
                drives.close()

    @contextlib.contextmanager
    def drives(self) -> Iterator[Drives]:
        """The drives, open for writing meanwhile."""
        drives = self.begin()
        try:
            yield drives
        finally:
            self.end()
