"""Waiting: events, timers, children, fresh histories, and the worker that goes on afterwards."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import runs
from holdfast.base.errors import Conflict, NotFound
from holdfast.runs.journal.history import read_history
from holdfast.runs.journal.index import RunIndex
from tests.unit.runs.desk import Crash, Desk


async def test_suspend_resume_and_wrong_events() -> None:
    desk = Desk()

    @runs.workflow(version="1")
    async def work(ctx: runs.Context) -> Any:
        first = await ctx.suspend("approval", reason="risky")
        second = await ctx.suspend("approval")
        return [first, second]

    outcome = await work.start(desk.store(), run_id="r")
    assert (outcome.status, outcome.event) == ("suspended", "approval")
    before = desk.journal("r")
    assert (await work.start(desk.store(), run_id="r")).status == "suspended"
    assert desk.journal("r") == before, "a call that changes nothing writes nothing"
    with pytest.raises(runs.WrongEvent, match="waits for 'approval'"):
        await work.resume(desk.store(), "r", "rejection", 1)
    assert (await work.resume(desk.store(), "r", "approval", {"ok": 1})).status == "suspended"
    done = await work.resume(desk.store(), "r", "approval", (1, 2))
    assert (done.status, done.result) == ("success", [{"ok": 1}, (1, 2)])
    with pytest.raises(runs.RunFinished):
        await work.resume(desk.store(), "r", "approval", 3)
    with pytest.raises(NotFound):
        await work.resume(desk.store(), "missing", "approval")


@pytest.mark.parametrize("size", [1, 100_000])
async def test_a_resume_that_died_after_mail_was_taken_can_be_delivered_again(size: int) -> None:
    desk = Desk()
    die = True

    @runs.workflow()
    async def work(ctx: runs.Context) -> Any:
        values = [await ctx.suspend("go"), await ctx.suspend("mail")]
        if die:
            raise Crash
        return values

    await runs.deliver(desk.store(), "r", "mail", "early")
    await work.start(desk.store(), run_id="r")
    with pytest.raises(Crash):
        await work.resume(desk.store(), "r", "go", "x" * size)
    die = False
    with pytest.raises(runs.WrongEvent):
        await work.resume(desk.store(), "r", "go", "y" * size)
    assert (await work.resume(desk.store(), "r", "go", "x" * size)).result == ["x" * size, "early"]


async def test_events_may_come_before_they_are_asked_for() -> None:
    desk = Desk()

    @runs.workflow()
    async def work(ctx: runs.Context) -> Any:
        return [await ctx.suspend("mail"), await ctx.suspend("mail"), await ctx.suspend("mail")]

    await runs.deliver(desk.store(), "r", "mail", "first", key="a")
    await runs.deliver(desk.store(), "r", "mail", "first", key="a")
    with pytest.raises(Conflict, match="another value"):
        await runs.deliver(desk.store(), "r", "mail", "other", key="a")
    await runs.deliver(desk.store(), "r", "mail", "second")
    outcome = await work.start(desk.store(), run_id="r")
    assert outcome.status == "suspended"
    await runs.deliver(desk.store(), "r", "mail", "third")
    assert (await work.start(desk.store(), run_id="r")).result == ["first", "second", "third"]


async def test_sleep_needs_no_process() -> None:
    desk = Desk()

    @runs.workflow()
    async def work(ctx: runs.Context) -> str:
        await ctx.sleep(hours=2)
        await ctx.sleep(until=datetime(2027, 1, 15, 12, tzinfo=UTC))
        return "awake"

    outcome = await work.start(desk.store(), run_id="r")
    assert outcome.status == "sleeping"
    assert outcome.wake_at_ns is not None
    idle = desk.store()
    assert (await work.start(idle, run_id="r")).status == "sleeping"
    assert idle.usage.by_verb == {"get": 1}
    desk.watch.advance(seconds=7201)
    outcome = await work.start(desk.store(), run_id="r")
    assert outcome.status == "sleeping"
    desk.watch.advance(seconds=7 * 86400)
    assert (await work.start(desk.store(), run_id="r")).result == "awake"


async def test_continue_as_new_starts_the_history_over() -> None:
    desk = Desk()

    @runs.workflow(version="1")
    async def loop(ctx: runs.Context, turn: int) -> Any:
        got = await ctx.suspend("tick")
        if turn < 3:
            ctx.continue_as_new(turn + 1)
        return [turn, got]

    await loop.start(desk.store(), 1, run_id="r", tags=["t"])
    for turn in range(3):
        await runs.deliver(desk.store(), "r", "tick", turn)
        await loop.start(desk.store(), 1, run_id="r")
    assert (await loop.start(desk.store(), 1, run_id="r")).result == [3, 2]
    history = await read_history(desk.store(), "r")
    assert history is not None
    assert (history.state.generation, history.state.session > 3, history.state.tags) == (2, True, ("t",))


async def test_a_worker_calls_what_is_due() -> None:
    desk = Desk()

    @runs.workflow()
    async def child(ctx: runs.Context) -> int:
        await ctx.sleep(minutes=5)
        return 7

    @runs.workflow(retry=runs.Retry(attempts=3, base_ms=1000))
    async def work(ctx: runs.Context) -> Any:
        await ctx.sleep(hours=1)
        got = await ctx.suspend("go")
        value = await ctx.run(child)
        desk.calls["end"] += 1
        if desk.calls["end"] == 1:
            raise ValueError("once")
        return [got, value]

    async def settle(seconds: float = 0) -> int:
        desk.watch.advance(seconds=seconds)
        return (await runs.worker(desk.store(), [work, child], until_idle=True)).called

    await work.start(desk.store(), run_id="r")
    assert await settle() == 0
    assert await settle(3601) == 1
    await runs.deliver(desk.store(), "r", "go", 1)
    assert await settle() >= 1
    assert await settle(301) >= 2
    assert await settle(60) >= 1
    outcome = await work.start(desk.store(), run_id="r")
    assert outcome.result == [1, 7]
    assert await settle(100_000) == 0


async def test_a_worker_does_not_spin_on_a_run_that_is_not_due_after_all() -> None:
    desk = Desk()

    @runs.workflow()
    async def child(ctx: runs.Context) -> None:
        await ctx.suspend("never")

    @runs.workflow()
    async def parent(ctx: runs.Context) -> None:
        await ctx.run(child)

    await parent.start(desk.store(), run_id="p")
    store = desk.store()
    await RunIndex(store).nudge("p.child", "m-1", "never")  # a nudge without its mail
    assert (await runs.worker(store, [parent, child], until_idle=True)).called == 1
    await store.delete_many([key async for key in store.keys("runs-index/v1/open/p.child/")])  # a key that was lost
    assert (await runs.worker(store, [parent, child], until_idle=True)).called == 1


async def test_a_worker_survives_what_is_not_ours() -> None:
    desk = Desk()

    @runs.workflow()
    async def work(ctx: runs.Context) -> None:
        await ctx.sleep(seconds=1)

    def tell(_: runs.Outcome) -> None:
        raise ValueError("a mistake in the callback")

    for name in ("a", "b"):
        await work.start(desk.store(), run_id=name)
    desk.watch.advance(seconds=5)
    worked = await runs.worker(desk.store(), [work], until_idle=True, on_outcome=tell, concurrency=1)
    assert (worked.finished, worked.failed_calls) == (2, 0)


async def test_many_events_cost_one_listing_and_are_removed_when_the_run_continues_as_new() -> None:
    desk = Desk()
    listings: list[int] = []

    @runs.workflow()
    async def loop(ctx: runs.Context, seen: int) -> int:
        for _ in range(80):
            seen += int(await ctx.suspend("tick"))
        if seen == 80:
            listings.append(store.usage.requests("list", "runs"))
            ctx.continue_as_new(seen)
        return seen

    for number in range(80):
        await runs.deliver(desk.store(), "r", "tick", 1, key=str(number))
    store = desk.store()
    assert (await loop.start(store, 0, run_id="r")).status == "suspended"
    assert listings == [1]
    assert [key async for key in store.keys("runs/r/mail/")] == []


@runs.workflow()
async def two_questions(ctx: runs.Context) -> Any:
    return [await ctx.suspend("go"), await ctx.suspend("go")]


async def test_a_delivery_with_a_key_answers_one_question() -> None:
    desk = Desk()
    await two_questions.start(desk.store(), run_id="r")
    for _ in range(2):
        outcome = await two_questions.resume(desk.store(), "r", "go", 1, key="first")
        assert (outcome.status, outcome.event) == ("suspended", "go")
    await runs.deliver(desk.store(), "r", "go", 1, key="first")
    assert (await two_questions.proceed(desk.store(), "r")).status == "suspended", "one key, one delivery, either way"
    assert (await two_questions.resume(desk.store(), "r", "go", 1, key="second")).result == [1, 1]
    assert (await two_questions.resume(desk.store(), "r", "go", 1, key="second")).result == [1, 1]
    with pytest.raises(runs.RunFinished):
        await two_questions.resume(desk.store(), "r", "go", 1, key="third")


async def test_the_same_answer_without_a_key_is_not_taken_for_the_next_one() -> None:
    desk = Desk()
    await two_questions.start(desk.store(), run_id="r")
    await two_questions.resume(desk.store(), "r", "go", 1)
    with pytest.raises(runs.WrongEvent, match="give each delivery a key"):
        await two_questions.resume(desk.store(), "r", "go", 1)
    assert (await two_questions.resume(desk.store(), "r", "go", 1, key="own")).result == [1, 1]


async def test_a_delivery_without_a_key_names_the_wait_that_it_answers() -> None:
    desk = Desk()
    await two_questions.start(desk.store(), run_id="r")
    first = await runs.deliver(desk.store(), "r", "go", 1)
    assert await runs.deliver(desk.store(), "r", "go", 1) == first
    assert (await two_questions.proceed(desk.store(), "r")).status == "suspended"
    assert await runs.deliver(desk.store(), "r", "go", 1) != first, "the next question"
    assert (await two_questions.proceed(desk.store(), "r")).result == [1, 1]
    await two_questions.start(desk.store(), run_id="s")
    assert len({await runs.deliver(desk.store(), "s", "go", value) for value in (1, 2)}) == 2
    assert (await two_questions.proceed(desk.store(), "s")).result == [1, 2], "another value is another delivery"
    assert len({await runs.deliver(desk.store(), "early", "go", 1) for _ in range(2)}) == 2


async def test_a_delivery_with_a_key_is_known_after_continue_as_new() -> None:
    desk = Desk()

    @runs.workflow()
    async def work(ctx: runs.Context, turn: int = 0) -> Any:
        answer = await ctx.suspend("go")
        if turn == 0:
            ctx.continue_as_new(1)
        return answer

    await work.start(desk.store(), run_id="r")
    for _ in range(2):
        assert (await work.resume(desk.store(), "r", "go", 1, key="first")).status == "suspended"
    assert (await work.resume(desk.store(), "r", "go", 2, key="second")).result == 2


async def test_a_run_that_has_ended_takes_no_mail() -> None:
    desk = Desk()
    await runs.deliver(desk.store(), "r", "go", 1, key="first")
    await runs.deliver(desk.store(), "r", "go", 2, key="second")
    assert (await two_questions.start(desk.store(), run_id="r")).result == [1, 2]
    before = sorted(desk.shelf.objects)
    with pytest.raises(runs.RunFinished, match="has ended"):
        await runs.deliver(desk.store(), "r", "go", 3)
    with pytest.raises(runs.RunFinished, match="has ended"):
        await runs.deliver(desk.store(), "r", "go", 3, key="third")
    assert (await runs.deliver(desk.store(), "r", "go", 1, key="first")).startswith("k-"), (
        "a second delivery of the first"
    )
    assert sorted(desk.shelf.objects) == before
