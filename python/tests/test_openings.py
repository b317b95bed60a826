"""A process opens an array once, for all callers, and for writing while one of them writes."""

import errno
import gc
import glob
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import iomill
from iomill import _drives, _openings

VALUES = np.arange(40_000, dtype="i4").reshape(10_000, 4)


@pytest.fixture
def array(drives):
    """Drives of an array with rows in it."""
    iomill.put(VALUES, drives, "x")
    return drives


def mode(handle):
    owner = handle if isinstance(handle, iomill.Drives) else handle.file._owner
    return owner._native.mode


def test_a_notebook_reads_and_writes(array):
    x = iomill.open(array[0], "x")
    # A notebook keeps the output of a cell.
    shown = [x, x.file, iomill.Drives(array[1])]
    iomill.put(VALUES * 2, array[1], "y")
    y = iomill.open(array[2], "y", mode="r+")
    assert mode(x) == mode(y) == "r+" and x.file._owner._native is y.file._owner._native
    y[3] = 7
    assert np.array_equal(iomill.open(array[0], "y")[3], [7] * 4) and np.array_equal(x[:], VALUES)
    with pytest.raises(ValueError, match="read-only"):
        x[3] = 7
    with pytest.raises(OSError, match="opened for reading"):
        x.file.write_at(b"1", 0)
    for change in (lambda one: one.delete("x"), lambda one: one.create_file("z"), lambda one: one.rename("x", "z")):
        with pytest.raises(OSError, match='mode="r\\+"'):
            change(shown[2])
    y.close()
    assert mode(x) == "r" and np.array_equal(x[[5, -1]], VALUES[[5, -1]])
    assert shown[2].list() == ["x", "y"]


def test_drives_are_not_pickled(array):
    with iomill.Drives(array[0]) as drives, pytest.raises(TypeError, match="open them in the other process"):
        pickle.dumps(drives)


def test_uses_that_are_dropped_end(array):
    rows = iomill.open(array[0], "x")
    writer = iomill.open(array[0], "x", mode="r+")
    assert mode(rows) == "r+"
    del writer
    gc.collect()
    assert mode(rows) == "r"
    writing = iomill.Drives(array[0], "r+")
    file = writing.open("x")
    del writing
    gc.collect()
    # The file keeps the array open.
    assert mode(rows) == "r+" and file.writable()
    del file
    gc.collect()
    assert mode(rows) == "r"
    del rows
    gc.collect()
    left = _openings._openings.get(_openings._key(array[0]))
    assert left is None or left.native.mode is None


def test_threads_read_while_the_mode_changes(array):
    rows, wrong, stop = iomill.open(array[0], "x"), [], threading.Event()
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, len(VALUES), 3000) for _ in range(20)]

    def read(number):
        out = np.empty((3000, 4), "i4")
        turn = number
        while not stop.is_set():
            turn += 1
            ids = batches[turn % 20]
            how = turn % 3
            try:
                if how == 0:
                    taken = rows[ids]
                elif how == 1:
                    taken = rows.take(ids, out=out)
                else:
                    rows.prefetch(ids)
                    taken = rows.take_async(ids).result()
                if not np.array_equal(taken, VALUES[ids]):
                    wrong.append(ids)
            except Exception as error:
                wrong.append(error)
                return

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(15):
            with iomill.Drives(array[turn % 3], "r+") as writer:
                writer.put("y", b"text %d" % turn)
            assert mode(rows) == "r"
            with iomill.Drives(array[0]) as reader:
                assert reader.open("y").read() == b"text %d" % turn
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong


def test_files_keep_what_they_are_through_changes_of_the_mode(array):
    iomill.put(VALUES + 1, array[0], "y")
    with iomill.Drives(array[0], "r+") as writer:
        x, y = iomill.open(array[1], "x"), iomill.open(array[1], "y")
        writer.rename("x", "moved")
        writer.copy("y", "x")
    assert mode(x) == "r" and np.array_equal(x[:], VALUES) and np.array_equal(y[:], VALUES + 1)
    with iomill.Drives(array[0], "r+") as writer:
        writer.delete("moved")
        assert np.array_equal(x[7], VALUES[7])
    # A file without a name would be lost, so the array stays open for writing until the file is closed.
    assert mode(x) == "r+" and np.array_equal(x[:], VALUES)
    x.close()
    assert mode(y) == "r" and np.array_equal(y[:], VALUES + 1)


