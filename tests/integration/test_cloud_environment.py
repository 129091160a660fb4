"""Variables of the environment cannot redirect a store whose address is explicit, and cannot change its identity.

obstore reads the real environment by itself, so the tests set it. There are two servers: every request must reach the
one in the address, as the configured identity.
"""

import base64
import json

import pytest

from holdfast.objects.cloud import CloudStore
from holdfast.objects.store import CREATE
from holdfast.objects.uri import StoreSpec
from tests.integration.scripted_server import Answer, ScriptedServer

OK = Answer(200, b"", {"etag": '"e"', "x-goog-generation": "1"})
SECRETS = {
    "s3": (("access_key_id", "ours"), ("secret_access_key", "secret")),
    "gs": (("bearer_token", "ours"),),
    "az": (("account_key", base64.b64encode(b"k" * 32).decode()),),
}
IDENTITY = {"s3": "Credential=ours/", "gs": "Bearer ours", "az": "SharedKey ours:"}

OTHER = "THE-OTHER-SERVER"
SERVICE_ACCOUNT = json.dumps(
    {"gcs_base_url": OTHER, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
)
CASES: list[tuple[str, dict[str, str]]] = [
    ("s3", {"AWS_ENDPOINT": OTHER}),
    ("s3", {"AWS_ENDPOINT_URL": OTHER}),
    ("s3", {"AWS_ENDPOINT_URL_S3": OTHER}),
    ("s3", {"AWS_PROXY_URL": OTHER}),
    ("s3", {"AWS_BUCKET": "other"}),
    ("s3", {"AWS_REGION": "other"}),
    ("s3", {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}),
    ("s3", {"AWS_S3_EXPRESS": "true"}),
    ("s3", {"AWS_CONDITIONAL_PUT": "disabled"}),
    ("s3", {"AWS_SKIP_SIGNATURE": "true"}),
    ("s3", {"AWS_ACCESS_KEY_ID": "other", "AWS_SECRET_ACCESS_KEY": "other", "AWS_SESSION_TOKEN": "other"}),
    ("s3", {"AWS_SESSION_TOKEN": "other"}),
    ("gs", {"GOOGLE_BASE_URL": OTHER}),
    ("gs", {"GOOGLE_PROXY_URL": OTHER}),
    ("gs", {"GOOGLE_BUCKET": "other"}),
    ("gs", {"GOOGLE_SERVICE_ACCOUNT_KEY": SERVICE_ACCOUNT}),
    ("gs", {"GOOGLE_BEARER_TOKEN": "other"}),
    ("gs", {"GOOGLE_SKIP_SIGNATURE": "true"}),
    ("az", {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": OTHER}),
    ("az", {"AZURE_STORAGE_ENDPOINT": OTHER}),
    ("az", {"AZURE_ENDPOINT": OTHER}),
    ("az", {"AZURE_STORAGE_USE_FABRIC_ENDPOINT": "true"}),
    ("az", {"AZURE_PROXY_URL": OTHER}),
    ("az", {"AZURE_CONTAINER_NAME": "other"}),
    ("az", {"AZURE_STORAGE_ACCOUNT_NAME": "other"}),
    ("az", {"AZURE_STORAGE_ACCOUNT_KEY": "b3RoZXI="}),
    ("az", {"AZURE_STORAGE_TOKEN": "other"}),
    ("az", {"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=other"}),
    ("az", {"AZURE_CREDENTIAL_TYPE": "bearer_token", "AZURE_STORAGE_TOKEN": "other"}),
    ("az", {"AZURE_SKIP_SIGNATURE": "true"}),
]


@pytest.mark.parametrize(("scheme", "environ"), CASES, ids=[f"{scheme} {'+'.join(names)}" for scheme, names in CASES])
async def test_explicit_settings_win(scheme: str, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer(OK) as server, ScriptedServer(OK) as other:
        for name, value in environ.items():
            monkeypatch.setenv(name, value.replace(OTHER, other.endpoint))
        account = (("account", "ours"),) if scheme == "az" else ()
        region = (("region", "here"),) if scheme == "s3" else ()
        options = (("endpoint", server.endpoint), *account, *region)
        store = CloudStore(StoreSpec(scheme, "bucket", "", options, SECRETS[scheme]))
        await store.put("k", b"x", CREATE)
        assert other.seen == []
        assert server.seen == ["PUT /bucket/k"]
        headers = server.requests[0].headers
        assert IDENTITY[scheme] in headers["authorization"]
        assert "other" not in " ".join(headers.values())


OPEN: list[tuple[str, dict[str, str], list[str]]] = [
    (
        "s3",
        {
            "AWS_ENDPOINT_URL_S3": OTHER,
            "AWS_ACCESS_KEY_ID": "from-environ",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_SESSION_TOKEN": "session",
            "AWS_REGION": "mars-1",
        },
        ["Credential=from-environ/", "/mars-1/s3/", "session"],
    ),
    (
        "az",
        {
            "AZURE_STORAGE_ENDPOINT": OTHER,
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_STORAGE_ACCOUNT_KEY": "b3RoZXI=",
            "AZURE_STORAGE_USE_EMULATOR": "true",
        },
        ["SharedKey account:"],
    ),
]


@pytest.mark.parametrize(("scheme", "environ", "sent"), OPEN, ids=["s3", "az"])
async def test_the_environment_completes_an_address(
    scheme: str, environ: dict[str, str], sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedServer(OK) as server:
        for name, value in environ.items():
            monkeypatch.setenv(name, value.replace(OTHER, server.endpoint))
        await CloudStore(StoreSpec(scheme, "bucket")).put("k", b"x", CREATE)
        assert server.seen == ["PUT /bucket/k"]
        headers = " ".join(server.requests[0].headers.values())
        assert [text for text in sent if text not in headers] == []


async def test_an_explicit_endpoint_wins_over_one_inside_google_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer(OK) as server, ScriptedServer(OK) as other:
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", SERVICE_ACCOUNT.replace(OTHER, other.endpoint))
        store = CloudStore(StoreSpec("gs", "bucket", "", (("endpoint", server.endpoint),)))
        await store.put("k", b"x", CREATE)
        assert (server.seen, other.seen) == (["PUT /bucket/k"], [])
