"""The common code of the other modules: paths, warnings, and the base class for ``with``."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Iterable
from types import TracebackType
from typing import Self

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def path_of(path: object) -> str:
    """A path as text. TypeError for any other object, with advice. An empty path and one with a zero byte are refused,
    as by `open`."""
    if isinstance(path, (str, bytes, os.PathLike)):
        text = os.fsdecode(path)
        if not text:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
        if "\0" in text:
            raise ValueError(f"embedded null byte in the path {text!r}")
        return text
    if isinstance(path, int) or callable(getattr(path, "fileno", None)):
        raise TypeError(f"{path!r} is a file object or a descriptor: give the path of the file")
    raise TypeError(
        f"a path is text, bytes or an object with __fspath__, and {path!r} is of type {type(path).__name__}"
    )


def paths_of(paths: object) -> list[str]:
    """A path, or several."""
    if (
        isinstance(paths, (str, bytes, bytearray, memoryview, os.PathLike, int))
        or not isinstance(paths, Iterable)
        or hasattr(paths, "fileno")
    ):
        return [path_of(paths)]
    return [path_of(path) for path in paths]


def is_writing(mode: str) -> bool:
    if mode not in ("r", "r+"):
        raise ValueError(f"mode must be one of ['r', 'r+'] (got {mode!r})")
    return mode == "r+"


_said: set[str] = set()


def tell(notices: Iterable[str]) -> None:
    """Warns of each notice once in a process."""
    for notice in notices:
        if notice not in _said:
            _said.add(notice)
            warnings.warn(f"iomill: {notice}", RuntimeWarning, stacklevel=4)


class Closing:
    """An object that ``with`` closes at its end."""

    __slots__ = ()

    def close(self) -> None:
        """Releases the resources."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
