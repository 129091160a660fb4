"""What goes into a PUT: drafts get their places, their session and their time, and become lines. Pure.

A draft that has no place in the run's state, or no JSON form, fails its own call (``Invalid``) and harms no other.
"""

from collections.abc import Iterable

from holdfast.base.errors import Corrupt, Invalid
from holdfast.runs.entry import START, Entry, as_read, format_line
from holdfast.runs.history import History
from holdfast.runs.readback import Attempt, Call
from holdfast.runs.run import advance
from holdfast.runs.segments import Ref


def compose(
    calls: Iterable[Call],
    history: History,
    refs: tuple[Ref, ...],
    session: int,
    timestamp: str,
    *,
    opening: bool = False,
) -> Attempt:
    """What these calls want to have recorded after ``history``. ``opening``: the first of it is a ``start``."""
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
