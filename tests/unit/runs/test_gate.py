"""What code may still do after a question that got no true answer: nothing, whatever it catches."""

import asyncio
import contextlib
from typing import Any

import pytest

from holdfast import runs
from holdfast.base.errors import Fenced, Invalid, Unavailable
from holdfast.objects.client import Client
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.history import read_history
from holdfast.runs.journal.journal import Journal
from tests.unit.runs.desk import Desk


class Refusing(Client):
    """A store whose next ``puts`` of the journal fail, and certainly did nothing."""

    puts = 0

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if key.endswith("journal.jsonl") and self.puts > 0:
            self.puts -= 1
            raise Unavailable("not now")
        return await super().put(key, body, mode)


def refusing(desk: Desk) -> Refusing:
    opened = desk.store()
    return Refusing(opened.backend, ambient=opened.ambient, spec=opened.spec)


async def test_code_that_swallows_a_failed_write_takes_no_other_path() -> None:
    desk = Desk()
    store = refusing(desk)

    @runs.workflow()
    async def work(ctx: runs.Context) -> Any:
        def first_step() -> str:
            desk.calls["first"] += 1
            return "first"

        store.puts = 1 if desk.calls["first"] == 0 else 0
        try:
            first = await ctx.step("first", first_step)
        except Exception:  # noqa: BLE001  # the mistake that is tested
            first = "fallback"
        await ctx.step("second", lambda: desk.calls.update(["second"]))
        return first

    with pytest.raises(Unavailable):
        await work.start(store, run_id="r")
    assert desk.calls == {"first": 1}
    assert (await work.start(store, run_id="r")).result == "first"


async def test_a_fenced_session_runs_no_further_function_even_if_the_code_goes_on() -> None:
    desk = Desk()

    @runs.workflow()
    async def work(ctx: runs.Context) -> Any:
        async def overtaken() -> None:
            desk.calls["overtaken"] += 1
            if desk.calls["overtaken"] == 1:
                await work.start(desk.store(), run_id="r")

        for name in ("a", "b", "c"):
            try:
                await ctx.step(name, overtaken if name == "a" else lambda: desk.calls.update(["later"]))
            except Fenced:
                continue
        return "done"

    with pytest.raises(Fenced):
        await work.start(desk.store(), run_id="r")
    assert desk.calls == {"overtaken": 2, "later": 2}


async def test_a_mismatch_cannot_be_swallowed() -> None:
    desk = Desk()
    changed = False

    @runs.workflow()
    async def work(ctx: runs.Context) -> None:
        if changed:
            with contextlib.suppress(Exception):
                await ctx.step("new", lambda: desk.calls.update(["new"]))
        await ctx.step("old", lambda: None)
        await ctx.suspend("go")

    await work.start(desk.store(), run_id="r")
    changed = True
    with pytest.raises(runs.ReplayMismatch, match="step 'new'"):
        await work.resume(desk.store(), "r", "go")
    assert desk.calls == {}


@pytest.mark.parametrize("where", ["step", "beside", "sleep"])
async def test_a_call_that_is_cancelled_does_not_clean_up(where: str) -> None:
    desk = Desk()
    reached = asyncio.Event()

    async def slow() -> str:
        desk.calls["slow"] += 1
        if desk.calls["slow"] == 1:
            reached.set()
            await asyncio.Event().wait()
        return "slow"

    @runs.workflow()
    async def work(ctx: runs.Context) -> Any:
        try:
            if where == "step":
                return await ctx.step("slow", slow)
            if where == "beside":
                return (await asyncio.gather(ctx.step("slow", slow)))[0]
            return await slow()
        finally:
            await asyncio.gather(ctx.step("undo", lambda: desk.calls.update(["undo"])))
            await ctx.step("release", lambda: desk.calls.update(["release"]))

    call = asyncio.ensure_future(work.start(desk.store(), run_id="r"))
    await reached.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert desk.calls == {"slow": 1}
    assert (await work.start(desk.store(), run_id="r")).result == "slow"
    assert desk.calls == {"slow": 2, "undo": 1, "release": 1}


async def test_a_timeout_around_a_step_fails_at_once_not_on_replay() -> None:
    desk = Desk()

    @runs.workflow()
    async def work(ctx: runs.Context) -> None:
        try:
            async with asyncio.timeout(0.001):
                await ctx.step("slow", asyncio.sleep, 30)
        except TimeoutError:
            pass
        await ctx.step("next", lambda: desk.calls.update(["next"]))

    @runs.workflow()
    async def ends(ctx: runs.Context) -> None:
        async with asyncio.timeout(0.001):
            await ctx.step("slow", asyncio.sleep, 30)

    with pytest.raises(Invalid, match="a replay could not"):
        await work.start(desk.store(), run_id="r")
    assert desk.calls == {}
    assert (await ends.start(desk.store(), run_id="e")).error == "TimeoutError"


