"""Compaction: many small files of a type into few, beside writers, readers and other compactors.

Plan (pure, from a list of files that the chain proves), merge, write under a key of its own, publish through the index.
An index is changed in one step, if-match on what was read, and only if the whole list can still be proved. So whatever
happens in between, a reader either finds the old entries or the new one, and both hold the same rows.

* A snapshot never covers the head: the specification's reader would show the head's rows twice.
* Files of commits are never removed. A superseded snapshot is, when what covers it has stood for ``GRACE_NS`` by the
  store's own clock; a reader that misses it resolves again.
* While a redaction of the type is under way nothing is merged: its files have payload that must go, some still. A merge
  that one overtakes is planned anew.
* Damaged inputs end the compaction of their type with ``Corrupt``; nothing is published.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.base.aio import blocking, map_bounded, stream_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Ambiguous, Conflict, Corrupt, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Lost, Store
from holdfast.ontology.chain import catalog
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.redaction_fence import RedactionFence, retry_overtaken
from holdfast.ontology.chain.resolve import resolve
from holdfast.ontology.chain.state import see_file
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.footer import stats_of
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import Entry, entry_of, folded, read_index, sealed_attempt
from holdfast.ontology.format.redactions import finished, redaction_of
from holdfast.ontology.maintain import leftovers
from holdfast.ontology.maintain.merge import Merged, Source, merge
from holdfast.ontology.maintain.reindex import brought_forward, write_index
from holdfast.ontology.maintain.tiers import FAN, LIMIT, Piece, following, pieces_of, plan
from holdfast.ontology.maintain.verify.files import check_data
from holdfast.ontology.types import refs
from holdfast.ontology.types.refs import FileRef, Place, TypeHead, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo, of_schema

PARALLEL = 16
TRIES = 16
GRACE_NS = 3600 * 10**9
"""How long a superseded snapshot stays; half of it is how long a compactor may take from writing to publishing."""
ORPHAN_NS = 24 * GRACE_NS
"""How long one stays that was never published."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Neighbours in the list of a type's files that are to become one."""

    type_id: TypeId
    pieces: tuple[Piece, ...]
    later: tuple[Piece, ...] = ()
    """Those that come next: they end rows of the snapshot, and it says so."""

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
    """False if another compactor was faster, or the type has another life by now."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """A type's files, and how many there would be after compaction."""

    type_id: TypeId
    files: int
    after: int
    merges: tuple[Merge, ...]

    @property
    def bytes_to_write(self) -> int:
        """The approximate input, in bytes."""
        return sum(merge.size for merge in self.merges)


