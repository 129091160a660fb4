"""Open the platform: ``async with holdfast.open(uri) as hf``; in blocking code, ``with holdfast.connect(uri) as hf``.

Without a block: ``hf = await holdfast.open(uri)``, or ``hf = holdfast.connect(uri)``, and ``close`` at the end.
``connect`` gives a view of the same object whose async methods block (see ``base/portal``).
"""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.base.config import Settings, load
from holdfast.base.ids import Ambient
from holdfast.base.portal import Connection
from holdfast.objects.client import Client
from holdfast.objects.lease import Lease
from holdfast.objects.open import Opening, open_store
from holdfast.objects.register import Plain, Register
from holdfast.objects.uri import StoreSpec
from holdfast.runs.engine.calls import Outcome
from holdfast.runs.engine.outbox import carried_by
from holdfast.runs.engine.worker import Worked, worker
from holdfast.runs.engine.workflow import Workflow, deliver

if TYPE_CHECKING:
    from holdfast.bus import Bus, Handler, Schedule
    from holdfast.bus import Worked as Handled
    from holdfast.bus.worker.runner import Runner
    from holdfast.ontology.session import Options as SessionOptions
    from holdfast.ontology.types.model import Mixin
    from holdfast.platform.blocking import BlockingHoldfast
    from holdfast.platform.outbox import Outbox
    from holdfast.platform.session import Session
    from holdfast.telemetry.frame import Limits
    from holdfast.telemetry.query.logs import Logs
    from holdfast.telemetry.query.metrics import Metrics

T = TypeVar("T")


