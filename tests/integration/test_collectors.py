"""Collector processes on real stores: the same and conflicting batches, SIGKILL under load, SIGTERM, other modes.

Afterwards a witness that knows none of our code reads the objects: what was acknowledged is there, once.
"""

import asyncio
import hashlib
import json
import shutil
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.telemetry import BatchConflict, Client, Counter, Gauge, Log, Undelivered
from holdfast.telemetry.frame import encode, pack
from holdfast.telemetry.records import Record
from tests.integration.collectors import (
    await_start,
    begin,
    collectors,
    end,
    families,
    make_token,
    referred,
    witness,
)
from tests.integration.run_places import Place, folder, s3
from tests.integration.servers import S3Server
from tests.tidy.tree import ROOT

AGENTS = 4
BATCHES = 9


def frame(agent: str, number: int, variant: int = 0) -> bytes:
    records: list[Record] = [Gauge("load", float(number + variant), 1_000 + number)]
    records.append(Counter("requests", number, 1_000 + number))
    return encode(pack(agent, "boot", [*records, Log(f"batch {number}", 2_000)], seq_start=number * 3))


async def post(http: httpx.AsyncClient, url: str, token: str, body: bytes, number: int) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {token}", "x-lightmetrics-agent": "web-1"}
    seqs = {"x-lightmetrics-seq-start": str(number * 3), "x-lightmetrics-seq-end": str(number * 3 + 2)}
    answer = await http.post(f"{url}/ingest/v1/batch", content=body, headers=headers | seqs)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