Watch = Callable[[TypeId, int, int], None]
"""Called with a type, how many files were read, and of how many."""


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
        later: bool = True,
        watch: Watch | None = None,
    ) -> None:
        self._store = store
        self._ambient = ambient
        self._chain = chain if chain is not None else Chain(store)
        self._fan = fan
        self._limit = limit
        self._reads = reads
        self._whole = whole
        self._later = later
        self._watch = watch
        self._redacted: Place | None = None
        """The latest redaction when the files were read."""
        self._began_ns = 0
        self._settled: Place | None = None
        """A redaction that was finished, with all before it."""
        self._without_payload: set[str] = set()
        """Snapshots that no index names, and that were looked into."""
        self.bytes_read = 0
        self.bytes_written = 0

    async def types(self) -> list[TypeId]:
        return sorted((await self._ledger()).heads)

    async def outlook(self, type_id: TypeId) -> Outlook:
        """The merges to make now. Requests sizes of files, and reads none."""
        ledger = await self._ledger()
        resolved = await resolve(self._store, self._chain, ledger, type_id)
        pieces = pieces_of(resolved.entries, type_id)
        while True:
            groups = plan(pieces, below=ledger.commit_id, fan=self._fan, limit=self._limit, whole=self._whole)
            unknown = [piece for group in groups for piece in group if piece.size is None]
            if not unknown:
                break
            sizes = dict(zip(unknown, await map_bounded(unknown, self._size, limit=self._reads), strict=True))
            pieces = [replace(piece, size=sizes[piece]) if piece in sizes else piece for piece in pieces]
        merges = tuple(Merge(type_id, group, following(pieces, group) if self._later else ()) for group in groups)
        after = len(pieces) - sum(len(each.pieces) - 1 for each in merges)
        return Outlook(type_id, len(pieces), after, merges)

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
        """Before anything is read: a redaction that is ordered from now on prevents the publication."""
        self._began_ns = self._ambient.clock.monotonic_ns()
        self._redacted = (await self._ledger()).redacted
        for type_id in types:
            await self._check_redactions(type_id)

    async def snapshot(self, wanted: Merge) -> Compacted:
        """Merge, check and write; not published yet."""
        made = await self._merged(wanted, RedactionFence(0 if self._redacted is None else self._redacted.commit_id))
        entry = self._entry(wanted, made)
        # The key was drawn for this file alone: whatever is under it is ours, also if the answer was lost.
        if isinstance(await self._store.put(entry.path, made.body, CREATE), Lost):
            raise Conflict(f"{entry.path}: another compactor has drawn the same key")
        self.bytes_written += len(made.body)
        return Compacted(wanted, entry, made.rows, len(made.body), published=False)

    async def _check_redactions(self, type_id: TypeId) -> None:
        """While payload is being destroyed some files still have it: what is read then must not be published."""
        place, all_done = self._redacted, True
        while place is not None and place != self._settled:
            manifest = await self._chain.manifest(place)
            redaction = redaction_of(manifest)
            done = await finished(self._store, place)
            if not done and redaction is not None and redaction.type_id == type_id:
                raise Conflict(
                    f"{type_id.label}: commit {place.commit_id} orders payload to be destroyed, and that is not done",
                    remedy="try again later; if the process that does it was killed, holdfast onto erase --resume",
                )
            all_done = all_done and done
            place = (await self._chain.ledger_of(manifest.parent)).redacted
        if all_done:
            self._settled = self._redacted

    async def _merged(self, wanted: Merge, fence: RedactionFence) -> Merged:
        sources = [source async for source in self._sources(wanted, fence)]
        target = await self._target(wanted.type_id)
        origin: Document = {
            "type": wanted.type_id.label,
            "first": wanted.first,
            "last": wanted.last,
            "before": list(wanted.pieces[0].before),
            "after": list(wanted.pieces[-1].after),
        }
        if wanted.later:
            origin["known"] = list(wanted.later[-1].after)
        later = await map_bounded(
            wanted.later, lambda piece: self._source(wanted.type_id, piece, fence), limit=self._reads
        )
        self.bytes_read += sum(len(source.body) for source in later)
        return await blocking(merge, sources, target, origin, later)

    async def _sources(self, wanted: Merge, fence: RedactionFence) -> AsyncIterator[Source]:
        done = 0

        async def read(piece: Piece) -> Source:
            return await self._source(wanted.type_id, piece, fence)

        async for source in stream_bounded(wanted.pieces, read, limit=self._reads):
            self.bytes_read += len(source.body)
            done += 1
            if self._watch is not None:
                self._watch(wanted.type_id, done, len(wanted.pieces))
            yield source

    async def _source(self, type_id: TypeId, piece: Piece, fence: RedactionFence) -> Source:
        entry = piece.entry
        body = await see_file(self._store, FileRef(entry.last, type_id, entry.path), fence)
        if entry.snapshot:
            rows = entry.stats.rows if entry.stats is not None else None
            return Source(entry.path, body, entry.first, entry.last, rows, ours=True)
        folder = layout.folder_of(entry.path)
        manifest = await self._chain.manifest(Place(entry.last, f"{folder}manifest.json"))
        named = next((each for each in manifest.files if each.path == entry.path), None)
        if named is None:
            raise Corrupt(f"{manifest.path}: it does not name {entry.path}, which the chain does")
        if named.stats is not None:
            fence.check(named.stats.redacted, entry.path)  # the file was read before, its manifest after
        if hashlib.sha256(body).hexdigest() != named.content_sha256:  # another, or a plain writer's without one
            findings, _ = await blocking(check_data, body, named, entry.last)
            # Wrong statistics hide rows; the snapshot has right ones, which corrects that.
            if damaged := [each for each in findings if each.kind != "stats_wrong"]:
                raise Corrupt(f"{entry.path}: {damaged[0].message}", remedy=damaged[0].remedy)
        return Source(entry.path, body, entry.first, entry.last, named.row_count, ours=manifest.summary is not None)

    async def _target(self, type_id: TypeId) -> TypeInfo:
        ledger = await self._ledger()
        stored = await catalog.schema_at(self._chain, ledger, type_id)
        if stored is None:
            return of_schema(type_id, {})
        return of_schema(type_id, stored.schema, version_id=stored.ref.version_id)

    def _entry(self, wanted: Merge, made: Merged) -> Entry:
        before, after = wanted.pieces[0].before, wanted.pieces[-1].after
        mark = sealed_attempt(self._ambient.ids.attempt(), wanted.type_id, wanted.first, before, after)
        path = layout.snapshot_key(*wanted.type_id, wanted.first, wanted.last, mark)
        stats = stats_of(made.body, key=path, unique=False)
        return Entry(wanted.first, wanted.last, path, after, stats)

    # --- the index ---

    async def publish(self, made: Sequence[Compacted]) -> list[Compacted]:
        """Put snapshots of one type in the place of what they stand for, in one write of its index.

        One that has no place any more is removed. ``Ambiguous`` if an index that names one may still appear: then the
        files must stay.
        """
        if not made:
            return []
        in_time = self._ambient.clock.monotonic_ns() - self._began_ns < GRACE_NS // 2
        placed = await self._placed(made[0].merge.type_id, [each.entry for each in made]) if in_time else set[str]()
        await self._store.delete_many([each.entry.path for each in made if each.entry.path not in placed])
        return [replace(each, published=each.entry.path in placed) for each in made]

    async def _placed(self, type_id: TypeId, snapshots: Sequence[Entry]) -> set[str]:
        """The paths of those that the index names afterwards."""
        doubt: Ambiguous | None = None
        for _ in range(TRIES):
            index = await read_index(self._store, type_id)
            ledger = await self._ledger()  # after the index, so that it knows no less
            there = {each.path for each in index.entries} & {each.path for each in snapshots}
            if len(there) == len(snapshots):
                return there
            whole = await brought_forward(self._chain, ledger, index)
            entries, placed = whole.entries, set(there)
            for entry in snapshots:
                made = replaced(entries, entry) if self._has_place(type_id, entry, ledger) else None
                if entry.path not in there and made is not None:
                    entries, placed = made, {*placed, entry.path}
            # What was read may have been redacted since; and what cannot be proved is not published.
            if ledger.redacted != self._redacted or folded(entries, (), type_id) != ledger.head_of(type_id):
                placed = there
            if placed == there:
                if doubt is not None:
                    raise doubt
                return there
            try:
                if await write_index(self._store, self._ambient, replace(whole, entries=entries)):
                    return placed
                doubt = None  # its base version is gone: no earlier try can land any more
            except Ambiguous as error:
                doubt = error  # the next read of the index decides
        raise Conflict(f"{layout.index_key(*type_id)}: others keep writing it")

    @staticmethod
    def _has_place(type_id: TypeId, entry: Entry, ledger: Ledger) -> bool:
        """Below the head, and in the type's present life."""
        return entry.last < ledger.commit_id and entry.first >= ledger.generation_of(type_id)

    async def _ledger(self) -> Ledger:
        return await self._chain.ledger((await read_head(self._store)).place)

    # --- what is left over ---

    async def sweep(self, types: Collection[TypeId]) -> list[str]:
        """Remove snapshots that were superseded long ago or never published; returns their keys."""
        modified: dict[str, int] = {}
        async for page in self._store.list(layout.SNAPSHOTS):
            modified |= {entry.key: entry.modified_ns for entry in page.entries}
        gone: list[str] = []
        for type_id in types:
            try:
                now_ns = (await self._store.head(layout.index_key(*type_id))).modified_ns
            except NotFound:
                continue
            index = await read_index(self._store, type_id)  # after the listing: what was published since is in it
            gone += superseded(type_id, index.entries, modified, now_ns)
            gone += await self._with_payload(type_id, index.entries, [key for key in modified if key not in gone])
        await self._store.delete_many(gone)
        return gone

    async def _with_payload(self, type_id: TypeId, entries: Sequence[Entry], keys: Sequence[str]) -> list[str]:
        """Snapshots that no index names and that hold erased payload, however young: their compactor was killed."""
        named = {entry.path for entry in entries} | self._without_payload
        loose = [key for key in keys if key not in named and leftovers.snapshot_span(key, type_id) is not None]
        if not loose or (await self._ledger()).redacted is None:
            return []
        found = await leftovers.snapshots_with_payload(self._store, type_id, loose)
        self._without_payload |= {*loose} - {*found}
        return found


