"""Events of steps hold under crashes and lost answers; a courier that is naive does harm."""

from collections.abc import Iterable, Sequence

import pytest

from holdfast.base.codec import Document
from holdfast.bus.event import Envelope
from holdfast.bus.layout import spelled_id
from holdfast.bus.publish import put_event
from holdfast.platform.durable import BusCourier
from holdfast.runs.engine.context import Context
from holdfast.runs.engine.outbox import Outbox
from holdfast.runs.journal.entry import Draft, Entry
from holdfast.sim.checkers.platform import AFTER_STEP, RECORDED, STEP_ONCE, STEP_PUBLISHED
from holdfast.sim.run import Totals, simulate
from holdfast.sim.scenarios.platform import PlatformSteps
from tests.sim.naive import first_broken, rules


def test_scenario_holds() -> None:
    totals = Totals()
    for seed in range(5_000, 5_060):
        totals.include(simulate(PlatformSteps, seed))
    assert totals.broken == {}
    assert {"lost response", "crashes", "pauses"} <= totals.tally.keys()


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
    class OwnOnly(Outbox):
        """Brings out what its own session has recorded, and nothing else."""

        def __init__(self, entries: Iterable[Entry]) -> None:
            super().__init__(entries)
            self._left.clear()

    monkeypatch.setattr("holdfast.runs.engine.context.Outbox", OwnOnly)
    assert STEP_PUBLISHED in rules(first_broken(PlatformSteps, range(100)))


def test_telling_before_the_entry_is_written_tells_what_never_was(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hasty(Context):
        """Brings events out when their step has ended, and records it then."""

        async def _append(self, *drafts: Draft) -> None:
            for draft in drafts:
                if documents := draft.fields.get("outbox"):
                    await BusCourier(self._store, self._ambient).publish(documents)
            await super()._append(*drafts)

    monkeypatch.setattr("holdfast.runs.engine.session.Context", Hasty)
    assert {AFTER_STEP, RECORDED} & rules(first_broken(PlatformSteps, range(100)))
