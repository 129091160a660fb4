"""A run's history: every line from the first on, and their places in the journal object and its segments.

Reading a small run is one GET. A longer one takes the journal, then all its segments at once; each is held to the
length and the hash that the journal gives for it. A segment that is missing because the run was deleted or tidied up
meanwhile is not damage: the journal is read again, and refers to the merged one.

Errors: ``Corrupt`` names the object, the line and the offset. Reading changes nothing.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.base import aio
from holdfast.base.errors import Corrupt, NotFound
from holdfast.objects.store import Object, Store, Version
from holdfast.runs import layout
from holdfast.runs.journal.entry import Entry, parse_line
from holdfast.runs.journal.segments import Head, Ref, digest, format_head, parse_head, split_lines
from holdfast.runs.journal.state import ENDS, NEW, RunState, fold, meaning

PARALLEL_READS = 16
REREADS = 4


@dataclass(frozen=True, slots=True)
class JournalObject:
    """A parsed journal object, without its segments."""

    head: Head | None
    lines: list[bytes]
    """The tail."""
    entries: list[Entry]
    """Of the tail."""

    @property
    def refs(self) -> tuple[Ref, ...]:
        return self.head.refs if self.head is not None else ()

    @property
    def session(self) -> int:
        """The highest session of the run."""
        sealed = self.head.session if self.head is not None else 0
        return max((entry.session for entry in self.entries), default=sealed)

    @property
    def finished(self) -> bool:
        """Whether the run has ended. The entry that ends a run is never sealed, so the tail decides."""
        return bool(self.entries) and meaning(self.entries[-1]) in ENDS

    @property
    def generation(self) -> int:
        if self.head is not None:
            return self.head.generation
        generation = self.entries[0].fields.get("generation")
        return generation if isinstance(generation, int) else 0


@dataclass(slots=True)
class History:
    """``version`` is the journal object's; None for a history that is not stored yet."""

    run_id: str
    entries: list[Entry] = field(default_factory=list, repr=False)
    lines: list[bytes] = field(default_factory=list, repr=False)
    """Every line as it is stored, newline included."""
    refs: tuple[Ref, ...] = ()
    state: RunState = NEW
    version: Version | None = None

    @property
    def sealed(self) -> int:
        """How many lines are in segments."""
        return self.refs[-1].end if self.refs else 0

    @property
    def tail(self) -> Sequence[bytes]:
        return self.lines[self.sealed :]

    def body(self) -> bytes:
        """The journal object."""
        return format_body(self.refs, self.state, self.tail)

    def copy(self) -> "History":
        return History(self.run_id, self.entries[:], self.lines[:], self.refs, self.state, self.version)


def format_body(refs: tuple[Ref, ...], state: RunState, tail: Sequence[bytes]) -> bytes:
    """A journal object: the references, and the lines after them. ``state`` is the one that they lead to."""
    head = format_head(Head(state.generation, state.session, refs)) if refs else b""
    return b"".join((head, *tail))


def parse_journal(found: Object) -> JournalObject:
    lines = split_lines(found.body)
    if not lines:
        raise Corrupt(f"{found.key}: a journal without a line")
    head = parse_head(lines[0], key=found.key)
    skipped = 0 if head is None else 1
    first = 0 if head is None else head.refs[-1].end
    tail = lines[skipped:]
    entries = [
        parse_line(line, key=found.key, number=number, first=first - skipped)
        for number, line in enumerate(tail, 1 + skipped)
    ]
    return JournalObject(head, tail, entries)


async def read_history(
    store: Store, run_id: str, *, found: Object | None = None, known: Mapping[Ref, Sequence[bytes]] | None = None
) -> History | None:
    """The current state of the run; None if it does not exist.

    ``found`` is the journal object, where the caller has it already; ``known`` the lines of segments that need not be
    read.
    """
    key = layout.journal_key(layout.check_run_id(run_id))
    seen: Version | None = None
    for _ in range(REREADS):
        found = found if found is not None else await store.find(key)
        if found is None:
            return None
        try:
            return await _unfold(store, run_id, found, known if known is not None else {})
        except _SegmentMissing as missing:
            if found.version == seen:
                raise Corrupt(f"{key}: it refers to {missing.key}, which does not exist") from missing
            seen, found = found.version, None
    raise Corrupt(f"{key}: its segments keep disappearing", remedy="find out who deletes them")


async def read_previous(store: Store, history: History) -> History | None:
    """The generation before this one, as continue-as-new retired it; None if there is none, or it was deleted."""
    previous = history.state.start.get("previous")
    if not isinstance(previous, dict):
        return None
    found = await store.find(str(previous.get("key")))
    if found is None:
        return None
    if digest(found.body) != previous.get("sha256"):
        raise Corrupt(f"{found.key}: not the journal that was retired here")
    try:
        return await _unfold(store, history.run_id, found, {})
    except _SegmentMissing:
        return None


async def _unfold(store: Store, run_id: str, found: Object, known: Mapping[Ref, Sequence[bytes]]) -> History:
    parsed = parse_journal(found)
    missing = [ref for ref in parsed.refs if ref not in known]
    bodies = await aio.map_bounded(missing, lambda ref: _read_segment(store, run_id, ref), limit=PARALLEL_READS)
    parts = {**known, **dict(zip(missing, bodies, strict=True))}
    lines: list[bytes] = []
    entries: list[Entry] = []
    for ref in parsed.refs:
        key = _key(run_id, ref)
        entries += [parse_line(line, key=key, number=n, first=ref.first) for n, line in enumerate(parts[ref], 1)]
        lines += parts[ref]
    entries += parsed.entries
    lines += parsed.lines
    return History(run_id, entries, lines, parsed.refs, fold(entries, key=found.key), found.version)


async def _read_segment(store: Store, run_id: str, ref: Ref) -> list[bytes]:
    key = _key(run_id, ref)
    try:
        body = (await store.get(key)).body
    except NotFound as error:
        raise _SegmentMissing(key) from error
    if len(body) != ref.size or digest(body) != ref.sha256:
        raise Corrupt(f"{key}: its {len(body)} bytes are not the {ref.size} that were sealed (offset {ref.first} on)")
    lines = split_lines(body)
    if len(lines) != ref.lines:
        raise Corrupt(f"{key}: it has {len(lines)} lines, and {ref.lines} were sealed (offset {ref.first} on)")
    return lines


def _key(run_id: str, ref: Ref) -> str:
    return layout.segment_key(run_id, ref.level, ref.first, ref.attempt)


class _SegmentMissing(Exception):  # not an error yet: the journal may have changed meanwhile
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


async def earlier(store: Store, history: History) -> AsyncIterator[History]:
    """The generations before ``history``, the latest first; up to the first one that is no longer kept."""
    retired = await read_previous(store, history)
    while retired is not None:
        yield retired
        retired = await read_previous(store, retired)


async def generation(store: Store, history: History, number: int) -> History:
    """The generation with this number; 0 is the first."""
    if number == history.state.generation:
        return history
    async for retired in earlier(store, history):
        if retired.state.generation == number:
            return retired
    raise NotFound(
        f"run {history.run_id} has no generation {number}",
        remedy=f"it is in generation {history.state.generation}; the first one is 0",
    )
