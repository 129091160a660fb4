"""What tests of handlers over the whole platform share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.base.config import BusSection, Settings
from holdfast.bus import Event
from holdfast.bus.event import Envelope
from holdfast.ontology import Entity, Field
from holdfast.platform.open import Holdfast, open_platform

QUICK = Settings(bus=BusSection(event_poll_ms=5, event_backoff_base_ms=1, event_backoff_max_ms=2, event_jitter_ms=0))


class Invoice(Entity):
    id: Field[str] = Field(primary_key=True)
    amount: Field[int]


class OrderTaken(Event):
    order_id: str


class InvoiceDue(Event):
    order_id: str


@asynccontextmanager
async def platform(settings: Settings = QUICK, uri: str = "memory:") -> AsyncIterator[Holdfast]:
    async with open_platform(uri, settings=settings) as hf:
        yield hf


async def published(hf: Holdfast, type_name: str, namespace: str = "default") -> list[Envelope]:
    return [each.envelope for each in await hf.bus(namespace).events(limit=None, type_name=type_name)]
