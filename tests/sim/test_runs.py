"""Runs: the scenarios hold, and each naive part breaks its own."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from holdfast.base.clock import iso
from holdfast.base.errors import Ambiguous, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.store import OVERWRITE, IfMatch, Object, Store, Written
from holdfast.runs import layout
from holdfast.runs.admin.control import request_cancel
from holdfast.runs.admin.delete import Deleted
from holdfast.runs.admin.fork import Forked
from holdfast.runs.engine import children
from holdfast.runs.engine.context import Context
from holdfast.runs.engine.replay import Replay
from holdfast.runs.engine.workflow import Workflow
from holdfast.runs.journal.attempt import Attempt
from holdfast.runs.journal.entry import Draft, Entry, format_line
from holdfast.runs.journal.history import History, parse_journal, read_history
from holdfast.runs.journal.index import Rebuilt, RunIndex
from holdfast.runs.journal.journal import Journal
from holdfast.runs.journal.segments import SegmentPolicy, make_ref, plan_seal
from holdfast.runs.journal.state import RunState, fold
from holdfast.sim.checkers.objects import MONOTONE, NO_FALSE_CONFLICT, ONCE
from holdfast.sim.checkers.runs import APPEND_ONLY, FENCED_OFF, READABLE, course, well_formed
from holdfast.sim.explore import Limits, explore
from holdfast.sim.history import Landing
from holdfast.sim.run import Run, simulate, simulate_drawn
from holdfast.sim.scenarios.runs import (
    AFTERWARDS,
    CLEAN,
    FOUND,
    INDEXED,
    OVER,
    PARENT,
    TOGETHER,
    RunsCancel,
    RunsWorker,
    RunsWorkflow,
)
from holdfast.sim.scenarios.runs_journal import KEPT, ONE_HOLDER, RunsForkDelete, RunsJournal
from holdfast.sim.world import Process, Seed

SEALING = SegmentPolicy(lines=1, size=1, fan_in=2)


@pytest.mark.parametrize(
    ("scenario", "limits"),
    [
        pytest.param(RunsJournal(settled=False), Limits(crashes=1, lost_responses=1), marks=pytest.mark.soak),
        (RunsJournal(settled=False), Limits(crashes=0, lost_responses=0, duplicates=1)),
        (RunsJournal(settled=False, appends=1), Limits(crashes=0, lost_responses=0, timeouts=1)),
        (RunsJournal(appends=1), Limits(crashes=1, lost_responses=1)),
        (RunsJournal(settled=False, appends=1, policy=SEALING), Limits(crashes=1, lost_responses=0)),
        (RunsJournal(workers=1, plain=2), Limits(crashes=0, lost_responses=1)),
    ],
    ids=["crash and lost answer", "duplicate", "late", "settled", "sealing", "plain writer"],
)
def test_every_order_of_events_of_two_sessions(scenario: RunsJournal, limits: Limits) -> None:
    result = explore(scenario, limits)
    assert result.found is None
    assert result.paths > 100


def line(kind: str, session: int, offset: int, **fields: object) -> bytes:
    return json.dumps({"type": kind, "session": session, "offset": offset, **fields}).encode() + b"\n"


def landings(*bodies: bytes, **others: bytes) -> list[Landing]:
    before = [Landing(0, "p", f"runs/r/{name}/x", body) for name, body in others.items()]
    return before + [Landing(n, "p", "runs/r/journal.jsonl", body) for n, body in enumerate(bodies, 1)]


START, STEP = line("start", 1, 0), line("step", 1, 1)


@pytest.mark.parametrize(
    ("course_of_events", "rule"),
    [
        (landings(START, START + STEP, START), APPEND_ONLY),
        (landings(START + STEP, START + line("step", 1, 1, stepId="x")), APPEND_ONLY),
        (landings(START, line("start", 2, 0, generation=1)), APPEND_ONLY),
        (landings(START, line("start", 2, 0, previous={"key": "runs/r/generations/x"})), READABLE),
        (landings(b'{"type":"segments","refs":[[0,0,1,1,"a",""]]}\n'), READABLE),
        (landings(b"{"), READABLE),
        (landings(START + line("start", 2, 1) + line("step", 1, 2)), FENCED_OFF),
        (landings(START + line("start", 1, 1)), MONOTONE),
        (landings(START + line("step", 1, 2)), MONOTONE),
    ],
)
def test_the_checker_sees_what_must_not_be(course_of_events: list[Landing], rule: str) -> None:
    found = course(course_of_events, "runs/r/")
    assert rule in [violation.rule for violation in (*found.violations, *well_formed(found.generations))]


def test_the_checker_lets_pass_what_may_be() -> None:
    fresh = line("start", 2, 0, generation=1, previous={"key": "runs/r/generations/x"})
    found = course(landings(START, START + STEP, fresh, generations=START + STEP), "runs/r/")
    assert (found.violations, list(well_formed(found.generations))) == ([], [])
    assert [part.number for part in found.generations] == [0, 1]


LOST_ANSWER = Limits(crashes=0, lost_responses=1)
CRASH = Limits(crashes=1, lost_responses=0)
NO_TROUBLE = Limits(crashes=0, lost_responses=0)


class WithoutReadBack(Journal):
    """Takes every lost race for proof that its entries are not there."""

    async def _read_back(self, current: Object | None, attempt: Attempt | None = None) -> bool:
        return await super()._read_back(current)


@dataclass(frozen=True, kw_only=True)
class NoReadBack(RunsJournal):
    journal: ClassVar[type[Journal]] = WithoutReadBack
    workers: int = 1
    plain: int = 1


class WithoutLooking(Journal):
    """After a failure it just tries again."""

    async def append(self, *drafts: Draft) -> list[Entry]:
        try:
            return await super().append(*drafts)
        except Ambiguous:
            self._stopped = None
            return await super().append(*drafts)


@dataclass(frozen=True, kw_only=True)
class NoLook(RunsJournal):
    journal: ClassVar[type[Journal]] = WithoutLooking


class WithoutWriter(Journal):
    @staticmethod
    def draw_writer(ambient: Ambient) -> str:
        return "a writer"


@dataclass(frozen=True, kw_only=True)
class NoWriter(RunsJournal):
    """Two dispatchers start the same run at the same instant: equal bytes, equal versions."""

    journal: ClassVar[type[Journal]] = WithoutWriter

    def opening(self, token: str) -> dict[str, object]:
        return {}


class WithoutFencing(Journal):
    """Reads again after a lost race, and appends on top of whatever is there."""

    async def append(self, *drafts: Draft) -> list[Entry]:
        key = layout.journal_key(self.run_id)
        while True:
            found = await self._store.get(key)
            offset = len(parse_journal(found).entries)
            timestamp = iso(self._ambient.clock.wall_ns())
            entry = Entry(drafts[0].type, self.session, offset, timestamp, dict(drafts[0].fields))
            outcome = await self._store.put(key, found.body + format_line(entry), IfMatch(found.version))
            if isinstance(outcome, Written):
                return [entry]


@dataclass(frozen=True, kw_only=True)
class NoFencing(RunsJournal):
    journal: ClassVar[type[Journal]] = WithoutFencing


class QuickToGiveUp(Journal):
    """Takes every lost race for a takeover, its own echo included."""

    async def _read_back(self, current: Object | None, attempt: Attempt | None = None) -> bool:
        raise NotFound(f"run {self.run_id}: another session has written, nothing was recorded")


@dataclass(frozen=True, kw_only=True)
class EchoIsTakeover(RunsJournal):
    journal: ClassVar[type[Journal]] = QuickToGiveUp
    workers: int = 1
    plain: int = 1


class SealingLater(Journal):
    """Refers to a segment first and writes it afterwards."""

    owed: tuple[str, bytes] | None = None

    async def _seal(self, history: History) -> None:
        seal = plan_seal(self._policy, history.refs, len(history.lines), 0)
        body = b"".join(history.lines[seal.first : seal.end])
        ref = make_ref(seal, body, self._ambient.ids.write_id())
        self.owed = (layout.segment_key(history.run_id, ref.level, ref.first, ref.attempt), body)
        history.refs = (*seal.kept, ref)

    async def _is_recorded(self, attempt: Attempt) -> bool:
        landed = await super()._is_recorded(attempt)
        if self.owed is not None:
            await self._store.put(*self.owed, OVERWRITE)
        return landed


@dataclass(frozen=True, kw_only=True)
class SealsLater(RunsJournal):
    journal: ClassVar[type[Journal]] = SealingLater
    workers: int = 1
    policy: SegmentPolicy = SegmentPolicy(lines=1, size=1, fan_in=2)  # noqa: RUF009  # frozen


@pytest.mark.parametrize(
    ("naive", "limits", "harm"),
    [
        (NoReadBack(), LOST_ANSWER, ONCE),
        (NoWriter(), NO_TROUBLE, ONE_HOLDER),
        (NoFencing(), NO_TROUBLE, FENCED_OFF),
        (EchoIsTakeover(), LOST_ANSWER, NO_FALSE_CONFLICT),
        (SealsLater(), CRASH, READABLE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, RunsJournal) else "",
)
def test_a_naive_journal_does_harm_and_ours_does_not(naive: RunsJournal, limits: Limits, harm: str) -> None:
    found = explore(naive, limits).found
    assert found is not None
    assert any(violation.startswith(harm) for violation in found.violations), found.violations


def test_trying_again_without_looking_does_harm() -> None:
    """In a world where time stands still the second line would be the first one again, byte for byte."""
    found = [violation for seed in range(40) for violation in simulate(NoLook, seed).violations]
    assert any(violation.startswith(ONCE) for violation in found)


def test_a_note_that_is_written_after_the_steps_that_used_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "_release", lambda *_: None)
    assert any(simulate(RunsWorkflow, seed).violations for seed in range(1, 60))


SEEDS = range(1, 61)


def found(kind: type[RunsWorker]) -> str:
    return "; ".join(violation for seed in SEEDS for violation in simulate(kind, seed).violations)


@dataclass(frozen=True, kw_only=True)
class Unrepaired(RunsWorker):
    """The index is trusted as it is."""

    name: ClassVar[str] = "unrepaired"

    async def repair(self, store: Client) -> Rebuilt:
        return Rebuilt()


def test_without_a_repair_a_run_whose_mail_has_no_nudge_never_ends() -> None:
    violations = found(Unrepaired)
    assert OVER in violations
    assert FOUND not in violations


def test_a_run_whose_key_follows_its_first_entry_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    note = RunIndex.note

    async def later(index: RunIndex, run_id: str, state: RunState, **given: Any) -> None:
        """The key is written beside the session's work alone."""
        if await index._store.find(layout.journal_key(run_id)) is not None:
            await note(index, run_id, state, **given)

    monkeypatch.setattr(RunIndex, "note", later)
    assert FOUND in found(RunsWorker)


