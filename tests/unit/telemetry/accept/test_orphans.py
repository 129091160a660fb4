"""Blobs without a manifest: what each becomes, and that nothing is taken that could still be accepted."""

import pytest

from holdfast.base.errors import Invalid
from holdfast.objects.client import Usage
from holdfast.sim.ingest_kit import submission
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Accepted, IdentityConflict
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.orphans import Fate, OrphanKeeper
from holdfast.telemetry.identity import BatchIdentity
from tests.unit.telemetry.accept.accept_desk import AcceptDesk


def keeper(desk: AcceptDesk, *, resolved: bool = False, held: bool = False, usage: Usage | None = None) -> OrphanKeeper:
    async def may_go(*_: object) -> bool:
        return resolved

    def is_held(_: BatchIdentity) -> bool:
        return held

    return OrphanKeeper(desk.store(usage=usage), desk.ambient(), collector_id="keeper", may_go=may_go, held=is_held)


async def test_looking_at_a_blob_is_two_or_three_reads_and_at_most_one_write() -> None:
    desk = AcceptDesk()
    for batch in (submission(1), submission(1, 1)):
        await desk.store().put(batch.blob_key, batch.body)
    costs = []
    for batch in (submission(1), submission(1), submission(1, 1), submission(1, 1)):
        usage = Usage()
        found = await keeper(desk, usage=usage).treat(batch.blob_key)
        costs.append((found, usage.by_verb))
    assert costs == [
        (Fate.ADOPT, {"get": 2, "put": 1}),
        (Fate.REFERENCED, {"get": 3}),
        (Fate.RECORD, {"get": 3, "put": 1}),
        (Fate.EVIDENCE, {"get": 3}),
    ]
    adopted = AcceptedManifest.read(await desk.store().get(layout.accepted_key(submission(1).identity)))
    assert adopted.collector_id == "keeper"
    assert await desk.collector().accept(submission(1)) == Accepted(adopted, duplicate=True)
    assert desk.effects == []
    held = submission(2)
    await desk.store().put(held.blob_key, held.body)
    assert await keeper(desk, held=True).treat(held.blob_key) is Fate.HELD


async def test_the_loser_of_a_conflict_is_kept_on_record_and_goes_after_that_once_it_is_resolved() -> None:
    desk, loser = AcceptDesk(), submission(1, 1)
    await desk.collector().accept(submission(1))
    await desk.store().put(loser.blob_key, loser.body)
    assert await keeper(desk).treat(loser.blob_key) is Fate.RECORD
    assert layout.conflict_key(loser.identity, loser.frame_sha256) in desk.shelf.objects
    assert await keeper(desk).treat(loser.blob_key) is Fate.EVIDENCE
    assert loser.blob_key in desk.shelf.objects
    assert await keeper(desk, resolved=True).treat(loser.blob_key) is Fate.REMOVE
    assert loser.blob_key not in desk.shelf.objects
    assert layout.conflict_key(loser.identity, loser.frame_sha256) not in desk.shelf.objects
    assert await keeper(desk, resolved=True).treat(loser.blob_key) is Fate.GONE
    answer = await desk.collector().accept(loser)
    assert isinstance(answer, IdentityConflict)
    assert answer.quarantine is not None
    assert loser.blob_key in desk.shelf.objects  # sent again: on record again, with its bytes


@pytest.mark.parametrize("body", [b"no frame", submission(2).body])
async def test_bytes_that_are_no_frame_or_not_those_of_their_name_are_left_alone(body: bytes) -> None:
    desk, key = AcceptDesk(), submission(1).blob_key
    await desk.store().put(key, body)
    assert await keeper(desk, resolved=True).treat(key) is Fate.FOREIGN
    assert desk.families() == {"raw-blobs": 1}
    with pytest.raises(Invalid, match="not the key of a raw blob"):
        await keeper(desk).treat("accepted/v1/x.json")
