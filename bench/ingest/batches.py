"""Batches to send: real frames of a busy host, each with an identity of its own, made without encoding anew."""

import hashlib
import struct
import zlib
from dataclasses import dataclass
from itertools import count

from bench.frames.hosts import records
from holdfast.ingest import layout
from holdfast.ingest.frame import encode, inspect, pack
from holdfast.ingest.identity import BatchIdentity

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
    """Frames that differ in their boot id: the payload does not name it, so only the checksum is computed anew."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self._frame = encode(pack(AGENT, "0" * BOOT_DIGITS, records(size.scrapes), seq_start=0))
        self._at = self._frame.index(b"0" * BOOT_DIGITS)
        self.seq_end = inspect(self._frame).identity.seq_end

    @property
    def frame_bytes(self) -> int:
        return len(self._frame)

    def keys(self, frame: bytes) -> tuple[str, str]:
        """Where a collector puts these bytes, and their manifest."""
        boot = frame[self._at : self._at + BOOT_DIGITS].decode()
        identity = BatchIdentity(AGENT, boot, 0, self.seq_end)
        return layout.blob_key(hashlib.sha256(frame).hexdigest()), layout.accepted_key(identity)

    def make(self) -> bytes:
        frame = bytearray(self._frame)
        frame[self._at : self._at + BOOT_DIGITS] = f"{next(_numbers):0{BOOT_DIGITS}d}".encode()
        frame[12:16] = struct.pack("<I", zlib.crc32(memoryview(frame)[16:], zlib.crc32(memoryview(frame)[:12])))
        return bytes(frame)
