"""The chain of manifests: the only history there is. Walking it, and asking it questions, in few reads.

* ``at`` finds the ancestor with a given number, by skip pointers: O(log n) reads over our own history.
* ``contains`` answers "is my attempt in there?".
* ``files`` lists the files between two commits. Over our own history it reads one manifest per 64 commits, and where
  checkpoints stand, O(log n) objects. A checkpoint is advice, as an index is: a caller that can, proves the result by
  the digest in ``type_heads``, and asks again with ``checkpoints=False`` if it does not fit.
* A stretch of plain manifests has no pointers but to the parent. Past the first few of them the folder is listed and
  the rest is read in parallel.

A manifest that the chain names and that is missing or not readable is ``Corrupt``; so is a chain that runs in a circle
(numbers must fall). Manifests never change, so what was read is kept for a while.
"""

from collections import OrderedDict
from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.aio import map_bounded
from holdfast.base.errors import Corrupt, HoldfastError, Invalid, NotFound
from holdfast.objects.store import CREATE, Store
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import EMPTY, Ledger, followed, nearest, opened
from holdfast.ontology.format.head import Head
from holdfast.ontology.format.manifest import Manifest, parse
from holdfast.ontology.format.redactions import disk_cache, finished, rewritten, uncached
from holdfast.ontology.format.schema_objects import Dropped
from holdfast.ontology.format.stats import FileStats
from holdfast.ontology.types.refs import FileRef, Place, file_refs, file_row

KEPT = 256
"""Manifests kept in memory."""
STATS_KEPT = 20_000
"""Files whose statistics are kept; past it, the memory starts anew."""
PLAIN_READS = 16
"""Plain manifests read one after the other before the folder is listed."""
PARALLEL = 32

CHECKPOINT_FORMAT = "holdfast.ontology.checkpoint"
CHECKPOINT_EVERY = 256
CHECKPOINT_FAN = 4


