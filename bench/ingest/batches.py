"""Batches to send: real frames of a busy host, each with an identity of its own, made without encoding anew."""

import hashlib
import struct
import zlib
from dataclasses import dataclass
from itertools import count

from bench.frames.hosts import records
from holdfast.telemetry.accept import layout
from holdfast.telemetry.frame import encode, inspect, pack
from holdfast.telemetry.identity import BatchIdentity

_numbers = count(1)

AGENT = "host-1"
BOOT_DIGITS = 16


@dataclass(frozen=True)
class Size:
    name: str
    scrapes: int

    @property
    def samples(self) -> int:
        return self.scrapes * 91


SMALL = Size("one scrape", 1)
LARGE = Size("110 scrapes", 110)


class Batches:
    """Frames that differ in their boot id: the payload does not name it, so only the checksum is computed anew.

    Each has a boot id of its own; or they go around among a number of ``hosts``, which keep theirs and go on in their
    sequence.
    """

    def __init__(self, size: Size, hosts: int | None = None) -> None:
        self.size = size
        self._boots = None if hosts is None else [next(_numbers) for _ in range(hosts)]
        self._made = 0
        self._begin(seq_start=0)

    @property
    def frame_bytes(self) -> int:
        return len(self._frame)

    def make(self) -> bytes:
        if self._boots is None:
            return self._of(next(_numbers))
        if self._made and self._made % len(self._boots) == 0:
            self._begin(inspect(self._frame).identity.seq_end + 1)
        self._made += 1
        return self._of(self._boots[self._made % len(self._boots)])

    def _begin(self, seq_start: int) -> None:
        self._frame = encode(pack(AGENT, "0" * BOOT_DIGITS, records(self.size.scrapes), seq_start=seq_start))
        self._at = self._frame.index(b"0" * BOOT_DIGITS)

    def _of(self, boot: int) -> bytes:
        frame = bytearray(self._frame)
        frame[self._at : self._at + BOOT_DIGITS] = f"{boot:0{BOOT_DIGITS}d}".encode()
        frame[12:16] = struct.pack("<I", zlib.crc32(memoryview(frame)[16:], zlib.crc32(memoryview(frame)[:12])))
        return bytes(frame)


def keys(frame: bytes) -> tuple[str, str]:
    """Where a collector puts these bytes, and their manifest."""
    of = inspect(frame).identity
    identity = BatchIdentity(of.agent_id, of.boot_id, of.seq_start, of.seq_end)
    return layout.blob_key(hashlib.sha256(frame).hexdigest()), layout.accepted_key(identity)
