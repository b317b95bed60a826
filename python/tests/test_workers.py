"""Other processes read the open files of this one: workers by fork, spawn and forkserver."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import iomill

COUNT = 5000


@pytest.fixture
def array(tmp_path):
    values = np.arange(COUNT * 16, dtype="i4").reshape(COUNT, 16)
    np.save(tmp_path / "x.npy", values)
    return values


def gather(job):
    rows, seed = job
    ids = np.random.default_rng(seed).integers(0, COUNT, 100)
    return os.getpid(), ids, rows[ids], rows.take_async(ids[:7]).result()


ROWS = None


def gather_inherited(seed):
    return gather((ROWS, seed))


def check(results, values):
    assert all(pid != os.getpid() for pid, *_ in results)
    for _, ids, taken, few in results:
        assert np.array_equal(taken, values[ids]) and np.array_equal(few, values[ids[:7]])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_rows_are_sent_to_workers(array, drives, method):
    iomill.put("x.npy", drives, "x")
    with multiprocessing.get_context(method).Pool(2) as pool:
        for rows in (iomill.open("x.npy"), iomill.open(drives[0], "x")):
            check(pool.map(gather, [(rows, seed) for seed in range(8)]), array)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_hears_of_rows_that_cannot_be_opened(array, drives, method):
    """An OSError while a worker unpickles its job would end the worker, and the pool would wait for ever."""
    iomill.put("x.npy", drives, "x")
    gone, in_use = iomill.open("x.npy"), iomill.open(drives[0], "x")
    in_array = pickle.dumps(in_use)
    with multiprocessing.get_context(method).Pool(1) as pool:
        os.rename("x.npy", "y.npy")
        with pytest.raises(FileNotFoundError, match="x.npy"):
            pool.apply_async(gather, [(gone, 1)]).get(timeout=60)
        os.rename("y.npy", "x.npy")
        check([pool.apply_async(gather, [(gone, 1)]).get(timeout=60)], array)
        with iomill.Drives(drives[0], "r+"), pytest.raises(OSError, match="in use"):
            pool.apply_async(gather_pickled, [in_array]).get(timeout=60)
        check([pool.apply_async(gather_pickled, [in_array]).get(timeout=60)], array)


def gather_pickled(pickled):
    return gather((pickle.loads(pickled), 1))


def test_rows_are_opened_at_their_first_use(array):
    rows = iomill.open("x.npy")
    os.rename("x.npy", "y.npy")
    copy = pickle.loads(pickle.dumps(rows))
    with pytest.raises(FileNotFoundError):
        len(copy)
    again = pickle.loads(pickle.dumps(copy))
    with pytest.raises(AttributeError, match="no attribute 'size_of'"):
        copy.size_of()
    os.rename("y.npy", "x.npy")
    assert copy.shape == rows.shape and np.array_equal(copy[7], array[7]) and repr(again) == repr(rows)
    files = pytest.importorskip("fsspec").filesystem("iomill", drive="none")
    with pytest.raises(FileNotFoundError, match="No such file or directory.*/none'"):
        pickle.loads(pickle.dumps(files)).exists("x")


def test_threads_that_open_rows_at_once_use_one_opening(array):
    both, read = threading.Barrier(2), threading.Event()

    def open_now(*, now):
        opened = iomill.open("x.npy")
        both.wait()
        if threading.current_thread() is late:
            read.wait()
        return opened

    rows = iomill.RowArray._later((open_now, ()))
    late = threading.Thread(target=lambda: rows.shape)
    late.start()
    native, taken = rows._rows, np.empty((1, 16), "i4")
    read.set()
    late.join()
    # A second opening in its place would drop the file of the first one, and so close it.
    native.take(np.array([7]), taken)
    assert np.array_equal(taken, array[[7]]) and rows._rows is native


def test_forked_workers_have_the_rows(array, drives):
    global ROWS
    iomill.put("x.npy", drives, "x")
    for rows in (iomill.open("x.npy"), iomill.open(drives[0], "x"), iomill.open(["x.npy", "x.npy"])):
        # The parent's threads and rings are busy at the fork.
        rows.take_async(np.arange(100)).result()
        running = [rows.take_async(np.arange(COUNT)) for _ in range(5)]
        ROWS = rows
        with multiprocessing.get_context("fork").Pool(4) as pool:
            results = pool.map(gather_inherited, range(16))
        check(results, np.concatenate([array, array]))
        assert all(len(gather.result()) == COUNT for gather in running)
    ROWS = None


def in_child(work):
    """The output of a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            said = work()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, str(said).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        said = told.read()
    assert os.waitpid(pid, 0)[1] == 0
    return said


