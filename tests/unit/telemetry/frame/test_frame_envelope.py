"""The envelope: what it says, and every reason for which it is refused, before the payload is unpacked."""

import pickle
import struct
import zlib
from dataclasses import replace

import pyarrow as pa
import pytest

from holdfast.base.errors import Invalid
from holdfast.telemetry.frame import FrameInvalid, Limits, Reason, decode, encode, inspect, pack
from holdfast.telemetry.frame.envelope import wrap
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.records import Gauge, Log, Record
from tests.unit.telemetry.frame.frame_kit import EVERY_SORT

HEAD = struct.Struct("<8sHHIIIQQIHH")
FRAME = encode(pack("web-1", "boot-7", EVERY_SORT, seq_start=40))


def altered(**fields: int | bytes) -> bytes:
    """The frame with other fields in its head, and a checksum that is right."""
    names = ("magic", "version", "flags", "checksum", "stored", "payload", "start", "end", "records", "agent", "boot")
    values = dict(zip(names, HEAD.unpack_from(FRAME), strict=True)) | fields
    frame = bytearray(HEAD.pack(*values.values()) + FRAME[HEAD.size :])
    if "checksum" not in fields:
        frame[12:16] = struct.pack("<I", zlib.crc32(frame[16:], zlib.crc32(frame[:12])))
    return bytes(frame)


def reason_of(frame: bytes, limits: Limits = Limits()) -> Reason:  # noqa: B008  # frozen
    with pytest.raises(FrameInvalid) as caught:
        decode(frame, limits)
    assert str(caught.value).startswith("frame: ")
    return caught.value.reason


def test_the_header_has_the_identity_and_the_sizes() -> None:
    header = inspect(FRAME)
    assert header.identity == BatchIdentity("web-1", "boot-7", 40, 40 + len(EVERY_SORT) - 1)
    assert (header.version, header.flags, header.records) == (1, 1, len(EVERY_SORT))
    assert header.payload_at + header.stored_bytes == len(FRAME)
    assert altered() == FRAME
    assert inspect(memoryview(bytearray(FRAME))) == inspect(FRAME)
    assert len(decode(memoryview(FRAME))) == len(EVERY_SORT)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", Reason.MAGIC),
        (FRAME[:7], Reason.MAGIC),
        (b"\x1f\x8b" + FRAME[2:], Reason.MAGIC),
        (FRAME[:20], Reason.LENGTH),
        (altered(version=0), Reason.VERSION),
        (altered(version=2), Reason.VERSION),
        (altered(flags=3), Reason.FLAGS),
        (altered(flags=0x8001), Reason.FLAGS),
        (FRAME[:-1], Reason.LENGTH),
        (FRAME + b"\0", Reason.LENGTH),
        (altered(checksum=0), Reason.CHECKSUM),
        (altered(flags=0), Reason.LENGTH),
        (altered(payload=2**32 - 1), Reason.TOO_LARGE),
        (altered(payload=10), Reason.COMPRESSION),
        (altered(payload=10_000), Reason.COMPRESSION),
        (altered(records=2**32 - 1, end=2**62), Reason.TOO_LARGE),
        (altered(records=0), Reason.SEQUENCE),
        (altered(records=len(EVERY_SORT) + 1), Reason.SEQUENCE),
        (altered(end=39), Reason.IDENTITY),
        (altered(end=2**64 - 1), Reason.IDENTITY),
        (altered(end=60), Reason.SEQUENCE),
        (altered(start=39), Reason.SEQUENCE),
        (altered(agent=0, boot=11), Reason.IDENTITY),
    ],
)
def test_each_fault_has_its_reason(frame: bytes, reason: Reason) -> None:
    assert reason_of(frame) == reason


def test_names_are_utf8_and_of_bounded_length() -> None:
    frame = bytearray(altered())
    frame[HEAD.size] = 0xFF
    frame[12:16] = struct.pack("<I", zlib.crc32(frame[16:], zlib.crc32(frame[:12])))
    assert reason_of(bytes(frame)) == Reason.IDENTITY
    longest = "é" * 60
    assert inspect(encode(pack(longest, "é" * 32, EVERY_SORT, seq_start=0))).identity.agent_id == longest


def test_limits_hold_before_anything_is_unpacked() -> None:
    assert reason_of(FRAME, Limits(frame_bytes=len(FRAME) - 1)) == Reason.TOO_LARGE
    size = inspect(FRAME).payload_bytes
    assert reason_of(FRAME, Limits(payload_bytes=size - 1)) == Reason.TOO_LARGE
    assert reason_of(FRAME, Limits(records=len(EVERY_SORT) - 1)) == Reason.TOO_LARGE
    assert len(decode(FRAME, Limits(len(FRAME), size, len(EVERY_SORT)))) == len(EVERY_SORT)
    with pytest.raises(Invalid, match="must be below"):
        Limits(payload_bytes=1 << 31)


def test_a_decompression_bomb_allocates_nothing() -> None:
    bomb = pa.Codec("zstd").compress(bytes(1 << 26), asbytes=True)
    identity = BatchIdentity("a", "b", 0, 0)
    frame = bytearray(wrap(identity, 1, bomb, level=None))
    before = pa.total_allocated_bytes()
    for declared in (100, 4096, 2**32 - 1):
        frame[10:12] = struct.pack("<H", 1)
        frame[20:24] = struct.pack("<I", declared)
        frame[12:16] = struct.pack("<I", zlib.crc32(frame[16:], zlib.crc32(frame[:12])))
        assert reason_of(bytes(frame)) in (Reason.COMPRESSION, Reason.TOO_LARGE)
    assert pa.total_allocated_bytes() <= before  # garbage of other tests may be freed meanwhile


def test_columns_that_take_no_bytes_are_bounded_too() -> None:
    """A column of zeros is one byte long, whatever its length: only counts and limits bound it."""
    counts = [0] * 17
    for place, count in ((3, 2**32 - 1), (11, 2**32 - 1), (12, 2**32 - 1), (0, 2**32 - 1), (4, 2), (6, 2)):
        wrong = list(counts)
        wrong[place] = count
        wrong[5] = 1
        wrong[4] = max(wrong[4], 1)
        frame = wrap(BatchIdentity("a", "b", 0, 0), 1, struct.pack("<17I", *wrong) + bytes(100), level=None)
        assert reason_of(frame) == Reason.COLUMN


def test_an_error_survives_pickling() -> None:
    with pytest.raises(FrameInvalid) as caught:
        decode(FRAME[:-1])
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.reason, again.http_status) == (str(caught.value), Reason.LENGTH, 400)


def test_the_same_batch_is_the_same_frame_however_its_labels_were_ordered() -> None:
    one: list[Record] = [Gauge("a", 1.0, 5, {"x": "1", "y": "2"}), Log("m", 5, attributes={"y": "2", "x": "1"})]
    other: list[Record] = [Gauge("a", 1.0, 5, {"y": "2", "x": "1"}), Log("m", 5, attributes={"x": "1", "y": "2"})]
    assert encode(pack("a", "b", one, seq_start=1)) == encode(pack("a", "b", other, seq_start=1))
    batch = pack("a", "b", one, seq_start=1)
    assert len(batch.label_sets.lengths) == 1
    assert encode(replace(batch, identity=BatchIdentity("a", "c", 1, 2))) != encode(batch)
