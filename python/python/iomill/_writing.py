"""Files that appear when they are closed, for `iomill.fsspec`: `Written`, and `Buffered`, `Compressed` and `Text` over
it.

A file replaces an older one only by a close, and only if all of its writes succeeded. It is discarded if a write
failed, if an exception ended its ``with``, and if it was dropped. Non-goals: names and directories (`fsspec`).
"""

from __future__ import annotations

import codecs
import contextlib
import dis
import errno
import io
import sys
import warnings
from collections.abc import Callable
from typing import Any

from ._drafts import Draft
from ._files import File


class Written(io.RawIOBase):
    """A file that gets its name when it is closed, or at the end of a transaction. A file to append to has its name
    already."""

    def __init__(
        self,
        name: str,
        file: File,
        draft: Draft | None,
        *,
        autocommit: bool,
        replace: bool,
        ended: Callable[[], None],
    ) -> None:
        self._name = name
        self._file: File | None = file
        self._draft = draft
        self._autocommit = autocommit
        self._replace = replace
        self._ended = ended
        self._failure: BaseException | None = None
        self._length = file.tell()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._file is None:
            raise ValueError("I/O operation on closed file")
        self._check()
        try:
            count = self._file.write(data)
        except BaseException as failure:
            self._failure = failure
            raise
        self._length += count
        return count

    def _check(self) -> None:
        if self._failure is not None:
            raise OSError(errno.EIO, f"an earlier write failed: {self._failure}", self._name) from self._failure

    def tell(self) -> int:
        return self._length

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._failure is not None:
            self.discard()
            self._check()
        elif self._autocommit:
            self.commit()

    def commit(self) -> None:
        """Publishes the file. After an error its space is free at once."""
        self._end(publishes=True)

    def discard(self) -> None:
        """Discards the file. Bytes that were appended to an existing file stay."""
        self._end(publishes=False)

    def _end(self, *, publishes: bool) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            if self._draft is None:
                file.close()
            elif publishes:
                with self._draft as draft:
                    draft.publish(self._name, replace=self._replace)
            else:
                self._draft.close()
        finally:
            self._ended()

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self.discard()


# The attribute of an exception with the marks of the files that were opened during its handling.
_MARKS = "_iomill_marks"


class _Ends:
    """The two ends of a file over a `Written`: `_finish` publishes, and `_give_up` discards and raises nothing."""

    closed: bool

    def _begin(self) -> None:
        # An earlier exception does not concern this file. It has a mark of the file, because a reference to it would
        # keep the file alive, and a later exception may have its id.
        self._mark = object()
        earlier = sys.exc_info()[1]
        if earlier is not None:
            vars(earlier).setdefault(_MARKS, set()).add(self._mark)

    def _finish(self) -> None:
        raise NotImplementedError

    def _give_up(self) -> None:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def discard(self) -> None:
        """Discards the file."""
        self._give_up()

    def close(self) -> None:
        if self.closed:
            return
        if self._is_ended_by_exception():
            self._give_up()
        else:
            self._finish()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self.closed:
            return
        if kind is None:
            self._finish()
        else:
            self._give_up()

    def __del__(self) -> None:
        # A dropped file is not complete.
        if hasattr(self, "_mark") and not self.closed:
            self._give_up()

    def _is_ended_by_exception(self) -> bool:
        """Whether this close is part of an `__exit__` with an exception. A wrapper of the file closes it without
        passing the exception on.

        An `__exit__` in C, such as that of pyarrow's files, has no frame. Then the frame of the calling `with` shows
        the exception.
        """
        failure = sys.exc_info()[1]
        if failure is None or self._mark in vars(failure).get(_MARKS, ()):
            return False
        frame = sys._getframe(2)
        while frame is not None:
            if dis.opname[frame.f_code.co_code[frame.f_lasti]] == "WITH_EXCEPT_START":
                return True
            if frame.f_code.co_name == "__exit__":
                for value in frame.f_locals.values():
                    if value is failure or (type(value) is tuple and any(part is failure for part in value)):
                        return True
            frame = frame.f_back  # type: ignore[assignment]
        return False


class Buffered(_Ends, io.BufferedWriter):
    """A `Written` with a buffer."""

    raw: Written

    def __init__(self, raw: Written) -> None:
        io.BufferedWriter.__init__(self, raw)
        # Whether nothing precedes what is written.
        self.is_at_start = raw.tell() == 0
        self._begin()

    def _finish(self) -> None:
        try:
            # `close` would also write the buffer, but after an exception it closes the file as if it were complete.
            self.flush()
        except BaseException:
            self._give_up()
            raise
        io.BufferedWriter.close(self)

    def _give_up(self) -> None:
        self.raw.discard()
        # The bytes in the buffer are discarded, because the file is closed.
        with contextlib.suppress(OSError, ValueError):
            io.BufferedWriter.close(self)

    def commit(self) -> None:
        if not self.closed:
            # It is open, so more writes may follow: it is not complete.
            warnings.warn(
                f"iomill: {self.raw._name} is discarded, because it was not closed before its transaction ended",
                RuntimeWarning,
                stacklevel=2,
            )
            self.discard()
            return
        self.raw.commit()

    def discard(self) -> None:
        self.raw.discard()
        super().discard()


class Compressed(_Ends, io.BufferedIOBase):
    """A stream that compresses into a `Buffered`, and is published or discarded with it."""

    def __init__(self, stream: Any, file: Buffered) -> None:
        self._stream = stream
        self._file = file
        self.is_at_start = file.is_at_start
        self._begin()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._stream.write(data)  # type: ignore[no-any-return]

    def flush(self) -> None:
        if not self._stream.closed:
            self._stream.flush()

    def tell(self) -> int:
        return self._stream.tell()  # type: ignore[no-any-return]

    def _finish(self) -> None:
        try:
            self._stream.close()
        except BaseException:
            self._give_up()
            raise
        self._file._finish()
        io.BufferedIOBase.close(self)

    def _give_up(self) -> None:
        self._file._give_up()
        with contextlib.suppress(OSError, ValueError):
            self._stream.close()
        with contextlib.suppress(OSError, ValueError):
            io.BufferedIOBase.close(self)


class Text(_Ends, io.TextIOWrapper):
    """Text that is encoded into a `Buffered` or a `Compressed`, and is published or discarded with it."""

    def __init__(self, file: Any, **how: Any) -> None:
        io.TextIOWrapper.__init__(self, file, **how)
        # The file cannot seek, so Python does not know whether it begins here: it writes the byte order mark of UTF-8
        # always, and the others never.
        name = codecs.lookup(self.encoding).name
        if name == "utf-8-sig" and not file.is_at_start:
            self.reconfigure(encoding="utf-8")
        elif name in ("utf-16", "utf-32") and file.is_at_start:
            file.write("".encode(name))
        self._begin()

    def _finish(self) -> None:
        try:
            self.flush()
        except BaseException:
            self._give_up()
            raise
        self.buffer._finish()  # type: ignore[attr-defined]

    def _give_up(self) -> None:
        self.buffer._give_up()  # type: ignore[attr-defined]
        with contextlib.suppress(OSError, ValueError):
            io.TextIOWrapper.close(self)
