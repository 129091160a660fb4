"""Statistics of a data file: rows, bytes, ranges of keys and of some columns, and a sketch of the keys. Pure.

They are kept beside a file's name in manifests and indexes, so that files without matching rows are not fetched.
``footer`` takes them from the file when it is written. A bound that is None is unknown. Long texts are cut: a lower
bound remains one when it is cut, an upper bound does not, and is left out. Missing and malformed statistics count as
unknown, since statistics only save work.

Commits touch keys at random, so ranges of keys exclude few of many small files. A sketch excludes most: a Bloom filter
of one byte per row with about 2 % false positives. Files of more than ``ROWS_MAX`` rows have none: they are few, and
most keys are in them. The bits of a key come from the first 8 bytes of its BLAKE2b digest, little endian: with the low
half ``a`` and the high half ``b`` (made odd), bit ``(a + i * b) mod 2^32 mod size`` for i from 0 to 4; bit n is bit
``n mod 8`` of byte ``n // 8``.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BeforeValidator, Field, PlainSerializer, ValidationError, WrapValidator

from holdfast.base.record import UNLESS_EMPTY, Record

Bound = str | int | float | bool | None


class Span(NamedTuple):
    """The least and the greatest value of a column, and how many of its rows are null."""

    low: Bound
    high: Bound
    nulls: int | None = None


def _from_base64(value: Any) -> bytes:
    try:
        return value if isinstance(value, bytes) else base64.b64decode(value, validate=True)
    except (TypeError, binascii.Error) as error:
        raise ValueError("not base64") from error


Sketch = Annotated[
    bytes, BeforeValidator(_from_base64), PlainSerializer(lambda sketch: base64.b64encode(sketch).decode())
]
KeyBounds = Annotated[Span, PlainSerializer(lambda span: [span.low, span.high])]
Bounds = Annotated[Span, PlainSerializer(lambda span: list(span) if span.nulls is not None else [span.low, span.high])]


@dataclass(frozen=True)
class FileStats(Record):
    WHAT = "statistics"
    rows: int
    size: Annotated[int, Field(alias="bytes")]
    unique: bool
    """No identity has two rows in the file."""
    keys: tuple[KeyBounds, ...] = ()
    """Of the columns of the identity, in their order."""
    columns: Annotated[Mapping[str, Bounds], UNLESS_EMPTY] = field(default_factory=dict, hash=False)
    sketches: Annotated[tuple[Sketch, ...], UNLESS_EMPTY] = ()
    """The keys in the same columns as ``keys`` (``sketch_of``); empty if unknown."""
    redacted: Annotated[int, UNLESS_EMPTY] = 0
    """The latest commit that destroyed payload in the file."""

    def short(self) -> "FileStats":
        return replace(self, columns={}, sketches=())

    def of_keys(self) -> "FileStats":
        """The statistics of keys alone."""
        return replace(self, columns={})


def _or_unknown(value: Any, validate: Callable[[Any], FileStats | None]) -> FileStats | None:
    try:
        return validate(value)
    except ValidationError:
        return None


Stats = Annotated[FileStats | None, WrapValidator(_or_unknown)]
"""Statistics in a document; None if there are none, or if they are malformed."""


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
