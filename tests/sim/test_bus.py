"""The bus holds under wrong clocks, dead workers, a cleaner and lost answers; every rule is needed."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.bus import on
from holdfast.bus.claim import Action, Claim, Fail, step
from holdfast.bus.claims import Claims, Hold
from holdfast.bus.publish import Boundary
from holdfast.bus.retry import Retry
from holdfast.objects.store import IfMatch
from holdfast.sim.checkers.bus import ONCE_PER_KEY, OWNER_ONLY, STATE_FIRST
from holdfast.sim.explore import Limits, explore
from holdfast.sim.run import Totals, simulate
from holdfast.sim.scenario import Scenario
from holdfast.sim.scenarios.bus_claim import BusClaim
from holdfast.sim.scenarios.bus_events import BusEvents
from holdfast.sim.world import Process
from tests.sim.naive import first_broken, rules
from tests.unit.bus.desk import Desk, OrderPlaced

LOST_ANSWER = Limits(crashes=0, lost_responses=1)
CRASH = Limits(crashes=1, lost_responses=0)
NO_TROUBLE = Limits(crashes=0, lost_responses=0)


@pytest.mark.parametrize(("kind", "seeds"), [(BusEvents, 60), (BusClaim, 150)])
def test_scenario_holds(kind: type[Scenario], seeds: int) -> None:
    totals = Totals()
    for seed in range(2_000, 2_000 + seeds):
        totals.include(simulate(kind, seed))
    assert totals.broken == {}
    assert {"lost response", "lost request", "crashes", "pauses", "clock jumps"} <= totals.tally.keys()


@pytest.mark.parametrize(
    ("scenario", "limits", "at_least"),
    [
        pytest.param(BusClaim(turns=1), Limits(1, 1), 500, id="fail and retry"),
        pytest.param(BusClaim(turns=1, attempts=1), LOST_ANSWER, 100, id="dead letter"),
        pytest.param(BusClaim(), NO_TROUBLE, 500, id="fail, retry, ack, dead letter"),
    ],
)
def test_no_course_of_two_workers_and_one_event_breaks_a_rule(
    scenario: BusClaim, limits: Limits, at_least: int
) -> None:
    result = explore(scenario, limits)
    assert result.found is None
    assert result.states > at_least


class AckByAnyone(Claims):
    """Reads the claim, sets ``ack_at``, writes it back, whoever has it by now."""

    async def ack(self, hold: Hold, outbox: tuple[Any, ...] = ()) -> Claim:
        key = self._key(hold.claim.event_name, hold.claim.handler_id)
        found = self._parse(await self._store.get(key))
        acked = replace(found.claim, ack_ns=self._now())
        await self._store.put(key, self._body(acked), IfMatch(found.version))
        return acked


class EffectsFirst(Claims):
    """Tells of the death before the claim says so."""

    async def fail(self, hold: Hold, error: str, retry: Retry, *, hopeless: bool = False) -> Claim:
        wanted = step(hold.claim, _fail(error, retry), self._now(), hold.owner)
        if isinstance(wanted, Claim) and wanted.dead_ns is not None:
            await self.effects(wanted, None)
        return await super().fail(hold, error, retry, hopeless=hopeless)


def _fail(error: str, retry: Retry) -> Action:
    return Fail(error, retry)


class NaiveAck(BusClaim):
    def claims(self, process: Process) -> Claims:
        return AckByAnyone(process.store, "sim", process.name, process.ambient, lease_ms=0, max_chain_depth=20)


class NaiveEffects(BusClaim):
    def claims(self, process: Process) -> Claims:
        return EffectsFirst(process.store, "sim", process.name, process.ambient, lease_ms=0, max_chain_depth=20)


@pytest.mark.parametrize(
    ("naive", "harm"), [(NaiveAck(acks=("worker1", "worker2")), OWNER_ONLY), (NaiveEffects(), STATE_FIRST)]
)
def test_a_naive_claim_does_harm(naive: BusClaim, harm: str) -> None:
    found = explore(naive, NO_TROUBLE).found
    assert found is not None
    assert any(violation.startswith(harm) for violation in found.violations), found.violations


class Keyless(BusEvents):
    def key_of(self, token: str) -> str | None:
        return None


def test_keyless_publish_does_harm() -> None:
    assert ONCE_PER_KEY in rules(first_broken(Keyless, range(60)))


class NoBoundary(Boundary):
    """Believes that nothing was ever deleted."""

    async def read(self) -> int:
        await super().read()
        return 0


async def test_without_the_boundary_a_cleaned_event_is_handed_out_again() -> None:
    seen: list[str] = []

    @on(OrderPlaced, id="bill")
    async def record(ctx: Any, event: OrderPlaced) -> None:
        seen.append(event.order_id)

    desk = Desk()
    await desk.bus().publish(OrderPlaced(order_id="o1"))
    slow = desk.bus().runner([record])
    slow.boundary = NoBoundary(slow.store, "default", slow.ambient)
    await slow.feed.poll()
    await desk.bus().run([record], until_idle=True)
    desk.watch.advance(seconds=8 * 86_400)
    await desk.bus().cleanup()
    await slow._claim()
    await slow.drain_flight()
    assert seen == ["o1", "o1"]
