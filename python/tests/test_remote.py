"""Rows and objects of remote stores through a cache: over HTTP, S3 and files, from workers of any kind, and with
failing stores."""

import asyncio
import datetime
import io
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.util
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from origin_server import Server

import iomill

COUNT, WIDTH = 4000, 48
PATIENCE = 600


@pytest.fixture
def server(monkeypatch):
    served = Server()
    monkeypatch.setenv("AWS_ENDPOINT_URL", served.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield served
    served.close()


@pytest.fixture
def options(tmp_path):
    """A cache in scratch directories, with bounds that no drive exceeds."""
    return {"bytes": 64 << 20, "on_root": True, "index_dir": tmp_path, "read_within": PATIENCE}


@pytest.fixture
def cache(drives, options):
    return iomill.Cache(drives, **options)


@pytest.fixture
def values():
    return np.random.default_rng(1).integers(0, 1 << 30, (COUNT, WIDTH), dtype="i4")


def saved(values):
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


@pytest.fixture
def urls(server, values, tmp_path):
    """One `.npy` in a store of each kind."""
    (tmp_path / "origin").mkdir()
    (tmp_path / "origin" / "x 1.npy").write_bytes(saved(values))
    server.objects["/bucket/data/x 1.npy"] = saved(values)
    return {
        "http": f"{server.url}/bucket/data/x%201.npy",
        "s3": "s3://bucket/data/x%201.npy",
        "file": (tmp_path / "origin" / "x 1.npy").as_uri(),
        "path": str(tmp_path / "origin" / "x 1.npy"),
    }


@pytest.mark.parametrize("kind", ["http", "s3", "file", "path"])
def test_rows_of_a_remote_file_come_from_the_drives_the_second_time(urls, server, cache, values, kind):
    x = iomill.open(urls[kind], cache=cache)
    assert x.shape == values.shape and x.dtype == values.dtype and "x" in repr(x)
    rng = np.random.default_rng(2)
    for round in range(2):
        ids = np.arange(COUNT) if round == 0 else rng.integers(-COUNT, COUNT, 500)
        assert np.array_equal(x[ids], values[ids])
        assert cache.wait_until_written()
    before = cache.counters()
    assert np.array_equal(x[::7], values[::7]) and np.array_equal(x[100:200, 3], values[100:200, 3])
    assert np.array_equal(x.take_async([5, 3]).result(), values[[5, 3]])
    assert np.array_equal(np.concatenate([block for block in [*x][:3]]), values[:3].reshape(-1))
    after = cache.counters()
    assert after["gets"] == before["gets"] and after["hits"] > before["hits"]
    with pytest.raises(IndexError):
        x[COUNT]
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 1
    x.close()
    with pytest.raises(ValueError, match="closed"):
        x[0]


def test_only_what_is_asked_for_is_fetched(urls, server, cache, values):
    x = iomill.open(urls["s3"], cache=cache)
    before = cache.counters()["bytes_fetched"]
    assert np.array_equal(x[[0, 2000, 3999]], values[[0, 2000, 3999]])
    assert cache.counters()["bytes_fetched"] - before <= 3 * 2 * (16 << 10)


def test_raw_files_and_tensors(server, cache, values):
    safetensors = pytest.importorskip("safetensors.numpy")
    server.objects["/bucket/t.safetensors"] = safetensors.save({"a": values, "b": values[:7]})
    server.objects["/bucket/raw"] = values.tobytes()
    b = iomill.open("s3://bucket/t.safetensors", "b", cache=cache)
    assert np.array_equal(b[:], values[:7])
    raw = iomill.open("s3://bucket/raw", dtype="i4", shape=(-1, WIDTH), cache=cache)
    assert np.array_equal(raw[[-1, 0]], values[[-1, 0]])


def test_the_directories_of_a_cache_are_enough(urls, drives, values, tmp_path, options):
    store = iomill.cached(urls["file"].rpartition("/")[0], drives, **options)
    assert store.head("x 1.npy")["size"] == len(saved(values))
    # The drives exist now, so `on_root` is not needed. Their index is in the default place.
    iomill.Cache(drives, index_dir=tmp_path)
    with pytest.raises(OSError, match="on_root"):
        (tmp_path / "new").mkdir()
        iomill.open(urls["file"], cache=[tmp_path / "new"])
    assert os.listdir(tmp_path / "new") == []


def test_a_change_is_an_error_of_its_own_and_never_a_mixture(urls, server, cache, values):
    x = iomill.open(urls["s3"], cache=cache)
    assert np.array_equal(x[:10], values[:10])
    server.objects["/bucket/data/x 1.npy"] = saved(values[::-1])
    with pytest.raises(OSError, match="changed|precondition|Precondition") as caught:
        x[3000:3100]
    assert caught.value.errno == 116
    assert np.array_equal(iomill.open(urls["s3"], cache=cache)[3000:3100], values[::-1][3000:3100])


def test_errors_are_those_of_python(server, cache, values):
    server.objects["/bucket/x.npy"] = saved(values)
    with pytest.raises(
        FileNotFoundError, match="no such object: Error performing .*404 Not Found: 'none.npy'$"
    ) as caught:
        iomill.open("s3://bucket/none.npy", cache=cache)
    assert caught.value.filename == "none.npy"
    with pytest.raises(FileNotFoundError) as caught:
        iomill.open("file:///none/x.npy", cache=cache)
    assert str(caught.value) == "[Errno 2] No such file or directory: 'none/x.npy'"
    with pytest.raises(FileNotFoundError, match="No such file or directory; mount the drive") as caught:
        iomill.open("s3://bucket/x.npy", cache=["none"])
    assert caught.value.filename == os.path.abspath("none")
    for status, kind in ((403, PermissionError), (401, PermissionError), (400, OSError)):
        server.acts[:] = [status] * 3
        with pytest.raises(kind):
            iomill.open("s3://bucket/x.npy", cache=cache)
        server.acts.clear()
    # Temporary failures are retried.
    server.acts[:] = [503, 500, "short"]
    assert np.array_equal(iomill.open("s3://bucket/x.npy", cache=cache)[:], values)
    server.objects["/bucket/words"] = b"no numbers"
    with pytest.raises(ValueError, match="begins like no file of numpy"):
        iomill.open("s3://bucket/words", cache=cache)
    with pytest.raises(ValueError, match="cache="):
        iomill.open("s3://bucket/x.npy")
    with pytest.raises(ValueError, match="schemes are s3://"):
        iomill.open("ftp://host/x.npy", cache=cache)
    with pytest.raises(ValueError, match="no setting .nonsense."):
        iomill.cached("s3://bucket", cache, config={"nonsense": 1})
    with pytest.raises(ValueError, match="for reading"):
        iomill.open("s3://bucket/x.npy", cache=cache, mode="r+")
    with pytest.raises(ValueError, match="options already"):
        iomill.cached("s3://bucket", cache, bytes=5)
    with pytest.raises(ValueError, match="revalidate"):
        iomill.Cache(cache.drives, revalidate="sometimes")


@pytest.mark.parametrize("letter", ["?", "#", "\n"])
def test_a_url_of_which_a_part_would_be_ignored_is_refused(server, cache, values, letter):
    server.objects["/bucket/a"] = saved(values[::-1])
    for url in (f"s3://bucket/a{letter}b", f"{server.url}/bucket/a{letter}b"):
        with pytest.raises(ValueError, match="%"):
            iomill.open(url, cache=cache)
    with pytest.raises(ValueError, match="%"):
        iomill.cached(f"s3://bucket/a{letter}b", cache)
    if letter != "\n":
        server.objects[f"/bucket/a{letter}b"] = saved(values)
        quoted = {"?": "%3F", "#": "%23"}[letter]
        assert np.array_equal(iomill.open(f"s3://bucket/a{quoted}b", cache=cache)[:], values)
        assert iomill.cached("s3://bucket", cache).get(f"a{letter}b").buffer() == saved(values)


def test_an_object_without_an_etag_passes_and_is_told(urls, server, cache, drives, options, values):
    server.has_etags = False
    with pytest.warns(RuntimeWarning, match="by_time"):
        x = iomill.open(urls["http"], cache=cache)
    assert np.array_equal(x[:], values)
    by_time = iomill.Cache(drives, by_time=True, **options)
    y = iomill.open(urls["http"], cache=by_time)
    assert np.array_equal(y[:], values)
    by_time.wait_until_written()
    before = by_time.counters()["gets"]
    assert np.array_equal(y[:], values) and by_time.counters()["gets"] == before


def test_ranges_past_the_end_of_an_object_without_an_etag_are_errors(urls, server, cache, values):
    server.has_etags = False
    server.objects["/bucket/n"] = b"0123456789"
    store = iomill.cached(f"{server.url}/bucket", cache)
    whole = [bytes(part) for part in store.get_ranges("n", starts=[8, 3, 2], ends=[10, 3, 5])]
    assert whole == [b"89", b"", b"234"]
    for starts, ends in (([0, 1000], [5, 1010]), ([1000], [1010])):
        with pytest.raises(OSError):
            store.get_ranges("n", starts=starts, ends=ends)
        with pytest.raises(OSError):
            asyncio.run(asyncio.wait_for(store.get_ranges_async("n", starts=starts, ends=ends), PATIENCE))
    for starts, ends in (([5], [2]), ([-5], [2])):
        with pytest.raises(ValueError, match="a range from"):
            store.get_ranges("n", starts=starts, ends=ends)
    with pytest.warns(RuntimeWarning, match="by_time"):
        x = iomill.open(urls["http"], cache=cache)
    server.objects["/bucket/data/x 1.npy"] = saved(values)[:1000]
    with pytest.raises(OSError):
        x[[1, 3000]]
    with pytest.raises(OSError):
        x.take_async([1, 3000]).result(PATIENCE)


def test_a_key_below_an_object_of_a_directory_is_no_object(tmp_path, cache):
    (tmp_path / "x").write_bytes(b"1")
    store = iomill.cached(tmp_path, cache)
    with pytest.raises(NotADirectoryError):
        store.head("x/y")


def test_other_threads_run_while_a_call_waits(urls, server, cache, values):
    x = iomill.open(urls["s3"], cache=cache)
    gate = threading.Event()
    server.acts[:] = [gate]
    taken = []
    thread = threading.Thread(target=lambda: taken.append(x[2000]))
    thread.start()
    # The server and this code run in one interpreter.
    while server.acts:
        time.sleep(0.001)
    assert not taken
    gate.set()
    thread.join(PATIENCE)
    assert np.array_equal(taken[0], values[2000])


def gather(job):
    x, seed = job
    ids = np.random.default_rng(seed).integers(0, COUNT, 100)
    return os.getpid(), ids, x[ids], x.take_async(ids[:7]).result()


ROWS = None


def gather_inherited(seed):
    return gather((ROWS, seed))


@pytest.mark.parametrize("kind", ["s3", "file"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_any_kind_read_it(urls, cache, values, method, kind):
    x = iomill.open(urls[kind], cache=cache)
    assert len(pickle.dumps(x)) < 2000, "no bytes of the object travel"
    x[:100]
    # A server that an earlier test has started has no credentials in its environment.
    multiprocessing.forkserver._forkserver._stop()
    with multiprocessing.get_context(method).Pool(2) as pool:
        results = pool.map(gather, [(x, seed) for seed in range(8)])
    for pid, ids, taken, few in results:
        assert pid != os.getpid() and np.array_equal(taken, values[ids]) and np.array_equal(few, values[ids[:7]])
    assert np.array_equal(x[:], values)


def test_forked_workers_have_what_their_parent_has_open(urls, cache, values):
    global ROWS
    ROWS = iomill.open(urls["s3"], cache=cache)
    # Threads and connections of the parent are busy at the fork.
    running = [ROWS.take_async(np.arange(COUNT)) for _ in range(5)]
    with multiprocessing.get_context("fork").Pool(4) as pool:
        results = pool.map(gather_inherited, range(16))
    for pid, ids, taken, few in results:
        assert pid != os.getpid() and np.array_equal(taken, values[ids]) and np.array_equal(few, values[ids[:7]])
    assert all(np.array_equal(gather.result(PATIENCE), values) for gather in running)
    ROWS = None


def writes_out_at_its_end(_):
    registry = multiprocessing.util._finalizer_registry
    return any(one._callback is iomill._cache._write_out for one in registry.values())


def test_a_worker_keeps_what_it_has_fetched(urls, cache, values):
    """Forked workers end without `atexit`, so their end has another hook. The end of other processes is tested with a
    short process."""
    x = iomill.open(urls["s3"], cache=cache)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(writes_out_at_its_end, [x]) == [True]
        pool.map(gather, [(x, 1)])
        pool.close()
        pool.join()


def test_a_child_does_not_read_another_content(urls, server, cache, values):
    global ROWS
    ROWS = iomill.open(urls["s3"], cache=cache)
    ROWS[:10]
    server.objects["/bucket/data/x 1.npy"] = saved(values[::-1])
    with (
        multiprocessing.get_context("fork").Pool(1) as pool,
        pytest.raises(OSError, match="changed since it was opened"),
    ):
        pool.apply_async(gather_inherited, [1]).get(PATIENCE)
    ROWS = None


def test_rows_are_opened_at_their_first_use(urls, server, cache, values):
    copy = pickle.loads(pickle.dumps(iomill.open(urls["s3"], cache=cache)))
    server.acts[:] = [404] * 3
    with pytest.raises(FileNotFoundError):
        len(copy)
    server.acts.clear()
    assert np.array_equal(copy[3], values[3])


def test_a_pickle_has_the_whole_path(cache, values, tmp_path, monkeypatch):
    """Seen to fail: rows of a relative path were those of another file, in the directory of the other process."""
    np.save("x.npy", values)
    pickled = pickle.dumps(iomill.open("x.npy", cache=cache))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    np.save("x.npy", -values)
    assert np.array_equal(pickle.loads(pickled)[[1, 7]], values[[1, 7]])


def test_a_host_in_the_url_of_a_file_is_refused(cache, values, tmp_path):
    """Seen to fail: ``file://data/x.npy`` was the file ``/x.npy``."""
    np.save("x.npy", values)
    assert np.array_equal(iomill.open(f"file://localhost{tmp_path}/x.npy", cache=cache)[1], values[1])
    for use in (lambda url: iomill.open(url, cache=cache), lambda url: iomill.cached(url, cache)):
        with pytest.raises(ValueError, match="'data' is a host"):
            use(f"file://data{tmp_path}/x.npy")


def test_what_a_short_process_has_fetched_is_kept(urls, drives, values, tmp_path):
    script = """if True:
        import sys, iomill
        cache = iomill.Cache(sys.argv[2:], bytes=64 << 20, on_root=True, index_dir=sys.argv[1], read_within=600)
        x = iomill.open("s3://bucket/data/x%201.npy", cache=cache)
        print(int(x[:].sum(dtype="i8")), cache.counters()["gets"])
    """
    said = []
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-c", script, tmp_path, *drives], capture_output=True, text=True, timeout=PATIENCE
        )
        assert ran.returncode == 0 and not ran.stderr, ran.stderr
        said.append([int(word) for word in ran.stdout.split()])
    assert said[0][0] == said[1][0] == values.sum(dtype="i8")
    assert said[0][1] > 0 and said[1][1] == 0


@pytest.fixture(params=["s3", "file"])
def store(request, server, cache, tmp_path):
    (tmp_path / "objects").mkdir()
    url = {"s3": "s3://bucket/below", "file": (tmp_path / "objects").as_uri()}[request.param]
    return iomill.cached(url, cache)


def test_a_store_has_the_methods_of_obspec(store):
    put = store.put("a/one", b"0123456789")
    assert put["e_tag"]
    store.put("a/two", io.BytesIO(b"two"))
    store.put("b", [b"th", b"ree"])
    assert store.get("a/one").buffer() == b"0123456789"
    got = store.get("a/one", options={"range": (2, 5)})
    assert got.buffer() == b"234" and got.range == (2, 5) and got.meta["size"] == 10 and b"".join(got) == b"234"
    assert store.get("a/one", options={"range": {"offset": 7}}).buffer() == b"789"
    assert store.get("a/one", options={"range": {"suffix": 2}}).buffer() == b"89"
    assert store.get_range("a/one", start=1, end=3) == b"12" == store.get_range("a/one", start=1, length=2)
    assert store.get_ranges("a/one", starts=[8, 0], lengths=[2, 1]) == [b"89", b"0"]
    head = store.head("a/one")
    assert head["path"] == "a/one" and head["size"] == 10 and head["e_tag"] == got.meta["e_tag"]
    assert head["last_modified"].tzinfo is not None
    assert [meta["path"] for chunk in store.list() for meta in chunk] == ["a/one", "a/two", "b"]
    assert [meta["path"] for chunk in store.list("a", offset="a/one") for meta in chunk] == ["a/two"]
    listed = store.list_with_delimiter()
    assert listed["common_prefixes"] == ["a"] and [meta["path"] for meta in listed["objects"]] == ["b"]
    with pytest.raises(FileExistsError):
        store.put("b", b"x", mode="create")
    with pytest.raises(OSError):
        store.get("b", options={"if_match": '"another"'})
    store.copy("b", "c")
    store.rename("c", "d")
    assert store.get("d").bytes() == b"three"
    store.put("d", b"new")
    assert store.get("d").bytes() == b"new"
    store.delete(["a/one", "a/two"])
    store.delete("d")
    assert [meta["path"] for chunk in store.list() for meta in chunk] == ["b"]
    with pytest.raises(FileNotFoundError):
        store.get("a/one")
    with pytest.raises(ValueError):
        store.get("b", options={"nonsense": 1})
    with pytest.raises(ValueError):
        store.get_range("b", start=1)
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store and copy.get("b").buffer() == b"three"


LONG = (64 << 20) + 5


def test_a_rename_to_itself_keeps_an_object(store):
    """Seen to fail in S3: the object was copied onto itself, and then deleted."""
    store.put("a", b"kept")
    store.rename("a", "a")
    store.copy("a", "a")
    assert store.get("a").buffer() == b"kept"
    with pytest.raises(FileNotFoundError):
        store.rename("none", "none")


def test_a_long_object_is_uploaded_in_parts(server, cache):
    content = np.random.default_rng(2).bytes(LONG)
    store = iomill.cached("s3://bucket/below", cache)
    store.put("long", content)
    assert server.objects["/bucket/below/long"] == content and not server.uploads
    assert sum("partNumber" in path for _, path in server.asked) > 1
    assert store.get("long").buffer() == content


@pytest.mark.parametrize("refused", [1, 2])
def test_a_failed_upload_leaves_no_parts(server, cache, refused):
    """The upload begins, and its first parts, or one after others, are refused."""
    store = iomill.cached("s3://bucket/below", cache)
    at_once = threading.Event()
    at_once.set()
    server.acts = [*[at_once] * refused, 403]
    with pytest.raises(PermissionError):
        store.put("long", bytes(LONG))
    assert not server.objects and not server.uploads
    assert ("DELETE" in {method for method, _ in server.asked}) and not server.acts


def test_parts_that_cannot_be_aborted_are_told(server, cache):
    store = iomill.cached("s3://bucket/below", cache)
    at_once = threading.Event()
    at_once.set()

    class Acts(list):
        """Refuses parts and aborts, and lets uploads begin."""

        def pop(self, _index):
            return at_once if server.asked[-1][0] == "POST" else 403

    server.acts = Acts([None])
    with pytest.raises(OSError, match="below/long remain in the store"):
        store.put("long", bytes(LONG))
    assert server.uploads


def test_an_interrupted_upload_leaves_no_parts(server, cache, drives, options):
    hold, at_once = threading.Event(), threading.Event()
    at_once.set()
    server.acts = [at_once, hold]
    code = (
        "import iomill, sys\n"
        f"cache = iomill.Cache({[str(drive) for drive in drives]!r}, bytes=64 << 20, on_root=True, "
        f"index_dir={str(options['index_dir'])!r})\n"
        f"iomill.cached('s3://bucket/below', cache).put('long', bytes({LONG}))"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    while server.acts or not server.uploads:
        assert child.poll() is None, child.stderr.read()
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=PATIENCE)[1]
    hold.set()
    assert b"KeyboardInterrupt" in said, said
    assert not server.uploads and not server.objects


def test_the_time_of_an_object_meets_its_own_conditions(store):
    store.put("a", b"x")
    time = store.head("a")["last_modified"]
    earlier = time - datetime.timedelta(seconds=1)
    for name, right, wrong in (("if_unmodified_since", time, earlier), ("if_modified_since", earlier, time)):
        for same in (right, right.astimezone()):
            assert store.get("a", options={name: same}).buffer() == b"x"
        with pytest.raises(OSError):
            store.get("a", options={name: wrong})


async def test_a_store_has_coroutines(store):
    await store.put_async("a", b"0123456789")
    assert (await (await store.get_async("a")).bytes_async()) == b"0123456789"
    assert await store.get_range_async("a", start=3, length=2) == b"34"
    many = await asyncio.gather(*(store.get_ranges_async("a", starts=[n], ends=[n + 1]) for n in range(10)))
    assert [part for parts in many for part in parts] == [b"%d" % n for n in range(10)]
    assert (await store.head_async("a"))["size"] == 10
    assert [meta["path"] async for chunk in store.list_async() for meta in chunk] == ["a"]
    assert (await store.list_with_delimiter_async())["common_prefixes"] == []
    await store.copy_async("a", "b")
    await store.rename_async("b", "c")
    await store.delete_async("a")
    with pytest.raises(FileNotFoundError):
        await store.get_async("a")
    assert (await store.get_async("c")).buffer() == b"0123456789"


def test_what_was_prefetched_is_a_hit(store, cache, values):
    content = values.tobytes()
    for name in ("p/one", "p/two"):
        store.put(name, content)
    steps = []
    fetched = store.prefetch("p", progress=lambda done, total: steps.append((done, total)))
    assert fetched == 2 * len(content) and steps[-1] == (2 * len(content), 2 * len(content))
    cache.wait_until_written()
    before = cache.counters()
    assert store.get("p/two").buffer() == content
    assert cache.counters()["gets"] == before["gets"]
    assert store.prefetch("p/one") == 0 and store.prefetch("p/one", [(0, 5000)]) == 0
    with pytest.raises(FileNotFoundError):
        store.prefetch("none")


def test_what_is_pinned_stays(store, cache, values):
    content, other = values.tobytes(), os.urandom(4 << 20)
    store.put("kept/one", content)

    def fill():
        """Reads more than the cache holds."""
        for number in range(40):
            store.put(f"other/{number}", other)
            assert store.get(f"other/{number}").buffer() == other
            assert cache.wait_until_written()

    def gets():
        before = cache.counters()["gets"]
        assert store.get("kept/one").buffer() == content
        return cache.counters()["gets"] - before

    steps = []
    assert store.pin("kept", progress=lambda done, total: steps.append((done, total))) == len(content)
    assert steps[-1] == (len(content), len(content)) and store.pin("kept/one", [(0, 5000)]) == 0
    fill()
    assert gets() == 0
    store.unpin("kept")
    assert cache.unpin_all() == 0
    fill()
    assert gets() > 0
    store.pin("kept/one", [(0, 5000)])
    assert cache.unpin_all() > 0
    with pytest.raises(FileNotFoundError):
        store.pin("none")


def test_a_file_of_a_store_is_one_of_python(store):
    store.put("words", b"one two three")
    with store.open("words") as file:
        assert (file.read(3), file.read_at(4, 3), len(file), file.seek(-5, os.SEEK_END)) == (b"one", b"two", 13, 8)
        assert file.read() == b"three" and not file.writable()
        assert [bytes(part) for part in file.read_ranges([(8, 5), (0, 1)])] == [b"three", b"o"]
        assert [bytes(part) for part in file.read_ranges_async([(0, 3)]).result()] == [b"one"]
    assert file.closed


def test_a_path_of_python_is_a_store(tmp_path, cache):
    (tmp_path / "there").mkdir()
    store = iomill.cached(pathlib.Path(tmp_path / "there"), cache)
    store.put("a", b"x")
    assert (tmp_path / "there" / "a").read_bytes() == b"x"
