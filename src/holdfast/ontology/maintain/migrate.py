"""Migrate: make the schemas in the store those of the classes, and the rows with them, in one commit.

Preview says how each class differs, whether its rows must be rewritten, and runs the upgraders over every current row
without writing anything. Its token is made from the head, the schemas and the upgraders. Applying asks for the token,
and commits on that very head or not at all: everything or nothing is visible.

A large type is upgraded in parts, each staged under ``meta/staging/{token}/`` as soon as it is made. A migration that
was killed goes on from there when it is applied again; nothing of it was visible. The parts go when it is committed.

Additive changes rewrite nothing. ``Refused`` for changes that no upgrader leads through, and for a changed identity.
History keeps its rows as they are: they are upgraded when they are read, by the same functions.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from holdfast.base.aio import blocking
from holdfast.base.errors import HoldfastError, NotFound, Refused
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Store
from holdfast.ontology.chain import catalog
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.redaction_fence import fence_of, retry_overtaken
from holdfast.ontology.chain.resolve import Resolved, with_files
from holdfast.ontology.chain.state import latest_versions
from holdfast.ontology.commit.attempt import Order
from holdfast.ontology.commit.commit import Commit, Committer
from holdfast.ontology.commit.lock import Turn
from holdfast.ontology.commit.view import View
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data import rows
from holdfast.ontology.format.data.intents import Row
from holdfast.ontology.format.data.upgrade import upgraded_rows
from holdfast.ontology.format.head import read_head
from holdfast.ontology.maintain.reindex import repair_indexes
from holdfast.ontology.maintain.token import check_token
from holdfast.ontology.types.names import key_columns
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.schema import Drift
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.ontology.types.upgrade import fingerprint

PART_ROWS = 20_000
"""Rows of one staged part."""

Watch = Callable[[TypeId, int, int], None]


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one type."""

    type_id: TypeId
    drift: Drift | None
    """None for a type that the store does not know."""
    from_version: int
    to_version: int
    rewrites: bool
    rows: int = 0
    """How many current rows are upgraded."""

    @property
    def action(self) -> str:
        if self.drift is None:
            return "register"
        return "rewrite" if self.rewrites else "new version" if self.drift else "nothing"

    def document(self) -> dict[str, Any]:
        return {
            "kind": self.type_id.kind,
            "type_name": self.type_id.name,
            "action": self.action,
            "from_version": self.from_version,
            "to_version": self.to_version,
            "rows": self.rows,
            "differences": [
                {"field": each.field, "what": each.what, "additive": each.additive}
                for each in (self.drift.changes if self.drift is not None else ())
            ],
        }


@dataclass(frozen=True, slots=True)
class Preview:
    head: int
    changes: tuple[Change, ...]
    token: str

    def __bool__(self) -> bool:
        return any(change.action != "nothing" for change in self.changes)


async def preview(store: Store, types: Mapping[TypeId, TypeInfo], *, count: bool = True) -> Preview:
    """What migrating to these classes would do. With ``count`` the upgraders are tried on every current row."""
    return await retry_overtaken(lambda: _preview(store, types, count=count))


async def _preview(store: Store, types: Mapping[TypeId, TypeInfo], *, count: bool) -> Preview:
    chain = Chain(store)
    head = await read_head(store)
    ledger = await chain.ledger(head.place)
    changes: list[Change] = []
    for _, info in sorted(types.items()):
        change = await _change(store, chain, ledger, info)
        if change.rewrites and count:
            upgraded = await _current(store, chain, ledger, info)
            await blocking(_tried, info, upgraded)
            change = replace(change, rows=len(upgraded))
        changes.append(change)
    found = hashlib.blake2b(f"migrate {head.manifest_path}".encode(), digest_size=6)
    for change in changes:
        info = types[change.type_id]
        text = (change.type_id, info.schema_hash, change.to_version, fingerprint(info.upgraders))
        found.update(repr(text).encode())
    return Preview(head.commit_id, tuple(changes), found.hexdigest())


async def apply(
    store: Store,
    ambient: Ambient,
    types: Mapping[TypeId, TypeInfo],
    token: str,
    *,
    turn: Turn,
    by: str,
    why: str,
    watch: Watch | None = None,
    part_rows: int = PART_ROWS,
) -> Commit | None:
    """Make the commit; None if there is nothing to do. ``Refused`` if the token is of another preview."""
    planned = await preview(store, types, count=False)
    check_token(token, planned.token, "the store, a class or an upgrader has changed since the preview")
    if not planned:
        return None
    wanted = {change.type_id: types[change.type_id] for change in planned.changes if change.action != "nothing"}
    committer = Committer(store, ambient, View(store), wanted, runtime_id=by, turn=turn)
    chain = Chain(store)
    ledger = await chain.ledger((await read_head(store)).place)
    staging = _Staging(store, planned.head, token, part_rows, watch)
    for change in planned.changes:
        if change.rewrites:
            info = types[change.type_id]
            committer.queue += [
                each for each in [await staging.batch(info, await _current(store, chain, ledger, info))] if each
            ]
    metadata = {"migrate": {"types": [change.document() for change in planned.changes], "by": by, "why": why}}
    commit = await committer.commit(metadata, if_head=planned.head, order=Order(migrate=frozenset(wanted)))
    with suppress(HoldfastError):  # it is committed; what is left is mended by the next session, and told by verify
        await abandon(store)  # the head has moved: none of what is staged can be committed any more
        view = View(store)
        await view.move_to(await read_head(store))
        await catalog.Catalog(store, ambient, by).sync(view.chain, view.ledger)
        await repair_indexes(store, ambient, apply=True, types=list(wanted))
    return commit


