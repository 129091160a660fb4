"""Drop: end a type's life by a commit of its own. With ``purge`` its rows are destroyed too.

After a drop nothing of the type is in "latest". Unless it is purged, queries as of earlier commits still see it. A type
that is committed again begins a new life without the old rows.
"""

from dataclasses import dataclass

from holdfast.base.errors import NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.ontology.chain.catalog import chained_schema
from holdfast.ontology.chain.state import read_latest
from holdfast.ontology.commit.attempt import Order
from holdfast.ontology.commit.commit import Commit
from holdfast.ontology.commit.lock import Turn
from holdfast.ontology.format.chainstate import Ledger, fate
from holdfast.ontology.format.redactions import Redaction
from holdfast.ontology.maintain.plan import Pinned, Plan, Work, apply_plan, check_token, plan_at_head
from holdfast.ontology.maintain.redact import Watch
from holdfast.ontology.types.refs import Life, TypeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Plan):
    type_id: TypeId
    purge: bool
    live: bool
    """False if it was dropped before, and only a purge is left to do."""
    objects: int
    """Current ones."""
    files: int
    lives: tuple[Life, ...]
    """Earlier lives that have ended."""
    relations: tuple[str, ...]
    """Relation types that have it at one of their ends; they stay."""


async def preview(store: Store, name: str, *, purge: bool = False) -> Preview:
    """What dropping the type would do. ``NotFound`` if there is nothing to drop, or to purge."""

    async def make(at: Pinned) -> Preview:
        ledger = at.ledger
        type_id = find_type(ledger, name, ended=purge)
        known, lives = ledger.head_of(type_id), ledger.lives.get(type_id, ())
        live = type_id in ledger.schemas or known.files > 0
        objects = len((await read_latest(store, at.chain, ledger, type_id)).rows) if live else 0
        return Preview(
            head=at.head.commit_id,
            token=at.token("drop", type_id, purge, objects, known, lives),
            type_id=type_id,
            purge=purge,
            live=live,
            objects=objects,
            files=known.files,
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
        raise fate(ledger, name) or NotFound(f"there is no type {name}", remedy="see holdfast onto info")
    if len(found) > 1:
        raise NotFound(f"{name} is an entity and a relation", remedy=f"say {found[0].label} or {found[1].label}")
    return found[0]


async def apply(
    store: Store,
    ambient: Ambient,
    previewed: Preview,
    token: str,
    *,
    turn: Turn | None = None,
    by: str,
    why: str,
    watch: Watch | None = None,
) -> Commit | None:
    """Make the commit, and with ``purge`` destroy the rows. ``watch`` is called with files done and files in all."""
    check_token(previewed, token)
    type_id, purge = previewed.type_id, previewed.purge
    redaction = Redaction(type_id, None, 1, previewed.head).document() if purge else None
    work = Work(
        {"drop": {"type": type_id.label, "purge": purge, "objects": previewed.objects}},
        Order(drop={type_id: purge}, redact=redaction),
    )
    return await apply_plan(store, ambient, previewed, work, turn=turn, by=by, why=why, watch=watch)


async def _relations(at: Pinned, type_id: TypeId) -> tuple[str, ...]:
    found: list[str] = []
    for each, ref in sorted(at.ledger.schemas.items()):
        if each.kind == "relation" and type_id.kind == "entity":
            schema = (await chained_schema(at.chain, at.ledger, each, ref)).schema
            if type_id.name in (schema.get("left_type"), schema.get("right_type")):
                found.append(each.name)
    return tuple(found)
