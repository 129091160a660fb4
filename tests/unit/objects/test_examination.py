"""An examination probes the store first, works under a prefix, and leaves nothing behind."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

import pytest

from holdfast.base.clock import Clock, SystemClock
from holdfast.base.errors import Ambiguous, Corrupt, Denied, Invalid, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.conformance.examination import Examination
from holdfast.objects.conformance.laws import LAWS, ODD_KEYS, Bench, Confidence, Effort, Finding, Law
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import CREATE, OVERWRITE, Lost, Mode, Object, Store, Written
from holdfast.objects.uri import StoreSpec
from tests.fakes.stores import SharedMemoryStore

EFFORT = Effort(races=3, rounds=2, keys=5, large_bytes=100)
SPEC = StoreSpec("memory", "examined", retry=RetryPolicy(attempts=4, base_ms=0, max_ms=0, deadline_ms=10**9))


class Desk:
    """One shelf, the backends over it, and the last examination."""

    examination: Examination

    def __init__(self, kind: type[MemoryStore] = SharedMemoryStore) -> None:
        self.shelf = Shelf()
        self.kind = kind
        self.backends: list[MemoryStore] = []

    def connect(self, _: StoreSpec) -> Store:
        self.backends.append(self.kind(self.shelf))
        return self.backends[-1]

    async def run(self, *laws: Law, effort: Effort = EFFORT, clock: Clock | None = None) -> list[Finding]:
        ambient = Ambient(clock or SystemClock(), random.Random(3))
        self.examination = Examination(SPEC, effort=effort, ambient=ambient, connect=self.connect)
        async with self.examination:
            return [finding async for finding in self.examination.findings(laws)]


def law(run: Callable[[Bench], Awaitable[str]]) -> Law:
    return Law("test", "promise", "breach", run)


def named(name: str) -> Law:
    (found,) = (each for each in LAWS if each.name == name)
    return found


async def test_every_law_runs_under_a_prefix_that_is_emptied() -> None:
    desk = Desk()
    for key in ("holdfast-doctor-other/x", "data", "meta/authority.json"):
        await MemoryStore(desk.shelf).put(key, key.encode())
    before = dict(desk.shelf.objects)
    findings = await desk.run(*LAWS)
    assert [finding.law for finding in findings] == list(LAWS)
    assert all(finding.kept for finding in findings)
    assert desk.shelf.objects == before
    assert desk.examination.leftovers is None
    assert desk.examination.prefix.startswith("holdfast-doctor-")
    assert len(desk.backends) == EFFORT.races
    await desk.run()
    assert desk.examination.usage.by_verb == {"get": 2, "put": 1, "delete": 1, "list": 1}


async def test_an_unreachable_store_is_one_error_and_no_laws() -> None:
    class Away(SharedMemoryStore):
        requests = 0

        async def get(self, key: str) -> Object:
            Away.requests += 1
            raise Unavailable("connection refused")

    with pytest.raises(Unavailable, match="connection refused"):
        await Desk(Away).run(*LAWS)
    assert Away.requests == 2  # half of the attempts of the store's own policy


async def test_a_store_that_becomes_unreachable_ends_the_examination() -> None:
    class Leaves(SharedMemoryStore):
        gone = False

        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            if Leaves.gone:
                raise Unavailable("connection reset")
            return await super().put(key, body, mode)

        async def get(self, key: str) -> Object:
            if Leaves.gone:
                raise Unavailable("connection reset")
            return await super().get(key)

    async def goes(bench: Bench) -> str:
        await bench.client().put("left-behind", b"x")
        Leaves.gone = True
        await bench.client().put("more", b"x")
        return "not reached"

    desk = Desk(Leaves)
    findings = await desk.run(law(goes), *LAWS)
    assert [finding.figure for finding in findings] == ["connection reset"] + ["not run"] * len(LAWS)
    assert {finding.verdict for finding in findings} == {"unjudged"}
    assert desk.shelf.objects == {}, "lists and deletes still work"


async def test_a_write_whose_outcome_is_open_because_no_answer_came_is_not_judged() -> None:
    class Stutters(SharedMemoryStore):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            if key.endswith("cell"):
                raise Unavailable("500", maybe_applied=True)
            return await super().put(key, body, mode)

    async def writes(bench: Bench) -> str:
        await bench.client().put("cell", b"x", CREATE)
        return "not reached"

    findings = await Desk(Stutters).run(law(writes), *LAWS[:1])
    assert [finding.verdict for finding in findings] == ["unjudged", "kept"]
    assert isinstance(findings[0].error, Ambiguous)


async def test_a_race_ends_when_enough_writes_overlapped_or_its_time_is_up() -> None:
    class Ticking(SystemClock):
        now_ns = 0

        def monotonic_ns(self) -> int:
            self.now_ns += 1_000_000_000
            return self.now_ns

    (finding,) = await Desk().run(named("create-exclusive"))
    assert (finding.figure, finding.confidence) == ("2 races of 3", Confidence(observed=6, wanted=6))
    assert not finding.is_weak
    endless = replace(EFFORT, rounds=10**6)
    (finding,) = await Desk().run(named("create-exclusive"), effort=endless, clock=Ticking())
    assert finding.is_weak
    assert finding.confidence is not None
    assert 0 < finding.confidence.observed < 100


async def test_a_store_may_refuse_a_backslash_and_no_other_odd_key() -> None:
    refused = {"back\\slash"}

    class Refuses(SharedMemoryStore):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            if any(key.endswith(name) for name in refused):
                raise Invalid(f"{key}: not here")
            return await super().put(key, body, mode)

    (finding,) = await Desk(Refuses).run(named("odd-keys"))
    assert (finding.kept, finding.figure) == (True, f"{len(ODD_KEYS) - 1} keys")
    refused.add("UPPER")
    (finding,) = await Desk(Refuses).run(named("odd-keys"))
    assert (finding.verdict, finding.figure) == ("broken", "'UPPER' is refused")


async def test_a_prefix_that_cannot_be_emptied_is_reported_and_hides_no_error() -> None:
    class Keeps(SharedMemoryStore):
        async def delete_many(self, keys: Iterable[str]) -> None:
            raise Denied("no permission to delete")

    async def fails(bench: Bench) -> str:
        await bench.client().put("left-behind", b"x")
        raise Denied("no permission to continue")

    desk = Desk(Keeps)
    assert [finding.figure for finding in await desk.run(law(fails))] == ["no permission to continue"]
    assert all(key.startswith(desk.examination.prefix) for key in desk.shelf.objects)
    assert str(desk.examination.leftovers) == "no permission to delete"


async def test_a_store_that_loses_bytes_is_corrupt() -> None:
    class Empties(SharedMemoryStore):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            return await super().put(key, b"", mode)

    desk = Desk(Empties)
    with pytest.raises(Corrupt, match="read back as other bytes"):
        await desk.run(*LAWS)
    assert desk.shelf.objects == {}


@pytest.mark.parametrize("landed", [True, False])
async def test_a_probe_that_may_be_left_is_reported(landed: bool) -> None:
    class Cut(SharedMemoryStore):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            if landed:
                await super().put(key, body, mode)
            raise Unavailable("connection reset", maybe_applied=landed)

    desk = Desk(Cut)
    with pytest.raises(Unavailable, match="connection reset"):
        await desk.run(*LAWS)
    assert (desk.examination.leftovers is not None) == bool(desk.shelf.objects) == landed


async def test_cancelling_empties_the_prefix() -> None:
    desk = Desk()
    writing = asyncio.Event()

    async def endless(bench: Bench) -> str:
        await bench.client().put("left-behind", b"x")
        writing.set()
        await asyncio.sleep(3600)
        return "not reached"

    task = asyncio.ensure_future(desk.run(law(endless)))
    await writing.wait()
    assert len(desk.shelf.objects) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert desk.shelf.objects == {}


async def test_a_cancelled_write_that_lands_late_is_removed_too() -> None:
    class LandsLate(SharedMemoryStore):
        late = 1

        async def delete_many(self, keys: Iterable[str]) -> None:
            deleted = list(keys)
            await super().delete_many(deleted)
            if LandsLate.late:
                LandsLate.late -= 1
                await super().put(deleted[0] + "-late", b"x")

    desk = Desk(LandsLate)
    await desk.run(named("ranges"))
    assert LandsLate.late == 0
    assert desk.shelf.objects == {}
