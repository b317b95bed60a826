"""The command ``python -m iomill``: `bench` and `put`."""

from __future__ import annotations

import argparse
import signal
import sys

from . import _bench
from ._put import put


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m iomill", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    bench = commands.add_parser("bench", help="rows gathered by iomill and by numpy.memmap, in turns, as a table")
    _bench.add_arguments(bench)
    spread = commands.add_parser("put", help="spread a file over a set of drives")
    spread.add_argument("file", help="a file of numpy, or any other, which is copied byte for byte")
    spread.add_argument("dirs", nargs="+", help="a directory of each drive")
    spread.add_argument("--name", help="its name on the drives; by default that of the file")
    spread.add_argument(
        "--checksums", action="store_true", help="keep a checksum for each page, and compare it with what is read"
    )
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "bench":
            return _bench.run(chosen)
        print(put(chosen.file, chosen.dirs, chosen.name, checksums=chosen.checksums))
        return 0
    except (OSError, ValueError) as error:
        print(f"iomill: {chosen.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
