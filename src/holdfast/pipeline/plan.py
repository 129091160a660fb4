"""Which units make up an hour, given the batches that are listed in it. Reads alone.

The rule: the current generation is read first, then the listings. A generation was made from listings that were there
before it, and listings are never deleted, so the inputs planned here contain those of the generation that was read. The
plan is published as the next number after it, or not at all: inputs only grow.

A sealed unit stays as it is. What came later becomes a unit over it, which leaves out the numbers that are settled
(``telemetry.rollup.taken``).
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import groupby, islice

from holdfast.base.aio import blocking
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Invalid
from holdfast.objects.store import Store
from holdfast.telemetry.frame import FrameInvalid, decode
from holdfast.telemetry.rollup import derive, layout, listing, manifest
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import Current, Generation, Input, Kind, Table, Unit, bucket_of
from holdfast.telemetry.rollup.taken import Order, order_of, sealed_inputs
from holdfast.telemetry.rollup.windows import Windows

DAY_HOURS = 24
RECORDS_AT_ONCE = 200_000
"""A task decodes so many records at a time, or one agent's."""


@dataclass(frozen=True, slots=True)
class Work:
    """One unit to be made, with where its inputs are: bytes of batches, or chunks of hours."""

    unit: Unit
    sources: tuple[tuple[str, str], ...]
    """Id and key of each input; of a day, unit id and key of each chunk."""
    weight: int
    taken: tuple[Listed, ...] = ()
    """Batches whose numbers are counted already, in a sealed unit."""
    shares: tuple[int, ...] = ()
    """How many sources, one after the other, are worked on at a time; all at once if it does not say."""

    def in_shares(self) -> Iterator[tuple[tuple[str, str], ...]]:
        left = iter(self.sources)
        for share in self.shares or (len(self.sources),):
            yield tuple(islice(left, share))

    def document(self) -> Document:
        found = {"unit": self.unit.document(), "sources": [list(each) for each in self.sources], "weight": self.weight}
        if self.shares:
            found["shares"] = list(self.shares)
        return {**found, "taken": [list(astuple(row)) for row in self.taken]} if self.taken else found

    @classmethod
    def of(cls, document: Document) -> "Work":
        sources = tuple((ident, key) for ident, key in document["sources"])
        taken = tuple(Listed(*row) for row in document.get("taken", ()))
        return cls(Unit.of(document["unit"]), sources, document["weight"], taken, tuple(document.get("shares", ())))

    @classmethod
    def of_batches(cls, unit: Unit, rows: Iterable[Listed], taken: Iterable[Listed] = ()) -> "Work":
        """A series belongs to one agent: rows of whole agents are a share that needs no other."""
        by_agent = sorted(rows, key=lambda row: (row.agent, row.manifest_id))
        sources = tuple((row.manifest_id, row.blob_key) for row in by_agent)
        shares = _shares(by_agent) if unit.kind is Kind.ROLLUP else ()
        return cls(unit, sources, sum(row.records + 1 for row in by_agent), tuple(taken), shares)


@dataclass(slots=True)
class HourPlan:
    kind: Kind
    hour: int
    base: int
    """The number of the generation that was read; 0 if there is none."""
    buckets: int
    version: str
    units: list[str] = field(default_factory=list)
    """Ids of all units that make up the hour besides the sealed ones, by bucket."""
    work: list[Work] = field(default_factory=list)
    """Those that the generation read does not have."""
    listings: list[str] = field(default_factory=list)
    """Ids of what was read."""
    changed: bool = False
    epoch: int = 0
    """Of the generation that was read: new units have it in their names."""

    def document(self) -> Document:
        return {
            "kind": str(self.kind),
            "hour": self.hour,
            "base": self.base,
            "buckets": self.buckets,
            "version": self.version,
            "units": self.units,
            "listings": self.listings,
            "changed": self.changed,
            "epoch": self.epoch,
        }

    @classmethod
    def of(cls, document: Document) -> "HourPlan":
        return cls(
            Kind(document["kind"]),
            document["hour"],
            document["base"],
            document["buckets"],
            document["version"],
            list(document["units"]),
            listings=list(document["listings"]),
            changed=document["changed"],
            epoch=document.get("epoch", 0),
        )


def version_of(kind: Kind, windows: Windows) -> str:
    match kind:
        case Kind.ROLLUP:
            return derive.rollup_version(windows)
        case Kind.DAILY:
            return derive.daily_version(windows)
        case _:
            return derive.index_version()


async def read_generation(store: Store, kind: Kind, hour: int) -> Generation | None:
    """The current generation of an hour."""
    folder = layout.manifest_folder(hour)
    keys: list[str] = []
    async for key in store.keys(folder, after=f"{folder}{kind}-"):
        if not key.startswith(f"{folder}{kind}-"):
            break
        keys.append(key)
    newest = manifest.current(keys, kind).get(hour)
    return None if newest is None else Generation.read(await store.get(newest))


async def plan_hour(store: Store, kind: Kind, hour: int, windows: Windows, records_per_unit: int) -> HourPlan:
    current = await read_generation(store, kind, hour)
    keys = await listing.listings(store, hour)
    rows = await listing.read(store, keys)
    order = await order_of(store, rows, await sealed_inputs(store, current))
    plan = _empty(kind, hour, current, divided(rows, records_per_unit, current), version_of(kind, windows))
    plan.listings = sorted(listing.ids(keys))
    if current is not None and current.buckets < plan.buckets:
        # What was put together stays so until there is something to be made.
        as_it_is = await _divided(store, replace(plan, buckets=current.buckets), current, rows, order)
        if not as_it_is.work:
            return as_it_is
    return await _divided(store, plan, current, rows, order)


