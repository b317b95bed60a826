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
    with pytest.raises(ValueError, match="there are"):
        fsspec.open("iomillcache::memory://x", **options).open()
    with pytest.raises(ValueError, match="cache"):
        fsspec.filesystem("iomillcache", target_protocol="file")


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
