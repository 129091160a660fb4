"""The summary of a run, and how it is written in a key of the index. Pure.

    runs-index/v1/open/{run_id}/{session}.{offset}.{status}.{generation}.{started}.{updated}.{wake}.{event}.{workflow}.{tags}
    runs-index/v1/done/{day}/{run_id}/...        the same, by the day on which the run ended
    runs-index/v1/open/{run_id}/!{mail}.{event}  a nudge: mail has been delivered to this run
    runs-index/v1/open/{run_id}/blocked.{session}.{offset}.{error}   the error of the latest call; see ``index``

Times are milliseconds since 1970. Text is escaped to a few plain characters. A key has room for a few hundred bytes of
it; what does not fit is left out, and the status is marked ``+cut``: the journal has the rest. Of several keys for one
run the one with the highest session and offset counts.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.base.clock import parse_iso
from holdfast.runs import layout
from holdfast.runs.journal.state import FINISHED, RunState
from holdfast.runs.layout import CHILD_EVENT

ROOM = 480
"""Bytes for a summary; with the longest run id a key stays below 720, which leaves room for a prefix of the store."""

_EVENT_ROOM = 200
_NUDGE_ROOM = 300
_OWN_CHILD = CHILD_EVENT + "&."
_BLOCK = "blocked."
_PLAIN = re.compile(r"[^A-Za-z0-9_=:@-]")
_ESCAPED = re.compile(r"((?:~[0-9a-f]{2})+)")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What the index knows of a run."""

    run_id: str
    status: str
    session: int
    offset: int
    """The number of entries in the journal."""
    workflow: str = ""
    tags: tuple[str, ...] = ()
    event: str | None = None
    """What a waiting run waits for."""
    generation: int = 0
    started_ms: int = 0
    updated_ms: int = 0
    """When the latest change of status was recorded; of a finished run, when it ended."""
    wake_ms: int | None = None
    detached: bool = False
    cut: bool = False
    """Something did not fit: the journal has all of it."""
    blocked: str | None = None
    """The error that the latest call ended with, if the same call would end with it again: see ``describe``."""

    @property
    def rank(self) -> tuple[int, int]:
        """Grows with everything that happens to a run."""
        return self.session, self.offset

    @property
    def finished(self) -> bool:
        return self.status in FINISHED

    def has_tag(self, tag: str) -> bool:
        """``env`` is also the tag ``env=production``."""
        return any(own == tag or own.startswith(tag + "=") for own in self.tags)


@dataclass(frozen=True, slots=True)
class Nudge:
    """Mail was delivered. ``event`` is None if it did not fit into the key: then it may be any event."""

    mail_id: str
    event: str | None


@dataclass(frozen=True, slots=True)
class Block:
    """The latest call of the run ended in this error, at this session and offset."""

    session: int
    offset: int
    error: str

    @property
    def rank(self) -> tuple[int, int]:
        return self.session, self.offset


