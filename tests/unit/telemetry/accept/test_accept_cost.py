"""What acceptance costs on its path: counted, exact."""

from holdfast.objects.client import Usage
from holdfast.sim.ingest_kit import submission
from holdfast.telemetry.accept.accept import Accepted, IdentityConflict
from holdfast.telemetry.accept.references import of_accepted
from tests.unit.telemetry.accept.accept_desk import AcceptDesk


async def test_a_new_batch_is_two_puts() -> None:
    desk, usage = AcceptDesk(), Usage()
    collector = desk.collector(usage=usage)
    answer = await collector.accept(submission(0))
    assert isinstance(answer, Accepted)
    assert usage.by_verb == {"put": 2}
    assert usage.requests("put", "raw-blobs") == usage.requests("put", "accepted") == 1


async def test_a_duplicate_is_one_put_and_one_get() -> None:
    desk, usage = AcceptDesk(), Usage()
    await desk.collector().accept(submission(0))
    answer = await desk.collector("collector-2", usage=usage).accept(submission(0))
    assert isinstance(answer, Accepted)
    assert answer.duplicate
    assert usage.by_verb == {"put": 1, "get": 1}


async def test_taking_up_bytes_that_were_left_behind_is_two_puts_and_one_get() -> None:
    desk, usage = AcceptDesk(), Usage()
    batch = submission(0)
    await desk.store().put(batch.blob_key, batch.body)
    answer = await desk.collector(usage=usage).accept(batch)
    assert isinstance(answer, Accepted)
    assert not answer.duplicate
    assert usage.by_verb == {"put": 2, "get": 1}


async def test_a_conflict_is_three_puts_and_one_get() -> None:
    desk, usage = AcceptDesk(), Usage()
    await desk.collector().accept(submission(0))
    answer = await desk.collector("collector-2", usage=usage).accept(submission(0, 1))
    assert isinstance(answer, IdentityConflict)
    assert usage.by_verb == {"put": 3, "get": 1}


async def test_the_derived_reference_is_one_put_after_the_answer() -> None:
    desk, usage = AcceptDesk(), Usage()
    collector = desk.collector(usage=usage)
    await collector.accept(submission(0))
    assert desk.families() == {"raw-blobs": 1, "accepted": 1}
    await collector.references.flush()
    assert usage.by_verb == {"put": 3}
    assert desk.families() == {"raw-blobs": 1, "accepted": 1, "accepted-by-time": 1}


async def test_batches_of_a_moment_are_gathered_into_one_put() -> None:
    desk, usage = AcceptDesk(), Usage()
    collector = desk.collector(usage=usage)
    for number in range(20):
        await collector.accept(submission(number))
    await collector.references.flush()
    assert usage.by_verb == {"put": 2 * 20 + 1}
    assert desk.families() == {"raw-blobs": 20, "accepted": 20, "acceptances": 1}


async def test_what_is_left_to_the_reconciler_follows_from_the_manifest_alone() -> None:
    desk = AcceptDesk()
    answer = await desk.collector().accept(submission(0))
    assert isinstance(answer, Accepted)
    families = [reference.key.partition("/")[0] for reference in of_accepted(answer.manifest)]
    assert families == ["accepted-by-time", "accepted-by-blob", "raw-blobs-by-time"]


async def test_bodies_of_any_size_are_one_put_to_the_stack() -> None:
    """Whether it goes up in parts is the backend's affair; a manifest never does."""
    desk, usage = AcceptDesk(), Usage()
    large = submission(0)
    large = type(large).of(large.identity, b"x" * (40 << 20))
    await desk.collector(usage=usage).accept(large)
    assert usage.by_verb == {"put": 2}
