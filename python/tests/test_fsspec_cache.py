"""fsspec's own tests, unchanged, over a store that speaks S3, through a cache: ``iomillcache::s3://``."""

import pickle

import pytest

pytest.importorskip("fsspec")

import fsspec  # noqa: E402
from fsspec.tests import abstract  # noqa: E402
from origin_server import Server  # noqa: E402

import iomill  # noqa: E402


def settings_of(server):
    """As s3fs takes them."""
    return {"client_kwargs": {"endpoint_url": server.url, "region_name": "us-east-1"}, "key": "me", "secret": "secret"}


@pytest.fixture(scope="class")
def options(tmp_path_factory):
    drives = [tmp_path_factory.mktemp("drive") for _ in range(2)]
    index = tmp_path_factory.mktemp("index")
    return {"cache": iomill.Cache(drives, bytes=64 << 20, on_root=True, index_dir=index, read_within=600)}


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self, options):
        server = Server()
        yield fsspec.filesystem("iomillcache", target_protocol="s3", target_options=settings_of(server), **options)
        server.close()

    @pytest.fixture
    def fs_path(self):
        return "bucket/tests"

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


def test_a_chain_reads_and_writes(options, tmp_path):
    (tmp_path / "words").write_bytes(b"one two three" * 1000)
    url = f"iomillcache::file://{tmp_path}/words"
    for round in range(2):
        with fsspec.open(url, "rb", **options) as file:
            assert file.read(3) == b"one" and file.seek(-5, 2) and file.read() == b"three"
        options["cache"].wait_until_written()
        if round == 0:
            gets = options["cache"].counters()["gets"]
    assert options["cache"].counters()["gets"] == gets
    with fsspec.open(f"iomillcache::file://{tmp_path}/new", "wb", **options) as file:
        file.write(b"made")
    assert (tmp_path / "new").read_bytes() == b"made"
    with pytest.raises(RuntimeError), fsspec.open(f"iomillcache::file://{tmp_path}/half", "wb", **options) as file:
        file.write(b"half")
        raise RuntimeError
    assert not (tmp_path / "half").exists()
    files, path = fsspec.url_to_fs(url, **options)
    copy = pickle.loads(pickle.dumps(files))
    assert copy.cat_ranges([path, path], [4, 0], [7, 3]) == [b"two", b"one"]
    assert copy.cat_file(path, start=-5) == b"three"


def test_what_has_no_store_is_refused(options):
    with pytest.raises(ValueError, match="supports"):
        fsspec.open("iomillcache::memory://x", **options).open()
    with pytest.raises(ValueError, match="cache"):
        fsspec.filesystem("iomillcache", target_protocol="file")


def test_ranges_are_of_one_content(options):
    server = Server()
    files = fsspec.filesystem("iomillcache", target_protocol="s3", target_options=settings_of(server), **options)
    files.pipe("bucket/a", b"0123456789")
    assert files.cat_file("bucket/a", start=-3) == b"789"
    assert options["cache"].wait_until_written()
    server.asked.clear()
    assert files.cat_ranges(["bucket/a"] * 3, [-2, 0, 5], [None, 3, 5]) == [b"89", b"012", b""]
    assert server.asked == [("HEAD", "/bucket/a")], "the length and the bytes are those of one version"
    assert files.cat_file("bucket/a", start=4, end=4) == b"" and files.cat_file("bucket/a", end=2) == b"01"
    server.close()


