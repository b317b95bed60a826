"""zarr's own tests of stores, unchanged, and reads that are gathers."""

import contextlib
import os
import pathlib
import pickle
import threading
import time

import hypothesis
import numpy as np
import pytest

zarr = pytest.importorskip("zarr")

from zarr.core.buffer import Buffer, cpu  # noqa: E402
from zarr.core.sync import sync  # noqa: E402
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine  # noqa: E402
from zarr.testing.store import StoreTests  # noqa: E402

import iomill  # noqa: E402
from iomill.zarr import DrivesStore, IomillStore, RemoteStore, _open_files  # noqa: E402


class TestIomillStore(StoreTests[IomillStore, cpu.Buffer]):
    store_cls = IomillStore
    buffer_cls = cpu.Buffer

    async def get(self, store: IomillStore, key: str) -> Buffer:
        return self.buffer_cls.from_bytes((store.root / key).read_bytes())

    async def set(self, store: IomillStore, key: str, value: Buffer) -> None:
        path = store.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value.to_bytes())

    @pytest.fixture
    def store_kwargs(self, tmp_path):
        return {"root": str(tmp_path)}

    def test_store_repr(self, store: IomillStore) -> None:
        assert repr(store) == f"IomillStore('file://{store.root.as_posix()}')"

    def test_store_supports_writes(self, store: IomillStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: IomillStore) -> None:
        assert store.supports_listing


class TestDrivesStore(StoreTests[DrivesStore, cpu.Buffer]):
    store_cls = DrivesStore
    buffer_cls = cpu.Buffer

    async def get(self, store: DrivesStore, key: str) -> Buffer:
        return self.buffer_cls.from_bytes(store.drives.open(f"volumes/{key}").read())

    async def set(self, store: DrivesStore, key: str, value: Buffer) -> None:
        with iomill.Drives(store._drive, "r+") as array:
            array.put(f"volumes/{key}", value.to_bytes())

    @pytest.fixture
    def store_kwargs(self, drives):
        iomill.Drives.create(drives).close()
        return {"drive": drives[0], "prefix": "volumes"}

    def test_store_repr(self, store: DrivesStore) -> None:
        assert repr(store) == f"DrivesStore({store._drive!r}, 'volumes')" and str(store) == "iomill://volumes"

    def test_store_supports_writes(self, store: DrivesStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: DrivesStore) -> None:
        assert store.supports_listing


class TestRemoteStore(StoreTests[RemoteStore, cpu.Buffer]):
    """Over a directory, through a cache."""

    store_cls = RemoteStore
    buffer_cls = cpu.Buffer

    async def get(self, store: RemoteStore, key: str) -> Buffer:
        return self.buffer_cls.from_bytes((self.origin / key).read_bytes())

    async def set(self, store: RemoteStore, key: str, value: Buffer) -> None:
        path = self.origin / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value.to_bytes())

    @pytest.fixture
    def store_kwargs(self, drives, tmp_path):
        self.origin = tmp_path / "origin"
        self.origin.mkdir()
        cache = iomill.Cache(drives, bytes=64 << 20, on_root=True, index_dir=tmp_path, read_within=600)
        return {"store": iomill.cached(self.origin.as_uri(), cache)}

    def test_store_repr(self, store: RemoteStore) -> None:
        assert repr(store) == f"RemoteStore('{self.origin.as_uri()}')"

    def test_store_supports_writes(self, store: RemoteStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: RemoteStore) -> None:
        assert store.supports_listing


def test_a_remote_zarr_comes_from_the_drives_the_second_time(drives, tmp_path):
    (tmp_path / "origin").mkdir()
    cache = iomill.Cache(drives, bytes=64 << 20, on_root=True, index_dir=tmp_path, read_within=600, revalidate="never")
    store = RemoteStore(iomill.cached(tmp_path / "origin", cache))
    values = np.random.default_rng(1).integers(0, 1 << 30, (1000, 64), dtype="i4")
    made = zarr.create_array(store, shape=values.shape, chunks=(1, 64), shards=(250, 64), dtype="i4", compressors=None)
    made[:] = values
    ids = np.sort(np.random.default_rng(2).integers(0, 1000, 200))
    for round in range(2):
        before = cache.counters()["gets"]
        read = zarr.open_array(pickle.loads(pickle.dumps(store)), mode="r")
        assert np.array_equal(read.oindex[ids], values[ids])
        cache.wait_until_written()
        assert (cache.counters()["gets"] > before) == (round == 0)
    # What is known of the objects counts, so nothing is asked for.
    read = zarr.open_array(store, mode="r")
    for _ in range(2):
        before = cache.counters()
        assert np.array_equal(read.oindex[ids], values[ids])
        after = cache.counters()
    assert (after["gets"], after["heads"]) == (before["gets"], before["heads"])


