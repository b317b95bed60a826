"""The types of results, as a type checker sees them."""

import pathlib

import pytest

CODE = """
import numpy as np
import iomill

x: iomill.RowArray
ids = np.arange(3)
reveal_type(x[ids])
reveal_type(x[[1, 2]])
reveal_type(x[[[1, 2], [3, 4]]])
reveal_type(x[ids > 1])
reveal_type(x[::-1])
reveal_type(x[...])
reveal_type(x[3])
reveal_type(x[np.int64(3)])
reveal_type(x[1:3, 0])
x[ids] = 0
x[3] = x[4]
x[1.5]
x["name"]
x["name"] = 0
x + 1
x.take(ids, mode="none")
"""


def test_results_have_types():
    api = pytest.importorskip("mypy.api")
    pathlib.Path("code.py").write_text(CODE)
    said, errors, _ = api.run(["--strict", "--python-version", "3.12", "code.py"])
    assert not errors
    lines = CODE.splitlines()
    shown = {}
    for line in said.splitlines():
        if line.startswith("code.py:"):
            _, number, kind, text = line.split(":", 3)
            shown.setdefault(lines[int(number) - 1], kind.strip() + text)
    arrays = [line for line in lines if line.startswith("reveal_type")]
    for line in arrays[:6]:
        assert "numpy.ndarray[" in shown.pop(line), line
    for line in arrays[6:]:
        assert shown.pop(line).endswith('"Any"'), line
    # Nothing else is refused but these.
    assert list(shown) == lines[-5:] and all(text.startswith("error") for text in shown.values())
