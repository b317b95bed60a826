"""Objects of remote stores through a cache on local drives: `cached` and `CachedStore`."""

from __future__ import annotations

import datetime
import pathlib
import re
import urllib.parse
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal, TypedDict, TypeGuard, TypeVar, cast

from . import _iomill
from ._cache import Cache, check_build
from ._common import Path, path_of
from ._files import File
from ._futures import begun

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Classes here have methods of these names.
_Bytes = bytes
_Parts = list[bytes]

# Settings of a store, by name.
Config = Mapping[str, str | int | float | bool]

# The treatment of an existing object by a put.
PutMode = Literal["overwrite", "create"] | Mapping[Literal["e_tag", "version"], str | None]

T = TypeVar("T")

# In these URLs the path begins after the name of a bucket. With other schemes the whole URL is needed to find the
# store.
_BUCKETS = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")
_SCHEMES = (*_BUCKETS, "http", "https", "file")

# The objects that a listing yields at a time.
_LIST_CHUNK = 1000

# The number of bytes between two calls of a prefetch's `progress`.
_PREFETCH_BYTES = 64 << 20


def is_url(path: object) -> TypeGuard[str]:
    """Whether a path names an object of a store."""
    return isinstance(path, str) and urllib.parse.urlsplit(path).scheme in _SCHEMES and "://" in path


def url_of(path: object) -> str:
    """A URL, also of a local path. ValueError if a part of it would be ignored, which would name another object."""
    if not is_url(path):
        return pathlib.Path(path_of(path)).absolute().as_uri()
    parts = urllib.parse.urlsplit(path)
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise ValueError(
            f"{path!r}: {parts.netloc!r} is a host, which a local file does not have: write file:/// and the absolute path"
        )
    for letter in "?#\t\r\n":
        if letter in path:
            raise ValueError(
                f"{path!r} has a {letter!r}: in a key, write {urllib.parse.quote(letter)} for it; queries and signed URLs are not supported"
            )
    return path


