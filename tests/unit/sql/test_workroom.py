"""Rooms for SQL: databases that are handed on from session to session, and those that are not."""

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.base.aio import blocking
from holdfast.base.errors import Invalid, Refused
from holdfast.base.scratch import Scratch
from holdfast.objects.memory import MemoryStore
from holdfast.sql import spare, workroom
from holdfast.sql.duck import Duck, SqlFailed
from holdfast.sql.workroom import FOLDERS, KEPT_BYTES, Workroom

LIMIT = "123MB"  # which nobody else has


@asynccontextmanager
async def room(limit: str = LIMIT, *, handed_on: bool = True) -> AsyncIterator[Duck]:
    found = Workroom(MemoryStore(), limit, handed_on=handed_on)
    try:
        duck, _ = await found.placed()
        await duck.ready()
        yield duck
    finally:
        await found.close()
    assert not duck.folder.exists()


@pytest.fixture(autouse=True)
def none_is_kept() -> None:
    spare.drop()


async def read(duck: Duck, value: int) -> tuple[int, Any]:
    """The number of a file with one row, and what DuckDB finds in it."""
    number = duck.name()
    path = duck.folder / f"{number}.parquet"
    pq.write_table(pa.table({"n": [value]}), path)
    os.utime(path, (1_000_000_000, 1_000_000_000))  # so that only the name tells one from another
    found = await duck.table("SELECT n FROM read_parquet(?::VARCHAR)", [str(path)])
    return number, found.column("n").to_pylist()


async def test_a_database_that_was_dropped_is_closed_and_another_one_opened() -> None:
    async with room() as first:
        root = first._root
    spare.drop()
    async with room() as later:
        assert later._root is not root
    assert root is not None
    with pytest.raises(duckdb.ConnectionException):
        root.execute("SELECT 1")


async def test_a_database_that_was_only_asked_is_handed_on_behind_its_bars() -> None:
    async with room() as first:
        root, folder = first._root, first.folder
        assert await read(first, 1) == (1, [1])
    for value in (2, 3):
        async with room() as later:
            assert (later._root, later.folder) == (root, folder)
            assert list(folder.iterdir()) == []
            assert await read(later, value) == (value, [value])
            assert later.memory_bytes == 123_000_000
            for refused in ("SET memory_limit = '1GB'", "SELECT * FROM read_csv('/etc/passwd')"):
                with pytest.raises(SqlFailed):
                    await later.table(refused)
    with pytest.raises(Refused):
        await first.table("SELECT 1")


async def test_holes_in_a_file_do_not_count() -> None:
    async with room() as first:
        root = first._root
        with (first.folder / "1.parquet").open("wb") as file:
            file.seek(2 * KEPT_BYTES)
            file.write(b"x" * 4096)
    async with room() as other:
        assert other._root is root


@pytest.mark.parametrize("what", ["table", "statement", "file", "spilled", "stream"])
async def test_one_that_is_not_as_it_was_is_closed(what: str) -> None:
    streams: list[Any] = []
    async with room() as first:
        root = first._root
        if what == "table":
            first.execute("CREATE TABLE t (n INTEGER)")
        elif what == "statement":
            await first.run("CREATE SCHEMA s")
        elif what == "file":
            (first.folder / "1.parquet").write_bytes(b"x" * (KEPT_BYTES + 4096))
        elif what == "spilled":
            (first.folder / "spill").mkdir()
        else:
            streams.append(first.batches("SELECT * FROM range(100000)", rows=10))
            assert (await anext(streams[0])).num_rows > 0
    async with room() as other:
        assert other._root is not root
    for each in streams:
        await each.aclose()


async def test_only_who_may_gets_one_and_on_the_same_terms() -> None:
    async with room() as first:
        root = first._root
    async with room(handed_on=False) as careful, room("124MB") as larger:
        assert root not in (careful._root, larger._root)
        async with room() as second, room() as third:
            assert second._root is root
            assert third._root is not root


async def test_two_at_a_time_have_two_folders_and_one_is_kept() -> None:
    async with room() as one, room() as other:
        assert one.folder != other.folder
        roots = (one._root, other._root)
    async with room() as third, room() as fourth:
        assert third._root is roots[0], "the one that was closed last"
        assert fourth._root not in roots


