"""A run is in the index before its first entry: a process killed after that entry leaves a run that is found."""

from typing import Any

import pytest

from holdfast import runs
from holdfast.objects.client import Client
from holdfast.objects.store import CREATE, OVERWRITE, Lost, Mode, Written
from holdfast.runs.journal.index import CREATION_MS
from tests.unit.runs.desk import Crash, Desk


class Dying(Client):
    """The process dies before or after the first write of a journal."""

    when = "after"

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        first = key.endswith("journal.jsonl") and mode is CREATE
        if first and self.when == "before":
            raise Crash
        outcome = await super().put(key, body, mode)
        if first:
            raise Crash
        return outcome


def dying(desk: Desk, when: str) -> Client:
    store = desk.store()
    client = Dying(store.backend, ambient=store.ambient)
    client.when = when
    return client


@runs.workflow()
async def work(ctx: runs.Context) -> Any:
    return await ctx.step("s", lambda: 1)


@runs.workflow()
async def parent(ctx: runs.Context) -> Any:
    return await ctx.run(work)


async def found(desk: Desk) -> list[str]:
    return [summary.run_id async for summary in runs.find(desk.store())]


async def worked(desk: Desk) -> Any:
    return await runs.worker(desk.store(), [work, parent], stale_after_ms=1_000, until_idle=True)


async def test_a_run_killed_after_its_first_entry_is_listed_and_finished_by_a_worker() -> None:
    desk = Desk()
    with pytest.raises(Crash):
        await work.start(dying(desk, "after"), run_id="r")
    assert await found(desk) == ["r"]
    desk.watch.advance(seconds=5)
    await worked(desk)
    assert (await runs.describe(desk.store(), "r")).status == "success"


async def test_a_fork_killed_after_its_first_entry_is_finished_by_a_worker() -> None:
    desk = Desk()
    await work.start(desk.store(), run_id="r")
    with pytest.raises(Crash):
        await runs.fork(dying(desk, "after"), "r", from_step="s", new_run_id="f")
    await worked(desk)
    assert (await runs.describe(desk.store(), "f")).status == "success"


async def test_a_run_that_was_never_created_is_no_run_and_leaves_the_index_after_a_while() -> None:
    desk = Desk()
    with pytest.raises(Crash):
        await work.start(dying(desk, "before"), run_id="r")
    desk.watch.advance(seconds=5)
    assert (await worked(desk)).called == 0
    rebuilt = await runs.reindex(desk.store())
    assert (rebuilt.removed, await found(desk)) == (0, ["r"]), "its creation may still be under way"
    desk.watch.advance(seconds=CREATION_MS / 1000)
    await worked(desk)
    assert await found(desk) == []


async def test_a_repair_removes_what_was_never_created() -> None:
    desk = Desk()
    with pytest.raises(Crash):
        await work.start(dying(desk, "before"), run_id="r")
    desk.watch.advance(seconds=5 + CREATION_MS / 1000)
    assert (await runs.reindex(desk.store())).removed == 1
    assert await found(desk) == []


async def test_a_caller_that_lost_the_race_to_create_a_run_removes_its_key() -> None:
    desk = Desk()

    class Late(Client):
        """Another caller creates and finishes the run just before this one writes its first entry."""

        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            if key.endswith("journal.jsonl") and mode is CREATE:
                desk.watch.advance(seconds=1)
                assert (await work.start(desk.store(), run_id="r")).finished
            return await super().put(key, body, mode)

    store = desk.store()
    late = Late(store.backend, ambient=store.ambient, retry=None)
    assert (await work.start(late, run_id="r")).result == 1
    assert [key for key in desk.shelf.objects if key.startswith("runs-index/v1/open/")] == []


async def test_the_key_in_the_index_costs_no_request_more() -> None:
    desk = Desk()
    store = desk.store()
    await work.start(store, run_id="r")
    assert dict(store.usage.by_verb) == {"get": 1, "put": 2 + 1 + 2, "delete": 1}


async def test_a_repair_keeps_mail_that_came_for_a_run_that_was_not_created() -> None:
    desk = Desk()
    with pytest.raises(Crash):
        await work.start(dying(desk, "before"), run_id="r")
    await runs.deliver(desk.store(), "r", "go", 1)
    desk.watch.advance(seconds=5 + CREATION_MS / 1000)
    assert (await runs.reindex(desk.store())).removed == 1
    assert [key for key in desk.shelf.objects if "runs-index" in key and "!" not in key] == []
    assert len(desk.shelf.objects) == 2, "the mail and its nudge"
