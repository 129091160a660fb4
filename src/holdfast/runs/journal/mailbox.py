"""Events delivered to a run from outside, also before it asks for them.

A mail is one immutable object, created once: delivery never contends with the journal. A run that waits for an event
takes the oldest mail of that name that no ``resume`` entry has consumed yet; which one it took is written in the
entry. Delivery with a ``key`` is idempotent: the key names the object. So is one without, to a run that waits for the
event: the wait and the value name the object.
"""

import hashlib
from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from holdfast.base import codec
from holdfast.base.errors import Conflict
from holdfast.base.ids import Ambient
from holdfast.base.record import ControlRecord
from holdfast.objects.store import CREATE, Store, Written
from holdfast.runs import layout
from holdfast.runs.journal.history import History
from holdfast.runs.layout import check_event
from holdfast.runs.values import from_json, to_json


@dataclass(frozen=True)
class MailRecord(ControlRecord):
    """One delivery as it is stored; the value in its JSON form."""

    FORMAT = "holdfast.mail"
    WHAT = "mail"

    event: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class Mail:
    id: str
    event: str
    value: Any


@dataclass(frozen=True, slots=True)
class Posted:
    """A delivery. ``again``: it was made before, so this call has changed nothing."""

    id: str
    again: bool = False


async def post(
    store: Store,
    ambient: Ambient,
    run_id: str,
    event: str,
    value: Any,
    *,
    key: str | None = None,
    question: str | None = None,
) -> Posted:
    """Leave ``value`` for the run. The same ``key`` with another value is a ``Conflict``.

    Without a key, ``question`` names the wait that the value answers: the same value for the same wait is one delivery.
    """
    check_event(event)
    content = to_json(value, f"value of event {event}")
    if key is None and question is not None:
        mail_id = keyed_id(f"{question} {hashlib.sha256(codec.encode({'value': content})).hexdigest()}")
    else:
        mail_id = keyed_id(key) if key is not None else _fresh_id(ambient)
    where = layout.mail_key(run_id, event, mail_id)
    outcome = await store.put(where, MailRecord(event, content).encode(ambient.ids.write_id()), CREATE)
    if isinstance(outcome, Written):
        return Posted(mail_id)
    if outcome.current is None or MailRecord.decode(outcome.current.body, key=where).value != content:
        raise Conflict(
            f"run {run_id}: event {event} was delivered before with key {key!r} and another value",
            remedy="use another key for another value",
        )
    return Posted(mail_id, again=True)


class Inbox:
    """One session's view of a run's mail: the history is searched once, and all mail of one listing is
    returned before the next listing. So n waits for n mails cost one pass and one LIST, not n of each.

    A mail that comes later is younger than those that a listing has shown, so the order stays that of their arrival.
    """

    def __init__(self, store: Store, history: History) -> None:
        self._store = store
        self._run_id = history.run_id
        self._history = history
        self._taken: set[str] | None = None
        self._waiting: dict[str, deque[str]] = {}
        """Keys by event, the oldest mail first."""

    async def collect(self, event: str) -> Mail | None:
        """The oldest mail for ``event`` that this run has not consumed. The caller records that it was consumed."""
        if self._taken is None:
            self._taken = taken(self._history)
        if not self._waiting.get(event):
            self._waiting[event] = deque(await self._listed(event, self._taken))
        if not self._waiting[event]:
            return None
        where = self._waiting[event].popleft()
        found = MailRecord.decode((await self._store.get(where)).body, key=where)
        mail = Mail(layout.id_of(where), event, from_json(found.value))
        self._taken.add(mail.id)
        return mail

    async def _listed(self, event: str, taken: Container[str]) -> list[str]:
        found = [
            (entry.modified_ns, entry.key)
            async for page in self._store.list(layout.mail_folder(self._run_id, event))
            for entry in page.entries
            if layout.id_of(entry.key) not in taken
        ]
        return [key for _, key in sorted(found)]


def taken(history: History) -> set[str]:
    """The mails that this run has consumed already."""
    return {str(entry.fields["mail"]) for entry in history.entries if "mail" in entry.fields} | {*history.state.mails}


def consumed_keys(history: History) -> list[str]:
    """The keys of the mails that this history has consumed."""
    return [
        layout.mail_key(history.run_id, str(entry.fields.get("event")), str(entry.fields["mail"]))
        for entry in history.entries
        if "mail" in entry.fields
    ]


def keyed_id(key: str) -> str:
    return "k-" + hashlib.sha256(key.encode()).hexdigest()[:32]


def _fresh_id(ambient: Ambient) -> str:
    return "m-" + ambient.ids.unique()
