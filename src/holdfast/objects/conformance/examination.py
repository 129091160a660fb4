"""Examination: the laws on a user's own store, below a prefix that is emptied afterwards.

    async with Examination(spec, effort=Effort(), ambient=ambient) as examination:
        async for finding in examination.findings(LAWS): ...

First a small object is written and read: a missing bucket or a wrong password is one error, not sixteen broken laws.
Then the laws run under a prefix, each client over a backend of its own. Last the prefix is emptied, also after an error
or Ctrl-C. When the store did not serve a law to its end, the small object is tried again: if that fails, the
examination ends. The verdicts so far stay, and the remaining laws are unjudged.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

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
    """``usage`` counts every request."""

    def __init__(self, spec: StoreSpec, *, effort: Effort, ambient: Ambient, connect: Connect = backend) -> None:
        self.spec = spec
        self.prefix = f"{PREFIX}{ambient.ids.unique()}/"
        self.leftovers: HoldfastError | None = None
        """Why there may be objects under the prefix after the end."""
        self._ambient = ambient
        # Each backend of an unnamed memory store would have objects of its own.
        backends = effort.races if (spec.scheme, spec.place) != ("memory", "") else 1
        self._backends = [connect(spec) for _ in range(backends)]
        self._bench = Bench(self._backends, prefix=self.prefix, ambient=ambient, effort=effort, retry=spec.retry)

    @property
    def place(self) -> Place:
        return self._backends[0].place or Place.of(self.spec)

    @property
    def usage(self) -> Usage:
        return self._bench.usage

    @property
    def store(self) -> Store:
        """The examined store itself, outside the prefix."""
        return Client(self._backends[0], ambient=self._ambient, retry=self.spec.retry, usage=self.usage)

    async def findings(self, laws: Sequence[Law]) -> AsyncIterator[Finding]:
        """One finding per law, in order."""
        done = 0
        async for finding in judge(self._bench, laws):
            done += 1
            problem = await self._unreachable() if finding.error is not None else None
            if problem is None:
                yield finding
                continue
            yield replace(finding, verdict=UNJUDGED, figure=str(problem), error=problem)
            for law in laws[done:]:
                yield Finding(law, UNJUDGED, "not run", 0.0)
            return

    async def __aenter__(self) -> Self:
        try:
            await self._probe()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._bench.clean_up()
            self.leftovers = None
        except HoldfastError as problem:
            self.leftovers = problem
        finally:
            await self._close()

    async def _close(self) -> None:
        for each in self._backends:
            await each.close()

    async def _probe(self) -> None:
        """Write and read one small object, which shows what is wrong with address, permissions or network."""
        retry = replace(self.spec.retry, attempts=min(PROBE_ATTEMPTS, self.spec.retry.attempts))
        store = Client(self._backends[0], ambient=self._ambient, retry=retry, usage=self.usage)
        await check_format(store)
        below = Scoped(store, self.prefix)
        body = f"probe {self._ambient.ids.write_id()}".encode()
        try:
            await below.put("probe", body)
        except Unavailable as error:
            self.leftovers = error if error.maybe_applied else None
            raise
        try:
            found = await below.find("probe")
        finally:
            try:
                await below.delete("probe")
            except HoldfastError as error:
                self.leftovers = error
                raise
        if found is None or found.body != body:
            seen = "nothing" if found is None else "other bytes"
            raise Corrupt(
                f"{self.spec.uri}: an object was written, acknowledged, and read back as {seen}",
                remedy="do not use this store: it loses data",
            )

    async def _unreachable(self) -> HoldfastError | None:
        """Why the store cannot be used any more; None if it can."""
        try:
            await self._probe()
        except (Unavailable, Denied, NotFound) as error:
            return error
        return None
