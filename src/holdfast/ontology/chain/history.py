"""Commits for people: which there are, what one holds, what changed between two. Reads only."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from holdfast.base.errors import Invalid, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.latest import read_latest
from holdfast.ontology.chain.redaction_fence import fence_of, retry_overtaken
from holdfast.ontology.chain.state import latest_rows
from holdfast.ontology.format.data.intents import Identity, Row
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.manifest import Manifest
from holdfast.ontology.types.refs import Place, TypeId


@dataclass(frozen=True, slots=True)
class Difference:
    """One object that is not the same at two commits; None where there is no such object."""

    type_id: TypeId
    identity: Identity
    commit_id: int
    """The commit that made it what it is now."""
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @property
    def action(self) -> str:
        if self.before is None:
            return "added"
        return "retracted" if self.after is None else "changed"


async def commits(store: Store, *, limit: int | None = None, before: int | None = None) -> AsyncIterator[Manifest]:
    """The newest first; with ``before``, those with smaller numbers."""
    chain = Chain(store)
    place = (await read_head(store)).place
    if before is not None and place is not None and before <= place.commit_id:
        place = await chain.at(place, before - 1)
    count = 0
    while place is not None and (limit is None or count < limit):
        manifest = await chain.manifest(place)
        yield manifest
        place, count = manifest.parent, count + 1


async def find_commit(store: Store, commit_id: int) -> Manifest:
    chain = Chain(store)
    place = await place_of(store, chain, commit_id)
    if place is None:
        raise Invalid("commit 0 is the empty store: it has no manifest", remedy="name a commit from 1 on")
    return await chain.manifest(place)


async def diff(store: Store, older: int, newer: int) -> list[Difference]:
    """What is not the same at two commits, by type and identity. 0 is the empty store."""
    if older > newer:
        raise Invalid(f"commit {older} is after commit {newer}", remedy="name the older one first")
    return await retry_overtaken(lambda: _diff(store, older, newer))


async def _diff(store: Store, older: int, newer: int) -> list[Difference]:
    chain = Chain(store)
    head = await chain.ledger((await read_head(store)).place)
    fence = await fence_of(store, chain, head)
    first, last = await place_of(store, chain, older), await place_of(store, chain, newer)
    before = await chain.ledger(first)
    after = await chain.ledger(last)
    files = await chain.files(older, last)
    found: list[Difference] = []
    ended = [each for each in before.heads if after.generation_of(each) > older]
    for type_id in sorted({*(ref.type_id for ref in files), *ended}):
        generation = after.generation_of(type_id)
        of_type = [
            ref
            for ref in files
            if ref.type_id == type_id and ref.commit_id >= generation and not head.purged(type_id, ref.commit_id)
        ]
        now = dict(await latest_rows(store, of_type, newest=newer, fence=fence))
        hidden = head.purged(type_id, older)
        then = {} if hidden else (await read_latest(store, chain, before, type_id, fence=fence)).rows
        if type_id in ended:
            ends = after.lives[type_id][-1].end if type_id in after.lives else newer
            now = {each: (ends, Row(each, row.fields_json, True)) for each, (_, row) in then.items()} | now
        for identity, (commit_id, row) in sorted(now.items()):
            was = then.get(identity)
            change = Difference(type_id, identity, commit_id, None if was is None else _fields(was[1]), _fields(row))
            if change.before != change.after:
                found.append(change)
    return found


async def place_of(store: Store, chain: Chain, commit_id: int) -> Place | None:
    """Where a commit is; None for 0, the empty store."""
    head = await read_head(store)
    if not 0 <= commit_id <= head.commit_id:
        raise NotFound(f"there is no commit {commit_id}; the head is commit {head.commit_id}")
    return await chain.at(head.place, commit_id) if commit_id else None


def _fields(row: Row) -> dict[str, Any] | None:
    return None if row.retracted else json.loads(row.fields_json)
