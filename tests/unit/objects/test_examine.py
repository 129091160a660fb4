"""An examination reaches the store first, works in a place of its own, and leaves nothing behind."""

import asyncio
import random
from dataclasses import replace

import pytest

from holdfast.base.clock import SystemClock
from holdfast.base.errors import Ambiguous, Corrupt, Denied, HoldfastError, Invalid, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.conformance.examination import Examination, examine
from holdfast.objects.conformance.laws import LAWS, ODD_KEYS, Bench, Confidence, Effort, Finding, Law
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import CREATE, OVERWRITE, Lost, Mode, Object, Store, Written
from holdfast.objects.uri import StoreSpec
from tests.fakes.stores import SharedMemoryStore

EFFORT = Effort(races=3, rounds=2, keys=5, large_bytes=100)
SPEC = StoreSpec("memory", "examined", retry=RetryPolicy(attempts=4, base_ms=0, max_ms=0))


class Hospital:
    """One shelf, the clients that were made for it, and what was said about leftovers."""

    def __init__(self, kind: type[MemoryStore] = SharedMemoryStore) -> None:
        self.shelf = Shelf()
        self.kind = kind
        self.clients: list[MemoryStore] = []
        self.leftovers: list[tuple[str, HoldfastError]] = []

    def connect(self, _: StoreSpec) -> Store:
        self.clients.append(self.kind(self.shelf))
        return self.clients[-1]

    async def run(self, *laws: Law, spec: StoreSpec = SPEC) -> tuple[Examination, list[Finding]]:
        async with examine(
            spec,
            effort=EFFORT,
            ambient=Ambient(SystemClock(), random.Random(3)),
            connect=self.connect,
            on_leftovers=lambda prefix, error: self.leftovers.append((prefix, error)),
        ) as examination:
            return examination, [finding async for finding in examination.findings(laws)]


def law(name: str, run: object) -> Law:
    return Law(name, "promise", "breach", run)  # type: ignore[arg-type]  # coroutine functions below


async def test_every_law_under_a_prefix_that_is_emptied() -> None:
    hospital = Hospital()
    for key in ("holdfast-doctor-other/x", "data", "meta/authority.json"):
        await MemoryStore(hospital.shelf).put(key, key.encode())
    before = dict(hospital.shelf.objects)
    examination, findings = await hospital.run(*LAWS)
    assert [finding.law for finding in findings] == list(LAWS)
    assert all(finding.kept for finding in findings)
    assert hospital.shelf.objects == before
    assert hospital.leftovers == []
    assert examination.prefix.startswith("holdfast-doctor-")
    assert len(hospital.clients) == EFFORT.races
    examination, _ = await Hospital().run()
    assert examination.usage.by_verb == {"get": 2, "put": 1, "delete": 1, "list": 1}


async def test_a_store_out_of_reach_is_one_error_and_no_laws() -> None:
    class Away(SharedMemoryStore):
        requests = 0

        async def get(self, key: str) -> Object:
            Away.requests += 1
            raise Unavailable("connection refused")

    with pytest.raises(Unavailable, match="connection refused"):
        await Hospital(Away).run(*LAWS)
    assert Away.requests == 2  # impatient: half of the four attempts of the store's own policy


async def test_a_store_that_goes_away_ends_the_examination() -> None:
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

    hospital = Hospital(Leaves)
    _, findings = await hospital.run(law("goes", goes), *LAWS)
    assert [finding.figure for finding in findings] == ["connection reset"] + ["not run"] * len(LAWS)
    assert {finding.verdict for finding in findings} == {"unjudged"}
    # Lists and deletes still worked: even so the place was left empty.
    assert hospital.shelf.objects == {}


async def test_a_write_that_stays_open_because_no_answer_came_is_not_judged() -> None:
    class Stutters(SharedMemoryStore):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            if key.endswith("cell"):
                raise Unavailable("500", maybe_applied=True)
            return await super().put(key, body, mode)

    async def writes(bench: Bench) -> str:
        await bench.client().put("cell", b"x", CREATE)
        return "not reached"

    _, findings = await Hospital(Stutters).run(law("writes", writes), *LAWS[:1])
    assert [finding.verdict for finding in findings] == ["unjudged", "kept"]
    assert isinstance(findings[0].error, Ambiguous)


async def test_a_race_goes_on_until_enough_writes_overlapped() -> None:
    _, (finding,) = await Hospital().run(*(each for each in LAWS if each.name == "create-exclusive"))
    assert finding.confidence == Confidence(observed=6, wanted=6)
    assert finding.confidence.enough
    assert finding.figure == "2 races of 3"


