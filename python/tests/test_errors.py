"""Errors of the library as Python's own: number, text, file name. Their words are those of Python's users."""

import errno
import os
import pathlib
import re

import numpy as np
import pytest

import iomill


def raised(call, *arguments, **options):
    with pytest.raises(OSError) as caught:
        call(*arguments, **options)
    return caught.value


def check(error, kind, number, text, filename):
    """Each part has its attribute, and the path is in the text once."""
    assert type(error) is kind and error.errno == number
    assert re.fullmatch(text, error.strerror), error.strerror
    assert error.filename == filename and str(error) == f"[Errno {number}] {error.strerror}: {filename!r}"
    assert "array" not in error.strerror and "os error" not in error.strerror


def test_files():
    os.mkdir("place")
    os.symlink("loop", "loop")
    for call in (iomill.open, iomill.File):
        check(
            raised(call, "none.npy"),
            FileNotFoundError,
            errno.ENOENT,
            "No such file or directory; check the path",
            "none.npy",
        )
        check(raised(call, "loop"), OSError, errno.ELOOP, "Too many levels of symbolic links.*", "loop")
    check(raised(iomill.File, "place"), IsADirectoryError, errno.EISDIR, "it is a directory, not a file.*", "place")
    check(
        raised(iomill.File, ["none0", "none1"]),
        FileNotFoundError,
        errno.ENOENT,
        "No such file or directory; .*",
        "none0",
    )
    name = os.fsdecode(b"caf\xe9.npy")
    assert raised(iomill.open, name).filename == name


def test_a_file_that_was_cut(tmp_path):
    path = str(tmp_path / "x.npy")
    np.save(path, np.zeros(100_000))
    x = iomill.open(path, runtime=iomill.Runtime(cache_bytes=0))
    os.truncate(path, 4096)
    check(
        raised(x.take, [99_999]),
        OSError,
        errno.EIO,
        r"lacks \d+ bytes from offset \d+ on, .*: another program cut it; open it again",
        path,
    )


def test_files_on_drives(drives):
    with iomill.Drives.create(drives) as opened:
        missing = "No such file or directory on the drives; .*Drives.list.*"
        for call in (opened.open, opened.stat, opened.delete, opened.size_of):
            check(raised(call, "train/x"), FileNotFoundError, errno.ENOENT, missing, "train/x")
        opened.put("train/x", b"1")
        text = "File exists on the drives; .*"
        check(raised(opened.create_file, "train/x"), FileExistsError, errno.EEXIST, text, "train/x")
        check(raised(opened.put, "train/x", b"", replace=False), FileExistsError, errno.EEXIST, text, "train/x")
    with iomill.Drives(drives[0]) as opened, opened.open("train/x") as file:
        check(raised(file.write_at, b"1", 0), OSError, errno.EROFS, '.*mode="r\\+"', "train/x")
    check(raised(iomill.open, drives[0], "x"), FileNotFoundError, errno.ENOENT, missing, "x")


def test_drives(drives):
    create = r".*`iomill\.Drives\.create`"
    check(raised(iomill.Drives, drives[0]), OSError, errno.ENODATA, create, drives[0])
    check(raised(iomill.open, drives[0], "x"), OSError, errno.ENODATA, create, drives[0])
    text = "No such file or directory; check the path, or make the directory and mount the drive there"
    check(raised(iomill.Drives, "none"), FileNotFoundError, errno.ENOENT, text, "none")
    check(raised(iomill.Drives.create, [drives[0], "none"]), FileNotFoundError, errno.ENOENT, text, "none")
    iomill.Drives.create(drives).close()
    again = raised(iomill.Drives.create, drives)
    assert again.filename == drives[0] and re.search("set [0-9a-f]{32}", again.strerror)
    assert "array" not in again.strerror and "iomill.Drives" in again.strerror
    os.rename(f"{drives[1]}/iomill", "elsewhere")
    check(raised(iomill.Drives, drives[0]), OSError, errno.ENODEV, ".*of the set of drives is missing.*", drives[1])


def test_other_words(drives):
    iomill.Drives.create(drives).close()
    with pytest.raises(ValueError) as refused:
        iomill.File(f"{drives[0]}/iomill/label")
    assert "set of drives" in str(refused.value) and "iomill.open" in str(refused.value)
    assert "array" not in str(refused.value)
    # Names of files and directories are not words of the library.
    os.makedirs("array/an array")
    for place in ("array", "array/an array", "an array"):
        error = raised(iomill.Drives, place)
        assert error.filename == place and "array" not in error.strerror
    with iomill.Drives(drives[0]) as opened:
        error = raised(opened.open, "the array")
        assert error.filename == "the array"
    with pytest.raises(ValueError, match=re.escape('"an array/"')):
        iomill.Drives(drives[0], "r+").put("an array/", b"")


def test_the_advice_is_that_of_the_library():
    """Each phrase that has other words in Python is one of the library's, and no call of Rust is left."""
    root = pathlib.Path(__file__).parents[2]
    words = root / "python/src/words.rs"
    if not words.exists():
        pytest.skip("only a clone has the sources of the library")
    sources = [*root.glob("crates/iomill/src/**/*.rs"), *root.glob("origin/src/**/*.rs")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(source.read_text() for source in sources))
    table = re.search(r"= \[(.*?)\n\];", words.read_text(), re.DOTALL)[1]
    pairs = re.findall(r'\(\s*"((?:[^"\\]|\\.)*)",\s*"((?:[^"\\]|\\.)*)",?\s*\)', table)
    assert len(pairs) > 10
    for phrase, instead in pairs:
        # A phrase may end one text and begin the next.
        assert all(part in joined for part in re.split(r"(?<=\)); |; (?=open )", phrase)), phrase
        assert not re.search(r"\b(Array|ArrayOptions|RuntimeOptions|Options)::", instead), instead
