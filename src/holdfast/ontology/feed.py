"""The change feed: what each commit changed, in order, from the chain and the files of commits. Reads only.

A new object is one ``insert``; a changed one is an ``update_preimage`` followed by an ``update_postimage``; a retracted
one is a ``retract`` with the fields that it had. A row equal to the one before is not a change. A consumer that stores
the number of the last commit it has processed continues from there after a crash and misses nothing: commits are
numbered without gaps, and their files are never deleted. If payload is destroyed while the feed is read, changes that
were returned before stay valid, and the rest is read as the redaction left it.

With classes (a session has them) changes have objects too, and rows of older versions of a schema are upgraded by the
same upgraders as in queries, so a migration is not a change of the rows that it upgrades. Rows from before the type was
dropped are returned as they are.

``diff`` adds the changes between two commits up.

Memory: the current rows of the types of the feed; with ``once``, only of objects that change.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.aio import blocking, map_bounded, stream_bounded
from holdfast.base.errors import Corrupt, Invalid, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.redaction_fence import TRIES, RedactionFence, fence_of, retry_overtaken
from holdfast.ontology.chain.state import read_latest, see_file
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import EMPTY, Ledger
from holdfast.ontology.format.data.batch import Identity, Row, joined
from holdfast.ontology.format.data.rows import read
from holdfast.ontology.format.data.stored_rows import read_rows, upgraded_table
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.manifest import REDACTS, Manifest
from holdfast.ontology.format.redactions import is_erased
from holdfast.ontology.types import names
from holdfast.ontology.types.errors import Overtaken
from holdfast.ontology.types.refs import FileRef, Place, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo

ChangeType = Literal["insert", "update_preimage", "update_postimage", "retract"]
PARALLEL = 16
POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Change:
    type_id: TypeId
    identity: Identity
    change_type: ChangeType
    commit_version: int
    commit_timestamp: str
    fields_json: str
    info: TypeInfo | None = field(default=None, repr=False, compare=False)

    @property
    def object(self) -> Any:
        """As an object of the session's class. ``Invalid`` without a class; ``UnreadableRow`` if it does not fit."""
        if self.info is None:
            raise Invalid(f"no class of {self.type_id.label} is known here", remedy="open the ontology with the class")
        return read(self.info, [Row(self.identity, self.fields_json)])[0]

    @property
    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.fields_json)
        return found

    def document(self) -> dict[str, Any]:
        return {
            "kind": self.type_id.kind,
            "type_name": self.type_id.name,
            "key": list(self.identity),
            "fields": self.fields,
            "_change_type": self.change_type,
            "_commit_version": self.commit_version,
            "_commit_timestamp": self.commit_timestamp,
        }


