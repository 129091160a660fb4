"""Policy documents for AWS that protect accepted telemetry: one for the bucket, one for each role.

Collectors follow the protocol without them. The bucket's policy protects it against everyone else: an overwrite or a
delete under ``accepted/v1/`` would let an identity be accepted twice, and so would a delete marker under versioning; a
lifecycle rule or a broad delete under ``raw-blobs/v1/`` would leave manifests without their bytes.

A Deny in the bucket's policy binds every principal, administrators too. The permissions of each role are in a document
of its own. ``tests/integration/test_roles.py`` runs each role through a proxy that enforces these documents: it can do
its work, and uses every grant that it has.

``PolicyCheck`` tries each rule on the live store, with the caller's credentials, on keys that readers ignore. Where the
store refuses deletes, as it should, two small objects remain, always the same ones. A rule is *not enforced* if the
store allowed what it should have refused. A rule that this client cannot try is *not tried*; its detail says how to
check it.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.base.errors import Conflict, Denied, HoldfastError, Invalid, Refused
from holdfast.base.ids import Ambient
from holdfast.objects.client import START_CHECK_PREFIX
from holdfast.objects.conformance.certificate import CERTIFICATE_KEY
from holdfast.objects.open import FORMAT_KEY
from holdfast.objects.store import CREATE, OVERWRITE, IfMatch, Store, Written
from holdfast.telemetry.accept import layout
from holdfast.telemetry.rollup.layout import BATCHES_BY_HOUR, COVERAGE, INDEX, MANIFESTS, ROLLUP

Policy = dict[str, Any]
VERSION = "2012-10-17"
RAW_BLOBS = "raw-blobs/v1/"
PIPELINE = "meta/pipeline/"
RUNS = ("runs/", "runs-index/v1/")
"""These, and prefixes of the ontology and the bus below, belong to packages that this one may not import."""
QUERIED = (
    *(layout.ACCEPTED, RAW_BLOBS, layout.CONFLICTS, layout.RESOLUTIONS, layout.EXPIRED),
    *(layout.ACCEPTED_BY_TIME, ROLLUP, INDEX, MANIFESTS, BATCHES_BY_HOUR),
    *(f"{PIPELINE}recent/", COVERAGE, layout.RECONCILED, layout.HOLDS, layout.AUTHORITY),
)
"""Prefixes that questions about metrics, logs, conflicts and holds read."""
REFERENCES = (*(layout.BLOBS_BY_TIME, layout.ACCEPTED_BY_TIME, layout.ACCEPTED_BY_BLOB, layout.CONFLICTS_BY_BLOB),)
GARBAGE = (ROLLUP, INDEX, MANIFESTS, "snapshots/", "commits/", "meta/loads/", *RUNS, "events/", "claims/", "bus/")
"""Where garbage collection deletes, besides raw blobs and references."""
EVERYTHING = ""
DELETES = ["s3:DeleteObject", "s3:DeleteObjectVersion"]
ENCRYPTIONS = ("AES256", "aws:kms")
_PLAIN = re.compile(r"[A-Za-z0-9/_.=+@,:~-]+")
"""Not ``*``, ``?`` and ``$``, which would make a grant wider than it looks."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The bucket and prefix of an authority, and the options of its policies."""

    bucket: str
    prefix: str = ""
    gc_role_arn: str | None = None
    sse: str | None = None
    sse_kms_key_id: str | None = None
    conditional_blobs: bool = False
    """Also require If-None-Match under ``raw-blobs/v1/``."""
    abort_uploads_after_days: int = 7

    def __post_init__(self) -> None:
        if self.sse is not None and self.sse not in ENCRYPTIONS:
            raise Invalid(f"{self.sse!r} is not an encryption of S3", remedy=f"write {' or '.join(ENCRYPTIONS)}")
        if not _PLAIN.fullmatch(self.bucket) or not _PLAIN.fullmatch(f"/{self.prefix}"):
            raise Invalid(
                f"{self.bucket}/{self.prefix}: the bucket or the prefix has a character with a meaning in policies",
                remedy="use ASCII letters, digits and the characters / - _ . = + @ , : ~ in a prefix",
            )

    def key(self, name: str) -> str:
        return f"{self.prefix.strip('/')}/{name}" if self.prefix.strip("/") else name

    def arn(self, name: str) -> str:
        star = "*" if not name or name.endswith(("/", "-")) else ""
        return f"arn:aws:s3:::{self.bucket}/{self.key(name)}{star}"

    @property
    def bucket_arn(self) -> str:
        return f"arn:aws:s3:::{self.bucket}"


