"""One PUT of a journal: what it writes, and whether it landed, as the journal read back shows. Pure.

A conditional PUT can land while its answer is lost, and be followed by another writer's PUT before its own writer
reads. So "is my entry in there?" is answered from the journal's lines, never from the answer to the PUT; and whatever
the answer, a session that has been superseded stops.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.base.errors import Corrupt, Invalid
from holdfast.runs.journal.entry import START, Draft, Entry, as_read, format_line
from holdfast.runs.journal.history import History
from holdfast.runs.journal.segments import Ref
from holdfast.runs.journal.state import RunState, advance


@dataclass(slots=True, eq=False)
class Call:
    """One caller's request to append, and its result."""

    drafts: tuple[Draft, ...]
    entries: list[Entry] | None = None
    """As recorded, once they are durable."""
    error: BaseException | None = None
    given_up: bool = False
    """Its caller got an error or was cancelled, and no longer waits for it."""

    @property
    def settled(self) -> bool:
        return self.entries is not None or self.error is not None

    @property
    def wanted(self) -> bool:
        return self.entries is None and self.error is None and not self.given_up


@dataclass(slots=True, eq=False)
class Attempt:
    """One PUT of the journal: what it appends, for which calls, and the state that it leads to."""

    calls: list[tuple[Call, int]] = field(default_factory=list)
    """With the number of entries that each contributes."""
    entries: list[Entry] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    refs: tuple[Ref, ...] = ()
    state: RunState = field(default_factory=RunState)

    def settle(self, recorded: Sequence[Entry]) -> None:
        """The attempt has landed: give every caller its entries."""
        at = 0
        for call, count in self.calls:
            call.entries = list(recorded[at : at + count])
            at += count


def superseded(state: RunState, session: int, writer: str) -> str | None:
    """Why this session must stop, if it must."""
    if state.session > session:
        return f"session {state.session} has started"
    if state.session == session and state.writer != writer:
        return f"session {session} belongs to another writer"
    return None


def damaged(state: RunState, session: int, known: int) -> str | None:
    """What is missing of what was certainly recorded."""
    if state.session < session:
        return f"the start of session {session} is gone; the highest session is {state.session}"
    if state.next_offset < known:
        return f"{known} entries were recorded, and {state.next_offset} are left"
    return None


def landed_attempt(recorded: Sequence[Entry], attempts: Sequence[Attempt]) -> Attempt | None:
    """Which of these attempts is in the journal. All rest on one version of it, so at most one can be."""
    for matches in (_equal, _rewritten):
        for attempt in attempts:
            if all(mine.offset < len(recorded) and matches(mine, recorded[mine.offset]) for mine in attempt.entries):
                return attempt
    return None


def _equal(mine: Entry, found: Entry) -> bool:
    return mine == found


def _rewritten(mine: Entry, found: Entry) -> bool:
    """Our entry after another program has read and rewritten the JSON, which may change the form of numbers."""
    names = ("type", "session", "offset", "timestamp")
    same = all(getattr(mine, name) == getattr(found, name) for name in names)
    return same and mine.fields.get("stepId") == found.fields.get("stepId")


def compose(
    calls: Iterable[Call],
    history: History,
    refs: tuple[Ref, ...],
    session: int,
    timestamp: str,
    *,
    opening: bool = False,
) -> Attempt:
    """The entries and lines of these calls, to be written after ``history``. ``opening``: the first one is a ``start``.

    A draft that the run's state does not allow, or that has no JSON form, fails its own call (``Invalid``) and no
    other.
    """
    attempt = Attempt(refs=refs, state=history.state)
    run = f"run {history.run_id}"
    for call in calls:
        entries: list[Entry] = []
        lines: list[bytes] = []
        state = attempt.state
        try:
            for draft in call.drafts:
                if draft.type == START and (not opening or entries):
                    raise Invalid(f"{run}: only begin writes a start entry")
                entry = Entry(draft.type, session, state.next_offset, timestamp, dict(draft.fields))
                line = format_line(entry)
                entry = as_read(entry, line)
                state = advance(state, entry, key=run)
                entries.append(entry)
                lines.append(line)
        except Invalid as error:
            call.error = error
            continue
        except Corrupt as error:
            call.error = Invalid(str(error), remedy="write what the run's state allows")
            continue
        attempt.calls.append((call, len(entries)))
        attempt.entries += entries
        attempt.lines += lines
        attempt.state = state
    return attempt
