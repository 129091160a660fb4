"""Values inside entries: packed on the way in, unpacked on the way out.

A small value is in its entry as JSON. A large one goes to a payload object first, and the entry refers to it; large
bytes go there as they are.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from holdfast.base import aio, codec
from holdfast.base.errors import Corrupt, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import OVERWRITE, Store
from holdfast.runs import layout
from holdfast.runs.errors import NotJson, StepFailed, recorded_error
from holdfast.runs.journal.entry import Entry
from holdfast.runs.values import from_json, to_json

INLINE_LIMIT = 32 * 1024
"""The largest encoded value that is in its entry."""

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


_ENVELOPE = "value"


class Packed:
    """A value in the form in which it will be written."""

    def __init__(self, value: Any, where: str = "value") -> None:
        self._where = where
        self._raw = value if type(value) is bytes and len(value) > INLINE_LIMIT else None
        self._json = None if self._raw is not None else to_json(value, where)

    def read_back(self) -> Any:
        """What a replay will see; ``NotJson`` if it would see nothing, before that is for ever."""
        if self._raw is not None:
            return self._raw
        try:
            return from_json(self._json)
        except Exception as error:
            raise NotJson(
                f"{self._where} could be written down, but not read again: {type(error).__name__}: {error}",
                remedy="correct the codec, or keep the class where it can be found",
            ) from error

    async def fields(self, field: str, store: Store, ambient: Ambient, run_id: str) -> dict[str, Any]:
        """The entry's fields that hold this value, after the payload is safe where there is one."""
        if self._raw is not None:
            reference = await put_payload(store, ambient, run_id, self._raw)
            return {"payload": {**reference, "encoding": "bytes"}}
        body = codec.encode({_ENVELOPE: self._json})
        if len(body) <= INLINE_LIMIT:
            return {field: self._json}
        return {"payload": {**await put_payload(store, ambient, run_id, body), "encoding": "json"}}


async def unpack(store: Store, entry: Entry, field: str = "result") -> Any:
    """The value that an entry holds; raises ``StepFailed`` for a failure. A missing field is None."""
    failed = entry.fields.get("error")
    if failed is not None and entry.type == "step":
        raise StepFailed(str(entry.fields.get("stepId")), *recorded_error(failed))
    reference = entry.fields.get("payload")
    if reference is None:
        return from_json(entry.fields.get(field))
    body = await get_payload(store, reference)
    if reference.get("encoding") == "bytes":
        return body
    return from_json(codec.decode(body, key=str(reference.get("key")))[_ENVELOPE])
