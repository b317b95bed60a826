"""`File` and `Drives` as bytes, their errors, and their effect on other threads."""

import ast
import asyncio
import concurrent.futures
import errno
import io
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import iomill


def test_offsets_and_sizes_are_not_negative():
    pathlib.Path("x.bin").write_bytes(bytes(10))
    with iomill.File("x.bin", "r+") as file:
        calls = [
            lambda: file.read_at(-1, 3),
            lambda: file.read_at(1, -3),
            lambda: file.readinto_at(bytearray(3), -1),
            lambda: file.write_at(b"", -1),
            lambda: file.truncate(-1),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"x\.bin: the (offset|size) -[13] is negative"):
                call()
        assert file.read_at(2, 100) == bytes(8)


def test_a_file_object():
    pathlib.Path("x.bin").write_bytes(bytes(range(200)))
    with iomill.File(pathlib.Path("x.bin")) as file:
        assert (len(file), file.mode, file.readable(), file.seekable(), file.writable()) == (
            200,
            "r",
            True,
            True,
            False,
        )
        assert file.read(3) == b"\0\1\2" and file.tell() == 3
        assert file.seek(-2, os.SEEK_END) == 198 and file.read() == b"\xc6\xc7" and file.read(1) == b""
        with pytest.raises(ValueError, match="negative seek"):
            file.seek(-1)
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
    assert file.closed
    assert io.BufferedReader(iomill.File("x.bin")).read(4) == b"\0\1\2\3"
    with pytest.raises(ValueError, match="closed file"):
        file.read(1)
    file.close()


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_methods_of_a_closed_file_are_refused(mode):
    """Seen to fail: a closed file was readable, and had a position."""
    with open("x", "wb") as file:
        file.write(b"words")
    file = iomill.File("x", mode)
    file.close()
    for name in ("read", "readable", "readall", "readline", "seekable", "tell", "truncate", "writable"):
        with pytest.raises(ValueError, match="closed file"):
            getattr(file, name)()
    for use in (lambda: file.seek(0), lambda: file.write(b"x"), lambda: file.readinto(bytearray(1))):
        with pytest.raises(ValueError, match="closed file"):
            use()


def test_buffers():
    pathlib.Path("x.bin").write_bytes(bytes(range(200)))
    file = iomill.File("x.bin")
    out = bytearray(10)
    assert file.readinto_at(out, 195) == 5 and out[:6] == b"\xc3\xc4\xc5\xc6\xc7\0"
    numbers = np.zeros((2, 3), "u1")
    assert file.readinto_at(numbers, 1) == 6 and numbers.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert [bytes(part) for part in file.read_ranges([(3, 2), (199, 1), (5, 0)])] == [b"\3\4", b"\xc7", b""]
    assert [bytes(part) for part in file.read_ranges_async([(3, 2), (7, 1)]).result()] == [b"\3\4", b"\7"]
    assert file.read_at(300, 5) == b""
    for refused, kind in ((b"bytes", TypeError), (np.zeros((4, 4), "u1")[:, ::2], BufferError), (7, TypeError)):
        with pytest.raises(kind):
            file.readinto_at(refused, 0)
    with pytest.raises(ValueError, match="ends at 200"):
        file.read_ranges([(200, 1)])
    # Neither allocates memory for what the file does not have.
    for far in ([(0, 1 << 60)], [(1 << 62, 1 << 62)], [(1 << 70, 1)], [(-1, 1)], [(0, -1)]):
        for call in (file.read_ranges, file.read_ranges_async):
            with pytest.raises(ValueError, match="a range"):
                call(far)
    with pytest.raises(ValueError):
        file.read_ranges_async([(200, 1)]).result()


