"""What appending and resuming cost, in requests and bytes: counted, exact."""

import math

from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.history import read_history
from holdfast.runs.journal.journal import Journal
from tests.unit.runs.journal.journals import TINY, Archive, step

KIB = "x" * 1024


async def run_of(steps: int) -> tuple[Archive, Journal]:
    archive = Archive()
    journal = await archive.begin()
    archive.spent()
    for number in range(steps):
        await journal.append(step(number, KIB))
    return archive, journal


async def test_uploads_grow_linearly_and_sealing_is_one_request_in_thirty_two() -> None:
    sent: dict[int, int] = {}
    for steps in (100, 1_000, 10_000):
        archive, journal = await run_of(steps)
        sent[steps] = sum(tally.sent_bytes for tally in archive.usage.tallies.values())
        requests = archive.spent()
        assert requests.keys() == {"put"}
        assert steps < requests["put"] <= steps + steps // 32
        history = await read_history(archive.store, "r")
        assert history is not None
        assert history.lines == journal.history.lines
        assert archive.spent() == {"get": 1 + len(history.refs)}
        assert len(history.refs) <= 7 * 3  # three levels hold 16,384 lines
        assert len(archive.body()) < 64 * 1024
    for fewer, more in ((100, 1_000), (1_000, 10_000), (100, 10_000)):
        assert math.log(sent[more] / sent[fewer]) / math.log(more / fewer) <= 1.1


async def test_a_small_run_is_one_object_as_the_specification_has_it() -> None:
    archive, _ = await run_of(31)
    assert sorted(archive.shelf.objects) == ["runs/r/journal.jsonl"]
    assert all(line.startswith(b'{"') and b'"type":"segments"' not in line for line in archive.lines())


async def test_many_small_lines_are_not_sealed_before_they_weigh_something() -> None:
    archive = Archive()
    journal = await archive.begin()
    for number in range(200):
        await journal.append(step(number))
    assert journal.history.refs == ()


async def test_a_run_that_only_waits_is_sealed_too() -> None:
    archive = Archive()
    for number in range(40):
        journal = await archive.begin(policy=TINY)
        await journal.append(Draft("suspend", {"event": f"e{number}", "stepId": f"e{number}"}))
    assert len(archive.lines()) <= 2 * TINY.lines + 3
    assert len((await archive.history()).entries) == 80
