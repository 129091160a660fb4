"""Conformance laws as plain async functions: what a store must do for Holdfast to be right on it.

The tests run them over every backend, the simulator over its faulty store, and ``holdfast doctor`` over a user's own
bucket: the very same functions. A law gets a ``Bench`` and either returns a figure for the report or raises
``Violation``. The laws themselves are in ``lawbook.py``; this module is how one is run.

A law that held for N rounds is evidence, not proof; a violation is proof.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from holdfast.base.errors import Conflict, Denied, HoldfastError, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.observe import Usage
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.scoped import Scoped
from holdfast.objects.stack import compose
from holdfast.objects.store import Store

KEPT, BROKEN, UNJUDGED = "kept", "broken", "unjudged"
CLEAN_UP_PASSES = 4


class Violation(Exception):  # what was seen, not an error of ours
    """The store did what it must not do. The message is the evidence."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to look."""

    races: int = 8
    """Writers at once."""
    rounds: int = 10
    """Repetitions of every race."""
    keys: int = 1_100
    """Objects in the listing law; more than 1,000 makes real stores turn the page."""
    large_bytes: int = 8 * 1024 * 1024


class Bench:
    """Where a law works: several clients of one store, under a prefix of its own.

    ``backends`` are bare, one per client, so that a law can put a fault between the backend and the layers above it.
    """

    def __init__(
        self, backends: Sequence[Store], *, prefix: str, ambient: Ambient, effort: Effort, retry: RetryPolicy
    ) -> None:
        self._backends = backends
        self._prefix = prefix
        self._retry = retry
        self.ambient = ambient
        self.effort = effort
        self.usage = Usage()

    def room(self, name: str) -> "Bench":
        """The same bench under a deeper prefix."""
        inside = Bench(
            self._backends,
            prefix=f"{self._prefix}{name}/",
            ambient=self.ambient,
            effort=self.effort,
            retry=self._retry,
        )
        inside.usage = self.usage
        return inside

    def client(self, number: int = 0, *, fault: Callable[[Store], Store] | None = None) -> Store:
        """Client ``number`` with the production stack on it, over ``fault`` if one is given."""
        backend: Store = Scoped(self._backends[number % len(self._backends)], self._prefix)
        if fault is not None:
            backend = fault(backend)
        return compose(backend, ambient=self.ambient, retry=self._retry, usage=self.usage)

    def clients(self) -> list[Store]:
        return [self.client(number) for number in range(self.effort.races)]

    async def clean_up(self) -> None:
        """Delete everything under the bench's prefix; a cancelled request may still land, so look again."""
        store = self.client()
        found = 0
        for _ in range(CLEAN_UP_PASSES):
            found = 0
            async for page in store.list():
                if page.entries:
                    found += len(page.entries)
                    await store.delete_many([entry.key for entry in page.entries])
            if not found:
                return
        raise Unavailable(f"{found} objects were listed after they had been deleted")


@dataclass(frozen=True, slots=True)
class Law:
    """One promise. ``breach`` says what would go wrong in production without it."""

    name: str
    promise: str
    breach: str
    run: Callable[[Bench], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Finding:
    law: Law
    verdict: str
    figure: str
    """What was measured, or the evidence of a violation."""
    seconds: float
    error: HoldfastError | None = None
    """The error that ended the law, where it was not a violation that it saw itself."""

    @property
    def kept(self) -> bool:
        return self.verdict == KEPT


async def judge(bench: Bench, laws: Sequence[Law]) -> AsyncIterator[Finding]:
    """Run the laws one by one. Missing permissions end the run: they say nothing about the store.

    A law that the store could not serve to its end (a full disk, an overload, an editor that lost every one of too many
    races) is neither kept nor broken: unjudged.
    """
    for law in laws:
        began_ns = bench.ambient.clock.monotonic_ns()
        room = bench.room(law.name)
        trouble: HoldfastError | None = None
        try:
            verdict, figure = KEPT, await law.run(room)
        except Violation as violation:
            verdict, figure = BROKEN, str(violation)
        except Denied:
            raise
        except (Unavailable, Conflict) as error:
            verdict, figure, trouble = UNJUDGED, str(error), error
        except HoldfastError as error:
            verdict, figure, trouble = BROKEN, f"{type(error).__name__}: {error}", error
        seconds = (bench.ambient.clock.monotonic_ns() - began_ns) / 1e9
        yield Finding(law, verdict, figure, seconds, trouble)


def demand(condition: bool, evidence: str) -> None:
    """A law's one way to judge."""
    if not condition:
        raise Violation(evidence)
