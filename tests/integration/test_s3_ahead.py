"""Requests that are signed before their object is asked for: only who asks for exactly that takes one."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.base.clock import SystemClock
from holdfast.objects.cloud import CloudStore
from holdfast.objects.cloud.sigv4 import Signer
from holdfast.objects.store import ADDRESSED, CREATE, OVERWRITE, IfMatch, Mode, Version, Written
from tests.integration.scripted_server import Answer, ScriptedServer
from tests.integration.test_s3_direct import store_at

WRITTEN = Answer(200, b"", {"etag": '"e1"'})


@asynccontextmanager
async def written() -> AsyncIterator[tuple[CloudStore, ScriptedServer]]:
    """A store whose every write succeeds, and the server that it is on."""
    async with ScriptedServer(WRITTEN) as server, store_at(server.endpoint) as store:
        yield store, server


@pytest.fixture
def signed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies of all requests that were signed."""
    bodies: list[bytes] = []
    sign = Signer.signed

    def noted(signer: Signer, method: str, path: str, headers: dict[str, str], body: bytes) -> dict[str, str]:
        bodies.append(body)
        return sign(signer, method, path, headers, body)

    monkeypatch.setattr(Signer, "signed", noted)
    return bodies


async def put(store: CloudStore, server: ScriptedServer, body: bytes, mode: Mode) -> None:
    """The request that arrives has these bytes, signed, and the condition that was meant."""
    assert await store.put("a=b/c", body, mode) == Written(Version('"e1"'))
    request = server.requests[-1]
    assert request.target == "/bucket/a%3Db/c"
    assert request.headers["x-amz-content-sha256"] == hashlib.sha256(body).hexdigest()
    assert request.headers.get("if-none-match") == ("*" if mode in (CREATE, ADDRESSED) else None)
    assert request.headers.get("if-match") == ('"e0"' if isinstance(mode, IfMatch) else None)


@pytest.mark.parametrize("mode", [CREATE, ADDRESSED])
async def test_it_is_signed_while_nobody_waits(mode: Mode, signed: list[bytes]) -> None:
    async with written() as (store, server):
        with store.ahead("a=b/c", b"1"):
            await asyncio.sleep(0)
            assert signed == [b"1"]
            await put(store, server, b"1", mode)
            assert signed == [b"1"]
            await put(store, server, b"1", mode)  # once more, as after an answer that was lost
            assert signed == [b"1", b"1"]


async def test_who_does_not_wait_is_not_served_twice(signed: list[bytes]) -> None:
    async with written() as (store, server):
        with store.ahead("a=b/c", b"1"):
            await put(store, server, b"1", CREATE)
            await asyncio.sleep(0)
        assert signed == [b"1"]


@pytest.mark.parametrize(
    ("body", "mode"),
    [(b"2", CREATE), (b"2", ADDRESSED), (b"1", OVERWRITE), (b"1", IfMatch(Version('"e0"')))],
    ids=["other bytes", "other bytes by address", "whatever is there", "if it is as before"],
)
async def test_others_sign_for_themselves(body: bytes, mode: Mode, signed: list[bytes]) -> None:
    async with written() as (store, server):
        with store.ahead("a=b/c", b"1"):
            await asyncio.sleep(0)
            await put(store, server, body, mode)
            assert signed == [b"1", body]


class Shifted(SystemClock):
    seconds = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.seconds * 1_000_000_000


@pytest.mark.parametrize("seconds", [61, 3_600, -3_600])
async def test_a_signature_is_not_sent_when_the_clock_has_gone_on_or_was_set(seconds: int, signed: list[bytes]) -> None:
    async with written() as (store, server):
        assert store._client.direct is not None
        clock = store._client.direct._ready.clock = Shifted()
        with store.ahead("a=b/c", b"1"):
            await asyncio.sleep(0)
            clock.seconds = seconds
            await put(store, server, b"1", CREATE)
        assert signed == [b"1", b"1"]


async def test_another_loop_signs_for_itself(signed: list[bytes]) -> None:
    async with written() as (store, _):
        with store.ahead("a=b/c", b"1"):
            await asyncio.sleep(0)
            elsewhere = await asyncio.to_thread(lambda: asyncio.run(store.put("a=b/c", b"1", CREATE)))
            assert elsewhere == Written(Version('"e1"'))
            assert signed == [b"1", b"1"]


async def test_what_nobody_asks_for_leaves_nothing(signed: list[bytes]) -> None:
    async with written() as (store, server):
        with store.ahead("a=b/c", b"1"):
            await asyncio.sleep(0)
        with store.ahead("a=b/c", b"2"):
            pass  # left before the loop has turned
        await asyncio.sleep(0)
        assert signed == [b"1"]
        assert store._client.direct is not None
        assert not store._client.direct._ready.waiting
        with store.ahead("a=b/c", b"1"), store.ahead("a=b/c", b"2"):
            await asyncio.sleep(0)
            await put(store, server, b"2", CREATE)  # of two the one that came last
            await put(store, server, b"1", CREATE)
        assert signed == [b"1", b"1", b"2", b"1"]
        assert not store._client.direct._ready.waiting


async def test_who_leaves_first_leaves_the_other_one(signed: list[bytes]) -> None:
    async with written() as (store, server):
        first, second = store.ahead("a=b/c", b"1"), store.ahead("a=b/c", b"1")
        first.__enter__()
        second.__enter__()
        await asyncio.sleep(0)
        first.__exit__(None, None, None)
        await put(store, server, b"1", CREATE)
        second.__exit__(None, None, None)
        assert signed == [b"1", b"1"]  # by each of them, and by nobody else
