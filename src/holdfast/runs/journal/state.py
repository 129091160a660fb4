"""The state of a run: a pure function of its entries.

``TRANSITIONS`` says which entry may follow in which status; what is absent is a violation. The invariants are named
predicates on the state before and the next entry. A journal that is read is held to them (``Corrupt``, with the
offset), and so is every entry before it is written.

A run that waits stays ``suspended`` or ``sleeping`` until its wait is answered by a ``resume``, through any number of
``start`` entries. A run that is being cancelled continues, so that it can clean up, until ``cancel`` ends it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from holdfast.base.clock import parse_iso
from holdfast.base.errors import Corrupt
from holdfast.runs.journal.entry import CANCEL, COMPLETE, ERROR, RESUME, START, STEP, SUSPEND, Entry
from holdfast.runs.layout import CHILD_EVENT

Status = Literal[
    "new", "open", "suspended", "sleeping", "retrying", "cancelling", "success", "failed", "cancelled", "deleted"
]

FINISHED: frozenset[Status] = frozenset(("success", "failed", "cancelled", "deleted"))

# What an entry means for the status. Some types have several meanings; a field says which.
REOPEN, CANCELLING, SLEEP, RETRY, DELETE = "reopen", "cancelling", "sleep", "retry", "delete"

_WORKING = "working"
"""``open``, or ``cancelling`` if cancellation was asked for."""
_SAME = "same"

_STOPS = {ERROR: "failed", RETRY: "retrying", CANCEL: "cancelled", DELETE: "deleted"}
_WAITS = {SUSPEND: "suspended", SLEEP: "sleeping"}
_OPENS = {START: _WORKING, REOPEN: _WORKING, CANCELLING: "cancelling"}
_AT_WORK = {**_OPENS, STEP: _SAME, **_WAITS, RESUME: _WORKING, COMPLETE: "success", **_STOPS}
# A task beside the one that waits may still record a step. Only an answer leads on, so a wait cannot complete.
_WAITING = {**_OPENS, START: _SAME, REOPEN: _SAME, STEP: _SAME, **_WAITS, RESUME: _WORKING, **_STOPS}
_OVER = {REOPEN: _WORKING, DELETE: "deleted"}

TRANSITIONS: Mapping[str, Mapping[str, str]] = {  # status -> meaning of the next entry -> status; absent means error
    "new": _OPENS,
    "open": _AT_WORK,
    "cancelling": _AT_WORK,
    "suspended": _WAITING,
    "sleeping": _WAITING,
    "retrying": {**_OPENS, CANCEL: "cancelled", DELETE: "deleted"},
    "success": _OVER,
    "failed": _OVER,
    "cancelled": _OVER,
    "deleted": {},
}

ENDS = frozenset((COMPLETE, ERROR, CANCEL, DELETE))
"""What an entry means that ends a run."""

MAILS_KEPT = 64

_TIMES = ("wakeAt", "retryAt")


@dataclass(frozen=True, slots=True)
class Pending:
    """What a run waits for: an event, a time, or an event until a time."""

    event: str
    wake_at_ns: int | None
    entry: Entry


_NOTHING: Mapping[str, Any] = {}


class RunState(NamedTuple):
    """A tuple, because every step of every run makes a new one, and a tuple is made fastest."""

    next_offset: int = 0
    updated_at: str = ""
    status: Status = "new"
    session: int = 0
    """The highest. The session that wrote its ``start`` is the writer."""
    writer: str | None = None
    generation: int = 0
    start: Mapping[str, Any] = _NOTHING
    """The fields of the first ``start``: input, workflow, ..."""
    version: str | None = None
    """Of the first ``start`` that has one; a fork may have its own."""
    metadata: Mapping[str, Any] = _NOTHING
    tags: tuple[str, ...] = ()
    input_hashes: frozenset[str] = frozenset()
    source: Mapping[str, Any] | None = None
    """Of a fork: the run it was cut from, and where."""
    detached: bool = False
    """The latest ``start`` was written for a later call (fork, request): no process works on the run."""
    started_at: str = ""
    pending: Pending | None = None
    answers: Mapping[str, Entry] = _NOTHING
    """By event, the last answer that a caller gave without a key, so that the same answer again can be recognised."""
    asked: int = 0
    """How often the run has waited for an event from outside."""
    mails: tuple[str, ...] = ()
    """The mails that it consumed last, oldest first."""
    outcome: Entry | None = None
    failures: int = 0
    """``error`` entries since the run was created or opened again."""
    retry_at_ns: int | None = None
    cancelled_at: int | None = None
    """The offset of the ``start`` that asked for cancellation."""
    cancel_reason: str | None = None
    reopened: tuple[str, ...] = ()
    """When the run had ended, each time that it was opened again."""

    @property
    def finished(self) -> bool:
        return self.status in FINISHED

    @property
    def workflow(self) -> str:
        return str(self.start.get("workflow", ""))

    @property
    def wake_at_ns(self) -> int | None:
        """When the run wants to be called again by itself."""
        if self.status == "retrying":
            return self.retry_at_ns
        return self.pending.wake_at_ns if self.pending is not None else None


NEW = RunState()


def fold(entries: Iterable[Entry], *, key: str = "journal") -> RunState:
    """The state after all entries. ``key`` names the journal in the message of a violation."""
    state = NEW
    for entry in entries:
        state = advance(state, entry, key=key)
    return state


def advance(before: RunState, entry: Entry, *, key: str = "journal") -> RunState:
    moved = before._replace(next_offset=entry.offset + 1, updated_at=entry.timestamp)
    in_order = entry.offset == before.next_offset and entry.session == before.session
    if entry.type == STEP and in_order and STEP in TRANSITIONS[before.status]:
        return moved  # nearly every entry of a long history
    if wrong := violation(before, entry):
        raise Corrupt(f"{key}: offset {before.next_offset}: {wrong}")
    after = _APPLY[entry.type](moved, entry)
    target = TRANSITIONS[before.status][meaning(entry)]
    if target == _SAME:
        return after
    status = ("open" if after.cancelled_at is None else "cancelling") if target == _WORKING else target
    return after._replace(status=status)  # type: ignore[arg-type]  # the table holds statuses


# --- invariants: each takes the state before and the next entry ---


def offsets_are_contiguous(before: RunState, entry: Entry) -> bool:
    return entry.offset == before.next_offset


def sessions_only_grow(before: RunState, entry: Entry) -> bool:
    return entry.session > before.session if entry.type == START else entry.session >= before.session


def entries_belong_to_the_latest_session(before: RunState, entry: Entry) -> bool:
    return entry.type == START or entry.session == before.session


def the_status_allows_the_entry(before: RunState, entry: Entry) -> bool:
    return meaning(entry) in TRANSITIONS[before.status]


def its_times_can_be_read(before: RunState, entry: Entry) -> bool:
    try:
        for name in _TIMES:
            _time(entry.fields.get(name))
    except ValueError:
        return False
    return True


INVARIANTS: tuple[Callable[[RunState, Entry], bool], ...] = (
    offsets_are_contiguous,
    sessions_only_grow,
    entries_belong_to_the_latest_session,
    the_status_allows_the_entry,
    its_times_can_be_read,
)


def violation(before: RunState, entry: Entry) -> str | None:
    """What is wrong with ``entry`` in this place; None if nothing is."""
    for holds in INVARIANTS:
        if not holds(before, entry):
            return (
                f"{holds.__name__.replace('_', ' ')}, but there is a {meaning(entry)} entry of session {entry.session} "
                f"with offset {entry.offset} after a run of session {before.session} that is {before.status}"
            )
    return None


def meaning(entry: Entry) -> str:
    """What an entry means for the status."""
    fields = entry.fields
    match entry.type:
        case "start" if fields.get("cancelling"):
            return CANCELLING
        case "start" if fields.get("reopen"):
            return REOPEN
        case "suspend" if fields.get("wakeAt"):
            return SLEEP
        case "error" if fields.get("retryAt"):
            return RETRY
        case "cancel" if fields.get("deleted"):
            return DELETE
    return entry.type


# --- what each type of entry changes besides the status ---


def _start(state: RunState, entry: Entry) -> RunState:
    fields = entry.fields
    first = entry.offset == 0
    changed: dict[str, Any] = {
        "session": entry.session,
        "writer": fields.get("writer"),
        "detached": bool(fields.get("detached")),
        "retry_at_ns": None,
        "outcome": None,
        "version": state.version if state.version is not None else _text(fields.get("version")),
        "metadata": state.metadata or _mapping(fields.get("metadata")),
        "tags": state.tags or _tags(fields.get("tags")),
    }
    if first:
        generation = fields.get("generation")
        changed |= {"start": fields, "started_at": entry.timestamp}
        changed["generation"] = generation if isinstance(generation, int) else 0
        if isinstance(fields.get("mails"), list):
            changed["mails"] = tuple(map(str, fields["mails"]))[-MAILS_KEPT:]
    if isinstance(fields.get("inputHash"), str):
        changed["input_hashes"] = state.input_hashes | {fields["inputHash"]}
    if isinstance(fields.get("source"), dict):
        changed["source"] = fields["source"]
        if "version" in fields:  # a fork may continue with other code than its source
            changed["version"] = _text(fields["version"])
    if fields.get("reopen"):
        if state.finished and state.outcome is not None:
            changed["reopened"] = (*state.reopened, state.outcome.timestamp)
        changed |= {"failures": 0, "cancelled_at": None, "cancel_reason": None}
    if fields.get("cancelling"):
        changed["pending"] = None  # whatever it waited for, it continues, to clean up
        if state.cancelled_at is None:
            changed |= {"cancelled_at": entry.offset, "cancel_reason": _text(fields.get("reason"))}
    return state._replace(**changed)


def _suspend(state: RunState, entry: Entry) -> RunState:
    wake_ns = _time(entry.fields.get("wakeAt"))
    pending = Pending(str(entry.fields.get("event", "")), wake_ns, entry)
    return state._replace(pending=pending, asked=state.asked + (wake_ns is None))


def _resume(state: RunState, entry: Entry) -> RunState:
    if "mail" in entry.fields:
        mails = (*state.mails, str(entry.fields["mail"]))[-MAILS_KEPT:]
        return state._replace(pending=None, mails=mails)
    waited = state.pending
    if waited is None or waited.wake_at_ns is not None or waited.event.startswith(CHILD_EVENT):
        return state._replace(pending=None)
    return state._replace(pending=None, answers={**state.answers, waited.event: entry})


def _end(state: RunState, entry: Entry) -> RunState:
    return state._replace(pending=None, outcome=entry)


def _error(state: RunState, entry: Entry) -> RunState:
    retry_at_ns = _time(entry.fields.get("retryAt"))
    return state._replace(pending=None, outcome=entry, failures=state.failures + 1, retry_at_ns=retry_at_ns)


_APPLY: Mapping[str, Callable[[RunState, Entry], RunState]] = {
    START: _start,
    SUSPEND: _suspend,
    RESUME: _resume,
    COMPLETE: _end,
    ERROR: _error,
    CANCEL: _end,
}


def _time(value: object) -> int | None:
    return parse_iso(str(value)) if value else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None if value is None else str(value)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _tags(value: object) -> tuple[str, ...]:
    """A list of names; a table of names and values reads as ``name=value``."""
    if isinstance(value, dict):
        return tuple(f"{name}={setting}" for name, setting in value.items())
    return tuple(map(str, value)) if isinstance(value, list) else ()
