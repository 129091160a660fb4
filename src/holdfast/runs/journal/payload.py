"""Values inside entries: packed on the way in, unpacked on the way out.

A small value stands in its entry as JSON. A large one goes to a payload object first, and the entry refers to it; large
bytes go there as they are.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.base import aio, codec
from holdfast.base.clock import iso, parse_iso
from holdfast.base.errors import Corrupt, Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import OVERWRITE, Store
from holdfast.runs import layout
from holdfast.runs.errors import NotJson, ReplayMismatch, StepFailed
from holdfast.runs.journal.entry import Entry
from holdfast.runs.values import from_json, to_json

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


_ENVELOPE = "value"
_READS = 16
_CERTAINLY_SMALL = 4096


def is_plain(value: Any) -> bool:
    """Whether a value is written as it is, and fits into its entry: most texts and numbers."""
    kind = type(value)
    return (kind is str and len(value) < _CERTAINLY_SMALL) or value is None or kind is bool or kind is int


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

    def small_fields(self, field: str) -> dict[str, Any] | None:
        """The entry's fields that hold this value, if it certainly fits into the entry."""
        return {field: self._json} if self._raw is None and _certainly_small(self._json) else None

    async def fields(self, field: str, store: Store, ambient: Ambient, run_id: str) -> dict[str, Any]:
        """The entry's fields that hold this value, after the payload is safe where there is one."""
        if self._raw is not None:
            reference = await put_payload(store, ambient, run_id, self._raw)
            return {"payload": {**reference, "encoding": "bytes"}}
        if (small := self.small_fields(field)) is not None:
            return small
        body = codec.encode({_ENVELOPE: self._json})
        if len(body) <= INLINE_LIMIT:
            return {field: self._json}
        return {"payload": {**await put_payload(store, ambient, run_id, body), "encoding": "json"}}


def failure(error: StepFailed) -> dict[str, Any]:
    """The fields of a step that failed for good."""
    return {"error": {"type": error.error_type, "message": error.message}}


async def unpack(store: Store, entry: Entry, field: str = "result") -> Any:
    """The value that an entry holds; raises ``StepFailed`` for a failure. A missing field is None."""
    failed = entry.fields.get("error")
    if failed is not None and entry.type == "step":
        ident = str(entry.fields.get("stepId"))
        if not isinstance(failed, dict):
            raise StepFailed(ident, "Error", str(failed))
        raise StepFailed(ident, str(failed.get("type", "Error")), str(failed.get("message", "")))
    reference = entry.fields.get("payload")
    if reference is None:
        return from_json(entry.fields.get(field))
    body = await get_payload(store, reference)
    if reference.get("encoding") == "bytes":
        return body
    return from_json(codec.decode(body, key=str(reference.get("key")))[_ENVELOPE])


async def unpack_group(store: Store, group: str, entries: Mapping[str, Entry | None]) -> list[Any]:
    """The values of a parallel group that the workflow has gone on from, in order. The failure that came first, which
    stopped the group, is raised.
    """
    failed = [entry for entry in entries.values() if entry is not None and "error" in entry.fields]
    if failed:
        await unpack(store, min(failed, key=lambda entry: entry.offset))

    async def one(item: tuple[str, Entry | None]) -> Any:
        step, entry = item
        if entry is None:
            raise ReplayMismatch(
                f"the journal has no step {step!r}, and the group {group!r} was over when it was recorded",
                remedy="restore the code, give the workflow a new version, or fork the run before that group",
            )
        return await unpack(store, entry)

    return await aio.map_bounded(entries.items(), one, limit=_READS)


def wake_time(now_ns: int, span_s: float, until: datetime | None) -> tuple[int, str]:
    """When a sleep is over, as a number and as it is written."""
    if until is not None and until.tzinfo is None:
        raise Invalid("sleep(until=...) needs a time zone", remedy="use datetime(..., tzinfo=UTC)")
    try:
        wake_ns = now_ns + round(span_s * 1e6) * 1000 if until is None else parse_iso(until.isoformat())
        return wake_ns, iso(wake_ns)
    except (ValueError, OverflowError) as error:
        raise Invalid(
            f"a sleep of {span_s} seconds ends at no time that can be written", remedy="sleep less"
        ) from error


def wake_of(suspend: Entry) -> int | None:
    """When the wait that this entry begins is over; None if it is for an event."""
    wake = suspend.fields.get("wakeAt")
    return parse_iso(wake) if wake else None


def _certainly_small(value: Any) -> bool:
    """Saves encoding twice for the common case."""
    return is_plain(value) or type(value) is float
