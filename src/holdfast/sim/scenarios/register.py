"""Registers as counters: each addition once, whatever is lost on the way; also beside a plain writer.

A plain writer loads the document, changes its own part and writes everything back.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from holdfast.base import codec
from holdfast.base.errors import Conflict, Unavailable
from holdfast.objects.register import (
    CONTENTION,
    UNCHANGED,
    Edited,
    Plain,
    Register,
    Snapshot,
    Unchanged,
)
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import IfMatch
from holdfast.sim.checkers.linearizable import Counter, linearizable
from holdfast.sim.checkers.objects import applied_once, gapless
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done, Failed, Operation, Outcome, Violation, asked
from holdfast.sim.scenario import AT_ONCE, Scenario, retries, surroundings
from holdfast.sim.world import Process, World

KEY = "counter"
SHAPE = Plain("holdfast.sim.counter")


@dataclass(frozen=True, kw_only=True)
class RegisterCounter(Scenario):
    """Clerks add to one register, crash, and take up what they left; every addition counts once."""

    name: ClassVar[str] = "register-counter"
    kind: ClassVar[type[Register[Any]]] = Register

    clerks: int = 2
    turns: int = 2
    hands: int = 1
    """Tasks of one clerk that share its register."""
    keep: int = 64
    others: float = 0.0
    """How often something else follows an addition: a read, or rounding up to an even number."""
    contention: RetryPolicy = AT_ONCE

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            clerks=rng.randint(2, 4),
            turns=rng.randint(2, 10),
            hands=rng.choice((1, 1, 2)),
            keep=512,  # more than a world's operations: taking up what a life left works while the register remembers
            others=0.3,
            contention=CONTENTION,
            **surroundings(rng, lost_response=0.25),
        )

    def begin(self, world: World) -> None:
        world.start_all("clerk", self.clerks, self.clerk)

    def register(self, process: Process) -> Register[Any]:
        return self.kind(process.store, KEY, SHAPE, process.ambient, keep=self.keep, policy=self.contention)

    async def clerk(self, process: Process) -> None:
        register = self.register(process)
        for operation in process.left_open():
            if operation.call == "add":
                await self._edit(process, register, "add", str(operation.argument))
        await asyncio.gather(*(self._hand(process, register, hand + 1) for hand in range(self.hands)))

    async def _hand(self, process: Process, register: Register[Any], hand: int) -> None:
        for turn in range(self.turns):
            token = f"{process.name}/{hand}/{turn + 1}"
            await self._edit(process, register, "add", token)
            if process.rng.random() < self.others:
                if process.rng.random() < 0.5:
                    await process.perform("read", register.read(), key=KEY, show=_number)
                else:
                    await self._edit(process, register, "round up", f"{token}+")

    async def _edit(self, process: Process, register: Register[Any], call: str, token: str) -> None:
        change = partial(_CHANGES[call], token)
        await process.perform(call, register.edit(token, change), key=KEY, argument=token, show=_number)

    def check(self, world: World) -> Iterator[Violation]:
        values = [codec.decode(body, key=KEY)["value"] for body in world.bodies(KEY)]
        asked: dict[object, list[Outcome]] = {}
        for operation in world.operations:
            if operation.call != "read":
                asked.setdefault(operation.argument, []).append(_effect(operation))
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
            others=0.2,
            contention=CONTENTION,
            faults=Faults.drawn(rng, lost_response=0.25),
            # No life takes up what another left: that works only while the register remembers.
            troubles=Troubles(crashes=rng.randint(0, 1), restarts=False, pauses=rng.randint(0, 2)),
            retry=retries(rng),
        )


def _add(token: str, value: Any) -> dict[str, Any]:
    return {"number": (value["number"] if value else 0) + 1, "by": token}


def _round_up(token: str, value: Any) -> dict[str, Any] | Unchanged:
    """To an even number. Whether there is anything to do must not be decided on what one remembers."""
    return _add(token, value) if value and value["number"] % 2 else UNCHANGED


_CHANGES = {"add": _add, "round up": _round_up}


def _effect(operation: Operation) -> Outcome:
    """What the store must show of an edit: rounding up a number that was even already is no effect."""
    match operation.outcome:
        case Done(result=Edited(value={"by": author})) if operation.call == "round up" and author != operation.argument:
            return Failed(Conflict("it was even"))
    return operation.outcome


def _number(known: Edited[Any] | Snapshot[Any] | None) -> int:
    return int(known.value["number"]) if known is not None else 0


SHARED_KEY = "shared"
NO_LOST_UPDATE = "no lost update"


@dataclass(frozen=True, kw_only=True)
class RegisterForeign(Scenario):
    """Clerks edit a register that a plain writer rewrites, ids and all; neither loses what the other did."""

    name: ClassVar[str] = "register-foreign"

    clerks: int = 1
    turns: int = 2
    contention: RetryPolicy = AT_ONCE

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            clerks=rng.randint(1, 3),
            turns=rng.randint(2, 10),
            contention=CONTENTION,
            **surroundings(rng, lost_response=0.25),
        )

    def begin(self, world: World) -> None:
        world.start_all("clerk", self.clerks, self.clerk)
        world.start("plain", self.plain_writer)

    async def clerk(self, process: Process) -> None:
        register: Register[Any] = Register(
            process.store, SHARED_KEY, Plain("holdfast.sim.shared"), process.ambient, policy=self.contention
        )
        for turn in range(self.turns):
            token = f"{process.name}/{turn + 1}"
            editing = register.edit(token, partial(_edit, token))
            await process.perform("edit", editing, key=SHARED_KEY, argument=token, show=_edits)

    async def plain_writer(self, process: Process) -> None:
        """Knows nothing of write ids and logs: they survive over its changes."""
        for _ in range(2 * self.turns):
            try:
                found = await process.backend.find(SHARED_KEY)
                if found is not None:
                    document = json.loads(found.body)
                    document["value"]["rewrites"] += 1
                    await process.backend.put(
                        SHARED_KEY, json.dumps(document, indent=2).encode(), IfMatch(found.version)
                    )
            except Unavailable:
                process.note("shrugs")
            if self.contention.base_ms:
                await asyncio.sleep(process.rng.random() * 0.05)

    def check(self, world: World) -> Iterator[Violation]:
        values = [codec.decode(body, key=SHARED_KEY)["value"] for body in world.bodies(SHARED_KEY)]
        previous = {"edits": 0, "rewrites": 0, "by": None}
        edits: list[object] = []
        for value in values:
            grown = (value["edits"] - previous["edits"], value["rewrites"] - previous["rewrites"])
            if grown not in ((1, 0), (0, 1)):
                yield Violation(NO_LOST_UPDATE, f"{previous} was followed by {value}")
            if grown[0] == 1:
                edits.append(value["by"])
            previous = value
        yield from applied_once(edits, asked(world.operations, "edit"))


def _edit(token: str, value: Any) -> dict[str, Any]:
    known = value or {"edits": 0, "rewrites": 0}
    return {**known, "edits": known["edits"] + 1, "by": token}


def _edits(edited: Edited[Any]) -> int:
    return int(edited.value["edits"])
