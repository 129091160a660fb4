"""The client against a scripted collector: the same bytes until a collector accepts them, and what it raises."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import Denied, Invalid
from holdfast.base.portal import Portal
from holdfast.server.app import ingest_app
from holdfast.telemetry import BatchConflict, Client, Gauge, Histogram, Undelivered
from holdfast.telemetry.frame import decode, pack
from tests.unit.server.server_desk import listening, server_desk

GOOD = (200, b'{"duplicate": false}')


def refusal(status: int, reason: str, retry_after: str | None = None) -> tuple[int, bytes, str | None]:
    error = {"kind": "k", "reason": reason, "message": "m", "remedy": "r"}
    return status, json.dumps({"error": error}).encode(), retry_after


class Collector:
    """Answers by its script, the last word for ever, and keeps the bodies."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        word = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        headers = [(b"retry-after", word[2].encode())] if len(word) > 2 and word[2] else []
        await send({"type": "http.response.start", "status": word[0], "headers": headers})
        await send({"type": "http.response.body", "body": word[1]})


@asynccontextmanager
async def client_of(*collectors: Collector, **options: Any) -> AsyncIterator[Client]:
    if len(collectors) == 1:
        async with listening(collectors[0]) as url:
            yield Client(url, agent_id="web-1", token="t", **{"backoff_ms": 1, **options})
        return
    async with listening(collectors[0]) as one, listening(collectors[1]) as two:
        yield Client([one, two], agent_id="web-1", token="t", **{"backoff_ms": 1, **options})


async def test_every_try_sends_the_same_bytes() -> None:
    collector = Collector(refusal(503, "unavailable"), refusal(429, "rate_limited"), (502, b"a proxy"), GOOD)
    async with client_of(collector) as client:
        receipt = await client.send([Gauge("load", 1.0, 1), Gauge("load", 2.0, 2)])
        assert (receipt.batches[0].tries, receipt.records) == (4, 2)
        assert len(set(collector.bodies)) == 1
        await client.send(Gauge("load", 3.0, 3))
    identities = [decode(body).identity for body in (collector.bodies[0], collector.bodies[-1])]
    assert [(its.seq_start, its.seq_end) for its in identities] == [(0, 1), (2, 2)]
    assert identities[0].boot_id == identities[1].boot_id == client.boot_id


async def test_another_collector_takes_over_and_is_kept() -> None:
    bad, good = Collector(refusal(503, "draining")), Collector(GOOD)
    async with client_of(bad, good) as client:
        for _ in range(3):
            await client.send(Gauge("load", 1.0, 1))
    assert (len(bad.bodies), len(good.bodies)) == (1, 3)


async def test_a_collector_that_is_gone_is_passed_over() -> None:
    good = Collector(GOOD)
    async with listening(good) as url:
        client = Client(["http://127.0.0.1:1", url], agent_id="web-1", token="t")
        assert (await client.send(Gauge("load", 1.0, 1))).batches[0].tries == 2


async def test_what_was_not_delivered_can_be_sent_later() -> None:
    collector = Collector(refusal(503, "unavailable"))
    async with client_of(collector, tries=2, batch_records=1) as client:
        with pytest.raises(Undelivered) as caught:
            await client.send([Gauge("load", float(number), number) for number in range(3)])
        assert len(caught.value.frames) == 3
        collector.script = [GOOD]
        numbers = [(await client.send_frame(frame)).identity.seq_start for frame in caught.value.frames]
        assert numbers == [0, 1, 2]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refusal(409, "identity_conflict"), BatchConflict),
        (refusal(401, "unauthenticated"), Denied),
        (refusal(403, "agent_not_allowed"), Denied),
        (refusal(400, "wrong_checksum"), Invalid),
        (refusal(413, "too_large"), Invalid),
        (refusal(422, "header_mismatch"), Invalid),
    ],
)
async def test_what_no_try_can_mend_is_raised_at_once(answer: Any, error: type[Exception]) -> None:
    collector = Collector(answer)
    async with client_of(collector) as client:
        with pytest.raises(error, match="web-1"):
            await client.send(Gauge("load", 1.0, 1))
    assert len(collector.bodies) == 1


