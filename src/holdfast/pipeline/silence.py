"""What the marks of collectors tell the reconciler: who may have left batches that nobody refers to, and since when.

A collector that was killed leaves a mark that has not ended and is not written any more; one that could not write what
it owed counts it in its mark (``accept.marks``). Either way the manifests alone tell of its last batches, and the next
look lists them: those that were written since the mark promised that all was told.

A look costs one LIST, and one GET for each mark that was written since the last. What was heard is part of the
checkpoint, so each collector that is gone is looked into once. It holds every collector that is open, and of those that
ended only the latest, for others are known by their age. One that was silent may have been cut off, and come back with
batches that landed after it was looked into: it is held while its mark is there, unless there are very many. Of one
that was let go its mark says when it began: nothing of its is older.

How long a mark has stood still the store's own clock says, of an object that is made to ask it. A collector that was
called silent too early would accept more, and be looked into no more: so a driver's clock, which may be wrong, and what
the store's said before, which may have been set since, say only when it is worth asking.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import astuple, dataclass, field, replace

from holdfast.base.aio import map_bounded
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt, Incompatible, NotFound
from holdfast.base.telemetry import logger
from holdfast.objects.store import Entry, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.heard import SKEW_NS
from holdfast.telemetry.accept.marks import Mark

AT_ONCE = 8
UNREADABLE_AFTER_NS = 60 * 1_000_000_000
"""How long a mark that cannot be read may stand still."""
MOST_GIVEN_UP = 1_000
"""Collectors that were silent for long and are remembered: some hundred kilobytes."""

AskStore = Callable[[], Awaitable[int]]
"""What the store's clock says now."""

_log = logger("pipeline")


@dataclass(frozen=True, slots=True)
class Known:
    """One mark, as it was found last."""

    modified_ns: int
    """By the store's clock."""
    size: int
    seen_unix_ns: int
    """When it was first found like this, by the driver's clock."""
    told_ns: int
    """Whatever its collector acknowledged before is referred to, or counted."""
    unlisted: int
    silent_after_ns: int
    ended: bool = False
    given_up: bool = False
    """It was silent, and has been looked into."""

    @property
    def over(self) -> bool:
        return self.ended or self.given_up

    def is_of(self, entry: Entry) -> bool:
        return (self.modified_ns, self.size) == (entry.modified_ns, entry.size)

    def doubtful(self, now_ns: int) -> bool:
        """Whether its collector may be gone, by a driver's clock that may be wrong, or may have been before."""
        return not self.over and max(abs(now_ns - self.seen_unix_ns), now_ns - self.modified_ns) > self.silent_after_ns

    def silent(self, store_ns: int) -> bool:
        """Whether it is gone, if it was not written again before the store's clock said so."""
        return not self.over and store_ns - self.modified_ns > self.silent_after_ns


@dataclass(frozen=True, slots=True)
class Memory:
    """What the checkpoint keeps of the marks."""

    at_ns: int = 0
    """The store's clock was at least here when they were listed."""
    marks: Mapping[str, Known] = field(default_factory=dict)
    """By session."""

    def document(self) -> Document:
        return {"at_ns": self.at_ns, "marks": {session: list(astuple(each)) for session, each in self.marks.items()}}

    def has_settled(self, session: str, entry: Entry, store_ns: int) -> bool:
        """Whether no look will learn anything more of a mark that was found like this, unless it is written again."""
        known = self.marks.get(session)
        if known is not None:
            return known.over and known.is_of(entry)
        was_ahead = self.at_ns > store_ns + SKEW_NS  # then all are read again
        return not was_ahead and entry.modified_ns < self.at_ns - SKEW_NS

    @classmethod
    def of(cls, document: Document | None) -> "Memory":
        """Of a checkpoint that says nothing of marks, or nothing that can be read, nothing is known: all are read."""
        try:
            found = document or {"at_ns": 0, "marks": {}}
            return cls(int(found["at_ns"]), {str(name): Known(*row) for name, row in found["marks"].items()})
        except MALFORMED as error:
            _log.error("what is kept of the marks of collectors cannot be read (%r); all are read again", error)
            return cls()


