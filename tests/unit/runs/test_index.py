"""The index: told after the journal, read by listing alone, mended from the journals."""

from typing import Any

import pytest

from holdfast.base.clock import iso
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.index import RunIndex
from holdfast.runs.journal.journal import Journal
from tests.unit.runs.journals import Archive, step

HOUR_MS = 3_600_000
DAY_NS = 86_400 * 10**9


class Watch:
    """Noon, and then whatever the test says."""

    ns = 1_767_355_200 * 10**9

    def wall_ns(self) -> int:
        self.ns += 1_000_000
        return self.ns

    def monotonic_ns(self) -> int:
        return self.ns

    def later(self, ms: int) -> str:
        return iso(self.ns + ms * 1_000_000)


class Office:
    """An archive with an index and a watch."""

    def __init__(self) -> None:
        self.watch = Watch()
        self.archive = Archive(clock=self.watch)
        self.store = self.archive.store
        self.index = self.fresh()

    def fresh(self) -> RunIndex:
        """As another process has it."""
        return RunIndex(self.store, self.archive.ambient)

    async def run(self, run_id: str, *drafts: Draft, index: RunIndex | None = None, **start: Any) -> Journal:
        """A session that is noted, does something and is noted again."""
        index = index if index is not None else self.index
        journal = await self.archive.begin(run_id, **start)
        await index.note(run_id, journal.state)
        if drafts:
            await journal.append(*drafts)
            await index.note(run_id, journal.state)
        return journal

    async def listed(self, **filters: Any) -> list[tuple[str, str]]:
        return [(found.run_id, found.status) async for found in self.fresh().list(**filters)]

    async def due(self, index: RunIndex | None = None, *, after_ms: int = 0) -> list[str]:
        now_ns = self.watch.ns + after_ms * 1_000_000
        index = index if index is not None else self.fresh()
        return [found.run_id async for found in index.due(now_ns, stale_after_ms=HOUR_MS)]


SUSPEND = Draft("suspend", {"event": "approval"})
COMPLETE = Draft("complete", {"result": 1})


async def test_runs_are_listed_without_reading_a_journal() -> None:
    office = Office()
    await office.run("a")
    await office.run("b", SUSPEND)
    await office.run("c", COMPLETE)
    await office.run("d", Draft("error", {"error": {}}), tags=["env=prod", "odd/tag é"])
    office.archive.spent()
    assert await office.listed() == [("d", "failed"), ("c", "success"), ("b", "suspended"), ("a", "open")]
    assert office.archive.spent() == {"list": 3}
    assert await office.listed(status="suspended") == [("b", "suspended")]
    assert await office.listed(status=["success", "open"]) == [("c", "success"), ("a", "open")]
    assert await office.listed(tag="env") == [("d", "failed")]
    assert await office.listed(tag="odd/tag é") == [("d", "failed")]
    assert await office.listed(limit=2) == [("d", "failed"), ("c", "success")]
    assert "get" not in office.archive.spent()


async def test_a_thousand_runs_are_a_few_pages() -> None:
    office = Office()
    state = (await office.archive.begin("x")).state
    for number in range(2_500):
        await office.index.note(f"run-{number}", state)
    office.archive.spent()
    assert len(await office.listed()) == 2_500
    assert office.archive.spent() == {"list": 3 + 1}


async def test_runs_are_found_by_time() -> None:
    office = Office()
    times: dict[str, int] = {}
    for name in ("old", "mid", "new"):
        await office.run(name, COMPLETE)
        times[name] = office.watch.ns
        office.watch.ns += 2 * DAY_NS
    await office.run("live")
    assert await office.listed() == [("live", "open"), ("new", "success"), ("mid", "success"), ("old", "success")]
    assert await office.listed(since_ns=times["mid"] - 10**9) == [
        ("live", "open"),
        ("new", "success"),
        ("mid", "success"),
    ]
    assert await office.listed(until_ns=times["mid"] + 10**9) == [("mid", "success"), ("old", "success")]
    office.archive.spent()
    assert await office.listed(status="success", since_ns=times["new"] - 10**9) == [("new", "success")]
    assert office.archive.spent() == {"list": 2}


