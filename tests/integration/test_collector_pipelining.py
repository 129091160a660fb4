"""Pipelined requests on one connection: answered in order, and no byte of a body is ever read as a request."""

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.telemetry import Gauge
from holdfast.telemetry.frame import encode, pack
from tests.integration.collectors import Running, collectors, make_token, request_head, witness
from tests.integration.run_places import folder
from tests.tidy.tree import ROOT

TLS = ROOT / "tests/golden/tls"
REQUESTS = 24


def frame(agent: str, seq: int) -> bytes:
    return encode(pack(agent, "boot", [Gauge("load", 1.0, 1)], seq_start=seq))


def request(token: str, body: bytes, seq: int, agent: str = "web-1") -> bytes:
    names = {"x_lightmetrics_agent": agent, "x_lightmetrics_seq_start": str(seq), "x_lightmetrics_seq_end": str(seq)}
    return request_head(token, len(body), **names).encode() + body


async def exchanged(running: Running, pieces: list[bytes], count: int) -> list[tuple[int, dict[str, object]]]:
    """Send without waiting for responses; so many of them, as they come."""
    place = urlsplit(running.ingest)
    context = None
    if place.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(place.hostname, place.port, ssl=context)
    found: list[tuple[int, dict[str, object]]] = []

    async def send() -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        group.create_task(send())
        while len(found) < count and (status := await reader.readline()):
            length = 0
            while (line := (await reader.readline()).strip()) != b"":
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            found.append((int(status.split()[1]), json.loads(await reader.readexactly(length))))
    writer.close()
    return found


@pytest.mark.parametrize("secured", [False, True])
async def test_pipelined_requests_are_answered_in_order_and_bodies_hold_no_requests(
    tmp_path: Path, secured: bool
) -> None:
    token = make_token(tmp_path / "tokens.toml", "web-*")
    files: dict[str, Any] = (
        {"tls_certificate_file": TLS / "certificate.pem", "tls_key_file": TLS / "key.pem"} if secured else {}
    )
    place = folder(tmp_path / "store")
    sent: list[bytes] = []
    for number in range(REQUESTS):
        hidden = request(token, frame("web-hidden", number), number, "web-hidden")
        sent.append(request(token, frame("web-1", number), number))
        sent.append(request(token, b"\0" * 5_000 + hidden * 40, number))  # no frame: refused after it was read
    with collectors(place, tmp_path / "tokens.toml", (), **files) as (running,):
        for size in (1_000_000, 7_919):
            data = b"".join(sent)
            pieces = [data[at : at + size] for at in range(0, len(data), size)]
            found = await exchanged(running, pieces, 2 * REQUESTS)
            assert [status for status, _ in found] == [200, 400] * REQUESTS
            assert [body["seq_start"] for status, body in found if status == 200] == list(range(REQUESTS))
    assert {agent for agent, *_ in witness(place.contents())} == {"web-1"}
