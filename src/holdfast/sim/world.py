"""A world: one seed, one true store, one true time, and the processes that live in it.

A ``Process`` is one life: a clock, a source of ids, a store port, and an actor that works with them. A crash ends the
life between two steps: nothing of it runs any more, what it had sent still lands. A restart is another life under the
same name, with nothing in memory. Tasks that are left over at the end are discarded with their ports revoked. The
``Nemesis`` crashes, pauses and restarts processes and corrects their clocks, at moments drawn from the seed.
"""

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.base.errors import HoldfastError
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import Store
from holdfast.sim.faults import NO_TROUBLES, Troubles
from holdfast.sim.history import Done, Landing, Open, Operation, Outcome, Trace, judged
from holdfast.sim.loop import GATE, Deadlock, Gate, SimLoop
from holdfast.sim.store import SimStore
from holdfast.sim.wire import QUIET_S, Wire

NS = 1_000_000_000
BEGINNING_NS = 1_700_000_000 * NS
"""What the wall clock of the world shows at the start."""


class SimClock:
    def __init__(self, now: Callable[[], float], *, skew_ms: float = 0, drift_ppm: float = 0) -> None:
        self._now = now
        self._skew_ns = int(skew_ms * 1_000_000)
        self._rate = NS * (1 + drift_ppm / 1_000_000)

    def wall_ns(self) -> int:
        return BEGINNING_NS + self._skew_ns + int(self._now() * self._rate)

    def monotonic_ns(self) -> int:
        return int(self._now() * self._rate)

    def jump(self, by_ms: float) -> None:
        """The wall clock is corrected, forwards or backwards."""
        self._skew_ns += int(by_ms * 1_000_000)


class Seed:
    def __init__(self, root: int) -> None:
        self.root = root

    def stream(self, *name: str) -> random.Random:
        return random.Random("/".join((str(self.root), *name)))

    def __str__(self) -> str:
        return str(self.root)


T = TypeVar("T")

Actor = Callable[["Process"], Coroutine[Any, Any, None]]
Stack = Callable[[Store, Ambient], Client]
"""Makes the client of a process over its backend."""

UNWINDING_ROUNDS = 100
"""How often a task that is left over may swallow its cancellation."""


class World:
    def __init__(
        self, seed: Seed, loop: SimLoop, trace: Trace, wire: Wire, *, stack: Stack, troubles: Troubles = NO_TROUBLES
    ) -> None:
        self.seed = seed
        self.loop = loop
        self.trace = trace
        self.wire = wire
        self.tally = wire.tally
        """How often each fault and each trouble was met."""
        self.stack = stack
        self.truth = MemoryStore(clock=SimClock(loop.time))
        self.processes: list[Process] = []
        self.operations: list[Operation] = []
        self.landings: list[Landing] = []
        self.failures: list[str] = []
        """What no scenario wants: an actor that died of an unexpected error, a deadlock."""
        self.over = False
        self._disk: TemporaryDirectory[str] | None = None
        self._troubles = troubles
        self._unfinished = 0
        self._finished = loop.create_future()
        self.loop.set_exception_handler(self._on_stray_error)

    def start(self, name: str, actor: Actor) -> "Process":
        """A process with a clock as wrong as the world's troubles let it be."""
        rng = self.seed.stream("clock", name)
        clock = SimClock(
            self.loop.time,
            skew_ms=rng.uniform(-1, 1) * self._troubles.skew_ms,
            drift_ppm=rng.uniform(-1, 1) * self._troubles.drift_ppm,
        )
        return Process(self, name, actor, clock)

    def start_all(self, name: str, count: int, actor: Actor) -> None:
        """``count`` processes: ``name1``, ``name2``, ..."""
        for number in range(count):
            self.start(f"{name}{number + 1}", actor)

    def run(self) -> None:
        """Until every process has finished or died for good, and nothing is on its way any more."""
        try:
            self.loop.run_until_complete(self._finished)
            self.loop.run_until_complete(asyncio.sleep(QUIET_S))
        except Deadlock as deadlock:
            waiting = [process.name for process in self.processes if process.working]
            self.failures.append(f"deadlock with seed {self.seed}: {deadlock} (unfinished: {', '.join(waiting)})")

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something after a while; the world does not end before."""
        self.begun()

        def act() -> None:
            if not self.over:
                action()
                self.ended()

        self.loop.after(seconds, act)

    def begun(self) -> None:
        self._unfinished += 1

    def ended(self) -> None:
        self._unfinished -= 1
        if self._unfinished == 0 and not self._finished.done():
            self._finished.set_result(None)

    @cached_property
    def disk(self) -> Path:
        """A folder for what processes keep on their machine's disk; it goes with the world."""
        self._disk = TemporaryDirectory(prefix="holdfast-sim-")
        return Path(self._disk.name)

    def landed(self, process: str, key: str, body: bytes | None, version: str | None) -> None:
        self.landings.append(Landing(self.trace.position, process, key, body, version))

    def bodies(self, key: str) -> list[bytes]:
        """Every body that ``key`` ever had, in order; deletions are left out."""
        return [landing.body for landing in self.landings if landing.key == key and landing.body is not None]

    def backend(self, process: str) -> SimStore:
        return SimStore(process, self.truth, self.wire, self.landed)

    def _on_stray_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.over:
            self.failures.append(f"{context['message']}: {context.get('exception')!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over = True
        for process in self.processes:
            process.discard()
        try:
            self._discard_tasks()
        finally:
            self.loop.close()
            if self._disk is not None:
                self._disk.cleanup()

    def _discard_tasks(self) -> None:
        for _ in range(UNWINDING_ROUNDS):
            left = asyncio.all_tasks(self.loop)
            if not left:
                return
            for task in left:
                task.cancel()
            with suppress(Deadlock):
                self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())


