"""The index: updated after the journal, read by listing alone, repaired from the journals.

A run's first key comes before its first entry.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import runs
from holdfast.base.clock import iso
from holdfast.objects.client import Client
from holdfast.objects.store import CREATE, OVERWRITE, Lost, Mode, Written, check_key
from holdfast.runs import layout
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.index import CREATION_MS, RunIndex
from holdfast.runs.journal.journal import Journal
from holdfast.runs.journal.state import TRANSITIONS
from holdfast.runs.journal.summary import Nudge, RunSummary, day_of, index_key, nudge_key, read_key
from tests.unit.runs.desk import Crash, Desk
from tests.unit.runs.journal.journals import Archive, step

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


async def test_a_thousand_runs_are_a_few_pages() -> None:
    office = Office()
    state = (await office.archive.begin("x")).state
    for number in range(2_500):
        await office.index.note(f"run-{number}", state)
    office.archive.spent()
    assert len(await office.listed()) == 2_500
    assert office.archive.spent() == {"list": 3 + 1}


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


async def test_mail_makes_the_run_due_that_waits_for_it() -> None:
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


async def test_a_run_without_a_live_process_is_due_after_a_while() -> None:
    office = Office()
    journal = await office.run("r", step(1))
    assert await office.due(after_ms=HOUR_MS // 2) == []
    assert await office.due(after_ms=2 * HOUR_MS) == ["r"]
    office.watch.ns += 2 * HOUR_MS * 1_000_000
    await journal.append(step(2))  # the index does not hear of it; the journal's own age tells
    assert await office.due() == []
    assert await office.due(after_ms=2 * HOUR_MS) == ["r"]


async def test_what_is_handed_out_twice_is_looked_at_and_mended() -> None:
    office = Office()
    await office.run("r", Draft("error", {"retryAt": office.watch.later(0)}))
    worker = office.fresh()
    assert await office.due(worker) == ["r"]
    assert await office.due(worker) == ["r"]  # still due: no worker has taken it up
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
    report = await office.fresh().rebuild()
    assert (report.runs, report.written, report.removed, report.unreadable) == (3, 3, 3, {})
    assert office.archive.keys("runs-index") == whole


async def test_rebuilding_goes_on_past_a_damaged_journal() -> None:
    office = Office()
    await office.run("bad")
    await office.run("good")
    head = b'{"type":"segments","format":1,"generation":1,"session":1,"refs":[[0,0,5,5,"../../x","aa"]]}'
    for key in office.archive.keys("runs-index"):
        await office.archive.backend.delete(key)
    await office.archive.backend.put("runs/bad/journal.jsonl", b"{\n")
    await office.archive.backend.put("runs/strange/journal.jsonl", head + b"\n")
    report = await office.fresh().rebuild()
    assert (report.runs, report.written) == (1, 1)
    assert "line 1 (offset 0)" in report.unreadable["bad"]
    assert "'../../x' names no segment" in report.unreadable["strange"]


class Dying(Client):
    """The process dies before or after the first write of a journal."""

    when = "after"

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        first = key.endswith("journal.jsonl") and mode is CREATE
        if first and self.when == "before":
            raise Crash
        outcome = await super().put(key, body, mode)
        if first:
            raise Crash
        return outcome


def dying(desk: Desk, when: str) -> Client:
    store = desk.store()
    client = Dying(store.backend, ambient=store.ambient)
    client.when = when
    return client


@runs.workflow()
async def work(ctx: runs.Context) -> Any:
    return await ctx.step("s", lambda: 1)


@runs.workflow()
async def parent(ctx: runs.Context) -> Any:
    return await ctx.run(work)


async def found(desk: Desk) -> list[str]:
    return [summary.run_id async for summary in runs.find(desk.store())]


async def worked(desk: Desk) -> Any:
    return await runs.worker(desk.store(), [work, parent], stale_after_ms=1_000, until_idle=True)


async def test_a_fork_killed_after_its_first_entry_is_finished_by_a_worker() -> None:
    desk = Desk()
    await work.start(desk.store(), run_id="r")
    with pytest.raises(Crash):
        await runs.fork(dying(desk, "after"), "r", from_step="s", new_run_id="f")
    await worked(desk)
    assert (await runs.describe(desk.store(), "f")).status == "success"


async def test_a_key_of_a_run_that_was_never_created_is_removed_after_a_while() -> None:
    desk = Desk()
    with pytest.raises(Crash):
        await work.start(dying(desk, "before"), run_id="r")
    desk.watch.advance(seconds=5)
    assert (await worked(desk)).called == 0
    rebuilt = await runs.reindex(desk.store())
    assert (rebuilt.removed, await found(desk)) == (0, ["r"]), "its creation may still be under way"
    desk.watch.advance(seconds=CREATION_MS / 1000)
    await worked(desk)
    assert await found(desk) == []


async def test_a_repair_keeps_mail_that_came_for_a_run_that_was_not_created() -> None:
    desk = Desk()
    with pytest.raises(Crash):
        await work.start(dying(desk, "before"), run_id="r")
    await runs.deliver(desk.store(), "r", "go", 1)
    desk.watch.advance(seconds=5 + CREATION_MS / 1000)
    assert (await runs.reindex(desk.store())).removed == 1
    assert [key for key in desk.shelf.objects if "runs-index" in key and "!" not in key] == []
    assert len(desk.shelf.objects) == 2, "the mail and its nudge"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
ids = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=60).filter(
    lambda text: "/" not in text and text not in (".", "..") and len(text.encode()) <= 200
)
times = st.integers(0, 4_000_000_000_000)
summaries = st.builds(
    RunSummary,
    run_id=ids,
    status=st.sampled_from(sorted(TRANSITIONS)),
    session=st.integers(0, 10**9),
    offset=st.integers(0, 10**9),
    workflow=texts,
    tags=st.lists(texts.filter(bool), max_size=12).map(tuple),
    event=st.none() | texts.filter(bool),
    generation=st.integers(0, 10**6),
    started_ms=times,
    updated_ms=times,
    wake_ms=st.none() | times,
    detached=st.booleans(),
)


@given(summaries)
def test_a_summary_reads_back_from_its_key(summary: RunSummary) -> None:
    key = index_key(summary)
    assert check_key(key) == key
    assert len(key.encode()) < 1024 - 300
    found = read_key(key)
    assert found is not None
    run_id, said = found
    assert run_id == summary.run_id
    assert isinstance(said, RunSummary)
    assert (said.rank, said.status, said.wake_ms) == (summary.rank, summary.status, summary.wake_ms)
    assert (said.started_ms, said.updated_ms, said.generation) == (
        summary.started_ms,
        summary.updated_ms,
        summary.generation,
    )
    if said.cut:
        assert set(said.tags) <= set(summary.tags)
        assert said.event in (None, summary.event)
    else:
        assert (said.workflow, said.tags, said.event) == (summary.workflow, summary.tags, summary.event)


@given(ids, ids, st.none() | texts.filter(bool))
def test_a_nudge_reads_back_from_its_key(run_id: str, mail_id: str, event: str | None) -> None:
    key = nudge_key(run_id, Nudge(mail_id, event))
    assert check_key(key) == key
    found = read_key(key)
    assert found is not None
    assert found[0] == run_id
    assert isinstance(found[1], Nudge)
    assert found[1].mail_id == mail_id
    assert found[1].event in (None, event)


def test_what_is_over_lies_under_its_day() -> None:
    ended = RunSummary("r", "failed", 1, 2, updated_ms=1_767_326_400_000)
    assert index_key(ended).startswith(f"{layout.INDEX_DONE}2026-01-02/r/")
    assert day_of(0) == "1970-01-01"
    assert index_key(RunSummary("r", "retrying", 1, 2)).startswith(f"{layout.INDEX_OPEN}r/")


def test_a_key_that_says_nothing_is_nothing() -> None:
    for key in ("runs-index/v1/open/r/x", "runs-index/v1/open/r/1.2.open.a.b.c.d.e.f", "runs-index/v2/open/r/x", "x"):
        assert read_key(key) is None
