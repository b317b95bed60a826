"""fsspec's own tests, unchanged, over the files of an array."""

import contextlib
import io
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

pytest.importorskip("fsspec")

import fsspec  # noqa: E402
from fsspec.tests import abstract  # noqa: E402

import iomill  # noqa: E402
from iomill._writing import Written  # noqa: E402
from iomill.fsspec import IomillFileSystem  # noqa: E402


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self, tmp_path_factory):
        drives = [tmp_path_factory.mktemp("drive") for _ in range(2)]
        iomill.Drives.create(drives).close()
        files = IomillFileSystem(drives[0])
        yield files
        files.close()

    @pytest.fixture
    def fs_path(self):
        return "tests"

    @pytest.fixture
    def supports_empty_directories(self):
        return False


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


def test_names_and_directories(files):
    assert isinstance(files, IomillFileSystem) and files.ls("") == []
    for name in ("a/b/c", "a/d", "e"):
        files.pipe_file(name, name.encode())
    assert files.ls("", detail=False) == ["a", "e"] and files.ls("a", detail=False) == ["a/b", "a/d"]
    assert files.find("") == ["a/b/c", "a/d", "e"] and files.isdir("a/b") and files.isfile("a/d")
    info = files.info("iomill://a/d")
    assert (info["name"], info["size"], info["type"]) == ("a/d", 3, "file")
    for missing in (files.info, files.ls, files.rm_file, files.cat_file):
        with pytest.raises(FileNotFoundError):
            missing("a/x")
    with pytest.raises(OSError, match="not empty"):
        files.rmdir("a")
    with pytest.raises(IsADirectoryError):
        files.rm("a")
    files.mv_file("e", "f")
    files.rm("a", recursive=True)
    assert files.find("") == ["f"] and files.cat("f") == b"e"


def test_writing(files):
    with files.open("x", "wb") as file:
        file.write(b"12")
        assert not files.exists("x")
        file.write(b"345")
    assert files.cat("x") == b"12345"
    with files.open("x", "ab") as file:
        file.write(b"6")
    with files.open("x") as file:
        assert (file.seek(-2, 2), file.read()) == (4, b"56")
        # An open file keeps its content when the name gets another one.
        files.pipe_file("x", b"new")
        assert (files.cat("x"), file.seek(0), file.read()) == (b"new", 0, b"123456")
    with pytest.raises(FileExistsError):
        files.open("x", "xb")
    with pytest.raises(ValueError, match="mode 'r\\+b'"):
        files.open("x", "r+b")