def test_writing():
    with iomill.File("new.bin", "r+", create=True) as file:
        assert file.write(b"hello") == 5 and file.tell() == 5
        file.write_at(np.arange(3, dtype="u1"), 8)
        file.sync()
        assert file.truncate(10) == 10
    assert pathlib.Path("new.bin").read_bytes() == b"hello\0\0\0\0\1"
    with pytest.raises(FileNotFoundError):
        iomill.File("none.bin", "r+")
    with pytest.raises(ValueError, match="read"):
        iomill.File("new.bin", create=True)


def test_one_process_has_a_file_for_reading_or_for_writing():
    np.save("x.npy", np.zeros(4))
    with iomill.open("x.npy"), pytest.raises(OSError, match="open in this process"):
        iomill.open("x.npy", mode="r+")


def test_sets_of_drives(drives):
    with iomill.Drives.create(drives, cache_bytes=8 << 20) as array:
        assert array.mode == "r+" and [os.fspath(drive) for drive in array.directories] == drives
        with array.create_file("a/b") as file:
            file.write_at(b"x" * 100_000, 0)
        assert array.size_of("a/b") == 100_000
        array.rename("a/b", "c")
        assert array.list() == ["c"] and array.list("a") == []
        with pytest.raises(FileNotFoundError, match="list the files"):
            array.open("a/b")
        with pytest.raises(OSError, match="in use"):
            subprocess_error(drives[0])
        array.delete("c")
    with pytest.raises(ValueError, match="closed"):
        array.list()
    with iomill.Drives(drives[1]) as one, iomill.Drives(drives[0]) as two:
        assert one.list() == two.list() == []
        with pytest.raises(OSError, match="for reading"):
            one.create_file("x")
        assert "ssd0" in repr(one) and "iomill" in one.metrics() and isinstance(one.notices(), list)
    with pytest.raises(OSError):
        iomill.Drives("none")


def subprocess_error(drive):
    """The result of an opening by another process."""
    program = f"import iomill; iomill.Drives({drive!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode:
        raise OSError(done.stderr)


def test_where_a_writer_holds_the_array_its_process_is_named(drives):
    with iomill.Drives.create(drives), pytest.raises(OSError, match=rf"another process, {os.getpid()} "):
        subprocess_error(drives[0])


def test_errors_are_python_s():
    with pytest.raises(IsADirectoryError, match="it is a directory, not a file"):
        iomill.File(".")
    os.mkfifo("pipe")
    for path, number, says in [
        ("pipe", errno.ESPIPE, "it is a pipe"),
        ("/dev/null", errno.ENODEV, "it is a device"),
        ("/proc/cpuinfo", errno.EINVAL, "its length is not known"),
    ]:
        with pytest.raises(OSError, match=says) as raised:
            iomill.File(path)
        assert raised.value.errno == number
    with pytest.raises(ValueError, match='no engine named "fast"'):
        iomill.Runtime(engine="fast")
    with pytest.raises(ValueError, match="mode must be"):
        iomill.File("x", "w")


def test_places_that_are_no_drives_are_no_failures_of_drives(drives):
    """A failing drive has EIO. Each kind of missing thing has an errno of its own."""
    open("file", "w").close()
    iomill.Drives.create(drives[:2]).close()
    os.makedirs("a/b")
    os.rename(drives[1], "a/b/moved")
    for call, number in [
        (lambda: iomill.Drives("none"), errno.ENOENT),
        (lambda: iomill.Drives(drives[2]), errno.ENODATA),
        (lambda: iomill.Drives(drives[0]), errno.ENODEV),
        (lambda: iomill.Drives("file"), errno.EINVAL),
        (lambda: iomill.Drives.create("file"), errno.EINVAL),
        (lambda: iomill.Drives.create([drives[2], drives[2]]), errno.EINVAL),
        (lambda: iomill.Drives.create([drives[2], "a/b/moved"]), errno.EEXIST),
    ]:
        with pytest.raises(OSError) as raised:
            call()
        assert raised.value.errno == number, raised.value
    assert os.listdir(drives[2]) == []


