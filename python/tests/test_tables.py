"""Tables of other libraries on `iomill://`, by fsspec: pandas, pyarrow, polars and DuckDB."""

import errno
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("fsspec")

import fsspec  # noqa: E402

import iomill  # noqa: E402


@pytest.fixture
def where(files):
    return {"drive": str(files.drives.directories[0])}


COLUMNS = {"id": np.arange(1000), "value": np.arange(1000) * 0.5}


def test_pandas(files, where):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = pandas.DataFrame(COLUMNS)
    table.to_parquet("iomill://t/a.parquet", storage_options=where)
    table.to_csv("iomill://t/a.csv.gz", index=False, storage_options=where)
    pandas.testing.assert_frame_equal(pandas.read_parquet("iomill://t/a.parquet", storage_options=where), table)
    pandas.testing.assert_frame_equal(pandas.read_csv("iomill://t/a.csv.gz", storage_options=where), table)
    good = files.info("t/a.csv.gz")["version"]

    class Bad:
        def __str__(self):
            raise KeyError("this value has no text")

    with pytest.raises(KeyError):
        pandas.DataFrame({"x": [1, Bad()]}).to_csv("iomill://t/a.csv.gz", storage_options=where)
    assert files.info("t/a.csv.gz")["version"] == good
    with pytest.raises(Exception, match="x"):
        pandas.DataFrame({"x": [1, "mixed", object()]}).to_parquet("iomill://t/a.parquet", storage_options=where)
    pandas.testing.assert_frame_equal(pandas.read_parquet("iomill://t/a.parquet", storage_options=where), table)


FULL = """
import resource, sys
import numpy, pandas
where = {"drive": sys.argv[1]}
# As a full drive: files of this process end at 4 MiB.
resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
try:
    numbers = numpy.random.default_rng(1)
    pandas.DataFrame({f"c{i}": numbers.random(200_000) for i in range(10)}).to_parquet("iomill://t.parquet", storage_options=where)
except OSError as error:
    print(error.errno)
"""


def test_a_table_that_does_not_fit_leaves_the_old_one(files, where):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = pandas.DataFrame(COLUMNS)
    table.to_parquet("iomill://t.parquet", storage_options=where)
    files.close()
    done = subprocess.run([sys.executable, "-c", FULL, where["drive"]], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"{errno.EFBIG}\n", done.stderr
    pandas.testing.assert_frame_equal(pandas.read_parquet("iomill://t.parquet", storage_options=where), table)
    with iomill.Drives(where["drive"]) as array:
        assert array.list() == ["t.parquet"]


def test_pyarrow(files):
    pytest.importorskip("pyarrow")
    import pyarrow.dataset
    import pyarrow.parquet

    table = pyarrow.table(COLUMNS)
    pyarrow.parquet.write_table(table, "p/one.parquet", filesystem=files)
    assert pyarrow.parquet.read_table("p/one.parquet", filesystem=files) == table
    parted = table.append_column("half", pyarrow.array((COLUMNS["id"] % 2).tolist()))
    pyarrow.dataset.write_dataset(
        parted, "set", filesystem=files, format="parquet", partitioning=["half"], partitioning_flavor="hive"
    )
    read = pyarrow.dataset.dataset("set", filesystem=files, partitioning="hive").to_table()
    assert read.num_rows == 1000 and sorted(read["id"].to_pylist()) == list(range(1000))
    assert len(files.find("set")) == 2


def test_polars(files, where):
    polars = pytest.importorskip("polars")
    table = polars.DataFrame(COLUMNS)
    with files.open("p.parquet", "wb") as file:
        table.write_parquet(file)
    with files.open("p.parquet") as file:
        assert polars.read_parquet(file).equals(table)
    with fsspec.open("iomill://p.csv", "wb", **where) as file:
        table.write_csv(file)
    with fsspec.open("iomill://p.csv", "rb", **where) as file:
        assert polars.read_csv(file)["id"].to_list() == list(range(1000))


def test_duckdb(files):
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    for number in range(3):
        pyarrow.parquet.write_table(pyarrow.table(COLUMNS), f"d/{number}.parquet", filesystem=files)
    with duckdb.connect() as database:
        database.register_filesystem(files)
        query = "select count(*), sum(id)::bigint from read_parquet('iomill://d/*.parquet')"
        assert database.sql(query).fetchall() == [(3000, 3 * 499_500)]
        database.sql("copy (select range as x from range(100)) to 'iomill://out.parquet' (format parquet)")
        assert database.sql("select sum(x)::bigint from 'iomill://out.parquet'").fetchall() == [(4950,)]
        with pytest.raises(duckdb.Error):
            database.sql("copy (select error('no') as x from range(9)) to 'iomill://out.parquet' (format parquet)")
        assert database.sql("select sum(x)::bigint from 'iomill://out.parquet'").fetchall() == [(4950,)]


def test_libraries_share_an_array(files, where):
    pandas = pytest.importorskip("pandas")
    zarr = pytest.importorskip("zarr")
    pytest.importorskip("pyarrow")
    pandas.DataFrame(COLUMNS).to_parquet("iomill://t.parquet", storage_options=where)
    store = zarr.storage.FsspecStore.from_url("iomill://z", storage_options=where)
    made = zarr.create_array(store=store, name="v", shape=(100, 10), chunks=(10, 10), dtype="f4")
    made[:] = 7
    iomill.put(np.arange(10), os.fspath(where["drive"]), "rows")
    rows = iomill.open(where["drive"], "rows")
    assert zarr.open_array(store=store, path="v")[3, 4] == 7 and rows[4] == 4
    assert pandas.read_parquet("iomill://t.parquet", storage_options=where).shape == (1000, 2)