@dataclass(slots=True)
class Heard:
    memory: Memory
    """What is to be kept once everything since ``since_ns`` was looked at."""
    since_ns: int | None = None
    """Manifests that were written since, by the store's clock, may be told of nowhere else; None if all are told."""
    collectors: set[str] = field(default_factory=set)
    """Whose they are."""

    def missed(self, collector_id: str, since_ns: int) -> None:
        since_ns = max(0, since_ns - SKEW_NS)
        self.since_ns = since_ns if self.since_ns is None else min(self.since_ns, since_ns)
        self.collectors.add(collector_id)


async def listen(store: Store, before: Memory, *, cursor_ns: int, now_ns: int, ask_store: AskStore) -> Heard:
    """``cursor_ns``: the latest that is known of the store's clock."""
    at_ns = before.at_ns
    if at_ns > now_ns + SKEW_NS and at_ns > await ask_store() + SKEW_NS:
        at_ns = 0  # the store's clock was ahead, and is not any more
    entries = {
        session: entry
        async for page in store.list(layout.MARKS)
        for entry in page.entries
        if (session := layout.session_in(entry.key)) is not None
    }
    kept = {session: each for session, each in before.marks.items() if session in entries}
    changed = {
        session: entry
        for session, entry in entries.items()
        if (not kept[session].is_of(entry) if session in kept else entry.modified_ns >= at_ns - SKEW_NS)
    }
    marks = await map_bounded(changed.values(), lambda entry: _read(store, entry), limit=AT_ONCE)
    read = dict(zip(changed, marks, strict=True))
    newest_ns = max([cursor_ns, *(entry.modified_ns for entry in entries.values())])
    heard = Heard(Memory(max(at_ns, min(now_ns, newest_ns))))
    found = dict(kept)
    for session, mark in read.items():
        old = kept.get(session)
        found[session] = _known(entries[session], mark, now_ns)
        if mark.unlisted > (0 if old is None else old.unlisted):
            # One that is new here began after marks were listed last, or was given up so long ago that it is forgotten.
            heard.missed(mark.collector_id, min(at_ns, mark.begun_unix_ns) if old is None else old.told_ns)
    suspect = any(each.doubtful(now_ns) or each.silent(newest_ns) for each in found.values())
    store_ns = await ask_store() if suspect else 0
    for session, each in found.items():
        if each.silent(store_ns):
            mark = read.get(session) or await _read(store, entries[session])
            heard.missed(mark.collector_id, each.told_ns)
            found[session] = replace(each, given_up=True)
    heard.memory = replace(heard.memory, marks=_lasting(found, heard.memory.at_ns - SKEW_NS))
    return heard


def _lasting(found: Mapping[str, Known], oldest_ns: int) -> dict[str, Known]:
    """Those that would be read again, or may come back."""
    given_up = sorted(((each.modified_ns, session) for session, each in found.items() if each.given_up), reverse=True)
    held = {session for _, session in given_up[:MOST_GIVEN_UP]}
    return {
        session: each
        for session, each in found.items()
        if not each.over or each.modified_ns >= oldest_ns or session in held
    }


def _known(entry: Entry, mark: Mark, now_ns: int) -> Known:
    return Known(
        entry.modified_ns,
        entry.size,
        now_ns,
        # A clock that is ahead promises too much; its mark was written at this time, whatever it says.
        min(mark.through_unix_ns, entry.modified_ns),
        mark.unlisted,
        mark.silent_after_ns,
        ended=mark.ended,
    )


async def _read(store: Store, entry: Entry) -> Mark:
    """One that cannot be read says nothing but when it was written."""
    try:
        return Mark.read(await store.get(entry.key))
    except (NotFound, Corrupt, Incompatible) as error:
        _log.error("%s: nobody knows what this collector has accepted: %s", entry.key, error)
        return Mark(
            session=layout.session_in(entry.key) or "",
            collector_id="one that cannot be read",
            through_unix_ns=entry.modified_ns,
            unlisted=0,
            begun_unix_ns=entry.modified_ns,
            every_ms=UNREADABLE_AFTER_NS // 3_000_000,
        )