def test_a_cut_file():
    np.save("x.npy", np.zeros((1 << 16, 16), "f4"))
    rows = iomill.open("x.npy", runtime=iomill.Runtime(cache_bytes=0))
    os.truncate("x.npy", 1 << 20)
    with pytest.raises(OSError, match="another program cut it"):
        rows[-1]
    assert not rows[0].any()


def test_runtimes():
    np.save("x.npy", np.zeros((1000, 128)))
    own = iomill.Runtime(cache_bytes=8 << 20, cache_max_bytes=16 << 20)
    rows = iomill.open("x.npy", runtime=own)
    rows[:]
    rows[:]
    assert own.misses > 0 and own.hits > 0 and own.cache_bytes == 8 << 20
    own.resize_cache(16 << 20)
    assert own.cache_bytes == 16 << 20
    with pytest.raises(ValueError):
        own.resize_cache(1 << 40)
    with pytest.raises(ValueError, match="shared runtime"):
        # The opening of the first file has made it.
        iomill.open("x.npy").file, iomill.configure(cache_bytes=1 << 20)
    assert iomill.Runtime.shared().cache_bytes > 0
    assert isinstance(own.notices(), list) and "iomill" in own.metrics()


def test_async():
    array = np.arange(4000).reshape(1000, 4)
    np.save("x.npy", array)
    rows = iomill.open("x.npy", runtime=iomill.Runtime(cache_bytes=1 << 20))
    rng = np.random.default_rng(2)
    batches = [rng.integers(0, 1000, (5, 7)) for _ in range(50)]

    async def all_of_them():
        return await asyncio.gather(*[one_of(ids) for ids in batches])

    async def one_of(ids):
        return await rows.take_async(ids)

    for ids, taken in zip(batches, asyncio.run(all_of_them())):
        assert np.array_equal(taken, array[ids])
    gathers = [rows.take_async(ids) for ids in batches]
    assert all(isinstance(gather, concurrent.futures.Future) for gather in gathers)
    _, left = concurrent.futures.wait(gathers)
    assert not left and np.array_equal(gathers[-1].result(), array[batches[-1]])
    with pytest.raises(IndexError, match="out of bounds"):
        rows.take_async([1000])
    assert rows.take_async([]).result().shape == (0, 4)
    ids = np.array([1, 2])
    gather = rows.take_async(ids)
    ids[:] = 0
    assert np.array_equal(gather.result(), array[[1, 2]])


def test_a_failed_gather_raises_when_it_is_asked():
    np.save("x.npy", np.zeros((1 << 16, 16), "f4"))
    rows = iomill.open("x.npy", runtime=iomill.Runtime(cache_bytes=0))
    os.truncate("x.npy", 1 << 20)
    with pytest.raises(OSError, match="another program cut it"):
        rows.take_async([-1]).result()


# A process of its own: other packages have classes of this name, too.
def test_a_callback_that_panics_ends_no_other_gather():
    program = """
import concurrent.futures, iomill, numpy, threading, time
numpy.save("x.npy", numpy.zeros((1 << 16, 16), "f4"))
rows = iomill.open("x.npy", runtime=iomill.Runtime(cache_bytes=0))
try:
    iomill._iomill.open_plain(None)
except Exception:
    pass
# A panic of native code that a callback calls. The class exists since that error.
(panic,) = (kind for kind in BaseException.__subclasses__() if kind.__name__ == "PanicException")
threads = []

def panics(_):
    threads.append(threading.current_thread())
    raise panic("a callback's own")

# Until a gather ends after its beginning, so that another thread calls the callback.
while threading.main_thread() in threads or not threads:
    threads.clear()
    gather = rows.take_async(numpy.arange(0, 1 << 16, 100))
    try:
        gather.add_done_callback(panics)
    except panic:
        pass
    concurrent.futures.wait([gather])
    while not threads:
        time.sleep(0.001)
gathers = [rows.take_async(numpy.arange(start, 1 << 16, 100)) for start in range(20)]
assert not concurrent.futures.wait(gathers, timeout=600).not_done
print("all")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr


def test_a_panic_while_a_result_is_made_is_the_error_of_its_gather():
    class Panic(BaseException):
        pass

    def panics(_):
        raise Panic

    gather = iomill._futures.begun(lambda done: done(np.zeros(1), None), panics)
    with pytest.raises(Panic):
        gather.result(timeout=0)


def test_a_program_may_end_while_gathers_run():
    program = """
