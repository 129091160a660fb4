"""Policies say what the specification asks for, and the check finds out whether a store enforces it."""

import random

import pytest

from holdfast.base.clock import SystemClock
from holdfast.base.errors import Denied, Invalid
from holdfast.base.ids import Ambient
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Store, Written
from holdfast.telemetry.accept import layout
from holdfast.telemetry.policy import (
    BROKEN,
    ENFORCED,
    NOT_ENFORCED,
    NOT_TRIED,
    WORKS,
    Bucket,
    PolicyCheck,
    bucket_policy,
    encryption,
)
from tests.fakes.policy_proxy import Access, matching

GC = "arn:aws:iam::123456789012:role/gc"
COLLECTOR = "arn:aws:iam::123456789012:role/collector"
BUCKET = Bucket("telemetry", "fleet", gc_role_arn=GC, sse="aws:kms", sse_kms_key_id="key-1")
MANIFEST = "fleet/accepted/v1/agent=61/boot=62/00000000000000000000-00000000000000000001.json"
BLOB = "fleet/raw-blobs/v1/sha256/ab/cd/abcd.lmbatch"


def denied(action: str, key: str, **context: str) -> list[str]:
    """Which statements of the bucket's policy deny this request."""
    access = Access(action, f"arn:aws:s3:::telemetry/{key}", {name_of(name): value for name, value in context.items()})
    return [sid for sid, _ in matching(bucket_policy(BUCKET), access, "Deny")]


def name_of(argument: str) -> str:
    space = "aws" if argument in ("SecureTransport", "PrincipalArn") else "s3"
    return f"{space}:{argument.replace('_', '-')}"


def test_manifests_are_only_created() -> None:
    create = {"ObjectCreationOperation": "true", "SecureTransport": "true"}
    assert denied("s3:PutObject", MANIFEST, if_none_match="*", **create) == []
    assert denied("s3:PutObject", MANIFEST, **create) == ["AcceptedOnlyByCreation"]
    assert denied("s3:PutObject", MANIFEST, if_match="etag", **create) == ["AcceptedOnlyByCreation"]
    assert "AcceptedNeverCopied" in denied("s3:PutObject", MANIFEST, x_amz_copy_source="a/b", **create)
    part = {"ObjectCreationOperation": "false", "SecureTransport": "true"}  # of an upload: it needs no condition
    assert denied("s3:PutObject", MANIFEST, **part) == []


@pytest.mark.parametrize("action", ["s3:DeleteObject", "s3:DeleteObjectVersion"])
def test_nobody_deletes_manifests_and_garbage_collection_alone_deletes_blobs(action: str) -> None:
    assert denied(action, MANIFEST, PrincipalArn=GC, SecureTransport="true") == ["AcceptedNeverDeleted"]
    assert denied(action, BLOB, PrincipalArn=GC, SecureTransport="true") == []
    assert denied(action, BLOB, PrincipalArn=COLLECTOR, SecureTransport="true") == [
        "BlobsDeletedByGarbageCollectionAlone"
    ]


def test_encryption_transport_and_lifecycle() -> None:
    create = {"ObjectCreationOperation": "true", "if_none_match": "*"}
    assert denied("s3:PutObject", BLOB, SecureTransport="false", **create) == ["NothingUnencryptedOnTheWire"]
    wrong = denied("s3:PutObject", BLOB, SecureTransport="true", x_amz_server_side_encryption="AES256", **create)
    assert wrong == ["NoOtherEncryption"]
    customer = {"x_amz_server_side_encryption_customer_algorithm": "AES256"}
    assert denied("s3:PutObject", BLOB, SecureTransport="true", **customer, **create) == ["NoKeysOfTheWriter"]
    found = encryption(BUCKET)
    assert found is not None
    default = found["Rules"][0]["ApplyServerSideEncryptionByDefault"]
    assert default == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "key-1"}


@pytest.mark.parametrize("prefix", ["fleet*", "fl?et", "${aws:username}", "flotte-\u00e9", "a b"])
def test_a_prefix_with_a_character_that_widens_a_policy_is_refused(prefix: str) -> None:
    with pytest.raises(Invalid, match="meaning in policies"):
        Bucket("telemetry", prefix)
    with pytest.raises(Invalid, match="meaning in policies"):
        Bucket("tele*", "fleet")


class Enforcing(Layer):
    """A store with a policy: what the collector's role may not do is 403."""

    def __init__(self, inner: Store, *, gc: bool = False, create: bool = True) -> None:
        super().__init__(inner)
        self._gc = gc
        self._create = create

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        known = key.startswith((layout.ACCEPTED, "raw-blobs/v1/"))
        if not known or (key.startswith(layout.ACCEPTED) and not (self._create and type(mode).__name__ == "Create")):
            raise Denied(f"{key}: 403")
        return await super().put(key, body, mode)

    async def delete(self, key: str) -> None:
        if not (self._gc and key.startswith("raw-blobs/v1/")):
            raise Denied(f"{key}: 403")
        await super().delete(key)


async def verdicts(store: Store, role: str = "collector") -> list[str]:
    ambient = Ambient(SystemClock(), random.Random(1))
    return [each.verdict async for each in PolicyCheck(store, ambient, role=role).run()]


async def test_a_store_without_policies_enforces_nothing_and_is_left_clean() -> None:
    store = MemoryStore()
    assert await verdicts(store) == [WORKS, *[NOT_ENFORCED] * 5, *[NOT_TRIED] * 4]
    assert store.shelf.objects == {}


async def test_a_store_with_policies_passes_again_and_again() -> None:
    store = MemoryStore()
    for _ in range(2):
        assert await verdicts(Enforcing(store)) == [WORKS, *[ENFORCED] * 5, *[NOT_TRIED] * 4]
    assert set(store.shelf.objects) == {"accepted/v1/policy-check.json", "raw-blobs/v1/policy-check.lmbatch"}


async def test_garbage_collection_may_delete_blobs_alone_and_a_role_that_cannot_do_its_work_is_found() -> None:
    found = [WORKS, *[ENFORCED] * 3, WORKS, ENFORCED, *[NOT_TRIED] * 4]
    assert await verdicts(Enforcing(MemoryStore(), gc=True), "gc") == found
    assert (await verdicts(Enforcing(MemoryStore(), create=False)))[0] == BROKEN
