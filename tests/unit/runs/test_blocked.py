"""A call that ends in an error which it would meet again leaves a trace for those who look at the run."""

import pytest

from holdfast import runs
from holdfast.runs.admin.control import reindex
from tests.unit.runs.desk import Crash, Desk


def versions(desk: Desk) -> tuple[runs.Workflow, runs.Workflow]:
    @runs.workflow(name="work")
    async def old(ctx: runs.Context) -> None:
        await ctx.step("one", int)
        raise Crash

    @runs.workflow(name="work")
    async def new(ctx: runs.Context) -> str:
        return str(await ctx.step("other", str, "done"))

    return old, new


async def listed(desk: Desk) -> list[tuple[str, str, str | None]]:
    return [(run.run_id, run.status, run.blocked) async for run in runs.find(desk.store())]


async def test_a_replay_mismatch_is_seen_in_lists_and_status_until_the_run_goes_on() -> None:
    desk = Desk()
    old, new = versions(desk)
    with pytest.raises(Crash):
        await old.start(desk.store(), run_id="r")
    assert (await runs.describe(desk.store(), "r")).blocked is None

    @runs.workflow(name="work")
    async def shorter(ctx: runs.Context) -> None: ...

    with pytest.raises(runs.ReplayMismatch, match="does not ask for"):
        await shorter.start(desk.store(), run_id="r")
    with pytest.raises(runs.ReplayMismatch):
        await new.start(desk.store(), run_id="r")

    assert await listed(desk) == [("r", "open", "ReplayMismatch")]
    blocked = (await runs.describe(desk.store(), "r")).blocked
    assert blocked is not None
    assert (blocked.type, blocked.message) == (
        "ReplayMismatch",
        "the journal has step 'one' at offset 1 where the code now asks for step 'other'",
    )
    assert "fork the run before that offset" in str(blocked.remedy)
    assert "blocked" not in "".join(desk.journal("r")), "the journal is left as it was"

    with pytest.raises(Crash):
        await old.start(desk.store(), run_id="r")
    assert await listed(desk) == [("r", "open", None)]
    assert (await runs.describe(desk.store(), "r")).blocked is None
    assert not [key for key in desk.shelf.objects if "/blocked." in key], "the next session's key removes the mark"


async def test_another_version_leaves_a_mark_that_does_not_outlive_the_run() -> None:
    desk = Desk()

    @runs.workflow(version="1", name="work")
    async def first(ctx: runs.Context) -> object:
        return await ctx.suspend("go")

    @runs.workflow(version="2", name="work")
    async def second(ctx: runs.Context) -> None:
        await ctx.step("next", desk.calls.update, ["next"])

    @runs.workflow(name="work")
    async def without(ctx: runs.Context) -> None: ...

    await first.start(desk.store(), run_id="r")
    for workflow, words in ((second, "version 2"), (without, "without a version"), (second, "version 2")):
        with pytest.raises(runs.VersionMismatch, match=f"started by version 1 of work, and this is {words}"):
            await workflow.start(desk.store(), run_id="r")
    assert not desk.calls, "the version is checked before any step"
    assert await listed(desk) == [("r", "suspended", "VersionMismatch")]
    assert len([key for key in desk.shelf.objects if "/blocked." in key]) == 1
    described = await runs.describe(desk.store(), "r")
    assert described.blocked is not None
    assert described.blocked.remedy == "finish it with version 1, or fork it"

    assert (await first.resume(desk.store(), "r", "go", 7)).result == 7
    assert await listed(desk) == [("r", "success", None)]
    assert not [key for key in desk.shelf.objects if "/blocked." in key]


async def test_results_that_cannot_be_written_down_leave_a_mark_and_callers_mistakes_none() -> None:
    desk = Desk()

    @runs.workflow()
    async def work(ctx: runs.Context, x: int) -> None:
        await ctx.step("thing", object)

    with pytest.raises(runs.NotJson):
        await work.start(desk.store(), 1, run_id="r")
    assert await listed(desk) == [("r", "open", "NotJson")]

    @runs.workflow()
    async def waits(ctx: runs.Context, x: int) -> None:
        await ctx.suspend("go")

    await waits.start(desk.store(), 1, run_id="w")
    with pytest.raises(runs.InputMismatch):
        await waits.start(desk.store(), 2, run_id="w")
    with pytest.raises(runs.WrongEvent):
        await waits.resume(desk.store(), "w", "stop")
    assert (await runs.describe(desk.store(), "w")).blocked is None


async def test_reindexing_keeps_a_mark_that_counts_and_removes_one_that_does_not() -> None:
    desk = Desk()
    old, new = versions(desk)
    with pytest.raises(Crash):
        await old.start(desk.store(), run_id="r")
    with pytest.raises(runs.ReplayMismatch):
        await new.start(desk.store(), run_id="r")
    await reindex(desk.store())
    assert await listed(desk) == [("r", "open", "ReplayMismatch")]
    mark, body = next((key, found) for key, found in desk.shelf.objects.items() if "/blocked." in key)
    await runs.request_cancel(desk.store(), "r", now=True)
    await desk.store().put(mark, body.body)
    assert await listed(desk) == [("r", "cancelled", None)]
    await reindex(desk.store())
    assert mark not in desk.shelf.objects
