"""A register beside a plain writer, which loads the document, changes its own part and writes it all back."""

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from holdfast.base import codec
from holdfast.base.errors import Unavailable
from holdfast.objects.register import CONTENTION, Edited, Plain, Register
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import IfMatch
from holdfast.sim.checkers.applied import applied_once
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Outcome
from holdfast.sim.scenario import AT_ONCE, Scenario, retries
from holdfast.sim.world import Process, World

KEY = "shared"
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
            faults=Faults.drawn(rng, lost_response=0.25),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.clerks):
            world.start(f"clerk{number + 1}", self.clerk)
        world.start("plain", self.plain_writer)

    async def clerk(self, process: Process) -> None:
        register: Register[Any] = Register(
            process.store, KEY, Plain("holdfast.sim.shared"), process.ambient, policy=self.contention
        )
        for turn in range(self.turns):
            token = f"{process.name}/{turn + 1}"
            editing = register.edit(token, partial(_edit, token))
            await process.perform("edit", editing, key=KEY, argument=token, show=_edits)

    async def plain_writer(self, process: Process) -> None:
        """Knows nothing of write ids and logs: they survive over its changes."""
        for _ in range(2 * self.turns):
            try:
                found = await process.backend.find(KEY)
                if found is not None:
                    document = json.loads(found.body)
                    document["value"]["rewrites"] += 1
                    await process.backend.put(KEY, json.dumps(document, indent=2).encode(), IfMatch(found.version))
            except Unavailable:
                process.note("shrugs")
            if self.contention.base_ms:
                await asyncio.sleep(process.rng.random() * 0.05)

    def check(self, world: World) -> Iterator[Violation]:
        values = [codec.decode(body, key=KEY)["value"] for body in world.bodies(KEY)]
        previous = {"edits": 0, "rewrites": 0, "by": None}
        edits: list[object] = []
        for value in values:
            grown = (value["edits"] - previous["edits"], value["rewrites"] - previous["rewrites"])
            if grown not in ((1, 0), (0, 1)):
                yield Violation(NO_LOST_UPDATE, f"{previous} was followed by {value}")
            if grown[0] == 1:
                edits.append(value["by"])
            previous = value
        asked: dict[object, list[Outcome]] = {
            operation.argument: [operation.outcome] for operation in world.operations if operation.call == "edit"
        }
        yield from applied_once(edits, asked)


def _edit(token: str, value: Any) -> dict[str, Any]:
    known = value or {"edits": 0, "rewrites": 0}
    return {**known, "edits": known["edits"] + 1, "by": token}


def _edits(edited: Edited[Any]) -> int:
    return int(edited.value["edits"])
