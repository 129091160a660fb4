"""``holdfast runs``: what is listed, shown, dumped and counted, and what that costs."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast import objects, runs
from holdfast.cli.nouns import NOUNS, load
from holdfast.cli.runs import command as runs_command
from holdfast.cli.runs.view import open_runs
from holdfast.cli.shell import Shell
from holdfast.objects import Client
from tests.tidy.tree import ROOT
from tests.unit.cli.runs_desk import RunsDesk, bulky, desk_in, nap, order

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def desk(tmp_path: Path, capsys: Capture) -> RunsDesk:
    return desk_in(tmp_path, capsys)


def ids(documents: list[dict[str, str]]) -> list[str]:
    return [document["run_id"] for document in documents]


class TestList:
    def test_a_table_for_people(self, desk: RunsDesk) -> None:
        desk.ship("done", tags=["env=prod"])
        desk.start(order, "hat", run_id="waiting")
        desk.start(nap, run_id="napping")
        header, *rows = desk.holdfast("list").splitlines()
        assert re.split(r"  +", header) == ["run", "status", "workflow", "waits for", "changed", "session", "tags"]
        cells = [re.split(r"  +", row) for row in rows]
        assert [row[:4] for row in cells] == [
            ["napping", "sleeping", "nap", "timer in 1h"],
            ["waiting", "suspended", "order", "event payment"],
            ["done", "success", "order", "-"],
        ]
        assert cells[2][5:] == ["2", "env=prod"]
        assert all(re.fullmatch(r"\d+s ago", row[4]) for row in cells)

    def test_a_run_that_the_code_does_not_fit_any_more_says_so(self, desk: RunsDesk) -> None:
        @runs.workflow(version="2", name="order")
        async def changed(ctx: runs.Context, item: str) -> None: ...

        desk.start(order, "hat", run_id="stuck")
        with pytest.raises(runs.VersionMismatch):
            desk.start(changed, "hat", run_id="stuck")
        assert "somebody: VersionMismatch" in desk.holdfast("list")
        status = desk.holdfast("status", "stuck")
        assert re.search(
            r"blocked +the latest call ended in VersionMismatch: run stuck was started by version 1", status
        )
        assert re.search(r"to do +finish it with version 1, or fork it", status)

    def test_json_and_jsonl(self, desk: RunsDesk) -> None:
        desk.ship("done", tags=["env=prod"])
        desk.start(nap, run_id="napping")
        listed = desk.document("list")
        assert listed == desk.documents("list", "--jsonl"), "one array, or one line per run"
        napping, done = listed
        assert done == {
            "run_id": "done",
            "status": "success",
            "workflow": "order",
            "session": 2,
            "generation": 0,
            "entries": 7,
            "event": None,
            "wake_at": None,
            "started_at": done["started_at"],
            "changed_at": done["changed_at"],
            "tags": ["env=prod"],
            "detached": False,
            "blocked": None,
            "cut": False,
        }
        assert done["started_at"] < done["changed_at"] < napping["wake_at"]

    def test_filters(self, desk: RunsDesk) -> None:
        desk.ship("done", tags=["env=prod"])
        desk.start(order, "hat", run_id="waiting", tags=["env=test"])
        desk.start(nap, run_id="napping")

        def listed(*options: str) -> list[str]:
            return ids(desk.document("list", *options))

        assert listed("--status", "suspended") == ["waiting"]
        assert listed("--status", "suspended", "--status", "success") == ["waiting", "done"]
        assert listed("--workflow", "nap") == ["napping"]
        assert listed("--tag", "env") == ["waiting", "done"]
        assert listed("--tag", "env=prod") == ["done"]
        assert listed("--limit", "2") == ["napping", "waiting"]
        assert listed("--since", "1h") == ["napping", "waiting", "done"]
        assert listed("--until", "1h") == []
        assert listed("--since", "2020-01-01", "--until", "2020-01-02T00:00:00Z") == []

    def test_nothing_there(self, desk: RunsDesk) -> None:
        assert desk.holdfast("list").startswith("no runs in file:")
        assert desk.holdfast("list", "--status", "failed").startswith("no such runs in file:")
        assert desk.document("list") == []
        assert desk.documents("list", "--jsonl") == []

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            (["--status", "succes"], "error: there is no status 'succes'\nhint: did you mean success?"),
            (["--status", "xyz"], "hint: use one of cancelled, "),
            (["--since", "yesterday"], "error: 'yesterday' is not a time\nhint: write 2h or 7d"),
            (["--limit", "0"], "--limit"),
        ],
    )
    def test_mistakes_are_one_line(self, desk: RunsDesk, options: list[str], error: str) -> None:
        shown = desk.holdfast("list", *options, code=2)
        assert error in shown
        assert len(shown.splitlines()) <= 2

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
        assert len(desk.documents("list", "--jsonl")) == 3000
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


class TestStatus:
    def test_for_people(self, desk: RunsDesk) -> None:
        desk.start(order, "hat", run_id="r", tags=["env=prod"], metadata={"who": "me"})
        shown = dict(re.split(r"  +", line, maxsplit=1) for line in desk.holdfast("status", "r").splitlines())
        assert shown["status"] == "suspended"
        assert shown["workflow"] == "order, version 1"
        assert shown["waits for"].startswith('event payment {"amount": 5}, since 2')
        assert shown["steps"] == "1 recorded, last reserve"
        assert shown["metadata"] == '{"who": "me"}'
        assert shown["tags"] == "env=prod"
        assert "last error" not in shown, "what there is to say, and nothing else"

    def test_for_programs(self, desk: RunsDesk) -> None:
        desk.start(order, "hat", run_id="r", broken=True)
        desk.do(lambda store: order.resume(store, "r", "payment", 5))
        found = desk.document("status", "r")
        assert (found["status"], found["session"], found["version"], found["failures"]) == ("failed", 2, "1", 1)
        assert found["last_error"]["message"] == "the lorry is broken"
        assert (found["entries"], found["steps"], found["last_step"]) == (6, 1, "reserve")

    def test_a_failed_run_is_no_failure_of_the_command(self, desk: RunsDesk) -> None:
        desk.start(order, "hat", run_id="r", broken=True)
        desk.do(lambda store: order.resume(store, "r", "payment", 5))
        shown = desk.holdfast("status", "r")
        assert "ValueError: the lorry is broken (offset 5, failures 1)" in shown

    def test_timers_forks_and_results(self, desk: RunsDesk) -> None:
        desk.start(nap, run_id="n")
        assert "(in 1h)" in desk.holdfast("status", "n")
        desk.ship("r")
        assert '{"shipped": "hat"}' in desk.holdfast("status", "r")
        desk.holdfast("fork", "r", "--from-step", "ship", "--new-run-id", "f")
        shown = desk.holdfast("status", "f")
        assert "fork of   r, offset 5" in shown
        assert "open, taken up by the next worker or call" in shown

    def test_no_such_run(self, desk: RunsDesk) -> None:
        assert desk.holdfast("status", "nobody", code=4) == (
            "error: run nobody does not exist\nhint: check the id and the store\n"
        )
        desk.ship("r")
        desk.holdfast("delete", "r")
        assert desk.holdfast("status", "r", code=4).startswith("error: run r was deleted\n")
        assert desk.holdfast("status", "a/b", code=2).startswith("error: run id 'a/b' is not one printable name")


class TestDump:
    def test_entries_one_per_line(self, desk: RunsDesk) -> None:
        desk.ship("r")
        entries = desk.documents("dump", "r")
        assert [entry["type"] for entry in entries] == [
            *("start", "step", "suspend", "start", "resume", "step", "complete"),
        ]
        assert [entry["offset"] for entry in entries] == list(range(7))
        assert entries[1]["result"] == "HAT"
        stored = desk.do(lambda store: store.get("runs/r/journal.jsonl")).body.decode().splitlines()
        assert entries == [json.loads(line) for line in stored], "as they are stored"

    def test_some_of_them(self, desk: RunsDesk) -> None:
        desk.ship("r")
        assert [entry["offset"] for entry in desk.documents("dump", "r", "--offset", "5")] == [5, 6]
        assert [entry["offset"] for entry in desk.documents("dump", "r", "--type", "step")] == [1, 5]
        assert [
            entry["offset"]
            for entry in desk.documents("dump", "r", "--type", "start", "--type", "resume", "--offset", "1")
        ] == [3, 4]
        assert "did you mean step?" in desk.holdfast("dump", "r", "--type", "steps", code=2)

    def test_large_values_are_references_unless_they_are_asked_for(self, desk: RunsDesk) -> None:
        desk.start(bulky, run_id="r")
        (reference,) = desk.documents("dump", "r", "--type", "step")
        assert reference["payload"]["bytes"] == 40_000
        (whole,) = desk.documents("dump", "r", "--type", "step", "--payloads")
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
        turns = [
            desk.documents("dump", "r", "--type", "step", *(["--generation", str(number)]))[0]["result"]
            for number in range(3)
        ]
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
        desk.start(order, "hat", run_id="oldest")
        desk.start(nap, run_id="younger")
        found = desk.document("stats")
        assert found["runs"] == 4
        assert found["by_status"] == {"success": 2, "suspended": 1, "sleeping": 1}
        assert found["by_workflow"] == {"nap": {"sleeping": 1}, "order": {"success": 2, "suspended": 1}}
        assert found["oldest_waiting"]["run_id"] == "oldest"
        assert found["requests"] == {"get": 1, "list": 3}, "the format; the open runs, the days, one day"
        assert found["dollars"] == pytest.approx(3 * 5e-6 + 4e-7)

    def test_for_people(self, desk: RunsDesk) -> None:
        desk.ship("a")
        desk.start(order, "hat", run_id="w")
        shown = desk.holdfast("stats")
        assert shown.startswith("2 runs in file:")
        assert re.search(r"^workflow +runs +suspended +success$", shown, re.MULTILINE)
        assert re.search(r"^order +2 +1 +1$", shown, re.MULTILINE)
        assert re.search(r"^oldest waiting: w for \d+s: event payment$", shown, re.MULTILINE)
        assert "spent: 4 requests (1 get, 3 list), on S3 about $0.000015" in shown

    def test_an_empty_store(self, desk: RunsDesk) -> None:
        assert desk.document("stats")["runs"] == 0
        assert desk.holdfast("stats").startswith("0 runs in file:")


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
        assert "error: 1 journals cannot be read, the first: b" in shown


def test_the_store_may_be_used_by_an_application_at_the_same_time(desk: RunsDesk) -> None:
    """The command takes no lock and leaves nothing open."""

    async def both() -> runs.Outcome:
        async with objects.open(desk.uri) as store:
            await order.start(store, "hat", run_id="r")
            await asyncio.get_running_loop().run_in_executor(None, desk.holdfast, "resume", "r", "payment", "5")
            await runs.worker(store, [order], until_idle=True)
            return await order.start(store, "hat", run_id="r")

    assert asyncio.run(both()).result == {"shipped": "hat"}


def test_the_reference_explains_every_option() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    section = page.partition("### holdfast runs\n")[2].partition("\n### ")[0]
    commands = load(next(noun for noun in NOUNS if noun.name == "runs")).commands
    documented = re.findall(r"^\| (`--[^|]*) \| ([^|]*) \|", section, re.MULTILINE)
    shown = {
        (option, command)
        for options, of in documented
        for option in re.findall(r"`(--[a-z-]+)", options)
        for command in re.findall(r"`(\w+)`", of)
    }
    real = {
        (option, name)
        for name, command in commands.items()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--") and option != "--help"
    }
    assert shown == real