async def test_a_race_ends_when_its_time_is_up() -> None:
    class Ticking(SystemClock):
        now_ns = 0

        def monotonic_ns(self) -> int:
            self.now_ns += 1_000_000_000
            return self.now_ns

    hospital = Hospital()
    ambient = Ambient(Ticking(), random.Random(3))
    patient = replace(SPEC, retry=RetryPolicy(deadline_ms=10**9))
    (create,) = (each for each in LAWS if each.name == "create-exclusive")
    async with examine(
        patient,
        effort=replace(EFFORT, rounds=10**6),
        ambient=ambient,
        connect=hospital.connect,
        on_leftovers=lambda prefix, error: hospital.leftovers.append((prefix, error)),
    ) as examination:
        (finding,) = [finding async for finding in examination.findings([create])]
    assert finding.kept
    assert finding.confidence is not None
    assert 0 < finding.confidence.observed < 100


async def test_an_odd_key_that_is_refused_on_one_provider_may_be_refused() -> None:
    refused = {"back\\slash"}

    class Refuses(SharedMemoryStore):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            if any(key.endswith(name) for name in refused):
                raise Invalid(f"{key}: not here")
            return await super().put(key, body, mode)

    (odd_keys,) = (each for each in LAWS if each.name == "odd-keys")
    _, (finding,) = await Hospital(Refuses).run(odd_keys)
    assert finding.kept
    assert finding.figure == f"{len(ODD_KEYS) - 1} keys"
    refused.add("UPPER")
    _, (finding,) = await Hospital(Refuses).run(odd_keys)
    assert (finding.verdict, finding.figure) == ("broken", "'UPPER' is refused")


async def test_what_cannot_be_cleaned_up_is_reported_and_hides_no_error() -> None:
    class Keeps(SharedMemoryStore):
        async def delete_many(self, keys):  # type: ignore[no-untyped-def]  # the port's signature
            raise Denied("no permission to delete")

    async def fails(bench: Bench) -> str:
        await bench.client().put("left-behind", b"x")
        raise Denied("no permission to continue")

    hospital = Hospital(Keeps)
    _, findings = await hospital.run(law("fails", fails))
    assert [finding.figure for finding in findings] == ["no permission to continue"]
    ((prefix, error),) = hospital.leftovers
    assert all(key.startswith(prefix) for key in hospital.shelf.objects)
    assert str(error) == "no permission to delete"


async def test_a_store_that_loses_bytes_is_corrupt() -> None:
    class Empties(SharedMemoryStore):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            return await super().put(key, b"", mode)

    hospital = Hospital(Empties)
    with pytest.raises(Corrupt, match="read back as other bytes"):
        await hospital.run(*LAWS)
    assert hospital.shelf.objects == {}


@pytest.mark.parametrize(("landed", "answer"), [(True, 1), (False, 0)])
async def test_a_probe_that_may_be_left_is_reported(landed: bool, answer: int) -> None:
    class Cut(SharedMemoryStore):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            if landed:
                await super().put(key, body, mode)
            raise Unavailable("connection reset", maybe_applied=landed)

    hospital = Hospital(Cut)
    with pytest.raises(Unavailable, match="connection reset"):
        await hospital.run(*LAWS)
    assert len(hospital.leftovers) == len(hospital.shelf.objects) == answer


async def test_cancelling_cleans_up() -> None:
    hospital = Hospital()
    writing = asyncio.Event()

    async def endless(bench: Bench) -> str:
        await bench.client().put("left-behind", b"x")
        writing.set()
        await asyncio.sleep(3600)
        return "not reached"

    task = asyncio.ensure_future(hospital.run(law("endless", endless)))
    await writing.wait()
    assert len(hospital.shelf.objects) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert hospital.shelf.objects == {}


async def test_a_write_that_lands_late_is_cleaned_up_too() -> None:
    """A cancelled request may still be on its way when the first listing has been read."""

    class LandsLate(SharedMemoryStore):
        late = 1

        async def delete_many(self, keys):  # type: ignore[no-untyped-def]  # the port's signature
            wanted = list(keys)
            await super().delete_many(wanted)
            if LandsLate.late:
                LandsLate.late -= 1
                await super().put(wanted[0] + "-late", b"x")

    hospital = Hospital(LandsLate)
    await hospital.run(*(each for each in LAWS if each.name == "ranges"))
    assert LandsLate.late == 0
    assert hospital.shelf.objects == {}
