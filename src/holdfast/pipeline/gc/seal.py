"""Units that are sealed: what they count stays counted, though the bytes that it was counted from go.

The order is the rule. A unit is *whole* if its generation covers every listing that there is, no input was unreadable,
and every chunk has the bytes that were written. Its inputs share no numbers with other batches. They are *settled*
(``accept.settled``). Once more it is looked whether they share any: whatever comes after this look is planned by
somebody who sees that they are settled. Then the next generation is created, with these units marked as sealed, and as
a fence (see ``rollup.manifest``): plans that would have made them anew from their inputs can no longer be published,
and plans from then on leave them as they are. Only then may bytes of inputs go.

A unit for which any of that does not hold stays as it is, and so do the bytes of its inputs. If batches that share
numbers are found after one of them was settled, their hours are made due: they may have been derived in another order.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from holdfast.base import codec
from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Corrupt, Incompatible, Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, OVERWRITE, Lost, Store
from holdfast.pipeline import layout as own
from holdfast.pipeline.plan import read_generation
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.reconcile import Coverage, neighbours_after, overlapping, shares
from holdfast.telemetry.accept.record_times import TimeLimits
from holdfast.telemetry.accept.settled import Settled, find_settled, settle
from holdfast.telemetry.frame import Batch, FrameInvalid, Limits, decode
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.rollup import layout, listing
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import Current, Generation, Kind, UnitManifest
from holdfast.telemetry.rollup.taken import identity_of_row, ranges_of, seqs_of

READS = 16
KINDS = (Kind.ROLLUP, Kind.INDEX)
NOT_DERIVED = "one of its hours is not rolled up and indexed"
NOT_COVERED = "one of its hours has batches that are not rolled up yet"
DAMAGED = "a chunk of one of its hours is missing or damaged"
UNREADABLE = "it, or a batch that is counted with it, cannot be read"
SHARES = "it, or a batch that is counted with it, shares sequence numbers with another"
BROKEN = "what was derived of one of its hours cannot be read"
OVERTAKEN = "a driver published in the meantime"


@dataclass(frozen=True, slots=True)
class Sealed:
    """An hour some of whose units are sealed, or would be."""

    key: str
    """Of the generation."""
    inputs: frozenset[str] = frozenset()
    """Ids of the batches that they count."""
    left: dict[str, str] = field(default_factory=dict)
    """Ids of batches in other units, and why these are not sealed."""


@dataclass
class Seals:
    """Seals hours as they are asked for, each once."""

    store: Store
    ambient: Ambient
    apply: bool
    _known: dict[tuple[Kind, int], Sealed | str] = field(default_factory=dict)

    async def of(self, kind: Kind, hour: int) -> Sealed | str:
        """The seal of an hour, or why there is none."""
        if (kind, hour) not in self._known:
            try:
                self._known[kind, hour] = await self._seal(kind, hour)
            except (Corrupt, Incompatible):
                self._known[kind, hour] = BROKEN
        return self._known[kind, hour]

    async def _seal(self, kind: Kind, hour: int) -> Sealed | str:
        current = await read_generation(self.store, kind, hour)
        if current is None:
            return NOT_DERIVED
        keys = await listing.listings(self.store, hour)
        if set(listing.ids(keys)) - set(current.listings):
            return NOT_COVERED
        rows = {row.manifest_id: row for row in await listing.read(self.store, keys)}
        inputs: set[str] = set()
        left: dict[str, str] = {}
        fit: list[str] = []
        for unit in current.units:
            found = await self.store.find(layout.unit_key(hour, unit.unit_id))
            own_inputs = [] if found is None else [each.id for each in UnitManifest.read(found).unit.inputs]
            why = None if unit.sealed else await self._unfit(unit, own_inputs, rows, there=found is not None)
            if why is None:
                inputs |= set(own_inputs) - set(unit.unreadable)
                fit += [] if unit.sealed else [unit.unit_id]
            else:
                left |= dict.fromkeys(own_inputs, why)
        if not fit:
            return Sealed(current.key, frozenset(inputs), left)
        return await self._publish(current, fit, Sealed("", frozenset(inputs), left))

    async def _publish(self, current: Generation, fit: Sequence[str], seal: Sealed) -> Sealed | str:
        units = [replace(unit, sealed=True) if unit.unit_id in fit else unit for unit in current.units]
        in_order = tuple(sorted(units, key=lambda unit: (unit.bucket, not unit.sealed)))
        made = replace(current.fence(self.ambient.ids.write_id()), units=in_order)
        if self.apply and isinstance(await self.store.put(made.key, made.encode(), CREATE), Lost):
            return OVERTAKEN
        if self.apply and made.kind is Kind.ROLLUP and len(made.units) > 1:
            # Sealed units can be put together where they could not before.
            ident = hashlib.sha256(made.key.encode()).hexdigest()
            body = codec.encode({"kind": own.MERGE, "write_id": self.ambient.ids.write_id()})
            await self.store.put(own.due_key(own.MERGE, made.hour, ident), body, CREATE)
        return replace(seal, key=made.key)

    async def _unfit(self, unit: Current, inputs: Sequence[str], rows: dict[str, Listed], *, there: bool) -> str | None:
        """Why a unit cannot be sealed; None if it can."""
        if unit.unreadable or any(ident not in rows for ident in inputs):
            return UNREADABLE
        if not there or not await _is_whole(self.store, unit):
            return DAMAGED
        batches = [rows[ident] for ident in inputs]
        sharing = await sharing_numbers(self.store, map(identity_of_row, batches))
        if not sharing and self.apply:
            if not all(await map_bounded(batches, self._settle, limit=READS)):
                return UNREADABLE
            sharing = await sharing_numbers(self.store, map(identity_of_row, batches))
        if sharing:
            await self._make_due(sharing)
            return SHARES
        return None

    async def _settle(self, row: Listed) -> bool:
        """Whether the batch is settled now. It is read for that, once in its life."""
        if await find_settled(self.store, identity_of_row(row)) is not None:
            return True
        try:
            body = (await self.store.get(row.blob_key)).body
            batch = await blocking(decoded, body, row.frame_sha256)
        except (NotFound, FrameInvalid, Corrupt, Invalid):
            return False
        await settle(self.store, settled_of(row, batch))
        return True

    async def _make_due(self, sharing: dict[BatchIdentity, list[BatchIdentity]]) -> None:
        """Have hours derived again in which a settled batch and another may have been put in the wrong order."""
        if not self.apply:
            return
        for identity, others in sharing.items():
            if await find_settled(self.store, identity) is not None:
                for each in (identity, *others):
                    await self._mark(each)

    async def _mark(self, identity: BatchIdentity) -> None:
        stored = await self.store.find(ingest.accepted_key(identity))
        manifest = None if stored is None else AcceptedManifest.read(stored)
        blob = None if manifest is None else await self.store.find(manifest.raw_blob_key)
        if manifest is None or blob is None:
            return
        batch = await blocking(decoded, blob.body, manifest.frame_sha256)
        for share in shares(batch, manifest.limits)[0]:
            for kind in KINDS:
                body = codec.encode({"kind": str(kind), "write_id": self.ambient.ids.write_id()})
                await self.store.put(own.due_key(kind, share.hour, identity.manifest_id), body, OVERWRITE)


def settled_of(row: Listed, batch: Batch) -> Settled:
    ranges = ranges_of(seqs_of(batch))
    hours = tuple(share.hour for share in shares(batch, TimeLimits.by_default(row.accepted_at_ns))[0])
    whole = ranges == ((row.seq_start, row.seq_end),)
    return Settled(identity_of_row(row), row.frame_sha256, hours, None if whole else ranges)


def decoded(body: bytes, sha256: str) -> Batch:
    if hashlib.sha256(body).hexdigest() != sha256:
        raise Corrupt("the bytes are not those that were accepted")
    return decode(body, Limits(frame_bytes=max(1, len(body))))


async def sharing_numbers(
    store: Store, identities: Iterable[BatchIdentity]
) -> dict[BatchIdentity, list[BatchIdentity]]:
    """Those that share a number with another accepted batch, with the others. One LIST for each agent and boot."""
    boots: dict[tuple[str, str], list[BatchIdentity]] = defaultdict(list)
    for identity in identities:
        boots[identity.agent_id, identity.boot_id].append(identity)
    found: dict[BatchIdentity, list[BatchIdentity]] = {}
    for group in boots.values():
        around = await _around(store, sorted(group))
        for identity in group:
            if others := overlapping(identity, around):
                found[identity] = others
    return found


async def _around(store: Store, group: list[BatchIdentity]) -> list[BatchIdentity]:
    """Accepted batches near these. A batch that nobody has covered yet was planned by nobody yet."""
    key = layout.coverage_key(group[0].agent_id)
    stored = await store.find(key)
    longest = 0 if stored is None else Coverage.of(codec.decode(stored.body, key=key), key).longest(group[0])
    last = max(identity.seq_end for identity in group)
    folder = f"{ingest.ACCEPTED}{ingest.boot_path(group[0].agent_id, group[0].boot_id)}"
    found: list[BatchIdentity] = []
    async for name in store.keys(folder, after=neighbours_after(group[0], longest)):
        other = ingest.identity_in(name)
        if other is not None and other.seq_start > last:
            break
        if other is not None:
            found.append(other)
    return found


async def _is_whole(store: Store, unit: Current) -> bool:
    """Whether every chunk has the bytes that were written. Reads them all, once in the life of an hour."""

    async def sound(number: int) -> bool:
        try:
            unit.chunks[number].check((await store.get(unit.chunks[number].key)).body)
        except (NotFound, Corrupt):
            return False
        return True

    return all(await map_bounded(range(len(unit.chunks)), sound, limit=READS))
