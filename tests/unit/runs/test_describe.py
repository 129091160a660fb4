"""A run described from its journal."""

from typing import Any

from holdfast import runs
from holdfast.runs.admin.describe import as_document, with_payload
from holdfast.runs.journal.history import read_history
from tests.unit.runs.desk import Desk


async def test_failures_timers_and_results() -> None:
    desk = Desk()
    broken = True

    @runs.workflow(retry=runs.Retry(attempts=2, base_ms=5_000, jitter=0))
    async def work(ctx: runs.Context) -> dict[str, int]:
        if broken:
            raise ValueError("down")
        await ctx.sleep(hours=1)
        return {"n": 1}

    await work.start(desk.store(), run_id="r")
    found = await runs.describe(desk.store(), "r")
    assert (found.status, found.failures) == ("retrying", 1)
    assert found.wake_at is not None
    assert found.wake_at > found.updated_at
    assert found.last_error is not None
    assert (found.last_error.type, found.last_error.message, found.last_error.offset) == ("ValueError", "down", 1)
    broken = False
    desk.watch.advance(seconds=6)
    await work.start(desk.store(), run_id="r")
    found = await runs.describe(desk.store(), "r")
    assert (found.status, found.event) == ("sleeping", "sleep")
    assert found.wake_at is not None
    assert found.last_error is not None, "what went wrong before is still worth knowing"
    desk.watch.advance(seconds=3601)
    await work.start(desk.store(), run_id="r")
    found = await runs.describe(desk.store(), "r")
    assert (found.status, found.result, found.wake_at) == ("success", {"n": 1}, None)


async def test_parents_and_children_name_each_other() -> None:
    desk = Desk()

    @runs.workflow()
    async def child(ctx: runs.Context) -> Any:
        return await ctx.suspend("more")

    @runs.workflow()
    async def quick(ctx: runs.Context) -> int:
        return 1

    @runs.workflow()
    async def parent(ctx: runs.Context) -> Any:
        return [await ctx.run(quick), await ctx.run(child)]

    await parent.start(desk.store(), run_id="p")
    above = await runs.describe(desk.store(), "p")
    assert above.children == ("p.quick", "p.child")
    assert (await runs.describe(desk.store(), "p.child")).parent == {"runId": "p", "stepId": "child"}
    await child.resume(desk.store(), "p.child", "more", 2)
    await parent.start(desk.store(), run_id="p")
    assert (await runs.describe(desk.store(), "p")).children == ("p.quick", "p.child"), "each once"


async def test_large_values_in_their_place() -> None:
    desk = Desk()

    @runs.workflow()
    async def work(ctx: runs.Context, given: str) -> str:
        await ctx.step("blob", lambda: b"\x00" * 40_000)
        await ctx.step("text", lambda: ["y" * 40_000])
        await ctx.step("small", lambda: 1)
        return given

    await work.start(desk.store(), "z" * 40_000, run_id="r")
    history = await read_history(desk.store(), "r")
    assert history is not None
    plain = [as_document(entry) for entry in history.entries]
    assert [sorted({"payload", "result", "input"} & set(entry)) for entry in plain] == [
        ["payload"],
        ["payload"],
        ["payload"],
        ["result"],
        ["payload"],
    ]
    store = desk.store()
    whole = [await with_payload(store, entry) for entry in history.entries]
    assert store.usage.by_verb == {"get": 4}
    assert not any("payload" in entry for entry in whole)
    assert whole[0]["input"]["args"] == ["z" * 40_000]
    assert whole[1]["result"]["$type"] == "bytes"
    assert whole[2]["result"] == ["y" * 40_000]
    assert whole[4]["result"] == "z" * 40_000
    found = await runs.describe(desk.store(), "r")
    assert found.result["bytes"] > 40_000, "the reference stands for a large result"


async def test_an_error_that_another_writer_recorded() -> None:
    desk = Desk()
    line = '{"type":"%s","session":1,"offset":%d,"timestamp":"2026-03-03T08:00:00Z"%s}\n'
    failed = line % ("start", 0, "") + line % ("error", 1, ',"error":{"name":"TypeError","message":"x is undefined"}')
    await desk.store().put("runs/r/journal.jsonl", failed.encode())
    found = await runs.describe(desk.store(), "r")
    assert found.last_error is not None
    assert (found.status, found.last_error.type, found.last_error.message) == ("failed", "TypeError", "x is undefined")
    assert (found.workflow, found.version, found.tags) == ("", None, ())
