"""Notes of a spool: found again after every crash, in bounded memory, and gone by whole files when they are old."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from holdfast.base.errors import Corrupt, Unavailable
from holdfast.telemetry.accept import note
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.note import KEY_BYTES, NOTE_BYTES
from holdfast.telemetry.accept.notes import COLLECTORS, DAY_NS, NOBODY, Notes, NotesOptions
from holdfast.telemetry.folder import DiskFolder, Piece
from holdfast.telemetry.identity import BatchIdentity
from tests.unit.bus.desk import Watch

SMALL = NotesOptions(log_notes=5, run_notes=200, sources=3)


def manifest(number: int, agent: str = "web-1", collector_id: str = "one") -> AcceptedManifest:
    identity = BatchIdentity(agent, "boot", number * 10, number * 10 + 9)
    sha256 = f"{number:064x}"
    return AcceptedManifest(identity, sha256, 100 + number, f"blob {sha256}", 1_000 + number, collector_id, 1, 2)


async def opened(path: Path, watch: Watch, options: NotesOptions = SMALL, folder: DiskFolder | None = None) -> Notes:
    path.mkdir(exist_ok=True)
    notes = Notes(folder or DiskFolder(path), watch, options)
    await notes.load()
    return notes


async def known(notes: Notes, numbers: Iterable[int], agent: str = "web-1") -> list[int]:
    found = {number: await notes.find(manifest(number, agent).identity) for number in numbers}
    for number, one in found.items():
        assert one is None or one.frame_sha256 == manifest(number).frame_sha256
    return [number for number, one in found.items() if one is not None]


class Counting(DiskFolder):
    reads = 0

    async def read_pieces(self, pieces: Sequence[Piece]) -> list[bytes]:
        self.reads += len(pieces)
        return await super().read_pieces(pieces)


def test_the_bytes_of_a_note_are_these() -> None:
    data = note.write(manifest(7), 0xA1B2C3D4, 1_800_000_000_000_000_000)
    assert (
        data.hex()
        == (
            "72d5f902be332985f8a75d7b3e90a8be"
            "0000000000000046000000000000004f" + "0" * 63 + "7"
            "00000000000003ef18fae27693b40000000000000000006b00010002a1b2c3d4"
        )
        + data[-4:].hex()
    )
    assert len(data) == NOTE_BYTES
    assert data[:KEY_BYTES] == note.key_of(manifest(7).identity)
    for at in range(NOTE_BYTES):
        assert note.read(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]) is None
    told = note.read(data)
    assert told is not None
    again = told.manifest(manifest(7).identity, "one")
    assert (again.frame_bytes, again.accepted_at_unix_ns, again.wire_version, again.frame_version) == (107, 1007, 1, 2)


def test_a_manifest_by_somebody_else_may_hold_any_number_but_no_other_hash() -> None:
    odd = AcceptedManifest(manifest(1).identity, "ab" * 32, 1 << 80, "", 1 << 80, "x", 1 << 20, 1 << 20)
    told = note.read(note.write(note.check_noteworthy(odd), 0, 1 << 70))
    assert told is not None
    assert (told.accepted_at_unix_ns, told.landed_at_ns, told.wire_version) == (2**63 - 1, 2**63 - 1, 0xFFFF)
    with pytest.raises(Corrupt, match="no SHA-256"):
        note.check_noteworthy(AcceptedManifest(odd.identity, "AB" * 32, 1, "", 1, "x", 1, 1))


async def test_notes_are_found_in_logs_and_runs_and_after_a_restart(tmp_path: Path) -> None:
    watch = Watch()
    notes = await opened(tmp_path, watch)
    for number in range(0, 300, 3):
        await notes.add([manifest(number), manifest(number, "db-1", "another")])
    for each in (notes, await opened(tmp_path, watch)):
        assert await known(each, range(310)) == list(range(0, 300, 3))
        assert await known(each, range(310), "db-1") == list(range(0, 300, 3))
        assert await known(each, range(10), "web-2") == []
        assert len(each) == 200
        found = await each.find(manifest(3, "db-1").identity)
        assert found is not None
        assert (found.collector_id, found.accepted_at_unix_ns, found.frame_bytes) == ("another", 1_003, 103)
        assert found.raw_blob_key.endswith(f"{found.frame_sha256}.lmbatch")
    assert len(list(tmp_path.iterdir())) <= 4  # one run, one log, the names of collectors
    (tmp_path / COLLECTORS).write_bytes(b"{")
    found = await (await opened(tmp_path, watch)).find(manifest(3).identity)
    assert found is not None
    assert found.collector_id == NOBODY


async def test_a_batch_that_follows_upon_the_last_of_its_source_takes_no_look_at_the_disk(tmp_path: Path) -> None:
    folder = Counting(tmp_path)
    notes = await opened(tmp_path, Watch(), folder=folder)
    await notes.add([manifest(number) for number in range(150)])
    await notes.add([manifest(number) for number in range(150, 300)])  # more than one run holds
    folder.reads = 0
    assert await known(notes, [300]) == []
    assert folder.reads == 2  # one block of each run
    for number in range(300, 303):
        assert await known(notes, [number]) == []
        await notes.add([manifest(number)])
        assert await known(notes, [number]) == [number]
    assert folder.reads == 2
    assert await known(notes, [10, 200]) == [10, 200]
    assert folder.reads == 5
    for agent in ("a", "b", "c"):  # as many sources as are remembered
        assert await known(notes, [0], agent) == []
    folder.reads = 0
    assert await known(notes, [303, 304]) == []
    assert folder.reads == 2


class Killed(BaseException):
    pass


class Mortal(DiskFolder):
    """Its process is killed in the middle of its n-th change, with any part of it done."""

    def __init__(self, path: Path, after: int, part: float) -> None:
        super().__init__(path)
        self.left = after
        self.part = part

    def _dies(self) -> bool:
        self.left -= 1
        return self.left < 0

    async def append(self, name: str, at: int, data: bytes) -> None:
        if self._dies():
            await super().append(name, at, data[: int(len(data) * self.part)])
            raise Killed
        await super().append(name, at, data)

    async def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        dies = self._dies()
        if not dies or self.part >= 1:
            await super().replace(name, data, durable=durable)
        if dies:
            raise Killed

    async def remove(self, name: str) -> None:
        dies = self._dies()
        if not dies or self.part >= 1:
            await super().remove(name)
        if dies:
            raise Killed


@pytest.mark.parametrize("part", [0.3, 1.0])
async def test_killed_at_any_step_no_note_is_lost_that_was_told_of(tmp_path: Path, part: float) -> None:
    options = NotesOptions(log_notes=3, run_notes=6, run_span_ns=DAY_NS)
    after = 0
    while True:
        path, watch, told, old = tmp_path / f"{after}", Watch(), set[int](), set[int]()
        try:
            folder = Mortal(path, after, part)
            notes = await opened(path, watch, options, folder)
            for number in range(8):
                await notes.add([manifest(number), manifest(100 + number)])
                told |= {number, 100 + number}
                watch.ns += DAY_NS // 4
            old = set(told)
            await notes.forget(watch.ns - DAY_NS, [manifest(0).identity])
        except Killed:
            after += 1
        else:
            assert after > 15
            assert await known(notes, {0, 1, 7}) == [0, 7]
            return
        lively = await opened(path, watch, options)
        found = set(await known(lively, range(120)))
        assert told - old <= found <= {*range(8), *range(100, 108)}
        assert not old or {0, 7, 107} <= found
        await lively.add([manifest(50)])
        again = await opened(path, watch, options)
        assert {*found, 50} <= set(await known(again, range(120)))


def spoiled(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


async def test_damage_hides_what_it_hits_and_nothing_else(tmp_path: Path) -> None:
    watch = Watch()
    for cut in (0, 1, NOTE_BYTES, 70 * NOTE_BYTES):
        path = tmp_path / f"{cut}"
        notes = await opened(path, watch)
        await notes.add([manifest(number) for number in range(100)])
        await notes.add([manifest(number) for number in range(100, 104)])
        [run], [log] = path.glob("*.run"), path.glob("*.log")
        spoiled(run, 20 * NOTE_BYTES + 40)
        spoiled(log, NOTE_BYTES + 5)
        run.write_bytes(whole := run.read_bytes()[: run.stat().st_size - cut])
        left = min(100, len(whole) // NOTE_BYTES)
        others = [number for number in (*range(left), *range(100, 104)) if number not in (20, 101)]
        for options in (NotesOptions(), SMALL):
            notes = await opened(path, watch, options)
            assert await known(notes, range(104)) == others
            assert run.exists() == (cut == 0)
        await notes.add([manifest(200), manifest(201)])
        assert await known(await opened(path, watch), range(202)) == [*others, 200, 201]
        assert len(list(path.glob("*.run"))) == 1


async def test_old_notes_go_by_whole_days_and_times_that_never_come_do_not_stay(tmp_path: Path) -> None:
    watch = Watch()
    notes = await opened(tmp_path, watch)
    begin = watch.ns
    for day in range(10):
        watch.ns = begin + day * DAY_NS + (3_650 * DAY_NS if day == 1 else 0)
        await notes.add([manifest(day * 10 + number) for number in range(6)])
    assert len(list(tmp_path.glob("*.run"))) == 10
    assert await notes.forget(begin) == 0
    assert await notes.forget(begin + 3 * DAY_NS + 1, [manifest(20).identity, manifest(95).identity]) == 23
    assert await known(notes, range(50)) == [20, *range(40, 46)]
    assert await notes.forget(begin + 3 * DAY_NS + 1) == 1  # nobody needs it any more
    await notes.add([manifest(100)])
    watch.ns += 2 * DAY_NS
    assert await notes.forget(begin + 4 * DAY_NS + 1) == 6
    assert list(tmp_path.glob("*.log")) == []  # it was a day old, and is in a run now
    assert await known(await opened(tmp_path, watch), [*range(60), 100]) == [*range(50, 56), 100]


async def test_the_older_half_goes_for_want_of_room(tmp_path: Path) -> None:
    watch = Watch()
    notes = await opened(tmp_path, watch)
    for day in range(3):
        await notes.add([manifest(day * 10 + number) for number in range(5)])
        watch.ns += 2 * DAY_NS
    assert await notes.shed([manifest(1).identity]) == 9
    assert await known(notes, range(30)) == [1, *range(20, 25)]
    assert await notes.shed() == 5
    assert await notes.shed() == 1
    assert len(notes) == len(list(tmp_path.glob("*.run"))) == 0


class NoRoomForRuns(DiskFolder):
    full = True

    async def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        if self.full and name.endswith(".run"):
            raise Unavailable("No space left on device")
        await super().replace(name, data, durable=durable)


async def test_where_there_is_no_room_to_sort_notes_are_taken_all_the_same(tmp_path: Path) -> None:
    folder = NoRoomForRuns(tmp_path)
    notes = await opened(tmp_path, Watch(), folder=folder)
    for number in range(20):
        await notes.add([manifest(number)])
    assert await known(notes, range(30)) == list(range(20))
    folder.full = False
    await notes.add([manifest(20)])
    assert len(list(tmp_path.glob("*.run"))) == 1
    assert await known(await opened(tmp_path, Watch()), range(30)) == list(range(21))
