"""Values inside entries: packed on the way in, unpacked on the way out.

A small value stands in its entry as JSON. A large one goes to a payload object first, and the entry refers to it; large
bytes go there as they are.
"""

from typing import Any

from holdfast.base import codec
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.runs.entry import Entry
from holdfast.runs.errors import StepFailed
from holdfast.runs.payload import INLINE_LIMIT, get_payload, put_payload
from holdfast.runs.values import from_json, to_json

_ENVELOPE = "value"


class Packed:
    """A value in the form in which it will be written. ``value`` is what a replay will see."""

    def __init__(self, value: Any, where: str = "value") -> None:
        self._raw = value if type(value) is bytes and len(value) > INLINE_LIMIT else None
        self._json = None if self._raw is not None else to_json(value, where)

    @property
    def value(self) -> Any:
        return self._raw if self._raw is not None else from_json(self._json)

    async def fields(self, field: str, store: Store, ambient: Ambient, run_id: str) -> dict[str, Any]:
        """The entry's fields that hold this value, after the payload is safe where there is one."""
        if self._raw is not None:
            reference = await put_payload(store, ambient, run_id, self._raw)
            return {"payload": {**reference, "encoding": "bytes"}}
        if _certainly_small(self._json):
            return {field: self._json}
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
        raise StepFailed(ident, str(failed.get("type", "Error")), str(failed.get("message", "")))
    reference = entry.fields.get("payload")
    if reference is None:
        return from_json(entry.fields.get(field))
    body = await get_payload(store, reference)
    if reference.get("encoding") == "bytes":
        return body
    return from_json(codec.decode(body, key=str(reference.get("key")))[_ENVELOPE])


def _certainly_small(value: Any) -> bool:
    """Saves encoding twice for the common case."""
    return value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) < 4096)
