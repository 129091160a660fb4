"""Commits of an ontology, by sessions and by the sink of a stream.

Writers share one head, beside processes that delete the lock, a plain writer, and others that write false indexes.
"""

import asyncio
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyarrow as pa

from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.errors import Ambiguous, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import OVERWRITE, Store, Written
from holdfast.ontology.bulk.decide import Policy, Rules
from holdfast.ontology.bulk.load import Landed, Loader, Request, Task
from holdfast.ontology.bulk.stage import StagedFile, Stager
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.state import Latest, read_latest, read_ledger
from holdfast.ontology.commit.attempt import PLAIN, Bulk, Draft, Order, draw
from holdfast.ontology.commit.commit import RACES, Commit, Committer
from holdfast.ontology.commit.lock import CommitLock, LockOptions, WriteLock
from holdfast.ontology.commit.view import View
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import EMPTY, Ledger
from holdfast.ontology.format.data.batch import AtCommit, Intent
from holdfast.ontology.format.data.intake import queued
from holdfast.ontology.format.head import Head
from holdfast.ontology.format.manifest import Registered
from holdfast.ontology.maintain.upkeep import Upkeep
from holdfast.ontology.types.fields import Field
from holdfast.ontology.types.model import Entity, Mixin
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo, type_info
from holdfast.sim.checkers.objects import applied_once
from holdfast.sim.checkers.ontology import (
    batches_told_truly,
    changes_only,
    committed_once,
    course,
    no_lost_update,
    read_truly,
    tokens,
    told_truly,
)
from holdfast.sim.history import Done, Violation, asked
from holdfast.sim.ontology_kit import MARK_NAME, lie, plain_commit, sim_type
from holdfast.sim.scenario import AT_ONCE, SPEC, Scenario, Unsettled, surroundings
from holdfast.sim.store import at_once
from holdfast.sim.world import Process, SimClock, World

MARK = TypeId("entity", MARK_NAME)
"""One row per commit that was asked for."""
COUNTER = TypeId("entity", "Counter")
FLAG = TypeId("entity", "Flag")
MANNERS = LockOptions()


