"""A small S3 server in memory whose conditional writes may race: it checks the condition, awaits, and then writes.

    async with ScriptedServer(S3Model(races=1.0)) as server:
        uri = f"s3://bucket?endpoint={server.endpoint}"

It is a model of faults: no signature is checked, every bucket exists.
"""

import asyncio
import hashlib
import random
from email.utils import formatdate
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from tests.integration.scripted_server import HANG_UP, Answer, Reply, Request, error_body

MODIFIED = formatdate(1_700_000_000, usegmt=True)
MISSING = Answer(404, error_body("NoSuchKey"))
LOST = Answer(412, error_body("PreconditionFailed"))


class S3Model:
    """``races`` is the share of writes that await between check and write. After ``dies_after`` requests every one
    gets ``answer_then``."""

    def __init__(
        self, *, races: float = 0.0, seed: int = 0, dies_after: int | None = None, answer_then: Reply = HANG_UP
    ) -> None:
        self.objects: dict[str, bytes] = {}
        self._races = races
        self._rng = random.Random(seed)
        self._left = dies_after
        self._answer_then = answer_then

    async def __call__(self, request: Request) -> Reply:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                return self._answer_then
        parts = urlsplit(request.target)
        key = unquote(parts.path).removeprefix("/").partition("/")[2]
        query = parse_qs(parts.query, keep_blank_values=True)
        match request.method:
            case "PUT":
                return await self._put(key, request)
            case "GET" if not key:
                return Answer(200, self._listing(query), {"content-type": "application/xml"})
            case "GET" | "HEAD":
                return self._get(key, request)
            case "DELETE":
                self.objects.pop(key, None)
                return Answer(204)
            case "POST" if "delete" in query:
                names = [node.text or "" for node in ET.fromstring(request.body).iter() if node.tag.endswith("Key")]
                for name in names:
                    self.objects.pop(name, None)
                deleted = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
                return Answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
        return Answer(405, error_body("MethodNotAllowed"))

    async def _put(self, key: str, request: Request) -> Answer:
        current = self.objects.get(key)
        if "if-none-match" in request.headers and current is not None:
            return LOST
        if (expected := request.headers.get("if-match")) is not None:
            if current is None:
                return MISSING
            if expected.strip('"') != etag(current):
                return LOST
        if self._rng.random() < self._races:
            await asyncio.sleep(0)
        self.objects[key] = request.body
        return Answer(200, headers={"etag": f'"{etag(request.body)}"'})

    def _get(self, key: str, request: Request) -> Answer:
        body = self.objects.get(key)
        if body is None:
            return MISSING
        headers = {"etag": f'"{etag(body)}"', "last-modified": MODIFIED}
        if request.headers.get("if-none-match", "").strip('"') == etag(body):
            return Answer(304, headers=headers)
        if (wanted := request.headers.get("range")) is not None:
            start, end = (int(part) for part in wanted.removeprefix("bytes=").split("-"))
            if start >= len(body):
                return Answer(416, error_body("InvalidRange"))
            part = body[start : end + 1]
            return Answer(206, part, {**headers, "content-range": f"bytes {start}-{start + len(part) - 1}/{len(body)}"})
        if request.method == "HEAD":
            return Answer(200, b"", {**headers, "content-length": str(len(body))})
        return Answer(200, body, headers)

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        after = max(query.get("start-after", [""])[0], query.get("continuation-token", [""])[0])
        items = [item for item in self._items(prefix, delimiter) if item > after]
        page, more = items[:1000], len(items) > 1000
        lines = [
            f"<CommonPrefixes><Prefix>{escape(item)}</Prefix></CommonPrefixes>"
            if item not in self.objects
            else f"<Contents><Key>{escape(item)}</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified>"
            f'<ETag>"{etag(self.objects[item])}"</ETag><Size>{len(self.objects[item])}</Size></Contents>'
            for item in page
        ]
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        flag = str(more).lower()
        return (
            "<?xml version='1.0'?><ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
            f"<Name>bucket</Name><Prefix>{escape(prefix)}</Prefix><MaxKeys>1000</MaxKeys><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{flag}</IsTruncated>{token}{''.join(lines)}</ListBucketResult>"
        ).encode()

    def _items(self, prefix: str, delimiter: str) -> list[str]:
        found = set[str]()
        for key in self.objects:
            if key.startswith(prefix):
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                found.add(key if cut < 0 else key[: cut + 1])
        return sorted(found)


def etag(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()
