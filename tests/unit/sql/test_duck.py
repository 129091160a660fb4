"""One DuckDB: what its sandbox refuses, errors, and cancellation."""

import asyncio
import sys
import threading
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.base.aio import blocking
from holdfast.base.errors import Invalid, Refused
from holdfast.sql.duck import Duck, MissingFile, OutOfMemory, SqlFailed

ENDLESS = "SELECT count(*) AS n FROM range(1000000000) a, range(1000000000) b WHERE a.range + b.range = 7"


@asynccontextmanager
async def opened(parent: Path) -> AsyncIterator[Duck]:
    folder = parent / "it's a scratch directory"
    folder.mkdir()
    duck = Duck(folder, memory_limit="123MB")
    await blocking(duck.open)
    try:
        yield duck
    finally:
        await duck.close()


async def values(duck: Duck, text: str) -> list[object]:
    return [next(iter(row.values())) for row in (await duck.table(text)).to_pylist()]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM read_csv('{outside}/secret.csv')",
        "SELECT * FROM read_text('{outside}/secret.csv')",
        "SELECT * FROM '{outside}/secret.csv'",
        "SELECT * FROM read_text('{inside}/../secret.csv')",
        "SELECT * FROM glob('{outside}/*')",
        "COPY (SELECT 1) TO '{outside}/new.csv'",
        "ATTACH '{outside}/new.db'",
        "EXPORT DATABASE '{outside}/new'",
        "SELECT * FROM read_csv('https://127.0.0.1:9/x.csv')",
        "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
        "INSTALL httpfs",
        "LOAD httpfs",
        "LOAD '{inside}/x.duckdb_extension'",
        "SET memory_limit = '1GB'",
        "SET allowed_directories = ['/']",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "RESET threads",
        "SET profiling_output = '{outside}/new.json'",
        "SELECT * FROM outside_variable",
    ],
)
async def test_no_statement_accesses_outside_files_or_changes_settings(text: str, tmp_path: Path) -> None:
    async with opened(tmp_path) as duck:
        outside = duck.folder.parent
        outside_variable = pa.table({"n": [1]})  # DuckDB can read Python variables by name, unless that is switched off
        (outside / "secret.csv").write_text("a\n1\n")
        settings = "SELECT value FROM duckdb_settings() ORDER BY name"
        before = await values(duck, settings)
        with pytest.raises((SqlFailed, MissingFile)):
            await duck.run(text.format(outside=outside, inside=str(duck.folder).replace("'", "''")))
        assert await values(duck, settings) == before
        assert sorted(each.name for each in outside.iterdir()) == [duck.folder.name, "secret.csv"]
        assert outside_variable.num_rows == 1


async def test_files_in_its_own_directory_alone_are_readable(tmp_path: Path) -> None:
    folders = [tmp_path / "scratch", tmp_path / "scratch-of-another"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        pq.write_table(pa.table({"n": [number]}), folder / "1.parquet")
    duck = Duck(folders[0])
    await blocking(duck.open)
    assert await values(duck, f"SELECT n FROM read_parquet('{folders[0]}/1.parquet')") == [0]
    with pytest.raises(SqlFailed, match="leaves the store"):
        await duck.table(f"SELECT n FROM read_parquet('{folders[1]}/1.parquet')")
    await duck.close()


@pytest.mark.parametrize(("limit", "threads"), [("100MB", 1), ("250MB", 3), ("10GB", 8)])
async def test_memory_limit_and_threads(
    limit: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread for each 64 MiB, at most one per processor."""
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    duck = Duck(tmp_path, memory_limit=limit)
    await blocking(duck.open)
    assert await values(duck, "SELECT current_setting('threads')") == [threads]
    number = int(limit.rstrip("MGB")) * (10**9 if "G" in limit else 10**6)
    assert duck.memory_bytes == pytest.approx(number, rel=0.01)
    await duck.close()


async def test_a_memory_limit_that_is_not_a_size_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="memory limit of 'much'") as raised:
        await blocking(Duck(tmp_path, memory_limit="much").open)
    assert "s3_duckdb_memory_limit" in str(raised.value.remedy)


async def test_errors_distinguish_statements_memory_and_files(tmp_path: Path) -> None:
    async with opened(tmp_path) as duck:
        with pytest.raises(SqlFailed, match="syntax error"):
            await duck.table("SELEC 1")
        gone = str(duck.folder / "none.parquet")
        with pytest.raises(MissingFile, match=r"none\.parquet"):
            await duck.table("SELECT * FROM read_parquet(?::VARCHAR)", [gone])
        with pytest.raises(OutOfMemory):
            await duck.table("SELECT list(range) FROM range(100000000)")
        assert await values(duck, "SELECT 1 AS n") == [1]


async def test_statements_are_parsed_and_not_run(tmp_path: Path) -> None:
    async with opened(tmp_path) as duck:
        found = await blocking(duck.statements, "SELECT 1; CREATE TABLE t (n INTEGER); EXPLAIN SELECT 2")
        assert [(each.kind, each.reads) for each in found] == [("SELECT", True), ("CREATE", False), ("EXPLAIN", True)]
        with pytest.raises(SqlFailed, match="t does not exist"):
            await duck.table("SELECT * FROM t")


def running() -> bool:
    """Whether a thread is inside of a statement."""
    mine = threading.get_ident()
    frames = [each for thread, each in sys._current_frames().items() if thread != mine]
    return any("duck.py" in each.f_code.co_filename for frame in frames for each, _ in traceback.walk_stack(frame))


@pytest.mark.parametrize("how", ["table", "run", "batches"])
async def test_a_cancelled_statement_is_interrupted_and_has_ended(how: str, tmp_path: Path) -> None:
    async with opened(tmp_path) as duck:

        async def work() -> None:
            if how == "batches":
                async for _ in duck.batches(ENDLESS):
                    pass
            else:
                await getattr(duck, how)(ENDLESS)

        task = asyncio.ensure_future(work())
        while not running():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not running()
        assert await values(duck, "SELECT 2 AS n") == [2]


async def test_a_stream_left_early_leaves_the_database_usable(tmp_path: Path) -> None:
    async with opened(tmp_path) as duck:
        stream = duck.batches("SELECT range AS n FROM range(100000)", rows=10)
        assert (await anext(stream)).num_rows > 0
        await stream.aclose()  # type: ignore[attr-defined]  # it is an asynchronous generator
        assert await values(duck, "SELECT 1 AS n") == [1]


async def test_a_closed_database_refuses_statements(tmp_path: Path) -> None:
    async with opened(tmp_path) as duck:
        await duck.close()
        await duck.close()
        with pytest.raises(Refused, match="not open"):
            await duck.table("SELECT 1")
