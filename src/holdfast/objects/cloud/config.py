"""From a store's address and the environment to an obstore client.

obstore reads environment variables one by one: without care ``AWS_ENDPOINT_URL_S3`` or ``AZURE_STORAGE_USE_EMULATOR``
send requests to another server than the one in the address, and a session token from the environment is sent with keys
from a file. So server and identity are decided here and passed on explicitly:

* server and bucket: always, the provider's own address included
* identity: known keys go through a credential provider, which obstore prefers to any variable
* proxy and certificate checks: explicit client options replace ``AWS_PROXY_URL``, ``AWS_ALLOW_INVALID_CERTIFICATES``
  and similar variables (``HTTPS_PROXY`` and ``SSL_CERT_FILE`` remain)
* conditional writes: ``AWS_CONDITIONAL_PUT`` and ``AWS_S3_EXPRESS`` cannot disable them

What the address and the settings leave open, obstore takes from its variables: for S3 the credentials of a role, for
Google's store and Azure all credentials. obstore's own retries are off: a conditional write that is repeated below the
caller loses its outcome. Nothing is contacted here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from holdfast.base.errors import Invalid
from holdfast.objects.cloud.credentials import (
    WHERE_TO_PUT_KEYS,
    Credentials,
    Environ,
    Keys,
    Profile,
    Unsigned,
    find_credentials,
    read_profile,
)
from holdfast.objects.cloud.errors import Bucket
from holdfast.objects.place import Place
from holdfast.objects.uri import AzureOptions, CloudOptions, S3Options, StoreSpec, canonical_endpoint

if TYPE_CHECKING:  # obstore's typed dictionaries exist for type checkers only
    from obstore.store import (
        AzureConfig,
        AzureCredential,
        ClientConfig,
        GCSConfig,
        GCSCredential,
        RetryConfig,
        S3Config,
        S3Credential,
    )

Backend = S3Store | GCSStore | AzureStore

_NO_RETRIES: "RetryConfig" = {"max_retries": 0}
_REGION = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ENDPOINT = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_AZURE_ENDPOINT = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_AZURE_SECRETS = {
    "account_key": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY"),
    "sas_token": ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
}
"""The variables that obstore reads."""


@dataclass(frozen=True)
class Connection:
    """An obstore client, and the properties of its server that its users need."""

    backend: Backend
    bucket: Bucket
    place: Place
    requests_in_flight: int
    unquoted_if_match: bool = False
    """Old Ceph (16, 18) and some providers compare the raw ``If-Match`` header with the ETag without its quotes."""
    bulk_delete: bool = False
    """Whether one request deletes many keys, and reports every one that failed."""


def connect(spec: StoreSpec, environ: Environ) -> Connection:
    try:
        return {"s3": _s3, "gs": _gs, "az": _az}[spec.scheme](spec, environ)
    except (BaseError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise Invalid(f"{spec.uri}: these settings do not work: {reason}", remedy="correct them") from None


def carried(spec: StoreSpec, environ: Environ) -> StoreSpec:
    """The address for another process, together with the server, region and keys that this process has from its
    environment or a profile. An identity that cannot be passed on (a role, a file of Google's) is left open.
    """
    options, secrets = dict(spec.options), dict(spec.secrets)
    resolved: dict[str, str | None] = {}
    match spec.scheme:
        case "s3":
            aws = _Aws(spec, environ)
            credentials = find_credentials(spec, environ, lambda: aws.profile)
            resolved = {"region": aws.region, "endpoint": aws.endpoint}
            if isinstance(credentials, Keys):
                options.pop("profile", None)
                secrets = {name: value for name, value in credentials.secrets().items() if value}
        case "gs":
            resolved = {"endpoint": options.get("endpoint") or environ.get("GOOGLE_BASE_URL")}
        case "az":
            resolved = {
                "account": options.get("account") or environ.get("AZURE_STORAGE_ACCOUNT_NAME"),
                "endpoint": options.get("endpoint") or _first(environ, _AZURE_ENDPOINT),
            }
            for secret, names in _AZURE_SECRETS.items():
                if not secrets and (value := _first(environ, names)):
                    secrets[secret] = value
    options |= {name: value for name, value in resolved.items() if value}
    return replace(spec, options=tuple(sorted(options.items())), secrets=tuple(sorted(secrets.items())))


def _first(environ: Environ, names: Iterable[str]) -> str | None:
    return next((value for name in names if (value := environ.get(name))), None)


class _Aws:
    """S3 settings by precedence: address and settings, the AWS environment, the profile (read only when needed)."""

    def __init__(self, spec: StoreSpec, environ: Environ) -> None:
        self._spec = spec
        self._environ = environ
        self.options = spec.values(S3Options)

    @cached_property
    def profile(self) -> Profile:
        return read_profile(self._spec, self._environ)

    @property
    def region(self) -> str | None:
        return self.options.region or _first(self._environ, _REGION) or self.profile.values.get("region")

    @property
    def endpoint(self) -> str | None:
        return self.options.endpoint or _first(self._environ, _ENDPOINT) or self.profile.values.get("endpoint_url")


def _s3(spec: StoreSpec, environ: Environ) -> Connection:
    aws = _Aws(spec, environ)
    options = aws.options
    region = aws.region or "us-east-1"
    _check_headers(spec, {"region": region})
    server = canonical_endpoint(aws.endpoint or f"https://s3.{region}.amazonaws.com")
    endpoint = server
    if options.virtual_hosted_style:
        server = server.replace(f"//{spec.place.lower()}.", "//", 1)
        endpoint = server.replace("//", f"//{spec.place}.", 1)
    credentials = find_credentials(spec, environ, lambda: aws.profile)
    config: S3Config = {
        "region": region,
        "aws_endpoint_url_s3": endpoint,  # of the three names for an endpoint the one that wins
        "virtual_hosted_style_request": options.virtual_hosted_style,
        "skip_signature": isinstance(credentials, Unsigned),
        "disable_bulk_delete": not options.bulk_delete,
        "conditional_put": "etag",
        "s3_express": False,
    }
    if options.sse:
        config["server_side_encryption"] = options.sse
    if options.sse_kms_key_id:
        config["sse_kms_key_id"] = options.sse_kms_key_id
    if metadata := environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        config["metadata_endpoint"] = metadata.rstrip("/")
    _check_headers(spec, {"sse_kms_key_id": options.sse_kms_key_id, **_header_keys(credentials)})
    backend = S3Store(
        spec.place,
        config=config,
        client_options=_client_options(spec, options, endpoint),
        retry_config=_NO_RETRIES,
        credential_provider=_s3_provider(credentials) if isinstance(credentials, Keys) else None,
    )
    return Connection(
        backend,
        Bucket("s3", spec.place, endpoint, credentials.source, WHERE_TO_PUT_KEYS),
        Place.at("s3", server, spec.place, spec.prefix),
        options.requests_in_flight,
        options.unquoted_if_match,
        options.bulk_delete,
    )


def _gs(spec: StoreSpec, environ: Environ) -> Connection:
    options = spec.values(CloudOptions)
    endpoint = options.endpoint or environ.get("GOOGLE_BASE_URL") or "https://storage.googleapis.com"
    endpoint = canonical_endpoint(endpoint)
    config: GCSConfig = {"base_url": endpoint, "skip_signature": options.anonymous}
    token = spec.secret("bearer_token")
    _check_headers(spec, {"bearer token": token})
    backend = GCSStore(
        spec.place,
        config=config,
        client_options=_client_options(spec, options, endpoint),
        retry_config=_NO_RETRIES,
        credential_provider=_gs_provider(token) if token else None,
    )
    source, remedy = "the application default credentials", "set GOOGLE_APPLICATION_CREDENTIALS"
    place = Place.at("gs", endpoint, spec.place, spec.prefix)
    return Connection(backend, Bucket("gs", spec.place, endpoint, source, remedy), place, options.requests_in_flight)


def _az(spec: StoreSpec, environ: Environ) -> Connection:
    options = spec.values(AzureOptions)
    account = options.account or environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise Invalid(
            f"{spec.uri}: no storage account is configured",
            remedy="add ?account=NAME, or set AZURE_STORAGE_ACCOUNT_NAME",
        )
    endpoint = options.endpoint or _first(environ, _AZURE_ENDPOINT) or f"https://{account}.blob.core.windows.net"
    endpoint = canonical_endpoint(endpoint)
    config: AzureConfig = {
        "account_name": account,
        "endpoint": endpoint,
        "use_emulator": False,  # true beats the endpoint; the emulator is used by its endpoint like any other server
        "use_fabric_endpoint": False,
        "skip_signature": options.anonymous,
    }
    backend = AzureStore(
        spec.place,
        config=config,
        client_options=_client_options(spec, options, endpoint),
        retry_config=_NO_RETRIES,
        credential_provider=_az_provider(spec),
    )
    source, remedy = f"the credentials of account {account}", "set AZURE_STORAGE_ACCOUNT_KEY"
    place = Place.at("az", endpoint, spec.place, spec.prefix, account)
    return Connection(backend, Bucket("az", spec.place, endpoint, source, remedy), place, options.requests_in_flight)


def _client_options(spec: StoreSpec, options: CloudOptions, endpoint: str) -> "ClientConfig":
    plain = endpoint.startswith("http://")
    if plain and not options.allow_http:
        raise Invalid(f"{spec.uri}: {endpoint} has no TLS, and allow_http is false", remedy="use an https endpoint")
    return {
        "allow_http": plain,
        "connect_timeout": timedelta(milliseconds=options.connect_timeout_ms),
        "timeout": timedelta(milliseconds=options.request_timeout_ms),
    }


def _header_keys(credentials: Credentials) -> dict[str, str | None]:
    """Parts of the credentials that are sent in headers as they are."""
    if not isinstance(credentials, Keys):
        return {}
    return {"access key id": credentials.access_key_id, "session token": credentials.session_token}


def _check_headers(spec: StoreSpec, values: Mapping[str, str | None]) -> None:
    """Refuse what an HTTP header cannot carry: obstore panics over it."""
    for name, value in values.items():
        if value and not (value.isascii() and value.isprintable()):
            raise Invalid(
                f"{spec.uri}: the {name} contains a line end, or a character that an HTTP header cannot carry",
                remedy="remove what was pasted with it",
            )


def _s3_provider(keys: Keys) -> "Callable[[], S3Credential]":
    """obstore calls it once per client and keeps the answer."""
    answer: S3Credential = {
        "access_key_id": keys.access_key_id,
        "secret_access_key": keys.secret_access_key,
        "token": keys.session_token,
        "expires_at": None,
    }
    return lambda: answer


def _gs_provider(token: str) -> "Callable[[], GCSCredential]":
    answer: GCSCredential = {"token": token, "expires_at": None}
    return lambda: answer


def _az_provider(spec: StoreSpec) -> "Callable[[], AzureCredential] | None":
    answer: AzureCredential
    if key := spec.secret("account_key"):
        answer = {"access_key": key, "expires_at": None}
    elif token := spec.secret("sas_token"):
        answer = {"sas_token": token, "expires_at": None}
    else:
        return None
    return lambda: answer
