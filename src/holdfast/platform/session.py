"""A session on the ontology whose commits carry events.

    async with hf.ontology(Customer) as onto:
        onto.ensure(Customer(id="c1", name="Ada"))
        onto.emit(CustomerJoined(id="c1"))
        await onto.commit()

What is emitted is part of the commit's manifest: visible with it, or never. It is written to the bus right after,
before ``commit`` returns; if that fails the commit is valid, and the events follow, by this session's next commit, by
its end, or by any worker.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.base import telemetry
from holdfast.base.codec import Document
from holdfast.base.errors import HoldfastError
from holdfast.base.ids import Ambient
from holdfast.bus import Event
from holdfast.bus.event import DEFAULT_PRIORITY, Emission
from holdfast.objects.store import Store
from holdfast.ontology.commit.attempt import Witness
from holdfast.ontology.commit.commit import Commit
from holdfast.ontology.format.data.batch import Batch, Intent
from holdfast.ontology.format.manifest import Manifest
from holdfast.ontology.session import Ontology, Options
from holdfast.ontology.types.model import Mixin
from holdfast.platform.outbox import Outbox, enclosed

log = telemetry.logger("platform")


class Session(Ontology):
    def __init__(
        self,
        store: Store,
        ambient: Ambient,
        types: Iterable[type[Mixin]],
        options: Options | None = None,
        *,
        outbox: Outbox | None = None,
    ) -> None:
        super().__init__(store, ambient, types, options)
        self._outbox = outbox if outbox is not None else Outbox(store, ambient)
        self._unpublished: list[Manifest] = []
        self._emitted = False

    def emit(
        self,
        event: Event,
        *,
        namespace: str = "default",
        delay: float = 0.0,
        priority: int = DEFAULT_PRIORITY,
        order_key: str | None = None,
    ) -> None:
        """Publish ``event`` with the next commit: if and when that is made, once."""
        emission = Emission.of(event, delay=delay, priority=priority, order_key=order_key)
        self._committer.outbox.append(enclosed(emission, namespace))

    # --- for handlers, which collect changes before they have a session ---

    def add(self, python: type[Mixin]) -> None:
        """One more type that this session has."""
        self._add(python)

    def intents(self, given: Any, of: type[Mixin] | None, expect: Any) -> list[Intent | Batch]:
        """What ``ensure`` would queue."""
        return self._intents(given, of, expect)

    def retraction(self, of: type[Mixin], key: tuple[Any, ...], expect: Any) -> Intent:
        """What ``retract`` would queue."""
        return self._retraction(of, key, expect)

    def enqueue(self, intents: Iterable[Intent | Batch], outbox: Iterable[Document]) -> None:
        self._committer.queue += intents
        self._committer.outbox += outbox

    # --- commits ---

    async def commit(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        if_head: int | None = None,
        witness: Witness | None = None,
    ) -> Commit | None:
        try:
            return await super().commit(metadata, if_head=if_head, witness=witness)
        finally:
            await self._publish()

    async def close(self) -> None:
        try:
            await self._publish()
            if self._emitted:
                await self._mend()
        finally:
            await super().close()

    def _committed(self, manifest: Manifest) -> None:
        super()._committed(manifest)
        if manifest.outbox:
            self._unpublished.append(manifest)
            self._emitted = True

    async def _publish(self) -> None:
        """The events of what this session has committed. The commit is valid, whatever happens to them."""
        while self._unpublished:
            try:
                await self._outbox.publish(self._unpublished[0])
            except HoldfastError as error:
                log.warning("commit %d: its events follow later (%s)", self._unpublished[0].commit_id, error)
                return
            del self._unpublished[0]

    async def _mend(self) -> None:
        try:
            await self._outbox.mend()
        except HoldfastError as error:
            log.warning("%s; the next session or worker mends it", error)