async def test_what_is_no_collector_decides_nothing() -> None:
    collector = Collector((404, b"<html>"))
    async with client_of(collector, tries=2) as client:
        with pytest.raises(Undelivered, match="without the error document of a collector"):
            await client.send(Gauge("load", 1.0, 1))


async def test_nothing_is_sent_for_no_records() -> None:
    assert (await Client("http://127.0.0.1:1", agent_id="web-1", token="t").send([])).batches == ()


def test_a_client_that_cannot_work_is_refused(tmp_path: Path) -> None:
    for wrong in ({}, {"token": "a", "token_file": "b"}, {"token_file": tmp_path / "none"}):
        with pytest.raises(Invalid):
            Client("https://c", agent_id="web-1", **wrong)
    with pytest.raises(Invalid):
        Client([], agent_id="web-1", token="t")
    with pytest.raises(Invalid):
        Client("https://c", agent_id="", token="t")
    (tmp_path / "token").write_text("secret\n")
    made = Client("https://c", agent_id="a", token_file=tmp_path / "token", verify=ssl.create_default_context())
    assert made.next_seq == 0


async def test_with_a_block_connections_are_kept(tmp_path: Path) -> None:
    from holdfast.server.app import ingest_app

    async with server_desk(tmp_path) as desk, listening(ingest_app(desk.service)) as url:
        async with Client(url, agent_id="web-1", token=desk.token) as client:
            for number in range(3):
                await client.send(Gauge("load", float(number), number))
            with pytest.raises(Invalid):
                await client.__aenter__()
        assert desk.service.metrics.batches("new") == 3


def test_blocking_code_uses_it_through_the_portal() -> None:
    with Portal() as portal:
        collector = Collector(GOOD)
        url = portal.wait(_enter(portal, collector))
        client = portal.enter(Client(url, agent_id="web-1", token="t"))
        assert client.send([Gauge("load", 1.0, 1)]).records == 1
        portal.wait(client._thing.__aexit__(None, None, None))
        portal.wait(_LISTENERS.pop().__aexit__(None, None, None))


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(Invalid, match=r"'collector:8080' is not the URL of a collector\nhint: write https://host:port"):
        Client(["https://a:8080", "collector:8080"], agent_id="web-1", token="t")


@pytest.mark.parametrize(
    "url", ["http://", "https://:8080", "https://c:port", "http://[::1", "https://c?to=d", "https://c#d", "", "c"]
)
def test_an_address_that_names_no_collector_is_refused_at_once(url: str) -> None:
    with pytest.raises(Invalid, match="is not the URL of a collector"):
        Client(url, agent_id="web-1", token="t")


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(Invalid, match="is not the URL of a collector") as caught:
        Client("https://web:hunter2@c:8080", agent_id="web-1", token="t")
    assert "hunter2" not in str(caught.value)


def test_plain_http_to_another_machine_needs_the_unsafe_option() -> None:
    urls = ["https://a:8080", "http://b:8080"]
    with pytest.raises(Invalid, match="http://b is another machine") as caught:
        Client(urls, agent_id="web-1", token="hunter2")
    assert "hunter2" not in str(caught.value)
    assert Client(urls, agent_id="web-1", token="hunter2", unsafe_plain_http=True).pending == ()


def test_what_is_empty_is_called_that() -> None:
    with pytest.raises(Invalid, match=r"^agent id: it is empty\nhint: give a name of 1 to 120 bytes$"):
        Client("https://c", agent_id="", token="t")
    with pytest.raises(Invalid, match=r"^the token given is empty\nhint: pass what `holdfast tokens add` has printed$"):
        Client("https://c", agent_id="web-1", token="")