def rows_in_another_process(drive):
    program = "import iomill, sys; print(iomill.open(sys.argv[1], 'x')[3].tolist())"
    done = subprocess.run([sys.executable, "-c", program, drive], capture_output=True, text=True)
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize("how", ["removed", "replaced", "replaced by another", "renamed over"])
@pytest.mark.parametrize("end", ["close", "drop"])
def test_a_file_that_lost_its_name_keeps_other_processes_out_until_it_is_closed(array, how, end):
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("iomill", drive=array[0])
    files.pipe({"n": b"old", "m": b"new"})
    file = files.open("n", "rb")
    _openings.settle()
    assert files.drives._native.mode == "r"
    if how == "removed":
        files.rm("n")
    elif how == "replaced":
        files.pipe("n", b"new")
    elif how == "replaced by another":
        fsspec.filesystem("iomill", drive=array[1]).pipe("n", b"new")
    else:
        files.mv("m", "n")
    # The end of the use for writing, and no other occasion brings the set back.
    for _ in range(2):
        _openings.settle()
        assert files.drives._native.mode == "r+" and file.read() == b"old"
        file.seek(0)
    if (how, end) == ("removed", "close"):
        assert "in use" in rows_in_another_process(array[2])
    if end == "close":
        file.close()
    else:
        del file
        gc.collect()
    assert files.drives._native.mode == "r"
    if end == "close":
        assert rows_in_another_process(array[2]) == "[12, 13, 14, 15]"
    assert how == "removed" or files.cat("n") == b"new"
    files.close()


def test_the_last_file_that_lost_its_name_lets_other_processes_in(array):
    reading = iomill.Drives(array[0])
    with iomill.Drives(array[1], "r+") as writer:
        for name in "abc":
            writer.put(name, name.encode())
        a, b, c = (reading.open(name) for name in "abc")
        writer.delete("a")
        writer.delete("b")
    rows = iomill.open(array[2], "x")
    for file in (c, a):
        file.close()
        assert mode(reading) == "r+" and np.array_equal(rows[3], VALUES[3])
    assert b.read() == b"b"
    # Whoever closes it, a fork or a pickle finds out.
    b._native.close()
    assert mode(reading) == "r+"
    pickle.dumps(rows)
    assert mode(reading) == "r"
    with iomill.Drives(array[1], "r+") as writer:
        writer.delete("c")
    assert mode(reading) == "r"
    with iomill.Drives(array[1], "r+") as writer:
        gone = writer.open("x")
        kept = reading.open("x")
        writer.delete("x")
        gone.close()
        assert mode(reading) == "r+"
    assert mode(reading) == "r+" and len(kept) > 0
    reading.close()
    assert rows.file._owner._native.mode == "r+"
    rows.close()


class Busy:
    """The native half of drives, with calls that do not end."""

    mode = "r+"
    tries = 0

    def __init__(self, failures):
        self.failures = failures

    def drives(self):
        return []

    def change_mode(self, writable):
        self.tries += 1
        if self.tries <= self.failures:
            raise OSError(errno.EBUSY, "calls of this process have run for 10 s")
        self.mode = "r"
        return True

    def close(self):
        self.mode = None


