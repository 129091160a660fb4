"""Revert: a new commit after which everything is as it was at an earlier one. History keeps all of it.

``Refused`` for types whose schema has changed since, and for types that were dropped since: rows of an older schema are
not written under a newer one. What was purged or erased stays so.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.base.errors import Refused
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.ontology.chain.catalog import chained_type
from holdfast.ontology.chain.history import place_of
from holdfast.ontology.chain.redaction_fence import fence_of
from holdfast.ontology.chain.state import read_latest
from holdfast.ontology.commit.commit import Commit
from holdfast.ontology.commit.lock import Turn
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.batch import Identity, Intent, Row
from holdfast.ontology.maintain.plan import Pinned, Plan, Work, apply_plan, check_token, plan_at_head
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo

Rows = Mapping[Identity, tuple[int, Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Plan):
    target: int
    intents: tuple[Intent, ...]
    types: dict[TypeId, TypeInfo]

    @property
    def counts(self) -> dict[TypeId, tuple[int, int]]:
        """Per type: how many objects are written again, and how many retracted."""
        written = Counter(each.type_id for each in self.intents if each.fields_json is not None)
        gone = Counter(each.type_id for each in self.intents if each.fields_json is None)
        return {each: (written[each], gone[each]) for each in sorted({*written, *gone})}


async def preview(store: Store, commit_id: int) -> Preview:
    """What must be written so that everything is as it was at ``commit_id``; 0 is the empty store."""

    async def make(at: Pinned) -> Preview:
        chain, now = at.chain, at.ledger
        fence = await fence_of(store, chain, now)
        then = await chain.ledger(await place_of(store, chain, commit_id))
        _check_lives(now, then)
        intents: list[Intent] = []
        types: dict[TypeId, TypeInfo] = {}
        for type_id in sorted(now.heads):
            after = (await read_latest(store, chain, then, type_id, fence=fence)).rows
            found = _changes(type_id, (await read_latest(store, chain, now, type_id, fence=fence)).rows, after)
            if found:
                types[type_id] = _checked(type_id, await chained_type(chain, now, type_id), now, then)
                intents += found
        token = at.token("revert", commit_id, intents)
        return Preview(head=at.head.commit_id, token=token, target=commit_id, intents=tuple(intents), types=types)

    return await plan_at_head(store, make)


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
    """Make the commit; None if there is nothing to change."""
    check_token(previewed, token)
    if not previewed.intents:
        return None
    work = Work({"revert": {"to_commit": previewed.target}}, types=previewed.types, queue=previewed.intents)
    return await apply_plan(store, ambient, previewed, work, turn=turn, by=by, why=why)


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


def _checked(type_id: TypeId, info: TypeInfo | None, now: Ledger, then: Ledger) -> TypeInfo:
    """The type, if rows of then may be written under its schema of now."""
    was, known = then.schemas.get(type_id), now.schemas.get(type_id)
    if info is None:
        raise Refused(f"{type_id.label}: no schema of it is on the chain", remedy="commit to it with its class first")
    if was is not None and known is not None and was.version_id != known.version_id:
        raise Refused(
            f"{type_id.label}: its schema was version {was.version_id} then, and is {known.version_id} now",
            remedy="write the objects again with the class of now",
        )
    return info
