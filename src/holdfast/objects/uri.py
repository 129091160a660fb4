"""Store addresses: from a URI to a ``StoreSpec``, with every option of every scheme declared once.

    file:./data                     a folder (the embedded store)
    memory:  memory:name            this process only; a name is shared within the process
    s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1
    gs://bucket/prefix              az://container/prefix?account=name

Options that the URI leaves out come from ``Settings``. Secrets are never read from a URI, because URIs end up in logs;
``shown`` removes what people put there by mistake before an address goes into a message.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from holdfast.base.config import REQUESTS_IN_FLIGHT, Settings
from holdfast.base.errors import Invalid
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import check_key

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Option:
    """What an option means, and how its value is written: ``text``, ``switch``, ``number``, ``ms`` or ``endpoint``."""

    help: str
    kind: str = "text"


_LIMITS = {
    "requests_in_flight": Option(f"requests under way at once; more wait. Default {REQUESTS_IN_FLIGHT}", "number"),
    "connect_timeout_ms": Option("default 5000", "ms"),
    "request_timeout_ms": Option("default 30000; for one request with its body", "ms"),
}
OPTIONS: dict[str, dict[str, Option]] = {
    "file": {
        "unsafe_network_filesystem": Option(
            "true uses a directory on a network filesystem, without guarantees", "switch"
        )
    },
    "memory": {},
    "s3": {
        "endpoint": Option("address of the server, if not AWS", "endpoint"),
        "region": Option("default us-east-1"),
        "allow_http": Option("false refuses an endpoint without TLS", "switch"),
        "virtual_hosted_style": Option("true puts the bucket into the host name", "switch"),
        "anonymous": Option("true sends requests unsigned", "switch"),
        "profile": Option("which profile of the AWS files to use"),
        "sse": Option("server-side encryption: AES256 or aws:kms"),
        "sse_kms_key_id": Option("the key for aws:kms"),
        "unquoted_if_match": Option("true for servers that refuse a quoted ETag in If-Match", "switch"),
        "bulk_delete": Option("false for servers without DeleteObjects", "switch"),
        **_LIMITS,
    },
    "gs": {
        "endpoint": Option("address of the server, if not Google", "endpoint"),
        "allow_http": Option("false refuses an endpoint without TLS", "switch"),
        "anonymous": Option("true reads unsigned", "switch"),
        **_LIMITS,
    },
    "az": {
        "endpoint": Option("address of the server, if not Azure", "endpoint"),
        "account": Option("the storage account"),
        "allow_http": Option("false refuses an endpoint without TLS", "switch"),
        "anonymous": Option("true sends requests unsigned", "switch"),
        **_LIMITS,
    },
}
SCHEMES = ("file", "memory", "s3", "gs", "az")
SECRETS: dict[str, tuple[str, ...]] = {
    "s3": ("access_key_id", "secret_access_key", "session_token"),
    "gs": ("bearer_token",),
    "az": ("account_key", "sas_token"),
}
_SECRET_NAMES = {name for names in SECRETS.values() for name in names} | {
    "service_account_key",
    "secret",
    "token",
    "key",
    "password",
}

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_WHERE_TO_PUT_SECRETS = "put credentials into the environment, or into files that holdfast.toml names"
_MOST = 1_000_000_000
"""Bound of numbers in options. In milliseconds it is eleven days; a timeout far above it does not fit obstore's."""
_EXAMPLES = "file:./data, memory:, s3://bucket/prefix"


