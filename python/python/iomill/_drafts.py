"""Files that get their names when they are complete: `Draft`."""

from __future__ import annotations

from . import _iomill
from ._common import Closing
from ._files import File, Owner


class Draft(Closing):
    """A file without a name, from `Drives.draft`. `publish` gives it one: its content appears as a whole, or not at all.

    A draft that is closed without a name gives its space back. `file` is the file.

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
        """Sets an attribute that the file has when it gets its name."""
        self._native.set_attribute(key, value)

    def publish(self, name: str, *, replace: bool = True) -> None:
        """Makes the content durable, then the name. A file that has the name loses it at the same moment, and handles
        of it keep its content. FileExistsError if it must not be replaced; then the draft is given up."""
        self._native.publish(name, replace)
        self.file.close()

    def close(self) -> None:
        """Gives the file up, unless it was published. A second time it does nothing."""
        self.file._of_system.discard()
        self.file.close()
        self._native.close()
