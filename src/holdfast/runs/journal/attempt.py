"""One PUT of a journal: what it writes, and whether it landed, as the journal read back shows. Pure.

A conditional PUT can land while its answer is lost, and be followed by another writer's PUT before its own writer
reads. So "is my entry in there?" is answered from the journal's lines, never from the answer to the PUT; and whatever
the answer, a session that has been superseded stops.
"""

from collections.abc import Iterable, Sequence

from holdfast.base.errors import Corrupt, Invalid
from holdfast.runs.journal.entry import START, Draft, Entry, as_read, format_line
from holdfast.runs.journal.state import RunState, advance


class Attempt:
    """What one PUT appends, and the state that it leads to."""

    def __init__(self, run_id: str, session: int, timestamp: str, state: RunState) -> None:
        self._run = f"run {run_id}"
        self._session = session
        self._timestamp = timestamp
        self.entries: list[Entry] = []
        self.lines: list[bytes] = []
        self.state = state

    def add(self, drafts: Iterable[Draft], *, opening: bool = False) -> slice:
        """Add entries; their offsets. ``opening``: the first one is a ``start``.

        ``Invalid`` if the run's state does not allow one of them, or one has no JSON form: then none is added.
        """
        entries: list[Entry] = []
        lines: list[bytes] = []
        state = self.state
        try:
            for draft in drafts:
                if draft.type == START and (not opening or entries):
                    raise Invalid(f"{self._run}: only begin writes a start entry")
                entry = Entry(draft.type, self._session, state.next_offset, self._timestamp, dict(draft.fields))
                line = format_line(entry)
                entry = as_read(entry, line)
                state = advance(state, entry, key=self._run)
                entries.append(entry)
                lines.append(line)
        except Corrupt as error:
            raise Invalid(str(error), remedy="write what the run's state allows") from error
        added = slice(self.state.next_offset, state.next_offset)
        self.entries += entries
        self.lines += lines
        self.state = state
        return added

    def is_in(self, recorded: Sequence[Entry]) -> bool:
        """Whether it is in the journal that has these entries."""
        return all(mine.offset < len(recorded) and _same(mine, recorded[mine.offset]) for mine in self.entries)


def _same(mine: Entry, found: Entry) -> bool:
    """Equal, or rewritten by another program that has read the JSON, which may change the form of numbers."""
    names = ("type", "session", "offset", "timestamp")
    same = all(getattr(mine, name) == getattr(found, name) for name in names)
    return same and mine.fields.get("stepId") == found.fields.get("stepId")


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
