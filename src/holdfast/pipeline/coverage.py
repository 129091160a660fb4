"""Which sequence numbers are known, kept in the store: a register per shard of agents.

The rule: a batch is covered before it is listed, so of two batches that overlap, in whatever runs they are found, the
second to be covered finds the first. A driver that is answered ``again`` lists the manifests around it and so finds the
other, which was accepted before it was covered.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.aio import map_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible
from holdfast.base.ids import Ambient
from holdfast.objects.register import Register
from holdfast.objects.store import Store
from holdfast.pipeline import layout
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.accept.reconcile import Coverage, neighbours_after, overlapping
from holdfast.telemetry.identity import BatchIdentity

FORMAT = "holdfast.pipeline.coverage"
AT_ONCE = 16


class _Shape:
    def read(self, document: Document, key: str) -> Document:
        codec.expect(document, format_name=FORMAT, newest=1, key=key)
        return {"sources": document.get("sources", {})}

    def write(self, value: Document, previous: Document | None) -> Document:
        return {**(previous or {}), "format": FORMAT, "version": 1, **value}


@dataclass(frozen=True, slots=True)
class Again:
    """A batch whose numbers were known, in part or wholly."""

    identity: BatchIdentity
    longest: int


@dataclass(frozen=True, slots=True)
class Covered:
    again: list[Again]
    """Those that were covered before: because they overlap others, or were covered already."""
    failed: dict[BatchIdentity, str]
    """Those that could not be, because what is known of their shard cannot be read; and what it says."""


async def cover(store: Store, ambient: Ambient, identities: Iterable[BatchIdentity], operation_id: str) -> Covered:
    """Cover these batches."""
    shards: dict[int, list[BatchIdentity]] = defaultdict(list)
    for identity in identities:
        shards[layout.shard_of(identity.agent_id)].append(identity)

    failed: dict[BatchIdentity, str] = {}

    async def one(shard: int) -> list[Again]:
        key = layout.coverage_key(shard)
        register: Register[Document] = Register(store, key, _Shape(), ambient)
        again: set[BatchIdentity] = set()
        longest: dict[BatchIdentity, int] = {}

        def change(value: Document | None) -> Document:
            nonlocal again
            coverage = Coverage.of(value, key)
            again = coverage.add_all(shards[shard])
            longest.update({each: coverage.longest(each) for each in shards[shard]})
            return coverage.document()

        try:
            edited = await register.edit(operation_id, change)
        except (Corrupt, Incompatible) as error:
            failed.update(dict.fromkeys(shards[shard], str(error)))
            return []
        if edited.replayed:  # an earlier try did it, and its answer is unknown
            coverage = Coverage.of(edited.value, key)
            again = set(shards[shard])
            longest.update({each: coverage.longest(each) for each in again})
        return [Again(each, longest[each]) for each in sorted(again)]

    parts = await map_bounded(sorted(shards), one, limit=AT_ONCE)
    return Covered([each for part in parts for each in part], failed)


async def overlaps(store: Store, found: Again) -> list[BatchIdentity]:
    """The accepted batches that share a number with this one."""
    identity = found.identity
    folder = f"{ingest.ACCEPTED}{ingest.boot_path(identity.agent_id, identity.boot_id)}"
    around: list[BatchIdentity] = []
    async for key in store.keys(folder, after=neighbours_after(identity, found.longest)):
        other = ingest.identity_in(key)
        if other is None or key != ingest.accepted_key(other):
            continue
        if other.seq_start > identity.seq_end:
            break
        around.append(other)
    return overlapping(identity, around)