def test_a_child_cannot_use_what_its_parent_writes(array):
    with iomill.open("x.npy", mode="r+") as rows:
        said = in_child(lambda: rows[0])
        assert said.startswith("OSError") and "open it again in this process" in said
        assert in_child(lambda: iomill.open("x.npy")[3, 2]) == "50"
        rows.write(0, 7)


def test_a_childs_cache_is_a_share(array):
    rows = iomill.open("x.npy")
    rows[0]
    whole = iomill.Runtime.shared().cache_bytes

    def share():
        rows[0]
        return iomill.Runtime.shared().cache_bytes

    assert int(in_child(share)) <= whole // len(os.sched_getaffinity(0)) * 1.05
    spawned = multiprocessing.get_context("spawn").Pool(1)
    with spawned as pool:
        pool.map(gather, [(rows, 1)])
        assert pool.apply(cache_bytes) <= whole // len(os.sched_getaffinity(0)) * 1.05


def test_a_spawned_workers_cache_of_an_array_is_a_share(array, drives):
    iomill.put("x.npy", drives, "x")
    rows = iomill.open(drives[0], "x")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        whole, share = rows_cache_bytes(rows), pool.apply(rows_cache_bytes, [rows])
    assert 0 < share <= whole // len(os.sched_getaffinity(0)) * 1.05


def rows_cache_bytes(rows):
    return rows._file._owner.cache_bytes


def cache_bytes():
    return iomill.Runtime.shared().cache_bytes


CACHES = """
import iomill, sys
x = iomill.open("x.npy")
print(iomill.Runtime.shared().cache_bytes, iomill.Drives(sys.argv[1]).cache_bytes)
with iomill.Drives(sys.argv[1], "r+") as array:
    print(array.cache_bytes)
"""


def caches(drive, **environment):
    """The sizes of the caches of a process that was not forked: of plain files, and of an array."""
    clean = {name: text for name, text in os.environ.items() if name not in SIZES}
    done = subprocess.run(
        [sys.executable, "-c", CACHES, drive], env=clean | environment, capture_output=True, text=True, check=True
    )
    return [int(number) for number in done.stdout.split()]


SIZES = [
    "LOCAL_WORLD_SIZE",
    "LOCAL_SIZE",
    "HOROVOD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NTASKS_PER_NODE",
    "RAY_RAYLET_PID",
]


def test_processes_of_a_launcher_share_the_default_cache(array, drives):
    iomill.put("x.npy", drives, "x")
    whole = caches(drives[0])
    assert whole[1] == whole[2]
    for environment, count in [
        ({"LOCAL_WORLD_SIZE": "4"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, 8),
        ({"SLURM_NTASKS_PER_NODE": "2(x3)"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, 4),
        ({"LOCAL_SIZE": "2"}, 2),
        ({"LOCAL_WORLD_SIZE": "9" * 30}, 1024),
        ({"RAY_RAYLET_PID": "1"}, len(os.sched_getaffinity(0))),
        ({"LOCAL_WORLD_SIZE": "many"}, 1),
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
    ]:
        for size, of_all in zip(caches(drives[0], **environment), whole):
            assert abs(size * count - of_all) <= of_all * 0.05, environment


def test_the_number_of_cpus_may_be_hidden(array):
    """By a filter of system calls. Seen to fail when the number of CPUs had one source."""
    hidden = (
        "import errno, os\ndef refused(pid): raise PermissionError(errno.EPERM, 'no')\nos.sched_getaffinity = refused\n"
    )
    asked = "import iomill\nx = iomill.open('x.npy')\nprint(len(x[[1, 2]]), iomill.Runtime.shared().cache_bytes)"
    environment = os.environ | {"RAY_RAYLET_PID": "1"}
    done = subprocess.run(
        [sys.executable, "-c", hidden + asked], env=environment, capture_output=True, text=True, check=True
    )
    rows, size = map(int, done.stdout.split())
    assert rows == 2 and size * os.cpu_count() <= iomill.Runtime.shared().cache_bytes * 1.05


def test_a_size_that_is_given_is_not_divided(array, drives, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    iomill.put("x.npy", drives, "x")
    with iomill.Drives(drives[0], cache_bytes=64 << 20) as one:
        assert one.cache_bytes == 64 << 20
    assert iomill.Runtime(cache_bytes=64 << 20).cache_bytes == 64 << 20


def own_cache_bytes(_):
    return iomill.Runtime.shared().cache_bytes


def test_a_worker_that_opens_for_itself_has_a_share(array):
    whole = iomill.Runtime.shared().cache_bytes
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(own_cache_bytes, [1])[0] <= whole // len(os.sched_getaffinity(0)) * 1.05
