#!/usr/bin/env python3
"""Lists the files of an iomill array, or prints the bytes of one. Written from format.md alone, and needs Python 3.11.

    read_array.py DRIVE...              all files: number, length in bytes, name
    read_array.py --get NAME DRIVE...   the bytes of one file

It only reads, takes no lock, and needs the directories of all drives. Not a tool for daily use: `iomill get` is faster.
"""

import argparse
import os
import struct
import sys
import tomllib

M32, M64 = 2**32 - 1, 2**64 - 1
BLOCK = 4096


class Damaged(Exception):
    pass


# XXH3, 64 bits, seed 0. The secret and the constants are those of the reference implementation.

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
MX1, MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25


def u32(data, at):
    return int.from_bytes(data[at : at + 4], "little")


def u64(data, at):
    return int.from_bytes(data[at : at + 8], "little")


def fold(a, b):
    product = a * b
    return (product & M64) ^ (product >> 64)


def swap(value, size):
    return int.from_bytes(value.to_bytes(size, "little"), "big")


def rotate(value, bits):
    return ((value << bits) | (value >> (64 - bits))) & M64


def avalanche(h):
    h ^= h >> 37
    h = h * MX1 & M64
    return h ^ (h >> 32)


def avalanche_64(h):
    h = (h ^ (h >> 33)) * P64[1] & M64
    h = (h ^ (h >> 29)) * P64[2] & M64
    return h ^ (h >> 32)


def mix16(data, at, secret):
    return fold(u64(data, at) ^ u64(SECRET, secret), u64(data, at + 8) ^ u64(SECRET, secret + 8))


