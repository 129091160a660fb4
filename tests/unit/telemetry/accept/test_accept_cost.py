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
from holdfast.telemetry.accept.accept import Accepted, IdentityConflict
from holdfast.telemetry.accept.references import HORIZON_NS, IN_TIME_NS, of_accepted
from holdfast.telemetry.discover import Stray, resolve
from tests.unit.telemetry.accept.accept_desk import AcceptDesk

T = TypeVar("T")
FAMILIES = {"raw-blobs": 1, "accepted-by-time": 1, "accepted": 1}
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


async def test_a_new_batch_is_three_puts_in_two_round_trips() -> None:
    desk, usage = AcceptDesk(), Usage()
    collector = desk.collector(usage=usage)
    collector.store = rounds = Rounds(collector.store)
    answer = await collector.accept(submission(0))
    assert isinstance(answer, Accepted)
    assert usage.by_verb == {"put": 3}
    assert desk.families() == FAMILIES
    assert rounds.rounds == [{"raw-blobs", "accepted-by-time"}, {"accepted"}]


async def test_a_duplicate_within_the_hour_is_two_puts_and_two_gets() -> None:
    """The GETs are of the manifest, and of the reference that was there."""
    desk, usage = AcceptDesk(), Usage()
    await desk.collector().accept(submission(0))
    answer = await desk.collector("collector-2", usage=usage).accept(submission(0))
    assert isinstance(answer, Accepted)
    assert answer.duplicate
    assert usage.by_verb == {"put": 2, "get": 2}
    assert desk.families() == FAMILIES


async def test_a_duplicate_of_another_hour_is_two_puts_and_two_gets() -> None:
    desk, usage = AcceptDesk(), Usage()
    await desk.collector().accept(submission(0))
    desk.watch.advance(seconds=HOUR_S)
    answer = await desk.collector("collector-2", usage=usage).accept(submission(0))
    assert isinstance(answer, Accepted)
    assert usage.by_verb == {"put": 2, "get": 2}
    assert desk.families() == FAMILIES | {"accepted-by-time": 2}


async def test_taking_up_what_a_collector_left_that_was_killed_is_three_puts_and_reads() -> None:
    """Bytes and reference are there: the manifest is looked for first, and the reference is read, with its time."""
    desk, usage = AcceptDesk(), Usage()
    batch = submission(0)
    with pytest.raises(Unavailable):
        await desk.collector("collector-1", "ok", "ok", "busy", "busy", "busy").accept(batch)
    assert desk.families() == {"raw-blobs": 1, "accepted-by-time": 1}
    answer = await desk.collector("collector-2", usage=usage).accept(batch)
    assert isinstance(answer, Accepted)
    assert not answer.duplicate
    assert usage.by_verb == {"put": 3, "get": 2, "head": 1}


async def test_a_conflict_is_five_puts_and_one_get() -> None:
    desk, usage = AcceptDesk(), Usage()
    await desk.collector().accept(submission(0))
    desk.watch.advance(seconds=HOUR_S)
    answer = await desk.collector("collector-2", usage=usage).accept(submission(0, 1))
    assert isinstance(answer, IdentityConflict)
    assert usage.by_verb == {"put": 5, "get": 1}


async def test_a_collector_that_was_slow_makes_sure_of_its_reference() -> None:
    """With two requests while the reference counts, and one more that writes it again when it does not."""
    for paused_ns, spent in (
        (HORIZON_NS // 3, {"head": 1, "put": 3, "get": 1}),
        (HORIZON_NS, {"head": 1, "put": 4, "get": 1}),
    ):
        desk, usage = AcceptDesk(), Usage()
        collector = desk.collector(usage=usage)
        claim = collector._claim

        async def slowly(draft, claim=claim, desk=desk, paused_ns=paused_ns):  # type: ignore[no-untyped-def]
            desk.watch.ns += paused_ns
            return await claim(draft)

        collector._claim = slowly  # type: ignore[method-assign]
        answer = await collector.accept(submission(0))
        assert isinstance(answer, Accepted)
        assert usage.by_verb == spent
        [key] = [key for key in desk.shelf.objects if key.startswith("accepted-by-time/")]
        found = await resolve(desk.store(), key)
        assert not isinstance(found, Stray)
        assert found.manifest == answer.manifest


async def test_a_reference_counts_if_it_was_written_in_time_and_is_where_the_manifest_says() -> None:
    desk = AcceptDesk()
    store = desk.store()
    answer = await desk.collector().accept(submission(0))
    assert isinstance(answer, Accepted)
    reference, *_ = of_accepted(answer.manifest)
    manifest = await store.get(answer.manifest.key)
    await store.delete(manifest.key)
    assert await resolve(store, reference.key) is Stray.NO_MANIFEST
    desk.watch.ns += IN_TIME_NS // 2
    await store.put(manifest.key, manifest.body)
    assert not isinstance(await resolve(store, reference.key), Stray)
    desk.watch.ns += IN_TIME_NS
    await store.put(manifest.key, manifest.body)
    assert await resolve(store, reference.key) is Stray.TOO_LATE
    hour = reference.key.split("/")[3]
    elsewhere = reference.key.replace(hour, "hour=00" if hour != "hour=00" else "hour=01")
    await store.put(elsewhere, reference.body)
    assert await resolve(store, elsewhere) is Stray.OTHER_ACCEPTANCE


async def test_what_is_left_to_the_reconciler_follows_from_the_manifest_alone() -> None:
    desk = AcceptDesk()
    answer = await desk.collector().accept(submission(0))
    assert isinstance(answer, Accepted)
    families = [reference.key.partition("/")[0] for reference in of_accepted(answer.manifest)]
    assert families == ["accepted-by-time", "accepted-by-blob", "raw-blobs-by-time"]


async def test_bodies_of_any_size_are_one_put_to_the_stack() -> None:
    """Whether it goes up in parts is the backend's affair; a manifest never does."""
    desk, usage = AcceptDesk(), Usage()
    large = submission(0)
    large = type(large).of(large.identity, b"x" * (40 << 20))
    await desk.collector(usage=usage).accept(large)
    assert usage.by_verb == {"put": 3}
