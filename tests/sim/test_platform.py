"""Commits with events, and handlers that commit, hold under crashes and lost answers; every rule is needed."""

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.bus import Context as BusContext
from holdfast.objects.store import CREATE, Lost, Written
from holdfast.ontology.commit.attempt import Attempt
from holdfast.ontology.commit.commit import Commit
from holdfast.platform.handlers import ClaimWitness, Context, Desk
from holdfast.platform.outbox import Outbox, envelopes
from holdfast.platform.session import Session
from holdfast.sim.checkers.platform import AFTER, COMMITTED, ONE_COMMIT, PUBLISHED
from holdfast.sim.run import Totals, simulate
from holdfast.sim.scenario import Scenario
from holdfast.sim.scenarios.platform import PlatformHandlers, PlatformOutbox
from tests.sim.naive import first_broken, rules


@pytest.mark.parametrize(("kind", "seeds"), [(PlatformOutbox, 30), (PlatformHandlers, 20)])
def test_scenario_holds(kind: type[Scenario], seeds: int) -> None:
    totals = Totals()
    for seed in range(3_000, 3_000 + seeds):
        totals.include(simulate(kind, seed))
    assert totals.broken == {}
    assert {"lost response", "crashes", "pauses"} <= totals.tally.keys()


class Mendless(Outbox):
    """Publishes after the commit, and trusts that nothing comes in between."""

    async def mend(self) -> int:
        return 0


class NobodyMends(PlatformOutbox):
    outbox = Mendless


class PublishesFirst(Session):
    """Tells of a commit before it is made."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        publish_head = self._committer._publish

        async def early(attempt: Attempt) -> Written | Lost:
            for envelope in envelopes(attempt.manifest):
                await self.store.put(envelope.key, envelope.body(), CREATE)
            return await publish_head(attempt)

        self._committer._publish = early  # type: ignore[method-assign]  # the naive part


class TellsFirst(PlatformOutbox):
    session = PublishesFirst


@pytest.mark.parametrize(("naive", "harm"), [(NobodyMends, {PUBLISHED}), (TellsFirst, {COMMITTED, AFTER})])
def test_a_naive_outbox_does_harm(naive: type[Scenario], harm: set[str]) -> None:
    assert harm & rules(first_broken(naive, range(50, 150)))


class Unwitnessed(Desk):
    """Commits as plain sessions do, whatever an earlier life has committed."""

    async def _insist(
        self, session: Session, metadata: Mapping[str, Any], if_head: int | None, witness: ClaimWitness
    ) -> Commit | None:
        return await session.commit(metadata, if_head=if_head)


class Forgetful(PlatformHandlers):
    def over(self, given: BusContext, desk: Desk) -> Context:
        desk.__class__ = Unwitnessed
        return super().over(given, desk)


def test_a_handler_that_does_not_note_its_attempts_commits_twice() -> None:
    assert ONE_COMMIT in rules(first_broken(Forgetful, range(100)))
