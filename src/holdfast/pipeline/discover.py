"""Which accepted batches the reconciler has not looked at: from references by time, from lists of keys, or from all
manifests. Reads alone.

By time, a look costs one LIST per thousand references in the hours from an overlap before the checkpoint on; once an
hour, in those of the day before. A full scan lists the manifests themselves and misses nothing.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from holdfast.ingest import layout
from holdfast.ingest.reconcile import HOUR_NS, Finding, Problem
from holdfast.metrics import layout as derived
from holdfast.objects.store import Entry, Store
from holdfast.pipeline.checkpoint import Checkpoint, Recent, short

DEEP_NS = 24 * HOUR_NS
"""How late a reference may be written, after its batch was accepted, to be found by time: a spool that lands after an
outage, a collector whose clock is behind. Whatever is later is found by a full scan."""
DEEP_EVERY_NS = HOUR_NS
MOST_FOREIGN = 100
"""Foreign objects that one run reports."""


@dataclass(slots=True)
class Discovered:
    keys: list[str] = field(default_factory=list)
    """References, manifests and conflicts to look at."""
    through_unix_ns: int | None = None
    """Where the checkpoint goes when they are done; None if it stays."""
    cursor_ns: int = 0
    seen: set[bytes] = field(default_factory=set)
    foreign: list[Problem] = field(default_factory=list)
    more: bool = False
    """There is more than one run takes."""
    deep: bool = False
    """The day before was looked at too, and all of it."""
    listed: int = 0

    def checkpoint(self, recent: str | None) -> Checkpoint:
        """Where it stands once everything found here is done."""
        through = self.through_unix_ns or 0
        deep = (through, self.cursor_ns) if self.deep else (0, 0)
        return Checkpoint(through, self.cursor_ns, recent, deep_at_unix_ns=deep[0], deep_cursor_ns=deep[1])


async def by_time(
    store: Store, since: Checkpoint | None, recent: Recent, *, overlap_ns: int, now_ns: int, limit: int
) -> Discovered:
    """References that were written since the checkpoint. Of very many the oldest hours come first."""
    found = Discovered(cursor_ns=since.cursor_ns if since is not None else 0)
    look = _Look.of(since, overlap_ns, now_ns)
    fresh: list[Entry] = []
    async for entry in _references(store, look.after):
        found.listed += 1
        manifest_id = _manifest_id(entry.key)
        if manifest_id is None:
            _foreign(found, entry.key)
            continue
        found.cursor_ns = max(found.cursor_ns, entry.modified_ns)
        if not look.wants(entry):
            continue
        if recent.knows(manifest_id):
            found.seen.add(short(manifest_id))
            continue
        if len(fresh) >= limit:
            found.more = True
            break
        fresh.append(entry)
    found.keys = [entry.key for entry in fresh]
    found.through_unix_ns = now_ns
    found.deep = look.deep and not found.more
    if found.more:
        # What lies beyond has not been listed: neither clock may run ahead of it.
        before = since.through_unix_ns if since is not None else 0
        found.through_unix_ns = max(before, min(now_ns, _hour_start_ns(fresh[-1].key)))
        found.cursor_ns = since.cursor_ns if since is not None else 0
        found.seen |= recent.seen
    kept_ns = found.cursor_ns - overlap_ns
    found.seen |= {short(_name(entry.key)) for entry in fresh if entry.modified_ns >= kept_ns}
    return found


async def between(store: Store, since_ns: int, until_ns: int) -> AsyncIterator[str]:
    """References to batches that were accepted in this time, whatever the checkpoint says."""
    begin = f"{layout.ACCEPTED_BY_TIME}{layout.hour_path(since_ns)}".rstrip("/")
    end = f"{layout.ACCEPTED_BY_TIME}{layout.hour_path(max(since_ns, until_ns - 1))}"
    async for key in store.keys(layout.ACCEPTED_BY_TIME, after=begin):
        if key > end and not key.startswith(end):
            return
        if _manifest_id(key) is not None:
            yield key


async def scan(store: Store, after: str | None, agents: Sequence[str], limit: int) -> Discovered:
    """Manifests and conflicts after this key, from the store's own order of keys; of these agents, if any are given.

    ``more`` means that the last of ``keys`` is where the next scan begins. Listing is a hundredth of the work, so it is
    not divided; the looking is.
    """
    found = Discovered()
    for prefix in (layout.ACCEPTED, layout.CONFLICTS):
        folders = [f"{prefix}agent={agent.encode().hex()}/" for agent in sorted(set(agents))] or [prefix]
        for folder in sorted(folders):
            if after is not None and after >= f"{folder}\U0010ffff":
                continue
            async for key in store.keys(folder, after=after if after is not None and after > folder else None):
                found.listed += 1
                if not _is_ours(prefix, key):
                    _foreign(found, key)
                elif len(found.keys) >= limit:
                    found.more = True
                    return found
                else:
                    found.keys.append(key)
    return found


@dataclass(frozen=True, slots=True)
class _Look:
    """Which references a look by time takes."""

    after: str | None = None
    regular: str = ""
    """The first key of the hours that every look lists."""
    floor_ns: int | None = None
    """Written before: followed already. By the store's clock, as are the others."""
    deep_floor_ns: int = 0
    overlap_ns: int = 0
    deep: bool = True

    @classmethod
    def of(cls, since: Checkpoint | None, overlap_ns: int, now_ns: int) -> "_Look":
        if since is None:
            return cls()
        regular_ns = max(0, since.through_unix_ns - overlap_ns)
        deep = now_ns - since.deep_at_unix_ns >= DEEP_EVERY_NS
        return cls(
            _hour_key(max(0, regular_ns - DEEP_NS) if deep else regular_ns),
            _hour_key(regular_ns),
            since.cursor_ns - overlap_ns,
            since.deep_cursor_ns - overlap_ns,
            overlap_ns,
            deep,
        )

    def wants(self, entry: Entry) -> bool:
        if self.floor_ns is None:
            return True
        if entry.key >= self.regular:
            return entry.modified_ns >= self.floor_ns
        # Of older hours, what was written when they were no longer looked at.
        late = _hour_start_ns(entry.key) + HOUR_NS + self.overlap_ns < entry.modified_ns
        return late and entry.modified_ns >= self.deep_floor_ns


