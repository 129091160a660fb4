"""Commits that carry events: sessions that crash between head and publishing, and whoever mends."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from holdfast.bus import Event
from holdfast.ontology import Entity, Field
from holdfast.ontology.session import Options
from holdfast.platform.outbox import Outbox
from holdfast.platform.session import Session
from holdfast.sim.checkers.outbox import events_follow_commits
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World

ROUNDS = 200


class SimNote(Entity, name="SimNote"):
    id: Field[str] = Field(primary_key=True)


class SimNoted(Event):
    type_name: ClassVar[str] = "sim.noted"
    token: str


@dataclass(frozen=True, kw_only=True)
class PlatformOutbox(Scenario):
    """Sessions commit rows and events in one; what a crash left out is published by others, once."""

    name: ClassVar[str] = "platform-outbox"
    outbox: ClassVar[type[Outbox]] = Outbox
    session: ClassVar[type[Session]] = Session

    writers: int = 2
    commits: int = 2
    events: int = 2
    menders: int = 1
    lease_ttl_ms: int = 2_000

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            writers=rng.randint(1, 3),
            commits=rng.randint(1, 4),
            events=rng.randint(1, 3),
            menders=rng.randint(1, 2),
            lease_ttl_ms=rng.choice((200, 2_000)),
            faults=Faults.drawn(rng, lost_response=rng.choice((0.0, 0.1))),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.writers):
            world.start(f"writer{number + 1}", self.writer)
        for number in range(self.menders):
            world.start(f"mender{number + 1}", self.mender)

    async def writer(self, process: Process) -> None:
        options = Options(process.name, lock_timeout_ms=500, lease_ttl_ms=self.lease_ttl_ms)
        outbox = self.outbox(process.store, process.ambient)
        onto = self.session(process.store, process.ambient, [SimNote], options, outbox=outbox)
        for number in range(self.commits):
            token = f"{process.name}/{number}"
            if process.rng.random() < 0.8:
                onto.ensure(SimNote(id=token))
            for position in range(self.events):
                onto.emit(SimNoted(token=f"{token}/{position}"))
            for _ in range(3):
                told = await process.perform("commit", onto.commit(), key=token, show=str)
                if isinstance(told, Done):
                    break
            onto.discard()
        await onto.close()

    async def mender(self, process: Process) -> None:
        for _ in range(ROUNDS):
            quiet = self._is_quiet(process.world)
            outbox = self.outbox(process.store, process.ambient)
            mended = await process.perform("mend", outbox.mend(), key="outbox", argument=quiet)
            if quiet and isinstance(mended, Done):
                return
            await asyncio.sleep(process.rng.random())
        process.world.failures.append(f"{process.name} could not mend in {ROUNDS} rounds")

    def _is_quiet(self, world: World) -> bool:
        over_s = (self.troubles.within_ms + self.troubles.pause_ms) / 1000
        busy = any(each.working for each in world.processes if each.family.startswith("writer"))
        return not busy and world.loop.time() > over_s + 10

    def check(self, world: World) -> Iterator[Violation]:
        complete = any(
            operation.call == "mend" and operation.argument and isinstance(operation.outcome, Done)
            for operation in world.operations
        )
        yield from events_follow_commits(world.landings, SimNoted.type_name, complete=complete)
