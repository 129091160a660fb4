"""A body in pieces: there when all of it is, or not at all, on every backend and through every layer."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.base.errors import Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.open import open_store
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import Pieces, Written, content_version

PIECES = [b"a" * 1000, b"", b"b" * 70_000, b"c"]
WHOLE = b"".join(PIECES)


async def pieces() -> AsyncIterator[bytes]:
    for piece in PIECES:
        yield piece


async def broken() -> AsyncIterator[bytes]:
    yield b"the beginning"
    raise Unavailable("the source is gone")


@pytest.fixture(params=["memory:", "file:"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}{tmp_path / 'store'}" if request.param == "file:" else str(request.param)


async def test_all_of_it_is_there(address: str) -> None:
    async with open_store(address) as store:
        written = await store.put_stream("some/key", pieces)
        found = await store.get("some/key")
        assert found.body == WHOLE
        assert written.version == found.version == content_version(WHOLE)
        assert (await store.put_stream("some/key", pieces)).version == written.version
        assert _puts(store) == (2, 2 * len(WHOLE))


def _puts(store: Client) -> tuple[int, int]:
    tallies = [tally for (verb, _), tally in store.usage.tallies.items() if verb == "put"]
    return sum(tally.requests for tally in tallies), sum(tally.sent_bytes for tally in tallies)


async def test_half_of_it_is_nothing(address: str) -> None:
    async with open_store(address) as store:
        await store.put("key", b"before")
        with pytest.raises(Unavailable, match="the source is gone"):
            await store.put_stream("key", broken)
        assert (await store.get("key")).body == b"before"
        assert [key async for key in store.keys("")] == ["key"]


class Failing(Layer):
    """Fails once, after it has taken some of the body."""

    tries = 0

    async def put_stream(self, key: str, pieces: Pieces) -> Written:
        self.tries += 1
        if self.tries == 1:
            async for _ in pieces():
                raise Unavailable(f"{key}: no answer", maybe_applied=True)
        return await self.inner.put_stream(key, pieces)


async def test_another_try_begins_with_the_first_piece() -> None:
    failing = Failing(MemoryStore())
    policy = RetryPolicy(attempts=3, base_ms=0, max_ms=0)
    store = Client(failing, ambient=Ambient.system(), retry=policy, usage=Usage())
    await store.put_stream("key", pieces)
    assert (failing.tries, (await store.get("key")).body) == (2, WHOLE)