async def _references(store: Store, after: str | None) -> AsyncIterator[Entry]:
    async for page in store.list(layout.ACCEPTED_BY_TIME, after=after):
        for entry in page.entries:
            yield entry


def _hour_key(time_ns: int) -> str:
    return f"{layout.ACCEPTED_BY_TIME}{layout.hour_path(time_ns)}".rstrip("/")


def _is_ours(prefix: str, key: str) -> bool:
    identity = layout.identity_in(key)
    if identity is None:
        return False
    if prefix == layout.ACCEPTED:
        return key == layout.accepted_key(identity)
    name = key.rpartition("/")[2].removesuffix(".json")
    return len(name) == 64 and key == f"{layout.conflict_folder(identity)}{name}.json"


def _foreign(found: Discovered, key: str) -> None:
    if len(found.foreign) < MOST_FOREIGN:
        found.foreign.append(Problem(Finding.FOREIGN_OBJECT, key, "its name is not that of anything that belongs here"))


def _name(key: str) -> str:
    return key.rpartition("/")[2].removesuffix(".json")


def _manifest_id(key: str) -> str | None:
    name = _name(key)
    proper = len(name) == 64 and not set(name) - set("0123456789abcdef") and key.endswith(f"/{name}.json")
    return name if proper and key.count("/") == 4 else None


def _hour_start_ns(key: str) -> int:
    hour = derived.hour_in(key)
    return 0 if hour is None else derived.hour_start_ns(hour)
