"""Rows of data larger than memory, gathered from all SSDs at once.

One line instead of ``numpy.memmap``:

>>> import numpy, iomill
>>> numpy.save("features.npy", numpy.arange(4000).reshape(1000, 4))
>>> x = iomill.open("features.npy")
>>> x
<iomill.RowArray 'features.npy': shape (1000, 4), int64>
>>> x[[7, 0, 999]]
array([[  28,   29,   30,   31],
       [   0,    1,    2,    3],
       [3996, 3997, 3998, 3999]])
"""

import sys as _sys

if _sys.platform != "linux":
    raise ImportError(
        f"iomill needs Linux, and this is {_sys.platform}: only Linux has io_uring and libaio, which read its drives"
    )

from ._cache import Cache
from ._create import create
from ._drafts import Draft
from ._drives import Drives, FileStat
from ._files import File
from ._futures import Gather
from ._open import open
from ._origins import CachedStore, cached
from ._put import put
from ._rows import RowArray
from ._runtime import Runtime, configure
from ._writer import RowWriter

__version__ = "0.1.0"
__all__ = [
    "Cache",
    "CachedStore",
    "Draft",
    "Drives",
    "File",
    "FileStat",
    "Gather",
    "RowArray",
    "RowWriter",
    "Runtime",
    "cached",
    "configure",
    "create",
    "open",
    "put",
]
