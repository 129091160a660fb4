"""Store addresses: from a URI to a ``StoreSpec``, with the options of every scheme declared once.

    file:./data                     a directory (the embedded store)
    memory:  memory:name            this process only; a name is shared within the process
    s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1
    gs://bucket/prefix              az://container/prefix?account=name

Options that the URI leaves out come from ``Settings``. Secrets are never read from a URI, because URIs are logged;
``shown`` removes secrets that were put there by mistake before an address becomes part of a message.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from holdfast.base.config import REQUESTS_IN_FLIGHT, Settings, problem_in
from holdfast.base.errors import Invalid
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import check_key

Pairs = tuple[tuple[str, str], ...]


def _address(endpoint: str) -> str:
    check_endpoint(endpoint)
    return endpoint


# Milliseconds up to eleven days: a timeout far above that does not fit obstore's.
_Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
_Endpoint = Annotated[str, AfterValidator(_address)]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class FileOptions(_Options):
    unsafe_network_filesystem: bool = False
    """Use a directory on a network filesystem, without guarantees."""


class MemoryOptions(_Options):
    pass


class CloudOptions(_Options):
    endpoint: _Endpoint | None = None
    """Address of the server; None where the environment or the provider decides."""
    allow_http: bool = True
    anonymous: bool = False
    """Send requests unsigned."""
    requests_in_flight: _Count = REQUESTS_IN_FLIGHT
    connect_timeout_ms: _Count = 5_000
    request_timeout_ms: _Count = 30_000
    """For one request with its body."""


class S3Options(CloudOptions):
    region: str | None = None
    virtual_hosted_style: bool = False
    """Put the bucket into the host name."""
    profile: str | None = None
    """The profile of the AWS files to use."""
    sse: Literal["AES256", "aws:kms"] | None = None
    sse_kms_key_id: str | None = None
    unquoted_if_match: bool = False
    """For servers that refuse a quoted ETag in If-Match."""
    bulk_delete: bool = True
    """Whether the server has DeleteObjects."""

    @model_validator(mode="after")
    def _check_kms(self) -> "S3Options":
        if self.sse_kms_key_id is not None and self.sse != "aws:kms":
            raise ValueError("sse_kms_key_id needs sse=aws:kms")
        return self


class AzureOptions(CloudOptions):
    account: str | None = None
    """The storage account."""


OPTIONS: dict[str, type[_Options]] = {
    "file": FileOptions,
    "memory": MemoryOptions,
    "s3": S3Options,
    "gs": CloudOptions,
    "az": AzureOptions,
}
Kind = TypeVar("Kind", bound=_Options)

SCHEMES = tuple(OPTIONS)
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

_WHERE_TO_PUT_SECRETS = "put credentials into the environment, or into files that holdfast.toml names"
_EXAMPLES = "file:./data, memory:, s3://bucket/prefix"


@dataclass(frozen=True)
class StoreSpec:
    """The checked address of a store. ``place`` is a directory, a name or a bucket; ``prefix`` neither begins nor ends
    with a slash.

    It is frozen and picklable, so that it can be sent to another process, where an open client cannot go. ``secrets``
    are sent with it and kept out of its repr.
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
        kind = OPTIONS[self.scheme]
        _refuse_unknown(self.uri, "option", [name for name, _ in self.options], kind.model_fields)
        _refuse_unknown(self.uri, "secret", [name for name, _ in self.secrets], SECRETS.get(self.scheme, ()))
        self.values(kind)
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

    @property
    def uri(self) -> str:
        """The address alone: no options, no secrets. Fit for logs."""
        return uri_of(self.scheme, self.place, self.prefix)

    def values(self, kind: type[Kind]) -> Kind:
        """The options as values of their types; an empty text counts as unset."""
        try:
            return kind.model_validate({name: value for name, value in self.options if value})
        except ValidationError as error:
            where, what, remedy = problem_in(error)
            option = f"option {where[0]}: " if where else ""
            raise Invalid(f"{self.uri}: {option}{what}", remedy=remedy or "see the options of stores") from None

    def secret(self, name: str) -> str | None:
        return dict(self.secrets).get(name) or None

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
            folder, options = _folder(uri, path), _options(uri, query, scheme)
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
        options = _options(uri, parts.query, scheme)
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


def canonical_endpoint(endpoint: str) -> str:
    """One text for all ways to write this endpoint: lower case, no slash at the end, no port that is the default."""
    parts = check_endpoint(endpoint)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    usual = parts.port in (None, {"http": 80, "https": 443}[parts.scheme])
    return f"{parts.scheme}://{host}{'' if usual else f':{parts.port}'}{parts.path.rstrip('/')}"


def check_endpoint(endpoint: str) -> SplitResult:
    """The endpoint's parts, if it is a plain ``http`` or ``https`` address."""
    sendable = endpoint.isascii() and endpoint.isprintable() and " " not in endpoint
    try:
        parts = urlsplit(endpoint if sendable else "")
        _ = parts.port  # raises for a port that is not a number
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise Invalid(
            f"endpoint {shown(endpoint)!r} is not an address", remedy="write http://host:port or https://host"
        )
    if parts.username is not None:
        raise Invalid("the endpoint carries credentials", remedy=_WHERE_TO_PUT_SECRETS)
    return parts


def _refuse_unknown(uri: str, what: str, names: Iterable[str], known: Iterable[str]) -> None:
    known = sorted(known)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known) or 'none'}"
            raise Invalid(f"store URI {_shown(uri)} has an unknown {what} {name!r}", remedy=hint)


def _options(uri: str, query: str, scheme: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name in _SECRET_NAMES:
            raise Invalid(
                f"store URI carries a secret ({name})", remedy=f"{_WHERE_TO_PUT_SECRETS}: URIs end up in logs"
            )
    _refuse_unknown(uri, "option", options, OPTIONS[scheme].model_fields)
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
    """Escapes the characters that parsing would change; everything else stays readable."""
    return text.replace("%", "%25").replace("?", "%3F").replace("#", "%23")


def _s3_defaults(settings: Settings) -> dict[str, str]:
    """Options of the settings that the URI may override."""
    given = settings.s3.model_dump(include=set(S3Options.model_fields), exclude_defaults=True)
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}


def _s3_secrets(settings: Settings) -> dict[str, str]:
    s3 = settings.s3
    found = {"secret_access_key": s3.secret_access_key, "session_token": s3.session_token}
    secrets = {name: value.get_secret_value() for name, value in found.items() if value is not None}
    return secrets if s3.access_key_id is None else {"access_key_id": s3.access_key_id, **secrets}


def _scheme_hint(uri: str, scheme: str) -> str:
    if uri.startswith(("/", ".", "~")):
        return f"for a directory write file:{uri}"
    near = get_close_matches(scheme, SCHEMES, n=1)
    return f"did you mean {near[0]}: ? Examples: {_EXAMPLES}" if near else f"examples: {_EXAMPLES}"