def checkpoint_span(commit_id: int) -> int:
    """How many commits the checkpoint of this commit lists; 0 if it has none."""
    if commit_id < 1 or commit_id % CHECKPOINT_EVERY:
        return 0
    span = CHECKPOINT_EVERY
    while commit_id % (span * CHECKPOINT_FAN) == 0:
        span *= CHECKPOINT_FAN
    return span


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files of a span of commits, and the manifest before it."""

    before: Place | None
    files: tuple[FileRef, ...]


class Chain:
    def __init__(self, store: Store) -> None:
        self.store = store
        self._kept: OrderedDict[str, Manifest] = OrderedDict()
        self.stats: dict[str, FileStats] = {}
        """Of the files of manifests that were read, by path."""
        self._redacted: Place | None = None
        """The latest redaction that is known to be finished and applied to the cached manifests."""

    async def manifest(self, place: Place) -> Manifest:
        kept = self._kept.get(place.path)
        if kept is None:
            kept = self._keep(await self.read(place))
        if kept.commit_id != place.commit_id:
            raise Corrupt(f"{place.path}: says commit {kept.commit_id}, and the chain says {place.commit_id}")
        return kept

    def remember(self, manifest: Manifest) -> None:
        """A manifest that we wrote ourselves need not be read."""
        self._keep(manifest)

    async def at(self, start: Place | None, commit_id: int) -> Place | None:
        """The manifest numbered ``commit_id`` among ``start`` and its ancestors."""
        place = start
        while place is not None and place.commit_id > commit_id:
            place = nearest(await self.manifest(place), commit_id)
        return place if place is not None and place.commit_id == commit_id else None

    async def contains(self, head: Place | None, place: Place) -> bool:
        return await self.at(head, place.commit_id) == place

    async def ledger(self, head: Place | None, known: Ledger = EMPTY) -> Ledger:
        """The ledger as of ``head``. ``known`` is used where it lies on the way."""
        behind: list[Manifest] = []
        place, found = head, EMPTY
        stretch = _Stretch(self, known.commit_id)
        while place is not None:
            if place == known.place:
                found = known
                break
            manifest = await stretch.manifest(place)
            if manifest.summary is not None:
                base = manifest.summary.base
                needed = base is not None and not manifest.summary.full
                found = opened(manifest, await self.manifest(base) if needed and base is not None else None)
                break
            behind.append(manifest)
            place = manifest.parent
        dropped = await self.dropped() if behind else Dropped()
        for manifest in reversed(behind):
            found = followed(found, manifest, dropped)
        await self._apply_redactions(found.redacted)
        return found

    async def dropped(self) -> Dropped:
        """The types that plain writers say they have dropped; none where the object cannot be read."""
        found = await self.store.find(layout.DROPPED)
        if found is None:
            return Dropped()
        try:
            return Dropped.parse(codec.decode(found.body, key=found.key), key=found.key)
        except Corrupt:
            return Dropped()

    async def settled(self, latest: Place) -> bool:
        """Whether a redaction, and all before it, is finished; then the cached manifests reflect it."""
        await self._apply_redactions(latest)
        return self._redacted is not None and self._redacted.commit_id >= latest.commit_id

    async def _apply_redactions(self, latest: Place | None) -> None:
        """Forget what a redaction has changed since we read it, here and in the disk cache."""
        if latest is None or (self._redacted is not None and latest.commit_id <= self._redacted.commit_id):
            return
        cache = disk_cache(self.store)
        self._kept.clear()
        self.stats.clear()
        place: Place | None = latest
        while cache is not None and place is not None:
            # A cache has the record only if the files were dropped from it. Those of the latest are dropped once more
            # by each of us: another process may have kept one that it was just reading.
            done = await cache.holds(layout.redaction_key(place.path))
            if done and place != latest:
                break
            files = await rewritten(self.store if done else uncached(self.store), place)
            if files is None:
                return  # still under way: look again next time
            await cache.forget(files)
            if done:
                break
            before = (await self.read(place)).parent
            await self.store.find(layout.redaction_key(place.path))  # remembered: the redaction is finished
            place = (await self.ledger_of(before)).redacted
        if cache is not None or await finished(self.store, latest):
            self._redacted = latest

    async def ledger_of(self, place: Place | None) -> Ledger:
        """The ledger at a place, or the empty one; does not apply redactions to the cached manifests."""
        if place is None:
            return EMPTY
        manifest = await self.read(place)
        if manifest.summary is None:
            return await self.ledger_of(manifest.parent)
        base = manifest.summary.base if not manifest.summary.full else None
        return opened(manifest, await self.read(base) if base is not None else None)

    async def files(self, lower: int, upper: Place | None, *, checkpoints: bool = True) -> list[FileRef]:
        """The files of all commits after ``lower``, up to ``upper``, in the order of commits."""
        found: set[FileRef] = set()
        place = upper
        stretch = _Stretch(self, lower)
        while place is not None and place.commit_id > lower:
            checkpoint = await self._checkpoint(place) if checkpoints and checkpoint_span(place.commit_id) else None
            if checkpoint is not None:
                found.update(checkpoint.files)
                place = checkpoint.before
                continue
            manifest = await stretch.manifest(place)
            if manifest.summary is not None:
                found.update(manifest.summary.recent)
                place = manifest.summary.base
            else:
                found.update(manifest.refs)
                place = manifest.parent
        top = 0 if upper is None else upper.commit_id
        return sorted((ref for ref in found if lower < ref.commit_id <= top), key=lambda ref: (ref.commit_id, ref.path))

    async def write_checkpoint(self, place: Place) -> bool:
        """List the span that ends at ``place``; nothing if it has no checkpoint. Off the path of commits."""
        span = checkpoint_span(place.commit_id)
        if span == 0:
            return False
        lower = place.commit_id - span
        before = await self.at(place, lower) if lower else None
        files = await self.files(lower, place)
        document = {
            "commit_id": place.commit_id,
            "manifest_path": place.path,
            "before": list(before) if before is not None else None,
            "files": [file_row(ref) for ref in files],
        }
        body = codec.encode(codec.stamp(document, format_name=CHECKPOINT_FORMAT, version=1, write_id=place.path))
        await self.store.put(layout.checkpoint_key(place.path), body, CREATE)
        return True

    async def _checkpoint(self, place: Place) -> Checkpoint | None:
        key = layout.checkpoint_key(place.path)
        found = await self.store.find(key)
        if found is None:
            return None
        try:
            document = codec.decode(found.body, key=key)
            codec.expect(document, format_name=CHECKPOINT_FORMAT, newest=1, key=key)
            before = document["before"]
            where = Place(int(before[0]), str(before[1])) if before is not None else None
            if where is not None and where.commit_id >= place.commit_id:
                return None
            return Checkpoint(where, file_refs(document["files"]))
        except (HoldfastError, KeyError, TypeError, ValueError):
            return None  # it is advice: what cannot be read is left out

    async def read(self, place: Place) -> Manifest:
        """Read from the store, and not cached."""
        try:
            found = await self.store.get(place.path)
        except Invalid as error:
            raise Corrupt(
                f"the chain names {place.path!r} for commit {place.commit_id}, and that is not a key"
            ) from error
        except NotFound as error:
            raise Corrupt(
                f"{place.path}: the chain names this manifest for commit {place.commit_id}, and it is missing"
            ) from error
        return parse(found.body, place.path)

    def _keep(self, manifest: Manifest) -> Manifest:
        self._kept[manifest.path] = manifest
        self._kept.move_to_end(manifest.path)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        if len(self.stats) > STATS_KEPT:
            self.stats.clear()
        if manifest.summary is not None:
            for path, stats in manifest.summary.stats.items():
                self.stats.setdefault(path, stats)
        # A manifest has more about its own files than later ones have about recent files.
        self.stats |= {each.path: each.stats for each in manifest.files if each.stats is not None}
        return manifest


class _Stretch:
    """Reads manifests one after the other, backwards; a long stretch of plain ones all at once."""

    def __init__(self, chain: Chain, lower: int) -> None:
        self._chain = chain
        self._lower = lower
        self._plain = 0
        self._fetched: dict[str, Manifest] = {}

    async def manifest(self, place: Place) -> Manifest:
        if self._plain == PLAIN_READS:
            await self._fetch(place.commit_id)
        found = self._fetched.get(place.path)
        if found is None or found.commit_id != place.commit_id:
            found = await self._chain.manifest(place)
        self._plain = 0 if found.summary is not None else self._plain + 1
        return found

    async def _fetch(self, upper: int) -> None:
        places = await _attempts(self._chain.store, self._lower, upper)

        async def read(place: Place) -> Manifest | None:
            try:
                return await self._chain.read(place)
            except Corrupt:
                return None  # it may not be on the chain; a manifest that is, is read again and then raises

        for manifest in await map_bounded(places, read, limit=PARALLEL):
            if manifest is not None:
                self._fetched[manifest.path] = manifest


async def _attempts(store: Store, lower: int, upper: int) -> list[Place]:
    """Every attempt that was made at the commits after ``lower``, up to ``upper``."""
    places: list[Place] = []
    async for page in store.list(layout.COMMITS, delimiter=True):
        for folder in page.folders:
            commit_id = layout.commit_of_folder(folder)
            if commit_id is not None and lower < commit_id <= upper:
                places.append(Place(commit_id, f"{folder}manifest.json"))
    return places


class KnownHead:
    """The head that a session knows, and what the chain says there; queries start from it and read on from there."""

    def __init__(self, store: Store) -> None:
        self.chain = Chain(store)
        self.known = False
        self.head = Head()
        self.ledger: Ledger = EMPTY
        self.first: int | None = None
        """The first head that the session read, by a query or for a commit."""
        self.latest: Place | None = None
        """The latest one."""

    def note(self, head: Head) -> None:
        """Record that the session has read this head, and may act on it."""
        if self.first is None:
            self.first = head.commit_id
        if head.place is not None and (self.latest is None or head.commit_id > self.latest.commit_id):
            self.latest = head.place
