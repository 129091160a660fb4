"""A store that the real parts have filled, with everything in it that may be there while nothing is wrong."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.objects.memory import Shelf
from holdfast.sim import ingest_kit
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import submission_of
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.accept.conflicts import Resolution, Resolutions
from holdfast.telemetry.frame import Sequenced, decode, encode, pack_sequenced
from tests.unit.pipeline.audit_desk import MINUTE, Place, place
from tests.unit.pipeline.field import HOUR, SECOND, record
from tests.unit.pipeline.healthy_others import durable_runs, events, things

AGENTS = ("web-1", "web-2", "db-1")


def frame(agent: str, start: int, count: int, at_ns: int, seed: int) -> bytes:
    rng = random.Random(seed)
    records = [Sequenced(start + n, record(rng, at_ns + n * SECOND)) for n in range(count)]
    return encode(pack_sequenced(agent, "boot", records))


async def collect(here: Place, collector: Collector, body: bytes) -> None:
    here.clock.pass_by(SECOND)
    await collector.accept(submission_of(body, decode(body)))


@asynccontextmanager
async def collecting(here: Place) -> AsyncIterator[Collector]:
    options = CollectorOptions("collector-1")
    yield Collector(here.store, here.store.ambient, ingest_kit.authority(), options)


async def telemetry(here: Place) -> None:
    """Three rounds: the second has late, overlapping, repeated and conflicting batches; the third is the latest."""
    begin = here.clock.now_ns
    for turn in range(3):
        async with collecting(here) as collector:
            for number, agent in enumerate(AGENTS):
                at_ns = here.clock.now_ns - 20 * MINUTE
                await collect(here, collector, frame(agent, turn * 100, 12, at_ns, turn * 10 + number))
            if turn == 1:
                late = frame("web-1", 200, 8, begin - 30 * MINUTE, 77)
                await collect(here, collector, late)
                await collect(here, collector, late)
                await collect(here, collector, frame("web-2", 108, 10, here.clock.now_ns - 20 * MINUTE, 78))
                await collect(here, collector, frame("db-1", 100, 12, begin, 79))  # another content: a conflict
                await collect(here, collector, frame("web-1", 200, 8, begin, 80))  # one that is resolved below
        await here.derive()
    resolutions = Resolutions(here.store, here.store.ambient)
    conflict = [key async for key in here.store.keys("quarantine/v1/identity-conflict/")][-1]
    identity = layout.identity_in(conflict)
    assert identity is not None
    sha256 = conflict.rpartition("/")[2].removesuffix(".json")
    await resolutions.decide(identity, sha256, Resolution.EXISTING_IS_AUTHORITATIVE, by="ops", why="seen")
    await here.store.delete(layout.blob_key(sha256))  # as the keeper of orphans does
    here.clock.pass_by(HOUR)


async def build() -> tuple[Shelf, int]:
    """The objects of a healthy store, and the time of its clock."""
    async with place() as here:
        await telemetry(here)
        await durable_runs(here)
        await events(here)
        await things(here)
        here.clock.pass_by(HOUR)
        return here.backend.shelf, here.clock.now_ns


def copied(shelf: Shelf) -> Shelf:
    made = Shelf()
    for key in sorted(shelf.objects):
        made.place(shelf.objects[key])
    return made


@asynccontextmanager
async def reopened(shelf: Shelf, now_ns: int) -> AsyncIterator[Place]:
    """The same store again, to be spoilt: a copy of it."""
    async with place(2, shelf=copied(shelf), now_ns=now_ns) as here:
        yield here
