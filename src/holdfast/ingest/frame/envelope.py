"""The envelope of a frame: who sent which records, how long the payload is, and a checksum over all of it.

The envelope can be read without the payload: ``inspect`` gives the identity of a batch for the price of a CRC. Lengths
are compared with the limits before anything of that size is allocated. ``docs/formats.md`` has the bytes.
"""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import pyarrow as pa

from holdfast.base.errors import Invalid
from holdfast.ingest.frame.errors import FrameInvalid, Reason
from holdfast.ingest.identity import MAX_AGENT_BYTES, MAX_BOOT_BYTES, check_name
from holdfast.ingest.records import INT64_MAX

MAGIC = b"\x89HFF\r\n\x1a\n"
"""As in PNG: not text, and changed by whatever converts line ends."""
VERSION = 1
ZSTD = 0x0001
"""Flag: the payload is one zstd stream."""
KNOWN_FLAGS = ZSTD
LARGEST = 2**31
"""No payload is as long as this, so that offsets of text fit Arrow's 32 bits."""

_UNPACKER = pa.Codec("zstd")
_HEAD = struct.Struct("<8sHHIIIQQIHH")
_CHECKED_BEFORE, _CHECKED_AFTER = 12, 16
"""The checksum stands at 12 to 16; it covers everything but itself."""
_MORE = 4 << 10
"""By so much a frame may be larger than its payload, and be held on to all the same."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a reader accepts. Whatever is larger is refused before it is unpacked."""

    frame_bytes: int = 8 << 20
    payload_bytes: int = 64 << 20
    """Of the payload after decompression."""
    records: int = 1_000_000
    elements: int = 1_000_000
    """Labels over all label sets, buckets over all histograms."""

    def __post_init__(self) -> None:
        if not 0 <= self.payload_bytes < LARGEST:
            raise Invalid(f"limit of {self.payload_bytes} bytes for a payload: it must be below {LARGEST}")


ANY_SIZE = Limits(frame_bytes=LARGEST, payload_bytes=LARGEST - 1, records=1 << 32, elements=1 << 32)
"""For frames of one's own: what others take is theirs to say."""


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """What acceptance is decided by. Bounds are inclusive, and both are numbers of records in the batch."""

    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int

    def __post_init__(self) -> None:
        # The same names as in the keys of acceptance: a valid frame never fails there.
        check_name("agent id", self.agent_id, MAX_AGENT_BYTES)
        check_name("boot id", self.boot_id, MAX_BOOT_BYTES)
        if not 0 <= self.seq_start <= self.seq_end <= INT64_MAX:
            raise Invalid(f"sequence {self.seq_start} to {self.seq_end}: bounds are 0 or more, and in order")

    def __str__(self) -> str:
        return f"{self.agent_id}/{self.boot_id}/{self.seq_start}-{self.seq_end}"


@dataclass(frozen=True, slots=True)
class Header:
    """What the envelope says."""

    identity: Identity
    records: int
    version: int
    flags: int
    stored_bytes: int
    """The payload as it stands in the frame."""
    payload_bytes: int
    """The payload after decompression."""
    payload_at: int
    """Where the payload begins."""

    @classmethod
    def read(cls, data: bytes | memoryview, limits: Limits) -> Self:
        """Check everything but the payload's inside. Raises ``FrameInvalid``."""
        if len(data) > limits.frame_bytes:
            raise FrameInvalid(
                Reason.TOO_LARGE,
                f"{len(data)} bytes are more than the limit of {limits.frame_bytes}",
                remedy="send smaller batches, or raise the limit",
            )
        if bytes(data[: len(MAGIC)]) != MAGIC:
            raise FrameInvalid(Reason.MAGIC, f"begins with {bytes(data[:8])!r}, not with {MAGIC!r}")
        if len(data) < _HEAD.size:
            raise FrameInvalid(Reason.LENGTH, f"{len(data)} bytes are fewer than the {_HEAD.size} of the head")
        _, version, flags, checksum, stored, payload, start, end, records, agent, boot = _HEAD.unpack_from(data)
        if version != VERSION:
            raise FrameInvalid(
                Reason.VERSION, f"version {version} is not known (only {VERSION} is)", remedy="upgrade the reader"
            )
        if flags & ~KNOWN_FLAGS:
            raise FrameInvalid(Reason.FLAGS, f"flags {flags:#06x} are not all known", remedy="upgrade the reader")
        at = _HEAD.size + agent + boot
        if len(data) != at + stored:
            raise FrameInvalid(Reason.LENGTH, f"the head says {at + stored} bytes, there are {len(data)}")
        if checksum != _checksum(data):
            raise FrameInvalid(Reason.CHECKSUM, "the bytes are not those that were sent: the checksum differs")
        if not flags & ZSTD and stored != payload:
            raise FrameInvalid(Reason.LENGTH, f"{stored} bytes that are not compressed cannot be {payload}")
        if payload > limits.payload_bytes or records > limits.records:
            raise FrameInvalid(
                Reason.TOO_LARGE,
                f"a payload of {payload} bytes and {records} records is more than the limit of "
                f"{limits.payload_bytes} and {limits.records}",
                remedy="send smaller batches, or raise the limit",
            )
        identity = _identity(data, start, end, agent, boot)
        if not 0 < records <= end - start + 1:
            raise FrameInvalid(Reason.SEQUENCE, f"{records} records cannot be numbered {start} to {end}")
        return cls(identity, records, version, flags, stored, payload, at)


