"""``holdfast runs``: what is listed, shown, dumped and counted, and what that costs."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast import objects, runs
from holdfast.cli import runs as runs_command
from holdfast.cli.runs import open_runs
from holdfast.cli.shell import Shell
from holdfast.objects import Client
from tests.unit.cli.runs_desk import RunsDesk, bulky, desk_in, nap, order

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

    def test_listing_thousands_reads_no_journal(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        desk = RunsDesk("memory:thousands", capsys)
        stores: list[Client] = []

        @asynccontextmanager
        async def watched(shell: Shell) -> AsyncIterator[Client]:
            async with open_runs(shell) as store:
                stores.append(store)
                yield store

        monkeypatch.setattr(runs_command, "open_runs", watched)
        desk.do(_three_thousand)
        assert len(desk.document("list")) == 3000
        assert len(desk.document("list", "--status", "success", "--tag", "kind=even")) == 500
        assert len(desk.document("list", "--status", "suspended")) == 2000
        for store in stores:
            assert store.usage.requests(family="runs") == 0, "no journal was touched"
            assert store.usage.requests("list", "runs-index") <= 6, "a page has a thousand keys"
            assert store.usage.requests() == store.usage.requests("list", "runs-index") + 1, "and the format is checked"


async def _three_thousand(store: Client) -> None:
    for number in range(3000):
        tags = [f"kind={'odd' if number % 2 else 'even'}"]
        if number < 1000:
            await quick.start(store, number, run_id=f"quick-{number}", tags=tags)
        else:
            await waiting.start(store, run_id=f"waiting-{number}", tags=tags)


@runs.workflow()
async def quick(ctx: runs.Context, number: int) -> int:
    return number


@runs.workflow()
async def waiting(ctx: runs.Context) -> object:
    return await ctx.suspend("go")


class TestDump:
    def test_large_values_are_references_unless_they_are_asked_for(self, desk: RunsDesk) -> None:
        desk.start(bulky, run_id="r")
        reference = desk.documents("dump", "r")[1]
        assert reference["payload"]["bytes"] == 40_000
        whole = desk.documents("dump", "r", "--payloads")[1]
        assert whole["result"]["$type"] == "bytes"
        assert "payload" not in whole

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
    def test_it_mends_the_index(self, desk: RunsDesk) -> None:
        desk.ship("a")
        desk.start(order, "hat", run_id="b")

        async def lose(store: Client) -> None:
            await store.delete_many([key async for key in store.keys("runs-index/")])

        desk.do(lose)
        assert desk.document("list") == []
        assert desk.holdfast("reindex") == "2 runs; 2 index keys written, 0 removed\n"
        assert ids(desk.document("list")) == ["b", "a"]
        assert desk.document("reindex") == {"runs": 2, "written": 0, "removed": 0, "unreadable": {}}

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
