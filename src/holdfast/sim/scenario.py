"""A scenario: who works in a world, with what settings, and what must hold afterwards.

A scenario is a dataclass whose fields are its settings. ``drawn`` makes them from a seed, for random runs; the defaults
are a small configuration without faults, which ``explore`` enumerates completely. Its docstring's first line is its
description. The store that a process sees is the production stack; a test that wants to see a naive part fail
overrides ``stack`` or the scenario's own hooks in a subclass.

Every ``Scenario`` class in a module of ``holdfast.sim.scenarios`` is found by its name; users name their own as
``module:Class``.
"""

import asyncio
import inspect
import pkgutil
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Self, TypedDict, TypeVar

from holdfast.base.errors import Contended, Invalid, NotFound, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import Lost, Mode, Overwrite, Store, Written
from holdfast.objects.uri import StoreSpec
from holdfast.sim.faults import NO_FAULTS, NO_OUTAGE, NO_TROUBLES, Faults, Outage, Troubles
from holdfast.sim.history import Done, Violation
from holdfast.sim.world import Process, World

AT_ONCE = RetryPolicy(attempts=20, base_ms=0, max_ms=0)
"""Without delays between attempts the only choices left in a small world are those of the wire."""


ROUNDS = 200
"""More than any process needs, so that work which never ends is a finding."""
SPEC = StoreSpec("memory", "sim")

T = TypeVar("T")


class Unsettled(Client):
    """Leaves 412s and open outcomes to its caller, to show that a protocol finds out by itself what happened."""

    async def _put(self, key: str, body: bytes, mode: Mode) -> Written | Lost:
        budget = self._budget()
        while True:
            try:
                return await self._send(key, body, mode)
            except Unavailable as error:
                certain = not (error.maybe_applied or isinstance(error, Contended))
                if not (certain or isinstance(mode, Overwrite)) or not await budget.another():
                    raise


@dataclass(frozen=True, kw_only=True)
class Scenario(ABC):
    name: ClassVar[str]
    explorable: ClassVar[bool] = True
    """Whether the defaults are a small configuration. One that sleeps, draws or has many requests has none."""

    faults: Faults = NO_FAULTS
    troubles: Troubles = NO_TROUBLES
    outage: Outage = NO_OUTAGE
    retry: RetryPolicy = AT_ONCE

    @classmethod
    @abstractmethod
    def drawn(cls, rng: random.Random) -> Self:
        """The scenario with settings from the seed."""

    @abstractmethod
    def begin(self, world: World) -> None:
        """Start the processes."""

    @abstractmethod
    def check(self, world: World) -> Iterator[Violation]:
        """What went wrong, judged by the history of operations and by what landed on the true store."""

    def stack(self, backend: Store, ambient: Ambient) -> Client:
        """What a process works with. Tests return a naive ``Client`` instead, to see the scenario fail."""
        return Client(backend, ambient=ambient, retry=self.retry, spec=SPEC)

    async def work_off(
        self,
        process: Process,
        call: str,
        work: Callable[[], Awaitable[T]],
        *,
        is_done: Callable[[T], bool],
        behind: str = "",
        after_s: float = 0.0,
        pause_s: float = 1.0,
    ) -> None:
        """Do ``work`` until it was begun after the end of all trouble, and is done.

        The end is ``after_s`` after the last trouble, when no process whose name begins with ``behind`` works:
        none that died comes back. ``was_worked_off`` says whether this point was reached.
        """
        world = process.world
        over_s = (self.troubles.within_ms + self.troubles.pause_ms) / 1000 + after_s
        for _ in range(ROUNDS):
            busy = bool(behind) and any(each.working for each in world.processes if each.family.startswith(behind))
            quiet = not busy and world.loop.time() > over_s
            found = await process.perform(call, work(), key=call, argument=quiet, show=is_done)
            if quiet and found == Done(True):
                return
            await asyncio.sleep(process.rng.random() * pause_s)
        world.failures.append(f"{process.name} did {call} {ROUNDS} times, and there is still something to do")

    @classmethod
    def description(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "").partition("\n")[0]


