"""The queue of an agent on a real disk: numbers, restarts, limits, parked batches, damage. Crashes are simulated in
``ingest-agents``; the database itself is tested in ``test_database``."""

import random
import sqlite3
from pathlib import Path

import pytest

from holdfast.base.clock import SystemClock
from holdfast.base.errors import Incompatible, Invalid, NotFound, Refused
from holdfast.base.ids import Ambient
from holdfast.telemetry.agent import queue as queueing
from holdfast.telemetry.agent.queue import DAMAGED, FILE, Queue, open_parked, open_queue
from holdfast.telemetry.database import Full
from holdfast.telemetry.frame import decode
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.records import Log

AMBIENT = Ambient(SystemClock(), random.Random(7))


def lines(*numbers: int) -> list[Log]:
    return [Log(f"line {number}", number) for number in numbers]


async def waiting(queue: Queue) -> list[str]:
    """The lines of all batches that wait."""
    found: list[str] = []
    after = -1
    while (queued := await queue.read(after)) is not None:
        after = queued.identity.seq_start
        found += [each.record.message for each in decode(queued.frame).records() if isinstance(each.record, Log)]
    return found


def change(path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(path / FILE) as database:
        database.execute(statement, values)
    database.close()


async def test_batches_numbers_and_state_survive_a_restart(tmp_path: Path) -> None:
    async with open_queue(tmp_path, "web-1", AMBIENT) as queue:
        boot = queue.boot_id
        first = await queue.append(lines(0, 1), {"log a": [1], "log b": [2], "position": 2})
        await queue.append(lines(2), {"log a": None, "position": 3})
        await queue.save({"dropped": 4})
        assert (first.seq_start, first.seq_end, queue.waiting_records) == (0, 1, 3)
    async with open_queue(tmp_path, "web-1", AMBIENT) as queue:
        assert (queue.boot_id, queue.next_seq, queue.waiting_records) == (boot, 3, 3)
        assert queue.state == {"log b": [2], "position": 3, "dropped": 4}
        assert await waiting(queue) == ["line 0", "line 1", "line 2"]
        await queue.remove(first)
        assert await waiting(queue) == ["line 2"]
        await queue.remove(BatchIdentity("web-1", boot, 2, 2))
    async with open_queue(tmp_path, "web-1", AMBIENT) as queue:
        assert (queue.next_seq, queue.waiting_records) == (3, 0)  # numbers continue when nothing is left
        assert (await queue.append(lines(3))).seq_start == 3


async def test_a_full_queue_takes_nothing_and_takes_again_what_fits_after_a_removal(tmp_path: Path) -> None:
    async with open_queue(tmp_path, "web-1", AMBIENT, max_bytes=100_000) as queue:

        async def fill() -> None:
            while True:
                await queue.append([Log(random.randbytes(2_000).hex(), 1)], {"position": queue.next_seq})

        with pytest.raises(Full, match="limit of 100000 bytes"):
            await fill()
        count = queue.next_seq
        assert (queue.waiting_records, queue.state["position"]) == (count, count - 1)
        assert len(await waiting(queue)) == count
        for number in (0, 1):
            await queue.remove(BatchIdentity("web-1", queue.boot_id, number, number))
        assert (await queue.append(lines(9))).seq_start == count


async def test_a_folder_that_is_no_queue_of_this_agent_alone_is_refused(tmp_path: Path) -> None:
    async with open_queue(tmp_path / "q", "web-1", AMBIENT):
        with pytest.raises(Refused, match="another agent uses this queue"):
            async with open_queue(tmp_path / "q", "web-1", AMBIENT):
                pass
    with pytest.raises(Refused, match="that of agent web-1, not of web-2"):
        async with open_queue(tmp_path / "q", "web-2", AMBIENT):
            pass
    (tmp_path / "q" / "queue.json").write_text("{}")
    with pytest.raises(Incompatible, match="format version 1") as caught:
        async with open_queue(tmp_path / "q", "web-1", AMBIENT):
            pass
    assert "let the release that wrote it send all batches" in (caught.value.remedy or "")


async def test_parked_batches_are_listed_and_dropped_while_the_agent_runs(tmp_path: Path) -> None:
    async with open_queue(tmp_path, "web-1", AMBIENT) as queue:
        identities = [await queue.append(lines(number, number)) for number in range(3)]
        for identity in identities[:2]:
            await queue.park(identity, "too_large", "413")
        assert (queue.waiting_records, await waiting(queue)) == (2, ["line 2", "line 2"])
        async with open_parked(tmp_path) as parked:
            found = await parked.all()
            assert [(each.identity, each.reason, each.detail) for each in found] == [
                (identity, "too_large", "413") for identity in identities[:2]
            ]
            assert await parked.find("2-3") == found[1]
            assert decode(await parked.frame(found[1])).identity == identities[1]
            await parked.remove(found[1])
            with pytest.raises(NotFound, match="not parked any more"):
                await parked.frame(found[1])
            for numbers in ("2-3", "4-5"):  # dropped, and not parked
                with pytest.raises(NotFound, match=f"no parked batch has the numbers {numbers}"):
                    await parked.find(numbers)
            with pytest.raises(Invalid, match="write them as in"):
                await parked.find("all")
        await queue.append(lines(7))
        assert await queue.parked.all() == found[:1]
    with pytest.raises(Invalid, match="has no queue"):
        async with open_parked(tmp_path / "nothing"):
            pass


@pytest.mark.parametrize("frame", ["x'00'", "(SELECT frame FROM batches WHERE seq_start = 2)"])
async def test_a_damaged_batch_is_parked_and_hides_no_other(
    tmp_path: Path, frame: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_queue(tmp_path, "web-1", AMBIENT) as queue:
        for number in range(3):
            await queue.append(lines(number))
    change(tmp_path, f"UPDATE batches SET frame = {frame} WHERE seq_start = 1")
    async with open_queue(tmp_path, "web-1", AMBIENT) as queue:
        assert await waiting(queue) == ["line 0", "line 2"]
        (parked,) = await queue.parked.all()
        assert (parked.identity.seq_start, parked.reason, queue.waiting_records) == (1, DAMAGED, 2)
    assert "is damaged" in caplog.text


async def test_only_what_differs_in_the_state_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[dict[str, object]] = []
    monkeypatch.setattr(queueing, "_write_state", lambda _, changes: written.append(dict(changes)))
    async with open_queue(tmp_path, "web-1", AMBIENT) as queue:
        await queue.append(lines(0), {"log a": [1], "log b": [2]})
        await queue.append(lines(1), {"log a": [1], "log b": [3], "log c": None})
    assert written == [{"log a": [1], "log b": [2], "next_seq": 1}, {"log b": [3], "next_seq": 2}]
