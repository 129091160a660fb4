"""The commit protocol over a real store: what is visible, at what price, and what others make of it."""

import asyncio

import pytest

from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written
from tests.unit.ontology.desk import PRODUCT, Desk, intent, put


async def test_a_warm_commit_of_one_type_is_three_requests_whatever_came_before(desk: Desk) -> None:
    writer = desk.committer()
    await put(writer, ("c1", 0), ("c2", 0))
    await put(writer, ("p1", 0), type_id=PRODUCT)
    desk.spent()
    for number in range(1, 140):
        await put(writer, ("c1", number))
        assert desk.spent() == {"put": 3}, number
    await put(writer, *((f"c{key}", 1) for key in range(2_000)))
    assert desk.spent() == {"put": 3}
    writer.queue += [intent("c1", "x"), intent("p1", "x", PRODUCT)]
    await writer.commit()
    assert desk.spent() == {"put": 4}


async def test_what_changes_nothing_commits_nothing(desk: Desk) -> None:
    writer = desk.committer()
    await put(writer, ("c1", 1))
    desk.spent()
    assert await put(writer, ("c1", 1)) is None
    assert desk.spent() == {"get": 1}
    assert writer.queue == []
    assert await writer.commit() is None
    assert desk.spent() == {}


async def test_a_lost_race_is_won_later_and_its_attempt_is_removed(desk: Desk) -> None:
    anna, bert = desk.committer(), desk.committer()
    await put(anna, ("c1", 0))
    await put(bert, ("c2", 0))
    await put(anna, ("c1", 1))
    desk.spent()
    commit = await put(bert, ("c2", 1))
    assert commit.commit_id == 4
    folders = {key.split("/")[1] for key in desk.shelf.objects if key.startswith("commits/")}
    assert len(folders) == 4
    # Three writes in vain, the head and the rival's manifest and file read, two deletes, three writes.
    assert desk.spent() == {"put": 6, "get": 3, "delete": 2}


async def test_a_retracted_row_keeps_its_fields_and_can_come_back(desk: Desk) -> None:
    writer = desk.committer()
    await put(writer, ("c1", 1), ("c2", 1))
    assert (await put(writer, ("c1", None))).rows == 1
    assert await put(writer, ("c1", None), ("c9", None)) is None
    assert (await desk.reader.latest("entity", "Customer"))["c1"] == {"v": 1}
    other = desk.committer()
    assert await put(other, ("c1", None)) is None
    assert (await put(other, ("c1", 1))).commit_id == 3


async def test_a_cancelled_commit_is_settled_by_the_next(desk: Desk) -> None:
    writer = desk.committer()
    await put(writer, ("c1", 0))
    held = asyncio.Event()

    class Slow(MemoryStore):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            outcome = await super().put(key, body, mode)
            if key == "meta/head.json" and not held.is_set():
                held.set()
                await asyncio.sleep(60)
            return outcome

    writer._store = Slow(desk.shelf)
    task = asyncio.ensure_future(put(writer, ("c1", 1)))
    await held.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    commit = await writer.commit()
    assert commit is not None
    assert commit.commit_id == 2
    assert (await desk.reader.head())["commit_id"] == 2
