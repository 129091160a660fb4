"""The sink of a stream: drivers that replay the same batches, beside somebody who writes the same objects."""

import asyncio
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyarrow as pa

from holdfast.base.codec import Document
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import Store
from holdfast.ontology.bulk.decide import Policy, Rules
from holdfast.ontology.bulk.loader import Landed, Loader, Request, Task
from holdfast.ontology.bulk.stage import Stager
from holdfast.ontology.bulk.staged import StagedFile
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.commit.attempt import PLAIN, Bulk, Order
from holdfast.ontology.commit.commit import RACES, Commit, Committer
from holdfast.ontology.commit.view import View
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.intake import rows_of
from holdfast.ontology.format.data.intents import Intent
from holdfast.ontology.types.fields import Field
from holdfast.ontology.types.model import Entity, Mixin
from holdfast.ontology.types.typeinfo import type_info
from holdfast.sim.checkers.ontology import course
from holdfast.sim.checkers.ontology_sinks import committed_once, told_truly
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.scenario import AT_ONCE, Scenario, retries
from holdfast.sim.world import Process, World

QUERY = "stream"


class Reading(Entity):
    id: Field[str] = Field(primary_key=True)
    by: Field[str]


class Session:
    """What a load asks of a session, without a lock and without a life of its own."""

    def __init__(self, process: Process, committer: type[Committer], races: RetryPolicy) -> None:
        self.info = type_info(Reading)
        self._view = View(process.store)
        types = {self.info.type_id: self.info}
        self.committer = committer(
            process.store, process.ambient, self._view, types, runtime_id=process.name, policy=races
        )
        self._store = process.store

    @property
    def store(self) -> Store:
        return self._store

    @property
    def chain(self) -> Chain:
        return self._view.chain

    async def agreed(self, of: type[Mixin]) -> tuple[Ledger, int]:
        await self.committer.refresh()
        type_id = self.info.type_id
        agreed = await self._view.agree({type_id: self.info}, {type_id}, PLAIN)
        return self._view.ledger, agreed.versions[type_id]

    async def land(self, bulk: Bulk, metadata: Mapping[str, Any], if_head: int | None = None) -> Commit | None:
        return await self.committer.commit(metadata, if_head=if_head, order=Order(bulk=bulk))


@dataclass(frozen=True, kw_only=True)
class OntologySink(Scenario):
    """Drivers hand over the same batches, again and again; each becomes one commit, whoever else writes."""

    name: ClassVar[str] = "ontology-sink"
    explorable: ClassVar[bool] = False
    committer: ClassVar[type[Committer]] = Committer
    loader: ClassVar[type[Loader]] = Loader

    drivers: int = 2
    batches: int = 2
    tasks: int = 2
    rivals: int = 1
    """Commits of somebody who writes the same objects."""
    again: int = 3
    """How often a driver tries a batch that failed, or ended in doubt."""
    idle_ms: float = 50.0
    races: RetryPolicy = AT_ONCE

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            drivers=rng.randint(1, 3),
            batches=rng.randint(1, 4),
            tasks=rng.randint(1, 2),
            rivals=rng.choice((0, 2, 6)),
            again=rng.choice((0, 3)),
            idle_ms=rng.choice((0.0, 50.0, 400.0)),
            races=RACES,
            faults=Faults.drawn(rng, lost_response=rng.choice((0.0, 0.2))),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.drivers):
            world.start(f"driver{number + 1}", self.driver)
        if self.rivals:
            world.start("rival", self.rival)

    async def driver(self, process: Process) -> None:
        """One who begins the stream anew, as after a crash: with the first batch."""
        for batch in range(self.batches):
            for _ in range(1 + self.again):
                loading = self.load(process, batch)
                outcome = await process.perform("load", loading, key=layout.HEAD, argument=(QUERY, batch), show=_told)
                await self._rest(process)
                if isinstance(outcome, Done):
                    break
            else:
                return  # Spark ends a query whose batch fails; whoever begins it again begins with this one

    async def load(self, process: Process, batch: int) -> Landed:
        session, load = Session(process, self.committer, self.races), process.ambient.ids.unique()
        sheaves: list[StagedFile] = []
        for task in range(self.tasks):
            stager = Stager(process.store, process.ambient, load, session.info)
            rows = [{"id": f"k{key}", "by": f"batch {batch}"} for key in range(3) if key % self.tasks == task]
            await stager.add(pa.Table.from_pylist(rows))
            sheaves += await stager.finish()

        async def run(name: str, task: Task, payloads: Sequence[Document]) -> list[Document]:
            found = [await task(process.store, process.ambient, json.loads(json.dumps(each))) for each in payloads]
            return [row for rows in found for row in rows]

        metadata = {"sink": {"query": QUERY, "batch": batch}}
        request = Request(load, Rules(Policy.REPLACE), QUERY, batch, None, metadata)
        return await self.loader(session, process.ambient, session.info, run).land(request, sheaves)

    async def rival(self, process: Process) -> None:
        session = Session(process, self.committer, self.races)
        for number in range(self.rivals):
            row = rows_of(session.info, Reading(id="k0", by=f"rival {process.incarnation} {number}"))[0]
            session.committer.queue.append(Intent(session.info.type_id, row.identity, row.fields_json))
            await process.perform("rival", session.committer.commit(), key=layout.HEAD, show=_number)
            session.committer.discard()
            await self._rest(process)

    async def _rest(self, process: Process) -> None:
        if self.idle_ms:
            await asyncio.sleep(process.rng.random() * self.idle_ms / 1000)

    def check(self, world: World) -> Iterator[Violation]:
        found = course(world.landings)
        yield from found.violations
        yield from committed_once(found)
        yield from told_truly(world.operations, found)


def _told(landed: Landed) -> int | None:
    return landed.commit.commit_id if landed.commit is not None else None


def _number(commit: Commit | None) -> int | None:
    return commit.commit_id if commit is not None else None