@dataclass(frozen=True)
class StoreSpec:
    """Where a store is, checked. ``place`` is a directory, a name or a bucket; ``prefix`` has no slash at either end.

    It is frozen and picklable, so that it can be sent to another process, where an open client cannot go. ``secrets``
    travel with it and are kept out of its repr.
    """

    scheme: str
    place: str
    prefix: str = ""
    options: Pairs = ()
    secrets: Pairs = field(default=(), repr=False)
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        if self.scheme not in OPTIONS:
            raise Invalid(f"scheme {self.scheme!r} is not known", remedy=f"known: {', '.join(SCHEMES)}")
        _refuse_unknown(self.uri, "option", [name for name, _ in self.options], OPTIONS[self.scheme])
        _refuse_unknown(self.uri, "secret", [name for name, _ in self.secrets], SECRETS.get(self.scheme, ()))
        for name, value in self.options:
            _check_value(self.uri, OPTIONS[self.scheme][name].kind, name, value)
        if self.scheme in ("file", "memory"):
            return
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", self.place, re.ASCII):
            bucket = shown(f"{self.scheme}://{self.place}").removeprefix(f"{self.scheme}://")
            raise Invalid(
                f"{self.scheme}://: {bucket!r} is not a bucket name",
                remedy=f"write {self.scheme}://bucket/prefix?endpoint=http://host:port",
            )
        if self.prefix:
            check_key(self.prefix)
        if self.text("sse") not in (None, "AES256", "aws:kms"):
            raise Invalid(f"{self.uri}: sse={self.text('sse')} is not known", remedy="use AES256 or aws:kms")
        if self.text("sse_kms_key_id") is not None and self.text("sse") != "aws:kms":
            raise Invalid(f"{self.uri}: sse_kms_key_id goes with sse=aws:kms", remedy="set both, or neither")

    @property
    def uri(self) -> str:
        """The address alone: no options, no secrets. Fit for logs."""
        return uri_of(self.scheme, self.place, self.prefix)

    @property
    def endpoint(self) -> str | None:
        """The server's address in the URI or the settings; None where the environment or the provider decides."""
        return self.text("endpoint")

    def text(self, name: str) -> str | None:
        """The option's value; an empty one counts as unset."""
        return dict(self.options).get(name) or None

    def secret(self, name: str) -> str | None:
        return dict(self.secrets).get(name) or None

    def switch(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        return default if value is None else value.lower() in _TRUE

    def number(self, name: str, *, default: int) -> int:
        value = self.text(name)
        return default if value is None else int(value)

    @classmethod
    def parse(cls, uri: str, settings: Settings | None = None) -> "StoreSpec":
        settings = settings if settings is not None else Settings()
        retry = RetryPolicy(**settings.retry.model_dump())
        scheme, colon, rest = uri.partition(":")
        if not colon or scheme not in SCHEMES:
            raise Invalid(f"store URI {_shown(uri)} has no known scheme", remedy=_scheme_hint(uri, scheme))
        if scheme == "memory":
            return cls("memory", _memory_name(uri, rest), retry=retry)
        if scheme == "file":
            path, _, query = rest.partition("?")
            folder, options = _folder(uri, path), _options(uri, query, OPTIONS["file"])
            return cls("file", str(folder), options=tuple(sorted(options.items())), retry=retry)
        return cls._parse_cloud(uri, scheme, settings, retry)

    @classmethod
    def _parse_cloud(cls, uri: str, scheme: str, settings: Settings, retry: RetryPolicy) -> "StoreSpec":
        if any(char < " " or char == "\x7f" for char in uri):  # urlsplit would drop some of them silently
            raise Invalid(f"store URI {_shown(uri)} has a control character", remedy="leave it out")
        try:
            parts = urlsplit(uri)
        except ValueError as error:
            raise Invalid(
                f"store URI {_shown(uri)} cannot be parsed: {error}", remedy=f"examples: {_EXAMPLES}"
            ) from error
        if not parts.netloc or "@" in parts.netloc:
            raise Invalid(f"store URI {_shown(uri)} needs a bucket", remedy=f"write {scheme}://bucket/prefix")
        if parts.fragment:
            raise Invalid(f"store URI {_shown(uri)} has a #", remedy="write %23 for a # in a prefix")
        options = _options(uri, parts.query, OPTIONS[scheme])
        if settings.store.requests_in_flight != REQUESTS_IN_FLIGHT:
            options.setdefault("requests_in_flight", str(settings.store.requests_in_flight))
        secrets: dict[str, str] = {}
        if scheme == "s3":
            options = {**_s3_defaults(settings), **options}
            secrets = _s3_secrets(settings)
        prefix = unquote(parts.path, errors="surrogateescape").strip("/")
        return cls(scheme, parts.netloc, prefix, tuple(sorted(options.items())), tuple(sorted(secrets.items())), retry)


def shown(address: str) -> str:
    """An address for a message: without options, user information, and anything but a number in place of a port.

    An AWS secret may contain slashes, so user information does not end at the first one: everything before the last
    ``@`` is hidden.
    """
    bare = address.partition("?")[0]
    scheme, slashes, rest = bare.partition("://")
    if not slashes:
        scheme, slashes, rest = "", "", bare
    hidden, at, rest = rest.rpartition("@")
    host, slash, path = rest.partition("/")
    name, colon, port = host.partition(":")
    if slashes and colon and not port.isdigit():
        host = f"{name}:***"
    return f"{scheme}{slashes}{'***' if hidden else ''}{at}{host}{slash}{path}"


def uri_of(scheme: str, place: str, prefix: str) -> str:
    if scheme in ("file", "memory"):
        return f"{scheme}:{_quoted(place)}"
    return f"{scheme}://{place}/{_quoted(prefix)}".rstrip("/")


def canonical_endpoint(uri: str, endpoint: str) -> str:
    """One text for all ways to write this endpoint: lower case, no slash at the end, no port that is the default."""
    parts = check_endpoint(uri, endpoint)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    usual = parts.port in (None, {"http": 80, "https": 443}[parts.scheme])
    return f"{parts.scheme}://{host}{'' if usual else f':{parts.port}'}{parts.path.rstrip('/')}"


def check_endpoint(uri: str, endpoint: str) -> SplitResult:
    """The endpoint's parts, if it is a plain ``http`` or ``https`` address."""
    sendable = endpoint.isascii() and endpoint.isprintable() and " " not in endpoint
    try:
        parts = urlsplit(endpoint if sendable else "")
        _ = parts.port  # raises for a port that is not a number
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise Invalid(
            f"{uri}: endpoint {shown(endpoint)!r} is not an address", remedy="write http://host:port or https://host"
        )
    if parts.username is not None:
        raise Invalid(f"{uri}: the endpoint carries credentials", remedy=_WHERE_TO_PUT_SECRETS)
    return parts


def _check_value(uri: str, kind: str, name: str, value: str) -> None:
    if value == "":
        return  # counts as unset
    if kind == "switch" and value.lower() not in _TRUE + _FALSE:
        raise Invalid(f"{uri}: {name}={value} is neither true nor false", remedy="write true or false")
    if kind in ("number", "ms") and not (value.isascii() and value.isdigit() and value.strip("0")):
        unit = " of milliseconds" if kind == "ms" else ""
        raise Invalid(f"{uri}: {name}={value} is not a whole number{unit}, 1 or more", remedy=f"write {name}=1000")
    digits = value.lstrip("0")
    if kind in ("number", "ms") and (len(digits) > len(str(_MOST)) or int(digits) > _MOST):
        shown_value = value if len(value) <= 40 else f"{value[:40]}..."
        raise Invalid(f"{uri}: {name}={shown_value} is too large", remedy=f"write a number up to {_MOST}")
    if kind == "endpoint":
        check_endpoint(uri, value)


def _refuse_unknown(uri: str, what: str, names: Iterable[str], known: Iterable[str]) -> None:
    known = sorted(known)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known) or 'none'}"
            raise Invalid(f"store URI {_shown(uri)} has an unknown {what} {name!r}", remedy=hint)


