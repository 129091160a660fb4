"""Registers as counters: each addition once, whatever is lost on the way."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from holdfast.base import codec
from holdfast.objects.register import CONTENTION, Edited, History, Plain, RecentOperations, Register, Snapshot
from holdfast.objects.retry import RetryPolicy
from holdfast.sim.checkers.applied import applied_once
from holdfast.sim.checkers.linearizable import linearizable
from holdfast.sim.checkers.models import Counter
from holdfast.sim.checkers.order import gapless
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Outcome
from holdfast.sim.scenario import AT_ONCE, Scenario, retries
from holdfast.sim.world import Process, World

KEY = "counter"
SHAPE = Plain("holdfast.sim.counter")


@dataclass(frozen=True, kw_only=True)
class RegisterCounter(Scenario):
    """Clerks add to one register, crash, and take up what they left; every addition counts once."""

    name: ClassVar[str] = "register-counter"

    clerks: int = 2
    turns: int = 2
    keep: int = 64
    reads: float = 0.0
    contention: RetryPolicy = AT_ONCE

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            clerks=rng.randint(2, 4),
            turns=rng.randint(2, 10),
            reads=0.2,
            contention=CONTENTION,
            faults=Faults.drawn(rng, lost_response=0.25),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.clerks):
            world.start(f"clerk{number + 1}", self.clerk)

    def history(self) -> History:
        return RecentOperations(self.keep)

    def register(self, process: Process) -> Register[Any]:
        return Register(process.store, KEY, SHAPE, process.ambient, history=self.history(), policy=self.contention)

    async def clerk(self, process: Process) -> None:
        register = self.register(process)
        for operation in process.left_open():
            if operation.call == "add":
                await self.add(process, register, str(operation.argument))
        for turn in range(self.turns):
            await self.add(process, register, f"{process.name}/{turn + 1}")
            if process.rng.random() < self.reads:
                await process.perform("read", register.read(), key=KEY, show=_number)

    async def add(self, process: Process, register: Register[Any], token: str) -> None:
        change = partial(_add, token)
        await process.perform("add", register.edit(token, change), key=KEY, argument=token, show=_number)

    def check(self, world: World) -> Iterator[Violation]:
        values = [codec.decode(body, key=KEY)["value"] for body in world.bodies(KEY)]
        asked: dict[object, list[Outcome]] = {}
        for operation in world.operations:
            if operation.call == "add":
                asked.setdefault(operation.argument, []).append(operation.outcome)
        yield from gapless("the number", (value["number"] for value in values))
        yield from applied_once((value["by"] for value in values), asked)
        yield from linearizable(world.operations, Counter.of(world.operations))


@dataclass(frozen=True, kw_only=True)
class RegisterHistory(RegisterCounter):
    """As register-counter, with a memory so short that clerks are overtaken: in doubt they say so, and add nothing."""

    name: ClassVar[str] = "register-history"

    keep: int = 1

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            clerks=rng.randint(2, 6),
            turns=rng.randint(2, 10),
            keep=rng.randint(1, 4),
            reads=0.1,
            contention=CONTENTION,
            faults=Faults.drawn(rng, lost_response=0.25),
            # No life takes up what another left: that works only while the register remembers.
            troubles=Troubles(crashes=rng.randint(0, 1), restarts=False, pauses=rng.randint(0, 2)),
            retry=retries(rng),
        )


def _add(token: str, value: Any) -> dict[str, Any]:
    return {"number": (value["number"] if value else 0) + 1, "by": token}


def _number(known: Edited[Any] | Snapshot[Any] | None) -> int:
    return int(known.value["number"]) if known is not None else 0
