"""SQL sessions: separate databases, one scratch directory each, removed at the end and after a crash."""

import errno
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.base.errors import Invalid, Refused
from holdfast.base.scratch import Scratch
from holdfast.objects.memory import MemoryStore
from holdfast.sql import session as module
from holdfast.sql.duck import SqlFailed
from holdfast.sql.session import Session

LIMIT = "123MB"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


async def test_a_second_database_of_a_session_reads_its_files_and_not_its_tables() -> None:
    session = await Session.open(MemoryStore(), LIMIT)
    user = await session.database()
    await session.duck.run("CREATE TABLE t AS SELECT 1 AS n")
    path = session.duck.folder / "1.parquet"
    pq.write_table(pa.table({"n": [1]}), path)
    assert (await user.table(f"SELECT * FROM read_parquet('{path}')")).to_pylist() == [{"n": 1}]
    for refused in ("SELECT * FROM t", "SELECT * FROM memory.main.t", "SET threads = 1", "LOAD httpfs"):
        with pytest.raises(SqlFailed):
            await user.table(refused)
    spills = {
        (await each.table("SELECT current_setting('temp_directory') AS n")).to_pylist()[0]["n"]
        for each in (session.duck, user)
    }
    assert len(spills) == 2
    await session.close()
    with pytest.raises(Refused, match="not open"):
        await user.table("SELECT 1")


async def test_the_scratch_directory_is_removed_at_the_end(temporary: Path) -> None:
    session = await Session.open(MemoryStore(), LIMIT)
    (session.duck.folder / "1.parquet").touch()
    assert list(temporary.iterdir()) == [session.duck.folder]
    await session.close()
    await session.close()
    assert list(temporary.iterdir()) == []
    with pytest.raises(Refused, match="session is closed"):
        await session.database()


async def test_a_session_that_cannot_be_opened_leaves_nothing(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(prefix: str) -> Scratch:
        raise OSError(errno.ENOSPC, "no space left")

    with pytest.raises(Invalid, match="memory limit"):
        await Session.open(MemoryStore(), "much")
    monkeypatch.setattr(module, "Scratch", full)
    with pytest.raises(OSError, match="no space"):
        await Session.open(MemoryStore(), LIMIT)
    assert list(temporary.iterdir()) == []