def _options(uri: str, query: str, known: Iterable[str]) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name in _SECRET_NAMES:
            raise Invalid(
                f"store URI carries a secret ({name})", remedy=f"{_WHERE_TO_PUT_SECRETS}: URIs end up in logs"
            )
    _refuse_unknown(uri, "option", options, known)
    return options


def _memory_name(uri: str, rest: str) -> str:
    name = rest.removeprefix("//")
    if not re.fullmatch(r"[\w.-]*", name):
        raise Invalid(
            f"store URI {_shown(uri)} is not the name of a memory store",
            remedy="write memory: or memory:name, with letters, digits, dots, dashes and underscores",
        )
    return name


def _folder(uri: str, path: str) -> Path:
    if path.startswith("//"):
        host, slash, below = path[2:].partition("/")
        if host not in ("", "localhost"):
            name = shown(host)
            raise Invalid(
                f"store URI {_shown(uri)} names a host {name!r}", remedy=f"write file:{name}/... or file:/{name}/..."
            )
        path = slash + below
    if not path:
        raise Invalid(f"store URI {_shown(uri)} names no directory", remedy="write file:./data")
    try:
        folder = Path(unquote(path, errors="surrogateescape")).expanduser().absolute()
    except RuntimeError as error:  # ~user, and there is no such user
        raise Invalid(f"store URI {_shown(uri)}: {error}", remedy="write the directory's full path") from error
    if "\0" in str(folder):
        raise Invalid(f"store URI {_shown(uri)} has a zero byte in its path", remedy="write file:./data")
    return folder


def _shown(uri: str) -> str:
    """The URI for a message. The name of a directory may contain an ``@``."""
    return repr(uri.partition("?")[0] if uri.startswith("file:") and not uri.startswith("file://") else shown(uri))


def _quoted(text: str) -> str:
    """So that parsing gives the text back; everything else stays readable."""
    return text.replace("%", "%25").replace("?", "%3F").replace("#", "%23")


def _s3_defaults(settings: Settings) -> dict[str, str]:
    s3 = settings.s3
    given: Mapping[str, object] = {
        "endpoint": s3.endpoint,
        "region": s3.region,
        "allow_http": s3.allow_http,
        "virtual_hosted_style": s3.virtual_hosted_style,
        "sse": None if s3.sse == "none" else s3.sse,
        "sse_kms_key_id": s3.sse_kms_key_id,
    }
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
        if value is not None
    }


def _s3_secrets(settings: Settings) -> dict[str, str]:
    s3 = settings.s3
    secrets: dict[str, str] = {}
    if s3.access_key_id is not None:
        secrets["access_key_id"] = s3.access_key_id
    if s3.secret_access_key is not None:
        secrets["secret_access_key"] = s3.secret_access_key.get_secret_value()
    if s3.session_token is not None:
        secrets["session_token"] = s3.session_token.get_secret_value()
    return secrets


def _scheme_hint(uri: str, scheme: str) -> str:
    if uri.startswith(("/", ".", "~")):
        return f"for a directory write file:{uri}"
    near = get_close_matches(scheme, SCHEMES, n=1)
    return f"did you mean {near[0]}: ? Examples: {_EXAMPLES}" if near else f"examples: {_EXAMPLES}"
