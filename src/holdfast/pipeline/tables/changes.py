"""What commits changed, and the commits themselves.

    changes    one row for each change of an object; ``type`` names the types, ``since`` and ``until`` the commits
    commits    one row for each commit

With one type the columns of ``changes`` are those of the type, so that they can be written to another store; with
several, or all, they are the kind, the type, the key, and the fields as JSON.

A part of ``changes`` is some types and a range of commits: an update differs from an insert by what was there before,
which a part knows of its types alone.
"""

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from holdfast.base.clock import parse_iso
from holdfast.base.errors import Invalid, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.history import When, window
from holdfast.ontology.feed import SCHEMA as CHANGES
from holdfast.ontology.feed import Change, Feed, to_arrow
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.columns import typed_columns
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.manifest import Manifest
from holdfast.ontology.query.columns import schema_of
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.types.refs import Place, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.pipeline.partition import divide
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.tables.table import TIMESTAMP, Conditions, Tables, Wanted, batch_of, groups, microseconds
from holdfast.pipeline.tables.types import moment_of, natively, shown_field

AT_ONCE_ROWS = 5_000
PARTS = 32
"""At the most."""
PART_BYTES = 4 << 20
UNKNOWN_BYTES = 64 << 10
COMMITS_AT_ONCE = 256
COMMITS = pa.schema(
    [
        ("commit_id", pa.int64()),
        ("created_at", TIMESTAMP),
        ("runtime_id", pa.string()),
        ("rows", pa.int64()),
        ("types", pa.list_(pa.string())),
        ("metadata", pa.string()),
    ]
)


_CHANGE = pa.schema([("_change_type", pa.string()), ("_commit_version", pa.int64()), ("_commit_timestamp", TIMESTAMP)])


@dataclass(frozen=True)
class ChangesPart:
    types: tuple[TypeId, ...]
    since: int
    until: int


@dataclass(frozen=True)
class ChangesTable:
    place: Place | None
    """The head."""
    since: int
    until: int
    types: frozenset[TypeId] | None
    shape: TypeInfo | None = None
    """Of the one type that was asked for."""
    name: str = "changes"

    @property
    def schema(self) -> pa.Schema:
        if self.shape is None:
            return pa.schema(
                [(each.name, each.type) for each in CHANGES if each.name not in _CHANGE.names] + [*_CHANGE]
            )
        return pa.schema([*_of_type(self.shape), *_CHANGE])

    async def plan(self, store: Store, wanted: Wanted) -> list[ChangesPart]:
        low, high = wanted.conditions.whole("_commit_version")
        since = self.since if low is None else max(self.since, low - 1)
        until = self.until if high is None else min(self.until, high)
        return await self.parts(store, since, until, wanted.conditions)

    async def parts(self, store: Store, since: int, until: int, conditions: Conditions) -> list[ChangesPart]:
        """Types that commits after ``since``, up to ``until``, have changed; small ones together."""
        if self.place is None or since >= until:
            return []
        chain = Chain(store)
        ledger = await chain.ledger(self.place)
        files = await chain.files(since, await chain.at(self.place, until))
        ended = [type_id for type_id, lives in ledger.lives.items() for life in lives if since < life.end <= until]
        kinds, names = conditions.allows("kind"), conditions.allows("type_name")
        found = {*(ref.type_id for ref in files), *ended}
        wanted = [each for each in sorted(found) if self.types is None or each in self.types]
        weights: dict[TypeId, int] = defaultdict(int)
        for ref in files:
            known = chain.stats.get(ref.path)
            weights[ref.type_id] += UNKNOWN_BYTES if known is None else known.size
        meant = [each for each in wanted if kinds(each.kind) and names(each.name)]
        together = divide(meant, lambda each: weights[each], most=PARTS, worth=PART_BYTES)
        return [ChangesPart(tuple(each), since, until) for each in together]

    async def read(self, store: Store, part: ChangesPart, wanted: Wanted) -> AsyncIterator[pa.RecordBatch]:
        feed = Feed(store, since=part.since, until=part.until, types=set(part.types), once=True)
        rows: list[Change] = []
        async for change in feed.changes():
            rows.append(change)
            if len(rows) >= AT_ONCE_ROWS:
                yield self._batch(rows, wanted)
                rows = []
        if rows:
            yield self._batch(rows, wanted)

    def _batch(self, rows: list[Change], wanted: Wanted) -> pa.RecordBatch:
        found = {name: column.combine_chunks() for name, column in zip(CHANGES.names, to_arrow(rows), strict=True)}
        times = [microseconds(parse_iso(each.commit_timestamp)) for each in rows]
        found["_commit_timestamp"] = pa.array(times, TIMESTAMP)
        if self.shape is not None:
            found |= _fields(self.shape, rows, set(wanted.columns))
        schema = self.schema
        return pa.RecordBatch.from_arrays(
            [found[name] for name in wanted.columns], schema=pa.schema([schema.field(name) for name in wanted.columns])
        )


