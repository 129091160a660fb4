"""The queue of an agent on a real disk: numbers, restarts, torn ends, damage, bounds, locks."""

import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from holdfast.base.clock import SystemClock
from holdfast.base.errors import Corrupt, Invalid, Refused, Unavailable
from holdfast.base.ids import Ambient
from holdfast.telemetry.agent.queue import (
    Entry,
    Parked,
    Queue,
    Queued,
    QueueFull,
    QueueOptions,
    Unreadable,
    all_parked,
    find_name,
    find_parked,
    open_queue,
    parked_names,
    write_parked,
)
from holdfast.telemetry.folder import DiskFolder, held_folder
from holdfast.telemetry.frame import decode
from holdfast.telemetry.records import Log

AMBIENT = Ambient(SystemClock(), Random(7))
SMALL = QueueOptions(segment_bytes=1_000, tidy_bytes=400)


def lines(*numbers: int) -> list[Log]:
    return [Log(f"line {number}", number) for number in numbers]


async def opened(path: Path, options: QueueOptions = SMALL, agent_id: str = "web-1") -> Queue:
    path.mkdir(exist_ok=True)
    return await open_queue(DiskFolder(path), agent_id, AMBIENT, options)


async def all_queued(queue: Queue) -> list[Queued]:
    found: list[Queued] = []
    at = queue.cursor
    while (queued := await queue.read(at)) is not None:
        found.append(queued)
        at = queued.after
    return found


def texts(queued: list[Queued]) -> list[str]:
    records = [each.record for batch in queued for each in decode(batch.frame).records()]
    return [record.message for record in records if isinstance(record, Log)]


async def test_numbers_go_on_after_everything_was_accepted(tmp_path: Path) -> None:
    queue = await opened(tmp_path)
    for number in range(30):
        await queue.append(lines(number), {"position": number + 1})
        for batch in await all_queued(queue):
            await queue.advance(batch.after, batch.identity.seq_end + 1)
    assert queue.bytes < 1_000
    (tmp_path / "cursor.json").unlink()
    again = await opened(tmp_path)
    assert again.state == {"position": 30}
    assert (await again.append(lines(30))).seq_start == 30


@pytest.mark.parametrize("cut", [5, 60])
async def test_a_torn_end_is_cut_off_and_its_numbers_are_given_again(tmp_path: Path, cut: int) -> None:
    queue = await opened(tmp_path)
    await queue.append(lines(0))
    whole = queue.bytes
    await queue.append(lines(1, 2), {"position": 9})
    segment = next(tmp_path.glob("*.segment"))
    segment.write_bytes(segment.read_bytes()[: whole + cut])
    again = await opened(tmp_path)
    assert again.next_seq == 1
    assert again.state == {}
    assert segment.stat().st_size == whole


def damaged(path: Path, at: int) -> tuple[Path, bytes]:
    """The newest segment, with a byte of it changed."""
    segment = max(path.glob("*.segment"))
    data = bytearray(segment.read_bytes())
    data[at] ^= 0xFF
    segment.write_bytes(data)
    return segment, bytes(data)


async def test_damage_is_kept_aside_and_passed_over_and_no_number_of_it_is_given_again(tmp_path: Path) -> None:
    queue = await opened(tmp_path, QueueOptions())
    ends = [0]
    for numbers in ((0,), (1,), (2,), (3, 4)):
        await queue.append(lines(*numbers))
        ends.append(queue.bytes)
    _, data = damaged(tmp_path, ends[1] + 30)
    again = await opened(tmp_path, QueueOptions())
    assert texts(await all_queued(again)) == ["line 0", "line 2", "line 3", "line 4"]
    assert (again.next_seq, again.totals) == (5, {"damaged_bytes": ends[2] - ends[1]})
    assert next(tmp_path.glob("*.damaged")).read_bytes() == data[ends[1] : ends[2]]
    damaged(tmp_path, -1)
    for _ in range(2):
        again = await opened(tmp_path, QueueOptions())
        assert again.next_seq > 5
        assert texts(await all_queued(again)) == ["line 0", "line 2"]
    await again.append(lines(9))
    assert texts(await all_queued(await opened(tmp_path, QueueOptions()))) == ["line 0", "line 2", "line 9"]


async def test_a_newest_segment_that_was_only_begun_or_cannot_be_read_gives_no_number_again(tmp_path: Path) -> None:
    queue = await opened(tmp_path)
    await queue.append(lines(0, 1), {"position": 2})
    (begun := tmp_path / f"{2:020d}.segment").write_bytes(b"HFQ1\x09")
    again = await opened(tmp_path)
    assert (again.next_seq, again.state) == (2, {"position": 2})
    assert texts(await all_queued(again)) == ["line 0", "line 1"]
    begun.unlink(missing_ok=True)
    damaged(tmp_path, 20)
    segment, data = damaged(tmp_path, -1)
    assert (await opened(tmp_path)).next_seq > 1
    assert segment.with_name(f"{segment.name}.damaged").read_bytes() == data