def bucket_policy(bucket: Bucket) -> Policy:
    """The policy that binds every principal."""
    accepted, blobs = bucket.arn(layout.ACCEPTED), bucket.arn(RAW_BLOBS)
    statements = [
        # Only what creates an object carries the condition: parts of an upload do not, and need not.
        _deny("AcceptedOnlyByCreation", ["s3:PutObject"], [accepted], _unconditional()),
        _deny("AcceptedNeverCopied", ["s3:PutObject"], [accepted], {"Null": {"s3:x-amz-copy-source": "false"}}),
        _deny("AcceptedNeverDeleted", DELETES, [accepted]),
        _deny("ExpiriesNeverForgotten", DELETES, [bucket.arn(layout.EXPIRED)]),
        _deny("BlobsDeletedByGarbageCollectionAlone", DELETES, [blobs], _everybody_but(bucket.gc_role_arn)),
        # Other roles could not read an object that is encrypted with a key of its writer (SSE-C).
        _deny("NoKeysOfTheWriter", ["s3:PutObject"], [bucket.arn(EVERYTHING)], _customer_key()),
        _deny("NothingUnencryptedOnTheWire", ["s3:*"], [bucket.bucket_arn, f"{bucket.bucket_arn}/*"], _plain_http()),
    ]
    if bucket.conditional_blobs:
        statements.append(_deny("BlobsOnlyByCreation", ["s3:PutObject"], [blobs], _unconditional()))
    if bucket.sse is not None:
        other = _another("s3:x-amz-server-side-encryption", bucket.sse)
        statements.append(_deny("NoOtherEncryption", ["s3:PutObject"], [bucket.arn(EVERYTHING)], other))
    if bucket.sse_kms_key_id is not None:
        other = _another("s3:x-amz-server-side-encryption-aws-kms-key-id", bucket.sse_kms_key_id)
        statements.append(_deny("NoOtherKey", ["s3:PutObject"], [bucket.arn(EVERYTHING)], other))
    return {"Version": VERSION, "Statement": statements}


def role_policies(bucket: Bucket) -> dict[str, Policy]:
    """The permissions of each role."""
    return {
        "collector": _role(
            bucket,
            read=[FORMAT_KEY, *QUERIED, CERTIFICATE_KEY, START_CHECK_PREFIX],
            # The first collector creates the authority; the check at start writes and deletes a key of its own.
            write=[
                *(layout.ACCEPTED, RAW_BLOBS, layout.CONFLICTS, layout.AUTHORITY, layout.PROBES, START_CHECK_PREFIX),
                *(layout.ACCEPTED_BY_TIME, layout.CONFLICTS_BY_BLOB),
            ],
            delete=[START_CHECK_PREFIX],
        ),
        "reader": _role(bucket, read=[FORMAT_KEY, *QUERIED, PIPELINE, "runs/"], listed=["runs-index/v1/"]),
        "pipeline": _role(
            bucket,
            read=[EVERYTHING],  # an audit lists and compares the whole store
            write=[
                *(*REFERENCES, ROLLUP, INDEX, MANIFESTS, BATCHES_BY_HOUR, PIPELINE, *RUNS, "events/", "bus/"),
                *("commits/", "snapshots/", "meta/head.json", "meta/indices/", "meta/locks/", "meta/schema/"),
            ],
            delete=[PIPELINE, "runs-index/v1/open/"],
        ),
        "gc": _role(
            bucket,
            read=[EVERYTHING],
            # It closes identities, records what it deletes, publishes generations, and keeps a journal of its own.
            write=[
                *(layout.ACCEPTED, layout.CONFLICTS, layout.EXPIRED, *REFERENCES),
                *(MANIFESTS, *RUNS, "bus/", PIPELINE),
            ],
            delete=[RAW_BLOBS, layout.CONFLICTS, *REFERENCES, *GARBAGE, PIPELINE],
        ),
        "operator": _role(
            bucket,
            read=[FORMAT_KEY, layout.CONFLICTS, layout.RESOLUTIONS, layout.HOLDS, layout.AUTHORITY],
            write=[layout.AUTHORITY, layout.HOLDS, layout.RESOLUTIONS],
        ),
    }


