"""Which keys a small file may hold: a Bloom filter of one byte per row, kept with the file's statistics. Pure.

Commits touch keys at random, so ranges of keys tell next to nothing of which of many small files has a key. A sketch
does: it never denies a key that is there, and takes one in fifty that is not for one that is. Files of more than
``ROWS_MAX`` rows have none: they are few, and most keys are in them.

The bits of a key come from the first 8 bytes of its BLAKE2b digest, little endian: with the low half ``a`` and the high
half ``b`` (made odd), bit ``(a + i * b) mod 2^32 mod size`` for i from 0 to 4; bit n is bit ``n mod 8`` of byte
``n // 8``.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

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
