"""Two workers and one event: claim, failure, retry, dead letter, ack, small enough to be explored completely."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from holdfast.bus.claim import Retry
from holdfast.bus.claims import Claims, Hold, Over
from holdfast.bus.event import Envelope
from holdfast.sim.checkers.bus import by_owner, claims_are_kept, letters_follow
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World

NAMESPACE = "sim"
EVENT = Envelope("e1", NAMESPACE, "sim.order", {}, 1_700_000_000 * 10**9, 100, "e1", 0)
HANDLER = "work"


@dataclass(frozen=True, kw_only=True)
class BusClaim(Scenario):
    """Workers claim one event, fail, retry, ack or bury it; each claim has one owner and settles once."""

    name: ClassVar[str] = "bus-claim"

    workers: int = 2
    turns: int = 2
    first_turns: int | None = None
    """Of the first worker, if it has fewer: a smaller world in which the other still sees everything."""
    attempts: int = 2
    acks: tuple[str, ...] = ("worker2",)
    """Who acks on its second turn; the others fail every time."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        workers = rng.randint(2, 4)
        return cls(
            workers=workers,
            turns=rng.randint(1, 6),
            attempts=rng.randint(1, 4),
            acks=tuple(f"worker{number + 1}" for number in range(workers) if rng.random() < 0.5),
            faults=Faults.drawn(rng, lost_response=0.2),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.workers):
            world.start(f"worker{number + 1}", self.worker)

    def claims(self, process: Process) -> Claims:
        # A lease of no length: anybody may claim at any moment, and every owner may be a zombie.
        return Claims(process.store, NAMESPACE, process.name, process.ambient, lease_ms=0, max_chain_depth=20)

    async def worker(self, process: Process) -> None:
        claims = self.claims(process)
        retry = Retry(self.attempts, base_ms=0, max_ms=0, jitter_ms=0)
        first = process.family == "worker1" and self.first_turns is not None
        for turn in range(self.first_turns or 0) if first else range(self.turns):
            taken = await process.perform("take", claims.take(EVENT.name, HANDLER), key=HANDLER, show=str)
            if not isinstance(taken, Done):
                continue
            if isinstance(taken.result, Over):
                await process.perform("effects", claims.effects(taken.result.claim, EVENT), key=HANDLER)
            elif isinstance(taken.result, Hold):
                await process.perform(
                    "act", self.act(process, claims, taken.result, retry, turn), key=HANDLER, show=str
                )

    async def act(self, process: Process, claims: Claims, hold: Hold, retry: Retry, turn: int) -> str:
        if process.family in self.acks and turn > 0:
            await claims.ack(hold)
            return "acked"
        claim = await claims.fail(hold, "no", retry)
        if claim.dead_ns is not None:
            await claims.effects(claim, EVENT)
        return "failed"

    def check(self, world: World) -> Iterator[Violation]:
        yield from claims_are_kept(world.landings, self.attempts)
        yield from by_owner(world.landings)
        yield from letters_follow(world.landings, complete=False)
        yield from told(world)


def told(world: World) -> Iterator[Violation]:
    """Who was told that it acked did: the claim that is left is acked, or there is none."""
    acks = [each for each in world.operations if each.call == "act" and each.outcome == Done("acked")]
    states = [landing.body for landing in world.landings if landing.key.startswith("claims/") and landing.body]
    if acks and not any(b'"ack_at":"' in body for body in states):
        yield Violation("an ack that was answered has landed", f"{acks}")