def lifecycle(bucket: Bucket) -> Policy:
    """The only lifecycle rule allowed for these prefixes: it aborts unfinished uploads and expires nothing."""
    return {
        "Rules": [
            {
                "ID": "give-up-unfinished-uploads",
                "Status": "Enabled",
                "Filter": {"Prefix": bucket.key("") if bucket.prefix.strip("/") else ""},
                "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": bucket.abort_uploads_after_days},
            }
        ]
    }


def encryption(bucket: Bucket) -> Policy | None:
    if bucket.sse is None:
        return None
    default: dict[str, Any] = {"SSEAlgorithm": bucket.sse}
    if bucket.sse_kms_key_id is not None:
        default["KMSMasterKeyID"] = bucket.sse_kms_key_id
    return {"Rules": [{"ApplyServerSideEncryptionByDefault": default, "BucketKeyEnabled": bucket.sse == "aws:kms"}]}


def documents(bucket: Bucket) -> dict[str, Policy]:
    """All documents, by name."""
    found: dict[str, Policy | None] = {
        "bucket": bucket_policy(bucket),
        **role_policies(bucket),
        "lifecycle": lifecycle(bucket),
        "encryption": encryption(bucket),
    }
    return {name: document for name, document in found.items() if document is not None}


def _deny(sid: str, actions: list[str], resources: list[str], condition: Mapping[str, Any] | None = None) -> Policy:
    statement: Policy = {"Sid": sid, "Effect": "Deny", "Principal": "*", "Action": actions, "Resource": resources}
    return {**statement, "Condition": dict(condition)} if condition else statement


def _role(
    bucket: Bucket,
    *,
    read: Sequence[str],
    write: Sequence[str] = (),
    delete: Sequence[str] = (),
    listed: Sequence[str] = (),
) -> Policy:
    """The prefixes in ``read`` may be listed too; those in ``listed`` may only be listed."""
    statements: list[Policy] = [
        _allow("List", ["s3:ListBucket"], [bucket.bucket_arn], _listing(bucket, [*read, *listed])),
        _allow("Read", ["s3:GetObject"], [bucket.arn(name) for name in read]),
    ]
    if write:
        uploads = ["s3:PutObject", "s3:AbortMultipartUpload"]
        statements.append(_allow("Write", uploads, [bucket.arn(name) for name in write]))
    if delete:
        statements.append(_allow("Delete", ["s3:DeleteObject"], [bucket.arn(name) for name in delete]))
    return {"Version": VERSION, "Statement": statements}


def _allow(sid: str, actions: list[str], resources: list[str], condition: Mapping[str, Any] | None = None) -> Policy:
    statement: Policy = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
    return {**statement, "Condition": dict(condition)} if condition else statement


def _listing(bucket: Bucket, names: Sequence[str]) -> Policy:
    """A listing that names a prefix must name one of these. ``IfExists``: S3 answers a GET of a missing object with 403
    in place of 404 if the role may not list the bucket, and such a request names no prefix."""
    prefixes = [f"{bucket.key(name)}*" for name in names if not name or name.endswith("/")]
    return {"StringLikeIfExists": {"s3:prefix": prefixes}}