def replaced(entries: Sequence[Entry], snapshot: Entry) -> tuple[Entry, ...] | None:
    """The list with the snapshot in the place of the entries that it covers; None if that would gain nothing."""
    inside = [entry for entry in entries if snapshot.first <= entry.first and entry.last <= snapshot.last]
    if len(inside) < 2:
        return None
    before = [entry for entry in entries if entry.last < snapshot.first]
    after = [entry for entry in entries if entry.first > snapshot.last]
    if len(before) + len(inside) + len(after) != len(entries):
        return None  # one of them reaches out of the span
    return (*before, snapshot, *after)


def superseded(type_id: TypeId, entries: Sequence[Entry], modified: dict[str, int], now_ns: int) -> list[str]:
    """The superseded snapshots of a type. ``now_ns`` is the store's own time, when the index was written."""
    named = {entry.path for entry in entries}
    found: list[str] = []
    for key, at_ns in modified.items():
        span = layout.commits_of_snapshot(key)
        mark = layout.attempt_of_snapshot(key)
        if key in named or span is None or not mark or key != layout.snapshot_key(*type_id, *span, mark):
            continue
        covers = (each for each in entries if each.snapshot and each.first <= span[0] and span[1] <= each.last)
        cover = next(covers, None)
        since_ns = at_ns if cover is None else max(at_ns, modified.get(cover.path, now_ns))
        if now_ns - since_ns >= (ORPHAN_NS if cover is None else GRACE_NS):
            found.append(key)
    return found


