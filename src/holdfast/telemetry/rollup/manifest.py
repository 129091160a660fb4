"""Which batches a unit of derived data was made from, what it gave, and which units make up an hour now.

A unit (see ``unit``) has a manifest once it is made. A **generation** lists the units that are current; it is created
under the next number and never changed, so that an hour has one line of history.

Errors: ``Corrupt`` for a document that cannot be read or stands under a key that is not its own; ``Incompatible`` for a
schema that this client does not know.
"""

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from holdfast.base import codec
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, check
from holdfast.objects.store import Object
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.labels import LabelValues
from holdfast.telemetry.rollup.unit import Input, Kind, Table, Unit, bucket_of, text, texts, whole

__all__ = [
    "MAKE_ANEW",
    "ChunkRef",
    "Current",
    "Generation",
    "Input",
    "Kind",
    "Table",
    "Unit",
    "UnitManifest",
    "bucket_of",
    "current",
]

MAKE_ANEW = "restore it from a backup, or have the hour derived anew: docs/operate/pipeline.md says how"
UNIT_SCHEMA = "holdfast.derived_unit.v1"
GENERATION_SCHEMA = "holdfast.derived_generation.v1"

T = TypeVar("T")
Body = bytes
"""Where a field is called ``bytes``."""


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """A chunk as its unit and its generation name it."""

    table: Table
    key: str
    rows: int
    bytes: int
    series: int
    """How many series it has rows of; of words, how many words."""
    metric: str = ""
    window_ns: int = 0
    labels: LabelValues | None = None
    """Of a rollup, which values the labels of its series have; see ``labels.py``. None if that is not known."""
    crc32: int | None = None
    """Of its bytes: an engine that reads them in place does not look whether a bit has flipped."""

    def check(self, body: Body) -> None:
        """``Corrupt`` unless these are its bytes."""
        if len(body) != self.bytes or (self.crc32 is not None and zlib.crc32(body) != self.crc32):
            raise Corrupt(f"{self.key}: its bytes are not those that were written", remedy=MAKE_ANEW)

    def document(self) -> Document:
        found: Document = {
            "table": str(self.table),
            "key": self.key,
            "rows": self.rows,
            "bytes": self.bytes,
            "series": self.series,
        }
        if self.table is Table.ROLLUP:
            found |= {"metric": self.metric, "window": layout.window_name(self.window_ns)}
        if self.labels is not None:
            found["labels"] = {name: None if values is None else list(values) for name, values in self.labels}
        if self.crc32 is not None:
            found["crc32"] = self.crc32
        return found

    @classmethod
    def of(cls, document: Document) -> "ChunkRef":
        table = Table(text(document, "table"))
        rolled = table is Table.ROLLUP
        return cls(
            table,
            text(document, "key"),
            whole(document, "rows"),
            whole(document, "bytes"),
            whole(document, "series"),
            text(document, "metric") if rolled else "",
            layout.window_of(text(document, "window")) if rolled else 0,
            _labels(document["labels"]) if "labels" in document else None,
            whole(document, "crc32") if "crc32" in document else None,
        )


@dataclass(frozen=True, slots=True)
class UnitManifest:
    """What one unit gave. A unit whose manifest exists is done."""

    unit: Unit
    chunks: tuple[ChunkRef, ...]
    records: int = 0
    """Records of the hour that were counted, each once."""
    repeated: int = 0
    """Records that another batch had given under the same number."""
    doubtful: int = 0
    """Those of them that were not the same."""
    unreadable: tuple[str, ...] = ()
    """Inputs that could not be read; nothing of theirs is in the chunks."""

    @property
    def key(self) -> str:
        return self.unit.key

    def document(self) -> Document:
        return {
            "schema": UNIT_SCHEMA,
            "unit_id": self.unit.id,
            "unit": self.unit.document(),
            "chunks": [each.document() for each in self.chunks],
            "records": self.records,
            "repeated": self.repeated,
            "doubtful": self.doubtful,
            "unreadable": list(self.unreadable),
        }

    def encode(self) -> bytes:
        return codec.encode(self.document())

    @classmethod
    def read(cls, found: Object) -> "UnitManifest":
        document = _document(found, UNIT_SCHEMA)

        def take() -> "UnitManifest":
            return cls(
                Unit.of(document["unit"]),
                tuple(ChunkRef.of(each) for each in document["chunks"]),
                whole(document, "records"),
                whole(document, "repeated"),
                whole(document, "doubtful"),
                tuple(texts(document["unreadable"])),
            )

        manifest = _taken(found.key, take)
        check(manifest.unit.id == document.get("unit_id"), f"{found.key}: the inputs in it do not give its unit's id")
        check(manifest.key == found.key, f"{found.key}: the manifest in it is that of unit {manifest.unit.id}")
        return manifest


