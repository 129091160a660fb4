"""Acceptance, answer by answer."""

import json
from typing import Any

import pytest

from holdfast.base.errors import Ambiguous, Corrupt, Incompatible, Invalid, Refused, Unavailable
from holdfast.objects.store import CREATE, Object, Version
from holdfast.sim import ingest_kit as kit
from holdfast.sim.ingest_kit import submission
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Accepted, IdentityConflict, Submission
from holdfast.telemetry.accept.authority import Acceptance
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.accept.conflicts import conflicts
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.discover import Stray, resolve
from tests.unit.telemetry.accept.accept_desk import AcceptDesk

VARYING = ("write_id", "accepted_at_unix_ns", "records_from_unix_ns", "records_until_unix_ns")


async def test_a_new_batch_is_accepted_with_its_bytes_and_its_effects() -> None:
    desk = AcceptDesk()
    batch = submission(1)
    answer = await desk.collector().accept(batch)
    assert isinstance(answer, Accepted)
    assert not answer.duplicate
    assert desk.shelf.objects[answer.manifest.raw_blob_key].body == batch.body
    assert desk.effects == [("collector-1", batch.frame_sha256)]
    document: dict[str, Any] = json.loads(desk.shelf.objects[layout.accepted_key(batch.identity)].body)
    assert AcceptedManifest.read(await desk.store().get(layout.accepted_key(batch.identity))) == answer.manifest
    assert {name: document[name] for name in document if name not in VARYING} == {
        "schema": "lightmetrics.accepted_batch.v1",
        "agent_id": "agent",
        "boot_id": "boot",
        "seq_start": 10,
        "seq_end": 19,
        "frame_sha256": batch.frame_sha256,
        "frame_bytes": len(batch.body),
        "raw_blob_key": batch.blob_key,
        "collector_id": "collector-1",
        "wire_version": 1,
        "frame_version": 1,
        "authority_id": "authority",
        "records": {"metrics": 10},
    }


async def test_a_duplicate_has_no_effects_wherever_it_arrives() -> None:
    desk = AcceptDesk()
    first = await desk.collector().accept(submission(1))
    again = await desk.collector("collector-2").accept(submission(1))
    assert isinstance(first, Accepted)
    assert again == Accepted(first.manifest, duplicate=True)
    assert len(desk.effects) == 1


async def test_a_conflict_is_on_record_with_the_time_of_its_first_sight() -> None:
    desk = AcceptDesk()
    await desk.collector().accept(submission(1))
    first = await desk.collector("collector-2").accept(submission(1, 1))
    again = await desk.collector("collector-3").accept(submission(1, 1))
    assert isinstance(first, IdentityConflict)
    assert first.quarantine is not None
    assert again == first
    assert first.quarantine.collector_id == "collector-2"
    assert first.quarantine.accepted_frame_sha256 == submission(1).frame_sha256
    assert desk.shelf.objects[first.quarantine.submitted_raw_blob_key].body == submission(1, 1).body
    assert [found async for found in conflicts(desk.store())] == [first.quarantine]
    assert [found async for found in conflicts(desk.store(), agent_id="other")] == []
    assert len(desk.effects) == 1


async def test_a_conflict_that_cannot_be_recorded_is_a_conflict_all_the_same() -> None:
    desk = AcceptDesk()
    await desk.collector().accept(submission(1))
    collector = desk.collector("collector-2", "ok", "ok", "ok", "busy", "busy", "busy")
    answer = await collector.accept(submission(1, 1))
    assert isinstance(answer, IdentityConflict)
    assert answer.quarantine is None


@pytest.mark.parametrize("script", [("busy",) * 6, ("drop",) * 18, ("ok", "ok", "busy", "busy", "busy")])
async def test_a_store_that_fails_before_the_manifest_has_accepted_nothing(script: tuple[str, ...]) -> None:
    desk = AcceptDesk()
    with pytest.raises(Unavailable) as caught:
        await desk.collector("collector-1", *script).accept(submission(1))
    assert not caught.value.maybe_applied
    assert desk.effects == []
    assert "accepted" not in desk.families()
    assert await desk.collector("collector-2").accept(submission(1)) is not None
    assert desk.families()["accepted"] == 1