def test_a_run_whose_mail_came_without_a_nudge_is_never_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*_: Any) -> list[str]:
        return []

    monkeypatch.setattr(RunIndex, "_unanswered", none)
    assert OVER in found(RunsWorker)


def test_a_repair_that_removes_nothing_leaves_keys_that_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep(*_: Any) -> None:
        """What is there stays."""

    monkeypatch.setattr(RunIndex, "_remove", keep)
    assert INDEXED in found(RunsWorker)


CANCEL_SEEDS = range(1, 121)


def broken(run: Run) -> str:
    return "; ".join(run.violations)


def test_children_that_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave(*_: Any) -> None:
        """The child is not this run's business."""

    monkeypatch.setattr(children, "stop", leave)
    found = [broken(simulate(RunsCancel, seed)) for seed in CANCEL_SEEDS]
    assert any(TOGETHER in each for each in found)
    assert any(AFTERWARDS in each for each in found)


def test_a_child_that_is_not_there_yet_is_left_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = children.stop

    async def stop_if_there(child: Workflow, store: Store, ambient: Ambient, parent: Mapping[str, str]) -> None:
        if await store.find(f"runs/{children.child_id(parent)}/journal.jsonl") is not None:
            await stop(child, store, ambient, parent)

    monkeypatch.setattr(children, "stop", stop_if_there)
    assert any(AFTERWARDS in broken(simulate(RunsCancel, seed)) for seed in range(1, 400))


