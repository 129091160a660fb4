"""Collectors that keep marks, killed at any moment and started again: each rebuilds live state beside the others."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from holdfast.base.errors import HoldfastError
from holdfast.sim import ingest_kit as kit
from holdfast.sim.checkers.ingest_spool import shown
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Submission
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.marks import Marked, Marks
from holdfast.telemetry.accept.submit import submission_of
from holdfast.telemetry.frame import Limits, decode, encode, pack
from holdfast.telemetry.live.follow import Follower
from holdfast.telemetry.live.rebuild import Rebuild
from holdfast.telemetry.live.state import Live
from holdfast.telemetry.records import Gauge

HOUR_NS = 3_600 * 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class IngestLive(Scenario):
    """Live state has all that any collector acknowledged before this one began, once it says that it is rebuilt."""

    name: ClassVar[str] = "ingest-live"
    rebuild: ClassVar[type[Rebuild]] = Rebuild

    collectors: int = 2
    batches: int = 4
    sends: int = 4
    every_ms: int = 500
    rest_ms: float = 100.0
    lingers_ms: float = 0.0
    """How long a collector goes on telling after its last batch."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        # What a collector acknowledged before is told by its own clock: here all clocks are right.
        troubles = replace(Troubles.drawn(rng), skew_ms=0.0, drift_ppm=0.0, jumps=0)
        return cls(
            collectors=rng.randint(1, 3),
            batches=rng.choice((4, 40, 400)),
            sends=rng.randint(4, 16),
            every_ms=rng.choice((100, 500)),
            rest_ms=rng.choice((20.0, 200.0)),
            lingers_ms=rng.choice((0.0, 2_000.0)),
            faults=Faults.drawn(rng, lost_response=0.15),
            troubles=replace(troubles, crashes=rng.randint(1, 3), restarts=True),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.collectors):
            world.start(f"collector{number + 1}", self.serve)

    async def serve(self, process: Process) -> None:
        live = Live(process.ambient.clock, max_bytes=1 << 24, window_ns=HOUR_NS)

        def show(manifest: AcceptedManifest, submitted: Submission) -> None:
            live.add(manifest, submitted.batch)

        def owe(manifest: AcceptedManifest, submitted: Submission) -> None:
            if not live.knows(manifest.identity.manifest_id):
                collector.references.owe(manifest)

        collector = Collector(
            process.store,
            process.ambient,
            kit.authority(),
            CollectorOptions(process.name),
            on_accepted=show,
            on_duplicate=owe,
        )
        marks = Marks(
            process.store, process.ambient, collector.references, collector_id=process.name, every_ms=self.every_ms
        )
        follower = Follower(process.store, live, process.ambient.clock, Limits(), own=marks.session)

        def known(_: int) -> list[str]:
            return sorted(layout.accepted_key(kept.identity) for kept in live.kept())

        try:
            async with marks, collector:
                rebuilding = self.rebuild(follower).run()
                performing = process.perform("rebuild", rebuilding, key=layout.ACCEPTED, show=known)
                await asyncio.gather(performing, self.send(process, Marked(collector, marks)))
        except HoldfastError:
            return  # its mark could not be begun: it has accepted nothing

    async def send(self, process: Process, acceptor: Marked) -> None:
        for _ in range(self.sends):
            number = process.rng.randrange(self.batches)
            body = encode(pack("agent", "boot", [Gauge("load", number, 1)], seq_start=number))
            submitted = submission_of(body, decode(body, Limits()))
            key = layout.accepted_key(submitted.identity)
            await kit.send(process, submitted, acceptor.accept(submitted), key=key)
            await asyncio.sleep(process.rng.uniform(0, self.rest_ms) / 1_000)
        await asyncio.sleep(self.lingers_ms / 1_000)

    def check(self, world: World) -> Iterator[Violation]:
        yield from shown(world.operations, beside_others=True)
