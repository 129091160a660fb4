"""Export of a type to a file, import of a file into a type: at a moment, under a policy, in one commit.

An object that is there already with other fields is a conflict. ``error`` refuses the whole import, ``skip`` leaves
what is there, ``replace`` writes over it. With ``absent`` an object that is there at all refuses it. What was decided
holds when it is committed: the commit is made on the head on which it was decided, or it is decided again. With
``if_head`` only on that one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from holdfast.base.aio import blocking
from holdfast.base.errors import Conflict
from holdfast.objects.store import Store
from holdfast.ontology import catalog
from holdfast.ontology.chain import Chain
from holdfast.ontology.commit import Commit
from holdfast.ontology.delta import Row
from holdfast.ontology.drop import find_type
from holdfast.ontology.exchange import FileFormat, format_of, read_file, write_file
from holdfast.ontology.head import read_head
from holdfast.ontology.model import Mixin
from holdfast.ontology.reader import read_latest, read_ledger
from holdfast.ontology.session import Ontology
from holdfast.ontology.shape import of_class, of_schema
from holdfast.ontology.times import Moment, commit_at

TRIES = 8
SHOWN = 3


class Policy(StrEnum):
    ERROR = "error"
    SKIP = "skip"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Exported:
    rows: int
    commit_id: int
    path: Path


@dataclass(frozen=True, slots=True)
class Imported:
    rows: int
    """In the file."""
    same: int
    """That were so already."""
    skipped: int
    replaced: int
    added: int
    commit: Commit | None


async def export_file(
    store: Store, name: str, path: Path, *, style: FileFormat | None = None, as_of: Moment | None = None
) -> Exported:
    """Write what a type has, now or as of a moment."""
    chosen = format_of(path, style)
    chain = Chain(store)
    now = await chain.ledger((await read_head(store)).place)
    upper = now.commit_id if as_of is None else await commit_at(as_of, chain, now)
    then = await chain.ledger(await chain.at(now.place, upper) if upper else None)
    type_id = find_type(then, name)
    life = now.life_at(type_id, upper)
    purged = life is not None and life.purged
    latest = await read_latest(store, chain, then, type_id)
    rows = [] if purged else [row for _, (_, row) in sorted(latest.rows.items())]
    ref = then.schemas.get(type_id)
    stored = (
        await catalog.chained_schema(chain, then, type_id, ref)
        if ref is not None
        else await catalog.stored_schema(store, type_id)
    )
    shape = of_schema(type_id, stored.schema if stored is not None else _guessed(rows))
    await blocking(write_file, path, chosen, shape, rows)
    return Exported(len(rows), upper, path)


def _guessed(rows: Sequence[Row]) -> dict[str, Any]:
    """Of a type that only plain writers know: the fields that there are."""
    names = dict.fromkeys(name for row in rows for name in json.loads(row.fields_json))
    return {"fields": {name: {"type": "typing.Any"} for name in names}}


async def import_file(
    onto: Ontology,
    of: type[Mixin],
    path: Path,
    *,
    style: FileFormat | None = None,
    on_conflict: Policy = Policy.ERROR,
    absent: bool = False,
    if_head: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Imported:
    """Commit what a file has. The session must have nothing else queued."""
    form = onto.form(of)
    shape = of_class(form.declared)
    objects = await blocking(read_file, path, format_of(path, style), form, shape)
    rows = await blocking(form.rows, objects)
    unique = {row.identity: number for number, row in enumerate(rows)}
    if len(unique) < len(rows):
        first = next(row for number, row in enumerate(rows) if unique[row.identity] != number)
        raise Conflict(f"{path.name}: {'/'.join(first.identity)!r} is in it twice", remedy="keep one of them")
    for _ in range(TRIES):
        decided = await _decide(onto, form.type_id, rows, on_conflict, absent=absent)
        wanted = [objects[number] for number in decided.chosen]
        expected = if_head if if_head is not None else decided.head
        if not wanted and if_head is None:
            return Imported(len(rows), decided.same, decided.skipped, 0, 0, None)
        onto.ensure(wanted, of)
        try:
            commit = await onto.commit(metadata, if_head=expected)
        except Conflict:
            onto.discard()
            if if_head is not None:
                raise
            continue
        except BaseException:
            onto.discard()
            raise
        return Imported(len(rows), decided.same, decided.skipped, decided.replaced, decided.added, commit)
    raise Conflict(f"{path.name}: others keep committing", remedy="import when there is less going on")


@dataclass(frozen=True, slots=True)
class _Decided:
    head: int
    chosen: Sequence[int]
    same: int
    skipped: int
    replaced: int
    added: int


async def _decide(onto: Ontology, type_id: Any, rows: Sequence[Row], policy: Policy, *, absent: bool) -> _Decided:
    chain = Chain(onto.store)
    ledger = await read_ledger(onto.store, chain)
    current = (await read_latest(onto.store, chain, ledger, type_id)).rows
    there = [number for number, row in enumerate(rows) if row.identity in current]
    differ = [number for number in there if current[rows[number].identity][1].fields_json != rows[number].fields_json]
    refused = there if absent else differ if policy is Policy.ERROR else []
    if refused:
        listed = ", ".join(repr("/".join(filter(None, rows[number].identity))) for number in refused[:SHOWN])
        what = "are there already" if absent else "are there already, with other fields"
        raise Conflict(
            f"{type_id.name}: {len(refused)} objects {what}: {listed}",
            remedy="leave them out, or say what to do with them: skip or replace",
        )
    skipped = set(differ) if policy is Policy.SKIP else set()
    same = len(there) - len(differ)
    chosen = [number for number in range(len(rows)) if number not in skipped]
    replaced = len(differ) - len(skipped)
    return _Decided(ledger.commit_id, chosen, same, len(skipped), replaced, len(rows) - len(there))