async def test_what_noting_costs() -> None:
    office = Office()
    journal = await office.archive.begin("r")
    office.archive.spent()
    await office.index.note("r", journal.state)
    assert office.archive.spent() == {"put": 1}
    await office.index.note("r", journal.state)
    assert office.archive.spent() == {}
    await journal.append(COMPLETE)
    office.archive.spent()
    await office.index.note("r", journal.state)
    assert office.archive.spent() == {"put": 1, "delete": 1}
    assert len(office.archive.keys("runs-index")) == 1


async def test_another_process_finds_the_key_that_it_replaces() -> None:
    office = Office()
    await office.run("r", Draft("suspend", {"event": "sleep", "wakeAt": office.watch.later(1_000)}))
    journal = await office.archive.begin("r", Draft("resume", {}))
    other = office.fresh()
    office.archive.spent()
    await other.note("r", journal.state)
    assert office.archive.spent() == {"list": 1, "put": 1, "delete": 1}
    assert await office.listed() == [("r", "open")]
    assert len(office.archive.keys("runs-index")) == 1


async def test_a_latecomer_does_not_turn_the_index_back() -> None:
    office = Office()
    older = await office.archive.begin("r")
    newer = await office.archive.begin("r")
    await office.fresh().note("r", newer.state)
    await newer.append(SUSPEND)
    await office.fresh().note("r", newer.state)
    later = await office.archive.begin("r", Draft("resume", {}))
    await office.fresh().note("r", later.state)
    before = office.archive.keys("runs-index")
    await office.fresh().note("r", newer.state)
    assert office.archive.keys("runs-index") == before
    await office.fresh().note("r", older.state)  # of session 1: it does not look, and is outranked
    assert await office.listed() == [("r", "open")]


async def test_of_a_key_before_and_after_the_end_the_end_counts() -> None:
    """The process died after it had written the key of the end, and before it had removed the other."""
    office = Office()
    journal = await office.run("r", SUSPEND)
    (stale,) = office.archive.keys("runs-index")
    again = await office.archive.begin("r", Draft("resume", {}), COMPLETE)
    await office.index.note("r", again.state)
    await office.archive.backend.put(stale, b"")
    assert await office.listed() == [("r", "success")]
    assert journal.state.status == "suspended"


async def test_a_reopened_run_leaves_its_day() -> None:
    office = Office()
    await office.run("r", Draft("error", {}))
    office.watch.ns += 3 * DAY_NS
    journal = await office.archive.begin("r", reopen=True)
    await office.fresh().note("r", journal.state)
    assert await office.listed() == [("r", "open")]
    assert len(office.archive.keys("runs-index")) == 1


async def test_timers_and_retries_are_due_when_they_have_come() -> None:
    office = Office()
    await office.run("sleeper", Draft("suspend", {"event": "sleep", "wakeAt": office.watch.later(60_000)}))
    await office.run("retry", Draft("error", {"retryAt": office.watch.later(30_000)}))
    await office.run("done", COMPLETE)
    await office.run("waits", SUSPEND)
    assert await office.due() == []
    assert await office.due(after_ms=31_000) == ["retry"]
    assert await office.due(after_ms=61_000) == ["retry", "sleeper"]
    office.archive.spent()
    await office.due()
    assert office.archive.spent() == {"list": 1}


async def test_mail_makes_due_whoever_waits_for_it() -> None:
    office = Office()
    journal = await office.run("r", SUSPEND)
    await office.index.nudge("r", "m-1", "something else")
    assert await office.due() == []
    await office.index.nudge("r", "m-2", "approval")
    assert await office.due() == ["r"]
    journal = await office.archive.begin("r", Draft("resume", {"mail": "m-2"}))
    other = office.fresh()
    await other.note("r", journal.state)
    assert await office.due() == []
    await journal.append(SUSPEND)
    await other.note("r", journal.state)
    assert await office.due() == []  # the mail that it consumed does not wake it again
    await journal.append(Draft("resume", {}), COMPLETE)
    await other.note("r", journal.state)
    assert [key for key in office.archive.keys("runs-index") if "/open/" in key] == []


async def test_mail_before_the_wait_is_kept() -> None:
    office = Office()
    await office.index.nudge("r", "m-1", "approval")
    assert await office.due() == []
    journal = await office.run("r")
    await office.index.nudge("r", "m-2")
    assert await office.due() == []
    await journal.append(SUSPEND)
    await office.index.note("r", journal.state)
    assert await office.due() == ["r"]


