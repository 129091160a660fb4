"""Notes of a spool: durable when ``add`` returns, found after a restart, and removed when they are old."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.base.errors import Corrupt, Unavailable
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.spool import Notes, check_noteworthy
from holdfast.telemetry.identity import BatchIdentity
from tests.unit.bus.desk import Watch

DAY_NS = 86_400 * 10**9
KILLED = """
import asyncio, pathlib, sys
from tests.unit.bus.desk import Watch
from tests.unit.telemetry.accept.test_notes import Notes, manifest

async def main():
    notes = Notes(pathlib.Path(sys.argv[1]), Watch())
    await notes.load()
    for number in range(int(sys.argv[2]), 1_000_000, 3):
        await notes.add([manifest(each) for each in range(number, number + 3)])
        print(number, flush=True)

asyncio.run(main())
"""


def manifest(number: int, agent: str = "web-1", collector_id: str = "one") -> AcceptedManifest:
    identity = BatchIdentity(agent, "boot", number * 10, number * 10 + 9)
    sha256 = f"{number:064x}"
    return AcceptedManifest(identity, sha256, 100 + number, f"blob {sha256}", 1_000 + number, collector_id, 1, 2)


async def opened(path: Path, watch: Watch) -> Notes:
    notes = Notes(path, watch)
    await notes.load()
    return notes


async def known(notes: Notes, numbers: Iterable[int], agent: str = "web-1") -> list[int]:
    found = {number: await notes.find(manifest(number, agent).identity) for number in numbers}
    for number, one in found.items():
        assert one is None or one.frame_sha256 == manifest(number).frame_sha256
    return [number for number, one in found.items() if one is not None]


async def test_notes_are_found_by_identity_and_after_a_restart(tmp_path: Path) -> None:
    watch, path = Watch(), tmp_path / "notes.sqlite"
    for life in range(2):
        notes = await opened(path, watch)
        if not life:
            for number in range(0, 300, 3):
                await notes.add([manifest(number), manifest(number, "db-1", "another")])
        assert await known(notes, range(310)) == list(range(0, 300, 3))
        assert await known(notes, range(310), "db-1") == list(range(0, 300, 3))
        assert await known(notes, range(10), "web-2") == []
        found = await notes.find(manifest(3, "db-1").identity)
        assert found is not None
        assert (found.collector_id, found.accepted_at_unix_ns, found.frame_bytes) == ("another", 1_003, 103)
        assert (found.wire_version, found.frame_version) == (1, 2)
        assert found.raw_blob_key.endswith(f"{found.frame_sha256}.lmbatch")
        await notes.close()
    assert [each.name for each in tmp_path.iterdir()] == ["notes.sqlite"]  # no log is left behind


async def test_a_manifest_of_another_writer_may_hold_any_number_but_only_a_real_hash(tmp_path: Path) -> None:
    watch = Watch()
    notes = await opened(tmp_path / "notes.sqlite", watch)
    odd = AcceptedManifest(manifest(1).identity, "ab" * 32, 1 << 80, "", 1 << 80, "x", 1 << 70, 1 << 70)
    await notes.add([check_noteworthy(odd)])
    found = await notes.find(odd.identity)
    assert found is not None
    assert (found.accepted_at_unix_ns, found.wire_version, found.frame_sha256) == (2**63 - 1, 2**63 - 1, "ab" * 32)
    with pytest.raises(Corrupt, match="no SHA-256"):
        check_noteworthy(AcceptedManifest(odd.identity, "AB" * 32, 1, "", 1, "x", 1, 1))
    await notes.close()


async def test_old_notes_are_removed_and_so_are_those_of_a_clock_that_was_far_ahead(tmp_path: Path) -> None:
    watch = Watch()
    notes = await opened(tmp_path / "notes.sqlite", watch)
    begin = watch.ns
    for day in range(10):
        watch.ns = begin + day * DAY_NS + (3_650 * DAY_NS if day == 1 else 0)
        await notes.add([manifest(day * 10 + number) for number in range(6)])
    assert await notes.forget(begin - 3_650 * DAY_NS) == 0
    assert await notes.forget(begin + 3 * DAY_NS + 1) == 24
    assert await known(notes, range(100)) == [day * 10 + number for day in range(4, 10) for number in range(6)]
    await notes.clear()
    assert await known(notes, range(100)) == []
    await notes.add([manifest(7)])
    assert await known(notes, range(100)) == [7]
    await notes.close()


async def test_a_killed_process_loses_no_note_that_it_was_sure_of(tmp_path: Path) -> None:
    path, reported, begin = tmp_path / "notes.sqlite", -3, 0
    for pause_s in (0.0, 0.1):
        arguments = [sys.executable, "-c", KILLED, str(path), str(begin)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout is not None
            first = await asyncio.to_thread(victim.stdout.readline)
            await asyncio.sleep(pause_s)
            victim.send_signal(signal.SIGKILL)
            rest = await asyncio.to_thread(victim.stdout.read)
        reported = int((first + rest.rpartition("\n")[0]).split()[-1])
        notes = await opened(path, Watch())
        found = await known(notes, range(reported + 9))
        assert found[: reported + 3] == list(range(reported + 3))
        assert len(found) % 3 == 0  # a transaction is there or not
        begin = len(found)
        await notes.close()


async def test_a_full_disk_changes_nothing_and_notes_go_on_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite"
    notes = await opened(path, Watch())
    await notes.add([manifest(number) for number in range(5)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = Path(f"{path}-wal").stat().st_size
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
        with pytest.raises(Unavailable):
            await notes.add([manifest(number) for number in range(5, 500)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert await known(notes, range(510)) == list(range(5))
    await notes.add([manifest(5)])
    await notes.close()
    again = await opened(path, Watch())
    assert await known(again, range(510)) == list(range(6))
    await again.close()


async def test_a_damaged_database_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite"
    path.write_bytes(os.urandom(8192))
    with pytest.raises(Corrupt, match="damaged") as caught:
        await opened(path, Watch())
    assert "remove this file" in (caught.value.remedy or "")