class Feed:
    """Reads the chain forward, and holds the current rows at the commit that it has reached."""

    def __init__(
        self,
        store: Store,
        *,
        since: int = 0,
        until: int | None = None,
        types: Collection[TypeId] | None = None,
        known: Mapping[TypeId, TypeInfo] | None = None,
        chain: Chain | None = None,
        once: bool = False,
    ) -> None:
        """``known`` are the types that have a class. ``once``: the feed is read to its end only once, so it keeps only
        the rows that change."""
        self._store = store
        self._once = once
        self._chain = chain if chain is not None else Chain(store)
        self._types = types
        self._known = known if known is not None else {}
        self._ledger = EMPTY
        self._fence = RedactionFence()
        self._states: dict[TypeId, dict[Identity, str]] = {}
        """The current ``fields_json`` of each object, by type."""
        self._until = until
        self.since = since
        """The last commit all of whose changes were returned."""

    def __aiter__(self) -> AsyncIterator[Change]:
        return self.changes()

    async def arrow(self) -> pa.Table:
        """The changes as a table."""
        return to_arrow([change async for change in self.changes()])

    async def changes(self) -> AsyncIterator[Change]:
        """What the commits after ``since`` changed, up to the current head, or to ``until``."""
        head = await read_head(self._store)
        last = head.commit_id if self._until is None else self._until
        if max(self.since, last) > head.commit_id:
            raise NotFound(
                f"there is no commit {max(self.since, last)}; the head is commit {head.commit_id}",
                remedy="the store was created again, or it is another one: begin with an earlier commit",
            )
        returned: set[FileRef] = set()
        for tries in range(TRIES):
            try:
                async with aclosing(self.at(head.place, last, returned)) as found:
                    async for change in found:
                        yield change
                self.since = max(self.since, last)
                return
            except Overtaken:
                # Payload was destroyed meanwhile: what was returned stays valid, the rest is read at the new head.
                if tries == TRIES - 1:
                    raise
                head = await read_head(self._store)
                last = head.commit_id if self._until is None else self._until

    async def at(self, head: Place | None, last: int, returned: set[FileRef]) -> AsyncGenerator[Change, None]:
        """What the commits after ``since`` changed up to ``last``, read at one head. ``Overtaken`` by a redaction.

        Files in ``returned`` are left out, and files whose changes were returned are added to it.
        """
        if head is None or self.since >= last:
            return
        ledger = self._ledger = await self._chain.ledger(head)
        self._fence = await fence_of(self._store, self._chain, ledger)
        files = await self._chain.files(self.since, await self._chain.at(head, last))
        files = [ref for ref in files if not ledger.purged(ref.type_id, ref.commit_id)]
        wanted = [ref for ref in files if self._types is None or ref.type_id in self._types]
        ends = [each for each in self._ends(ledger) if each.commit_id <= last]
        await self._load({ref.type_id for ref in (*wanted, *ends)}, head, await self._changing_keys(wanted, ends))
        steps = sorted({*wanted, *ends} - returned, key=lambda ref: (ref.commit_id, ref.type_id))
        async for ref, manifest, found in stream_bounded(steps, self._read, limit=PARALLEL):
            self.since = max(self.since, ref.commit_id - 1)
            left = self._states[ref.type_id].items() if ref in ends else ()
            rows = [*found, *(Row(identity, fields_json, retracted=True) for identity, fields_json in left)]
            returned.add(ref)
            for row in sorted(rows, key=lambda row: row.identity):  # of rows of one identity the last one counts
                for change in self._step(ref, manifest, row):
                    yield change

    def _ends(self, ledger: Ledger) -> list[FileRef]:
        """The commits that end a type's life, which retract all of its objects; as files without a path."""
        return [
            FileRef(life.end, type_id, "")
            for type_id, lives in ledger.lives.items()
            for life in lives
            if life.end > self.since and (self._types is None or type_id in self._types)
        ]

    async def follow(self, *, poll_s: float = POLL_S) -> AsyncIterator[Change]:
        """The changes up to the head, and then those of later commits, until the caller stops iterating."""
        while True:
            async for change in self.changes():
                yield change
            await asyncio.sleep(poll_s)

    async def _changing_keys(self, files: Sequence[FileRef], ends: Sequence[FileRef]) -> Mapping[TypeId, pa.Array]:
        """The keys of the objects that change, of types of which only these are kept; types that end need all."""
        found: dict[TypeId, list[pa.Array]] = defaultdict(list)
        if not self._once:
            return {}

        async def keys(ref: FileRef) -> None:
            body = await see_file(self._store, ref, self._fence)
            await blocking(read_rows, body, ref.path, partial(_add_keys, ref.type_id, found[ref.type_id]))

        ended = {ref.type_id for ref in ends}
        await map_bounded([ref for ref in files if ref.type_id not in ended], keys, limit=PARALLEL)
        return {type_id: pc.unique(pa.concat_arrays(arrays)) for type_id, arrays in found.items()}

    async def _load(self, types: set[TypeId], head: Place | None, only: Mapping[TypeId, pa.Array]) -> None:
        """Load the rows at ``since`` of types that are not loaded yet; for types in ``only`` just these keys."""
        missing = types - self._states.keys()
        if not missing:
            return
        place = await self._chain.at(head, self.since) if self.since else None
        ledger = await self._chain.ledger(place)
        for type_id in missing:
            if self._ledger.purged(type_id, self.since):
                self._states[type_id] = {}
                continue
            seen = self._upgrading(type_id, self.since)
            if type_id in only:
                seen = partial(_with_keys, type_id, only[type_id], seen)
            latest = await read_latest(self._store, self._chain, ledger, type_id, seen, fence=self._fence)
            self._states[type_id] = {identity: row.fields_json for identity, (_, row) in latest.rows.items()}

    async def _read(self, ref: FileRef) -> tuple[FileRef, Manifest, Sequence[Row]]:
        if not ref.path:
            place = await self._chain.at(self._ledger.place, ref.commit_id)
            if place is None:
                raise Corrupt(f"commit {ref.commit_id} dropped {ref.type_id.label}, and is not on the chain")
            return ref, await self._chain.manifest(place), []
        body = await see_file(self._store, ref, self._fence)
        rows = await blocking(read_rows, body, ref.path, self._upgrading(ref.type_id, ref.commit_id))
        manifest = await self._chain.manifest(Place(ref.commit_id, f"{layout.folder_of(ref.path)}manifest.json"))
        return ref, manifest, [row for _, row in rows]

    def _upgrading(self, type_id: TypeId, commit_id: int) -> Callable[[pa.Table], pa.Table] | None:
        """How the rows of a file are upgraded; None if they are not."""
        info = self._known.get(type_id)
        if info is None or not info.upgraders or commit_id < self._ledger.generation_of(type_id):
            return None
        return partial(upgraded_table, info=info)

    def _step(self, ref: FileRef, manifest: Manifest, row: Row) -> list[Change]:
        """Apply a row to the state; returns the changes that it makes."""
        state = self._states[ref.type_id]
        before = state.get(row.identity)

        def change(kind: ChangeType, fields_json: str) -> Change:
            info = self._known.get(ref.type_id)
            return Change(ref.type_id, row.identity, kind, ref.commit_id, manifest.created_at, fields_json, info)

        if is_erased(row.fields_json):
            if REDACTS not in manifest.extra:
                return []  # its payload is gone
            # A consumer that got the object before must get its end too, although its past is destroyed here.
            state.pop(row.identity, None)
            return [change("retract", row.fields_json)]
        if row.retracted:
            state.pop(row.identity, None)
            return [change("retract", before)] if before is not None else []
        state[row.identity] = row.fields_json
        if before is None:
            return [change("insert", row.fields_json)]
        if before == row.fields_json:
            return []
        return [change("update_preimage", before), change("update_postimage", row.fields_json)]


