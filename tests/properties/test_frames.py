"""Whatever records there are, a frame gives them back; whatever bytes there are, nothing but a valid frame is taken."""

import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.telemetry.frame import (
    Batch,
    FrameInvalid,
    Limits,
    Reason,
    Sequenced,
    decode,
    encode,
    inspect,
    pack_sequenced,
)
from holdfast.telemetry.frame.envelope import wrap
from holdfast.telemetry.frame.write import payload_of
from holdfast.telemetry.records import Counter, Gauge, Record
from tests.soak import SOAKING
from tests.unit.telemetry.frame import plain_frames
from tests.unit.telemetry.frame.frame_kit import EVERY_SORT, sequenced, show, shown

MUTANTS = 34_000 if SOAKING else 200
"""Of each seed and sort: a million in all for ``make soak``."""
LIMITS = Limits(frame_bytes=1 << 16, payload_bytes=1 << 18, records=10_000, elements=20_000)
SCRAPES: list[Record] = [
    record
    for time_ns in (1_760_000_000_000_000_000, 1_760_000_010_000_000_000, 1_760_000_020_000_000_007)
    for record in (Gauge("load", time_ns % 7 / 8, time_ns), Counter("bytes_total", time_ns % 11, time_ns, {"on": "a"}))
]
"""Series that are equally long, and times that stand in a table."""
levels = st.sampled_from([None, 1, 3])


@given(sequenced(), levels)
def test_records_come_back_to_the_last_bit(records: list[Sequenced], level: int | None) -> None:
    frame = encode(pack_sequenced("agent", "böot", records), level=level)
    batch = decode(frame)
    ordered = sorted(records, key=lambda each: each.seq)
    assert shown(batch)["records"] == [[each.seq, show(each.record)] for each in ordered]
    assert len(batch) == len(records)
    assert encode(batch, level=level) == frame
    assert inspect(frame).identity == batch.identity


@given(sequenced(), levels)
def test_a_reader_that_shares_no_code_reads_the_same(records: list[Sequenced], level: int | None) -> None:
    frame = encode(pack_sequenced("agent", "boot", records), level=level)
    assert plain_frames.read(frame) == shown(decode(frame))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FrameInvalid):
        decode(data)


@given(sequenced(), st.data())
def test_a_frame_that_was_changed_on_its_way_is_refused(records: list[Sequenced], data: st.DataObject) -> None:
    frame = encode(pack_sequenced("agent", "boot", records))
    changed = bytearray(frame)
    at = data.draw(st.integers(0, len(frame) - 1))
    changed[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(frame) - 1))
    for wrong in (bytes(changed), frame[:cut], frame + frame[:1], frame + frame):
        with pytest.raises(FrameInvalid):
            decode(wrong)


@given(st.lists(sequenced(), min_size=1, max_size=3), st.integers(0, 2**32))
def test_a_forged_payload_is_refused_or_read_alike(batches: list[list[Sequenced]], seed: int) -> None:
    """Here checksum and compression are right, and only the inside is wrong: each rule stands on its own."""
    rng = random.Random(seed)
    for records in batches:
        refused, taken = check_forgeries(pack_sequenced("agent", "boot", records), rng, rounds=20)
        assert refused + taken == 20


@pytest.mark.timeout(3600 if SOAKING else 120)  # a million take a quarter of an hour on a quiet machine
@pytest.mark.parametrize("seed", range(11, 21) if SOAKING else range(11, 16))
@pytest.mark.parametrize(
    "sort", [EVERY_SORT, EVERY_SORT[:8], SCRAPES], ids=["every sort", "samples alone", "scrapes alone"]
)
def test_mutated_frames_are_refused_or_read_alike(seed: int, sort: list[Record]) -> None:
    rng = random.Random(seed)
    records = [Sequenced(7 + seq, record) for seq, record in enumerate(sort)]
    batch = pack_sequenced("agent", "boot", records)
    refused, taken = check_forgeries(batch, rng, rounds=MUTANTS)
    print(f"{MUTANTS} mutants of seed {seed}: {refused} refused, {taken} taken and read alike")
    assert refused + taken == MUTANTS
    assert refused > taken > 0


def check_forgeries(batch: Batch, rng: random.Random, *, rounds: int) -> tuple[int, int]:
    payload, genuine = payload_of(batch), encode(batch)
    refused = taken = 0
    for _ in range(rounds):
        if rng.random() < 0.2:
            frame = sealed(mutate(genuine, rng))
        else:
            frame = wrap(batch.identity, len(batch), mutate(payload, rng), level=None if rng.random() < 0.9 else 1)
        found = tried(frame)
        if isinstance(found, Reason):
            refused += 1
            continue
        taken += 1
        meaning = shown(found)
        assert plain_frames.read(frame) == meaning
        assert shown(decode(encode(found))) == meaning
        assert found.identity == inspect(frame, LIMITS).identity
    return refused, taken


def tried(frame: bytes) -> Batch | Reason:
    try:
        return decode(frame, LIMITS)
    except FrameInvalid as error:
        return error.reason


def sealed(frame: bytes) -> bytes:
    """The frame with a checksum that is right."""
    return frame[:12] + struct.pack("<I", zlib.crc32(frame[16:], zlib.crc32(frame[:12]))) + frame[16:]


def mutate(payload: bytes, rng: random.Random) -> bytes:
    data = bytearray(payload)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                data[at : at + 1] = bytes([data[at] ^ 1 << rng.randrange(8)]) if data else b"\x00"
            case 2:
                del data[at : at + rng.randint(1, 8)]
            case 3:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case 4:
                size = rng.randint(1, 16)
                to = rng.randrange(len(data) + 1)
                data[to : to + size] = data[at : at + size]
            case _:
                data[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\1\0\0\0", b"\0\0\0\x80"])
    return bytes(data)
