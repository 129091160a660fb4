"""A body in pieces: the object has all of it or is not written, on every backend."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.base.errors import Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
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
    raise Unavailable("the source failed")


@pytest.mark.parametrize("scheme", ["memory:", "file:"])
async def test_all_or_nothing_is_written(scheme: str, tmp_path: Path) -> None:
    async with open_store(f"{scheme}{tmp_path / 'store' if scheme == 'file:' else ''}") as store:
        written = await store.put_stream("some/key", pieces)
        found = await store.get("some/key")
        assert found.body == WHOLE
        assert written.version == found.version == content_version(WHOLE)
        assert (store.usage.at("put", "some").requests, store.usage.at("put", "some").sent_bytes) == (1, len(WHOLE))
        with pytest.raises(Unavailable, match="the source failed"):
            await store.put_stream("some/key", broken)
        assert (await store.get("some/key")).body == WHOLE
        assert [key async for key in store.keys("")] == ["some/key"]


async def test_another_attempt_begins_with_the_first_piece() -> None:
    class Failing(Layer):
        tries = 0

        async def put_stream(self, key: str, pieces: Pieces) -> Written:
            self.tries += 1
            if self.tries == 1:
                async for _ in pieces():
                    raise Unavailable(f"{key}: no answer", maybe_applied=True)
            return await self.inner.put_stream(key, pieces)

    failing = Failing(MemoryStore())
    store = Client(failing, ambient=Ambient.system(), retry=RetryPolicy(attempts=3, base_ms=0, max_ms=0))
    await store.put_stream("key", pieces)
    assert (failing.tries, (await store.get("key")).body) == (2, WHOLE)
