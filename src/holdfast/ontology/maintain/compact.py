"""Compaction: many small files of a type into few, beside writers, readers and other compactors.

Plan (pure, from a list of files that the chain proves), merge, write under a key of its own, publish through the index.
An index is changed in one write over the version that was read, and only if the whole list can still be proved. So a
reader finds either the old entries or the new one, and both have the same rows.

* A snapshot never covers the head: the specification's reader would return the head's rows twice.
* Files of commits are never removed. A superseded snapshot is removed when its replacement has existed for
  ``GRACE_NS`` by the store's clock; a reader that misses it resolves the type's files again.
* While a redaction of the type is unfinished nothing is merged, because some files still have payload that must go. A
  merge that a redaction overtakes is planned again.
* Damaged inputs end the compaction of their type with ``Corrupt``; nothing is published.
"""

import hashlib
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.base.aio import blocking, map_bounded, stream_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Conflict, Corrupt, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Lost, Store
from holdfast.ontology.chain import catalog
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.redaction_fence import RedactionFence, fence_of, retry_overtaken
from holdfast.ontology.chain.resolve import resolve
from holdfast.ontology.chain.state import see_file
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.footer import stats_of
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import Entry, Index, folded, read_index, sealed_attempt
from holdfast.ontology.maintain.merge import Merged, Source, merge
from holdfast.ontology.maintain.reindex import brought_forward, update_index
from holdfast.ontology.maintain.tiers import FAN, LIMIT, Piece, pieces_of, plan
from holdfast.ontology.maintain.verify.files import check_data
from holdfast.ontology.types import refs
from holdfast.ontology.types.refs import FileRef, Place, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo, of_schema

