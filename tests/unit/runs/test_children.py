"""Child runs: linked both ways, waited for, distinct from runs of the same id, and cancelled with their parents."""

import asyncio
from typing import Any

import pytest

from holdfast import runs
from holdfast.base.errors import Fenced, Refused
from holdfast.runs.engine.children import live
from holdfast.runs.journal.history import read_history
from tests.unit.runs.desk import Crash, Desk


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


async def test_a_child_and_another_run_of_the_same_id_are_distinguished() -> None:
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


class Family:
    """A parent whose child waits, with a clean-up each; ``die_in`` kills the process there."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.die_in = ""
        self.log: list[str] = []
        family = self

        def step(name: str) -> None:
            if family.die_in == name:
                raise Crash
            family.log.append(name)

        @runs.workflow(version="1")
        async def child(ctx: runs.Context) -> Any:
            try:
                await ctx.step("child works", step, "child works")
                return await ctx.suspend("go")
            except runs.Cancelled:
                await ctx.step("child cleans up", step, "child cleans up")
                raise

        @runs.workflow(version="1")
        async def parent(ctx: runs.Context) -> Any:
            try:
                return await ctx.run(child)
            except runs.Cancelled:
                await ctx.step("parent cleans up", step, "parent cleans up")
                raise

        self.child, self.parent = child, parent

    async def statuses(self) -> dict[str, str]:
        return {run.run_id: run.status async for run in runs.find(self.desk.store())}


async def test_the_child_is_cancelled_and_cleans_up_before_its_parent() -> None:
    family = Family()
    assert (await family.parent.start(family.desk.store(), run_id="p")).status == "suspended"
    assert (await family.parent.cancel(family.desk.store(), "p", reason="enough")).status == "cancelled"
    assert family.log == ["child works", "child cleans up", "parent cleans up"]
    assert await family.statuses() == {"p": "cancelled", "p.child": "cancelled"}
    assert (await runs.describe(family.desk.store(), "p.child")).cancel_reason == "its parent p was cancelled"


async def test_a_fenced_session_cannot_start_the_child_after_its_parent_was_cancelled() -> None:
    """The session stands between its last entry and the child when the cancellation passes it."""
    desk = Desk()
    reached, go_on = asyncio.Event(), asyncio.Event()
    effects: list[str] = []

    @runs.workflow()
    async def child(ctx: runs.Context) -> None:
        await ctx.step("effect", effects.append, "of the child")

    @runs.workflow()
    async def parent(ctx: runs.Context) -> None:
        await ctx.unique()  # recorded with what comes next: it must not hide the child from the cancellation
        if not reached.is_set():
            reached.set()
            await go_on.wait()
        await ctx.run(child)

    slow = asyncio.ensure_future(parent.start(desk.store(), run_id="p"))
    await reached.wait()
    assert (await parent.cancel(desk.store(), "p")).status == "cancelled"
    go_on.set()
    with pytest.raises(Fenced):
        await slow
    assert effects == []
    assert [child async for child in live(desk.store(), "p")] == []


async def test_a_child_that_does_not_exist_yet_never_will() -> None:
    desk = Desk()

    @runs.workflow(version="1")
    async def child(ctx: runs.Context) -> str:
        return "done"

    @runs.workflow()
    async def parent(ctx: runs.Context) -> Any:
        await ctx.step("one", int)
        if ctx.session == 1:
            raise Crash
        return await ctx.run(child)

    with pytest.raises(Crash):
        await parent.start(desk.store(), run_id="p")
    assert (await parent.cancel(desk.store(), "p")).status == "cancelled"
    late = await child.start(desk.store(), run_id="p.child", parent={"runId": "p", "stepId": "child"})
    assert (late.status, late.error) == ("cancelled", "its parent p was cancelled")


async def test_now_ends_children_and_their_children_and_no_other_run() -> None:
    desk = Desk()

    @runs.workflow()
    async def leaf(ctx: runs.Context) -> Any:
        return await ctx.suspend("go")

    @runs.workflow()
    async def middle(ctx: runs.Context) -> Any:
        return await ctx.run(leaf)

    @runs.workflow()
    async def top(ctx: runs.Context) -> Any:
        return await ctx.run(middle)

    await top.start(desk.store(), run_id="t")
    await leaf.start(desk.store(), run_id="t.other")
    await leaf.start(desk.store(), run_id="tt")
    done = await runs.request_cancel(desk.store(), "t", reason="enough", now=True)
    assert (done.status, done.written) == ("cancelled", True)
    assert {run.run_id: run.status async for run in runs.find(desk.store())} == {
        "t": "cancelled",
        "t.middle": "cancelled",
        "t.middle.leaf": "cancelled",
        "t.other": "suspended",
        "tt": "suspended",
    }
    assert (await runs.describe(desk.store(), "t")).cancel_reason == "enough"


async def test_a_child_of_another_version_is_left_for_its_own_code_to_clean_up() -> None:
    family = Family()
    await family.parent.start(family.desk.store(), run_id="p")
    family.child.version = "2"
    assert (await family.parent.cancel(family.desk.store(), "p")).status == "cancelled"
    assert await family.statuses() == {"p": "cancelled", "p.child": "cancelling"}
    family.child.version = "1"
    await runs.worker(family.desk.store(), [family.child], until_idle=True)
    assert (await family.statuses())["p.child"] == "cancelled"


async def test_a_fork_has_children_of_its_own() -> None:
    family = Family()
    await family.parent.start(family.desk.store(), run_id="p")
    await runs.fork(family.desk.store(), "p", from_offset=2, new_run_id="f")
    assert (await family.parent.proceed(family.desk.store(), "f")).event == "child:f.child"
    assert await family.statuses() == dict.fromkeys(("p", "p.child", "f", "f.child"), "suspended")
    await family.child.resume(family.desk.store(), "f.child", "go", 2)
    assert (await family.parent.proceed(family.desk.store(), "f")).result == 2
    await runs.fork(family.desk.store(), "f", after_step="child", new_run_id="g")
    assert (await family.parent.proceed(family.desk.store(), "g")).result == 2, "a child's recorded result is kept"
    assert "g.child" not in await family.statuses()


async def test_deleting_a_parent_by_force_ends_its_children_and_keeps_their_journals() -> None:
    family = Family()
    await family.parent.start(family.desk.store(), run_id="p")
    with pytest.raises(Refused):
        await runs.delete(family.desk.store(), "p")
    await runs.delete(family.desk.store(), "p", force=True)
    assert await family.statuses() == {"p.child": "cancelled"}
    assert (await runs.describe(family.desk.store(), "p.child")).cancel_reason == "its parent p was deleted"


async def test_a_parent_whose_child_was_deleted_gets_a_failed_step() -> None:
    family = Family()
    await family.parent.start(family.desk.store(), run_id="p")
    await runs.delete(family.desk.store(), "p.child", force=True)
    outcome = await family.parent.proceed(family.desk.store(), "p")
    assert (outcome.status, "p.child was deleted" in str(outcome.error)) == ("failed", True)
