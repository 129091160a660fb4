"""Effects behind a lease: the epoch goes with every write, so that an owner who was replaced can do no harm."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from holdfast.base import codec
from holdfast.base.errors import Ambiguous, Conflict, Fenced, Unavailable
from holdfast.objects.lease import Grant, Lease
from holdfast.objects.register import CONTENTION, Plain, Register
from holdfast.objects.retry import RetryPolicy
from holdfast.sim.checkers.applied import applied_once
from holdfast.sim.checkers.owner import fenced_off
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done, Outcome
from holdfast.sim.scenario import AT_ONCE, Scenario, retries
from holdfast.sim.world import Process, World

LEASE = "lease"
LEDGER = "ledger"


@dataclass(frozen=True, kw_only=True)
class LeaseFencedWrites(Scenario):
    """Owners of a lease write to a ledger, late and paused; no write of a replaced owner follows its successor's."""

    name: ClassVar[str] = "lease-fenced-writes"

    owners: int = 2
    turns: int = 1
    writes: int = 1
    ttl_ms: int = 0
    hold: bool = False
    """Owners let the lease renew itself in the background, and wait for it."""
    contention: RetryPolicy = AT_ONCE

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        ttl_ms = rng.choice((100, 1_000))
        return cls(
            owners=rng.randint(2, 4),
            turns=rng.randint(2, 6),
            writes=rng.randint(1, 4),
            ttl_ms=ttl_ms,
            hold=rng.random() < 0.5,
            contention=CONTENTION,
            faults=Faults.drawn(rng, lost_response=0.25),
            troubles=Troubles.drawn(rng, within_ms=5 * ttl_ms),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.owners):
            world.start(f"owner{number + 1}", self.owner)

    async def owner(self, process: Process) -> None:
        lease = Lease(process.store, LEASE, process.name, process.ambient, ttl_ms=self.ttl_ms)
        ledger: Register[Any] = Register(
            process.store, LEDGER, Plain("holdfast.sim.ledger"), process.ambient, policy=self.contention
        )
        for turn in range(self.turns):
            try:
                if self.hold:
                    async with lease.hold(timeout_ms=2 * self.ttl_ms) as grant:
                        await self._write(process, lease, grant, ledger, turn)
                else:
                    taken = await process.perform("acquire", lease.try_acquire(), key=LEASE, show=lambda _: None)
                    if isinstance(taken, Done) and isinstance(taken.result, Grant):
                        await self._write(process, lease, taken.result, ledger, turn)
            except (Ambiguous, Conflict, Unavailable) as error:
                process.note("is not the owner", detail=error)
            await asyncio.sleep(process.rng.random() * self.ttl_ms / 1000)

    async def _write(self, process: Process, lease: Lease, grant: Grant, ledger: Register[Any], turn: int) -> None:
        for number in range(self.writes):
            lease.guard(grant, margin_ms=-1)
            token = f"{process.name}/{turn + 1}/{number + 1}"
            entry = {"owner": process.name, "epoch": grant.epoch, "token": token}
            writing = ledger.edit(token, partial(self.change, entry))
            await process.perform("write", writing, key=LEDGER, argument=token, show=lambda _: None)

    def change(self, entry: dict[str, Any], ledger: dict[str, Any] | None) -> dict[str, Any]:
        """The ledger's next entry, if the writer's epoch is still the newest that the ledger has seen."""
        if ledger is not None and ledger["epoch"] > entry["epoch"]:
            raise Fenced(f"{LEDGER}: {entry['owner']} has epoch {entry['epoch']}, the ledger {ledger['epoch']}")
        return entry

    def check(self, world: World) -> Iterator[Violation]:
        entries = [codec.decode(body, key=LEDGER)["value"] for body in world.bodies(LEDGER)]
        asked: dict[object, list[Outcome]] = {
            operation.argument: [operation.outcome] for operation in world.operations if operation.call == "write"
        }
        yield from fenced_off((entry["owner"], entry["epoch"]) for entry in entries)
        yield from applied_once((entry["token"] for entry in entries), asked)