@dataclass(frozen=True, kw_only=True)
class OntologyCommit(Scenario):
    """Writers commit to one head beside a plain one; nothing is lost, doubled or half seen, whatever indexes say."""

    name: ClassVar[str] = "ontology-commit"
    committer: ClassVar[type[Committer]] = Committer
    view: ClassVar[type[View]] = View

    writers: int = 2
    commits: int = 1
    work: tuple[str, ...] = ("mark",)
    """What writers do: put a new mark, count up with an expectation, set a flag that may be set already."""
    again: int = 0
    """How often a commit that failed or ended in doubt is asked for again."""
    locked: bool = False
    """Writers take turns, and keep indexes; both have lives of their own."""
    manners: LockOptions = MANNERS
    thieves: int = 0
    """Strokes against the lock object: deleted, or taken over."""
    lies: int = 0
    """Strokes against indexes."""
    readers: int = 0
    plain: int = 0
    """Commits of a plain writer."""
    registered: int = 0
    """Types that other sessions register meanwhile, in commits of their own."""
    idle_ms: float = 0.0
    races: RetryPolicy = AT_ONCE
    settled: bool = True
    uploads: int = 1
    """How many files a writer sends at once."""
    prepared: bool = True
    """The first commit, which registers the types, is there already."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        ttl_ms = rng.choice((200, 2_000, 30_000))
        return cls(
            writers=rng.randint(1, 4),
            commits=rng.randint(1, 5),
            work=rng.choice((("mark",), ("count",), ("mark", "count", "flag"))),
            again=rng.choice((0, 3)),
            locked=rng.random() < 0.7,
            manners=LockOptions(ttl_ms=ttl_ms, timeout_ms=rng.choice((100, 1_000)), idle_ms=20, burst_ms=200),
            thieves=rng.choice((0, 0, 5)),
            lies=rng.choice((0, 0, 5)),
            readers=rng.choice((0, 1)),
            plain=rng.choice((0, 0, 3)),
            registered=rng.choice((0, 0, 2)),
            idle_ms=rng.choice((0.0, 50.0, 400.0)),
            races=RACES,
            settled=rng.random() < 0.7,
            uploads=rng.choice((1, 16)),
            prepared=rng.random() < 0.5,
            **surroundings(rng, lost_response=rng.choice((0.0, 0.2))),
        )

    def begin(self, world: World) -> None:
        if self.prepared:
            self._prepare(world)
        world.start_all("writer", self.writers, self.writer)
        for name, count, actor in (
            ("plain", self.plain, self.plain_writer),
            ("thief", self.thieves, self.thief),
            ("liar", self.lies, self.liar),
            ("registrar", self.registered, self.registrar),
        ):
            if count:
                world.start(name, actor)
        world.start_all("reader", self.readers, self.reader)

    def _prepare(self, world: World) -> None:
        types = {type_id: sim_type(type_id) for type_id in self._types()}
        registered = [Registered(*each, 1, info.schema_hash, 1, 1, info.schema) for each, info in types.items()]
        ambient = Ambient(SimClock(world.loop.time), world.seed.stream("preparation"))
        attempt = draw(Draft({}, {}, registered, PLAIN, {}, "origin", 0), EMPTY, types, ambient)
        for key, body in ((attempt.manifest.path, attempt.body), (layout.HEAD, attempt.head(Head()).body("origin"))):
            written = at_once(world.truth.put(key, body))
            world.landed("origin", key, body, written.version if isinstance(written, Written) else None)

    def stack(self, backend: Store, ambient: Ambient) -> Client:
        if self.settled:
            return super().stack(backend, ambient)
        return Unsettled(backend, ambient=ambient, retry=self.retry, spec=SPEC)

    # --- writers of ours ---

    async def writer(self, process: Process) -> None:
        types = {type_id: sim_type(type_id) for type_id in self._types()}
        committer, close = self._session(process, types)
        for number in range(self.commits):
            task = self.work[number % len(self.work)]
            await getattr(self, f"_{task}")(process, committer, f"{process.name}/{number + 1}")
            await process.rest(self.idle_ms)
        await close()

    def _types(self) -> list[TypeId]:
        kinds = {"mark": MARK, "count": COUNTER, "flag": FLAG}
        return [kinds[task] for task in dict.fromkeys(self.work)]

    def _session(self, process: Process, types: Mapping[TypeId, TypeInfo]) -> tuple[Committer, Any]:
        """A session with or without a life of its own; and how to close it."""
        view = self.view(process.store)
        if not self.locked:
            return self._committer(process, view, types, CommitLock(), None), _nothing
        lock = WriteLock(process.store, process.name, process.ambient, self.manners)
        upkeep = Upkeep(process.store, process.ambient, view, lock, process.name)
        lock.on_idle = upkeep.idle

        async def close() -> None:
            await upkeep.close()
            await lock.close()

        return self._committer(process, view, types, lock, upkeep), close

    def _committer(
        self, process: Process, view: View, types: Mapping[TypeId, TypeInfo], lock: CommitLock, upkeep: Upkeep | None
    ) -> Committer:
        return self.committer(
            process.store,
            process.ambient,
            view,
            types,
            runtime_id=process.name,
            lock=lock,
            on_commit=upkeep.note if upkeep is not None else None,
            policy=self.races,
            uploads=self.uploads,
        )

    async def _mark(self, process: Process, committer: Committer, token: str) -> None:
        await self._ask(process, committer, "commit", token, [_intent(MARK, token, {"by": token})])

    async def _flag(self, process: Process, committer: Committer, token: str) -> None:
        value = process.rng.choice(("up", "down"))
        await self._ask(process, committer, "flag", (token, value), [_intent(FLAG, "f", {"is": value})])

    async def _count(self, process: Process, committer: Committer, token: str) -> None:
        """Read, add one, commit only over what was read."""
        try:
            chain = Chain(process.store)
            latest = await read_latest(process.store, chain, await read_ledger(process.store, chain), COUNTER)
        except Unavailable:
            return
        found = latest.rows.get(("n",))
        value = 0 if found is None else json.loads(found[1].fields_json)["is"]
        expect = AtCommit(found[0]) if found is not None else None
        counted = Intent(COUNTER, ("n",), _fields({"is": value + 1, "by": token}), expect)
        if found is None:
            await self._ask(process, committer, "count", token, [counted], if_head=latest.commit_id)
        else:
            await self._ask(process, committer, "count", token, [counted])

    async def _ask(
        self, process: Process, committer: Committer, call: str, token: object, intents: list[Intent], **options: Any
    ) -> None:
        committer.queue += intents
        for _ in range(1 + self.again):
            committing = committer.commit(**options)
            outcome = await process.perform(call, committing, key=layout.HEAD, argument=token, show=_answered)
            if isinstance(outcome, Done):
                return
            await process.rest(self.idle_ms)
        committer.discard()

    # --- others ---

    async def registrar(self, process: Process) -> None:
        """Registers types in commits without rows."""
        for number in range(self.registered):
            type_id = TypeId("entity", f"Fresh{number}")
            committer, close = self._session(process, {type_id: sim_type(type_id)})
            outcome = await process.perform(
                "register",
                committer.commit(order=Order(register=True)),
                key=layout.HEAD,
                argument=type_id.name,
                show=_answered,
            )
            process.note("registered", str(outcome))
            await close()
            await process.rest(self.idle_ms)

    async def reader(self, process: Process) -> None:
        for _ in range(self.commits * 2):
            for type_id in self._types():
                reading = self.read(process, type_id)
                await process.perform("read", reading, key=type_id.name, show=_seen)
            await process.rest(self.idle_ms)

    async def read(self, process: Process, type_id: TypeId) -> Latest:
        chain = Chain(process.store)
        return await read_latest(process.store, chain, await read_ledger(process.store, chain), type_id)

    async def thief(self, process: Process) -> None:
        for _ in range(self.thieves):
            await asyncio.sleep(process.rng.random() * 0.3)
            try:
                if process.rng.random() < 0.5:
                    await process.store.delete(layout.LOCK)
                    continue
                now_ns = process.clock.wall_ns()
                lock = {
                    "owner_id": process.name,
                    "acquired_at": iso(now_ns),
                    "expires_at": iso(now_ns + 100_000_000),
                    "lease_ttl_ms": 100,
                }
                await process.store.put(layout.LOCK, json.dumps(lock).encode(), OVERWRITE)
            except (Ambiguous, Unavailable):
                process.note("shrugs")

    async def liar(self, process: Process) -> None:
        """Deletes indexes, or makes them say what is not so."""
        for _ in range(self.lies):
            await asyncio.sleep(process.rng.random() * 0.3)
            key = layout.index_key(*process.rng.choice(self._types()))
            try:
                found = await process.store.find(key)
                if found is None or process.rng.random() < 0.2:
                    await process.store.delete(key)
                    continue
                await process.store.put(key, json.dumps(lie(json.loads(found.body), process.rng)).encode(), OVERWRITE)
            except (Ambiguous, Unavailable):
                process.note("shrugs")

    async def plain_writer(self, process: Process) -> None:
        """As the specification has it, with neither lock nor indexes: both are advice."""
        for number in range(self.plain):
            try:
                while not await plain_commit(process, f"plain/{process.incarnation}/{number}"):
                    process.note("lost a race")
            except Unavailable:
                process.note("shrugs")
            await process.rest(self.idle_ms)

    # --- what must hold ---

    def check(self, world: World) -> Iterator[Violation]:
        found = course(world.landings)
        yield from found.violations
        yield from changes_only(found, ["plain"])
        yield from applied_once(tokens(found), asked(world.operations, "commit", "count"))
        yield from no_lost_update(found)
        yield from told_truly(world.operations, found)
        yield from read_truly(world.operations, found)


async def _nothing() -> None:
    return


def _fields(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def _intent(type_id: TypeId, key: str, fields: dict[str, Any]) -> Intent:
    return Intent(type_id, (key,), _fields(fields))


def _answered(commit: Commit | None) -> int | None:
    return commit.commit_id if commit is not None else None


def _seen(latest: Latest) -> tuple[int, dict[str, Any]]:
    return latest.commit_id, {key: json.loads(row.fields_json) for (key,), (_, row) in latest.rows.items()}


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
    """Drivers hand over the same batches, again and again; each becomes one commit, also beside other writers."""

    name: ClassVar[str] = "ontology-sink"
    explorable: ClassVar[bool] = False
    committer: ClassVar[type[Committer]] = Committer
    loader: ClassVar[type[Loader]] = Loader

    drivers: int = 2
    batches: int = 2
    tasks: int = 2
    rivals: int = 1
    """Commits of another writer of the same objects."""
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
            **surroundings(rng, lost_response=rng.choice((0.0, 0.2))),
        )

    def begin(self, world: World) -> None:
        world.start_all("driver", self.drivers, self.driver)
        if self.rivals:
            world.start("rival", self.rival)

    async def driver(self, process: Process) -> None:
        """A driver that restarts the stream, as after a crash: with the first batch."""
        for batch in range(self.batches):
            for _ in range(1 + self.again):
                loading = self.load(process, batch)
                outcome = await process.perform(
                    "load", loading, key=layout.HEAD, argument=(QUERY, batch), show=_told_of_batch
                )
                await process.rest(self.idle_ms)
                if isinstance(outcome, Done):
                    break
            else:
                return  # Spark ends a query whose batch fails; a restarted query begins with this one

    async def load(self, process: Process, batch: int) -> Landed:
        session, load = Session(process, self.committer, self.races), process.ambient.ids.unique()
        staged_files: list[StagedFile] = []
        for task in range(self.tasks):
            stager = Stager(process.store, process.ambient, load, session.info)
            rows = [{"id": f"k{key}", "by": f"batch {batch}"} for key in range(3) if key % self.tasks == task]
            await stager.add(pa.Table.from_pylist(rows))
            staged_files += await stager.finish()

        async def run(name: str, task: Task, payloads: Sequence[Document]) -> list[Document]:
            found = [await task(process.store, process.ambient, json.loads(json.dumps(each))) for each in payloads]
            return [row for rows in found for row in rows]

        metadata = {"sink": {"query": QUERY, "batch": batch}}
        request = Request(load, Rules(Policy.REPLACE), QUERY, batch, None, metadata)
        return await self.loader(session, process.ambient, session.info, run).land(request, staged_files)

    async def rival(self, process: Process) -> None:
        session = Session(process, self.committer, self.races)
        for number in range(self.rivals):
            row = queued(session.info, Reading(id="k0", by=f"rival {process.incarnation} {number}"))[0]
            session.committer.queue.append(Intent(session.info.type_id, row.identity, row.fields_json))
            await process.perform("rival", session.committer.commit(), key=layout.HEAD, show=_number)
            session.committer.discard()
            await process.rest(self.idle_ms)

    def check(self, world: World) -> Iterator[Violation]:
        found = course(world.landings)
        yield from found.violations
        yield from committed_once(found)
        yield from batches_told_truly(world.operations, found)


def _told_of_batch(landed: Landed) -> int | None:
    return landed.commit.commit_id if landed.commit is not None else None


def _number(commit: Commit | None) -> int | None:
    return commit.commit_id if commit is not None else None
