"""Another process opens a set of drives for writing in the moment in which this one reopens it."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import iomill
from iomill import _openings

VALUES = np.arange(4000, dtype="i4").reshape(1000, 4)
PATIENCE = 120

# It opens the drives as soon as no other process has them open, and closes them when it gets a line, which is a change.
TAKES = """
import sys
from iomill import _iomill
print("ready", flush=True)
while True:
    try:
        drives = _iomill.open_drives(sys.argv[1], True, 1 << 20, 1)
        break
    except OSError:
        pass
print("taken", flush=True)
exec(sys.stdin.readline())
drives.close()
print("closed", flush=True)
"""


@pytest.fixture
def array(drives):
    iomill.put(VALUES, drives, "x")
    return drives


class Other:
    """Another process that has taken the drives."""

    def __init__(self, held, drive):
        self.process = subprocess.Popen([sys.executable, "-c", TAKES, drive], stdin=-1, stdout=-1, text=True)
        assert self.process.stdout.readline() == "ready\n"
        until = time.monotonic() + PATIENCE
        while not held._opening.is_away:
            assert time.monotonic() < until, "the other process never took the drives"
            # Each change of the mode has a moment in which they are free.
            with contextlib.suppress(OSError):
                iomill.Drives(drive, "r+").close()
        assert self.process.stdout.readline() == "taken\n"

    def close(self, change="pass"):
        self.process.stdin.write(change + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "closed\n"
        self.process.communicate()


def test_what_uses_the_drives_says_so_and_works_again(array):
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("iomill", drive=array[0])
    rows, held, reader = iomill.open(array[0], "x"), iomill.Drives(array[1]), files.open("x")
    other = Other(held, array[2])
    # It is not that the file does not exist.
    for use in (
        lambda: files.exists("x"),
        lambda: files.cat("x"),
        lambda: files.pipe("y", b"1"),
        held.list,
        lambda: iomill.open(array[2], "x"),
        lambda: rows[3],
        lambda: reader.read(1),
    ):
        with pytest.raises(OSError) as raised:
            use()
        assert raised.value.errno == errno.EBUSY and "process" in str(raised.value)
    assert repr(held) == "<iomill.Drives: not open now>"
    other.close("drives.put('theirs', b'2', True); drives.rename('x', 'moved')")
    assert files.cat("theirs") == b"2" and held.list() == ["moved", "theirs"]
    assert np.array_equal(rows[[3, -1]], VALUES[[3, -1]]) and len(reader.read(1)) == 1
    files.pipe("y", b"1")
    # There is still one opening.
    again = iomill.open(array[0], "moved")
    assert again.file._owner._native is held._native is files.drives._native
    files.close()


@pytest.mark.parametrize("change", ["drives.delete('x')", "drives.put('x', b'new', True)"])
def test_a_file_that_another_process_removed_or_replaced_is_lost(array, change):
    rows, held = iomill.open(array[0], "x"), iomill.Drives(array[1])
    other = Other(held, array[2])
    other.close(change)
    held.list()
    with pytest.raises(OSError, match="open the file again") as raised:
        rows[3]
    assert raised.value.errno == errno.ESTALE


def test_rows_come_back_by_themselves(array, monkeypatch):
    monkeypatch.setattr(_openings, "_RETRY_S", 0.02)
    monkeypatch.setattr(_openings, "_AWAY_MAX_S", 0.02)
    rows = iomill.open(array[0], "x")
    other = Other(rows.file._owner, array[1])
    time.sleep(0.2)
    with pytest.raises(OSError, match="another process"):
        rows[3]
    other.close()
    until = time.monotonic() + PATIENCE
    while rows.file._owner._opening.is_away:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert np.array_equal(rows[3], VALUES[3])
    rows.close()


def test_a_forked_child_opens_them_for_itself(array):
    held = iomill.Drives(array[0])
    other = Other(held, array[1])
    pid = os.fork()
    if pid == 0:
        signal.alarm(PATIENCE)
        try:
            try:
                held.list()
            except OSError as error:
                assert error.errno == errno.EBUSY
            else:
                raise AssertionError("the other process has the drives")
            other.close()
            assert held.list() == ["x"] and iomill.open(array[2], "x")[3, 0] == 12
            held.close()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert held.list() == ["x"]
    held.close()
