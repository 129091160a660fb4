"""Processes that start, crash, pause and restart, and what the store sees of them."""

import asyncio

import pytest

from holdfast.base.errors import Conflict, NotFound, Unavailable
from holdfast.objects.client import Client
from holdfast.sim.faults import NO_FAULTS, Faults, Troubles
from holdfast.sim.history import Done, Failed, Open, Trace
from holdfast.sim.loop import SimLoop
from holdfast.sim.wire import TimedWire
from holdfast.sim.world import Nemesis, Process, Seed, World


def make_world(*, seed: int = 1, faults: Faults = NO_FAULTS, troubles: Troubles | None = None) -> World:
    loop, trace, root = SimLoop(), Trace(), Seed(seed)
    wire = TimedWire(loop, trace, faults, schedule=root.stream("schedule"), trouble=root.stream("faults"))
    return World(
        root,
        loop,
        trace,
        wire,
        stack=lambda backend, ambient: Client(backend, ambient=ambient),
        troubles=troubles or Troubles(),
    )


def keys(world: World) -> list[str]:
    return sorted(world.truth.shelf.objects)


async def write_three(process: Process) -> None:
    try:
        for number in range(3):
            await process.store.put(f"{process.name}/{number}", b"x")
    finally:
        await process.store.put(f"{process.name}/tidied-up", b"x")


def test_a_crash_lets_what_was_sent_land_and_runs_nothing_more() -> None:
    with make_world() as world:
        process = world.start("anna", write_three)
        world.loop.after(0.0001, process.crash)
        world.run()
        assert keys(world) == ["anna/0"]
    assert keys(world) == ["anna/0"], "discarding what is left must not touch the store"


@pytest.mark.parametrize("crash_first", [True, False])
def test_a_crash_at_the_very_moment_of_a_step_lets_nothing_through(crash_first: bool) -> None:
    async def actor(process: Process) -> None:
        await asyncio.sleep(1)
        await process.store.put("too late", b"x")

    with make_world() as world:
        process = world.start("anna", actor)
        if not crash_first:
            world.loop.run_until_complete(asyncio.sleep(0))
        world.loop.after(1 - world.loop.time(), process.crash)
        world.run()
        assert keys(world) == []
        assert world.failures == []


def test_discarding_survives_a_task_that_will_not_go() -> None:
    async def stubborn(process: Process) -> None:
        for _ in range(5):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                continue

    with make_world() as world:
        process = world.start("anna", stubborn)
        world.loop.after(1, process.crash)
        world.run()
        assert not process.working
    assert world.loop.is_closed()


def test_a_pause_stops_one_process_alone() -> None:
    async def actor(process: Process) -> None:
        await asyncio.sleep(1)
        await process.store.put(process.name, b"x")

    with make_world() as world:
        anna, _ = world.start("anna", actor), world.start("ben", actor)
        world.loop.after(0.5, anna.pause, 10)
        world.run()
        landed = {landing.key: landing.position for landing in world.landings}
        assert landed["ben"] < landed["anna"]
        assert next(event.at for event in world.trace.events if event.what == "resumes") == pytest.approx(10.5)


def test_a_restart_is_a_new_life_with_other_ids_and_the_same_clock() -> None:
    ids: list[str] = []
    walls: list[int] = []

    async def actor(process: Process) -> None:
        ids.append(process.ambient.ids.unique())
        walls.append(process.clock.wall_ns())
        await process.perform("wait", asyncio.sleep(1), key="k", argument="job")
        assert [operation.argument for operation in process.left_open()] == ["job"] * (process.incarnation - 1)

    with make_world(troubles=Troubles(skew_ms=10_000)) as world:
        first = world.start("anna", actor)

        def crash_and_restart() -> None:
            first.crash()
            world.later(1, first.restart)

        world.loop.after(0.5, crash_and_restart)
        world.run()
        assert [process.name for process in world.processes] == ["anna", "anna.2"]
        assert len(set(ids)) == 2
        assert walls[1] - walls[0] == 1_500_000_000
        assert world.failures == []


def test_clocks_are_wrong_by_no_more_than_asked_and_can_jump() -> None:
    readings: dict[str, int] = {}

    async def actor(process: Process) -> None:
        readings[process.name] = process.clock.wall_ns()
        process.jump(-5_000)
        assert process.clock.wall_ns() == readings[process.name] - 5_000_000_000
        assert process.clock.monotonic_ns() == 0

    with make_world(troubles=Troubles(skew_ms=1_000)) as world:
        for number in range(8):
            world.start(f"p{number}", actor)
        world.run()
        assert world.failures == []
    true_ns = 1_700_000_000 * 10**9
    assert all(abs(reading - true_ns) <= 10**9 for reading in readings.values())
    assert len(set(readings.values())) == 8


def test_an_actor_that_dies_of_an_error_is_a_finding() -> None:
    async def actor(process: Process) -> None:
        raise ValueError("unexpected")

    with make_world() as world:
        world.start("anna", actor)
        world.run()
        assert world.failures == ["anna died of ValueError: unexpected"]


def test_a_deadlock_is_a_finding_with_its_seed() -> None:
    async def actor(process: Process) -> None:
        await asyncio.Event().wait()

    with make_world(seed=42) as world:
        world.start("anna", actor)
        world.run()
        assert len(world.failures) == 1
        assert "seed 42" in world.failures[0]
        assert "anna" in world.failures[0]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Conflict("no"), Failed),
        (NotFound("no"), Failed),
        (Unavailable("no"), Failed),
        (Unavailable("maybe", maybe_applied=True), Open),
    ],
)
def test_operations_are_recorded_by_what_their_end_means(error: Exception, outcome: type[Failed | Open]) -> None:
    async def fail() -> None:
        raise error

    async def actor(process: Process) -> None:
        assert await process.perform("good", asyncio.sleep(0, "whole"), key="k", show=len) == Done(5)
        await process.perform("bad", fail(), key="k")

    with make_world() as world:
        world.start("anna", actor)
        world.run()
        good, bad = world.operations
        assert (good.outcome, type(bad.outcome)) == (Done(5), outcome)
        assert good.called < good.returned < bad.called
        assert world.failures == []


def test_the_nemesis_strikes_as_often_as_asked() -> None:
    async def actor(process: Process) -> None:
        await asyncio.sleep(30)

    troubles = Troubles(crashes=3, pauses=4, jumps=2, skew_ms=10, pause_ms=10)
    with make_world(troubles=troubles) as world:
        for number in range(3):
            world.start(f"p{number}", actor)
        Nemesis(world, troubles).plan()
        world.run()
        assert {kind: world.tally[kind] for kind in ("crashes", "pauses", "clock jumps")} == {
            "crashes": 3,
            "pauses": 4,
            "clock jumps": 2,
        }
        assert len(world.processes) == 6
