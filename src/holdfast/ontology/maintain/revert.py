"""Revert: a new commit that restores the state of an earlier one. History keeps all of it.

``Refused`` for types whose schema has changed since, and for types that were dropped since: rows of an older schema are
not written under a newer one. What was purged or erased is not restored.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.base.errors import Refused
from holdfast.objects.store import Store
from holdfast.ontology.chain.catalog import chained_type
from holdfast.ontology.chain.history import place_of
from holdfast.ontology.feed import differences
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.batch import Intent
from holdfast.ontology.maintain.plan import Pinned, Plan, Work, apply, plan_at_head
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Plan):
    target: int
    """The commit whose state is restored."""
    intents: tuple[Intent, ...]
    types: Mapping[TypeId, TypeInfo]

    @property
    def counts(self) -> dict[TypeId, tuple[int, int]]:
        """Per type: how many objects are written again, and how many retracted."""
        written = Counter(each.type_id for each in self.intents if each.fields_json is not None)
        gone = Counter(each.type_id for each in self.intents if each.fields_json is None)
        return {each: (written[each], gone[each]) for each in sorted({*written, *gone})}

    async def work(self, store: Store) -> Work | None:
        if not self.intents:
            return None
        return Work("revert", {"to_commit": self.target}, types=self.types, queue=self.intents)


async def preview(store: Store, commit_id: int) -> Preview:
    """What must be written to restore the state of ``commit_id``; 0 is the empty store."""

    async def make(at: Pinned) -> Preview:
        then = await at.chain.ledger(await place_of(store, at.chain, commit_id))
        _check_lives(at.ledger, then)
        found = await differences(store, at.chain, at.head.place, commit_id, at.head.commit_id)
        intents = [Intent(each.type_id, each.identity, each.before_json) for each in found]
        types: dict[TypeId, TypeInfo] = {}
        for type_id in sorted({each.type_id for each in intents}):
            types[type_id] = _checked(type_id, await chained_type(at.chain, at.ledger, type_id), at.ledger, then)
        token = at.token("revert", commit_id, intents)
        return Preview(head=at.head.commit_id, token=token, target=commit_id, intents=tuple(intents), types=types)

    return await plan_at_head(store, make)


def _check_lives(now: Ledger, then: Ledger) -> None:
    for type_id in sorted(then.heads):
        life = now.life_at(type_id, then.commit_id)
        if life is not None and not life.purged:
            raise Refused(
                f"{type_id.label} was dropped by commit {life.end}: a revert does not bring a type back",
                remedy=f"export it as of commit {then.commit_id} and import it, then revert to a commit after its end",
            )


def _checked(type_id: TypeId, info: TypeInfo | None, now: Ledger, then: Ledger) -> TypeInfo:
    """The type, if its rows at ``then`` may be written under its current schema."""
    was, current = then.schemas.get(type_id), now.schemas.get(type_id)
    if info is None:
        raise Refused(f"{type_id.label}: no schema of it is on the chain", remedy="commit to it with its class first")
    if was is not None and current is not None and was.version_id != current.version_id:
        raise Refused(
            f"{type_id.label}: its schema was version {was.version_id} then, and is {current.version_id} now",
            remedy="write the objects again with the current class",
        )
    return info


__all__ = ["Preview", "apply", "preview"]
