"""What a request is to S3: its verb, its key, and its condition. Path-style addresses only.

The verbs are the words that ``objects`` counts by (get, head, range, put, list, delete), so that the two counts can be
compared; what the port has no word for is ``copy``, ``multipart`` or ``bucket``. The key of a listing is its prefix.
"""

from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast.sim.proxy.http import RequestHead

CONDITIONS = ("if-match", "if-none-match")

_FIRST_LISTING_API = {"prefix", "delimiter", "marker", "max-keys", "encoding-type"}


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    verb: str
    bucket: str
    key: str
    condition: str | None
    """``if-match``, ``if-none-match``, or none."""


def classify(head: RequestHead) -> Request:
    parts = urlsplit(head.target)
    query = parse_qs(parts.query, keep_blank_values=True)
    bucket, _, raw_key = parts.path.removeprefix("/").partition("/")
    key = unquote(raw_key)
    verb = _verb(head, bool(bucket), bool(key), query)
    if verb == "list":
        key = query.get("prefix", [""])[0]
    condition = next((name for name in CONDITIONS if head.header(name) is not None), None)
    return Request(head.method, verb, unquote(bucket), key, condition)


def _verb(head: RequestHead, has_bucket: bool, has_key: bool, query: dict[str, list[str]]) -> str:
    if head.method == "POST" and "delete" in query:
        return "delete"
    if not has_key:
        listing = "list-type" in query or query.keys() <= _FIRST_LISTING_API
        return "list" if head.method == "GET" and has_bucket and listing else "bucket"
    if "uploadId" in query or "uploads" in query:
        return "multipart"
    if head.method == "PUT" and head.header("x-amz-copy-source") is not None:
        return "copy"
    if head.method == "GET" and head.header("range") is not None:
        return "range"
    return head.method.lower()
