"""A model of Google Cloud Storage: the part of its XML interface that obstore uses, as its documentation describes it.

It is no Google server, and a test that passes on it says only that we send what the documentation asks for. It has
generations with their conditions, ETags, ranges, listings in pages, and uploads in parts.

    async with ScriptedServer(GoogleModel()) as server: ...
"""

import hashlib
import itertools
import re
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.integration.scripted_server import Answer, Request, error_body

BUCKET = "model-bucket"


@dataclass(frozen=True)
class Stored:
    body: bytes
    generation: int

    @property
    def headers(self) -> dict[str, str]:
        return {
            "etag": f'"{hashlib.md5(self.body).hexdigest()}"',  # what Google's store answers
            "x-goog-generation": str(self.generation),
            "last-modified": formatdate(0, usegmt=True),
        }


@dataclass
class GoogleModel:
    page: int = 1000
    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    generations: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1_700_000_000_000_000))

    def __call__(self, request: Request) -> Answer:
        parts = urlsplit(request.target)
        bucket, _, encoded = parts.path.removeprefix("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if unquote(bucket) != BUCKET:
            return Answer(404, error_body("NoSuchBucket"))
        if not encoded:
            return self._list(query)
        key = unquote(encoded)
        if request.method == "POST" or "partNumber" in query:
            return self._multipart(request, key, query)
        if request.method == "PUT":
            return self._put(key, request.body, request.headers.get("x-goog-if-generation-match"))
        found = self.objects.get(key)
        if found is None:
            return Answer(404, error_body("NoSuchKey"))
        if request.method == "DELETE":
            del self.objects[key]
            return Answer(204)
        return _read(found, request.headers.get("range"))

    def _put(self, key: str, body: bytes, expected: str | None) -> Answer:
        """Generation 0 stands for an object that is not there."""
        current = self.objects.get(key)
        if expected is not None and int(expected) != (current.generation if current else 0):
            return Answer(412, error_body("PreconditionFailed"))
        stored = self.objects[key] = Stored(body, next(self.generations))
        return Answer(200, b"", stored.headers)

    def _multipart(self, request: Request, key: str, query: dict[str, str]) -> Answer:
        if "uploads" in query:
            upload = f"upload-{next(self.generations)}"
            self.uploads[upload] = {}
            return _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        if request.method == "PUT":
            self.uploads[query["uploadId"]][int(query["partNumber"])] = request.body
            return Answer(200, b"", {"etag": f'"part-{query["partNumber"]}"'})
        sent = self.uploads.pop(query["uploadId"])
        numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", request.body)]
        written = self._put(key, b"".join(sent[number] for number in numbers), None)
        answer = _xml("CompleteMultipartUploadResult", f"<ETag>{escape(written.headers['etag'])}</ETag>")
        return Answer(200, answer.body, written.headers)

    def _list(self, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        after = query.get("continuation-token") or query.get("start-after", "")
        items: dict[str, str] = {}
        for key in sorted(self.objects, key=str.encode):
            if not key.startswith(prefix):
                continue
            head, slash, _ = key[len(prefix) :].partition("/")
            if delimiter and slash:
                folder = f"{prefix}{head}/"
                items[folder] = f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
            else:
                items[key] = (
                    f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key].body)}</Size>"
                    "<LastModified>1970-01-01T00:00:00.000Z</LastModified></Contents>"
                )
        left = [name for name in items if name.encode() > after.encode()]
        page = left[: self.page]
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if len(left) > len(page) else ""
        truncated = f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>"
        return _xml("ListBucketResult", "".join(items[name] for name in page) + truncated + more)


def _read(found: Stored, asked: str | None) -> Answer:
    if asked is None:
        return Answer(200, found.body, found.headers)
    first, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
    size = len(found.body)
    if first >= size:
        return Answer(416, error_body("InvalidRange"), {"content-range": f"bytes */{size}"})
    last = min(last, size - 1)
    span = {"content-range": f"bytes {first}-{last}/{size}"}
    return Answer(206, found.body[first : last + 1], found.headers | span)


def _xml(root: str, inner: str) -> Answer:
    return Answer(200, f'<?xml version="1.0" encoding="UTF-8"?><{root}>{inner}</{root}>'.encode())
