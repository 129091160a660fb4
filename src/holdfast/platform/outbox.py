"""Outbox: events that a commit carries in its manifest, brought to the bus.

Commit and events become visible in one compare-and-swap of the head. Any process may then publish the events, any
number of times: an event's key and bytes follow from the manifest alone (attempt, position of the event, time of the
commit), and it is created only if absent. ``mend`` publishes what a crash left out: manifests with an outbox are linked
to each other, and ``meta/outbox.json`` says up to which commit everything is published, so only new manifests are read.

The mark is moved only over commits that were published by who moves it, or before. A cleanup of the bus mends first: an
event that is not published yet may be old, and the boundary must not pass it.
"""

from functools import partial
from typing import Any

from holdfast.base.aio import map_bounded
from holdfast.base.clock import parse_iso
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt
from holdfast.base.ids import Ambient
from holdfast.bus.event import Emission, Envelope
from holdfast.bus.layout import check_part, derived_id
from holdfast.bus.publish import put_event
from holdfast.objects.register import UNCHANGED, Plain, Register, Unchanged
from holdfast.objects.store import NotModified, Object, Store, Version
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import EMPTY, Ledger
from holdfast.ontology.format.head import parse
from holdfast.ontology.format.manifest import Manifest
from holdfast.ontology.types.refs import Place

MARK = "meta/outbox.json"
PARALLEL = 16
_MICROSECOND = 1_000


def enclosed(emission: Emission, namespace: str, parent: Envelope | None = None) -> Document:
    """An event as it is in a manifest: without id and time, which follow from the commit."""
    document: Document = {
        "namespace": check_part("namespace", namespace),
        "type": emission.type,
        "payload": emission.payload,
        "priority": emission.priority,
    }
    if emission.delay:
        document["delay_ms"] = int(emission.delay * 1000)
    if emission.order_key is not None:
        document["order_key"] = emission.order_key
    if parent is not None:
        document["parent_event_id"] = parent.id
        document["root_event_id"] = parent.root_event_id
        document["chain_depth"] = parent.chain_depth + 1
    return document


def envelopes(manifest: Manifest) -> list[Envelope]:
    """The events of a commit, derived from its manifest alone."""
    if not manifest.outbox or manifest.summary is None:
        return []
    committed_ns = parse_iso(manifest.created_at) // _MICROSECOND * _MICROSECOND
    try:
        return [
            _envelope(document, manifest.summary.attempt_id, position, committed_ns + position * _MICROSECOND)
            for position, document in enumerate(manifest.outbox)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{manifest.path}: an entry of its outbox is not an event ({error!r})") from error


def _envelope(document: Document, attempt_id: str, position: int, created_ns: int) -> Envelope:
    event_id = derived_id("commit", attempt_id, str(position))
    delay_ms = int(document.get("delay_ms", 0))
    return Envelope(
        id=event_id,
        namespace=str(document["namespace"]),
        type=str(document["type"]),
        payload=dict(document["payload"]),
        created_ns=created_ns,
        priority=int(document["priority"]),
        root_event_id=str(document.get("root_event_id", event_id)),
        chain_depth=int(document.get("chain_depth", 0)),
        available_ns=created_ns + delay_ms * 1_000_000 if delay_ms else None,
        order_key=document.get("order_key"),
        parent_event_id=document.get("parent_event_id"),
    )


class Outbox:
    """The outbox of one store, as one process sees it. Keep it: it remembers what saves requests."""

    def __init__(self, store: Store, ambient: Ambient) -> None:
        self._store = store
        self._ambient = ambient
        self._chain = Chain(store)
        self._ledger: Ledger = EMPTY
        self._head: Version | None = None
        """The head that was mended last."""
        self._published: set[str] = set()
        """Manifests whose events this process has written, not yet below the mark."""
        self._register: Register[Any] = Register(store, MARK, Plain("holdfast.outbox"), ambient)

    async def publish(self, manifest: Manifest) -> int:
        """Write a commit's events, those that are absent; how many it has."""
        events = envelopes(manifest)
        await map_bounded(events, partial(put_event, self._store), limit=PARALLEL)
        self._published.add(manifest.path)
        return len(events)

    async def mend(self) -> int:
        """Publish what a crash left out, and move the mark; how many commits that were.

        One conditional GET if no commit was made since the last time.
        """
        found = await self._changed()
        if found is None:
            return 0
        head = parse(found)
        self._ledger = await self._chain.ledger(head.place, self._ledger)
        left = await self._left()
        for manifest in left:
            await self.publish(manifest)
        if self._ledger.outbox is not None and (left or self._published):
            await self._advance(self._ledger.outbox)
        self._published.clear()
        self._head = head.version
        return len(left)

    async def _changed(self) -> Object | None:
        """The head, if there is one and it is another than the one that was mended last."""
        if self._head is None:
            return await self._store.find(layout.HEAD)
        found = await self._store.get_unless(layout.HEAD, self._head)
        return None if isinstance(found, NotModified) else found

    async def _left(self) -> list[Manifest]:
        """Commits above the mark whose events this process has not written itself, oldest first."""
        place = self._ledger.outbox
        if place is None:
            return []
        mark = await self._mark()
        left: list[Manifest] = []
        while place is not None and place.commit_id > mark:
            manifest = await self._chain.manifest(place)
            if place.path not in self._published:
                left.append(manifest)
            place = manifest.summary.outbox_before if manifest.summary is not None else None
        return left[::-1]

    async def _mark(self) -> int:
        found = await self._register.read()
        return 0 if found is None else int(found.value["commit_id"])

    async def _advance(self, to: Place) -> None:
        def later(value: Any) -> Any | Unchanged:
            known = 0 if value is None else int(value["commit_id"])
            return UNCHANGED if known >= to.commit_id else {"commit_id": to.commit_id, "path": to.path}

        await self._register.edit(self._ambient.ids.unique(), later)