import iomill, numpy
numpy.save("big.npy", numpy.zeros((100_000, 64)))
x = iomill.open("big.npy", runtime=iomill.Runtime(cache_bytes=0))
gathers = [x.take_async(numpy.arange(1000) * 97) for _ in range(20)]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_threads():
    array = np.arange(64_000, dtype="i4").reshape(-1, 16)
    np.save("x.npy", array)
    rows = iomill.open("x.npy", runtime=iomill.Runtime(cache_bytes=1 << 20))

    def work(seed):
        rng = np.random.default_rng(seed)
        out = np.empty((100, 16), "i4")
        for _ in range(50):
            ids = rng.integers(-len(array), len(array), 100)
            assert np.array_equal(rows.take(ids, out=out), array[ids])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))


def test_ids_may_change_while_a_gather_runs():
    np.save("x.npy", np.zeros((1000, 16)))
    rows = iomill.open("x.npy", runtime=iomill.Runtime(cache_bytes=1 << 20))
    ids, stop = np.zeros(10_000, np.int64), threading.Event()

    def change():
        while not stop.is_set():
            ids[:] = 999
            ids[:] = -(1 << 60)

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for _ in range(200):
            try:
                assert not rows[ids].any()
            except IndexError:
                pass
    finally:
        stop.set()
        changer.join()


def test_closing_while_calls_run():
    np.save("x.npy", np.zeros((10_000, 64)))
    for _ in range(5):
        rows = iomill.open("x.npy", runtime=iomill.Runtime(cache_bytes=0))

        def work(rows=rows):
            try:
                while True:
                    rows[np.arange(0, 10_000, 3)]
            except ValueError as error:
                return str(error)

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            workers = [pool.submit(work) for _ in range(2)]
            time.sleep(0.02)
            rows.close()
            assert {worker.result() for worker in workers} == {"I/O operation on closed file"}


def test_other_threads_run_meanwhile():
    """With the interpreter's lock held, the other thread could not count during the gather."""
    np.save("x.npy", np.zeros((20_000, 1024), "f4"))
    rows = iomill.open("x.npy", runtime=iomill.Runtime(cache_bytes=0))
    ids = np.random.default_rng(3).integers(0, 20_000, 15_000)
    out = np.empty((15_000, 1024), "f4")
    counted, stop = 0, threading.Event()

    def count():
        nonlocal counted
        while not stop.is_set():
            counted += 1
            time.sleep(0)

    counter = threading.Thread(target=count)
    counter.start()
    try:
        before = counted
        # One slice: the lock is released once.
        rows.take(ids, out=out)
        during = counted - before
    finally:
        stop.set()
        counter.join()
    assert during > 100


