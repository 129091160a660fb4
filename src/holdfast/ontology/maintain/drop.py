"""Drop: end a type's life by a commit of its own. With ``purge`` its rows are destroyed too.

Preview says what would end and gives a token made from it; the commit asks for the token and is made on the very head
that was previewed, or not at all. Who and why stand in its metadata, when in its time.

After a drop nothing of the type is in "latest". Unless it is purged, queries as of earlier commits still see it. A type
that is committed again begins a new life: it has none of the old rows.
"""

from dataclasses import dataclass

from holdfast.base.errors import NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.ontology.chain.catalog import Catalog, chained_schema
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.latest import read_latest
from holdfast.ontology.chain.redaction_fence import retry_overtaken
from holdfast.ontology.commit.attempt import Order
from holdfast.ontology.commit.commit import Commit, Committer
from holdfast.ontology.commit.lock import Turn
from holdfast.ontology.commit.view import View
from holdfast.ontology.format.chainstate import Ledger, fate
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.redactions import Redaction
from holdfast.ontology.maintain.redact import Watch, perform
from holdfast.ontology.maintain.token import check_token, token_of
from holdfast.ontology.types.refs import Life, Place, TypeId


@dataclass(frozen=True, slots=True)
class Preview:
    head: int
    type_id: TypeId
    purge: bool
    live: bool
    """False if it was dropped before, and is only to be purged now."""
    objects: int
    """That are current."""
    files: int
    lives: tuple[Life, ...]
    """That have ended before."""
    relations: tuple[str, ...]
    """Relation types that have it at one of their ends; they stay."""
    token: str


async def preview(store: Store, name: str, *, purge: bool = False) -> Preview:
    """What dropping the type would do. ``NotFound`` if there is nothing to drop, or to purge."""
    return await retry_overtaken(lambda: _preview(store, name, purge=purge))


async def _preview(store: Store, name: str, *, purge: bool) -> Preview:
    chain = Chain(store)
    head = await read_head(store)
    ledger = await chain.ledger(head.place)
    type_id = find_type(ledger, name, ended=purge)
    live = type_id in ledger.schemas or ledger.head_of(type_id).files > 0
    lives = ledger.lives.get(type_id, ())
    objects = len((await read_latest(store, chain, ledger, type_id)).rows) if live else 0
    known = ledger.head_of(type_id)
    text = f"drop {head.manifest_path} {type_id.label} {purge} {objects} {known} {lives}"
    token = token_of(text)
    relations = await _relations(chain, ledger, type_id)
    return Preview(head.commit_id, type_id, purge, live, objects, known.files, lives, relations, token)


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
    """Make the commit, and with ``purge`` destroy the rows. ``Conflict`` if somebody has committed since."""
    check_token(token, previewed.token, f"dropping {previewed.type_id.name} now would do something else")
    type_id, view = previewed.type_id, View(store)
    committer = Committer(store, ambient, view, {}, runtime_id=by, turn=turn)
    dropped = {"type": type_id.label, "purge": previewed.purge, "by": by, "why": why, "objects": previewed.objects}
    redaction = Redaction(type_id, None, 1, previewed.head).document() if previewed.purge else None
    order = Order(drop={type_id: previewed.purge}, redact=redaction)
    commit = await committer.commit({"drop": dropped}, if_head=previewed.head, order=order)
    if commit is None:
        return None
    await Catalog(store, ambient, by).sync(view.chain, view.ledger)
    if previewed.purge:
        await perform(store, ambient, Place(commit.commit_id, commit.manifest_path), watch=watch)
    return commit


async def _relations(chain: Chain, ledger: Ledger, type_id: TypeId) -> tuple[str, ...]:
    found: list[str] = []
    for each, ref in sorted(ledger.schemas.items()):
        if each.kind == "relation" and type_id.kind == "entity":
            schema = (await chained_schema(chain, ledger, each, ref)).schema
            if type_id.name in (schema.get("left_type"), schema.get("right_type")):
                found.append(each.name)
    return tuple(found)
