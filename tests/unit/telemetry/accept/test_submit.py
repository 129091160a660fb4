"""Real frames on their way to acceptance."""

import hashlib

import pytest

from holdfast.base.errors import Invalid
from holdfast.telemetry.accept.accept import Accepted, inspect_frame, submission_of
from holdfast.telemetry.accept.orphans import Fate, OrphanKeeper
from holdfast.telemetry.frame import decode, encode, pack
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.records import Gauge, Log, Record
from tests.unit.telemetry.accept.accept_desk import AcceptDesk


def frame(agent_id: str = "web-1") -> bytes:
    records: list[Record] = [Gauge("load", 1.5, 1_000), Gauge("load", 2.5, 2_000), Log("started", 1_500)]
    return encode(pack(agent_id, "boot", records, seq_start=10))


async def test_a_frame_is_accepted_under_its_own_identity_and_found_again_by_its_bytes() -> None:
    desk, body = AcceptDesk(), frame()
    submitted = submission_of(body, decode(body), declared_sha256=hashlib.sha256(body).hexdigest())
    answer = await desk.collector().accept(submitted)
    assert isinstance(answer, Accepted)
    assert answer.manifest.identity == BatchIdentity("web-1", "boot", 10, 12)
    assert answer.manifest.records == {"samples": 2, "logs": 1}
    head = inspect_frame(desk.shelf.objects[answer.manifest.raw_blob_key].body)
    assert head is not None
    assert head.identity == answer.manifest.identity


async def test_a_frame_that_was_left_behind_is_adopted() -> None:
    desk, body = AcceptDesk(), frame()
    submitted = submission_of(body, decode(body))
    await desk.store().put(submitted.blob_key, body)
    keeper = OrphanKeeper(desk.store(), desk.ambient(), inspect_frame, collector_id="keeper")
    treated = await keeper.treat(submitted.blob_key)
    assert treated.fate is Fate.ADOPT
    assert treated.accepted is not None
    assert (treated.accepted.identity, treated.accepted.records) == (submitted.identity, {"total": 3})


def test_other_bytes_have_no_head() -> None:
    assert inspect_frame(b"") is None
    assert inspect_frame(frame()[:-1]) is None


@pytest.mark.parametrize("name", ["a" * 121, "tab\there", ""])
def test_a_name_that_no_key_can_hold_is_refused_before_it_is_a_frame(name: str) -> None:
    with pytest.raises(Invalid, match="agent id"):
        frame(name)


def test_the_longest_names_are_accepted() -> None:
    body = frame("a" * 120)
    assert submission_of(body, decode(body)).identity.agent_id == "a" * 120
