"""What acceptance costs: requests counted exactly, and round trips."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import pytest

from holdfast.base.errors import Unavailable
from holdfast.objects.client import Usage
from holdfast.objects.layer import Layer
from holdfast.objects.store import OVERWRITE, Lost, Mode, Object, Store, Written
from holdfast.sim.ingest_kit import submission
from holdfast.telemetry.accept.accept import Accepted
from holdfast.telemetry.accept.collector import Guarded
from holdfast.telemetry.accept.conflicts import Holds, Resolutions
from holdfast.telemetry.accept.references import HORIZON_NS, IN_TIME_NS, of_accepted
from holdfast.telemetry.discover import NoBatch, resolve
from tests.unit.telemetry.accept.accept_desk import AcceptDesk

T = TypeVar("T")
HOUR_S = 3_600


class Rounds(Layer):
    """Answers requests in rounds: what was sent before any answer came is one round trip."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.rounds: list[set[str]] = []
        self._open = False

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        return await self._answered(key, super().put(key, body, mode))

    async def get(self, key: str) -> Object:
        return await self._answered(key, super().get(key))

    async def _answered(self, key: str, work: Awaitable[T]) -> T:
        if not self._open:
            self._open = True
            self.rounds.append(set())
        self.rounds[-1].add(key.partition("/")[0])
        await asyncio.sleep(0)
        self._open = False
        return await work


async def test_a_new_batch_is_three_puts_in_two_round_trips_however_large() -> None:
    small = submission(0)
    for batch in (small, type(small).of(small.identity, b"x" * (40 << 20))):
        desk, usage = AcceptDesk(), Usage()
        collector = desk.collector(usage=usage)
        collector.store = rounds = Rounds(collector.store)
        assert isinstance(await collector.accept(batch), Accepted)
        assert usage.by_verb == {"put": 3}
        assert desk.families() == {"raw-blobs": 1, "accepted-by-time": 1, "accepted": 1}
        assert rounds.rounds == [{"raw-blobs", "accepted-by-time"}, {"accepted"}]


@pytest.mark.parametrize(
    ("variant", "later_s", "guarded", "spent", "references"),
    [
        pytest.param(0, 0, False, {"put": 2, "get": 2}, 1, id="a duplicate within the hour"),  # manifest, reference
        pytest.param(0, HOUR_S, False, {"put": 2, "get": 2}, 2, id="a duplicate of another hour"),
        pytest.param(1, HOUR_S, False, {"put": 5, "get": 1}, 2, id="a conflict"),
        pytest.param(1, HOUR_S, True, {"put": 5, "get": 2}, 2, id="a conflict, and what was decided about it"),
    ],
)
async def test_requests_of_duplicates_and_conflicts(
    variant: int, later_s: int, guarded: bool, spent: dict[str, int], references: int
) -> None:
    desk, usage = AcceptDesk(), Usage()
    await desk.collector().accept(submission(0))
    desk.watch.advance(seconds=later_s)
    collector = desk.collector("collector-2", usage=usage)
    resolutions = Resolutions(desk.store(usage=usage), desk.ambient())
    asked = Guarded(collector, Holds(desk.store(), desk.ambient()), resolutions) if guarded else collector
    await asked.accept(submission(0, variant))
    assert usage.by_verb == spent
    assert desk.families()["accepted-by-time"] == references


async def test_accepting_a_batch_that_a_killed_collector_left_is_three_puts_and_reads() -> None:
    """Bytes and reference are there: the manifest is looked for first, and the reference is read, with its time."""
    desk, usage = AcceptDesk(), Usage()
    with pytest.raises(Unavailable):
        await desk.collector("collector-1", "ok", "ok", "busy", "busy", "busy").accept(submission(0))
    assert desk.families() == {"raw-blobs": 1, "accepted-by-time": 1}
    answer = await desk.collector("collector-2", usage=usage).accept(submission(0))
    assert isinstance(answer, Accepted)
    assert not answer.duplicate
    assert usage.by_verb == {"put": 3, "get": 2, "head": 1}


@pytest.mark.parametrize(
    ("paused_ns", "spent"),
    [(HORIZON_NS // 3, {"head": 1, "put": 3, "get": 1}), (HORIZON_NS, {"head": 1, "put": 4, "get": 1})],
)
async def test_a_slow_collector_makes_sure_of_its_reference_and_writes_it_again_if_it_is_too_old(
    paused_ns: int, spent: dict[str, int]
) -> None:
    desk, usage = AcceptDesk(), Usage()

    class Slow(Layer):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            desk.watch.ns += paused_ns if key.startswith("accepted/") else 0
            return await super().put(key, body, mode)

    collector = desk.collector(usage=usage)
    collector.store = Slow(collector.store)
    answer = await collector.accept(submission(0))
    assert isinstance(answer, Accepted)
    assert usage.by_verb == spent
    [key] = [key for key in desk.shelf.objects if key.startswith("accepted-by-time/")]
    found = await resolve(desk.store(), key)
    assert not isinstance(found, NoBatch)
    assert found.manifest == answer.manifest


async def test_a_reference_counts_if_it_was_written_in_time_and_is_where_the_manifest_says() -> None:
    desk = AcceptDesk()
    store = desk.store()
    answer = await desk.collector().accept(submission(0))
    assert isinstance(answer, Accepted)
    reference, *_ = of_accepted(answer.manifest)
    manifest = await store.get(answer.manifest.key)
    await store.delete(manifest.key)
    assert await resolve(store, reference.key) is NoBatch.NO_MANIFEST
    desk.watch.ns += IN_TIME_NS // 2
    await store.put(manifest.key, manifest.body)
    assert not isinstance(await resolve(store, reference.key), NoBatch)
    desk.watch.ns += IN_TIME_NS
    await store.put(manifest.key, manifest.body)
    assert await resolve(store, reference.key) is NoBatch.TOO_LATE
    hour = reference.key.split("/")[3]
    elsewhere = reference.key.replace(hour, "hour=00" if hour != "hour=00" else "hour=01")
    await store.put(elsewhere, reference.body)
    assert await resolve(store, elsewhere) is NoBatch.OTHER_ACCEPTANCE
