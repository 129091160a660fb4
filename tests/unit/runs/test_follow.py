"""Following a run: every entry once, in order, at one GET per look."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast import runs
from holdfast.base.errors import NotFound
from holdfast.runs import Entry
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.history import generation, read_history
from tests.unit.runs.desk import Desk
from tests.unit.runs.journal.journals import TINY, Archive, step


async def take(entries: AsyncIterator[Entry], count: int) -> list[str]:
    return [_name(await anext(entries)) for _ in range(count)]


async def rest(entries: AsyncIterator[Entry]) -> list[str]:
    return [_name(entry) async for entry in entries]


def _name(entry: Entry) -> str:
    return str(entry.fields.get("stepId", entry.type))


async def test_a_finished_run_is_one_read() -> None:
    archive = Archive()
    journal = await archive.begin()
    await journal.append(step(1), step(2))
    await journal.append(Draft("complete", {}))
    archive.spent()
    assert await rest(runs.follow(archive.store, "r")) == ["start", "s1", "s2", "complete"]
    assert archive.spent() == {"get": 1}
    assert await rest(runs.follow(archive.store, "r", last=2)) == ["s2", "complete"]
    assert await rest(runs.follow(archive.store, "r", last=0)) == []


async def test_new_entries_as_they_come_at_one_get_per_look() -> None:
    archive = Archive()
    journal = await archive.begin()
    entries = runs.follow(archive.store, "r", poll_ms=0)
    assert await take(entries, 1) == ["start"]
    archive.spent()
    await journal.append(step(1), step(2))
    assert archive.spent() == {"put": 1}
    assert await take(entries, 2) == ["s1", "s2"]
    assert archive.spent() == {"get": 1}
    waiting = asyncio.ensure_future(anext(entries))
    while archive.usage.requests("get") < 5:
        await asyncio.sleep(0)
    assert not waiting.done(), "looking at an unchanged run gives nothing"
    await journal.append(step(3))
    assert _name(await waiting) == "s3"
    assert set(archive.spent()) == {"get", "put"}
    await journal.append(Draft("complete", {}))
    assert await rest(entries) == ["complete"]


async def test_lines_that_were_sealed_between_two_looks() -> None:
    archive = Archive()
    journal = await archive.begin(policy=TINY)
    entries = runs.follow(archive.store, "r", poll_ms=0)
    seen = await take(entries, 1)
    for number in range(40):
        await journal.append(step(number))
        if number in (3, 4, 11, 30):
            seen += await take(entries, len(journal.history.entries) - len(seen))
    await journal.append(Draft("complete", {}))
    seen += await rest(entries)
    assert archive.keys("/segments/"), "the run was long enough to be sealed"
    assert seen == ["start", *(f"s{number}" for number in range(40)), "complete"]


async def test_only_segments_that_hold_something_new_are_read() -> None:
    archive = Archive()
    journal = await archive.begin(policy=TINY)
    for number in range(20):
        await journal.append(step(number))
    entries = runs.follow(archive.store, "r", poll_ms=0)
    await take(entries, len(journal.history.entries))
    archive.spent()
    await journal.append(step(20))
    archive.spent()
    await take(entries, 1)
    assert archive.spent() == {"get": 1}, "what is new stands in the tail"


async def test_a_run_that_continues_as_new_between_two_looks() -> None:
    archive = Archive()
    journal = await archive.begin(policy=TINY)
    entries = runs.follow(archive.store, "r", poll_ms=0)
    assert await take(entries, 1) == ["start"]
    for number in range(3):
        await journal.append(step(f"{number}a"), step(f"{number}b"), step(f"{number}c"))
        await journal.continue_as_new({})
    await journal.append(Draft("complete", {}))
    assert await rest(entries) == [
        *("s0a", "s0b", "s0c", "start"),
        *("s1a", "s1b", "s1c", "start"),
        *("s2a", "s2b", "s2c", "start"),
        "complete",
    ]
    history = await archive.history()
    first = await generation(archive.store, history, 0)
    assert [_name(entry) for entry in first.entries] == ["start", "s0a", "s0b", "s0c"]
    assert await generation(archive.store, history, 3) is history
    with pytest.raises(NotFound, match="no generation 4"):
        await generation(archive.store, history, 4)


async def test_a_run_that_is_deleted_ends() -> None:
    desk = Desk()

    @runs.workflow()
    async def work(ctx: runs.Context) -> Any:
        return await ctx.suspend("go")

    await work.start(desk.store(), run_id="r")
    entries = runs.follow(desk.store(), "r", poll_ms=0)
    assert await take(entries, 2) == ["start", "go"]
    await runs.delete(desk.store(), "r", force=True)
    assert (await rest(entries))[-1] == "cancel"
    history = await read_history(desk.store(), "r")
    assert history is not None
    assert history.state.status == "deleted"


async def test_a_run_that_is_not_there() -> None:
    with pytest.raises(NotFound):
        await rest(runs.follow(Archive().store, "missing"))
