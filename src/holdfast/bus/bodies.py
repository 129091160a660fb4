"""Events as one worker reads them: each body once, as long as it fits into memory."""

from collections import OrderedDict
from dataclasses import replace

from holdfast.base import telemetry
from holdfast.base.errors import Corrupt
from holdfast.bus import layout
from holdfast.bus.event import Envelope
from holdfast.objects.store import Store

log = telemetry.logger("bus")

CACHED = 8_192
"""Envelopes kept in memory, so that who reads an event to sort it need not read it again to handle it."""
CACHED_BYTES = 16 * 1024
"""A larger one is read again."""


class Bodies:
    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._envelopes: OrderedDict[str, Envelope] = OrderedDict()

    async def read(self, name: str) -> Envelope | None:
        """The event, read once; None if it is gone or no event at all."""
        if name in self._envelopes:
            self._envelopes.move_to_end(name)
            return self._envelopes[name]
        key = layout.event_key(self._namespace, name)
        try:
            found = await self._store.find(key)
            if found is None:
                return None
            layout.parse_name(name)
            envelope = Envelope.decode(found.body, key=key)
        except Corrupt as error:
            log.error("%s; it is left alone", error)
            return None
        if (envelope.name, envelope.namespace) != (name, self._namespace):  # where it lies is what it is called
            event_id, created_ns = layout.event_id(name), layout.created_ns(name)
            envelope = replace(envelope, id=event_id, created_ns=created_ns, namespace=self._namespace)
        if len(found.body) <= CACHED_BYTES:
            self._envelopes[name] = envelope
        if len(self._envelopes) > CACHED:
            self._envelopes.popitem(last=False)
        return envelope

    def forget(self, name: str) -> None:
        """The event is done with."""
        self._envelopes.pop(name, None)
