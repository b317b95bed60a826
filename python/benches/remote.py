"""Rows of a remote file by caches on a local drive: `python benches/remote.py [--mib N] [--only NAME,...]`.

A server on this machine answers each GET after `--latency-ms`, at `--mib-per-second` for each connection, as stores do,
and counts GETs and bytes. Each contender has an empty directory, and reads the same gathers of 1,000 random rows, first
cold and then once more:

- `few`: 10 gathers, a small part of the file;
- `all`: each row once, in an order of its own.

The columns are GETs a row, bytes fetched a row, and rows a second: cold, the opening included, and then warm, with an
empty page cache. Contenders: `iomill`; fsspec's `blockcache` with blocks of 64 KiB and of 5 MiB (its default), and
`filecache`; `rclone mount` with `--vfs-cache-mode full`; and zarr's `CacheStore`, which keeps ranges in memory. A
contender whose program or package is missing is left out, with the reason.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.server
import mmap
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import time

import numpy as np

import iomill

GATHER = 1000

SENT_BYTES = 1 << 20


class Server(http.server.ThreadingHTTPServer):
    # With the usual 5 a burst of connections waits for seconds.
    request_queue_size = 1024


class Origin:
    """One object by HTTP, after a latency, with a count of GETs and of bytes."""

    def __init__(self, path, latency, bytes_per_second):
        self.content, self.latency = np.memmap(path, np.uint8, "r"), latency
        self.bytes_per_second = bytes_per_second
        self.gets = self.bytes = 0
        self.lock = threading.Lock()
        handler = type("Handler", (Handler,), {"origin": self})
        self.server = Server(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.host = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def taken(self):
        with self.lock:
            taken = self.gets, self.bytes
            self.gets = self.bytes = 0
        return taken


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    origin: Origin

    def log_message(self, *_):
        pass

    def handle(self):
        # A client may close its connection without a word.
        with contextlib.suppress(ConnectionResetError):
            super().handle()

    def do_HEAD(self):
        if self.path == "/":
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.answer(200, 0, len(self.origin.content))

    def do_GET(self):
        if self.path == "/":
            # rclone lists a directory by its page.
            page = b"<a href='rows.npy'>rows.npy</a>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
            return
        size = len(self.origin.content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first = int(asked[1]) if asked else 0
        end = min(int(asked[2]) + 1, size) if asked and asked[2] else size
        with self.origin.lock:
            self.origin.gets += 1
            self.origin.bytes += end - first
        time.sleep(self.origin.latency)
        self.answer(206 if asked else 200, first, end)

    def answer(self, status, first, end):
        self.send_response(status)
        for name, value in [
            ("Content-Length", end - first),
            ("Accept-Ranges", "bytes"),
            ("ETag", '"1"'),
            ("Last-Modified", "Mon, 02 Nov 2026 03:04:05 GMT"),
        ]:
            self.send_header(name, str(value))
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(self.origin.content)}")
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for at in range(first, end, SENT_BYTES):
                    part = self.origin.content[at : min(at + SENT_BYTES, end)]
                    time.sleep(len(part) / self.origin.bytes_per_second)
                    self.wfile.write(part)


class Of:
    """Rows of an array by reads at offsets of a file object."""

    def __init__(self, file, row_bytes, start):
        self.file, self.row_bytes, self.start = file, row_bytes, start

    def gather(self, ids):
        out = np.empty((len(ids), self.row_bytes), np.uint8)
        for place, row in enumerate(ids.tolist()):
            self.file.seek(self.start + row * self.row_bytes)
            out[place] = np.frombuffer(self.file.read(self.row_bytes), np.uint8)
        return out

    def unmap(self):
        """Ends the mapping of pages by fsspec's blockcache: the kernel keeps mapped pages in memory."""
        mapping = getattr(getattr(self.file, "cache", None), "cache", None)
        if isinstance(mapping, mmap.mmap):
            mapping.flush()
            mapping.madvise(mmap.MADV_DONTNEED)


class Iomill:
    def __init__(self, place, url, room):
        cache = iomill.Cache([place], bytes=room, revalidate="never", on_root=True, index_dir=place)
        self.rows = iomill.open(url, cache=cache)

    def gather(self, ids):
        return self.rows[ids]


def by_fsspec(protocol, place, url, row_bytes, start, **options):
    import fsspec

    files = fsspec.filesystem(protocol, target_protocol="http", cache_storage=str(place), skip_instance_cache=True)
    return Of(files.open(url, **options), row_bytes, start)


class ByZarr:
    """Ranges by zarr's `CacheStore`, all of a gather at once."""

    def __init__(self, place, origin, room, row_bytes, start):
        from zarr.experimental.cache_store import CacheStore
        from zarr.storage import FsspecStore, LocalStore

        files = FsspecStore.from_url(origin.host, read_only=True)
        self.store = CacheStore(files, cache_store=LocalStore(place), max_size=room)
        self.row_bytes, self.start = row_bytes, start

    async def ranges(self, ids):
        from zarr.abc.store import RangeByteRequest
        from zarr.core.buffer import default_buffer_prototype

        memory = default_buffer_prototype()
        places = [self.start + row * self.row_bytes for row in ids.tolist()]
        asked = [RangeByteRequest(at, at + self.row_bytes) for at in places]
        return await asyncio.gather(*[self.store.get("rows.npy", memory, one) for one in asked])

    def gather(self, ids):
        from zarr.core.sync import sync

        return np.frombuffer(b"".join(part.to_bytes() for part in sync(self.ranges(ids))), np.uint8)


