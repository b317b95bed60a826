"""Concurrent uses of one `RowArray` by several threads. This matters most on an interpreter without the global lock."""

import threading

import numpy as np

import iomill


def test_threads_share_rows_until_one_closes_them():
    values = np.arange(40_000, dtype="i8").reshape(10_000, 4)
    np.save("rows.npy", values)
    rows = iomill.open("rows.npy", mode="r+", runtime=iomill.Runtime(cache_bytes=1 << 20))
    wrong, ended, begun = [], [], threading.Barrier(6)

    def work(seed):
        rng = np.random.default_rng(seed)
        out = np.empty((300, 4), "i8")
        begun.wait()
        try:
            for turn in range(200):
                ids = rng.integers(0, len(values), 300)
                if turn % 4 == 0:
                    rows.prefetch(ids)
                taken = [rows[ids], rows.take(ids, out=out), rows.take_async(ids).result()][turn % 3]
                if not np.array_equal(taken, values[ids]):
                    wrong.append(ids)
                if turn % 5 == 0:
                    # The bytes that the file already has.
                    mine = np.unique(ids[:20])
                    rows.write(mine, values[mine])
                    rows.flush()
                if seed == 0 and turn == 150:
                    rows.close()
        except ValueError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all("closed" in text for text in ended), ended
    assert len(ended) >= 1


def test_threads_open_and_close_the_same_file():
    values = np.arange(6000, dtype="i4").reshape(1000, 6)
    np.save("rows.npy", values)
    runtime = iomill.Runtime(cache_bytes=1 << 20)
    wrong = []

    def work(seed):
        ids = np.random.default_rng(seed).integers(0, 1000, 50)
        for _ in range(60):
            with iomill.open("rows.npy", runtime=runtime) as rows:
                if not np.array_equal(rows[ids], values[ids]):
                    wrong.append(ids)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
