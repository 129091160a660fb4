"""How collector processes end: on one signal, on a second one, and what it answers meanwhile."""

import asyncio
import json
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from holdfast.telemetry import Client, Undelivered
from tests.integration.collectors import (
    FOR_PEOPLE,
    collectors,
    make_token,
    read_answer,
    referred,
    request_head,
    witness,
)
from tests.integration.run_places import folder
from tests.integration.test_collectors import frame


async def test_a_collector_finishes_requests_before_it_ends(tmp_path: Path) -> None:
    place = folder(tmp_path / "store")
    token = make_token(tmp_path / "tokens.toml", "*")
    with collectors(place, tmp_path / "tokens.toml", ("--query-collector",)) as (one,):
        async with Client(one.ingest, agent_id="web-1", token=token, tries=1) as client:
            sending = [asyncio.create_task(client.send_frame(frame("web-1", number))) for number in range(20)]
            await sending[0]
            one.process.terminate()
            outcomes = await asyncio.gather(*sending, return_exceptions=True)
        log = (await asyncio.to_thread(one.process.communicate))[1]
    assert one.process.returncode == 0, log
    assert {json.loads(line)["message"] for line in log.splitlines()} >= {"draining", "ended"}
    acknowledged = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert all(isinstance(outcome, Undelivered) for outcome in outcomes if isinstance(outcome, BaseException))
    contents = place.contents()
    found = witness(contents)
    assert {done.identity.seq_start for done in acknowledged} <= {identity[2] for identity in found}
    assert referred(contents) == set(found)


async def test_the_private_listener_reports_draining_while_a_request_finishes(tmp_path: Path) -> None:
    token = make_token(tmp_path / "tokens.toml", "*")
    body = frame("web-1", 0)
    with collectors(folder(tmp_path / "store"), tmp_path / "tokens.toml", ()) as (one,):
        place = urlsplit(one.ingest)
        with socket.create_connection((place.hostname, place.port), timeout=60) as slow:
            head = request_head(token, len(body), x_lightmetrics_seq_end="2")
            slow.sendall(head.encode() + body[:10])
            async with httpx.AsyncClient(base_url=one.private, timeout=60) as private:
                while "holdfast_ingest_under_way 1.0" not in (await private.get("/metrics")).text:
                    await asyncio.sleep(0.02)
                one.process.terminate()
                with suppress(httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError):  # not served any more
                    while True:
                        async with httpx.AsyncClient(base_url=one.ingest) as late:
                            await late.get("/healthz")
                for _ in range(3):
                    reported = await private.get("/readyz", headers={"connection": "close"})
                    assert (reported.status_code, reported.json()["error"]["reason"]) == (503, "draining")
                stream = await private.get("/api/v1/live/stream")  # ends at once, and delays no shutdown
                assert stream.text.startswith("event: hello")
            slow.sendall(body[10:])
            answer = read_answer(slow)
        assert answer is not None
        assert answer.status == 200
        log = (await asyncio.to_thread(one.process.communicate))[1]
    assert one.process.returncode == 0, log


@pytest.mark.parametrize("options", [("--listen", "0.0.0.0:0"), (FOR_PEOPLE,)])
async def test_a_second_signal_ends_at_once_and_every_log_line_is_json(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    token = make_token(tmp_path / "tokens.toml", "*")
    with collectors(folder(tmp_path / "store"), tmp_path / "tokens.toml", options) as (one,):
        place = urlsplit(one.ingest)
        with socket.create_connection((place.hostname, place.port), timeout=60) as slow:
            slow.sendall(request_head(token, 100).encode())
            async with httpx.AsyncClient(base_url=one.private, timeout=60) as private:
                while "holdfast_ingest_under_way 1.0" not in (await private.get("/metrics")).text:
                    await asyncio.sleep(0.02)
                one.process.terminate()
                while (await private.get("/readyz")).status_code == 200:
                    await asyncio.sleep(0.02)
            one.process.terminate()
            log = (await asyncio.to_thread(one.process.communicate, timeout=15))[1]  # less than it has to drain
    assert one.process.returncode == 143, log
    said = [json.loads(line)["message"] for line in log.splitlines()]
    assert [each for each in said if "has not been examined" in each]
    assert "cut short by a second signal" in said
    assert "ended" not in said
    plain = [each for each in said if "accepts connections from other machines without TLS" in each]
    assert bool(plain) == ("--listen" in options)
