"""A store whose clock the test turns, with batches, orphans, audits, and garbage collection over all of it."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.codec import Document
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.store import ADDRESSED, CREATE, OVERWRITE, Lost, Mode, Object, Store, Written
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.gc.options import DAY_NS, GcOptions
from holdfast.pipeline.jobs import audited
from holdfast.pipeline.jobs.audited import Audited
from holdfast.pipeline.jobs.gc import Gc
from holdfast.pipeline.options import Env, Options
from holdfast.sim.scenarios.pipeline import Straight
from holdfast.telemetry.accept.accept import Submission, submission_of
from holdfast.telemetry.frame import Sequenced, decode, encode, pack_sequenced
from holdfast.telemetry.records import Gauge
from tests.unit.runs.desk import Watch

HOUR = 3600 * 1_000_000_000
DAY = DAY_NS


def frame(number: int, variant: int = 0, agent: str = "agent") -> Submission:
    """A batch of three records; variants are other bytes under the same identity."""
    records = [Sequenced(10 * number + at, Gauge("m", float(at + variant), 490_000 * HOUR + at, {})) for at in range(3)]
    body = encode(pack_sequenced(agent, "boot", records))
    return submission_of(body, decode(body))


@dataclass
class GcDesk:
    watch: Watch = field(default_factory=Watch)
    shelf: Shelf = field(default_factory=Shelf)
    options: GcOptions = field(default_factory=GcOptions)
    usage: Usage = field(default_factory=Usage)

    @property
    def store(self) -> Store:
        return MemoryStore(self.shelf, clock=self.watch)

    def opened(self) -> Client:
        """A store whose tasks have this desk's clock."""
        return Client(self.store, ambient=self.ambient, usage=self.usage, spec=StoreSpec("memory", "desk"))

    @property
    def ambient(self) -> Ambient:
        return Ambient(self.watch, random.Random(7))

    def env(self, store: Store | None = None) -> Env:
        own = Client(self.store, ambient=self.ambient, usage=self.usage) if store is None else store
        return Env(own, self.ambient, Inline(), Options(gc=self.options))

    def later(self, span_ns: int) -> None:
        self.watch.advance(seconds=span_ns / 1e9)

    async def put_blob(self, submission: Submission) -> str:
        await self.store.put(submission.blob_key, submission.body, ADDRESSED)
        return submission.blob_key

    async def accept(self, submission: Submission) -> None:
        await self.put_blob(submission)
        manifest = submission.manifest(
            accepted_at_unix_ns=self.watch.wall_ns(), collector_id="c", authority_id=None, write_id="w"
        )
        await self.store.put(manifest.key, manifest.encode(), CREATE)

    async def audit(self, scopes: tuple[str, ...] = ("ingest",), **rest: Any) -> Audited:
        """An audit that began and ended now."""
        now = self.watch.wall_ns()
        record = Audited(f"{now:020d}", "run", scopes, audited.SCAN, 1, now, now, now, **rest)
        await self.store.put(record.key, record.encode("w"), CREATE)
        return record

    async def run(self, *kinds: str, run_id: str = "run-1", store: Store | None = None, **request: Any) -> Document:
        return await Gc(self.env(store)).run(Straight(run_id), {"apply": True, "kinds": list(kinds), **request})

    async def plan(self, *kinds: str) -> Document:
        return await Gc(self.env()).preview({"kinds": list(kinds)})

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.shelf.objects if key.startswith(prefix))


class Before(Layer):
    """Lets others work before the first object whose key has this part is written."""

    def __init__(self, inner: Store, part: str, work: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(inner)
        self._part, self._work = part, [work]

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if self._part in key and self._work:
            await self._work.pop()()
        return await super().put(key, body, mode)


class Once(Layer):
    """Lets others work before the first read of such a key."""

    def __init__(self, inner: Store, prefix: str, work: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(inner)
        self._prefix, self._work = prefix, [work]

    async def get(self, key: str) -> Object:
        if key.startswith(self._prefix) and self._work:
            await self._work.pop()()
        return await super().get(key)
