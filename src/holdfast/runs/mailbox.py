"""Events delivered to a run from outside, also before it asks for them.

A mail is one immutable object, created once: delivery never contends with the journal. A run that waits for an event
takes the oldest mail of that name that no ``resume`` entry has consumed yet; which one it took is written in the
entry. Delivery with a ``key`` is idempotent: the key names the object.
"""

import hashlib
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from holdfast.base import codec
from holdfast.base.errors import Conflict
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Store, Written
from holdfast.runs import layout
from holdfast.runs.history import History
from holdfast.runs.names import check_event
from holdfast.runs.values import from_json, to_json

FORMAT = "holdfast.mail"


@dataclass(frozen=True, slots=True)
class Mail:
    id: str
    event: str
    value: Any


async def post(store: Store, ambient: Ambient, run_id: str, event: str, value: Any, *, key: str | None = None) -> str:
    """Leave ``value`` for the run; the mail's id. The same ``key`` with another value is a ``Conflict``."""
    check_event(event)
    mail_id = _keyed_id(key) if key is not None else _fresh_id(ambient)
    content = to_json(value, f"value of event {event}")
    document = codec.stamp(
        {"event": event, "value": content}, format_name=FORMAT, version=1, write_id=ambient.ids.write_id()
    )
    where = layout.mail_key(run_id, event, mail_id)
    outcome = await store.put(where, codec.encode(document), CREATE)
    if isinstance(outcome, Written):
        return mail_id
    there = codec.decode(outcome.current.body, key=where) if outcome.current is not None else {}
    if there.get("value") != content:
        raise Conflict(
            f"run {run_id}: event {event} was delivered before with key {key!r} and another value",
            remedy="use another key for another value",
        )
    return mail_id


async def collect(store: Store, run_id: str, event: str, taken: Container[str]) -> Mail | None:
    """The oldest mail for ``event`` that is not ``taken``."""
    folder = layout.mail_folder(run_id, event)
    waiting = [
        (entry.modified_ns, entry.key)
        async for page in store.list(folder)
        for entry in page.entries
        if layout.mail_id(entry.key) not in taken
    ]
    if not waiting:
        return None
    where = min(waiting)[1]
    document = codec.decode((await store.get(where)).body, key=where)
    codec.expect(document, format_name=FORMAT, newest=1, key=where)
    return Mail(layout.mail_id(where), event, from_json(document["value"]))


def taken(history: History) -> set[str]:
    """The mails that this run has consumed already."""
    return {str(entry.fields["mail"]) for entry in history.entries if "mail" in entry.fields} | {*history.state.mails}


def consumed_keys(history: History) -> list[str]:
    """Where the mails lie that this history has consumed."""
    return [
        layout.mail_key(history.run_id, str(entry.fields.get("event")), str(entry.fields["mail"]))
        for entry in history.entries
        if "mail" in entry.fields
    ]


def _keyed_id(key: str) -> str:
    return "k-" + hashlib.sha256(key.encode()).hexdigest()[:32]


def _fresh_id(ambient: Ambient) -> str:
    return "m-" + ambient.ids.unique()