@contextlib.contextmanager
def by_rclone(place, origin, row_bytes, start):
    at, cached = place / "mount", place / "cache"
    at.mkdir()
    patience = time.monotonic() + 60
    mount = subprocess.Popen(
        ["rclone", "mount", "--http-url", origin.host, ":http:", at, "--vfs-cache-mode", "full", "--cache-dir", cached]
        + ["--read-only", "--vfs-read-chunk-size", "64k", "--vfs-cache-max-age", "100h", "--config", os.devnull],
        stderr=subprocess.PIPE,
    )
    try:
        while not os.path.exists(at / "rows.npy"):
            if mount.poll() is not None or time.monotonic() > patience:
                mount.terminate()
                raise Missing(f"rclone: {mount.stderr.read().decode().strip()}")
            time.sleep(0.1)
        with open(at / "rows.npy", "rb", buffering=0) as file:
            yield Of(file, row_bytes, start)
    finally:
        subprocess.run(["fusermount3", "-u", "-z", at], check=False, capture_output=True)
        mount.terminate()
        mount.wait()


class Missing(Exception):
    pass


@contextlib.contextmanager
def opened(name, place, origin, room, row_bytes, start):
    url = f"{origin.host}/rows.npy"
    if name == "iomill":
        yield Iomill(place, url, room)
    elif name == "rclone":
        if shutil.which("rclone") is None:
            raise Missing("there is no rclone here")
        with by_rclone(place, origin, row_bytes, start) as reader:
            yield reader
    else:
        kind, _, block = name.partition("-")
        options = {"block_size": {"64k": 64 << 10, "5m": 5 << 20}[block]} if block else {}
        try:
            if name == "zarr":
                yield ByZarr(place, origin, room, row_bytes, start)
            else:
                yield by_fsspec(kind, place, url, row_bytes, start, **options)
        except ImportError as missing:
            raise Missing(str(missing)) from None


CONTENDERS = ["iomill", "blockcache-64k", "blockcache-5m", "filecache", "rclone", "zarr"]


def orders(load, rows):
    rng = np.random.default_rng(7)
    ids = rng.permutation(rows)[: 10 * GATHER] if load == "few" else rng.permutation(rows)
    return [ids[at : at + GATHER] for at in range(0, len(ids), GATHER)]


def forget_pages():
    """Empties the page cache, in which the rivals' files are: warm rows come from the drive. This takes root."""
    os.sync()
    with contextlib.suppress(OSError), open("/proc/sys/vm/drop_caches", "w") as drop:
        drop.write("3")


def measure(reader, origin, gathers, rows, begun=None):
    """GETs and bytes a row since the last call, and rows a second since `begun`."""
    begun, count = begun or time.perf_counter(), 0
    for ids in gathers:
        got = np.asarray(reader.gather(ids)).reshape(len(ids), -1).view(np.uint8)
        count += len(ids)
        if not np.array_equal(got, rows[ids]):
            raise SystemExit("a row is not what the origin has")
    seconds = time.perf_counter() - begun
    gets, taken = origin.taken()
    return f"{gets / count:9.4f} {taken / count:10.0f} {count / seconds:9.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=128, help="length of the file")
    parser.add_argument("--latency-ms", type=float, default=10)
    parser.add_argument("--mib-per-second", type=float, default=100)
    parser.add_argument("--row-bytes", type=int, default=512)
    parser.add_argument("--loads", default="few,all")
    parser.add_argument("--only", default=",".join(CONTENDERS))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as here:
        here = pathlib.Path(here).absolute()
        count = (chosen.mib << 20) // chosen.row_bytes
        rows = np.random.default_rng(1).integers(0, 256, (count, chosen.row_bytes), np.uint8)
        np.save(here / "rows.npy", rows)
        start = (here / "rows.npy").stat().st_size - rows.nbytes
        origin = Origin(here / "rows.npy", chosen.latency_ms / 1000, chosen.mib_per_second * (1 << 20))
        for load in chosen.loads.split(","):
            gathers = orders(load, count)
            print(f"{load}: {sum(map(len, gathers))} rows of {chosen.row_bytes} bytes of {count}")
            print(f"{'':16}{'GETs/row':>9} {'bytes/row':>10} {'rows/s':>9}   warm:")
            for name in chosen.only.split(","):
                place = here / f"{load}-{name}"
                place.mkdir()
                origin.taken()
                begun = time.perf_counter()
                try:
                    with opened(name, place, origin, rows.nbytes * 5 // 4, chosen.row_bytes, start) as reader:
                        cold = measure(reader, origin, gathers, rows, begun)
                        if isinstance(reader, Of):
                            reader.unmap()
                        forget_pages()
                        print(f"{name:16}{cold}   {measure(reader, origin, gathers, rows)}", flush=True)
                except Missing as missing:
                    print(f"{name:16}left out: {missing}")


if __name__ == "__main__":
    main()
