"""Journals of runs, below workflows: sessions that take over from each other, and forks of a run that is deleted."""

import asyncio
import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.errors import Corrupt, Fenced, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.store import IfMatch, Lost, Store
from holdfast.runs import layout
from holdfast.runs.admin.delete import Deleted, delete
from holdfast.runs.admin.fork import Forked, fork
from holdfast.runs.journal.entry import Draft, Entry
from holdfast.runs.journal.history import History, read_history
from holdfast.runs.journal.journal import Journal
from holdfast.runs.journal.segments import SegmentPolicy
from holdfast.sim.checkers.objects import applied_once
from holdfast.sim.checkers.runs import READABLE, Generation, course, well_formed
from holdfast.sim.history import Done, Failed, Open, Outcome, Violation, answers
from holdfast.sim.scenario import SPEC, Scenario, Unsettled, surroundings
from holdfast.sim.store import at_once
from holdfast.sim.world import Process, World

RUN = "r"
KEY = layout.journal_key(RUN)
FOLDER = layout.run_folder(RUN)
UNSEALED = SegmentPolicy()
"""Nothing here is long enough to be sealed by the usual policy."""
ONE_HOLDER = "a session has one holder"
ANSWERED = "what a session was answered is what is recorded"


@dataclass(frozen=True, kw_only=True)
class RunsJournal(Scenario):
    """Sessions take over one run from each other; every answered entry is in the journal, once, and nothing else."""

    name: ClassVar[str] = "runs-journal"
    journal: ClassVar[type[Journal]] = Journal

    workers: int = 2
    sessions: int = 1
    appends: int = 2
    group: int = 1
    """The most appends that a session has in flight at once."""
    renewals: float = 0.0
    """How often a session continues as new."""
    idle_ms: float = 0.0
    tries: int = 2
    """How often a session that lost the race for its start reads again."""
    hasty: bool = True
    """A session first takes the run for a new one, without looking."""
    plain: int = 0
    """Lines of a plain writer, which reads the journal and writes it back with one line more."""
    policy: SegmentPolicy = UNSEALED
    settled: bool = True
    """Without `Client` the journal itself settles every lost answer."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            workers=rng.randint(2, 4),
            sessions=rng.randint(1, 4),
            appends=rng.randint(1, 8),
            group=rng.choice((1, 1, 3)),
            renewals=rng.choice((0.0, 0.3)),
            idle_ms=rng.choice((0.0, 50.0, 400.0)),
            tries=3,
            hasty=rng.random() < 0.1,
            plain=rng.choice((0, 0, 4)),
            policy=rng.choice((UNSEALED, SegmentPolicy(2, 1, 2), SegmentPolicy(3, 1, 3))),
            settled=rng.random() < 0.6,
            **surroundings(rng, lost_response=0.2),
        )

    def begin(self, world: World) -> None:
        world.start_all("worker", self.workers, self.worker)
        if self.plain:
            world.start("plain", self.plain_writer)

    def stack(self, backend: Store, ambient: Ambient) -> Client:
        if self.settled:
            return super().stack(backend, ambient)
        return Unsettled(backend, ambient=ambient, retry=self.retry, spec=SPEC)

    def opening(self, token: str) -> dict[str, Any]:
        """What a session puts into its start, besides what the journal does."""
        return {"stepId": token}

    async def worker(self, process: Process) -> None:
        for turn in range(self.sessions):
            journal = await self._open(process, f"{process.name}/{turn + 1}")
            if journal is not None:
                await self._work(process, journal, f"{process.name}/{turn + 1}")
            await process.rest(self.idle_ms)

    async def _open(self, process: Process, token: str) -> Journal | None:
        for number in range(self.tries):
            history = None
            if number or not self.hasty:
                reading = await process.perform("read", read_history(process.store, RUN), key=KEY, show=_lines_of)
                if not isinstance(reading, Done):
                    return None
                history = reading.result
            mine = f"{token}/start{number + 1}"
            opening = self.journal.begin(
                process.store, process.ambient, RUN, history, self.opening(mine), policy=self.policy
            )
            opened = await process.perform("begin", opening, key=KEY, argument=mine, show=_session_of)
            if isinstance(opened, Done):
                journal: Journal = opened.result
                return journal
        return None

    async def _work(self, process: Process, journal: Journal, token: str) -> None:
        number = 0
        while number < self.appends:
            size = process.rng.randint(1, self.group)
            tokens = [f"{token}/{number + n + 1}" for n in range(size)]
            outcomes = await asyncio.gather(*(self._append(process, journal, one) for one in tokens))
            number += size
            if any(isinstance(outcome, Failed) for outcome in outcomes):
                return
            if process.rng.random() < self.renewals:
                mine = f"{token}/renewal{number}"
                renewing = journal.continue_as_new(self.opening(mine))
                renewed = await process.perform("renew", renewing, key=KEY, argument=mine)
                if not isinstance(renewed, Done):
                    return
            await process.rest(self.idle_ms)

    async def _append(self, process: Process, journal: Journal, token: str) -> Outcome:
        draft = Draft("step", {"stepId": token, "result": process.name})
        reported = partial(_answered, journal.state.generation)
        return await process.perform("append", journal.append(draft), key=KEY, argument=token, show=reported)

    async def plain_writer(self, process: Process) -> None:
        """As the specification has it: read, add a line, write if-match, and again when the journal has changed."""
        for number in range(self.plain):
            try:
                await self._plain_line(process, number)
            except Unavailable:
                process.note("shrugs")
            await process.rest(self.idle_ms)

    async def _plain_line(self, process: Process, number: int) -> None:
        while (found := await process.backend.find(KEY)) is not None:
            lines = found.body.splitlines()
            last = json.loads(lines[-1])
            if json.loads(lines[0])["type"] == "segments":
                return  # more than it understands
            kind, session = ("start", last["session"] + 1) if number % 2 else ("step", last["session"])
            line = {"type": kind, "session": session, "offset": len(lines), "stepId": f"plain/{number}"}
            line["timestamp"] = iso(process.clock.wall_ns())
            body = b"\n".join([*lines, json.dumps(line, indent=None).encode()]) + b"\n"
            if not isinstance(await process.backend.put(KEY, body, IfMatch(found.version)), Lost):
                return

    # --- what must hold ---

    def check(self, world: World) -> Iterator[Violation]:
        found = course(world.landings, FOLDER)
        yield from found.violations
        yield from well_formed(found.generations)
        entries = [entry for history in found.generations for entry in history.entries]
        tokens = [entry["stepId"] for entry in entries if not entry.get("stepId", "plain/").startswith("plain/")]
        yield from applied_once(tokens, self._asked(world))
        yield from _one_each(world)
        yield from _told_as_recorded(world, {history.number: history for history in found.generations})
        yield from _read_as_written(world, found.journals)

    def _asked(self, world: World) -> dict[object, list[Outcome]]:
        marked = {"append", "begin", "renew"} if self.opening("") else {"append"}
        asked: dict[object, list[Outcome]] = {}
        for operation in world.operations:
            if operation.call in marked:
                outcome = operation.outcome
                if isinstance(outcome, Failed) and isinstance(outcome.error, Fenced):
                    outcome = Open(outcome.error)  # a session that must stop may have been recorded, or not
                asked.setdefault(operation.argument, []).append(outcome)
        return asked


def _one_each(world: World) -> Iterator[Violation]:
    holders: dict[object, str] = {}
    for operation, session in answers(world.operations, "begin"):
        if session in holders:
            yield Violation(ONE_HOLDER, f"session {session} was given to {holders[session]} and {operation.process}")
        holders[session] = operation.process


def _told_as_recorded(world: World, histories: dict[int, Generation]) -> Iterator[Violation]:
    for operation, answered in answers(world.operations, "append"):
        for generation, offset, reported in answered:
            entries = histories[generation].entries if generation in histories else []
            there = entries[offset] if offset < len(entries) else None
            if there != reported:
                yield Violation(ANSWERED, f"{operation.process} was answered {reported}, and there is {there}")


def _read_as_written(world: World, journals: list[list[bytes]]) -> Iterator[Violation]:
    written = {tuple(lines) for lines in journals}
    for operation in world.operations:
        outcome = operation.outcome
        if isinstance(outcome, Failed) and isinstance(outcome.error, Corrupt):
            yield Violation(READABLE, f"{operation.process} was answered: {outcome.error}")
        if operation.call == "read" and isinstance(outcome, Done) and outcome.value and outcome.value not in written:
            yield Violation(READABLE, f"{operation.process} read a journal that never was: {outcome.value!r}")


def _answered(generation: int, entries: list[Entry]) -> list[tuple[int, int, dict[str, Any]]]:
    own = ("type", "session", "offset", "timestamp")
    documents = ({**entry.fields, **{name: getattr(entry, name) for name in own}} for entry in entries)
    return [(generation, document["offset"], document) for document in documents]


def _lines_of(history: History | None) -> tuple[bytes, ...]:
    return tuple(line.rstrip(b"\n") for line in history.lines) if history is not None else ()


def _session_of(journal: Journal) -> int:
    return journal.session


SOURCE = "source"
PAYLOAD = layout.payload_key(SOURCE, "payload")
KEPT = "a run that is not deleted has all that it refers to"
THERE = "a fork that was made is there"
GONE = "a run that was deleted stays deleted"


@dataclass(frozen=True, kw_only=True)
class RunsForkDelete(Scenario):
    """Forks are made of a run, and of each other, while it is deleted; none is left without its payloads."""

    name: ClassVar[str] = "runs-fork-delete"

    forkers: int = 1
    forks: int = 1
    deleters: int = 1
    fork_deleters: int = 0

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            forkers=rng.randint(1, 3),
            forks=rng.randint(1, 2),
            deleters=rng.randint(1, 2),
            fork_deleters=rng.randint(0, 1),
            **surroundings(rng, lost_response=0.1, within_ms=500),
        )

    def begin(self, world: World) -> None:
        at_once(world.truth.put(PAYLOAD, b"large"))
        at_once(world.truth.put(layout.journal_key(SOURCE), _source()))
        world.start_all("forker", self.forkers, self.forker)
        world.start_all("deleter", self.deleters, self.deleter)
        world.start_all("fork-deleter", self.fork_deleters, self.fork_deleter)

    async def forker(self, process: Process) -> None:
        """Its second fork is one of its first."""
        source = SOURCE
        for number in range(self.forks):
            name = f"{process.name}-{number + 1}"
            made = await process.perform(
                "fork", self.fork(process, source, name), key=source, argument=name, show=lambda _: None
            )
            if isinstance(made, Done):
                source = name

    async def deleter(self, process: Process) -> None:
        await process.perform("delete", self.delete(process, SOURCE), key=SOURCE, argument=SOURCE, show=lambda _: None)

    async def fork_deleter(self, process: Process) -> None:
        await process.perform("delete", self.delete(process, "forker1-1"), key=SOURCE, argument="forker1-1")

    async def fork(self, process: Process, source: str, name: str) -> Forked | None:
        return await fork(process.store, source, new_run_id=name, after_step="big")

    async def delete(self, process: Process, run_id: str) -> Deleted | None:
        return await delete(process.store, run_id, force=True)

    def check(self, world: World) -> Iterator[Violation]:
        objects = world.truth.shelf.objects
        journals = {
            key.split("/")[1]: [json.loads(line) for line in found.body.splitlines()]
            for key, found in objects.items()
            if key.endswith("/journal.jsonl")
        }
        live = {run_id for run_id, lines in journals.items() if not lines[-1].get("deleted")}
        for run_id in live:
            for line in journals[run_id]:
                reference = line.get("payload")
                if reference is not None and reference["key"] not in objects:
                    yield Violation(KEPT, f"{run_id} refers to {reference['key']}")
        deleted = {operation.argument for operation in world.operations if operation.call == "delete"}
        for operation, _ in answers(world.operations):
            if operation.call == "fork" and operation.argument not in live | deleted:
                yield Violation(THERE, f"{operation.argument} is missing")
            if operation.call == "delete" and operation.argument in live:
                yield Violation(GONE, f"{operation.argument} is there")


def _source() -> bytes:
    """A finished run whose step returned something large."""
    common: dict[str, Any] = {"session": 1, "timestamp": "2026-01-01T00:00:00Z"}
    reference = {"key": PAYLOAD, "sha256": hashlib.sha256(b"large").hexdigest(), "bytes": 5}
    lines = [
        {"type": "start", "offset": 0, "writer": "w", **common},
        {"type": "step", "offset": 1, "stepId": "big", "payload": reference, **common},
        {"type": "complete", "offset": 2, **common},
    ]
    return b"".join(codec.encode(line) + b"\n" for line in lines)