@dataclass(frozen=True, kw_only=True)
class AtOnce(RunsCancel):
    """The write that cancels also ends the run."""

    name: ClassVar[str] = "at-once"

    async def request(self, store: Client) -> Any:
        return await request_cancel(store, PARENT, now=True)


def test_a_run_that_is_ended_at_once_cleans_up_nothing() -> None:
    drawn = [replace(AtOnce.drawn(Seed(seed).stream("settings")), with_code=False) for seed in CANCEL_SEEDS]
    found = [broken(simulate_drawn(each, Seed(seed))) for seed, each in zip(CANCEL_SEEDS, drawn, strict=True)]
    assert any(CLEAN in each for each in found)


def test_whoever_was_never_told_counts_as_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    noticed = property(lambda replay: replay._cancelled_at is not None, lambda *_: None)
    monkeypatch.setattr(Replay, "cancel_noticed", noticed, raising=False)
    assert any(CLEAN in broken(simulate(RunsCancel, seed)) for seed in range(1, 300))


@pytest.mark.parametrize(
    ("scenario", "limits"),
    [
        (RunsForkDelete(), Limits(crashes=1, lost_responses=0)),
        (RunsForkDelete(), Limits(crashes=0, lost_responses=1)),
    ],
    ids=["crash", "lost answer"],
)
def test_every_order_of_events(scenario: RunsForkDelete, limits: Limits) -> None:
    assert explore(scenario, limits).found is None


@dataclass(frozen=True, kw_only=True)
class SharesPayloads(RunsForkDelete):
    """The fork refers to the payloads of its source."""

    async def fork(self, process: Process, source: str, name: str) -> Forked | None:
        history = await read_history(process.store, source)
        assert history is not None
        base = History(name, history.entries[:2], history.lines[:2], state=fold(history.entries[:2]))
        await Journal.begin(process.store, process.ambient, name, base, {})
        return None


@dataclass(frozen=True, kw_only=True)
class RemovesFirst(RunsForkDelete):
    """The deleter removes what the run refers to, and writes its tombstone then."""

    async def delete(self, process: Process, run_id: str) -> Deleted | None:
        await process.store.delete_many([key async for key in process.store.keys(layout.payload_folder(run_id))])
        return await super().delete(process, run_id)


@pytest.mark.parametrize(
    ("naive", "limits"),
    [(SharesPayloads(), NO_TROUBLE), (RemovesFirst(), CRASH)],
    ids=lambda value: type(value).__name__ if isinstance(value, RunsForkDelete) else "",
)
def test_a_naive_fork_or_deletion_leaves_a_run_without_its_payload(naive: RunsForkDelete, limits: Limits) -> None:
    found = explore(naive, limits).found
    assert found is not None
    assert any(violation.startswith(KEPT) for violation in found.violations), found.violations
