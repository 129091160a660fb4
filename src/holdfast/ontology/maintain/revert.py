"""Revert: a new commit after which everything is as it was at an earlier one. History keeps all of it.

Preview says what would change, and gives a token made from that; the commit asks for the token and is made on the very
head that was previewed (``if_head``), or not at all. Who, why and to which commit stand in its metadata.

``Refused`` for types whose schema has changed since, and for types that were dropped since: rows of an older schema are
not written under a newer one. What was purged or erased stays so.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from holdfast.base.errors import HoldfastError, Refused
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.ontology.chain.catalog import chained_type
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.history import place_of
from holdfast.ontology.chain.latest import read_latest
from holdfast.ontology.chain.redaction_fence import fence_of, retry_overtaken
from holdfast.ontology.commit.commit import Commit, Committer
from holdfast.ontology.commit.lock import Turn
from holdfast.ontology.commit.view import View
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.intents import Identity, Intent, Row
from holdfast.ontology.format.head import read_head
from holdfast.ontology.maintain.reindex import repair_indexes
from holdfast.ontology.maintain.token import check_token
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo

Rows = Mapping[Identity, tuple[int, Row]]


@dataclass(frozen=True, slots=True)
class Preview:
    head: int
    target: int
    intents: tuple[Intent, ...]
    types: dict[TypeId, TypeInfo]
    token: str

    @property
    def counts(self) -> dict[TypeId, tuple[int, int]]:
        """Per type: how many objects are written again, and how many retracted."""
        written = Counter(each.type_id for each in self.intents if each.fields_json is not None)
        gone = Counter(each.type_id for each in self.intents if each.fields_json is None)
        return {each: (written[each], gone[each]) for each in sorted({*written, *gone})}


async def preview(store: Store, commit_id: int) -> Preview:
    """What must be written so that everything is as it was at ``commit_id``; 0 is the empty store."""
    return await retry_overtaken(lambda: _preview(store, commit_id))


async def _preview(store: Store, commit_id: int) -> Preview:
    chain = Chain(store)
    head = await read_head(store)
    now = await chain.ledger(head.place)
    fence = await fence_of(store, chain, now)
    then = await chain.ledger(await place_of(store, chain, commit_id))
    _check_lives(now, then)
    intents: list[Intent] = []
    types: dict[TypeId, TypeInfo] = {}
    for type_id in sorted(now.heads):
        after = (await read_latest(store, chain, then, type_id, fence=fence)).rows
        found = _changes(type_id, (await read_latest(store, chain, now, type_id, fence=fence)).rows, after)
        if not found:
            continue
        info = await chained_type(chain, now, type_id)
        _check_schema(type_id, info, now, then)
        if info is not None:
            types[type_id] = info
            intents += found
    return Preview(head.commit_id, commit_id, tuple(intents), types, _token(head.manifest_path, commit_id, intents))


async def apply(
    store: Store,
    ambient: Ambient,
    previewed: Preview,
    token: str,
    *,
    turn: Turn | None = None,
    by: str,
    why: str,
) -> Commit | None:
    """Make the commit; None if there is nothing to change. ``Conflict`` if somebody has committed since."""
    check_token(token, previewed.token, f"reverting to commit {previewed.target} now would do something else")
    if not previewed.intents:
        return None
    committer = Committer(store, ambient, View(store), previewed.types, runtime_id=by, turn=turn)
    committer.queue += previewed.intents
    metadata = {"revert": {"to_commit": previewed.target, "by": by, "why": why}}
    commit = await committer.commit(metadata, if_head=previewed.head)
    with suppress(HoldfastError):  # it is committed, whatever becomes of the indexes; the next session mends them
        await repair_indexes(store, ambient, apply=True, types=list(previewed.types))
    return commit


def _changes(type_id: TypeId, before: Rows, after: Rows) -> list[Intent]:
    written = [
        Intent(type_id, identity, row.fields_json)
        for identity, (_, row) in sorted(after.items())
        if identity not in before or before[identity][1].fields_json != row.fields_json
    ]
    return written + [Intent(type_id, identity, None) for identity in sorted(before.keys() - after.keys())]


def _check_lives(now: Ledger, then: Ledger) -> None:
    """A type that has ended since would be missing, and everything would not be as it was."""
    for type_id in sorted(then.heads):
        life = now.life_at(type_id, then.commit_id)
        if life is not None and not life.purged:
            raise Refused(
                f"{type_id.label} was dropped by commit {life.end}: a revert does not bring a type back",
                remedy=f"export it as of commit {then.commit_id} and import it, then revert to a commit after its end",
            )


def _check_schema(type_id: TypeId, info: TypeInfo | None, now: Ledger, then: Ledger) -> None:
    was, known = then.schemas.get(type_id), now.schemas.get(type_id)
    if info is None:
        raise Refused(f"{type_id.label}: no schema of it is on the chain", remedy="commit to it with its class first")
    if was is not None and known is not None and was.version_id != known.version_id:
        raise Refused(
            f"{type_id.label}: its schema was version {was.version_id} then, and is {known.version_id} now",
            remedy="write the objects again with the class of now",
        )


def _token(head: str | None, commit_id: int, intents: list[Intent]) -> str:
    found = hashlib.blake2b(f"revert {head} {commit_id}".encode(), digest_size=6)
    for each in intents:
        found.update(repr((each.type_id, each.identity, each.fields_json)).encode())
    return found.hexdigest()
