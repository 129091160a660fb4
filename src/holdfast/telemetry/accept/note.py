"""A note: what a spool remembers of a batch that has landed, in a hundred bytes. Pure.

    0   16  source           first half of the SHA-256 of agent and boot
    16   8  seq_start
    24   8  seq_end
    32  32  frame_sha256     of the bytes that stand in the object store
    64   8  accepted_at      nanoseconds since 1970, as its manifest says
    72   8  landed_at        the same, by the clock of the spool
    80   8  frame_bytes
    88   2  wire_version
    90   2  frame_version
    92   4  collector        its place among the names that the notes keep
    96   4  CRC-32 of all before it

Numbers have their highest byte first, so that notes in the order of their bytes are in the order of sources and, within
one, of sequence numbers: what is asked for together lies together. Each can be checked by itself, wherever it lies.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.base.errors import Corrupt, Invalid
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.identity import BatchIdentity

NOTE_BYTES = 100
KEY_BYTES = 32
SOURCE_BYTES = 16
START_BYTES = 8
_MOST = 2**63 - 1
"""A manifest by somebody else may hold any number; what is beyond reason counts as this."""

_KEY = struct.Struct(">16sQQ")
_NOTE = struct.Struct(">32s32sqqQHHI")
_CHECK = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Note:
    frame_sha256: str
    accepted_at_unix_ns: int
    landed_at_ns: int
    frame_bytes: int
    wire_version: int
    frame_version: int
    collector: int

    def manifest(self, identity: BatchIdentity, collector_id: str) -> AcceptedManifest:
        """What stands in the object store, as far as a note tells."""
        return AcceptedManifest(
            identity=identity,
            frame_sha256=self.frame_sha256,
            frame_bytes=self.frame_bytes,
            raw_blob_key=layout.blob_key(self.frame_sha256),
            accepted_at_unix_ns=self.accepted_at_unix_ns,
            collector_id=collector_id,
            wire_version=self.wire_version,
            frame_version=self.frame_version,
        )


def source_of(identity: BatchIdentity) -> bytes:
    return hashlib.sha256(f"{identity.agent_id}\x00{identity.boot_id}".encode()).digest()[:SOURCE_BYTES]


def key_of(identity: BatchIdentity) -> bytes:
    return _KEY.pack(source_of(identity), identity.seq_start, identity.seq_end)


def check_noteworthy(manifest: AcceptedManifest) -> AcceptedManifest:
    """The manifest, if a note can tell of it; ``Corrupt`` if its hash is none."""
    try:
        layout.check_hash(manifest.frame_sha256)
    except Invalid as error:
        raise Corrupt(f"{manifest.key}: frame_sha256: {error}") from error
    return manifest


def write(manifest: AcceptedManifest, collector: int, landed_at_ns: int) -> bytes:
    """The bytes of a note, which begin with its key."""
    body = _NOTE.pack(
        key_of(manifest.identity),
        bytes.fromhex(manifest.frame_sha256),
        min(manifest.accepted_at_unix_ns, _MOST),
        min(landed_at_ns, _MOST),
        min(manifest.frame_bytes, _MOST),
        min(manifest.wire_version, 0xFFFF),
        min(manifest.frame_version, 0xFFFF),
        collector,
    )
    return body + _CHECK.pack(zlib.crc32(body))


def is_whole(data: bytes) -> bool:
    return len(data) == NOTE_BYTES and zlib.crc32(data[: _NOTE.size]) == _CHECK.unpack_from(data, _NOTE.size)[0]


def read(data: bytes) -> Note | None:
    """The note in these bytes; None if they are none's."""
    if not is_whole(data):
        return None
    _, sha256, accepted_at, landed_at, size, wire, version, collector = _NOTE.unpack_from(data)
    return Note(sha256.hex(), accepted_at, landed_at, size, wire, version, collector)


def landed_at(data: bytes) -> int:
    return int.from_bytes(data[72:80], "big", signed=True)


def scan(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every whole note, and where it ends. What is no note is passed over: it was torn, or damaged."""
    for at in range(0, len(data) - NOTE_BYTES + 1, NOTE_BYTES):
        found = data[at : at + NOTE_BYTES]
        if is_whole(found):
            yield at + NOTE_BYTES, found
