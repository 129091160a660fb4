"""Acceptance: collectors that get the same and conflicting batches, one authority per store, and live state."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from holdfast.objects.place import Place
from holdfast.sim import ingest_kit as kit
from holdfast.sim.checkers.ingest import accepted_once, replayed, shown
from holdfast.sim.faults import Faults, Outage, Troubles
from holdfast.sim.history import Done, Violation, answers
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Answer, Submission, submission_of
from holdfast.telemetry.accept.authority import Acceptance, Authority, open_authority
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.accept.layout import AUTHORITY
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.orphans import OrphanKeeper
from holdfast.telemetry.frame import Limits, decode, encode, pack
from holdfast.telemetry.live.follow import Follower, Rebuild
from holdfast.telemetry.live.state import Live
from holdfast.telemetry.records import Gauge


@dataclass(frozen=True, kw_only=True)
class IngestAccept(Scenario):
    """Collectors accept each batch once, wherever and however often it is sent; every manifest has its bytes."""

    name: ClassVar[str] = "ingest-accept"
    collector: ClassVar[type[Collector]] = Collector
    keeper: ClassVar[type[OrphanKeeper]] = OrphanKeeper

    collectors: int = 2
    batches: int = 1
    sends: int = 1
    """Submissions at each collector."""
    again: int = 0
    """How often a sender tries again that was not answered."""
    variants: int = 1
    """Different bytes under one identity."""
    keepers: int = 0
    rounds: int = 1
    """How often a keeper goes through all blobs."""
    resolved: bool = False
    """Conflicts count as resolved at once, so that the bytes that lost may go."""
    idle_ms: float = 0.0

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            outage=Outage.drawn(rng),
            collectors=rng.randint(2, 4),
            batches=rng.randint(1, 4),
            sends=rng.randint(2, 8),
            again=rng.randint(0, 3),
            variants=rng.choice((1, 1, 2, 3)),
            keepers=rng.choice((0, 1, 2)),
            rounds=rng.randint(1, 3),
            resolved=rng.random() < 0.5,
            idle_ms=rng.choice((0.0, 50.0, 400.0)),
            faults=Faults.drawn(rng, lost_response=0.15),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        world.start_all("collector", self.collectors, self.serve)
        for number in range(self.keepers):
            world.start(f"keeper{number + 1}", self.keep)

    async def serve(self, process: Process) -> None:
        collector = self.collector(
            process.store,
            process.ambient,
            kit.authority(),
            CollectorOptions(process.name),
            on_accepted=kit.effect(process),
        )
        for turn in range(self.sends):
            submitted = self.submission(process, turn)
            for _ in range(1 + self.again):
                key = layout.accepted_key(submitted.identity)
                outcome = await kit.send(process, submitted, self.accept(collector, submitted), key=key)
                if isinstance(outcome, Done):
                    break
                await process.rest(self.idle_ms)
            await process.rest(self.idle_ms)

    def submission(self, process: Process, turn: int) -> Submission:
        """In a small world collectors are sent the variants in turn; in a large one anything goes."""
        if self.batches == self.sends == 1:
            return kit.submission(0, int(process.family.removeprefix("collector")) % self.variants)
        return kit.submission(process.rng.randrange(self.batches), process.rng.randrange(self.variants))

    async def accept(self, collector: Collector, submitted: Submission) -> Answer:
        return await collector.accept(submitted)

    async def keep(self, process: Process) -> None:
        async def may_go(*_: object) -> bool:
            return self.resolved

        keeper = self.keeper(process.store, process.ambient, collector_id=process.name, may_go=may_go)
        for _ in range(self.rounds):
            await process.perform("keep", self.sweep(process, keeper), key=layout.BLOBS)
            await process.rest(self.idle_ms)

    async def sweep(self, process: Process, keeper: OrphanKeeper) -> None:
        async for key in process.store.keys(layout.BLOBS):
            await keeper.treat(key)

    def check(self, world: World) -> Iterator[Violation]:
        yield from accepted_once(replayed(world.landings), world.operations)


ONE_AUTHORITY = "all who accept do so under one authority, in one mode, at one place"


@dataclass(frozen=True, kw_only=True)
class IngestAuthority(Scenario):
    """Collectors that begin together found one authority; one that wants another mode or place is refused."""

    name: ClassVar[str] = "ingest-authority"

    collectors: int = 2
    modes: int = 2
    places: int = 1

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            collectors=rng.randint(2, 5),
            modes=rng.randint(1, 2),
            places=rng.randint(1, 2),
            faults=Faults.drawn(rng, lost_response=0.2),
            troubles=Troubles.drawn(rng, within_ms=200),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        world.start_all("collector", self.collectors, self.collector)

    async def collector(self, process: Process) -> None:
        number = int(process.family.removeprefix("collector"))
        mode = list(Acceptance)[number % self.modes]
        place = kit.PLACE if number % self.places == 0 else Place("memory", "", "copy", "")
        opening = open_authority(process.store, process.ambient, place, mode)
        await process.perform("open", opening, key=AUTHORITY, argument=(str(place), mode.value), show=_shown)

    def check(self, world: World) -> Iterator[Violation]:
        served: dict[tuple[Any, ...], str] = {}
        for operation, answer in answers(world.operations):
            served[answer] = str(operation)
            if answer[1:] != operation.argument:
                yield Violation(ONE_AUTHORITY, f"[{operation}]")
        if len(served) > 1:
            yield Violation(ONE_AUTHORITY, " and ".join(served.values()))
        if len(world.bodies(AUTHORITY)) > 1:
            yield Violation(ONE_AUTHORITY, f"{AUTHORITY} was written {len(world.bodies(AUTHORITY))} times")


def _shown(authority: Authority) -> tuple[str, str, str]:
    return authority.authority_id, str(authority.place), authority.acceptance.value


HOUR_NS = 3_600 * 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class IngestLive(Scenario):
    """Live state has all that any collector acknowledged before this one began, once it says that it is rebuilt."""

    name: ClassVar[str] = "ingest-live"
    collector: ClassVar[type[Collector]] = Collector

    collectors: int = 2
    batches: int = 4
    sends: int = 4
    rest_ms: float = 100.0

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        # The window is measured by each process's own clock: here all clocks are right.
        troubles = replace(Troubles.drawn(rng), skew_ms=0.0, drift_ppm=0.0, jumps=0)
        return cls(
            collectors=rng.randint(1, 3),
            batches=rng.choice((4, 40, 400)),
            sends=rng.randint(4, 16),
            rest_ms=rng.choice((20.0, 200.0)),
            faults=Faults.drawn(rng, lost_response=0.15),
            troubles=replace(troubles, crashes=rng.randint(1, 3), restarts=True),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        world.start_all("collector", self.collectors, self.serve)

    async def serve(self, process: Process) -> None:
        live = Live(process.ambient.clock, max_bytes=1 << 24, window_ns=HOUR_NS)

        def show(manifest: AcceptedManifest, submitted: Submission) -> None:
            live.add(manifest, submitted.batch)

        options = CollectorOptions(process.name)
        collector = self.collector(process.store, process.ambient, kit.authority(), options, on_accepted=show)
        follower = Follower(process.store, live, process.ambient.clock, Limits())

        def known(_: int) -> list[str]:
            return sorted(layout.accepted_key(batch.identity) for batch in live.batches())

        rebuilding = process.perform("rebuild", Rebuild(follower).run(), key=layout.ACCEPTED, show=known)
        await asyncio.gather(rebuilding, self.send(process, collector))

    async def send(self, process: Process, collector: Collector) -> None:
        for _ in range(self.sends):
            number = process.rng.randrange(self.batches)
            body = encode(pack("agent", "boot", [Gauge("load", number, 1)], seq_start=number))
            submitted = submission_of(body, decode(body, Limits()))
            key = layout.accepted_key(submitted.identity)
            await kit.send(process, submitted, collector.accept(submitted), key=key)
            await asyncio.sleep(process.rng.uniform(0, self.rest_ms) / 1_000)

    def check(self, world: World) -> Iterator[Violation]:
        yield from shown(world.operations, beside_others=True)
