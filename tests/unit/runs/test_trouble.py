"""What goes wrong in a workflow: failures, changed code, cancellation, mistakes. Nothing is lost or done twice."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import runs
from holdfast.base.errors import Invalid
from tests.unit.runs.desk import Crash, Desk


async def test_a_failed_step_that_was_caught_stays_failed(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    die = True

    def flaky() -> None:
        desk.calls["flaky"] += 1
        raise ValueError("no")

    @runs.workflow()
    async def work(ctx: runs.Context) -> str:
        note = "?"
        try:
            await ctx.step("flaky", flaky, retry=runs.Retry(attempts=2, base_ms=0))
        except runs.StepFailed as failed:
            note = str(failed)
        await ctx.step("after", lambda: 1)
        if die:
            raise Crash
        return note

    with pytest.raises(Crash):
        await work.start(desk.store(), run_id="r")
    die = False
    assert (await work.start(desk.store(), run_id="r")).result == "step flaky failed: ValueError: no"
    assert desk.calls["flaky"] == 2
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [
        f"step r/flaky failed: ValueError: no (try {number} of 2)" for number in (1, 2)
    ]


async def test_a_failed_run_is_retried_from_the_step_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    broken = True

    def good() -> int:
        desk.calls["good"] += 1
        return 1

    def bad() -> int:
        desk.calls["bad"] += 1
        if broken:
            raise ValueError("down")
        return 2

    @runs.workflow(retry=runs.Retry(attempts=2, base_ms=1000, jitter=0))
    async def work(ctx: runs.Context) -> int:
        return int(await ctx.step("good", good)) + int(await ctx.step("bad", bad))

    outcome = await work.start(desk.store(), run_id="r")
    assert (outcome.status, outcome.error, outcome.finished) == (
        "failed",
        "StepFailed: step bad failed: ValueError: down",
        False,
    )
    assert "run r failed: StepFailed: step bad failed: ValueError: down\nTraceback" in caplog.text
    assert (await work.start(desk.store(), run_id="r")).status == "failed"
    assert desk.calls == {"good": 1, "bad": 1}, "not due yet"
    desk.watch.advance(seconds=2)
    outcome = await work.start(desk.store(), run_id="r")
    assert (outcome.status, outcome.finished) == ("failed", True)
    assert (await work.start(desk.store(), run_id="r")).finished
    broken = False
    assert (await work.retry_failed(desk.store(), "r")).result == 3
    assert desk.calls == {"good": 1, "bad": 3}


async def test_cancel_lets_the_workflow_clean_up() -> None:
    desk = Desk()
    die = True

    @runs.workflow()
    async def work(ctx: runs.Context) -> str:
        await ctx.step("reserve", lambda: desk.calls.update(["reserve"]))
        try:
            await ctx.suspend("payment")
        finally:
            await ctx.step("release", lambda: desk.calls.update(["release"]))
            if die:
                raise Crash
            await ctx.step("notify", lambda: desk.calls.update(["notify"]))
        return "paid"

    assert (await work.start(desk.store(), run_id="r")).status == "suspended"
    assert desk.calls == {"reserve": 1}, "a suspension is no reason to clean up"
    with pytest.raises(Crash):
        await work.cancel(desk.store(), "r", reason="changed my mind")
    die = False
    outcome = await work.start(desk.store(), run_id="r")
    assert (outcome.status, outcome.error) == ("cancelled", "changed my mind")
    assert desk.calls == {"reserve": 1, "release": 1, "notify": 1}
    assert (await work.cancel(desk.store(), "r")).status == "cancelled"


async def test_steps_inside_steps_and_plain_functions_are_refused() -> None:
    desk = Desk()

    @runs.workflow()
    async def nested(ctx: runs.Context) -> None:
        async def inner() -> None:
            await ctx.step("inner", lambda: 1)

        await ctx.step("outer", inner)

    with pytest.raises(Invalid, match="inside a step"):
        await nested.start(desk.store(), run_id="n")
    with pytest.raises(Invalid, match="not an async function"):
        runs.workflow()(lambda ctx: None)  # type: ignore[arg-type, return-value]


async def test_a_time_limit_is_named_and_one_of_the_steps_own_keeps_its_message() -> None:
    async def inner() -> None:
        raise TimeoutError("the printer is slow")

    async def mute() -> None:
        raise KeyError

    @runs.workflow()
    async def work(ctx: runs.Context) -> list[str]:
        answer = []
        for function, seconds in ((inner, 30), (mute, 30), (asyncio.Event().wait, 0.01)):
            try:
                await ctx.step("print", function, timeout=seconds)
            except runs.StepFailed as failed:
                answer.append(str(failed))
        return answer

    assert (await work.start(Desk().store(), run_id="r")).result == [
        "step print failed: TimeoutError: the printer is slow",
        "step print#2 failed: KeyError",
        "step print#3 failed: TimeoutError: no result within 0.01 s, its time limit",
    ]


async def test_mistakes_of_the_caller_are_refused_before_a_run_exists() -> None:
    desk = Desk()

    @runs.workflow
    async def work(ctx: runs.Context, x: int) -> int:
        return x

    @runs.workflow
    async def other(ctx: runs.Context, x: int) -> int:
        return -x

    with pytest.raises(Invalid, match="cannot be started like that: missing a required argument: 'x'"):
        await work.start(desk.store(), run_id="r")
    with pytest.raises(Invalid, match="not a list of tags"):
        await work.start(desk.store(), 1, run_id="r", tags="env")
    assert not desk.shelf.objects
    await work.start(desk.store(), 1, run_id="r")
    with pytest.raises(runs.WrongWorkflow, match="is a run of workflow 'work', not of 'other'"):
        await other.start(desk.store(), 1, run_id="r")
    with pytest.raises(Invalid, match="use for their children"):
        await runs.deliver(desk.store(), "r", "child:r", 1)


def workflow(body: Callable[[runs.Context], Awaitable[Any]]) -> runs.Workflow:
    return runs.workflow(name="work")(body)


@pytest.mark.parametrize("run_id", ["", 7, b"r"])
async def test_a_run_id_that_cannot_be_a_key(run_id: Any) -> None:
    async def work(ctx: runs.Context) -> None: ...

    with pytest.raises(Invalid, match="is not a string or empty"):
        await workflow(work).start(Desk().store(), run_id=run_id)


async def test_code_that_swallows_its_own_suspension_is_suspended_all_the_same() -> None:
    desk = Desk()

    async def work(ctx: runs.Context) -> str:
        try:
            await ctx.suspend("go")
        except BaseException:  # noqa: BLE001  # the mistake
            return "swallowed"
        return "went on"

    assert (await workflow(work).start(desk.store(), run_id="r")).status == "suspended"
    assert (await workflow(work).resume(desk.store(), "r", "go")).result == "went on"


async def test_a_time_that_has_passed_is_not_waited_for() -> None:
    desk = Desk()

    async def work(ctx: runs.Context) -> str:
        await ctx.sleep(seconds=0)
        await ctx.sleep(seconds=-5)
        await ctx.sleep(until=datetime(2020, 1, 1, tzinfo=UTC))
        return "awake"

    assert (await workflow(work).start(desk.store(), run_id="r")).result == "awake"


async def test_a_cancelled_run_does_not_continue_as_new_for_ever() -> None:
    desk = Desk()

    async def work(ctx: runs.Context) -> None:
        try:
            await ctx.suspend("go")
        except runs.Cancelled:
            ctx.continue_as_new()

    await workflow(work).start(desk.store(), run_id="r")
    with pytest.raises(Invalid, match="cannot continue as new"):
        await workflow(work).cancel(desk.store(), "r")
    described = await runs.describe(desk.store(), "r")
    assert (described.status, described.generation) == ("cancelling", 0)
    assert described.blocked is not None
