"""Runs from the outside: listed, forked, cancelled, tried again and deleted without the workflow's code."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import runs
from holdfast.base.errors import Invalid, NotFound, Refused
from holdfast.objects.store import Store
from holdfast.runs.journal.index import RunIndex
from tests.unit.runs.desk import Desk


@runs.workflow(version="1")
async def order(ctx: runs.Context, log: list[str]) -> Any:
    """Reserves, waits for a payment, ships; releases what it reserved when it is cancelled."""
    await ctx.step("reserve", list, log)
    try:
        paid = await ctx.suspend("payment")
        await ctx.step("ship", lambda: paid)
    except runs.Cancelled:
        await ctx.step("release", lambda: "released")
        raise
    return paid


async def found(store: Store, **query: Any) -> list[str]:
    return [summary.run_id async for summary in runs.find(store, **query)]


class TestFind:
    async def test_by_status_workflow_tag_and_time(self) -> None:
        desk = Desk()

        @runs.workflow()
        async def quick(ctx: runs.Context) -> int:
            return 1

        await order.start(desk.store(), [], run_id="a", tags=["env=prod", "x"])
        desk.watch.advance(seconds=3600)
        await quick.start(desk.store(), run_id="b", tags=["env=test"])
        store = desk.store()
        assert await found(store) == ["b", "a"], "the latest change first"
        assert await found(store, status="suspended") == ["a"]
        assert await found(store, status=["success", "failed"]) == ["b"]
        assert await found(store, workflow="quick") == ["b"]
        assert await found(store, tag="env") == ["b", "a"]
        assert await found(store, tag="env=prod") == ["a"]
        assert await found(store, limit=1) == ["b"]
        assert await found(store, workflow="order", limit=1) == ["a"], "the limit counts what was asked for"
        half_an_hour_ago = datetime.fromtimestamp(desk.watch.ns / 1e9 - 1800, UTC)
        assert await found(store, since=half_an_hour_ago) == ["b"]
        assert await found(store, until=half_an_hour_ago) == ["a"]
        assert store.usage.requests(family="runs") == 0, "no journal was read"
        with pytest.raises(Invalid, match="needs a zone"):
            await found(store, since=datetime(2026, 1, 1))  # noqa: DTZ001


class TestCancel:
    async def test_a_request_is_carried_out_by_the_next_worker(self) -> None:
        desk = Desk()
        await order.start(desk.store(), [], run_id="r")
        store = desk.store()
        asked = await runs.request_cancel(store, "r", reason="too late")
        assert (asked.status, asked.session, asked.written) == ("cancelling", 2, True)
        assert store.usage.requests("put", "runs") == 1
        again = await runs.request_cancel(desk.store(), "r")
        assert (again.status, again.session, again.written) == ("cancelling", 2, False), "asked for once"
        assert (await runs.worker(desk.store(), [order], until_idle=True)).called == 1
        outcome = await order.start(desk.store(), [], run_id="r")
        assert (outcome.status, outcome.error) == ("cancelled", "too late")
        assert [line for line in desk.journal("r") if '"release"' in line], "it cleaned up"

    async def test_now_means_without_cleaning_up(self) -> None:
        desk = Desk()
        await order.start(desk.store(), [], run_id="r")
        store = desk.store()
        done = await runs.request_cancel(store, "r", reason="enough", now=True)
        assert (done.status, done.written) == ("cancelled", True)
        assert store.usage.requests("put", "runs") == 1, "asked for and done in one write"
        assert (await runs.worker(desk.store(), [order], until_idle=True)).called == 0
        outcome = await order.start(desk.store(), [], run_id="r")
        assert (outcome.status, outcome.error) == ("cancelled", "enough")
        assert not [line for line in desk.journal("r") if '"release"' in line]
        assert await found(desk.store(), status="cancelled") == ["r"]

    async def test_a_run_that_is_over_or_not_there(self) -> None:
        desk = Desk()
        await order.start(desk.store(), [], run_id="r")
        await order.resume(desk.store(), "r", "payment", 5)
        before = desk.journal("r")
        assert not (await runs.request_cancel(desk.store(), "r", now=True)).written
        assert desk.journal("r") == before
        with pytest.raises(NotFound, match="does not exist"):
            await runs.request_cancel(desk.store(), "missing")
        await runs.delete(desk.store(), "r")
        with pytest.raises(NotFound, match="was deleted"):
            await runs.request_cancel(desk.store(), "r")


async def test_a_failed_run_and_no_other_is_taken_up_again() -> None:
    desk = Desk()
    broken = True

    @runs.workflow()
    async def work(ctx: runs.Context) -> int:
        if broken:
            raise ValueError("down")
        return 2

    assert (await work.start(desk.store(), run_id="r")).finished
    broken = False
    asked = await runs.request_retry(desk.store(), "r")
    assert (asked.status, asked.written) == ("open", True)
    assert (await runs.worker(desk.store(), [work], until_idle=True)).finished == 1
    assert (await work.start(desk.store(), run_id="r")).result == 2
    with pytest.raises(runs.RunFinished, match="is success"):
        await runs.request_retry(desk.store(), "r")
    await order.start(desk.store(), [], run_id="waits")
    with pytest.raises(Refused, match="has not failed"):
        await runs.request_retry(desk.store(), "waits")


async def test_a_request_stands_although_the_index_was_not_updated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    await order.start(desk.store(), [], run_id="r")

    async def away(*_: Any, **__: Any) -> None:
        raise Refused("no")

    monkeypatch.setattr(RunIndex, "note", away)
    assert (await runs.request_cancel(desk.store(), "r")).status == "cancelling"
    assert "holdfast runs reindex repairs it" in caplog.text


async def test_a_workflow_that_catches_its_cancellation_and_returns_is_cancelled() -> None:
    desk = Desk()

    @runs.workflow()
    async def work(ctx: runs.Context) -> str:
        try:
            await ctx.suspend("go")
        except runs.Cancelled:
            return "gave up"
        return "done"

    await work.start(desk.store(), run_id="r")
    assert (await work.cancel(desk.store(), "r")).status == "cancelled"
