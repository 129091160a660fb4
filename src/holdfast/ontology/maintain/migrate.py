"""Migrate: make the schemas in the store those of the classes, and the rows with them, in one commit.

The preview says how each class differs and whether its rows must be rewritten, and runs the upgraders over every
current row. Its token is made from the head, the schemas and the upgraders. Nothing is visible before the commit, so a
migration that was killed is applied again with the same token.

Additive changes rewrite nothing. ``Refused`` for changes that no upgrader covers, and for a changed identity. History
keeps its rows as they are: they are upgraded when they are read, by the same functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from holdfast.base.aio import blocking
from holdfast.base.errors import Refused
from holdfast.objects.store import Store
from holdfast.ontology.chain import catalog
from holdfast.ontology.chain.redaction_fence import fence_of
from holdfast.ontology.chain.resolve import Resolved, with_files
from holdfast.ontology.chain.state import latest_versions
from holdfast.ontology.commit.attempt import Order
from holdfast.ontology.format.data.batch import Batch, Row
from holdfast.ontology.format.data.rows import batched
from holdfast.ontology.format.data.stored_rows import upgraded_rows
from holdfast.ontology.maintain.plan import Pinned, Plan, Work, apply, plan_at_head
from holdfast.ontology.types.names import key_columns
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.schema import Drift
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.ontology.types.upgrade import fingerprint


@dataclass(frozen=True, slots=True)
class Change:
    """The migration of one type."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Plan):
    changes: tuple[Change, ...]
    types: Mapping[TypeId, TypeInfo]

    def __bool__(self) -> bool:
        return any(change.action != "nothing" for change in self.changes)

    async def work(self, store: Store) -> Work | None:
        if not self:
            return None
        wanted = {each.type_id: self.types[each.type_id] for each in self.changes if each.action != "nothing"}
        rewritten = [self.types[each.type_id] for each in self.changes if each.rewrites]

        async def read(at: Pinned) -> list[Batch]:
            return [batch for batch in [_batch(info, await _upgraded(at, info)) for info in rewritten] if len(batch)]

        record = {"types": [change.document() for change in self.changes]}
        queue = await plan_at_head(store, read)
        return Work("migrate", record, Order(migrate=frozenset(wanted)), wanted, queue)


async def preview(store: Store, types: Mapping[TypeId, TypeInfo], *, count: bool = True) -> Preview:
    """What migrating to these classes would do. With ``count`` the upgraders are tried on every current row."""

    async def make(at: Pinned) -> Preview:
        changes: list[Change] = []
        for _, info in sorted(types.items()):
            change = await _change(at, info)
            if change.rewrites and count:
                change = replace(change, rows=len(await _upgraded(at, info)))
            changes.append(change)
        parts = [
            (each.type_id, types[each.type_id].schema_hash, each.to_version, fingerprint(types[each.type_id].upgraders))
            for each in changes
        ]
        token = at.token("migrate", *parts)
        return Preview(head=at.head.commit_id, token=token, changes=tuple(changes), types=types)

    return await plan_at_head(store, make)


async def _change(at: Pinned, info: TypeInfo) -> Change:
    ledger, type_id = at.ledger, info.type_id
    known = type_id in ledger.schemas or ledger.head_of(type_id).files
    stored = await catalog.schema_at(at.chain, ledger, type_id) if known else None
    if stored is None:
        return Change(type_id, None, 0, 1, rewrites=False)
    version_id, drift = stored.ref.version_id, info.drift(stored.schema)
    if not drift:
        return Change(type_id, drift, version_id, version_id, rewrites=False)
    if drift.identity:
        raise Refused(str(drift), remedy=drift.remedy)
    upgradable = any(step.to_version == version_id + 1 for step in info.upgraders)
    if not drift.additive and not upgradable:
        name = info.python.__name__
        raise Refused(
            f"{drift}; no upgrader leads to version {version_id + 1}",
            remedy=f"write one: @upgrader({name}, from_version={version_id}, to_version={version_id + 1})",
        )
    # An upgrader of an additive change fills the new field, so rows are rewritten for it too.
    return Change(type_id, drift, version_id, version_id + 1, rewrites=upgradable)


async def _upgraded(at: Pinned, info: TypeInfo) -> list[Row]:
    """The current rows under the schema of the class, by identity."""
    fence = await fence_of(at.store, at.chain, at.ledger)

    async def read(found: Resolved) -> list[tuple[Row, int]]:
        files, newest = found.files(), at.ledger.commit_id
        return await latest_versions(at.store, files, newest=newest, fence=fence, generation=found.generation)

    current = await with_files(at.store, at.chain, at.ledger, info.type_id, read, fence)
    rows, versions = [row for row, _ in current], [version for _, version in current]
    return await blocking(upgraded_rows, info, rows, versions)


def _batch(info: TypeInfo, rows: Sequence[Row]) -> Batch:
    keys = [[row.identity[place] for row in rows] for place in range(len(key_columns(info.type_id.kind)))]
    return batched(info, keys, pa.array([row.fields_json for row in rows], pa.string()))


__all__ = ["Change", "Preview", "apply", "preview"]
