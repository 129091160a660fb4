"""The client against a scripted collector: the same bytes until a collector accepts them, and what it raises."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.base.errors import Denied, Invalid
from holdfast.telemetry import BatchConflict, Client, Gauge, Histogram
from holdfast.telemetry.frame import decode, pack
from tests.unit.server.server_desk import listening
from tests.unit.telemetry.agent.fake_collector import FakeCollector, refusal


@asynccontextmanager
async def client_of(collector: FakeCollector) -> AsyncIterator[Client]:
    async with listening(collector) as url:
        yield Client(url, agent_id="web-1", token="t", backoff_ms=1)


async def test_every_try_sends_the_same_bytes() -> None:
    collector = FakeCollector(refusal(503, "unavailable"), refusal(429, "rate_limited"), (502, b"a proxy"))
    async with client_of(collector) as client:
        receipt = await client.send([Gauge("load", 1.0, 1), Gauge("load", 2.0, 2)])
        assert (receipt.batches[0].tries, receipt.records) == (4, 2)
        assert len(set(collector.bodies)) == 1
        await client.send(Gauge("load", 3.0, 3))
    identities = [decode(body).identity for body in (collector.bodies[0], collector.bodies[-1])]
    assert [(its.seq_start, its.seq_end) for its in identities] == [(0, 1), (2, 2)]
    assert identities[0].boot_id == identities[1].boot_id == client.boot_id


async def test_another_collector_takes_over_and_is_kept() -> None:
    bad, good = FakeCollector(refusal(503, "draining")), FakeCollector()
    async with listening(bad) as one, listening(good) as two:
        client = Client(["http://127.0.0.1:1", one, two], agent_id="web-1", token="t", backoff_ms=1)
        for _ in range(3):
            await client.send(Gauge("load", 1.0, 1))
    assert (len(bad.bodies), len(good.bodies)) == (1, 3)


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
async def test_an_error_that_no_retry_can_change_is_raised_at_once(answer: Any, error: type[Exception]) -> None:
    collector = FakeCollector(answer)
    async with client_of(collector) as client:
        with pytest.raises(error, match="web-1"):
            await client.send(Gauge("load", 1.0, 1))
    assert len(collector.bodies) == 1


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("https://c", {"token": None}, "token"),
        ("https://c", {"token": "a", "token_file": "b"}, "token"),
        ("https://c", {"token": None, "token_file": "/none"}, "/none"),
        ("https://c", {"token": ""}, r"^the token given is empty\nhint: pass what `holdfast tokens add` has printed$"),
        *(("https://c", {"token": text}, "token") for text in (" ", "hft_sécret", "secret and more", "secret\nx: 1")),
        ("https://c", {"agent_id": ""}, r"^agent id: it is empty\nhint: give a name of 1 to 120 bytes$"),
        ("https://c", {"agent_id": " web-1"}, "space"),
        ("https://c", {"agent_id": "web-1 "}, "space"),
        ("https://c", {"verify": "/none.pem"}, "verify= /none.pem: .*No such file"),
        ("https://c", {"verify": __file__}, "verify= .*there is no certificate in it"),
        ([], {}, "must not be empty"),
        (["https://a", "collector:8080"], {}, "'collector:8080' is not the URL of a collector\nhint: write https://h"),
        *((each, {}, "is not the URL of a collector") for each in ("", "c", "http://", "https://:8080", "http://[::1")),
        *((each, {}, "is not the URL of a collector") for each in ("https://c:port", "https://c?to=d", "https://c#d")),
        ("https://web:secret@c:8080", {}, "is not the URL of a collector"),
        (["https://a:8080", "http://b:8080"], {"token": "secret"}, "http://b is another machine"),
    ],
)
def test_invalid_arguments_are_refused_and_no_secret_is_shown(url: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        Client(url, **{"agent_id": "web-1", "token": "t", **options})
    assert "cret" not in f"{caught.value} {caught.value.remedy}"


async def test_an_argument_that_is_not_a_record_is_refused() -> None:
    collector = FakeCollector()
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
    collector = FakeCollector()
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
