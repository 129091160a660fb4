"""Parallel groups, and what was deferred before them, on replay."""

import asyncio
from typing import Any

import pytest

from holdfast import runs
from holdfast.objects.client import Client
from holdfast.objects.store import OVERWRITE, Mode
from tests.unit.runs.desk import Crash, Desk


async def test_members_that_a_failure_stopped_do_not_run_again_once_the_workflow_went_on() -> None:
    desk = Desk()

    async def fails() -> None:
        desk.calls["fails"] += 1
        raise ValueError("no")

    async def slow() -> str:
        desk.calls["slow"] += 1
        if desk.calls["slow"] == 1:
            await asyncio.Event().wait()
        return "slow"

    @runs.workflow()
    async def work(ctx: runs.Context) -> str:
        try:
            await ctx.parallel("g", {"ok": (str,), "fails": (fails,), "slow": (slow,)})
        except runs.StepFailed as failed:
            await ctx.step("next", lambda: None)
            await ctx.suspend("go")
            await ctx.suspend("go")
            return failed.step_id
        return "?"

    await work.start(desk.store(), run_id="r")
    await work.resume(desk.store(), "r", "go", 1)
    assert (await work.resume(desk.store(), "r", "go", 2)).result == "g[fails]"
    assert desk.calls == {"fails": 1, "slow": 1}


async def test_a_group_that_grew_names_its_new_member() -> None:
    desk = Desk()
    members = ["a"]

    @runs.workflow()
    async def work(ctx: runs.Context) -> None:
        await ctx.parallel("g", dict.fromkeys(members, (str,)))
        await ctx.suspend("go")

    await work.start(desk.store(), run_id="r")
    members.append("b")
    with pytest.raises(runs.ReplayMismatch, match=r"no step 'g\[b\]'"):
        await work.resume(desk.store(), "r", "go")


@pytest.mark.parametrize("members", [{"1": (int,)}, {1: (int,), "1": (int,)}])
async def test_an_id_is_used_once_by_groups_and_steps_together(members: dict[Any, Any]) -> None:
    desk = Desk()

    @runs.workflow()
    async def work(ctx: runs.Context) -> None:
        await ctx.parallel("s", members)
        await asyncio.gather(ctx.step("s", str, key="1"))

    with pytest.raises(runs.ConcurrentSteps, match=r"s\[1\] was asked for twice"):
        await work.start(desk.store(), run_id="r")


@pytest.mark.parametrize("way", ["parallel", "gather", "unfinished parallel"])
async def test_a_member_that_was_removed_is_named_before_anything_new_runs(way: str) -> None:
    desk = Desk()
    members = ["a", "b"]

    async def record(name: str) -> str:
        desk.calls[name] += 1
        return name

    async def stop() -> None:
        raise Crash

    @runs.workflow()
    async def work(ctx: runs.Context) -> None:
        if way == "gather":
            await asyncio.gather(*(ctx.step("s", record, name, key=name) for name in members))
        else:
            await ctx.parallel("s", {name: (record, name) for name in members})
        if way != "unfinished parallel":
            await ctx.suspend("go")
        await ctx.step("new", record if desk.calls["new"] else stop, *(["new"] if desk.calls["new"] else []))

    if way == "unfinished parallel":
        with pytest.raises(Crash):
            await work.start(desk.store(), run_id="r")
    else:
        await work.start(desk.store(), run_id="r")
    members.remove("b")
    desk.calls["new"] = 1
    with pytest.raises(runs.ReplayMismatch, match=r"step 's\[b\]'"):
        await (work.start(desk.store(), run_id="r") if "un" in way else work.resume(desk.store(), "r", "go"))
    assert desk.calls == {"a": 1, "b": 1, "new": 1}


async def test_a_task_that_is_slow_on_replay_may_still_ask_for_what_is_recorded() -> None:
    desk = Desk()
    go_on = asyncio.Event()

    async def record(name: str) -> str:
        desk.calls[name] += 1
        return name

    @runs.workflow()
    async def work(ctx: runs.Context) -> Any:
        async def beside() -> Any:
            await go_on.wait()
            return await ctx.step("beside", record, "beside", key=1)

        task = asyncio.ensure_future(beside())
        if desk.calls["beside"] == 0:
            go_on.set()
            await asyncio.wait({task})
        await ctx.step("first", record, "first")
        if desk.calls["crashed"] == 0:
            desk.calls["crashed"] = 1
            raise Crash
        await ctx.step("second", record, "second")
        go_on.set()
        return await task

    with pytest.raises(Crash):
        await work.start(desk.store(), run_id="r")
    go_on.clear()
    assert (await work.start(desk.store(), run_id="r")).result == "beside"
    assert desk.calls == {"beside": 1, "first": 1, "second": 1, "crashed": 1}


async def test_members_that_have_returned_are_recorded_when_another_one_fails() -> None:
    desk = Desk()
    returned = asyncio.Event()

    class Slow(Client):
        """Takes a while to write the journal once a member has returned."""

        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Any:
            if key.endswith("journal.jsonl") and b"good" in body:
                returned.set()
                for _ in range(20):
                    await asyncio.sleep(0)
            return await super().put(key, body, mode)

    store = desk.store()
    slow = Slow(store.backend, ambient=store.ambient)

    async def good() -> str:
        desk.calls["good"] += 1
        return "good"

    async def fails() -> None:
        desk.calls["fails"] += 1
        await returned.wait()
        if desk.calls["fails"] == 1:
            raise ValueError("no")

    async def running() -> None:
        desk.calls["running"] += 1
        if desk.calls["running"] == 1:
            await asyncio.Event().wait()

    @runs.workflow()
    async def work(ctx: runs.Context) -> Any:
        return await ctx.parallel("g", {"good": (good,), "fails": (fails,), "running": (running,)})

    assert (await work.start(slow, run_id="r")).error == "StepFailed: step g[fails] failed: ValueError: no"
    assert any('"stepId":"g[good]"' in line for line in desk.journal("r"))
    assert (await work.retry_failed(desk.store(), "r")).result == {"good": "good", "fails": None, "running": None}
    assert desk.calls == {"good": 1, "fails": 2, "running": 2}
