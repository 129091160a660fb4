"""Which accepted batches the reconciler has not looked at: from what collectors gathered and references by time, from
lists of keys, or from all manifests. Reads alone.

By time, a look costs one LIST per thousand references, and one per thousand gatherings, in the hours from an overlap
before the checkpoint on; once an hour, in those of the day before; and one GET for each gathering that is new. A full
scan lists the manifests themselves and misses nothing; so does a look for what a collector left, of those that were
written since it was heard last (``silence``).

A batch that was gathered gets its reference by time from the reconciler, which then finds that too: it is known by
having been seen.
"""

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field

from holdfast.base.aio import map_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible, NotFound
from holdfast.objects.store import Entry, Store
from holdfast.pipeline.checkpoint import Checkpoint, Recent, short, shorts
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.gathering import manifests_in
from holdfast.telemetry.accept.reconcile import Finding, Problem
from holdfast.telemetry.rollup import layout as derived
from holdfast.telemetry.rollup.layout import HOUR_NS

DEEP_NS = 24 * HOUR_NS
"""How late a reference may be written, after its batch was accepted, to be found by time: a spool that lands after an
outage, a collector whose clock is behind. Whatever is later is found by a full scan."""
DEEP_EVERY_NS = HOUR_NS
AT_ONCE = 16
BY_TIME = (layout.GATHERINGS, layout.ACCEPTED_BY_TIME)
MOST_FOREIGN = 100
"""Foreign objects that one run reports."""


@dataclass(slots=True)
class Discovered:
    keys: list[str] = field(default_factory=list)
    """References, manifests and conflicts to look at."""
    through_unix_ns: int | None = None
    """Where the checkpoint goes when they are done; None if it stays."""
    cursor_ns: int = 0
    follow_ns: int = 0
    """From which hours on the next look lists references."""
    seen: set[bytes] = field(default_factory=set)
    foreign: list[Problem] = field(default_factory=list)
    more: bool = False
    """There is more than one run takes."""
    next: str | None = None
    """Where the next run goes on, if the checkpoint does not say it."""
    deep: bool = False
    """The day before was looked at too, and all of it."""
    listed: int = 0
    broken_after: str | None = None
    """Whose turn it is among batches that cannot be read, as the checkpoint has it."""
    marks: Document | None = None
    """What was heard of collectors, as the checkpoint will have it."""
    untold: list[str] = field(default_factory=list)
    """Collectors for whose last batches all manifests were listed."""

    def checkpoint(self, recent: str | None, broken_after: str | None = None) -> Checkpoint:
        """Where it stands once everything found here is done."""
        through = self.through_unix_ns or 0
        deep = (through, self.cursor_ns) if self.deep else (0, 0)
        return Checkpoint(
            through,
            self.cursor_ns,
            recent,
            *deep,
            follow_ns=self.follow_ns,
            broken_after=broken_after,
            marks=self.marks,
        )


async def by_time(
    store: Store, since: Checkpoint | None, recent: Recent, *, overlap_ns: int, now_ns: int, limit: int
) -> Discovered:
    """Batches that were referred to since the checkpoint. Of very many the oldest hours come first."""
    found = Discovered(cursor_ns=since.cursor_ns if since is not None else 0)
    look = _Look.of(since, overlap_ns, now_ns)
    fresh = await _fresh(store, look, recent, found, limit)
    found.through_unix_ns = now_ns
    found.broken_after = since.broken_after if since is not None else None
    found.marks = since.marks if since is not None else None
    found.follow_ns = min(now_ns, found.cursor_ns)
    found.deep = look.deep and not found.more
    if found.more:
        # What lies beyond has not been listed: neither clock may run ahead of it.
        before = since.through_unix_ns if since is not None else 0
        last_ns = min(now_ns, _hour_start_ns(fresh[-1].key))
        found.through_unix_ns, found.follow_ns = max(before, last_ns), max(look.follow_ns, last_ns)
        found.cursor_ns = since.cursor_ns if since is not None else 0
        found.seen |= recent.seen
    gathered = await _gathered(store, [entry.key for entry in fresh if layout.gathering_in(entry.key)], found)
    # Their references by time will be written by this run, so they are kept however old the gathering is.
    found.seen |= shorts(gathered)
    kept_ns = found.cursor_ns - overlap_ns
    found.seen |= {short(_id(entry.key)) for entry in fresh if entry.modified_ns >= kept_ns}
    referred = [entry.key for entry in fresh if not entry.key.startswith(layout.GATHERINGS)]
    found.keys = [key for key in referred if _id(key) not in gathered]
    found.keys += [key for manifest_id, key in gathered.items() if not recent.knows(manifest_id)]
    return found


