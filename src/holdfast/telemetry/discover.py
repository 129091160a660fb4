"""Which batches were accepted: what a reference by time leads to.

A reference is written before the manifest that it names, by anybody who may write references. So it proves nothing: the
accepted manifest is loaded, and the reference counts only if it stands where that manifest puts it.

Errors: ``NotFound`` for a reference that is gone, ``Corrupt`` or ``Incompatible`` for a reference or a manifest that
cannot be read.
"""

from enum import Enum

from holdfast.base import codec
from holdfast.base.errors import Corrupt
from holdfast.objects.store import Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest


class Stray(Enum):
    """A reference that leads to no accepted batch."""

    NO_MANIFEST = "no manifest of its identity has been written"
    OTHER_ACCEPTANCE = "the manifest of its identity records another acceptance"


async def follow(store: Store, key: str) -> AcceptedManifest | Stray:
    """The accepted batch that a reference by time leads to. Two GETs."""
    named = codec.decode((await store.get(key)).body, key=key).get("accepted_manifest_key")
    identity = layout.identity_in(named) if isinstance(named, str) else None
    if identity is None or named != layout.accepted_key(identity):
        raise Corrupt(f"{key}: names no manifest")
    found = await store.find(named)
    if found is None:
        return Stray.NO_MANIFEST
    manifest = AcceptedManifest.read(found)
    return manifest if _stands_at(key, manifest) else Stray.OTHER_ACCEPTANCE


def _stands_at(key: str, manifest: AcceptedManifest) -> bool:
    try:
        return key == layout.accepted_by_time_key(manifest.accepted_at_unix_ns, manifest.identity)
    except (ValueError, OverflowError):  # another writer's manifest may hold any number for its time
        return False
