"""A fleet in virtual time: agents with the default interval, three collectors, the pipeline every minute. Real code
over a store in memory, with every request counted, by who makes it.

Minutes of an hour are simulated, and then its end, so that the hour is settled and derived once.
"""

import asyncio
import random
from dataclasses import dataclass, field

from bench.pipeline.fleet import HOUR as FIRST_HOUR
from bench.pipeline.fleet import HOUR_NS, SERIES, frame
from holdfast import pipeline
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline.options import Options
from holdfast.sim.ingest_kit import authority
from holdfast.sim.loop import SimLoop
from holdfast.sim.world import BEGINNING_NS, SimClock
from holdfast.telemetry.accept.accept import Submission
from holdfast.telemetry.accept.collector import Collector, CollectorOptions

BATCH_S = 30
SCRAPES = 3
"""In a batch: one every ten seconds."""
COLLECTORS = 3
ROUND_S = 60
SETTLE_S = 300
"""How long after its end an hour is derived."""


@dataclass
class Counted:
    """Requests by verb, and bytes sent, of everybody who has this part."""

    requests: dict[str, int] = field(default_factory=dict)
    sent_bytes: int = 0
    received_bytes: int = 0

    def add(self, usage: Usage) -> None:
        for (verb, _), tally in usage.tallies.items():
            self.requests[verb] = self.requests.get(verb, 0) + tally.requests
            self.sent_bytes += tally.sent_bytes
            self.received_bytes += tally.received_bytes


@dataclass
class Seen:
    """What a simulated fleet did."""

    agents: int
    minutes: int
    batches: int
    samples: int
    rounds: int
    collectors: Counted
    pipeline: Counted
    stored: dict[str, tuple[int, int]]
    """Objects and bytes per family at the end."""


def simulate(agents: int, minutes: int, *, seed: int = 1) -> Seen:
    loop = SimLoop()
    try:
        return loop.run_until_complete(_Fleet(loop, agents, minutes, seed).live())
    finally:
        loop.close()


class _Fleet:
    def __init__(self, loop: SimLoop, agents: int, minutes: int, seed: int) -> None:
        self._agents = agents
        self._minutes = minutes
        self._rng = random.Random(seed)
        self._shelf = Shelf()
        # The hour ends with what is simulated of it.
        began_ns = FIRST_HOUR * HOUR_NS + HOUR_NS - minutes * 60 * 1_000_000_000
        self._clock = SimClock(loop.time, skew_ms=(began_ns - BEGINNING_NS) / 1e6)
        self._first_scrape = 360 - minutes * 6
        self._batches = 0
        self._rounds = 0

    async def live(self) -> Seen:
        stores = [self._open() for _ in range(COLLECTORS)]
        drive = self._open()
        stop = asyncio.Event()
        driving = asyncio.create_task(self._drive(drive, stop))
        collectors = [
            Collector(store, store.ambient, authority(), CollectorOptions(f"collector-{number}"))
            for number, store in enumerate(stores)
        ]
        ends = asyncio.get_running_loop().time() + self._minutes * 60 + BATCH_S
        await asyncio.gather(*(self._agent(number, collectors) for number in range(self._agents)))
        await asyncio.sleep(ends - asyncio.get_running_loop().time() + 2 * ROUND_S)
        await asyncio.sleep(SETTLE_S + ROUND_S)
        stop.set()
        await driving
        taken, derived = Counted(), Counted()
        for store in stores:
            taken.add(store.usage)
        derived.add(drive.usage)
        samples = self._batches * SCRAPES * SERIES
        return Seen(
            self._agents, self._minutes, self._batches, samples, self._rounds, taken, derived, _stored(self._shelf)
        )

    def _open(self) -> Client:
        ambient = Ambient(self._clock, random.Random(self._rng.random()))
        usage, spec = Usage(), StoreSpec.parse("memory:")
        backend = MemoryStore(self._shelf, clock=self._clock)
        return Client(backend, ambient=ambient, retry=spec.retry, usage=usage, spec=spec)

    async def _agent(self, number: int, collectors: list[Collector]) -> None:
        await asyncio.sleep(self._rng.uniform(0, BATCH_S))
        for turn in range(self._minutes * 60 // BATCH_S):
            identity, body = frame(number, self._first_scrape + turn * SCRAPES, SCRAPES)
            records = {"samples": SCRAPES * SERIES}
            submission = Submission.of(identity, body, records=records)
            await collectors[(number + turn) % COLLECTORS].accept(submission)
            self._batches += 1
            await asyncio.sleep(BATCH_S)

    async def _drive(self, store: Client, stop: asyncio.Event) -> None:
        options = Options(settle_ns=SETTLE_S * 1_000_000_000)
        while not stop.is_set():
            ran = await pipeline.run(store, ["reconcile", "derive"], options=options)
            if any(each.status != "success" for each in ran):
                raise RuntimeError(f"a job failed: {[each.document() for each in ran]}")
            self._rounds += 1
            await asyncio.sleep(ROUND_S)


def _stored(shelf: Shelf) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for key, each in shelf.objects.items():
        family = key.partition("/")[0]
        count, size = found.get(family, (0, 0))
        found[family] = count + 1, size + len(each.body)
    return found
