"""The port on a real S3 server over HTTP. A witness that does not use our code looks at what lies in the bucket."""

import pytest

from holdfast.base.errors import Invalid
from holdfast.objects.cloud import CloudStore
from holdfast.objects.store import (
    CREATE,
    Page,
    Store,
    Written,
)
from tests.integration.servers import S3Server

ODD = [
    "%", "a%20b", "%2F", "%00", "#", "?", "a?b=c&d", "+", "a+b", "a b", " lead", "trail ", "~", "*", "'", '"', "&",
    "&amp;", "=", "<x>", "\\", "a\\b", "dot.", "dots..", "...", ".hidden", "..x", "-", "_", "!", "(", ")", "@", ":",
    ";", ",", "$", "^", "`", "{", "}", "|", "[", "]", "é", "e\u0301", "日本", "🎈", "\u0085", "\xa0", "\u200b",
    "\u2028", "\ue000", "\ufdd0", "\ufeff", "\ufffd", "\U0010fffd", "x" * 255, "é" * 127, "Case", "case", "CASE",
    "x/" * 100 + "y",
]  # fmt: skip  # a table of characters


@pytest.fixture
def store(s3_server: S3Server, bucket: str) -> Store:
    return CloudStore(s3_server.target(bucket), environ={})


async def everything(store: Store, prefix: str = "", after: str | None = None) -> list[str]:
    return [key async for key in store.keys(prefix, after=after)]


async def test_odd_keys_lie_in_the_bucket_as_they_are(store: Store, s3_server: S3Server, bucket: str) -> None:
    for key in ODD:
        assert isinstance(await store.put(key, key.encode(), CREATE), Written)
    in_order = sorted(ODD, key=str.encode)
    assert s3_server.keys(bucket) == in_order
    assert await everything(store) == in_order
    for key in ODD:
        assert (await store.get(key)).body == key.encode()
        assert (await store.head(key)).size == len(key.encode())
    await store.delete_many(ODD[::2])
    for key in ODD[1::2]:
        await store.delete(key)
    assert s3_server.keys(bucket) == []


async def test_odd_keys_under_an_odd_prefix(s3_server: S3Server, bucket: str) -> None:
    prefix = "tenants/a b%20#é"
    store: Store = CloudStore(s3_server.target(bucket, prefix), environ={})
    other = CloudStore(s3_server.target(bucket, prefix + "2"), environ={})
    assert isinstance(await other.put("unrelated", b""), Written)
    for key in ODD:
        await store.put(key, b"x")
    assert await everything(store) == sorted(ODD, key=str.encode)
    assert s3_server.keys(bucket) == sorted(
        [*(f"{prefix}/{key}" for key in ODD), f"{prefix}2/unrelated"], key=str.encode
    )
    assert (await store.get("%2F")).key == "%2F"


async def test_the_prefix_counts_towards_the_length_of_a_key(s3_server: S3Server, bucket: str) -> None:
    prefix = "p" * 100
    store = CloudStore(s3_server.target(bucket, prefix), environ={})
    longest = "/".join(["k" * 200] * 4 + ["k" * 119])
    assert isinstance(await store.put(longest, b"x", CREATE), Written)
    assert s3_server.keys(bucket) == [f"{prefix}/{longest}"]
    with pytest.raises(Invalid, match="1 to 923 are allowed"):
        await store.put(longest + "k", b"x")


async def test_listing_after(store: Store) -> None:
    for key in ("a", "b/1", "b/2", "b/3/x", "c", "d/y"):
        await store.put(key, b"")
    assert await everything(store, "b/", after="b/1") == ["b/2", "b/3/x"]
    assert await everything(store, after="b/3") == ["b/3/x", "c", "d/y"]
    assert await everything(store, "b/", after="a") == ["b/1", "b/2", "b/3/x"]
    assert await everything(store, "b/", after="c") == []

    async def folded(after: str) -> list[str]:
        [page] = [page async for page in store.list(after=after, delimiter=True)]
        return sorted([*(entry.key for entry in page.entries), *page.folders])

    assert await folded("a") == ["b/", "c", "d/"]
    assert await folded("b/") == ["c", "d/"]
    assert await folded("b/2") == ["c", "d/"]
    with pytest.raises(Invalid):
        await everything(store, after="a//b")


async def test_an_empty_listing_is_one_empty_page(store: Store) -> None:
    assert [page async for page in store.list("none/")] == [Page(())]
    assert [page async for page in store.list("none/", delimiter=True)] == [Page(())]


async def test_folder_markers_of_other_tools(store: Store, s3_server: S3Server, bucket: str) -> None:
    for key in ("a/", "a/b", "a/c/"):
        s3_server.put(bucket, key)
    assert await everything(store, "a/") == ["a/b", "a/c"]
    [page] = [page async for page in store.list("a/", delimiter=True)]
    assert ([entry.key for entry in page.entries], page.folders) == (["a/b"], ("a/c/",))
