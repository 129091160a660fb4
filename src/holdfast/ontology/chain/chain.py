"""The chain of manifests, which is the only history there is: how to walk it and what to ask it, in few reads.

* ``at`` finds the ancestor with a given number by skip pointers: O(log n) reads over our own history.
* ``contains`` answers whether an attempt is on the chain.
* ``files`` lists the files between two commits. Over our own history it reads one manifest for 64 commits, and O(log n)
  objects where checkpoints exist. A checkpoint is advice, as an index is: a caller that can, proves the result by the
  digest in ``type_heads``, and asks again with ``checkpoints=False`` if it does not match.
* Plain manifests point to their parents only. After the first few of them the folder is listed and the rest is read in
  parallel.

``Corrupt`` for a manifest that the chain names and that is missing or cannot be read. Numbers fall along the chain, so
it cannot be circular. Manifests do not change, apart from redactions, so some of those that were read are kept.
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

MANIFESTS_KEPT = 256
STATS_KEPT = 20_000
"""Files whose statistics are kept; beyond that all of them are dropped."""
PLAIN_READS = 16
"""Plain manifests that are read one after the other before the folder is listed."""
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
    """The files of a span of commits, and the manifest before the span."""

    before: Place | None
    files: tuple[FileRef, ...]


class Chain:
    def __init__(self, store: Store) -> None:
        self.store = store
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()
        self.stats: dict[str, FileStats] = {}
        """Statistics of files whose manifests were read, by path."""
        self._redacted: Place | None = None
        """The latest redaction that is finished and no longer contradicted by what is kept here."""

    async def manifest(self, place: Place) -> Manifest:
        manifest = self._manifests.get(place.path)
        if manifest is None:
            manifest = self._keep(await self.read(place))
        if manifest.commit_id != place.commit_id:
            raise Corrupt(f"{place.path}: says commit {manifest.commit_id}, and the chain says {place.commit_id}")
        return manifest

    def remember(self, manifest: Manifest) -> None:
        """Keep a manifest that this process wrote, so that it is not read."""
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
        """The ledger as of ``head``. ``known`` saves reads if it is the ledger of an ancestor."""
        behind: list[Manifest] = []
        place, found = head, EMPTY
        walk = _BackwardWalk(self, known.commit_id)
        while place is not None:
            if place == known.place:
                found = known
                break
            manifest = await walk.manifest(place)
            if (summary := manifest.summary) is not None:
                base = None if summary.full or summary.base is None else await self.manifest(summary.base)
                found = opened(manifest, base)
                break
            behind.append(manifest)
            place = manifest.parent
        dropped = await self.dropped() if behind else Dropped()
        for manifest in reversed(behind):
            found = followed(found, manifest, dropped)
        await self._apply_redactions(found.redacted)
        return found

    async def dropped(self) -> Dropped:
        """The types that plain writers have dropped; none if the object is missing or cannot be read."""
        found = await self.store.find(layout.DROPPED)
        if found is None:
            return Dropped()
        try:
            return Dropped.parse(codec.decode(found.body, key=found.key), key=found.key)
        except Corrupt:
            return Dropped()

    # --- redactions ---

    async def previous_redaction(self, place: Place) -> Place | None:
        """The latest commit before ``place`` that ordered payload to be destroyed.

        The manifests are not kept: the disk cache may still have them as they were before a redaction.
        """
        before = (await self.read(place)).parent
        while before is not None:
            manifest = await self.read(before)
            if manifest.summary is not None:
                return manifest.summary.redacted
            before = manifest.parent
        return None

    async def settled(self, latest: Place) -> bool:
        """Whether a redaction, and every one before it, is finished; if so, what is kept here reflects them."""
        await self._apply_redactions(latest)
        return self._redacted is not None and self._redacted.commit_id >= latest.commit_id

    async def _apply_redactions(self, latest: Place | None) -> None:
        """Drop what redactions have changed since it was read, here and in the disk cache."""
        if latest is None or (self._redacted is not None and latest.commit_id <= self._redacted.commit_id):
            return
        self._manifests.clear()
        self.stats.clear()
        cache = disk_cache(self.store)
        if cache is None:
            if await finished(self.store, latest):
                self._redacted = latest
            return
        place: Place | None = latest
        while place is not None:
            # The cache has the record of a redaction only if the files that it lists were dropped from the cache. Those
            # of the latest are dropped again by each process, because another may have been reading one of them.
            dropped = await cache.contains(layout.redaction_key(place.path))
            if dropped and place != latest:
                break
            files = await rewritten(self.store if dropped else uncached(self.store), place)
            if files is None:
                return  # not finished: look again next time
            await cache.discard(files)
            if dropped:
                break
            await self.store.find(layout.redaction_key(place.path))  # now the cache has the record
            place = await self.previous_redaction(place)
        self._redacted = latest

    # --- files ---

    async def files(self, lower: int, upper: Place | None, *, checkpoints: bool = True) -> list[FileRef]:
        """The files of all commits after ``lower``, up to ``upper``, in the order of commits."""
        found: set[FileRef] = set()
        place = upper
        walk = _BackwardWalk(self, lower)
        while place is not None and place.commit_id > lower:
            checkpoint = await self._checkpoint(place) if checkpoints and checkpoint_span(place.commit_id) else None
            if checkpoint is not None:
                found.update(checkpoint.files)
                place = checkpoint.before
                continue
            manifest = await walk.manifest(place)
            if manifest.summary is not None:
                found.update(manifest.summary.recent)
                place = manifest.summary.base
            else:
                found.update(manifest.refs)
                place = manifest.parent
        top = 0 if upper is None else upper.commit_id
        return sorted((ref for ref in found if lower < ref.commit_id <= top), key=lambda ref: (ref.commit_id, ref.path))

    async def write_checkpoint(self, place: Place) -> bool:
        """Write the checkpoint of this commit, if it has one. Not on the path of commits."""
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
            return None  # it is advice: one that cannot be read is ignored

    # --- reading ---

    async def read(self, place: Place) -> Manifest:
        """Read a manifest from the store. It is not kept."""
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
        self._manifests[manifest.path] = manifest
        self._manifests.move_to_end(manifest.path)
        while len(self._manifests) > MANIFESTS_KEPT:
            self._manifests.popitem(last=False)
        if len(self.stats) > STATS_KEPT:
            self.stats.clear()
        if manifest.summary is not None:
            for path, stats in manifest.summary.stats.items():
                self.stats.setdefault(path, stats)
        # A manifest has more statistics of its own files than later manifests have of recent files.
        self.stats |= {each.path: each.stats for each in manifest.files if each.stats is not None}
        return manifest


class _BackwardWalk:
    """Reads manifests one after the other, newest first; many plain ones in a row are read in parallel."""

    def __init__(self, chain: Chain, lower: int) -> None:
        self._chain = chain
        self._lower = lower
        self._plain = 0
        """How many plain manifests were read since the last one of ours."""
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
        """Read every attempt at the commits that may still be walked, whether or not it is on the chain."""
        places: list[Place] = []
        async for page in self._chain.store.list(layout.COMMITS, delimiter=True):
            for folder in page.folders:
                commit_id = layout.commit_of_folder(folder)
                if commit_id is not None and self._lower < commit_id <= upper:
                    places.append(Place(commit_id, f"{folder}manifest.json"))

        async def read(place: Place) -> Manifest | None:
            try:
                return await self._chain.read(place)
            except Corrupt:
                return None  # it may not be on the chain; if it is, it is read again, and the error is raised then

        found = await map_bounded(places, read, limit=PARALLEL)
        self._fetched = {manifest.path: manifest for manifest in found if manifest is not None}


class KnownHead:
    """The head that a session knows, and its ledger. Queries start from it and read on."""

    def __init__(self, store: Store) -> None:
        self.chain = Chain(store)
        self.known = False
        """Whether a head was read."""
        self.head = Head()
        self.ledger: Ledger = EMPTY
        self.first: int | None = None
        """The first head that the session read, for a query or a commit."""
        self.latest: Place | None = None
        """The latest one."""

    def note(self, head: Head) -> None:
        """Record that the session has read this head, and may act on it."""
        if self.first is None:
            self.first = head.commit_id
        if head.place is not None and (self.latest is None or head.commit_id > self.latest.commit_id):
            self.latest = head.place
