"""Training with a table of features that is larger than the memory for it: the next batches are gathered during a
training step."""

import tempfile
import time

import numpy as np
import torch

import iomill
from iomill.torch import RowLoader

ROWS, WIDTH, BATCH = 100_000, 128, 2048

with tempfile.TemporaryDirectory(dir=".") as place:
    # Made data: the label is the sign of a hidden direction.
    rng = np.random.default_rng(1)
    hidden = rng.standard_normal(WIDTH, "f4")
    features = np.lib.format.open_memmap(f"{place}/features.npy", "w+", "f4", (ROWS, WIDTH))
    labels = np.empty(ROWS, "f4")
    for start in range(0, ROWS, 10_000):
        block = rng.standard_normal((10_000, WIDTH), "f4")
        features[start : start + 10_000] = block
        labels[start : start + 10_000] = block @ hidden > 0
    features.flush()
    np.save(f"{place}/labels.npy", labels)

    # The table has 51 MB, and the cache a fifth of it.
    memory = iomill.Runtime(cache_bytes=10 << 20)
    x = iomill.open(f"{place}/features.npy", runtime=memory)
    y = iomill.open(f"{place}/labels.npy", runtime=memory)
    model = torch.nn.Linear(WIDTH, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    # One loader for all epochs: it knows the order of the next epoch, too, and keeps the rows that come early there.
    loader = RowLoader(x, y, batch_size=BATCH, shuffle=True, seed=1)
    for epoch in range(3):
        begun, right = time.perf_counter(), 0
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
