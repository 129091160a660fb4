"""From a target to a client, with every choice made explicit.

S3 is asked directly (``direct``) where keys are known and no proxy stands between; obstore is then made only for what
that leaves: listings, uploads in parts, many deletes in one request, large bodies.

obstore reads the environment by itself, value by value: a session token found there would go with keys from a file, and
``AWS_ENDPOINT_URL_S3`` would beat an endpoint that was given. So what matters is decided here and passed on in full;
keys go through a credential provider, which leaves no room for others. obstore's own retries are off: ``retry`` and
``settle`` are the only layers that may repeat a request. Nothing here contacts anybody.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import quote

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from holdfast.base.errors import Invalid
from holdfast.objects.cloud.credentials import (
    WHERE_TO_PUT_KEYS,
    Credentials,
    Environ,
    Keys,
    Profile,
    Role,
    Unsigned,
    find_credentials,
    read_profile,
)
from holdfast.objects.cloud.direct import Bucket, Direct, is_straight
from holdfast.objects.cloud.errors import Place
from holdfast.objects.cloud.sdk import Backend, Sdk
from holdfast.objects.cloud.versions import Etags, Generations, Versions
from holdfast.objects.uri import StoreSpec, check_endpoint

if TYPE_CHECKING:  # obstore's typed dictionaries exist for type checkers only
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig, S3Config, S3Credential

_NO_RETRIES: "RetryConfig" = {"max_retries": 0}
_CONNECT_MS = 5_000
_REQUEST_MS = 30_000


@dataclass(frozen=True)
class Client:
    """Nothing of obstore's is made before it is wanted."""

    target: StoreSpec
    make: Callable[[], Backend]
    place: Place
    versions: Versions
    bulk_delete: bool = False
    """Many keys in one request, each answered for; without it obstore stops at the first missing key."""
    direct: Direct | None = None

    @cached_property
    def backend(self) -> Backend:
        try:
            return self.make()
        except (BaseError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise Invalid(f"{self.target.uri}: these settings do not work: {reason}", remedy="correct them") from None

    @cached_property
    def sdk(self) -> Sdk:
        return Sdk(self.backend, self.versions)


def connect(target: StoreSpec, environ: Environ) -> Client:
    client = {"s3": _s3, "gs": _gs, "az": _az}[target.scheme](target, environ)
    if client.direct is None:
        _ = client.backend  # settings that cannot work are refused at once
    return client


class _Aws:
    """S3 settings by precedence: the target, the AWS environment, the profile (read only if it comes to that)."""

    def __init__(self, target: StoreSpec, environ: Environ) -> None:
        self._target = target
        self._environ = environ

    @cached_property
    def profile(self) -> Profile:
        return read_profile(self._target, self._environ)

    def find(self, option: str, variables: tuple[str, ...], in_profile: str) -> str | None:
        given = self._target.text(option)
        from_environ = next((value for name in variables if (value := self._environ.get(name))), None)
        return given or from_environ or self.profile.values.get(in_profile)


def _s3(target: StoreSpec, environ: Environ) -> Client:
    aws = _Aws(target, environ)
    region = aws.find("region", ("AWS_REGION", "AWS_DEFAULT_REGION"), "region") or "us-east-1"
    given = aws.find("endpoint", ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"), "endpoint_url")
    in_host = target.switch("virtual_hosted_style", default=False)
    config: S3Config = {
        "region": region,
        "virtual_hosted_style_request": in_host,
        "disable_bulk_delete": not target.switch("bulk_delete", default=True),
    }
    endpoint = given or f"https://s3.{region}.amazonaws.com"
    endpoint = _with_bucket(target, endpoint) if in_host else endpoint.rstrip("/")
    if given:
        config["aws_endpoint_url_s3"] = endpoint
    if sse := target.text("sse"):
        config["server_side_encryption"] = sse
    if key_id := target.text("sse_kms_key_id"):
        config["sse_kms_key_id"] = key_id
    if metadata := environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        config["metadata_endpoint"] = metadata.rstrip("/")
    credentials = find_credentials(target, environ, lambda: aws.profile)
    _check_headers(target, region, key_id, credentials)
    config["skip_signature"] = isinstance(credentials, Unsigned)
    http = _http(target, endpoint)

    def make() -> Backend:
        return S3Store(
            target.place,
            config=config,
            client_options=http,
            retry_config=_NO_RETRIES,
            credential_provider=_provider(credentials) if isinstance(credentials, Keys) else None,
        )

    place = Place("s3", target.place, endpoint, credentials.source, WHERE_TO_PUT_KEYS)
    unquoted = target.switch("unquoted_if_match", default=False)
    direct = None
    if is_straight(environ) and not isinstance(credentials, Role):
        direct = Direct(_bucket(target, endpoint, region, in_host=in_host, unquoted=unquoted), credentials)
    return Client(target, make, place, Etags(unquoted=unquoted), not config["disable_bulk_delete"], direct)


def _check_headers(target: StoreSpec, region: str, key_id: str | None, credentials: Credentials) -> None:
    """What goes into headers must fit into one, wherever it was found."""
    keys = credentials if isinstance(credentials, Keys) else None
    values = {
        "region": region,
        "sse_kms_key_id": key_id,
        "access key id": keys and keys.access_key_id,
        "session token": keys and keys.session_token,
    }
    for name, value in values.items():
        if value and not (value.isascii() and value.isprintable()):
            raise Invalid(
                f"{target.uri}: the {name} holds a line end, or a letter that no request can carry",
                remedy="look for what was pasted with it",
            )


def _bucket(target: StoreSpec, endpoint: str, region: str, *, in_host: bool, unquoted: bool) -> Bucket:
    named = {
        "x-amz-server-side-encryption": target.text("sse"),
        "x-amz-server-side-encryption-aws-kms-key-id": target.text("sse_kms_key_id"),
    }
    return Bucket(
        address=check_endpoint(target.uri, endpoint),
        path="" if in_host else f"/{quote(target.place)}",
        region=region,
        unquoted_if_match=unquoted,
        encryption=tuple((name, value) for name, value in named.items() if value),
        connect_seconds=target.number("connect_timeout_ms", default=_CONNECT_MS) / 1000,
        request_seconds=target.number("request_timeout_ms", default=_REQUEST_MS) / 1000,
    )


def _gs(target: StoreSpec, environ: Environ) -> Client:
    """Credentials that the target does not have, obstore takes from ``GOOGLE_*`` by itself."""
    given = target.endpoint or environ.get("GOOGLE_BASE_URL")
    endpoint = (given or "https://storage.googleapis.com").rstrip("/")
    config: GCSConfig = {"skip_signature": target.switch("anonymous", default=False)}
    if given:
        config["base_url"] = endpoint
    if key := target.secret("service_account_key"):
        config["service_account_key"] = key
    if token := target.secret("bearer_token"):
        config["bearer_token"] = token
    http = _http(target, endpoint)

    def make() -> Backend:
        return GCSStore(target.place, config=config, client_options=http, retry_config=_NO_RETRIES)

    source, remedy = "the application default credentials", "set GOOGLE_APPLICATION_CREDENTIALS"
    place = Place("gs", target.place, endpoint, source, remedy)
    return Client(target, make, place, Generations())


def _az(target: StoreSpec, environ: Environ) -> Client:
    """Credentials that the target does not have, obstore takes from ``AZURE_*`` by itself."""
    account = target.text("account") or environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise Invalid(
            f"{target.uri}: which storage account?", remedy="add ?account=NAME, or set AZURE_STORAGE_ACCOUNT_NAME"
        )
    given = target.endpoint or environ.get("AZURE_STORAGE_ENDPOINT")
    endpoint = (given or f"https://{account}.blob.core.windows.net").rstrip("/")
    config: AzureConfig = {"account_name": account, "skip_signature": target.switch("anonymous", default=False)}
    if given:
        config["endpoint"] = endpoint
    if key := target.secret("account_key"):
        config["account_key"] = key
    if token := target.secret("sas_token"):
        config["sas_key"] = token
    http = _http(target, endpoint)

    def make() -> Backend:
        return AzureStore(target.place, config=config, client_options=http, retry_config=_NO_RETRIES)

    source, remedy = f"the credentials of account {account}", "set AZURE_STORAGE_ACCOUNT_KEY"
    place = Place("az", target.place, endpoint, source, remedy)
    return Client(target, make, place, Etags())


def _http(target: StoreSpec, endpoint: str) -> "ClientConfig":
    plain = check_endpoint(target.uri, endpoint).scheme == "http"
    if plain and not target.switch("allow_http", default=True):
        raise Invalid(f"{target.uri}: {endpoint} has no TLS, and allow_http is false", remedy="use an https endpoint")
    return {
        "allow_http": plain,
        "connect_timeout": timedelta(milliseconds=target.number("connect_timeout_ms", default=_CONNECT_MS)),
        "timeout": timedelta(milliseconds=target.number("request_timeout_ms", default=_REQUEST_MS)),
    }


def _with_bucket(target: StoreSpec, endpoint: str) -> str:
    """The endpoint with the bucket in its host name, so that it means the same server in both styles."""
    parts = check_endpoint(target.uri, endpoint)
    host = parts.netloc if parts.netloc.startswith(f"{target.place}.") else f"{target.place}.{parts.netloc}"
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}"


def _provider(keys: Keys) -> "Callable[[], S3Credential]":
    """obstore asks once per client and keeps the answer."""
    answer: S3Credential = {
        "access_key_id": keys.access_key_id,
        "secret_access_key": keys.secret_access_key,
        "token": keys.session_token,
        "expires_at": None,
    }
    return lambda: answer
