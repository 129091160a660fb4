"""Workflows from the outside: what a caller sees, what the journal holds, what ran how often, what it cost."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import runs
from holdfast.base import telemetry
from holdfast.base.errors import Invalid, NotFound
from tests.unit.base.test_telemetry import RecordingTracer
from tests.unit.runs.desk import Crash, Desk


@dataclass
class Analysis:
    destructive: bool
    urls: tuple[str, ...]


def types(desk: Desk, run_id: str) -> list[str]:
    return [str(json.loads(line)["type"]) for line in desk.journal(run_id)]


async def test_steps_are_journaled_and_replayed_after_a_crash() -> None:
    desk = Desk()
    die = True

    async def fetch(name: str) -> str:
        desk.calls[name] += 1
        return name.upper()

    @runs.workflow(version="1")
    async def work(ctx: runs.Context, topic: str) -> list[str]:
        first = await ctx.step("llm", fetch, topic)
        second = await ctx.step("llm", fetch, topic + "2")
        if die:
            raise Crash
        third = await ctx.step("other", fetch, "third")
        return [first, second, third]

    with pytest.raises(Crash):
        await work.start(desk.store(), "a", run_id="r")
    assert types(desk, "r") == ["start", "step", "step"]
    die = False
    outcome = await work.start(desk.store(), "a", run_id="r")
    assert (outcome.status, outcome.result, outcome.session) == ("success", ["A", "A2", "THIRD"], 2)
    assert desk.calls == {"a": 1, "a2": 1, "third": 1}
    assert [json.loads(line).get("stepId") for line in desk.journal("r")] == [
        None,
        "llm",
        "llm#2",
        None,
        "other",
        None,
    ]


async def test_start_joins_or_refuses() -> None:
    desk = Desk()

    @runs.workflow(version="1")
    async def work(ctx: runs.Context, x: int, *, y: int = 0) -> int:
        return x + y

    await work.start(desk.store(), 1, y=2, run_id="r")
    assert (await work.start(desk.store(), 1, y=2, run_id="r")).result == 3
    with pytest.raises(runs.InputMismatch) as refused:
        await work.start(desk.store(), 2, run_id="r")
    assert runs.acknowledge(refused.value)
    with pytest.raises(NotFound):
        await work.proceed(desk.store(), "missing")
    with pytest.raises(Invalid, match="run id"):
        await work.start(desk.store(), 1, run_id="a/b")


async def test_parallel_steps_replay_whatever_finished_first() -> None:
    desk = Desk()
    die = True

    async def fetch(url: str) -> str:
        desk.calls[url] += 1
        await asyncio.sleep({"a": 0.03, "b": 0.0, "c": 0.01}[url])
        if die and url == "a":
            raise Crash
        return url.upper()

    @runs.workflow()
    async def work(ctx: runs.Context) -> Any:
        found = await ctx.parallel("fetch", {url: (fetch, url) for url in "abc"}, limit=3)
        more = await ctx.parallel("fetch", [(fetch, "b")])
        return found, more

    with pytest.raises(Crash):
        await work.start(desk.store(), run_id="r")
    die = False
    outcome = await work.start(desk.store(), run_id="r")
    assert outcome.result == ({"a": "A", "b": "B", "c": "C"}, ["B"])
    assert desk.calls == {"a": 2, "b": 2, "c": 1}, "a was not recorded; the second group is another step"
    ids = sorted(json.loads(line)["stepId"] for line in desk.journal("r") if '"step"' in line)
    assert ids == ["fetch#2[0]", "fetch[a]", "fetch[b]", "fetch[c]"]


async def test_concurrent_steps_need_keys() -> None:
    desk = Desk()

    async def wait() -> int:
        await asyncio.sleep(0)
        return 1

    @runs.workflow()
    async def unkeyed(ctx: runs.Context) -> Any:
        return await asyncio.gather(ctx.step("llm", wait), ctx.step("llm", wait))

    @runs.workflow()
    async def keyed(ctx: runs.Context) -> Any:
        return await asyncio.gather(ctx.step("llm", wait, key=1), ctx.step("llm", wait, key=2), ctx.step("x", wait))

    with pytest.raises(runs.ConcurrentSteps, match=r"give each a key=|several tasks"):
        await unkeyed.start(desk.store(), run_id="r")
    assert (await keyed.start(desk.store(), run_id="s")).result == [1, 1, 1]
    assert (await keyed.start(desk.store(), run_id="s")).result == [1, 1, 1]


async def test_values_of_every_kind_and_the_key() -> None:
    desk = Desk()
    keys: list[str] = []

    @runs.workflow()
    async def work(ctx: runs.Context) -> Any:
        def analyse() -> Analysis:
            keys.append(ctx.key)
            return Analysis(False, ("u",))

        analysis = await ctx.step("analyse", analyse)
        blob = await ctx.step("blob", lambda: b"x" * 100_000)
        text = await ctx.step("text", lambda: ["y" * 50_000])
        moment = await ctx.now()
        name = await ctx.unique()
        return analysis, len(blob), len(text[0]), moment, name

    first = await work.start(desk.store(), run_id="r")
    again = await work.start(desk.store(), run_id="r")
    assert first.result == again.result
    assert first.result[:3] == (Analysis(False, ("u",)), 100_000, 50_000)
    assert keys == ["r/analyse"]
    assert len([key for key in desk.shelf.objects if "/payloads/" in key]) == 2
    assert max(len(line) for line in desk.journal("r")) < 1_000


@pytest.mark.parametrize("size", [1, 40_000], ids=["inline", "payload"])
async def test_keys_come_in_one_order(size: int) -> None:
    desk = Desk()
    seen: list[list[str]] = []
    die = True

    def answer() -> dict[str, Any]:
        return {"zebra": "z" * size, "ant": {"two": 2, "one": 1}}

    @runs.workflow()
    async def work(ctx: runs.Context) -> None:
        found = await ctx.step("ask", answer)
        seen.append([*found, *found["ant"]])
        for name in found:
            await ctx.step(name, lambda: 1)
            if die:
                raise Crash

    with pytest.raises(Crash):
        await work.start(desk.store(), run_id="r")
    die = False
    assert (await work.start(desk.store(), run_id="r")).status == "success"
    assert seen[0] == seen[1]


async def test_runs_sessions_and_steps_are_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = RecordingTracer()
    monkeypatch.setattr(telemetry, "_tracer", tracer)

    def fail() -> None:
        raise ValueError("no")

    @runs.workflow
    async def work(ctx: runs.Context) -> None:
        await ctx.step("fine", lambda: 1)
        await ctx.step("bad", fail)

    await work.start(Desk().store(), run_id="r")
    assert [span.name for span in tracer.spans] == [
        "holdfast.run",
        "holdfast.session",
        "holdfast.step",
        "holdfast.step",
    ]
    run, session, fine, bad = tracer.spans
    assert run.attributes == {"holdfast.run_id": "r", "holdfast.workflow": "work"}
    assert session.attributes == {"holdfast.run_id": "r", "holdfast.session": 1}
    assert fine.attributes["holdfast.step_id"] == "fine"
    assert (fine.error is None, bad.error is None) == (True, False)
