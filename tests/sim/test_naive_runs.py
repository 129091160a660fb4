"""Every safety rule of the journal is needed: without it a small world shows the harm."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest

from holdfast.base.clock import iso
from holdfast.base.errors import Ambiguous, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import OVERWRITE, IfMatch, Lost, Object, Written
from holdfast.runs import layout
from holdfast.runs.journal.attempt import Attempt
from holdfast.runs.journal.entry import Draft, Entry, format_line
from holdfast.runs.journal.history import History, parse_journal
from holdfast.runs.journal.journal import Journal, Sealer
from holdfast.runs.journal.segments import Ref, SegmentPolicy, make_ref, plan_seal
from holdfast.sim.checkers.objects import NO_FALSE_CONFLICT, ONCE
from holdfast.sim.checkers.runs import FENCED_OFF, READABLE
from holdfast.sim.explore import Limits, explore
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.runs_journal import ONE_HOLDER, RunsJournal

LOST_ANSWER = Limits(crashes=0, lost_responses=1)
CRASH = Limits(crashes=1, lost_responses=0)
NO_TROUBLE = Limits(crashes=0, lost_responses=0)


class WithoutReadBack(Journal):
    """Takes every lost race for proof that its entries are not there."""

    def find_landed(self, recorded: Sequence[Entry]) -> Attempt | None:
        return None


@dataclass(frozen=True, kw_only=True)
class NoReadBack(RunsJournal):
    journal: ClassVar[type[Journal]] = WithoutReadBack
    workers: int = 1
    settled: bool = False
    again: float = 1.0


class WithoutLooking(Journal):
    """After a failure it just tries again."""

    async def append(self, *drafts: Draft) -> list[Entry]:
        try:
            return await super().append(*drafts)
        except Ambiguous:
            self._in_doubt.clear()
            return await super().append(*drafts)


@dataclass(frozen=True, kw_only=True)
class NoLook(RunsJournal):
    journal: ClassVar[type[Journal]] = WithoutLooking


class WithoutWriter(Journal):
    @staticmethod
    def draw_writer(ambient: Ambient) -> str:
        return "somebody"


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

    async def _look(self, current: Object | None) -> None:
        raise NotFound(f"run {self.run_id}: somebody else has written, nothing was recorded")


@dataclass(frozen=True, kw_only=True)
class EchoIsTakeover(RunsJournal):
    journal: ClassVar[type[Journal]] = QuickToGiveUp
    workers: int = 1
    plain: int = 1


class LateSealer(Sealer):
    """Writes nothing: says what should be referred to."""

    async def seal(self, history: History) -> tuple[Ref, ...]:
        seal = plan_seal(self._policy, history.refs, len(history.lines), 0)
        body = b"".join(history.lines[seal.first : seal.end])
        ref = make_ref(seal, body, self._ambient.ids.write_id())
        self.owed = (layout.segment_key(history.run_id, ref.level, ref.first, ref.attempt), body)
        return (*seal.kept, ref)


class SealingLater(Journal):
    """Refers to a segment first and writes it afterwards."""

    sealer = LateSealer

    async def _put(self, attempt: Attempt) -> Written | Lost:
        outcome = await super()._put(attempt)
        if attempt.refs and isinstance(self._sealer, LateSealer):
            await self._store.put(*self._sealer.owed, OVERWRITE)
        return outcome


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
