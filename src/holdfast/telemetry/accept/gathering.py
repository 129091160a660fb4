"""What a collector accepted within a moment, gathered into one object: the references by time of many batches at once.

A PUT per batch for a reference would be a third of all that a collector asks of the store. A gathering holds the
manifests whole, so whoever reads it needs neither references nor manifests. All of its batches were accepted in one
hour, that of its key. It is written once, under a name of its own, and decides nothing: batches that a crash left out
of it are found by their manifests, as those without a reference are.

Errors of ``manifests_in``: ``Corrupt`` for an object that cannot be read, ``Incompatible`` for a schema that is not
known here.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.base import codec
from holdfast.base.aio import map_bounded
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt, Incompatible, Invalid, NotFound
from holdfast.objects.store import Entry, Object, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.layout import Gathering
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.identity import BatchIdentity

SCHEMA = "holdfast.acceptances.v1"
ID_DIGITS = 32
AT_ONCE = 16
HOURS = 24
"""Of which it is known what was gathered in them; the rest is read again when somebody asks."""


def gather(manifests: Sequence[AcceptedManifest], written_at_ns: int) -> tuple[str, bytes]:
    """Key and bytes of a gathering of these, which were accepted in one hour."""
    body = codec.encode({"schema": SCHEMA, "accepted_manifests": [each.document() for each in manifests]})
    ident = hashlib.sha256(body).hexdigest()[:ID_DIGITS]
    name = Gathering(written_at_ns, len(manifests), ident)
    return layout.gathering_key(manifests[0].accepted_at_unix_ns, name), body


def manifests_in(found: Object) -> list[AcceptedManifest]:
    """The manifests that a gathering holds, or the one that a reference by time does."""
    document = codec.decode(found.body, key=found.key)
    if found.key.startswith(layout.GATHERINGS):
        return _gathered(document, found.key)
    key, inner = document.get("accepted_manifest_key"), document.get("accepted_manifest")
    if not isinstance(key, str) or not isinstance(inner, dict):
        raise Corrupt(f"{found.key}: names no manifest")
    return [AcceptedManifest.of(inner, key)]


def _gathered(document: Document, key: str) -> list[AcceptedManifest]:
    if document.get("schema") != SCHEMA:
        raise Incompatible(f"{key}: schema {document.get('schema')!r} is not known here", remedy="upgrade holdfast")
    try:
        return [AcceptedManifest.of(each, _own_key(each)) for each in document["accepted_manifests"]]
    except (Invalid, *MALFORMED) as error:
        raise Corrupt(f"{key}: not what a collector gathers ({error!r})") from error


def _own_key(fields: Document) -> str:
    """Where a gathered manifest stands: its identity says so."""
    return layout.accepted_key(
        BatchIdentity(fields["agent_id"], fields["boot_id"], fields["seq_start"], fields["seq_end"])
    )


@dataclass(slots=True)
class Gathered:
    """Which batches were gathered, and when the store had that; for audits. An hour is read when it is asked for."""

    store: Store
    _hours: dict[str, dict[bytes, int]] = field(default_factory=dict)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def at_ns(self, manifest: AcceptedManifest) -> int | None:
        """By the store's clock; None if it was not gathered."""
        hour = layout.hour_path(manifest.accepted_at_unix_ns)
        async with self._reading:
            if hour not in self._hours:
                if len(self._hours) >= HOURS:
                    del self._hours[next(iter(self._hours))]
                self._hours[hour] = await self._read(hour)
        return self._hours[hour].get(_short(manifest))

    async def _read(self, hour: str) -> dict[bytes, int]:
        entries = [entry async for page in self.store.list(f"{layout.GATHERINGS}{hour}") for entry in page.entries]
        found: dict[bytes, int] = {}
        for part in await map_bounded(entries, self._of, limit=AT_ONCE):
            found |= part
        return found

    async def _of(self, entry: Entry) -> dict[bytes, int]:
        try:
            return {_short(each): entry.modified_ns for each in manifests_in(await self.store.get(entry.key))}
        except (NotFound, Corrupt, Incompatible):
            return {}  # whoever follows gatherings reports it; for an audit its batches were not gathered


def _short(manifest: AcceptedManifest) -> bytes:
    return bytes.fromhex(manifest.identity.manifest_id)[:12]
