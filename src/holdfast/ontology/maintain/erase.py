"""Erase: destroy the payload of one identity in all of history, for privacy law.

The commit writes a last row without payload, so that followers of the change feed learn of the end. Then every file
with rows of the identity is rewritten in place (see ``redact``): the rows stay as retracted ones, with their key and
``"_erased": true``. The object is then in no answer about any commit, and history shows that it was erased.

The key stays, because the object is named by it. Relations that name the key are other identities and do not change.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.base.aio import blocking, stream_bounded
from holdfast.base.errors import Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.ontology.chain.catalog import chained_schema, chained_type
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.state import read_file
from holdfast.ontology.commit.attempt import Order
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.batch import Identity, Row
from holdfast.ontology.format.data.stored_rows import read_rows
from holdfast.ontology.format.redactions import Redaction, erased_text, is_erased
from holdfast.ontology.maintain.drop import find_type
from holdfast.ontology.maintain.leftovers import leftovers, remove
from holdfast.ontology.maintain.plan import Pinned, Plan, Work, apply, plan_at_head
from holdfast.ontology.maintain.redact import finish_redactions
from holdfast.ontology.types.refs import FileRef, TypeId
from holdfast.ontology.types.schema import fields_of
from holdfast.ontology.types.typeinfo import UNKEYED, TypeInfo

PARALLEL = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Plan):
    type_id: TypeId
    identity: Identity
    rows: int
    """How many still have payload, in all of history."""
    commits: tuple[int, ...]
    """The commits that wrote them."""
    info: TypeInfo | None
    key_field: str | None
    last: str
    """``fields_json`` of the last row, which the commit writes."""

    async def work(self, store: Store) -> Work:
        redaction = Redaction(self.type_id, self.identity, 1, self.head, self.key_field)
        record = {"type": self.type_id.label, "key": list(self.identity), "rows": self.rows}
        if self.info is None:  # a plain writer's type, of which nothing can be written
            return Work("erase", record, Order(redact=redaction.document()))
        last = {self.type_id: [Row(self.identity, self.last, retracted=True)]}
        return Work("erase", record, Order(redact=redaction.document(), write=last), {self.type_id: self.info})


@dataclass(frozen=True, slots=True)
class Resumed:
    finished: list[int]
    """The commits whose redactions were completed."""
    removed: list[str]
    """Keys of unreferenced objects that held payload to be destroyed."""


async def preview(store: Store, name: str, *key: str) -> Preview:
    """What would be erased. ``NotFound`` if no row of this identity has payload."""

    async def make(at: Pinned) -> Preview:
        chain, ledger, place = at.chain, at.ledger, at.head.place
        type_id = find_type(ledger, name, ended=True)
        identity = _identity(type_id, key)
        rows = await _payload(store, await chain.files(0, place, checkpoints=False), type_id, identity)
        commits = tuple(sorted({commit_id for commit_id, _ in rows}))
        if not rows:
            shown = "/".join(key)
            raise NotFound(f"{type_id.label}: no row of {shown!r} has any payload", remedy="look at the key again")
        key_field = await _key_field(chain, ledger, type_id)
        return Preview(
            head=at.head.commit_id,
            token=at.token("erase", type_id, identity, len(rows), commits),
            type_id=type_id,
            identity=identity,
            rows=len(rows),
            commits=commits,
            info=await chained_type(chain, ledger, type_id),
            key_field=key_field,
            last=erased_text(key_field, rows[-1][1]),
        )

    return await plan_at_head(store, make)


async def resume(store: Store, ambient: Ambient) -> Resumed:
    """Finish every purge and erasure that was committed, and remove unreferenced objects that have their payload."""
    finished = await finish_redactions(store, ambient)
    return Resumed(finished, await remove(store, await leftovers(store)))


async def _payload(
    store: Store, files: Iterable[FileRef], type_id: TypeId, identity: Identity
) -> list[tuple[int, str]]:
    """The rows of an identity that still have payload: their commits, and their fields."""

    async def read(ref: FileRef) -> list[tuple[int, str]]:
        found = await blocking(read_rows, await read_file(store, ref.path), ref.path)
        return [(commit_id, row.fields_json) for commit_id, row in found if row.identity == identity]

    wanted = [ref for ref in files if ref.type_id == type_id]
    rows = [row async for found in stream_bounded(wanted, read, limit=PARALLEL) for row in found]
    return [(commit_id, text) for commit_id, text in rows if not is_erased(text)]


def _identity(type_id: TypeId, key: tuple[str, ...]) -> Identity:
    if type_id.kind == "entity" and len(key) == 1:
        return key
    if type_id.kind == "relation" and len(key) in (2, 3):
        return key if len(key) == 3 else (*key, UNKEYED)
    wanted = "one key" if type_id.kind == "entity" else "two keys, and the instance key if it has one"
    raise Invalid(f"{type_id.label} is identified by {wanted}, and {len(key)} were given")


async def _key_field(chain: Chain, ledger: Ledger, type_id: TypeId) -> str | None:
    ref = ledger.schemas.get(type_id)
    if ref is None or type_id.kind == "relation":
        return None
    schema = (await chained_schema(chain, ledger, type_id, ref)).schema
    return next((name for name, field in fields_of(schema).items() if field.get("primary_key")), None)


__all__ = ["Preview", "Resumed", "apply", "preview", "resume"]