def test_a_drive_is_no_place_for_plain_files(drives):
    iomill.Drives.create(drives).close()
    with pytest.raises(ValueError, match="is a drive: .*DrivesStore"):
        IomillStore(drives[1])
    assert os.listdir(drives[1]) == ["iomill"]
    first, second = DrivesStore(drives[0], "a"), DrivesStore(drives[2], "b")
    for store, value in ((first, 1), (second, 2)):
        made = zarr.create_array(store, shape=(100, 8), chunks=(10, 8), dtype="i4")
        made[:] = value
    copy = pickle.loads(pickle.dumps(first))
    assert copy == first and copy != second
    assert zarr.open_array(copy, mode="r")[99, 7] == 1 and zarr.open_array(second, mode="r")[0, 0] == 2
    with iomill.Drives(drives[0]) as array:
        assert len(array.list("a/c/")) == 10 and array.list("c/") == []
    assert all(os.listdir(drive) == ["iomill"] for drive in drives)
    # A directory with a subdirectory of this name is not a drive.
    os.makedirs("project/iomill")
    zarr.create_array(IomillStore("project"), shape=(10,), chunks=(10,), dtype="i4")
    for inside in ("iomill", "iomill/parts/x"):
        with pytest.raises(ValueError, match="belongs to the set of drives"):
            IomillStore(os.path.join(drives[0], inside))


QUICK = hypothesis.settings(max_examples=15, stateful_step_count=20)


@pytest.mark.parametrize("machine", [ZarrStoreStateMachine, ZarrHierarchyStateMachine])
def test_stateful(machine, tmp_path):
    from hypothesis.stateful import run_state_machine_as_test
    from zarr.core.sync import sync

    number = iter(range(10**6))

    def fresh():
        return machine(sync(IomillStore.open(tmp_path / str(next(number)))))

    run_state_machine_as_test(fresh, settings=QUICK)


def test_random_chunks_of_shards(tmp_path):
    store = IomillStore(tmp_path / "volume")
    values = np.random.default_rng(1).integers(0, 1 << 30, (1000, 64), dtype="i4")
    volume = zarr.create_array(store, shape=values.shape, chunks=(1, 64), shards=(250, 64), dtype="i4")
    volume[:] = values
    read = zarr.open_array(IomillStore(tmp_path / "volume", read_only=True), mode="r")
    ids = np.random.default_rng(2).integers(0, 1000, 200)
    assert np.array_equal(read.oindex[np.sort(ids)], values[np.sort(ids)])
    assert np.array_equal(read.get_orthogonal_selection((ids, slice(None))), values[ids])
    assert np.array_equal(zarr.open_array(pickle.loads(pickle.dumps(store)), mode="r")[:], values)


def test_a_changed_file_is_read_anew(tmp_path):
    store = IomillStore(tmp_path)
    path = pathlib.Path(tmp_path / "key")
    for text in (b"one", b"two", b"three", b""):
        path.write_bytes(text)
        assert store.get_sync("key").to_bytes() == text
    path.unlink()
    assert store.get_sync("key") is None


def test_many_files_and_threads(tmp_path):
    store = IomillStore(tmp_path)
    for number in range(400):
        (tmp_path / str(number)).write_bytes(bytes([number % 256]) * 10)
    wrong = []

    def work():
        for number in range(400):
            if store.get_sync(str(number)).to_bytes() != bytes([number % 256]) * 10:
                wrong.append(number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(_open_files._files) <= 64


def opened_below(directory):
    """The open files below a directory, with those that were deleted."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(os.fspath(directory))]


def test_a_change_that_keeps_length_and_time_is_seen(tmp_path):
    store = IomillStore(tmp_path)
    path = tmp_path / "key"
    path.write_bytes(b"1" * 5000)
    time.sleep(0.2)
    assert store.get_sync("key").to_bytes() == b"1" * 5000
    before = path.stat()
    with open(path, "r+b") as file:
        file.write(b"2" * 5000)
    # As rsync and others do. No program can set the ctime.
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    time.sleep(0.2)
    assert store.get_sync("key").to_bytes() == b"2" * 5000
    for round in range(50):
        with open(path, "r+b") as file:
            file.write(bytes([round]) * 5000)
        assert store.get_sync("key").to_bytes() == bytes([round]) * 5000


def test_files_of_all_stores_have_a_bound_and_deleted_ones_are_closed(tmp_path):
    stores = []
    for number in range(5):
        place = tmp_path / str(number)
        place.mkdir()
        for key in range(40):
            (place / str(key)).write_bytes(b"x" * 5000)
        stores.append(IomillStore(place))
    time.sleep(0.2)
    for store in stores:
        for key in range(40):
            assert store.get_sync(str(key)) is not None
    assert len(opened_below(tmp_path)) <= 64
    sync(stores[4].delete("39"))
    for key in range(35, 39):
        (tmp_path / "4" / str(key)).unlink()
    # The next opening closes the files that another program has deleted.
    stores[0].get_sync("0")
    assert not [path for path in opened_below(tmp_path) if "(deleted)" in path]
    stores[4].close()
    assert not opened_below(tmp_path / "4")


def test_files_that_another_program_deletes_are_closed_without_a_further_call(tmp_path):
    for key in range(10):
        (tmp_path / str(key)).write_bytes(b"x" * 5000)
    store = IomillStore(tmp_path)
    time.sleep(0.2)
    for key in range(10):
        assert store.get_sync(str(key)) is not None
    for key in range(9):
        (tmp_path / str(key)).unlink()
    patience = time.monotonic() + 600
    while len(opened_below(tmp_path)) > 1:
        assert time.monotonic() < patience
        time.sleep(0.1)
    assert opened_below(tmp_path) == [os.fspath(tmp_path / "9")]