@dataclass(frozen=True, slots=True)
class Current:
    """A unit as a generation lists it. Its inputs are in the unit's own manifest; its id is their hash."""

    unit_id: str
    bucket: int
    inputs: int
    chunks: tuple[ChunkRef, ...] = field(default=())
    unreadable: tuple[str, ...] = ()
    """Inputs that could not be read."""
    epoch: int = 0
    sealed: bool = False
    """Bytes of its inputs may be gone: it is never made again, and what comes later lies in a unit over it."""
    over: tuple[str, ...] = ()

    @classmethod
    def of_manifest(cls, manifest: UnitManifest) -> "Current":
        unit = manifest.unit
        made = (manifest.chunks, manifest.unreadable)
        return cls(unit.id, unit.bucket, len(unit.inputs), *made, epoch=unit.epoch, over=unit.over)

    def document(self) -> Document:
        chunks = [each.document() for each in self.chunks]
        counted = {"unit_id": self.unit_id, "bucket": self.bucket, "inputs": self.inputs}
        rare = {"epoch": self.epoch, "sealed": self.sealed, "over": list(self.over)}
        told = {name: value for name, value in rare.items() if value}
        return {**counted, "chunks": chunks, "unreadable": list(self.unreadable), **told}

    @classmethod
    def of(cls, document: Document) -> "Current":
        chunks = tuple(ChunkRef.of(each) for each in document["chunks"])
        lost = tuple(texts(document["unreadable"]))
        numbers = (text(document, "unit_id"), whole(document, "bucket"), whole(document, "inputs"))
        epoch = whole(document, "epoch") if "epoch" in document else 0
        sealed, over = document.get("sealed", False), tuple(texts(document.get("over", ())))
        return cls(*numbers, chunks, lost, epoch, sealed is True, over)