async def _divided(
    store: Store, empty: HourPlan, current: Generation | None, rows: Sequence[Listed], order: Order
) -> HourPlan:
    """The plan, with the units of every bucket."""
    plan = replace(empty, units=[], work=[])
    kind, hour, buckets = plan.kind, plan.hour, plan.buckets
    parts: dict[int, list[Listed]] = defaultdict(list)
    for row in rows:
        parts[bucket_of(row.agent, buckets)].append(row)
    for bucket, every in sorted(parts.items()):
        own = order.own(every)
        if not own:
            continue
        beneath = () if current is None else tuple(each.unit_id for each in current.sealed(bucket))
        over = (*beneath, *order.over(every))
        inputs = tuple(row.input for row in own)
        unit = _named(current, Unit(kind, hour, buckets, bucket, inputs, plan.version, plan.epoch, over))
        if await _is_back(store, unit, current, own):
            unit = replace(unit, epoch=plan.base + 1)  # the same inputs, made again under a name that nobody has
        _enter(plan, Work.of_batches(unit, own, order.taken(every, own)), current)
    return _settled(plan, current)


async def plan_day(store: Store, hour: int, windows: Windows) -> HourPlan:
    """The day that begins with this hour, from the current generations of its hours."""
    current = await read_generation(store, Kind.DAILY, hour)
    found = [await read_generation(store, Kind.ROLLUP, each) for each in range(hour, hour + DAY_HOURS)]
    hours = [each for each in found if each is not None and each.units]
    buckets = min((each.buckets for each in hours), default=1)
    inputs: dict[int, list[Current]] = defaultdict(list)
    for generation in hours:
        for each in generation.units:
            inputs[each.bucket & (buckets - 1)].append(each)
    plan = _empty(Kind.DAILY, hour, current, buckets, version_of(Kind.DAILY, windows))
    plan.listings = sorted({ident for each in found if each is not None for ident in each.listings})
    largest = windows.hourly[-1]
    for bucket, own in sorted(inputs.items()):
        inputs_ = tuple(Input(each.unit_id, each.unit_id) for each in own)
        unit = _named(current, Unit(Kind.DAILY, hour, buckets, bucket, inputs_, plan.version, plan.epoch))
        chunks = [
            (each.unit_id, ref.key, ref.rows)
            for each in own
            for ref in each.chunks
            if ref.table is Table.ROLLUP and ref.window_ns == largest
        ]
        sources = tuple((ident, key) for ident, key, _ in chunks)
        _enter(plan, Work(unit, sources, 1 + sum(count for *_, count in chunks)), current)
    return _settled(plan, current)


def divided(rows: Sequence[Listed], records_per_unit: int, current: Generation | None) -> int:
    """Into how many buckets; never fewer than there were."""
    total = sum(row.records for row in rows)
    buckets = current.buckets if current is not None else 1
    if current is not None and any(unit.sealed for unit in current.units):
        return buckets  # which the sealed units have for ever
    agents = len({row.agent for row in rows})
    while buckets < agents and total > buckets * records_per_unit:
        buckets *= 2
    return buckets


def _shares(by_agent: Iterable[Listed]) -> tuple[int, ...]:
    shares: list[int] = []
    room = 0
    for _, found in groupby(by_agent, key=lambda row: row.agent):
        own = list(found)
        records = sum(row.records for row in own)
        if not shares or records > room:
            shares.append(0)
            room = RECORDS_AT_ONCE
        shares[-1] += len(own)
        room -= records
    return tuple(shares)


def payload_of(work: Iterable[Work], windows: Windows, limits: Sequence[int]) -> bytes:
    """What a task is told."""
    document = {"work": [each.document() for each in work], "windows": windows.names, "limits": list(limits)}
    return json.dumps(document).encode()


def _empty(kind: Kind, hour: int, current: Generation | None, buckets: int, version: str) -> HourPlan:
    number, epoch = (0, 0) if current is None else (current.number, current.epoch)
    return HourPlan(kind, hour, number, buckets, version, epoch=epoch)


def _named(current: Generation | None, unit: Unit) -> Unit:
    """The unit, or the same under the name that it has already: of an earlier epoch, and current."""
    known = None if current is None else current.unit(unit.bucket)
    if known is not None and known.epoch != unit.epoch:
        before = replace(unit, epoch=known.epoch)
        return before if before.id == known.unit_id else unit
    return unit


async def _is_back(store: Store, unit: Unit, current: Generation | None, rows: Iterable[Listed]) -> bool:
    """Whether the unit is current and was made without a batch that can be read now."""
    known = None if current is None else current.unit(unit.bucket)
    if known is None or known.unit_id != unit.id or not known.unreadable:
        return False
    for row in rows:
        if row.manifest_id in known.unreadable and await _is_readable(store, row):
            return True
    return False


async def _is_readable(store: Store, row: Listed) -> bool:
    found = await store.find(row.blob_key)
    if found is None or hashlib.sha256(found.body).hexdigest() != row.frame_sha256:
        return False
    try:
        await blocking(decode, found.body)
    except (FrameInvalid, Invalid, Corrupt):
        return False
    return True


def _enter(plan: HourPlan, work: Work, current: Generation | None) -> None:
    plan.units.append(work.unit.id)
    known = None if current is None else current.unit(work.unit.bucket)
    if known is None or known.unit_id != work.unit.id:
        plan.work.append(work)


def _settled(plan: HourPlan, current: Generation | None) -> HourPlan:
    before = [] if current is None else [each.unit_id for each in current.units if not each.sealed]
    covered = set(current.listings) if current is not None else set()
    plan.changed = plan.units != before or not covered.issuperset(plan.listings)
    return plan