async def test_a_folder_that_somebody_else_has_by_now_is_left_alone() -> None:
    async with room() as first:
        root, folder = first._root, first.folder
    theirs = Scratch(FOLDERS, folder.parent, folder.name)
    (folder / "theirs").touch()
    async with room() as other:
        assert (other._root is root, other.folder == folder) == (False, False)
    assert [each.name for each in folder.iterdir()] == ["theirs"]
    theirs.close()


async def test_a_process_that_was_forked_off_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with room() as first:
        root = first._root
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        async with room() as other:
            assert other._root is not root
        theirs = spare.take((LIMIT,))
        assert theirs is not None
        theirs.root.close()
    async with room() as again:
        assert again._root is root


async def test_what_cannot_be_opened_is_told_to_everybody_who_asks(tmp_path: Path) -> None:
    found = Workroom(MemoryStore(), "much")
    duck, _ = await found.placed()
    for _ in range(2):
        with pytest.raises(Invalid, match="memory limit"):
            await duck.table("SELECT 1")
    await found.close()
    await found.close()
    with pytest.raises(Refused):
        await found.placed()


async def test_where_no_folder_can_be_had_whoever_asks_is_told_and_may_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(found: object) -> Scratch:
        raise OSError(errno.ENOSPC, "no space left")

    found = Workroom(MemoryStore(), LIMIT)
    await found.begun()  # nothing to wait for
    with monkeypatch.context() as disk:
        disk.setattr(workroom, "_folder", full)
        assert found.begin()
        await found.begun()
        with pytest.raises(OSError, match="no space"):
            await found.placed()
    assert found.begin()
    await found.begun()
    duck, _ = await found.placed()
    assert (await duck.table("SELECT 1 AS n")).column("n").to_pylist() == [1]
    await found.close()


async def test_what_a_dead_process_left_is_swept_at_the_end_of_a_short_session() -> None:
    async with room() as first:
        left = first.folder.with_name(f"{first.folder.name}-dead")
        left.mkdir()
        (left / "1.parquet").touch()
        assert await read(first, 1) == (1, [1])
    assert not left.exists()


async def test_a_database_that_nobody_waits_for_has_its_threads_before_anybody_asks(tmp_path: Path) -> None:
    duck = Duck(tmp_path, memory_limit=LIMIT)
    await blocking(duck.open, alone=True)
    await blocking(duck.serve)
    assert duck.untouched
    await duck.close()


@pytest.mark.parametrize("how", ["execute", "fetch", "statements", "run", "batches"])
async def test_whatever_comes_after_the_first_statements_finds_the_settings_locked(how: str, tmp_path: Path) -> None:
    duck = Duck(tmp_path, memory_limit=LIMIT)
    await blocking(duck.open, alone=True)
    await blocking(duck.serve)
    text = "SELECT current_setting('lock_configuration') AS n"
    if how == "run":
        await duck.run(text)
    elif how == "batches":
        assert [each.to_pylist() async for each in duck.batches(text)] == [[{"n": True}]]
    else:
        await blocking(getattr(duck, how), text)
    assert duck._root is not None
    assert duck._root.execute(text).fetchall() == [(True,)]
    await duck.close()


async def test_a_database_that_is_left_at_once_has_its_threads_and_locks() -> None:
    """The session ends while its first answer is on its way."""
    found = Workroom(MemoryStore(), LIMIT, handed_on=True)
    duck, _ = await found.placed()
    await duck.table("SELECT 1")
    await found.close()
    async with room() as later:
        assert later.folder == duck.folder, "the same database"
        with pytest.raises(SqlFailed):
            await later.table("SET threads = 1")


async def test_a_database_that_broke_is_closed_with_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(duck: Duck) -> None:
        raise duckdb.FatalException("the database was invalidated")

    async with room() as first:
        root, folder = first._root, first.folder
        assert await read(first, 1) == (1, [1])
        monkeypatch.setattr(Duck, "join", broken)
        first._alone = True  # as it is left by one that could not be locked
    assert not folder.exists()
    monkeypatch.undo()
    async with room() as other:
        assert other._root is not root


async def test_a_database_for_statements_of_others_is_locked_before_the_first_of_them() -> None:
    found = Workroom(MemoryStore(), LIMIT)
    duck, _ = await found.placed()
    assert (await duck.table("SELECT current_setting('lock_configuration') AS n")).column("n").to_pylist() == [True]
    await found.close()
