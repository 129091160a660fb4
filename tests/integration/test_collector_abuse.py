"""Senders that a collector must survive: slow, oversized, lying, forged, unknown. Right status, bounded memory."""

import asyncio
import fcntl
import re
import socket
import struct
import termios
import time
from array import array
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.telemetry import Client, Gauge
from holdfast.telemetry.frame import encode, pack
from tests.integration.collectors import (
    Answer,
    Running,
    collectors,
    end,
    exchange,
    make_token,
    read_answer,
    request_head,
    sealed,
    witness,
)
from tests.integration.run_places import folder
from tests.leftovers import adopt

FRAME = encode(pack("web-1", "boot", [Gauge("load", 1.0, 1)], seq_start=0))
LIMITS: dict[str, Any] = {
    "header_timeout_ms": 300,
    "body_timeout_ms": 300,
    "frame_bytes": 1_000_000,
    "payload_bytes": 4_000_000,
    "connections": 40,
    "concurrency": 4,
    "private_names": "metrics.example, other.example",
}
MEGABYTE = 1_000_000


class Desk:
    def __init__(self, root: Path, running: Running, token: str) -> None:
        self.root = root
        self.running = running
        self.token = token

    def ask(
        self, body: bytes = FRAME, *, size: int | None = -1, token: str | None = "", **headers: str | None
    ) -> Answer:
        declared = len(body) if size == -1 else size
        head = request_head(self.token if token == "" else token, declared, **headers)
        answer = exchange(self.running.ingest, head, body)
        assert answer is not None
        return answer

    def connect(self) -> socket.socket:
        place = urlsplit(self.running.ingest)
        return socket.create_connection((place.hostname, place.port), timeout=30)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    root = tmp_path_factory.mktemp("abuse")
    token = make_token(root / "tokens.toml", "web-*")
    with collectors(folder(root / "store"), root / "tokens.toml", (), **LIMITS) as (running,):
        adopt(running.process.pid)
        yield Desk(root, running, token)


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"token": None}, 401, "unauthenticated"),
        ({"token": "hft_00000000_" + "0" * 64}, 401, "unauthenticated"),
        ({"token": "hft_\u00e9"}, 401, "unauthenticated"),
        ({"authorization": "Basic d2ViOg=="}, 401, "unauthenticated"),
        ({"x_lightmetrics_agent": "db-1"}, 403, "agent_not_allowed"),
        ({"x_lightmetrics_agent": None}, 400, "missing_header"),
        ({"x_lightmetrics_seq_end": None}, 400, "missing_header"),
        ({"x_lightmetrics_seq_start": "-1"}, 400, "bad_header"),
        ({"x_lightmetrics_agent": "web-\u00e9"}, 400, "bad_header"),
        ({"x_lightmetrics_agent": "web-2"}, 422, "header_mismatch"),
        ({"x_lightmetrics_seq_start": "1"}, 422, "header_mismatch"),
        ({"x_lightmetrics_seq_end": "9"}, 422, "header_mismatch"),
        ({"content_encoding": "gzip"}, 415, "content_encoding"),
        ({"size": None}, 411, "length_required"),
        ({"size": None, "transfer_encoding": "chunked", "body": b"0\r\n\r\n"}, 411, "length_required"),
        ({"size": 5 * MEGABYTE}, 413, "too_large"),
        ({"body": FRAME[:-1]}, 400, "wrong_length"),
        ({"body": FRAME[:-1] + b"\0"}, 400, "wrong_checksum"),
        ({"body": b"\0" * 100}, 400, "bad_magic"),
        ({"body": b""}, 400, "bad_magic"),
    ],
)
def test_an_invalid_request_gets_status_and_reason(desk: Desk, change: dict, status: int, reason: str) -> None:
    answer = desk.ask(**change)
    assert (answer.status, answer.error["reason"]) == (status, reason)
    assert list(answer.error) == ["kind", "reason", "message", "remedy"]
    assert all(answer.error.values())
    assert answer.phrase == HTTPStatus(status).phrase
    assert ("www-authenticate" in answer.headers) == (status == 401)


def test_a_token_is_refused_for_another_agent(desk: Desk) -> None:
    stolen = encode(pack("web-2", "boot", [Gauge("load", 1.0, 1)], seq_start=0))
    own = make_token(desk.root / "tokens.toml", "web-1")
    eventually(lambda: desk.ask(token=own).status == 200)
    assert desk.ask(stolen, token=own, x_lightmetrics_agent="web-2").status == 403
    # The headers name an agent that the token is for, the body another.
    assert desk.ask(stolen, token=own).error["reason"] == "header_mismatch"


def test_a_decompression_bomb_is_refused_before_it_is_decompressed(desk: Desk) -> None:
    before = desk.running.resident_bytes
    bomb = bytearray(FRAME)
    bomb[20:24] = struct.pack("<I", 2**31 - 1)  # unpacks to two gigabytes, it says
    assert desk.ask(sealed(bomb)).error["reason"] == "too_large"
    many = bytearray(FRAME)
    many[32:40] = struct.pack("<Q", 2**32)
    many[40:44] = struct.pack("<I", 2**32 - 1)
    answer = desk.ask(sealed(many), x_lightmetrics_seq_end=str(2**32))
    assert (answer.status, answer.error["reason"]) == (413, "too_large")
    lying = bytearray(FRAME)
    lying[20:24] = struct.pack("<I", 3_000_000)  # within the limits, and not true
    assert desk.ask(sealed(lying)).status == 400
    assert desk.running.resident_bytes - before < 50 * MEGABYTE


