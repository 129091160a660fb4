"""CloudTarget: which bucket, under which prefix, reached how.

It is frozen and picklable, so that it can cross to another process, where a client cannot go. Options and secrets are
strings, as a URI, a settings file or the environment spell them; they are checked here, once. Secrets stand in no repr.
"""

from dataclasses import dataclass, field
from difflib import get_close_matches
from urllib.parse import SplitResult, urlsplit

from holdfast.base.errors import Invalid
from holdfast.objects.redact import shown
from holdfast.objects.store import check_key

Pairs = tuple[tuple[str, str], ...]

OPTIONS = {
    "s3": {
        "endpoint": "where the server is, if not at AWS",
        "region": "default us-east-1",
        "allow_http": "false refuses an endpoint without TLS",
        "virtual_hosted_style": "true puts the bucket into the host name",
        "anonymous": "true sends requests unsigned",
        "profile": "which profile of the AWS files to use",
        "sse": "server-side encryption: AES256 or aws:kms",
        "sse_kms_key_id": "the key for aws:kms",
        "unquoted_if_match": "true for servers that refuse a quoted ETag in If-Match",
        "bulk_delete": "false for servers without DeleteObjects",
        "requests_in_flight": "default 256; more wait for their turn",
        "connect_timeout_ms": "default 5000",
        "request_timeout_ms": "default 30000; for one request with its body",
    },
    "gs": {
        "endpoint": "where the server is, if not at Google",
        "allow_http": "false refuses an endpoint without TLS",
        "anonymous": "true reads unsigned",
        "requests_in_flight": "default 256; more wait for their turn",
        "connect_timeout_ms": "default 5000",
        "request_timeout_ms": "default 30000; for one request with its body",
    },
    "az": {
        "endpoint": "where the server is, if not at Azure",
        "account": "the storage account",
        "allow_http": "false refuses an endpoint without TLS",
        "anonymous": "true sends requests unsigned",
        "requests_in_flight": "default 256; more wait for their turn",
        "connect_timeout_ms": "default 5000",
        "request_timeout_ms": "default 30000; for one request with its body",
    },
}
SECRETS = {
    "s3": ("access_key_id", "secret_access_key", "session_token"),
    "gs": ("service_account_key", "bearer_token"),
    "az": ("account_key", "sas_token"),
}

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True)
class CloudTarget:
    """``prefix`` has no slash at either end; every key of the store lies below it."""

    scheme: str
    bucket: str
    prefix: str = ""
    options: Pairs = ()
    secrets: Pairs = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.scheme not in OPTIONS:
            raise Invalid(f"scheme {self.scheme!r} is no cloud store", remedy=f"known: {', '.join(OPTIONS)}")
        if not _is_sendable(self.bucket) or "/" in self.bucket or self.bucket in (".", ".."):
            raise Invalid(f"{self.scheme}://: {self.bucket!r} is not a bucket name")
        if self.prefix:
            check_key(self.prefix)
        _refuse_unknown(self.uri, "option", self.options, OPTIONS[self.scheme])
        _refuse_unknown(self.uri, "secret", self.secrets, SECRETS[self.scheme])
        if self.endpoint is not None:
            check_endpoint(self.uri, self.endpoint)
        if self.text("sse") not in (None, "AES256", "aws:kms"):
            raise Invalid(f"{self.uri}: sse={self.text('sse')} is not known", remedy="use AES256 or aws:kms")
        if self.text("sse_kms_key_id") is not None and self.text("sse") != "aws:kms":
            raise Invalid(f"{self.uri}: sse_kms_key_id goes with sse=aws:kms", remedy="set both, or neither")

    @property
    def uri(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def endpoint(self) -> str | None:
        return self.text("endpoint")

    def text(self, name: str) -> str | None:
        """The option's value; an empty one counts as unset."""
        return dict(self.options).get(name) or None

    def secret(self, name: str) -> str | None:
        return dict(self.secrets).get(name) or None

    def switch(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in _TRUE + _FALSE:
            raise Invalid(f"{self.uri}: {name}={value} is neither true nor false")
        return value.lower() in _TRUE

    def millis(self, name: str, *, default: int) -> int:
        return self.number(name, default=default, what="a number of milliseconds")

    def number(self, name: str, *, default: int, what: str = "a number from 1 on") -> int:
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdigit() and int(value) > 0):
            raise Invalid(f"{self.uri}: {name}={value} is not {what}")
        return int(value)


def check_endpoint(uri: str, endpoint: str) -> SplitResult:
    """The endpoint's parts, if it is a plain ``http`` or ``https`` address."""
    try:
        parts = urlsplit(endpoint if _is_sendable(endpoint) else "")
        _ = parts.port  # raises for a port that is no number
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise Invalid(
            f"{uri}: endpoint {shown(endpoint)!r} is not an address", remedy="write http://host:port or https://host"
        )
    if parts.username is not None:
        raise Invalid(
            f"{uri}: the endpoint carries credentials",
            remedy="put credentials into the environment, or into files that holdfast.toml names",
        )
    return parts


def _is_sendable(text: str) -> bool:
    """Whether an address can have it in it as it is."""
    return text.isascii() and text.isprintable() and " " not in text and text != ""


def _refuse_unknown(uri: str, kind: str, pairs: Pairs, known: dict[str, str] | tuple[str, ...]) -> None:
    for name, _ in pairs:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
            raise Invalid(f"{uri}: unknown {kind} {name!r}", remedy=remedy)