async def test_a_parent_is_due_when_its_child_is_over() -> None:
    office = Office()
    child = await office.run("r.child")
    await office.run("r", Draft("suspend", {"event": "child:r.child"}))
    assert await office.due() == []
    await child.append(COMPLETE)
    await office.index.note("r.child", child.state)
    assert await office.due() == ["r"]


async def test_a_run_that_nobody_works_on_is_due_after_a_while() -> None:
    office = Office()
    journal = await office.run("r", step(1))
    assert await office.due(after_ms=HOUR_MS // 2) == []
    assert await office.due(after_ms=2 * HOUR_MS) == ["r"]
    office.watch.ns += 2 * HOUR_MS * 1_000_000
    await journal.append(step(2))  # the index does not hear of it; the journal's own age tells
    assert await office.due() == []
    assert await office.due(after_ms=2 * HOUR_MS) == ["r"]


async def test_a_session_written_for_somebody_else_is_due_at_once() -> None:
    office = Office()
    await office.run("r")
    await office.run("r", cancelling=True, detached=True)
    assert await office.due() == ["r"]
    await office.run("r")
    assert await office.due() == []


async def test_what_is_handed_out_twice_is_looked_at_and_mended() -> None:
    office = Office()
    await office.run("r", Draft("error", {"retryAt": office.watch.later(0)}))
    worker = office.fresh()
    assert await office.due(worker) == ["r"]
    assert await office.due(worker) == ["r"]  # still due: nobody has taken it up
    journal = await office.archive.begin("r")
    await journal.append(COMPLETE)  # and the process died before it could tell the index
    assert await office.due(worker) == []
    assert await office.listed() == [("r", "success")]
    assert len(office.archive.keys("runs-index")) == 1


async def test_what_does_not_fit_is_read_from_the_journal() -> None:
    office = Office()
    tags = [f"tag-{number}-{'x' * 40}" for number in range(50)]
    await office.run("r", SUSPEND, tags=tags, workflow="é" * 100)
    (summary,) = [found async for found in office.fresh().list()]
    assert summary.cut
    assert len(summary.tags) < 50
    office.archive.spent()
    assert await office.listed(tag=tags[0]) == [("r", "suspended")]
    assert await office.listed(tag=tags[49]) == [("r", "suspended")]
    assert await office.listed(tag="none") == []
    await office.index.nudge("r", "m")
    (due,) = [found async for found in office.fresh().due(office.watch.ns, stale_after_ms=HOUR_MS)]
    assert (due.workflow, due.cut) == ("é" * 100, False)


async def test_a_rebuilt_index_is_the_index() -> None:
    office = Office()
    await office.run("a")
    await office.run("b", SUSPEND)
    await office.run("c", COMPLETE)
    await office.index.nudge("b", "m-1", "approval")
    whole = office.archive.keys("runs-index")
    report = await office.fresh().rebuild()
    assert (report.runs, report.written, report.removed) == (3, 0, 0)
    for key in whole:
        if "!" not in key:
            await office.archive.backend.delete(key)
    for junk in ("open/b/1.1.open.0.0.0...w", "open/gone/1.1.open.0.0.0...w", "done/2020-01-01/c/1.1.failed.0.0.0...w"):
        await office.archive.backend.put("runs-index/v1/" + junk, b"")
    seen: list[int] = []
    report = await office.fresh().rebuild(seen.append)
    assert (report.runs, report.written, report.removed, report.unreadable) == (3, 3, 3, {})
    assert office.archive.keys("runs-index") == whole
    assert seen == [1, 2, 3]


async def test_rebuilding_goes_on_past_a_damaged_journal() -> None:
    office = Office()
    await office.run("bad")
    await office.run("good")
    for key in office.archive.keys("runs-index"):
        await office.archive.backend.delete(key)
    await office.archive.backend.put("runs/bad/journal.jsonl", b"{\n")
    report = await office.fresh().rebuild()
    assert (report.runs, report.written) == (1, 1)
    assert "line 1 (offset 0)" in report.unreadable["bad"]


@pytest.mark.parametrize("status", ["open", None])
async def test_an_empty_index_lists_nothing(status: str | None) -> None:
    assert await Office().listed(status=status) == []
