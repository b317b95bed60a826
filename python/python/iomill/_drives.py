"""Sets of drives: `Drives`. Which of them a process has open is in `_openings`."""

from __future__ import annotations

import contextlib
import errno
import pathlib
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import _iomill
from ._common import Closing, Path, is_writing, path_of, paths_of, tell
from ._drafts import Draft
from ._files import File
from ._formats import rows_of_file
from ._openings import Opening, lingering, lock, used
from ._rows import RowArray
from ._runtime import Telling, sharers
from ._writer import RowWriter

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
    from typing_extensions import Buffer

# A use for writing lingers so long. Another process that wants to read tries for longer.
_LINGER_S = 0.2


# `Drives` has a method of the name `list`.
Directories = list[pathlib.Path]


@dataclass(frozen=True)
class FileStat:
    """What is known of a file on drives: `Drives.stat`.

    `version` changes when the name gets another content, and no other content on these drives has the same. Times are in nanoseconds since the
    start of 1970 (UTC): when it was made, and when a change of it was last synced.
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

    `mode` is ``r``, or ``r+`` for writing. Several processes may have the drives open for reading; a process
    that has them open for writing has them alone. OSError if a drive is missing or another process uses them.

    Within a process all users of a set share one opening and one cache, whichever drive they name. While one of them
    writes, it is open for writing. The first that writes and the last that ends open the set again: that takes some
    milliseconds and empties the cache, and open files stay open.

    `cache_bytes` is the memory for cached pages: by default 512 MiB, and at most a quarter of the memory that the process
    may use. The first user in a process sets it.
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
        """A use of drives whose cache may have another size, if they are open already."""
        shared = cls.__new__(cls)
        shared._begin(is_writing(mode))
        shared._opening, _ = used(drive, shared._writes, cache_bytes)
        tell(shared.notices())
        return shared

    @classmethod
    def create(cls, drives: Path | Sequence[Path], *, cache_bytes: int | None = None) -> Drives:
        """Makes directories into a new set of drives, and opens it for writing. OSError if one does not exist."""
        made = cls.__new__(cls)
        made._begin(True)
        with lock():
            opening = Opening(_iomill.create_drives(paths_of(drives), cache_bytes, sharers()))
            opening.use(True)
        made._opening = opening
        tell(made.notices())
        return made

    @property
    def _native(self) -> _iomill.Drives:
        opening = self._opening
        if opening is None:
            raise ValueError("the drives are closed")
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
        """Opens a file for what the drives are open for. FileNotFoundError if there is none."""
        return self._hold(File._of(self._native.open(name, self._writes), self))

    def _open_alone(self, name: str) -> File:
        """Opens a file that ends this use of the drives when it is closed."""
        return File._of(self._native.open(name, self._writes), self, owns=True)

    def _hold(self, file: File) -> File:
        self._files.add(file)
        return file

    def rows(
        self,
        name: str,
        *,
        dtype: DTypeLike | None = None,
        shape: Sequence[int] | int | None = None,
        offset: int = 0,
    ) -> RowArray:
        """Opens a file as rows. `dtype`, `shape` and `offset` are those of `iomill.open`."""
        return rows_of_file(self.open(name), [name], dtype=dtype, shape=shape, offset=offset)

    def create_file(
        self, name: str, *, layout: str | None = None, block_bytes: int | None = None, checksums: bool = False
    ) -> File:
        """Creates a file of length 0, durably. FileExistsError if the name exists.

        `layout` is the rule by which blocks lie on the drives: ``rotated``, ``striping`` or ``hash``. `block_bytes` is their
        size, a power of two. With `checksums` a page that is not what was written is an OSError, and never wrong bytes.
        """
        return self._hold(File._of(self._to_write.create(name, layout, block_bytes, checksums), self))

    def row_writer(
        self,
        name: str,
        dtype: DTypeLike,
        shape: Sequence[int] = (),
        *,
        replace: bool = False,
        layout: str | None = None,
        block_bytes: int | None = None,
        checksums: bool = False,
    ) -> RowWriter:
        """Writes rows batch by batch, into a file in numpy's format that appears when the writer is closed.

        `shape` is that of a row. FileExistsError at the end if the drives have the name, unless `replace`. The other options are
        those of `create_file`.

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
        """Begins a file that gets its name when its content is complete. The options are those of `create_file`."""
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
        """Writes a whole file, durably: the name appears with all of its content. FileExistsError if it must not be replaced.
        The other options are those of `create_file`."""
        self._to_write.put(name, bytes(memoryview(content)), replace, layout, block_bytes, checksums)

    def copy(self, old: str, new: str, *, replace: bool = True) -> None:
        """Copies a file within the drives, durably. The copy appears whole or not at all."""
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
        >>> with iomill.Drives.create(["plain0"]) as drives:
        ...     drives.put("words", b"one two")
        ...     drives.set_attribute("words", "language", "en")
        ...     found = drives.stat("words")
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
        return self._counters()[2]

    @property
    def hits(self) -> int:
        """Pages of 4 KiB found in the cache so far."""
        return self._counters()[0]

    @property
    def misses(self) -> int:
        """Pages asked for and not found in the cache so far."""
        return self._counters()[1]

    def _counters(self) -> tuple[int, int, int]:
        return self._native.counters()

    @property
    def total_bytes(self) -> int:
        """The size of the file systems that the drives are on."""
        return self._native.space()[0]

    @property
    def free_bytes(self) -> int:
        """How much of it is free."""
        return self._native.space()[1]

    @property
    def directories(self) -> Directories:
        """The directories of the drives."""
        return self._native.drives()

    def sync(self) -> None:
        """Makes all that was written to files of the drives durable."""
        self._native.sync()

    def close(self) -> None:
        """Ends this use of the drives: makes what was written through it durable, and closes its files. A second time it does
        nothing. The last use of a process that ends closes them."""
        with lock():
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
            return "<iomill.Drives: closed>"
        return f"<iomill.Drives on {', '.join(map(str, self.directories))}>"


class Lingering:
    """A use of drives for writing that goes on for a moment after its last need.

    To open drives for writing takes longer than to write a small file. So a program that writes files one after the other opens
    them once. A process that is forked, and one that gets a pickled handle, finds them open for reading.
    """

    def __init__(self, drive: str) -> None:
        self._drive = drive
        self.forget()
        with lock():
            lingering.add(self)

    def forget(self) -> None:
        """For a child: what its parent has is its parent's."""
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
            # No thread starts any more, and one that is no more may hold the lock. The process gives all back.
            return
        with lock():
            if self._needs == 0:
                # The need was its parent's, and this is a child.
                return
            self._needs -= 1
            if self._needs == 0 and self._drives is not None:
                # It is no daemon: the interpreter waits for it before it ends.
                self._timer = threading.Timer(_LINGER_S, self.settle)
                try:
                    self._timer.start()
                except RuntimeError:
                    # No thread can be started: by a limit, or because the interpreter ends.
                    self.settle()

    def settle(self) -> None:
        """Ends the use, unless there is a need."""
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
