"""What a collector accepted within a moment, gathered into one object: the references by time of many batches at once.

A PUT per batch for a reference would be a third of all that a collector asks of the store. A gathering holds the
manifests whole, so whoever reads it needs neither references nor manifests. All of its batches were accepted in one
hour, that of its key. It is written once, under a name of its own, and decides nothing: batches that a crash left out
of it are found by their manifests, as those without a reference are.

Errors of ``manifests_in``: ``Corrupt`` for an object that cannot be read, ``Incompatible`` for a schema that is not
known here.
"""

import hashlib
from collections.abc import Sequence

from holdfast.base import codec
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt, Incompatible, Invalid
from holdfast.ingest import layout
from holdfast.ingest.identity import BatchIdentity
from holdfast.ingest.layout import Gathering
from holdfast.ingest.manifest import AcceptedManifest
from holdfast.objects.store import Object

SCHEMA = "holdfast.acceptances.v1"
ID_DIGITS = 32


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
