"""The bus holds under wrong clocks, dead workers, a cleaner and lost answers; every rule is needed."""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Self

import pytest

from holdfast.base.errors import HoldfastError
from holdfast.bus import Bus, Context, Handler, Schedule, on
from holdfast.bus.claim import Action, Claim, Fail, Retry, step
from holdfast.bus.publish import Boundary
from holdfast.bus.schedule import Ticker
from holdfast.bus.worker.claims import Claims, Hold
from holdfast.bus.worker.digest import heads
from holdfast.bus.worker.feed import Feed
from holdfast.bus.worker.runner import Runner
from holdfast.objects.store import IfMatch
from holdfast.sim.checkers.bus import (
    EMITTED_ONCE,
    EVERY_TICK,
    IN_ORDER,
    NOT_AGAIN,
    ONCE_PER_KEY,
    ONCE_PER_TICK,
    OWNER_ONLY,
    STATE_FIRST,
)
from holdfast.sim.explore import Limits, explore
from holdfast.sim.run import Totals, simulate
from holdfast.sim.scenario import Scenario
from holdfast.sim.scenarios.bus import BusClaim, BusEvents, BusSchedule, SimOrder
from holdfast.sim.world import Process
from tests.fakes.orders import OrderPlaced
from tests.sim.naive import first_broken, rules
from tests.unit.bus.desk import Desk

LOST_ANSWER = Limits(crashes=0, lost_responses=1)
CRASH = Limits(crashes=1, lost_responses=0)
NO_TROUBLE = Limits(crashes=0, lost_responses=0)


class Crowded(BusEvents):
    """More events than the window has places, some of them delayed."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        drawn = super().drawn(rng)
        return replace(drawn, events=rng.randint(6, 10), failing=rng.choice((0.0, 0.3)), delayed=rng.choice((0.0, 0.5)))


def test_scenario_holds_where_the_window_has_four_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.bus.worker.digest.WINDOW", 4)
    totals = Totals()
    for seed in range(3_000, 3_010):
        totals.include(simulate(Crowded, seed))
    assert totals.broken == {}


@pytest.mark.parametrize(
    ("scenario", "limits", "at_least"),
    [
        pytest.param(BusClaim(turns=1), Limits(1, 1), 500, id="fail and retry"),
        pytest.param(BusClaim(turns=1, attempts=1), LOST_ANSWER, 100, id="dead letter"),
        pytest.param(BusClaim(), NO_TROUBLE, 500, id="fail, retry, ack, dead letter"),
        pytest.param(BusClaim(first_turns=1), LOST_ANSWER, 500, id="fail, retry, ack, dead letter, a lost answer"),
        pytest.param(BusClaim(first_turns=1), CRASH, 200, id="fail, retry, ack, dead letter, a crash"),
    ],
)
def test_no_course_of_two_workers_and_one_event_breaks_a_rule(
    scenario: BusClaim, limits: Limits, at_least: int
) -> None:
    result = explore(scenario, limits)
    assert result.found is None
    assert result.states > at_least


class AckByAnyone(Claims):
    """Reads the claim, sets ``ack_at``, writes it back, whichever worker has it by now."""

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


class InAnyOrder(BusEvents):
    """Its handlers take events of one key as they come."""

    @property
    def is_ordered(self) -> bool:
        return False


class HeadsOfTheDue(Feed):
    """Of every key hands out the oldest that is due: an event that waits for a retry is overtaken."""

    def heads(self, handler: str) -> list[str]:
        section, change, now_ns = self.view(handler), self._changes[handler], self.now_ns()
        due = [
            name
            for name in self._orders[handler]
            if name not in change.settled and change.due.get(name, section.open[name].due_ns) <= now_ns
        ]
        return heads(due, section.open)


class OvertakingBus(Bus):
    def runner(self, handlers: Iterable[Handler], **options: Any) -> Runner:
        runner = super().runner(handlers, **options)
        runner.feed.__class__ = HeadsOfTheDue
        return runner


class Overtaking(BusEvents):
    def bus(self, process: Process) -> Bus:
        given = super().bus(process)
        return OvertakingBus(given.store, given.ambient, given.namespace, given.options)


@pytest.mark.parametrize("naive", [InAnyOrder, Overtaking])
def test_a_naive_order_does_harm(naive: type[Scenario]) -> None:
    assert IN_ORDER in rules(first_broken(naive, range(100)))


class TidyClaims(Claims):
    """Deletes the claim once it is acked: what is done needs no claim."""

    async def ack(self, hold: Hold, outbox: tuple[Any, ...] = ()) -> Claim:
        acked = await super().ack(hold, outbox)
        await self._store.delete(self._key(hold.claim.event_name, hold.claim.handler_id))
        return acked


class TidyBus(Bus):
    def runner(self, handlers: Iterable[Handler], **options: Any) -> Runner:
        runner = super().runner(handlers, **options)
        runner.claims.__class__ = TidyClaims
        return runner


class Tidy(BusEvents):
    def bus(self, process: Process) -> Bus:
        given = super().bus(process)
        return TidyBus(given.store, given.ambient, given.namespace, given.options)


def test_a_claim_that_is_deleted_hands_out_an_acked_event_again() -> None:
    assert NOT_AGAIN in rules(first_broken(Tidy, range(100)))


class EmitsAtOnce(BusEvents):
    """Publishes a follow-up while it is at work, not with the ack."""

    def handler(self, process: Process) -> Handler:
        bus = self.bus(process)

        @on(SimOrder, id="work")
        async def work(ctx: Context, event: SimOrder) -> None:
            await bus.publish_raw("sim.receipt", {"token": event.token}, parent=ctx.envelope)
            if process.rng.random() < self.failing:
                raise ValueError("as drawn")

        return work


def test_a_follow_up_that_is_published_at_once_is_there_twice() -> None:
    assert EMITTED_ONCE in rules(first_broken(EmitsAtOnce, range(100)))


class CronEverywhere(Ticker):
    """Every session publishes its ticks, as cron does."""

    async def _fire(self, schedule: Schedule, tick_ns: int) -> bool:
        envelope = schedule.envelope(tick_ns, self.publisher.namespace, "w")
        await self.publisher.put(replace(envelope, id=self.ambient.ids.unique()))
        await self._note(schedule, tick_ns)
        return True


class Everywhere(BusSchedule):
    ticker = CronEverywhere


class ForgetsTheRest(Ticker):
    """Believes that all missed ticks are fired as soon as it knows of them."""

    async def _begin(self, schedule: Schedule, now_ns: int) -> tuple[Iterable[int], int]:
        missed, seen_ns = await super()._begin(schedule, now_ns)
        self._last[schedule.name] = seen_ns
        return missed, seen_ns

    async def _fire(self, schedule: Schedule, tick_ns: int) -> bool:
        seen_ns = self._last.get(schedule.name, 0)
        try:
            return await super()._fire(schedule, tick_ns)
        except HoldfastError:
            self._last[schedule.name] = max(seen_ns, tick_ns)
            raise


class Forgetting(BusSchedule):
    ticker = ForgetsTheRest


@pytest.mark.parametrize(("naive", "harm"), [(Everywhere, ONCE_PER_TICK), (Forgetting, EVERY_TICK)])
def test_a_naive_schedule_does_harm(naive: type[Scenario], harm: str) -> None:
    assert harm in rules(first_broken(naive, range(300)))


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
