"""What a client has taken stays in its hand, however a call ends, and counts once: against a collector over HTTP."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import errors
from holdfast.base.ids import Ambient
from holdfast.server.app import ingest_app
from holdfast.server.tokens import add_token, revoke_token
from holdfast.telemetry import (
    BatchConflict,
    BatchDenied,
    BatchRejected,
    Client,
    Gauge,
    Log,
    PendingFull,
    Undelivered,
    Unfinished,
)
from holdfast.telemetry.frame import inspect
from tests.unit.server.server_desk import ServerDesk, listening, server_desk

Hook = Callable[[], Awaitable[None]]


async def nothing() -> None:
    pass


class Door:
    """In front of a collector: knows who has passed, and stops them on the way in or out."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.bodies: list[bytes] = []
        self.way_in: Iterator[Hook] = iter(())
        self.way_out: Hook = nothing
        self.instead: tuple[int, bytes] | None = None
        """What a proxy in between says."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = {"more_body": True}
        body = b""
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
        self.bodies.append(body)
        await next(self.way_in, nothing)()
        if self.instead is not None:
            await send({"type": "http.response.start", "status": self.instead[0], "headers": []})
            await send({"type": "http.response.body", "body": self.instead[1]})
            return
        said: list[Any] = []
        answer = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> Any:
            return next(answer)

        async def hear(word: Any) -> None:
            said.append(word)

        await self._app(scope, again, hear)
        await self.way_out()
        for word in said:
            await send(word)

    @property
    def numbers(self) -> list[int]:
        """The first number of each batch that came, as often as it came."""
        return [inspect(body).identity.seq_start for body in self.bodies]


class Desk:
    def __init__(self, server: ServerDesk, door: Door, url: str, folder: Path) -> None:
        self.server, self.door, self.url, self.folder = server, door, url, folder

    def client(self, **options: Any) -> Client:
        options = {"token": self.server.token, "batch_records": 1, "tries": 1, **options}
        return Client(self.url, agent_id="web-1", **options)

    async def values(self) -> list[float]:
        """Every point that the collector has, as often as it counts."""
        live = await self.server.get("/api/v1/live?name=load&points=1000")
        return sorted(value for series in live["series"] for _, value in series["points"])


@asynccontextmanager
async def desk(folder: Path, **settings: Any) -> AsyncIterator[Desk]:
    async with server_desk(folder, **settings) as server:
        door = Door(ingest_app(server.service))
        async with listening(door) as url:
            yield Desk(server, door, url, folder)


def loads(*values: int) -> list[Gauge]:
    return [Gauge("load", float(value), value) for value in values]


def kept(client: Client) -> list[int]:
    """The first number of each batch that is in the client's hand."""
    return [inspect(frame).identity.seq_start for frame in client.pending]


async def test_a_token_that_is_revoked_on_the_way_loses_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        tokens, file = tmp_path / "tokens.toml", tmp_path / "token"
        row, secret = add_token(tokens, ("web-*",), Ambient.system())
        file.write_text(secret)
        await it.server.service.tokens.refresh()

        async def revoke() -> None:
            revoke_token(tokens, row.token_id)
            await it.server.service.tokens.refresh()

        it.door.way_in = iter([nothing, revoke])
        client = it.client(token=None, token_file=file)
        with pytest.raises(BatchDenied, match="delivered by this call: 1, kept for resend: 2") as caught:
            await client.send(loads(1, 2, 3))
        assert isinstance(caught.value, errors.Denied)
        assert [each.identity.seq_start for each in caught.value.delivered] == [0]
        assert kept(client) == [1, 2]
        assert caught.value.frames == client.pending
        file.unlink()
        file.write_text(it.server.token)
        receipt = await client.resend()
        assert [each.identity.seq_start for each in receipt.batches] == [1, 2]
        assert it.door.bodies[1] == it.door.bodies[2]
        assert kept(client) == []
        assert await it.values() == [1, 2, 3]
        assert it.server.service.metrics.batches("new") == 3


