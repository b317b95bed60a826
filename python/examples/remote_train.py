"""Training on rows of a remote file with four workers, which share one cache on local drives.

A directory stands for the store here. With `s3://bucket/features.npy` and drives of yours nothing else changes.
"""

import pathlib
import tempfile
import time

import numpy as np
import torch
from torch.utils.data import DataLoader

import iomill
from iomill.torch import RowDataset

ROWS, WIDTH, BATCH = 20_000, 64, 500


def main():
    with tempfile.TemporaryDirectory(dir=".") as place:
        # Made data: the label is the sign of a hidden direction.
        here = pathlib.Path(place).absolute()
        rng = np.random.default_rng(1)
        hidden = rng.standard_normal(WIDTH, "f4")
        rows = rng.standard_normal((ROWS, WIDTH), "f4")
        np.save(here / "features.npy", rows)
        np.save(here / "labels.npy", (rows @ hidden > 0).astype("f4"))

        for drive in ("ssd0", "ssd1"):
            (here / drive).mkdir()
        drives = [here / "ssd0", here / "ssd1"]
        cache = iomill.Cache(drives, bytes=64 << 20, revalidate="never", on_root=True, index_dir=here)
        x = iomill.open((here / "features.npy").as_uri(), cache=cache)
        y = iomill.open((here / "labels.npy").as_uri(), cache=cache)
        model = torch.nn.Linear(WIDTH, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for epoch in range(3):
            begun, right = time.perf_counter(), 0
            loader = DataLoader(RowDataset(x, y), batch_size=BATCH, shuffle=True, num_workers=4)
            for batch, wanted in loader:
                guess = model(batch)[:, 0]
                loss = torch.nn.functional.binary_cross_entropy_with_logits(guess, wanted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                right += int(((guess > 0) == (wanted > 0.5)).sum())
            seconds = time.perf_counter() - begun
            print(f"epoch {epoch}: {right / ROWS:.3f} right, {ROWS / seconds:.0f} rows/s")
        assert right / ROWS > 0.9


if __name__ == "__main__":
    main()
