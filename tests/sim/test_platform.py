"""Events of commits, handlers and steps: the scenarios hold, and each naive part breaks its own."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from holdfast.base.codec import Document
from holdfast.bus import Context as BusContext
from holdfast.bus.event import Envelope
from holdfast.bus.layout import spelled_id
from holdfast.bus.publish import put_event
from holdfast.objects.store import CREATE, Lost, Written
from holdfast.ontology.commit.attempt import Attempt
from holdfast.ontology.commit.commit import Commit
from holdfast.platform.durable import BusCourier
from holdfast.platform.handlers import ClaimWitness, Context, Desk
from holdfast.platform.outbox import Outbox, envelopes
from holdfast.platform.session import Session
from holdfast.runs import Context as RunContext
from holdfast.runs.engine.outbox import Outbox as StepOutbox
from holdfast.runs.journal.entry import Draft, Entry
from holdfast.sim.checkers.platform import (
    AFTER,
    AFTER_STEP,
    COMMITTED,
    ONE_COMMIT,
    PUBLISHED,
    RECORDED,
    STEP_ONCE,
    STEP_PUBLISHED,
)
from holdfast.sim.scenario import Scenario
from holdfast.sim.scenarios.platform import PlatformHandlers, PlatformOutbox, PlatformSteps
from tests.sim.naive import first_broken, rules


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


class Anonymous(BusCourier):
    """Gives an event a new id whenever it is written out."""

    async def publish(self, documents: Sequence[Document]) -> None:
        for document in documents:
            ident = spelled_id(self._ambient.ids.unique())
            envelope = Envelope.parse({**document, "id": ident}, key="naive")
            await put_event(self._store, envelope)


class NewIds(PlatformSteps):
    courier = Anonymous


def test_ids_that_do_not_follow_from_the_step_publish_twice() -> None:
    assert STEP_ONCE in rules(first_broken(NewIds, range(100)))


def test_a_session_that_does_not_finish_what_others_began_leaves_events_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class OwnOnly(StepOutbox):
        """Brings out what its own session has recorded, and nothing else."""

        def __init__(self, entries: Iterable[Entry]) -> None:
            super().__init__(entries)
            self._left.clear()

    monkeypatch.setattr("holdfast.runs.engine.context.Outbox", OwnOnly)
    assert STEP_PUBLISHED in rules(first_broken(PlatformSteps, range(100)))


def test_telling_before_the_entry_is_written_tells_what_never_was(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hasty(RunContext):
        """Brings events out when their step has ended, and records it then."""

        async def _append(self, *drafts: Draft) -> None:
            for draft in drafts:
                if documents := draft.fields.get("outbox"):
                    await BusCourier(self._store, self._ambient).publish(documents)
            await super()._append(*drafts)

    monkeypatch.setattr("holdfast.runs.engine.session.Context", Hasty)
    assert {AFTER_STEP, RECORDED} & rules(first_broken(PlatformSteps, range(100)))
