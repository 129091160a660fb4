"""Forks that share payloads, against deleters of what they share."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from holdfast.base import codec
from holdfast.runs import layout
from holdfast.runs.admin.delete import Deleted, delete
from holdfast.runs.admin.fork import Forked, fork
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.store import at_once
from holdfast.sim.world import Process, World

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
            faults=Faults.drawn(rng, lost_response=0.1),
            troubles=Troubles.drawn(rng, within_ms=500),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        at_once(world.truth.put(PAYLOAD, b"large"))
        at_once(world.truth.put(layout.journal_key(SOURCE), _source()))
        for number in range(self.forkers):
            world.start(f"forker{number + 1}", self.forker)
        for number in range(self.deleters):
            world.start(f"deleter{number + 1}", self.deleter)
        for number in range(self.fork_deleters):
            world.start(f"fork-deleter{number + 1}", self.fork_deleter)

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
        for operation in world.operations:
            if not isinstance(operation.outcome, Done):
                continue
            if operation.call == "fork" and operation.argument not in live | deleted:
                yield Violation(THERE, f"{operation.argument} is missing")
            if operation.call == "delete" and operation.argument in live:
                yield Violation(GONE, f"{operation.argument} is there")


def _source() -> bytes:
    """A finished run whose step returned something large."""
    common: dict[str, Any] = {"session": 1, "timestamp": "2026-01-01T00:00:00Z"}
    reference = {"key": PAYLOAD, "sha256": "", "bytes": 5}
    lines = [
        {"type": "start", "offset": 0, "writer": "w", **common},
        {"type": "step", "offset": 1, "stepId": "big", "payload": reference, **common},
        {"type": "complete", "offset": 2, **common},
    ]
    return b"".join(codec.encode(line) + b"\n" for line in lines)
