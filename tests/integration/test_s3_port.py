"""The port on a real S3 server over HTTP. A witness that does not use our code looks at what lies in the bucket."""

import pytest

from holdfast.base.aio import map_bounded
from holdfast.base.errors import Invalid, NotFound
from holdfast.objects.cloud import CloudStore
from holdfast.objects.cloud.errors import NoBucket
from holdfast.objects.cloud.store import LARGE_BYTES
from holdfast.objects.store import (
    ADDRESSED,
    CREATE,
    OVERWRITE,
    IfMatch,
    Lost,
    NotModified,
    Page,
    Store,
    Version,
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


async def test_an_object_and_a_prefix_of_the_same_name(store: Store) -> None:
    for key in ("a", "a/b", "ab/c", "a/b/c"):
        await store.put(key, key.encode())
    assert await everything(store, "a/") == ["a/b", "a/b/c"]
    assert await everything(store) == ["a", "a/b", "a/b/c", "ab/c"]
    pages = [page async for page in store.list("a/", delimiter=True)]
    assert [[entry.key for entry in page.entries] for page in pages] == [["a/b"]]
    assert [page.folders for page in pages] == [("a/b/",)]
    top = [page async for page in store.list(delimiter=True)]
    assert ([entry.key for entry in top[0].entries], top[0].folders) == (["a"], ("a/", "ab/"))
    with pytest.raises(Invalid, match="does not end in a slash"):
        await everything(store, "a")


async def test_empty_and_large_bodies(store: Store) -> None:
    written = await store.put("empty", b"", CREATE)
    assert isinstance(written, Written)
    assert (await store.get("empty")).body == b""
    assert (await store.range("empty", 0, 10)).body == b""
    large = bytes(range(256)) * (64 * 4096)
    assert len(large) == 2 * LARGE_BYTES
    for mode in (CREATE, OVERWRITE, ADDRESSED):
        outcome = await store.put("large", large, mode)
        found = await store.get("large")
        assert outcome == Written(found.version)
        assert found.body == large
        assert isinstance(await store.put("large", large, IfMatch(found.version)), Written)
    assert await store.put("large", b"small", CREATE) == Lost()


async def test_ranges(store: Store) -> None:
    await store.put("k", b"0123456789")
    assert (await store.range("k", 2, 5)).body == b"234"
    assert (await store.range("k", 8, 100)).body == b"89"
    assert (await store.range("k", 10, 20)).body == b""
    assert (await store.range("k", 50, 60)).body == b""
    assert (await store.range("k", 3, 3)).body == b""
    for start, end in ((0, 5), (3, 3), (50, 60)):
        with pytest.raises(NotFound, match="no such object"):
            await store.range("missing", start, end)
    with pytest.raises(Invalid, match="starts at -1"):
        await store.range("k", -1, 5)


async def test_conditions(store: Store) -> None:
    first = await store.put("k", b"one", CREATE)
    assert isinstance(first, Written)
    assert await store.put("k", b"two", CREATE) == Lost()
    assert await store.put("k", b"two", ADDRESSED) == Lost()
    second = await store.put("k", b"two", IfMatch(first.version))
    assert isinstance(second, Written)
    assert await store.put("k", b"three", IfMatch(first.version)) == Lost()
    assert await store.put("missing", b"x", IfMatch(first.version)) == Lost()
    assert await store.get_unless("k", second.version) == NotModified()
    found = await store.get_unless("k", first.version)
    assert not isinstance(found, NotModified)
    assert (found.key, found.body, found.version) == ("k", b"two", second.version)
    head = await store.head("k")
    assert (head.key, head.size, head.version) == ("k", 3, second.version)
    assert head.modified_ns == found.modified_ns > 0
    with pytest.raises(NotFound):
        await store.get_unless("missing", Version('"x"'))


async def test_deleting_is_idempotent(store: Store) -> None:
    await store.put("a", b"")
    await store.delete("a")
    await store.delete("a")
    await store.delete_many([])
    await store.delete_many(["a", "b"])
    with pytest.raises(NotFound):
        await store.head("a")
    assert isinstance(await store.put("a", b"", CREATE), Written)


async def test_five_thousand_keys(store: Store, s3_server: S3Server, bucket: str) -> None:
    keys = [f"p/{number:05}" for number in range(5_000)]
    await map_bounded([*keys, "p0"], lambda key: store.put(key, b""), limit=16)
    pages = [page async for page in store.list("p/")]
    assert [len(page.entries) for page in pages] == [1000] * 5
    assert [entry.key for page in pages for entry in page.entries] == keys
    assert await everything(store, "p/", after="p/04990") == keys[4991:]
    folded = [page async for page in store.list("p/", delimiter=True)]
    assert [len(page.entries) for page in folded] == [1000] * 5
    assert [entry.key for page in folded for entry in page.entries] == keys
    await store.delete_many(keys)
    assert s3_server.keys(bucket) == ["p0"]


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


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", ".", "a/../b", "a\nb", "\x7f", "\ud800", "\uffff", "\ufffe"])
async def test_keys_that_no_backend_holds(store: Store, key: str) -> None:
    with pytest.raises(Invalid):
        await store.put(key, b"x")
    with pytest.raises(Invalid):
        await store.delete_many([key])


async def test_a_missing_bucket(s3_server: S3Server) -> None:
    store = CloudStore(s3_server.target("nobody-made-this"), environ={})
    for call in (store.get("k"), store.put("k", b"", CREATE), store.put("k", b"", IfMatch(Version('"x"')))):
        with pytest.raises(NoBucket, match="s3://nobody-made-this: no such bucket at http://"):
            await call
    for reading in (everything(store), store.find("k")):
        with pytest.raises(NoBucket, match="no such bucket"):
            await reading
