"""Restart: an ontology that is made empty, at commit 0 with a new chain. ``holdfast onto init --force``.

Preview says what would be out of reach and gives a token made from it. A record under ``meta/restarts/`` keeps who,
when and why, and the manifest at which the old chain ended: its commits stay where they are, a head that names it would
bring them back, and erasures and purges of later on reach them too. Everything derived (indexes, snapshots, schema
objects, tags, checkpoints) goes before the head is replaced and once more after it: what a plain reader would believe
is never of the old chain.

The head is replaced if-match. Writers of the old chain find a head that does not follow from theirs, and stop.
"""

from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.errors import Conflict, Refused
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Lost, Store
from holdfast.ontology.chain.chain import RESTART_FORMAT, Chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.head import Head, read_head
from holdfast.ontology.maintain.redact import unfinished
from holdfast.ontology.maintain.token import check_token, token_of
from holdfast.ontology.types.refs import TypeHead, TypeId

DERIVED = (layout.INDICES, layout.SNAPSHOTS, "meta/schema/", "meta/checkpoints/")


@dataclass(frozen=True, slots=True)
class Preview:
    head: Head
    types: dict[TypeId, TypeHead]
    token: str

    @property
    def commit_id(self) -> int:
        return self.head.commit_id


async def preview(store: Store) -> Preview:
    """``Refused`` while payload that was ordered to be destroyed is still on the chain that would be given up."""
    head = await read_head(store)
    chain = Chain(store)
    if open_orders := await unfinished(store, chain, head.place):
        raise Refused(
            f"commit {open_orders[0].commit_id} orders payload to be destroyed, and that is not finished",
            remedy="holdfast onto erase --resume",
        )
    ledger = await chain.ledger(head.place)
    text = f"restart {head.commit_id} {head.manifest_path} {sorted(ledger.heads.items())}"
    token = token_of(text)
    return Preview(head, dict(sorted(ledger.heads.items())), token)


async def apply(store: Store, ambient: Ambient, previewed: Preview, token: str, *, by: str, why: str) -> Document:
    """Begin anew; the record. ``Conflict`` if somebody has committed since the preview."""
    head = previewed.head
    check_token(token, previewed.token, f"it would give up other commits than up to {head.commit_id}")
    now = iso(ambient.clock.wall_ns())
    record: Document = {
        "ended": {"commit_id": head.commit_id, "manifest_path": head.manifest_path},
        "types": {each.label: list(known) for each, known in previewed.types.items()},
        "by": by,
        "why": why,
        "at": now,
    }
    recorded = False
    key = layout.restart_key(head.manifest_path) if head.manifest_path is not None else None
    if key is not None:
        body = codec.stamp(record, format_name=RESTART_FORMAT, version=1, write_id=ambient.ids.write_id())
        recorded = not isinstance(await store.put(key, codec.encode(body), CREATE), Lost)
    await _forget_derived(store)
    empty = Head(0, None, now, by, head.version, head.extra)
    if isinstance(await store.put(layout.HEAD, empty.body(ambient.ids.write_id()), head.condition), Lost):
        if key is not None and recorded:
            await store.delete(key)
        raise Conflict(f"{layout.HEAD}: somebody has committed since the preview", remedy="look at the preview again")
    await _forget_derived(store)
    return record


async def _forget_derived(store: Store) -> None:
    for prefix in DERIVED:
        keys: list[str] = []
        async for page in store.list(prefix):
            keys += [entry.key for entry in page.entries]
        await store.delete_many(keys)
    await store.delete(layout.TAGS)
