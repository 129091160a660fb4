"""Events that a commit carries: visible with it, exactly once each, whichever process publishes them."""

from collections.abc import Sequence

import pytest

from holdfast.base.errors import HoldfastError, Invalid, Unavailable
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.manifest import Manifest
from holdfast.platform.open import Holdfast
from holdfast.platform.outbox import MARK, Outbox, envelopes
from holdfast.platform.session import Session
from tests.unit.ontology.plain import PlainWriter
from tests.unit.platform.kit import Invoice, InvoiceDue, platform, published


class Crashing(Outbox):
    """Dies before anything is published."""

    async def publish(self, manifest: Manifest) -> int:
        raise Unavailable("the process has died")


async def commit(hf: Holdfast, ids: Sequence[str], *, crash: bool = False) -> None:
    outbox = Crashing(hf.store, hf.ambient) if crash else None
    async with Session(hf.store, hf.ambient, [Invoice], outbox=outbox) as onto:
        for each in ids:
            onto.ensure(Invoice(id=each, amount=1))
            onto.emit(InvoiceDue(order_id=each))
            await onto.commit()


async def test_an_event_is_part_of_the_commit_and_follows_from_its_manifest() -> None:
    async with platform() as hf:
        await commit(hf, ["o1"])
        place = (await read_head(hf.store)).place
        assert place is not None
        (answer,) = envelopes(await Chain(hf.store).manifest(place))
        (event,) = await published(hf, "invoice.due")
        assert event == answer
        assert event.payload == {"order_id": "o1"}


async def test_a_commit_without_events_takes_three_requests_and_one_with_k_events_k_more() -> None:
    async with platform() as hf, hf.ontology(Invoice) as onto:
        onto.ensure(Invoice(id="o1", amount=1))
        await onto.commit()
        counts = []
        for number in range(3):
            before = hf.store.usage.requests()
            onto.ensure(Invoice(id=f"n{number}", amount=1))
            for _ in range(number):
                onto.emit(InvoiceDue(order_id="o"))
            await onto.commit()
            counts.append(hf.store.usage.requests() - before)
        assert counts == [3, 4, 5]


async def test_events_alone_make_a_commit() -> None:
    async with platform() as hf, hf.ontology(Invoice) as onto:
        onto.emit(InvoiceDue(order_id="o1"), namespace="billing", delay=60, priority=7, order_key="k")
        answer = await onto.commit()
        assert answer is not None
        assert answer.rows == 0
        (event,) = await published(hf, "invoice.due", "billing")
        assert (event.priority, event.order_key) == (7, "k")
        assert event.available_ns == event.created_ns + 60 * 10**9


async def test_what_a_crash_left_out_is_published_once_by_the_next_process() -> None:
    async with platform() as hf:
        await commit(hf, ["o1", "o2"], crash=True)
        assert await published(hf, "invoice.due") == []
        assert await hf.bus()._mend() == 2  # type: ignore[misc]  # it is the platform's bus: it has one
        assert [event.payload["order_id"] for event in reversed(await published(hf, "invoice.due"))] == ["o1", "o2"]
        await commit(hf, ["o3"])
        for _ in range(2):
            await Outbox(hf.store, hf.ambient).mend()
        assert len(await published(hf, "invoice.due")) == 3


async def test_mending_reads_only_what_is_new() -> None:
    async with platform() as hf:
        await commit(hf, [f"o{number}" for number in range(30)])
        outbox = Outbox(hf.store, hf.ambient)
        await outbox.mend()
        before = hf.store.usage.requests()
        assert await outbox.mend() == 0
        assert hf.store.usage.requests() - before == 1
        await commit(hf, ["x1"], crash=True)
        fresh = Outbox(hf.store, hf.ambient)
        before = hf.store.usage.requests()
        assert await fresh.mend() == 1
        # head, its manifest and base, the mark twice (read, edit), the event, the mark
        assert hf.store.usage.requests() - before <= 7


async def test_an_aborted_commit_publishes_nothing() -> None:
    async with platform() as hf:
        async with hf.ontology(Invoice) as onto:
            onto.ensure(Invoice(id="o1", amount=1))
            onto.emit(InvoiceDue(order_id="o1"))
            with pytest.raises(HoldfastError):
                await onto.commit(if_head=7)
            assert onto.discard() == 2
        assert await published(hf, "invoice.due") == []


async def test_a_session_that_is_left_with_events_complains() -> None:
    async with platform() as hf:
        with pytest.raises(Invalid, match="never committed"):
            async with hf.ontology(Invoice) as onto:
                onto.emit(InvoiceDue(order_id="o1"))


async def test_cleanup_waits_for_what_is_not_published() -> None:
    async with platform() as hf:
        await commit(hf, ["o1"], crash=True)
        await hf.bus().cleanup(before_ns=hf.ambient.clock.wall_ns())
        assert len(await published(hf, "invoice.due")) == 1


async def test_a_plain_writer_in_between_hides_nothing() -> None:
    async with platform() as hf:
        await commit(hf, ["o1"], crash=True)
        rows = [("p1", {"id": "p1", "amount": 2})]
        await PlainWriter(hf.store).commit({("entity", "Invoice"): rows})
        await commit(hf, ["o2"], crash=True)
        assert await Outbox(hf.store, hf.ambient).mend() == 2
        assert len(await published(hf, "invoice.due")) == 2
        found = await hf.store.get(MARK)
        assert b'"commit_id":3' in found.body
