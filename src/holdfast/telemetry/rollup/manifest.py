"""Which batches a unit of derived data was made from, what it has, and which units make up an hour now.

A **unit** is a kind, an hour, one bucket of agents, the exact set of input batches and the version of the derivation.
Its id is the hash of all that, and every name under it follows from the id: deriving it again creates objects that
exist already. A unit whose manifest exists is done.

A **generation** lists the units that are current; it is created under the next number and never changed, so an hour has
one line of history. A generation may **close** its hour: the raw bytes that it was made from may be removed from then
on. A closed hour is never derived again. Its generation says which sequence numbers it has counted; these count in no
other hour, and a batch that is found later counts nowhere in this one.

Errors: ``Corrupt`` for a document that cannot be read or is under the key of another one; ``Incompatible`` for another
version of the format, with the command that derives the hour again.
"""

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from pydantic import BeforeValidator, Field, PlainSerializer

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible, Invalid, check
from holdfast.base.record import UNLESS_EMPTY, Record
from holdfast.objects.store import Object, Store
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.matchers import LabelValues

UNIT_SCHEMA = "holdfast.derived_unit.v3"
GENERATION_SCHEMA = "holdfast.derived_generation.v3"

R = TypeVar("R", bound=Record)
Ranges = tuple[tuple[int, int], ...]
"""Inclusive ranges of sequence numbers, in order."""


def _hour_of(name: Any) -> int:
    hour = layout.hour_in(f"{name}/")
    if hour is None:
        raise ValueError(f"{name!r} is not an hour")
    return hour


def _numbers_of(documents: Any) -> dict[tuple[str, str], Any]:
    return {(str(each["agent"]), str(each["boot"])): each["ranges"] for each in documents}


def _numbers_document(numbers: Mapping[tuple[str, str], Ranges]) -> list[Document]:
    return [{"agent": agent, "boot": boot, "ranges": ranges} for (agent, boot), ranges in sorted(numbers.items())]


Hour = Annotated[int, BeforeValidator(_hour_of), PlainSerializer(lambda hour: layout.hour_path(hour).rstrip("/"))]
Window = Annotated[int, BeforeValidator(layout.window_of), PlainSerializer(layout.window_name)]
Numbers = Annotated[Mapping[tuple[str, str], Ranges], BeforeValidator(_numbers_of), PlainSerializer(_numbers_document)]
"""Sequence numbers by agent and boot."""
Count = Annotated[int, Field(ge=0)]


class Kind(StrEnum):
    ROLLUP = "rollup"
    """An hour: windows up to an hour, series, labels and words of logs, from one pass over its batches."""
    DAILY = "daily"
    """Windows above an hour, from the rows of hours; it is stored in the first hour of its day. Its inputs are units.
    """


class Table(StrEnum):
    """What the rows of a chunk are."""

    ROLLUP = "rollup"
    SERIES = "series"
    WORDS = "words"


class Input(NamedTuple):
    """A batch by manifest id and the hash of its frame; a unit by its id, twice: a unit's id is its hash."""

    id: str
    sha256: str


@dataclass(frozen=True)
class Unit(Record):
    WHAT: ClassVar[str] = "a unit"

    kind: Kind
    hour: Hour
    buckets: int
    """A power of two; the agents of the hour are divided among them."""
    bucket: int
    inputs: tuple[Input, ...]
    """In order, each once."""
    version: str
    """Of the derivation, with the settings that change its rows."""
    epoch: Annotated[int, UNLESS_EMPTY] = 0
    """The number of the last generation that was a fence when the unit was planned; see ``Generation``."""
    closed: Annotated[tuple[Hour, ...], UNLESS_EMPTY] = ()
    """Other hours that are closed and in which batches that share numbers with its inputs have records."""

    def __post_init__(self) -> None:
        if self.buckets < 1 or self.buckets & (self.buckets - 1) or not 0 <= self.bucket < self.buckets:
            raise Invalid(f"bucket {self.bucket} of {self.buckets}: the number of buckets is a power of two")
        object.__setattr__(self, "inputs", tuple(sorted(set(self.inputs))))
        if len({each.id for each in self.inputs}) != len(self.inputs):
            raise Invalid(f"a unit of hour {layout.hour_path(self.hour)} names one input with two hashes")

    @cached_property
    def id(self) -> str:
        return hashlib.sha256(codec.encode(self.document())).hexdigest()

    @property
    def key(self) -> str:
        return layout.unit_key(self.hour, self.id)

    def chunk_id(self, table: Table, metric: str = "", window_ns: int = 0, part: str = "") -> str:
        """A function of window, metric and input set (correction 14); samples and histograms are parts of one."""
        names = {"unit": self.id, "table": table, "metric": metric, "window_ns": window_ns, "part": part}
        return hashlib.sha256(codec.encode(names)).hexdigest()


