"""Frames of every version that was ever written, as they were written. These files are never made anew."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from holdfast.telemetry.frame import decode, inspect
from holdfast.telemetry.frame.envelope import unwrap
from holdfast.telemetry.frame.write import payload_of
from tests.unit.telemetry.frame import plain_frames
from tests.unit.telemetry.frame.frame_kit import EVERY_SORT, show, shown

GOLDEN = Path(__file__).parents[3] / "golden" / "frames"
HASHES = {
    "v1-gaps": "639394e95e85ca56",
    "v1-host": "13f34abbd920c58e",
    "v1-uncompressed": "445f090de655a527",
    "v1-every-sort": "64445041c83d85d8",
}


@pytest.mark.parametrize("name", HASHES)
def test_a_golden_frame_reads_as_it_always_did(name: str) -> None:
    frame = (GOLDEN / f"{name}.hff").read_bytes()
    expected = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    assert sha256(frame).hexdigest().startswith(HASHES[name])
    assert shown(decode(frame)) == expected
    assert plain_frames.read(frame) == expected
    # The payload, not the frame, would be the same today: another zstd may compress the same bytes in another way.
    assert payload_of(decode(frame)) == unwrap(frame, inspect(frame)).tobytes()


def test_a_golden_frame_holds_the_records_that_it_was_made_from_and_none_is_left_out() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(HASHES)
    frame = (GOLDEN / "v1-every-sort.hff").read_bytes()
    assert [show(each.record) for each in decode(frame).records()] == [show(record) for record in EVERY_SORT]
    assert str(inspect(frame).identity) == "web-1/6f9c1a2e-boot 40-54"
