"""The bucket policy on a real gateway: what Ceph enforces of it, and that the check tells the rest."""

import json

import pytest

from holdfast.base.config import S3Section, Settings
from holdfast.base.ids import Ambient
from holdfast.objects.open import open_store
from holdfast.telemetry.policy import ENFORCED, NOT_ENFORCED, NOT_TRIED, WORKS, Bucket, PolicyCheck, documents
from tests.integration.servers import S3Server, ceph_gateway

pytestmark = pytest.mark.ceph

TRIED = (
    "creation under accepted/v1/ is allowed, once",
    "unconditional write to accepted/v1/ is refused",
    "if-match write to accepted/v1/ is refused",
    "delete under accepted/v1/ is refused",
    "delete under raw-blobs/v1/ is refused",
    "write outside the expected prefixes is refused",
)


async def verdicts(server: S3Server, bucket: str) -> tuple[str, ...]:
    s3 = S3Section.model_validate(
        {"access_key_id": server.access_key, "secret_access_key": server.secret_key, "region": "us-east-1"}
    )
    async with open_store(f"s3://{bucket}/tele?endpoint={server.endpoint}", settings=Settings(s3=s3)) as store:
        found = {each.rule: each.verdict async for each in PolicyCheck(store, store.ambient, role="collector").run()}
    assert {verdict for rule, verdict in found.items() if rule not in TRIED} == {NOT_TRIED}
    return tuple(found[rule] for rule in TRIED)


@pytest.fixture
def bucket() -> str:
    name = f"policy-{Ambient.system().ids.unique()}"
    ceph_gateway().create_bucket(name)
    return name


async def test_without_a_policy_nothing_is_enforced(bucket: str) -> None:
    server = ceph_gateway()
    assert await verdicts(server, bucket) == (WORKS, *[NOT_ENFORCED] * 5)


@pytest.mark.parametrize("versioned", [False, True])
async def test_with_the_policy_deletes_are_refused_and_conditions_are_not_looked_at(
    bucket: str, versioned: bool
) -> None:
    """Deletes are refused to everybody, the owner too. Ceph evaluates neither ``s3:if-none-match`` nor
    ``aws:SecureTransport``; and prefixes bind roles, which the owner of a bucket is not."""
    server = ceph_gateway()
    server.put_about(bucket, "policy", json.dumps(documents(Bucket(bucket, "tele"))["bucket"]).encode())
    if versioned:
        enabled = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
        server.put_about(bucket, "versioning", enabled)
    assert await verdicts(server, bucket) == (
        WORKS,
        NOT_ENFORCED,
        NOT_ENFORCED,
        ENFORCED,
        ENFORCED,
        NOT_ENFORCED,
    )