def test_a_file_of_certificates_that_cannot_be_used_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "text.pem").write_text("no certificate")
    for path, text in [
        (tmp_path / "none.pem", "No such file"),
        (tmp_path / "text.pem", "there is no certificate in it"),
    ]:
        for verify in (path, str(path)):
            with pytest.raises(Invalid, match=f"verify= {path}: .*{text}"):
                Client("https://c", agent_id="web-1", token="t", verify=verify)


_LISTENERS: list[Any] = []


async def _enter(portal: Portal, collector: Collector) -> str:
    manager = listening(collector)
    _LISTENERS.append(manager)
    return await manager.__aenter__()


@pytest.mark.parametrize("token", ["", " ", "hft_1_sécret", "hft_1_secret and more", "hft_1_secret\nx-more: 1"])
def test_a_token_that_no_header_can_hold_is_refused_at_once_and_not_shown(token: str) -> None:
    with pytest.raises(Invalid) as caught:
        Client("http://127.0.0.1:9", agent_id="web-1", token=token)
    assert "cret" not in f"{caught.value} {caught.value.remedy}"


async def test_a_token_may_end_as_the_line_of_a_file_does(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk, listening(ingest_app(desk.service)) as url:
        receipt = await Client(url, agent_id="web-1", token=f"{desk.token}\n", tries=1).send(Gauge("load", 1.0, 1))
        assert receipt.records == 1


@pytest.mark.parametrize("agent", [" web-1", "web-1 "])
def test_an_agent_that_no_header_can_name_is_refused(agent: str) -> None:
    with pytest.raises(Invalid, match="space"):
        Client("http://127.0.0.1:9", agent_id=agent, token="t")


async def test_what_is_no_record_is_refused_and_not_left_out() -> None:
    collector = Collector(GOOD)
    async with client_of(collector) as client:
        wrong: Any = [Gauge("load", 1.0, 1), {"name": "load"}, Gauge("load", 2.0, 2)]
        with pytest.raises(Invalid, match="record 1: dict"):
            await client.send(wrong)
        await client.send(Gauge("load", 3.0, 3))
    assert [decode(body).identity.seq_start for body in collector.bodies] == [0]


def grown(at: int, counts: tuple[int, ...], total: float, **more: Any) -> Histogram:
    bounds = tuple(float(each) for each in range(1, len(counts)))
    return Histogram("seconds", bounds, counts, total, at, cumulative=True, **more)


async def test_of_cumulative_histograms_the_differences_are_sent() -> None:
    collector = Collector(GOOD)
    async with client_of(collector) as client:
        await client.send([grown(1, (5, 1), 4.0), Gauge("load", 1.0, 1)])
        await client.send([grown(2, (7, 1), 5.0), grown(3, (7, 4), 9.0), grown(3, (1, 1), 2.0, labels={"path": "/"})])
        await client.send([grown(4, (2, 0), 1.5)])  # the source began again
        await client.send([grown(5, (3, 0, 9), 30.0), grown(6, (3, 1, 9), 32.0)])  # with other bounds
        with pytest.raises(Invalid):
            await client.send([grown(7, (9, 0, 9), 60.0), "no record"])  # type: ignore[list-item]  # wrong on purpose
        await client.send([grown(8, (4, 1, 9), 33.0)])
    sent = [each.record for body in collector.bodies for each in decode(body).records()]
    assert [(each.time_ns, each.counts, each.sum) for each in sent if isinstance(each, Histogram)] == [
        (2, (2, 0), 1.0),
        (3, (0, 3), 4.0),
        (4, (2, 0), 1.5),
        (6, (0, 1, 0), 2.0),
        (8, (1, 0, 0), 1.0),
    ]
    assert client.next_seq == len(sent) == 6
    with pytest.raises(Invalid, match="cumulative"):
        pack("a", "b", [grown(1, (1, 1), 1.0)], seq_start=0)
