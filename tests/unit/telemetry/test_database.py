"""Databases of agents and spools: what a crash, a full disk, damage and other users can do to them."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.base.errors import Corrupt, Incompatible, Invalid, Refused, Unavailable
from holdfast.telemetry.database import SHRINK_BYTES, SPARE_BYTES, Database, Format, Full, owned_folder

FORMAT = Format("box", 7, 1, "CREATE TABLE things (number INTEGER PRIMARY KEY, thing BLOB)", "look into it")
BUSY = Refused("busy")
KILLED = """
import pathlib, sys
from tests.unit.telemetry.test_database import add, made

database = made(pathlib.Path(sys.argv[1]))
for number in range(int(sys.argv[2]), 1_000_000):
    add(database, number)
    print(number, flush=True)
"""


def made(path: Path, *, max_bytes: int | None = None) -> Database:
    database = Database(path, FORMAT, max_bytes=max_bytes)
    database.open(lambda _: None)
    return database


def add(database: Database, number: int, size: int = 100) -> None:
    with database.write(adds=size) as connection:
        connection.execute("INSERT INTO things VALUES (?, ?)", (number, os.urandom(size)))


def remove(database: Database, number: int) -> None:
    with database.write(durable=False) as connection:
        connection.execute("DELETE FROM things WHERE number = ?", (number,))


def numbers(database: Database) -> list[int]:
    with database.read() as connection:
        return [number for (number,) in connection.execute("SELECT number FROM things ORDER BY number")]


def test_a_killed_process_loses_no_transaction_that_returned(tmp_path: Path) -> None:
    path, begin = tmp_path / "box.sqlite", 0
    for _ in range(3):
        arguments = [sys.executable, "-c", KILLED, str(path), str(begin)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout is not None
            reported = [int(victim.stdout.readline()) for _ in range(50)][-1]
            victim.send_signal(signal.SIGKILL)
        database = made(path)
        found = numbers(database)
        assert found == list(range(len(found)))
        assert len(found) > reported
        begin = len(found)
        database.close()


@pytest.mark.parametrize(("durable", "synchronous"), [(True, 2), (False, 1)])
def test_sqlite_fsyncs_the_log_in_each_durable_transaction(tmp_path: Path, durable: bool, synchronous: int) -> None:
    database = made(tmp_path / "box.sqlite")
    with database.write(durable=durable) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (synchronous,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_full_database_changes_nothing_and_uses_the_room_of_what_is_removed(tmp_path: Path) -> None:
    database = made(tmp_path / "box.sqlite", max_bytes=200_000)

    def fill() -> None:
        for number in range(100):
            add(database, number, 10_000)

    with pytest.raises(Full, match="limit of 200000 bytes"):
        fill()
    count = len(numbers(database))
    assert 10 < count < 20
    assert 150_000 < database.used_bytes() <= 200_000
    for number in range(5):
        remove(database, number)
    for number in range(100, 105):
        add(database, number, 10_000)
    assert len(numbers(database)) == count


def test_data_is_added_only_while_there_is_spare_room_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = made(tmp_path / "box.sqlite")
    add(database, 1, 1 << 20)
    monkeypatch.setattr(database, "free_bytes", lambda: SPARE_BYTES - 1)
    assert database.is_full()
    with pytest.raises(Full, match="the disk is full"):
        add(database, 2)
    remove(database, 1)
    add(database, 2)  # in the pages that were freed
    assert numbers(database) == [2]


def test_a_file_that_is_mostly_unused_is_made_smaller(tmp_path: Path) -> None:
    path = tmp_path / "box.sqlite"
    database = made(path)
    for number in range(3):
        add(database, number, SHRINK_BYTES)
    database.shrink()
    assert path.stat().st_size > 2 * SHRINK_BYTES
    for number in range(2):
        remove(database, number)
    database.shrink()
    assert path.stat().st_size < 1.1 * SHRINK_BYTES
    assert numbers(database) == [2]


def test_a_damaged_or_foreign_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "box.sqlite"
    path.write_bytes(os.urandom(8192))
    with pytest.raises(Corrupt, match="the box is damaged") as caught:
        made(path)
    assert caught.value.remedy == "look into it"
    path.unlink()
    sqlite3.connect(path).executescript("CREATE TABLE mine (number)").close()
    with pytest.raises(Refused, match="is not a box of holdfast"):
        made(path)
    path.unlink()
    made(path).close()
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 2")
    newer.close()
    with pytest.raises(Incompatible, match="version 2, and this release reads version 1"):
        made(path)
    with pytest.raises(Invalid, match="has no box"):
        Database(tmp_path / "nothing.sqlite", FORMAT).open()
    database = made(tmp_path / "other.sqlite")
    database.close()
    with pytest.raises(Unavailable, match="closed"):
        numbers(database)


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    with owned_folder("--box", tmp_path / "a" / "b", "lock", BUSY):
        assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
        with pytest.raises(Refused, match="busy"), owned_folder("--box", tmp_path / "a" / "b", "lock", BUSY):
            pass
    with owned_folder("--box", tmp_path / "a" / "b", "lock", BUSY):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(Invalid, match="File exists"), owned_folder("--box", tmp_path / "file", "lock", BUSY):
        pass
    with (
        pytest.raises(Invalid, match="--box /proc/x: no folder can be created there"),
        owned_folder("--box", Path("/proc/x"), "lock", BUSY),
    ):
        pass


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "box"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(Refused, match="other users can write to it"), owned_folder("--box", folder, "lock", BUSY):
        pass
    with owned_folder("--box", folder / "own", "lock", BUSY):
        pass


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to, lambda path, _: os.mkfifo(path)])
@pytest.mark.parametrize("name", ["lock", "box.sqlite", "box.sqlite-wal", "box.sqlite-shm", "box.sqlite-journal"])
def test_no_file_is_opened_through_a_link(tmp_path: Path, name: str, link: Callable[[Path, Path], None]) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "box"
    victim.write_text("of another user")
    folder.mkdir()
    link(folder / name, victim)
    with (
        pytest.raises(Refused, match=f"{name}: is a link or not a regular file"),
        owned_folder("--box", folder, "lock", BUSY),
    ):
        made(folder / "box.sqlite")
    assert victim.read_text() == "of another user"


def test_files_are_readable_by_their_user_alone(tmp_path: Path) -> None:
    database = made(tmp_path / "box.sqlite")
    add(database, 1)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"box.sqlite": 0o600, "box.sqlite-wal": 0o600, "box.sqlite-shm": 0o600}
    database.close()
    assert [path.name for path in tmp_path.iterdir()] == ["box.sqlite"]
