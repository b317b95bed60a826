"""Types that numpy has only with the package ml_dtypes, such as bfloat16. torch has them, too."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# The types of their bits, by the names that torch also uses.
ELEMENTS = {
    "bfloat16": "<u2", "float8_e4m3fn": "u1", "float8_e5m2": "u1", "float8_e8m0fnu": "u1", "float8_e4m3fnuz": "u1",
    "float8_e5m2fnuz": "u1",
}  # fmt: skip


def is_of_element(values: Any, element: str | None) -> bool:
    """Whether these are values of torch of such a type."""
    return element is not None and str(getattr(values, "dtype", "")) == f"torch.{element}"


def bits_of(values: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An ndarray of this dtype over the memory of values of torch."""
    import torch

    bits = values.view(torch.int16 if dtype.itemsize == 2 else torch.uint8)
    return np.asarray(bits.numpy()).view(dtype)