async def test_an_attempt_in_doubt_is_known_again_when_it_turns_out_to_have_landed() -> None:
    desk = AcceptDesk()
    collector = desk.collector("collector-1", "ok", "ok", "late", attempts=1)
    with pytest.raises(Ambiguous, match="may or may not be accepted") as caught:
        await collector.accept(submission(1))
    assert caught.value.remedy == "send the same batch again"
    assert desk.effects == []
    answer = await collector.accept(submission(1))  # the late write lands before this one's first put
    assert isinstance(answer, Accepted)
    assert not answer.duplicate
    again = await collector.accept(submission(1))
    assert isinstance(again, Accepted)
    assert again.duplicate
    assert len(desk.effects) == 1


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        (b"nonsense", Corrupt, "not JSON"),
        (b'{"schema": "lightmetrics.accepted_batch.v9"}', Incompatible, "v9"),
        (b'{"schema": "lightmetrics.accepted_batch.v1"}', Corrupt, "agent_id"),
        (None, Corrupt, "is that of agent/boot 20-29"),
    ],
)
async def test_a_manifest_that_cannot_be_read_or_of_another_batch_is_neither_duplicate_nor_conflict(
    body: bytes | None, error: type[Exception], says: str
) -> None:
    desk = AcceptDesk()
    await desk.collector().accept(submission(2))
    misplaced = desk.shelf.objects[layout.accepted_key(submission(2).identity)].body
    await desk.store().put(layout.accepted_key(submission(1).identity), misplaced if body is None else body, CREATE)
    with pytest.raises(error, match=says):
        await desk.collector().accept(submission(1))


async def test_a_batch_whose_manifest_has_an_impossible_time_is_a_duplicate_that_is_not_found_by_time() -> None:
    desk, batch = AcceptDesk(), submission(1)
    odd = batch.manifest(accepted_at_unix_ns=10**21, collector_id="another", authority_id="a", write_id="w" * 8)
    await desk.store().put(batch.blob_key, batch.body)
    await desk.store().put(odd.key, odd.encode(), CREATE)
    answer = await desk.collector().accept(batch)
    assert isinstance(answer, Accepted)
    assert answer.duplicate
    [reference] = [key for key in desk.shelf.objects if key.startswith(layout.ACCEPTED_BY_TIME)]
    assert await resolve(desk.store(), reference) is Stray.OTHER_ACCEPTANCE


def test_the_hash_that_was_declared_and_the_mode_of_the_authority_must_be_right() -> None:
    batch, desk = submission(1), AcceptDesk()
    assert Submission.of(batch.identity, batch.body, declared_sha256=batch.frame_sha256.upper()).body == batch.body
    with pytest.raises(Invalid, match="was declared"):
        Submission.of(batch.identity, b"abd", declared_sha256=batch.frame_sha256)
    with pytest.raises(Refused, match="local_spool"):
        Collector(desk.store(), desk.ambient(), kit.authority(Acceptance.LOCAL_SPOOL), CollectorOptions("collector-1"))


def test_the_specification_s_own_manifests_are_read() -> None:
    identity = {"agent_id": "agent-a", "boot_id": "boot-uuid", "seq_start": 10, "seq_end": 20}
    batch = submission(1)
    key = layout.accepted_key(type(batch.identity)("agent-a", "boot-uuid", 10, 20))
    assert key == (
        "accepted/v1/agent=6167656e742d61/boot=626f6f742d75756964/00000000000000000010-00000000000000000020.json"
    )
    plain = {
        "schema": "lightmetrics.accepted_batch.v1",
        **identity,
        "frame_sha256": batch.frame_sha256,
        "frame_bytes": 12345,
        "raw_blob_key": batch.blob_key,
        "accepted_at_unix_ns": 1760000000000000000,
        "collector_id": "collector-1",
        "wire_version": 1,
        "frame_version": 1,
    }
    found = AcceptedManifest.read(stored(key, plain))
    assert (found.identity.agent_id, found.write_id, found.records) == ("agent-a", None, {})
    assert found.document() == plain
    conflict = {
        "schema": "lightmetrics.identity_conflict.v1",
        **identity,
        "accepted_manifest_key": key,
        "accepted_raw_blob_key": batch.blob_key,
        "accepted_frame_sha256": batch.frame_sha256,
        "submitted_raw_blob_key": submission(2).blob_key,
        "submitted_frame_sha256": submission(2).frame_sha256,
        "observed_at_unix_ns": 1760000000000000000,
        "collector_id": "collector-2",
    }
    where = layout.conflict_key(found.identity, submission(2).frame_sha256)
    assert ConflictManifest.read(stored(where, conflict)).document() == conflict


def stored(key: str, document: dict[str, Any]) -> Object:
    return Object(key, json.dumps(document).encode(), 0, Version(""))
