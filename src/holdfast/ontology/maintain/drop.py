"""Drop: a commit that ends the life of a type. With ``purge`` its rows are destroyed too.

After a drop the type has no current rows. Unless it is purged, queries as of earlier commits still see them. A type
that is committed again begins a new life without the old rows.
"""

from dataclasses import dataclass
from difflib import get_close_matches

from holdfast.base.errors import NotFound
from holdfast.objects.store import Store
from holdfast.ontology.chain.catalog import chained_schema
from holdfast.ontology.chain.state import read_latest
from holdfast.ontology.commit.attempt import Order
from holdfast.ontology.format.chainstate import Ledger, fate
from holdfast.ontology.format.redactions import Redaction
from holdfast.ontology.maintain.plan import Pinned, Plan, Work, apply, plan_at_head
from holdfast.ontology.types.refs import Life, TypeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Plan):
    type_id: TypeId
    purge: bool
    live: bool
    """False if the type was dropped before, and only a purge is left to do."""
    objects: int
    """Current ones."""
    files: int
    lives: tuple[Life, ...]
    """Earlier lives that have ended."""
    relations: tuple[str, ...]
    """Relation types that have the type at one of their ends; they stay."""

    async def work(self, store: Store) -> Work:
        redaction = Redaction(self.type_id, None, 1, self.head).document() if self.purge else None
        record = {"type": self.type_id.label, "purge": self.purge, "objects": self.objects}
        return Work("drop", record, Order(drop={self.type_id: self.purge}, redact=redaction))


async def preview(store: Store, name: str, *, purge: bool = False) -> Preview:
    """What dropping the type would do. ``NotFound`` if there is nothing to drop, or to purge."""

    async def make(at: Pinned) -> Preview:
        ledger = at.ledger
        type_id = find_type(ledger, name, ended=purge)
        head, lives = ledger.head_of(type_id), ledger.lives.get(type_id, ())
        live = type_id in ledger.schemas or head.files > 0
        objects = len((await read_latest(store, at.chain, ledger, type_id)).rows) if live else 0
        return Preview(
            head=at.head.commit_id,
            token=at.token("drop", type_id, purge, objects, head, lives),
            type_id=type_id,
            purge=purge,
            live=live,
            objects=objects,
            files=head.files,
            lives=lives,
            relations=await _relations(at, type_id),
        )

    return await plan_at_head(store, make)


def find_type(ledger: Ledger, name: str, *, ended: bool = False) -> TypeId:
    """The type of this name (``entity/Name`` where there are two); with ``ended``, also one that was dropped."""
    known = {*ledger.heads, *ledger.schemas}
    known |= {each for each, lives in ledger.lives.items() if ended and not all(life.purged for life in lives)}
    found = sorted(each for each in known if name in (each.name, each.label))
    if not found:
        near = get_close_matches(name, [each.name for each in known], n=1)
        hint = f"did you mean {near[0]}?" if near else "see holdfast onto info"
        raise fate(ledger, name) or NotFound(f"there is no type {name}", remedy=hint)
    if len(found) > 1:
        raise NotFound(f"{name} is an entity and a relation", remedy=f"say {found[0].label} or {found[1].label}")
    return found[0]


async def _relations(at: Pinned, type_id: TypeId) -> tuple[str, ...]:
    found: list[str] = []
    for each, ref in sorted(at.ledger.schemas.items()):
        if each.kind == "relation" and type_id.kind == "entity":
            schema = (await chained_schema(at.chain, at.ledger, each, ref)).schema
            if type_id.name in (schema.get("left_type"), schema.get("right_type")):
                found.append(each.name)
    return tuple(found)


__all__ = ["Preview", "apply", "find_type", "preview"]
