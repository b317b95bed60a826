"""zarr's own tests of stores, unchanged, and reads that are gathers."""

import pathlib
import pickle
import threading

import hypothesis
import numpy as np
import pytest

zarr = pytest.importorskip("zarr")

from zarr.core.buffer import Buffer, cpu  # noqa: E402
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine  # noqa: E402
from zarr.testing.store import StoreTests  # noqa: E402

from iomill.zarr import IomillStore  # noqa: E402


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
        assert repr(store) == f"IomillStore('iomill://{store.root.as_posix()}')"

    def test_store_supports_writes(self, store: IomillStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: IomillStore) -> None:
        assert store.supports_listing


QUICK = hypothesis.settings(max_examples=15, stateful_step_count=20, deadline=None)


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
    assert not wrong and len(store._files) <= 256