class Holdfast:
    """An open platform: the store, and methods for runs, ontology, events and telemetry on it."""

    def __init__(self, store: Client, settings: Settings | None = None) -> None:
        self.store = store
        self.settings = settings if settings is not None else Settings()
        self._outbox: Outbox | None = None
        self._metrics: Metrics | None = None
        self._logs: Logs | None = None

    def __repr__(self) -> str:
        return f"<holdfast on {self.store.spec.uri}>"

    @property
    def ambient(self) -> Ambient:
        return self.store.ambient

    async def close(self) -> None:
        """Release what is held open. Idempotent."""
        await self.store.close()

    def register(self, key: str, *, format_name: str = "user.register") -> Register[Any]:
        """A register of any JSON value under ``key``."""
        return Register(self.store, key, Plain(format_name), self.ambient)

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call anything that takes a store first, on this store: ``hf.call(runs.describe, "INC-4821")``.

        It is what blocking code uses for functions that are not methods here.
        """
        return function(self.store, *args, **kwargs)

    async def start(self, workflow: Workflow, *args: Any, run_id: str | None = None, **kwargs: Any) -> Outcome:
        """Start a run of ``workflow`` here, or continue it; see ``Workflow.start``."""
        with self._courier():
            return await workflow.start(self.store, *args, run_id=run_id, **kwargs)

    async def resume(
        self, workflow: Workflow, run_id: str, event: str, value: Any = None, *, key: str | None = None
    ) -> Outcome:
        """Give a suspended run the event that it waits for, and continue; see ``Workflow.resume``."""
        with self._courier():
            return await workflow.resume(self.store, run_id, event, value, key=key)

    async def deliver(self, run_id: str, event: str, value: Any = None, *, key: str | None = None) -> str:
        """Leave an event for a run, whether or not it waits for it yet; see ``runs.deliver``."""
        return await deliver(self.store, run_id, event, value, key=key)

    async def work(self, workflows: Iterable[Workflow], **options: Any) -> Worked:
        """Call due runs; see ``runs.worker`` for the options."""
        with self._courier():
            return await worker(self.store, workflows, **options)

    def _courier(self) -> AbstractContextManager[None]:
        """Runs called inside this context publish the events that their steps emit."""
        from holdfast.platform.durable import BusCourier  # noqa: PLC0415  # loads the bus, which takes a while

        return carried_by(BusCourier(self.store, self.ambient))

    def metrics(self) -> "Metrics":
        """Questions about metrics: ``await hf.metrics().query("node_load1", since="2h", step="5m")``."""
        from holdfast.telemetry.query.metrics import Metrics  # noqa: PLC0415  # loads Arrow and DuckDB, which takes a while

        if self._metrics is None:
            self._metrics = Metrics(
                self.store,
                self.ambient,
                self._limits(),
                memory_limit=self.settings.ontology.s3_duckdb_memory_limit,
            )
        return self._metrics

    def logs(self) -> "Logs":
        """Search in logs: ``await hf.logs().search("connection refused", since="2h", severity="warn")``."""
        from holdfast.telemetry.query.logs import Logs  # noqa: PLC0415  # loads Arrow, which takes a while

        if self._logs is None:
            self._logs = Logs(self.store, self.ambient, self._limits())
        return self._logs

    def _limits(self) -> "Limits":
        from holdfast.telemetry.frame import Limits  # noqa: PLC0415  # loads Arrow, which takes a while

        ingest = self.settings.ingest
        return Limits(frame_bytes=int(ingest.frame_bytes), payload_bytes=int(ingest.payload_bytes))

    def ontology(self, *types: "type[Mixin]", runtime_id: str | None = None) -> "Session":
        """A session on these entity and relation types: ``async with hf.ontology(Customer) as onto``.

        ``runtime_id`` names the session in commits and in the lock; it must be its own. ``onto.emit(event)`` publishes
        an event with the next commit.
        """
        from holdfast.platform.session import Session  # noqa: PLC0415  # loads Arrow, which takes a while

        return Session(self.store, self.ambient, types, self._session_options(runtime_id))

    def _session_options(self, runtime_id: str | None = None) -> "SessionOptions":
        from holdfast.ontology.session import Options  # noqa: PLC0415  # loads Arrow, which takes a while

        section = self.settings.ontology
        times = section.s3_lock_timeout_ms, section.s3_lease_ttl_ms
        return Options(runtime_id, *times, section.s3_duckdb_memory_limit, section.compaction == "auto")

    def bus(self, namespace: str = "default") -> "Bus":
        """The events of one namespace: publish them, hand them to handlers, look at them."""
        from holdfast.bus import Bus, Options  # noqa: PLC0415  # loads pydantic models, which takes a while
        from holdfast.platform.outbox import Outbox  # noqa: PLC0415  # as above

        if self._outbox is None:
            self._outbox = Outbox(self.store, self.ambient)
        return Bus(self.store, self.ambient, namespace, Options.of(self.settings.bus), self._outbox.mend)

    async def run(
        self,
        handlers: "Iterable[Handler]",
        *,
        schedules: "Iterable[Schedule]" = (),
        namespace: str = "default",
        **options: Any,
    ) -> "Handled":
        """Hand the events of a namespace to handlers; see ``Bus.run`` for the options."""
        async with self.runner(handlers, schedules=schedules, namespace=namespace) as runner:
            return await runner.run(**options)

    @asynccontextmanager
    async def runner(
        self,
        handlers: "Iterable[Handler]",
        *,
        schedules: "Iterable[Schedule]" = (),
        namespace: str = "default",
        metadata: dict[str, Any] | None = None,
    ) -> "AsyncIterator[Runner]":
        """What ``run`` runs: handlers may commit, and those that are durable are workflows."""
        from holdfast.platform.durable import as_runs  # noqa: PLC0415  # loads Arrow, which takes a while
        from holdfast.platform.handlers import Context, Desk  # noqa: PLC0415  # as above

        bus = self.bus(namespace)
        desk = Desk(self.store, self.ambient, self._session_options())
        try:
            yield bus.runner(
                as_runs(handlers, self.store, self.ambient),
                schedules=schedules,
                metadata=metadata,
                context=lambda given: Context.over(given, desk),
            )
        finally:
            await desk.close()

    def lease(self, key: str, owner_id: str, *, ttl_ms: int = 30_000) -> Lease:
        return Lease(self.store, key, owner_id, self.ambient, ttl_ms=ttl_ms)


def open_platform(
    address: str | StoreSpec | None = None, *, settings: Settings | None = None, ambient: Ambient | None = None
) -> Opening[Holdfast]:
    """The platform at ``address``; without one, at the store that the settings name."""

    async def opened() -> Holdfast:
        known = settings if settings is not None else load()
        target = address if address is not None else known.store.uri
        spec = target if isinstance(target, StoreSpec) else _timed(StoreSpec.parse(target, known), known)
        return Holdfast(await open_store(spec, settings=known, ambient=ambient, immutable=_immutable(known)), known)

    return Opening(opened)


def _immutable(settings: Settings) -> Callable[[str], bool] | None:
    """Which keys the disk cache may keep: those that a domain never writes twice."""
    if settings.cache.dir is None:
        return None
    from holdfast.ontology.format import layout as ontology  # noqa: PLC0415  # as above
    from holdfast.runs import layout as runs  # noqa: PLC0415  # as above
    from holdfast.telemetry.accept import layout as ingest  # noqa: PLC0415  # imported only for a cache
    from holdfast.telemetry.rollup import layout as metrics  # noqa: PLC0415  # as above

    domains = (ontology, runs, ingest, metrics)
    return lambda key: any(domain.immutable(key) for domain in domains)


def _timed(spec: StoreSpec, settings: Settings) -> StoreSpec:
    """The specification's name for a request's time-out counts where it is given and the URI gives none."""
    options = dict(spec.options)
    if spec.scheme != "s3" or "s3_request_timeout_s" not in settings.ontology.model_fields_set:
        return spec
    options.setdefault("request_timeout_ms", str(int(settings.ontology.s3_request_timeout_s * 1000)))
    return replace(spec, options=tuple(sorted(options.items())))


def connect(
    address: str | StoreSpec | None = None, *, settings: Settings | None = None, timeout: float | None = None
) -> "BlockingHoldfast":
    """The same for blocking code: every async method of ``hf``, and of what it returns, blocks until it is done.

    For a ``with`` block, or until ``hf.close()``.
    """
    view: Any = Connection.open(open_platform(address, settings=settings), timeout=timeout)
    return view  # type: ignore[no-any-return]  # the stub says what the view's methods give
