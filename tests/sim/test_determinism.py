"""The same seed gives the same course of events: twice, under every hash seed, on every supported Python."""

import asyncio
import random
from collections.abc import Iterator
from typing import ClassVar, Self

from holdfast.base.errors import HoldfastError
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import CREATE, Store
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Violation
from holdfast.sim.pool import Runner
from holdfast.sim.run import simulate
from holdfast.sim.scenario import Scenario, Unsettled
from holdfast.sim.scenarios.store import StoreCas
from holdfast.sim.world import Process, World


def test_seeds_are_different_courses_of_events() -> None:
    assert len({simulate(StoreCas, seed).trace.digest() for seed in range(1, 201)}) == 200


def test_the_hash_seed_does_not_matter() -> None:
    names = ["register-counter", "store-listing", "ontology-commit"]

    async def replay(hash_seed: int) -> list[list[str]]:
        async with Runner(hash_seed) as runner:
            return [(await runner.replay(name, 5)).trace for name in names]

    traces = [asyncio.run(replay(hash_seed)) for hash_seed in (0, 4_000_000_000)]
    assert traces[0] == traces[1]
    assert all(traces[0])


class Bare(Scenario):
    """Nothing but the simulator itself: every fault and trouble, no layer and no protocol above the backend."""

    name: ClassVar[str] = "bare"

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        faults = Faults(0.05, 0.1, 0.05, 0.05, 0.05, 0.05, 0.05)
        troubles = Troubles(crashes=2, pauses=2, jumps=2, skew_ms=1_000, drift_ppm=100, within_ms=500)
        return cls(faults=faults, troubles=troubles)

    def stack(self, backend: Store, ambient: Ambient) -> Client:
        return Unsettled(backend, ambient=ambient, retry=RetryPolicy(attempts=1))

    def begin(self, world: World) -> None:
        for name in ("anna", "ben", "cleo"):
            world.start(name, self.actor)

    async def actor(self, process: Process) -> None:
        for number in range(15):
            key = f"f/{process.rng.randint(1, 9)}"
            body = f"{process.ambient.ids.write_id()} {process.clock.wall_ns()}".encode()
            await process.perform("put", process.store.put(key, body, CREATE), key=key, show=str)
            await process.perform("list", self._keys(process), key="f/", show=str)
            if number % 3 == 0:
                await process.perform("delete", process.store.delete(key), key=key)
            await asyncio.sleep(process.rng.random() * 0.01)

    async def _keys(self, process: Process) -> list[str]:
        try:
            return [key async for key in process.store.keys("f/")]
        except HoldfastError:
            return []

    def check(self, world: World) -> Iterator[Violation]:
        return iter(())


BARE_TRACE = "5a9fdb7c8a27c92796a62c8c2f47471b105d7866b690b83c1e2e2dc9ba90ee72"
"""Of seed 1, on every supported Python. It changes only when the simulator draws or records differently, or the
memory store makes other versions, which are recorded too."""


def test_every_python_gives_the_same_course_of_events() -> None:
    run = simulate(Bare, 1)
    assert {"crashes", "pauses", "clock jumps", "lost request", "duplicate", "late", "contended"} <= run.tally.keys()
    assert run.trace.digest() == BARE_TRACE