def xxh3(data):
    size = len(data)
    if size == 0:
        return avalanche_64(u64(SECRET, 56) ^ u64(SECRET, 64))
    if size <= 3:
        combined = data[0] << 16 | data[size >> 1] << 24 | data[-1] | size << 8
        return avalanche_64(combined ^ (u32(SECRET, 0) ^ u32(SECRET, 4)))
    if size <= 8:
        keyed = (u32(data, size - 4) + (u32(data, 0) << 32)) ^ u64(SECRET, 8) ^ u64(SECRET, 16)
        h = (keyed ^ rotate(keyed, 49) ^ rotate(keyed, 24)) * MX2 & M64
        h = (h ^ ((h >> 35) + size)) * MX2 & M64
        return h ^ (h >> 28)
    if size <= 16:
        low = u64(data, 0) ^ (u64(SECRET, 24) ^ u64(SECRET, 32))
        high = u64(data, size - 8) ^ (u64(SECRET, 40) ^ u64(SECRET, 48))
        return avalanche((size + swap(low, 8) + high + fold(low, high)) & M64)
    if size <= 128:
        h = size * P64[0]
        for i in reversed(range((size - 1) // 32 + 1)):
            h += mix16(data, 16 * i, 32 * i) + mix16(data, size - 16 * (i + 1), 32 * i + 16)
        return avalanche(h & M64)
    if size <= 240:
        h = size * P64[0] + sum(mix16(data, 16 * i, 16 * i) for i in range(8))
        h = avalanche(h & M64)
        h += sum(mix16(data, 16 * i, 16 * (i - 8) + 3) for i in range(8, size // 16))
        return avalanche((h + mix16(data, size - 16, 136 - 17)) & M64)
    return xxh3_long(data)


def xxh3_long(data):
    size, lanes = len(data), range(8)
    acc = [P32[2], P64[0], P64[1], P64[2], P64[3], P32[1], P64[4], P32[0]]
    keys = [struct.unpack_from("<8Q", SECRET, 8 * n) for n in range(16)]
    scramble, last = struct.unpack_from("<8Q", SECRET, 128), struct.unpack_from("<8Q", SECRET, 121)

    def stripe(at, key):
        words = struct.unpack_from("<8Q", data, at)
        for i in lanes:
            mixed = words[i] ^ key[i]
            acc[i ^ 1] += words[i]
            acc[i] = acc[i] + (mixed & M32) * (mixed >> 32)
        acc[:] = [lane & M64 for lane in acc]

    stripes = (size - 1) // 64
    for n in range(stripes):
        stripe(64 * n, keys[n % 16])
        if n % 16 == 15:
            acc[:] = [((lane ^ (lane >> 47)) ^ key) * P32[0] & M64 for lane, key in zip(acc, scramble)]
    stripe(size - 64, last)
    h = size * P64[0] + sum(
        fold(acc[2 * i] ^ u64(SECRET, 11 + 16 * i), acc[2 * i + 1] ^ u64(SECRET, 19 + 16 * i)) for i in range(4)
    )
    return avalanche(h & M64)


# Labels.


def read_label(drive):
    with open(os.path.join(drive, "iomill", "label"), "rb") as file:
        text = file.read()
    body, line = text[: text.rstrip(b"\n").rfind(b"\n") + 1], text.rstrip(b"\n").rsplit(b"\n", 1)[-1]
    if line != b"# checksum xxh3:%016x" % xxh3(body):
        raise Damaged(f"{drive}: the label has a wrong checksum")
    label = tomllib.loads(body.decode())
    if label["format"] != 2:
        raise Damaged(f"{drive}: format {label['format']} is not known")
    return label


def read_labels(drives):
    """The ruling label, and the directories `iomill` by the index of their drive."""
    labels = {drive: read_label(drive) for drive in drives}
    ruling = max(labels.values(), key=lambda label: label["epoch"])
    if ruling["features"]["incompatible"]:
        raise Damaged(f"the array has features that are not known: {ruling['features']['incompatible']}")
    roots = {}
    for drive, label in labels.items():
        entry = ruling["drives"][label["index"]]
        if label["array"] != ruling["array"] or entry["id"] != label["drive"] or label["index"] in roots:
            raise Damaged(f"{drive} is not a drive of this array, or there twice")
        roots[label["index"]] = os.path.join(drive, "iomill")
    if len(roots) < len(ruling["drives"]):
        raise Damaged("some drives are missing")
    return ruling, roots


# Notes of openings.


def read_note(root, array, drive):
    if not os.path.exists(os.path.join(root, "opening")):
        raise Damaged(f"{root}: there is no note of openings")
    with open(os.path.join(root, "opening"), "rb") as file:
        data = file.read()
    blocks = [data[at : at + 128] for at in (0, BLOCK)]
    good = [
        block
        for block in blocks
        if block[:8] == b"iomilope" and u32(block, 8) == 3 and u64(block, 120) == xxh3(block[:120])
    ]
    if not good:
        raise Damaged(f"{root}: the note of openings is damaged")
    note = max(good, key=lambda block: u64(block, 48))
    if note[16:32] != array or note[32:48] != drive:
        raise Damaged(f"{root}: the note of openings is of another drive")
    return note


def judge_notes(ruling, roots, logs, end):
    """Refuses drives that do not belong together. `end` is the log that is read."""
    array = bytes.fromhex(ruling["array"])
    notes = {
        index: read_note(root, array, bytes.fromhex(ruling["drives"][index]["id"])) for index, root in roots.items()
    }
    newest = max([note[56:80] for note in notes.values()] + [end.opening], key=lambda opening: u64(opening, 0))
    if (
        any(newest not in (note[56:80], note[80:104]) for note in notes.values())
        or u64(end.opening, 0) == u64(newest, 0)
        and end.opening != newest
    ):
        raise Damaged("the drives do not belong together: one was restored, or used apart from the others")
    ends = [u64(note, 104) for note in notes.values() if note[56:80] == newest and u32(note, 12) == 1]
    if ends and any(note[56:80] != newest or u64(note, 104) < max(ends) for note in notes.values()):
        raise Damaged("a drive is a copy from the middle of an opening that went on")
    proof = max(notes.values(), key=lambda note: u64(note, 104))
    sequence, checksum = u64(proof, 104), u64(proof, 112)
    if end.sequence < sequence or end.chain.get(sequence, checksum) != checksum:
        raise Damaged("the log is not the one of the drives: it was restored, or used apart from them")
    for log in logs:
        number = min(log.sequence, end.sequence)
        ours, theirs = end.chain.get(number), log.chain.get(number)
        if ours is not None and theirs is not None and ours != theirs:
            raise Damaged("the copies of the log went apart")


# The log of one voter.


class LogFile:
    def __init__(self, path, magic, array):
        if not os.path.exists(path):
            raise Damaged(f"{path} is missing")
        with open(path, "rb") as file:
            self.data = file.read()
        head = self.data[:128]
        if len(head) < 128 or head[:8] != magic or u64(head, 120) != xxh3(head[:120]):
            raise Damaged(f"{path}: the header is damaged")
        if u32(head, 8) != 2 or head[16:32] != array or u64(head, 96):
            raise Damaged(f"{path}: another format, array, or features that are not known")
        self.salt = u64(head, 40)
        self.start = (u64(head, 56), u64(head, 64), u64(head, 72))

    def group(self, at):
        """The group at an offset.

        Sequence, known as durable, opening, checksum of the group before, own checksum, records, end.
        """
        head = self.data[at : at + 88]
        if len(head) < 88 or head[:4] != b"ioGR" or u32(head, 4) > 2**17 or u64(head, 16) != self.salt:
            return None
        end = at + 88 + u32(head, 4)
        if end > len(self.data) or u64(head, 8) != xxh3(self.data[at + 16 : end]):
            return None
        after = (end + BLOCK - 1) // BLOCK * BLOCK
        return u64(head, 24), u64(head, 32), head[64:88], u64(head, 48), u64(head, 8), self.data[at + 88 : end], after


class Log:
    """Reads the log of one drive into `files`."""

    def __init__(self, root, array):
        self.root, self.array = os.path.join(root, "log"), array
        names = os.listdir(self.root)
        self.segments = {
            int(name[:16], 16) for name in names if name.endswith(".segment") and not name.startswith("tmp-")
        }
        checkpoints = [
            int(name[:16], 16) for name in names if name.endswith(".checkpoint") and not name.startswith("tmp-")
        ]
        self.opening = bytes(24)
        for number in sorted(checkpoints, reverse=True):
            if self.read_checkpoint(number):
                break
        else:
            self.files, self.late = Files(), 0
            self.sequence, self.checksum, self.place = 0, 0, (1, BLOCK)
        self.chain = {self.sequence: self.checksum}
        self.read_segments()

    def open(self, number, kind, magic):
        return LogFile(os.path.join(self.root, f"{number:016x}.{kind}"), magic, self.array)

    def read_checkpoint(self, number):
        try:
            file = self.open(number, "checkpoint", b"iomilchk")
        except Damaged:
            return False
        self.files, self.late = Files(), None
        sequence, checksum, at = 0, 0, BLOCK
        while (group := file.group(at)) and group[0] == sequence + 1 and group[3] == checksum:
            sequence, _, self.opening, _, checksum, records, at = group
            for kind, body in each_record(records):
                if kind == 9:
                    self.late = u64(body, 16)
                self.files.apply(kind, body, True)
            if self.late is not None:
                segment, offset, before = file.start
                self.sequence, self.checksum, self.place = number, before, (segment, offset)
                return True
        return False

    def read_segments(self):
        segment, at = self.place
        known, highest = {}, 0
        while True:
            if segment not in known:
                known[segment] = self.open(segment, "segment", b"iomilseg")
            group = known[segment].group(at)
            if not group or group[0] != self.sequence + 1 or group[3] != self.checksum:
                break
            self.sequence, _, self.opening, _, self.checksum, records, at = group
            self.chain[self.sequence] = self.checksum
            for kind, body in each_record(records):
                self.files.apply(kind, body, self.sequence <= self.late)
                if kind == 11:
                    segment, at = u64(body, 0), BLOCK
        for later in sorted(number for number in self.segments if number > segment):
            known[later] = self.open(later, "segment", b"iomilseg")
        for file in known.values():
            groups = filter(None, (file.group(at) for at in range(BLOCK, len(file.data), BLOCK)))
            highest = max([highest] + [group[1] for group in groups])
        if highest > self.sequence:
            raise Damaged(f"{self.root}: the log ends after group {self.sequence}, and group {highest} was durable")


def each_record(records):
    at = 0
    while at < len(records):
        kind, size = struct.unpack_from("<HI", records, at)
        yield kind, records[at + 6 : at + 6 + size]
        at += 6 + size


class Files:
    def __init__(self):
        self.layouts, self.files = {}, {}

    def apply(self, kind, body, is_late):
        if kind == 1:
            number, layout, _, _, block, count = struct.unpack_from("<IBBHIH", body)
            drives = [struct.unpack_from("<HH", body, 14 + 4 * i) for i in range(count)]
            self.layouts[number] = (layout, block, drives)
        elif kind == 2:
            number, length, _, _, key, layout, state, flags, size = struct.unpack_from("<QQQQQIBBH", body)
            name, fields, extent, sums = body[48 : 48 + size].decode(), body[48 + size :], None, None
            while fields:
                tag, size = struct.unpack_from("<BH", fields)
                if tag == 1:
                    extent = struct.unpack_from("<HHIH", fields, 3)
                elif tag == 2:
                    sums = fields[3 : 3 + size]
                elif tag < 128:
                    raise Damaged(f"a field {tag} that is not known")
                fields = fields[3 + size :]
            self.files[number] = (name, length, key, layout, state, flags, extent, sums)
        elif kind == 4:
            if self.files.pop(u64(body, 0), None) is None and not is_late:
                raise Damaged("a file is gone that was not there")
        elif kind not in (3, 5, 6, 7, 8, 9, 11) and kind & 0xC000 == 0:
            raise Damaged(f"a record of kind {kind}, which is not known")

    def live(self):
        files = {file[0]: (number, *file[1:]) for number, file in self.files.items() if file[4] == 1}
        if len(files) < sum(1 for file in self.files.values() if file[4] == 1):
            raise Damaged("two files have one name")
        return dict(sorted(files.items()))


# Layouts.


def hash_mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & M64
    return x ^ (x >> 31)


def bits_for(n):
    return (n - 1).bit_length()


def gcd_of(numbers):
    import math

    return math.gcd(*numbers)


def repeats(total):
    least = -(-64 // total)
    fills = {t: (total * t << 32) >> bits_for(total * t) for t in range(least, max(256 // total, least) + 1)}
    for times, fill in fills.items():
        if fill >= 7 << 29:
            return times
    return max(fills, key=fills.get)


FACTORS = (0xCC9E2D53, 0x85EBCA6B, 0x27D4EB2D, 0x9E3779B1, 0x85EBCA6B)


class Layout:
    def __init__(self, layout, key):
        self.kind, self.block, self.drives = layout
        self.key, count = key, len(self.drives)
        if self.kind == 2 and count == 1:
            self.kind = 0
        if self.kind == 2:
            divisor = gcd_of([weight for _, weight in self.drives])
            reduced = [weight // divisor for _, weight in self.drives]
            times = repeats(sum(reduced))
            self.shares = [weight * times for weight in reduced]
            self.group = sum(self.shares)

    def place(self, block):
        """The index of the drive, and the block in its part."""
        count = len(self.drives)
        if self.kind == 0:
            drive, row = block % count, block // count
        elif self.kind == 1:
            row = block // count
            drive = (block % count + row) % count
        elif self.kind == 2:
            group, x = divmod(block, self.group)
            slot = self.permute(x, hash_mix(self.key ^ hash_mix((group + 0x9E3779B97F4A7C15) & M64)))
            drive = 0
            while slot >= self.shares[drive]:
                slot -= self.shares[drive]
                drive += 1
            row = group * self.shares[drive] + slot
        else:
            raise Damaged(f"a layout of kind {self.kind}, which is not known")
        return self.drives[drive][0], row

    def permute(self, x, key):
        bits = bits_for(self.group)
        mask, shift = (1 << bits) - 1, max(-(-bits // 2), 1)
        while True:
            for r, factor in enumerate(FACTORS):
                k = key >> 11 * r & M32
                x = x ^ k if r % 2 == 0 else x + k
                x = x * factor & mask
                x ^= x >> shift
            if x < self.group:
                return x


# Sums.


def place_hash(array, number, what, page):
    return xxh3(array + struct.pack("<QQQ", number, what, page))


def sum_of(array, number, page, data):
    if not any(data):
        return 0
    found = (xxh3(data) ^ place_hash(array, number, M64, page)) & M32
    return found + 2 if found < 2 else found


class PartSums:
    """The sums of the part of a file on the drive at a position of its layout."""

    def __init__(self, path, array, number, position):
        self.path, self.array, self.number, self.position = path, array, number, position
        self.data = b""
        if os.path.exists(path):
            with open(path, "rb") as file:
                self.data = file.read()
        heads = [self.data[at : at + BLOCK] for at in (0, BLOCK)]
        self.head = max(filter(self.is_head, heads), key=lambda head: u64(head, 40), default=None)

    def is_head(self, head):
        good = len(head) == BLOCK and head[:8] == b"iomilsum" and u32(head, 8) == 1
        good = good and head[16:32] == self.array and u64(head, 32) == self.number and u64(head, 48) == self.position
        return good and u64(head, 56) == xxh3(head[:56] + bytes(8) + head[64:])

    def of(self, page):
        """The sum of a page of the part. None if its zone is marked."""
        chunk, at = divmod(page, 1022)
        if self.head is not None:
            bit = chunk // 16 >> u32(self.head, 12)
            if bit < (BLOCK - 64) * 8 and self.head[64 + bit // 8] >> bit % 8 & 1:
                return None
        sums = self.data[(2 + chunk) * BLOCK : (3 + chunk) * BLOCK].ljust(BLOCK, b"\0")
        if not any(sums):
            return 0
        check, own = xxh3(sums[8:]) ^ place_hash(self.array, self.number, self.position, chunk), u32(sums, 8 + 4 * at)
        if u64(sums, 0) != check and (u64(sums, 0) != check ^ M64 or own == 1):
            raise Damaged(f"{self.path}: page {2 + chunk} is damaged")
        return own


def check_page(array, number, page, data, wanted):
    if wanted not in (None, 1) and wanted != sum_of(array, number, page, data):
        raise Damaged(f"page {page} of file {number} is not what was written")


def small_sum(field, page):
    return u32(field, 1 + 4 * page) if field and field[0] == 1 and len(field) >= 5 + 4 * page else None


def read_file(roots, layouts, array, file):
    """Yields the bytes of a file."""
    number, length, key, layout, _, flags, extent, field = file
    if extent:
        drive, shared, page, _ = extent
        with open(os.path.join(roots[drive], "shared", f"{shared:04x}"), "rb") as part:
            part.seek(page * BLOCK)
            found = part.read(-(-length // BLOCK) * BLOCK)
        for at in range(0, length, BLOCK):
            check_page(array, number, at // BLOCK, found[at : at + BLOCK], small_sum(field, at // BLOCK))
        yield found[:length]
        return
    layout, sums = Layout(layouts[layout], key), {}
    for block in range(-(-length // layout.block)):
        size = min(layout.block, length - block * layout.block)
        if not flags & 1:
            yield bytes(size)
            continue
        drive, row = layout.place(block)
        with open(os.path.join(roots[drive], "parts", f"{number:016x}"), "rb") as part:
            part.seek(row * layout.block)
            found = part.read(-(-size // BLOCK) * BLOCK)
        if len(found) < size:
            raise Damaged(f"drive {drive}: the part of file {number} is too short")
        if field is not None:
            if drive not in sums:
                position = [index for index, _ in layout.drives].index(drive)
                path = os.path.join(roots[drive], "parts", f"{number:016x}.sums")
                sums[drive] = PartSums(path, array, number, position)
            for at in range(0, size, BLOCK):
                data, own = (
                    found[at : at + BLOCK].ljust(BLOCK, b"\0"),
                    sums[drive].of((row * layout.block + at) // BLOCK),
                )
                check_page(array, number, (block * layout.block + at) // BLOCK, data, own)
        yield found[:size]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--get", metavar="NAME")
    parser.add_argument("drives", nargs="+", metavar="DRIVE")
    args = parser.parse_args()
    label, roots = read_labels(args.drives)
    logs = []
    for voter in label["voters"]:
        try:
            logs.append(Log(roots[voter], bytes.fromhex(label["array"])))
        except Damaged as damage:
            print(damage, file=sys.stderr)
    if not logs:
        raise Damaged("no voter has a log that can be read")
    log = max(logs, key=lambda log: log.sequence)
    judge_notes(label, roots, logs, log)
    files = log.files.live()
    if args.get is None:
        for name, file in files.items():
            print(file[0], file[1], name)
        return
    if args.get not in files:
        sys.exit(f"there is no file {args.get!r}")
    for piece in read_file(roots, log.files.layouts, bytes.fromhex(label["array"]), files[args.get]):
        sys.stdout.buffer.write(piece)


if __name__ == "__main__":
    try:
        main()
    except Damaged as damage:
        sys.exit(str(damage))