class Ledger:
    """The answers to senders."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[str, str, int, int], set[str]] = {}
        self.new = 0
        self.conflicts = 0
        self.given_up = 0

    async def send(self, client: Client, body: bytes) -> bool:
        """Whether there was a verdict on it."""
        try:
            done = await client.send_frame(body)
        except BatchConflict:
            self.conflicts += 1
        except Undelivered:
            self.given_up += 1
            return False
        else:
            its = done.identity
            key = (its.agent_id, its.boot_id, its.seq_start, its.seq_end)
            self.acknowledged.setdefault(key, set()).add(hashlib.sha256(body).hexdigest())
            self.new += not done.duplicate
        return True


async def test_batches_survive_a_killed_collector_exactly_once(place: Place, tmp_path: Path) -> None:
    token = make_token(tmp_path / "tokens.toml", "web-*")
    with collectors(place, tmp_path / "tokens.toml", ("--collector-id", "a"), ("--collector-id", "b")) as (a, b):
        ledger = Ledger()
        progress = asyncio.Event()

        async def agent(number: int, urls: list[str], variants: int) -> None:
            name = f"web-{number}"
            async with Client(urls, agent_id=name, token=token, backoff_ms=10, tries=20) as client:
                for batch in range(BATCHES):
                    await asyncio.gather(*(ledger.send(client, frame(name, batch, each)) for each in range(variants)))
                    if batch == BATCHES // 3:
                        progress.set()

        async def killer() -> None:
            await progress.wait()
            a.process.kill()

        both = [a.ingest, b.ingest]
        senders = [
            agent(number, order, 1 + number % 2) for number in range(AGENTS) for order in (both, list(reversed(both)))
        ]
        await asyncio.gather(*senders, killer())
        code, log = end(b.process)

    assert code == 0, log
    contents = place.contents()
    accepted = witness(contents)
    assert len(accepted) == AGENTS * BATCHES
    assert ledger.given_up == 0
    assert {identity: {digest} for identity, digest in accepted.items()} == ledger.acknowledged
    assert ledger.new <= len(accepted)
    conflicting = sum(number % 2 for number in range(AGENTS)) * BATCHES
    assert ledger.conflicts == conflicting * 2
    assert families(contents)["quarantine"] == conflicting


async def test_a_query_collector_is_complete_and_others_say_that_they_are_not(
    ministack: S3Server, tmp_path: Path
) -> None:
    place = s3(ministack)
    token = make_token(tmp_path / "tokens.toml", "web-*")
    settings = {"follow_interval_ms": 50}
    with collectors(place, tmp_path / "tokens.toml", (), ("--query-collector",), **settings) as (plain, query):
        await Client(plain.ingest, agent_id="web-1", token=token).send_frame(frame("web-1", 1))
        await Client(query.ingest, agent_id="web-2", token=token).send_frame(frame("web-2", 2))
        async with httpx.AsyncClient(timeout=30) as http:
            own = (await http.get(f"{plain.private}/api/v1/live?name=load")).json()
            assert [series["agent"] for series in own["series"]] == ["web-1"]
            assert (own["complete"], bool(own["partial_because"])) == (False, True)
            while True:
                answer = (await http.get(f"{query.private}/api/v1/live?name=load")).json()
                if answer["complete"] and len(answer["series"]) == 2:
                    break
                await asyncio.sleep(0.05)
            assert [(series["agent"], series["points"]) for series in answer["series"]] == [
                ("web-1", [[1_001, 1.0]]),
                ("web-2", [[1_002, 2.0]]),
            ]
        end(plain.process)
        # A new one rebuilds what the others have accepted.
        again = await_start(begin(place, tmp_path / "tokens.toml"))
        try:
            async with httpx.AsyncClient(timeout=30) as http:
                while not (await http.get(f"{again.private}/readyz")).json()["live_rebuilt"]:
                    await asyncio.sleep(0.05)
                seen = (await http.get(f"{again.private}/api/v1/live?name=requests")).json()
        finally:
            end(again.process)
    assert [series["agent"] for series in seen["series"]] == ["web-1", "web-2"]


async def test_a_spool_accepts_without_the_store_and_modes_do_not_mix(tmp_path: Path) -> None:
    place = folder(tmp_path / "store")
    tokens, spool = tmp_path / "tokens.toml", tmp_path / "spool"
    token = make_token(tokens, "web-*")
    spooling = ("--acceptance", "local_spool", "--spool", str(spool))
    slow = {"object_landing_interval_ms": 3_600_000}
    with collectors(place, tokens, spooling, **slow) as (one,):
        client = Client(one.ingest, agent_id="web-1", token=token)
        assert not (await client.send_frame(frame("web-1", 1))).duplicate
        assert (await client.send_frame(frame("web-1", 1))).duplicate
        with pytest.raises(BatchConflict):
            await client.send_frame(frame("web-1", 1, variant=1))
        end(one.process, kill=True)
    assert witness(place.contents()) == {}
    with collectors(place, tokens, spooling, **slow) as (one,):
        async with httpx.AsyncClient(timeout=30) as http:
            while not (await http.get(f"{one.private}/readyz")).json()["live_rebuilt"]:
                await asyncio.sleep(0.05)
            live = (await http.get(f"{one.private}/api/v1/live?name=load")).json()
        assert (live["complete"], len(live["series"])) == (True, 1)
        assert (await Client(one.ingest, agent_id="web-1", token=token).send_frame(frame("web-1", 1))).duplicate
        other = begin(place, tokens)
        problem = json.loads(other.communicate(timeout=60)[1].splitlines()[-1])["error"]
        assert (other.returncode, problem["kind"]) == (7, "refused")
        code, log = end(one.process)
        assert code == 0, log
    contents = place.contents()
    assert set(witness(contents)) == {("web-1", "boot", 3, 5)}
    assert families(contents)["quarantine"] == 1


@pytest.mark.soak
@pytest.mark.parametrize("interval_ms", [3_600_000, 20], ids=["lands at the start", "lands all the time"])
async def test_a_spool_that_was_killed_shows_all_that_it_acknowledged_before_it_says_complete(
    ministack: S3Server, tmp_path: Path, interval_ms: int
) -> None:
    place, tokens = s3(ministack), tmp_path / "tokens.toml"
    token = make_token(tokens, "web-*")
    spooling = ("--acceptance", "local_spool", "--spool", str(tmp_path / "spool"))
    acknowledged: dict[int, int] = {}
    for start in range(0, 6, 2):  # few: these land fast
        with collectors(place, tokens, spooling, object_landing_interval_ms=interval_ms) as (one,):
            async with httpx.AsyncClient(timeout=30) as http, asyncio.timeout(60):
                live: dict[str, Any] = {"complete": False}
                while not live["complete"]:
                    live = (await http.get(f"{one.private}/api/v1/live?name=load&points=1000")).json()
                shown = {int(value) for series in live["series"] for _, value in series["points"]}
                assert shown == set(acknowledged)
                for number in range(start, start + 2):
                    answers = [await post(http, one.ingest, token, frame("web-1", number), number) for _ in range(2)]
                    assert [answer["duplicate"] for answer in answers] == [False, True]
                    acknowledged[number] = answers[0]["accepted_at_unix_ns"]
                    assert answers[1]["accepted_at_unix_ns"] == acknowledged[number]
            end(one.process, kill=True)
    with collectors(place, tokens, spooling) as (one,):
        code, log = end(one.process)
    assert code == 0, log
    contents = place.contents()
    assert referred(contents) == set(witness(contents))
    recorded = [json.loads(body) for key, body in contents.items() if key.startswith("accepted/v1/")]
    assert {each["seq_start"] // 3: each["accepted_at_unix_ns"] for each in recorded} == acknowledged


async def test_tls_is_spoken_where_batches_come_in(tmp_path: Path) -> None:
    place = folder(tmp_path / "store")
    token = make_token(tmp_path / "tokens.toml", "web-*")
    tls = ROOT / "tests" / "golden" / "tls"  # keys of no use to anybody but this test
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    shutil.copy(tls / "certificate.pem", certificate)
    shutil.copy(tls / "key.pem", key)
    options = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    with collectors(place, tmp_path / "tokens.toml", options) as (one,):
        assert one.ingest.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(tls / "certificate.pem"))
        receipt = await Client(one.ingest, agent_id="web-1", token=token, verify=trusted).send(Gauge("load", 1.0, 1))
        assert receipt.records == 1
        by_file = Client(one.ingest, agent_id="web-1", token=token, verify=tls / "certificate.pem")
        assert (await by_file.send(Gauge("load", 1.0, 1))).records == 1
        with pytest.raises(Undelivered, match=r"its certificate is not trusted: self-signed certificate \(.*verify="):
            await Client(one.ingest, agent_id="web-1", token=token, tries=1).send(Gauge("load", 1.0, 1))
        by_another_name = one.ingest.replace("127.0.0.1", "localhost")
        wrong_name = (
            r"certificate is for another name: Hostname mismatch.* \(use a name in the URL that is in its certificate\)"
        )
        with pytest.raises(Undelivered, match=wrong_name):
            await Client(by_another_name, agent_id="web-1", token=token, tries=1, verify=trusted).send(
                Gauge("load", 1.0, 1)
            )
        shutil.copy(tls / "second-key.pem", key)  # which does not belong to the certificate that is still there
        await Client(one.ingest, agent_id="web-1", token=token, verify=trusted).send(Gauge("load", 1.0, 1))
        shutil.copy(tls / "second-certificate.pem", certificate)
        renewed = ssl.create_default_context(cafile=str(tls / "second-certificate.pem"))
        sent = False
        while not sent:  # within a second or two
            with suppress(Undelivered):
                await Client(one.ingest, agent_id="web-1", token=token, verify=renewed, tries=1).send(
                    Gauge("a", 1.0, 1)
                )
                sent = True
        certificate.write_bytes(b"torn")
        await Client(one.ingest, agent_id="web-1", token=token, verify=renewed).send(Gauge("load", 1.0, 1))
    assert len(witness(place.contents())) == 5
