"""Leases under skewed clocks, pauses, crashes and lost answers; and effects behind a lease.

The epoch goes with every write behind a lease, so that an owner who was replaced can do no harm.
"""

import asyncio
import random
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from holdfast.base import codec
from holdfast.base.errors import Ambiguous, Conflict, Fenced, Unavailable
from holdfast.objects.lease import Grant, Held, Lease
from holdfast.objects.register import CONTENTION, Plain, Register
from holdfast.objects.retry import RetryPolicy
from holdfast.sim.checkers.lease import (
    ACQUIRED,
    FENCED,
    HANDED_OVER,
    HELD,
    RENEWED,
    Tenure,
    fenced_off,
    lease_was_held,
    one_owner,
    stays,
)
from holdfast.sim.checkers.objects import applied_once
from holdfast.sim.history import Done, Operation, Violation, answers, asked
from holdfast.sim.scenario import AT_ONCE, Scenario, surroundings
from holdfast.sim.world import Process, World

KEY = "lease"


@dataclass(frozen=True, kw_only=True)
class LeaseTenants(Scenario):
    """Tenants take a lease, renew it, hand it over, give it back or forget it; every epoch has one owner."""

    name: ClassVar[str] = "lease"

    tenants: int = 2
    turns: int = 1
    stay: int = 1
    """Steps between acquiring and giving up."""
    ttl_ms: int = 0
    """Zero: every lease ends at once, so that any process may take it at any moment."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        ttl_ms = rng.choice((100, 1_000, 10_000))
        return cls(
            tenants=rng.randint(2, 4),
            turns=rng.randint(3, 12),
            stay=rng.randint(1, 4),
            ttl_ms=ttl_ms,
            **surroundings(rng, lost_response=0.25, within_ms=3 * ttl_ms),
        )

    def begin(self, world: World) -> None:
        world.start_all("tenant", self.tenants, self.tenant)

    def lease(self, process: Process) -> Lease:
        return Lease(process.store, KEY, process.name, process.ambient, ttl_ms=self.ttl_ms)

    async def tenant(self, process: Process) -> None:
        lease = self.lease(process)
        for _ in range(self.turns):
            grant = await self._acquire(process, lease)
            if grant is None:
                await asyncio.sleep(process.rng.random() * self.ttl_ms / 1000)
                continue
            for _ in range(self.stay):
                await self._stay(process, lease, grant)
            await self._leave(process, lease, grant)

    async def _acquire(self, process: Process, lease: Lease) -> Grant | None:
        outcome = await process.perform("acquire", lease.try_acquire(), key=KEY, argument=process.name, show=_answer)
        return outcome.result if isinstance(outcome, Done) and isinstance(outcome.result, Grant) else None

    async def _stay(self, process: Process, lease: Lease, grant: Grant) -> None:
        mine = (process.name, grant.epoch)
        await process.perform("work", self._work(lease, grant), key=KEY, argument=mine)
        await process.perform("renew", _unless_fenced(lease.renew(grant), RENEWED), key=KEY, argument=mine)
        await asyncio.sleep(process.rng.random() * self.ttl_ms / 2000)

    async def _work(self, lease: Lease, grant: Grant) -> None:
        """An effect that takes no time, right after the guard."""
        lease.guard(grant, margin_ms=0)

    async def _leave(self, process: Process, lease: Lease, grant: Grant) -> None:
        mine = (process.name, grant.epoch)
        match process.rng.randint(0, 3):
            case 0:
                others = [other.name for other in process.world.processes if other is not process]
                heir = process.rng.choice(others)
                handing = _unless_fenced(lease.hand_over(grant, heir), HANDED_OVER)
                await process.perform("hand over", handing, key=KEY, argument=(*mine, heir))
            case 1 | 2:
                await process.perform("release", lease.release(grant), key=KEY, argument=mine)
            case _:
                process.note("forgets its lease")

    def check(self, world: World) -> Iterator[Violation]:
        stood = stays((landing.position, *_tenure(landing.body)) for landing in world.landings)
        yield from one_owner([(stay.owner, stay.epoch) for stay in stood], _grants(world.operations))
        yield from lease_was_held(world.operations, stood)
        if self.troubles.skew_ms == 0:
            # Where clocks agree, two owners are not even at work at the same time.
            yield from fenced_off(work.argument for work, _ in answers(world.operations, "work"))


def _answer(answer: Grant | Held) -> tuple[object, ...]:
    match answer:
        case Grant(epoch=epoch):
            return ACQUIRED, epoch
        case Held(owner_id, epoch):
            return HELD, owner_id, epoch


async def _unless_fenced(call: Awaitable[None], reported: str) -> str:
    try:
        await call
    except Fenced:
        return FENCED
    return reported


def _tenure(body: bytes | None) -> Tenure:
    if body is None:
        return "no owner", 0
    document = codec.decode(body, key=KEY)
    return str(document["owner_id"]), int(document["epoch"])


def _grants(operations: list[Operation]) -> Iterator[Tenure]:
    for operation in operations:
        match operation:
            case Operation(call="acquire", process=owner, outcome=Done(result=Grant(epoch=epoch))):
                yield owner, epoch


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
            **surroundings(rng, lost_response=0.25, within_ms=5 * ttl_ms),
        )

    def begin(self, world: World) -> None:
        world.start_all("owner", self.owners, self.owner)

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
        yield from fenced_off((entry["owner"], entry["epoch"]) for entry in entries)
        yield from applied_once((entry["token"] for entry in entries), asked(world.operations, "write"))
