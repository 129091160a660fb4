"""One collector with a spool, killed and started again: its live state is rebuilt while landing goes on."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, Self

from holdfast.objects.memory import MemoryStore
from holdfast.sim import ingest_kit as kit
from holdfast.sim.agent_kit import SimDisk
from holdfast.sim.checkers.ingest_spool import shown
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.scenarios.ingest_spool import IngestSpool
from holdfast.sim.world import Process, World
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Submission
from holdfast.telemetry.accept.authority import Acceptance
from holdfast.telemetry.accept.collector import CollectorOptions
from holdfast.telemetry.accept.landing import SpoolCollector
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.submit import inspect_frame, submission_of
from holdfast.telemetry.frame import Limits, decode, encode, pack
from holdfast.telemetry.live.follow import Follower
from holdfast.telemetry.live.rebuild import Rebuild
from holdfast.telemetry.live.state import Live
from holdfast.telemetry.records import Gauge

HOUR_NS = 3_600 * 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class IngestSpoolLive(IngestSpool):
    """Live state has all that a spool acknowledged, whenever the collector was killed and whatever lands meanwhile."""

    name: ClassVar[str] = "ingest-spool-live"
    collector: ClassVar[type[SpoolCollector]] = SpoolCollector
    rebuild: ClassVar[type[Rebuild]] = Rebuild
    live: ClassVar[type[Live]] = Live
    window_ns: int = HOUR_NS
    """What is older is shown until it has landed."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        drawn = super().drawn(rng)
        troubles = replace(drawn.troubles, crashes=rng.randint(1, 3), restarts=True)
        batches, sends = rng.choice((4, 40, 400)), rng.randint(8, 24)
        window_ns = rng.choice((HOUR_NS, HOUR_NS, 300 * 1_000_000))
        return replace(
            drawn, variants=1, rivals=0, batches=batches, sends=sends, troubles=troubles, window_ns=window_ns
        )

    async def serve(self, disk: MemoryStore, beside: SimDisk, process: Process) -> None:
        spool = await self.opened(disk, beside, process)
        live = self.live(process.ambient.clock, max_bytes=1 << 24, window_ns=self.window_ns)

        def show(manifest: AcceptedManifest, submitted: Submission) -> None:
            live.add(manifest, submitted.batch)

        collector = self.collector(
            spool,
            process.store,
            process.ambient,
            kit.authority(Acceptance.LOCAL_SPOOL),
            CollectorOptions(process.name),
            inspect_frame,
            on_accepted=show,
            on_duplicate=show,
            landings=live,
        )
        rebuild = self.rebuild(Follower(process.store, live, process.ambient.clock, Limits()), collector)

        def known(_: object) -> list[str]:
            shown = (layout.accepted_key(kept.identity) for kept in live.kept())
            old = (each.key for each in process.world.landings if self.window_ns < HOUR_NS)
            return sorted({*chain(shown, old)})

        senders = [self.send(process, collector) for _ in range(self.senders)]
        rebuilding = process.perform("rebuild", rebuild.run(), key=layout.ACCEPTED, show=known)
        await asyncio.gather(self.land(process, collector), rebuilding, *senders)
        await process.perform("rebuild", asyncio.sleep(0), key=layout.ACCEPTED, show=known)

    def submission(self, process: Process) -> Submission:
        number = process.rng.randrange(self.batches)
        body = encode(pack("agent", "boot", [Gauge("load", number, 1)], seq_start=number))
        return submission_of(body, decode(body, Limits()))

    def check(self, world: World) -> Iterator[Violation]:
        yield from shown(world.operations)
