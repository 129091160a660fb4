"""A bucket of the same name on two servers is two stores, whatever names the server."""

from pathlib import Path

import pytest

from holdfast.base.config import CacheSection, Settings
from holdfast.objects.open import open_store
from tests.integration.scripted_server import Answer, ScriptedServer


def serving(body: bytes) -> Answer:
    return Answer(
        200, body, {"etag": '"one"', "x-goog-generation": "1", "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    )


@pytest.mark.parametrize(
    ("uri", "variable"),
    [
        ("s3://bucket/p?anonymous=true", "AWS_ENDPOINT_URL"),
        ("s3://bucket/p?anonymous=true", "AWS_ENDPOINT"),
        ("gs://bucket/p?anonymous=true", "GOOGLE_BASE_URL"),
        ("az://bucket/p?anonymous=true&account=a", "AZURE_STORAGE_ENDPOINT"),
    ],
)
async def test_the_disk_cache_never_returns_the_bytes_of_another_server(
    uri: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(cache=CacheSection(dir=tmp_path))
    async with ScriptedServer(serving(b"of one")) as one, ScriptedServer(serving(b"of two")) as two:
        for server, body in ((one, b"of one"), (two, b"of two"), (one, b"of one")):
            monkeypatch.setenv(variable, f"{server.endpoint}/")
            async with open_store(uri, settings=settings, immutable=lambda key: True, any_format=True) as store:
                assert (await store.get("k")).body == body
        assert (len(one.requests), len(two.requests)) == (1, 1)
