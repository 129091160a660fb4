"""The simulated backend: each fault does what its name says, to the client and to the truth."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast.base.errors import Contended, Invalid, NotFound, Unavailable
from holdfast.objects.client import Client
from holdfast.objects.store import CREATE, Lost, Written
from holdfast.sim.faults import NO_FAULTS, Faults
from holdfast.sim.history import Trace
from holdfast.sim.loop import SimLoop
from holdfast.sim.store import Crashed, SimStore
from holdfast.sim.wire import Runaway, TimedWire
from holdfast.sim.world import Process, Seed, World

Work = Callable[[SimStore], Coroutine[Any, Any, Any]]


def outcome_of(work: Work, faults: Faults = NO_FAULTS, *, seed: int = 1) -> tuple[Any, World]:
    """What ``work`` returned or raised, and the world after everything has come to rest."""
    results: list[Any] = []

    async def actor(process: Process) -> None:
        try:
            results.append(await work(process.backend))
        except (Unavailable, NotFound, Invalid) as error:
            results.append(error)

    loop, trace, root = SimLoop(), Trace(), Seed(seed)
    wire = TimedWire(loop, trace, faults, schedule=root.stream("schedule"), trouble=root.stream("faults"))
    with World(root, loop, trace, wire, stack=lambda backend, ambient: Client(backend, ambient=ambient)) as world:
        world.start("client", actor)
        world.run()
        assert world.failures == []
    return results[0], world


def standing(world: World) -> dict[str, bytes]:
    return {key: found.body for key, found in world.truth.shelf.objects.items()}


async def create(store: SimStore) -> Written | Lost:
    return await store.put("k", b"mine", CREATE)


def test_deletes_land_once_where_something_stood() -> None:
    async def work(store: SimStore) -> object:
        for key in ("a", "b", "c"):
            await store.put(key, b"x")
        await store.delete("a")
        await store.delete("a")
        await store.delete_many(["a", "b"])
        return await store.find("a")

    found, world = outcome_of(work)
    assert found is None
    assert standing(world) == {"c": b"x"}
    assert [landing.key for landing in world.landings if landing.body is None] == ["a", "b"]


def test_a_lost_request_does_nothing_and_has_no_answer() -> None:
    error, world = outcome_of(create, Faults(lost_request=1))
    assert isinstance(error, Unavailable)
    assert error.maybe_applied
    assert standing(world) == {}


def test_a_lost_response_follows_a_landing() -> None:
    error, world = outcome_of(create, Faults(lost_response=1))
    assert isinstance(error, Unavailable)
    assert error.maybe_applied
    assert standing(world) == {"k": b"mine"}


def test_a_late_write_lands_after_its_client_gave_up() -> None:
    error, world = outcome_of(create, Faults(late=1))
    assert isinstance(error, Unavailable)
    events = [event.what for event in world.trace.events]
    assert events.index("hears of") < events.index("serves")
    assert standing(world) == {"k": b"mine"}


def test_a_duplicate_is_served_twice_and_answered_once() -> None:
    received: set[type[object]] = set()
    for seed in range(1, 60):
        result, world = outcome_of(create, Faults(duplicate=1), seed=seed)
        received.add(type(result))
        assert standing(world) == {"k": b"mine"}
        assert len(world.landings) == 1
        assert sum(event.what == "hears of" for event in world.trace.events) == 1
    assert received == {Written, Lost, Contended}, "an own write can look like all three"


def test_409_and_503_have_no_effect() -> None:
    contended, world = outcome_of(create, Faults(contended=1))
    assert isinstance(contended, Contended)
    assert standing(world) == {}
    refused, world = outcome_of(create, Faults(unavailable=1))
    assert type(refused) is Unavailable
    assert not refused.maybe_applied
    assert standing(world) == {}


def test_reads_are_lost_but_never_late_or_contended() -> None:
    async def read(store: SimStore) -> object:
        return await store.find("k")

    for faults in (Faults(late=1), Faults(duplicate=1), Faults(contended=1)):
        assert outcome_of(read, faults)[0] is None
    error, _ = outcome_of(read, Faults(lost_response=1))
    assert isinstance(error, Unavailable)
    assert not error.maybe_applied


def test_listings_come_in_short_pages_and_are_complete() -> None:
    names = [f"f/{number:03}" for number in range(40)]

    async def work(store: SimStore) -> tuple[list[str], int, list[str]]:
        for name in [*names, "g/x"]:
            await store.put(name, b"x")
        pages = [page async for page in store.list("f/")]
        folders = [folder async for page in store.list(delimiter=True) for folder in page.folders]
        return [entry.key for page in pages for entry in page.entries], len(pages), folders

    (keys, pages, folders), _ = outcome_of(work)
    assert keys == names
    assert pages > len(names) / 5
    assert folders == ["f/", "g/"]


def test_a_revoked_port_raises_what_no_handler_of_errors_catches() -> None:
    async def work(store: SimStore) -> str:
        store.revoked = True
        try:
            await store.get("k")
        except Crashed as crashed:
            return "crashed" if not isinstance(crashed, Exception) else "caught"
        return "served"

    assert outcome_of(work)[0] == "crashed"


def test_endless_retries_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sim.wire.REQUEST_LIMIT", 100)

    async def work(store: SimStore) -> None:
        while True:
            await store.find("k")

    with pytest.raises(AssertionError, match="Runaway"):
        outcome_of(work)
    assert issubclass(Runaway, Exception)


def test_rates_are_what_was_asked_for() -> None:
    async def work(store: SimStore) -> None:
        for _ in range(4_000):
            try:
                await store.find("k")
            except Unavailable:
                continue

    _, world = outcome_of(work, Faults(lost_response=0.25, unavailable=0.05))
    assert world.tally["lost response"] == pytest.approx(1_000, rel=0.1)
    assert world.tally["unavailable"] == pytest.approx(200, rel=0.25)