def inspect(data: bytes | memoryview, limits: Limits = Limits()) -> Header:  # noqa: B008  # frozen
    """The header of a frame whose checksum is right. The payload is not looked into: only ``decode`` does that."""
    return Header.read(data, limits)


class Packed(NamedTuple):
    """A frame, and what ``inspect`` gave for it."""

    data: bytes | memoryview
    header: Header

    def kept(self, payload: Callable[[], bytes]) -> "Packed":
        """What to hold on to for later: the frame, unless others may write into its memory, or its payload is smaller.
        It may be, by any amount: a compressed payload may have bytes in it that stand for nothing."""
        header = self.header
        if isinstance(self.data, bytes) and len(self.data) <= header.payload_bytes + _MORE:
            return self
        return Packed(payload(), replace(header, flags=header.flags & ~ZSTD, payload_at=0))

    def payload(self) -> memoryview:
        """Decompressed: exactly as many bytes as the header says, or ``FrameInvalid``."""
        header = self.header
        stored = memoryview(self.data)[header.payload_at :]
        if not header.flags & ZSTD:
            return stored
        try:
            # The output is allocated by the declared size, which is within the limits, and cannot grow beyond it.
            payload = _UNPACKER.decompress(stored, decompressed_size=header.payload_bytes)
        except (OSError, ValueError) as error:
            raise FrameInvalid(Reason.COMPRESSION, f"the payload does not decompress: {error}") from error
        if len(payload) != header.payload_bytes:
            raise FrameInvalid(Reason.LENGTH, f"{len(payload)} bytes unpacked, {header.payload_bytes} were declared")
        return memoryview(payload)


def wrap(identity: Identity, records: int, payload: bytes, *, level: int | None) -> bytes:
    """A frame around the payload; ``level`` is zstd's, or None to leave the payload as it is."""
    if len(payload) >= LARGEST:
        raise Invalid(
            f"batch {identity}: {len(payload)} bytes are too many for one frame", remedy="send smaller batches"
        )
    stored = payload if level is None else pa.Codec("zstd", compression_level=level).compress(payload, asbytes=True)
    agent, boot = identity.agent_id.encode(), identity.boot_id.encode()
    flags = 0 if level is None else ZSTD
    start, end = identity.seq_start, identity.seq_end
    sizes = (len(stored), len(payload), start, end, records, len(agent), len(boot))
    rest = agent + boot + stored
    checksum = _checksum(_HEAD.pack(MAGIC, VERSION, flags, 0, *sizes) + rest)
    return _HEAD.pack(MAGIC, VERSION, flags, checksum, *sizes) + rest


def _checksum(data: bytes | memoryview) -> int:
    view = memoryview(data)
    return zlib.crc32(view[_CHECKED_AFTER:], zlib.crc32(view[:_CHECKED_BEFORE]))


def _identity(data: bytes | memoryview, start: int, end: int, agent: int, boot: int) -> Identity:
    try:
        names = bytes(data[_HEAD.size : _HEAD.size + agent]).decode(), bytes(data[_HEAD.size + agent :][:boot]).decode()
    except UnicodeDecodeError as error:
        raise FrameInvalid(Reason.IDENTITY, f"agent id or boot id is not UTF-8 ({error.reason})") from error
    try:
        return Identity(*names, start, end)
    except Invalid as error:
        raise FrameInvalid(Reason.IDENTITY, str(error)) from error