async def test_conflicts_are_handed_over_and_hold_up_no_other_batch(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        await it.client(boot_id="boot").send(loads(7, 8))
        client = it.client(boot_id="boot")
        with pytest.raises(BatchConflict, match="delivered by this call: 1, kept for resend: 0") as first:
            await client.send(loads(1, 2, 3))
        refused = [first.value, *first.value.others]
        assert [inspect(each.frame).identity.seq_start for each in refused] == [0, 1]
        assert first.value.details["reason"] == "identity_conflict"
        assert len(it.door.bodies) == 2 + 3  # each was sent once
        assert (await client.resend()).batches == ()
        assert kept(client) == []
        assert await it.values() == [3, 7, 8]


async def test_what_a_collector_rejects_is_handed_over(tmp_path: Path) -> None:
    async with desk(tmp_path, frame_bytes=1_000) as it:
        client = it.client()
        with pytest.raises(BatchRejected, match="413") as caught:
            await client.send([*loads(1), Log(os.urandom(2_000).hex(), 2), *loads(3)])
        assert isinstance(caught.value, errors.Invalid)
        assert inspect(caught.value.frame).identity.seq_start == 1
        assert len(caught.value.delivered) == 2
        assert kept(client) == []


@pytest.mark.parametrize("again", ["resend", "send"])
@pytest.mark.parametrize("landed", [True, False])
async def test_a_call_that_is_cut_off_counts_once(tmp_path: Path, again: str, landed: bool) -> None:
    async with desk(tmp_path) as it:
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def stall() -> None:
            reached.set()
            await go_on.wait()

        if landed:
            it.door.way_out = stall
        else:
            it.door.way_in = iter([stall])
        async with it.client(batch_records=2) as client:
            call = asyncio.create_task(client.send(loads(1, 2, 3)))
            await reached.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert kept(client) == [0, 2]
            it.door.way_out = nothing
            receipt = await (client.resend() if again == "resend" else client.send(loads(4)))
            expected = [(0, 1), (2, 2)] if again == "resend" else [(0, 1), (2, 2), (3, 3)]
            assert [(each.identity.seq_start, each.identity.seq_end) for each in receipt.batches] == expected
            assert receipt.batches[0].duplicate is landed
            assert kept(client) == []
        go_on.set()
        assert await it.values() == list(range(1, receipt.records + 1))


async def test_what_is_left_goes_first(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        it.door.instead = 502, b""
        client = it.client()
        with pytest.raises(Undelivered, match="delivered by this call: 0, kept for resend: 2"):
            await client.send(loads(1, 2))
        with pytest.raises(Undelivered, match="kept for resend: 3"):
            await client.send(loads(3))
        it.door.instead = None
        assert (await client.send(loads(4))).records == 4
        assert it.door.numbers == [0, 0, 0, 1, 2, 3]
        assert (await client.send([])).batches == ()


@pytest.mark.parametrize("status", [401, 403])
async def test_a_proxy_that_denies_decides_nothing(tmp_path: Path, status: int) -> None:
    async with desk(tmp_path) as it:
        it.door.instead = status, b"<html>"
        client = it.client(tries=2)
        with pytest.raises(Undelivered, match=f"{status} without the error document of a collector"):
            await client.send(loads(1))
        assert len(it.door.bodies) == 2
        it.door.instead = None
        await client.resend()
        assert await it.values() == [1]


async def test_no_more_is_taken_while_too_much_is_left(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        it.door.instead = 502, b""
        client = it.client(pending_bytes=150)
        for value in (1, 2):
            with pytest.raises(Undelivered):
                await client.send(loads(value))
        with pytest.raises(
            PendingFull, match=r"bytes of earlier calls are not delivered, .* these records were not taken; .* 502"
        ):
            await client.send(loads(3))
        assert (client.next_seq, kept(client)) == (2, [0, 1])
        it.door.instead = None
        assert (await client.send(loads(3))).records == 3
        assert await it.values() == [1, 2, 3]


async def test_a_refusal_is_raised_by_the_call_whose_batch_it_was(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        await it.client(boot_id="boot").send(loads(7))
        async with it.client(boot_id="boot") as client:
            came, go_on = asyncio.Event(), asyncio.Event()

            async def wait() -> None:
                came.set()
                await go_on.wait()

            it.door.way_in = iter([nothing, wait])
            refused = asyncio.ensure_future(client.send(loads(1, 2)))
            await came.wait()
            assert (await client.send(loads(3))).records == 1
            go_on.set()
            with pytest.raises(BatchConflict) as caught:
                await refused
            assert inspect(caught.value.frame).identity.seq_start == 0
            assert kept(client) == []


async def test_frames_of_an_error_can_be_sent_by_anybody_and_are_then_no_longer_left(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        it.door.instead = 502, b""
        client = it.client()
        with pytest.raises(Unfinished) as caught:
            await client.send(loads(1, 2))
        it.door.instead = None
        assert not (await it.client().send_frame(caught.value.frames[0])).duplicate
        assert (await client.send_frame(caught.value.frames[0])).duplicate
        assert client.pending == caught.value.frames[1:]
        await client.resend()
        assert await it.values() == [1, 2]


async def test_a_record_that_is_too_large_is_named_before_anything_is_sent(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        client = it.client(batch_bytes=1_000)
        with pytest.raises(errors.Invalid, match=r"record 1, the log '.*', is too large to be sent") as caught:
            await client.send([*loads(1), Log(os.urandom(2_000).hex(), 2)])
        assert not isinstance(caught.value, Unfinished)
        assert (client.next_seq, kept(client), it.door.bodies) == (0, [], [])
