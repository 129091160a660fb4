"""Units: what one task derives.

A **unit** is a kind, an hour, one bucket of agents, the exact set of input batches and the version of the derivation.
Its id is the hash of all that, and every name under it follows from the id: whoever does the work again creates what is
there already. Pure.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Invalid
from holdfast.telemetry.rollup import layout


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
    epoch: int = 0
    """The number of the last generation that was a fence when the unit was planned; see ``Generation``."""
    over: tuple[str, ...] = ()
    """Ids of the sealed units on which it lies, and of settled batches whose numbers it leaves to them."""
    parts: tuple[str, ...] = ()
    """Of one that was put together from sealed units: their ids, for its rows follow from theirs. See ``merge``."""

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
            **({"over": list(self.over)} if self.over else {}),
            **({"parts": list(self.parts)} if self.parts else {}),
        }

    @classmethod
    def of(cls, document: Document) -> "Unit":
        hour = layout.hour_in(text(document, "hour") + "/")
        if hour is None:
            raise ValueError(f"{document['hour']!r} is no hour")
        inputs = tuple(Input(*texts(pair, 2)) for pair in document["inputs"])
        kind = Kind(text(document, "kind"))
        buckets, bucket = whole(document, "buckets"), whole(document, "bucket")
        epoch = whole(document, "epoch") if "epoch" in document else 0
        over = tuple(texts(document.get("over", ())))
        parts = tuple(texts(document.get("parts", ())))
        unit = cls(kind, hour, buckets, bucket, inputs, document["version"], epoch, over, parts)
        if unit.inputs != inputs:
            raise ValueError("inputs are not in order")
        return unit


def bucket_of(agent: str, buckets: int) -> int:
    """Where the batches of an agent go. Twice as many buckets split each one in two."""
    return int.from_bytes(hashlib.sha256(agent.encode()).digest()[:8], "little") & (buckets - 1)


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
