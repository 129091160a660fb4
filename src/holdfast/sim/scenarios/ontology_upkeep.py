"""Compaction, erasures, drops and purges of an ontology beside those who commit and read."""

import json
import random
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from holdfast.base.errors import Ambiguous, Corrupt, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store, Written
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.redaction_fence import retry_overtaken
from holdfast.ontology.chain.state import Latest, read_at, read_ledger
from holdfast.ontology.commit.attempt import PLAIN, Draft, draw
from holdfast.ontology.commit.commit import RACES, Commit
from holdfast.ontology.feed import Feed
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import EMPTY, Ledger, followed
from holdfast.ontology.format.data.batch import Intent, Row
from holdfast.ontology.format.head import Head
from holdfast.ontology.format.index import read_index
from holdfast.ontology.format.manifest import Registered
from holdfast.ontology.maintain import drop, erase
from holdfast.ontology.maintain.compact import Compacted, Compactor
from holdfast.ontology.maintain.leftovers import leftovers
from holdfast.ontology.types.errors import TypeDropped
from holdfast.sim.checkers import ontology_destroyed as destroyed
from holdfast.sim.checkers.objects import applied_once
from holdfast.sim.checkers.ontology import Course, course, plain_reads, told_truly
from holdfast.sim.history import Done, Failed, Violation, asked
from holdfast.sim.ontology_kit import sim_type
from holdfast.sim.scenarios.ontology import MARK, OntologyCommit
from holdfast.sim.store import at_once
from holdfast.sim.world import Process, SimClock, World


@dataclass(frozen=True, kw_only=True)
class OntologyCompact(OntologyCommit):
    """Compactors merge files while others commit, read, lie and sweep; no reader ever sees other rows."""

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
        world.start_all("compactor", self.compactors, self.compacting)
        world.start_all("janitor", self.janitors, self.janitor)

    def _prepare(self, world: World) -> None:
        """The types, and some marks, one commit each."""
        types = {type_id: sim_type(type_id) for type_id in self._types()}
        ambient = Ambient(SimClock(world.loop.time), world.seed.stream("preparation"))
        registered = [Registered(*each, 1, info.schema_hash, 1, 1, info.schema) for each, info in types.items()]
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
            await process.rest(self.idle_ms)

    async def janitor(self, process: Process) -> None:
        for _ in range(self.compactions):
            await process.rest(self.idle_ms)
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


PERSON = "person"
"""The key of the identity that is erased."""
STANDING = "plain/standing"
"""The key of a row that every writer wants to be there."""


