"""StoreSpec: a store's address and options, parsed.

It is frozen and picklable, so that it crosses process boundaries in place of an open client.

    file:./data                     a folder (the embedded store)
    memory:  memory:name            this process only; a name is shared within the process
    s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1
    gs://bucket/prefix              az://container/prefix?account=name

What the URI does not say comes from ``Settings``; secrets never stand in a URI and never in a repr.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from holdfast.base.config import REQUESTS_IN_FLIGHT, Settings
from holdfast.base.errors import Invalid
from holdfast.objects.redact import shown
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import check_key

SCHEMES = ("file", "memory", "s3", "gs", "az")
_LIMITS = {"connect_timeout_ms", "request_timeout_ms", "requests_in_flight"}
# The backend checks values, and says what each option means; a test compares the names.
CLOUD_OPTIONS = {
    "s3": {"endpoint", "region", "allow_http", "virtual_hosted_style", "anonymous", "profile", "sse", "sse_kms_key_id"}
    | {"unquoted_if_match", "bulk_delete"}
    | _LIMITS,
    "gs": {"endpoint", "allow_http", "anonymous"} | _LIMITS,
    "az": {"endpoint", "account", "allow_http", "anonymous"} | _LIMITS,
}
FILE_OPTIONS = {"unsafe_network_filesystem"}
SECRET_NAMES = {"access_key_id", "secret_access_key", "session_token", "secret", "token", "key", "password"}

WHERE_TO_PUT_SECRETS = "put credentials into the environment, or into files that holdfast.toml names"
EXAMPLES = "file:./data, memory:, s3://bucket/prefix"


@dataclass(frozen=True)
class StoreSpec:
    """Where a store is. ``place`` is a folder, a name or a bucket; ``secrets`` are kept out of the repr."""

    scheme: str
    place: str
    prefix: str = ""
    options: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    @property
    def uri(self) -> str:
        """The address alone: no options, no secrets. Fit for logs."""
        if self.scheme in ("file", "memory"):
            return f"{self.scheme}:{_quoted(self.place)}"
        return f"{self.scheme}://{self.place}/{_quoted(self.prefix)}".rstrip("/")

    @classmethod
    def parse(cls, uri: str, settings: Settings | None = None) -> "StoreSpec":
        settings = settings if settings is not None else Settings()
        retry = RetryPolicy(**settings.retry.model_dump())
        scheme, colon, rest = uri.partition(":")
        if not colon or scheme not in SCHEMES:
            raise Invalid(f"store URI {_shown(uri)} has no known scheme", remedy=_scheme_hint(uri, scheme))
        if scheme == "memory":
            return cls._parse_memory(uri, rest, retry)
        if scheme == "file":
            return cls._parse_file(uri, rest, retry)
        return cls._parse_cloud(uri, scheme, settings, retry)

    @classmethod
    def _parse_memory(cls, uri: str, rest: str, retry: RetryPolicy) -> "StoreSpec":
        name = rest.removeprefix("//")
        if not re.fullmatch(r"[\w.-]*", name):
            raise Invalid(
                f"store URI {_shown(uri)} is not the name of a memory store",
                remedy="write memory: or memory:name, with letters, digits, dots, dashes and underscores",
            )
        return cls("memory", name, retry=retry)

    @classmethod
    def _parse_file(cls, uri: str, rest: str, retry: RetryPolicy) -> "StoreSpec":
        path, _, query = rest.partition("?")
        if path.startswith("//"):
            host, slash, below = path[2:].partition("/")
            if host not in ("", "localhost"):
                name = shown(host)
                raise Invalid(
                    f"store URI {_shown(uri)} names a host {name!r}",
                    remedy=f"write file:{name}/... or file:/{name}/...",
                )
            path = slash + below
        if not path:
            raise Invalid(f"store URI {_shown(uri)} names no folder", remedy="write file:./data")
        options = _options(uri, query, FILE_OPTIONS)
        for name, value in options.items():
            if value not in ("true", "false"):
                raise Invalid(f"store URI {_shown(uri)}: {name}={value} is neither true nor false")
        try:
            folder = Path(unquote(path, errors="surrogateescape")).expanduser().absolute()
        except RuntimeError as error:  # no such user
            raise Invalid(f"store URI {_shown(uri)}: {error}", remedy="write the folder's full path") from error
        if "\0" in str(folder):
            raise Invalid(f"store URI {_shown(uri)} has a zero byte in its path", remedy="write file:./data")
        return cls("file", str(folder), options=tuple(sorted(options.items())), retry=retry)

    @classmethod
    def _parse_cloud(cls, uri: str, scheme: str, settings: Settings, retry: RetryPolicy) -> "StoreSpec":
        if any(char < " " or char == "\x7f" for char in uri):  # some of which urlsplit would leave out silently
            raise Invalid(f"store URI {_shown(uri)} has a control character", remedy="leave it out")
        parts = _split(uri)
        if not parts.netloc or "@" in parts.netloc:
            raise Invalid(f"store URI of scheme {scheme} needs a bucket", remedy=f"write {scheme}://bucket/prefix")
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", parts.netloc):
            bucket = shown(f"{scheme}://{parts.netloc}").removeprefix(f"{scheme}://")
            raise Invalid(
                f"store URI {_shown(uri)}: {bucket!r} is no bucket name",
                remedy=f"write {scheme}://bucket/prefix?endpoint=http://host:port",
            )
        if parts.fragment:
            raise Invalid(f"store URI {_shown(uri)} has a #", remedy="write %23 for a # in a prefix")
        prefix = unquote(parts.path, errors="surrogateescape").strip("/")
        if prefix:
            check_key(prefix)
        options = _options(uri, parts.query, CLOUD_OPTIONS[scheme])
        if settings.store.requests_in_flight != REQUESTS_IN_FLIGHT:
            options.setdefault("requests_in_flight", str(settings.store.requests_in_flight))
        secrets: dict[str, str] = {}
        if scheme == "s3":
            options = {**_s3_defaults(settings), **options}
            secrets = _s3_secrets(settings)
        if "@" in options.get("endpoint", ""):
            raise Invalid(
                f"store URI {_shown(uri)}: the endpoint carries credentials",
                remedy=WHERE_TO_PUT_SECRETS,
            )
        return cls(scheme, parts.netloc, prefix, tuple(sorted(options.items())), tuple(sorted(secrets.items())), retry)


def _options(uri: str, query: str, known: set[str]) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name in SECRET_NAMES:
            raise Invalid(
                f"store URI carries a secret ({name})",
                remedy=f"{WHERE_TO_PUT_SECRETS}: URIs end up in logs",
            )
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
            raise Invalid(f"store URI {_shown(uri)} has an unknown option {name!r}", remedy=hint)
    return options


def _split(uri: str) -> SplitResult:
    try:
        return urlsplit(uri)
    except ValueError as error:
        raise Invalid(f"store URI {_shown(uri)} cannot be read: {error}", remedy=f"examples: {EXAMPLES}") from error


def _shown(uri: str) -> str:
    """The URI for a message. A folder's name may have an ``@`` of its own."""
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
    return {name: _text(value) for name, value in given.items() if value is not None}


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


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _scheme_hint(uri: str, scheme: str) -> str:
    if uri.startswith(("/", ".", "~")):
        return f"for a folder write file:{uri}"
    near = get_close_matches(scheme, SCHEMES, n=1)
    return f"did you mean {near[0]}: ? Examples: {EXAMPLES}" if near else f"examples: {EXAMPLES}"
