"""A cache on local drives for fsspec: ``iomillcache::s3://bucket/key`` with the option ``cache``.

>>> import fsspec, os, pathlib
>>> os.makedirs("nvme0")
>>> words = pathlib.Path("words").absolute()
>>> _ = words.write_bytes(b"one two three")
>>> options = {"cache": "nvme0", "bytes": 64 << 20, "on_root": True, "index_dir": "."}
>>> with fsspec.open(f"iomillcache::file://{words}", "rb", **options) as file:
...     file.read()
b'one two three'
"""

from __future__ import annotations

import collections
import errno
import inspect
import io
import os
from typing import Any

from fsspec.implementations.chained import ChainedFileSystem

from ._cache import Cache
from ._origins import CachedStore, ObjectMeta, RemoteFile
from ._writing import Buffered, Written
from .fsspec import Whole, bounds_of, text_of

# The schemes of URLs, by fsspec's protocols.
_URLS = {
    "s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az", "adl": "az",
    "http": "http", "https": "https", "file": "file", "local": "file",
}  # fmt: skip

# The names of the stores here for settings of s3fs and similar file systems.
_SETTINGS = {
    "key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token", "endpoint_url": "aws_endpoint_url",
    "region_name": "aws_region",
    "anon": "skip_signature", "account_name": "azure_storage_account_name", "account_key": "azure_storage_account_key",
    "sas_token": "azure_storage_sas_key",
}  # fmt: skip


_CACHE_OPTIONS = inspect.signature(Cache).parameters.keys() - {"drives"}


