"""A proxy that enforces printed policy documents in front of an S3 server, as AWS evaluates them.

Each access key belongs to a role. A request is translated into actions, resources and condition keys, and compared with
the bucket's policy (a Deny wins) and with the role's (an Allow is needed). A request that is not allowed gets 403 and
does not reach the server. As on S3, a missing object is 403, not 404, for a role that may not list the bucket. A
request or a condition that is unknown here fails the test.
"""

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree as ET

from tests.fakes import fault_plans as plans
from tests.fakes.fault_plans import Fault
from tests.fakes.fault_proxy import FaultProxy, classify, refusal
from tests.integration.scripted_server import Answer, HangUp, Reply, Request

Policy = Mapping[str, Any]
Context = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Access:
    """What a request wants to do."""

    action: str
    resource: str
    context: Context = field(default_factory=dict)


@dataclass
class Role:
    """A principal with the document that is attached to it."""

    arn: str
    policy: Policy
    used: set[tuple[str, str]] = field(default_factory=set)
    """Statement and resource pattern of each Allow that was needed."""
    refused: list[Access] = field(default_factory=list)

    def unused(self) -> set[tuple[str, str]]:
        """Grants that nothing has used."""
        granted = {(each["Sid"], pattern) for each in self.policy["Statement"] for pattern in each["Resource"]}
        return granted - self.used


def holds(kind: str, tests: Mapping[str, Any], context: Context) -> bool:
    """One operator of a Condition, with all its keys."""
    for key, value in tests.items():
        found = context.get(key)
        wanted = value if isinstance(value, list) else [value]
        match kind:
            case "Null":
                fits = (found is None) == (value == "true")
            case "Bool":
                fits = found == value
            case "StringLike":
                fits = found is not None and any(fnmatch.fnmatchcase(found, each) for each in wanted)
            case "StringLikeIfExists":
                fits = found is None or any(fnmatch.fnmatchcase(found, each) for each in wanted)
            case "StringNotEquals" | "ArnNotEquals":
                fits = found not in wanted  # true of an absent key, as AWS has it
            case _:
                raise AssertionError(f"unknown condition {kind}")
        if not fits:
            return False
    return True


def matching(policy: Policy, access: Access, effect: str) -> Iterator[tuple[str, str]]:
    """Statement and resource pattern of what applies to a request."""
    for statement in policy["Statement"]:
        if statement["Effect"] != effect:
            continue
        if not any(fnmatch.fnmatchcase(access.action, pattern) for pattern in statement["Action"]):
            continue
        if not all(holds(kind, tests, access.context) for kind, tests in statement.get("Condition", {}).items()):
            continue
        for pattern in statement["Resource"]:
            if fnmatch.fnmatchcase(access.resource, pattern):
                yield statement["Sid"], pattern


def accesses(sent: Request) -> list[Access]:
    """What S3 checks for a request: several for a DELETE of many keys."""
    parts = urlsplit(sent.target)
    query = parse_qs(parts.query, keep_blank_values=True)
    bucket = parts.path.removeprefix("/").partition("/")[0]
    request = classify(sent)
    arn = f"arn:aws:s3:::{bucket}"
    context = {"aws:SecureTransport": "true"} | {
        f"s3:{name}": value
        for name in (
            *("if-none-match", "x-amz-copy-source", "x-amz-server-side-encryption"),
            *("x-amz-server-side-encryption-aws-kms-key-id", "x-amz-server-side-encryption-customer-algorithm"),
        )
        if (value := sent.headers.get(name)) is not None
    }
    match request.verb:
        case "get" | "head" | "range":
            return [Access("s3:GetObject", f"{arn}/{request.key}", context)]
        case "put" | "copy":
            creation = {"s3:ObjectCreationOperation": "true"}
            return [Access("s3:PutObject", f"{arn}/{request.key}", context | creation)]
        case "delete" if request.method == "POST":
            keys = [node.text or "" for node in ET.fromstring(sent.body).iter() if node.tag.endswith("Key")]
            return [Access("s3:DeleteObject", f"{arn}/{key}", context) for key in keys]
        case "delete":
            return [Access("s3:DeleteObject", f"{arn}/{request.key}", context)]
        case "list":
            prefix = {"s3:prefix": query["prefix"][0]} if "prefix" in query else {}
            return [Access("s3:ListBucket", arn, context | prefix)]
        case "multipart":
            action = {"DELETE": "s3:AbortMultipartUpload", "GET": "s3:ListMultipartUploadParts"}.get(request.method)
            completes = request.method == "POST" and "uploadId" in query
            creation = {"s3:ObjectCreationOperation": "true" if completes else "false"}
            return [Access(action or "s3:PutObject", f"{arn}/{request.key}", context | creation)]
    raise AssertionError(f"{request} is not a request that a role may make")


class PolicyProxy(FaultProxy):
    """``roles`` by access key id."""

    def __init__(self, upstream: str, bucket: Policy, roles: Mapping[str, Role]) -> None:
        super().__init__(upstream)
        self.bucket = bucket
        self.roles = roles

    async def perform(self, request: Request, classified: plans.Request, fault: Fault | None) -> Reply:
        role = self._role(request)
        allowed = [self._judged(role, access) for access in accesses(request)]
        return await super().perform(request, classified, fault) if all(allowed) else refusal(403)

    async def deliver(self, request: Request, classified: plans.Request) -> Answer | HangUp:
        answer = await super().deliver(request, classified)
        missing = isinstance(answer, Answer) and answer.status == 404 and classified.verb in ("get", "head", "range")
        return refusal(403) if missing and not self._may_list(request) else answer

    def _may_list(self, request: Request) -> bool:
        bucket = urlsplit(request.target).path.removeprefix("/").partition("/")[0]
        access = Access("s3:ListBucket", f"arn:aws:s3:::{bucket}", {"aws:SecureTransport": "true"})
        return self._judged(self._role(request), access)

    def _judged(self, role: Role, access: Access) -> bool:
        """Whether the request is allowed; the role keeps what was used or refused."""
        access = Access(access.action, access.resource, {**access.context, "aws:PrincipalArn": role.arn})
        allowed = list(matching(role.policy, access, "Allow"))
        if not allowed or next(matching(self.bucket, access, "Deny"), None) is not None:
            role.refused.append(access)
            return False
        role.used.update(allowed)
        return True

    def _role(self, request: Request) -> Role:
        credential = request.headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]
        return self.roles[credential]
