"""A spool as earlier versions left it: batches in a folder for each agent and boot, and a file for each note.

    pending/v1/agent={hex}/boot={hex}/{start}-{end}.lmbatch
    landed/v1/agent={hex}/boot={hex}/{start}-{end}.json

It is brought into today's form when it is opened. Each part is there anew before the old one goes, so it may be cut
short at any moment and goes on the next time. The time at which a batch was accepted becomes that of its move.
"""

from collections.abc import Callable

from holdfast.base import codec
from holdfast.ingest import layout
from holdfast.ingest.identity import BatchIdentity
from holdfast.ingest.manifest import AcceptedManifest
from holdfast.ingest.note import check_noteworthy
from holdfast.ingest.notes import Notes
from holdfast.objects.store import CREATE, Store

PENDING = "pending/v1/"
LANDED = "landed/v1/"


async def upgrade(store: Store, notes: Notes, pending_key: Callable[[BatchIdentity], str]) -> None:
    async for page in store.list(LANDED):
        found = [manifest for entry in page.entries if (manifest := await _note(store, entry.key)) is not None]
        await notes.add(found)
        await store.delete_many([entry.key for entry in page.entries])
    async for key in store.keys(PENDING):
        identity = layout.identity_in(key)
        if identity is not None:
            await store.put(pending_key(identity), (await store.get(key)).body, CREATE)
            await store.delete(key)


async def _note(store: Store, key: str) -> AcceptedManifest | None:
    identity = layout.identity_in(key)
    if identity is None:
        return None
    document = codec.decode((await store.get(key)).body, key=key)["accepted_manifest"]
    return check_noteworthy(AcceptedManifest.of(document, layout.accepted_key(identity)))