PARALLEL = 16
GRACE_NS = 3600 * 10**9
"""How long a superseded snapshot is kept."""
ORPHAN_NS = 24 * GRACE_NS
"""How long a snapshot is kept that was never published."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Neighbours in the list of a type's files that become one snapshot."""

    type_id: TypeId
    pieces: tuple[Piece, ...]

    @property
    def first(self) -> int:
        return self.pieces[0].entry.first

    @property
    def last(self) -> int:
        return self.pieces[-1].entry.last

    @property
    def size(self) -> int:
        return sum(piece.size or 0 for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of one merge."""

    merge: Merge
    entry: Entry
    rows: int
    size: int
    published: bool
    """False if another compactor was faster, or if the type has a new life since."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """A type's files, and how many there would be after compaction."""

    type_id: TypeId
    files: int
    after: int
    merges: tuple[Merge, ...]

    @property
    def bytes_to_write(self) -> int:
        """The approximate size of the inputs."""
        return sum(merge.size for merge in self.merges)


class Compactor:
    def __init__(
        self,
        store: Store,
        ambient: Ambient,
        *,
        chain: Chain | None = None,
        fan: int = FAN,
        limit: int = LIMIT,
        reads: int = PARALLEL,
        whole: bool = False,
    ) -> None:
        """``whole`` merges whatever the tiers say."""
        self._store = store
        self._ambient = ambient
        self._chain = chain if chain is not None else Chain(store)
        self._fan = fan
        self._limit = limit
        self._reads = reads
        self._whole = whole
        self._fence = RedactionFence()
        """The redactions when ``begin`` was called."""
        self.bytes_read = 0
        self.bytes_written = 0

    async def types(self) -> list[TypeId]:
        return sorted((await self._ledger()).heads)

    async def outlook(self, type_id: TypeId) -> Outlook:
        """The merges to make now. Requests sizes of files, and reads none."""
        ledger = await self._ledger()
        pieces = await self._pieces(type_id, ledger)
        while True:
            groups = plan(pieces, below=ledger.commit_id, fan=self._fan, limit=self._limit, whole=self._whole)
            unknown = [piece for group in groups for piece in group if piece.size is None]
            if not unknown:
                break
            sizes = dict(zip(unknown, await map_bounded(unknown, self._size, limit=self._reads), strict=True))
            pieces = [replace(piece, size=sizes[piece]) if piece in sizes else piece for piece in pieces]
        merges = tuple(Merge(type_id, group) for group in groups)
        after = len(pieces) - sum(len(each.pieces) - 1 for each in merges)
        return Outlook(type_id, len(pieces), after, merges)

    async def merge_of(self, type_id: TypeId, first: int, last: int) -> Merge | None:
        """The merge of the files that cover these commits; None if others have merged some of them meanwhile."""
        pieces = await self._pieces(type_id, await self._ledger())
        group = tuple(piece for piece in pieces if first <= piece.entry.first and piece.entry.last <= last)
        covered = (group[0].entry.first, group[-1].entry.last) if len(group) > 1 else None
        return Merge(type_id, group) if covered == (first, last) else None

    async def _pieces(self, type_id: TypeId, ledger: Ledger) -> list[Piece]:
        return pieces_of((await resolve(self._store, self._chain, ledger, type_id)).entries, type_id)

    async def _size(self, piece: Piece) -> int:
        try:
            return (await self._store.head(piece.entry.path)).size
        except NotFound as error:
            raise Corrupt(f"{piece.entry.path}: this file is missing", remedy="holdfast onto verify") from error

    async def compact(self, type_id: TypeId) -> list[Compacted]:
        """Make the merges, one snapshot after the other."""

        async def once() -> list[Compacted]:
            return [await self.perform(each) for each in (await self.outlook(type_id)).merges]

        return await retry_overtaken(once)

    # --- one snapshot ---

    async def perform(self, wanted: Merge) -> Compacted:
        await self.begin([wanted.type_id])
        (done,) = await self.publish([await self.snapshot(wanted)])
        return done

    async def begin(self, types: Iterable[TypeId]) -> None:
        """Call this before files are read. A redaction that is ordered after it prevents the publication.

        ``Conflict`` while a redaction of one of the types is unfinished.
        """
        self._fence = await fence_of(self._store, self._chain, await self._ledger())
        for type_id in types:
            self._check_pending(type_id)

    def _check_pending(self, type_id: TypeId) -> None:
        for each in self._fence.pending:
            if each.redaction.type_id == type_id:
                raise Conflict(
                    f"{type_id.label}: commit {each.place.commit_id} ordered payload to be destroyed, and that is not "
                    "done",
                    remedy="try again later; if the process that does it was killed, holdfast onto erase --resume",
                )

    async def snapshot(self, wanted: Merge) -> Compacted:
        """Merge, check and write. Nothing names the snapshot yet."""
        made = await self._merged(wanted)
        entry = self._entry(wanted, made)
        if isinstance(await self._store.put(entry.path, made.body, CREATE), Lost):
            raise Conflict(f"{entry.path}: another compactor has drawn the same key", remedy="try again")
        self.bytes_written += len(made.body)
        return Compacted(wanted, entry, made.rows, len(made.body), published=False)

    async def _merged(self, wanted: Merge) -> Merged:
        sources = [source async for source in self._sources(wanted)]
        target = await self._target(wanted.type_id)
        origin: Document = {
            "type": wanted.type_id.label,
            "first": wanted.first,
            "last": wanted.last,
            "before": list(wanted.pieces[0].before),
            "after": list(wanted.pieces[-1].after),
        }
        return await blocking(merge, sources, target, origin)

    async def _sources(self, wanted: Merge) -> AsyncIterator[Source]:
        async def read(piece: Piece) -> Source:
            return await self._source(wanted.type_id, piece)

        async for source in stream_bounded(wanted.pieces, read, limit=self._reads):
            self.bytes_read += len(source.body)
            yield source

    async def _source(self, type_id: TypeId, piece: Piece) -> Source:
        """A file, checked against its manifest."""
        entry = piece.entry
        body = await see_file(self._store, FileRef(entry.last, type_id, entry.path), self._fence)
        if entry.snapshot:
            rows = entry.stats.rows if entry.stats is not None else None
            return Source(entry.path, body, entry.first, entry.last, rows, ours=True)
        folder = layout.folder_of(entry.path)
        manifest = await self._chain.manifest(Place(entry.last, f"{folder}manifest.json"))
        named = next((each for each in manifest.files if each.path == entry.path), None)
        if named is None:
            raise Corrupt(f"{manifest.path}: it does not name {entry.path}, which the chain does")
        if named.stats is not None:
            self._fence.check(named.stats.redacted, entry.path)  # the manifest was read after the file
        if hashlib.sha256(body).hexdigest() != named.content_sha256:  # damaged, or by a plain writer without hashes
            findings, _ = await blocking(check_data, body, named, entry.last)
            # Wrong statistics do not matter here: the snapshot gets statistics of its own.
            if damaged := [each for each in findings if each.rule.name != "stats_wrong"]:
                raise Corrupt(f"{entry.path}: {damaged[0].message}", remedy=damaged[0].rule.remedy)
        return Source(entry.path, body, entry.first, entry.last, named.row_count, ours=manifest.summary is not None)

    async def _target(self, type_id: TypeId) -> TypeInfo:
        stored = await catalog.schema_at(self._chain, await self._ledger(), type_id)
        if stored is None:
            return of_schema(type_id, {})
        return of_schema(type_id, stored.schema, version_id=stored.ref.version_id)

    def _entry(self, wanted: Merge, made: Merged) -> Entry:
        before, after = wanted.pieces[0].before, wanted.pieces[-1].after
        attempt = sealed_attempt(self._ambient.ids.attempt(), wanted.type_id, wanted.first, before, after)
        path = layout.snapshot_key(*wanted.type_id, wanted.first, wanted.last, attempt)
        return Entry(wanted.first, wanted.last, path, after, stats_of(made.body, key=path, unique=False))

    # --- the index ---

    async def publish(self, made: Sequence[Compacted]) -> list[Compacted]:
        """Replace files of one type by snapshots, in one write of its index.

        A snapshot whose span was taken meanwhile is deleted. ``Ambiguous`` if the outcome of the write is unknown; then
        all snapshots are kept, since an index may name them.
        """
        if not made:
            return []
        placed = await self._place(made[0].merge.type_id, [each.entry for each in made])
        await self._store.delete_many([each.entry.path for each in made if each.entry.path not in placed])
        return [replace(each, published=each.entry.path in placed) for each in made]

    async def _place(self, type_id: TypeId, snapshots: Sequence[Entry]) -> Collection[str]:
        """The paths of the snapshots that the index names afterwards."""
        placed: set[str] = set()

        async def change(index: Index) -> Index | None:
            nonlocal placed
            ledger = await self._ledger()  # read after the index, so it is not older
            named = {each.path for each in index.entries}
            placed = {each.path for each in snapshots if each.path in named}
            redacted = 0 if ledger.redacted is None else ledger.redacted.commit_id
            if redacted != self._fence.number:
                return None  # the files may have been redacted after they were read
            whole = await brought_forward(self._chain, ledger, index)
            entries, added = whole.entries, set[str]()
            for entry in snapshots:
                after = replaced(entries, entry) if self._has_place(type_id, entry, ledger) else None
                if entry.path not in named and after is not None:
                    entries, added = after, {*added, entry.path}
            if not added or folded(entries, (), type_id) != ledger.head_of(type_id):
                return None
            placed |= added
            return replace(whole, entries=entries)

        await update_index(self._store, self._ambient, type_id, change)
        return placed

    @staticmethod
    def _has_place(type_id: TypeId, entry: Entry, ledger: Ledger) -> bool:
        """Whether a snapshot ends before the head, and is of the type's present life."""
        return entry.last < ledger.commit_id and entry.first >= ledger.generation_of(type_id)

    async def _ledger(self) -> Ledger:
        return await self._chain.ledger((await read_head(self._store)).place)

    # --- garbage ---

    async def sweep(self, types: Collection[TypeId]) -> list[str]:
        """Delete snapshots that were superseded long ago or never published; returns their keys."""
        modified: dict[str, int] = {}
        async for page in self._store.list(layout.SNAPSHOTS):
            modified |= {entry.key: entry.modified_ns for entry in page.entries}
        gone: list[str] = []
        for type_id in types:
            try:
                now_ns = (await self._store.head(layout.index_key(*type_id))).modified_ns
            except NotFound:
                continue
            index = await read_index(self._store, type_id)  # read after the listing, so it names what was published
            gone += superseded(type_id, index.entries, modified, now_ns)
        await self._store.delete_many(gone)
        return gone


def replaced(entries: Sequence[Entry], snapshot: Entry) -> tuple[Entry, ...] | None:
    """The entries with the snapshot in place of those that it covers; None if it does not fit, or covers only one."""
    inside = [entry for entry in entries if snapshot.first <= entry.first and entry.last <= snapshot.last]
    before = [entry for entry in entries if entry.last < snapshot.first]
    after = [entry for entry in entries if entry.first > snapshot.last]
    if len(inside) < 2 or len(before) + len(inside) + len(after) != len(entries):
        return None
    return (*before, snapshot, *after)


def superseded(type_id: TypeId, entries: Sequence[Entry], modified: Mapping[str, int], now_ns: int) -> list[str]:
    """The snapshots of a type to be deleted. ``now_ns`` is the current time by the store's clock."""
    named = {entry.path for entry in entries}
    found: list[str] = []
    for key, at_ns in modified.items():
        span = layout.commits_of_snapshot(key)
        attempt = layout.attempt_of_snapshot(key)
        if key in named or span is None or not attempt or key != layout.snapshot_key(*type_id, *span, attempt):
            continue
        covers = (each for each in entries if each.snapshot and each.first <= span[0] and span[1] <= each.last)
        cover = next(covers, None)
        since_ns = at_ns if cover is None else max(at_ns, modified.get(cover.path, now_ns))
        if now_ns - since_ns >= (ORPHAN_NS if cover is None else GRACE_NS):
            found.append(key)
    return found


# --- merges as tasks of their own ---


async def snapshot_task(store: Store, ambient: Ambient, payload: Document) -> list[Document]:
    """Make the snapshot of one merge. Nothing names it yet: if the task runs twice, one of them is garbage."""
    compactor = Compactor(store, ambient)
    type_id, (first, last) = refs.type_id(*payload["type"]), payload["span"]
    await compactor.begin([type_id])
    wanted = await compactor.merge_of(type_id, first, last)
    if wanted is None:
        return []
    made = await compactor.snapshot(wanted)
    return [
        {
            "number": payload["number"],
            "entry": made.entry.document(),
            "rows": made.rows,
            "size": made.size,
            "bytes_read": compactor.bytes_read,
        }
    ]


async def made_elsewhere(store: Store, merge: Merge, document: Document) -> Compacted:
    """The snapshot that a task reports, after a check that it exists."""
    entry = Entry.parse(document["entry"], key="a task of a compaction")
    found = await store.head(entry.path)
    if found.size != document["size"]:
        raise Corrupt(f"{entry.path}: it has {found.size} bytes, and {document['size']} were written")
    return Compacted(merge, entry, document["rows"], document["size"], published=False)
