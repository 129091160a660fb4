"""The envelope of a frame: identity of the batch, number of records, length of the payload, and a CRC over all of it.

``inspect`` reads the envelope and checks the CRC without decompressing the payload. Lengths are compared with the
limits before anything of that size is allocated. ``docs/formats.md`` specifies the bytes.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from holdfast.base.errors import Invalid
from holdfast.telemetry.identity import BatchIdentity


class Reason(StrEnum):
    """Part of the HTTP interface: clients see the value in the field ``reason`` of an error."""

    MAGIC = "bad_magic"
    VERSION = "unknown_version"
    FLAGS = "unknown_flags"
    LENGTH = "wrong_length"
    CHECKSUM = "wrong_checksum"
    TOO_LARGE = "too_large"
    COMPRESSION = "bad_compression"
    IDENTITY = "bad_identity"
    SEQUENCE = "bad_sequence"
    COLUMN = "bad_column"
    TEXT = "bad_text"
    VALUE = "bad_value"


class FrameInvalid(Invalid):
    """The bytes are not a valid frame. The sender must not send the same bytes again."""

    def __init__(self, reason: Reason, message: str, *, remedy: str | None = None) -> None:
        super().__init__(f"frame: {message}", remedy=remedy)
        self.reason = reason

    def __reduce__(self) -> tuple[type["FrameInvalid"], tuple[Reason, str]]:
        return FrameInvalid, (self.reason, str(self).removeprefix("frame: "))


MAGIC = b"\x89HFF\r\n\x1a\n"
"""As in PNG: it is not text, and any conversion of line ends changes it."""
VERSION = 1
ZSTD = 0x0001
"""Flag: the payload is compressed as one zstd stream."""
KNOWN_FLAGS = ZSTD
LARGEST = 2**31
"""Payloads are shorter than this, so that offsets of text fit into Arrow's 32 bits."""

_DECOMPRESSOR = pa.Codec("zstd")
_HEAD = struct.Struct("<8sHHIIIQQIHH")
_CHECKED_BEFORE, _CHECKED_AFTER = 12, 16
"""The checksum is at offset 12 to 16 and covers everything else."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest frame that a reader accepts. A larger one is refused before it is decompressed."""

    frame_bytes: int = 8 << 20
    payload_bytes: int = 64 << 20
    """Of the payload after decompression."""
    records: int = 1_000_000
    elements: int = 1_000_000
    """Limits the labels of all label sets together, and the buckets of all histograms together."""

    def __post_init__(self) -> None:
        if not 0 <= self.payload_bytes < LARGEST:
            raise Invalid(f"payload_bytes is {self.payload_bytes}; it must be below {LARGEST}")


ANY_SIZE = Limits(frame_bytes=LARGEST, payload_bytes=LARGEST - 1, records=1 << 32, elements=1 << 32)
"""For frames that this process or its queue has written: the receiver applies its own limits."""


@dataclass(frozen=True, slots=True)
class Header:
    """The contents of an envelope."""

    identity: BatchIdentity
    records: int
    version: int
    flags: int
    stored_bytes: int
    """Length of the payload in the frame."""
    payload_bytes: int
    """Length of the payload after decompression."""
    payload_at: int
    """Offset at which the payload begins."""


def inspect(data: bytes | memoryview, limits: Limits = Limits()) -> Header:  # noqa: B008  # frozen
    """Check the envelope and the checksum, but not the contents of the payload: only ``decode`` does that."""
    if len(data) > limits.frame_bytes:
        raise FrameInvalid(
            Reason.TOO_LARGE,
            f"{len(data)} bytes are more than the limit of {limits.frame_bytes}",
            remedy="send smaller batches, or raise the limit",
        )
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise FrameInvalid(Reason.MAGIC, f"it begins with {bytes(data[:8])!r}, not with {MAGIC!r}")
    if len(data) < _HEAD.size:
        raise FrameInvalid(Reason.LENGTH, f"it has {len(data)} bytes, fewer than the {_HEAD.size} bytes of a head")
    _, version, flags, checksum, stored, payload, start, end, records, agent, boot = _HEAD.unpack_from(data)
    if version != VERSION:
        raise FrameInvalid(
            Reason.VERSION, f"version {version} is not supported (only {VERSION} is)", remedy="upgrade the reader"
        )
    if flags & ~KNOWN_FLAGS:
        raise FrameInvalid(
            Reason.FLAGS, f"flags {flags:#06x}: not all of them are supported", remedy="upgrade the reader"
        )
    at = _HEAD.size + agent + boot
    if len(data) != at + stored:
        raise FrameInvalid(Reason.LENGTH, f"the head declares {at + stored} bytes, the frame has {len(data)}")
    if checksum != _checksum(data):
        raise FrameInvalid(Reason.CHECKSUM, "the checksum does not match: the bytes were changed after encoding")
    if not flags & ZSTD and stored != payload:
        raise FrameInvalid(Reason.LENGTH, f"an uncompressed payload of {stored} bytes is declared as {payload} bytes")
    if payload > limits.payload_bytes or records > limits.records:
        raise FrameInvalid(
            Reason.TOO_LARGE,
            f"a payload of {payload} bytes and {records} records is more than the limit of "
            f"{limits.payload_bytes} and {limits.records}",
            remedy="send smaller batches, or raise the limit",
        )
    identity = _identity(data, start, end, agent, boot)
    if not 0 < records <= end - start + 1:
        raise FrameInvalid(Reason.SEQUENCE, f"{records} records do not fit sequence numbers {start} to {end}")
    return Header(identity, records, version, flags, stored, payload, at)


def unwrap(data: bytes | memoryview, header: Header) -> memoryview:
    """The payload of a frame that ``inspect`` has accepted, decompressed. Raises ``FrameInvalid``."""
    stored = memoryview(data)[header.payload_at :]
    if not header.flags & ZSTD:
        return stored
    try:
        # The output buffer has the declared size, which is within the limits, and cannot grow beyond it.
        payload = _DECOMPRESSOR.decompress(stored, decompressed_size=header.payload_bytes)
    except (OSError, ValueError) as error:
        raise FrameInvalid(Reason.COMPRESSION, f"the payload cannot be decompressed: {error}") from error
    if len(payload) != header.payload_bytes:
        raise FrameInvalid(
            Reason.LENGTH, f"the payload decompresses to {len(payload)} bytes, the head declares {header.payload_bytes}"
        )
    return memoryview(payload)


def wrap(identity: BatchIdentity, records: int, payload: bytes, *, level: int | None) -> bytes:
    """Put a payload into a frame. ``level`` is that of zstd; None leaves the payload uncompressed."""
    if len(payload) >= LARGEST:
        raise Invalid(
            f"batch {identity}: a payload of {len(payload)} bytes is too large for one frame",
            remedy="send smaller batches",
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


def _identity(data: bytes | memoryview, start: int, end: int, agent: int, boot: int) -> BatchIdentity:
    try:
        names = bytes(data[_HEAD.size : _HEAD.size + agent]).decode(), bytes(data[_HEAD.size + agent :][:boot]).decode()
    except UnicodeDecodeError as error:
        raise FrameInvalid(Reason.IDENTITY, f"agent id or boot id is not UTF-8 ({error.reason})") from error
    try:
        return BatchIdentity(*names, start, end)
    except Invalid as error:
        raise FrameInvalid(Reason.IDENTITY, str(error)) from error
