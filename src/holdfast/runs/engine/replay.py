"""Which recorded entry answers which call of the workflow, and the ids of steps. Pure.

The workflow's own task makes one call at a time, so its entries (the main lane) must be asked for again in the order in
which they were recorded; a parallel group, which its caller waits for, takes one place in that order. Entries asked for
by other tasks carry ``lane`` and are found by id, because only their ids are independent of the scheduler.

Where code and journal disagree, the error names both sides, before anything new is run.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from holdfast.base.errors import Corrupt, Invalid
from holdfast.runs.errors import ConcurrentSteps, ReplayMismatch
from holdfast.runs.journal.entry import Entry


def counted(name: str, occurrence: int) -> str:
    return name if occurrence == 1 else f"{name}#{occurrence}"


def keyed(name: str, key: object) -> str:
    """The id of a step to which the caller gave a key. The key must have a stable text form."""
    if not isinstance(key, str | int):
        raise Invalid(f"step {name}: a key must be text or a whole number, not {type(key).__name__}")
    return f"{name}[{key}]"


class StepIds:
    """Assigns the ids of steps in one pass over a workflow.

    Counted ids (``name#2``) are only for sequential code: two steps of one name in flight at once, or requested by
    several tasks, need keys, because otherwise the scheduler would decide which one is the second.
    """

    def __init__(self) -> None:
        self._drawn: Counter[str] = Counter()
        self._in_flight: set[str] = set()
        self._used_aside: set[str] = set()

    def draw(self, name: str, key: str | int | None, *, aside: bool) -> str:
        """The id of the next step of this name. ``aside``: asked for by a task other than the workflow's own."""
        if key is not None:
            ident = keyed(name, key)
            self.claim(ident)
        else:
            if aside or self._in_flight or self._used_aside:
                self._check_order_is_certain(name, aside=aside)
            self._drawn[name] += 1
            ident = counted(name, self._drawn[name])
        self._in_flight.add(ident)
        return ident

    def claim(self, ident: str) -> None:
        """Use an id that has a key in it: once."""
        if self._drawn[ident]:
            raise ConcurrentSteps(f"step {ident} was asked for twice", remedy="give every use a key of its own")
        self._drawn[ident] += 1

    def done(self, ident: str) -> None:
        self._in_flight.discard(ident)

    def _check_order_is_certain(self, name: str, *, aside: bool) -> None:
        running = any(other.partition("#")[0] == name for other in self._in_flight)
        if running or name in self._used_aside or (aside and self._drawn[name] > 0):
            raise ConcurrentSteps(
                f"step {name!r} was asked for by several tasks, so their order would decide which result is whose",
                remedy="give each a key=, or use ctx.parallel",
            )
        if aside:
            self._used_aside.add(name)


GROUP = "group:"


@dataclass(slots=True)
class Place:
    """One item of the main lane: a step, a wait (suspend and its resume), or a group."""

    kind: str
    id: str
    offset: int
    entries: list[Entry] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.kind} {self.id!r}"


def check_members(group: Place, steps: Collection[str]) -> None:
    """Raise if a member of the group is recorded that the code does not have any more."""
    for entry in group.entries:
        if entry.fields.get("stepId") not in steps:
            raise _never_asked(f"step {entry.fields.get('stepId')!r} of {group} at offset {entry.offset}")


def _never_asked(what: str) -> ReplayMismatch:
    return ReplayMismatch(
        f"the journal has {what}, which the code does not ask for",
        remedy="restore the code, give the workflow a new version, or fork the run before that step",
    )


class Replay:
    """The recorded part of a run, consumed as the workflow calls its context.

    ``cancelled_at`` is the offset of the entry that requested cancellation: the main lane ends there once, and then
    continues with what the clean-up recorded.
    """

    def __init__(self, entries: Iterable[Entry], cancelled_at: int | None = None, *, key: str = "journal") -> None:
        self._key = key
        self._places: list[Place] = []
        self._by_id: dict[str, Entry] = {}
        self._waits: Counter[str] = Counter()
        self._next = 0
        for entry in entries:
            self._record(entry)
        self.cancel_pending = cancelled_at is not None
        self._cancelled_at = cancelled_at
        self.cancel_noticed = False
        """Whether ``Cancelled`` was raised in the code."""

    def ask(self, kind: str, ident: str) -> Place | None:
        """The main lane's next place, if it is this one; None when the journal has no more."""
        place = self._peek() if self._next < len(self._places) else None
        if place is None:
            return None
        if (place.kind, place.id) != (kind, ident):
            raise ReplayMismatch(
                f"the journal has {place} at offset {place.offset} where the code now asks for {kind} {ident!r}",
                remedy="restore the code, give the workflow a new version, or fork the run before that offset",
            )
        self._next += 1
        return place

    def comes_next(self, kind: str, ident: str) -> bool:
        """Whether the main lane's next place is this one."""
        place = self._peek()
        return place is not None and (place.kind, place.id) == (kind, ident)

    def has_more(self) -> bool:
        """Whether the main lane went on from where it is now."""
        return self._peek() is not None

    def ask_aside(self, ident: str) -> Entry | None:
        """A step of a group or of another task, by id."""
        return self._by_id.pop(ident, None)

    def has_aside(self) -> bool:
        """Whether steps of groups or other tasks are recorded that the code has not requested yet."""
        return bool(self._by_id)

    def check_aside(self) -> None:
        """Raise if a step of a group or another task was never requested. Call it when nothing can request it any more:
        the main lane asks for something new, and no other task is alive.
        """
        for entry in self._by_id.values():
            raise _never_asked(f"step {entry.fields.get('stepId')!r} at offset {entry.offset}")

    def check_complete(self) -> None:
        """Raise if something recorded was never asked for."""
        if self._next < len(self._places):
            place = self._places[self._next]
            raise _never_asked(f"{place} at offset {place.offset}")
        self.check_aside()

    def _peek(self) -> Place | None:
        place = self._places[self._next] if self._next < len(self._places) else None
        if place is not None and self.cancel_pending and place.offset > (self._cancelled_at or 0):
            return None
        return place

    def _record(self, entry: Entry) -> None:
        lane = entry.fields.get("lane")
        match entry.type:
            case "step" if lane is None:
                self._places.append(Place("step", self._step_id(entry), entry.offset, [entry]))
            case "step":
                self._by_id[self._step_id(entry)] = entry
                if str(lane).startswith(GROUP):
                    self._open_group(str(lane).removeprefix(GROUP), entry)
            case "suspend":
                self._places.append(Place("wait", self._wait_id(entry), entry.offset, [entry]))
            case "resume":
                if not self._places or self._places[-1].kind != "wait":
                    raise Corrupt(f"{self._key}: offset {entry.offset}: a resume entry that answers no suspend entry")
                self._places[-1].entries.append(entry)

    def _open_group(self, group: str, entry: Entry) -> None:
        last = self._places[-1] if self._places else None
        if last is None or (last.kind, last.id) != ("group", group):
            self._places.append(Place("group", group, entry.offset))
        self._places[-1].entries.append(entry)

    def _wait_id(self, suspend: Entry) -> str:
        """A plain journal names only the event: then occurrences are counted, as the workflow counts them."""
        event = str(suspend.fields.get("event"))
        self._waits[event] += 1
        return str(suspend.fields.get("stepId") or counted(event, self._waits[event]))

    def _step_id(self, entry: Entry) -> str:
        ident = entry.fields.get("stepId")
        if not isinstance(ident, str):
            raise Corrupt(f"{self._key}: offset {entry.offset}: a step entry without a stepId")
        return ident
