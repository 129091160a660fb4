"""Child runs: linked both ways, waited for, told apart from runs of the same id."""

from typing import Any

import pytest

from holdfast import runs
from holdfast.runs.journal.history import read_history
from tests.unit.runs.desk import Desk


async def test_child_runs_are_linked_and_waited_for() -> None:
    desk = Desk()

    @runs.workflow()
    async def child(ctx: runs.Context, x: int) -> int:
        extra = await ctx.suspend("more")
        return x + int(extra)

    @runs.workflow()
    async def parent(ctx: runs.Context) -> int:
        await ctx.step("first", lambda: desk.calls.update(["first"]))
        return int(await ctx.run(child, 5)) * 2

    outcome = await parent.start(desk.store(), run_id="p")
    assert (outcome.status, outcome.event) == ("suspended", "child:p.child")
    quiet = desk.store()
    assert (await parent.start(quiet, run_id="p")).status == "suspended"
    assert set(quiet.usage.by_verb) <= {"get", "list"}
    assert (await child.resume(desk.store(), "p.child", "more", 3)).result == 8
    assert (await parent.start(desk.store(), run_id="p")).result == 16
    assert desk.calls == {"first": 1}
    history = await read_history(desk.store(), "p.child")
    assert history is not None
    assert history.entries[0].fields["parent"] == {"runId": "p", "stepId": "child"}
    assert any('"child":"p.child"' in line for line in desk.journal("p"))


async def test_a_failed_child_fails_the_step() -> None:
    desk = Desk()

    @runs.workflow()
    async def child(ctx: runs.Context) -> None:
        raise ValueError("inside")

    @runs.workflow()
    async def parent(ctx: runs.Context) -> str:
        try:
            await ctx.run(child)
        except runs.StepFailed as failed:
            return str(failed)
        return "?"

    outcome = await parent.start(desk.store(), run_id="p")
    assert outcome.result == "step child failed: failed: ValueError: inside"


async def test_a_child_that_was_deleted_fails_the_step() -> None:
    desk = Desk()

    @runs.workflow()
    async def child(ctx: runs.Context) -> None:
        await ctx.suspend("never")

    @runs.workflow()
    async def parent(ctx: runs.Context) -> str:
        try:
            await ctx.run(child)
        except runs.StepFailed as failed:
            return failed.message
        return "?"

    await parent.start(desk.store(), run_id="p")
    await runs.delete(desk.store(), "p.child", force=True)
    assert (await parent.start(desk.store(), run_id="p")).result == "run p.child was deleted"


async def test_trouble_with_a_child_is_not_a_failure_of_its_parent() -> None:
    desk = Desk()
    mended = False

    @runs.workflow()
    async def child(ctx: runs.Context) -> Any:
        return await ctx.step("odd", lambda: 1 if mended else object())

    @runs.workflow()
    async def parent(ctx: runs.Context) -> Any:
        return await ctx.run(child)

    with pytest.raises(runs.NotJson):
        await parent.start(desk.store(), run_id="p")
    mended = True
    assert (await parent.start(desk.store(), run_id="p")).result == 1


async def test_a_childs_id_and_a_run_of_the_same_id_are_told_apart() -> None:
    desk = Desk()

    @runs.workflow()
    async def child(ctx: runs.Context) -> str:
        return "of " + ctx.run_id

    @runs.workflow()
    async def parent(ctx: runs.Context) -> Any:
        return await ctx.run(child)

    await child.start(desk.store(), run_id="taken.child")
    with pytest.raises(runs.ParentMismatch, match=r"child of run taken, step child.*was not started by a parent"):
        await parent.start(desk.store(), run_id="taken")

    assert (await parent.start(desk.store(), run_id="free")).result == "of free.child"
    with pytest.raises(runs.ParentMismatch, match="is the child of run free, step child"):
        await child.start(desk.store(), run_id="free.child")
    assert (await child.proceed(desk.store(), "free.child")).result == "of free.child"
    assert (await parent.start(desk.store(), run_id="free")).result == "of free.child"


async def test_two_parents_whose_children_would_share_an_id() -> None:
    desk = Desk()

    @runs.workflow(name="b.c")
    async def one(ctx: runs.Context) -> str:
        return "one"

    @runs.workflow(name="c")
    async def other(ctx: runs.Context) -> str:
        return "other"

    @runs.workflow()
    async def parent(ctx: runs.Context, which: str) -> Any:
        return await ctx.run(one if which == "one" else other)

    assert (await parent.start(desk.store(), "one", run_id="a")).result == "one"
    with pytest.raises(runs.ParentMismatch, match=r"cannot be the child of run a.b, step c"):
        await parent.start(desk.store(), "other", run_id="a.b")


async def test_a_fork_of_a_child_can_be_started_by_itself() -> None:
    desk = Desk()

    @runs.workflow()
    async def child(ctx: runs.Context) -> str:
        return str(await ctx.step("one", str, "done"))

    @runs.workflow()
    async def parent(ctx: runs.Context) -> Any:
        return await ctx.run(child)

    await parent.start(desk.store(), run_id="p")
    await runs.fork(desk.store(), "p.child", from_step="one", new_run_id="fork")
    assert (await child.start(desk.store(), run_id="fork")).result == "done"