def test_a_failed_return_to_reading_is_tried_again(monkeypatch):
    monkeypatch.setattr(_openings, "_RETRY_S", 0.01)
    opening = _openings.Opening(Busy(3))
    assert opening.use(False) and opening.use(True)
    with pytest.raises(OSError, match="have run"):
        opening.end_use(True)
    until = time.monotonic() + 60
    while opening.native.mode == "r+" and time.monotonic() < until:
        time.sleep(0.01)
    assert opening.native.mode == "r" and opening.native.tries == 4 and not opening.late
    opening.end_use(False)
    # A use that begins meanwhile keeps it open for writing, and a use that ends tries again, too.
    monkeypatch.setattr(_openings, "_RETRY_S", 60)
    opening = _openings.Opening(Busy(1))
    assert opening.use(False) and opening.use(False) and opening.use(True)
    with pytest.raises(OSError, match="have run"):
        opening.end_use(True)
    assert opening.late and opening.use(True)
    opening.try_again()
    assert opening.native.mode == "r+"
    opening.end_use(True)
    assert opening.native.mode == "r"
    opening.end_use(False)
    opening.end_use(False)


class Failing:
    """A lingering use that cannot end."""

    def settle(self):
        raise OSError("it fails")

    def forget(self):
        pass


def test_one_failure_does_not_keep_other_drives_from_ending(array):
    failing = [Failing() for _ in range(8)]
    for one in failing:
        _openings.lingering.add(one)
    files = pytest.importorskip("fsspec").filesystem("iomill", drive=array[0])
    rows = iomill.open(array[0], "x")
    files.pipe("n", b"text")
    for one in failing[:4]:
        _openings.lingering.add(one)
    with pytest.raises(OSError, match="it fails"):
        pickle.dumps(rows)
    assert mode(rows) == "r"
    for one in failing:
        _openings.lingering.discard(one)
    files.close()


@pytest.mark.parametrize("kind", ["fsspec", "zarr"])
def test_a_close_that_fails_ends_the_use(array, kind):
    pytest.importorskip(kind)
    if kind == "fsspec":
        import fsspec

        user = fsspec.filesystem("iomill", drive=array[0])
    else:
        import iomill.zarr

        user = iomill.zarr.DrivesStore(array[0], "z")
    drives = user.drives
    user._writing = Failing()
    with pytest.raises(OSError, match="it fails"):
        user.close()
    assert repr(drives) == "<iomill.Drives: closed>"
    assert kind == "zarr" or fsspec.filesystem("iomill", drive=array[0]) is not user


