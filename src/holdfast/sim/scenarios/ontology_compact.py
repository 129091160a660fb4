"""Compaction of an ontology beside those who commit, read, lie about indexes and remove what they think is garbage."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from holdfast.base.errors import Ambiguous, Corrupt, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.store import Written
from holdfast.ontology.commit.attempt import PLAIN, Draft, draw
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import EMPTY, followed
from holdfast.ontology.format.data.intents import Row
from holdfast.ontology.format.head import Head
from holdfast.ontology.format.index import read_index
from holdfast.ontology.format.manifest import Registered
from holdfast.ontology.maintain.compact import Compacted, Compactor
from holdfast.ontology.types.refs import SchemaRef
from holdfast.sim.checkers.ontology import course
from holdfast.sim.checkers.ontology_snapshots import plain_reads
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.clock import SimClock
from holdfast.sim.ontology_kit import sim_type
from holdfast.sim.scenarios.ontology_commit import MARK, OntologyCommit
from holdfast.sim.store import at_once
from holdfast.sim.world import Process, World


@dataclass(frozen=True, kw_only=True)
class OntologyCompact(OntologyCommit):
    """Compactors merge files while others commit, read, lie and sweep; nobody ever sees other rows."""

    name: ClassVar[str] = "ontology-compact"
    compactor: ClassVar[type[Compactor]] = Compactor

    writers: int = 1
    marks: int = 3
    """Commits that are there already, each with a row."""
    compactors: int = 1
    compactions: int = 1
    fan: int = 2
    janitors: int = 0
    """Who remove every snapshot that the index does not name, however young it is."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return replace(
            super().drawn(rng),
            prepared=True,
            marks=rng.randint(0, 6),
            compactors=rng.randint(1, 3),
            compactions=rng.randint(1, 4),
            fan=rng.choice((2, 3)),
            janitors=rng.choice((0, 0, 1)),
            readers=rng.choice((0, 1, 2)),
            work=rng.choice((("mark",), ("mark", "count"))),
            registered=0,
        )

    def begin(self, world: World) -> None:
        super().begin(world)
        for number in range(self.compactors):
            world.start(f"compactor{number + 1}", self.compacting)
        for number in range(self.janitors):
            world.start(f"janitor{number + 1}", self.janitor)

    def _prepare(self, world: World) -> None:
        """The types, and some marks, one commit each."""
        types = {type_id: sim_type(type_id) for type_id in self._types()}
        ambient = Ambient(SimClock(world.loop.time), world.seed.stream("preparation"))
        registered = [
            Registered(each, SchemaRef(1, info.schema_hash, 1, 1), info.schema) for each, info in types.items()
        ]
        ledger, head = EMPTY, Head()
        for number in range(self.marks + 1):
            rows = {MARK: self._origin(number)} if number else {}
            draft = Draft(rows, {MARK: 1}, () if number else registered, PLAIN, {}, "origin", 0)
            attempt = draw(draft, ledger, types, ambient)
            head = attempt.head(head)
            bodies = {**attempt.data, attempt.manifest.path: attempt.body, layout.HEAD: head.body(f"origin{number}")}
            for key, body in bodies.items():
                written = at_once(world.truth.put(key, body))
                world.landed("origin", key, body, written.version if isinstance(written, Written) else None)
            ledger = followed(ledger, attempt.manifest)

    def _origin(self, number: int) -> list[Row]:
        """What the commits that are there already have written."""
        return [Row((f"plain/origin/{number}",), f'{{"by":"plain/origin/{number}"}}')]

    async def compacting(self, process: Process) -> None:
        compactor = self.compactor(process.store, process.ambient, fan=self.fan, reads=self.uploads)
        for _ in range(self.compactions):
            await process.perform("compact", compactor.compact(MARK), key=MARK.name, show=_published)
            await self._rest(process)

    async def janitor(self, process: Process) -> None:
        for _ in range(self.compactions):
            await self._rest(process)
            try:
                snapshots = [key async for key in process.store.keys(layout.SNAPSHOTS)]
                named = {entry.path for entry in (await read_index(process.store, MARK)).entries}
                await process.store.delete_many([key for key in snapshots if key not in named])
            except (Ambiguous, Corrupt, Unavailable):
                process.note("shrugs")

    def check(self, world: World) -> Iterator[Violation]:
        yield from super().check(world)
        if not (self.lies or self.janitors):
            yield from plain_reads(world.landings, course(world.landings), MARK.name)


def _published(done: list[Compacted]) -> list[tuple[int, int, bool]]:
    return [(each.entry.first, each.entry.last, each.published) for each in done]
