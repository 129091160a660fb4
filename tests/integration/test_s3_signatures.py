"""Signatures, against the published example and against another signer: obstore."""

import re

import pytest

from holdfast.base.clock import parse_iso
from holdfast.objects.cloud import CloudStore
from holdfast.objects.cloud.credentials import Keys
from holdfast.objects.cloud.sigv4 import Signer
from holdfast.objects.store import CREATE, IfMatch, Version
from holdfast.objects.uri import StoreSpec
from tests.integration import clients
from tests.integration.scripted_server import Answer, ScriptedServer

OK = Answer(200, b"hello", {"etag": '"e1"', "last-modified": "Wed, 21 Oct 2015 07:28:00 GMT"})
PART = Answer(206, b"el", {**OK.headers, "content-range": "bytes 1-2/5"})


class At:
    """A clock that stands still."""

    def __init__(self, moment: str) -> None:
        self._ns = parse_iso(moment)

    def wall_ns(self) -> int:
        return self._ns

    def monotonic_ns(self) -> int:
        return self._ns


def signature(authorization: str) -> str:
    found = re.search(r"Signature=([0-9a-f]{64})$", authorization)
    assert found is not None
    return found[1]


def test_the_published_example() -> None:
    keys = Keys("the example", "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    signer = Signer(keys, "us-east-1", "examplebucket.s3.amazonaws.com", At("2013-05-24T00:00:00Z"))
    sent = signer.signed("GET", "/test.txt", {"range": "bytes=0-9"}, b"")
    assert sent["x-amz-date"] == "20130524T000000Z"
    assert signature(sent["authorization"]) == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"


KEYS_OF_ODD_LETTERS = ["k", "a/b", "a b%20#é?&=+", "~-._", "日本/🎈", "'!()*"]


@pytest.mark.parametrize("key", KEYS_OF_ODD_LETTERS)
@pytest.mark.parametrize("token", [None, "a/session+token=="])
async def test_obstore_signs_alike(key: str, token: str | None) -> None:
    """What obstore sent is signed again, with its own headers and at its own time."""
    secrets = [("access_key_id", "access"), ("secret_access_key", "secret")]
    secrets += [("session_token", token)] if token else []
    async with ScriptedServer(OK) as server:
        options = (("endpoint", server.endpoint), ("region", "eu-north-1"), ("sse", "AES256"))
        target = StoreSpec("s3", "bucket", "", options, tuple(secrets))
        store = CloudStore(target, environ=clients.THROUGH_OBSTORE)
        await store.put(key, b"some bytes", CREATE)
        await store.put(key, b"", IfMatch(Version('"e0"')))
        await store.get_unless(key, Version('"e0"'))
        await store.head(key)
        server.reply = PART
        await store.range(key, 1, 3)
        for request in server.requests:
            sent = request.headers
            listed = re.search(r"SignedHeaders=([^,]+)", sent["authorization"])
            assert listed is not None
            ours = ("host", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token")
            given = {name: sent[name] for name in listed[1].split(";") if name not in ours}
            signer = Signer(
                Keys("test", "access", "secret", token), "eu-north-1", sent["host"], At(_iso(sent["x-amz-date"]))
            )
            again = signer.signed(request.method, request.target, given, request.body)
            assert again["authorization"].endswith(signature(sent["authorization"]))


def _iso(stamp: str) -> str:
    day, time = stamp.removesuffix("Z").split("T")
    return f"{day[:4]}-{day[4:6]}-{day[6:]}T{time[:2]}:{time[2:4]}:{time[4:]}Z"


def test_the_day_changes_at_midnight_of_the_world() -> None:
    clock = At("2026-03-01T23:59:59Z")
    signer = Signer(Keys("test", "access", "secret"), "r", "h", clock)
    before = signer.signed("GET", "/k", {}, b"")
    clock._ns += 1_000_000_000
    after = signer.signed("GET", "/k", {}, b"")
    assert "/20260301/r/s3/" in before["authorization"]
    assert "/20260302/r/s3/" in after["authorization"]
    fresh = Signer(Keys("test", "access", "secret"), "r", "h", clock).signed("GET", "/k", {}, b"")
    assert fresh == after