async def abandon(store: Store, token: str | None = None) -> list[str]:
    """Remove the parts of migrations that can never be committed, and of the one that has this token; their keys.

    A migration that is under way loses nothing by it: it has its rows, and would only make the parts once more.
    ``NotFound`` if nothing is there under the token.
    """
    head = (await read_head(store)).commit_id
    keys = [key async for key in store.keys(layout.STAGING)]
    found = {key: layout.migration_of_part(key) for key in keys}
    if token is not None and not any(each == token for _, each in found.values()):
        raise NotFound(f"no migration {token} has left anything", remedy="holdfast onto verify names what is left")
    gone = [key for key, (number, each) in found.items() if number != head or each in ("", token)]
    await store.delete_many(gone)
    return gone


async def _change(store: Store, chain: Chain, ledger: Ledger, info: TypeInfo) -> Change:
    type_id, known = info.type_id, ledger.schemas.get(info.type_id)
    stored = (
        await catalog.schema_at(chain, ledger, type_id) if known is not None or ledger.head_of(type_id).files else None
    )
    if stored is None:
        return Change(type_id, None, 0, 1, rewrites=False)
    version_id, drift = stored.ref.version_id, info.drift(stored.schema)
    if not drift:
        return Change(type_id, drift, version_id, version_id, rewrites=False)
    if drift.identity:
        raise Refused(str(drift), remedy=drift.remedy)
    steps = info.upgraders
    if not drift.additive and not any(step.to_version == version_id + 1 for step in steps):
        name = info.python.__name__
        raise Refused(
            f"{drift}; no upgrader leads to version {version_id + 1}",
            remedy=f"write one: @upgrader({name}, from_version={version_id}, to_version={version_id + 1})",
        )
    # An upgrader of an additive change is wanted: it fills the new field.
    rewrites = not drift.additive or any(step.to_version == version_id + 1 for step in steps)
    return Change(type_id, drift, version_id, version_id + 1, rewrites)


async def _current(store: Store, chain: Chain, ledger: Ledger, info: TypeInfo) -> list[tuple[Row, int]]:
    """The live rows, each with the version of the schema that it was written under; ordered by identity."""

    fence = await fence_of(store, chain, ledger)

    async def read(found: Resolved) -> list[tuple[Row, int]]:
        files, newest = found.files(), ledger.commit_id
        return await latest_versions(store, files, newest=newest, fence=fence, generation=found.generation)

    return await with_files(store, chain, ledger, info.type_id, read, fence)


def _tried(info: TypeInfo, current: Sequence[tuple[Row, int]]) -> list[Row]:
    return upgraded_rows(info, [row for row, _ in current], [version for _, version in current])


class _Staging:
    """Upgraded rows in parts, each made once however often the migration is begun."""

    def __init__(self, store: Store, head: int, token: str, part_rows: int, watch: Watch | None) -> None:
        self._store = store
        self._head = head
        self._token = token
        self._part_rows = part_rows
        self._watch = watch

    async def batch(self, info: TypeInfo, current: Sequence[tuple[Row, int]]) -> Any:
        tables: list[pa.Table] = []
        for start in range(0, len(current), self._part_rows):
            key = layout.part_key(self._head, self._token, *info.type_id, start)
            part = current[start : start + self._part_rows]
            found = await self._store.find(key)
            body = found.body if found is not None else await blocking(_part, info, part)
            if found is None and len(current) > self._part_rows:
                await self._store.put(key, body, CREATE)
            tables.append(await blocking(rows.from_parquet, body, key=key))
            if self._watch is not None:
                self._watch(info.type_id, start + len(part), len(current))
        if not tables:
            return None
        table = pa.concat_tables(tables).combine_chunks()
        keys = [table.column(name).combine_chunks() for name in key_columns(info.type_id.kind)]
        return rows.batched(info, keys, table.column("fields_json").combine_chunks())


def _part(info: TypeInfo, part: Sequence[tuple[Row, int]]) -> bytes:
    made = _tried(info, part)
    names = key_columns(info.type_id.kind)
    columns = {name: pa.array([row.identity[place] for row in made], pa.string()) for place, name in enumerate(names)}
    return rows.to_parquet(
        pa.table({**columns, "fields_json": pa.array([row.fields_json for row in made], pa.string())})
    )