def summarise(run_id: str, state: RunState) -> RunSummary:
    wake_ns = state.wake_at_ns
    return RunSummary(
        run_id=run_id,
        status=state.status,
        session=state.session,
        offset=state.next_offset,
        workflow=state.workflow,
        tags=state.tags,
        event=state.pending.event if state.pending is not None else None,
        generation=state.generation,
        started_ms=parse_iso(state.started_at) // 1_000_000,
        updated_ms=parse_iso(state.updated_at) // 1_000_000,
        wake_ms=None if wake_ns is None else -(-wake_ns // 1_000_000),
        detached=state.detached and not state.finished,
    )


def index_key(summary: RunSummary) -> str:
    """The key that holds this summary."""
    folder = open_folder(summary.run_id)
    if summary.finished:
        folder = done_folder(day_of(summary.updated_ms), summary.run_id)
    return folder + _format(summary)


def open_folder(run_id: str) -> str:
    return f"{layout.INDEX_OPEN}{run_id}/"


def day_folder(day: str) -> str:
    return f"{layout.INDEX_DONE}{day}/"


def done_folder(day: str, run_id: str) -> str:
    return f"{day_folder(day)}{run_id}/"


def day_of(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d")


def day_of_end(timestamp: str) -> str:
    return day_of(parse_iso(timestamp) // 1_000_000)


def nudge_key(run_id: str, nudge: Nudge) -> str:
    event = _escape(nudge.event) if nudge.event is not None else ""
    return f"{open_folder(run_id)}!{_escape(nudge.mail_id)}.{event if len(event) <= _NUDGE_ROOM else ''}"


def block_key(run_id: str, block: Block) -> str:
    return f"{open_folder(run_id)}{_BLOCK}{block.session}.{block.offset}.{_escape(block.error)}"


def read_key(key: str) -> tuple[str, RunSummary | Nudge | Block] | None:
    """The run and what the key holds; None for a key of another form."""
    match key.split("/"):
        case ["runs-index", "v1", "open", run_id, name] if name.startswith(_BLOCK):
            block = _parse_block(name.removeprefix(_BLOCK))
            return None if block is None else (run_id, block)
        case ["runs-index", "v1", "open", run_id, name] if name.startswith("!"):
            mail_id, _, event = name[1:].partition(".")
            return run_id, Nudge(_unescape(mail_id), _unescape(event) or None)
        case ["runs-index", "v1", "open", run_id, name] | ["runs-index", "v1", "done", _, run_id, name]:
            summary = _parse(run_id, name)
            return None if summary is None else (run_id, summary)
    return None


def _format(summary: RunSummary) -> str:
    cut = summary.cut
    event = _escape(_without_own_id(summary.event, summary.run_id))
    if len(event) > _EVENT_ROOM:
        event, cut = "", True
    numbers = [summary.generation, summary.started_ms, summary.updated_ms]
    wake = "" if summary.wake_ms is None else str(summary.wake_ms)
    used = len(f"{summary.session}.{summary.offset}.{'.'.join(map(str, numbers))}.{wake}.{event}.") + 32
    texts: list[str] = []
    for text in (summary.workflow, *summary.tags):
        escaped = _escape(text)
        if used + len(escaped) + 1 > ROOM or (texts and not escaped):
            cut = True
            if not texts:
                texts.append("")
            continue
        texts.append(escaped)
        used += len(escaped) + 1
    status = summary.status + ("+detached" if summary.detached else "") + ("+cut" if cut else "")
    parts = [summary.session, summary.offset, status, *numbers, wake, event, *texts]
    return ".".join(map(str, parts))


def _parse(run_id: str, name: str) -> RunSummary | None:
    try:
        session, offset, marks, generation, started, updated, wake, event, workflow, *tags = name.split(".")
        status, *flags = marks.split("+")
        return RunSummary(
            run_id=run_id,
            status=status,
            session=int(session),
            offset=int(offset),
            workflow=_unescape(workflow),
            tags=tuple(map(_unescape, tags)),
            event=_with_own_id(_unescape(event), run_id) or None,
            generation=int(generation),
            started_ms=int(started),
            updated_ms=int(updated),
            wake_ms=int(wake) if wake else None,
            detached="detached" in flags,
            cut="cut" in flags,
        )
    except ValueError:
        return None


def _parse_block(name: str) -> Block | None:
    try:
        session, offset, error = name.split(".")
        return Block(int(session), int(offset), _unescape(error))
    except ValueError:
        return None


def _without_own_id(event: str | None, run_id: str) -> str:
    """A run waits for children that are named after it; the name is in the key once."""
    own = f"{CHILD_EVENT}{run_id}."
    return _OWN_CHILD + event.removeprefix(own) if event is not None and event.startswith(own) else event or ""


def _with_own_id(event: str, run_id: str) -> str:
    if event.startswith(_OWN_CHILD):
        return f"{CHILD_EVENT}{run_id}.{event.removeprefix(_OWN_CHILD)}"
    return event


def _escape(text: str) -> str:
    return _PLAIN.sub(lambda found: "".join(f"~{byte:02x}" for byte in found[0].encode("utf-8", "replace")), text)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("~", "")).decode("utf-8", "replace"), text)
