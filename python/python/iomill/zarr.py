"""Stores for Zarr that read through iomill's cache and engines: of a directory, of drives, and of a remote store.

>>> import numpy, zarr, iomill.zarr
>>> store = iomill.zarr.IomillStore("volume.zarr")
>>> volume = zarr.create_array(store, shape=(100, 64), chunks=(1, 64), shards=(50, 64), dtype="i4")
>>> volume[:] = numpy.arange(6400).reshape(100, 64)
>>> zarr.open_array(store, mode="r").oindex[[7, 99], 0]
array([ 448, 6336], dtype=int32)

On drives the chunks are spread over all of them:

>>> import os, iomill
>>> os.mkdir("ssd0")
>>> iomill.Drives.create(["ssd0"]).close()
>>> spread = iomill.zarr.DrivesStore("ssd0", "volumes/one")
>>> volume = zarr.create_array(spread, shape=(100, 64), chunks=(10, 64), dtype="i4")
>>> volume[:] = 7
>>> int(zarr.open_array(spread, mode="r")[99, 63])
7

A remote store has a cache on local drives. Here a directory stands for ``s3://bucket``:

>>> os.mkdir("bucket"); os.mkdir("nvme0")
>>> remote = iomill.zarr.RemoteStore("bucket", cache="nvme0", bytes=64 << 20, on_root=True, index_dir=".")
>>> volume = zarr.create_array(remote, shape=(100, 64), chunks=(10, 64), dtype="i4")
>>> volume[:] = 7
>>> int(zarr.open_array(remote, mode="r")[99, 63])
7
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import contextlib
import os
import pathlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore

from ._common import Path, path_of
from ._drives import Drives, Lingering
from ._files import File
from ._openings import is_drive, settle
from ._origins import CachedStore, cached

# The number of files that stay open, of all stores of a process together. They are the last used ones.
_OPEN_FILES = 64

# A file with a more recent change than this, in nanoseconds, may change again without another time. The second value is
# for round times, which may be from clocks of whole or even seconds.
_SETTLED_NS = 100_000_000
_COARSE_NS = 2_100_000_000
_ROUND_NS = 10_000_000

# A second after a file was opened, the process checks which open files another program has deleted or replaced. Later
# checks are less and less frequent.
_FIRST_LOOK_S = 1.0
_LAST_LOOK_S = 60.0

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class _Files:
    """The open files of all stores of this process.

    Replaced and deleted files are closed when another file is opened, or some time later.
    """

    def __init__(self) -> None:
        self.forget_all()

    def forget_all(self) -> None:
        self._files: collections.OrderedDict[str, tuple[Any, File]] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._look: threading.Timer | None = None
        self._is_ending = False

    def open(self, path: str) -> File:
        version = _version(os.stat(path))
        with self._lock:
            known = self._files.get(path)
            if known is not None and known[0] == version:
                self._files.move_to_end(path)
                return known[1]
        file = File(path)
        file._native.expect_random()
        found = os.stat(path)
        # If the version is the same before and after the opening, it is that of the opened file.
        if _version(found) == version and _is_settled(found):
            self._hold(path, version, file)
        else:
            self.forget(path)
        return file

    def _hold(self, path: str, version: Any, file: File) -> None:
        with self._lock:
            self._files[path] = (version, file)
            self._files.move_to_end(path)
            while len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)
            self._look_in(_FIRST_LOOK_S)
        self._forget_changed()

    def _forget_changed(self) -> None:
        with self._lock:
            all_files = list(self._files.items())
        # A file that a read still uses stays open until the read ends.
        for path, (was, _) in all_files:
            if _version_now(path) != was:
                self.forget(path)

    def _look_in(self, seconds: float) -> None:
        """Checks after this time or earlier, if files are open. The caller holds the lock."""
        if self._look is not None:
            if self._look.interval <= seconds:
                return
            self._look.cancel()
            self._look = None
        if self._files and not self._is_ending:
            self._look = threading.Timer(seconds, self._look_now, [seconds])
            self._look.daemon = True
            # If no thread can be started, the next opening checks.
            with contextlib.suppress(RuntimeError):
                self._look.start()

    def _look_now(self, waited: float) -> None:
        self._forget_changed()
        with self._lock:
            if self._look is threading.current_thread():
                self._look = None
                self._look_in(min(waited * 2, _LAST_LOOK_S))

    def end(self) -> None:
        """Waits for a check. A thread that closes a file while the interpreter ends would crash the process."""
        with self._lock:
            self._is_ending = True
            look, self._look = self._look, None
        if look is not None:
            look.cancel()
            with contextlib.suppress(RuntimeError):
                look.join()

    def forget(self, path: str) -> None:
        """Closes the files at a path, and below it."""
        with self._lock:
            for known in [known for known in self._files if known == path or known.startswith(path + os.sep)]:
                del self._files[known]


def _version(found: os.stat_result) -> Any:
    # The last one, ctime, is included because no program can set it.
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _version_now(path: str) -> Any:
    try:
        return _version(os.stat(path))
    except OSError:
        return None


def _is_settled(found: os.stat_result) -> bool:
    """Whether a later change would give another version."""
    window = _COARSE_NS if found.st_ctime_ns % _ROUND_NS == 0 else _SETTLED_NS
    return time.time_ns() - found.st_ctime_ns > window


_open_files = _Files()
# A forked child opens its own files: a thread that the child does not have may hold the lock.
os.register_at_fork(after_in_child=_open_files.forget_all)
atexit.register(_open_files.end)


class _Gathering(Store):
    """A store with a file of iomill for each key. All ranges of one file in a call are one gather, and files are read
    concurrently."""

    def _file(self, key: str) -> File:
        raise NotImplementedError

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        await self._ensure_open()
        values = await self.get_partial_values(prototype or default_buffer_prototype(), [(key, byte_range)])
        return values[0]

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        wanted = list(key_ranges)
        places: dict[str, list[int]] = collections.defaultdict(list)
        for place, (key, _) in enumerate(wanted):
            places[key].append(place)
        values: list[Buffer | None] = [None] * len(wanted)

        async def gather(key: str) -> None:
            try:
                file = self._file(key)
            except _ABSENT:
                return
            ranges = [_range(len(file), wanted[place][1]) for place in places[key]]
            for place, read in zip(places[key], await file.read_ranges_async(ranges)):
                values[place] = prototype.buffer.from_bytes(read)

        await asyncio.gather(*(gather(key) for key in places))
        return values


class IomillStore(_Gathering, LocalStore):
    """Zarr's LocalStore on any file system, read through iomill: chunks that are read again are read from its cache.

    All ranges of one file in a call are one gather, and files are read concurrently. So random chunks are fastest in a
    Zarr with shards. Writes, deletes and lists are those of LocalStore. `root` is the directory.

    Several threads may use it, and it can be pickled. ValueError if `root` is a drive: use `DrivesStore` for files on
    drives.
    """

    def __init__(self, root: pathlib.Path | str, *, read_only: bool = False) -> None:
        place = path_of(root)
        if is_drive(place):
            raise ValueError(
                f"{place} is a drive: files beside those of its set would be on this drive alone;  "
                "use iomill.zarr.DrivesStore(drive, prefix), or another directory"
            )
        inside = pathlib.Path(os.path.realpath(place))
        for above in (inside, *inside.parents):
            if above.name == "iomill" and is_drive(str(above.parent)):
                raise ValueError(
                    f"{place} is in the directory `iomill` of a drive, which belongs to the set of drives: name another directory"
                )
        super().__init__(place, read_only=read_only)

    def __repr__(self) -> str:
        return f"IomillStore('{self}')"

    def _file(self, key: str) -> File:
        # A replaced or changed file is opened again, without its old pages.
        return _open_files.open(self._path(key))

    def _path(self, key: str) -> str:
        return os.fspath(self.root / key)

    async def set(self, key: str, value: Buffer) -> None:
        _open_files.forget(self._path(key))
        await super().set(key, value)

    async def delete(self, key: str) -> None:
        _open_files.forget(self._path(key))
        await super().delete(key)

    async def delete_dir(self, prefix: str) -> None:
        _open_files.forget(self._path(prefix.rstrip("/")))
        await super().delete_dir(prefix)

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        self._ensure_open_sync()
        try:
            file = self._file(key)
        except _ABSENT:
            return None
        read = file.read_ranges([_range(len(file), byte_range)])
        return (prototype or default_buffer_prototype()).buffer.from_bytes(read[0])

    def close(self) -> None:
        _open_files.forget(os.fspath(self.root))
        super().close()


class DrivesStore(_Gathering):
    """A store on drives: each key is a file on them, with a name that begins with `prefix`.

    `drive` is the directory of one of the drives. Chunks and shards are spread over all of them. A value appears as a
    whole or not at all, and is durable. All ranges of one file in a call are one gather, and files are read
    concurrently.

    With `checksums` each page of a written file has a checksum: a page with wrong contents is an OSError, and is never
    returned.

    Several threads may use it, and it can be pickled. The drives are open for reading. A write opens them for writing,
    until a moment after the write.
    """

    supports_writes = True
    supports_deletes = True
    supports_listing = True

    def __init__(self, drive: Path, prefix: str = "", *, read_only: bool = False, checksums: bool = False) -> None:
        super().__init__(read_only=read_only)
        # It is opened at the first use, and the process may be in another directory then.
        self._drive = os.path.abspath(path_of(drive))
        self._prefix = prefix.strip("/")
        self._checksums = checksums
        # Each process opens the drives at its first use.
        self._drives: Drives | None = None
        self._writing: Lingering | None = None

    def with_read_only(self, read_only: bool = False) -> DrivesStore:
        return DrivesStore(self._drive, self._prefix, read_only=read_only, checksums=self._checksums)

    def __str__(self) -> str:
        return f"iomill://{self._prefix}"

    def __repr__(self) -> str:
        return f"DrivesStore({self._drive!r}, {self._prefix!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DrivesStore) and self._what() == other._what()

    def __hash__(self) -> int:
        return hash(self._what())

    def _what(self) -> tuple[Any, ...]:
        return (os.path.realpath(self._drive), self._prefix, self.read_only)

    def __reduce__(self) -> Any:
        settle()
        return _drives_store, (self._drive, self._prefix, self.read_only, self._checksums)

    @property
    def drives(self) -> Drives:
        """The drives, open for reading."""
        if self._drives is None:
            self._drives = Drives._shared(self._drive, "r")
        return self._drives

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}".strip("/")

    def _file(self, key: str) -> File:
        return self.drives.open(self._name(key))

    def _change(self, change: Callable[[Drives], None]) -> None:
        if self._writing is None:
            self._writing = Lingering(self._drive)
        with self._writing.drives() as drives:
            change(drives)

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        try:
            with self._file(key) as file:
                read = file.read_at(*_range(len(file), byte_range))
        except _ABSENT:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(read)

    def set_sync(self, key: str, value: Buffer) -> None:
        self._check_value(value)
        self._change(lambda drives: drives.put(self._name(key), value.as_buffer_like(), checksums=self._checksums))

    def delete_sync(self, key: str) -> None:
        self._check_writable()

        def delete(drives: Drives) -> None:
            if self._name(key) in drives:
                drives.delete(self._name(key))

        self._change(delete)

    def _check_value(self, value: Buffer) -> None:
        self._check_writable()
        if not isinstance(value, Buffer):
            raise TypeError(
                f"DrivesStore.set(): `value` must be a Buffer instance. Got an instance of {type(value)} instead."
            )

    async def exists(self, key: str) -> bool:
        return self._name(key) in self.drives

    async def set(self, key: str, value: Buffer) -> None:
        self._check_value(value)
        await self._ensure_open()
        await asyncio.to_thread(self.set_sync, key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self._check_value(value)
        await self._ensure_open()

        def put(drives: Drives) -> None:
            try:
                drives.put(self._name(key), value.as_buffer_like(), replace=False, checksums=self._checksums)
            except FileExistsError:
                pass

        await asyncio.to_thread(self._change, put)

    async def delete(self, key: str) -> None:
        self._check_writable()
        await self._ensure_open()
        await asyncio.to_thread(self.delete_sync, key)

    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        await self._ensure_open()
        below = self._name(prefix) + "/" if self._name(prefix) else ""

        def delete(drives: Drives) -> None:
            for name in drives.list(below):
                drives.delete(name)

        await asyncio.to_thread(self._change, delete)

    async def clear(self) -> None:
        await self.delete_dir("")

    def _keys(self, below: str) -> list[str]:
        cut = len(self._prefix) + 1 if self._prefix else 0
        start = f"{self._prefix}/{below}" if self._prefix else below
        return [name[cut:] for name in self.drives.list(start)]

    async def is_empty(self, prefix: str) -> bool:
        return not self._keys(prefix.rstrip("/") + "/" if prefix else "")

    async def list(self) -> AsyncIterator[str]:
        for key in self._keys(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in self._keys(prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        below = self._name(prefix)
        start = f"{below}/" if below else ""
        found = {entry[0][len(start) :].rstrip("/") for entry in self.drives._native.entries(start, "/")}
        for name in sorted(found):
            yield name

    async def getsize(self, key: str) -> int:
        return self.drives.size_of(self._name(key))

    def close(self) -> None:
        drives, self._drives = self._drives, None
        # All steps, whatever fails, in the reverse order.
        with contextlib.ExitStack() as ends:
            ends.callback(super().close)
            if drives is not None:
                ends.callback(drives.close)
            if self._writing is not None:
                ends.callback(self._writing.settle)


class RemoteStore(Store):
    """A store of Zarr over `iomill.cached`: chunks that were read before are read from local drives. All ranges of one
    object in a call are one gather.

    `store` is a `CachedStore`, or a URL; then the other arguments are those of `iomill.cached`. Writes are made at the
    origin.
    """

    supports_writes = True
    supports_deletes = True
    supports_listing = True

    def __init__(self, store: CachedStore | str, cache: Any = None, *, read_only: bool = False, **how: Any) -> None:
        super().__init__(read_only=read_only)
        self.store = store if isinstance(store, CachedStore) else cached(store, cache, **how)

    def with_read_only(self, read_only: bool = False) -> RemoteStore:
        return RemoteStore(self.store, read_only=read_only)

    def __str__(self) -> str:
        return self.store.url

    def __repr__(self) -> str:
        return f"RemoteStore({self.store.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteStore) and (self.store, self.read_only) == (other.store, other.read_only)

    def __hash__(self) -> int:
        return hash(self.store)

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        await self._ensure_open()
        values = await self.get_partial_values(prototype or default_buffer_prototype(), [(key, byte_range)])
        return values[0]

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        wanted = list(key_ranges)
        places: dict[str, list[int]] = collections.defaultdict(list)
        for place, (key, _) in enumerate(wanted):
            places[key].append(place)
        values: list[Buffer | None] = [None] * len(wanted)

        async def gather(key: str) -> None:
            asked = [wanted[place][1] for place in places[key]]
            try:
                read = await self._read(key, asked)
            except _ABSENT:
                return
            for place, part in zip(places[key], read):
                values[place] = prototype.buffer.from_bytes(part)

        await asyncio.gather(*(gather(key) for key in places))
        return values

    async def _read(self, key: str, asked: list[ByteRequest | None]) -> list[bytes]:
        if len(asked) == 1:
            try:
                return [(await self.store.get_async(key, options=_option(asked[0]))).buffer()]
            except OSError as error:
                # A range past the end, which is empty for Zarr.
                if asked == [None] or "range" not in str(error).lower():
                    raise
        # The begin of other ranges depends on the length, and a range may end beyond the object.
        size = (await self.store.head_async(key))["size"]
        ranges = [_range(size, one) for one in asked]
        starts, lengths = [start for start, _ in ranges], [length for _, length in ranges]
        return await self.store.get_ranges_async(key, starts=starts, lengths=lengths)

    async def exists(self, key: str) -> bool:
        try:
            await self.store.head_async(key)
        except _ABSENT:
            return False
        return True

    async def set(self, key: str, value: Buffer) -> None:
        self._check_value(value)
        await self._ensure_open()
        await self.store.put_async(key, value.as_buffer_like())

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self._check_value(value)
        await self._ensure_open()
        with contextlib.suppress(FileExistsError):
            await self.store.put_async(key, value.as_buffer_like(), mode="create")

    def _check_value(self, value: Buffer) -> None:
        self._check_writable()
        if not isinstance(value, Buffer):
            raise TypeError(
                f"RemoteStore.set(): `value` must be a Buffer instance. Got an instance of {type(value)} instead."
            )

    async def delete(self, key: str) -> None:
        self._check_writable()
        await self._ensure_open()
        with contextlib.suppress(FileNotFoundError):
            await self.store.delete_async(key)

    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        await self._ensure_open()
        await asyncio.gather(*[self.delete(key) async for key in self.list_prefix(_below(prefix))])

    async def clear(self) -> None:
        await self.delete_dir("")

    async def is_empty(self, prefix: str) -> bool:
        async for _ in self.list_prefix(_below(prefix)):
            return False
        return True

    async def list(self) -> AsyncIterator[str]:
        async for chunk in self.store.list_async():
            for meta in chunk:
                yield meta["path"]

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        # A store only lists below whole segments.
        within = prefix.rstrip("/") if prefix.endswith("/") else prefix.rpartition("/")[0]
        async for chunk in self.store.list_async(within or None):
            for meta in chunk:
                if meta["path"].startswith(prefix):
                    yield meta["path"]

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        within = prefix.strip("/")
        found = await self.store.list_with_delimiter_async(within or None)
        names = [*found["common_prefixes"], *(meta["path"] for meta in found["objects"])]
        cut = len(within) + 1 if within else 0
        for name in sorted({name[cut:].rstrip("/") for name in names}):
            yield name

    async def getsize(self, key: str) -> int:
        return (await self.store.head_async(key))["size"]


def _below(prefix: str) -> str:
    return prefix if not prefix or prefix.endswith("/") else f"{prefix}/"


def _drives_store(drive: str, prefix: str, read_only: bool, checksums: bool) -> DrivesStore:
    return DrivesStore(drive, prefix, read_only=read_only, checksums=checksums)


def _option(wanted: ByteRequest | None) -> dict[str, Any] | None:
    """A requested range as an option of `CachedStore.get`."""
    if isinstance(wanted, RangeByteRequest):
        return {"range": (wanted.start, wanted.end)}
    if isinstance(wanted, OffsetByteRequest):
        return {"range": {"offset": wanted.offset}}
    if isinstance(wanted, SuffixByteRequest):
        return {"range": {"suffix": wanted.suffix}}
    if wanted is not None:
        raise TypeError(f"Unexpected byte_range, got {wanted}.")
    return None


def _range(size: int, wanted: ByteRequest | None) -> tuple[int, int]:
    """The offset and length of a requested range of a file."""
    if wanted is None:
        return 0, size
    if isinstance(wanted, RangeByteRequest):
        start = min(wanted.start, size)
        return start, max(0, min(wanted.end, size) - start)
    if isinstance(wanted, OffsetByteRequest):
        start = min(wanted.offset, size)
    elif isinstance(wanted, SuffixByteRequest):
        start = max(0, size - wanted.suffix)
    else:
        raise TypeError(f"Unexpected byte_range, got {wanted}.")
    return start, size - start
