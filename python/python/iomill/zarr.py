"""A store for Zarr whose reads go through iomill's cache and engines.

>>> import numpy, zarr, iomill.zarr
>>> store = iomill.zarr.IomillStore("volume.zarr")
>>> volume = zarr.create_array(store, shape=(100, 64), chunks=(1, 64), shards=(50, 64), dtype="i4")
>>> volume[:] = numpy.arange(6400).reshape(100, 64)
>>> zarr.open_array(store, mode="r").oindex[[7, 99], 0]
array([ 448, 6336], dtype=int32)
"""

from __future__ import annotations

import asyncio
import collections
import os
import pathlib
import threading
from collections.abc import Iterable
from typing import Any

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore

from ._files import File

# So many files stay open, those that were used last.
_OPEN_FILES = 256

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class IomillStore(LocalStore):
    """Zarr's LocalStore on any file system, read through iomill: chunks that are read again come out of its cache.

    All that a call asks of one file is one gather, and files are read together. So a Zarr with shards serves random
    chunks best. Writes, deletes and lists are those of LocalStore. `root` is the directory.

    It may be used from several threads, and sent to other processes.
    """

    def __init__(self, root: pathlib.Path | str, *, read_only: bool = False) -> None:
        super().__init__(root, read_only=read_only)
        self._begin()

    def _begin(self) -> None:
        self._files: collections.OrderedDict[str, tuple[Any, File]] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_files", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __str__(self) -> str:
        return f"iomill://{self.root.as_posix()}"

    def __repr__(self) -> str:
        return f"IomillStore('{self}')"

    def _file(self, key: str) -> File:
        path = os.fspath(self.root / key)
        found = os.stat(path)
        # A file that was replaced or changed is opened again, and then its old pages are not used.
        version = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        with self._lock:
            known = self._files.get(path)
            if known is not None and known[0] == version:
                self._files.move_to_end(path)
                return known[1]
        file = File(path)
        file._native.expect_random()
        with self._lock:
            self._files[path] = (version, file)
            self._files.move_to_end(path)
            while len(self._files) > _OPEN_FILES:
                # A read that still uses it keeps it open.
                self._files.popitem(last=False)
        return file

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

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        if not self._is_open:
            await self._open()
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

    def close(self) -> None:
        with self._lock:
            self._files.clear()
        super().close()


def _range(size: int, wanted: ByteRequest | None) -> tuple[int, int]:
    """The offset and length of what is wanted of a file."""
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