async def _fresh(store: Store, look: "_Look", recent: Recent, found: Discovered, limit: int) -> list[Entry]:
    """References and gatherings that were not seen, of so many batches or a gathering more."""
    fresh: list[Entry] = []
    batches = 0
    async for entry in _references(store, look.after, look.after, order=_when):
        found.listed += 1
        gathering = layout.gathering_in(entry.key)
        if gathering is None and _manifest_id(entry.key) is None:
            _foreign(found, entry.key)
            continue
        found.cursor_ns = max(found.cursor_ns, entry.modified_ns)
        if not look.wants(entry):
            continue
        if recent.knows(_id(entry.key)):
            found.seen.add(short(_id(entry.key)))
            continue
        if batches >= limit:
            found.more = True
            break
        fresh.append(entry)
        batches += 1 if gathering is None else gathering.batches
    return fresh


async def _gathered(store: Store, keys: Sequence[str], found: Discovered) -> dict[str, str]:
    """Manifest ids of the batches in these gatherings, and the keys of their manifests."""

    async def one(key: str) -> dict[str, str]:
        try:
            manifests = manifests_in(await store.get(key))
        except NotFound:
            return {}
        except (Corrupt, Incompatible) as error:
            _foreign(found, key, f"{error}; its batches are found by a full scan")
            return {}
        return {each.identity.manifest_id: each.key for each in manifests}

    parts = await map_bounded(keys, one, limit=AT_ONCE)
    return {manifest_id: key for part in parts for manifest_id, key in part.items()}


async def add_untold(store: Store, found: Discovered, recent: Recent, since_ns: int, limit: int) -> bool:
    """Manifests and conflicts that were written since, by the store's clock, and that nothing else has led to. Whether
    that was all; if not, the next run has seen these.
    """
    known = recent.seen | found.seen | shorts(_id_of(key) for key in found.keys)
    taken = len(found.keys)
    async for page in store.list(layout.ACCEPTED):
        for entry in page.entries:
            if entry.modified_ns < since_ns or not _is_ours(layout.ACCEPTED, entry.key):
                continue
            if short(_id_of(entry.key)) in known:
                continue
            if len(found.keys) - taken >= limit:
                found.more, found.seen = True, found.seen | recent.seen
                return False
            found.keys.append(entry.key)
            found.seen.add(short(_id_of(entry.key)))
    async for page in store.list(layout.CONFLICTS):
        wanted = [entry.key for entry in page.entries if entry.modified_ns >= since_ns]
        found.keys += [key for key in wanted if _is_ours(layout.CONFLICTS, key)]
    return True


async def between(
    store: Store, since_ns: int, until_ns: int, after: str | None = None, limit: int = sys.maxsize
) -> Discovered:
    """Batches that were accepted in this time, whatever the checkpoint says: after this key, so many, or a gathering
    more; without a limit, each once. Of an hour, those that are referred to come first. So what was gathered is taken
    only where nobody refers to it, and the references that a run then writes lie behind the next.
    """
    end = layout.hour_path(max(since_ns, until_ns - 1))
    found = Discovered()
    gatherings: list[str] = []
    batches, last = 0, after
    async for entry in _references(store, *_from(after, since_ns), order=_hour_and_family):
        if _when(entry.key) > end and not _when(entry.key).startswith(end):
            break
        gathering = layout.gathering_in(entry.key)
        if gathering is None and _manifest_id(entry.key) is None:
            continue
        if batches >= limit:
            found.more, found.next = True, last
            break
        (found.keys if gathering is None else gatherings).append(entry.key)
        batches += 1 if gathering is None else gathering.batches
        last = entry.key
    referred = shorts(_id(key) for key in found.keys)
    if after is not None and any(_hour_in(after) == _hour_in(key) for key in gatherings):
        # Others of this hour were taken before.
        async for key in store.keys(f"{layout.ACCEPTED_BY_TIME}{_hour_in(after)}/"):
            referred |= {short(_id(key))} if _manifest_id(key) is not None else set()
    gathered = await _gathered(store, gatherings, found)
    found.keys += [key for manifest_id, key in gathered.items() if short(manifest_id) not in referred]
    return found


def _from(after: str | None, since_ns: int) -> tuple[str, str]:
    """After which gatherings and which references a look goes on whose last was this one."""
    if after is None:
        return _hour_key(since_ns), _hour_key(since_ns)
    if layout.gathering_in(after) is None:
        return _hour_in(after), _when(after)
    return _when(after), f"{_hour_in(after)}/\U0010ffff"