def _keys(table: pa.Table, type_id: TypeId) -> pa.Array:
    columns = (table.column(name).combine_chunks() for name in names.key_columns(type_id.kind))
    return joined([pc.fill_null(column.cast(pa.string()), "") for column in columns])


def _add_keys(type_id: TypeId, found: list[pa.Array], table: pa.Table) -> pa.Table:
    """Collect the keys of a file; its rows are not needed."""
    found.append(_keys(table, type_id))
    return table.slice(0, 0)


def _with_keys(
    type_id: TypeId, keys: pa.Array, then: Callable[[pa.Table], pa.Table] | None, table: pa.Table
) -> pa.Table:
    some = table.filter(pc.is_in(_keys(table, type_id), keys))
    return some if then is None else then(some)


# --- the sum of the changes between two commits ---


@dataclass(frozen=True, slots=True)
class Difference:
    """An object that differs between two commits; None on the side where it does not exist."""

    type_id: TypeId
    identity: Identity
    commit_id: int
    """The latest commit that changed it."""
    before_json: str | None
    after_json: str | None

    @property
    def before(self) -> dict[str, Any] | None:
        return None if self.before_json is None else json.loads(self.before_json)

    @property
    def after(self) -> dict[str, Any] | None:
        return None if self.after_json is None else json.loads(self.after_json)

    @property
    def action(self) -> str:
        if self.before_json is None:
            return "added"
        return "retracted" if self.after_json is None else "changed"


async def diff(store: Store, older: int, newer: int) -> list[Difference]:
    """The differences between two commits, by type and identity. 0 is the empty store."""
    if older > newer:
        raise Invalid(f"commit {older} is after commit {newer}", remedy="name the older one first")

    async def once() -> list[Difference]:
        head = await read_head(store)
        if newer > head.commit_id:
            raise NotFound(f"there is no commit {newer}; the head is commit {head.commit_id}")
        return await differences(store, Chain(store), head.place, older, newer)

    return await retry_overtaken(once)


async def differences(store: Store, chain: Chain, head: Place | None, older: int, newer: int) -> list[Difference]:
    """The differences between two commits, read at one head. ``Overtaken`` by a redaction."""
    found: dict[tuple[TypeId, Identity], Difference] = {}
    feed = Feed(store, since=older, chain=chain, once=True)
    async with aclosing(feed.at(head, newer, set())) as changes:
        async for each in changes:
            key = (each.type_id, each.identity)
            known = found.get(key)
            existed = each.change_type != "insert" and not is_erased(each.fields_json)
            before = known.before_json if known is not None else each.fields_json if existed else None
            after = each.fields_json if each.change_type in ("insert", "update_postimage") else None
            found[key] = Difference(*key, each.commit_version, before, after)
    return [each for _, each in sorted(found.items()) if each.before != each.after]


SCHEMA = pa.schema(
    {
        **dict.fromkeys(("kind", "type_name"), pa.string()),
        "key": pa.list_(pa.string()),
        **dict.fromkeys(("fields_json", "_change_type"), pa.string()),
        "_commit_version": pa.int64(),
        "_commit_timestamp": pa.string(),
    }
)
"""The schema of changes as a table."""


def to_arrow(changes: Sequence[Change]) -> pa.Table:
    """Keys, fields as JSON, and the three columns of a change."""
    columns: Mapping[str, list[Any]] = {
        "kind": [each.type_id.kind for each in changes],
        "type_name": [each.type_id.name for each in changes],
        "key": [list(each.identity) for each in changes],
        "fields_json": [each.fields_json for each in changes],
        "_change_type": [each.change_type for each in changes],
        "_commit_version": [each.commit_version for each in changes],
        "_commit_timestamp": [each.commit_timestamp for each in changes],
    }
    return pa.table(columns, schema=SCHEMA)
