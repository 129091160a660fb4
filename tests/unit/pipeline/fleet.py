"""Collectors that keep marks, beside a reconciler; time is the test's."""

from typing import Any

from holdfast.telemetry.accept.marks import Marks

from holdfast import pipeline
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline import Options, audited
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.collector import Collector
from holdfast.telemetry.accept.submit import submission_of
from holdfast.telemetry.frame import Limits, decode, encode, pack
from holdfast.telemetry.query.metrics import Metrics
from holdfast.telemetry.records import Gauge
from tests.unit.pipeline.field import SECOND
from tests.unit.runs.desk import Watch
from tests.unit.telemetry.accept.accept_desk import AcceptDesk

EVERY_MS = 5_000
MINUTE_S = 60
DAYS_S = 3 * 86_400
"""Longer than marks stay that nobody needs."""


class Skewed(Watch):
    """The desk's time, as somebody has it whose clock is wrong."""

    def __init__(self, right: Watch, seconds: int) -> None:
        self._right = right
        self.seconds = seconds

    def wall_ns(self) -> int:
        return self._right.wall_ns() + self.seconds * SECOND

    def monotonic_ns(self) -> int:
        return self._right.monotonic_ns()


class Process:
    """A collector that writes its mark when told. One that is told nothing more was killed."""

    def __init__(self, fleet: "Fleet", name: str, *script: str) -> None:
        self._fleet = fleet
        desk = fleet.desk
        self.collector: Collector = desk.collector(name, *script, attempts=1)
        self.marks = Marks(
            desk.store(), desk.ambient(), self.collector.references, collector_id=name, every_ms=EVERY_MS
        )

    async def accept(self) -> None:
        number = next(self._fleet.numbers)
        body = encode(pack("web-1", "boot", [Gauge("load", 1.0, self._fleet.desk.watch.wall_ns())], seq_start=number))
        await self.collector.accept(submission_of(body, decode(body)))

    async def tell(self, *, ended: bool = False) -> None:
        await self.collector.references.flush()
        await self.marks.write(ended=ended)


class Fleet:
    def __init__(self) -> None:
        self.desk = AcceptDesk()
        self.usage = Usage()
        self.numbers = iter(range(1_000))
        self.store = self.opened(self.desk.ambient())

    def opened(self, ambient: Ambient) -> Client:
        backend = self.desk.store().backend
        return Client(backend, ambient=ambient, usage=self.usage, spec=StoreSpec("memory", "desk"))

    async def begun(self, name: str, *script: str) -> Process:
        process = Process(self, name, *script)
        await process.tell()
        return process

    async def reconcile(self, *, limit: int = 20_000, by: Client | None = None) -> list[dict[str, Any]]:
        options = Options(batches_at_once=limit)
        ran = await pipeline.run(by or self.store, ["reconcile"], options=options, takeover=by is not None)
        assert {each.status for each in ran} <= {"success"}
        return [each.summary for each in ran]

    async def counted(self) -> float:
        metrics = Metrics(self.store, self.store.ambient, Limits())
        found = await metrics.query("load", since="1h", aggregate="count", by=[])
        assert not found.read.unreadable
        return sum(each or 0 for each in found.series[0].values)

    async def audit(self) -> set[str]:
        request = {"scopes": ["ingest"], "deep": True, "older_than_ns": SECOND}
        [ran] = await pipeline.run(self.store, ["audit"], request=request)
        return {str(each["rule"]) for each in (await audited.read(self.store, ran.summary["audit_id"])).findings}

    async def collect_garbage(self) -> list[str]:
        """Sessions whose marks are left."""
        [ran] = await pipeline.run(self.store, ["gc"], request={"apply": True, "kinds": ["gatherings"]})
        assert ran.status == "success"
        return [layout.session_in(key) or "" async for key in self.store.keys(layout.MARKS)]

    async def listed_manifests(self, *, by: Client | None = None) -> int:
        """How often all manifests were listed by a reconciler that runs now."""
        before = self.usage.requests("list", "accepted")
        await self.reconcile(by=by)
        return self.usage.requests("list", "accepted") - before
