"""The writes that survive each kind of end of a process."""

import multiprocessing
import subprocess
import sys
import time

import numpy as np
import pytest

import iomill

WRITE = """
import iomill, numpy, os, signal, sys, time
x = iomill.open(*sys.argv[1:], mode="r+")
x[:] = 7
"""

# The ends by which Python shuts down in order: open files are closed.
IN_ORDER = {
    "the last line": "",
    "sys.exit": "sys.exit(0)",
    "an exception": "raise ValueError",
    "SIGINT": "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
    "a handler of SIGTERM": "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
    "a thread": "import threading; threading.Thread(target=lambda: (time.sleep(0.3), x.__setitem__(1, 7))).start()",
    "a reference that stays": "import builtins; builtins.x = x",
    "a daemon thread has it": "import threading; threading.Thread(target=lambda x: time.sleep(60), args=[x], daemon=True).start(); del x; time.sleep(0.1)",
    "a circle": "class A: pass\na = A(); a.a, a.x = a, x",
}

# The other ends: unsynced writes may be lost.
AT_ONCE = {
    "os._exit": "os._exit(0)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL); time.sleep(60)",
    "execv": 'os.execv(sys.executable, [sys.executable, "-c", "pass"])',
    "abort": "os.abort()",
}


@pytest.fixture(params=["x.npy", "drives"])
def place(request, drives):
    np.save("x.npy", np.zeros((1000, 4)))
    if request.param == "x.npy":
        return ["x.npy"]
    iomill.put("x.npy", drives, "x")
    return [drives[0], "x"]


def ended(program, place):
    subprocess.run([sys.executable, "-c", program, *place], stderr=subprocess.DEVNULL, timeout=120)


@pytest.mark.parametrize("end", IN_ORDER)
def test_an_end_in_order_loses_nothing(place, end):
    ended(WRITE + IN_ORDER[end], place)
    assert (iomill.open(*place)[:] == 7).all()


@pytest.mark.parametrize("end", AT_ONCE)
def test_an_end_at_once_loses_no_more_than_what_was_not_synced(place, end):
    ended(WRITE + AT_ONCE[end], place)
    found = iomill.open(*place)[:]
    assert np.isin(found, (0, 7)).all()
    ended(WRITE + "x.sync(); x[0] = 9\n" + AT_ONCE[end], place)
    found = iomill.open(*place)[:]
    assert (found[1:] == 7).all() and np.isin(found[0], (7, 9)).all()


@pytest.mark.parametrize("end", AT_ONCE)
def test_a_name_of_what_was_not_complete_does_not_appear(drives, end):
    iomill.Drives.create(drives).close()
    program = f"""
import fsspec, iomill, os, signal, sys, time
drives = iomill.Drives(sys.argv[1], "r+")
writer = drives.row_writer("rows", "f4", (3,))
writer.append([1, 2, 3])
draft = drives.draft()
draft.file.write(b"text")
file = fsspec.filesystem("iomill", drive=sys.argv[1]).open("file", "wb")
file.write(b"text")
drives.put("put", b"text")
{AT_ONCE[end]}
"""
    pytest.importorskip("fsspec")
    ended(program, drives[:1])
    # Neither a lock nor space is leaked.
    with iomill.Drives(drives[0], "r+") as opened:
        assert opened.list() == ["put"] and opened.open("put").read() == b"text"


GIVEN_UP = {
    "a draft": "d = drives.draft(); d.file.write(b'1'); d.close(); kept = d.file",
    "a draft whose name is taken": """
with drives.draft() as d:
    d.file.write(b'1')
    kept = d.file
    try: d.publish("taken", replace=False)
    except FileExistsError: pass
""",
    "rows": "w = drives.row_writer('w', dtype='i4', shape=(2,)); w.append([1, 2]); kept = w._draft.file; w.discard()",
    "a file of fsspec": "f = fs.open('g', 'wb'); f.write(b'1' * 9_000_000); kept = f.raw._file; f.discard()",
}


@pytest.mark.parametrize("what", GIVEN_UP)
def test_the_end_says_nothing_of_what_was_given_up(drives, what):
    """Seen to fail with an error of `atexit`, as after a `to_parquet` on a full drive."""
    pytest.importorskip("fsspec")
    iomill.put(np.zeros(3), drives, "taken")
    begin = "import fsspec, iomill, sys\nfs = fsspec.filesystem('iomill', drive=sys.argv[1])\ndrives = iomill.Drives(sys.argv[1], 'r+')\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", begin + GIVEN_UP[what], drives[0]],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def write_in_worker(job):
    place, sync = job
    x = iomill.open(*place, mode="r+")
    x[:] = 7
    if sync:
        x.sync()
    # It stays open, like a worker's global.
    globals()["KEPT"] = x


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_of_a_pool_keeps_what_it_has_synced(place, method):
    with multiprocessing.get_context(method).Pool(1) as pool:
        pool.map(write_in_worker, [(place, True)])
    deadline = time.monotonic() + 600
    while True:
        try:
            assert (iomill.open(*place)[:] == 7).all()
            return
        except OSError:
            # A worker that was terminated may still be ending.
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_that_ends_in_order_loses_nothing(place, method):
    process = multiprocessing.get_context(method).Process(target=write_in_worker, args=[(place, False)])
    process.start()
    process.join(600)
    assert process.exitcode == 0 and (iomill.open(*place)[:] == 7).all()