async def test_task_groups_may_wrap_a_wait_a_cancellation_and_mistakes() -> None:
    desk = Desk()

    @runs.workflow()
    async def work(ctx: runs.Context) -> Any:
        try:
            async with asyncio.TaskGroup() as group:
                step = group.create_task(ctx.step("a", lambda: 1))
                value = await ctx.suspend("go")
            return [step.result(), value]
        finally:
            await ctx.step("release", lambda: desk.calls.update(["release"]))

    @runs.workflow()
    async def twice(ctx: runs.Context) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(ctx.step("same", asyncio.sleep, 0))

    @runs.workflow()
    async def fails(ctx: runs.Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("bad", int, "x"))

    assert (await work.start(desk.store(), run_id="r")).status == "suspended"
    assert (await work.resume(desk.store(), "r", "go", 2)).result == [1, 2]
    await work.start(desk.store(), run_id="c")
    assert (await work.cancel(desk.store(), "c")).status == "cancelled"
    assert desk.calls == {"release": 2}
    with pytest.raises(runs.ConcurrentSteps):
        await twice.start(desk.store(), run_id="t")
    failed = await fails.start(desk.store(), run_id="f")
    assert "step bad failed: ValueError" in str(failed.error)


async def test_clean_up_beside_the_workflow_runs_when_steps_beside_it_are_cancelled() -> None:
    desk = Desk()

    @runs.workflow()
    async def work(ctx: runs.Context) -> None:
        await ctx.suspend("go")
        try:
            await asyncio.gather(ctx.step("a", lambda: desk.calls.update(["a"])), ctx.step("b", lambda: None))
        finally:
            undo = (ctx.step(f"undo-{name}", lambda n=name: desk.calls.update([f"undo-{n}"])) for name in "ab")
            await asyncio.gather(*undo)

    store = desk.store()
    await work.start(store, run_id="r")
    # A session that takes the event and dies before its first step.
    history = await read_history(store, "r")
    await Journal.begin(store, store.ambient, "r", history, {}, [Draft("resume", {"event": "go", "value": 1})])
    outcome = await work.cancel(desk.store(), "r")
    assert outcome.status == "cancelled"
    assert desk.calls == {"undo-a": 1, "undo-b": 1}


async def test_nothing_is_left_of_a_session_that_waits_or_continues() -> None:
    desk = Desk()
    tasks: list[asyncio.Task[Any]] = []

    async def beside() -> None:
        desk.calls["begun"] += 1
        await asyncio.Event().wait()

    @runs.workflow()
    async def work(ctx: runs.Context, turn: int) -> None:
        tasks.append(asyncio.ensure_future(ctx.step("beside", beside)))
        await asyncio.sleep(0)
        if turn == 1:
            ctx.continue_as_new(2)
        await ctx.suspend("go")

    assert (await work.start(desk.store(), 1, run_id="r")).status == "suspended"
    await asyncio.wait(tasks)
    assert desk.calls == {"begun": 2}
    assert [task.cancelled() for task in tasks] == [True, True]
    assert len(desk.journal("r")) == 2, "start and suspend, and nothing of the generation before"


async def test_a_context_is_of_no_use_after_its_session() -> None:
    desk = Desk()
    kept: list[runs.Context] = []

    @runs.workflow()
    async def work(ctx: runs.Context) -> None:
        kept.append(ctx)

    await work.start(desk.store(), run_id="r")
    with pytest.raises(Invalid, match="after its session had ended"):
        await kept[0].step("late", lambda: desk.calls.update(["late"]))
    assert desk.calls == {}


async def test_steps_in_finally_do_not_stop_a_run_that_continues_as_new() -> None:
    desk = Desk()

    @runs.workflow()
    async def work(ctx: runs.Context, turn: int) -> int:
        try:
            if turn < 3:
                ctx.continue_as_new(turn + 1)
            return turn
        finally:
            await ctx.step("last", lambda: desk.calls.update(["last"]))

    assert (await work.start(desk.store(), 1, run_id="r")).result == 3
    assert desk.calls == {"last": 1}


async def test_a_run_may_be_started_inside_a_step_of_another() -> None:
    desk = Desk()

    @runs.workflow()
    async def inner(ctx: runs.Context) -> Any:
        return await ctx.step("in", lambda: ctx.key)

    @runs.workflow()
    async def outer(ctx: runs.Context) -> Any:
        async def begin() -> Any:
            return [(await inner.start(desk.store(), run_id="i")).result, ctx.key]

        return await ctx.step("out", begin)

    assert (await outer.start(desk.store(), run_id="o")).result == ["i/in", "o/out"]


@pytest.mark.parametrize("kind", ["StopIteration", "CancelledError"])
async def test_unusual_exceptions_of_a_step_are_failures(kind: str) -> None:
    desk = Desk()

    async def waits_for_something_cancelled() -> None:
        other = asyncio.ensure_future(asyncio.sleep(30))
        other.cancel()
        await other

    @runs.workflow()
    async def work(ctx: runs.Context) -> Any:
        if kind == "StopIteration":
            return await ctx.step("odd", next, iter(()))
        return await ctx.step("odd", waits_for_something_cancelled)

    outcome = await work.start(desk.store(), run_id="r")
    assert outcome.status == "failed"
    assert "step odd failed: RuntimeError" in str(outcome.error)