def _split(url: str) -> tuple[str, str]:
    """A URL of a store, and the key of an object in it."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        return "file:///", urllib.parse.unquote(parts.path).strip("/")
    if parts.scheme in _BUCKETS:
        return f"{parts.scheme}://{parts.netloc}", urllib.parse.unquote(parts.path).strip("/")
    return url, ""


class ObjectMeta(TypedDict):
    """The metadata of an object."""

    path: str
    last_modified: datetime.datetime
    size: int
    e_tag: str | None
    version: str | None


class PutResult(TypedDict):
    """The result of a put."""

    e_tag: str | None
    version: str | None


class ListResult(TypedDict):
    """The objects and prefixes directly below a prefix."""

    common_prefixes: Sequence[str]
    objects: Sequence[ObjectMeta]


def _time(ns: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ns // 1000 / 1e6, datetime.UTC)


def _meta(said: _iomill.Meta) -> ObjectMeta:
    return {
        "path": said["path"],
        "last_modified": _time(said["last_modified"]),
        "size": said["size"],
        "e_tag": said["e_tag"],
        "version": said["version"],
    }


class GetResult:
    """The answer of a get: the bytes, and the metadata of the object."""

    def __init__(self, content: _Bytes, meta: ObjectMeta, range: tuple[int, int], attributes: dict[str, str]) -> None:
        self._content = content
        self.meta = meta
        self.range = range
        self.attributes = attributes

    def buffer(self) -> _Bytes:
        """The bytes."""
        return self._content

    async def buffer_async(self) -> _Bytes:
        """The bytes."""
        return self._content

    # The names of obstore.
    bytes = buffer
    bytes_async = buffer_async

    def __iter__(self) -> Iterator[Buffer]:
        yield self._content

    async def __aiter__(self) -> AsyncIterator[Buffer]:
        yield self._content


def _got(said: tuple[_Bytes, _iomill.Meta, tuple[int, int], dict[str, str]]) -> GetResult:
    content, meta, range, attributes = said
    return GetResult(content, _meta(meta), range, attributes)


_START = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _ns(time: datetime.datetime | None) -> int | None:
    """The last nanosecond of a microsecond: times of Python have no smaller unit, and those of some stores have."""
    if time is None:
        return None
    return (time.astimezone(datetime.UTC) - _START) // datetime.timedelta(microseconds=1) * 1000 + 999


def _wanted(options: Mapping[str, Any] | None) -> tuple[Any, Any]:
    """The requested range of a get, and its conditions."""
    options = dict(options or {})
    range = options.pop("range", None)
    options.pop("head", None)
    names = ("if_match", "if_none_match", "if_modified_since", "if_unmodified_since", "version")
    conditions = {name: options.pop(name, None) for name in names}
    for name in ("if_modified_since", "if_unmodified_since"):
        conditions[name] = _ns(conditions[name])
    if options:
        raise ValueError(f"no option of a get is named {', '.join(map(repr, options))}")
    if range is None:
        wanted = None
    elif isinstance(range, Mapping):
        ((kind, count),) = range.items()
        wanted = (kind, count, 0)
    else:
        wanted = ("range", *range)
    return wanted, conditions if any(value is not None for value in conditions.values()) else None


def _end_of(start: int, end: int | None, length: int | None) -> int:
    if (end is None) == (length is None):
        raise ValueError("give the end of the range or its length")
    return end if end is not None else start + length  # type: ignore[operator]


def _ranges(starts: Sequence[int], ends: Sequence[int] | None, lengths: Sequence[int] | None) -> list[tuple[int, int]]:
    if (ends is None) == (lengths is None):
        raise ValueError("give the ends of the ranges or their lengths")
    if ends is None:
        ends = [start + length for start, length in zip(starts, lengths or (), strict=True)]
    ranges = list(zip(starts, ends, strict=True))
    for start, end in ranges:
        if not 0 <= start <= end:
            raise ValueError(
                f"a range from {start} to {end}: it must begin at 0 or later, and end where it begins or later"
            )
    return ranges


def _content(file: IO[bytes] | pathlib.Path | Buffer | Iterable[Buffer]) -> bytes:
    """The content of a put: bytes, a path, a file or an iterable of buffers."""
    if isinstance(file, pathlib.Path):
        return file.read_bytes()
    read = getattr(file, "read", None)
    if read is not None:
        return bytes(read())
    try:
        return bytes(memoryview(cast("Buffer", file)))
    except TypeError:
        return b"".join(bytes(memoryview(part)) for part in cast("Iterable[Buffer]", file))


def _mode(mode: PutMode | None) -> tuple[str, str | None, str | None]:
    if isinstance(mode, Mapping):
        return "update", mode.get("e_tag"), mode.get("version")
    return mode or "overwrite", None, None


class CachedStore:
    """The objects below a URL, through a cache: `iomill.cached` returns one. The methods are those of obspec, with the
    names of obstore.

    Several threads may use it. A pickle of it has no bytes of objects, and is opened at its first use. A forked child
    opens it again. Paths of objects begin after the URL.
    """

    def __init__(self, url: str, cache: Cache, config: Config | None = None) -> None:
        self._begin(url, cache, config)
        _ = self._native

    def _begin(self, url: str, cache: Cache, config: Config | None) -> None:
        self.url = url_of(url)
        self.cache = cache
        self._config = {key: _setting(value) for key, value in (config or {}).items()}
        self._opened: _iomill.Store | None = None

    @classmethod
    def _later(cls, url: str, cache: Cache, config: dict[str, str]) -> CachedStore:
        store = cls.__new__(cls)
        store._begin(url, cache, config)
        return store

    @property
    def _native(self) -> _iomill.Store:
        if self._opened is None:
            check_build()
            self._opened = _iomill.Store(self.cache._native, self.url, self._config)
        return self._opened

    def __reduce__(self) -> tuple[Callable[..., CachedStore], tuple[str, Cache, dict[str, str]]]:
        return CachedStore._later, (self.url, self.cache, self._config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CachedStore) and self._what() == other._what()

    def __hash__(self) -> int:
        return hash(self.url)

    def _what(self) -> tuple[object, ...]:
        return (self.url.rstrip("/"), self.cache, self._config)

    def __repr__(self) -> str:
        return f"<iomill.CachedStore of {self.url!r} on {', '.join(self.cache.drives)}>"

    def open(self, path: str) -> RemoteFile:
        """Opens an object in its present version, as a file for reading. If the object changes, a read of bytes that
        are not cached is an OSError."""
        return RemoteFile(self._native.open(path), self)

    # obspec: reads.

    def get(self, path: str, *, options: Mapping[str, Any] | None = None) -> GetResult:
        """An object, or a range of it. `options` are those of obspec. FileNotFoundError if there is no such object."""
        return _got(self._native.get(path, *_wanted(options)))

    async def get_async(self, path: str, *, options: Mapping[str, Any] | None = None) -> GetResult:
        """`get` as a coroutine."""
        wanted, conditions = _wanted(options)
        return await begun(lambda done: self._native.get(path, wanted, conditions, done=done), _got)

    def get_range(self, path: str, *, start: int, end: int | None = None, length: int | None = None) -> bytes:
        """A range of an object."""
        return self.get_ranges(path, starts=[start], ends=[_end_of(start, end, length)])[0]

    async def get_range_async(
        self, path: str, *, start: int, end: int | None = None, length: int | None = None
    ) -> bytes:
        """`get_range` as a coroutine."""
        return (await self.get_ranges_async(path, starts=[start], ends=[_end_of(start, end, length)]))[0]

    def get_ranges(
        self,
        path: str,
        *,
        starts: Sequence[int],
        ends: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> _Parts:
        """Ranges of an object, by one gather of all drives."""
        return self._native.get_ranges(path, _ranges(starts, ends, lengths))

    async def get_ranges_async(
        self,
        path: str,
        *,
        starts: Sequence[int],
        ends: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> _Parts:
        """`get_ranges` as a coroutine."""
        ranges = _ranges(starts, ends, lengths)
        return await begun(lambda done: self._native.get_ranges(path, ranges, done=done), _same)

    def head(self, path: str) -> ObjectMeta:
        """What the store knows of an object."""
        return _meta(self._native.head(path))

    async def head_async(self, path: str) -> ObjectMeta:
        """`head` as a coroutine."""
        return await begun(lambda done: self._native.head(path, done=done), _meta)

    def list(self, prefix: str | None = None, *, offset: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        """The objects below a prefix of whole segments, in chunks, after `offset`. The whole listing is in memory until
        it ends."""
        yield from _chunks(self._native.list(prefix, offset))

    async def list_async(
        self, prefix: str | None = None, *, offset: str | None = None
    ) -> AsyncIterator[Sequence[ObjectMeta]]:
        """`list` as an asynchronous iterator."""
        for chunk in _chunks(await begun(lambda done: self._native.list(prefix, offset, done=done), _same)):
            yield chunk

    def list_with_delimiter(self, prefix: str | None = None) -> ListResult:
        """The objects and prefixes directly below a prefix."""
        return _listed(self._native.list_with_delimiter(prefix))

    async def list_with_delimiter_async(self, prefix: str | None = None) -> ListResult:
        """`list_with_delimiter` as a coroutine."""
        return await begun(lambda done: self._native.list_with_delimiter(prefix, done=done), _listed)

    # obspec: changes. The store makes them, and reads of this process see them at once.

    def put(
        self, path: str, file: IO[bytes] | pathlib.Path | Buffer | Iterable[Buffer], *, mode: PutMode | None = None
    ) -> PutResult:
        """Writes an object. `mode` is ``overwrite``, ``create`` or a dictionary with the ``e_tag`` of the object to
        replace."""
        return self._native.put(path, _content(file), *_mode(mode))

    async def put_async(
        self, path: str, file: IO[bytes] | pathlib.Path | Buffer | Iterable[Buffer], *, mode: PutMode | None = None
    ) -> PutResult:
        """`put` as a coroutine."""
        content, how = _content(file), _mode(mode)
        return await begun(lambda done: self._native.put(path, content, *how, done=done), _same)

    def delete(self, paths: str | Sequence[str]) -> None:
        """Deletes an object, or several."""
        self._native.delete([paths] if isinstance(paths, str) else [*paths])

    async def delete_async(self, paths: str | Sequence[str]) -> None:
        """`delete` as a coroutine."""
        keys = [paths] if isinstance(paths, str) else [*paths]
        await begun(lambda done: self._native.delete(keys, done=done), _same)

    def copy(self, from_: str, to: str, *, overwrite: bool = True) -> None:
        """Copies an object within the store."""
        self._native.copy(from_, to, False, overwrite)

    async def copy_async(self, from_: str, to: str, *, overwrite: bool = True) -> None:
        """`copy` as a coroutine."""
        await begun(lambda done: self._native.copy(from_, to, False, overwrite, done=done), _same)

    def rename(self, from_: str, to: str, *, overwrite: bool = True) -> None:
        """Renames an object."""
        self._native.copy(from_, to, True, overwrite)

    async def rename_async(self, from_: str, to: str, *, overwrite: bool = True) -> None:
        """`rename` as a coroutine."""
        await begun(lambda done: self._native.copy(from_, to, True, overwrite, done=done), _same)

    def prefetch(
        self,
        path: str = "",
        ranges: Iterable[tuple[int, int]] | None = None,
        *,
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Fetches the missing bytes of an object, or of all objects below a prefix, to the drives. Returns the number
        of fetched bytes.

        `ranges` limits it to ranges of one object, (start, end) in bytes each. `progress` is called with the number of
        bytes so far and of all bytes.
        """
        return self._bring(path, ranges, progress, lambda content, start, end: content.prefetch(start, end)[1])

    def pin(
        self,
        path: str = "",
        ranges: Iterable[tuple[int, int]] | None = None,
        *,
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Brings bytes to the drives as `prefetch` does, and keeps them there. Returns how many came from the origin.

        They stay, for all processes, until they are unpinned or the machine restarts. A new version of an object is not
        pinned. Raises OSError if more than half of a drive's part of the cache would be pinned. Ranges that were pinned
        before an error stay pinned.
        """
        return self._bring(path, ranges, progress, lambda content, start, end: content.pin(start, end))

    def unpin(self, path: str = "", ranges: Iterable[tuple[int, int]] | None = None) -> None:
        """Allows eviction of pinned bytes again."""
        for key, start, end in self._wanted_of(path, ranges):
            with self.open(key) as file:
                file._content.unpin(start, end)

    def _bring(
        self,
        path: str,
        ranges: Iterable[tuple[int, int]] | None,
        progress: Callable[[int, int], object] | None,
        bring: Callable[[_iomill.Content, int, int], int],
    ) -> int:
        """Calls `bring` for parts of all that is wanted. Returns the sum of its results."""
        wanted = self._wanted_of(path, ranges)
        total, done, fetched = sum(end - start for _, start, end in wanted), 0, 0
        for key, start, end in wanted:
            with self.open(key) as file:
                for begin in range(start, end, _PREFETCH_BYTES):
                    stop = min(end, begin + _PREFETCH_BYTES)
                    fetched += bring(file._content, begin, stop)
                    done += stop - begin
                    if progress is not None:
                        progress(done, total)
        return fetched

    def _wanted_of(self, path: str, ranges: Iterable[tuple[int, int]] | None) -> Sequence[tuple[str, int, int]]:
        """Key, start and end of the ranges of one object, or of all objects below a prefix."""
        if ranges is not None:
            return [(path, start, end) for start, end in ranges]
        return [(meta["path"], 0, meta["size"]) for meta in self._below(path)]

    def _below(self, path: str) -> Iterator[ObjectMeta]:
        """The object of this path, or those below it."""
        if path:
            try:
                yield self.head(path)
                return
            except FileNotFoundError:
                pass
        found = False
        for chunk in self.list(path or None):
            found = True
            yield from chunk
        if path and not found:
            raise FileNotFoundError(2, f"no such object in {self.url}, and none below it", path)


def _same(said: T) -> T:
    return said


def _chunks(all: Sequence[_iomill.Meta]) -> Iterator[Sequence[ObjectMeta]]:
    for start in range(0, len(all), _LIST_CHUNK):
        yield [_meta(said) for said in all[start : start + _LIST_CHUNK]]


def _listed(said: tuple[list[str], list[_iomill.Meta]]) -> ListResult:
    prefixes, objects = said
    return {"common_prefixes": prefixes, "objects": [_meta(meta) for meta in objects]}


def _setting(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def cached(
    url: str, cache: Cache | Path | Sequence[Path], *, config: Config | None = None, **options: Any
) -> CachedStore:
    """The objects of a store through a cache on local drives.

    `url` names the store, and may end with a prefix: ``s3://bucket/prefix``, ``gs://``, ``az://``, ``https://``,
    ``file:///``. Credentials and endpoints are those of the usual environment variables: ``AWS_ACCESS_KEY_ID``,
    ``AWS_ENDPOINT_URL``, ``GOOGLE_SERVICE_ACCOUNT``, ``AZURE_STORAGE_ACCOUNT_NAME`` and others. `config` has further
    settings by the same names, also ``max_retries``, and ``retry_timeout`` in seconds. `cache` is a `Cache`, or the
    directories of its drives; then the other arguments are those of `Cache`.

    >>> import iomill, os
    >>> os.makedirs("bucket"), os.makedirs("ssd0")
    (None, None)
    >>> store = iomill.cached("bucket", cache=["ssd0"], bytes=64 << 20, on_root=True, index_dir=".")
    >>> _ = store.put("words", b"one two three")
    >>> store.get_ranges("words", starts=[4, 0], ends=[7, 3])
    [b'two', b'one']
    """
    return CachedStore(url, Cache._of(cache, **options), config)


class RemoteFile(File):
    """An object that is open for reading: a file object of Python, and calls with offsets. `CachedStore.open` returns
    one.

    All of its bytes are of the content of the object at the opening.
    """

    def __init__(self, content: _iomill.Content, store: CachedStore) -> None:
        self._begin(content)
        self._content = content
        # The store stays as long as a file of it is open.
        self._store = store
        if not content.is_cached:
            warnings.warn(
                f"iomill: {content.name} has no etag and no version, so it is not cached; Cache(..., by_time=True) identifies it by size and time",
                RuntimeWarning,
                stacklevel=3,
            )

    def _counters(self) -> tuple[int, int, int]:
        return self._store.cache.runtime._native.counters()

    def _planned_bytes(self) -> int:
        # The cache also has pages of other objects, so no order is planned for it.
        return 0

    def _row_reader(self, row_bytes: int, parts: list[tuple[int, int]]) -> _iomill.ContentRows:
        return _iomill.ContentRows(self._content, row_bytes, parts)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self)} bytes"
        return f"<iomill.RemoteFile {self.name!r}: {state}>"


_PLAIN_SCHEME = re.compile("[a-z][a-z0-9+.-]*://")


def open_url(url: Path | Sequence[Path], cache: Cache | None, config: Config | None) -> RemoteFile:
    """Opens the object of a URL, or of a local path."""
    if cache is None:
        raise ValueError(
            f"{url!r} is an object of a store: give the directories of a cache, cache=[...], or an iomill.Cache"
        )
    if not is_url(url) and isinstance(url, str) and _PLAIN_SCHEME.match(url):
        raise ValueError(f"{url!r}: the known schemes are s3://, gs://, az://, abfs://, http://, https:// and file:///")
    base, key = _split(url_of(url))
    return _store_of(base, cache, config).open(key)


# The stores of open files, so that files of one bucket share a client.
_stores: weakref.WeakValueDictionary[tuple[object, ...], CachedStore] = weakref.WeakValueDictionary()


def _store_of(base: str, cache: Cache, config: Config | None) -> CachedStore:
    key = (base, cache, repr(sorted((config or {}).items())))
    store = _stores.get(key)
    if store is None:
        # Two threads may make one each, and both work.
        store = _stores[key] = CachedStore(base, cache, config)
    return store
