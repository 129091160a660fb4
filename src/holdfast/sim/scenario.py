"""A scenario: who works in a world, with what settings, and what must hold afterwards.

A scenario is a dataclass whose fields are its settings. ``drawn`` makes them from a seed, for random runs; the defaults
are a small configuration without faults, which ``explore`` enumerates completely. Its docstring's first line is its
description. The store that a process sees is the production stack; a test that wants to see a naive part fail
overrides ``stack`` or the scenario's own hooks in a subclass.

Every module in ``holdfast.sim.scenarios`` is looked through for scenarios; users name their own as ``module:Class``.
"""

import inspect
import pkgutil
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Self

from holdfast.base.errors import Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.observe import Usage
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.stack import compose
from holdfast.objects.store import Store
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import NO_FAULTS, NO_TROUBLES, Faults, Troubles
from holdfast.sim.world import World

AT_ONCE = RetryPolicy(attempts=20, base_ms=0, max_ms=0)
"""Without pauses between attempts the only choices left in a small world are those of the wire."""


@dataclass(frozen=True, kw_only=True)
class Scenario(ABC):
    name: ClassVar[str]

    faults: Faults = NO_FAULTS
    troubles: Troubles = NO_TROUBLES
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

    def stack(self, backend: Store, ambient: Ambient) -> Store:
        return compose(backend, ambient=ambient, retry=self.retry, usage=Usage())

    @classmethod
    def description(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "").partition("\n")[0]


def retries(rng: random.Random) -> RetryPolicy:
    """From impatient to stubborn: an impatient stack leaves outcomes open, which protocols must bear."""
    return RetryPolicy(attempts=rng.randint(2, 8), base_ms=rng.choice((1, 50)), max_ms=500, deadline_ms=20_000)


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
            raise NotFound(f"no scenario is called {name}", remedy=f"known: {', '.join(known)}, or module:Class")
        return known[name]
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        scenario = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise NotFound(f"{name}: {error}", remedy="name an importable module and a class in it") from error
    if not (isinstance(scenario, type) and issubclass(scenario, Scenario)):
        raise Invalid(f"{name} is not a Scenario", remedy="derive it from holdfast.sim.scenario.Scenario")
    return scenario


def _scenarios_of(module: str) -> list[type[Scenario]]:
    return [
        member
        for member in vars(import_module(module)).values()
        if isinstance(member, type)
        and issubclass(member, Scenario)
        and member.__module__ == module
        and not inspect.isabstract(member)
    ]