def _unconditional() -> Policy:
    return {"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}}


def _another(key: str, value: str) -> Policy:
    """The request names another value. One that names none gets the bucket's default (see ``encryption``), but a
    negated operator is also true of a key that is absent, with and without ``IfExists``."""
    return {"Null": {key: "false"}, "StringNotEquals": {key: value}}


def _customer_key() -> Policy:
    return {"Null": {"s3:x-amz-server-side-encryption-customer-algorithm": "false"}}


def _everybody_but(role_arn: str | None) -> Policy | None:
    return None if role_arn is None else {"ArnNotEquals": {"aws:PrincipalArn": role_arn}}


def _plain_http() -> Policy:
    return {"Bool": {"aws:SecureTransport": "false"}}


ENFORCED = "enforced"
NOT_ENFORCED = "not enforced"
NOT_TRIED = "not tried"
WORKS = "works"
BROKEN = "does not work"

ACCEPTED_KEY = f"{layout.ACCEPTED}policy-check.json"
BLOB_KEY = f"{RAW_BLOBS}policy-check.lmbatch"
OUTSIDE_KEY = "policy-check/outside.json"


@dataclass(frozen=True, slots=True)
class Checked:
    rule: str
    verdict: str
    detail: str

    @property
    def good(self) -> bool:
        return self.verdict in (ENFORCED, WORKS, NOT_TRIED)


UNTRIED = (
    Checked(
        "no copy into accepted/v1/", NOT_TRIED, "this client never copies; the bucket policy has a statement for it"
    ),
    Checked(
        "no lifecycle but for unfinished uploads",
        NOT_TRIED,
        "compare with `aws s3api get-bucket-lifecycle-configuration`",
    ),
    Checked("the required encryption", NOT_TRIED, "compare with `aws s3api get-bucket-encryption`"),
    Checked(
        "old versions are never deleted",
        NOT_TRIED,
        "this client knows no versions; the policy denies DeleteObjectVersion",
    ),
)


class PolicyCheck:
    def __init__(self, store: Store, ambient: Ambient, *, role: str) -> None:
        """``role``: the role of the caller's credentials, collector or gc."""
        self._store = store
        self._ambient = ambient
        self._role = role

    async def run(self) -> AsyncIterator[Checked]:
        yield await self._creates()
        yield await self._refused("unconditional write to accepted/v1/ is refused", self._overwrite)
        yield await self._refused("if-match write to accepted/v1/ is refused", self._replace)
        yield await self._refused("delete under accepted/v1/ is refused", self._delete)
        yield await self._blob_delete()
        yield await self._refused("write outside the expected prefixes is refused", self._outside)
        for untried in UNTRIED:
            yield untried

    def _body(self) -> bytes:
        return f'{{"policy_check": "{self._ambient.ids.write_id()}"}}'.encode()

    async def _creates(self) -> Checked:
        rule = "creation under accepted/v1/ is allowed, once"
        try:
            await self._store.put(ACCEPTED_KEY, self._body(), CREATE)
            again = await self._store.put(ACCEPTED_KEY, self._body(), CREATE)
        except HoldfastError as error:
            return Checked(rule, BROKEN, str(error))
        if isinstance(again, Written):
            return Checked(rule, BROKEN, "the same key was created twice")
        return Checked(rule, WORKS, ACCEPTED_KEY)

    async def _overwrite(self) -> None:
        await self._store.put(ACCEPTED_KEY, self._body(), OVERWRITE)

    async def _replace(self) -> None:
        found = await self._store.head(ACCEPTED_KEY)
        await self._store.put(ACCEPTED_KEY, self._body(), IfMatch(found.version))

    async def _outside(self) -> None:
        await self._store.put(OUTSIDE_KEY, self._body(), OVERWRITE)
        await self._store.delete(OUTSIDE_KEY)

    async def _delete(self) -> None:
        await self._store.delete(ACCEPTED_KEY)

    async def _blob_delete(self) -> Checked:
        async def delete() -> None:
            await self._store.put(BLOB_KEY, b"policy check", CREATE)
            await self._store.delete(BLOB_KEY)

        if self._role != "gc":
            return await self._refused("delete under raw-blobs/v1/ is refused", delete)
        rule = "delete under raw-blobs/v1/ is allowed for garbage collection"
        try:
            await self._store.delete(BLOB_KEY)
        except HoldfastError as error:
            return Checked(rule, BROKEN, str(error))
        return Checked(rule, WORKS, BLOB_KEY)

    async def _refused(self, rule: str, work: Callable[[], Awaitable[None]]) -> Checked:
        try:
            await work()
        except (Denied, Refused) as error:
            return Checked(rule, ENFORCED, str(error))
        except Conflict as error:
            return Checked(rule, NOT_TRIED, str(error))
        except HoldfastError as error:
            return Checked(rule, NOT_TRIED, f"the store did not respond: {error}")
        return Checked(rule, NOT_ENFORCED, "the store allowed it")