def merge_document(merge: Merge) -> Document:
    return {"type": list(merge.type_id), "pieces": _documents(merge.pieces), "later": _documents(merge.later)}


def _documents(pieces: Sequence[Piece]) -> list[Document]:
    return [
        {"entry": each.entry.document(), "before": list(each.before), "after": list(each.after), "size": each.size}
        for each in pieces
    ]


def merge_of(document: Document) -> Merge:
    return Merge(refs.type_id(*document["type"]), _pieces(document["pieces"]), _pieces(document["later"]))


def _pieces(documents: Sequence[Document]) -> tuple[Piece, ...]:
    return tuple(
        Piece(entry_of(each["entry"]), _head(each["before"]), _head(each["after"]), each["size"]) for each in documents
    )


def _head(value: list[Any]) -> TypeHead:
    return TypeHead(int(value[0]), int(value[1]), str(value[2]))


async def snapshot_task(store: Store, ambient: Ambient, payload: Document) -> list[Document]:
    """Make the snapshot of one merge, check it and write it. Nothing names it yet: a second one is garbage."""
    compactor = Compactor(store, ambient)
    merge = merge_of(payload["merge"])
    await compactor.begin([merge.type_id])
    made = await compactor.snapshot(merge)
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
    """Check that the snapshot a task reports exists as reported."""
    entry = entry_of(document["entry"])
    found = await store.head(entry.path)
    if found.size != document["size"]:
        raise Corrupt(f"{entry.path}: it has {found.size} bytes, and {document['size']} were written")
    return Compacted(merge, entry, document["rows"], document["size"], published=False)
