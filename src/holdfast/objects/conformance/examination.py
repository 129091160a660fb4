"""Examination: every law on a user's own store, below a prefix of its own, leaving nothing behind.

    async with examine(spec, effort=Effort(), ambient=ambient) as examination:
        async for finding in examination.findings(LAWS): ...

First a small object is written and read (a missing bucket or a wrong password is one error, not sixteen broken laws),
then the laws run under a prefix of their own, each client over a backend of its own, and last the prefix is
emptied, whatever happened before. When the store did not serve a law to its end, the small object is tried again: if
that fails, the examination ends. The verdicts so far stay, and the laws that are left are unjudged.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from holdfast.base.errors import Corrupt, Denied, HoldfastError, NotFound, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.conformance.laws import UNJUDGED, Bench, Effort, Finding, Law, judge
from holdfast.objects.layer import Scoped
from holdfast.objects.open import backend, check_format
from holdfast.objects.place import Place
from holdfast.objects.store import Store
from holdfast.objects.uri import StoreSpec

PREFIX = "holdfast-doctor-"
PROBE_ATTEMPTS = 2
"""A store that does not answer twice is reported at once; only the laws have the store's own retry policy."""

Connect = Callable[[StoreSpec], Store]


class Examination:
    """A store under examination. ``usage`` counts every request."""

    def __init__(self, spec: StoreSpec, backends: Sequence[Store], effort: Effort, ambient: Ambient) -> None:
        self.spec = spec
        self.prefix = f"{PREFIX}{ambient.ids.unique()}/"
        self.probe_left = False
        """A probe was written, or may have been, and could not be removed."""
        self._ambient = ambient
        self._backends = backends
        self._bench = Bench(backends, prefix=self.prefix, ambient=ambient, effort=effort, retry=spec.retry)

    @property
    def place(self) -> Place:
        return self._backends[0].place or Place.of(self.spec)

    @property
    def usage(self) -> Usage:
        return self._bench.usage

    @property
    def store(self) -> Store:
        """The examined store itself, outside the throwaway prefix."""
        return Client(self._backends[0], ambient=self._ambient, retry=self.spec.retry, usage=self.usage)

    async def reach(self) -> None:
        """Read and write one small object: whatever is wrong with address, permissions or network shows here."""
        retry = replace(self.spec.retry, attempts=min(PROBE_ATTEMPTS, self.spec.retry.attempts))
        store = Client(self._backends[0], ambient=self._ambient, retry=retry, usage=self.usage)
        await check_format(store)
        room = Scoped(store, self.prefix)
        body = f"probe {self._ambient.ids.write_id()}".encode()
        try:
            await room.put("probe", body)
        except Unavailable as error:
            self.probe_left = error.maybe_applied
            raise
        self.probe_left = True
        try:
            found = await room.find("probe")
        finally:
            await room.delete("probe")
            self.probe_left = False
        if found is None or found.body != body:
            seen = "nothing" if found is None else "other bytes"
            raise Corrupt(
                f"{self.spec.uri}: an object was written, acknowledged, and read back as {seen}",
                remedy="do not use this store: it does not keep what it is given",
            )

    async def findings(self, laws: Sequence[Law]) -> AsyncIterator[Finding]:
        """One finding per law, in order."""
        done = 0
        async for finding in judge(self._bench, laws):
            done += 1
            ended = await self._unreachable() if finding.error is not None else None
            if ended is None:
                yield finding
                continue
            yield replace(finding, verdict=UNJUDGED, figure=str(ended), error=ended)
            for law in laws[done:]:
                yield Finding(law, UNJUDGED, "not run", 0.0)
            return

    async def _unreachable(self) -> HoldfastError | None:
        """Why the store cannot be worked with any more; None if it can."""
        try:
            await self.reach()
        except (Unavailable, Denied, NotFound) as error:
            return error
        return None

    async def clean_up(self) -> None:
        await self._bench.clean_up()


@asynccontextmanager
async def examine(
    spec: StoreSpec,
    *,
    effort: Effort,
    ambient: Ambient,
    connect: Connect = backend,
    on_leftovers: Callable[[str, HoldfastError], None],
) -> AsyncIterator[Examination]:
    """An examination of the store at ``spec``, reached. Its prefix is emptied at the end, on failure and Ctrl-C too.

    If that fails, ``on_leftovers`` is called with the prefix; the error that ended the work is still the one raised.
    """
    first = connect(spec)
    # Each backend of an unnamed memory store would hold objects of its own.
    more = effort.races - 1 if (spec.scheme, spec.place) != ("memory", "") else 0
    backends = [first, *(connect(spec) for _ in range(more))]
    examination = Examination(spec, backends, effort, ambient)
    out_of_reach = False
    try:
        try:
            await examination.reach()
        except HoldfastError as error:
            out_of_reach = True
            if examination.probe_left:
                on_leftovers(examination.prefix, error)
            raise
        yield examination
    finally:
        try:
            if not out_of_reach:
                await examination.clean_up()
        except HoldfastError as error:
            on_leftovers(examination.prefix, error)
        finally:
            for each in backends:
                await each.close()