def test_moves_and_removals(options):
    """Seen to fail: a move onto the same object, or of a directory into itself, lost the objects, and a removal of a
    missing one said nothing."""
    server = Server()
    files = fsspec.filesystem("iomillcache", target_protocol="s3", target_options=settings_of(server), **options)
    files.pipe({"bucket/a": b"1", "bucket/d/x": b"2", "bucket/d/s/y": b"3"})
    files.mv("bucket/a", "s3://bucket/a")
    assert files.cat("bucket/a") == b"1"
    files.mv("bucket/d", "bucket/d/in", recursive=True)
    files.mv("bucket/a", "bucket/b")
    assert files.find("bucket") == ["bucket/b", "bucket/d/in/s/y", "bucket/d/in/x"] and files.cat("bucket/b") == b"1"
    for wrong, error in (
        (lambda: files.mv("bucket/none", "bucket/x"), FileNotFoundError),
        (lambda: files.mv("bucket/d", "bucket/e"), IsADirectoryError),
        (lambda: files.rm("bucket/none"), FileNotFoundError),
        (lambda: files.rm("bucket/d"), IsADirectoryError),
        (lambda: files.cp("bucket/none", "bucket/x"), FileNotFoundError),
    ):
        with pytest.raises(error):
            wrong()
    with pytest.raises(ValueError, match="1 paths"):
        files.cat_ranges(["bucket/b"], [0, 1], [1])
    files.rm("bucket/d", recursive=True)
    assert files.find("bucket") == ["bucket/b"]
    server.close()


def test_buckets(options):
    """Without a class of fsspec for the protocol, which is not needed."""
    server = Server()
    files = fsspec.filesystem("iomillcache", target_protocol="s3", target_options=settings_of(server), **options)
    files.pipe("s3://bucket/dir/one", b"1")
    files.pipe("bucket/dir/two", b"22")
    assert files.ls("bucket/dir", detail=False) == ["bucket/dir/one", "bucket/dir/two"]
    assert files.find("bucket") == ["bucket/dir/one", "bucket/dir/two"] and files.isdir("bucket/dir")
    assert files.cat("s3://bucket/dir/two") == b"22" and files.du("bucket") == 3
    files.rm("bucket/dir", recursive=True)
    assert not files.exists("bucket/dir/one") and server.objects == {}
    server.close()


def test_each_cache_has_a_file_system_of_its_own(options, tmp_path):
    """Seen to fail: fsspec knows arguments by their texts, and the text of a cache had no options. So the second file
    system was the first one, which never asks for a new version."""
    (tmp_path / "words").write_bytes(b"old")
    how = {"bytes": 64 << 20, "on_root": True, "index_dir": tmp_path, "read_within": 600}
    seen = []
    for revalidate in ("never", "always"):
        cache = iomill.Cache(options["cache"].drives, revalidate=revalidate, **how)
        files = fsspec.filesystem("iomillcache", target_protocol="file", cache=cache)
        seen.append(files.cat(str(tmp_path / "words")))
        assert pickle.loads(pickle.dumps(files)) is files
        (tmp_path / "words").write_bytes(b"a new content")
    assert seen == [b"old", b"a new content"]


def test_a_pickle_has_the_directories_of_a_cache_and_opens_none(tmp_path, monkeypatch):
    """Seen to fail: the unpickling opened the relative directories, in the directory of the other process. A worker of
    a pool that fails there never answers."""
    (tmp_path / "nvme").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "words").write_bytes(b"one two")
    how = {"bytes": 64 << 20, "on_root": True, "index_dir": ".", "read_within": 600}
    files = fsspec.filesystem("iomillcache", target_protocol="file", cache="nvme", **how)
    pickled = pickle.dumps(files)
    files.clear_instance_cache()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = pickle.loads(pickled)
    assert again.cat(str(tmp_path / "words")) == b"one two"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_paths_of_local_files(options, tmp_path):
    """Seen to fail: a move onto the same file, by another form of its path, removed it. A relative path was read and
    written in the root directory."""
    files = fsspec.filesystem("iomillcache", target_protocol="file", **options)
    (tmp_path / "words").write_bytes(b"one two")
    files.mv(f"{tmp_path}/words", f"/{tmp_path}/words")
    files.cp(f"{tmp_path}/words", f"/{tmp_path}/words")
    assert files.cat(f"{tmp_path}/words") == b"one two"
    assert [path.name for path in tmp_path.iterdir()] == ["words"]
    for use in (files.cat, files.info, lambda path: files.pipe(path, b"x"), lambda path: files.rm(path)):
        with pytest.raises(ValueError, match="absolute"):
            use("words")
    assert all(name.startswith("/") for name in files.ls("/", detail=False))