def bucket_of(agent: str, buckets: int) -> int:
    """The bucket of an agent. Doubling the number of buckets splits each one in two."""
    return slot_of(agent) % buckets


def slot_of(agent: str) -> int:
    """The number from which the bucket of an agent follows, whatever the number of buckets."""
    return int.from_bytes(hashlib.sha256(agent.encode()).digest()[:4], "little")


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """A chunk, as described by its unit and its generation."""

    table: Table
    key: str
    rows: Count
    size: Annotated[Count, Field(alias="bytes")]
    crc32: int
    """Of its bytes. An engine that reads them in place does not notice a flipped bit by itself."""
    metric: Annotated[str, UNLESS_EMPTY] = ""
    """Of a rollup, as are ``window_ns`` and ``labels``."""
    window_ns: Annotated[Window, Field(alias="window", exclude_if=lambda window_ns: not window_ns)] = 0
    labels: Annotated[LabelValues | None, UNLESS_EMPTY] = None
    """The values of the labels of its series (``rollup.matchers``). None if they are not listed."""

    def check(self, body: bytes) -> None:
        """``Corrupt`` unless these are its bytes."""
        if len(body) != self.size or zlib.crc32(body) != self.crc32:
            raise Corrupt(f"{self.key}: its bytes are not those that were written", remedy=derive_again(self.key))


@dataclass(frozen=True)
class UnitManifest(Record):
    WHAT: ClassVar[str] = "the manifest of a unit"

    unit: Unit
    chunks: tuple[ChunkRef, ...] = ()
    records: Count = 0
    """Records of the hour that were counted, each once."""
    repeated: Count = 0
    """Records that were left out because another batch or another hour has counted their numbers."""
    doubtful: Count = 0
    """Those of them that differ from the record that was counted."""
    unreadable: tuple[str, ...] = ()
    """Inputs that could not be read, by id; nothing of theirs is in the chunks."""
    numbers: Numbers = field(default_factory=dict)
    """Sequence numbers of the records that were counted."""

    @property
    def key(self) -> str:
        return self.unit.key

    def encode(self) -> bytes:
        return codec.encode(self.document(schema=UNIT_SCHEMA, unit_id=self.unit.id))

    @classmethod
    def read(cls, found: Object) -> "UnitManifest":
        manifest = _read(cls, found, UNIT_SCHEMA)
        check(manifest.key == found.key, f"{found.key}: the manifest in it is that of unit {manifest.unit.id}")
        return manifest


@dataclass(frozen=True, slots=True)
class UnitRef:
    """A unit as a generation lists it. Its inputs are in the unit's own manifest; its id is their hash."""

    unit_id: str
    bucket: int
    chunks: tuple[ChunkRef, ...] = ()
    unreadable: tuple[str, ...] = ()
    """Inputs that could not be read."""
    epoch: Annotated[int, UNLESS_EMPTY] = 0

    @classmethod
    def of_manifest(cls, manifest: UnitManifest) -> "UnitRef":
        unit = manifest.unit
        return cls(unit.id, unit.bucket, manifest.chunks, manifest.unreadable, unit.epoch)


