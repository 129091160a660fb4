"""Events that a run's steps emit: part of the step's entry, published after the entry is recorded.

An event's id follows from the run and the step, and the whole event is in the entry (``outbox``), so publishing it
may be repeated. A later entry records up to which offset everything is published (``outboxTo``); the next session
publishes what is above it before it does anything else. So an event becomes visible if its step is recorded, and once.

Runs do not know the format of events: the caller of a run provides a courier that does.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from holdfast.base.codec import Document
from holdfast.base.errors import Invalid
from holdfast.runs.journal.entry import Draft, Entry

OUTBOX = "outbox"
OUTBOX_TO = "outboxTo"


class Courier(Protocol):
    def compose(self, event: Any, event_id: str, options: dict[str, Any]) -> Document:
        """The event as it will be published. ``event_id`` is 32 hexadecimal digits."""
        ...

    async def publish(self, documents: Sequence[Document]) -> None:
        """Write those that do not exist yet."""
        ...


_courier: ContextVar[Courier | None] = ContextVar("holdfast_courier", default=None)
_events: ContextVar[list[Document] | None] = ContextVar("holdfast_emitted", default=None)


@contextmanager
def carried_by(courier: Courier) -> Iterator[None]:
    """Runs called inside this context publish their events through ``courier``."""
    token = _courier.set(courier)
    try:
        yield
    finally:
        _courier.reset(token)


def collect_events() -> list[Document]:
    """Start an empty list for the events of a step's try; those of an earlier try are dropped."""
    events: list[Document] = []
    _events.set(events)
    return events


class Outbox:
    """The outgoing events of one session."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        known = list(entries)
        self._written_to = max((int(entry.fields.get(OUTBOX_TO, -1)) for entry in known), default=-1)
        """As recorded in the journal."""
        self._seen_to = -1
        self._left: dict[int, Sequence[Document]] = {}
        for entry in known:
            self._note(entry)

    def emit(self, event: Any, key: str, draw: Callable[[str], str], options: dict[str, Any]) -> None:
        """Add an event to the running step, whose key is ``key``. ``draw`` derives an id from a text."""
        events = _events.get()
        if events is None:
            raise Invalid("ctx.emit was called outside a step", remedy="emit inside the function that the step runs")
        events.append(self._courier().compose(event, draw(f"{key} emits {len(events)}"), options))

    def note(self, entries: Iterable[Entry]) -> bool:
        """Take the events of entries that have been recorded; whether there are events to publish."""
        for entry in entries:
            if OUTBOX in entry.fields:
                self._note(entry)
        return bool(self._left)

    async def send(self) -> None:
        """Publish the events of the entries so far."""
        for offset in sorted(self._left):
            documents = self._left.get(offset)
            if documents is not None:
                await self._courier().publish(documents)
                self._left.pop(offset, None)

    def marked(self, draft: Draft) -> Draft:
        """The draft with the offset up to which everything is published, if the journal does not have it yet."""
        done = min(self._left) - 1 if self._left else self._seen_to
        if done <= self._written_to:
            return draft
        self._written_to = done
        return Draft(draft.type, {**draft.fields, OUTBOX_TO: done})

    def _note(self, entry: Entry) -> None:
        if entry.offset > self._written_to and entry.fields.get(OUTBOX):
            self._left[entry.offset] = list(entry.fields[OUTBOX])
            self._seen_to = max(self._seen_to, entry.offset)

    def _courier(self) -> Courier:
        courier = _courier.get()
        if courier is None:
            raise Invalid(
                "this run emits events, and the caller provides no way to publish them",
                remedy="call it by hf.start, hf.resume, hf.work",
            )
        return courier
