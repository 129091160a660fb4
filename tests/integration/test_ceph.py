"""What only a real production server shows: 409 under contention, and credentials that count.

Run by ``make test-ceph``, together with every test that takes ``s3_server``.
"""

from dataclasses import replace

import pytest

from holdfast.base.aio import blocking
from holdfast.base.errors import Denied
from holdfast.objects.cloud import CloudStore
from holdfast.objects.store import CREATE, IfMatch, Lost, Written
from tests.integration.racers import Report, count_up, counted, race
from tests.integration.servers import S3Server, ceph_gateway

pytestmark = pytest.mark.ceph

ROUNDS = 30


@pytest.fixture(scope="module")
def s3_server() -> S3Server:
    """Ceph alone."""
    return ceph_gateway()


def test_losing_updates_get_a_409_that_is_classified(s3_server: S3Server, bucket: str) -> None:
    total = Report()
    for number in range(ROUNDS):
        keys = [f"round-{number}/{key}" for key in range(5)]
        for key in keys:
            s3_server.put(bucket, key, b"at first")
        total += race(s3_server.target(bucket), keys, tasks=32, update=True, settle=False)
        if total.contended:
            break
    assert total.contended > 0
    assert len(total.won) == len(set(total.won))


async def test_a_counter_under_contention_is_exact(s3_server: S3Server, bucket: str) -> None:
    target = s3_server.target(bucket)
    assert await blocking(count_up, target, "counter", tasks=32, edits=10) == 320
    assert await counted(target, "counter") == 320


@pytest.mark.parametrize("change", [{"secret_key": "wrong"}, {"access_key": "unknown"}], ids=["secret", "key"])
async def test_wrong_credentials(s3_server: S3Server, bucket: str, change: dict[str, str]) -> None:
    store = CloudStore(replace(s3_server, **change).target(bucket), environ={})
    for call in (store.get("k"), store.head("k"), store.put("k", b"x", CREATE), store.delete("k")):
        with pytest.raises(Denied, match="refused access") as caught:
            await call
        assert "the keys in the settings" in str(caught.value)
    with pytest.raises(Denied):
        await anext(store.list())


@pytest.mark.parametrize("unquoted", ["false", "true"])
async def test_etags_are_compared_with_and_without_quotes(s3_server: S3Server, bucket: str, unquoted: str) -> None:
    store = CloudStore(s3_server.target(bucket, unquoted_if_match=unquoted), environ={})
    first = await store.put("k", b"one", CREATE)
    assert isinstance(first, Written)
    assert isinstance(await store.put("k", b"two", IfMatch(first.version)), Written)
    assert await store.put("k", b"three", IfMatch(first.version)) == Lost()