@dataclass(frozen=True, kw_only=True)
class _Destroying(OntologyCompact):
    explorable: ClassVar[bool] = False
    feed: ClassVar[type[Feed]] = Feed

    destroyers: int = 1
    times: int = 1
    """How often each of them does it."""
    resumes: int = 2
    """How often a process finishes what others have begun, and removes what they left behind."""
    follows: float = 0.3
    """How often a reader follows the changes from the beginning."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return replace(
            super().drawn(rng),
            work=("mark",),
            marks=rng.randint(1, 5),
            janitors=0,
            thieves=0,
            lies=0,
            plain=0,
            again=3,
            destroyers=rng.randint(1, 2),
            times=rng.randint(1, 2),
            resumes=rng.randint(0, 4),
            readers=rng.choice((1, 2)),
            idle_ms=rng.choice((20.0, 100.0, 400.0)),
            races=RACES,
        )

    def begin(self, world: World) -> None:
        super().begin(world)
        world.start_all("destroyer", self.destroyers, self.destroyer)
        if self.resumes:
            world.start("resumer", self.resumer)

    # --- who works here ---

    async def destroyer(self, process: Process) -> None:
        for _ in range(self.times):
            await process.rest(self.idle_ms)
            await process.perform("destroy", self.destroy(process), key=layout.HEAD, show=_answered)

    @abstractmethod
    async def destroy(self, process: Process) -> Commit | None:
        """Once; what was committed."""

    async def resumer(self, process: Process) -> None:
        for _ in range(self.resumes):
            await process.rest(self.idle_ms)
            await process.perform("resume", erase.resume(process.store, process.ambient), key=layout.HEAD)

    async def writer(self, process: Process) -> None:
        """Puts marks; a session that learns of the type's end is followed by another, which begins it again."""
        committer, close = self._session(process, {MARK: sim_type(MARK)})
        for number in range(self.commits):
            token = f"{process.name}/{number + 1}"
            intents = self.intents(token)
            committer.queue += intents
            for _ in range(1 + self.again):
                committing = committer.commit()
                outcome = await process.perform("commit", committing, key=layout.HEAD, argument=token, show=_answered)
                if isinstance(outcome, Done):
                    break
                if isinstance(outcome, Failed) and isinstance(outcome.error, TypeDropped):
                    committer.discard()
                    await close()
                    committer, close = self._session(process, {MARK: sim_type(MARK)})
                    committer.queue += intents
                await process.rest(self.idle_ms)
            committer.discard()
            await process.rest(self.idle_ms)
        await close()

    def intents(self, token: str) -> list[Intent]:
        return [_intent(token, token)]

    async def reader(self, process: Process) -> None:
        """Now, as of any commit, and everything from the beginning. Files are rewritten while they are read."""
        for _ in range(self.commits * 2):
            share = process.rng.choice((0.0, 0.0, process.rng.random()))
            await process.perform("read", self.looked(process, share), key=MARK.name, show=_seen)
            await process.rest(self.idle_ms)
            if process.rng.random() < self.follows:
                await process.perform("follow", self.followed(process), key=MARK.name)

    async def looked(self, process: Process, back: float) -> tuple[int, Latest]:
        async def once() -> tuple[int, Latest]:
            chain = Chain(process.store)
            now = await read_ledger(process.store, chain)
            at = now.commit_id - int(now.commit_id * back)
            return now.commit_id, await self.read_at(process.store, chain, now, at)

        return await retry_overtaken(once)

    async def followed(self, process: Process) -> tuple[int, dict[str, Any]]:
        """What the change feed adds up to, and up to which commit."""
        feed, state = self.feed(process.store, types=[MARK]), dict[str, Any]()
        async for change in feed:
            if change.change_type == "retract":
                state.pop(change.identity[0], None)
            elif change.change_type != "update_preimage":
                state[change.identity[0]] = change.fields
        return feed.since, state

    async def read_at(self, store: Store, chain: Chain, now: Ledger, commit_id: int) -> Latest:
        return await read_at(store, chain, now, MARK, commit_id)

    # --- what must hold ---

    def check(self, world: World) -> Iterator[Violation]:
        found = course(world.landings)
        yield from found.violations
        yield from applied_once(_tokens(found), asked(world.operations, "commit"))
        yield from told_truly(world.operations, found)
        yield from destroyed.read_truly(world.operations, found)
        yield from destroyed.followed_truly(world.operations, found)
        yield from destroyed.is_gone(world.landings, found)
        yield from destroyed.rest_stays(world.landings, found)
        yield from destroyed.nothing_silent(world.landings, found, self.named(world))

    def named(self, world: World) -> set[str]:
        """The garbage that a check of the store names."""
        return {each.key for each in world.loop.run_until_complete(leftovers(world.truth))}


@dataclass(frozen=True, kw_only=True)
class OntologyErase(_Destroying):
    """One identity is erased while others write it again, read and compact; what was erased never comes back."""

    name: ClassVar[str] = "ontology-erase"

    async def destroy(self, process: Process) -> Commit | None:
        found = await erase.preview(process.store, MARK.name, PERSON)
        options: Any = {"by": process.name, "why": "asked"}
        return await erase.apply(process.store, process.ambient, found, found.token, **options)

    def intents(self, token: str) -> list[Intent]:
        return [*super().intents(token), _intent(PERSON, token)]

    def _origin(self, number: int) -> list[Row]:
        return [*super()._origin(number), Row((PERSON,), f'{{"by":"origin/{number}"}}')]


@dataclass(frozen=True, kw_only=True)
class OntologyDrop(_Destroying):
    """A type is dropped, purged and begun again beside writers, readers and compactors; no life has another's rows."""

    name: ClassVar[str] = "ontology-drop"
    purges: float = 0.5
    """How many of the drops destroy the rows."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return replace(super().drawn(rng), purges=rng.choice((0.0, 0.5, 1.0)))

    async def destroy(self, process: Process) -> Commit | None:
        purge = process.rng.random() < self.purges
        found = await drop.preview(process.store, MARK.name, purge=purge)
        options: Any = {"by": process.name, "why": "asked"}
        return await drop.apply(process.store, process.ambient, found, found.token, **options)

    def intents(self, token: str) -> list[Intent]:
        return [*super().intents(token), _intent(STANDING, "all")]

    def check(self, world: World) -> Iterator[Violation]:
        yield from super().check(world)
        found = course(world.landings)
        yield from destroyed.ensured(world.operations, found, MARK.name, (STANDING, {"by": "all"}))


def _tokens(found: Course) -> Iterator[str]:
    for step in found.steps:
        for kind, key in step.rows:
            if kind == MARK.name and key != PERSON and not key.startswith("plain/"):
                yield key


def _intent(key: str, token: str) -> Intent:
    return Intent(MARK, (key,), json.dumps({"by": token}, separators=(",", ":")))


def _answered(commit: Commit | None) -> int | None:
    return commit.commit_id if commit is not None else None


def _seen(found: tuple[int, Latest]) -> tuple[int, int, dict[str, Any]]:
    head, latest = found
    return head, latest.commit_id, {key: json.loads(row.fields_json) for (key,), (_, row) in latest.rows.items()}