async def scan(store: Store, after: str | None, agents: Sequence[str], limit: int) -> Discovered:
    """Manifests and conflicts after this key, from the store's own order of keys; of these agents, if any are given.

    ``next``, the last of ``keys``, is where the next scan begins if there is more. Listing is a hundredth of the work,
    so it is not divided; the looking is.
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
                    found.more, found.next = True, found.keys[-1]
                    return found
                else:
                    found.keys.append(key)
    return found


@dataclass(frozen=True, slots=True)
class _Look:
    """Which references and gatherings a look by time takes."""

    after: str | None = None
    """From which hour on they are listed."""
    regular: str = ""
    """The first of the hours that every look lists."""
    floor_ns: int | None = None
    """Written before: followed already. By the store's clock, as are the others."""
    deep_floor_ns: int = 0
    overlap_ns: int = 0
    deep: bool = True
    follow_ns: int = 0

    @classmethod
    def of(cls, since: Checkpoint | None, overlap_ns: int, now_ns: int) -> "_Look":
        if since is None:
            return cls()
        follow_ns = since.through_unix_ns if since.follow_ns is None else since.follow_ns
        regular_ns = max(0, follow_ns - overlap_ns)
        deep = abs(now_ns - since.deep_at_unix_ns) >= DEEP_EVERY_NS  # before now, or by a clock that was ahead
        return cls(
            _hour_key(max(0, regular_ns - DEEP_NS) if deep else regular_ns),
            _hour_key(regular_ns),
            since.cursor_ns - overlap_ns,
            since.deep_cursor_ns - overlap_ns,
            overlap_ns,
            deep,
            follow_ns,
        )

    def wants(self, entry: Entry) -> bool:
        if self.floor_ns is None:
            return True
        if _when(entry.key) >= self.regular:
            return entry.modified_ns >= self.floor_ns
        # Of older hours, what was written when they were no longer looked at.
        late = _hour_start_ns(entry.key) + HOUR_NS + self.overlap_ns < entry.modified_ns
        return late and entry.modified_ns >= self.deep_floor_ns


async def _references(
    store: Store, *after: str | None, order: Callable[[str], str | tuple[str, bool]]
) -> AsyncIterator[Entry]:
    """Gatherings and references, each after this, in the order of hours."""
    async with AsyncExitStack() as ending:
        listed = [_entries(store, family, each) for family, each in zip(BY_TIME, after, strict=True)]
        streams = [await ending.enter_async_context(aclosing(each)) for each in listed]
        heads = {number: head for number, each in enumerate(streams) if (head := await anext(each, None)) is not None}
        while heads:
            first = min(heads, key=lambda number: order(heads[number].key))
            yield heads.pop(first)
            following = await anext(streams[first], None)
            if following is not None:
                heads[first] = following


async def _entries(store: Store, family: str, after: str | None) -> AsyncGenerator[Entry, None]:
    async for page in store.list(family, after=None if after is None else f"{family}{after}"):
        for entry in page.entries:
            yield entry


def _when(key: str) -> str:
    """What a key by time says below its family: hour and name."""
    return key.split("/", 2)[-1]


def _hour_in(key: str) -> str:
    return _when(key).rpartition("/")[0]


def _hour_and_family(key: str) -> tuple[str, bool]:
    return _hour_in(key), key.startswith(layout.GATHERINGS)


def _hour_key(time_ns: int) -> str:
    return layout.hour_path(time_ns).rstrip("/")


def _is_ours(prefix: str, key: str) -> bool:
    identity = layout.identity_in(key)
    if identity is None:
        return False
    if prefix == layout.ACCEPTED:
        return key == layout.accepted_key(identity)
    name = key.rpartition("/")[2].removesuffix(".json")
    return len(name) == 64 and key == f"{layout.conflict_folder(identity)}{name}.json"


def _foreign(found: Discovered, key: str, told: str = "its name is not that of anything that belongs here") -> None:
    if len(found.foreign) < MOST_FOREIGN:
        found.foreign.append(Problem(Finding.FOREIGN_OBJECT, key, told))


def _id(key: str) -> str:
    """Of the manifest that is referred to, or of the gathering."""
    gathering = layout.gathering_in(key)
    return gathering.id if gathering is not None else key.rpartition("/")[2].removesuffix(".json")


def _id_of(key: str) -> str:
    """Of the manifest that this is, or that is referred to."""
    identity = layout.identity_in(key)
    return _id(key) if identity is None else identity.manifest_id


def _manifest_id(key: str) -> str | None:
    name = _id(key)
    proper = len(name) == 64 and not set(name) - set("0123456789abcdef") and key.endswith(f"/{name}.json")
    return name if proper and key.count("/") == 4 else None


def _hour_start_ns(key: str) -> int:
    hour = derived.hour_in(key)
    return 0 if hour is None else derived.hour_start_ns(hour)
