"""Which batches a unit of derived data was made from, what it gave, and which units make up an hour now.

A **unit** is a kind, an hour, one bucket of agents, the exact set of input batches and the version of the derivation.
Its id is the hash of all that, and every name under it follows from the id: deriving it again creates what is there
already. A unit whose manifest exists is done.

A **generation** lists the units that are current; it is created under the next number and never changed, so an hour has
one line of history. A generation may **close** its hour: the raw bytes that it was made from may be removed from then
on. A closed hour is never derived again. Its generation says which sequence numbers it has counted; these count in no
other hour, and a batch that is found later counts nowhere in this one.

Errors: ``Corrupt`` for a document that cannot be read or stands under a key that is not its own; ``Incompatible`` for a
schema that this client does not know.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from holdfast.base import codec
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, check
from holdfast.objects.store import Object, Store
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.matchers import LabelValues

MAKE_ANEW = "restore it from a backup, or have the hour derived again: docs/operate/pipeline.md says how"
UNIT_SCHEMA = "holdfast.derived_unit.v2"
GENERATION_SCHEMA = "holdfast.derived_generation.v2"
OLDER_SCHEMAS = {"holdfast.derived_unit.v1": UNIT_SCHEMA, "holdfast.derived_generation.v1": GENERATION_SCHEMA}

T = TypeVar("T")
Body = bytes
"""Where a field is called ``bytes``."""
Ranges = tuple[tuple[int, int], ...]
"""Inclusive ranges of sequence numbers, in order."""
Numbers = Mapping[tuple[str, str], Ranges]
"""By agent and boot."""


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
    epoch: int = 0
    """The number of the last generation that was a fence when the unit was planned; see ``Generation``."""
    closed: tuple[int, ...] = ()
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
            **({"epoch": self.epoch} if self.epoch else {}),
            **({"closed": [layout.hour_path(hour).rstrip("/") for hour in self.closed]} if self.closed else {}),
        }

    @classmethod
    def of(cls, document: Document) -> "Unit":
        hour = _hour(text(document, "hour"))
        inputs = tuple(Input(*texts(pair, 2)) for pair in document["inputs"])
        kind = Kind(text(document, "kind"))
        buckets, bucket = whole(document, "buckets"), whole(document, "bucket")
        epoch = whole(document, "epoch") if "epoch" in document else 0
        closed = tuple(map(_hour, texts(document.get("closed", ()))))
        unit = cls(kind, hour, buckets, bucket, inputs, document["version"], epoch, closed)
        if unit.inputs != inputs:
            raise ValueError("inputs are not in order")
        return unit


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
    """The manifest of one unit. A unit whose manifest exists is done."""

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
    numbers: Numbers = field(default_factory=dict)
    """Sequence numbers of the records that were counted."""

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
            "numbers": _numbers_document(self.numbers),
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
                _numbers_of(document.get("numbers", ())),
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
    closed: tuple[int, ...] = ()

    @classmethod
    def of_manifest(cls, manifest: UnitManifest) -> "Current":
        unit = manifest.unit
        return cls(
            unit.id, unit.bucket, len(unit.inputs), manifest.chunks, manifest.unreadable, unit.epoch, unit.closed
        )

    def document(self) -> Document:
        return {
            "unit_id": self.unit_id,
            "bucket": self.bucket,
            "inputs": self.inputs,
            "chunks": [each.document() for each in self.chunks],
            "unreadable": list(self.unreadable),
            **({"epoch": self.epoch} if self.epoch else {}),
            **({"closed": [layout.hour_path(hour).rstrip("/") for hour in self.closed]} if self.closed else {}),
        }

    @classmethod
    def of(cls, document: Document) -> "Current":
        if document.get("sealed") or document.get("over"):
            raise Incompatible(
                f"unit {document['unit_id']} was sealed by an older version of holdfast",
                remedy="its numbers cannot be read by this version, and its batches have expired: remove the "
                "generations of its hour",
            )
        return cls(
            text(document, "unit_id"),
            whole(document, "bucket"),
            whole(document, "inputs"),
            tuple(ChunkRef.of(each) for each in document["chunks"]),
            tuple(texts(document["unreadable"])),
            whole(document, "epoch") if "epoch" in document else 0,
            tuple(map(_hour, texts(document.get("closed", ())))),
        )


@dataclass(frozen=True, slots=True)
class Generation:
    """The units that make up an hour. A bucket has at most one unit; a bucket without one has no batches.

    A **fence** is a generation that changes nothing but its ``epoch``, which is its own number. A plan from before it
    can no longer be published, because its number is taken; a plan from after it gives new units that epoch, and so
    other names. So an object from before the fence that the fence does not name is never named again.
    """

    kind: Kind
    hour: int
    number: int
    buckets: int
    version: str
    units: tuple[Current, ...]
    listings: tuple[str, ...] = ()
    """Ids of the listings whose batches are all among the inputs, in order: a reader that finds no others in the hour
    need not read one of them."""
    epoch: int = 0
    """The number of the last fence up to here."""
    expired: tuple[str, ...] = ()
    """Windows whose chunks expired."""
    write_id: str | None = None
    """Of a fence: two processes that fence at the same time must not take the other's fence for their own."""
    counted: Numbers | None = None
    """Of a closed hour, the sequence numbers that it has counted; None while the hour is open."""

    def __post_init__(self) -> None:
        taken = [unit.bucket for unit in self.units]
        if taken != sorted(set(taken)) or any(not 0 <= bucket < self.buckets for bucket in taken):
            raise Invalid(f"generation {self.number}: its units are not in order of buckets, each bucket once")

    @property
    def key(self) -> str:
        return layout.generation_key(self.hour, self.kind, self.number)

    @property
    def is_closed(self) -> bool:
        return self.counted is not None

    @property
    def windows(self) -> tuple[int, ...]:
        """Windows of which rows are kept, in nanoseconds."""
        named = self.version.partition(" ")[2]
        kept = [name for name in named.split(",") if name and name not in self.expired]
        return tuple(map(layout.window_of, kept))

    def unit(self, bucket: int) -> Current | None:
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

    def kept(self, unit: Current) -> Current:
        """A unit without the chunks of windows that have expired in this hour."""
        if not self.expired:
            return unit
        refs = [
            ref
            for ref in unit.chunks
            if ref.table is not Table.ROLLUP or layout.window_name(ref.window_ns) not in self.expired
        ]
        return replace(unit, chunks=tuple(refs))

    def says(self, unit: Current, made: UnitManifest) -> bool:
        """Whether a unit of this generation is what its manifest says, but for windows that expired since."""
        return self.kept(Current.of_manifest(made)) == unit

    def fence(self, write_id: str) -> "Generation":
        """The next generation, with the same units: no plan from before it can be published."""
        return replace(self, number=self.number + 1, epoch=self.number + 1, write_id=write_id)

    def close(self, write_id: str, counted: Numbers) -> "Generation":
        """The next generation, with the same units, after which the hour is never derived again."""
        return replace(self.fence(write_id), counted=counted)

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
            **({"counted": _numbers_document(self.counted)} if self.counted is not None else {}),
        }

    def encode(self) -> bytes:
        return codec.encode(self.document())

    @classmethod
    def read(cls, found: Object) -> "Generation":
        document = _document(found, GENERATION_SCHEMA)

        def take() -> "Generation":
            return cls(
                Kind(text(document, "kind")),
                _hour(text(document, "hour")),
                whole(document, "generation"),
                whole(document, "buckets"),
                text(document, "version"),
                tuple(Current.of(each) for each in document["units"]),
                tuple(texts(document["listings"])),
                whole(document, "epoch") if "epoch" in document else 0,
                tuple(texts(document.get("expired", ()))),
                text(document, "write_id") if "write_id" in document else None,
                _numbers_of(document["counted"]) if "counted" in document else None,
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


async def read_generation(store: Store, kind: Kind, hour: int) -> Generation | None:
    """The current generation of an hour."""
    folder = layout.manifest_folder(hour)
    keys: list[str] = []
    async for key in store.keys(folder, after=f"{folder}{kind}-"):
        if not key.startswith(f"{folder}{kind}-"):
            break
        keys.append(key)
    newest = current(keys, kind).get(hour)
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


def _numbers_document(numbers: Numbers) -> list[Document]:
    return [
        {"agent": agent, "boot": boot, "ranges": [list(each) for each in ranges]}
        for (agent, boot), ranges in sorted(numbers.items())
    ]


def _numbers_of(documents: Any) -> dict[tuple[str, str], Ranges]:
    return {
        (text(each, "agent"), text(each, "boot")): tuple((int(first), int(last)) for first, last in each["ranges"])
        for each in documents
    }


def _hour(name: str) -> int:
    hour = layout.hour_in(name + "/")
    if hour is None:
        raise ValueError(f"{name!r} is no hour")
    return hour


def _document(found: Object, schema: str) -> Document:
    document = codec.decode(found.body, key=found.key)
    if OLDER_SCHEMAS.get(str(document.get("schema")), document.get("schema")) != schema:
        raise Incompatible(
            f"{found.key}: schema {document.get('schema')!r} is not {schema!r}",
            remedy="upgrade holdfast on this machine, or find out who wrote this object",
        )
    if document.get("kind", document.get("unit", {}).get("kind")) == "index":
        raise Incompatible(
            f"{found.key}: an index of an older version", remedy="derive its hour again, and remove this object"
        )
    return document


def _taken(key: str, take: Callable[[], T]) -> T:
    try:
        return take()
    except Incompatible as error:
        raise Incompatible(f"{key}: {error}", remedy=error.remedy) from error
    except (*MALFORMED, HoldfastError) as error:
        raise Corrupt(f"{key}: not as it was written ({error})") from error


def _labels(document: Document) -> LabelValues:
    return tuple((name, None if values is None else tuple(texts(values))) for name, values in sorted(document.items()))


def text(document: Document, name: str) -> str:
    value = document[name]
    if not isinstance(value, str):
        raise TypeError(f"field {name} is {value!r}, and should be text")
    return value


def whole(document: Document, name: str) -> int:
    value = document[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"field {name} is {value!r}, and should be a whole number")
    return value


def texts(values: Any, count: int | None = None) -> list[str]:
    found = list(values)
    if not all(isinstance(each, str) for each in found) or (count is not None and len(found) != count):
        raise TypeError(f"{found!r} are not the texts that were expected")
    return found
