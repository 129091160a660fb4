"""Records that a client has taken stay pending, however a call ends, and count once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import errors
from holdfast.telemetry import (
    BatchConflict,
    BatchDenied,
    Client,
    Gauge,
    PendingFull,
    Undelivered,
    Unfinished,
)
from holdfast.telemetry.frame import inspect
from tests.unit.server.server_desk import listening
from tests.unit.telemetry.agent.fake_collector import FakeCollector, nothing


class Desk:
    def __init__(self, collector: FakeCollector, url: str) -> None:
        self.collector, self.url = collector, url

    def client(self, **options: Any) -> Client:
        return Client(self.url, agent_id="web-1", **{"token": "t", "batch_records": 1, "tries": 1, **options})


@asynccontextmanager
async def desk(**options: Any) -> AsyncIterator[Desk]:
    collector = FakeCollector(**options)
    async with listening(collector) as url:
        yield Desk(collector, url)


def loads(*values: int) -> list[Gauge]:
    return [Gauge("load", float(value), value) for value in values]


def kept(client: Client) -> list[int]:
    """The first number of each pending batch."""
    return [inspect(frame).identity.seq_start for frame in client.pending]


async def test_a_token_that_is_revoked_between_two_batches_loses_nothing(tmp_path: Path) -> None:
    async with desk() as it:
        (file := tmp_path / "token").write_text("t")

        async def revoke() -> None:
            it.collector.token = "new"

        it.collector.before = iter([nothing, revoke])
        client = it.client(token=None, token_file=file)
        with pytest.raises(BatchDenied, match="delivered by this call: 1, kept for resend: 2") as caught:
            await client.send(loads(1, 2, 3))
        assert isinstance(caught.value, errors.Denied)
        assert [each.identity.seq_start for each in caught.value.delivered] == [0]
        assert kept(client) == [1, 2]
        assert caught.value.frames == client.pending
        file.unlink()
        file.write_text("new")
        receipt = await client.resend()
        assert [each.identity.seq_start for each in receipt.batches] == [1, 2]
        assert it.collector.bodies[1] == it.collector.bodies[2]
        assert kept(client) == []
        assert it.collector.values() == [1, 2, 3]


async def test_conflicting_batches_are_in_the_errors_and_the_others_are_sent() -> None:
    async with desk() as it:
        await it.client(boot_id="boot").send(loads(7, 8))
        client = it.client(boot_id="boot")
        with pytest.raises(BatchConflict, match="delivered by this call: 1, kept for resend: 0") as first:
            await client.send(loads(1, 2, 3))
        refused = [first.value, *first.value.others]
        assert [inspect(each.frame).identity.seq_start for each in refused] == [0, 1]
        assert first.value.details["reason"] == "identity_conflict"
        assert len(it.collector.bodies) == 2 + 3  # each was sent once
        assert (await client.resend()).batches == ()
        assert kept(client) == []
        assert it.collector.values() == [3, 7, 8]


@pytest.mark.parametrize("again", ["resend", "send"])
@pytest.mark.parametrize("landed", [True, False])
async def test_a_call_that_is_cut_off_counts_once(again: str, landed: bool) -> None:
    async with desk() as it:
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def stall() -> None:
            reached.set()
            await go_on.wait()

        if landed:
            it.collector.after = stall
        else:
            it.collector.before = iter([stall])
        async with it.client(batch_records=2) as client:
            call = asyncio.create_task(client.send(loads(1, 2, 3)))
            await reached.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert kept(client) == [0, 2]
            it.collector.after = nothing
            receipt = await (client.resend() if again == "resend" else client.send(loads(4)))
            expected = [(0, 1), (2, 2)] if again == "resend" else [(0, 1), (2, 2), (3, 3)]
            assert [(each.identity.seq_start, each.identity.seq_end) for each in receipt.batches] == expected
            assert receipt.batches[0].duplicate is landed
            assert kept(client) == []
        go_on.set()
        assert it.collector.values() == list(range(1, receipt.records + 1))


async def test_pending_batches_are_sent_first() -> None:
    async with desk() as it:
        it.collector.instead = 502, b""
        client = it.client()
        with pytest.raises(Undelivered, match="delivered by this call: 0, kept for resend: 2"):
            await client.send(loads(1, 2))
        with pytest.raises(Undelivered, match="kept for resend: 3"):
            await client.send(loads(3))
        it.collector.instead = None
        assert (await client.send(loads(4))).records == 4
        assert it.collector.numbers == [0, 0, 0, 1, 2, 3]
        assert (await client.send([])).batches == ()


async def test_no_records_are_taken_while_too_much_is_pending() -> None:
    async with desk() as it:
        it.collector.instead = 502, b""
        client = it.client(pending_bytes=150)
        for value in (1, 2):
            with pytest.raises(Undelivered):
                await client.send(loads(value))
        with pytest.raises(
            PendingFull, match=r"bytes of earlier calls are not delivered, .* these records were not taken; .* 502"
        ):
            await client.send(loads(3))
        assert (client.next_seq, kept(client)) == (2, [0, 1])
        it.collector.instead = None
        assert (await client.send(loads(3))).records == 3
        assert it.collector.values() == [1, 2, 3]


async def test_a_refusal_is_raised_by_the_call_whose_batch_it_was() -> None:
    async with desk() as it:
        await it.client(boot_id="boot").send(loads(7))
        async with it.client(boot_id="boot") as client:
            came, go_on = asyncio.Event(), asyncio.Event()

            async def wait() -> None:
                came.set()
                await go_on.wait()

            it.collector.before = iter([nothing, wait])
            refused = asyncio.ensure_future(client.send(loads(1, 2)))
            await came.wait()
            assert (await client.send(loads(3))).records == 1
            go_on.set()
            with pytest.raises(BatchConflict) as caught:
                await refused
            assert inspect(caught.value.frame).identity.seq_start == 0
            assert kept(client) == []


async def test_frames_of_an_error_can_be_sent_by_any_client() -> None:
    async with desk() as it:
        it.collector.instead = 502, b""
        client = it.client()
        with pytest.raises(Unfinished) as caught:
            await client.send(loads(1, 2))
        it.collector.instead = None
        assert not (await it.client().send_frame(caught.value.frames[0])).duplicate
        assert (await client.send_frame(caught.value.frames[0])).duplicate
        assert client.pending == caught.value.frames[1:]
        await client.resend()
        assert it.collector.values() == [1, 2]
