"""Statistics of a data file: rows, bytes, ranges of keys and of some columns, and a sketch of the keys. Pure.

Kept beside a file's name in manifests and indexes, so that files without matching rows are not fetched. ``footer``
takes them from the file when it is written. A bound that is None is unknown. Texts are cut short: a lower bound stays
one when it is cut, an upper bound does not, and is left out. What is missing or malformed counts as unknown: statistics
only save work.

Commits touch keys at random, so ranges of keys exclude few of many small files. A sketch does: a Bloom filter of one
byte per row that never denies a key that is there, and has about 2 % false positives. Files of more than ``ROWS_MAX``
rows have none: they are few, and most keys are in them. The bits of a key come from the first 8 bytes of its BLAKE2b
digest, little endian: with the low half ``a`` and the high half ``b`` (made odd), bit ``(a + i * b) mod 2^32 mod size``
for i from 0 to 4; bit n is bit ``n mod 8`` of byte ``n // 8``.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from holdfast.base import codec
from holdfast.base.codec import Document

Bound = str | int | float | bool | None
_PLAIN = (str, int, float, type(None))


@dataclass(frozen=True, slots=True)
class Span:
    """The least and the greatest value of a column, and how many of its rows are null."""

    low: Bound
    high: Bound
    nulls: int | None = None

    def document(self) -> list[Any]:
        return [self.low, self.high] if self.nulls is None else [self.low, self.high, self.nulls]


@dataclass(frozen=True, slots=True)
class FileStats:
    rows: int
    size: int
    unique: bool
    """No identity has two rows in it."""
    keys: tuple[Span, ...] = ()
    """Of the identity's columns, in their order."""
    columns: Mapping[str, Span] = field(default_factory=dict, hash=False)
    sketches: tuple[bytes, ...] = ()
    """Of the same columns as ``keys``, which keys they may hold (``sketch_of``); empty for unknown."""

    redacted: int = 0
    """The latest commit that destroyed payload in it."""

    def short(self) -> "FileStats":
        return replace(self, columns={}, sketches=())

    def of_keys(self) -> "FileStats":
        """What is known of the keys alone."""
        return replace(self, columns={})

    def document(self) -> Document:
        document: Document = {"rows": self.rows, "bytes": self.size, "unique": self.unique}
        document["keys"] = [[span.low, span.high] for span in self.keys]
        if any(self.sketches):
            document["sketches"] = [base64.b64encode(each).decode() for each in self.sketches]
        if self.columns:
            document["columns"] = {name: span.document() for name, span in self.columns.items()}
        if self.redacted:
            document["redacted"] = self.redacted
        return document


def parse_stats(document: Any) -> FileStats | None:
    """None if there is nothing, or nothing that can be understood."""
    try:
        return FileStats(
            int(document["rows"]),
            int(document["bytes"]),
            document["unique"] is True,
            tuple(Span(*_bounds(each)) for each in document["keys"]),
            {str(name): Span(*_bounds(each)) for name, each in document.get("columns", {}).items()},
            tuple(base64.b64decode(each, validate=True) for each in document.get("sketches", ())),
            int(document.get("redacted", 0)),
        )
    except codec.MALFORMED:
        return None


def _bounds(each: Any) -> list[Any]:
    low, high, *rest = each
    plain = isinstance(low, _PLAIN) and isinstance(high, _PLAIN) and (not rest or isinstance(rest[0], _PLAIN))
    if not plain or len(rest) > 1:
        raise ValueError("not bounds")
    return [low, high, *rest]


ROWS_MAX = 4096
BITS_PER_ROW = 8
PROBES = 5
LEAST_BYTES = 8
_HALF = np.uint64(0xFFFFFFFF)


def sketch_of(keys: Iterable[str]) -> bytes:
    distinct = set(keys)
    body = np.zeros(max(LEAST_BYTES, -(-len(distinct) * BITS_PER_ROW // 8)), dtype=np.uint8)
    if distinct:
        bits = _bits(distinct, len(body) * 8).ravel()
        np.bitwise_or.at(body, bits >> 3, (1 << (bits & 7)).astype(np.uint8))
    return body.tobytes()


def may_hold(sketch: bytes, key: str) -> bool:
    """False only if the key is not there."""
    if not sketch:
        return True
    return all(sketch[bit >> 3] >> (bit & 7) & 1 for bit in _bits([key], len(sketch) * 8).ravel().tolist())


def _bits(keys: Iterable[str], size: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    """One row of bit numbers per key."""
    digests = b"".join(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest() for key in keys)
    whole = np.frombuffer(digests, dtype="<u8")
    low, high = whole & _HALF, (whole >> np.uint64(32)) | np.uint64(1)
    steps = np.arange(PROBES, dtype=np.uint64)
    found: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = (
        ((low[:, None] + steps * high[:, None]) & _HALF) % np.uint64(size)
    ).astype(np.int64)
    return found