def test_ctrl_c_ends_a_long_gather():
    program = """
import iomill, numpy, signal
# A shell ignores the signal in its background processes, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
x = numpy.lib.format.open_memmap("big.npy", "w+", "f4", (1 << 16, 1024))
del x
x = iomill.open("big.npy", runtime=iomill.Runtime(cache_bytes=0))
ids = numpy.arange(400_000) % (1 << 16)
out = numpy.empty((400_000, 1024), "f4")
print("ready", flush=True)
try:
    while True:
        x.take(ids, out=out)
except KeyboardInterrupt:
    print("ended", flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    # A child without an answer ends by this, and with it its end of the pipe.
    killer = threading.Timer(120, child.kill)
    killer.start()
    try:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.3)
        begun = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "ended\n"
        assert time.monotonic() - begun < 10
        assert child.wait(30) == 0
    finally:
        killer.cancel()
        child.kill()
        child.wait()


def test_elsewhere_the_import_says_why():
    program = "import sys; sys.platform = 'darwin'; import iomill"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ImportError: iomill needs Linux, and this is darwin" in done.stderr


def test_a_draft_appears_whole_or_not_at_all(drives):
    with iomill.Drives.create(drives) as array:
        with array.draft() as draft:
            draft.file.write_at(b"first", 0)
            assert array.list() == []
            draft.publish("x")
        with pytest.raises(ValueError, match="closed"):
            draft.publish("y")
        old = array.open("x")
        with array.draft() as draft:
            draft.file.write(b"second")
            with pytest.raises(FileExistsError):
                draft.publish("x", replace=False)
        with array.draft() as draft:
            draft.file.write(b"second")
            draft.publish("x")
        assert (old.read(), array.open("x").read()) == (b"first", b"second")
        array.copy("x", "y")
        with pytest.raises(FileExistsError):
            array.copy("x", "y", replace=False)
        array.delete("x")
        assert ("x" in array, "y" in array, array.open("y").read()) == (False, True, b"second")
        with array.draft() as draft:
            draft.file.write(b"given up")
        assert array.list() == ["y"]


def test_a_copy_keeps_holes(drives):
    def taken():
        parts = [os.path.join(at, name) for drive in drives for at, _, names in os.walk(drive) for name in names]
        return sum(os.stat(part).st_blocks * 512 for part in parts)

    with iomill.Drives.create(drives) as array:
        with array.create_file("sparse") as file:
            file.write(b"start")
            file.seek(8 << 30)
            file.write(b"end")
        before = taken()
        array.copy("sparse", "copy")
        assert taken() - before < 16 << 20
        with array.open("copy") as copy:
            assert len(copy) == (8 << 30) + 3
            assert copy.read_at(0, 7) == b"start\0\0" and copy.read_at((8 << 30) - 2, 5) == b"\0\0end"
            assert copy.read_at(1 << 30, 1000) == bytes(1000)


def test_a_file_that_was_only_read_is_closed_without_a_sync(drives):
    with iomill.Drives.create(drives) as array, array.create_file("x") as file:
        file.write(bytes(1 << 20))

    def syncs():
        lines = [line for line in array._native.metrics().splitlines() if line.startswith("iomill_drive_syncs_total{")]
        return sum(int(line.split()[1]) for line in lines)

    # A sync would sync the parts once, for the bytes that an earlier writer may have left.
    with iomill.Drives(drives[0], "r+") as array:
        with array.open("x") as file:
            assert file.read(3) == bytes(3)
        assert syncs() == 0
        with array.open("x") as file:
            file.write(b"new")
        assert syncs() > 0


# The kernel of this process refuses io_uring and libaio, as in many containers.
REFUSES = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
load, equal, answer = 0x20, 0x15, 0x06
steps = [(load, 0, 0, 0)]
for number in (425, 206):
    steps += [(equal, 0, 1, number), (answer, 0, 0, 0x00050000 | 1)]
steps += [(answer, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
program = Program(len(steps), ctypes.cast(code, ctypes.c_void_p))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
"""

TELLS = """
import warnings, iomill
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for _ in range(2):
        assert iomill.open("x.npy")[3] == 3
        assert iomill.open(sys.argv[1], "x")[3] == 3
print([str(one.message) for one in told if "posix" in str(one.message)])
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls are those of x86-64")
def test_a_fallback_is_told_once(drives):
    np.save("x.npy", np.arange(10))
    iomill.put("x.npy", drives[:1], "x")
    done = subprocess.run(
        [sys.executable, "-c", REFUSES + TELLS, drives[0]], capture_output=True, text=True, timeout=120
    )
    told = ast.literal_eval(done.stdout or done.stderr)
    # One for the disk of plain files, and one for the drive.
    assert len(told) == 2 and all(text.startswith("iomill: ") for text in told), told