@dataclass(frozen=True, slots=True)
class Generation:
    """The units that make up an hour. One bucket has one unit at most, over those of it that are sealed; a bucket
    without one has no batches.

    A **fence** is a generation that changes nothing but its ``epoch``, which is its own number. Whatever was planned
    before it can no longer be published, for its number is taken; whatever is planned after it gives new units that
    epoch, and so other names. So of all that was there before the fence, what the fence does not name nobody ever will.
    """

    kind: Kind
    hour: int
    number: int
    buckets: int
    version: str
    units: tuple[Current, ...]
    listings: tuple[str, ...] = ()
    """Ids of the listings whose batches are all among the inputs, in order: who finds no others in the hour need not
    read them to know that everything is covered."""
    epoch: int = 0
    """The number of the last fence up to here."""
    expired: tuple[str, ...] = ()
    """Windows whose chunks were let go."""
    write_id: str | None = None
    """Of a fence: two who fence at the same time must not take the other's for their own."""

    def __post_init__(self) -> None:
        taken = [unit.bucket for unit in self.units]
        open_ones = [unit.bucket for unit in self.units if not unit.sealed]
        by_bucket = taken == sorted(taken) and len(open_ones) == len(set(open_ones))
        if not by_bucket or any(not 0 <= bucket < self.buckets for bucket in taken):
            raise Invalid(f"generation {self.number}: its units do not stand by bucket, each bucket once")

    @property
    def key(self) -> str:
        return layout.generation_key(self.hour, self.kind, self.number)

    def unit(self, bucket: int) -> Current | None:
        """The unit of a bucket that is not sealed."""
        return next((each for each in self.units if each.bucket == bucket and not each.sealed), None)

    def sealed(self, bucket: int) -> list[Current]:
        return [each for each in self.units if each.bucket == bucket and each.sealed]

    def covers(self, bucket: int, inputs: Iterable[Input], over: Iterable[str] = ()) -> bool:
        """Whether the bucket's unit was made from exactly these inputs; of no inputs, whether there is no unit. Inputs
        of sealed units are not among these; ``over`` are settled batches that came first.
        """
        current, wanted = self.unit(bucket), tuple(inputs)
        if current is None or not wanted:
            return current is None and not wanted
        beneath = (*(each.unit_id for each in self.sealed(bucket)), *over)
        unit = Unit(self.kind, self.hour, self.buckets, bucket, wanted, self.version, current.epoch, beneath)
        return unit.id == current.unit_id

    def kept(self, unit: Current) -> Current:
        """A unit without the chunks of windows that were let go in this hour."""
        if not self.expired:
            return unit
        refs = [
            ref
            for ref in unit.chunks
            if ref.table is not Table.ROLLUP or layout.window_name(ref.window_ns) not in self.expired
        ]
        return replace(unit, chunks=tuple(refs))

    def says(self, unit: Current, made: UnitManifest) -> bool:
        """Whether a unit of this generation is what its manifest says, but for what was sealed or let go since."""
        return self.kept(Current.of_manifest(made)) == replace(unit, sealed=False)

    def fence(self, write_id: str) -> "Generation":
        """The next generation, with the same units, behind which nothing of before comes."""
        return replace(self, number=self.number + 1, epoch=self.number + 1, write_id=write_id)

    def document(self) -> Document:
        return {
            "schema": GENERATION_SCHEMA,
            "kind": str(self.kind),
            "hour": layout.hour_path(self.hour).rstrip("/"),
            "generation": self.number,
            "buckets": self.buckets,
            "version": self.version,
            "units": [each.document() for each in self.units],
            "listings": list(self.listings),
            **({"epoch": self.epoch} if self.epoch else {}),
            **({"expired": list(self.expired)} if self.expired else {}),
            **({"write_id": self.write_id} if self.write_id is not None else {}),
        }

    def encode(self) -> bytes:
        return codec.encode(self.document())

    @classmethod
    def read(cls, found: Object) -> "Generation":
        document = _document(found, GENERATION_SCHEMA)

        def take() -> "Generation":
            hour = layout.hour_in(text(document, "hour") + "/")
            if hour is None:
                raise ValueError(f"{document['hour']!r} is no hour")
            return cls(
                Kind(text(document, "kind")),
                hour,
                whole(document, "generation"),
                whole(document, "buckets"),
                text(document, "version"),
                tuple(Current.of(each) for each in document["units"]),
                tuple(texts(document["listings"])),
                whole(document, "epoch") if "epoch" in document else 0,
                tuple(texts(document.get("expired", ()))),
                text(document, "write_id") if "write_id" in document else None,
            )

        generation = _taken(found.key, take)
        check(generation.key == found.key, f"{found.key}: the generation in it is that of {generation.key}")
        return generation


def current(keys: Iterable[str], kind: Kind) -> dict[int, str]:
    """From a listing of manifests: the key of the current generation of each hour, by hour. Foreign keys are none."""
    newest: dict[int, tuple[int, str]] = {}
    for key in keys:
        found, hour = layout.generation_in(key), layout.hour_in(key)
        if found is None or hour is None or found[0] != kind:
            continue
        if key == layout.generation_key(hour, kind, found[1]) and found[1] > newest.get(hour, (0, ""))[0]:
            newest[hour] = (found[1], key)
    return {hour: key for hour, (_, key) in sorted(newest.items())}


def _document(found: Object, schema: str) -> Document:
    document = codec.decode(found.body, key=found.key)
    if document.get("schema") != schema:
        raise Incompatible(
            f"{found.key}: schema {document.get('schema')!r} is not {schema!r}",
            remedy="upgrade holdfast on this machine, or find out who wrote this object",
        )
    return document


def _taken(key: str, take: Callable[[], T]) -> T:
    try:
        return take()
    except (*MALFORMED, HoldfastError) as error:
        raise Corrupt(f"{key}: not as it was written ({error})") from error


def _labels(document: Document) -> LabelValues:
    return tuple((name, None if values is None else tuple(texts(values))) for name, values in sorted(document.items()))
