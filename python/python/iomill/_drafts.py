"""Files that are published when they are complete: `Draft`."""

from __future__ import annotations

from . import _iomill
from ._common import Closing
from ._files import File, Owner


class Draft(Closing):
    """A file without a name, from `Drives.draft`. `publish` names it: its content appears as a whole, or not at all.

    If a draft is closed before it is published, its space is free. `file` is the file.

    >>> import iomill, os
    >>> os.makedirs("disk")
    >>> with iomill.Drives.create(["disk"]) as drives:
    ...     with drives.draft() as draft:
    ...         _ = draft.file.write(b"whole")
    ...         draft.publish("object")
    ...     print(drives.open("object").read())
    b'whole'
    """

    def __init__(self, native: _iomill.Draft, owner: Owner) -> None:
        """For `Drives.draft`."""
        self._native = native
        self.file = File._of(native.file(), owner)

    def set_attribute(self, key: str, value: str | None) -> None:
        """Sets an attribute of the file. It appears with the name."""
        self._native.set_attribute(key, value)

    def publish(self, name: str, *, replace: bool = True) -> None:
        """Makes the content durable, then the name. A file of that name is replaced at the same moment, and its handles
        keep its content. FileExistsError if the name exists and `replace` is False; then the draft is discarded."""
        self._native.publish(name, replace)
        self.file.close()

    def close(self) -> None:
        """Discards the file, unless it was published. A second call does nothing."""
        self.file._of_system.discard()
        self.file.close()
        self._native.close()