class Process:
    """One life of one simulated process. ``name`` distinguishes the lives: ``anna``, ``anna.2``, ..."""

    def __init__(self, world: World, family: str, actor: Actor, clock: SimClock, incarnation: int = 1) -> None:
        self.world = world
        self.family = family
        self.incarnation = incarnation
        self.name = _life(family, incarnation)
        self.clock = clock
        self.ambient = Ambient(clock, world.seed.stream("process", self.name))
        self._ports: list[SimStore] = []
        self.backend = self.port()
        self.store = world.stack(self.backend, self.ambient)
        self.gate = Gate(world.loop)
        self.working = True
        """Its actor has neither finished nor been killed."""
        self._actor = actor
        self._begin()

    @property
    def rng(self) -> random.Random:
        return self.ambient.rng

    async def perform(
        self,
        call: str,
        work: Awaitable[T],
        *,
        key: str,
        argument: object = None,
        show: Callable[[T], object] = lambda result: result,
    ) -> Outcome:
        """Await ``work`` as one operation of the history. ``show`` says what of its result the checkers see."""
        operation = Operation(self.name, call, key, argument, self.note("calls", f"{call} {key}", argument))
        self.world.operations.append(operation)
        try:
            result = await work
            outcome: Outcome = Done(show(result), result)
        except HoldfastError as error:
            outcome = judged(error)
        position = self.note("ends", f"{call} {key}", outcome)
        if not isinstance(outcome, Open):
            operation.returned = position
        operation.outcome = outcome
        return outcome

    async def rest(self, at_most_ms: float) -> None:
        """Sleep for a random time; not at all if the limit is 0."""
        if at_most_ms:
            await asyncio.sleep(self.rng.random() * at_most_ms / 1000)

    def left_open(self) -> list[Operation]:
        """What the life before this one was doing when it ended, as a durable list of tasks would tell it."""
        before = _life(self.family, self.incarnation - 1)
        return [
            operation
            for operation in self.world.operations
            if operation.process == before and operation.outcome == Open()
        ]

    def port(self) -> SimStore:
        """One more bare connection to the store."""
        self._ports.append(self.world.backend(f"{self.name}:{len(self._ports)}" if self._ports else self.name))
        return self._ports[-1]

    def crash(self) -> None:
        """Nothing of this life runs any more. What it has sent is out of its hands."""
        self._trouble("crashes")
        self.gate.closed = True
        self._revoke_ports()
        self._end()

    def restart(self) -> "Process":
        """Another life, with the same clock and nothing in memory."""
        return Process(self.world, self.family, self._actor, self.clock, self.incarnation + 1)

    def pause(self, seconds: float) -> None:
        """Nothing of this life runs for a while: a stopped virtual machine, a long collection of garbage."""
        self._trouble("pauses", f"for {seconds:.3f} s")
        self.gate.closed = True
        self.world.later(seconds, self._resume)

    def jump(self, by_ms: float) -> None:
        self._trouble("clock jumps", f"by {by_ms:.0f} ms")
        self.clock.jump(by_ms)

    def discard(self) -> None:
        """Let what is left of this life come to an end, out of reach of the store."""
        self._revoke_ports()
        self.gate.open()

    def note(self, what: str, subject: str = "", detail: object = None) -> int:
        return self.world.trace.note(self.world.loop.time(), self.name, what, subject, detail)

    def _begin(self) -> None:
        self.world.processes.append(self)
        self.world.begun()
        self.note("starts")
        context = contextvars.copy_context()
        context.run(GATE.set, self.gate)
        self._task = self.world.loop.create_task(self._live(), name=self.name, context=context)

    async def _live(self) -> None:
        try:
            await self._actor(self)
        except Exception as error:  # noqa: BLE001  # whatever an actor dies of is a finding of the run
            self.world.failures.append(f"{self.name} died of {type(error).__name__}: {error}")
        if self.working:
            self.note("finishes")
            self._end()

    def _resume(self) -> None:
        if self.working:
            self.note("resumes")
            self.gate.open()

    def _trouble(self, kind: str, detail: str = "") -> None:
        self.world.tally[kind] += 1
        self.note(kind, detail)

    def _revoke_ports(self) -> None:
        for port in self._ports:
            port.revoked = True

    def _end(self) -> None:
        self.working = False
        self.world.ended()


def _life(family: str, incarnation: int) -> str:
    return family if incarnation == 1 else f"{family}.{incarnation}"


class Nemesis:
    """Strikes one of the processes that are working at that moment, if there is one."""

    def __init__(self, world: World, troubles: Troubles) -> None:
        self._world = world
        self._troubles = troubles
        self._rng = world.seed.stream("nemesis")

    def plan(self) -> None:
        troubles = self._troubles
        for count, strike in (
            (troubles.crashes, self._crash),
            (troubles.pauses, self._pause),
            (troubles.jumps, self._jump),
        ):
            for _ in range(count):
                moment = self._rng.uniform(0, troubles.within_ms) / 1000
                self._world.loop.after(moment, self._strike, strike)

    def _strike(self, strike: Callable[[Process], None]) -> None:
        victims = [process for process in self._world.processes if process.working]
        if victims:
            strike(self._rng.choice(victims))

    def _crash(self, victim: Process) -> None:
        victim.crash()
        if self._troubles.restarts:
            self._world.later(self._a_while(), victim.restart)

    def _pause(self, victim: Process) -> None:
        victim.pause(self._a_while())

    def _jump(self, victim: Process) -> None:
        victim.jump(self._rng.uniform(-1, 1) * self._troubles.skew_ms)

    def _a_while(self) -> float:
        return self._rng.random() * self._troubles.pause_ms / 1000