@dataclass(frozen=True)
class Generation(Record):
    """The units that make up an hour. A bucket has at most one unit; a bucket without one has no batches.

    A **fence** is a generation that changes nothing but its ``epoch``, which is its own number. A plan from before it
    can no longer be published, because its number is taken; a plan from after it gives new units that epoch, and so
    other names. So an object from before the fence that the fence does not name is never named again.
    """

    WHAT: ClassVar[str] = "a generation"

    kind: Kind
    hour: Hour
    number: Annotated[Count, Field(alias="generation")]
    buckets: int
    version: str
    units: tuple[UnitRef, ...]
    """In the order of buckets."""
    listings: tuple[str, ...] = ()
    """Ids of the listings whose batches are all among the inputs, in order: a reader that finds no others in the hour
    need not read any of them."""
    epoch: Annotated[int, UNLESS_EMPTY] = 0
    """The number of the last fence up to here."""
    expired: Annotated[tuple[str, ...], UNLESS_EMPTY] = ()
    """Windows whose chunks expired."""
    write_id: Annotated[str | None, UNLESS_EMPTY] = None
    """Of a fence: two processes that fence at the same time must not mistake the other's fence for their own."""
    counted: Annotated[Numbers | None, Field(exclude_if=lambda counted: counted is None)] = None
    """Of a closed hour, the sequence numbers that it has counted; None while the hour is open."""

    def __post_init__(self) -> None:
        buckets = [unit.bucket for unit in self.units]
        if buckets != sorted(set(buckets)) or any(not 0 <= bucket < self.buckets for bucket in buckets):
            raise Invalid(f"generation {self.number}: its units are not in order of buckets, each bucket once")

    @property
    def key(self) -> str:
        return layout.generation_key(self.hour, self.kind, self.number)

    @property
    def is_closed(self) -> bool:
        return self.counted is not None

    def unit(self, bucket: int) -> UnitRef | None:
        return next((each for each in self.units if each.bucket == bucket), None)

    def covers(self, bucket: int, inputs: Iterable[Input], closed: Iterable[int] = ()) -> bool:
        """Whether the bucket's unit was made from exactly these inputs, with these hours closed; of no inputs, whether
        there is no unit.
        """
        current, wanted = self.unit(bucket), tuple(inputs)
        if current is None or not wanted:
            return current is None and not wanted
        place = (self.kind, self.hour, self.buckets, bucket)
        return Unit(*place, wanted, self.version, current.epoch, tuple(sorted(closed))).id == current.unit_id

    def without_expired(self, unit: UnitRef) -> UnitRef:
        """A unit without the chunks of windows that have expired in this hour."""
        expired = {layout.window_of(name) for name in self.expired}
        return replace(unit, chunks=tuple(ref for ref in unit.chunks if ref.window_ns not in expired))

    def fence(self, write_id: str) -> "Generation":
        """The next generation, with the same units: no plan from before it can be published."""
        return replace(self, number=self.number + 1, epoch=self.number + 1, write_id=write_id)

    def close(self, write_id: str, counted: Numbers) -> "Generation":
        """The next generation, with the same units, after which the hour is never derived again."""
        return replace(self.fence(write_id), counted=counted)

    def encode(self) -> bytes:
        return codec.encode(self.document(schema=GENERATION_SCHEMA))

    @classmethod
    def read(cls, found: Object) -> "Generation":
        generation = _read(cls, found, GENERATION_SCHEMA)
        check(generation.key == found.key, f"{found.key}: the generation in it is that of {generation.key}")
        return generation


def _read(kind: type[R], found: Object, schema: str) -> R:
    document = codec.decode(found.body, key=found.key)
    if document.get("schema") != schema:
        raise Incompatible(
            f"{found.key}: schema {document.get('schema')!r} is not {schema!r}", remedy=derive_again(found.key)
        )
    try:
        return kind.parse(document, key=found.key)
    except Invalid as error:
        raise Corrupt(f"{found.key}: not {kind.WHAT} ({error})") from error


def derive_again(key: str) -> str:
    """The remedy for a derived object that cannot be used."""
    hour = layout.hour_in(key)
    if hour is None:
        return "restore it from a backup, or derive its hour again: docs/operate/pipeline.md says how"
    return (
        f"restore it from a backup; or delete everything below {layout.manifest_folder(hour)}, then run: holdfast "
        f"pipeline run derive --since {layout.hour_name(hour)}Z --until {layout.hour_name(hour + 1)}Z"
    )


def current_generations(keys: Iterable[str], kind: Kind) -> dict[int, str]:
    """From a listing of manifests: the key of the current generation of each hour. Foreign keys are left out."""
    newest: dict[int, tuple[int, str]] = {}
    for key in keys:
        found, hour = layout.generation_in(key), layout.hour_in(key)
        if found is None or hour is None or found[0] != kind:
            continue
        if key == layout.generation_key(hour, kind, found[1]) and found[1] > newest.get(hour, (0, ""))[0]:
            newest[hour] = (found[1], key)
    return {hour: key for hour, (_, key) in sorted(newest.items())}


async def read_generation(store: Store, kind: Kind, hour: int) -> Generation | None:
    """The current generation of an hour."""
    folder = layout.manifest_folder(hour)
    keys: list[str] = []
    async for key in store.keys(folder, after=f"{folder}{kind}-"):
        if not key.startswith(f"{folder}{kind}-"):
            break
        keys.append(key)
    newest = current_generations(keys, kind).get(hour)
    return None if newest is None else Generation.read(await store.get(newest))


def ranges_of(numbers: "np.ndarray[Any, np.dtype[np.int64]]") -> Ranges:
    """Numbers as inclusive ranges, in order."""
    ordered = np.sort(numbers, kind="stable")  # they are almost in order, which np.unique does not make use of
    if not len(ordered):
        return ()
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    firsts = ordered[np.concatenate([[0], breaks + 1])]
    lasts = ordered[np.concatenate([breaks, [len(ordered) - 1]])]
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))
