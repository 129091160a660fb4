"""Garbage collection asks with credentials of its own, however it is started; other jobs do not."""

import asyncio

import pytest

from holdfast.cli.main import run
from tests.integration.scripted_server import Answer, ScriptedServer, error_body


@pytest.mark.parametrize(
    ("words", "who"),
    [
        (("gc", "run", "--apply"), "gc"),
        (("pipeline", "run", "gc", "--master", "local"), "gc"),
        (("pipeline", "run", "audit", "--master", "local"), "everybody"),
    ],
    ids=" ".join,
)
async def test_who_asks(words: tuple[str, ...], who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer(Answer(403, error_body("AccessDenied"))) as server:
        given = {
            "S3__ENDPOINT": server.endpoint,
            "S3__ALLOW_HTTP": "true",
            "S3__REGION": "us-east-1",
            "S3__ACCESS_KEY_ID": "everybody",
            "S3__SECRET_ACCESS_KEY": "secret",
            "GC__ACCESS_KEY_ID": "gc",
            "GC__SECRET_ACCESS_KEY": "another",
            "RETRY__ATTEMPTS": "1",
        }
        for name, value in given.items():
            monkeypatch.setenv(f"HOLDFAST_{name}", value)
        assert await asyncio.to_thread(run, [*words, "--store", "s3://bucket/prefix"]) != 0
        answer = [each.headers["authorization"] for each in server.requests]
        assert answer
        assert all(f"Credential={who}/" in each for each in answer)
