"""Vector search in two steps: a small index finds 1,000 candidates, and exact vectors from a file put them in order.

The index has vectors of 8 bits, which fit in memory. The exact ones stay on the drive, and each query gathers its
candidates.
"""

import tempfile
import time

import numpy as np
from usearch.index import Index

import iomill

COUNT, LENGTH, QUERIES, CANDIDATES, TOP = 8_000, 96, 50, 1000, 10

with tempfile.TemporaryDirectory(dir=".") as place:
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((COUNT, LENGTH), "f4")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.save(f"{place}/vectors.npy", vectors)
    index = Index(ndim=LENGTH, metric="cos", dtype="i8")
    index.add(np.arange(COUNT), vectors)
    queries = vectors[rng.integers(0, COUNT, QUERIES)] + 0.1 * rng.standard_normal((QUERIES, LENGTH), "f4")
    exact = [set(np.argsort(-vectors @ query)[:TOP].tolist()) for query in queries]

    x = iomill.open(f"{place}/vectors.npy")
    out = np.empty((CANDIDATES, LENGTH), "f4")
    for name, rerank in [("index alone", False), ("with rerank", True)]:
        begun, found = time.perf_counter(), 0
        for query, wanted in zip(queries, exact):
            ids = index.search(query, CANDIDATES if rerank else TOP).keys.astype(np.int64)
            if rerank:
                candidates = x.take(ids, out=out[: len(ids)])
                ids = ids[np.argsort(-candidates @ query)[:TOP]]
            found += len(wanted & set(ids.tolist()))
        seconds = time.perf_counter() - begun
        print(f"{name}: recall of the top {TOP} {found / TOP / QUERIES:.3f}, {QUERIES / seconds:.0f} queries/s")
