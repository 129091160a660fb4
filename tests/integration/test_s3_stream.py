"""A body in pieces over S3: one request while it is small, in parts when it is large, and never half of it."""

from collections.abc import AsyncIterator

import pytest

from holdfast.base.config import Settings
from holdfast.base.errors import Unavailable
from holdfast.objects.open import open_store
from holdfast.objects.store import Pieces
from holdfast.objects.uri import StoreSpec
from tests.integration.servers import S3Server

MIB = 1024 * 1024


def repeated(count: int, *, fails: bool = False) -> Pieces:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(count):
            yield bytes([number % 251]) * MIB
        if fails:
            raise Unavailable("the source is gone")

    return pieces


async def test_a_body_in_pieces(s3_server: S3Server, bucket: str) -> None:
    section = {"endpoint": s3_server.endpoint, "region": "us-east-1", "allow_http": True}
    section |= {"access_key_id": s3_server.access_key, "secret_access_key": s3_server.secret_key}
    settings = Settings.model_validate({"s3": section, "retry": {"attempts": 2, "base_ms": 1}})
    async with open_store(StoreSpec.parse(f"s3://{bucket}/some/prefix", settings)) as store:
        await store.put_stream("small", repeated(3))
        assert store.usage.requests("put") == 1
        written = await store.put_stream("large", repeated(37))
        assert store.usage.requests("put") == 1 + 5 + 2
        found = await store.get("large")
        assert found.version == written.version
        assert found.body == b"".join([piece async for piece in repeated(37)()])
        with pytest.raises(Unavailable, match="the source is gone"):
            await store.put_stream("never", repeated(37, fails=True))
        assert await store.find("never") is None