def test_bytes_beyond_the_content_length_are_not_part_of_the_body(desk: Desk) -> None:
    # The bytes after the declared ones are another request to the server, and not HTTP.
    head = request_head(desk.token, len(FRAME))
    with desk.connect() as connection:
        connection.sendall(head.encode() + FRAME + b"\0" * 1_000)
        answers = b""
        while part := connection.recv(65_536):
            answers += part
    assert re.findall(rb"HTTP/1\.1 (\d+) ", answers) in ([b"200"], [b"200", b"400"])


def test_endless_bodies_use_no_memory(desk: Desk) -> None:
    before = desk.running.resident_bytes
    for size in (10**12, None):
        with desk.connect() as connection:
            connection.sendall(request_head(desk.token, size, transfer_encoding=None if size else "chunked").encode())
            sent = 0
            try:
                while sent < 20 * MEGABYTE:
                    connection.sendall(b"fffff\r\n" + b"\0" * 0xFFFFF + b"\r\n")
                    sent += MEGABYTE
            except OSError:
                pass  # the server has closed
    assert desk.running.resident_bytes - before < 30 * MEGABYTE


def test_a_flood_of_connections_does_not_exclude_senders(tmp_path: Path) -> None:
    token = make_token(tmp_path / "tokens.toml", "web-*")
    patient = {"header_timeout_ms": 600_000}
    with collectors(folder(tmp_path / "store"), tmp_path / "tokens.toml", (), files=96, **patient) as (few,):
        at = urlsplit(few.ingest)
        flood = [socket.create_connection((at.hostname, at.port), timeout=60) for _ in range(200)]
        try:
            for _ in range(3):
                answer = exchange(few.ingest, request_head(token, len(FRAME)), FRAME, timeout=60)
                assert answer is not None
                assert answer.status == 200
            evicted = read_answer(flood[0])
            assert evicted is not None
            assert (evicted.status, evicted.error["reason"]) == (503, "overloaded")
        finally:
            for connection in flood:
                connection.close()
        _, log = end(few.process)
    assert "a listener takes 24 connections" in log


@pytest.mark.parametrize(
    ("headers", "status", "reason"),
    [
        ({"host": "localhost:8081"}, 200, None),
        ({"host": "[::1]"}, 200, None),
        ({"host": "10.0.0.7:80"}, 200, None),
        ({"host": "Metrics.Example"}, 200, None),
        ({"host": "evil.example"}, 421, "misdirected"),
        ({"host": "localhost.evil.example"}, 421, "misdirected"),
        ({"host": "[::1]:8081"}, 200, None),
        *(
            ({"host": host}, 421, "misdirected")
            for host in (
                "[::1]evil.example",
                "localhost:evil.example",
                "[localhost]",
                "[::1%evil]",
                "[::1",
                "::1",
                "[127.0.0.1]",
            )
        ),
        ({"host": "localhost", "Host": "evil.example"}, 400, None),
        ({"host": "localhost:8081", "origin": "http://localhost:8081"}, 200, None),
        ({"host": "localhost:8081", "origin": "http://localhost:3000"}, 403, "foreign_origin"),
        ({"host": "localhost:8081", "origin": "https://localhost:8081"}, 403, "foreign_origin"),
        ({"host": "localhost:8081", "origin": "http://evil.example"}, 403, "foreign_origin"),
        ({"host": "127.0.0.1", "origin": "null"}, 403, "foreign_origin"),
        ({"host": "localhost", "origin": "http://localhost", "Origin": "http://evil.example"}, 400, "bad_request"),
    ],
)
def test_the_private_listener_answers_only_for_its_own_names(
    desk: Desk, headers: dict[str, str], status: int, reason: str | None
) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    answer = exchange(desk.running.private, f"GET /api/v1/live HTTP/1.1\r\n{lines}\r\n")
    assert answer is not None
    assert answer.status == status
    assert reason is None or answer.error["reason"] == reason


def test_unread_logs_block_nothing(tmp_path: Path) -> None:
    token = make_token(tmp_path / "tokens.toml", "web-*")
    with collectors(folder(tmp_path / "store"), tmp_path / "tokens.toml", ()) as (one,):
        assert one.process.stderr is not None
        room = fcntl.fcntl(one.process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        full = array("i", [0])
        while full[0] < room - 1_000:  # a refusal is a line of some hundred bytes
            assert exchange(one.ingest, request_head(None, 0), timeout=30) is not None
            fcntl.ioctl(one.process.stderr, termios.FIONREAD, full)
        for _ in range(60):
            refused = exchange(one.ingest, request_head(None, 0), timeout=30)
            assert refused is not None
            assert refused.status == 401
        taken = exchange(one.ingest, request_head(token, len(FRAME)), FRAME)
        assert taken is not None
        assert taken.status == 200
        one.process.terminate()
        assert one.process.wait(timeout=60) == 0


def test_the_collector_still_works_and_accepted_nothing_else(desk: Desk) -> None:
    sent = asyncio.run(Client(desk.running.ingest, agent_id="web-9", token=desk.token).send(Gauge("load", 1.0, 1)))
    accepted = witness(folder(desk.root / "store").contents())
    assert {agent for agent, *_ in accepted} <= {"web-1", "web-9"}
    assert sent.batches[0].identity.agent_id in {agent for agent, *_ in accepted}


def eventually(check: object) -> None:
    assert callable(check)
    deadline = time.monotonic() + 20
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)