class _ByCache(type(Whole)):  # type: ignore[misc]
    """Makes a `Cache` of its directories and options. fsspec keeps a file system by its arguments, and a pickle has
    them, too: relative directories would be others in another directory. A pickled `Cache` has absolute ones, and is
    opened at its first use."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if options.get("cache") is not None:
            how = {name: options.pop(name) for name in _CACHE_OPTIONS & options.keys()}
            options["cache"] = Cache._of(options["cache"], **how)
        return super().__call__(*arguments, **options)


class IomillCacheFileSystem(Whole, ChainedFileSystem, metaclass=_ByCache):  # type: ignore[misc]
    """The objects of another protocol through a cache. `cache` has the directories of its drives, or is an
    `iomill.Cache`.

    iomill itself reads the store. The class of the other protocol only defines the form of paths. Credentials are those
    of `iomill.cached`; `config` has others. A file is written by one put when it is closed. Other options are those of
    `iomill.Cache`.
    """

    protocol = "iomillcache"
    root_marker = ""
    cachable = True

    def __init__(
        self,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        fo: Any = None,
        cache: Any = None,
        config: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if target_protocol not in _URLS:
            raise ValueError(
                f"iomillcache::{target_protocol}://: it supports {', '.join(sorted(set(_URLS)))}; use that protocol without a cache"
            )
        if cache is None:
            raise ValueError("iomillcache: give the directories of a cache by the option `cache`")
        self._scheme = _URLS[target_protocol]
        self._config = _settings(target_options or {}) | dict(config or {})
        self._cache_of = Cache._of(cache, **options)
        self._stores: dict[str, CachedStore] = {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = text_of(path).removeprefix("iomillcache::").removeprefix("iomillcache://")
        scheme, found, rest = path.partition("://")
        if found and scheme in _URLS:
            path = path if scheme in ("http", "https") else rest
        return path.rstrip("/")

    def _parts(self, path: Any) -> tuple[CachedStore, str, str]:
        """The store of a path, its key, and the prefix of the store's paths before keys."""
        path = self._strip_protocol(path)
        if self._scheme == "file":
            if path and not path.startswith("/"):
                raise ValueError(f"the path of a local file must be absolute, and {path!r} is not")
            base, start, key = "file:///", "/", path.strip("/")
        elif self._scheme in ("http", "https"):
            scheme, _, rest = path.partition("://")
            host, _, key = rest.partition("/")
            base = start = f"{scheme}://{host}/"
        else:
            bucket, _, key = path.lstrip("/").partition("/")
            base, start = f"{self._scheme}://{bucket}", f"{bucket}/"
        store = self._stores.get(base)
        if store is None:
            store = self._stores[base] = CachedStore(base, self._cache_of, self._config)
        return store, key, start

    def _info_of(self, meta: ObjectMeta, start: str) -> dict[str, Any]:
        return {
            "name": start + meta["path"],
            "size": meta["size"],
            "type": "file",
            "ETag": meta["e_tag"],
            "LastModified": meta["last_modified"],
            "mtime": meta["last_modified"].timestamp(),
        }

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        store, key, start = self._parts(path)
        listed = store.list_with_delimiter(key or None)
        found = [self._info_of(meta, start) for meta in listed["objects"] if meta["path"] != key]
        for prefix in listed["common_prefixes"]:
            found.append({"name": start + prefix.rstrip("/"), "size": 0, "type": "directory"})
        if not found and key:
            found = [self.info(path)]
        found.sort(key=lambda info: info["name"])
        return found if detail else [info["name"] for info in found]

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        store, key, start = self._parts(path)
        if key:
            try:
                return self._info_of(store.head(key), start)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError:
                # A directory of the local file system is not an object.
                if self._scheme != "file":
                    raise
        listed = store.list_with_delimiter(key or None)
        if not key or listed["objects"] or listed["common_prefixes"]:
            return {"name": (start + key).rstrip("/"), "size": 0, "type": "directory"}
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def created(self, path: str) -> Any:
        raise NotImplementedError("a store does not report the creation time of an object")

    def modified(self, path: str) -> Any:
        return self.info(path)["LastModified"]

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Does nothing: a directory exists as long as an object is in it."""

    makedirs = mkdir

    def rmdir(self, path: str) -> None:
        """Does nothing, like `mkdir`."""

    def rm_file(self, path: str) -> None:
        store, key, _ = self._parts(path)
        store.head(key)
        store.delete(key)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for name in self.expand_path(path, recursive=recursive, maxdepth=maxdepth):
            try:
                is_file = self.info(name)["type"] == "file"
            except FileNotFoundError:
                # A directory has disappeared with its last file.
                if not recursive:
                    raise
                continue
            if is_file:
                self.rm_file(name)
            elif not recursive:
                raise IsADirectoryError(errno.EISDIR, "it is a directory: remove it with recursive=True", name)

    def exists(self, path: str, **options: Any) -> bool:
        try:
            self.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def cp_file(self, path1: str, path2: str, *, moves: bool = False, **options: Any) -> None:
        if self.isdir(path1):
            return
        store, old, _ = self._parts(path1)
        other, new, _ = self._parts(path2)
        # Paths of one object may differ, for instance by leading slashes.
        if store is other and old.strip("/") == new.strip("/"):
            store.head(old)
            return
        if store is other:
            store.copy(old, new)
        else:
            other.put(new, store.get(old).buffer())
        if moves:
            store.delete(old)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        store, key, _ = self._parts(path)
        if start is None and end is None:
            return store.get(key).buffer()
        return self._ranges(store, key, [(start, end)])[0]

    def _ranges(self, store: CachedStore, key: str, wanted: list[tuple[Any, Any]]) -> list[bytes]:
        """Ranges of one content, also those that count from its end."""
        with store.open(key) as file:
            bounds = [slice(start, end).indices(len(file)) for start, end in wanted]
            ranges = [(first, max(0, last - first)) for first, last, _ in bounds]
            if len(ranges) == 1:
                return [file.read_at(*ranges[0])]
            return [bytes(part) for part in file.read_ranges(ranges)]

    def cat_ranges(
        self, paths: Any, starts: Any, ends: Any, max_gap: Any = None, on_error: str = "return", **options: Any
    ) -> list[Any]:
        """Reads the ranges of each object by one gather."""
        starts, ends = bounds_of(paths, starts, ends)
        places = collections.defaultdict(list)
        for place, path in enumerate(paths):
            places[path].append(place)
        results: list[Any] = [None] * len(paths)
        for path, wanted in places.items():
            store, key, _ = self._parts(path)
            try:
                read = self._ranges(store, key, [(starts[place], ends[place]) for place in wanted])
            except OSError as error:
                if on_error == "raise":
                    raise
                read = [error] * len(wanted)  # type: ignore[list-item]
            for place, part in zip(wanted, read):
                results[place] = part
        return results

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **options: Any) -> None:
        store, key, _ = self._parts(path)
        store.put(key, value, mode="create" if mode == "create" else "overwrite")

    def _open(
        self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True, **options: Any
    ) -> Any:
        store, key, _ = self._parts(path)
        if mode == "rb":
            return _Reader(store.open(key))
        if mode not in ("wb", "xb"):
            raise ValueError(f"mode {mode!r}: an object is opened with rb, wb or xb")
        if mode == "xb" and self.isfile(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        content = io.BytesIO()
        pending: Any = _Pending(store, key, content)
        file: Any = content
        is_new = mode == "xb"
        return Buffered(Written(path, file, pending, autocommit=autocommit, replace=not is_new, ended=lambda: None))

    def __reduce__(self) -> Any:
        return _again, (self.protocol, self.storage_args, self.storage_options)


def _again(protocol: str, arguments: Any, options: Any) -> Any:
    return IomillCacheFileSystem(*arguments, **options)


class _Reader(io.BufferedReader):
    """An object to read, with the attribute `size` of fsspec's own files."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__(file, 1 << 20)

    @property
    def size(self) -> int:
        return len(self.raw)  # type: ignore[arg-type]


class _Pending:
    """An object that is not yet put. `Written` uses it like a draft of an array."""

    def __init__(self, store: CachedStore, key: str, content: io.BytesIO) -> None:
        self._store = store
        self._key = key
        self._content = content

    def publish(self, name: str, *, replace: bool) -> None:
        self._store.put(self._key, self._content.getbuffer(), mode="overwrite" if replace else "create")

    def __enter__(self) -> _Pending:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._content = io.BytesIO()


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """Translates settings of the other protocol's class to those of the stores here."""
    options = {**options, **options.get("client_kwargs", {})}
    return {_SETTINGS[name]: value for name, value in options.items() if name in _SETTINGS and value is not None}
