"""fsspec's own tests, unchanged, over the files of an array."""

import pytest

pytest.importorskip("fsspec")

import fsspec  # noqa: E402
from fsspec.tests import abstract  # noqa: E402

import iomill  # noqa: E402
from iomill.fsspec import IomillFileSystem  # noqa: E402


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self, tmp_path_factory):
        drives = [tmp_path_factory.mktemp("drive") for _ in range(2)]
        iomill.Array.create(drives).close()
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


@pytest.fixture
def files(tmp_path):
    (tmp_path / "nvme").mkdir()
    iomill.Array.create([tmp_path / "nvme"]).close()
    made = fsspec.filesystem("iomill", drive=str(tmp_path / "nvme"))
    yield made
    made.close()


def test_names_and_directories(files):
    assert isinstance(files, IomillFileSystem) and files.ls("") == []
    for name in ("a/b/c", "a/d", "e"):
        files.pipe_file(name, name.encode())
    assert files.ls("", detail=False) == ["a", "e"] and files.ls("a", detail=False) == ["a/b", "a/d"]
    assert files.find("") == ["a/b/c", "a/d", "e"] and files.isdir("a/b") and files.isfile("a/d")
    assert files.info("iomill://a/d") == {"name": "a/d", "size": 3, "type": "file"}
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
        # It is open, and keeps what it has when the name gets another content.
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