async def test_a_full_queue_takes_nothing_and_loses_nothing(tmp_path: Path) -> None:
    queue = await opened(tmp_path, QueueOptions(max_bytes=600))
    taken = 0
    while queue.bytes < 450:
        await queue.append(lines(taken))
        taken += 1
    with pytest.raises(QueueFull, match="at most 600"):
        await queue.append(lines(*range(40)))
    queue.count("dropped_logs", 1)
    await queue.save_cursor()
    again = await opened(tmp_path, QueueOptions(max_bytes=600))
    assert again.next_seq == taken
    assert again.totals == {"dropped_logs": 1}
    assert len(await all_queued(again)) == taken


async def test_a_full_disk_leaves_the_queue_as_it_was(tmp_path: Path) -> None:
    queue = await opened(tmp_path)
    await queue.append(lines(0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (queue.bytes + 40, before[1]))
    try:
        with pytest.raises(Unavailable, match="disk is full"):
            await queue.append(lines(1, 2, 3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (await queue.append(lines(1))).seq_start == 1
    assert texts(await all_queued(await opened(tmp_path))) == ["line 0", "line 1"]


async def test_a_lost_cursor_sends_again_what_is_left_and_nothing_else(tmp_path: Path) -> None:
    queue = await opened(tmp_path)
    for number in range(12):
        await queue.append(lines(number))
    fifth = (await all_queued(queue))[4]
    await queue.advance(fifth.after, 5)
    assert texts(await all_queued(await opened(tmp_path)))[0] == "line 5"
    (tmp_path / "cursor.json").write_bytes(b'{"format"')
    again = texts(await all_queued(await opened(tmp_path)))
    assert again[-1] == "line 11"
    assert again.index("line 5") <= 5


async def test_a_folder_that_is_no_queue_of_this_agent_alone_is_refused_in_one_line(tmp_path: Path) -> None:
    await opened(tmp_path / "q")
    with pytest.raises(Refused, match="that of agent web-1, not of web-2"):
        await opened(tmp_path / "q", agent_id="web-2")
    with held_folder(tmp_path / "q"), pytest.raises(Refused, match="another agent"), held_folder(tmp_path / "q"):
        pass
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(Refused, match=r"holiday\.jpg"):
        await opened(tmp_path)
    with pytest.raises(Invalid, match="File exists"), held_folder(tmp_path / "holiday.jpg"):
        pass
    with pytest.raises(Invalid, match="--queue /proc/x: no folder can be created there"), held_folder(Path("/proc/x")):
        pass


async def test_parked_batches_are_found_by_their_numbers_and_give_their_room_back(tmp_path: Path) -> None:
    queue = await opened(tmp_path)
    for number in (0, 1):
        await queue.append(lines(number))
    before = queue.bytes
    parked = [Parked(each.identity, each.frame, "too_large", "bytes", "a", 5) for each in await all_queued(queue)]
    for each in parked:
        queue.parked_bytes += await write_parked(queue.folder, each)
    assert await parked_names(queue.folder) == [each.name for each in parked]
    assert await find_parked(queue.folder, "0-0") == parked[0]
    assert [each async for each in all_parked(queue.folder)] == parked
    assert (await opened(tmp_path)).parked_bytes == queue.parked_bytes
    assert (await queue.look_at_parked(), queue.bytes > before) == (2, True)
    (tmp_path / parked[0].name).write_bytes(b"rubbish")  # hides no other, and can be dropped
    unreadable, whole = [each async for each in all_parked(queue.folder)]
    assert isinstance(unreadable, Unreadable)
    assert (unreadable.numbers, unreadable.size, whole) == ("0-0", 7, parked[1])
    assert await find_name(queue.folder, "0-0") == unreadable.name
    with pytest.raises(Corrupt, match="parked drop"):
        await find_parked(queue.folder, "0-0")
    for name in await parked_names(queue.folder):
        await queue.folder.remove(name)
    assert (await queue.look_at_parked(), queue.bytes) == (0, before)


async def test_a_queue_of_many_batches_opens_without_reading_them(tmp_path: Path) -> None:
    """Of 100,000 batches one segment is read, and the names of a few."""
    queue = await opened(tmp_path, QueueOptions())
    await queue.append(lines(0), {"position": 1})
    frame = (await all_queued(queue))[0].frame
    entry = Entry(frame, {"position": 1}).encode()
    newest = next(tmp_path.glob("*.segment")).read_bytes()
    per_segment = 20_000
    for number in range(5):
        (tmp_path / f"{number:020d}.segment").write_bytes(newest + entry * (per_segment - 1))
    folder = Counting(tmp_path)
    again = await open_queue(folder, "web-1", AMBIENT, QueueOptions())
    assert again.bytes > 100_000 * len(frame)
    assert folder.bytes_read < 1.1 * per_segment * len(entry) + 1_000


class Counting(DiskFolder):
    bytes_read = 0

    async def read(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        found = await super().read(name, start, length)
        self.bytes_read += len(found or b"")
        return found


async def test_notes_may_tell_of_changes_alone(tmp_path: Path) -> None:
    queue = await opened(tmp_path)
    await queue.append(lines(0), {"changes": {"logs": {"a": 1, "b": 2}}, "position": 1})
    await queue.append(lines(1), {"changes": {"logs": {"a": None, "c": 3}}})
    assert queue.state == (await opened(tmp_path)).state == {"logs": {"b": 2, "c": 3}, "position": 1}


async def test_what_is_accepted_gives_way_when_there_is_no_room(tmp_path: Path) -> None:
    """The newest segment is kept for a while after its batches are accepted; a small queue must not end by it."""
    queue = await opened(tmp_path, QueueOptions(max_bytes=2_000))
    for number in range(100):
        await queue.append(lines(number), {"position": number})
        for batch in await all_queued(queue):
            await queue.advance(batch.after, batch.identity.seq_end + 1)
    assert queue.bytes <= 2_000
    again = await opened(tmp_path, QueueOptions(max_bytes=2_000))
    assert (again.state, again.next_seq) == ({"position": 99}, 100)
    while again.bytes < 1_700:
        await again.append(lines(again.next_seq))
    with pytest.raises(QueueFull):
        await again.append(lines(*range(2_000)))
    waiting = await all_queued(again)
    for batch in waiting[: len(waiting) // 2]:  # and piece by piece
        await again.advance(batch.after, batch.identity.seq_end + 1)
    await again.append(lines(1_000))
    assert texts(await all_queued(again))[-1] == "line 1000"


class TinyDisk(DiskFolder):
    """A disk of so many bytes, full to the last one before it refuses."""

    room = 40_000

    async def append(self, name: str, at: int, data: bytes) -> None:
        await self._fits(at + len(data) - (await self.size(name) or 0))
        await super().append(name, at, data)

    async def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        await self._fits(len(data))
        await super().replace(name, data, durable=durable)

    async def _fits(self, more: int) -> None:
        if sum([await self.size(name) or 0 for name in await self.names()]) + more > self.room:
            raise Unavailable("the disk is full")


async def test_on_a_disk_that_is_full_to_the_last_byte_what_is_accepted_can_still_go(tmp_path: Path) -> None:
    disk = TinyDisk(tmp_path)
    queue = await open_queue(disk, "web-1", AMBIENT)
    for _ in range(3):
        while sum([await disk.size(name) or 0 for name in await disk.names()]) < disk.room - 300:
            await queue.append(lines(queue.next_seq))
        (tmp_path / "of others").write_bytes(bytes(disk.room - sum(each.stat().st_size for each in tmp_path.iterdir())))
        with pytest.raises(Unavailable):
            await queue.append(lines(queue.next_seq))
        for batch in await all_queued(queue):
            await queue.advance(batch.after, batch.identity.seq_end + 1)
        await queue.append(lines(queue.next_seq))
        (tmp_path / "of others").unlink()
        again = await open_queue(disk, "web-1", AMBIENT)
        assert again.next_seq == queue.next_seq
        queue = again


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to], ids=["symbolic", "hard"])
@pytest.mark.parametrize("name", ["queue.lock", "queue.json.new", "queue.json", f"{0:020d}.segment"])
async def test_no_file_of_a_queue_is_opened_through_a_link(
    tmp_path: Path, name: str, link: Callable[[Path, Path], None]
) -> None:
    """A user who may write to the folder must not make the agent read or overwrite other files of its user."""
    victim, folder = tmp_path / "victim", tmp_path / "queue"
    victim.write_text("of another user")
    folder.mkdir()
    link(folder / name, victim)
    disk = DiskFolder(folder)
    if name == "queue.lock":
        with pytest.raises(Refused, match=r"queue.lock: is a link"), held_folder(folder):
            pytest.fail("the folder was locked through a link")
    elif name.endswith(".new"):
        await disk.replace("queue.json", b"{}")
        assert (folder / "queue.json").read_bytes() == b"{}"
    else:
        with pytest.raises(Refused, match="is a link"):
            await disk.append(name, 0, b"x")
        with pytest.raises(Refused, match="is a link"):
            await disk.read(name)
        await disk.replace(name, b"{}")
        assert not (folder / name).is_symlink()
    assert victim.read_text() == "of another user"


async def test_files_of_a_queue_are_private_and_a_named_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    with held_folder(tmp_path / "queue") as disk:
        await disk.append("a", 0, b"x")
        await disk.replace("b", b"x")
        assert stat.S_IMODE(disk.path.stat().st_mode) == 0o700
        modes = {name: stat.S_IMODE((disk.path / name).stat().st_mode) for name in await disk.names()}
        assert modes == {"a": 0o600, "b": 0o600, "queue.lock": 0o600}
        os.mkfifo(disk.path / "queue.json")
        with pytest.raises(Refused, match="not a regular file"):
            await disk.read("queue.json")
