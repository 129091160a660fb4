"""Payloads: large values in objects of their own, so that a journal stays small however much its steps return.

A payload is written before the entry that refers to it, under a key that no other attempt uses: it is never written
twice with different bytes, and one that no entry refers to is garbage of a session that came too late. The reference
holds the length and the hash of the bytes; what does not match them is ``Corrupt``, and so is a missing payload.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from holdfast.base import aio
from holdfast.base.errors import Corrupt, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import OVERWRITE, Store
from holdfast.runs import layout

INLINE_LIMIT = 32 * 1024
"""The largest encoded value that stands in its entry."""

_HASHED_IN_PLACE = 1024 * 1024


async def put_payload(store: Store, ambient: Ambient, run_id: str, body: bytes) -> dict[str, Any]:
    """Store the bytes; the reference for the entry. Unconditional, so that large bodies may go in parts."""
    key = layout.payload_key(run_id, ambient.ids.unique())
    sha256 = await _digest(body)
    await store.put(key, body, OVERWRITE)
    return {"key": key, "sha256": sha256, "bytes": len(body)}


async def get_payload(store: Store, reference: Mapping[str, Any]) -> bytes:
    """The bytes that an entry refers to."""
    key = reference.get("key")
    if not isinstance(key, str):
        raise Corrupt(f"a reference to a payload without a key: {dict(reference)!r}")
    try:
        body = (await store.get(key)).body
    except NotFound as error:
        raise Corrupt(f"{key}: a journal refers to this payload, which does not exist") from error
    if len(body) != reference.get("bytes") or await _digest(body) != reference.get("sha256"):
        raise Corrupt(f"{key}: its {len(body)} bytes are not the ones that the journal refers to")
    return body


async def _digest(body: bytes) -> str:
    if len(body) <= _HASHED_IN_PLACE:
        return hashlib.sha256(body).hexdigest()
    return await aio.blocking(lambda: hashlib.sha256(body).hexdigest())