def test_each_thing_that_can_be_missing_has_its_number(array, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    os.rename(array[2], tmp_path / "deep" / "er" / "away")
    for place, number in (("nowhere", errno.ENOENT), ("empty", errno.ENODATA), (array[0], errno.ENODEV)):
        for call in (iomill.Drives, lambda place: iomill.open(place, "x"), lambda place: iomill.Drives(place, "r+")):
            if place == "nowhere" and call is not iomill.Drives:
                continue
            with pytest.raises(OSError) as raised:
                call(place)
            assert raised.value.errno == number, raised.value


HOLD = """
import iomill, sys
array = iomill.Drives(sys.argv[1], sys.argv[2])
print("open", flush=True)
sys.stdin.read()
"""


def test_what_another_process_uses_is_refused_and_nothing_is_lost(array):
    rows = iomill.open(array[0], "x")
    other = subprocess.Popen([sys.executable, "-c", HOLD, array[1], "r"], stdin=-1, stdout=-1, text=True)
    try:
        assert other.stdout.readline() == "open\n"
        for _ in range(2):
            with pytest.raises(OSError, match="in use"):
                iomill.put(VALUES, array[0], "y")
            assert np.array_equal(rows[[1, 2]], VALUES[[1, 2]]) and mode(rows) == "r"
    finally:
        other.communicate("")
    iomill.put(VALUES, array[0], "y")
    assert np.array_equal(rows[[1, 2]], VALUES[[1, 2]])


def test_a_cache_has_the_size_that_its_first_user_gave(array):
    with iomill.Drives(array[0], cache_bytes=8 << 20) as one:
        with pytest.warns(UserWarning, match="open already, with a cache of 8388608 bytes"):
            two = iomill.Drives(array[1], cache_bytes=16 << 20)
        assert two.cache_bytes == 8 << 20
        with iomill.Drives(array[0], "r+"):
            assert one.cache_bytes == 8 << 20
        two.close()


def in_child(work):
    """Whether a forked child ends with success. A signal ends a hanging one."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def test_a_fork_while_another_thread_opens_an_array(array):
    """The child does not have the thread of its parent that would release the lock."""
    stop = threading.Event()

    def opens():
        while not stop.is_set():
            iomill.open(array[0], "x").close()
            iomill.Drives(array[1]).close()

    threads = [threading.Thread(target=opens) for _ in range(2)]
    for thread in threads:
        thread.start()

    def use():
        rows = iomill.open(array[0], "x")
        assert np.array_equal(rows[[3, 9]], VALUES[[3, 9]])
        rows.close()

    try:
        assert all([in_child(use) for _ in range(15)])
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_child_has_no_lock_of_its_parents_threads(array):
    rows = iomill.open(array[0], "x")
    entered, leave = threading.Event(), threading.Event()

    def holds():
        with _openings.lock():
            entered.set()
            leave.wait(1)

    holder = threading.Thread(target=holds)
    holder.start()
    entered.wait()
    assert in_child(lambda: iomill.open(array[0], "x").close())
    holder.join()
    gather = rows.take_async(np.arange(5000))

    def waits():
        with pytest.raises(RuntimeError, match="before this process was forked"):
            gathers[0].result()

    gather.result()
    assert in_child(lambda: np.array_equal(gather.result()[7], VALUES[7]) or os._exit(3))
    gathers = [iomill.Gather()]
    gathers[0].set_running_or_notify_cancel()
    # A lock that a thread of the parent holds at the fork.
    with gathers[0]._condition:
        assert in_child(waits)


def test_a_forked_child_reads_what_lingers_in_its_parent(array, monkeypatch):
    # Only the fork and the pickle end it.
    monkeypatch.setattr(_drives, "_LINGER_S", 60)
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("iomill", drive=array[0])
    rows = iomill.open(array[0], "x")
    files.pipe_file("y", b"text")
    assert mode(rows) == "r+"
    assert in_child(lambda: np.array_equal(rows[7], VALUES[7]) or os._exit(3))
    assert mode(rows) == "r"
    files.pipe_file("y", b"text")
    pickle.dumps(rows)
    assert mode(rows) == "r"
    # A file that is being written at a fork stays the parent's.
    file = files.open("z", "wb")
    file.write(b"text")

    def gives_up():
        file.discard()
        assert files._writing._needs == 0

    assert in_child(gives_up)
    file.close()
    assert files.cat("z") == b"text"
    files.close()


def test_more_of_an_array(array):
    with iomill.Drives(array[0], "r+") as opened:
        opened.put("a/b", b"one two")
        with pytest.raises(FileExistsError):
            opened.put("a/b", memoryview(b"three"), replace=False)
        first = opened.stat("a/b")
        assert (first.name, first.size, first.attributes) == ("a/b", 7, {})
        opened.set_attribute("a/b", "language", "en")
        assert opened.stat("a/b").attributes == {"language": "en"}
        opened.set_attribute("a/b", "language", None)
        opened.put("a/b", b"three")
        again = opened.stat("a/b")
        assert again.version != first.version and again.modified_ns >= first.modified_ns and again.attributes == {}
        with opened.create_file("striped", layout="striping", block_bytes=1 << 20) as file:
            file.write(b"x" * 100)
        assert (opened.stat("striped").layout, opened.stat("striped").block_bytes) == ("striping", 1 << 20)
        with opened.draft(layout="hash") as draft:
            draft.set_attribute("kind", "draft")
            draft.publish("drafted")
        assert opened.stat("drafted").layout == "hash" and opened.stat("drafted").attributes == {"kind": "draft"}
        with pytest.raises(ValueError, match="there are: striping, rotated, hash"):
            opened.create_file("z", layout="mirrored")
        with opened.create_file("proved", checksums=True) as file:
            file.write(b"y" * 300_000)
        assert opened.stat("proved").checksums and not opened.stat("striped").checksums
        opened.sync()
        assert 0 < opened.free_bytes < opened.total_bytes
        found = os.statvfs(array[0])
        assert opened.total_bytes == found.f_blocks * found.f_frsize
        with pytest.raises(FileNotFoundError):
            opened.stat("none")
        # `bytes(5)` would be five zeros.
        for wrong in (5, None, "text", [1, 2], object()):
            with pytest.raises(TypeError):
                opened.put("a/b", wrong)
        opened.put("a/b", np.arange(6, dtype="u1").reshape(2, 3).T)
        assert opened.open("a/b").read() == bytes([0, 3, 1, 4, 2, 5])
    with pytest.raises(ValueError, match="closed"):
        opened.stat("a/b")
    assert repr(opened) == "<iomill.Drives: closed>"


@pytest.mark.parametrize("checksums", [False, True])
def test_every_way_to_write_takes_checksums(drives, checksums):
    """Seen to fail without the option, way by way."""
    fsspec, zarr = pytest.importorskip("fsspec"), pytest.importorskip("zarr")
    import iomill.zarr

    rows = np.arange(40_000, dtype="f4").reshape(-1, 4)
    iomill.put(rows, drives, "put", checksums=checksums)
    np.save("x.npy", rows)
    command = [sys.executable, "-m", "iomill", "put", "x.npy", *drives, "--name", "command"]
    subprocess.run(command + ["--checksums"] * checksums, check=True, capture_output=True)
    with iomill.create(drives[0], "created", shape=rows.shape, dtype="f4", checksums=checksums) as created:
        created[:] = rows
    with iomill.Drives(drives[0], "r+") as opened:
        with opened.row_writer("rows", "f4", (4,), checksums=checksums, layout="hash") as writer:
            writer.append(rows)
        opened.put("whole", rows, checksums=checksums, layout="hash", block_bytes=8192)
    files = fsspec.filesystem("iomill", drive=drives[0], checksums=checksums)
    files.pipe_file("piped", rows.tobytes())
    pickle.loads(pickle.dumps(files)).pipe_file("by another", rows.tobytes())
    store = iomill.zarr.DrivesStore(drives[0], "zarr", checksums=checksums)
    for a_store, name in [(store, "a"), (pickle.loads(pickle.dumps(store)), "b"), (store.with_read_only(False), "c")]:
        zarr.create_array(a_store, name=name, data=rows)
    with iomill.Drives(drives[0]) as opened:
        names = opened.list()
        assert {"put", "command", "created", "rows", "whole", "piped", "by another", "zarr/c/zarr.json"} <= set(names)
        assert {name: opened.stat(name).checksums for name in names} == dict.fromkeys(names, checksums)
        assert opened.stat("rows").layout == opened.stat("whole").layout == "hash"
        assert opened.stat("whole").block_bytes == 8192
        for name in ("put", "command", "created", "rows"):
            assert np.array_equal(opened.rows(name)[:], rows)
        assert opened.open("whole").read() == rows.tobytes()


def test_plain_files_have_no_checksums():
    with pytest.raises(ValueError, match="checksums"):
        iomill.create("x.npy", shape=(3,), dtype="f4", checksums=True)
    assert not os.path.exists("x.npy")


def test_a_page_that_is_not_what_was_written_is_an_error(drives):
    with iomill.Drives.create(drives) as opened, opened.create_file("proved", checksums=True) as file:
        file.write(bytes(range(1, 251)) * 2000)
    for drive in drives:
        for path in glob.glob(os.path.join(drive, "iomill", "parts", "*")):
            if not path.endswith(".sums"):
                with open(path, "r+b") as part:
                    part.seek(4096 + 7)
                    part.write(b"\0")
    with iomill.Drives(drives[0]) as opened, opened.open("proved") as file:
        assert file.read(100) == bytes(range(1, 101))
        file.seek(4096)
        with pytest.raises(OSError, match="page 1 is not what was written.*'proved'"):
            file.read(100)