def test_ranges(files):
    files.pipe({"x": bytes(range(100)), "y": b"abc"})
    read = files.cat_ranges(["x", "y", "x", "none"], [10, 1, -2, 0], [12, None, None, 1])
    assert read[:3] == [b"\x0a\x0b", b"bc", b"\x62\x63"] and isinstance(read[3], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        files.cat_ranges(["none"], [0], [1], on_error="raise")


GOOD = b"good" * 1000


def write_and_fail(files, mode="wb", **how):
    data = "new" if "b" not in mode else b"new"
    with files.open("t", mode, **how) as file:
        file.write(data)
        raise KeyError("the program failed half-way")


def by_open_file(files):
    with fsspec.open("iomill://t", "wb", drive=str(files.drives.directories[0])) as file:
        file.write(b"new")
        raise KeyError


def by_closing(files):
    with contextlib.closing(files.open("t", "wb")) as file:
        file.write(b"new")
        raise KeyError


@pytest.mark.parametrize(
    "write",
    [
        write_and_fail,
        lambda files: write_and_fail(files, "w"),
        lambda files: write_and_fail(files, compression="gzip"),
        lambda files: write_and_fail(files, "wt", compression="gzip"),
        by_open_file,
        by_closing,
    ],
    ids=["bytes", "text", "gzip", "text in gzip", "OpenFile", "closing"],
)
def test_an_exception_leaves_the_old_file(files, write):
    files.pipe_file("t", GOOD)
    with pytest.raises(KeyError):
        write(files)
    assert files.cat_file("t") == GOOD and files.find("") == ["t"]


def test_a_wrapper_that_an_exception_ends_leaves_the_old_file(files):
    class Wrapper:
        """Like a wrapper of pandas: its `__exit__` closes in any case."""

        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self.file

        def __exit__(self, kind, error, trace):
            self.file.close()

    files.pipe_file("t", GOOD)
    with pytest.raises(KeyError), Wrapper(files.open("t", "wb")) as file:
        file.write(b"new")
        raise KeyError
    assert files.cat_file("t") == GOOD
    with Wrapper(files.open("t", "wb")) as file:
        file.write(b"new")
    assert files.cat_file("t") == b"new"
    # A file that was begun in the handler of an exception has not failed.
    try:
        raise KeyError("why")
    except KeyError as error:
        with files.open("t", "w") as file:
            file.write(repr(error))
        with fsspec.open("iomill://u", "wb", drive=str(files.drives.directories[0])) as file:
            file.write(b"u")
    assert (files.cat_file("t"), files.cat_file("u")) == (b"KeyError('why')", b"u")


def test_a_wrapper_of_no_python_that_an_exception_ends_leaves_the_old_file(files):
    arrow = pytest.importorskip("pyarrow")
    files.pipe_file("t", GOOD)
    with pytest.raises(KeyError), arrow.PythonFile(files.open("t", "wb"), mode="w") as file:
        file.write(b"new")
        raise KeyError
    assert files.cat_file("t") == GOOD
    with arrow.PythonFile(files.open("t", "wb"), mode="w") as file:
        file.write(b"new")
    assert files.cat_file("t") == b"new"


@pytest.mark.parametrize("mode, how", [("wb", {}), ("w", {}), ("wb", {"compression": "gzip"}), ("xb", {})])
def test_a_file_that_is_dropped_does_not_appear(files, mode, how):
    name = "new" if mode == "xb" else "t"
    files.pipe_file("t", GOOD)
    file = files.open(name, mode, **how)
    file.write("x" * 100_000 if mode == "w" else b"x" * 100_000)
    del file
    assert files.find("") == ["t"] and files.cat_file("t") == GOOD


def test_a_failed_write_leaves_the_old_file(files, monkeypatch):
    """As on a full drive: the write fails, and the code that closes the file afterwards does not know of the
    failure."""
    files.pipe_file("t", GOOD)

    def full(self, data):
        raise OSError(28, "no space left on device")

    file = files.open("t", "wb")
    file.write(b"x" * 100_000)
    with monkeypatch.context() as broken:
        broken.setattr(iomill.File, "write", full)
        with pytest.raises(OSError, match="no space"):
            file.write(b"x" * 100_000)
    # There is space again, but the file has a hole.
    with pytest.raises(OSError, match="an earlier write failed: .*'t'"):
        file.close()
    assert files.cat_file("t") == GOOD and files.find("") == ["t"]
    assert file.closed


def test_compressed_files_end_with_their_wrapper(files):
    for name in ("a.gz", "a.bz2", "a.xz"):
        file = files.open(name, "wb", compression="infer")
        file.write(GOOD)
        file.close()
        with files.open(name, "rb", compression="infer") as back:
            assert back.read() == GOOD
    with files.open("a.gz", "wt", compression="infer") as file:
        file.write("text")
    with files.open("a.gz", "rt", compression="infer") as file:
        assert file.read() == "text"


def test_transactions(files):
    files.pipe({"a": b"1", "b": b"2"})
    with files.transaction:
        files.pipe_file("a", b"new")
        with files.open("b", "ab") as file:
            file.write(b"more")
        with files.open("c", "w") as file:
            file.write("text")
        assert (files.cat("a"), files.cat("b"), files.exists("c")) == (b"1", b"2", False)
    assert (files.cat("a"), files.cat("b"), files.cat("c")) == (b"new", b"2more", b"text")
    with pytest.raises(KeyError), files.transaction:
        files.pipe_file("a", b"newer")
        raise KeyError
    assert files.cat("a") == b"new" and files.find("") == ["a", "b", "c"]


def test_a_file_that_is_open_at_the_end_of_its_transaction_is_given_up(files):
    """It is not known to be complete."""
    files.pipe_file("a", b"1")
    with pytest.warns(RuntimeWarning, match="a is discarded, because it was not closed"), files.transaction:
        file = files.open("a", "wb")
        file.write(b"half")
        del file
        files.pipe_file("b", b"2")
    assert files.cat("a") == b"1" and files.cat("b") == b"2"


def test_caches_of_fsspec_that_read_blocks(files):
    content = bytes(range(256)) * 400
    files.pipe_file("d/x", content)
    for _ in range(2):
        cache = fsspec.filesystem("blockcache", fs=files, cache_storage="blocks", skip_instance_cache=True)
        with cache.open("d/x", block_size=1000) as file:
            assert file.seek(70_001) and file.read(3000) == content[70_001:73_001]
    for kind in ("readahead", "bytes", "all", "first", "none"):
        with files.open("d/x", block_size=512, cache_type=kind, cache_options={}) as file:
            assert file.read(10) == content[:10] and file.seek(-5, 2) and file.read() == content[-5:]
            assert file.size == len(content)
        with pytest.raises(ValueError):
            file.read(1)


WRITES_AND_LIVES = """
import fsspec, sys
files = fsspec.filesystem("iomill", drive=sys.argv[1])
files.pipe_file("theirs", b"1")
print("written", flush=True)
sys.stdin.read()
"""


def test_a_process_waits_for_a_write_of_another_that_only_lingers(files):
    drive = str(files.drives.directories[0])
    files.close()
    other = subprocess.Popen([sys.executable, "-c", WRITES_AND_LIVES, drive], stdin=-1, stdout=-1, text=True)
    try:
        assert other.stdout.readline() == "written\n"
        with iomill.Drives(drive, "r+") as opened:
            opened.put("ours", b"2")
            assert opened.list() == ["ours", "theirs"]
    finally:
        other.communicate("")


def test_a_name_that_is_a_file_and_a_directory(files):
    files.pipe({"t": b"1", "t/a": b"22", "t/b/c": b"4444", "u": b"88888888"})
    everything = ["t", "t/a", "t/b/c", "u"]
    assert files.find("") == everything and files.du("") == 15
    assert files.find("t") == ["t", "t/a", "t/b/c"] and files.du("t", total=False) == {"t": 1, "t/a": 2, "t/b/c": 4}
    assert files.find("", maxdepth=1) == ["t", "u"] and files.find("", maxdepth=2) == ["t", "t/a", "u"]
    assert files.find("", withdirs=True) == ["t", "t/a", "t/b", "t/b/c", "u"]
    assert files.ls("t", detail=False) == ["t/a", "t/b"] and files.ls("u", detail=False) == ["u"]
    assert files.isfile("t") and files.isdir("t/b") and not files.isdir("u")
    assert sorted(name for _, _, names in files.walk("") for name in names) == ["a", "c", "t", "u"]
    # A local directory cannot have both: that is an error.
    with pytest.raises(OSError):
        files.get("", "got", recursive=True)
    files.get("t/b", "got_b", recursive=True)
    assert open("got_b/c", "rb").read() == b"4444"
    files.rm("t", recursive=True)
    assert files.find("") == ["u"]
    files.pipe({"t": b"1", "t/a": b"22"})
    files.rm("", recursive=True)
    assert files.find("") == []


def test_paths_as_bytes(files):
    files.pipe("a/b", b"12")
    assert files.cat(b"a/b") == b"12" and files.info(b"a/b")["size"] == 2 and files.ls(b"a", detail=False) == ["a/b"]
    with files.open(b"a/c", "wb") as file:
        file.write(b"3")
    assert files.cat([b"a/b", b"a/c"]) == {"a/b": b"12", "a/c": b"3"} and files.glob("a/*") == ["a/b", "a/c"]
    files.rm(b"a", recursive=True)
    assert files.find("") == []
    for wrong in (3, None, 1.5):
        with pytest.raises(TypeError, match="path"):
            files.info(wrong)


def test_times_and_versions(files):
    files.pipe_file("x", b"old!")
    first = files.info("x")
    assert files.created("x").tzinfo is not None and files.modified("x") >= files.created("x")
    keys = (files.ukey("x"), files.checksum("x"))
    assert keys == (files.ukey("x"), files.checksum("x"))
    files.pipe_file("x", b"new!")
    assert files.info("x")["version"] != first["version"]
    assert files.ukey("x") != keys[0] and files.checksum("x") != keys[1]
    assert files.ls("", detail=True) == [files.info("x")] and files.find("", detail=True) == {"x": files.info("x")}


def test_a_cache_of_fsspec_sees_a_new_content(files):
    cache = fsspec.filesystem("filecache", fs=files, check_files=True, cache_storage="cache")
    for content in (b"old!", b"new!", b"newer"):
        files.pipe_file("a/x", content)
        assert cache.cat("a/x") == content


def test_errors_of_missing_names(files):
    files.pipe_file("d/x", b"1")
    for call in (
        lambda: files.rm("none"),
        lambda: files.rm_file("none"),
        lambda: files.rm("none", recursive=True),
        lambda: files.cp_file("none", "y"),
        lambda: files.mv_file("none", "y"),
        lambda: files.created("none"),
        lambda: files.modified("d"),
        lambda: files.open("none"),
        lambda: files.info("bad\0name"),
        lambda: files.ls("none"),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    with pytest.raises(FileExistsError):
        files.pipe_file("d/x", b"2", mode="create")
    with pytest.raises(ValueError, match="mode"):
        IomillFileSystem(str(files.drives.directories[0]), mode="w", skip_instance_cache=True)
    only = IomillFileSystem(str(files.drives.directories[0]), mode="r", skip_instance_cache=True)
    for call in (lambda: only.pipe_file("y", b""), lambda: only.rm("d/x"), lambda: only.open("y", "w")):
        with pytest.raises(OSError, match='mode="r"'):
            call()
    only.close()
    with pytest.raises(ValueError, match="closed"):
        only.exists("d/x")


def test_one_array_has_many_users_in_a_process(tmp_path):
    drives = [str(tmp_path / name) for name in ("a", "b")]
    for drive in drives:
        os.mkdir(drive)
    iomill.put(np.arange(1000).reshape(100, 10), drives, "x")
    one, two = (fsspec.filesystem("iomill", drive=drive) for drive in drives)
    rows, array = iomill.open(drives[0], "x"), iomill.Drives(drives[1])
    found = []
    # fsspec makes a file system for each thread.
    thread = threading.Thread(target=lambda: found.append(fsspec.filesystem("iomill", drive=drives[0]).find("")))
    thread.start()
    thread.join()
    assert found == [["x"]] == [two.find("")] == [one.find("")] == [array.list()]
    reader = one.open("x")
    start = reader.read(10)
    two.pipe_file("y", b"text")
    iomill.put(np.zeros(3), drives[1], "z")
    assert one.cat("y") == b"text" and array.list() == ["x", "y", "z"] and rows[7, 3] == 73
    # Its file was opened before the array was opened again, twice.
    assert reader.seek(0) == 0 and reader.read(10) == start
    # The users share a cache.
    assert rows.file._owner._native is array._native is one.drives._native is two.drives._native
    for files in (one, two):
        files.close()


READ = "import fsspec, sys; print(fsspec.filesystem('iomill', drive=sys.argv[1]).cat('x').decode())"


def test_other_processes_read_while_nothing_is_written(files):
    files.pipe_file("x", b"text")
    drive = str(files.drives.directories[0])

    def read():
        done = subprocess.run([sys.executable, "-c", READ, drive], capture_output=True, text=True, timeout=60)
        return done.stdout.strip() or done.stderr

    # This process has just written, and continues to read.
    assert any(read() == "text" for _ in range(20))
    with files.open("x", "wb") as file:
        file.write(b"new")
        assert "in use" in read()
    assert any(read() == "new" for _ in range(20))
    pid = os.fork()
    if pid == 0:
        os._exit(0 if files.cat("x") == b"new" else 1)
    assert os.waitpid(pid, 0)[1] == 0


# When the interpreter drops the remaining objects, no thread can start that is not a daemon.
LEAVES = """
import fsspec, sys
file = fsspec.filesystem("iomill", drive=sys.argv[1]).open("x", "wb")
file.write(b"new")
"""
# The thread never releases the lock. Its frame has other globals than the file.
HOLDS = '''
exec("""
import threading
from iomill import _openings
held = threading.Event()
def hold():
    with _openings.lock():
        held.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
""", {})
'''


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", HOLDS], ids=["end", "exit", "lock"])
def test_a_process_that_ends_without_a_close_ends(files, end):
    files.pipe_file("x", GOOD)
    files.close()
    drive = str(files.storage_options["drive"])
    subprocess.run([sys.executable, "-c", LEAVES + end, drive], check=True, timeout=120)
    with iomill.Drives(drive) as array:
        assert array.list() == ["x"] and array.open("x").read() == GOOD


def test_without_a_thread_the_array_lingers_not(files, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", refuse)
    files.pipe_file("x", b"text")
    drive = str(files.storage_options["drive"])
    done = subprocess.run([sys.executable, "-c", READ, drive], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "text", done.stderr


def test_blocks_between_delimiters(files):
    files.pipe_file("t", b"one\ntwo\nthree\n")
    assert files.read_block("t", 4, 4) == b"two\n" and files.read_block("t", 8, None) == b"three\n"
    assert files.read_block("t", 1, 4, delimiter=b"\n") == b"two\n"
    with files.open("t") as file:
        assert file.size == 14


def test_text_and_lines(files):
    with files.open("t", "w", encoding="latin-1") as file:
        file.write("öne\ntwo\n")
    with files.open("t", "r", encoding="latin-1") as file:
        assert file.readlines() == ["öne\n", "two\n"]
    with io.BytesIO(files.cat("t")) as raw:
        assert raw.read().decode("latin-1") == "öne\ntwo\n"


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "UTF16", "utf-32", "utf-16-le"])
def test_a_text_has_one_byte_order_mark(files, encoding, compression):
    for mode in ("w", "a"):
        with files.open("words", mode, encoding=encoding, compression=compression) as file:
            file.write("one\n")
        with open("words", mode, encoding=encoding) as local:
            local.write("one\n")
        with files.open("words", "rb", compression=compression) as file, open("words", "rb") as local:
            assert file.read() == local.read()
    with files.open("words", "r", encoding=encoding, compression=compression) as file:
        assert file.read() == "one\none\n"


def test_an_exception_may_have_the_id_of_an_earlier_one(files):
    class Wrapper:
        """It closes its file, and does not pass the exception on."""

        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self.file

        def __exit__(self, *_):
            self.file.close()

    def opened(name):
        try:
            raise KeyError
        except KeyError:
            return files.open(name, "wb")

    for number in range(20):
        file = opened(f"half{number}")
        with pytest.raises(KeyError), Wrapper(file):
            file.write(b"half")
            raise KeyError
    assert files.find("") == []
    with pytest.raises(KeyError):
        try:
            raise KeyError
        except KeyError:
            with Wrapper(files.open("whole", "wb")) as file:
                file.write(b"whole")
            raise
    assert files.cat("whole") == b"whole"


def test_an_interrupted_close_leaves_the_old_file(files, monkeypatch):
    """Seen to fail: Ctrl-C at the beginning of the last write, which `close` makes, published the file without it."""
    files.pipe("words", b"old")

    def interrupted(*_):
        raise KeyboardInterrupt

    for text in (False, True):
        with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
            with files.open("words", "w" if text else "wb") as file:
                file.write("new" if text else b"new")
                broken.setattr(Written, "write", interrupted)
        assert files.cat("words") == b"old" and file.closed
