"""``holdfast runs``: what is listed, shown, dumped and counted, and what that costs."""

import asyncio
import re
from pathlib import Path

import pytest

from holdfast import objects, runs
from holdfast.objects import Client
from tests.unit.cli.runs_desk import RunsDesk, desk_in, nap, order

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def desk(tmp_path: Path, capsys: Capture) -> RunsDesk:
    return desk_in(tmp_path, capsys)


def ids(documents: list[dict[str, str]]) -> list[str]:
    return [document["run_id"] for document in documents]


class TestList:
    def test_a_run_that_the_code_does_not_fit_any_more_says_so(self, desk: RunsDesk) -> None:
        @runs.workflow(version="2", name="order")
        async def changed(ctx: runs.Context, item: str) -> None: ...

        desk.start(order, "hat", run_id="stuck")
        with pytest.raises(runs.VersionMismatch):
            desk.start(changed, "hat", run_id="stuck")
        assert "an operator: VersionMismatch" in desk.holdfast("list")
        status = desk.holdfast("status", "stuck")
        assert re.search(
            r"blocked +the latest call ended in VersionMismatch: run stuck was started by version 1", status
        )
        assert re.search(r"to do +finish it with version 1, or fork it", status)


class TestDump:
    def test_earlier_generations(self, desk: RunsDesk) -> None:
        @runs.workflow()
        async def loop(ctx: runs.Context, turn: int) -> int:
            await ctx.step("turn", lambda: turn)
            if turn < 3:
                ctx.continue_as_new(turn + 1)
            return turn

        desk.start(loop, 1, run_id="r")
        turns = [desk.documents("dump", "r", "--generation", str(number))[1]["result"] for number in range(3)]
        assert turns == [1, 2, 3]
        assert desk.documents("dump", "r") == desk.documents("dump", "r", "--generation", "2")
        assert "has no generation 3" in desk.holdfast("dump", "r", "--generation", "3", code=4)

    def test_a_damaged_journal_is_reported_with_its_offset(self, desk: RunsDesk) -> None:
        desk.ship("r")

        async def damage(store: Client) -> bytes:
            found = await store.get("runs/r/journal.jsonl")
            lines = found.body.splitlines(keepends=True)
            await store.put("runs/r/journal.jsonl", b"".join([*lines[:3], b"{broken\n", *lines[4:]]))
            return found.body

        desk.do(damage)
        for command in (["dump", "r"], ["status", "r"], ["tail", "r"]):
            assert "error: runs/r/journal.jsonl: line 4 (offset 3): not JSON" in desk.holdfast(*command, code=11)


class TestStats:
    def test_for_programs(self, desk: RunsDesk) -> None:
        desk.ship("a")
        desk.ship("b")
        desk.start(order, "hat", run_id="waiting")
        desk.start(nap, run_id="asleep")
        assert desk.document("stats") == {"nap": {"sleeping": 1}, "order": {"success": 2, "suspended": 1}}


class TestReindex:
    def test_damaged_journals_are_named_and_do_not_stop_it(self, desk: RunsDesk) -> None:
        desk.ship("a")
        desk.do(lambda store: store.put("runs/b/journal.jsonl", b"nonsense\n"))
        shown = desk.holdfast("reindex", code=11)
        assert "1 run; " in shown
        assert "b cannot be read: runs/b/journal.jsonl: line 1 (offset 0): not JSON" in shown
        assert "error: 1 journal cannot be read, the first: b" in shown


def test_the_store_may_be_used_by_an_application_at_the_same_time(desk: RunsDesk) -> None:
    """The command takes no lock and leaves nothing open."""

    async def both() -> runs.Outcome:
        async with objects.open(desk.uri) as store:
            await order.start(store, "hat", run_id="r")
            await asyncio.get_running_loop().run_in_executor(None, desk.holdfast, "resume", "r", "payment", "5")
            await runs.worker(store, [order], until_idle=True)
            return await order.start(store, "hat", run_id="r")

    assert asyncio.run(both()).result == {"shipped": "hat"}