def _of_type(shape: TypeInfo) -> list[pa.Field]:
    """The columns of a type, but for ``commit_id``."""
    stored = schema_of(shape, history=False)
    return [shown_field(shape, field) for field in stored if field.name != "commit_id"]


def _fields(shape: TypeInfo, rows: Sequence[Change], wanted: AbstractSet[str]) -> dict[str, pa.Array]:
    """These columns of a type, from keys and ``fields_json``. ``Invalid`` for a value that its column cannot hold."""
    bodies = [each.fields_json for each in rows]
    keys = {name: pa.array([each.identity[place] for each in rows]) for place, name in enumerate(shape.keys)}
    found = {name: column for name, column in keys.items() if name in wanted}
    if shape.key_field is not None and shape.key_field not in shape.payload:
        found[shape.key_field] = keys[shape.keys[-1]]
    if not shape.nodes:
        return {**found, "fields_json": pa.array(bodies, pa.string())}
    made = typed_columns({name: shape.nodes[name] for name in shape.payload if name in wanted}, bodies)
    for name, column in made.items():
        if column.partial:
            raise Invalid(
                f"{shape.type_id.name}.{name}: a commit up to {rows[-1].commit_version} has a value that "
                f"{column.array.type} cannot hold",
                remedy="leave this column out (option columns)",
            )
        found[name] = natively(shape, name, column.array)
    return found


@dataclass(frozen=True)
class CommitsTable:
    place: Place | None
    name: str = "commits"
    schema: pa.Schema = COMMITS

    async def plan(self, store: Store, wanted: Wanted) -> list[tuple[int, int]]:
        low, high = wanted.conditions.whole("commit_id")
        first, last = max(1, low or 1), self.place.commit_id if self.place is not None else 0
        if high is not None:
            last = min(last, high)
        found = groups(range(first, last + 1), worth=COMMITS_AT_ONCE, most=wanted.partitions)
        return [(each[0], each[-1]) for each in found]

    async def read(self, store: Store, part: tuple[int, int], wanted: Wanted) -> AsyncIterator[pa.RecordBatch]:
        chain = Chain(store)
        first, last = part
        place = None if self.place is None else await chain.at(self.place, last)
        rows: list[dict[str, Any]] = []
        while place is not None and place.commit_id >= first:
            manifest = await chain.manifest(place)
            rows.append(_commit(manifest))
            place = manifest.parent
        yield batch_of(COMMITS, wanted.columns, rows)


def _commit(manifest: Manifest) -> dict[str, Any]:
    return {
        "commit_id": manifest.commit_id,
        "created_at": microseconds(parse_iso(manifest.created_at)),
        "runtime_id": manifest.runtime_id,
        "rows": sum(each.row_count for each in manifest.files),
        "types": sorted(each.type_id.name for each in manifest.files),
        "metadata": json.dumps(dict(manifest.metadata), ensure_ascii=False, sort_keys=True),
    }


async def _changes(store: Store, given: Given) -> ChangesTable:
    chain = Chain(store)
    head = await read_head(store)
    ledger = await chain.ledger(head.place)
    since, until = given.text("since"), given.text("until")
    asked = When(
        "history",
        after=None if since is None else moment_of(since),
        last=None if until is None else moment_of(until),
    )
    span = await window(asked, chain, ledger)
    types = _types(ledger, given)
    return ChangesTable(head.place, span.lower, span.upper, types, await _shape(store, types))


async def _shape(store: Store, types: frozenset[TypeId] | None) -> TypeInfo | None:
    """Of the one type that is asked for; None if there are several, or its schema is not known any more."""
    if types is None or len(types) != 1:
        return None
    async with SqlTables(store) as tables:
        _, shapes = await tables.pinned(When())
    return next((shape for shape in shapes.values() if shape.type_id in types), None)


def _types(ledger: Ledger, given: Given) -> frozenset[TypeId] | None:
    names = given.texts("type")
    known = {*ledger.heads, *ledger.schemas, *ledger.lives}
    for name in names:
        if not any(each.name == name for each in known):
            listed = sorted({each.name for each in known})
            near = get_close_matches(name, listed, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the types are: {', '.join(listed) or 'none yet'}"
            raise NotFound(f"there is no type {name!r} in this store", remedy=hint)
    return frozenset(each for each in known if each.name in names) if names else None


async def _commits(store: Store, given: Given) -> CommitsTable:
    return CommitsTable((await read_head(store)).place)


TABLES: Tables = {
    "changes": (_changes, ("type", "since", "until", "start", "max_commits_per_trigger")),
    "commits": (_commits, ()),
}
