"""A store with a clock of its own, filled by the real parts, and an audit of it."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from holdfast import pipeline
from holdfast.base.clock import SystemClock
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline.jobs import audited
from holdfast.pipeline.jobs.audited import Audited
from holdfast.pipeline.options import Options
from tests.unit.pipeline.field import HOUR, SECOND, START, Field

MINUTE = 60 * SECOND


class HandClock:
    """Time goes on as ever from some moment, and can be moved on by hand."""

    def __init__(self, now_ns: int) -> None:
        self._system = SystemClock()
        self._ahead_ns = now_ns - self._system.monotonic_ns()

    @property
    def now_ns(self) -> int:
        return self._system.monotonic_ns() + self._ahead_ns

    def wall_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def pass_by(self, span_ns: int) -> None:
        self._ahead_ns += span_ns


@dataclass
class Place:
    store: Client
    clock: HandClock
    backend: MemoryStore
    options: Options = field(default_factory=Options)

    @property
    def field(self) -> Field:
        return Field(self.store)

    async def derive(self) -> None:
        """Reconcile and derive everything; then some time passes, so that all of it can be judged."""
        ran = await pipeline.run(self.store, options=self.options)
        assert {each.status for each in ran} <= {"success"}
        self.clock.pass_by(HOUR)

    async def audit(self, **request: Any) -> Audited:
        """Of no object the bytes are read unless it is asked for: which ones are is a matter of chance."""
        request = request if request.get("deep") else {"one_in": 10**9, **request}
        (ran,) = await pipeline.run(self.store, ["audit"], options=self.options, request=request)
        assert ran.status == "success", ran.error
        return await audited.read(self.store, ran.summary["audit_id"])


def wrong(record: Audited) -> set[tuple[str, str]]:
    """What was found, but for what is only reported."""
    return {(str(each["rule"]), str(each["key"])) for each in record.findings if each["severity"] != "information"}


def remarks(record: Audited) -> set[tuple[str, str]]:
    return {(str(each["rule"]), str(each["key"])) for each in record.findings if each["severity"] == "information"}


@asynccontextmanager
async def place(seed: int = 1, *, shelf: Shelf | None = None, now_ns: int = START + 3 * HOUR) -> AsyncIterator[Place]:
    clock = HandClock(now_ns)
    backend = MemoryStore(shelf, clock=clock)
    ambient = Ambient(clock, random.Random(seed))
    usage = Usage()
    spec = StoreSpec.parse("memory:")
    async with Client(backend, ambient=ambient, retry=spec.retry, usage=usage, spec=spec) as store:
        yield Place(store, clock, backend)
