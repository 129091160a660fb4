"""Workers that find runs through the index alone: nothing is lost for good; and what would be without the repair."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from holdfast.objects.client import Client
from holdfast.runs.journal.index import Rebuilt, RunIndex
from holdfast.sim.run import Totals, simulate
from holdfast.sim.scenarios.runs import FOUND, INDEXED, OVER, RunsWorker

SEEDS = range(1, 61)


def found(kind: type[RunsWorker]) -> str:
    return "; ".join(violation for seed in SEEDS for violation in simulate(kind, seed).violations)


def test_every_run_ends_and_the_index_is_right_in_the_end() -> None:
    totals = Totals()
    for seed in SEEDS:
        totals.include(simulate(RunsWorker, seed))
    assert totals.broken == {}
    assert totals.tally["crashes"] > 20
    assert totals.operations > 300


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
    async def nothing(*_: Any) -> None:
        """The key is written beside the session's work alone."""

    monkeypatch.setattr(RunIndex, "announce", nothing)
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
