"""Drivers of the pipeline on one store, while batches come in late, overlapping, and with or without references."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from holdfast.pipeline.derive import Derive, rollup_job
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.options import Env, Options
from holdfast.pipeline.reconcile import Reconcile
from holdfast.sim.checkers.pipeline import counted, generations
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.pipeline_kit import Small, Straight, accept, gather
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World
from holdfast.telemetry.accept.layout import GATHERINGS
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.rollup.layout import hour_path
from holdfast.telemetry.rollup.windows import Windows

QUIET_S = 60
TRIES = 200
"""How often the last driver goes on against a store that fails it."""
OPTIONS = Options(windows=Windows.of(["1h"]), records_per_unit=8, overlap_ns=600 * 1_000_000_000)


@dataclass(frozen=True, kw_only=True)
class PipelineDerive(Scenario):
    """Drivers derive hours from batches as they come; none is lost, none counts twice, and nobody sees half an hour."""

    name: ClassVar[str] = "pipeline-derive"
    explorable: ClassVar[bool] = False
    reconcile: ClassVar[Callable[[Env], Any]] = Reconcile
    rollup: ClassVar[Callable[[Env], Derive]] = rollup_job

    drivers: int = 2
    rounds: int = 2
    batches: int = 4
    unreferred: bool = False
    """Some batches have no references: the last driver lists every manifest."""
    idle_ms: float = 50.0
    gathered: int = 1
    """How many batches the acceptor gathers before it refers to them; what it holds when it dies nobody refers to."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            drivers=rng.randint(1, 3),
            rounds=rng.randint(1, 3),
            batches=rng.randint(2, 6),
            unreferred=rng.random() < 0.3,
            idle_ms=rng.choice((0.0, 50.0, 400.0)),
            faults=Faults.drawn(rng, lost_response=0.05),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
            gathered=rng.randint(1, 3),
        )

    def small(self, number: int) -> Small:
        """Batches of two agents, in turns of two hours; every third shares numbers with the one before it, and claims
        another hour for them.
        """
        start = 10 * number - (8 if number % 3 == 2 else 0)
        return Small(f"agent-{number // 3 % 2}", start, 10 * number + 4, number % 2, crosses=number % 4 == 1)

    def begin(self, world: World) -> None:
        world.start("acceptor", self.accepting)
        for number in range(self.drivers):
            world.start(f"driver{number + 1}", self.driving)
        world.start("last", self.closing)

    async def accepting(self, process: Process) -> None:
        owed: list[AcceptedManifest] = []
        for number in range(self.batches):
            batch = self.small(number)
            refer = not (self.unreferred and number % 2)
            await process.perform("accept", self.accept(process, batch, owed, refer=refer), key=batch.key)
            if len(owed) >= self.gathered or (owed and number == self.batches - 1):
                now_ns = process.ambient.clock.wall_ns()
                outcome = await process.perform("gather", gather(process.store, owed, now_ns), key=GATHERINGS)
                owed = [] if isinstance(outcome, Done) else owed
            await self._rest(process)

    async def accept(self, process: Process, batch: Small, owed: list[AcceptedManifest], *, refer: bool) -> None:
        manifest = batch.manifest(process.ambient.clock.wall_ns(), process.ambient.ids.write_id())
        alone = self.gathered == 1
        stands = await accept(process.store, batch, manifest, refer=refer and alone)
        if refer and not alone:
            owed.append(stands)

    async def driving(self, process: Process) -> None:
        for turn in range(self.rounds):
            await process.perform("drive", self.round(process, f"{process.name}-{turn}"), key="manifests/")
            await self._rest(process)

    async def round(self, process: Process, name: str, *, full: bool = False) -> None:
        env = Env(process.store, process.ambient, Inline(process.store), OPTIONS)
        await type(self).reconcile(env).run(Straight(f"{name}-reconcile"), {"full": True} if full else {})
        while True:
            summary = await type(self).rollup(env).run(Straight(f"{name}-rollup"), {})
            if not summary["superseded"]:
                return

    async def closing(self, process: Process) -> None:
        """When all others are done, go on until a round has come to its end."""
        quiet_s = 0
        while quiet_s < QUIET_S:  # a process that has crashed may come back
            await asyncio.sleep(1)
            quiet_s = 0 if self._others_work(process) else quiet_s + 1
        for turn in range(TRIES):
            outcome = await process.perform(
                "close", self.round(process, f"{process.name}-{turn}", full=self.unreferred), key="manifests/"
            )
            if isinstance(outcome, Done):
                return

    def _others_work(self, process: Process) -> bool:
        return any(each.working for each in process.world.processes if each.family != process.family)

    async def _rest(self, process: Process) -> None:
        if self.idle_ms:
            await asyncio.sleep(process.rng.uniform(0, self.idle_ms) / 1000)

    def check(self, world: World) -> Iterator[Violation]:
        yield from generations(world.landings)
        closed = any(each.call == "close" and isinstance(each.outcome, Done) for each in world.operations)
        if closed:
            objects = {landing.key: landing.body for landing in world.landings}
            there = {key: body for key, body in objects.items() if body is not None}
            yield from counted(there, self._expected(there))

    def _expected(self, objects: dict[str, bytes]) -> dict[str, dict[tuple[str, int], float]]:
        """Records of batches that were accepted, and can be found: by hour, each number once, in the hour that the
        lowest range gives it.

        A collector that died between manifest and reference left a batch that only a full scan finds, or the look at
        what overlaps.
        """
        winners: dict[tuple[str, int], int] = {}
        for batch in sorted(map(self.small, range(self.batches)), key=lambda each: (each.agent, each.start)):
            if batch.key in objects and (self.unreferred or self._referred(objects, batch)):
                for seq, hour in batch.hours.items():
                    winners.setdefault((batch.agent, seq), hour)
        expected: dict[str, dict[tuple[str, int], float]] = {}
        for (agent, seq), hour in winners.items():
            expected.setdefault(hour_path(hour).rstrip("/"), {})[agent, seq] = float(seq)
        return expected

    def _referred(self, objects: dict[str, bytes], batch: Small) -> bool:
        ident = batch.manifest(0, "").identity.manifest_id
        if any(key.startswith("accepted-by-time/") and key.endswith(f"{ident}.json") for key in objects):
            return True
        bodies = [body for key, body in objects.items() if key.startswith("acceptances/")]
        return (batch.agent, batch.start, batch.end) in {
            (each["agent_id"], each["seq_start"], each["seq_end"])
            for body in bodies
            for each in json.loads(body)["accepted_manifests"]
        }
