"""Units put together: fewer buckets of an hour, or several sealed units of a bucket as one. Pure.

A series belongs to one agent, and an agent to one bucket. So the rows of an hour in fewer buckets are those that it
has, in fewer chunks: a unit that is put together from units of finer buckets has the name, the inputs and the rows of
the unit that the same batches give in the coarser one, and whoever derives it from them makes the same bytes.

Sealed units cannot be derived any more, and a bucket may have several of them, each over the others. What is put
together from these has their rows as one per series and window, and their ids in its name (``Unit.parts``): its rows
follow from theirs, and not from its batches alone.

An open unit over sealed ones stays as it is until it is sealed too: its name tells what it lies on.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from holdfast.base.errors import check
from holdfast.telemetry.rollup import rollup
from holdfast.telemetry.rollup.derive import Chunk, chunks_of
from holdfast.telemetry.rollup.manifest import ChunkRef, Current, Generation, Kind, Table, Unit, UnitManifest
from holdfast.telemetry.rollup.rollup import Rows

MOST_BYTES = 8 << 20
"""Of a chunk that is put together: larger ones gain nothing from it, and a task holds one decoded."""
PARTS = ("samples", "histograms")


@dataclass(frozen=True, slots=True)
class Division:
    """Into how many buckets an hour goes, and which of these are to be put together."""

    buckets: int
    groups: tuple[int, ...]

    def holds(self, bucket: int, unit: Current) -> bool:
        return unit.bucket & (self.buckets - 1) == bucket

    def members(self, bucket: int, units: Iterable[Current]) -> list[Current]:
        return [unit for unit in units if self.holds(bucket, unit)]


def division(generation: Generation, most_bytes: int = MOST_BYTES) -> Division | None:
    """What can be put together of an hour; None if nothing.

    An hour with inputs that could not be read is not finished. One that is sealed in part keeps its buckets: sealed and
    open units do not go together. An open one that has let windows go is left, for its batches would give them again.
    """
    units = generation.units
    if generation.kind is not Kind.ROLLUP or any(unit.unreadable for unit in units):
        return None
    sealed = {unit.sealed for unit in units}
    buckets = generation.buckets
    if sealed == {True} or (sealed == {False} and not generation.expired):
        buckets = fewest(generation, most_bytes)
    taken = sorted({unit.bucket for unit in units})
    fewer = sorted({bucket & (buckets - 1) for bucket in taken})
    if len(fewer) < len(taken):
        return Division(buckets, tuple(fewer))
    found = Division(generation.buckets, ())
    layers = {bucket: found.members(bucket, units) for bucket in taken}
    groups = [bucket for bucket, own in layers.items() if len(own) > 1 and all(unit.sealed for unit in own)]
    return Division(generation.buckets, tuple(groups)) if groups else None


def fewest(generation: Generation, most_bytes: int) -> int:
    """The fewest buckets in which no chunk that is put together is larger than that."""
    buckets = 1
    while buckets < generation.buckets:
        sizes: dict[tuple[int, str, int], list[int]] = defaultdict(list)
        for unit in generation.units:
            for ref in unit.chunks:
                sizes[unit.bucket & (buckets - 1), ref.metric, ref.window_ns].append(ref.bytes)
        if all(len(own) == 1 or sum(own) <= most_bytes for own in sizes.values()):
            break
        buckets *= 2
    return buckets


def together(generation: Generation, buckets: int, bucket: int, parts: Sequence[UnitManifest]) -> Unit | None:
    """The unit that these give; None if they were not derived in the same way, and so do not go together."""
    sealed = {current.unit_id: current.sealed for current in generation.units}
    own = [manifest.unit for manifest in parts]
    check(len({sealed[unit.id] for unit in own}) == 1, f"{generation.key}: sealed and open units do not go together")
    if len({unit.version for unit in own}) != 1:
        return None
    names = tuple(sorted(unit.id for unit in own)) if sealed[own[0].id] else ()
    over = tuple(sorted({each for unit in own for each in unit.over} - set(names)))
    inputs = tuple(each for unit in own for each in unit.inputs)
    version = own[0].version
    return Unit(generation.kind, generation.hour, buckets, bucket, inputs, version, generation.epoch, over, names)


@dataclass(frozen=True, slots=True)
class Joint:
    """Chunks that become one."""

    metric: str
    window_ns: int
    part: str
    refs: tuple[ChunkRef, ...]


def joints(current: Iterable[Current], parts: Sequence[UnitManifest]) -> Iterator[Joint]:
    """The chunks that are current, by what they become one of."""
    found: dict[tuple[str, int, str], list[ChunkRef]] = defaultdict(list)
    units = {manifest.unit.id: manifest.unit for manifest in parts}
    for each in current:
        for ref in each.chunks:
            if ref.table is Table.ROLLUP:
                found[ref.metric, ref.window_ns, _part(units[each.unit_id], ref)].append(ref)
    for (metric, window_ns, part), refs in sorted(found.items()):
        yield Joint(metric, window_ns, part, tuple(refs))


def _part(unit: Unit, ref: ChunkRef) -> str:
    """Whether a chunk has samples or histograms: its name tells."""
    named = [part for part in PARTS if unit.chunk_id(Table.ROLLUP, ref.metric, ref.window_ns, part) in ref.key]
    check(len(named) == 1, f"{ref.key}: not the name of a chunk of unit {unit.id}")
    return named[0]


def joined(unit: Unit, joint: Joint, rows: Sequence[Rows]) -> Chunk:
    """The chunk that these rows give."""
    made = list(chunks_of(unit, rollup.joined(rows, joint.window_ns)))
    check(len(made) == 1, f"chunks of {joint.metric!r} have rows of {len(made)} metrics")
    return made[0]


def manifest(unit: Unit, parts: Iterable[UnitManifest], chunks: Iterable[ChunkRef]) -> UnitManifest:
    """The record of what was put together: all that its parts have counted."""
    of = list(parts)
    refs = tuple(sorted(chunks, key=lambda ref: ref.key))
    return UnitManifest(
        unit,
        refs,
        sum(each.records for each in of),
        sum(each.repeated for each in of),
        sum(each.doubtful for each in of),
    )


def generation(base: Generation, found: Division, made: Iterable[UnitManifest]) -> Generation:
    """The next one, in which the units of each group are one."""
    names = {each.unit.bucket: each for each in made}
    units: list[Current] = []
    for bucket in range(found.buckets):
        own = found.members(bucket, base.units)
        if bucket not in names:
            units += own
            continue
        unit = Current.of_manifest(names[bucket])
        units.append(replace(unit, sealed=own[0].sealed))
    return replace(base, number=base.number + 1, buckets=found.buckets, units=tuple(units), write_id=None)
