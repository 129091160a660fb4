"""The latest state of a type at one head: a small read, for seeing what was committed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.redaction_fence import RedactionFence, fence_of
from holdfast.ontology.chain.resolve import Resolved, with_files
from holdfast.ontology.chain.state import latest_rows
from holdfast.ontology.format.chainstate import EMPTY, Ledger
from holdfast.ontology.format.data.intents import Identity, Row
from holdfast.ontology.format.head import read_head
from holdfast.ontology.types.refs import TypeId


@dataclass(frozen=True, slots=True)
class Latest:
    """The live rows of a type, each with the commit that wrote it."""

    commit_id: int
    rows: Mapping[Identity, tuple[int, Row]]


async def read_ledger(store: Store, chain: Chain, known: Ledger = EMPTY) -> Ledger:
    """What the chain says at the head of now."""
    return await chain.ledger((await read_head(store)).place, known)


async def read_latest(
    store: Store,
    chain: Chain,
    ledger: Ledger,
    type_id: TypeId,
    seen: Callable[[pa.Table], pa.Table] | None = None,
    *,
    fence: RedactionFence | None = None,
) -> Latest:
    """``seen`` may give another table for that of a file, such as one with upgraded rows.

    ``fence`` is that of the head, where the ledger is of an earlier commit. ``Overtaken`` if payload was destroyed
    meanwhile: pin the head anew.
    """
    known = fence if fence is not None else await fence_of(store, chain, ledger)

    async def read(found: Resolved) -> Mapping[Identity, tuple[int, Row]]:
        return await latest_rows(
            store, found.files(), newest=ledger.commit_id, fence=known, generation=found.generation, seen=seen
        )

    rows = await with_files(store, chain, ledger, type_id, read, known)
    live = {identity: found for identity, found in rows.items() if not found[1].retracted}
    return Latest(ledger.commit_id, live)


async def read_at(store: Store, chain: Chain, now: Ledger, type_id: TypeId, commit_id: int) -> Latest:
    """The same as of an earlier commit, as the ledger of now knows it: what was purged since is gone."""
    if commit_id >= now.commit_id:
        return await read_latest(store, chain, now, type_id)
    if commit_id == 0 or now.purged(type_id, commit_id):
        return Latest(commit_id, {})
    fence = await fence_of(store, chain, now)
    then = await chain.ledger(await chain.at(now.place, commit_id))
    return await read_latest(store, chain, then, type_id, fence=fence)
