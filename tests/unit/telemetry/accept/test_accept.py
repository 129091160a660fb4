"""Acceptance, answer by answer."""

import json
from typing import Any

import pytest

from holdfast.base import codec
from holdfast.base.errors import Corrupt, Incompatible, Invalid
from holdfast.objects.store import CREATE, Object, Version
from holdfast.sim.ingest_kit import submission
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Accepted, IdentityConflict, Submission
from holdfast.telemetry.accept.conflicts import conflicts
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
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
        "records": {"samples": 10},
    }


async def test_a_conflict_is_recorded_once_with_the_time_of_the_first_submission() -> None:
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


async def test_a_conflict_that_cannot_be_recorded_is_still_answered() -> None:
    desk = AcceptDesk()
    await desk.collector().accept(submission(1))
    collector = desk.collector("collector-2", "ok", "ok", "ok", "busy", "busy", "busy")
    answer = await collector.accept(submission(1, 1))
    assert isinstance(answer, IdentityConflict)
    assert answer.quarantine is None


def changed(**fields: object) -> bytes:
    """The manifest of submission 1 with other fields."""
    manifest = submission(1).manifest(accepted_at_unix_ns=1, collector_id="c")
    return codec.encode({**manifest.document(), **fields})


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        (b"nonsense", Corrupt, "not JSON"),
        (b'{"schema": "lightmetrics.accepted_batch.v9"}', Incompatible, "v9"),
        (b'{"schema": "lightmetrics.accepted_batch.v1"}', Corrupt, "agent_id"),
        (changed(accepted_at_unix_ns=10**21), Corrupt, "accepted_at_unix_ns: Input should be less than"),
        (changed(frame_sha256="AB" * 32), Corrupt, "frame_sha256"),
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


def test_the_hash_that_was_declared_must_be_right() -> None:
    batch = submission(1)
    assert Submission.of(batch.identity, batch.body, declared_sha256=batch.frame_sha256.upper()).body == batch.body
    with pytest.raises(Invalid, match="was declared"):
        Submission.of(batch.identity, b"abd", declared_sha256=batch.frame_sha256)


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
