"""Which batches a unit of derived data was made from, what it gave, and which units make up an hour now.

A **unit** is one task's work: a kind, an hour, one bucket of agents, the exact set of input batches and the version of
the derivation. Its id is the hash of all that, and every name under it follows from the id: whoever does the work again
creates what is there already. A **generation** lists the units that are current; it is created under the next number
and never changed, so that an hour has one line of history.

Errors: ``Corrupt`` for a document that cannot be read or stands under a key that is not its own; ``Incompatible`` for a
schema that this client does not know.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeVar

from holdfast.base import codec
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, check
from holdfast.metrics import layout
from holdfast.metrics.labels import LabelValues
from holdfast.objects.store import Object

MAKE_ANEW = "restore it from a backup, or have the hour derived anew: docs/operate/pipeline.md says how"
UNIT_SCHEMA = "holdfast.derived_unit.v1"
GENERATION_SCHEMA = "holdfast.derived_generation.v1"

T = TypeVar("T")
Body = bytes
"""Where a field is called ``bytes``."""


class Kind(StrEnum):
    ROLLUP = "rollup"
    """Windows up to an hour, from samples."""
    INDEX = "index"
    """Series, labels, words of logs."""
    DAILY = "daily"
    """Windows above an hour, from the rows of hours; it stands in the first hour of its day. Its inputs are units."""


class Table(StrEnum):
    """What the rows of a chunk are."""

    ROLLUP = "rollup"
    SERIES = "series"
    WORDS = "words"


@dataclass(frozen=True, slots=True, order=True)
class Input:
    """A batch by manifest id and the hash of its frame; a unit by its id, twice: a unit's id is its hash."""

    id: str
    sha256: str


@dataclass(frozen=True)
class Unit:
    kind: Kind
    hour: int
    buckets: int
    """A power of two; the agents of the hour are divided among them."""
    bucket: int
    inputs: tuple[Input, ...]
    """In order, each once."""
    version: str
    """Of the derivation, with the settings that change its rows."""

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
        names = {"unit": self.id, "table": str(table), "metric": metric, "window_ns": window_ns, "part": part}
        text = codec.encode(names)
        return hashlib.sha256(text).hexdigest()

    def document(self) -> Document:
        return {
            "kind": str(self.kind),
            "hour": layout.hour_path(self.hour).rstrip("/"),
            "buckets": self.buckets,
            "bucket": self.bucket,
            "inputs": [[each.id, each.sha256] for each in self.inputs],
            "version": self.version,
        }

    @classmethod
    def of(cls, document: Document) -> "Unit":
        hour = layout.hour_in(_text(document, "hour") + "/")
        if hour is None:
            raise ValueError(f"{document['hour']!r} is no hour")
        inputs = tuple(Input(*_texts(pair, 2)) for pair in document["inputs"])
        kind = Kind(_text(document, "kind"))
        unit = cls(kind, hour, _whole(document, "buckets"), _whole(document, "bucket"), inputs, document["version"])
        if unit.inputs != inputs:
            raise ValueError("inputs are not in order")
        return unit


def bucket_of(agent: str, buckets: int) -> int:
    """Where the batches of an agent go. Twice as many buckets split each one in two."""
    return int.from_bytes(hashlib.sha256(agent.encode()).digest()[:8], "little") & (buckets - 1)


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
        table = Table(_text(document, "table"))
        rolled = table is Table.ROLLUP
        return cls(
            table,
            _text(document, "key"),
            _whole(document, "rows"),
            _whole(document, "bytes"),
            _whole(document, "series"),
            _text(document, "metric") if rolled else "",
            layout.window_of(_text(document, "window")) if rolled else 0,
            _labels(document["labels"]) if "labels" in document else None,
            _whole(document, "crc32") if "crc32" in document else None,
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
                _whole(document, "records"),
                _whole(document, "repeated"),
                _whole(document, "doubtful"),
                tuple(_texts(document["unreadable"])),
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

    @classmethod
    def of_manifest(cls, manifest: UnitManifest) -> "Current":
        unit = manifest.unit
        return cls(unit.id, unit.bucket, len(unit.inputs), manifest.chunks, manifest.unreadable)

    def document(self) -> Document:
        chunks = [each.document() for each in self.chunks]
        counted = {"unit_id": self.unit_id, "bucket": self.bucket, "inputs": self.inputs}
        return {**counted, "chunks": chunks, "unreadable": list(self.unreadable)}

    @classmethod
    def of(cls, document: Document) -> "Current":
        chunks = tuple(ChunkRef.of(each) for each in document["chunks"])
        lost = tuple(_texts(document["unreadable"]))
        return cls(_text(document, "unit_id"), _whole(document, "bucket"), _whole(document, "inputs"), chunks, lost)


@dataclass(frozen=True, slots=True)
class Generation:
    """The units that make up an hour. One bucket has one unit at most; a bucket without one has no batches."""

    kind: Kind
    hour: int
    number: int
    buckets: int
    version: str
    units: tuple[Current, ...]
    listings: tuple[str, ...] = ()
    """Ids of the listings whose batches are all among the inputs, in order: who finds no others in the hour need not
    read them to know that everything is covered."""

    def __post_init__(self) -> None:
        taken = [unit.bucket for unit in self.units]
        if taken != sorted(set(taken)) or any(not 0 <= bucket < self.buckets for bucket in taken):
            raise Invalid(f"generation {self.number}: its units do not stand by bucket, each bucket once")

    @property
    def key(self) -> str:
        return layout.generation_key(self.hour, self.kind, self.number)

    def unit(self, bucket: int) -> Current | None:
        return next((each for each in self.units if each.bucket == bucket), None)

    def covers(self, bucket: int, inputs: Iterable[Input]) -> bool:
        """Whether the bucket's unit was made from exactly these inputs; of no inputs, whether there is no unit."""
        current, wanted = self.unit(bucket), tuple(inputs)
        if current is None or not wanted:
            return current is None and not wanted
        return Unit(self.kind, self.hour, self.buckets, bucket, wanted, self.version).id == current.unit_id

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
        }

    def encode(self) -> bytes:
        return codec.encode(self.document())

    @classmethod
    def read(cls, found: Object) -> "Generation":
        document = _document(found, GENERATION_SCHEMA)

        def take() -> "Generation":
            hour = layout.hour_in(_text(document, "hour") + "/")
            if hour is None:
                raise ValueError(f"{document['hour']!r} is no hour")
            return cls(
                Kind(_text(document, "kind")),
                hour,
                _whole(document, "generation"),
                _whole(document, "buckets"),
                _text(document, "version"),
                tuple(Current.of(each) for each in document["units"]),
                tuple(_texts(document["listings"])),
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


def _text(document: Document, name: str) -> str:
    value = document[name]
    if not isinstance(value, str):
        raise TypeError(f"field {name} is {value!r}, and should be text")
    return value


def _whole(document: Document, name: str) -> int:
    value = document[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"field {name} is {value!r}, and should be a whole number")
    return value


def _labels(document: Document) -> LabelValues:
    return tuple((name, None if values is None else tuple(_texts(values))) for name, values in sorted(document.items()))


def _texts(values: Any, count: int | None = None) -> list[str]:
    found = list(values)
    if not all(isinstance(each, str) for each in found) or (count is not None and len(found) != count):
        raise TypeError(f"{found!r} are not the texts that were expected")
    return found