def was_worked_off(world: World, call: str) -> bool:
    """Whether all was done after the end of all trouble."""
    return any(each.call == call and each.argument and each.outcome == Done(True) for each in world.operations)


def retries(rng: random.Random) -> RetryPolicy:
    """From impatient to stubborn: an impatient stack leaves outcomes open, which protocols must bear."""
    return RetryPolicy(attempts=rng.randint(2, 8), base_ms=rng.choice((1, 50)), max_ms=500, deadline_ms=20_000)


class Surroundings(TypedDict):
    faults: Faults
    troubles: Troubles
    retry: RetryPolicy


def surroundings(rng: random.Random, *, lost_response: float, within_ms: float = 2_000) -> Surroundings:
    """What most scenarios draw after their own settings."""
    faults = Faults.drawn(rng, lost_response=lost_response)
    return {"faults": faults, "troubles": Troubles.drawn(rng, within_ms=within_ms), "retry": retries(rng)}


def built_in() -> dict[str, type[Scenario]]:
    """Every scenario of Holdfast by its name."""
    from holdfast.sim import scenarios  # noqa: PLC0415  # its modules import this one

    found: dict[str, type[Scenario]] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(scenarios.__path__)):
        for scenario in _scenarios_of(f"{scenarios.__name__}.{module}"):
            found[scenario.name] = scenario
    return found


def find(name: str) -> type[Scenario]:
    """The scenario of that name, or ``module:Class`` from the working folder or anywhere on the path."""
    module, colon, attribute = name.partition(":")
    if not colon:
        known = built_in()
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}, or module:Class"
            raise NotFound(f"no scenario is called {name}", remedy=hint)
        return known[name]
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        itself = error.name is not None and f"{module}.".startswith(f"{error.name}.")
        if not itself:  # another one, which it imports
            raise _broken(module, error) from error
        raise NotFound(f"{name}: {error}", remedy="name an importable module and a class in it") from error
    except Exception as error:
        raise _broken(module, error) from error
    scenario = getattr(found, attribute, None)
    if scenario is None:
        own = [each.__name__ for each in _scenarios_of(module)]
        near = get_close_matches(attribute, own, n=1) or own
        hint = f"did you mean {module}:{near[0]}?" if near else "name a class that is in it"
        raise NotFound(f"module {module} has no {attribute}", remedy=hint)
    if not (isinstance(scenario, type) and issubclass(scenario, Scenario)):
        raise Invalid(f"{name} is not a Scenario", remedy="derive it from holdfast.sim.Scenario")
    if missing := sorted(scenario.__abstractmethods__):
        raise Invalid(f"{name} does not define {', '.join(missing)}", remedy="see docs/simulator.md for an example")
    if not isinstance(getattr(scenario, "name", None), str):
        raise Invalid(f"{name} has no name", remedy=f'give it one: name: ClassVar[str] = "{attribute.lower()}"')
    return scenario


def small(kind: type[Scenario]) -> Scenario:
    """The small configuration of a scenario, for exploring; ``Invalid`` if it has none."""
    if not kind.explorable:
        raise Invalid(
            f"scenario {kind.name} has no small configuration that could be explored completely",
            remedy=f"run it over many seeds: holdfast sim run {kind.name} --seeds 1..500",
        )
    return kind()


def _broken(module: str, error: Exception) -> Invalid:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Invalid(f"module {module} cannot be imported: {what}", remedy="mend the module; --verbose shows where")


def _scenarios_of(module: str) -> list[type[Scenario]]:
    return [
        member
        for member in vars(import_module(module)).values()
        if isinstance(member, type)
        and issubclass(member, Scenario)
        and member.__module__ == module
        and not inspect.isabstract(member)
    ]
