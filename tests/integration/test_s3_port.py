"""The port on a real S3 server over HTTP. A witness that does not use our code looks at what lies in the bucket."""

import pytest

from holdfast.base.errors import Invalid
from holdfast.objects.cloud import CloudStore
from holdfast.objects.store import (
    CREATE,
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


@pytest.mark.parametrize("prefix", ["", "tenants/a b%20#é"])
async def test_odd_keys_are_unchanged_in_the_bucket(s3_server: S3Server, bucket: str, prefix: str) -> None:
    store = CloudStore(s3_server.target(bucket, prefix), environ={})
    inside = f"{prefix}/" if prefix else ""
    if prefix:
        other = CloudStore(s3_server.target(bucket, prefix + "2"), environ={})
        assert isinstance(await other.put("unrelated", b""), Written)
    before = s3_server.keys(bucket)
    for key in ODD:
        assert isinstance(await store.put(key, key.encode(), CREATE), Written)
    in_order = sorted(ODD, key=str.encode)
    assert s3_server.keys(bucket) == sorted([*before, *(inside + key for key in ODD)], key=str.encode)
    assert await everything(store) == in_order
    for key in ODD:
        found = await store.get(key)
        assert (found.key, found.body) == (key, key.encode())
        assert (await store.head(key)).size == len(key.encode())
    await store.delete_many(ODD[::2])
    for key in ODD[1::2]:
        await store.delete(key)
    assert s3_server.keys(bucket) == before


async def test_the_prefix_counts_towards_the_length_of_a_key(s3_server: S3Server, bucket: str) -> None:
    prefix = "p" * 100
    store = CloudStore(s3_server.target(bucket, prefix), environ={})
    longest = "/".join(["k" * 200] * 4 + ["k" * 119])
    assert isinstance(await store.put(longest, b"x", CREATE), Written)
    assert s3_server.keys(bucket) == [f"{prefix}/{longest}"]
    with pytest.raises(Invalid, match="1 to 923 are allowed"):
        await store.put(longest + "k", b"x")


async def test_folder_markers_of_other_tools(store: Store, s3_server: S3Server, bucket: str) -> None:
    for key in ("a/", "a/b", "a/c/"):
        s3_server.put(bucket, key)
    assert await everything(store, "a/") == ["a/b", "a/c"]
    [page] = [page async for page in store.list("a/", delimiter=True)]
    assert ([entry.key for entry in page.entries], page.folders) == (["a/b"], ("a/c/",))
